"""The tasks of the table: the first attempt works and writes down what it sees, later ones come and go."""

import ctypes
import os
import sys
import time

from celery.worker.control import control_command

from anarchon_celery import headers
from tests.cluster.app import app, wrote
from tests.cluster.endings.ways import LONG, SHORT


@control_command(args=[('queues', list)])
def join(state, queues):
    """Take messages of these queues too."""
    for queue in queues:
        state.consumer.call_soon(state.consumer.add_task_queue, queue)
    return {'ok': len(queues)}


@control_command()
def leave(state):
    """Take no more messages of the queue that this worker is named after."""
    state.consumer.call_soon(state.consumer.cancel_task_queue, state.hostname.partition('@')[0])


if version := os.environ.get('ENDINGS_HEADER_VERSION'):
    headers.VERSION = int(version)  # this worker is of another release


def body(work):
    """Make a task of what the first attempt does."""

    def task(self, *args):
        wrote(self.lease, 'start')
        if self.lease.attempt == 1:
            try:
                work(self.lease, *args)
            except BaseException as reason:
                wrote(self.lease, f'raised {type(reason).__name__}')
                raise
        wrote(self.lease, 'end')

    return app.task(bind=True, name=f'{__name__}.{work.__name__}')(task)


@body
def cooperative(lease):
    """Looks at its lease."""
    lease.wait(LONG)


@body
def unaware(lease):
    """Never looks, and comes to its end in time."""
    work_until(time.monotonic() + SHORT)


@body
def sleeping(lease):
    """Never looks, and is in one long call."""
    time.sleep(LONG)


@body
def busy(lease):
    """Never looks, and computes in Python."""
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        sum(range(1000))


@body
def swallowing(lease):
    """Swallows each exception that there is."""
    seen, until = set(), time.monotonic() + LONG
    while time.monotonic() < until:
        try:
            time.sleep(0.05)
            lease.check()
        except Exception as reason:
            if type(reason) not in seen:
                seen.add(type(reason))
                wrote(lease, f'swallowed {type(reason).__name__}')


@body
def in_c(lease):
    """Is in C code that keeps the interpreter's lock, as a regular expression may; but it takes no CPU."""
    mutex = ctypes.create_string_buffer(64)  # zeros are PTHREAD_MUTEX_INITIALIZER
    end = time.time() + LONG
    until = (ctypes.c_long * 2)(int(end), int(end % 1 * 1e9))
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_timedlock(mutex, until)  # unlike a sleep, no signal interrupts it


@body
def exits(lease):
    """Calls sys.exit()."""
    time.sleep(1)
    sys.exit(3)


@body
def fails(lease):
    """Raises."""
    time.sleep(1)
    raise ValueError('no good')


@app.task
def filler():
    """Is there to give a pool something to do."""
    time.sleep(0.2)


if 'ENDINGS_UNKNOWN' not in os.environ:

    @body
    def stranger(lease):
        """Is known to some workers only."""


def work_until(end):
    while time.monotonic() < end:
        time.sleep(0.05)

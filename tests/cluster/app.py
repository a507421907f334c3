"""The app that the cluster's processes run: what it does is told by the environment.

Each body appends what it does to a file, a JSON line a time, so that a test can compare what the
tasks themselves saw with what the store recorded.
"""

import ctypes
import json
import os
import time

import redis
from celery import Celery
from celery import Task as PlainTask

import anarchon_celery
import example_project.whole_messages  # noqa: F401
from anarchon_celery.fencing import fenced_hset

app = Celery('tests.cluster.app', task_cls=anarchon_celery.Task)
app.conf.update(json.loads(os.environ['CLUSTER_CONF']))
for entry in app.conf.beat_schedule.values():
    if isinstance(entry['schedule'], dict):  # such as {'once': '2026-10-10T12:00:00Z'}
        ((kind, text),) = entry['schedule'].items()
        entry['schedule'] = getattr(anarchon_celery, kind)(text)
HISTORY = os.environ['CLUSTER_HISTORY']


def wrote(lease, event):
    """Append one line; O_APPEND makes a short write one piece."""
    line = {
        'job': lease.job,
        'slot': lease.slot and lease.slot.isoformat(),
        'attempt': lease.attempt,
        'fence': lease.fence,
        'event': event,
        'trusts': lease.remaining > 0,
        'at': time.time(),
        'pid': os.getpid(),
    }
    with open(HISTORY, 'ab', buffering=0) as file:
        file.write(json.dumps(line).encode() + b'\n')


@app.task(bind=True)
def quick(self):
    wrote(self.lease, 'start')


@app.task(bind=True)
def slow(self, seconds):
    """Work in small steps, and stop when asked."""
    wrote(self.lease, 'start')
    try:
        for _ in range(round(seconds * 10)):
            self.lease.wait(0.1)
    except (anarchon_celery.LeaseLost, anarchon_celery.HandedOver) as ended:
        wrote(self.lease, type(ended).__name__)
        raise
    wrote(self.lease, 'end')


@app.task(bind=True)
def deaf(self, url):
    """Without a look at the lease: wait for a key, write to what checks no fence, and to what does."""
    wrote(self.lease, 'start')
    with redis.Redis.from_url(url) as client:
        while not client.exists('go'):
            time.sleep(0.05)
        try:
            client.set('unchecked', self.lease.attempt)
            fenced_hset(client, 'checked', {'attempt': self.lease.attempt})
        except anarchon_celery.StaleFence as refused:
            wrote(self.lease, f'StaleFence {refused.stored}')
            raise
    wrote(self.lease, 'end')


@app.task(bind=True)
def computing(self, seconds):
    """Compute, and never yield."""
    wrote(self.lease, 'start')
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    wrote(self.lease, 'end')


@app.task(bind=True)
def in_c_code(self, seconds):
    """Keep the interpreter's lock, as a regular expression may; but take no CPU."""
    wrote(self.lease, 'start')
    mutex = ctypes.create_string_buffer(64)  # zeros are PTHREAD_MUTEX_INITIALIZER
    until = (ctypes.c_long * 2)(int(time.time()) + seconds, 0)
    libc = ctypes.PyDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_timedlock(mutex, until)
    wrote(self.lease, 'end')


@app.task(base=PlainTask)
def plain(job):
    """An existing task, without the base class."""
    with open(HISTORY, 'ab', buffering=0) as file:
        file.write(json.dumps({'job': job, 'event': 'start', 'at': time.time()}).encode() + b'\n')

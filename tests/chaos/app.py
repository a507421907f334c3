"""The app that the cluster's nodes run; its settings and where it writes come by the environment."""

from __future__ import annotations

import functools
import json
import os
import threading
import time

import redis
from celery import Celery
from celery.signals import beat_init, worker_ready

import anarchon_celery
from anarchon_celery import signals
from anarchon_celery.fencing import fenced_hset
from anarchon_celery.slots import EPOCH
from tests.chaos.jobs import resource_of
from tests.chaos.journal import Journal
from tests.chaos.processor import Waits

app = Celery('tests.chaos.app', task_cls=anarchon_celery.Task)
app.conf.update(json.loads(os.environ['CHAOS_CONF']))
for entry in app.conf.beat_schedule.values():
    if isinstance(entry['schedule'], dict):  # such as {'once': '2100-01-01T00:00:00Z'}
        ((kind, text),) = entry['schedule'].items()
        entry['schedule'] = getattr(anarchon_celery, kind)(text)

NODE, MAIN = os.environ['CHAOS_NODE'], os.getpid()
journal = Journal(os.environ['CHAOS_HISTORY'])

#: How often a process looks whether it is given the processor, and what is worth saying of that (seconds).
LOOK_EVERY, WORTH_SAYING, STARVED = 0.5, 0.25, 0.05


# what the tasks do and write ----------------------------------------------------------------------


class Saying:
    """What the body of one run writes."""

    def __init__(self, lease):
        self.lease, self.slot = lease, round((lease.slot - EPOCH).total_seconds() * 1000)

    def __call__(self, event):
        at = time.monotonic()  # before the look at the lease: what is trusted then was so now
        journal.write(
            'body', at=at, event=event, job=self.lease.job, slot=self.slot, attempt=self.lease.attempt,
            fence=self.lease.fence, trusts=self.lease.remaining > 0, node=NODE, main=MAIN, pid=os.getpid(),
            trigger=self.lease.trigger,
        )  # fmt: skip


@app.task(bind=True)
def work(self, seconds, looks):
    """Work, with a look at the lease or without; then write to what checks no fence, and to what does."""
    say = Saying(self.lease)
    say('start')
    try:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            (self.lease.wait if looks else time.sleep)(min(left, 0.2))
            say('works')
        write(say, resource_of(self.lease.job, say.slot))
    except Exception as reason:
        say(type(reason).__name__)
        raise
    say('end')


def write(say, resource):
    """The same to two resources, whose server keeps the order of all writes: it is read afterwards."""
    fence, client = say.lease.fence, resources(os.getpid())
    client.set(f'unchecked {resource}', fence)
    say('wrote')
    fenced_hset(client, f'checked {resource}', {'by': fence})


@functools.cache
def resources(pid):
    """This process's client of them."""
    return redis.Redis.from_url(os.environ['CHAOS_RESOURCES'], socket_timeout=30)


# what the nodes say -------------------------------------------------------------------------------

SAID = (
    'slot_claimed', 'run_dispatched', 'run_taken_over', 'run_abandoned', 'lease_lost', 'run_interrupted',
    'run_killed', 'run_unrecorded', 'run_put_back', 'store_forgot', 'tick_failed', 'held_off', 'run_crashed',
    'run_handed_over',
)  # fmt: skip


def said(sender, event, job, slot, attempt, **_):
    fields = {
        name: getattr(event, name) for name in ('dispatch', 'was', 'ms', 'reason', 'why')
        if hasattr(event, name)
    }  # fmt: skip
    ms = slot and round((slot - EPOCH).total_seconds() * 1000)
    journal.write(
        'said', event=event.name, job=job, slot=ms, attempt=attempt, node=NODE, main=MAIN, **fields
    )  # fmt: skip


for name in SAID:
    signals.ALL[name].connect(said, weak=False)


def watch_the_processor():
    """How late a thread that sleeps is woken, and for how long others had the processor meanwhile."""
    waits = Waits()
    while True:
        before = time.monotonic()
        time.sleep(LOOK_EVERY)
        late = time.monotonic() - before - LOOK_EVERY
        if late > WORTH_SAYING:
            journal.write('stalled', node=NODE, main=MAIN, seconds=round(late, 3))
        if (starved := waits.longest([MAIN])) > STARVED:
            journal.write('starved', node=NODE, main=MAIN, seconds=round(starved, 3))


def ready(**_):
    journal.write('ready', node=NODE, main=MAIN)


@worker_ready.connect(weak=False)
@beat_init.connect(weak=False)
def begin(**_):
    threading.Thread(target=watch_the_processor, daemon=True).start()


signals.beat_started.connect(ready, weak=False)
worker_ready.connect(ready, weak=False)

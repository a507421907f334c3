"""The app of the processes that are hit: each body writes, or stops, and tells of it."""

import json
import os
import time

import redis
from celery import Celery

import anarchon_celery
from anarchon_celery.fencing import fenced_hset
from tests.crash_points import breaks, striking

app = Celery('tests.crash_points.app', task_cls=anarchon_celery.Task)
app.conf.update(json.loads(os.environ['CLUSTER_CONF']))
if broken := os.environ.get('CRASH_POINTS_BREAK'):
    breaks.BREAKS[broken][0]()
striking.install()
DATA = os.environ['CRASH_POINTS_DATA']


def tell(task, event, **more):
    lease = task.lease
    striking.tell(
        event=event, key=lease.key[:2], attempt=lease.attempt, retries=task.request.retries,
        fence=lease.fence, token=lease.token, at=time.time(), trusts=lease.remaining > 0, **more,
    )  # fmt: skip


def write(task):
    """Write to what checks no fence, and to what does: the first that the body does to anything outside."""
    striking.around('write', [task.lease.key[:2]], lambda: _write(task))
    tell(task, 'end')


def _write(task):
    lease, scope = task.lease, scope_of(task.lease)
    with redis.Redis.from_url(DATA) as data:
        data.rpush(f'unchecked {scope}', lease.fence)
        begun = time.time()
        try:
            fenced_hset(data, f'checked {scope}', {'attempt': lease.attempt})
        except anarchon_celery.StaleFence:
            tell(task, 'refused')
            raise
    tell(task, 'checked', begun=begun, scope=scope)
    return True


def scope_of(lease):
    """What a run writes to: under overlap ``allow`` its fence orders the starts of its slot only."""
    return f'{lease.job} {lease.key.slot}' if lease.order.overlap == 'allow' else lease.job


@app.task(bind=True)
def plain(self):
    tell(self, 'start')
    write(self)


@app.task(bind=True)
def long(self):
    """For three heartbeats, with a look at the lease between its steps."""
    tell(self, 'start')
    striking.around('begins', [self.lease.key[:2]], lambda: True)
    for _ in range(15):
        self.lease.wait(0.1)
        tell(self, 'works')
    write(self)


@app.task(bind=True)
def again(self):
    """Is retried by Celery, once."""
    tell(self, 'start')
    if not self.request.retries:
        raise self.retry(countdown=0.1)
    write(self)


@app.task(bind=True)
def handing(self):
    """Gives its run back, once."""
    tell(self, 'start')
    if self.lease.attempt == 1:
        raise anarchon_celery.HandedOver('on purpose')
    write(self)

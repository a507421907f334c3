"""A run whose worker dies, stalls or stops goes on elsewhere, as the next attempt."""

import os
import re
import signal
import time

import pytest

from anarchon_celery.protocol import Request
from anarchon_celery.stores import new_nonce
from tests.cluster.cluster import Cluster, slot_of
from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

LEASE, POLL, DELIVERY = 3.0, 1.0, 0.5


def one_job(task, *arguments, every='1h'):
    """One job, whose latest slot runs as soon as the cluster sees it."""
    return {'report': {'task': f'tests.cluster.app.{task}', 'schedule': every, 'args': arguments}}


def running_cluster(make, seconds=20, pool='prefork', job=None, lease=LEASE, **conf):
    """Two beats and two workers, one of which runs the job; return both workers, the holder first."""
    job = job or one_job('slow', seconds)
    cluster = make(job, anarchon_lease=lease, anarchon_first_catch_up='1d', task_acks_late=False, **conf)
    workers = [cluster.worker(name, '-P', pool) for name in ('w1', 'w2')]
    for worker in workers:
        worker.wait_for(r'ready\.', 30)
    for name in ('beat-1', 'beat-2'):
        cluster.beat(name).wait_for(r'\[anarchon\] started as', 30)
    run = cluster.run_where(lambda run: run.state == 'running', job='report')
    wait_until(lambda: cluster.history('start'))
    workers.sort(key=lambda worker: not run.owner.startswith(worker.name))
    return cluster, *workers, run


def second_attempt(cluster, deadline=15):
    def look():
        return next((line for line in cluster.history('start') if line['attempt'] == 2), None)

    return wait_until(look, deadline)


@pytest.mark.timed
def test_a_killed_workers_run_is_taken_over_after_its_lease(redis_cluster):
    cluster, holder, other, first = running_cluster(redis_cluster)
    holder.kill(group=True)
    killed_at = cluster.now()
    second = second_attempt(cluster)
    took = second['at'] - killed_at / 1000
    assert took <= LEASE + POLL + 0.5 + DELIVERY
    assert first.slot == slot_of(second)
    assert second['fence'] > first.fence
    slot = re.escape(str(first.key))
    other.wait_for(rf'\[anarchon\] {slot}: started on {other.name}@\S+:\d+ \(attempt 2, takeover\)')
    done = cluster.run_where(lambda run: run.state == 'succeeded', 30, 'report')
    assert (2, 1, 'takeover') == (done.attempt, done.crashes, done.trigger)
    print(f'attempt 2 started {took:.2f} s after the kill, lease {LEASE:g} s')


def test_a_paused_worker_is_told_when_it_wakes_and_can_write_nothing(redis_cluster):
    cluster, holder, other, first = running_cluster(redis_cluster, seconds=8)
    holder.suspend(group=True)
    second = second_attempt(cluster)
    holder.resume(group=True)
    holder.wait_for(r'report @ \S+Z: lease lost after \d+ ms: taken over as attempt 2')
    lost = wait_until(lambda: cluster.history('LeaseLost'))
    assert [1] == [line['attempt'] for line in lost]
    done = cluster.run_where(lambda run: run.state == 'succeeded', 30, 'report')
    assert (2, second['fence']) == (done.attempt, done.fence)
    assert done.owner.startswith(other.name)
    assert [2] == [line['attempt'] for line in cluster.history('end')]
    # What the first holder would have written is refused: it is not even asked who is right.
    assert not cluster.store.finish(first.key, first.token, 'failed', reason='from the grave')
    assert done == cluster.store.run(first.key)
    assert second['fence'] > first.fence


def test_what_a_paused_worker_writes_when_it_wakes_is_refused(redis_cluster, own_redis_server):
    """By what checks the fence; what does not has the older attempt's data in the end."""
    data = own_redis_server.url(2)
    cluster, holder, _, first = running_cluster(redis_cluster, job=one_job('deaf', data))
    with own_redis_server.client(2) as client:
        holder.suspend(group=True)
        second_attempt(cluster)
        client.set('go', 1)
        done = cluster.run_where(lambda run: run.state == 'succeeded', 20, 'report')
        assert (2, 'takeover') == (done.attempt, done.trigger)
        written = {'attempt': '2', 'fence': str(done.fence)}
        assert (written, '2') == (client.hgetall('checked'), client.get('unchecked'))
        holder.resume(group=True)
        (late,) = wait_until(lambda: cluster.history(f'StaleFence {done.fence}'))
        assert (1, first.fence) == (late['attempt'], late['fence'])
        assert (written, '1') == (client.hgetall('checked'), client.get('unchecked'))
    holder.wait_for(r'report @ \S+Z: lease lost after \d+ ms: ')
    assert done == cluster.store.run(first.key)


@pytest.mark.timed
@pytest.mark.parametrize('pool', ['prefork', 'threads'])
def test_a_stopped_workers_run_is_handed_over_within_two_seconds(redis_cluster, pool):
    cluster, holder, other, first = running_cluster(redis_cluster, pool=pool)
    stopped_at = cluster.now()
    assert holder.stop() == 0
    second = second_attempt(cluster)
    took = second['at'] - stopped_at / 1000
    assert took <= 2
    slot = re.escape(str(first.key))
    assert re.search(
        rf'\[anarchon\] {slot}: interrupted after \d+ ms, handed over to another instance', holder.output
    )
    other.wait_for(rf'\[anarchon\] {slot}: started on {other.name}@\S+:\d+ \(attempt 2, takeover\)')
    taken = cluster.run_where(lambda run: run.attempt == 2, job='report')
    assert (0, 'takeover') == (taken.crashes, taken.trigger)
    assert ['HandedOver'] == [line['event'] for line in cluster.history() if line['event'] != 'start']
    print(f'{pool}: attempt 2 started {took:.2f} s after SIGTERM')


@pytest.mark.timed
@pytest.mark.parametrize('broker', ['redis', 'rabbitmq'])
def test_a_killed_childs_run_goes_on_at_once(broker, request):
    """Its parent gives it back: nobody waits for the lease."""
    make = request.getfixturevalue(f'{broker}_cluster')
    cluster, holder, _, first = running_cluster(make, lease=30)
    begun = cluster.history('start')[0]
    assert begun['pid'] in holder.group
    os.kill(begun['pid'], signal.SIGKILL)
    killed_at = time.time()
    second = second_attempt(cluster, 35)
    took = second['at'] - killed_at
    assert took <= POLL + 1
    assert second['fence'] > first.fence
    done = cluster.run_where(lambda run: run.attempt == 2, job='report')
    assert (1, 'takeover', 30_000) == (done.crashes, done.trigger, done.lease)
    print(f'attempt 2 started {took:.2f} s after the kill, lease 30 s')


@pytest.fixture
def postgresql_cluster(processes, tmp_path, own_redis_server, postgresql_server):
    """Make a cluster on PostgreSQL, with a Redis as broker."""
    postgresql_server.empty('anarchon')
    store, broker = postgresql_server.url(), {'broker_url': own_redis_server.url(1)}
    made = []

    def make(schedule, **conf):
        made.append(Cluster(processes, tmp_path, schedule, store=store, broker=broker, **conf))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.mark.timed
@pytest.mark.parametrize('store', ['redis', 'postgresql'])
def test_beats_are_woken_where_the_store_tells_of_what_was_given_back(store, request):
    """A killed child's run, and a run for now: each is dispatched long before any beat's next poll."""
    poll, make = 20.0, request.getfixturevalue(f'{store}_cluster')
    cluster, *_ = running_cluster(make, lease=60, anarchon_poll=poll, anarchon_overlap='allow')
    begun = cluster.history('start')[0]
    os.kill(begun['pid'], signal.SIGKILL)
    killed_at = time.time()
    took = second_attempt(cluster, 60)['at'] - killed_at
    assert took < poll / 4
    asked = Request(job='report', by='anna@desk', overlap='allow', lease=60_000)
    asked_at = time.time()
    entered = cluster.store.trigger(asked, nonce=new_nonce()).run
    wait_until(lambda: cluster.store.run(entered.key).state == 'running', 60)
    assert time.time() - asked_at < poll / 4
    print(f'attempt 2 started {took:.3f} s after the kill, a run for now in {time.time() - asked_at:.3f} s')

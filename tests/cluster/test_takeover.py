"""A run whose worker dies, stalls or stops goes on elsewhere, as the next attempt."""

import re

import pytest

from tests.cluster.cluster import slot_of
from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timed, pytest.mark.timeout(120)]

LEASE, POLL, DELIVERY = 3.0, 1.0, 0.5


def one_job(task, *arguments, every='1h'):
    """One job, whose latest slot runs as soon as the cluster sees it."""
    return {'report': {'task': f'tests.cluster.app.{task}', 'schedule': every, 'args': arguments}}


def running_cluster(make, seconds=20, pool='prefork', job=None, **conf):
    """Two beats and two workers, one of which runs the job; return both workers, the holder first."""
    job = job or one_job('slow', seconds)
    cluster = make(job, anarchon_lease=LEASE, anarchon_first_catch_up='1d', task_acks_late=False, **conf)
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

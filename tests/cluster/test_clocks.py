"""Clocks that jump, and nodes that sleep: a node neither fires early, nor storms, nor stops."""

import pytest

from anarchon_celery.slots import DAY, HOUR, SECOND
from tests.clocks import ShiftedClock
from tests.cluster.cluster import interval_slots
from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

QUICK = {'task': 'tests.cluster.app.quick', 'options': {'anarchon': {'overlap': 'allow', 'jitter': 0}}}
JUMPS = {'an hour ahead': HOUR, 'an hour back': -HOUR, 'a year ahead': 365 * DAY, 'a year back': -365 * DAY}


@pytest.fixture
def clock(tmp_path):
    return ShiftedClock(tmp_path)


def begun(cluster, clock):
    """Start a worker and a beat by this clock, and wait for the first runs."""
    cluster.env.update(clock.env)
    worker, beat = cluster.worker('worker'), cluster.beat('beat')
    worker.wait_for(r'ready\.', 30)
    beat.wait_for(r'\[anarchon\] started as', 30)
    cluster.run_where(lambda run: run.state == 'succeeded')
    return worker, beat


def more_runs(cluster, number, since):
    """Wait for so many runs of slots from an instant on, and return all of these."""

    def look():
        found = [run for run in cluster.runs() if run.slot >= since]
        return found if sum(run.state == 'succeeded' for run in found) >= number else None

    return wait_until(look, why=lambda: f'{cluster.runs()[-5:]}')


def test_a_node_whose_own_clock_jumps_fires_by_the_stores(redis_cluster, clock):
    schedule = {'every': {**QUICK, 'schedule': '1s'}, 'cron': {**QUICK, 'schedule': '* * * * * *'}}
    cluster = redis_cluster(schedule)
    worker, beat = begun(cluster, clock)
    begin = cluster.now()
    for jump in JUMPS.values():
        clock.shift(jump / SECOND)
        more_runs(cluster, 6, since=cluster.now())
    end = cluster.now() - 2 * SECOND
    assert worker.stop() == 0 and beat.stop() == 0
    for job in schedule:
        runs = [run for run in cluster.runs(job) if begin <= run.slot < end]
        assert list(interval_slots(1, begin, end)) == [run.slot for run in runs]
        assert {'succeeded'} == {run.state for run in runs}
        assert [] == [run for run in cluster.runs(job) if run.claimed_at and run.claimed_at < run.slot]
    assert {1} == set(cluster.started().values())
    assert 'takes over no running run' not in beat.output, 'its own clock is nobody else’s'


def test_where_the_hosts_clock_is_the_stores_a_step_ahead_is_caught_up_by_policy(file_cluster, clock):
    cluster = file_cluster({'tick': {**QUICK, 'schedule': '1s'}}, anarchon_lease=6)
    _, beat = begun(cluster, clock)
    clock.shift(HOUR / SECOND)
    jumped_at = cluster.now() + HOUR
    beat.wait_for(r"the store's clock jumped 3\d{3}\.\d s forward: takes over no running run for 6 s")
    more_runs(cluster, 3, since=jumped_at)
    assert {1} == set(cluster.started().values())
    (missed,) = [run for run in cluster.runs() if run.state == 'missed']
    assert 3_500 < missed.count <= 3_600 and missed.until < jumped_at
    leapt = [run for run in cluster.runs() if jumped_at - HOUR + 2 * SECOND < run.slot < jumped_at]
    assert ['catch-up'] == [run.trigger for run in leapt if run.trigger != 'scheduled'], 'the latest late one'
    # What is younger than the claim timeout is on time: no storm.
    assert len(leapt) <= 11


def test_where_the_hosts_clock_is_the_stores_a_step_back_repeats_no_slot(file_cluster, clock):
    cluster = file_cluster({'tick': {**QUICK, 'schedule': '1s'}}, anarchon_lease=6)
    begun(cluster, clock)
    before = more_runs(cluster, 6, since=0)
    clock.shift(-HOUR / SECOND)
    back_at = cluster.now() - HOUR
    wait_until(lambda: [run for run in cluster.runs() if back_at <= run.slot < back_at + 10 * SECOND], 30)
    clock.shift(-5)  # the slots of the last seconds come again
    newest = before[-1].slot
    wait_until(lambda: [run for run in cluster.runs() if run.slot > newest + SECOND], 30)
    assert [] == [run for run in cluster.runs() if run.claimed_at and run.claimed_at < run.slot]
    assert {1} == set(cluster.started().values()), 'a slot that ran is not run again'


def test_a_beat_that_was_suspended_goes_on_where_it_is(redis_cluster):
    cluster = redis_cluster({'tick': {**QUICK, 'schedule': '1s'}}, anarchon_claim_timeout=4, anarchon_lease=6)
    worker, beat = cluster.worker('worker'), cluster.beat('beat')
    worker.wait_for(r'ready\.', 30)
    cluster.run_where(lambda run: run.state == 'succeeded', 30)
    beat.suspend(group=True)
    slept_at = cluster.runs()[-1].slot + 1
    wait_until(lambda: cluster.now() > slept_at + 12 * SECOND, 20)
    beat.resume(group=True)
    woke_at = cluster.now()
    beat.wait_for(r'stalled for \d+\.\d s: takes over no running run')
    more_runs(cluster, 3, since=woke_at)
    slept = [run for run in cluster.runs() if slept_at <= run.slot <= woke_at]
    assert {1} == set(cluster.started().values())
    # What is younger than the claim timeout is on time, of what is older the latest runs: no storm.
    assert len([run for run in slept if run.state == 'succeeded']) <= 6
    assert sum(run.count for run in slept) == len(interval_slots(1, slept_at, woke_at))

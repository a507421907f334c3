"""Overlap, catch-up and one-off jobs, on a cluster: each decision leaves one record with its reason."""

from itertools import pairwise

import pytest

from anarchon_celery.protocol import OVERTAKEN
from anarchon_celery.slots import HOUR, SECOND, iso
from tests.cluster.cluster import interval_slots
from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

POLL, DELIVERY = 1.0, 0.5


def slow_job(schedule, seconds, **policy):
    return {
        'task': 'tests.cluster.app.slow', 'schedule': schedule, 'args': (seconds,),
        'options': {'anarchon': {'jitter': 0, **policy}},
    }  # fmt: skip


def started(cluster, *beats, pool='prefork'):
    worker = cluster.worker('worker', '-P', pool, concurrency=4)
    worker.wait_for(r'ready\.', 30)
    for name in beats:
        cluster.beat(name).wait_for(r'\[anarchon\] started as', 30)
    return worker


def bodies(cluster, job):
    """When each body of a job began and how it ended, oldest first, from what the tasks wrote."""
    begun = {}
    for line in cluster.history():
        if line['job'] == job:
            begun.setdefault((line['slot'], line['attempt']), []).append(line)
    return sorted(begun.values(), key=lambda lines: lines[0]['at'])


def one_after_the_other(cluster, job):
    """Check that no body of a job began before the one before had ended; return the pauses between them."""
    all_bodies = [lines for lines in bodies(cluster, job) if len(lines) == 2]
    pauses = [later[0]['at'] - earlier[1]['at'] for earlier, later in pairwise(all_bodies)]
    assert pauses and min(pauses) > 0
    return pauses


@pytest.mark.timed
def test_under_queue_the_newest_slot_waits_for_the_run_before_it(redis_cluster):
    cluster = redis_cluster({'report': slow_job('1s', 4.5, overlap='queue', lease=6)})
    started(cluster, 'beat-1', 'beat-2')
    begin = cluster.now()

    def four_done():
        return sum(run.state == 'succeeded' for run in cluster.runs()) >= 4

    wait_until(four_done, 60, why=lambda: f'{cluster.runs()[-8:]}')
    end = cluster.now()
    runs = [run for run in cluster.runs() if begin + 6 * SECOND <= run.slot < end - SECOND]
    assert list(interval_slots(1, begin + 6 * SECOND, end - SECOND)) == [run.slot for run in runs]
    assert {'succeeded', 'skipped'} <= {run.state for run in runs} <= {
        'succeeded', 'skipped', 'running', 'buffered', 'queued', 'claimed', 'released',
    }  # fmt: skip
    assert {'overlap'} == {run.reason for run in runs if run.state == 'skipped'}
    assert len([run for run in cluster.runs() if run.state == 'buffered']) <= 1
    assert {1} == set(cluster.started().values())
    pauses = one_after_the_other(cluster, 'report')
    assert max(pauses) <= POLL + 0.5 + DELIVERY
    print(f'the next run began {min(pauses):.2f} - {max(pauses):.2f} s after the end of the one before')


@pytest.mark.timed
@pytest.mark.parametrize('pool', ['prefork', 'threads'])
def test_under_cancel_the_newest_slot_replaces_the_run_before_it(redis_cluster, pool):
    cluster = redis_cluster({'report': slow_job('4s', 60, overlap='cancel', lease=3, heartbeat=0.5)})
    worker = started(cluster, 'beat-1', 'beat-2', pool=pool)

    def three_cancelled():
        found = [run for run in cluster.runs() if run.state == 'cancelled']
        return found if len(found) >= 3 else None

    cancelled = wait_until(three_cancelled, 60, why=lambda: f'{cluster.runs()[-8:]}')
    assert {OVERTAKEN} == {run.reason for run in cancelled}
    assert {1} == set(cluster.started().values())
    assert {'start', 'Cancelled'} == {line['event'] for line in cluster.history()}
    pauses = one_after_the_other(cluster, 'report')
    assert max(pauses) <= POLL + 0.5 + DELIVERY
    worker.wait_for(r'report @ \S+Z: asked to stop after \d+ ms: overlap: the next slot came due')
    worker.wait_for(r'report @ \S+Z: cancelled after \d+ ms: overlap: the next slot came due')
    assert 'lease lost' not in worker.output


def test_under_catch_up_all_each_slot_that_nobody_saw_runs_in_turn(redis_cluster):
    cluster = redis_cluster(
        {'report': slow_job('2s', 0.5, catch_up='all', lease=6)}, anarchon_claim_timeout=4
    )
    worker = started(cluster)
    beat = cluster.beat('beat-1')
    cluster.run_where(lambda run: run.state == 'succeeded', 30)
    assert beat.stop() == 0
    begin = cluster.now()
    wait_until(lambda: cluster.now() > begin + 15 * SECOND, 20)
    for name in ('beat-2', 'beat-3'):
        cluster.beat(name)
    slots = list(interval_slots(2, begin, begin + 15 * SECOND))

    def all_done():
        done = {run.slot for run in cluster.runs() if run.state == 'succeeded'}
        return done >= set(slots)

    wait_until(all_done, 60, why=lambda: f'{cluster.runs()[-12:]}')
    assert [] == [run for run in cluster.runs() if run.state == 'missed']
    assert {1} == set(cluster.started().values())
    one_after_the_other(cluster, 'report')
    order = [lines[0]['slot'] for lines in bodies(cluster, 'report')]
    assert sorted(order) == order, 'oldest first'
    late = [run for run in cluster.runs() if run.slot in slots and run.trigger == 'catch-up']
    assert len(late) >= 4
    worker.stop()


def test_a_one_off_job_runs_once_in_the_clusters_life(redis_cluster):
    cluster = redis_cluster({})
    cluster.worker('worker').wait_for(r'ready\.', 30)
    soon, past = cluster.now() // SECOND * SECOND + 12 * SECOND, cluster.now() // SECOND * SECOND - HOUR
    quick = {'task': 'tests.cluster.app.quick'}
    schedule = {
        'soon': {**quick, 'schedule': {'once': iso(int(soon))}},
        'past': {**quick, 'schedule': {'once': iso(int(past))}},
    }
    for name in ('beat-1', 'beat-2'):
        cluster.beat(name, beat_schedule=schedule).wait_for(r'\[anarchon\] started as', 30)
    done = cluster.run_where(lambda run: run.state == 'succeeded', 30, 'soon')
    assert (soon, 'scheduled') == (done.slot, done.trigger)
    for name in ('beat-3', 'beat-4'):  # whoever comes later
        cluster.beat(name, beat_schedule=schedule).wait_for(r'\[anarchon\] started as', 30)
    wait_until(lambda: cluster.now() > soon + 8 * SECOND, 20)
    assert [('soon', 'succeeded')] == [(run.job, run.state) for run in cluster.runs('soon')]
    assert [('missed', past)] == [(run.state, run.slot) for run in cluster.runs('past')]
    assert {1} == set(cluster.started().values())

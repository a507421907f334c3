"""Several beats and workers: every slot that came due is run once, whoever is killed."""

import random
import socket

import pytest

from anarchon_celery.protocol import ENDED, RunKey
from tests.cluster.cluster import interval_slots
from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
SECONDS = 60


def ten_jobs(overlap):
    """Ten jobs, each second or every other."""
    return {
        f'job-{number}': {
            'task': 'tests.cluster.app.quick',
            'schedule': 1 + number % 2,
            'options': {'anarchon': {'overlap': overlap}},
        }
        for number in range(10)
    }


def every(job):
    return 1 + int(job.rpartition('-')[2]) % 2


def ran_for(cluster, seconds, disturb=lambda: None):
    """Let three beats and two workers run; return the span (ms) in which all of them should have worked."""
    workers = [cluster.worker('w1'), cluster.worker('w2')]
    for worker in workers:
        worker.wait_for(r'celery@|ready\.', 30)
    beats = [cluster.beat(f'beat-{number}') for number in (1, 2, 3)]
    for beat in beats:
        beat.wait_for(r'\[anarchon\] started as', 30)
    begin = cluster.now()
    disturb_at = sorted(random.Random(f'{begin}').uniform(5, seconds - 10) for _ in range(2))
    for number, at in enumerate(disturb_at):
        wait_until(lambda at=at: cluster.now() >= begin + at * 1000, seconds + 10)
        disturb(beats[number])
    wait_until(lambda: cluster.now() >= begin + seconds * 1000, seconds + 10)
    end = cluster.now()
    settled(cluster, end)
    return begin, end


def settled(cluster, end):
    """Wait until every slot up to ``end`` is decided and every run has ended."""

    def look():
        decided = {job.name: job.floor or 0 for job in cluster.store.jobs()}
        active = [run for run in cluster.runs() if run.slot < end and run.state not in ENDED]
        return not active and all(
            floor >= end - 2000 for job, floor in decided.items() if job.startswith('job-')
        )

    wait_until(look, 30, why=lambda: str([run for run in cluster.runs() if run.state not in ENDED]))


def killed_and_replaced(beat):
    beat.kill()
    beat.start()


def accounted(cluster, begin, end):
    """The state of each slot in the span, by its run; None where there is none."""
    runs = {run.key: run.state for run in cluster.runs()}
    jobs = {job.name for job in cluster.store.jobs() if job.name.startswith('job-')}
    return {
        RunKey(job, slot): runs.get(RunKey(job, slot))
        for job in jobs
        for slot in interval_slots(every(job), begin, end - 2000)
    }


@pytest.mark.parametrize(
    ('seconds', 'disturb'),
    [(SECONDS // 2, lambda beat: None), (SECONDS, killed_and_replaced)],
    ids=['calm', 'beats-killed'],
)
def test_each_slot_is_run_exactly_once_on_redis(redis_cluster, seconds, disturb):
    cluster = redis_cluster(ten_jobs('allow'), anarchon_lease=6)
    begin, end = ran_for(cluster, seconds, disturb)
    states = accounted(cluster, begin, end)
    started = cluster.started()
    assert {} == {key: state for key, state in states.items() if state != 'succeeded'}
    assert {} == {key: started.get(key, 0) for key in states if started.get(key, 0) != 1}
    assert len(states) >= 7 * (seconds - 3)
    print(f'{len(states)} slots, each run once')


def test_under_skip_a_dead_beats_claim_blocks_its_job_and_each_skip_is_recorded(redis_cluster):
    """The first beat has a broker that takes connections and says nothing; there it is killed."""
    schedule = {'job-1': {'task': 'tests.cluster.app.quick', 'schedule': 1}}
    cluster = redis_cluster(schedule, anarchon_claim_timeout=8)  # in which the second beat has started
    cluster.worker('w1').wait_for(r'ready\.', 30)
    with socket.create_server(('127.0.0.1', 0)) as silent:
        doomed = cluster.beat('beat-1', broker_url=f'redis://127.0.0.1:{silent.getsockname()[1]}/0')
        blocked = cluster.run_where(lambda run: run.state == 'claimed', 30, 'job-1').slot
        doomed.kill()
    cluster.beat('beat-2')
    after = cluster.run_where(lambda run: run.slot > blocked and run.state == 'succeeded', 30, 'job-1').slot
    runs = {run.slot: run for run in cluster.runs('job-1')}
    between = range(blocked + 1000, after, 1000)
    assert ('succeeded', 2) == (runs[blocked].state, runs[blocked].dispatch)
    assert [('skipped', 'overlap')] * len(between) == [(runs[s].state, runs[s].reason) for s in between]
    assert len(between) >= 3
    print(f'{len(between)} slots skipped while the claim of a dead beat had its deadline ahead')


def test_each_slot_is_run_exactly_once_on_one_sqlite_file_without_a_server(file_cluster):
    schedule = {
        f'job-{number}': {
            'task': 'tests.cluster.app.quick',
            'schedule': 1 + number % 2,
            'options': {'anarchon': {'overlap': 'allow'}},
        }
        for number in range(1, 6, 2)
    }
    # A folder is a broker that now and then loses a message to a reader that comes too early.
    cluster = file_cluster(schedule, anarchon_lease=6, anarchon_start_timeout=8)
    begin, end = ran_for(cluster, SECONDS // 2, killed_and_replaced)
    states = accounted(cluster, begin, end)
    started = cluster.started()
    assert {} == {key: state for key, state in states.items() if state != 'succeeded'}
    assert {} == {key: started.get(key, 0) for key in states if started.get(key, 0) != 1}
    print(f'{len(states)} slots, each run once')

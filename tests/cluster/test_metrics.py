"""A beat and a worker with children tell Prometheus and the receivers of signals what the store records."""

import os
import re
import signal
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

APP = 'tests.cluster.listening'
SERVED = r'metrics are served at (http://127\.0\.0\.1:\d+/metrics)'


def job(task, *args):
    conf = {'lease': 5, 'heartbeat': 0.5}
    return {'task': task, 'schedule': '1d', 'args': args, 'options': {'anarchon': conf}}


@pytest.fixture
def cluster(file_cluster):
    jobs = {
        'one': job('tests.cluster.app.quick'),
        'two': job('tests.cluster.app.quick'),
        'bad': job('tests.cluster.listening.failing'),
        'long': job('tests.cluster.app.slow', 1.5),
    }
    return file_cluster(
        jobs, anarchon_metrics={'beat': 0, 'worker': '127.0.0.1:0'}, anarchon_first_catch_up=100_000,
        anarchon_jitter=0, worker_max_tasks_per_child=2,
    )  # fmt: skip


def scraped(process):
    """What a node tells: the value of each sample, by its name and labels."""
    with urlopen(process.wait_for(SERVED)[1], timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = (sample for family in families for sample in family.samples)
    return {(sample.name, *sorted(sample.labels.values())): sample.value for sample in samples}


def count(told, name, *labels):
    return told.get((f'anarchon_{name}', *sorted(labels)), 0)


def test_what_is_told_is_what_the_store_records(cluster):
    worker = cluster.celery(APP, 'worker', '-n', 'w@%h', '-c', '2', name='worker')
    beat = cluster.celery(APP, 'beat', '-S', 'anarchon', name='beat')

    # A child is killed: its run is given back, and taken over.
    def begun():
        return next((line for line in cluster.history('start') if line['job'] == 'long'), None)

    os.kill(wait_until(begun, 40, why=worker.tail)['pid'], signal.SIGKILL)
    wait_until(lambda: len(runs := cluster.runs()) == 4 and all(run.ended for run in runs), 30)
    runs = {run.job: run for run in cluster.runs()}
    states = {'one': 'succeeded', 'two': 'succeeded', 'bad': 'failed', 'long': 'succeeded'}
    assert states == {name: run.state for name, run in runs.items()}
    assert (2, 2) == (runs['long'].attempt, runs['long'].dispatch)

    of_worker = wait_until(lambda: all_ended(scraped(worker)), 5, why=lambda: f'{scraped(worker)}')
    for name, run in runs.items():
        assert run.attempt == sum(
            count(of_worker, 'run_starts_total', name, trigger) for trigger in ('catch-up', 'takeover')
        )
        assert 1 == count(of_worker, 'run_duration_seconds_count', name, run.state)
        assert run.attempt == count(of_worker, 'run_queue_wait_seconds_count', name)
    assert 1 == count(of_worker, 'run_duration_seconds_count', 'long', 'crashed')
    assert 1.5 < count(of_worker, 'run_duration_seconds_sum', 'long', 'succeeded') < 15
    assert 5 <= count(of_worker, 'store_calls_total', 'start', 'ok')  # in children, which are gone by now
    assert 4 == count(of_worker, 'store_calls_total', 'finish', 'ok')
    assert 4 == count(of_worker, 'store_call_seconds_bucket', 'finish', '+Inf')
    assert count(of_worker, 'heartbeats_total', 'ok') >= 1
    assert 0 == count(of_worker, 'samples_dropped_total')

    of_beat = scraped(beat)
    assert 4 == sum(count(of_beat, 'slot_claims_total', name, 'won') for name in runs)
    assert [1] * 4 == [count(of_beat, 'dispatches_total', name, 'first') for name in runs]
    assert 1 == count(of_beat, 'dispatches_total', 'long', 'takeover')
    assert 1 == count(of_beat, 'handover_seconds_count', 'long')
    assert 4 == sum(count(of_beat, 'slot_lateness_seconds_count', name) for name in runs)
    assert (1, 1, 1) == (
        count(of_beat, 'store_up'), count(of_beat, 'nodes', 'beat'), count(of_beat, 'nodes', 'worker')
    )  # fmt: skip
    assert abs(count(of_beat, 'clock_offset_seconds')) < 0.5
    for name, run in runs.items():
        at = count(of_beat, 'job_last_success_timestamp_seconds', name)
        assert (name == 'bad') == (round(1000 * at) != run.finished_at)
        assert (86_400, 0) == (count(of_beat, 'job_period_seconds', name), count(of_beat, 'job_paused', name))
        assert run.slot / 1000 + 86_400 == count(of_beat, 'job_next_fire_timestamp_seconds', name)

    # Who was called: the children of what runs, the worker's parent of what died, the beat of what was sent.
    heard = {line['signal']: line for line in cluster.history('heard') if line['job'] in ('long', None)}
    assert heard['run_crashed'] | {'main': False, 'attempt': 1} == heard['run_crashed']
    where = {name: line['pid'] for name, line in heard.items()}
    assert [beat.pid] * 3 == [where[it] for it in ('slot_claimed', 'run_dispatched', 'run_taken_over')]
    assert worker.pid == where['run_crashed']
    assert where['run_started'] == where['run_finished'] not in (worker.pid, beat.pid)
    assert {'long'} == {line['sender'] for line in heard.values() if line['job']}
    assert {heard['run_finished']['node']} == {heard['run_crashed']['node']} == {runs['long'].owner}
    assert heard['beat_started']['sender'] == heard['beat_started']['node'] == heard['slot_claimed']['node']
    assert 'a receiver that raises' in worker.output and 'a receiver that raises' in beat.output
    assert 0 == worker.stop() == beat.stop()


def all_ended(told):
    ended = [name for name in told if name[0] == 'anarchon_run_duration_seconds_count']
    calls = count(told, 'store_calls_total', 'finish', 'ok')
    return told if (5, 4) == (sum(told[name] for name in ended), calls) else None


def test_an_embedded_beat_tells_by_its_worker(file_cluster):
    jobs = {'one': job('tests.cluster.app.quick')}
    cluster = file_cluster(jobs, anarchon_metrics='127.0.0.1:0', anarchon_first_catch_up=100_000)
    worker = cluster.worker('worker', '-B', '--scheduler', 'anarchon_celery.Scheduler', concurrency=1)
    cluster.run_where(lambda run: run.state == 'succeeded', 40)
    wait_until(lambda: count(scraped(worker), 'run_duration_seconds_count', 'one', 'succeeded'), 5)
    told = scraped(worker)
    assert 1 == count(told, 'dispatches_total', 'one', 'first')
    assert 1 == count(told, 'store_calls_total', 'claim', 'ok')
    at = count(told, 'job_last_success_timestamp_seconds', 'one')
    assert cluster.runs()[0].finished_at == round(1000 * at)
    assert 1 == len(re.findall(SERVED, worker.output))

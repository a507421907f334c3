"""A rolling deploy: nodes with the old schedule and nodes with the new one, side by side."""

import pytest

from anarchon_celery.slots import SECOND
from tests.cluster.cluster import interval_slots
from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def quick(schedule):
    options = {'anarchon': {'overlap': 'allow', 'jitter': 0}}
    return {'task': 'tests.cluster.app.quick', 'schedule': schedule, 'options': options}


OLD = {
    'kept': quick('1s'),
    'changed': quick('2s'),
    'gone': {
        'task': 'tests.cluster.app.slow', 'schedule': '1h', 'args': (25,),
        'options': {'anarchon': {'jitter': 0, 'lease': 6}},
    },
}  # fmt: skip
NEW = {'kept': quick('1s'), 'changed': quick('3s'), 'fresh': quick('2s')}


def test_old_and_new_schedules_side_by_side_then_the_new_one_alone(redis_cluster):
    cluster = redis_cluster(OLD, anarchon_first_catch_up='1d')
    worker = cluster.worker('worker', concurrency=4)
    worker.wait_for(r'ready\.', 30)
    old = cluster.beat('old')
    old.wait_for(r'\[anarchon\] started as', 30)
    running = cluster.run_where(lambda run: run.state == 'running', 30, 'gone')
    cluster.run_where(lambda run: run.state == 'succeeded', 30, 'changed')

    new = cluster.beat('new', beat_schedule=NEW)
    new.wait_for(r'\[anarchon\] started as', 30)
    both_at = cluster.now()
    wait_until(lambda: cluster.now() > both_at + 9 * SECOND, 20)
    assert old.stop() == 0
    alone_at = cluster.now()
    done = cluster.run_where(lambda run: run.state == 'succeeded', 40, 'gone')
    assert running.key == done.key and done.attempt == 1, 'a running run of a removed job ends normally'
    wait_until(lambda: cluster.now() > alone_at + 9 * SECOND, 20)
    assert new.stop() == 0
    end = cluster.now() - 2 * SECOND

    assert {1} == set(cluster.started().values()), 'nothing runs twice for one slot'
    slots = {job: [run.slot for run in cluster.runs(job)] for job in ('kept', 'changed', 'fresh')}
    first = both_at + SECOND
    assert [*interval_slots(1, first, end)] == [slot for slot in slots['kept'] if first <= slot < end]

    until = alone_at - SECOND
    side_by_side = {*interval_slots(2, first, until), *interval_slots(3, first, until)}
    found = [slot for slot in slots['changed'] if first <= slot < until]
    assert sorted(side_by_side) == found, 'each slot of either schedule, once'
    alone = alone_at + SECOND
    assert [*interval_slots(3, alone, end)] == [slot for slot in slots['changed'] if alone <= slot < end]

    assert [] == [slot for slot in slots['changed'] if slot < both_at and slot % 2000], (
        'no past time of the new schedule is caught up'
    )
    jobs = {job.name for job in cluster.store.jobs()}
    assert {'kept', 'changed', 'fresh', 'gone'} <= jobs, 'nothing is deleted'

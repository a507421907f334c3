"""A task that computes for several leases keeps its run, in each pool; in C code too, if a parent renews."""

import importlib.util

import pytest

from tests.processes import wait_until

pytestmark = pytest.mark.cluster

#: How long the bodies go on, and how long their leases are (seconds).
LONG, LEASE = 6, 2

NO_PACKAGE = {'prefork', 'threads', 'solo'}

#: Pool, and body. In C code nothing of the child can renew; with gevent and eventlet no greenlet could.
HELD = [
    ('prefork', 'computing'),
    ('prefork', 'in_c_code'),
    ('threads', 'computing'),
    ('solo', 'computing'),
    ('gevent', 'computing'),
    ('eventlet', 'computing'),
]


def test_a_task_that_computes_for_three_leases_keeps_its_run_in_each_pool(redis_cluster):
    there = [(pool, body) for pool, body in HELD if importlib.util.find_spec(pool) or pool in NO_PACKAGE]
    schedule = {
        f'{pool}-{body}': {
            'task': f'tests.cluster.app.{body}',
            'schedule': '1d',
            'args': [LONG],
            'options': {'queue': f'{pool}-{body}', 'anarchon': {'lease': LEASE, 'heartbeat': 0.5}},
        }
        for pool, body in there
    }
    cluster = redis_cluster(schedule, anarchon_first_catch_up='2d')
    workers = [
        cluster.worker(name, '-P', name.partition('-')[0], '-Q', name, '--without-mingle', concurrency=1)
        for name in schedule
    ]
    for worker in workers:
        worker.wait_for(r'ready\.', 60)
    cluster.beat('beat')
    wait_until(lambda: len(cluster.history('end')) == len(there), 90, why=lambda: str(cluster.runs()))
    wait_until(lambda: all(run.ended for run in cluster.runs() if run.job in schedule), 15)
    runs = {run.job: (run.state, run.attempt, run.crashes) for run in cluster.runs() if run.job in schedule}
    assert dict.fromkeys(schedule, ('succeeded', 1, 0)) == runs
    assert not [worker.name for worker in workers if 'lease lost' in worker.output]

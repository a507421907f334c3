"""Workers without the base class beside workers with it, as in a deploy: nothing runs five times."""

from collections import Counter

import pytest

from tests.cluster.cluster import slot_of
from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

#: Until a message is sent again; doubled each time.
START_TIMEOUT = 1


def jobs(*names):
    """Jobs of every second, each slot of which runs."""
    options = {'anarchon': {'overlap': 'allow', 'start_timeout': START_TIMEOUT, 'jitter': 0}}
    entry = {'task': 'tests.cluster.app.quick', 'schedule': '1s', 'options': options}
    return dict.fromkeys(names, entry)


def older(cluster, *arguments):
    return cluster.processes.python('-m', 'tests.cluster.older', *arguments, name='older', env=cluster.env)


def settled(cluster, job=None):
    return [run for run in cluster.runs(job) if run.state == 'published']


def bodies(cluster):
    """How often each run's body began."""
    return Counter((line['job'], slot_of(line)) for line in cluster.history('start'))


def test_a_worker_that_has_the_package_says_what_it_runs_without_the_base_class(redis_cluster):
    """Each slot runs once, wherever its message comes."""
    cluster = redis_cluster(jobs('one', 'two', 'three'))
    old, new = older(cluster, 'imports'), cluster.worker('new', concurrency=1)
    old.wait_for('^has the package')
    for worker in (old, new):
        worker.wait_for(r'ready\.', 30)
    cluster.beat('beat').wait_for(r'\[anarchon\] started as', 30)
    seen = wait_until(lambda: settled(cluster)[2:], 20, why=old.tail)[0]
    # Past all the times at which these would have been sent again.
    cluster.run_where(lambda run: run.ended and run.slot > seen.slot + 2000 * START_TIMEOUT, 20)
    assert {'run by a task without the base class'} == {run.reason for run in settled(cluster)}
    ended = [run for run in cluster.runs() if run.ended]
    assert {'published', 'succeeded'} == {run.state for run in ended}
    counts = bodies(cluster)
    assert {(1, 1)} == {(run.dispatch, counts[run.job, run.slot]) for run in ended}


def test_what_a_worker_without_the_package_ran_is_seen_by_its_result(redis_cluster, own_redis_server):
    """Each slot runs once, also where the task fails: beat looks before it dispatches again."""
    cluster = redis_cluster(jobs('sync', 'fails'), result_backend=own_redis_server.url(2))
    old = older(cluster)
    old.wait_for('^does not have the package')
    old.wait_for(r'ready\.', 30)
    beat = cluster.beat('beat')
    beat.wait_for(r'\[anarchon\] started as', 30)
    for job in ('sync', 'fails'):
        wait_until(lambda: settled(cluster, job)[2:], 20, why=beat.tail)  # noqa: B023
        beat.wait_for(rf'{job} @ \S+Z: not dispatched again: run by a task without the base class')
        counts = bodies(cluster)
        assert {1} == {counts[job, run.slot] for run in settled(cluster, job)}
        assert {1} == {run.dispatch for run in cluster.runs(job)}

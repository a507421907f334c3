"""A beat that is embedded in a worker goes with it, however that ends; one of its own does not."""

import sys

import pytest

from tests.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

EVERY_SECOND = {'sync': {'task': 'tests.cluster.app.quick', 'schedule': '1s'}}
STARTED = r'\[anarchon\] started as \S+?:(\d+) '


@pytest.fixture
def cluster(file_cluster):
    return file_cluster(EVERY_SECOND)


@pytest.fixture
def worker(cluster):
    """A worker with a beat, which has published something."""
    worker = cluster.worker('worker', '-B', '--scheduler', 'anarchon_celery.Scheduler', '-P', 'solo')
    worker.wait_for(r'sync @ \S+Z: finished', 40)
    return worker


def test_an_embedded_beat_ends_when_its_worker_was_killed(worker):
    beat = int(worker.wait_for(STARTED)[1])
    assert beat != worker.pid and beat in worker.group
    worker.kill()
    wait_until(lambda: beat not in worker.group, 5, why=lambda: worker.tail())
    gone = rf'stops: process {worker.pid}, the worker whose beat this is, is gone'
    assert 1 == worker.output.count(gone)
    assert 'Traceback' not in worker.output


def test_an_embedded_beat_ends_with_its_worker_without_a_word(cluster, worker):
    """And both leave the list of nodes."""
    wait_until(lambda: {'beat', 'worker'} == {node.kind for node in cluster.store.nodes()}, 20)
    assert worker.stop() == 0
    wait_until(lambda: not worker.group, 5)
    assert [] == cluster.store.nodes()
    assert 'the worker whose beat this is' not in worker.output


def test_a_beat_of_its_own_outlives_the_shell_that_started_it(file_cluster, processes):
    cluster = file_cluster(EVERY_SECOND)
    command = 'exec "$0" -m celery -A tests.cluster.app beat -S anarchon_celery.Scheduler -l info & wait'
    shell = processes.start('sh', '-c', command, sys.executable, name='shell', env=cluster.env)
    beat = int(shell.wait_for(STARTED, 30)[1])
    shell.kill()
    mark = shell.mark()
    wait_until(lambda: shell.output[mark:].count('sync @ ') >= 3, 10, why=shell.tail)
    assert [beat] == shell.group

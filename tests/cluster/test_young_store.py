"""A Redis that forgets, with real processes: wiped, or a replica promoted without the last writes."""

import pytest

from tests.cluster.cluster import interval_slots
from tests.processes import wait_until
from tests.proxy import Proxy
from tests.servers import RedisServer

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(120)]

LEASE = 4
ANOTHER = 'is another store than before: wiped, restored or failed over'


def job(task, schedule, *args, **policy):
    return {
        'task': f'tests.cluster.app.{task}', 'schedule': schedule, 'args': args,
        'options': {'anarchon': policy},
    }  # fmt: skip


#: One that is always on, so that it holds a lease when the store forgets, and one that never is.
SCHEDULE = {'long': job('slow', 5, 8), 'tick': job('quick', 1, overlap='allow')}


@pytest.fixture
def servers(tmp_path):
    made = []

    def server(name, *options):
        made.append(RedisServer(tmp_path / name, options=options).start())
        return made[-1]

    yield server
    for one in made:
        one.close()


def nodes_of(cluster):
    beats = [cluster.beat(name) for name in ('beat-1', 'beat-2')]
    worker = cluster.worker('w1', concurrency=4)
    cluster.run_where(lambda run: run.state == 'succeeded', 40, 'tick')
    return beats, worker


def running(cluster):
    return next((run for run in cluster.runs('long') if run.state == 'running'), None)


def overlaps(cluster):
    """Bodies of the job with overlap ``skip`` that ran beside each other."""
    lines = [line for line in cluster.history() if line['job'] == 'long']
    depth, found = 0, []
    for line in sorted(lines, key=lambda line: line['at']):
        depth += 1 if line['event'] == 'start' else -1
        if depth > 1:
            found.append(line)
    return found


def twice(cluster):
    """Starts under a fence that another start had."""
    fences = [(line['job'], line['fence']) for line in cluster.history('start')]
    return {fence for fence in fences if fences.count(fence) > 1}


def test_a_run_outlives_a_store_that_is_wiped(redis_cluster, own_redis_server, servers):
    broker = servers('broker')
    cluster = redis_cluster(SCHEDULE, broker_url=broker.url(), anarchon_lease=LEASE)
    beats, worker = nodes_of(cluster)
    held = wait_until(lambda: running(cluster), 20)
    wiped = cluster.now()
    own_redis_server.flush()
    for beat in beats:
        beat.wait_for(ANOTHER, 10)
    worker.wait_for(r'long @ \S+Z: put back after \d+ ms into a store that had forgotten it', 10)
    ended = cluster.run_where(lambda run: run.slot == held.slot and run.state == 'succeeded', 30, 'long')
    assert (1, held.fence) == (ended.attempt, ended.fence)
    young = [slot for slot in interval_slots(1, wiped + 1000, wiped + LEASE * 1000)]
    for slot in (young[0], young[-1]):
        done = cluster.run_where(lambda run, at=slot: run.slot == at and run.state == 'succeeded', 30, 'tick')
        assert ('scheduled', 1) == (done.trigger, done.attempt), 'what waited is not late'
    assert not [run for run in cluster.runs('tick') if run.state == 'missed' and run.slot >= young[0]]
    cluster.run_where(lambda run: run.slot > ended.slot and run.state == 'succeeded', 40, 'long')
    assert ([], set()) == (overlaps(cluster), twice(cluster))
    started = cluster.started()
    assert {1} == {count for key, count in started.items() if key.slot >= young[0]}


def test_a_replica_that_is_promoted_without_the_last_writes(redis_cluster, servers):
    """What was lost is done again at most once, never under one fence, and no two bodies of a job overlap."""
    broker, primary = servers('broker'), servers('primary')
    with Proxy(primary.port) as link, Proxy(primary.port) as front, primary.client() as client:
        client.config_set('repl-diskless-sync-delay', 0)
        replica = servers('replica', '--replicaof', '127.0.0.1', str(link.port))
        with replica.client() as other:
            wait_until(lambda: other.info('replication')['master_link_status'] == 'up', 20)
        store = f'redis://127.0.0.1:{front.port}/0'
        cluster = redis_cluster(
            SCHEDULE, broker_url=broker.url(), anarchon_lease=LEASE, anarchon_store=store, watched=store
        )
        beats, worker = nodes_of(cluster)
        before = wait_until(lambda: running(cluster), 20)
        cluster.run_where(lambda run: run.slot == before.slot and run.state == 'succeeded', 20, 'long')
        link.answers_vanish = True  # from here on the replica hears nothing
        cut = cluster.now()
        held = wait_until(lambda: running(cluster), 20)
        cluster.run_where(lambda run: run.slot >= held.slot and run.state == 'succeeded', 20, 'tick')
        primary.kill()
        lost = cluster.now()
        with replica.client() as other:
            other.replicaof('NO', 'ONE')
        front.server = ('127.0.0.1', replica.port)
        front.reset()
        for beat in beats:
            beat.wait_for(ANOTHER, 15)
        worker.wait_for(r'long @ \S+Z: put back after \d+ ms into a store that had forgotten it', 15)
        ended = cluster.run_where(lambda run: run.slot == held.slot and run.state == 'succeeded', 30, 'long')
        assert (1, held.fence) == (ended.attempt, ended.fence)
        cluster.run_where(lambda run: run.slot > ended.slot and run.state == 'succeeded', 40, 'long')
        end = cluster.now()
        cluster.run_where(lambda run: run.slot > end and run.state == 'succeeded', 30, 'tick')
        assert ([], set()) == (overlaps(cluster), twice(cluster))
        started = {key.slot: count for key, count in cluster.started().items() if key.job == 'tick'}
        slots = interval_slots(1, cut - 5000, end)
        assert [] == [slot for slot in slots if slot not in started], 'no slot is lost'
        more = {slot for slot, count in started.items() if count > 1}
        assert more <= {slot for slot in slots if cut - 1000 <= slot <= lost}, 'only what was lost'
        assert {1, 2} >= set(started.values())
        assert all(process.alive for process in (*beats, worker))

"""The store or the broker is away for a while, or was never there: nodes live on, and policy decides."""

import time

import pytest

from tests.cluster.cluster import interval_slots
from tests.processes import wait_until
from tests.servers import RedisServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

OUTAGE = 10.0


def job(task, schedule, *args, **policy):
    return {
        'task': f'tests.cluster.app.{task}', 'schedule': schedule, 'args': args,
        'options': {'anarchon': policy},
    }  # fmt: skip


@pytest.fixture
def broker(tmp_path):
    """A broker apart from the store."""
    server = RedisServer(tmp_path / 'broker').start()
    yield server
    server.close()


def test_the_store_stops_for_ten_seconds(redis_cluster, own_redis_server, broker):
    schedule = {
        'latest': job('quick', 1, overlap='allow', catch_up='latest'),
        'none': job('quick', 1, overlap='allow', catch_up='none'),
        'long': job('slow', '1h', OUTAGE + 8),
    }
    cluster = redis_cluster(
        schedule, broker_url=broker.url(), anarchon_claim_timeout=3, anarchon_first_catch_up='1d'
    )
    workers = [cluster.worker(name) for name in ('w1', 'w2')]
    beats = [cluster.beat(name) for name in ('beat-1', 'beat-2')]
    for name in ('long', 'latest', 'none'):
        cluster.run_where(lambda run: run.attempt > 0, 40, name)
    begin = cluster.now()
    marks = {beat: beat.mark() for beat in beats}
    own_redis_server.stop()
    for beat in beats:
        beat.wait_for('waiting for the store: .*; trying again in', after=marks[beat])
    wait_until(lambda: cluster.now() >= begin + OUTAGE * 1000)
    own_redis_server.start()
    for beat in beats:
        beat.wait_for('the store answers again', after=marks[beat])
    back = cluster.now()
    for name in ('latest', 'none'):
        cluster.run_where(lambda run: run.state == 'succeeded' and run.slot > back + 3000, 30, name)
    assert ('succeeded', 1) == state_of(cluster.run_where(lambda run: run.state == 'succeeded', 30, 'long'))
    assert all(process.alive for process in [*workers, *beats])
    for name in ('latest', 'none'):
        assert [] == undecided(cluster, name, begin, back)
    assert ['catch-up'] == caught_up(cluster, 'latest', begin, back)
    assert [] == caught_up(cluster, 'none', begin, back)
    assert 1 == len([run for run in cluster.runs('latest') if run.state == 'missed' and run.slot > begin])
    assert {1} == {count for key, count in cluster.started().items() if key.slot > begin}


def state_of(run):
    return run.state, run.attempt


def caught_up(cluster, name, begin, end):
    """What ran that was late."""
    ran = [run for run in cluster.runs(name) if begin < run.slot <= end and run.state == 'succeeded']
    return [run.trigger for run in ran if run.trigger != 'scheduled']


def undecided(cluster, name, begin, end):
    """Slots of the outage that have neither a run that ended nor a place in a missed record."""
    runs = cluster.runs(name)
    decided = {run.slot for run in runs if run.state == 'succeeded'}
    for run in runs:
        if run.state == 'missed':
            decided.update(range(run.slot, run.until + 1, 1000))
    return [slot for slot in interval_slots(1, begin, end) if slot not in decided]


def test_nodes_that_start_before_their_store_wait_for_it(redis_cluster, own_redis_server, broker):
    own_redis_server.stop()
    cluster = redis_cluster({'tick': job('quick', 1)}, broker_url=broker.url())
    worker = cluster.worker('w1')
    beat = cluster.beat('beat-1')
    beat.wait_for('waiting for the store: .*; trying again in', 30)
    worker.wait_for('waiting for the store: .*; trying again in', 30)
    assert '[anarchon] started as' not in beat.output
    own_redis_server.start()
    worker.wait_for('the store answers again', 30)
    beat.wait_for(r'\[anarchon\] started as', 30)
    cluster.run_where(lambda run: run.state == 'succeeded', 30, 'tick')


def test_a_beat_that_starts_before_its_broker_gives_its_claims_back(redis_cluster, broker):
    """And a node with a broker has them at once."""
    broker.stop()
    cluster = redis_cluster({'tick': job('quick', 2, overlap='allow')}, broker_url=broker.url())
    beat = cluster.beat('beat-1')
    beat.wait_for('waiting for the broker: .*; trying again in', 30)
    waiting = cluster.run_where(lambda run: run.state == 'released', 30, 'tick')
    assert (0, 0) == (waiting.dispatch, waiting.attempt)
    broker.start()
    cluster.worker('w1')
    beat.wait_for('the broker takes messages again', 30)
    done = cluster.run_where(lambda run: run.slot == waiting.slot and run.state == 'succeeded', 30, 'tick')
    assert (1, 1) == (done.dispatch, done.attempt)


def test_a_message_that_comes_while_the_store_is_away_is_neither_run_nor_lost(
    redis_cluster, own_redis_server, broker
):
    """The worker starts after the store stopped, so that the message meets no store."""
    schedule = {'long': job('quick', '1h')}
    cluster = redis_cluster(schedule, broker_url=broker.url(), anarchon_first_catch_up='1d')
    cluster.beat('beat-1')
    queued = cluster.run_where(lambda run: run.state == 'queued', 30, 'long')
    own_redis_server.stop()
    worker = cluster.worker('w1')
    worker.wait_for(r'long @ \S+Z: given back for 5 s: ', 40)
    assert [] == cluster.history()
    own_redis_server.start()
    started_at = time.monotonic()
    done = cluster.run_where(lambda run: run.state == 'succeeded', 30, 'long')
    assert (queued.slot, 1, 1) == (done.slot, done.attempt, done.dispatch)
    assert time.monotonic() - started_at < 20


def test_a_broker_that_hangs_does_not_hang_beat(redis_cluster, broker):
    cluster = redis_cluster(
        {'tick': job('quick', 2, overlap='allow')}, broker_url=broker.url(), anarchon_claim_timeout=4
    )
    beat = cluster.beat('beat-1')
    cluster.worker('w1').wait_for(r'ready\.', 30)
    cluster.run_where(lambda run: run.state == 'succeeded', 30, 'tick')
    mark = beat.mark()
    broker.suspend()
    beat.wait_for('not published, perhaps out, so its deadline decides', after=mark)
    hung = cluster.now()
    cluster.run_where(lambda run: run.slot > hung, 30, 'tick')  # it still claims
    broker.resume()
    cluster.run_where(lambda run: run.slot > hung and run.state == 'succeeded', 40, 'tick')

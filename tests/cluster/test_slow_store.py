"""A store that takes two seconds for each answer, or loses answers: the promises hold, only later."""

import pytest

from tests.cluster.cluster import interval_slots
from tests.processes import wait_until
from tests.proxy import Proxy

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(120)]


def job(task, schedule, *args, **policy):
    return {
        'task': f'tests.cluster.app.{task}', 'schedule': schedule, 'args': args,
        'options': {'anarchon': policy},
    }  # fmt: skip


@pytest.fixture
def proxy(own_redis_server):
    with Proxy(own_redis_server.port) as proxy:
        yield proxy


def url_of(proxy):
    return f'redis://127.0.0.1:{proxy.port}/0'


def test_nodes_whose_store_needs_two_seconds_for_each_answer(redis_cluster, own_redis_server, proxy):
    schedule = {'tick': job('quick', 2, overlap='allow'), 'long': job('slow', '1h', 16, lease='10s')}
    watched = own_redis_server.url()
    cluster = redis_cluster(
        schedule, anarchon_store=url_of(proxy), watched=watched, anarchon_first_catch_up='1d'
    )
    proxy.delay = 2
    cluster.worker('w1', concurrency=6)
    beats = [cluster.beat(name) for name in ('slow-1', 'slow-2')]
    for beat in beats:
        beat.wait_for(r'\[anarchon\] started as', 40)
    cluster.run_where(lambda run: run.attempt > 0, 40, 'tick')
    cluster.run_where(lambda run: run.attempt > 0, 40, 'long')
    begin = cluster.now()
    wait_until(lambda: cluster.now() > begin + 12_000, 30)
    end = cluster.now()
    slots = interval_slots(2, begin, end)
    cluster.run_where(lambda run: run.slot == slots[-1] and run.state == 'succeeded', 40, 'tick')
    cluster.run_where(lambda run: run.slot == slots[0] and run.state == 'succeeded', 40, 'tick')
    started = {key.slot: count for key, count in cluster.started().items() if key.job == 'tick'}
    assert {slot: 1 for slot in slots} == {slot: started.get(slot, 0) for slot in slots}
    done = cluster.run_where(lambda run: run.state not in ('running', 'queued', 'claimed'), 60, 'long')
    assert ('succeeded', 1) == (done.state, done.attempt)


def test_nodes_whose_store_loses_every_tenth_answer(redis_cluster, own_redis_server, proxy):
    """The calls were carried out: whoever asks again learns what came of them."""
    schedule = {'tick': job('quick', 1, overlap='allow')}
    cluster = redis_cluster(schedule, anarchon_store=url_of(proxy), watched=own_redis_server.url())
    cluster.worker('w1')
    for name in ('beat-1', 'beat-2'):
        cluster.beat(name)
    cluster.run_where(lambda run: run.state == 'succeeded', 40, 'tick')
    begin, answers = cluster.now(), proxy.answers
    while proxy.dropped < 12:
        wait_until(lambda enough=answers + 10: proxy.answers >= enough)
        proxy.drops, answers = 1, proxy.answers
    end = cluster.now()
    slots = interval_slots(1, begin, end)
    cluster.run_where(lambda run: run.slot > end + 2000 and run.state == 'succeeded', 40, 'tick')
    wait_until(lambda: all(slot in decided(cluster) for slot in slots), 30)
    started = cluster.started()
    assert {1} == {count for key, count in started.items() if key.slot in slots}
    assert {*slots} == {key.slot for key in started if key.slot in slots}


def decided(cluster):
    return {run.slot for run in cluster.runs('tick') if run.state == 'succeeded'}

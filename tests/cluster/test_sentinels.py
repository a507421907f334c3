"""Sentinels as broker and store at once, set the way Celery wants it: a failover, and the slots go on."""

import json

import pytest

from anarchon_celery.errors import StoreUnreachable
from tests.cluster.cluster import Cluster, interval_slots
from tests.processes import wait_until
from tests.servers import WatchedRedis

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def watched(tmp_path):
    servers = WatchedRedis(tmp_path / 'watched')
    try:
        yield servers.start()
    finally:
        servers.close()


def test_slots_go_on_after_a_failover_of_broker_and_store(processes, tmp_path, watched):
    hosts = ';'.join(f'sentinel://127.0.0.1:{one.port}' for one in watched.sentinels)
    options = {'master_name': watched.MASTER, 'visibility_timeout': 3600}
    broker = {'broker_url': hosts, 'broker_transport_options': options}
    policy = {'anarchon': {'overlap': 'allow'}}
    schedule = {'tick': {'task': 'tests.cluster.app.quick', 'schedule': 1, 'options': policy}}
    cluster = Cluster(processes, tmp_path, schedule, store=watched.url(), broker=broker, anarchon_lease=3)
    del cluster.conf['anarchon_store']  # the broker is the store
    cluster.env['CLUSTER_CONF'] = json.dumps(cluster.conf)
    try:
        cluster.worker('w1')
        beats = [cluster.beat(name) for name in ('beat-1', 'beat-2')]
        for beat in beats:
            beat.wait_for(r'started as \S+ \(store sentinel://127.0.0.1:\d+;.*/0\?master_name=mymaster', 40)
        cluster.run_where(lambda run: run.state == 'succeeded', 40, 'tick')
        watched.master.kill()
        promoted = watched.wait_for_failover()
        wait_until(lambda: answers(cluster.store), 30)
        back = cluster.now()
        cluster.run_where(lambda run: run.state == 'succeeded' and run.slot > back + 5000, 60, 'tick')
        begin, end = back + 5000, cluster.now()
        cluster.run_where(lambda run: run.state == 'succeeded' and run.slot > end, 30, 'tick')
        started = cluster.started()
        assert {1} == {count for key, count in started.items() if begin < key.slot < end}
        assert {*interval_slots(1, begin, end)} <= {key.slot for key in started}
        assert all(beat.alive for beat in beats)
        assert promoted.port != watched.master.port
    finally:
        cluster.close()


def answers(store):
    try:
        return store.jobs()
    except StoreUnreachable:
        return None

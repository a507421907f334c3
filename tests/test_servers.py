"""The helpers of the other tests keep their word."""

import contextlib
import os
import signal
import socket
from pathlib import Path

import pytest
import redis
from kombu.connection import Connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import servers
from tests.processes import wait_until
from tests.proxy import Proxy
from tests.rabbitmq import RabbitMQ

ROUNDS = "import time, itertools\nfor n in itertools.count(): print('round', n); time.sleep(0.01)"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {ROUNDS!r}])
print('child', child.pid)
child.wait()
"""


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f'/proc/{pid}/stat') as stat:
        return stat.read().rpartition(')')[2].split()[0] == 'Z'


@pytest.mark.parametrize('end', ['stop', 'kill'])
def test_redis_keeps_its_data_and_its_port(own_redis_server, end):
    url = own_redis_server.url()
    with own_redis_server.client() as client:
        client.set('slot', 'taken')
    getattr(own_redis_server, end)()
    assert not own_redis_server.running
    with own_redis_server.client() as client, pytest.raises(redis.ConnectionError):
        client.ping()
    own_redis_server.start()
    with own_redis_server.client() as client:
        assert 'taken' == client.get('slot')
    assert url == own_redis_server.url()


def test_a_paused_redis_does_not_answer_until_it_is_resumed(own_redis_server):
    own_redis_server.suspend()
    with own_redis_server.client(timeout=0.2) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    own_redis_server.start()
    with own_redis_server.client() as client:
        assert client.ping()


def test_a_redis_whose_port_was_taken_meanwhile_takes_another(tmp_path):
    server = servers.RedisServer(tmp_path)
    taken = server.port
    with socket.create_server(('127.0.0.1', taken)):
        server.start()
    assert server.port != taken
    server.close()


def test_each_test_gets_an_empty_redis(redis_server, redis_url):
    with redis_server.client(3) as client:
        client.set('left', 'over')
    redis_server.stop()
    redis_server.start()
    redis_server.flush()
    with redis_server.client(3) as client:
        assert 0 == client.dbsize()


@pytest.mark.slow
def test_rabbitmq_keeps_its_messages_over_a_kill_and_leaves_nothing_behind():
    server = RabbitMQ()
    try:
        url = server.start().new_url()
        with (
            Connection(url, transport_options={'confirm_publish': True}) as connection,
            contextlib.closing(connection.SimpleQueue('kept')) as queue,
        ):
            queue.put('a message')
        server.kill()
        assert not server.running
        server.start()
        with Connection(url) as connection, contextlib.closing(connection.SimpleQueue('kept')) as queue:
            assert 'a message' == queue.get(timeout=5).payload
        server.stop()
    finally:
        server.close()
    assert ([], []) == (server.process.group, server.epmd.group)
    assert not server.folder.exists()


def test_what_is_not_installed_is_skipped_by_name_or_fails(monkeypatch):
    monkeypatch.setitem(servers.BINARIES, 'redis', 'no-such-redis-server')
    monkeypatch.delenv('ANARCHON_TEST_REQUIRE', raising=False)
    with pytest.raises(pytest.skip.Exception, match='^redis: no-such-redis-server is not installed'):
        servers.require('redis')
    monkeypatch.setenv('ANARCHON_TEST_REQUIRE', 'redis, mariadb')
    with pytest.raises(pytest.fail.Exception, match='ANARCHON_TEST_REQUIRE asks for it'):
        servers.require('redis')
    monkeypatch.setenv('ANARCHON_TEST_REQUIRE', 'redsi')
    with pytest.raises(pytest.UsageError, match='redsi: not one of redis, postgresql'):
        servers.required()


def test_a_line_is_waited_for(processes):
    process = processes.python('-c', ROUNDS)
    assert '0' == process.wait_for(r'^round (\d+)$')[1]
    mark = process.mark()
    assert int(process.wait_for(r'^round (\d+)$', after=mark)[1]) > 0
    with pytest.raises(AssertionError, match=r"in vain: 'never' in the output of python-1\n.*round"):
        process.wait_for('never', deadline=0.1)
    assert -signal.SIGTERM == process.stop()
    with pytest.raises(AssertionError, match="ended with status -15 without 'never'"):
        process.wait_for('never')


def test_a_paused_process_is_silent_until_it_is_resumed(processes):
    process = processes.python('-c', ROUNDS)
    process.wait_for('round 1')
    process.suspend()
    mark = process.mark()
    with pytest.raises(AssertionError, match='waited 0.2 s in vain'):
        process.wait_for('round', deadline=0.2, after=mark)
    assert process.alive
    process.resume()
    process.wait_for('round', after=mark)


def test_the_children_of_a_killed_parent_do_not_outlive_the_test(processes):
    parent = processes.python('-c', PARENT)
    child = int(parent.wait_for(r'child (\d+)')[1])
    assert sorted([parent.pid, child]) == parent.group
    assert -signal.SIGKILL == parent.kill()
    assert [child] == parent.group
    processes.close()
    assert gone(child)


def test_a_process_starts_again_and_its_log_goes_on(processes):
    process = processes.python('-c', "print('here')", name='twice')
    assert 0 == process.wait()
    process.start()
    assert 0 == process.wait()
    assert 'here\nhere\n' == process.output


def test_nothing_outlives_killed_tests(processes):
    script = (
        'import pathlib, sys, time\n'
        'from tests.processes import Processes\n'
        f"child = Processes(pathlib.Path({os.fspath(processes.folder)!r})).python('-c', {ROUNDS!r})\n"
        "child.wait_for('round'); print('child', child.pid); time.sleep(60)\n"
    )
    root = Path(__file__).parents[1]
    tests = processes.python('-c', script, name='tests', env={'PYTHONPATH': str(root)})
    child = int(tests.wait_for(r'child (\d+)')[1])
    tests.kill()
    wait_until(lambda: gone(child))


def test_a_proxy_drops_an_answer_once_the_server_has_carried_the_call_out(redis_server, redis_url):
    once = Retry(NoBackoff(), 0)
    with (
        Proxy(redis_server.port) as proxy,
        redis_server.client() as direct,
        redis.Redis(port=proxy.port, socket_timeout=2, retry=once) as client,
    ):
        assert client.ping()
        proxy.drops = 1
        with pytest.raises(redis.ConnectionError):
            client.incr('calls')
        assert ('1', 1) == (direct.get('calls'), proxy.dropped)
        assert 2 == client.incr('calls')
        proxy.answers_vanish = True
        with pytest.raises(redis.TimeoutError):
            client.incr('calls')
        assert '3' == direct.get('calls')
        proxy.heal()
        proxy.requests_vanish = True
        with pytest.raises(redis.TimeoutError):
            client.incr('calls')
        proxy.heal()
        assert '3' == direct.get('calls')
        proxy.refuse()
        with pytest.raises(redis.ConnectionError):
            client.incr('calls')
        proxy.accept()
        assert 4 == client.incr('calls')


def test_a_half_open_connection_leads_nowhere_and_new_ones_are_good(redis_server, redis_url):
    with Proxy(redis_server.port) as proxy, contextlib.ExitStack() as stack:

        def client():
            how = {'single_connection_client': True, 'retry': Retry(NoBackoff(), 0)}
            return stack.enter_context(redis.Redis(port=proxy.port, socket_timeout=0.3, **how))

        old = client()
        assert old.ping()
        proxy.half_open()
        with pytest.raises(redis.TimeoutError):
            old.set('written', 1)
        assert client().set('other', 1)
        assert client().get('written') is None
        proxy.reset()
        assert old.set('written', 1)

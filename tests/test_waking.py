"""Wake-ups whose connection dies, hangs or is not allowed, and the alarm that ends a beat's sleep by them.

That a step which gives runs back wakes who listens, and no other step, is the contract's.
"""

import contextlib
import itertools
import logging
import re
import select
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial

import pytest
from celery import Celery

from anarchon_celery.alarm import REST, Alarm
from anarchon_celery.errors import StoreUnreachable, StoreUnusable
from anarchon_celery.protocol import Node, Registration, Request
from anarchon_celery.stores import new_nonce, open_store
from anarchon_celery.stores.memory import MemoryStore
from anarchon_celery.stores.subscription import MOST_AT_ONCE
from anarchon_celery.stores.waking import WakeUps
from tests.processes import wait_until
from tests.proxy import Proxy

KINDS = ('redis', 'postgresql')


def register(store):
    store.register(Node(id='a1', name='one:1', kind='beat'), [Registration(job='report', hash='h1')])


def trigger(store):
    asked = Request(job='report', by='anna@desk', overlap='allow', lease=30_000)
    assert 'released' == store.trigger(asked, nonce=new_nonce()).answer


class Listened:
    """A store on a server, somebody who listens to it, and what happens to that one's connection."""

    def __init__(self, kind: str, server) -> None:
        self.kind, self.server = kind, server
        self.store = open_store(server.url())
        register(self.store)
        self.wake_ups = self.store.wake_ups()
        assert self.wake_ups.wait(10)

    def trigger(self) -> None:
        trigger(self.store)

    def cut(self) -> None:
        if self.kind == 'redis':
            with self.server.client() as client:
                client.execute_command('CLIENT', 'KILL', 'TYPE', 'pubsub')
        else:
            self.server.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %%'"
                " OR query = 'SELECT 1'"
            )

    def close(self) -> None:
        self.wake_ups.close()
        self.store.close()


@pytest.fixture(params=KINDS)
def listened(request):
    kind = request.param
    server = request.getfixturevalue('redis_server' if kind == 'redis' else 'postgresql_server')
    server.flush() if kind == 'redis' else server.empty('anarchon')
    made = Listened(kind, server)
    yield made
    made.close()


def test_a_connection_that_is_cut_is_made_again_and_wakes_once_for_what_it_missed(listened):
    listened.cut()
    with pytest.raises(StoreUnreachable):
        listened.wake_ups.wait(10)
    listened.trigger()
    assert listened.wake_ups.wait(10)  # it cannot know what it missed
    assert not listened.wake_ups.wait(0.01)
    listened.trigger()
    assert listened.wake_ups.wait(10)


def test_a_server_that_hangs_is_found_out_and_listened_to_again(listened, monkeypatch):
    monkeypatch.setattr('anarchon_celery.stores.waking.ASK_EVERY', 0.2)
    with suspended(listened), pytest.raises(StoreUnreachable, match='did not answer|no answer|Timeout'):
        listened.wake_ups.wait(20)
    assert listened.wake_ups.wait(10)
    listened.trigger()
    assert listened.wake_ups.wait(10)


def test_a_server_that_answers_no_subscription_is_given_up_in_time(redis_server):
    redis_server.flush()
    with Proxy(redis_server.port) as proxy, closing(open_store(f'redis://127.0.0.1:{proxy.port}')) as store:
        register(store)
        wake_ups, proxy.answers_vanish = store.wake_ups(), True
        began = time.monotonic()
        with pytest.raises(StoreUnreachable, match=f'127.0.0.1:{proxy.port}/0 does not answer: no answer to'):
            wake_ups.wait(10)
        assert time.monotonic() - began < 4
        proxy.heal()
        assert wake_ups.wait(10)
        trigger(store)
        assert wake_ups.wait(10)
        wake_ups.close()


def listens(wake_ups) -> bool:
    with contextlib.suppress(StoreUnreachable):
        return wake_ups.wait(10)
    return False


def test_a_database_that_answers_no_listener_is_given_up_and_its_connection_closed(
    postgresql_server, monkeypatch
):
    monkeypatch.setattr('anarchon_celery.stores.notifications.ANSWER_WITHIN', 0.5)
    postgresql_server.empty('anarchon')
    server, proxied = postgresql_server, Proxy(postgresql_server.port)
    url = server.url().replace(f':{server.port}/', f':{proxied.port}/')
    with proxied as proxy, closing(open_store(url)) as store:
        register(store)
        wake_ups, proxy.answers_vanish = store.wake_ups(), True
        for reason in ('no answer within', 'it answers too slowly: connecting takes too long for a call'):
            with pytest.raises(StoreUnreachable, match=f'{re.escape(store.shown)}: {reason}'):
                wake_ups.wait(10)
        proxy.heal()
        wait_until(lambda: listens(wake_ups))  # what is on its way into the hole is waited for
        trigger(store)
        assert wake_ups.wait(10)
        wake_ups.close()
        listeners = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN %%'"
        wait_until(lambda: server.run(listeners) == [])


def test_what_comes_while_the_server_is_asked_is_heard(listened, monkeypatch):
    monkeypatch.setattr('anarchon_celery.stores.waking.ASK_EVERY', 0)
    listened.trigger()
    assert listened.wake_ups.wait(10)


def test_what_came_with_an_answer_is_heard_though_the_socket_has_nothing_more(postgresql_server):
    postgresql_server.empty('anarchon')
    listened = Listened('postgresql', postgresql_server)
    try:
        listened.trigger()
        pgconn = listened.wake_ups._connection.pgconn
        assert select.select([pgconn.socket], [], [], 10)[0]
        pgconn.consume_input()  # as a query does that reads its own answer and what follows
        assert listened.wake_ups.wait(0.1)
    finally:
        listened.close()


def test_who_publishes_without_an_end_does_not_keep_a_beat_reading(redis_server):
    redis_server.flush()
    listened = Listened('redis', redis_server)
    try:
        with redis_server.client() as client, client.pipeline() as pipe:
            for _ in range(2 * MOST_AT_ONCE + 1):
                pipe.publish('{anarchon}:wake', b'\xff')
            pipe.execute()
        assert [True, True, True, False] == [listened.wake_ups.wait(1) for _ in range(4)]
    finally:
        listened.close()


def test_whatever_is_published_a_beat_is_woken_twenty_times_a_second_at_most(redis_server):
    redis_server.flush()
    listened = Listened('redis', redis_server)
    alarm, woken = Alarm(listened.store, 'one:1'), 0
    alarm.set()
    try:
        assert alarm.sleep(30)  # the first one, when it is connected
        begun = time.monotonic()
        with redis_server.client() as client:
            while time.monotonic() < begun + 1 or (not woken and time.monotonic() < begun + 20):
                client.publish('{anarchon}:wake', 'x')
                woken += alarm.sleep(0)
            took = time.monotonic() - begun
    finally:
        alarm.close()
        listened.close()
        wait_until(lambda: 'anarchon-alarm' not in {thread.name for thread in threading.enumerate()}, 20)
    assert 1 <= woken <= took / REST + 1


@contextlib.contextmanager
def suspended(listened):
    listened.server.suspend()
    try:
        yield
    finally:
        listened.server.resume()


@pytest.fixture
def without_channels(own_redis_server):
    """A store whose user may do anything but publish and subscribe."""
    with own_redis_server.client() as client:
        rights = {'keys': ['*'], 'commands': ['+@all'], 'reset_channels': True}
        client.acl_setuser('beat', enabled=True, nopass=True, **rights)
    store = open_store(own_redis_server.url().replace('redis://', 'redis://beat:x@'))
    yield store
    store.close()


def test_who_may_not_subscribe_is_told_so_and_gives_back_all_the_same(without_channels):
    with pytest.raises(StoreUnusable, match='cannot be used.*channels'):
        without_channels.wake_ups().wait(5)
    register(without_channels)
    trigger(without_channels)
    assert ['released'] == [run.state for run in without_channels.runs()]


@pytest.fixture
def alarm(listened, caplog):
    caplog.set_level(logging.INFO, 'anarchon_celery')
    made = Alarm(listened.store, 'one:1')
    made.set()
    assert made.sleep(10)  # the first one, when it is connected
    yield made
    made.close()
    wait_until(lambda: 'anarchon-alarm' not in {thread.name for thread in threading.enumerate()}, 20)


def test_a_sleep_is_ended_when_a_run_is_given_back(listened, alarm):
    begun = time.monotonic()
    listened.trigger()
    assert alarm.sleep(30)
    assert time.monotonic() - begun < 20
    assert not alarm.sleep(0.01)


def test_an_alarm_outlives_its_connection(listened, alarm):
    for _ in range(3):
        listened.cut()
        wait_until(lambda: alarm.sleep(1), 20)  # connected again
        listened.trigger()
        assert alarm.sleep(30)


@pytest.fixture
def refused(without_channels, caplog, monkeypatch):
    """An alarm that may not listen and said so; it tries again soon."""
    monkeypatch.setattr('anarchon_celery.alarm.AGAIN_AFTER', 0.1)
    caplog.set_level(logging.INFO, 'anarchon_celery')
    made = Alarm(without_channels, 'one:1')
    made.set()
    wait_until(lambda: 'no wake-ups, so runs that are given back wait for the next poll' in caplog.text)
    yield made
    made.close()
    wait_until(lambda: 'anarchon-alarm' not in {thread.name for thread in threading.enumerate()}, 20)


def test_one_that_may_not_listen_says_so_once_and_tries_again(refused, own_redis_server, caplog):
    with own_redis_server.client() as client:
        wait_until(lambda: client.info('commandstats')['cmdstat_subscribe']['rejected_calls'] > 2)
        assert not refused.sleep(0.01)
        client.acl_setuser('beat', enabled=True, nopass=True, channels=['*'])
    assert refused.sleep(30)
    assert 'no wake-ups' not in caplog.text, 'it was said before this test'


class Odd(WakeUps):
    """Of somebody else's store, with an error that nobody foresaw."""

    def __init__(self):
        self.fails = 2

    def _connect(self):
        if self.fails:
            self.fails -= 1
            raise RuntimeError('never heard of')

    def _ask(self):
        pass

    def _hears(self, seconds):
        time.sleep(seconds)
        return False

    def _disconnect(self):
        pass


def test_an_error_that_nobody_foresaw_is_told_and_tried_again(monkeypatch, caplog):
    class OddStore(MemoryStore):
        def wake_ups(self):
            return Odd()

    monkeypatch.setattr('anarchon_celery.alarm.AGAIN_AFTER', 0.1)
    alarm = Alarm(OddStore(), 'one:1')
    alarm.set()
    assert alarm.sleep(30), 'connected'
    assert 2 == caplog.text.count('never heard of')
    alarm.close()


SLEEPER = """
import {patched}
import sys
from anarchon_celery.alarm import Alarm
from anarchon_celery.stores import open_store

store = open_store(sys.argv[1])
alarm = Alarm(store, 'one:1')
alarm.set()
print(alarm.is_set, alarm.sleep(20 if alarm.is_set else 0.01))
alarm.close()
"""

PATCHED = {
    'gevent': 'gevent.monkey; gevent.monkey.patch_all()',
    'eventlet': 'warnings; warnings.simplefilter("ignore"); import eventlet; eventlet.monkey_patch()',
}


@pytest.mark.parametrize(('library', 'said'), [('gevent', 'True True'), ('eventlet', 'False False')])
def test_a_greenlet_that_sleeps_is_woken_if_the_library_can(redis_url, library, said):
    pytest.importorskip(library)
    script = SLEEPER.format(patched=PATCHED[library])
    ran = subprocess.run(
        [sys.executable, '-c', script, redis_url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (0, said) == (ran.returncode, ran.stdout.strip()), ran.stderr


def test_a_signal_may_stop_a_beat_at_any_line_of_its_sleep():
    for line in itertools.count():
        alarm = Alarm(open_store('memory://waking'), 'one:1')
        if not interrupted(partial(alarm.sleep, 0.01), alarm.close, line):
            break
    assert line > 5


def interrupted(work, handler, at: int) -> bool:
    """Call a handler in the midst of work, before one of its lines; false if it has not so many."""
    lines, came = itertools.count(), []

    def trace(frame, event, _):
        if event == 'line' and next(lines) == at:
            came.append(f'{frame.f_code.co_name}:{frame.f_lineno}')
            handler()
        return trace

    def traced():
        sys.settrace(trace)
        work()

    thread = threading.Thread(target=traced, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), f'it hangs, having been interrupted at {came}'
    return bool(came)


def test_a_store_that_tells_nobody_leaves_the_sleep_to_celery():
    from anarchon_celery import Scheduler

    app = Celery('proj', broker='memory://', set_as_current=False)
    app.conf.update(anarchon_store='memory://waking', beat_schedule={})
    beat = Scheduler(app=app)
    beat.listen()
    assert beat.tick() > 0
    beat.close()
    app.close()

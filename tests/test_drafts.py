"""Several messages in one round trip: what they hold, who is told when, and what is known after a failure."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

import kombu
import pytest
import redis
from celery import Celery, Task, signals
from celery.app import base as celery_app
from kombu.entity import Exchange, Queue
from kombu.transport.redis import Channel
from kombu.utils import functional

from anarchon_celery import dispatch, headers, portions
from anarchon_celery.config import Policy
from anarchon_celery.dispatch import BrokerDown, Letter, NotSent, Posted, Publisher
from anarchon_celery.drafts import drafted, may_be_batched, may_be_drafted
from anarchon_celery.entries import read_entry
from anarchon_celery.protocol import Run
from tests.stage import clock, lines, log, stage
from tests.test_dispatch import Wire

__all__ = ['clock', 'log', 'stage']  # fixtures

pytestmark = pytest.mark.skipif(kombu.VERSION[:2] < (5, 7), reason='this kombu has no batches')

T = 1_790_002_800_000
RUN = Run(job='sync', slot=T, claimed_at=T + 5, nonce='n')
LATER = datetime(2099, 1, 1, tzinfo=timezone.utc)


class Desk:
    """A publisher whose broker is a Redis, and a look into what it holds."""

    def __init__(self, url: str) -> None:
        self.url, self.queue = url, f'q-{secrets.token_hex(4)}'
        self.app = Celery('proj', broker=url, set_as_current=False)
        self.app.conf.update(task_default_queue=self.queue, result_expires=None)
        self.task = self.app.task(name='proj.sync', shared=False)(task)
        self.publisher = Publisher(self.app)

    def letters(self, *entries: dict) -> list[Letter]:
        return [
            Letter(read_entry(self.app, 'sync', {'task': 'proj.sync', 'schedule': 1} | entry), RUN, Policy())
            for entry in entries
        ]

    def post(self, *entries: dict, may_go=lambda: True):
        self.publisher.connected()
        letters = self.letters(*entries)
        assert all(self.publisher.may_post(letter.entry) for letter in letters)
        return self.publisher.post(letters, may_go)

    def lists(self) -> dict[str, list[bytes]]:
        """All messages, by the list they are in."""
        with redis.Redis.from_url(self.url) as client:
            keys = [key for key in client.scan_iter() if client.type(key) == b'list']
            return {key.decode(): client.lrange(key, 0, -1) for key in keys}

    def count(self) -> int:
        return sum(map(len, self.lists().values()))

    def clear(self) -> None:
        """Drop all messages; the queues stay bound to their exchanges."""
        with redis.Redis.from_url(self.url) as client:
            for key in self.lists():
                client.delete(key)

    def bind(self, queue: Queue) -> None:
        queue(self.publisher.connected().channel).declare()

    def close(self) -> None:
        self.publisher.close()
        self.app.close()


def task(*args, **kwargs):
    """Never run here."""


@pytest.fixture
def desk_at(monkeypatch):
    monkeypatch.setattr(functional, 'sleep', lambda seconds: None)  # kombu's, between its two tries
    desks = []

    def make(url: str) -> Desk:
        desks.append(Desk(url))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


@pytest.fixture
def desk(desk_at, redis_url):
    return desk_at(redis_url)


# What they hold ---------------------------------------------------------------------------------


def options_of(name: str) -> dict[str, dict]:
    """All sorts of options; queues and exchanges are called so, and not as in another test."""
    direct, topic = Exchange(f'{name}-d', type='direct'), Exchange(f'{name}-t', type='topic')
    return {
        'none': {},
        'priority': {'priority': 3},
        'queue': {'queue': f'{name}-other'},
        'queue object': {'queue': Queue(f'{name}-own', direct, routing_key='r')},
        'topic': {'queue': Queue(f'{name}-topic', topic, routing_key='a.#'), 'routing_key': 'a.b'},
        'exchange and key': {'exchange': direct, 'routing_key': 'bound'},
        'serializer': {'serializer': 'yaml'},
        'compression': {'compression': 'zlib'},
        'countdown': {'countdown': 30},
        'eta': {'eta': LATER},
        'expires at': {'expires': LATER},
        'expires in': {'expires': 60},
        'limits': {'time_limit': 9, 'soft_time_limit': 5},
        'links': {'link': {'task': 'a', 'args': [], 'kwargs': {}, 'options': {}, 'subtask_type': None}},
        'shadow': {'shadow': 'nightly'},
        'no result': {'ignore_result': True},
        'headers': {'headers': {'tenant': 'a'}},
        'reply': {'reply_to': 'somewhere', 'correlation_id': 'c'},
        'stamps': {'stamped_headers': ['tenant'], 'tenant': 'a'},
        'delivery': {'delivery_mode': 1},
        'reprs': {'argsrepr': '(…)', 'kwargsrepr': '{…}'},
    }


@pytest.fixture
def the_same_ids(monkeypatch):
    """What is random in a message, and the time, are the same each time."""
    monkeypatch.setattr(dispatch, 'uuid', lambda: 'the-id')
    monkeypatch.setattr(celery_app, 'uuid', lambda: 'the-id')
    monkeypatch.setattr(Channel, '_next_delivery_tag', lambda channel: 'the-tag')
    monkeypatch.setattr(Celery, 'now', lambda app: datetime(2026, 10, 10, tzinfo=timezone.utc))


@pytest.mark.parametrize('name', options_of(''))
@pytest.mark.parametrize('is_known', [True, False], ids=['a task of its own', 'by name'])
def test_each_message_is_the_one_that_apply_async_sends(desk, the_same_ids, name, is_known):
    options = options_of(desk.queue)[name]
    if name == 'exchange and key':
        desk.bind(Queue(f'{desk.queue}-bound', options['exchange'], routing_key='bound'))
    if not is_known:
        desk.app.tasks.pop('proj.sync')
    entry = {'args': [1, 'two'], 'kwargs': {'three': 3}, 'options': options}
    told = headers.write(RUN, 'proj.sync', Policy(), task_id='the-id')
    own = {**options.get('headers', {}), 'celery_beat_task': True, 'anarchon': told}
    send = desk.task.apply_async if is_known else partial(desk.app.send_task, 'proj.sync')
    send([1, 'two'], {'three': 3}, task_id='the-id', **options | {'headers': own})
    expected = desk.lists()
    desk.clear()
    (posted,) = desk.post(entry)
    assert ('the-id', None) == (posted.task_id, posted.problem)
    assert 1 == desk.count()
    assert expected == desk.lists()


def test_arguments_and_retries_are_the_runs(desk):
    (letter,) = desk.letters({'args': (1,)})
    desk.publisher.connected()
    run = replace(RUN, retries=2, arguments='[[7], null]')
    desk.publisher.post([replace(letter, run=run)], lambda: True)
    ((message,),) = desk.lists().values()
    assert 2 == json.loads(message)['headers']['retries']


def test_routes_are_asked_for_each_message(desk):
    desk.app.conf.task_routes = [lambda name, args, *more, **how: {'queue': f'for-{args[0]}'}]
    desk.post({'args': (1,)}, {'args': (2,)})
    assert {'for-1', 'for-2'} == set(desk.lists())


def test_many_go_out_in_one_request(desk, monkeypatch):
    desk.post({})
    requests = []
    pack = redis.connection.Connection.send_packed_command

    def counting(connection, command, *how, **more):
        requests.append(command)
        return pack(connection, command, *how, **more)

    monkeypatch.setattr(redis.connection.Connection, 'send_packed_command', counting)
    assert [None] * 20 == [one.problem for one in desk.post(*[{}] * 20)]
    assert 1 == len(requests)
    assert 21 == desk.count()


# Who is told, and when --------------------------------------------------------------------------


@pytest.fixture
def told():
    """What one of Celery's signals tells, of whom, and how many messages were out then."""
    seen, look, connected = [], [], []

    def listen(signal, count):
        look.append(count)
        signal.connect(receive)
        connected.append(signal)
        return seen

    def receive(sender, **how):
        seen.append((sender, look[0](), sorted(how)))

    yield listen
    for signal in connected:
        signal.disconnect(receive)


def test_a_message_that_goes_another_way_than_celerys_is_not_taken_for_sent():
    with pytest.raises(RuntimeError, match="^task 'sync' was sent by another producer than the one it was "):
        drafted('sync', lambda producer: None, None)


def test_where_the_broker_is_away_each_message_is_certainly_not_out(desk_at, own_redis_server):
    desk = desk_at(own_redis_server.url())
    assert [None] == [one.problem for one in desk.post({})]
    own_redis_server.stop()
    letters = desk.letters({}, {})
    desk.publisher.close()
    down = desk.publisher.post(letters, lambda: True)
    assert [BrokerDown] * 2 == [type(one.problem) for one in down]
    assert {''} == {one.task_id for one in down}
    own_redis_server.start()
    assert [None] * 2 == [one.problem for one in desk.post({}, {})]
    assert 3 == desk.count()


def test_it_is_told_that_a_message_was_sent_when_it_was_sent(desk, told):
    seen = told(signals.after_task_publish, desk.count)
    for one in desk.post({}, {}):
        one.announce()
    after = ('proj.sync', 2, ['body', 'exchange', 'headers', 'routing_key', 'signal'])
    assert [after] * 2 == seen
    desk.task.apply_async()
    assert after[2] == seen[-1][2], 'as Celery tells it'


def test_it_is_told_of_each_message_before_any_is_out(desk, told):
    seen = told(signals.before_task_publish, desk.count)
    desk.post({}, {})
    assert [('proj.sync', 0)] * 2 == [one[:2] for one in seen]


def test_of_a_message_that_is_not_out_it_is_not_told(desk, told):
    seen = told(signals.after_task_publish, desk.count)
    for one in desk.post({'args': (object(),)}, {}):
        one.announce()
    assert 1 == len(seen)


def test_who_is_told_before_and_after_sees_one_message_after_the_other(desk, told):
    told(signals.before_task_publish, desk.count)
    assert may_be_drafted(desk.app, desk.task)
    told(signals.after_task_publish, desk.count)
    assert not may_be_drafted(desk.app, desk.task)


def test_what_a_receiver_puts_into_the_headers_is_in_the_message(desk):
    def trace(headers, **how):
        headers['trace'] = 'abc'

    signals.before_task_publish.connect(trace)
    try:
        desk.post({})
    finally:
        signals.before_task_publish.disconnect(trace)
    ((message,),) = desk.lists().values()
    assert 'abc' == json.loads(message)['headers']['trace']


# Where somebody else has a hand in it -----------------------------------------------------------


class Own(Task):
    def apply_async(self, *args, **kwargs):
        return super().apply_async(*args, **kwargs)


def around(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Around:
    """What stands around a function and has all that it has, as wrapt makes them for tracers."""

    def __init__(self, function):
        self.function = function

    def __getattr__(self, name):
        return getattr(self.function, name)

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def test_a_task_with_a_way_of_its_own_to_be_sent_is_not_drafted(desk):
    own = desk.app.task(name='proj.own', base=Own, shared=False)(task)
    assert may_be_drafted(desk.app, desk.task)
    assert not may_be_drafted(desk.app, own)


@pytest.mark.parametrize('wrap', [around, Around])
@pytest.mark.parametrize('where', ['task', 'class', 'app', 'amqp'])
def test_nothing_is_drafted_where_sending_is_wrapped(desk, monkeypatch, where, wrap):
    if where == 'task':
        monkeypatch.setattr(desk.task, 'apply_async', wrap(desk.task.apply_async), raising=False)
    elif where == 'class':
        monkeypatch.setattr(Task, 'apply_async', wrap(Task.apply_async))
    elif where == 'app':
        monkeypatch.setattr(desk.app, 'send_task', wrap(desk.app.send_task))
    else:
        monkeypatch.setattr(desk.app.amqp, 'send_task_message', wrap(desk.app.amqp.send_task_message))
    assert not may_be_drafted(desk.app, desk.task)


def test_nothing_is_drafted_where_each_sending_is_told(desk, monkeypatch):
    with monkeypatch.context() as told:
        told.setattr(signals.task_sent, 'receivers', [object()])
        assert not may_be_drafted(desk.app, desk.task)
    assert may_be_drafted(desk.app, desk.task)
    desk.app.conf.task_send_sent_event = True
    assert not may_be_drafted(desk.app, desk.task)


@pytest.mark.parametrize('wrap', [around, Around])
def test_a_wrapped_producer_is_not_given_batches(desk, monkeypatch, wrap):
    producer = desk.publisher.connected()
    assert may_be_batched(producer)
    monkeypatch.setattr(kombu.Producer, 'publish', wrap(kombu.Producer.publish))
    assert not may_be_batched(producer)


def test_a_transport_without_batches_is_given_none():
    app = Celery('proj', broker='memory://', set_as_current=False)
    assert not may_be_batched(Publisher(app).connected())


def test_a_client_that_tries_again_by_itself_is_given_none(desk_at, redis_url):
    desk = desk_at(redis_url)
    desk.app.conf.broker_transport_options = {'retry_on_timeout': True}
    assert not may_be_batched(desk.publisher.connected())


# What is known after a failure ------------------------------------------------------------------


def boom(*args, **kwargs):
    raise LookupError('no such route')


@pytest.mark.parametrize(
    ('entry', 'line'),
    [
        ({'args': (object(),)}, 'EncodeError: '),
        ({'options': {'countdown': 'soon'}}, 'TypeError: '),
        ({'options': {'serializer': 'nonsense'}}, 'SerializerNotInstalled: '),
        ({'options': {'compression': 'nope'}}, "compression='nope' is unknown here"),
        ({'options': {'router': None, 'queue': 5}}, ''),
    ],
    ids=['not encodable', 'countdown', 'serializer', 'compression', 'queue'],
)
def test_what_is_wrong_with_one_message_keeps_no_other_back(desk, entry, line):
    good, bad, other = desk.post({}, entry, {})
    assert (None, None) == (good.problem, other.problem)
    assert isinstance(bad.problem, NotSent)
    assert not isinstance(bad.problem, BrokerDown)
    assert str(bad.problem).startswith(line)
    assert 2 == desk.count()


def test_a_route_that_raises_keeps_its_message_in(desk):
    desk.app.conf.task_routes = [boom]
    (posted,) = desk.post({})
    assert isinstance(posted.problem, NotSent)
    assert 'LookupError: no such route' == str(posted.problem)
    desk.app.conf.task_routes = None
    del desk.app.amqp.router
    assert 0 == desk.count()


def test_a_route_that_does_not_reach_its_own_server_is_not_the_broker_that_is_down(desk):
    def route(name, args, *more, **how):
        if args:
            raise ConnectionRefusedError(111, 'the table of routes')

    desk.app.conf.task_routes = [route]
    good, bad, other = desk.post({}, {'args': (1,)}, {})
    assert [None, NotSent, None] == [one.problem and type(one.problem) for one in (good, bad, other)]
    assert 2 == desk.count()
    assert desk.publisher._producer is not None


def test_what_may_go_no_more_stays(desk):
    assert [] == desk.post({}, {}, may_go=lambda: False)
    assert 0 == desk.count()
    assert [None] == [one.problem for one in desk.post({})], 'the connection is as good as before'
    assert 1 == desk.count()


def test_a_broker_that_is_gone_has_none_of_them(own_redis_server, desk_at):
    desk = desk_at(own_redis_server.url())
    desk.post({})
    own_redis_server.stop()
    desk.publisher._producer.channel.pool.disconnect()
    for one in desk.publisher.post(desk.letters({}, {}), lambda: True):
        assert isinstance(one.problem, BrokerDown), one.problem
    assert desk.publisher._producer is None
    own_redis_server.start()
    assert [None, None] == [one.problem for one in desk.post({}, {})], 'over a connection made anew'


def test_messages_whose_answer_was_lost_may_be_out(redis_server, redis_url, desk_at):
    wire = Wire(redis_server.port, cut_after=b'LPUSH')
    desk = desk_at(f'redis://127.0.0.1:{wire.port}/0')
    posted = desk.post({}, {}, {})
    assert 3 == len(posted)
    for one in posted:
        assert not isinstance(one.problem, NotSent | None), one.problem
        assert dispatch.is_of_connection(one.problem)
    assert desk.publisher._producer is None, 'whatever state it is in, it is not used again'
    assert 1 == wire.cuts, 'and it was not tried again'
    with redis_server.client() as client:
        assert 3 == client.llen(desk.queue), 'they are out'
    desk.close()
    wire.close()


@pytest.mark.parametrize('step', [b'LLEN', b'SADD'], ids=['queue', 'binding'])
def test_a_connection_that_is_cut_while_a_queue_is_declared_is_a_broker_that_is_down(
    redis_server, redis_url, desk_at, step
):
    wire = Wire(redis_server.port, cut_after=b'')
    desk = desk_at(f'redis://127.0.0.1:{wire.port}/0')
    desk.publisher.connected()
    wire.cut_after = step
    posted = desk.publisher.post(desk.letters({}, {}), lambda: True)
    assert 1 == wire.cuts
    assert [BrokerDown, BrokerDown] == [type(one.problem) for one in posted], [one.problem for one in posted]
    assert desk.publisher._producer is None
    with redis_server.client() as client:
        assert 0 == client.llen(desk.queue)
    wire.cut_after = b''
    assert [None, None] == [one.problem for one in desk.post({}, {})]
    desk.close()
    wire.close()


# What beat makes of it --------------------------------------------------------------------------


@pytest.fixture
def hundred(stage, redis_server, redis_url, monkeypatch):
    """A beat with a hundred jobs that are due, whose broker is a Redis; and its requests to that."""
    monkeypatch.setattr(portions, 'LEAST', 100)  # all of them in one claim
    entries = {f'job-{n:02}': {'task': 'proj.sync', 'schedule': 3600} for n in range(100)}
    beat = stage.beat(entries, broker=redis_url)
    posts = []
    post = beat.publisher.post

    def counting(letters, may_go):
        posts.append(len(letters))
        return post(letters, may_go)

    beat.publisher.post = counting
    return beat, posts


def out(redis_server, stage) -> int:
    with redis_server.client() as client:
        return client.llen(stage.queue)


def test_all_that_is_due_goes_out_in_a_few_requests(hundred, stage, redis_server):
    beat, posts = hundred
    beat.tick()
    assert [50, 49] == posts, 'the first one goes alone: it makes the connection'
    assert 100 == out(redis_server, stage)
    assert {'published'} == {run.state for run in beat.store.runs(limit=200)}


def test_what_is_trusted_no_more_when_it_would_go_out_is_given_back(hundred, stage, redis_server):
    beat, _posts = hundred
    beat._take_over = lambda: None  # else this very node would have them again
    letters = beat.dispatcher._letter
    beat.dispatcher._letter = lambda *run: stage.clock.advance(100) or letters(*run)
    beat.tick()
    assert 51 == out(redis_server, stage), 'those of the first five seconds'
    assert {'published': 51, 'released': 49} == Counter(run.state for run in beat.store.runs(limit=200))


def test_all_of_a_request_whose_answer_was_lost_are_left_to_their_deadline(hundred, stage, log):
    beat, _posts = hundred

    def losing(letters, may_go):
        assert may_go()
        return [Posted('t', problem=ConnectionResetError('by peer')) for _ in letters]

    beat.publisher.post = losing
    beat.tick()
    states = Counter(run.state for run in beat.store.runs(limit=200))
    assert {'published': 1, 'claimed': 50, 'released': 49} == states, 'the others may have a broker elsewhere'
    assert 50 == len(lines(log, 'not published, perhaps out'))


def test_a_broker_that_goes_is_told_of_once(hundred, stage, log):
    beat, _posts = hundred
    beat.publisher.post = lambda letters, may_go: [Posted('', problem=BrokerDown('gone')) for _ in letters]
    beat.tick()
    assert {'published': 1, 'released': 99} == Counter(run.state for run in beat.store.runs(limit=200))
    assert 1 == len(lines(log, 'waiting for the broker'))


def test_what_was_not_out_when_beat_was_stopped_is_given_back(hundred, stage, redis_server):
    beat, _posts = hundred

    def stopped(letters, may_go):
        raise SystemExit

    beat.publisher.post = stopped
    with pytest.raises(SystemExit):
        beat.tick()
    beat.close()
    assert 1 == out(redis_server, stage)
    assert {'published': 1, 'released': 99} == Counter(run.state for run in beat.store.runs(limit=200))

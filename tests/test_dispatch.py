"""One publication: what the message holds, and what is known after a failure."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal

import amqp.transport
import pytest
import redis
from celery import Celery, signals
from celery._state import task_join_will_block
from celery.beat import BeatLazyFunc
from kombu.exceptions import OperationalError
from kombu.utils import functional

from anarchon_celery import dispatch
from anarchon_celery.arguments import written
from anarchon_celery.config import Policy
from anarchon_celery.dispatch import BrokerDown, Letter, NotSent, Publisher
from anarchon_celery.entries import read_entry
from anarchon_celery.errors import in_one_line
from anarchon_celery.protocol import Run
from tests.servers import free_port

T = 1_790_002_800_000
RUN = Run(job="sync", slot=T, claimed_at=T + 5, nonce="n")


class Desk:
    """A publisher, and a look into the queue it publishes to."""

    def __init__(self, broker: str) -> None:
        self.queue = f"q-{secrets.token_hex(4)}"
        self.app = Celery("proj", broker=broker, set_as_current=False)
        self.app.conf.task_default_queue = self.queue
        self.publisher = Publisher(self.app)

    def entry(self, **fields):
        return read_entry(self.app, "sync", {"task": "proj.sync", "schedule": 1} | fields)

    def publish(self, run: Run = RUN, policy: Policy = Policy(), **fields) -> str:  # noqa: B008
        return self.publisher.publish(self.entry(**fields), run, policy)

    def messages(self, queue: str | None = None) -> list:
        with self.app.connection_for_read() as connection:
            channel = connection.channel()
            found = []
            while message := channel.basic_get(queue or self.queue, no_ack=True):
                found.append(message)
        return found

    def message(self, queue: str | None = None):
        (found,) = self.messages(queue)
        return found

    def close(self) -> None:
        self.publisher.close()
        self.app.close()


@pytest.fixture
def desk_at():
    desks = []

    def make(broker: str) -> Desk:
        desks.append(Desk(broker))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


@pytest.fixture
def desk(desk_at):
    return desk_at("memory://")


@pytest.fixture
def at_once(monkeypatch):
    """Kombu tries a connection twice, with two seconds between: here with none."""
    monkeypatch.setattr(functional, "sleep", lambda seconds: None)


class Wire:
    """A way to a server that is cut right after the request that holds a word: nobody hears the answer."""

    def __init__(self, port: int, cut_after: bytes) -> None:
        self.to, self.cut_after = port, cut_after
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = [self.listener]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to))
            self.sockets += [near, far]
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        while asked := near.recv(65536):
            far.sendall(asked)
            answer = far.recv(65536)  # a request, an answer: a client that does not pipeline
            if self.cut_after and self.cut_after in asked:
                self.cuts += 1
                near.close()
                return
            near.sendall(answer)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        for each in self.sockets:
            each.close()


# The message ------------------------------------------------------------------------------------


def test_the_arguments_of_the_run_stand_in_place_of_the_entrys(desk):
    for given, expected in (
        ([["us"], {"full": False}], (["us"], {"full": False})),
        ([["us"], None], (["us"], {"full": True})),
        ([None, {}], (["eu"], {})),
    ):
        run = replace(RUN, kind="manual", trigger="manual", arguments=written(*given))
        desk.publish(run, args=("eu",), kwargs={"full": True})
        message = desk.message()
        assert expected == tuple(message.decode()[:2])
        header = message.headers["anarchon"]
        assert ("manual", "manual", run.arguments) == (
            header["kind"], header["trigger"], header["arguments"],
        )  # fmt: skip


def test_dates_and_decimals_may_be_given(desk):
    given = [Decimal("1.5"), datetime(2026, 3, 29, tzinfo=timezone.utc)]
    desk.publish(replace(RUN, arguments=written(given, None)))
    assert given == desk.message().decode()[0]


def test_arguments_that_somebody_edited_are_not_sent(desk):
    with pytest.raises(NotSent, match="the arguments of the run cannot be read"):
        desk.publish(replace(RUN, arguments="[1"))
    assert [] == desk.messages()


def test_the_message_has_the_task_id_that_is_returned(desk):
    assert desk.publish() == desk.message().headers["id"]


def test_a_task_that_beat_does_not_know_is_sent_by_name(desk):
    assert "proj.sync" not in desk.app.tasks
    desk.publish(args=("eu",), kwargs={"full": True})
    message = desk.message()
    assert ("proj.sync", ["eu"], {"full": True}) == (message.headers["task"], *message.payload[:2])


def test_a_task_that_beat_knows_is_sent_as_it_wants(desk):
    desk.app.conf.task_routes = {"proj.sync": {"queue": f"own-{desk.queue}"}}

    @desk.app.task(name="proj.sync", time_limit=9, shared=False)
    def task():
        """Never run here."""

    desk.publish()
    message = desk.message(f"own-{desk.queue}")
    assert [9, None] == list(message.headers["timelimit"])


def test_the_arguments_of_a_known_task_are_checked_before_it_is_sent(desk):
    @desk.app.task(name="proj.sync", shared=False)
    def task(needed):
        """Never run here."""

    with pytest.raises(NotSent, match="TypeError: .*missing 1 required positional argument: 'needed'"):
        desk.publish()
    assert [] == desk.messages()


def test_the_header_is_the_runs_own_whatever_the_entry_has_under_that_name(desk):
    options = {"headers": {"anarchon": "mine", "tenant": "a"}, "anarchon": {"lease": 5}}
    desk.publish(options=options)
    found = desk.message().headers
    assert ("sync", 1, "a", True) == (
        found["anarchon"]["job"], found["anarchon"]["v"], found["tenant"], found["celery_beat_task"],
    )  # fmt: skip
    assert {"headers": {"anarchon": "mine", "tenant": "a"}, "anarchon": {"lease": 5}} == options


def test_publishing_leaves_the_entry_as_it_was(desk):
    entry = desk.entry(args=(1,), kwargs={"a": 1}, options={"priority": 3, "headers": {"tenant": "a"}})
    before = repr((entry.args, entry.kwargs, entry.options, entry.total_run_count))
    desk.publisher.publish(entry, RUN, Policy())
    desk.publisher.publish(entry, RUN, Policy())
    assert before == repr((entry.args, entry.kwargs, entry.options, entry.total_run_count))
    first, second = desk.messages()
    assert first.headers["id"] != second.headers["id"]


def test_a_run_that_waits_for_a_retry_goes_on_with_its_retries(desk):
    desk.publish(Run(job="sync", slot=T, claimed_at=T, retries=2))
    assert 2 == desk.message().headers["retries"]


def test_a_first_dispatch_has_no_retries(desk):
    desk.publish()
    assert 0 == desk.message().headers["retries"]


# What certainly did not go out ------------------------------------------------------------------


def boom():
    raise RuntimeError("no\ndatabase")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"args": (object(),)}, "EncodeError: Object of type object is not JSON serializable"),
        ({"args": (BeatLazyFunc(boom),)}, "RuntimeError: no database"),
        ({"kwargs": {"a": BeatLazyFunc(boom)}}, "RuntimeError: no database"),
        ({"options": {"countdown": "soon"}}, "TypeError: "),
        ({"options": {"serializer": "nonsense"}}, "SerializerNotInstalled: "),
    ],
    ids=["not encodable", "lazy argument", "lazy keyword", "countdown", "serializer"],
)
def test_what_is_wrong_with_the_message_itself_is_said_in_one_line(desk, fields, line):
    with pytest.raises(NotSent) as failed:
        desk.publish(**fields)
    assert not isinstance(failed.value, BrokerDown)
    assert str(failed.value).startswith(line)
    assert 1 == len(str(failed.value).splitlines())
    assert [] == desk.messages()
    desk.publish()
    assert 1 == len(desk.messages()), "the connection is as good as before"


def test_a_queue_that_must_not_be_made_up_is_the_entrys_own_trouble(desk):
    desk.app.conf.task_create_missing_queues = False
    with pytest.raises(NotSent, match="QueueNotFound: "):
        desk.publish(options={"queue": "nowhere"})


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_nobody_listens_where_the_broker_should_be(desk_at, at_once, scheme):
    desk = desk_at(f"{scheme}://127.0.0.1:{free_port()}//")
    before = time.monotonic()
    with pytest.raises(BrokerDown, match="refused") as failed:
        desk.publish()
    assert time.monotonic() - before < 5
    assert 1 == len(str(failed.value).splitlines())


def test_whoever_listens_there_hangs_up(desk_at, at_once):
    hanging_up = socket.create_server(("127.0.0.1", 0))

    def hang_up():
        for _ in range(4):
            try:
                hanging_up.accept()[0].close()
            except OSError:
                return

    threading.Thread(target=hang_up, daemon=True).start()
    desk = desk_at(f"redis://127.0.0.1:{hanging_up.getsockname()[1]}/0")
    with pytest.raises(BrokerDown):
        desk.publish()
    hanging_up.shutdown(socket.SHUT_RDWR)
    hanging_up.close()


def test_a_broker_that_goes_and_comes_again(own_redis_server, desk_at, at_once):
    desk = desk_at(own_redis_server.url())
    desk.publish()
    own_redis_server.stop()
    with pytest.raises(Exception, match="refused|closed|reset"):
        desk.publish()
    with pytest.raises(BrokerDown):
        desk.publish()
    own_redis_server.start()
    desk.publish()
    assert 2 == len(desk.messages())


# What may be out --------------------------------------------------------------------------------


def test_a_message_whose_answer_was_lost_may_be_out(redis_server, redis_url, desk_at):
    wire = Wire(redis_server.port, cut_after=b"LPUSH")
    desk = desk_at(f"redis://127.0.0.1:{wire.port}/0")
    with pytest.raises(Exception, match="Connection|connection") as failed:
        desk.publish()
    assert desk.publisher._connection is None, "whatever state it is in, it is not used again"
    assert not isinstance(failed.value, NotSent)
    assert 1 == wire.cuts, "and it was not tried again"
    with redis_server.client() as client:
        assert 1 == client.llen(desk.queue), "it is out"
    wire.cut_after = b""
    desk.publish()
    with redis_server.client() as client:
        assert 2 == client.llen(desk.queue), "over a connection made anew"
    desk.close()
    wire.close()


# The connection ---------------------------------------------------------------------------------


def test_one_connection_serves_all_publications(redis_server, redis_url, desk_at):
    desk = desk_at(redis_url)
    desk.publish()
    with redis_server.client() as client:
        before = client.info("stats")["total_connections_received"]
        for _ in range(5):
            desk.publish()
        assert before == client.info("stats")["total_connections_received"]


def test_who_is_stopped_in_the_middle_of_an_answer_does_not_wait_for_another(
    rabbitmq_url, desk_at, monkeypatch
):
    """Its head is read and lost: the answer to a farewell would be taken for the rest, which it is not."""
    desk = desk_at(rabbitmq_url)
    desk.publish()
    read = amqp.transport.TCPTransport._read

    def stopped(transport, n, initial=False, *errors):
        if not initial:
            raise SystemExit
        return read(transport, n, initial, *errors)

    with monkeypatch.context() as patched:
        patched.setattr(amqp.transport.TCPTransport, "_read", stopped)
        with pytest.raises(SystemExit):
            desk.publish()
    began = time.monotonic()
    desk.publisher.close()
    assert time.monotonic() - began < 5
    desk.publish()
    assert 3 == len(desk.messages())


def test_a_publisher_may_be_closed_twice_and_used_again(desk):
    desk.publisher.close()
    desk.publish()
    desk.publisher.close()
    desk.publisher.close()
    desk.publish()
    assert 2 == len(desk.messages())


def test_a_connection_that_fails_to_close_is_dropped_all_the_same(desk, monkeypatch):
    desk.publish()
    connection = desk.publisher._connection

    def fail():
        raise OSError("broken pipe")

    monkeypatch.setattr(connection, "release", fail)
    desk.publisher.close()
    monkeypatch.undo()
    connection.release()
    desk.publish()
    assert desk.publisher._connection is not connection


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        (ValueError("a\n  b"), "ValueError: a b"),
        (ValueError(), "ValueError"),
        (ValueError("caf\udce9.csv"), "ValueError: caf?.csv"),
        (ValueError("a\0b"), "ValueError: a?b"),
        (ValueError("x" * 5_000_000), "ValueError: " + "x" * 985 + "..."),
        (Unspeakable(), "Unspeakable: (its text cannot be made)"),
    ],
    ids=["lines", "none", "half a character", "NUL", "long", "unspeakable"],
)
def test_an_error_in_one_line(reason, line):
    assert line == in_one_line(reason)


def test_causes_are_followed_to_their_end():
    first = ConnectionRefusedError()
    second = OSError()
    second.__cause__ = first
    third = RuntimeError()
    third.__context__ = second
    assert [third, second, first] == list(dispatch._causes(third))


def caused_by(cause):
    reason = RuntimeError("the transport failed")
    reason.__cause__ = cause
    return reason


@pytest.mark.parametrize(
    ("reason", "is_so"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OperationalError(), True),
        (caused_by(BrokenPipeError()), True),
        (RuntimeError(), False),
        (caused_by(ValueError()), False),
    ],
    ids=["reset", "timeout", "kombu's", "a cause", "no connection", "another cause"],
)
def test_whether_it_is_the_connection_that_failed(reason, is_so):
    assert is_so == dispatch.is_of_connection(reason)


# the result backend -------------------------------------------------------------------------------


def test_nothing_is_asked_of_a_result_backend_that_is_down(desk_at, redis_url):
    desk = desk_at(redis_url)
    desk.app.conf.result_backend = f"redis://127.0.0.1:{free_port()}/0"
    desk.app.conf.result_backend_always_retry = True
    task_ids = [desk.publish(), *posted(desk, 2)]
    assert sorted(task_ids) == sorted(message.headers["id"] for message in desk.messages())


def test_nobody_listens_for_the_results_of_what_is_published(desk_at, redis_url, redis_server):
    desk = desk_at(redis_url)
    desk.app.conf.result_backend = redis_server.url(1)
    for _ in range(3):
        desk.publish()
    posted(desk, 2)
    with redis.Redis.from_url(redis_server.url(1)) as client:
        assert [] == client.pubsub_channels("*celery-task-meta-*")
        listened = desk.app.send_task("proj.sync")  # as it is where somebody does
        assert [f"celery-task-meta-{listened.id}".encode()] == client.pubsub_channels("*celery-task-meta-*")


def test_meanwhile_others_may_wait_for_results(desk):
    seen = []

    def receive(**_):
        seen.append(task_join_will_block())

    with told_by(signals.before_task_publish, receive):
        desk.publish()
    assert [False] == seen


@contextmanager
def told_by(signal, receive):
    signal.connect(receive)
    try:
        yield
    finally:
        signal.disconnect(receive)


def posted(desk: Desk, count: int) -> list[str]:
    """Publish so many together, where kombu can."""
    desk.publisher.connected()
    if not desk.publisher.may_post(desk.entry()):
        return [desk.publish() for _ in range(count)]
    letters = [Letter(desk.entry(), RUN, Policy()) for _ in range(count)]
    found = desk.publisher.post(letters, lambda: True)
    assert not [one.problem for one in found if one.problem]
    return [one.task_id for one in found]

"""The publication of claimed runs to the broker: one, or several in one round trip.

The broker client's own retries are off: they may take minutes, and the claim is trusted for
seconds. What matters after a failure is whether the message can be out: if certainly not, the claim
is given back, so that a node with a working broker has it; else its deadline decides.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry, _evaluate_entry_args, _evaluate_entry_kwargs
from celery.exceptions import QueueNotFound
from celery.utils import uuid
from kombu.compression import get_encoder
from kombu.exceptions import EncodeError, OperationalError, SerializerNotInstalled

from . import arguments, headers
from .config import Policy
from .drafts import Draft, Telling, drafted, is_kombus, may_be_batched, may_be_drafted
from .errors import in_one_line
from .protocol import Run

#: No connection was made, so no message is out.
_NEVER_CONNECTED = (ConnectionRefusedError, socket.gaierror)

#: More than any batch holds: it goes out when it is told to, and not before.
_ALL = 1_000_000

#: What is wrong with the message itself: raised before anything goes out. A KeyError counts for kombu 5.7 as
#: one of a Redis connection's, and comes out as an OperationalError: consumers meet it, publishers do not.
_NOTHING_WENT_OUT = (EncodeError, SerializerNotInstalled, QueueNotFound, TypeError, KeyError)


#: By the transport's driver. A broker that hangs must not hang beat; an AMQP publication counts when
#: the broker confirms it: on a connection that has died unseen it would vanish without an error.
_TRANSPORT_OPTIONS: dict[str, Callable[[float], dict[str, Any]]] = {
    "redis": lambda patience: {"socket_timeout": patience, "socket_connect_timeout": patience},
    "amqp": lambda patience: {"read_timeout": patience, "write_timeout": patience, "confirm_publish": True},
}


class NotSent(Exception):
    """The message is certainly not out, for a reason of its own."""


class BrokerDown(NotSent):
    """The message is certainly not out, and no other would be: there is no connection."""


class _MayNotGo(Exception):
    """A batch is given up before anything of it went out."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A run to be published; ``supervised`` is None where beat does not know."""

    entry: ScheduleEntry
    run: Run
    policy: Policy
    supervised: bool | None = None


@dataclass(slots=True)
class Posted:
    """What became of a letter: it is out, or ``problem`` is what :meth:`Publisher.publish` would raise."""

    task_id: str
    draft: Draft | None = None
    problem: Exception | None = None

    def announce(self) -> None:
        """Say that it is out, if it is."""
        if self.draft is not None and self.problem is None:
            self.draft.announce()


class Publisher:
    """Publishes runs over one connection of its own, made anew after a failure."""

    #: How many messages go out together: if their answer is lost, each of them may be out.
    AT_ONCE = 50

    def __init__(self, app: Celery, *, patience: float = 5.0) -> None:
        """Connect at the first publication; wait ``patience`` seconds for the broker at most."""
        self.app = app
        self.patience = patience
        self._connection: Any = None
        self._producer: Any = None
        self._midway = False  #: in an exchange with the broker

    def publish(
        self, entry: ScheduleEntry, run: Run, policy: Policy, supervised: bool | None = None,
        going: Callable[[], object] | None = None,
    ) -> str:  # fmt: skip
        """Send the run's message and return its task id; ``supervised`` is None where beat does not know.

        ``going`` is called before it may be out.

        Raises:
            NotSent: it is certainly not out; ``BrokerDown`` where no message could be.
            Exception: whatever the broker's client raises, when it may be out.
        """
        producer = self.connected()
        task_id: str = uuid()
        if going is not None:
            producer = self._telling(entry, producer, going)
        with self._told_apart():
            self._send(Letter(entry, run, policy, supervised), task_id, producer)
        return task_id

    def _telling(self, entry: ScheduleEntry, producer: Any, going: Callable[[], object]) -> Any:
        """Have ``going`` called as late as can be: at once where not only Celery has a hand in sending."""
        if may_be_drafted(self.app, self.app.tasks.get(entry.task)) and is_kombus(producer):
            return Telling(producer, going)
        going()
        return producer

    # several together ---------------------------------------------------------------------------

    def may_post(self, entry: ScheduleEntry) -> bool:
        """Whether messages of this entry may go out with others; not before there is a connection."""
        if self._producer is None or not may_be_batched(self._producer):
            return False
        return may_be_drafted(self.app, self.app.tasks.get(entry.task))

    def post(self, letters: Sequence[Letter], may_go: Callable[[], bool]) -> list[Posted]:
        """Send messages in one round trip, unless ``may_go`` says no right before that; then return nothing.

        Else return what became of each.
        """
        try:
            producer = self.connected()
        except BrokerDown as reason:
            return [Posted("", problem=reason) for _ in letters]
        posted = [self._draft(letter, producer) for letter in letters]
        try:
            return posted if self._go_out(posted, producer, may_go) else []
        except Exception as reason:
            for one in posted:
                one.problem = one.problem or reason
            return posted

    def _draft(self, letter: Letter, producer: Any) -> Posted:
        """Make a message, or see what is wrong with it."""
        posted = Posted(uuid())
        try:
            name = self._name_of(letter.entry)
            posted.draft = drafted(name, partial(self._send, letter, posted.task_id), producer)
        except NotSent as reason:
            posted.problem = reason
        except Exception as reason:  # of a route, say: whatever it is, the broker was not asked yet
            posted.problem = NotSent(in_one_line(reason))
        return posted

    def _go_out(self, posted: Sequence[Posted], producer: Any, may_go: Callable[[], bool]) -> bool:
        """Have one request hold them all; false if they may not go."""
        try:
            with producer.batch(max_size=_ALL) as batch:
                for one in posted:
                    self._add(one, producer)
                if not may_go():
                    raise _MayNotGo
                with self._told_apart(), producer.connection._reraise_as_library_errors():
                    _flush(batch)
        except _MayNotGo:
            return False
        return True

    def _add(self, posted: Posted, producer: Any) -> None:
        """Put a message into the producer's batch; until that is flushed nothing is out."""
        if posted.draft is None or posted.problem is not None:
            return
        try:
            with self._exchange():
                posted.draft.publish(producer)  # its queue may have to be declared
        except Exception as reason:
            posted.problem = NotSent(in_one_line(reason))
            if _is_of_message(reason):
                return
            if is_of_connection(reason) or isinstance(reason, producer.connection.connection_errors):
                self._hang_up()
                posted.problem = BrokerDown(in_one_line(reason))
                raise posted.problem from reason  # the batch is broken, too

    # the connection -----------------------------------------------------------------------------

    @contextmanager
    def _told_apart(self) -> Iterator[None]:
        """Tell what is certainly not out from what may be."""
        try:
            with self._exchange():
                yield
        except NotSent:
            raise
        except Exception as reason:
            if _is_of_message(reason):
                raise NotSent(in_one_line(reason.__cause__ or reason)) from reason
            self._hang_up()
            if any(isinstance(cause, _NEVER_CONNECTED) for cause in _causes(reason)):
                raise BrokerDown(in_one_line(reason)) from reason
            raise

    def connected(self) -> Any:
        """Return a producer on the connection, made now if there is none.

        Raises:
            BrokerDown: there is no connection to be had.
        """
        if self._producer is None:
            try:
                with self._exchange():
                    channel = self._connect().channel()
                self._producer = self.app.amqp.Producer(channel, auto_declare=False)
            except Exception as reason:
                why = self._why_not(reason)
                self._hang_up()
                raise BrokerDown(why) from reason
        return self._producer

    def _why_not(self, reason: Exception) -> str:
        if self._connection is None:  # its URL cannot be read, and what is said of it may hold the password
            what = f"its URL cannot be read ({type(reason).__name__})"
            return f"the broker does not answer: {what}: is a / in the password written as %2F?"
        return f"{self._connection.as_uri(mask='***')} does not answer: {in_one_line(reason)}"

    def _connect(self) -> Any:
        """Connect with timeouts below the claim's, which Celery's defaults for publishers lack."""
        connection = self._connection = self.app.connection_for_write(connect_timeout=self.patience)
        options = _TRANSPORT_OPTIONS.get(connection.transport.driver_type, _no_options)(self.patience)
        connection.transport_options = {**options, **(connection.transport_options or {})}
        # kombu tries twice, and would pause between.
        return connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, interval_max=0)

    def _name_of(self, entry: ScheduleEntry) -> str:
        """Return the task's name as the message will have it."""
        task = self.app.tasks.get(entry.task)
        return entry.task if task is None else str(task.name)

    def _send(self, letter: Letter, task_id: str, producer: Any) -> None:
        entry, run, name = letter.entry, letter.run, self._name_of(letter.entry)
        options = {name: value for name, value in entry.options.items() if name != headers.HEADER}
        told = headers.write(run, name, letter.policy, task_id=task_id, supervised=letter.supervised)
        options["headers"] = {
            **(options.get("headers") or {}),
            "celery_beat_task": True,
            headers.HEADER: told,
        }
        if run.retries is not None:
            options["retries"] = run.retries
        args, kwargs = _arguments(entry, run)
        task = self.app.tasks.get(entry.task)
        self._refuse_compression(task, options)
        options.update(task_id=task_id, producer=producer, retry=False)
        with _no_one_waits_for_its_result(self.app):
            if task is not None:
                task.apply_async(args, kwargs, **options)
            else:
                self.app.send_task(entry.task, args, kwargs, **options)

    def _refuse_compression(self, task: Any, options: Mapping[str, Any]) -> None:
        """Name a compression that there is not; kombu's own words are the name alone."""
        asked = options.get("compression"), getattr(task, "compression", None), self.app.conf.task_compression
        if name := next(filter(None, asked), None):
            try:
                get_encoder(name)
            except KeyError:
                raise NotSent(f"compression={name!r} is unknown here, or its package is missing") from None

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Note that something is asked of the broker, for as long; who stops beat may do so in the middle."""
        self._midway = True
        try:
            yield
        except Exception:  # whoever cannot trust the connection then hangs up
            self._midway = False
            raise
        self._midway = False

    def close(self) -> None:
        """Give the connection back; the next publication makes another."""
        if self._midway:
            return self._hang_up()
        if (connection := self._let_go()) is not None:
            with suppress(Exception):  # a dead connection may fail to close: it is dead either way
                connection.release()

    def _hang_up(self) -> None:
        """Close the connection without a word.

        In good order an AMQP connection closes with a question, and where one answer was read in part, what
        comes next is taken for an answer of any length, which is waited for without end.
        """
        if (connection := self._let_go()) is not None:
            with suppress(Exception):
                connection.collect(socket.getdefaulttimeout())

    def _let_go(self) -> Any:
        connection, self._connection, self._producer = self._connection, None, None
        self._midway = False
        return connection


class _Unasked:
    """A result backend's ``on_task_call``, left out while a beat publishes."""

    def __init__(self, ask: Callable[[Any, str], Any]) -> None:
        self._ask = ask

    def __call__(self, producer: Any, task_id: str) -> Any:
        """Do as before, for anybody but a beat."""
        return {} if _publishing.get() else self._ask(producer, task_id)


#: Of this thread or greenlet: others of the process may wait for the results of what they send.
_publishing: ContextVar[bool] = ContextVar("anarchon_publishing", default=False)


@contextmanager
def _no_one_waits_for_its_result(app: Celery) -> Iterator[None]:
    """Have nothing asked of the result backend meanwhile.

    Celery's Redis backend subscribes to the result of each task that is sent, in a beat for ever, and tries
    for long where its server is down.
    """
    with suppress(Exception):  # of a backend that cannot be had Celery tells, if it needs it
        backend = app.backend
        if not isinstance(backend.on_task_call, _Unasked):
            backend.on_task_call = _Unasked(backend.on_task_call)
    token = _publishing.set(True)
    try:
        yield
    finally:
        _publishing.reset(token)


def _flush(batch: Any) -> None:
    """Send a batch; what kombu says of a failure tells less than what it was."""
    try:
        batch.flush()
        return
    except Exception as reason:
        failure = reason.__cause__ if isinstance(reason.__cause__, Exception) else reason
    raise failure


def _arguments(entry: ScheduleEntry, run: Run) -> tuple[Any, Any]:
    """Return what the task is called with: what was given with the run, else what the entry says."""
    try:
        args, kwargs = (None, None) if run.arguments is None else arguments.read(run.arguments)
        return (
            _evaluate_entry_args(entry.args) if args is None else args,
            _evaluate_entry_kwargs(entry.kwargs) if kwargs is None else kwargs,
        )
    except Exception as reason:  # a BeatLazyFunc is the user's code
        raise NotSent(in_one_line(reason)) from reason


def is_of_connection(reason: BaseException) -> bool:
    """Whether it is the connection to the broker that failed, and not this message."""
    return any(isinstance(cause, (OSError, OperationalError)) for cause in _causes(reason))


def _is_of_message(reason: Exception) -> bool:
    """Whether it is this message that is wrong, so that nothing went out, and others may."""
    return isinstance(reason, _NOTHING_WENT_OUT) or (
        isinstance(reason, OperationalError) and isinstance(reason.__cause__, KeyError)
    )


def _no_options(patience: float) -> dict[str, Any]:
    return {}


def _causes(reason: BaseException | None) -> Iterator[BaseException]:
    while reason is not None:
        yield reason
        reason = reason.__cause__ or reason.__context__


"""Messages that cannot be run here now go back to the queue they came from, for later or for another worker.

``Reject`` would not do it: after an early ack it does nothing, and Celery 5.7 stores a failure. So
they are published again, with a patience that is bounded: a broker that hangs must not hang a
worker. What cannot be given back is dropped with a line, and the start timeout of its run sends
another message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from celery import Task
from celery.exceptions import Ignore

from . import headers
from .dispatch import Publisher
from .errors import in_one_line
from .events import MessageDropped, MessageGivenBack, emit
from .protocol import LONGEST_START_TIMEOUT, RunKey

#: How long a message that cannot be run now waits before somebody may try again (seconds).
GIVEN_BACK_FOR = 5.0

#: How long to wait for the broker at most, for each step (seconds).
PATIENCE = 5.0

#: The header that counts how often nobody knew what to do with a message.
RETURNED = "anarchon_returned"

#: What a header that does not say it is taken to mean by its start timeout (seconds).
_START_TIMEOUT = 300.0

#: What a message has beside its headers that it keeps; where it goes to is said apart.
_PROPERTIES = ("correlation_id", "delivery_mode", "message_id", "priority", "reply_to", "timestamp", "type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message as it came, to be sent on unread."""

    body: Any
    headers: Mapping[str, Any]
    exchange: str
    routing_key: str
    how: Mapping[str, Any] = field(default_factory=dict)  #: its content's type, and its properties

    @classmethod
    def of(cls, message: Any, carried: Mapping[str, Any]) -> Letter:
        """Keep a message of kombu's, with these headers in place of its own."""
        kept = dict(carried)
        return cls(
            body=message.body, headers=kept,
            exchange=message.delivery_info.get("exchange") or "",
            routing_key=message.delivery_info.get("routing_key") or "",
            how={
                **{name: message.properties[name] for name in _PROPERTIES if name in message.properties},
                "content_type": message.content_type,
                "content_encoding": message.content_encoding,
                "compression": kept.pop("compression", None),  # kombu has opened the body
            },
        )  # fmt: skip

    def send(self, producer: Any) -> None:
        """Publish it as it came."""
        producer.publish(
            self.body, exchange=self.exchange, routing_key=self.routing_key, headers=dict(self.headers),
            retry=False, **self.how,
        )  # fmt: skip


@contextmanager
def bounded_producer(app: Any) -> Iterator[Any]:
    """A producer on a connection of its own, which waits for the broker no longer than our patience."""
    publisher = Publisher(app, patience=PATIENCE)
    try:
        yield publisher.connected()
    finally:
        publisher.close()


def give_back(
    task: Task, what: RunKey | str, reason: str, *, delay: float = GIVEN_BACK_FOR, counted: bool = False
) -> NoReturn:
    """Publish the message of a task's request again, as it is: never run it unclaimed, never lose it.

    Args:
        task: whose request it is.
        what: the run, for the log.
        reason: why it cannot be run now.
        delay: when somebody may try again (seconds).
        counted: whether perhaps no worker will ever take it: then it is given back only for so long.

    Raises:
        Ignore: the message is done with, here.
    """
    carried: dict[str, Any] | None = dict(task.request.headers)
    if counted:
        carried = counted_once_more(task.request.headers)
    if carried is None:
        emit(MessageDropped(what, f"{reason}; nobody took it"))
        raise Ignore(reason)
    if isinstance(header := carried[headers.HEADER], dict):
        carried[headers.HEADER] = headers.carried_on(header, task.name)
    try:
        _publish_again(task, carried, delay)
    except Exception as error:  # no broker either
        emit(MessageDropped(what, f"{reason}; {in_one_line(error)}"))
    else:
        emit(MessageGivenBack(what, reason, delay))
    raise Ignore(reason)


def _publish_again(task: Task, carried: dict[str, Any], delay: float) -> None:
    request = task.request
    again = task.signature_from_request(request, countdown=delay, retries=request.retries, headers=carried)
    with bounded_producer(task.app) as producer:
        again.apply_async(producer=producer, retry=False)


def counted_once_more(carried: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a message's headers as it goes back once more; None if it went back for long enough.

    By then its run's start timeout has sent another message, and without an end to it the messages
    of a task that no worker knows would go round for ever, more of them with each slot.
    """
    times = _times(carried.get(RETURNED))
    if times * GIVEN_BACK_FOR >= _start_timeout(carried.get(headers.HEADER)):
        return None
    return {**carried, RETURNED: times + 1}


def _times(returned: Any) -> int:
    """How often a message was given back; one that says what cannot be meant, for the first time."""
    return returned if type(returned) is int and returned > 0 else 0


def _start_timeout(header: Any) -> float:
    """The start timeout of a header that perhaps nobody can read: no message goes round for ever."""
    try:
        said = float(header["start_timeout"])
    except (KeyError, TypeError, ValueError, OverflowError, IndexError):
        return _START_TIMEOUT
    return min(said, LONGEST_START_TIMEOUT / 1000) if said >= 0 else _START_TIMEOUT

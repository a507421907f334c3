"""Messages as Celery makes them, taken just before they go out: so that several go out together.

All that makes a message is Celery's: the task's options, its route, the format, ``before_task_publish``.
What comes after it was sent is done once it *was* sent, with the others: ``after_task_publish`` must not
tell of a message that is still here. Where anybody else has a hand in sending (a task's own ``apply_async``,
a tracer that wraps Celery's, events of each sending), nothing is drafted: they see each message go out. So do
those who are told before and after: OpenTelemetry opens a span by the one signal and closes it by the other,
and of fifty that are opened before the first is closed each is within the one before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import celery
import kombu
from celery import Celery, signals

#: Where the code is that may be left before it comes to its end: Celery's and our own.
_KNOWN = tuple(
    os.path.join(os.path.dirname(module), "") for module in (celery.__file__, kombu.__file__, __file__)
)


@dataclass(frozen=True, slots=True)
class Draft:
    """One message, ready to be published by a producer of kombu's."""

    task: str
    body: Any
    how: Mapping[str, Any]  #: what ``Producer.publish`` is to be given beside it

    def publish(self, producer: Any) -> None:
        """Send it, or put it into the producer's batch."""
        producer.publish(self.body, **self.how)

    def announce(self) -> None:
        """Say that it was sent, as Celery does."""
        signals.after_task_publish.send(
            sender=self.task, body=self.body, headers=self.how["headers"],
            exchange=self.how["exchange"], routing_key=self.how["routing_key"],
        )  # fmt: skip


def drafted(task: str, send: Callable[[Any], object], producer: Any) -> Draft:
    """Have Celery make the message: ``send`` is called with a producer that keeps it.

    Raises:
        Exception: what is wrong with the message, as when it is sent.
    """
    try:
        send(_Keeper(producer))
    except _Taken as taken:
        return Draft(task, taken.body, taken.how)
    raise RuntimeError(f"task {task!r} was sent by another producer than the one it was given")


def may_be_drafted(app: Celery, task: Any) -> bool:
    """Whether nobody but Celery has a hand in sending this task; None is one that is only known by name."""
    if app.conf.task_send_sent_event or signals.task_sent.receivers:
        return False
    if signals.before_task_publish.receivers and signals.after_task_publish.receivers:
        return False
    steps = [app.send_task, app.amqp.send_task_message, app.amqp.create_task_message]
    if task is not None:
        kinds = [vars(task), *map(vars, task.__class__.__mro__)]
        steps += [kind["apply_async"] for kind in kinds if "apply_async" in kind]
    return all(map(_is_known, steps))


def may_be_batched(producer: Any) -> bool:
    """Whether the transport takes several messages in one round trip; kombu's does from 5.7 on, for Redis."""
    return is_kombus(producer) and bool(getattr(producer, "supports_batch_publish", False))


def is_kombus(producer: Any) -> bool:
    """Whether nobody stands around the producer's own ``publish``."""
    return _is_known(producer.publish)


def _is_known(step: Any) -> bool:
    """Whether it is Celery's own code or ours, and not something around it."""
    function = step.__func__ if type(step) is MethodType else step
    # Not by an attribute: what wrapt puts around a function has all that the function has.
    return type(function) is FunctionType and function.__code__.co_filename.startswith(_KNOWN)


class _Taken(BaseException):
    """The way back out of Celery: no error, so nobody on the way may take it for one."""

    def __init__(self, body: Any, how: Mapping[str, Any]) -> None:
        super().__init__()
        self.body, self.how = body, how


class _Around:
    """What Celery takes for the producer."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


class Telling(_Around):
    """It tells right before it publishes: until then nothing is out."""

    def __init__(self, producer: Any, going: Callable[[], object]) -> None:
        """Call ``going`` before each message."""
        super().__init__(producer)
        self._going = going

    def publish(self, body: Any, **how: Any) -> Any:
        """Tell, and publish."""
        self._going()
        return self._producer.publish(body, **how)


class _Keeper(_Around):
    """It publishes nothing."""

    def publish(self, body: Any, **how: Any) -> None:
        raise _Taken(body, how)

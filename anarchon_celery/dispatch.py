"""One dispatch: the publication of a claimed run to the broker.

The broker client's own retries are off: they may take minutes, and the claim is trusted for
seconds. What matters after a failure is whether the message can be out: if certainly not, the claim
is given back, so that a node with a working broker has it; else its deadline decides.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry, _evaluate_entry_args, _evaluate_entry_kwargs
from celery.exceptions import QueueNotFound
from celery.utils import uuid
from kombu.exceptions import EncodeError, OperationalError, SerializerNotInstalled

from . import headers
from .config import Policy
from .errors import in_one_line
from .protocol import Run

#: No connection was made, so no message is out.
_NEVER_CONNECTED = (ConnectionRefusedError, socket.gaierror)

#: What is wrong with the message itself: raised before anything goes out.
_NOTHING_WENT_OUT = (EncodeError, SerializerNotInstalled, QueueNotFound, TypeError)


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


class Publisher:
    """Publishes runs over one connection of its own, made anew after a failure."""

    def __init__(self, app: Celery, *, patience: float = 5.0) -> None:
        """Connect at the first publication; wait ``patience`` seconds for the broker at most."""
        self.app = app
        self.patience = patience
        self._connection: Any = None
        self._producer: Any = None

    def publish(self, entry: ScheduleEntry, run: Run, policy: Policy) -> str:
        """Send the run's message and return its task id.

        Raises:
            NotSent: it is certainly not out; ``BrokerDown`` where no message could be.
            Exception: whatever the broker's client raises, when it may be out.
        """
        producer = self._connected()
        task_id: str = uuid()
        try:
            self._send(entry, run, policy, task_id, producer)
        except NotSent:
            raise
        except _NOTHING_WENT_OUT as reason:
            raise NotSent(in_one_line(reason)) from reason
        except Exception as reason:
            self.close()
            if any(isinstance(cause, _NEVER_CONNECTED) for cause in _causes(reason)):
                raise BrokerDown(in_one_line(reason)) from reason
            raise
        return task_id

    def _connected(self) -> Any:
        if self._producer is None:
            try:
                channel = self._connect().channel()
                self._producer = self.app.amqp.Producer(channel, auto_declare=False)
            except Exception as reason:
                where = self._connection.as_uri() if self._connection is not None else "the broker"
                self.close()
                raise BrokerDown(f"{where} does not answer: {in_one_line(reason)}") from reason
        return self._producer

    def _connect(self) -> Any:
        """Connect with timeouts below the claim's, which Celery's defaults for publishers lack."""
        connection = self._connection = self.app.connection_for_write(connect_timeout=self.patience)
        options = _TRANSPORT_OPTIONS.get(connection.transport.driver_type, _no_options)(self.patience)
        connection.transport_options = {**options, **(connection.transport_options or {})}
        # kombu tries twice, and would pause between.
        return connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, interval_max=0)

    def _send(self, entry: ScheduleEntry, run: Run, policy: Policy, task_id: str, producer: Any) -> None:
        options = {name: value for name, value in entry.options.items() if name != headers.HEADER}
        options["headers"] = {
            **(options.get("headers") or {}),
            "celery_beat_task": True,
            headers.HEADER: headers.write(run, entry.task, policy),
        }
        if run.retries is not None:
            options["retries"] = run.retries
        try:
            args, kwargs = _evaluate_entry_args(entry.args), _evaluate_entry_kwargs(entry.kwargs)
        except Exception as reason:  # a BeatLazyFunc is the user's code
            raise NotSent(in_one_line(reason)) from reason
        task = self.app.tasks.get(entry.task)
        options.update(task_id=task_id, producer=producer, retry=False)
        if task is not None:
            task.apply_async(args, kwargs, **options)
        else:
            self.app.send_task(entry.task, args, kwargs, **options)

    def close(self) -> None:
        """Give the connection back; the next publication makes another."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            try:
                connection.release()
            except Exception:  # a dead connection may fail to close: it is dead either way
                return


def is_of_connection(reason: BaseException) -> bool:
    """Whether it is the connection to the broker that failed, and not this message."""
    return any(isinstance(cause, (OSError, OperationalError)) for cause in _causes(reason))


def _no_options(patience: float) -> dict[str, Any]:
    return {}


def _causes(reason: BaseException | None) -> Iterator[BaseException]:
    while reason is not None:
        yield reason
        reason = reason.__cause__ or reason.__context__


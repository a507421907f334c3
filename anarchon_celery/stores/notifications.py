"""Wake-ups by PostgreSQL: LISTEN, and NOTIFY after a step that gave runs back.

Not within the step: where somebody else's session keeps the server's queue of notifications full, a
transaction with one fails as a whole.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from sqlalchemy import Engine

from ..errors import StoreError, StoreUnreachable
from .budget import at_most
from .waking import ANSWER_WITHIN, WakeUps


def channel(prefix: str) -> str:
    """Return a name of a channel for the tables of a prefix, however long that is."""
    return f"anarchon_{blake2b(prefix.encode(), digest_size=8).hexdigest()}"


def notify(prefix: str) -> str:
    """Return the statement that wakes who listens."""
    return f"NOTIFY {channel(prefix)}"


class Notifications(WakeUps):
    """A connection of its own, taken out of the pool.

    A pooler by transaction passes nothing on: there beats poll.
    """

    def __init__(self, engine: Engine, prefix: str, shown: str) -> None:
        """Listen when the first wake-up is waited for."""
        self._engine, self._prefix, self._shown = engine, prefix, shown
        self._connection: Any = None
        self._heard = False

    def _connect(self) -> None:
        with self._told(), at_most(ANSWER_WITHIN):
            fairy = self._engine.raw_connection()
            fairy.detach()
            self._connection = fairy.dbapi_connection
            try:
                self._connection.add_notify_handler(self._note)  # of what comes with another answer
                self._connection.execute(f"LISTEN {channel(self._prefix)}")
            except BaseException:
                self._connection.close()
                raise

    def _hears(self, seconds: float) -> bool:
        with self._told():
            self._take()  # what came with an answer is read already: the socket has nothing of it
            if not self._heard and self._is_readable(seconds):
                self._connection.pgconn.consume_input()
                self._take()
        heard, self._heard = self._heard, False
        return heard

    def _take(self) -> None:
        while self._connection.pgconn.notifies() is not None:
            self._heard = True

    def _is_readable(self, seconds: float) -> bool:
        waiting = select.poll()
        waiting.register(self._connection.pgconn.socket, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    def _ask(self) -> None:
        with self._told(), at_most(ANSWER_WITHIN):
            self._connection.execute("SELECT 1")

    def _note(self, _: object) -> None:
        self._heard = True

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say in one line what went wrong; the driver's own errors are there only where it is installed."""
        try:
            yield
        except StoreError as error:
            raise type(error)(f"{self._shown}: {error}") from error
        except Exception as error:
            reason = " ".join(str(getattr(error, "orig", None) or error).split())
            raise StoreUnreachable(f"{self._shown}: {reason}") from error

    def _disconnect(self) -> None:
        self._connection.close()

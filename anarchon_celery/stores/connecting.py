"""Connections to a database server are made beside the call that needs one.

A look-up, TLS or a login may hang, and no client ends all of that in time. So it is done in a thread
of its own, and waited for as long as the call may take. A connection that comes too late for a call
stays for the next one: that one waits for it, and begins none beside it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

from sqlalchemy.engine import ExceptionContext

from ..errors import StoreError, StoreUnreachable
from .budget import is_late, left

Connect = Callable[..., Any]


class Connector:
    """Makes the connections of one engine: what SQLAlchemy calls by ``do_connect``."""

    def __init__(self, connect: Connect) -> None:
        """Make each by ``connect``."""
        self._connect = connect
        self._late: deque[Future[Any]] = deque()

    def __call__(self, *asked: Any) -> Any:
        """Return a connection while more than half of the call's time is left.

        Raises:
            StoreUnreachable: it takes longer; nothing was sent.
        """
        made = self._waiting() or self._begun(asked)
        try:
            seconds = left()
            wait([made], None if seconds == float("inf") else max(0.0, seconds))
            if made.done() and (made.exception() or not is_late()):
                return made.result()
        except BaseException:  # a soft time limit, say
            if not (made.done() and made.exception()):
                self._late.append(made)
            raise
        self._late.append(made)
        raise StoreUnreachable("it answers too slowly: connecting takes too long for a call")

    def _waiting(self) -> Future[Any] | None:
        """One that came too late for a call, or is on its way still; not one that failed meanwhile."""
        with suppress(IndexError):
            while made := self._late.popleft():
                if not (made.done() and made.exception()):
                    return made
        return None

    def _begun(self, asked: tuple[Any, ...]) -> Future[Any]:
        made: Future[Any] = Future()

        def make() -> None:
            try:
                made.set_result(self._connect(*asked))
            except BaseException as error:
                made.set_exception(error)

        threading.Thread(target=make, daemon=True, name="anarchon connecting").start()
        return made

    def close(self, *_: Any) -> None:
        """Close what nobody came for, when it is there."""
        with suppress(IndexError):
            while True:
                self._late.popleft().add_done_callback(_close)


def leave_an_interrupted_one(context: ExceptionContext) -> None:
    """Drop a connection in the middle of whose call something was raised that is no error of the server's.

    A soft time limit, say. Its answer may be on its way still; and the rollback would fail, by an error that
    stands in the place of what was raised and has the step done again. Our own are raised before anything
    is sent.
    """
    is_ours = isinstance(context.original_exception, StoreError)
    if context.connection is not None and context.sqlalchemy_exception is None and not is_ours:
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False


def _close(made: Future[Any]) -> None:
    if made.exception() is None:
        with suppress(Exception):  # it may be dead already
            made.result().close()

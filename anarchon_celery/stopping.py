"""The signals that end a beat: the first one does, and what follows while it ends adds nothing.

Celery's handlers raise ``SystemExit`` wherever the main thread is. People press Ctrl-C twice, and a service
manager tells an embedded beat and its worker, which tells the beat once more: a second ``SystemExit``
would come in the middle of what the first one led to, and what was won would not be given back.
"""

from __future__ import annotations

import atexit
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .errors import Stopped
from .stores.clock import monotonic

#: Where the handlers are from that Celery gives a beat, alone and in a worker; others are not ours to change.
_CELERYS = ("celery.apps.beat", "billiard.common")

#: For so long another signal adds nothing (seconds). Later it counts: something hangs, and is to be left.
WHILE_IT_ENDS = 10.0


def end_once(told: Callable[[], None]) -> None:
    """Call ``told`` at a signal that ends this process's beat, and have its handler run once."""
    with suppress(ValueError):  # not the main thread, which alone hears of signals
        _Once(told).watch()


class _Once:
    """In the place of the handlers of SIGTERM and SIGINT."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told
        self._told_at: float | None = None
        self._handlers: dict[int, Callable[[int, Any], Any]] = {}

    def watch(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if callable(handler) and getattr(handler, "__module__", None) in _CELERYS:
                self._handlers[number] = handler
                signal.signal(number, self._handle)
        if self._handlers:
            atexit.register(self._ignore)

    def _handle(self, number: int, frame: Any) -> None:
        now = monotonic()
        if self._told_at is not None and now - self._told_at < WHILE_IT_ENDS:
            return
        self._told_at = now
        try:
            self._told()
            self._handlers[number](number, frame)
        except SystemExit as end:
            raise Stopped(*end.args) from None
        finally:
            signal.signal(number, self._handle)  # an embedded beat's leaves a second one to the system

    def _ignore(self) -> None:
        """All is done; else the interpreter, about to end, would leave the next one to the system."""
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)

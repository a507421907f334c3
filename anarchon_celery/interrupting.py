"""How a body is interrupted that does not look at its lease: what its pool offers.

The main thread (prefork, solo) is reached by a signal, also in a sleep; another thread by an
asynchronous exception, which waits for the C call it is in; a greenlet by a throw, once it yields.
Whatever comes, comes while the body runs and not later: that is what the lock is for.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from . import native

#: What reaches the main thread. billiard's children have a handler of it already, for soft time limits.
SIGNAL = getattr(signal, "SIGUSR1", None)

#: How often a greenthread of eventlet looks whether its neighbour is to be interrupted (seconds).
EVENTLET_LOOKS_EVERY = 0.1


class Interruptible:
    """A body that another thread may interrupt. A context manager, entered in the body's own thread."""

    def __init__(self) -> None:
        """Begin outside the body."""
        self._lock = native.new_lock()
        self._in_body = False

    def __enter__(self) -> Interruptible:
        self._prepare()
        self._in_body = True
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self._leave()
        except BaseException:  # it came at the last moment
            self._leave()
            raise

    def interrupt(self, reason: type[BaseException]) -> bool:
        """Raise ``reason`` in the body; false if it is over, or if nothing reaches it."""
        with self._lock:
            return self._in_body and self._reach(reason)

    def _leave(self) -> None:
        with self._lock:
            self._in_body = False
            self._clear()
        self._restore()

    def _prepare(self) -> None:
        """Be ready before the body begins."""

    def _reach(self, reason: type[BaseException]) -> bool:
        """Raise it in the body, which is running."""
        return False

    def _clear(self) -> None:
        """Take back what was sent and has not arrived."""

    def _restore(self) -> None:
        """Leave everything as it was."""


class InMainThread(Interruptible):
    """By a signal: Python runs its handler in the main thread, wherever that is."""

    _reason: type[BaseException] | None = None
    _before: Any = None

    def _prepare(self) -> None:
        self._before = signal.signal(signal.SIGUSR1, self._handle)

    def _reach(self, reason: type[BaseException]) -> bool:
        self._reason = reason
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        reason, self._reason = self._reason, None
        if reason is not None:
            if self._in_body:
                raise reason()
        elif callable(self._before):  # a soft time limit, say
            self._before(number, frame)

    def _restore(self) -> None:
        # This looks for signals first: one that is on its way still meets the handler above.
        signal.signal(signal.SIGUSR1, signal.SIG_DFL if self._before is None else self._before)


class InThread(Interruptible):
    """By an asynchronous exception."""

    _sent: type[BaseException] | None = None

    def _prepare(self) -> None:
        self._thread = threading.get_ident()

    def _reach(self, reason: type[BaseException]) -> bool:
        self._sent = reason
        thread, exception = ctypes.c_ulong(self._thread), ctypes.py_object(reason)
        return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, exception) == 1)

    def _clear(self) -> None:
        sent, self._sent = self._sent, None
        if sent is None:
            return
        # It is let in and kept from going on. To take it back would leave CPython up to 3.11 with a flag that
        # says there is one: in a traced process (a debugger, a profiler) that stands still at the next call.
        with suppress(sent):
            for _ in range(10):
                pass


class InGreenlet(Interruptible):
    """By a throw into the greenlet, from the hub of its thread."""

    def _prepare(self) -> None:
        import gevent

        self._greenlet, self._hub = gevent.getcurrent(), gevent.get_hub()

    def _reach(self, reason: type[BaseException]) -> bool:
        self._hub.loop.run_callback_threadsafe(self._throw, reason)
        return True

    def _throw(self, reason: type[BaseException]) -> None:
        if self._in_body:  # and before it goes on: a kill would come a turn later, perhaps into what follows
            self._greenlet.throw(reason)


class InGreenthread(Interruptible):
    """By a neighbour that looks: nothing outside its thread may touch eventlet's hub."""

    _reason: type[BaseException] | None = None

    def _prepare(self) -> None:
        import eventlet
        import greenlet

        self._greenlet = greenlet.getcurrent()
        self._neighbour = eventlet.spawn(self._look, eventlet.sleep)

    def _look(self, sleep: Callable[[float], None]) -> None:
        from eventlet import greenthread

        while self._reason is None:
            sleep(EVENTLET_LOOKS_EVERY)
        if self._in_body:
            greenthread.kill(self._greenlet, self._reason)

    def _reach(self, reason: type[BaseException]) -> bool:
        self._reason = reason
        return True

    def _restore(self) -> None:
        self._neighbour.kill()


def body() -> Interruptible:
    """Return what interrupts the body that is about to run in this thread or greenlet."""
    green = native.green()
    if green is not None:
        return InGreenlet() if green == "gevent" else InGreenthread()
    if threading.current_thread() is not threading.main_thread():
        return InThread() if sys.implementation.name == "cpython" else Interruptible()
    return InMainThread() if SIGNAL is not None else Interruptible()

"""Threads and locks of the system, whatever gevent or eventlet made of Python's.

A heartbeat has to go on while a task computes and never yields; a greenlet would wait for it. So it
runs in a native thread, which uses the store by a connection of its own, and touches nothing that
greenlets wait for.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any


def green() -> str | None:
    """Return ``gevent`` or ``eventlet`` if it took the place of Python's threads, else None."""
    if "gevent" in sys.modules:
        from gevent import monkey

        if monkey.is_module_patched("threading"):
            return "gevent"
    if "eventlet" in sys.modules:
        from eventlet import patcher

        if patcher.is_monkey_patched("thread"):
            return "eventlet"
    return None


def start_thread(target: Callable[[], None], name: str) -> None:
    """Run ``target`` in a native daemon thread."""
    if green() == "gevent":
        _of_gevent("_thread", "start_new_thread")(target, ())
    else:
        _module("threading").Thread(target=target, name=name, daemon=True).start()


def new_lock() -> Any:
    """Return a native lock: to be held for a moment, in which nothing yields.

    Its own thread may take it again: a signal handler may come in between.
    """
    return _of_gevent("_thread", "RLock")() if green() == "gevent" else _module("threading").RLock()


def sleep(seconds: float) -> None:
    """Sleep in a native thread."""
    if green() == "gevent":
        _of_gevent("time", "sleep")(seconds)
    else:
        _module("time").sleep(seconds)


def _of_gevent(module: str, name: str) -> Any:
    from gevent import monkey

    return monkey.get_original(module, name)


def _module(name: str) -> Any:
    if green() != "eventlet":
        return {"threading": threading, "time": time}[name]
    from eventlet import patcher

    return patcher.original(name)

"""How long one call may take in all: connecting, TLS, login, asking sentinels, each statement, the answer.

The clients' own timeouts are for one step each, and one call may have twenty. The time a thread has
left is known to all that happens in that thread, because a connection is made deep inside the
client, where nothing can be handed to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_mine = threading.local()
_EVER = (0.0, float("inf"))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Let what happens inside take so long; it cannot get more than what is left outside."""
    outside = getattr(_mine, "window", None)
    begin = time.monotonic()
    end = begin + seconds if outside is None else min(begin + seconds, outside[1])
    _mine.window = (begin, end)
    try:
        yield
    finally:
        _mine.window = outside


@contextmanager
def beside(seconds: float) -> Iterator[None]:
    """Let what happens inside take so long, whatever is left outside, and without using that up."""
    outside, begin = getattr(_mine, "window", None), time.monotonic()
    _mine.window = (begin, begin + seconds)
    try:
        yield
    finally:
        spent = time.monotonic() - begin
        _mine.window = outside and (outside[0] + spent, outside[1] + spent)


def left() -> float:
    """Return the seconds that are left: none or less where they are over, infinitely many in no call."""
    return float(_window()[1] - time.monotonic())


def whole() -> float:
    """Return the seconds that there were in all."""
    begin, end = _window()
    return end - begin


def is_late() -> bool:
    """Whether more than half of the time is over.

    A server that took so long for one step will not do the next one in what is left.
    """
    return left() < whole() / 2


def _window() -> tuple[float, float]:
    return getattr(_mine, "window", None) or _EVER

"""How long one call may take in all: connecting, TLS, login, asking sentinels, and the answer.

The client's own timeouts are for one step each, and one call may have ten. The time a thread has
left is known to all that happens in that thread, because a connection is made deep inside the
client, where nothing can be handed to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

#: Seconds that a call may take, connecting included. Less than any claim or lease may be trusted.
MOST = 3.0

_mine = threading.local()


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


def left() -> float:
    """Return the seconds that are left, more than none.

    Raises:
        redis.TimeoutError: none is left.
    """
    window = getattr(_mine, "window", None)
    seconds = MOST if window is None else float(window[1] - time.monotonic())
    if seconds <= 0:
        raise redis.TimeoutError("no time is left")
    return seconds


def is_late() -> bool:
    """Whether more than half of the time is over.

    A server that took so long for one step will not do the next one in what is left.
    """
    begin, end = getattr(_mine, "window", None) or (0.0, float("inf"))
    return time.monotonic() > (begin + end) / 2

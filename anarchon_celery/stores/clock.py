"""What time it is in the store, as far as a node can tell without asking.

Every answer of the store carries its time. The store read it at some moment between the sending
and the answer, so that each answer bounds the offset between the store's clock and the node's own
monotonic one from both sides. The estimate is moved only as far as the bounds demand, and starts
at the lower one: a node fires late by one round trip at most, and never early.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: A clock that counts the time a machine is suspended, where there is one (Linux).
_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def monotonic() -> float:
    """Return seconds of a clock that never steps, and counts suspend where the system can."""
    return time.monotonic() if _SINCE_BOOT is None else time.clock_gettime(_SINCE_BOOT)


class HostClock:
    """The time as a host has it: one clock that tells it, and one that counts it."""

    def wall(self) -> int:
        """Return milliseconds since the epoch."""
        return int(time.time() * 1000)

    def monotonic(self) -> float:
        """Return seconds of a clock that never steps."""
        return monotonic()


class StoreClock:
    """The store's time, estimated from the answers of the store."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Use ``clock`` (seconds, monotonic) between the answers."""
        self.monotonic = clock
        self._offset: float | None = None
        self._high = float("inf")  # above that it was not, as far as the clocks go alike
        self._forward = 0.0
        self._backward = 0.0
        self._lock = threading.Lock()  # a heartbeat and a task share the store

    def observe(self, before: float, after: float, now: int) -> None:
        """Learn from an answer: asked at ``before``, answered at ``after``, store time ``now`` (ms)."""
        low, high = now - after * 1000, now - before * 1000
        with self._lock:
            if self._offset is None:
                self._offset = low
            elif self._offset < low:
                if low > self._high:  # else it did not jump, it is only better known
                    self._forward = max(self._forward, low - self._offset)
                    self._high = high
                self._offset = low
            elif self._offset > high:
                self._backward = max(self._backward, self._offset - high)
                self._offset = high
            self._high = min(self._high, high)

    @property
    def known(self) -> bool:
        """Whether the store has answered at least once."""
        return self._offset is not None

    def now(self) -> int:
        """Return the store's time in milliseconds; the wall clock's, until the store has answered."""
        if self._offset is None:
            return int(time.time() * 1000)
        return int(self.monotonic() * 1000 + self._offset)

    def take_jumps(self) -> tuple[float, float]:
        """Return how far the store's clock jumped (forward, backward; ms) since this was last asked."""
        with self._lock:
            jumps = self._forward, self._backward
            self._forward = self._backward = 0.0
        return jumps

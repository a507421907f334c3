"""Wake-ups: a store that can say that a run was given back, so that beats need not wait for their next poll.

They are hints. One that is lost costs what it would have saved: the run is found by the poll, as with a
store that has none. So nothing waits for them, and no step of the protocol fails because of them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

#: How long one that hears nothing goes on before it asks whether the server is still there (seconds).
ASK_EVERY = 5.0

#: How long the answer to that is waited for, and connecting (seconds).
ANSWER_WITHIN = 3.0


class WakeUps(ABC):
    """A connection of its own, by which a store tells that runs came to be ``released``. For one thread.

    One that is dead and was not closed hears nothing: so the server is asked, every :data:`ASK_EVERY`.
    """

    _connected = False
    _heard_at = 0.0  #: when the server last said anything, monotonic

    def wait(self, seconds: float) -> bool:
        """Wait until some were, ``seconds`` at most; false if none were. What came meanwhile is one wake-up.

        Raises:
            StoreUnreachable: what was told in the meantime is lost; the next call connects again, and is a
                wake-up for it.
            StoreUnusable: this store's user may not hear of it.
        """
        until = time.monotonic() + seconds
        try:
            return self._wait(until)
        except BaseException:
            self.close()
            raise

    def _wait(self, until: float) -> bool:
        while (now := time.monotonic()) < until:
            if not self._connected or self._has_moved():
                self.close()
                self._connect()
                self._connected, self._heard_at = True, now
                return True
            if now >= self._heard_at + ASK_EVERY:
                self._ask()
                self._heard_at = now
            if self._hears(min(until, self._heard_at + ASK_EVERY) - now):
                return True
        return False

    def close(self) -> None:
        """Give the connection back; the next :meth:`wait` makes another one."""
        if self._connected:
            self._connected = False
            self._disconnect()

    def _has_moved(self) -> bool:
        """Whether the store is on another server by now."""
        return False

    @abstractmethod
    def _connect(self) -> None:
        """Begin to listen."""

    @abstractmethod
    def _hears(self, seconds: float) -> bool:
        """Wait for so long, and return whether runs were given back."""

    @abstractmethod
    def _ask(self) -> None:
        """Have the server answer."""

    @abstractmethod
    def _disconnect(self) -> None:
        """Listen no more."""

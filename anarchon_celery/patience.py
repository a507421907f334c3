"""How long to wait before asking somebody again who did not answer, and how often to say so."""

from __future__ import annotations

#: The waits, in seconds: the last one goes on.
WAITS = (0.5, 1.0, 2.0, 3.0, 5.0)


class Patience:
    """A wait that grows with each failure and ends with the first success."""

    def __init__(self, most: float = WAITS[-1]) -> None:
        """Begin with nothing to wait for; never wait for longer than ``most`` seconds."""
        self._most = most
        self._failures = 0
        self._until = 0.0

    def begin(self, now: float) -> float:
        """Note one more failure at ``now`` (seconds); return how long to wait."""
        wait = min(WAITS[min(self._failures, len(WAITS) - 1)], self._most)
        self._failures += 1
        self._until = now + wait
        return wait

    def lasts(self, now: float) -> bool:
        """Whether it is too early to ask again."""
        return now < self._until

    def end(self) -> bool:
        """Note a success; true if there was something to wait for."""
        waited = self._failures > 0
        self._failures, self._until = 0, 0.0
        return waited

    @property
    def on(self) -> bool:
        """Whether the last try failed."""
        return self._failures > 0

    @property
    def worth_saying(self) -> bool:
        """Whether this failure is one to tell a person of: the first ones, then every tenth."""
        return self._failures <= 3 or self._failures % 10 == 0

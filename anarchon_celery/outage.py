"""A store that is away while leases are to be renewed: said once when it begins, and once when it is over."""

from __future__ import annotations

from .events import StoreBack, StoreLost, emit


class Outage:
    """What one heartbeat knows of its store."""

    def __init__(self) -> None:
        """Begin with a store that answers, as far as is known."""
        self._lasts = False

    def begins(self, reason: str, retry_in: float) -> None:
        """Say that the store does not answer, if that is news; seconds until it is asked again."""
        if not self._lasts:
            self._lasts = True
            emit(StoreLost(reason, retry_in))

    def is_over(self) -> None:
        """Say that the store answers, if it did not."""
        if self._lasts:
            self._lasts = False
            emit(StoreBack())

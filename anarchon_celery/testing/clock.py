"""A clock that stands still until a test moves it, and all goes by it that it is given to."""

from __future__ import annotations

from datetime import datetime, timedelta

from .. import durations
from ..errors import AnarchonError
from ..slots import EPOCH, from_iso, iso
from ..stores.clock import HostClock


class TestingError(AnarchonError):
    """A test asks for what cannot be; one line that says what would be right."""

    __test__ = False  # pytest collects by name


class Clock(HostClock):
    """A host's time, moved by the test: the clock on its wall, and the one that counts seconds.

    Args:
        at: what the wall clock says at first: an aware ``datetime``, or a text with its zone, such as
            ``'2026-10-24T12:00:00Z'``.

    Raises:
        TestingError: it is neither.
    """

    def __init__(self, at: datetime | str = "2026-01-01T00:00:00Z") -> None:
        """Stand still at that moment."""
        self._wall = instant(at)
        self._counted = 0

    @property
    def now(self) -> datetime:
        """What the wall clock says, as an aware UTC datetime."""
        return aware(self._wall)

    def wall(self) -> int:
        """Return milliseconds since the epoch."""
        return self._wall

    def monotonic(self) -> float:
        """Return seconds since some moment; setting the wall clock does not change them."""
        return 1000 + self._counted / 1000

    def move(self, duration: float | timedelta | str) -> None:
        """Let time pass, on both clocks.

        Args:
            duration: seconds, a ``timedelta``, or text such as ``'250ms'``, ``'1h30m'``, ``'2d'``.

        Raises:
            TestingError: it is no duration, or below zero.
        """
        ms = milliseconds(duration)
        self._wall += ms
        self._counted += ms

    def set(self, at: datetime | str) -> None:
        """Set the wall clock, as a person or NTP would; no time passes.

        Args:
            at: an aware ``datetime``, or a text with its zone.

        Raises:
            TestingError: it is neither.
        """
        self._wall = instant(at)

    def __repr__(self) -> str:
        return f"<Clock at {iso(self._wall)}>"


def milliseconds(duration: float | timedelta | str) -> int:
    """Return a duration that a test gives."""
    try:
        return durations.milliseconds(duration)
    except ValueError as reason:
        raise TestingError(str(reason)) from None


def instant(at: datetime | str) -> int:
    """Return a moment that a test gives, in milliseconds since the epoch."""
    if isinstance(at, datetime):
        if at.utcoffset() is None:
            raise TestingError(f"{at!r} leaves its zone open: give it one, such as tzinfo=timezone.utc")
        return (at - EPOCH) // timedelta(milliseconds=1)
    try:
        return from_iso(at)
    except (TypeError, ValueError):
        right = "'2026-10-24T12:00:00Z' or an aware datetime is right"
        raise TestingError(f"{at!r} is no moment: {right}") from None


def aware(ms: int) -> datetime:
    """Return an instant as tests compare it: an aware UTC datetime."""
    return EPOCH + timedelta(milliseconds=ms)

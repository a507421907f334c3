"""Fire times of a schedule that nobody can look into: its successor of the last decided slot.

Celery's protocol for schedules has one question, ``is_due(last_run_at)``, and the answer depends on
the last run and on the clock; what it calls the next time is when to *check* again. So the fire times are a
chain: a copy of the schedule whose clock is held still is asked, from the last slot on, at one check
after another, until it says that it is due. As all nodes know the last decided slot they ask the same
questions, and get the same slots.

Where a class derived from one of Celery's leaves the arithmetic to it (a ``crontab`` that calls
``super().is_due()`` on all days but holidays), the copy's arithmetic is ours: Celery's leaves out the
hour that autumn repeats, or is due all through it, and differs from version to version.

All this holds for a schedule that takes the time from its ``now()``. One that reads a clock of its own,
or other things that differ between nodes, has other slots on each of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from math import ceil, isfinite
from time import monotonic
from typing import Any

from celery.schedules import BaseSchedule

from .errors import ScheduleError, Stopped
from .slots import EPOCH, FireTimes, from_iso
from .wallclock import Zone

CHECKS = 1_000  # of one look for a successor
SECONDS = 0.1  # of one look: a schedule that is slow to answer must not hold up the other jobs
SUCCESSORS = 10_000  # of one walk; and twice as many checks
LEAST = 100  # between two checks, in milliseconds
UNSAID = 60.0  # seconds between two checks where the schedule does not say when to check again
KEPT = 2 * SUCCESSORS  # answers that are remembered
END = from_iso("9000-01-01T00:00Z")  # of the calendar, well before that of Python's


#: From an instant to the fire time after it.
Following = Callable[[int], int | None]


class _StillClock:
    """Takes the place of a schedule's clock."""

    moment: datetime

    def __call__(self) -> datetime:
        return self.moment


class _Arithmetic:
    """Takes the place of what Celery's schedules compute: the time that is left until the next fire time."""

    def __init__(self, clock: _StillClock, following: Following) -> None:
        self._clock = clock
        self._following = following

    def remaining_delta(
        self, last_run_at: datetime, tz: Any = None, ffwd: Any = None
    ) -> tuple[datetime, timedelta, datetime]:
        """Answer as a crontab: the last run, the time from there to the next one, and now."""
        last = last_run_at if last_run_at.tzinfo else last_run_at.replace(tzinfo=timezone.utc)
        following = self._following((last - EPOCH) // timedelta(milliseconds=1))
        end = END if following is None else following
        last, now = last.astimezone(timezone.utc), self._clock.moment.astimezone(timezone.utc)
        return last, EPOCH + timedelta(milliseconds=end) - last, now

    def remaining_estimate(self, last_run_at: datetime, ffwd: Any = None) -> timedelta:
        """Answer as any schedule: the time from now to the next run."""
        last, delta, now = self.remaining_delta(last_run_at)
        return last + delta - now


class Chain(FireTimes):
    """The fire times of any ``BaseSchedule``, each the successor of the one before.

    Args:
        schedule: what is asked.
        zone: the app's, in which it is asked.
        celerys: the class of Celery's that it is derived from, if any.
        following: the next fire time after an instant, as that class means it.
    """

    __slots__ = ("_celerys", "_following", "_found", "_looked", "_schedule", "_zone", "checks")

    chained = True

    def __init__(
        self,
        schedule: BaseSchedule,
        zone: Zone,
        celerys: type[BaseSchedule] | None = None,
        following: Following | None = None,
    ) -> None:
        self._schedule = schedule
        self._zone = zone
        self._celerys = celerys
        self._following = following
        self._found: dict[int, int] = {}
        self._looked: dict[int, int] = {}
        self.checks = 0

    @property
    def key(self) -> str:
        """Type, ``repr`` and zone; an edit that does not show in the ``repr`` is not seen."""
        kind = type(self._schedule)
        shown = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self._schedule))
        return f"chain {kind.__module__}.{kind.__qualname__} {shown} {self._zone.name}"

    def next(self, after: int) -> int | None:
        """Return the successor of a slot; ``None`` also if the look was cut short, see ``looked_until``.

        Raises:
            ScheduleError: the schedule's answer is none.
        """
        if after not in self._found:
            self._look(after)
        return self._found.get(after)

    def previous(self, until: int) -> int | None:
        """Return nothing: a chain is known from a slot on only, see ``since``."""
        return None

    def looked_until(self, after: int) -> int | None:
        """Return how far the search for a successor has come, if it was cut short; it goes on from there."""
        reached = self._looked.get(after)
        return None if reached is None or reached >= END else reached

    def since(self, cursor: int) -> Walk:
        """Return the fire times that follow from a cursor."""
        return Walk(self, cursor)

    def _look(self, last: int) -> None:
        """Search on for the successor of a slot, for some checks."""
        time = self._looked.pop(last, last)
        clock, last_run_at = _StillClock(), self._local(last)
        asked = self._copy(clock)
        until = monotonic() + SECONDS
        for _ in range(CHECKS):
            if time >= END or monotonic() > until:
                break
            self.checks += 1
            clock.moment = self._local(time)
            is_due, wait = self._answer(self._asked(asked, last_run_at))
            if is_due and time > last:
                return _keep(self._found, last, time)
            time += wait
        _keep(self._looked, last, time)

    def _asked(self, schedule: BaseSchedule, last_run_at: datetime) -> Any:
        try:
            return schedule.is_due(last_run_at)
        except Stopped:
            raise
        except SystemExit as reason:  # it would end beat
            raise ScheduleError(f"{type(schedule).__name__}.is_due() exits: {reason.code}") from reason

    def _copy(self, clock: _StillClock) -> BaseSchedule:
        """Return a copy with another clock, also of a schedule that does not know how to be copied."""
        kind = type(self._schedule)
        copy: BaseSchedule = object.__new__(kind)
        copy.__dict__.update(vars(self._schedule), now=clock, nowfun=clock)
        if self._following is not None:
            exact = _Arithmetic(clock, self._following)
            for name in ("remaining_delta", "remaining_estimate"):
                if getattr(kind, name, None) is getattr(self._celerys, name, None):
                    copy.__dict__[name] = getattr(exact, name)
        return copy

    def _local(self, instant: int) -> datetime:
        return (EPOCH + timedelta(milliseconds=instant)).astimezone(self._zone.tzinfo)

    def _answer(self, answer: Any) -> tuple[bool, int]:
        """Read what ``is_due`` answered, the seconds as milliseconds to the next check."""
        try:
            is_due, seconds = answer
            if isinstance(seconds, timedelta):
                seconds = seconds.total_seconds()
            wait = UNSAID if seconds is None else seconds + 0.0
            if not isfinite(wait) or wait < 0:
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            kind = type(self._schedule).__name__
            right = "a pair is right: whether it is due, and the seconds to the next check"
            raise ScheduleError(f"{kind}.is_due() answered {answer!r}: {right}") from None
        microseconds = round(min(wait, END / 1000) * 1_000_000)
        return bool(is_due), max(ceil(microseconds / 1000), LEAST)


class Walk(FireTimes):
    """A chain as it follows from a cursor, walked as far as it is asked for and one look may go."""

    __slots__ = ("_chain", "_cursor", "_most_checks", "_slots", "_unknown")

    chained = True

    def __init__(self, chain: Chain, cursor: int) -> None:
        self._chain = chain
        self._cursor = cursor
        self._slots: list[int] = []
        self._unknown: int | None = None  # the first instant that was not looked at, once the look is over
        self._most_checks = chain.checks + 2 * SUCCESSORS

    @property
    def key(self) -> str:
        """That of the chain."""
        return self._chain.key

    def next(self, after: int) -> int | None:
        """Return the first slot of the walk after an instant."""
        self._walk(after)
        position = bisect_right(self._slots, after)
        return self._slots[position] if position < len(self._slots) else None

    def previous(self, until: int) -> int | None:
        """Return the latest slot of the walk at or before an instant."""
        self._walk(until)
        position = bisect_right(self._slots, until)
        return self._slots[position - 1] if position else None

    def between(self, after: int, until: int) -> Iterator[int]:
        """Yield the slots of the walk in ``(after, until]``, oldest first."""
        self._walk(until)
        yield from self._slots[bisect_right(self._slots, after) : bisect_right(self._slots, until)]

    def count(self, after: int, until: int, most: int) -> int:
        """Count the slots of the walk."""
        self._walk(until)
        found = bisect_right(self._slots, until) - bisect_right(self._slots, after)
        return max(0, min(found, most))

    def since(self, cursor: int) -> Walk:
        """Return the fire times that follow from a cursor."""
        return self if cursor == self._cursor else self._chain.since(cursor)

    def looked_until(self, after: int) -> int | None:
        """Return how far the walk has come, if it was cut short before a slot after an instant."""
        if self.next(after) is not None or self._unknown == END:
            return None
        return self._unknown

    def cut_short(self, until: int) -> bool:
        """Tell whether there may be more slots up to an instant than this look came to."""
        self._walk(until)
        return self._unknown is not None and self._unknown <= until

    def _walk(self, until: int) -> None:
        """Walk on until a slot lies after an instant, or as far as one look may go."""
        last = self._slots[-1] if self._slots else self._cursor
        while last <= until and self._unknown is None:
            following = self._chain.next(last)
            if following is None:
                self._unknown = self._chain.looked_until(last) or END
            elif len(self._slots) == SUCCESSORS or self._chain.checks > self._most_checks:
                self._unknown = following
            else:
                self._slots.append(following)
                last = following


def _keep(answers: dict[int, int], slot: int, answer: int) -> None:
    """Remember an answer, and forget the oldest."""
    answers[slot] = answer
    if len(answers) > KEPT:
        del answers[next(iter(answers))]

"""Fire times at local wall-clock times: the walk over a zone's days, and what clock changes do to it.

One rule, that of Vixie's cron:

- A job at *fixed* local times runs once per local day: in the hour that autumn repeats at its first
  occurrence; what spring leaves out runs at the first instant after the gap.
- A job with a wildcard or a step in hour or minute runs at every *real* occurrence: twice in the
  repeated hour, not at all in the hour that is left out.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from .errors import ScheduleError
from .slots import DAY, EPOCH, HOUR, MINUTE, SECOND, FireTimes

LAST = -1  # the last day of a month, the last Friday of a month

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_LONGEST_MONTHS = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FIELDS = {  # of Cron, with all that each can allow
    "seconds": tuple(range(60)), "minutes": tuple(range(60)), "hours": tuple(range(24)),
    "days_of_month": tuple(range(1, 32)), "months": tuple(range(1, 13)), "days_of_week": tuple(range(7)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone by its name; only ever asked for the offset at a UTC instant, which every tzinfo knows."""

    name: str
    tzinfo: tzinfo = field(compare=False, repr=False)

    def offset(self, instant: int) -> int:
        """Return local time minus UTC at a UTC instant."""
        offset = (EPOCH + timedelta(milliseconds=instant)).astimezone(self.tzinfo).utcoffset()
        return (offset or timedelta()) // timedelta(milliseconds=1)


class _Piece(NamedTuple):
    """Part of one local day, as times of day ``[first, end)``: real, or left out by a change of the clock."""

    first: int
    end: int
    midnight: int  # the UTC instant that 00:00 has, or would have, by this piece's offset
    gap: bool  # left out: whatever was due in it fires at its end's instant
    instant: int  # that instant


def _segments(zone: Zone, day: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(from, to, offset)`` in UTC for all the time in which somewhere it could be this local day."""
    marks = [day * DAY + hours * HOUR for hours in range(-16, 41, 8)]
    edges = [marks[0]]
    for low, high in pairwise(marks):
        before = zone.offset(low)
        if zone.offset(high) != before:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if zone.offset(middle) == before else (low, middle)
            edges.append(high)
    for start, end in pairwise([*edges, marks[-1]]):
        yield start, end, zone.offset(start)


@lru_cache(maxsize=8192)
def _pieces(zone: Zone, day: int, every_occurrence: bool) -> tuple[_Piece, ...]:
    """Return the pieces of one local day; one that spans it all on most days."""
    pieces: list[_Piece] = []
    covered, change = 0, 0  # the times of day we have had, and the instant at which they ended
    for start, end, offset in _segments(zone, day):
        midnight = day * DAY - offset
        first, last = max(start - midnight, 0), min(end - midnight, DAY)
        if first >= last:
            continue
        if not every_occurrence:
            if first > covered:
                pieces.append(_Piece(covered, first, midnight, True, start))
            first = max(first, covered)
        if first < last:
            pieces.append(_Piece(first, last, midnight, False, 0))
        covered, change = max(covered, last), end
    if pieces and covered < DAY and not every_occurrence:
        pieces.append(_Piece(covered, DAY, pieces[-1].midnight, True, change))
    return tuple(pieces)


def from_local(zone: Zone, local: datetime) -> int:
    """Return the instant of a local time, whatever ``tzinfo`` it has.

    Of two the first; for one that the zone leaves out, the first instant after the gap.
    """
    moment = (local.replace(tzinfo=timezone.utc) - EPOCH) // timedelta(milliseconds=1)
    day, time = divmod(moment, DAY)
    for piece in _pieces(zone, day, False):
        if piece.first <= time < piece.end:
            return piece.instant if piece.gap else piece.midnight + time
    return _pieces(zone, day + 1, False)[0].midnight  # a day that the zone left out altogether


@lru_cache(maxsize=1024)
def _times_of_hour(minutes: tuple[int, ...], seconds: tuple[int, ...]) -> tuple[int, ...]:
    """Return minutes and seconds as milliseconds into an hour; jobs share them."""
    return tuple(minute * MINUTE + second * SECOND for minute in minutes for second in seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron(FireTimes):
    """Local times of local days. Each field is the sorted tuple of the values it allows.

    Args:
        days_of_month: 1 to 31, and :data:`LAST` for the last day.
        days_of_week: 0 (Sunday) to 6.
        nth_days_of_week: pairs of day of week and 1 to 5, or :data:`LAST`: the third Monday, the last Friday.
        either_day: a day needs to match day of month *or* day of week (POSIX, both restricted); else both.
        every_occurrence: a wildcard or step in hour or minute, see the module's docstring; else once a day.

    Raises:
        ScheduleError: it can never fire; the message names the field.
    """

    zone: Zone
    seconds: tuple[int, ...] = (0,)
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days_of_month: tuple[int, ...] = tuple(range(1, 32))
    months: tuple[int, ...] = tuple(range(1, 13))
    days_of_week: tuple[int, ...] = tuple(range(7))
    nth_days_of_week: tuple[tuple[int, int], ...] = ()
    either_day: bool = False
    every_occurrence: bool = False
    _of_hour: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _FIELDS:
            if not getattr(self, name) and not (name == "days_of_week" and self.nth_days_of_week):
                raise ScheduleError(f"{name} allows no value, so it never fires")
        longest = max(_LONGEST_MONTHS[month] for month in self.months)
        if not self.either_day and min(self.days_of_month) > longest:
            months = f"month{'s' * (len(self.months) > 1)} {', '.join(map(str, self.months))}"
            raise ScheduleError(
                f"day of month {min(self.days_of_month)} does not exist in {months}: give {longest} at most"
            )
        object.__setattr__(self, "_of_hour", _times_of_hour(self.minutes, self.seconds))
        object.__setattr__(self, "_key", self._written())

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def key(self) -> str:
        """All fields, what they mean together, and the zone."""
        return self._key

    def _written(self) -> str:
        fields = [
            "*" if (allowed := getattr(self, name)) == whole else ",".join(map(str, allowed))
            for name, whole in _FIELDS.items()
        ]
        nth = ",".join(f"{day}#{nth}" for day, nth in self.nth_days_of_week)
        meaning = f"{'or' if self.either_day else 'and'} {'every' if self.every_occurrence else 'once'}"
        return f"cron {' '.join([*fields, nth or '-'])} {meaning} {self.zone.name}"

    def next(self, after: int) -> int | None:
        """Return the first fire time after an instant; ``None`` only at the end of the calendar."""
        return _remembered(self, after, 1)

    def previous(self, until: int) -> int | None:
        """Return the latest fire time up to an instant."""
        return _remembered(self, until, -1)

    def count(self, after: int, until: int, most: int) -> int:
        """Count by arithmetic within each day."""
        total, change = 0, None
        last_day = self._day(until) + 1
        for day in self._days(self._day(after) - 1, 1):
            if day > last_day or total >= most:
                break
            for piece in _pieces(self.zone, day, self.every_occurrence):
                if not piece.gap:
                    start = max(self._rank(piece.first), self._rank(after + 1 - piece.midnight))
                    end = min(self._rank(piece.end), self._rank(until + 1 - piece.midnight))
                    total += max(0, end - start)
                elif self._first_of(piece, after) is not None and piece.instant <= until:
                    # The end of the gap may be scheduled itself, and a gap over midnight belongs to two days.
                    total += piece.instant != change and not self._is_scheduled(piece.instant)
                    change = piece.instant
        return min(total, most)

    def _day(self, instant: int) -> int:
        """Return the local day, as days since the epoch."""
        return (instant + self.zone.offset(instant)) // DAY

    def _is_scheduled(self, instant: int) -> bool:
        """Tell whether the local time of an instant is one of those given."""
        day, time = divmod(instant + self.zone.offset(instant), DAY)
        return self._rank(time) < self._rank(time + 1) and next(self._days(day, 1), None) == day

    def _nearest(self, instant: int, step: int) -> int | None:
        """Return the nearest fire time after (step 1), or at or before (step -1) an instant."""
        find, choose = (self._first_of, min) if step > 0 else (self._last_of, max)
        best = None
        # A clock set back over midnight mixes two days: begin a day early, and look one day further.
        for day in self._days(self._day(instant) - step, step):
            pieces = _pieces(self.zone, day, self.every_occurrence)
            found = [time for piece in pieces if (time := find(piece, instant)) is not None]
            if best is not None:
                return choose([best, *found])
            best = choose(found, default=None)
            if best is not None and len(pieces) == 1:  # a day like most
                return best
        return best

    def _first_of(self, piece: _Piece, after: int) -> int | None:
        rank, end = self._rank(piece.first), self._rank(piece.end)
        if piece.gap:
            return piece.instant if rank < end and piece.instant > after else None
        rank = max(rank, self._rank(after + 1 - piece.midnight))
        return piece.midnight + self._time_of_day(rank) if rank < end else None

    def _last_of(self, piece: _Piece, until: int) -> int | None:
        rank, end = self._rank(piece.first), self._rank(piece.end)
        if piece.gap:
            return piece.instant if rank < end and piece.instant <= until else None
        end = min(end, self._rank(until + 1 - piece.midnight))
        return piece.midnight + self._time_of_day(end - 1) if rank < end else None

    def _rank(self, time: int) -> int:
        """Return how many scheduled times of day lie before this one."""
        hour, rest = divmod(min(max(time, 0), DAY), HOUR)
        full = bisect_left(self.hours, hour)
        in_hour = full < len(self.hours) and self.hours[full] == hour
        return full * len(self._of_hour) + (bisect_left(self._of_hour, rest) if in_hour else 0)

    def _time_of_day(self, rank: int) -> int:
        hour, rest = divmod(rank, len(self._of_hour))
        return self.hours[hour] * HOUR + self._of_hour[rest]

    def _days(self, day: int, step: int) -> Iterator[int]:
        """Yield the days that match from one day on, forwards or backwards, as days since the epoch."""
        first = date.fromordinal(day + _EPOCH_DAY)
        year, month = first.year, first.month
        for _ in range(41 * 12):  # the longest wait: 40 years for one weekday of 29 February
            if month in self.months:
                start = date(year, month, 1).toordinal() - _EPOCH_DAY - 1
                days = _days_of_month(
                    year, month, self.days_of_month, self.days_of_week, self.nth_days_of_week, self.either_day
                )
                for found in days[::step]:
                    if (start + found - day) * step >= 0:
                        yield start + found
            year, month = year + (month + step - 1) // 12, (month + step - 1) % 12 + 1
            if not 1 < year < 9999:
                return


@lru_cache(maxsize=8192)
def _remembered(cron: Cron, instant: int, step: int) -> int | None:
    """Return the nearest fire time; jobs with one schedule ask the same things at one look."""
    return cron._nearest(instant, step)


@lru_cache(maxsize=8192)
def _days_of_month(
    year: int,
    month: int,
    days_of_month: tuple[int, ...],
    days_of_week: tuple[int, ...],
    nth: tuple[tuple[int, int], ...],
    either: bool,
) -> tuple[int, ...]:
    """Return the days of one month that match; jobs share them."""
    first, length = calendar.monthrange(year, month)

    def by_month(day: int) -> bool:
        return day in days_of_month or (day == length and LAST in days_of_month)

    def by_week(day: int) -> bool:
        weekday = (first + day) % 7
        last = day + 7 > length and (weekday, LAST) in nth
        return last or weekday in days_of_week or (weekday, (day + 6) // 7) in nth

    join = any if either else all
    return tuple(day for day in range(1, length + 1) if join((by_month(day), by_week(day))))

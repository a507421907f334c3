"""When a job fires next, as a person reads it: at which local time, and what the clock did in between.

Pure: nothing here reads a clock. A zone is only ever asked for its offset at an instant, so that what
is said of a clock change is what the fire times were computed from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import islice

from .slots import DAY, HOUR, MINUTE, SECOND, FireTimes, from_iso, iso
from .wallclock import Cron, Zone, from_local

#: The years in which a forecast may begin; each one ends a year later, well within what dates can express.
FIRST_YEAR, LAST_YEAR = 1900, 9989
END = from_iso(f"{LAST_YEAR + 2}-01-01T00:00Z")

_LOCAL = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{3})?)?)?", re.ASCII)
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True)
class ClockChange:
    """At an instant a zone's clocks are put forward, or back: ``by`` is below zero then."""

    at: int
    by: int


@dataclass(frozen=True, slots=True)
class FireTime:
    """One fire time; ``changes`` are those of the clock since the fire time before it."""

    at: int
    offset: int
    changes: tuple[ClockChange, ...] = ()
    note: str | None = None

    @property
    def local(self) -> str:
        """The local time as text: ``2026-03-29T03:00:00.000+02:00``."""
        return iso(self.at + self.offset).removesuffix("Z") + offset_text(self.offset)


def forecast(times: FireTimes, zone: Zone, *, begin: int, count: int) -> list[FireTime]:
    """Return the first fire times at or after an instant; fewer, if the job fires less often."""
    found: list[FireTime] = []
    for at in islice(_between(times, begin), count):
        changes = clock_changes(zone, found[-1].at, at) if found else ()
        note = _repeated(zone, at) or _left_out(times, zone, at)
        found.append(FireTime(at, zone.offset(at), changes, note))
    return found


def _between(times: FireTimes, begin: int) -> Iterator[int]:
    """Yield the fire times from an instant to the end of the calendar, without looking further than asked."""
    at = times.next(begin - 1)
    while at is not None and at < END:
        yield at
        at = times.next(at)


def end_of(times: FireTimes, found: Sequence[FireTime], begin: int) -> str:
    """Say of a job why there are no more times than those that were found."""
    looked = times.looked_until(found[-1].at if found else begin - 1)
    if looked is not None:
        return f"does not fire before {iso(looked)}; its schedule is not asked about more at once"
    return "does not fire again" if found else f"does not fire any more after {iso(begin)}"


# What clocks do ---------------------------------------------------------------------------------


def clock_changes(zone: Zone, after: int, until: int) -> tuple[ClockChange, ...]:
    """Return the clock changes in ``(after, until]``; no two of them are less than a day apart."""
    found, low, before = [], after, zone.offset(after)
    while low < until:
        high = min(low + DAY, until)
        offset = zone.offset(high)
        if offset != before:
            found.append(ClockChange(_first(zone, offset, low, high), offset - before))
        low, before = high, offset
    return tuple(found)


def _first(zone: Zone, offset: int, low: int, high: int) -> int:
    """Return the first instant after ``low`` that has the offset of ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if zone.offset(middle) == offset else (middle, high)
    return high


def _repeated(zone: Zone, at: int) -> str | None:
    """Say which of two an instant is whose local time comes twice."""
    for change in clock_changes(zone, at - DAY, at + DAY):
        if change.at + change.by <= at < change.at - change.by:
            which = "first" if at < change.at else "second"
            return f"{which} of two {_time_of_day(at + zone.offset(at))}"
    return None


def _left_out(times: FireTimes, zone: Zone, at: int) -> str | None:
    """Say so if an instant stands for a local time that a clock change left out."""
    if not isinstance(times, Cron) or times.every_occurrence:
        return None
    for change in clock_changes(zone, at - 1, at):
        before = zone.offset(at - 1)
        fixed = Zone("before the change", timezone(timedelta(milliseconds=before)))
        missing = replace(times, zone=fixed).next(at - 1)
        if missing is not None and missing < at + change.by:
            wall, now = missing + before, at + zone.offset(at)
            day = "" if wall // DAY == now // DAY else f"{iso(wall)[:10]} "
            return f"{day}{_time_of_day(wall)} does not exist, first instant after"
    return None


# What people write and read ---------------------------------------------------------------------


def read_moment(text: str, zone: Zone) -> int:
    """Return the instant that a text names: one with a zone, or a date or local time in the zone given.

    A local time that comes twice is the first of the two; one that a clock change leaves out, the first
    instant after it.

    Raises:
        ValueError: one line that says what would be right.
    """
    try:
        local = datetime.fromisoformat(text) if _LOCAL.fullmatch(text) else None
        instant = from_iso(text) if local is None else 0
    except ValueError:
        right = "2026-03-29, '2026-03-29 02:30' (local), 2026-03-29T01:00:30Z or 2026-03-29T03:00+02:00"
        raise ValueError(f"{text!r} is no moment: write it as {right}") from None
    if not FIRST_YEAR <= int(text[:4]) <= LAST_YEAR:
        raise ValueError(f"{text!r} is too far away: a year from {FIRST_YEAR} to {LAST_YEAR} is right")
    return instant if local is None else from_local(zone, local)


def local_text(at: int, zone: Zone) -> str:
    """Return an instant as a local time for people: ``Sun 2026-03-29 03:00:00 +02:00``."""
    offset = zone.offset(at)
    wall = at + offset
    weekday = _WEEKDAYS[(wall // DAY + 3) % 7]
    text = iso(wall).removesuffix("Z").removesuffix(".000").replace("T", " ")
    return f"{weekday} {text} {offset_text(offset)}"


def offset_text(ms: int) -> str:
    """Return an offset, or how far a clock is moved, as ``+02:00``."""
    hours, rest = divmod(abs(ms), HOUR)
    seconds = rest % MINUTE // SECOND
    return f"{'-' if ms < 0 else '+'}{hours:02}:{rest // MINUTE:02}" + (f":{seconds:02}" if seconds else "")


def change_text(change: ClockChange) -> str:
    """Return a clock change for people: ``clock +1 h``."""
    hours, rest = divmod(abs(change.by), HOUR)
    minutes, rest = divmod(rest, MINUTE)
    parts = ((hours, "h"), (minutes, "min"), (rest // SECOND, "s"))
    sign = "-" if change.by < 0 else "+"
    return f"clock {sign}" + " ".join(f"{number} {unit}" for number, unit in parts if number)


def _time_of_day(wall: int) -> str:
    return iso(wall)[11:].removesuffix("Z").removesuffix(".000").removesuffix(":00")

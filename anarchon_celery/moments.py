"""Intervals, moments and times of day, as people write them in a schedule."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from typing import Any

from . import durations
from .errors import ScheduleError
from .slots import DAY, EPOCH, Interval, from_iso

LONGEST = 36_500 * DAY  # of an interval, as of a setting
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_WORDS = {  # of units, as they are not written
    "d": "d", "day": "d", "h": "h", "hr": "h", "hour": "h", "m": "m", "min": "m", "minute": "m",
    "s": "s", "sec": "s", "second": "s", "ms": "ms", "msec": "ms", "millisecond": "ms",
}  # fmt: skip


def interval_of(value: Any) -> Interval:
    """Return an interval's fire times.

    Raises:
        ScheduleError: it is no duration, or shorter than 100 ms; one line.
    """
    try:
        interval = Interval(durations.milliseconds(value))
        if interval.every > LONGEST:
            raise ScheduleError("an interval this long is not meant: give 36500d or less")
        return interval
    except ValueError as reason:
        near = near_duration(value)
        raise ScheduleError(
            f"{value!r} is no duration: did you mean {near!r}?" if near else str(reason)
        ) from None
    except ScheduleError as reason:
        raise ScheduleError(f"{value!r}: {reason}") from None


def moment(value: Any) -> int | datetime:
    """Return an instant, or where the zone is left open the local time.

    Raises:
        ScheduleError: it is neither; one line.
    """
    if isinstance(value, str):
        found = _from_text(value)
    elif isinstance(value, datetime):
        found = value if value.utcoffset() is None else (value - EPOCH) // timedelta(milliseconds=1)
    else:
        found = None
    if found is None:
        right = "give '2026-12-01T09:00:00+01:00', '2026-12-01 09:00' with timezone=, or a datetime"
        raise ScheduleError(f"{value!r} is no moment: {right}")
    year = found.year if isinstance(found, datetime) else 1970 + found // 31_556_952_000
    if not 1900 <= year <= 9000:
        raise ScheduleError(f"{value!r} is out of the calendar: give a year from 1900 to 9000")
    return found


def _from_text(text: str) -> int | datetime | None:
    try:
        return from_iso(text)
    except ValueError:
        pass
    try:
        return (EPOCH + timedelta(milliseconds=from_iso(f"{text}Z"))).replace(tzinfo=None)
    except ValueError:
        return None


def time_of_day(value: Any) -> int:
    """Return the seconds since midnight of ``'02:30'``, ``'02:30:15'`` or a ``datetime.time``.

    Raises:
        ScheduleError: it is none of these; one line.
    """
    if isinstance(value, time) and value.tzinfo is None and not value.microsecond:
        return value.hour * 3600 + value.minute * 60 + value.second
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    hour, minute, second = (int(part or 0) for part in match.groups()) if match else (24, 0, 0)
    if hour > 23 or minute > 59 or second > 59:
        right = "give 'HH:MM', 'HH:MM:SS', or a datetime.time in whole seconds and without a zone"
        raise ScheduleError(f"at={value!r} is no time of day: {right}")
    return hour * 3600 + minute * 60 + second


def shown_times(at: Any) -> Any:
    """Return times of day as they are shown, and compared: sorted texts, one alone without a list."""
    try:
        seconds = sorted({time_of_day(one) for one in (at if isinstance(at, list) else [at])})
    except ScheduleError:
        return at
    texts = [str(timedelta(seconds=one)).rjust(8, "0").removesuffix(":00") for one in seconds]
    return texts[0] if len(texts) == 1 else texts


def near_duration(value: Any) -> str | None:
    """Return the duration that ``'10 s'``, ``'5 minutes'`` or ``'every 10s'`` was meant to be, if any."""
    if not isinstance(value, str):
        return None

    def unit(match: re.Match[str]) -> str:
        word = match[2] if match[2] in _WORDS else match[2].removesuffix("s")
        return match[1] + _WORDS.get(word, match[2])

    near = re.sub(r"([0-9]+)\s*([a-z]+)[\s,]*", unit, value.strip().lower().removeprefix("every "))
    try:
        durations.milliseconds(near)
    except ValueError:
        return None
    return near if near != value else None

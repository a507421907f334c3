"""What the tests of fire times share: how to get them, and all the ways to ask for those of a span."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from anarchon_celery.schedules import as_schedule, fire_times
from anarchon_celery.slots import FireTimes, from_iso, iso


def times_of(schedule, zone: str = "UTC"):
    """The fire times of whatever an entry may hold, in a zone by its name."""
    return fire_times(as_schedule(schedule), timezone=ZoneInfo(zone))


def fires(times: FireTimes, start: str, end: str) -> list[str]:
    """What fires from start (included) to end (excluded), as ``2026-03-29T01:00:00Z``."""
    return shown(times.between(from_iso(start) - 1, from_iso(end) - 1))


def shown(found) -> list[str]:
    return [f"{iso(time)[:19]}Z" for time in found]


def forwards(times: FireTimes, start: int, end: int) -> list[int]:
    """What fires in ``[start, end)``, asked from just before each to the next."""
    found: list[int] = []
    time = times.next(start - 1)
    while time is not None and time < end:
        found.append(time)
        time = times.next(time)
    return found


def backwards(times: FireTimes, start: int, end: int) -> list[int]:
    """The same, asked from just before each to the previous."""
    found: list[int] = []
    time = times.previous(end - 1)
    while time is not None and time >= start:
        found.append(time)
        time = times.previous(time - 1)
    return found[::-1]


def check_all_ways(times: FireTimes, start: int, end: int, expected: list[int]) -> None:
    """Assert that whichever way one asks for what fires in ``[start, end)``, it is this."""
    assert shown(expected) == shown(times.between(start - 1, end - 1))
    assert shown(expected) == shown(forwards(times, start, end))
    assert shown(expected) == shown(backwards(times, start, end))
    assert len(expected) == times.count(start - 1, end - 1, 10_000)
    for before, time in zip([start - 1, *expected], expected, strict=False):
        assert (time, time) == (times.next(before), times.next(time - 1)), "whoever asks between the two"
        assert time == times.previous(time)

"""The walk against the plainest reading of its rule: look at the clock every minute, for days.

The rule is written here a second time, without arithmetic: a person looks at a local clock each minute of
some days and notes when a job has to run. That takes 3,600 looks for one change of the clocks, and is
therefore no way to schedule anything, but it is hard to get wrong. The zones are those with the oddest
changes: of half an hour, of two, at midnight, over midnight, of a whole day, for Ramadan, for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import pairwise
from random import Random
from zoneinfo import ZoneInfo

import pytest

from anarchon_celery.slots import DAY, HOUR, MINUTE, from_iso, iso
from tests.fire_times.walks import check_all_ways, times_of

ZONES = [
    "Africa/Cairo", "Africa/Casablanca", "America/Asuncion", "America/Caracas", "America/Havana",
    "America/Metlakatla", "America/New_York", "America/Nuuk", "America/Santiago", "America/Sao_Paulo",
    "America/Scoresbysund", "America/St_Johns", "America/Toronto", "Antarctica/Casey", "Antarctica/Troll",
    "Antarctica/Vostok", "Asia/Amman", "Asia/Colombo", "Asia/Gaza", "Asia/Kathmandu", "Asia/Pyongyang",
    "Asia/Tehran", "Australia/Lord_Howe", "Europe/Berlin", "Europe/Dublin", "Europe/Istanbul",
    "Europe/Lisbon", "Europe/Moscow", "Pacific/Apia", "Pacific/Chatham", "Pacific/Kiritimati",
    "Pacific/Kwajalein", "Pacific/Norfolk",
]  # fmt: skip
SPANS = {
    "": ("1972-01-01T00:00Z", "2037-12-01T00:00Z"),  # before, some offsets are no whole minutes
    "America/Toronto": ("1918-01-01T00:00Z", "1922-01-01T00:00Z"),  # on 30 March 1919, from 23:30 to 00:30
}
UTC = timezone.utc


# Where clocks change -------------------------------------------------------------------------------------


def offset(zone: ZoneInfo, instant: int):
    return datetime.fromtimestamp(instant / 1000, UTC).astimezone(zone).utcoffset()


def changes(zone: ZoneInfo) -> list[int]:
    """All instants at which a zone's clocks are changed, found week by week."""
    begin, end = map(from_iso, SPANS.get(zone.key, SPANS[""]))
    found = []
    for low, high in pairwise(range(begin, end, 7 * DAY)):
        if (before := offset(zone, low)) != offset(zone, high):
            while high - low > 1000:
                middle = (low + high) // 2000 * 1000
                low, high = (middle, high) if offset(zone, middle) == before else (low, middle)
            found.append(high)
    return found


def some_changes(name: str) -> list[int]:
    """Three, and four of those that are not by one hour, or over a midnight."""
    zone = ZoneInfo(name)
    found = changes(zone)
    odd = [it for it in found if abs(offset(zone, it) - offset(zone, it - 1)) != timedelta(hours=1)]
    odd = [it for it in found if it in odd or over_midnight(zone, it)]
    rest = [it for it in found if it not in odd]
    chance = Random(name)
    return sorted([*chance.sample(odd, min(len(odd), 4)), *chance.sample(rest, min(len(rest), 3))])


def over_midnight(zone: ZoneInfo, change: int) -> bool:
    """Tell whether a gap ends on another day than it begins."""
    before, after = (datetime.fromtimestamp((change + off) / 1000, zone) for off in (-1000, 0))
    return before.date() < after.date() and after.hour + after.minute > 0


# What a person would note ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A cron text and what it allows, made together, so that nobody has to read the text."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    weekdays: frozenset[int]
    recurs: bool

    def matches(self, local: datetime) -> bool:
        return (
            local.minute in self.minutes
            and local.hour in self.hours
            and local.day in self.days
            and local.isoweekday() % 7 in self.weekdays
        )


def some_job(chance: Random, near: datetime) -> Job:
    """A job that often has to run about this local time."""
    minute_text, minutes = some_field(chance, 60, near.minute)
    hour_text, hours = some_field(chance, 24, near.hour)
    days, weekdays = [*range(1, 32)], [*range(7)]
    if chance.random() < 0.2:
        days = sorted({near.day, (near + timedelta(days=1)).day, chance.randrange(1, 29)})
    elif chance.random() < 0.2:
        weekdays = sorted({near.isoweekday() % 7, chance.randrange(7)})
    day_text = "*" if len(days) == 31 else ",".join(map(str, days))
    weekday_text = "*" if len(weekdays) == 7 else ",".join(map(str, weekdays))
    return Job(
        f"{minute_text} {hour_text} {day_text} * {weekday_text}",
        frozenset(minutes), frozenset(hours), frozenset(days), frozenset(weekdays),
        recurs=not {"*", "/"}.isdisjoint(minute_text + hour_text),
    )  # fmt: skip


def some_field(chance: Random, size: int, near: int) -> tuple[str, list[int]]:
    kind = chance.choice(["one", "list", "range", "wild", "step", "step from"])
    one = (near + chance.randrange(-2, 3)) % size if chance.random() < 0.7 else chance.randrange(size)
    step = chance.choice([2, 3, 5, 7, 10, 15, 20, 30])
    if kind == "list":
        numbers = sorted({one, (one + 1) % size, chance.randrange(size)})
        return ",".join(map(str, numbers)), numbers
    if kind == "range" and one < size - 3:
        last = min(one + chance.randrange(1, size // 2), size - 2)
        return f"{one}-{last}", [*range(one, last + 1)]
    return {
        "wild": ("*", [*range(size)]),
        "step": (f"*/{step}", [*range(0, size, step)]),
        "step from": (f"{one}/{step}", [*range(one, size, step)]),
    }.get(kind, (str(one), [one]))


@lru_cache(maxsize=4)
def looks(zone: str, start: int, end: int) -> list[tuple[int, datetime]]:
    """What a local clock shows each minute."""
    there = ZoneInfo(zone)
    utc = range(start // MINUTE * MINUTE, end, MINUTE)
    return [(it, datetime.fromtimestamp(it / 1000, there).replace(tzinfo=None, fold=0)) for it in utc]


def noted(job: Job, looked: list[tuple[int, datetime]]) -> list[int]:
    """When the job has to run, by the rule as the contract says it."""
    if job.recurs:
        return [instant for instant, local in looked if job.matches(local)]
    days = {local.date() for _, local in looked}
    seen: set[datetime] = set()
    found: set[int] = set()
    for (_, before), (instant, local) in pairwise(looked):
        left_out = before + timedelta(minutes=1)
        while left_out < local:  # the first instant after the gap; a day that never was had nothing to run
            if job.matches(left_out) and left_out.date() in days:
                found.add(instant)
            left_out += timedelta(minutes=1)
        if job.matches(local) and local not in seen:  # the first occurrence
            found.add(instant)
        seen.add(local)
    return sorted(found)


@pytest.mark.parametrize("zone", ZONES)
def test_as_somebody_who_looks_at_the_clock_every_minute(zone):
    chance = Random(zone)
    compared = 0
    for change in some_changes(zone):
        looked = looks(zone, change - 32 * HOUR, change + 32 * HOUR)
        start, end = change - 28 * HOUR, change + 28 * HOUR
        near = [datetime.fromtimestamp((change + off) / 1000, ZoneInfo(zone)) for off in (-1, 0)]
        for _ in range(8):
            job = some_job(chance, chance.choice(near))
            expected = [time for time in noted(job, looked) if start <= time < end]
            times = times_of(job.text, zone)
            assert expected == list(times.between(start - 1, end - 1)), f"{job.text} {zone} {iso(change)}"
            assert len(expected) == times.count(start - 1, end - 1, 10_000), f"{job.text} {zone}"
            if len(expected) < 40:
                check_all_ways(times, start, end, expected)
            compared += len(expected)
    assert compared > 100, "there was something to compare"

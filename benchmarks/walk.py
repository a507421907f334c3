"""How long a node takes to know when its jobs come due: ``python -m benchmarks.walk [JOBS]``.

As many jobs, half of them cron texts and half Celery's ``crontab``, with 100 different texts. Measured is
what a start does with each: read it, make its fire times, look for the first one. The last line says what the
shared parsing saves: some of the jobs once more, each with a cache as empty as for the first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from time import perf_counter
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab
from croniter import croniter

from anarchon_celery import crontexts, schedules, wallclock, zones
from anarchon_celery.slots import from_iso

from .figures import Line, Row

NOW = from_iso("2026-10-10T12:00:30Z")
BERLIN = ZoneInfo("Europe/Berlin")
HOURS = ("*", "2", "*/6", "8-18", "22-4")
DAYS = ("*", "mon-fri")
TEXTS = [f"{minute} {hour} * * {day}" for minute in range(0, 60, 6) for hour in HOURS for day in DAYS]
ALONE = 500  # jobs that are measured without a cache
CACHES = [
    crontexts._read, crontexts._expand, schedules._shared, zones._named,
    wallclock._pieces, wallclock._times_of_hour, wallclock._days_of_month, wallclock._remembered,
]  # fmt: skip


def jobs(count: int) -> Iterator[str | BaseSchedule]:
    """Make the schedules of so many jobs: a text, a crontab, a text, …"""
    for number in range(count):
        text = TEXTS[number // 2 % len(TEXTS)]
        yield crontab.from_string(text) if number % 2 else text


def plan(given: str | BaseSchedule, number: int) -> int | None:
    """Do for one job what a start does."""
    schedule = schedules.as_schedule(given)
    return schedules.fire_times(schedule, timezone=BERLIN, job=f"job-{number}").next(NOW)


def clear() -> None:
    """Forget what was parsed."""
    for cache in CACHES:
        cache.cache_clear()


def all_at_once(given: list[str | BaseSchedule]) -> float:
    """Return the seconds to plan all jobs from an empty cache on."""
    clear()
    start = perf_counter()
    for number, one in enumerate(given):
        plan(one, number)
    return perf_counter() - start


def each_alone(given: list[str | BaseSchedule]) -> float:
    """Return the seconds to plan the jobs with an empty cache for each of them."""
    spent = 0.0
    for number, one in enumerate(given):
        clear()
        start = perf_counter()
        plan(one, number)
        spent += perf_counter() - start
    return spent


def of_celery(count: int) -> float:
    """Return the seconds in which Celery's own beat finds out how long to wait for each."""
    texts = [TEXTS[number % len(TEXTS)] for number in range(count)]
    now = datetime.fromtimestamp(NOW / 1000, BERLIN)
    start = perf_counter()
    for text in texts:
        minute, hour, *days = text.split()
        crontab(minute, hour, *_of_week_first(days), nowfun=lambda: now).remaining_estimate(now)
    return perf_counter() - start


def _of_week_first(days: list[str]) -> tuple[str, str, str]:
    """Return the last three fields of a cron text in the order in which ``crontab`` takes them."""
    of_month, of_year, of_week = days
    return of_week, of_month, of_year


def of_croniter(count: int) -> float:
    """Return the seconds in which croniter reads each text and finds its first time."""
    now = datetime.fromtimestamp(NOW / 1000, BERLIN)
    start = perf_counter()
    for number in range(count):
        croniter(TEXTS[number % len(TEXTS)], now).get_next()
    return perf_counter() - start


def row(rounds: int, count: int) -> Row:
    """Return the row of so many cron texts."""
    given = list(jobs(count))
    measured = (
        ("anarchon-celery", lambda: all_at_once(given)),
        ("celery's crontab", lambda: of_celery(count)),
        ("croniter", lambda: of_croniter(count)),
    )
    seen: dict[str, list[float]] = {who: [] for who, _measure in measured}
    for _ in range(rounds):
        for who, measure in measured:
            seen[who].append(measure())
    return Row(
        f"first fire times, {count:,} cron texts",
        f"read {len(TEXTS)} different texts, which {count:,} jobs have, and find the first time of each",
        "at most 1 s, once; then only the due ones are touched",
        [Line(who, "s", values) for who, values in seen.items()],
    )


def main() -> None:
    """Measure, three times each, and print the best."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    given = list(jobs(count))
    best = min(all_at_once(given) for _ in range(3))
    print(f"{count} jobs, {len(TEXTS)} texts: {best:.3f} s, {best / count * 1e6:.1f} µs each")
    alone = given[:ALONE]
    apart = min(each_alone(alone) for _ in range(3)) / len(alone)
    print(f"without a cache: {apart * 1e6:.1f} µs each, {apart / (best / count):.0f} times as long")


if __name__ == "__main__":
    main()

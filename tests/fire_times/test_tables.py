"""Fire times where clocks change, typed by hand from the rules of each zone.

A row of a table is an instant in UTC and what the zone's clocks show then; that they do is asked of
``zoneinfo``. What tests/test_slots.py and tests/test_schedules.py (the table of the peers) have is not
repeated here. Each table is asked for forwards, backwards, from between two, as a span, and counted.
"""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from anarchon_celery.schedules import cron
from anarchon_celery.slots import HOUR, from_iso
from tests.fire_times.walks import check_all_ways, times_of


def check(schedule, zone: str, start: str, end: str, table: str) -> None:
    """Compare with a table."""
    check_all_ways(times_of(schedule, zone), from_iso(start), from_iso(end), instants(zone, start, table))


def instants(zone: str, start: str, table: str) -> list[int]:
    """Read a table: rows such as ``03-29 01:00Z 03:00+02``, a comma or a line apart."""
    found = []
    for row in filter(None, map(str.strip, table.replace(",", "\n").splitlines())):
        day, utc, local = row.split()
        day = day if day.count("-") == 2 else f"{start[:4]}-{day}"
        instant = from_iso(f"{day}T{utc}")
        clocks = datetime.fromtimestamp(instant / 1000, ZoneInfo(zone)).isoformat()[11:]
        assert _in_full(local) == clocks, f"{zone} does not show this at {row}"
        found.append(instant)
    return found


def _in_full(local: str) -> str:
    """``03:00-05`` as ``03:00:00-05:00``."""
    time, sign, offset = local.partition("+") if "+" in local else local.partition("-")
    return f"{time if len(time) == 8 else time + ':00'}{sign}{offset if ':' in offset else offset + ':00'}"


# Europe/Berlin. 2026: 29 March 01:00Z, 02:00+01 → 03:00+02; 25 October 01:00Z, 03:00+02 → 02:00+01 ---


@pytest.mark.parametrize(
    ("schedule", "start", "end", "table"),
    [
        pytest.param("0,30 1,2,3 * * *", "2026-03-28T23:00Z", "2026-03-29T03:00Z",
            "03-29 00:00Z 01:00+01, 03-29 00:30Z 01:30+01, 03-29 01:00Z 03:00+02, 03-29 01:30Z 03:30+02",
            id="a list: two in the gap and one at its end are one"),
        pytest.param("59 1 * * *", "2026-03-28T12:00Z", "2026-03-30T12:00Z",
            "03-29 00:59Z 01:59+01, 03-29 23:59Z 01:59+02", id="the last minute before the gap"),
        pytest.param("0 2 * * *", "2026-03-28T00:00Z", "2026-03-30T12:00Z",
            "03-28 01:00Z 02:00+01, 03-29 01:00Z 03:00+02, 03-30 00:00Z 02:00+02",
            id="the first minute that is left out"),
        pytest.param("*/20 2 * * *", "2026-03-28T12:00Z", "2026-03-30T12:00Z",
            "03-30 00:00Z 02:00+02, 03-30 00:20Z 02:20+02, 03-30 00:40Z 02:40+02",
            id="a step in the hour that is left out runs the day after"),
        pytest.param("15 */2 * * *", "2026-03-28T22:00Z", "2026-03-29T06:00Z",
            "03-28 23:15Z 00:15+01, 03-29 02:15Z 04:15+02, 03-29 04:15Z 06:15+02", id="a step in hours"),
        pytest.param("30 59 1,2 * * *", "2026-03-28T12:00Z", "2026-03-30T00:00Z",
            """03-29 00:59:30Z 01:59:30+01
               03-29 01:00:00Z 03:00:00+02
               03-29 23:59:30Z 01:59:30+02""", id="with seconds: the gap's end has none"),
        pytest.param("*/30 30 2 * * *", "2026-03-28T12:00Z", "2026-03-30T12:00Z",
            "03-29 01:00:00Z 03:00:00+02, 03-30 00:30:00Z 02:30:00+02, 03-30 00:30:30Z 02:30:30+02",
            id="a step in seconds alone is still fixed"),
        pytest.param("30 2 L * *", "2024-02-15T00:00Z", "2024-05-15T00:00Z",
            "02-29 01:30Z 02:30+01, 03-31 01:00Z 03:00+02, 04-30 00:30Z 02:30+02",
            id="the last of March 2024 is the day"),
        pytest.param("30 2 * * sun#5", "2026-03-01T00:00Z", "2026-06-01T00:00Z",
            "03-29 01:00Z 03:00+02, 05-31 00:30Z 02:30+02", id="the fifth Sunday of March is the day"),
        pytest.param(crontab("0,30", "1,2,3"), "2026-03-28T23:00Z", "2026-03-29T03:00Z",
            "03-29 00:00Z 01:00+01, 03-29 00:30Z 01:30+01, 03-29 01:00Z 03:00+02, 03-29 01:30Z 03:30+02",
            id="crontab: a list"),
        pytest.param(crontab("*/20", "2"), "2026-03-28T12:00Z", "2026-03-30T01:00Z",
            "03-30 00:00Z 02:00+02, 03-30 00:20Z 02:20+02, 03-30 00:40Z 02:40+02", id="crontab: a step"),
        pytest.param(crontab("0", "*/3", day_of_week="sun"), "2026-03-28T12:00Z", "2026-03-29T12:00Z",
            """03-28 23:00Z 00:00+01
               03-29 01:00Z 03:00+02
               03-29 04:00Z 06:00+02
               03-29 07:00Z 09:00+02
               03-29 10:00Z 12:00+02""", id="crontab: steps on Sundays"),
    ],
)  # fmt: skip
def test_berlin_in_spring(schedule, start, end, table):
    check(schedule, "Europe/Berlin", start, end, table)


@pytest.mark.parametrize(
    ("schedule", "start", "end", "table"),
    [
        pytest.param("0,30 2,3 * * *", "2026-10-24T12:00Z", "2026-10-25T12:00Z",
            "10-25 00:00Z 02:00+02, 10-25 00:30Z 02:30+02, 10-25 02:00Z 03:00+01, 10-25 02:30Z 03:30+01",
            id="a list: once, at the first"),
        pytest.param("30 1-3 * * *", "2026-10-24T12:00Z", "2026-10-25T12:00Z",
            "10-24 23:30Z 01:30+02, 10-25 00:30Z 02:30+02, 10-25 02:30Z 03:30+01",
            id="a range without a step is fixed"),
        pytest.param("0 0-4/2 * * *", "2026-10-24T12:00Z", "2026-10-25T12:00Z",
            "10-24 22:00Z 00:00+02, 10-25 00:00Z 02:00+02, 10-25 01:00Z 02:00+01, 10-25 03:00Z 04:00+01",
            id="a range with a step is not"),
        pytest.param("5/20 2 * * *", "2026-10-24T12:00Z", "2026-10-25T12:00Z",
            """10-25 00:05Z 02:05+02
               10-25 00:25Z 02:25+02
               10-25 00:45Z 02:45+02
               10-25 01:05Z 02:05+01
               10-25 01:25Z 02:25+01
               10-25 01:45Z 02:45+01""", id="a start with a step is not either"),
        pytest.param("59 59 2 * * *", "2026-10-24T12:00Z", "2026-10-25T12:00Z", "10-25 00:59:59Z 02:59:59+02",
            id="the last second of the first time"),
        pytest.param("*/20 59 2 * * *", "2026-10-24T12:00Z", "2026-10-25T12:00Z",
            "10-25 00:59:00Z 02:59:00+02, 10-25 00:59:20Z 02:59:20+02, 10-25 00:59:40Z 02:59:40+02",
            id="a step in seconds alone: once"),
        pytest.param("40 */30 2 * * *", "2026-10-24T12:00Z", "2026-10-25T12:00Z",
            """10-25 00:00:40Z 02:00:40+02
               10-25 00:30:40Z 02:30:40+02
               10-25 01:00:40Z 02:00:40+01
               10-25 01:30:40Z 02:30:40+01""", id="six fields and a step in minutes: twice"),
        pytest.param("30 2 * * L7", "2026-09-01T00:00Z", "2026-12-01T00:00Z",
            "09-27 00:30Z 02:30+02, 10-25 00:30Z 02:30+02, 11-29 01:30Z 02:30+01",
            id="the last Sunday of October is the day"),
        pytest.param("0 0 25,26 10 *", "2026-10-01T00:00Z", "2026-12-01T00:00Z",
            "10-24 22:00Z 00:00+02, 10-25 23:00Z 00:00+01", id="a day of 25 hours"),
        pytest.param(crontab("*/30", "2-3"), "2026-10-24T12:00Z", "2026-10-25T12:00Z",
            """10-25 00:00Z 02:00+02
               10-25 00:30Z 02:30+02
               10-25 01:00Z 02:00+01
               10-25 01:30Z 02:30+01
               10-25 02:00Z 03:00+01
               10-25 02:30Z 03:30+01""", id="crontab: a step"),
        pytest.param(crontab(30, [1, 2]), "2026-10-24T12:00Z", "2026-10-25T12:00Z",
            "10-24 23:30Z 01:30+02, 10-25 00:30Z 02:30+02", id="crontab: numbers are fixed"),
        pytest.param(crontab(30, 2, day_of_week="sun", day_of_month="25-31"), "2026-09-01T00:00Z",
            "2026-12-01T00:00Z", "09-27 00:30Z 02:30+02, 10-25 00:30Z 02:30+02, 11-29 01:30Z 02:30+01",
            id="crontab: both days must match"),
    ],
)  # fmt: skip
def test_berlin_in_autumn(schedule, start, end, table):
    check(schedule, "Europe/Berlin", start, end, table)


# America/New_York. 2026: 8 March 07:00Z, 02:00-05 → 03:00-04; 1 November 06:00Z, 02:00-04 → 01:00-05 ---


@pytest.mark.parametrize(
    ("schedule", "start", "end", "table"),
    [
        pytest.param("30 2 * * *", "2026-03-07T00:00Z", "2026-03-10T00:00Z",
            "03-07 07:30Z 02:30-05, 03-08 07:00Z 03:00-04, 03-09 06:30Z 02:30-04", id="spring, fixed"),
        pytest.param("0 3 * * *", "2026-03-07T00:00Z", "2026-03-09T00:00Z",
            "03-07 08:00Z 03:00-05, 03-08 07:00Z 03:00-04", id="spring, the end of the gap"),
        pytest.param(crontab(0, "*/2"), "2026-03-08T04:00Z", "2026-03-08T11:00Z",
            "03-08 05:00Z 00:00-05, 03-08 08:00Z 04:00-04, 03-08 10:00Z 06:00-04",
            id="spring, crontab, every two hours"),
        pytest.param("*/30 1-3 8 3 *", "2026-03-01T00:00Z", "2026-03-31T00:00Z",
            "03-08 06:00Z 01:00-05, 03-08 06:30Z 01:30-05, 03-08 07:00Z 03:00-04, 03-08 07:30Z 03:30-04",
            id="spring, a step"),
        pytest.param("30 1 * * *", "2026-10-31T00:00Z", "2026-11-03T00:00Z",
            "10-31 05:30Z 01:30-04, 11-01 05:30Z 01:30-04, 11-02 06:30Z 01:30-05", id="autumn, fixed"),
        pytest.param("0 2 * * *", "2026-10-31T00:00Z", "2026-11-03T00:00Z",
            "10-31 06:00Z 02:00-04, 11-01 07:00Z 02:00-05, 11-02 07:00Z 02:00-05",
            id="autumn, the end of the repeated hour"),
        pytest.param("*/30 1 * * *", "2026-11-01T00:00Z", "2026-11-02T00:00Z",
            "11-01 05:00Z 01:00-04, 11-01 05:30Z 01:30-04, 11-01 06:00Z 01:00-05, 11-01 06:30Z 01:30-05",
            id="autumn, a step"),
        pytest.param("0 */6 * * *", "2026-11-01T00:00Z", "2026-11-02T00:00Z",
            "11-01 04:00Z 00:00-04, 11-01 11:00Z 06:00-05, 11-01 17:00Z 12:00-05, 11-01 23:00Z 18:00-05",
            id="autumn, seven hours between two of every six"),
        pytest.param("0 1 1 11 *", "2025-01-01T00:00Z", "2028-01-01T00:00Z",
            "2025-11-01 05:00Z 01:00-04, 2026-11-01 05:00Z 01:00-04, 2027-11-01 05:00Z 01:00-04",
            id="autumn, the day of 2026 by its date"),
        pytest.param("0 1 * * sun#1", "2026-10-01T00:00Z", "2026-12-31T00:00Z",
            "10-04 05:00Z 01:00-04, 11-01 05:00Z 01:00-04, 12-06 06:00Z 01:00-05",
            id="autumn, by its rule: the first Sunday"),
        pytest.param(crontab("*/30", 1), "2026-11-01T00:00Z", "2026-11-02T00:00Z",
            "11-01 05:00Z 01:00-04, 11-01 05:30Z 01:30-04, 11-01 06:00Z 01:00-05, 11-01 06:30Z 01:30-05",
            id="autumn, crontab, a step"),
    ],
)  # fmt: skip
def test_new_york(schedule, start, end, table):
    check(schedule, "America/New_York", start, end, table)


# America/Santiago. 2026: 5 April 03:00Z, 24:00-03 → 23:00-04; 6 September 04:00Z, 00:00-04 → 01:00-03 --


@pytest.mark.parametrize(
    ("schedule", "start", "end", "table"),
    [
        pytest.param("*/30 23 * * *", "2026-04-04T12:00Z", "2026-04-05T12:00Z",
            "04-05 02:00Z 23:00-03, 04-05 02:30Z 23:30-03, 04-05 03:00Z 23:00-04, 04-05 03:30Z 23:30-04",
            id="autumn, a step in the last hour of the day"),
        pytest.param("0 0 * * *", "2026-04-04T00:00Z", "2026-04-06T12:00Z",
            "04-04 03:00Z 00:00-03, 04-05 04:00Z 00:00-04, 04-06 04:00Z 00:00-04",
            id="autumn, midnight is an hour later, and once"),
        pytest.param("59 23 4 4 *", "2026-04-01T00:00Z", "2026-05-01T00:00Z", "04-05 02:59Z 23:59-03",
            id="autumn, a date"),
        pytest.param("0 23,0 * * *", "2026-04-04T12:00Z", "2026-04-06T00:00Z",
            "04-05 02:00Z 23:00-03, 04-05 04:00Z 00:00-04", id="autumn, before and after midnight"),
        pytest.param("0 * * * sat", "2026-04-05T00:00Z", "2026-04-06T00:00Z",
            """04-05 00:00Z 21:00-03
               04-05 01:00Z 22:00-03
               04-05 02:00Z 23:00-03
               04-05 03:00Z 23:00-04""", id="autumn, the repeated hour is still Saturday"),
        pytest.param("30 0 * * 0", "2026-09-01T00:00Z", "2026-09-15T00:00Z",
            "09-06 04:00Z 01:00-03, 09-13 03:30Z 00:30-03", id="spring, on Sundays"),
        pytest.param("0 0,1 * * *", "2026-09-05T12:00Z", "2026-09-07T12:00Z",
            "09-06 04:00Z 01:00-03, 09-07 03:00Z 00:00-03, 09-07 04:00Z 01:00-03",
            id="spring, midnight and one are one"),
        pytest.param("30 23,0 * * *", "2026-09-05T12:00Z", "2026-09-06T12:00Z",
            "09-06 03:30Z 23:30-04, 09-06 04:00Z 01:00-03", id="spring, half an hour between two"),
        pytest.param("*/30 0 * * *", "2026-09-05T00:00Z", "2026-09-07T12:00Z",
            "09-05 04:00Z 00:00-04, 09-05 04:30Z 00:30-04, 09-07 03:00Z 00:00-03, 09-07 03:30Z 00:30-03",
            id="spring, a step in the hour that is left out"),
        pytest.param("0 */1 * * *", "2026-09-06T02:30Z", "2026-09-06T05:30Z",
            "09-06 03:00Z 23:00-04, 09-06 04:00Z 01:00-03, 09-06 05:00Z 02:00-03", id="spring, hourly"),
        pytest.param(crontab(0, 0, day_of_week="sun"), "2026-09-05T00:00Z", "2026-09-14T00:00Z",
            "09-06 04:00Z 01:00-03, 09-13 03:00Z 00:00-03", id="spring, crontab, Sundays"),
        pytest.param(crontab(0, 0, day_of_month=6, month_of_year=9), "2026-01-01T00:00Z", "2027-01-01T00:00Z",
            "09-06 04:00Z 01:00-03", id="spring, crontab, the date"),
    ],
)  # fmt: skip
def test_santiago(schedule, start, end, table):
    check(schedule, "America/Santiago", start, end, table)


# Australia/Lord_Howe. 2026: 4 April 15:00Z, 02:00+11 → 01:30+10:30; 3 October 15:30Z, 02:00+10:30 → 02:30+11


@pytest.mark.parametrize(
    ("schedule", "start", "end", "table"),
    [
        pytest.param("*/15 1 * * *", "2026-04-04T12:00Z", "2026-04-05T12:00Z",
            """04-04 14:00Z 01:00+11
               04-04 14:15Z 01:15+11
               04-04 14:30Z 01:30+11
               04-04 14:45Z 01:45+11
               04-04 15:00Z 01:30+10:30
               04-04 15:15Z 01:45+10:30""", id="autumn, a step: the second half of the hour twice"),
        pytest.param("0,30 1,2 * * *", "2026-04-04T12:00Z", "2026-04-05T12:00Z",
            """04-04 14:00Z 01:00+11
               04-04 14:30Z 01:30+11
               04-04 15:30Z 02:00+10:30
               04-04 16:00Z 02:30+10:30""", id="autumn, fixed: once"),
        pytest.param("0 * * * *", "2026-04-04T13:30Z", "2026-04-04T17:00Z",
            "04-04 14:00Z 01:00+11, 04-04 15:30Z 02:00+10:30, 04-04 16:30Z 03:00+10:30",
            id="autumn, hourly: 90 minutes between two"),
        pytest.param("0 2 * * *", "2026-10-03T00:00Z", "2026-10-05T00:00Z",
            "10-03 15:30Z 02:30+11, 10-04 15:00Z 02:00+11", id="spring, fixed, in the gap"),
        pytest.param("0,15,30,45 2 * * *", "2026-10-03T00:00Z", "2026-10-04T00:00Z",
            "10-03 15:30Z 02:30+11, 10-03 15:45Z 02:45+11", id="spring, fixed, half of them in the gap"),
        pytest.param("0 * * * *", "2026-10-03T14:00Z", "2026-10-03T17:30Z",
            "10-03 14:30Z 01:00+10:30, 10-03 16:00Z 03:00+11, 10-03 17:00Z 04:00+11",
            id="spring, hourly: the hour that begins in the gap is left out"),
        pytest.param(crontab("*/10", 2), "2026-10-03T00:00Z", "2026-10-04T00:00Z",
            "10-03 15:30Z 02:30+11, 10-03 15:40Z 02:40+11, 10-03 15:50Z 02:50+11",
            id="spring, crontab, a step"),
    ],
)  # fmt: skip
def test_lord_howe(schedule, start, end, table):
    check(schedule, "Australia/Lord_Howe", start, end, table)


# Africa/Casablanca, around Ramadan. 2026: 15 February 02:00Z, 03:00+01 → 02:00+00; 22 March 02:00Z, back --


@pytest.mark.parametrize(
    ("schedule", "start", "end", "table"),
    [
        pytest.param("30 2 * * *", "2026-02-14T00:00Z", "2026-02-17T00:00Z",
            "02-14 01:30Z 02:30+01, 02-15 01:30Z 02:30+01, 02-16 02:30Z 02:30+00", id="before, fixed"),
        pytest.param("*/30 2 * * *", "2026-02-15T00:00Z", "2026-02-16T00:00Z",
            "02-15 01:00Z 02:00+01, 02-15 01:30Z 02:30+01, 02-15 02:00Z 02:00+00, 02-15 02:30Z 02:30+00",
            id="before, a step"),
        pytest.param("0 18 * * *", "2026-02-14T00:00Z", "2026-02-17T00:00Z",
            "02-14 17:00Z 18:00+01, 02-15 18:00Z 18:00+00, 02-16 18:00Z 18:00+00", id="before, evenings"),
        pytest.param("30 2 * * *", "2026-03-21T00:00Z", "2026-03-24T00:00Z",
            "03-21 02:30Z 02:30+00, 03-22 02:00Z 03:00+01, 03-23 01:30Z 02:30+01", id="after, fixed"),
        pytest.param("*/30 2 * * *", "2026-03-22T00:00Z", "2026-03-23T02:00Z",
            "03-23 01:00Z 02:00+01, 03-23 01:30Z 02:30+01", id="after, a step"),
        pytest.param(crontab(0, 18), "2026-03-21T00:00Z", "2026-03-24T00:00Z",
            "03-21 18:00Z 18:00+00, 03-22 17:00Z 18:00+01, 03-23 17:00Z 18:00+01",
            id="after, crontab, evenings"),
    ],
)  # fmt: skip
def test_casablanca(schedule, start, end, table):
    check(schedule, "Africa/Casablanca", start, end, table)


# Pacific/Apia. 2011: 30 December 10:00Z, 29 December 24:00-10 → 31 December 00:00+14 ---------------------


@pytest.mark.parametrize(
    ("schedule", "start", "end", "table"),
    [
        pytest.param("0 * * * *", "2011-12-30T07:30Z", "2011-12-30T11:30Z",
            "12-30 08:00Z 22:00-10, 12-30 09:00Z 23:00-10, 12-30 10:00Z 00:00+14, 12-30 11:00Z 01:00+14",
            id="hourly goes on"),
        pytest.param("0 0 * * *", "2011-12-28T12:00Z", "2012-01-01T00:00Z",
            "12-29 10:00Z 00:00-10, 12-30 10:00Z 00:00+14, 12-31 10:00Z 00:00+14", id="midnights"),
        pytest.param("30 12 29-31 12 *", "2011-12-01T00:00Z", "2012-01-31T00:00Z",
            "12-29 22:30Z 12:30-10, 12-30 22:30Z 12:30+14", id="of three dates there are two"),
        pytest.param("0 0 30 * *", "2011-11-15T00:00Z", "2012-02-15T00:00Z",
            "2011-11-30 10:00Z 00:00-10, 2012-01-29 10:00Z 00:00+14",
            id="a day that does not exist is no gap within a day: no run"),
        pytest.param("30 12 * * 5", "2011-12-20T00:00Z", "2012-01-10T00:00Z",
            "2011-12-23 22:30Z 12:30-10, 2012-01-05 22:30Z 12:30+14", id="there was no Friday that week"),
        pytest.param(crontab("*/30", "23,0"), "2011-12-30T08:00Z", "2011-12-30T12:00Z",
            "12-30 09:00Z 23:00-10, 12-30 09:30Z 23:30-10, 12-30 10:00Z 00:00+14, 12-30 10:30Z 00:30+14",
            id="crontab, a step"),
    ],
)  # fmt: skip
def test_apia(schedule, start, end, table):
    check(schedule, "Pacific/Apia", start, end, table)


# A gap over midnight, which no zone has had since. Toronto, 1919: 31 March 04:30Z, 23:30-05 → 00:30-04 -----


@pytest.mark.parametrize(
    ("schedule", "table"),
    [
        pytest.param("0,15,45 0,23 * * *",
            """03-31 04:00Z 23:00-05
               03-31 04:15Z 23:15-05
               03-31 04:30Z 00:30-04
               03-31 04:45Z 00:45-04""", id="of two days what is left out runs together"),
        pytest.param("45 23 * * *", "03-31 04:30Z 00:30-04", id="of the day before"),
        pytest.param("15,30 0 * * *", "03-31 04:30Z 00:30-04", id="of the day after"),
        pytest.param("*/15 0,23 * * *",
            "03-31 04:00Z 23:00-05, 03-31 04:15Z 23:15-05, 03-31 04:30Z 00:30-04, 03-31 04:45Z 00:45-04",
            id="a step"),
    ],
)  # fmt: skip
def test_toronto_in_1919(schedule, table):
    check(schedule, "America/Toronto", "1919-03-31T03:50Z", "1919-04-01T03:00Z", table)


# Zones whose clocks do not change --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "zone", "start", "end", "table"),
    [
        pytest.param("@daily", "Asia/Kolkata", "2026-03-28T12:00Z", "2026-03-30T12:00Z",
            "03-28 18:30Z 00:00+05:30, 03-29 18:30Z 00:00+05:30", id="Kolkata, midnight"),
        pytest.param("0 */6 * * *", "Asia/Kolkata", "2026-10-24T18:00Z", "2026-10-25T18:00Z",
            """10-24 18:30Z 00:00+05:30
               10-25 00:30Z 06:00+05:30
               10-25 06:30Z 12:00+05:30
               10-25 12:30Z 18:00+05:30""", id="Kolkata, a step of hours at half past in UTC"),
        pytest.param("45 23 L * *", "Asia/Kolkata", "2028-01-15T00:00Z", "2028-04-15T00:00Z",
            "01-31 18:15Z 23:45+05:30, 02-29 18:15Z 23:45+05:30, 03-31 18:15Z 23:45+05:30",
            id="Kolkata, the last of the month"),
        pytest.param(crontab(0, 1, day_of_week="mon"), "Asia/Kolkata", "2026-10-01T00:00Z",
            "2026-10-15T00:00Z", "10-04 19:30Z 01:00+05:30, 10-11 19:30Z 01:00+05:30",
            id="Kolkata, Monday there is Sunday in UTC"),
        pytest.param("0 0 29 2 *", "UTC", "2023-01-01T00:00Z", "2033-01-01T00:00Z",
            "2024-02-29 00:00Z 00:00+00, 2028-02-29 00:00Z 00:00+00, 2032-02-29 00:00Z 00:00+00",
            id="UTC, leap days"),
        pytest.param("*/25 1 * * *", "UTC", "2026-03-29T00:30Z", "2026-03-30T01:10Z",
            """03-29 01:00Z 01:00+00
               03-29 01:25Z 01:25+00
               03-29 01:50Z 01:50+00
               03-30 01:00Z 01:00+00""", id="UTC, a step begins anew each hour"),
        pytest.param("*/40 59 23 31 12 *", "UTC", "2026-12-01T00:00Z", "2027-02-01T00:00Z",
            "12-31 23:59:00Z 23:59:00+00, 12-31 23:59:40Z 23:59:40+00", id="UTC, the end of the year"),
        pytest.param(cron("30 2 * * *", timezone="Europe/Berlin"), "Europe/Berlin", "2027-03-27T12:00Z",
            "2027-03-29T12:00Z", "03-28 01:00Z 03:00+02, 03-29 00:30Z 02:30+02",
            id="a zone of its own"),
    ],
)  # fmt: skip
def test_zones_without_changes(schedule, zone, start, end, table):
    check(schedule, zone, start, end, table)


def test_a_schedule_with_a_zone_of_its_own_has_it_whatever_the_apps_is():
    schedule = cron("30 2 * * *", timezone="Europe/Berlin")
    expected = [from_iso("2026-03-29T01:00Z"), from_iso("2026-03-30T00:30Z")]
    for zone in ("UTC", "America/Santiago", "Asia/Kolkata"):
        times = times_of(schedule, zone)
        check_all_ways(times, from_iso("2026-03-28T12:00Z"), from_iso("2026-03-30T12:00Z"), expected)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Pacific/Apia"])
def test_an_interval_knows_no_zone(zone):
    start, end = from_iso("2011-12-29T00:00Z"), from_iso("2012-01-02T00:00Z")
    expected = [time for time in range(start, end, HOUR) if time % (7 * HOUR) == 0]
    assert 13 <= len(expected)
    check_all_ways(times_of("7h", zone), start, end, expected)

"""From what people write to fire times."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections import Counter
from datetime import date, datetime, time, timedelta, timezone
from itertools import pairwise
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, schedules
from celery.beat import ScheduleEntry
from celery.utils.time import LocalTimezone
from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anarchon_celery.decorators import Declaration
from anarchon_celery.errors import ScheduleError
from anarchon_celery.schedules import as_schedule, cron, every, fire_times, once
from anarchon_celery.slots import DAY, HOUR, Interval, Once, from_iso, iso
from anarchon_celery.wallclock import LAST, Cron

BERLIN = ZoneInfo("Europe/Berlin")
UTC = timezone.utc
dateutil_tz = pytest.importorskip("dateutil.tz")
NOON = from_iso("2026-10-10T12:00:30Z")
NUMBER: Any = 230  # where no number is right
app = Celery("test", set_as_current=False, config_source={"timezone": "Europe/Berlin"})


def times_of(value, zone=UTC, job=""):
    return fire_times(as_schedule(value), timezone=zone, job=job)


def fires(value, start: str, end: str, zone=UTC) -> list[str]:
    """The fire times from start (included) to end (excluded), without seconds."""
    return [iso(time)[:16] for time in times_of(value, zone).between(from_iso(start) - 1, from_iso(end) - 1)]


# What an entry may hold


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (10, Interval(10_000)),
        (0.25, Interval(250)),
        (timedelta(minutes=5), Interval(300_000)),
        ("1h30m", Interval(5_400_000)),
        (every("10s"), Interval(10_000)),
        (schedules.schedule(timedelta(seconds=30)), Interval(30_000)),
        (schedules.schedule(2.5, relative=True), Interval(2_500)),
    ],
)
def test_intervals(value, expected):
    assert times_of(value) == expected


def test_a_schedule_is_left_as_it_is():
    for schedule in (schedules.crontab(), schedules.schedule(1), every(1), cron("@daily"), cron("nonsense")):
        assert as_schedule(schedule) is schedule


@pytest.mark.parametrize("value", ["10x", "nonsense", "", "*", -1, True, None, [], {"every": 10}, b"10s"])
def test_what_is_no_schedule(value):
    with pytest.raises(ScheduleError) as raised:
        as_schedule(value)
    message = str(raised.value)
    assert message.startswith(f"{value!r} is no schedule: give seconds")
    assert "'*/5 * * * *'" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "value", [0, 0.05, "99ms", timedelta(milliseconds=99), every("1ms"), schedules.schedule(0)]
)
def test_an_interval_below_100_ms_is_refused(value):
    with pytest.raises(ScheduleError, match="give 100 ms or more"):
        times_of(value)


def test_wrong_schedules_are_reported_when_asked_and_not_when_made():
    with pytest.raises(ScheduleError, match="cron 'nonsense': it has 1 field"):
        fire_times(cron("nonsense"), timezone=UTC)
    with pytest.raises(ScheduleError, match="'10x' is no duration"):
        fire_times(every("10x"), timezone=UTC)
    with pytest.raises(ScheduleError, match="no time zone 'Europe/Berln': did you mean 'Europe/Berlin'"):
        fire_times(cron("@daily", timezone="Europe/Berln"), timezone=UTC)
    for text in (5, None, []):
        with pytest.raises(ScheduleError, match="it is not a text"):
            fire_times(cron(text), timezone=UTC)
    assert repr(cron("nonsense")) and repr(every("10x"))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("10 s", "10s"), ("10  s", "10s"), ("5 MIN", "5m"), ("every 10 seconds", "10s"), ("2 hrs", "2h"),
        ("1 hour 30 minutes", "1h30m"), ("1 day, 2 hours", "1d2h"), ("250 msec", "250ms"), ("10S", "10s"),
    ],
)  # fmt: skip
def test_a_duration_that_is_nearly_one_gets_a_hint(text, meant):
    with pytest.raises(ScheduleError) as raised:
        as_schedule(text)
    assert str(raised.value) == f"{text!r} is no schedule: did you mean {meant!r}?"
    with pytest.raises(ScheduleError) as raised:
        fire_times(every(text), timezone=UTC)
    assert str(raised.value) == f"{text!r} is no duration: did you mean {meant!r}?"


@pytest.mark.parametrize("text", ["1 month", "s 10", "10 fortnights"])
def test_but_not_one_that_means_something_else(text):
    with pytest.raises(ScheduleError, match=f"cron {text!r}: it has 2 fields: give 5"):
        as_schedule(text)


@pytest.mark.parametrize(
    ("zone", "right"),
    [
        ("Europe/Berln", "there is no time zone 'Europe/Berln': did you mean 'Europe/Berlin'?"),
        ("europe/berlin", "there is no time zone 'europe/berlin': did you mean 'Europe/Berlin'?"),
        ("Mars/Base", "there is no time zone 'Mars/Base': give a name such as"),
        ("", "there is no time zone '': give a name such as"),
        ("Europe", "there is no time zone 'Europe': give a name such as"),
        ("../../etc/passwd", "there is no time zone '../../etc/passwd': give a name such as"),
        (5, "5 is no time zone: give a name such as 'UTC' or 'Europe/Berlin', or a tzinfo"),
    ],
)
def test_zones_that_there_are_not(zone, right):
    for schedule in (
        cron("@daily", timezone=zone),
        every("1d", at="02:30", timezone=zone),
        once("2026-12-01 09:00", timezone=zone),
    ):
        with pytest.raises(ScheduleError) as raised:
            fire_times(schedule, timezone=UTC)
        assert str(raised.value).startswith(right)
        assert "timezone=" in repr(schedule)


# Daily at local times


@pytest.mark.parametrize(
    ("schedule", "key"),
    [
        (every("1d", at="02:30"), "cron 0 30 2 * * * - and once Europe/Berlin"),
        (every(86400, at=["02:30"]), "cron 0 30 2 * * * - and once Europe/Berlin"),
        (every("24h", at=time(2, 30)), "cron 0 30 2 * * * - and once Europe/Berlin"),
        (every("1d", at="2:30:15", timezone="Asia/Tokyo"), "cron 15 30 2 * * * - and once Asia/Tokyo"),
        (every("1d", at=("14:30", time(2, 30))), "cron 0 30 2,14 * * * - and once Europe/Berlin"),
        (every("1d", at=["14:00", "02:30"]), "daily 9000000,50400000 Europe/Berlin"),
    ],
)
def test_every_day_at(schedule, key):
    times = fire_times(schedule, timezone=BERLIN)
    assert times.key == key
    found = list(times.between(from_iso("2026-10-24T12:00Z"), from_iso("2026-10-25T12:00Z")))
    assert sum("2026-10-25T00:30" in iso(time) for time in found) == ("Tokyo" not in key)  # once, in autumn


@pytest.mark.parametrize(
    ("schedule", "line"),
    [
        (every("7d", at="02:30"),
         "every('7d', at='02:30'): at= goes with every('1d') only; "
         "for Mondays at 02:30 give cron('30 2 * * mon')"),
        (every("12h", at="02:30"), "every('12h', at='02:30'): at= goes with every('1d') only; for"),
        (every("10s", timezone="Europe/Berlin"),
         "every('10s', timezone='Europe/Berlin'): without at= an interval counts from the epoch"),
        (every("1d", at=[]), "every('1d', at=[]): at= is empty; give 'HH:MM', or a list of them"),
        *[(every("1d", at=at), f"at={at!r} is no time of day: give 'HH:MM', 'HH:MM:SS', or a datetime.time")
          for at in ("24:00", "02:60", "2", "02:30:60", "02:30 ", "٢:30", NUMBER, time(2, tzinfo=UTC),
                     time(2, 30, 0, 5))],
        (every("1d", at=["02:30", "25:00"]), "at='25:00' is no time of day"),
        (every("10x", at="02:30"), "'10x' is no duration"),
    ],
)  # fmt: skip
def test_every_day_at_what_cannot_be_meant(schedule, line):
    with pytest.raises(ScheduleError) as raised:
        fire_times(schedule, timezone=UTC)
    assert str(raised.value).startswith(line)


# Once


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (once("2026-12-01T09:00:00+01:00"), "2026-12-01T08:00:00.000Z"),
        (once("2026-12-01T09:00Z", timezone="Asia/Tokyo"), "2026-12-01T09:00:00.000Z"),
        (once("2026-12-01 09:00"), "2026-12-01T08:00:00.000Z"),  # the app's zone
        (once("2026-12-01T09:00:00.123456"), "2026-12-01T08:00:00.123Z"),
        (once("2026-12-01 09:00", timezone="Asia/Tokyo"), "2026-12-01T00:00:00.000Z"),
        (once("2027-03-28 02:30"), "2027-03-28T01:00:00.000Z"),  # left out in spring
        (once("2026-10-25 02:30"), "2026-10-25T00:30:00.000Z"),  # twice in autumn
        (once(datetime(2026, 12, 1, 9)), "2026-12-01T08:00:00.000Z"),
        (once(datetime(2026, 12, 1, 9, 0, 0, 1999, tzinfo=UTC)), "2026-12-01T09:00:00.001Z"),
        (once(datetime(2026, 12, 1, 9), timezone=ZoneInfo("Asia/Tokyo")), "2026-12-01T00:00:00.000Z"),
    ],
)
def test_once(schedule, expected):
    times = fire_times(schedule, timezone=BERLIN)
    assert times == Once(from_iso(expected))
    assert times.key == f"once {expected}"


@pytest.mark.parametrize(
    ("right", "values"),
    [
        ("is no moment: give '2026-12-01T09:00:00+01:00', '2026-12-01 09:00' with timezone=, or a datetime",
         ["tomorrow", "", "2026-12-01", "2026-13-01 09:00", "2026-12-01 25:00", "2026-02-30 09:00",
          "2026-12-01 09:00+25:00", "2026-12-01 09:00 Europe/Berlin", 5, None, date(2026, 12, 1)]),
        ("is out of the calendar: give a year from 1900 to 9000",
         [datetime.min, datetime.max, "0001-01-01T00:00Z", datetime.max.replace(tzinfo=UTC)]),
    ],
)  # fmt: skip
def test_once_at_what_is_no_moment(right, values):
    for when in values:
        with pytest.raises(ScheduleError) as raised:
            fire_times(once(when), timezone=BERLIN)
        assert str(raised.value) == f"{when!r} {right}"
        assert repr(once(when)).startswith("once(")


def test_once_under_celerys_own_beat_is_due_once():
    clock = [moment("2026-12-01 07:59:00")]
    entry = ScheduleEntry(
        name="gift", task="gift", app=app, last_run_at=clock[0],
        schedule=once("2026-12-01 09:00", nowfun=lambda: clock[0]),
    )  # fmt: skip
    assert entry.is_due() == (False, 60)
    clock[0] = moment("2026-12-01 08:00:01")
    assert entry.is_due() == (True, 24 * 3600)
    clock[0] = moment("2027-12-01 08:00:01")
    assert next(entry).is_due() == (False, 24 * 3600)


# Cron texts


def fields(text: str, job: str = "") -> dict:
    found = times_of(text, job=job)
    assert isinstance(found, Cron)
    names = ("seconds", "minutes", "hours", "days_of_month", "months", "days_of_week")
    defaults = {"seconds": (0,), "minutes": (0,), "hours": (0,), **dict.fromkeys(names[3:], None)}
    whole = {"days_of_month": range(1, 32), "months": range(1, 13), "days_of_week": range(7)}
    got = {
        name: None if name in whole and value == tuple(whole[name]) else value
        for name in names
        for value in [getattr(found, name)]
    }
    if found.nth_days_of_week:
        got["nth"] = found.nth_days_of_week
        defaults["nth"] = None
    return {name: value for name, value in got.items() if value != defaults[name]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 * * *", {}),
        ("@daily", {}),
        ("@Midnight", {}),
        (" @hourly ", {"hours": tuple(range(24))}),
        ("@weekly", {"days_of_week": (0,)}),
        ("@monthly", {"days_of_month": (1,)}),
        ("@yearly", {"days_of_month": (1,), "months": (1,)}),
        ("@annually", {"days_of_month": (1,), "months": (1,)}),
        ("0  6\t* * *", {"hours": (6,)}),
        ("15 30 6 * * *", {"seconds": (15,), "minutes": (30,), "hours": (6,)}),
        ("*/20 0 0 * * *", {"seconds": (0, 20, 40)}),
        ("5/15 0 * * *", {"minutes": (5, 20, 35, 50)}),
        ("59/15 0 * * *", {"minutes": (59,)}),
        ("0,10-12,50-59/4 0 * * *", {"minutes": (0, 10, 11, 12, 50, 54, 58)}),
        ("*/99 0 * * *", {}),
        ("0 22-2 * * *", {"hours": (0, 1, 2, 22, 23)}),
        ("0 22-4/3 * * *", {"hours": (1, 4, 22)}),
        ("0 9-9 * * *", {"hours": (9,)}),
        ("0 0 * * 7", {"days_of_week": (0,)}),
        ("0 0 * * 0,7", {"days_of_week": (0,)}),
        ("0 0 * * 0-7", {}),
        ("0 0 * * 7-2", {"days_of_week": (0, 1, 2)}),
        ("0 0 * * 5-7", {"days_of_week": (0, 5, 6)}),
        ("0 0 * * 1-7/2", {"days_of_week": (0, 1, 3, 5)}),
        ("0 0 * * 7-7", {"days_of_week": (0,)}),
        ("0 0 * * Mon-FRI", {"days_of_week": (1, 2, 3, 4, 5)}),
        ("0 0 * * fri-mon", {"days_of_week": (0, 1, 5, 6)}),
        ("0 0 * * sat-mon/2", {"days_of_week": (1, 6)}),
        ("0 0 * jan,DEC,3-5 *", {"months": (1, 3, 4, 5, 12)}),
        ("0 0 * nov-feb *", {"months": (1, 2, 11, 12)}),
        ("0 0 L * *", {"days_of_month": (LAST,)}),
        ("0 0 l,15 * *", {"days_of_month": (LAST, 15)}),
        ("0 0 28-L * *", {"days_of_month": (28, 29, 30, 31)}),
        ("0 0 30-2 * *", {"days_of_month": (1, 2, 30, 31)}),
        ("0 0 ? * 1", {"days_of_week": (1,)}),
        ("0 0 1 * ?", {"days_of_month": (1,)}),
        ("0 0 * * mon#1", {"days_of_week": (), "nth": ((1, 1),)}),
        ("0 0 * * 7#2,5#5", {"days_of_week": (), "nth": ((0, 2), (5, 5))}),
        ("0 0 * * thu-fri#1", {"days_of_week": (), "nth": ((4, 1), (5, 1))}),
        ("0 0 * * L5", {"days_of_week": (), "nth": ((5, LAST),)}),
        ("0 0 * * 5L", {"days_of_week": (), "nth": ((5, LAST),)}),
        ("0 0 * * l7,mon#1", {"days_of_week": (), "nth": ((0, LAST), (1, 1))}),
    ],
)
def test_cron_texts(text, expected):
    assert fields(text) == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("60 * * * *", "minute '60'"),
        ("* 24 * * *", "hour '24'"),
        ("* * 0 * *", "day of month '0'"),
        ("* * 32 * *", "day of month '32'"),
        ("* * * 13 *", "month '13'"),
        ("* * * 0 *", "month '0'"),
        ("* * * * 8", "day of week '8'"),
        ("60 * * * * *", "second '60'"),
        ("* * 1W * *", "day of month '1w': give 1 to 31, as in 1, 1-7, */10 or H, and L for the last"),
        ("* * LW * *", "day of month 'lw'"),
        ("* * L-3 * *", "day of month 'l-3'"),
        ("* * L/2 * *", "day of month 'l/2'"),
        ("* * * * L", "day of week 'l'"),
        ("* * * * mon#6", "day of week 'mon#6'"),
        ("* * * * mon#1,fri", "day of week 'mon#1,fri' mixes"),
        ("* * * * L8", "day of week 'l8'"),
        ("R * * * *", "minute 'r'"),
        ("H/0 * * * *", "minute 'h/0'"),
        ("H() * * * *", "minute 'h()'"),
        ("H(5) * * * *", "minute 'h(5)'"),
        ("H(0-60) * * * *", "'60' in minute 'h(0-60)'"),
        ("H,99 * * * *", "'99' in minute 'h,99'"),
        ("H-5 * * * *", "'h' in minute 'h-5'"),
        ("1H * * * *", "minute '1h'"),
        ("HH * * * *", "minute 'hh'"),
        ("0 0 * march *", "month 'march': give 1 to 12 or jan to dec"),
        ("* * 1 31 2", "month '31': give 1 to 12 or jan to dec"),
        ("0 0 30 2 *", "day of month 30 does not exist in month 2: give 29 at most"),
        ("0 0 31 2,4,6 *", "day of month 31 does not exist in months 2, 4, 6: give 30 at most"),
        ("0 0 31 apr ?", "day of month 31 does not exist in month 4: give 30 at most"),
        ("@H", "give one of @hourly"),
        ("? * * * *", "minute '?'"),
        ("* * ?,1 * *", "'?' in day of month '?,1'"),
        ("*/0 * * * *", "minute '*/0'"),
        ("1/0 * * * *", "minute '1/0'"),
        ("1,,2 * * * *", "minute '1,,2'"),
        ("*-5 * * * *", "minute '*-5'"),
        ("-5 * * * *", "minute '-5'"),
        ("1-2-3 * * * *", "minute '1-2-3'"),
        ("*/5/5 * * * *", "minute '*/5/5'"),
        ("1.5 * * * *", "minute '1.5'"),
        ("0-99999999 * * * *", "minute '0-99999999'"),
        ("*/" + "9" * 5000 + " * * * *", "minute"),
        ("٣ * * * *", "minute '٣'"),
        ("* * * * funday", "day of week 'funday'"),
        ("* * * mon *", "month 'mon'"),
        ("* * * * jan", "day of week 'jan'"),
        ("0 0 31 4 *", "day of month 31"),
        ("0 0 30,31 feb *", "day of month 30"),
        ("* * * *", "it has 4 fields: give 5"),
        ("* * * * * * 2030", "it has 7 fields"),
        ("@reboot", "give one of @hourly, @daily"),
        ("@daily @daily", "give one of @hourly, @daily"),
    ],
)
def test_cron_texts_that_are_refused_with_the_field(text, field):
    with pytest.raises(ScheduleError) as raised:
        as_schedule(text)
    message = str(raised.value)
    assert message.startswith(f"cron {text!r}: "[:60])
    assert field in message
    assert "\n" not in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 13 * 5", ["06", "13", "20", "27"]),  # POSIX: both restricted, either will do
        ("0 0 13 * *", ["13"]),
        ("0 0 * * 5", ["06", "13", "20", "27"]),
        ("0 0 ? * 5", ["06", "13", "20", "27"]),
        ("0 0 */1 * 5", ["06", "13", "20", "27"]),
        ("0 0 13 * */1", ["13"]),
        ("0 0 */10 * 5", ["01", "06", "11", "13", "20", "21", "27"]),
        ("0 0 L * mon#1", ["02", "30"]),
        ("0 0 31 11 5", ["06", "13", "20", "27"]),
    ],
)
def test_either_day_where_both_are_restricted(text, expected):
    assert [time[8:10] for time in fires(text, "2026-11-01T00:00Z", "2026-12-01T00:00Z")] == expected


@pytest.mark.parametrize(
    ("text", "recurs"),
    [
        ("30 2 * * *", False),
        ("0,30 1,2,3 * * *", False),
        ("0-29 2-3 * * *", False),
        ("*/10 30 2 * * *", False),
        ("0 2 */2 * *", False),
        ("* 2 * * *", True),
        ("30 * * * *", True),
        ("30 */2 * * *", True),
        ("5/15 2 * * *", True),
        ("0 1-5/2 * * *", True),
        ("0 0-23 * * *", True),
        ("0-59 2 * * *", True),
        ("H 2 * * *", False),
        ("H(0-29) H(0-5) * * *", False),
        ("H/15 2 * * *", True),
        ("H H/6 * * *", True),
        ("H/10 30 2 * * *", False),
        ("@hourly", True),
        ("@daily", False),
    ],
)
def test_a_wildcard_or_step_in_hour_or_minute_runs_at_every_occurrence(text, recurs):
    assert times_of(text).every_occurrence is recurs


@pytest.mark.parametrize(
    ("text", "zone", "start", "end", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", "2026-03-29T12:00Z", ["2026-03-29T01:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", "2026-10-25T12:00Z", ["2026-10-25T00:30"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:45Z", "2026-10-25T02:45Z",
         [f"2026-10-25T0{h}:{m}0" for h in range(3) for m in "03"]),
        ("0 * * * *", "Europe/Berlin", "2026-10-24T22:30Z", "2026-10-25T04:30Z",
         ["2026-10-24T23:00", *(f"2026-10-25T0{h}:00" for h in range(5))]),
        ("0 * * * *", "Europe/Berlin", "2026-03-28T22:30Z", "2026-03-29T04:30Z",
         ["2026-03-28T23:00", *(f"2026-03-29T0{h}:00" for h in range(5))]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00Z", "2026-09-06T12:00Z", ["2026-09-06T04:00"]),
        ("30 23 * * *", "America/Santiago", "2026-04-04T12:00Z", "2026-04-05T12:00Z", ["2026-04-05T02:30"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z", "2026-10-04T00:00Z", ["2026-10-03T15:30"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00Z", "2026-04-05T00:00Z", ["2026-04-04T14:45"]),
        ("0 */2 * * *", "Australia/Lord_Howe", "2026-04-04T12:00Z", "2026-04-04T18:00Z",
         ["2026-04-04T13:00", "2026-04-04T15:30", "2026-04-04T17:30"]),
        ("0 9 * * 1-5", "America/New_York", "2026-03-06T00:00Z", "2026-03-11T00:00Z",
         ["2026-03-06T14:00", "2026-03-09T13:00", "2026-03-10T13:00"]),
        ("0 12 * * 7", "UTC", "2026-10-10T00:00Z", "2026-10-20T00:00Z",
         ["2026-10-11T12:00", "2026-10-18T12:00"]),
        ("0 0 13 * 5", "UTC", "2026-11-01T00:00Z", "2026-11-22T00:00Z",
         ["2026-11-06T00:00", "2026-11-13T00:00", "2026-11-20T00:00"]),
        ("0 22-2 * * *", "UTC", "2026-10-10T12:00Z", "2026-10-11T12:00Z",
         ["2026-10-10T22:00", "2026-10-10T23:00", *(f"2026-10-11T0{h}:00" for h in range(3))]),
        ("0 0 L * *", "UTC", "2026-02-01T00:00Z", "2026-05-01T00:00Z",
         ["2026-02-28T00:00", "2026-03-31T00:00", "2026-04-30T00:00"]),
    ],
)  # fmt: skip
def test_the_table_of_the_peers(text, zone, start, end, expected):
    assert fires(text, start, end, ZoneInfo(zone)) == expected


def term(low: int, high: int):
    number = st.integers(low, high)
    pair = st.tuples(number, number).filter(lambda pair: pair[0] < pair[1])
    return st.one_of(
        st.just("*"),
        number.map(str),
        st.integers(2, 9).map("*/{}".format),
        pair.map(lambda pair: "{}-{}".format(*pair)),
        st.tuples(pair, st.integers(1, 9)).map(lambda it: "{}-{}/{}".format(*it[0], it[1])),
        st.tuples(number, st.integers(1, 9)).map(lambda pair: "{}/{}".format(*pair)),
        st.lists(number, min_size=2, max_size=4).map(lambda numbers: ",".join(map(str, numbers))),
    )


# H: hashed by the name of the job


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # pinned: another value would move the jobs of everybody
        ("H H * * *", {"minutes": (52,), "hours": (5,)}),
        ("h(0-29) h(0-5) * * *", {"minutes": (26,), "hours": (1,)}),
        ("H/15 0 * * *", {"minutes": (13, 28, 43, 58)}),
        ("H(0-29)/10 0 * * *", {"minutes": (8, 18, 28)}),
        ("H(50-59)/30 0 * * *", {"minutes": (58,)}),
        ("H,30 0 * * *", {"minutes": (30, 52)}),
        ("0 H(22-4) * * *", {"hours": (23,)}),
        ("H 0 0 * * *", {"seconds": (34,)}),
        ("0 0 H * *", {"days_of_month": (16,)}),
        ("0 0 H/7 * *", {"days_of_month": (4, 11, 18, 25)}),
        ("0 0 H,L * *", {"days_of_month": (LAST, 16)}),
        ("0 0 1 H *", {"days_of_month": (1,), "months": (12,)}),
        ("0 0 * * H", {"days_of_week": (6,)}),
        ("0 0 * * H(mon-fri)", {"days_of_week": (5,)}),
    ],
)
def test_what_the_name_makes_of_h(text, expected):
    assert fields(text, "report") == expected


def test_every_value_of_a_field_comes_up_and_no_other():
    names = [f"job-{n}" for n in range(5000)]
    found = [fields("H H H H H H", name) for name in names]
    for name, values in {
        "seconds": range(60), "minutes": range(60), "hours": range(24),
        "days_of_month": range(1, 29), "months": range(1, 13), "days_of_week": range(7),
    }.items():  # fmt: skip
        default = (0,) if name in ("seconds", "minutes", "hours") else None
        counts = Counter(it.get(name, default)[0] for it in found)
        assert sorted(counts) == list(values)
        assert max(counts.values()) < 2 * len(names) / len(values)


def test_a_hundred_nightly_jobs_spread():
    """And the minute does not decide the hour, as croniter's does: there they share 60 of the 360 times."""

    def night(names):
        return Counter(times_of("H H(0-5) * * *", job=name).key for name in names)

    assert len(night(f"nightly-{n}" for n in range(100))) > 80
    assert max(night(f"nightly-{n}" for n in range(100)).values()) <= 4
    assert len(night(f"nightly-{n}" for n in range(5000))) == 360


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_h_is_the_same_in_every_process(seed):
    code = (
        "from tests.test_schedules import times_of;"
        "print([times_of('H H H H H H', job=f'job-{n}').key for n in range(20)])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )  # fmt: skip
    assert run.stdout.strip() == str([times_of("H H H H H H", job=f"job-{n}").key for n in range(20)])


@pytest.mark.parametrize("text", ["@daily", "@Midnight", "@hourly", "0 0 * mar thu", "* * * * *"])
def test_without_h_the_name_makes_no_difference_and_the_result_is_shared(text):
    assert times_of(text, job="a") is times_of(text, job="b")


ZONES = ["Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Sydney"]
CHANGES = [
    "2026-03-29T01:00Z", "2026-10-25T01:00Z", "2026-03-08T07:00Z", "2026-11-01T06:00Z",
    "2026-09-06T04:00Z", "2026-04-05T03:00Z", "2026-10-03T16:00Z", "2026-04-04T16:00Z",
]  # fmt: skip
texts = st.tuples(term(0, 59), term(0, 23), term(1, 28), term(1, 12), term(0, 6)).map(" ".join)
texts_of_every_day = st.tuples(
    term(0, 59), term(0, 23), st.just("*"), term(1, 12), st.just("*")
).map(" ".join)  # fmt: skip


@settings(deadline=None)
@given(texts, st.integers(from_iso("2000-01-01T00:00Z"), from_iso("2050-01-01T00:00Z")))
def test_as_cronsim_in_utc(text, start):
    """But cronsim lets '*/2' leave the choice to the other day field, and '1/2' reach Sunday as 7."""
    day_of_month, day_of_week = text.split()[2], text.split()[4]
    assume("*/" not in day_of_month or day_of_week == "*")
    assume("*/" not in day_of_week or day_of_month == "*")
    assume("-" in day_of_week or "*" in day_of_week or "/" not in day_of_week)
    other = CronSim(text, datetime.fromtimestamp(start // 1000, UTC))
    times, time = times_of(text), start // 1000 * 1000
    for _ in range(3):
        time = times.next(time)
        assert iso(time)[:19] == next(other).isoformat()[:19]


@settings(deadline=None)
@given(texts_of_every_day, st.sampled_from(ZONES), st.sampled_from(CHANGES))
def test_as_cronsim_where_clocks_change(text, zone, change):
    """But cronsim takes steps that are not written with a star, and whole ranges, for fixed times."""
    minute, hour, *_ = text.split()
    assume(times_of(text).every_occurrence is (minute.startswith("*") or hour.startswith("*")))
    start = from_iso(change) - 26 * HOUR
    other = CronSim(text, datetime.fromtimestamp(start // 1000, ZoneInfo(zone)))
    found = list(times_of(text, ZoneInfo(zone)).between(start, start + 3 * DAY))[:50]
    assert [iso(t)[:19] for t in found] == [next(other).astimezone(UTC).isoformat()[:19] for _ in found]


def test_10_000_cron_texts_are_read_and_planned_within_a_second():
    started = process_time()
    for i in range(10_000):
        times_of(f"{i % 50} {i % 2 + 2} * * mon-fri", BERLIN).next(NOON)
    assert process_time() - started < 1


# Zones


@pytest.mark.parametrize(
    "zone",
    [
        BERLIN,
        "Europe/Berlin",
        dateutil_tz.gettz("Europe/Berlin"),
        dateutil_tz.tzfile("/usr/share/zoneinfo/Europe/Berlin"),
        None,
    ],
)
def test_a_zone_has_one_name_whoever_made_it(zone):
    times = cron("30 2 * * *", timezone=zone).fire_times(BERLIN)
    assert times.key == "cron 0 30 2 * * * - and once Europe/Berlin"
    assert iso(times.next(from_iso("2026-10-25T00:00Z"))) == "2026-10-25T00:30:00.000Z"
    assert iso(times.next(from_iso("2036-10-26T00:30Z"))) == "2036-10-27T01:30:00.000Z"


def test_zones_of_pytz():
    pytz = pytest.importorskip("pytz")
    assert times_of("@daily", pytz.timezone("Europe/Berlin")) == times_of("@daily", BERLIN)
    assert times_of("@daily", pytz.utc).key == times_of("@daily").key
    assert times_of("@daily", pytz.FixedOffset(90)).key.endswith("UTC+01:30")


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        (timezone.utc, "UTC"),
        (ZoneInfo("UTC"), "UTC"),
        (dateutil_tz.UTC, "UTC"),
        (timezone(timedelta(hours=5, minutes=30)), "UTC+05:30"),
        (timezone(timedelta(hours=-3), "Brasilia"), "UTC-03:00"),
        (dateutil_tz.tzoffset("X", 3600), "UTC+01:00"),
        (LocalTimezone(), repr(LocalTimezone())),
    ],
)
def test_zones_without_a_place(zone, name):
    times = times_of("0 6 * * *", zone)
    assert times.key.endswith(f" once {name}")
    time = datetime.fromtimestamp((times.next(NOON) or 0) / 1000, zone)
    assert (time.hour, time.minute) == (6, 0)


# Celery's crontab


class OwnZone(schedules.crontab):
    """As django-celery-beat's TzAwareCrontab: it brings a zone along."""

    def __init__(self, *args, tz=None, **kwargs):
        super().__init__(*args, **kwargs)
        if tz is not None:
            self.tz = tz


class FixedZone(schedules.crontab):
    tz = ZoneInfo("America/New_York")


def crontab_fires(schedule, start="2026-11-01T00:00Z", end="2026-12-01T00:00Z", zone=UTC):
    times = fire_times(schedule, timezone=zone)
    return [iso(time)[:16] for time in times.between(from_iso(start) - 1, from_iso(end) - 1)]


def test_crontab_means_both_days():
    assert crontab_fires(schedules.crontab(0, 0, day_of_month="13", day_of_week="fri")) == [
        "2026-11-13T00:00"
    ]


@pytest.mark.parametrize(
    ("schedule", "recurs"),
    [
        (schedules.crontab(), True),
        (schedules.crontab(minute=30), True),
        (schedules.crontab(minute=30, hour=2), False),
        (schedules.crontab(minute="*/10", hour="2"), True),
        (schedules.crontab(minute="0", hour="0-8/2"), True),
        (schedules.crontab(minute={0, 30}, hour=[1, 2]), False),
        (schedules.crontab(minute=0, hour=range(24)), True),
    ],
)
def test_crontab_recurs_or_is_fixed(schedule, recurs):
    assert fire_times(schedule, timezone=UTC).every_occurrence is recurs


def test_crontab_where_clocks_change():
    night = schedules.crontab(30, 2, app=app)
    assert crontab_fires(night, "2026-03-28T12:00Z", "2026-03-29T12:00Z", BERLIN) == ["2026-03-29T01:00"]
    assert crontab_fires(night, "2026-10-24T12:00Z", "2026-10-25T12:00Z", BERLIN) == ["2026-10-25T00:30"]
    quarters = schedules.crontab("*/15", app=app)
    assert len(crontab_fires(quarters, "2026-10-25T00:00Z", "2026-10-25T02:00Z", BERLIN)) == 8


def test_crontab_has_the_zone_of_the_app_even_where_it_was_asked_before():
    schedule = schedules.crontab(0, 6, app=app)
    assert schedule.tz.key == "Europe/Berlin"  # and keeps it
    assert fire_times(schedule, timezone=UTC).key == "cron 0 0 6 * * * - and once UTC"


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        (OwnZone(0, 6, tz=ZoneInfo("Asia/Tokyo")), "Asia/Tokyo"),
        (OwnZone(0, 6, tz=dateutil_tz.gettz("Asia/Tokyo")), "Asia/Tokyo"),
        (OwnZone(0, 6, app=app), "UTC"),
        (FixedZone(0, 6), "America/New_York"),
    ],
)
def test_a_crontab_subclass_keeps_its_own_zone(schedule, name):
    assert fire_times(schedule, timezone=UTC).key == f"cron 0 0 6 * * * - and once {name}"


@pytest.mark.parametrize("enable_utc", [True, False])
@pytest.mark.parametrize("made", ["zoneinfo", "pytz", "dateutil", "name"])
def test_the_zone_of_a_crontab_and_of_the_app_whoever_made_it(enable_utc, made):
    """Where enable_utc is off, too: both only say how Celery writes instants."""
    new_york, berlin = (
        {
            "zoneinfo": ZoneInfo, "dateutil": dateutil_tz.gettz, "name": str,
            "pytz": pytest.importorskip("pytz").timezone,
        }[made](name)
        for name in ("America/New_York", "Europe/Berlin")
    )  # fmt: skip
    other = Celery("other", set_as_current=False)
    other.conf.update(timezone=berlin, enable_utc=enable_utc)
    own = OwnZone(30, 2, tz=new_york, app=other)
    assert fire_times(own, timezone=other.timezone).key == "cron 0 30 2 * * * - and once America/New_York"
    assert crontab_fires(own, "2026-11-01T00:00Z", "2026-11-02T12:00Z", other.timezone) == [
        "2026-11-01T07:30", "2026-11-02T07:30",
    ]  # fmt: skip
    plain = schedules.crontab(30, 2, app=other)
    assert fire_times(plain, timezone=other.timezone).key == "cron 0 30 2 * * * - and once Europe/Berlin"
    assert crontab_fires(plain, "2026-10-24T12:00Z", "2026-10-26T12:00Z", other.timezone) == [
        "2026-10-25T00:30", "2026-10-26T01:30",
    ]  # fmt: skip


def test_a_crontab_subclass_with_a_property_as_its_zone():
    class Property(schedules.crontab):
        tz = property(lambda self: ZoneInfo("Asia/Tokyo"))

    assert fire_times(Property(0, 6), timezone=UTC).key.endswith(" once Asia/Tokyo")


def test_crontabs_that_are_alike_share_their_fire_times():
    one, two = (fire_times(schedules.crontab("*/5", "8-18"), timezone=BERLIN) for _ in range(2))
    assert one is two


def test_a_crontab_that_never_fires():
    with pytest.raises(ScheduleError, match="<crontab: .*: hours allows no value"):
        fire_times(schedules.crontab(0, []), timezone=UTC)


# Under Celery's own beat


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "last", "now", "expected"),
    [
        (every("10s"), "2026-10-10 12:00:07", "2026-10-10 12:00:09.500", (False, 0.5)),
        (every("10s"), "2026-10-10 12:00:07", "2026-10-10 12:00:10", (True, 10)),
        (every("10s"), "2026-10-10 12:00:10.200", "2026-10-10 12:00:12", (False, 8)),
        (every("10s"), "2026-10-10 12:00:07", "2026-10-10 12:34:56", (True, 4)),
        (cron("30 2 * * *"), "2026-10-24 23:00:00", "2026-10-25 00:29:00", (False, 60)),  # Berlin, the app's
        (cron("30 2 * * *"), "2026-10-24 23:00:00", "2026-10-25 00:30:00", (True, 25 * 3600)),
        (cron("30 2 * * *"), "2026-10-25 00:30:01", "2026-10-25 01:30:00", (False, 24 * 3600)),
        (cron("30 2 * * *", timezone="UTC"), "2026-10-24 23:00:00", "2026-10-25 02:29:59", (False, 1)),
    ],
)
def test_is_due(schedule, last, now, expected):
    schedule = copy.copy(schedule)
    schedule.app, schedule.nowfun = app, lambda: moment(now)
    assert schedule.is_due(moment(last)) == expected
    assert schedule.is_due(moment(last).replace(tzinfo=None)) == expected  # Celery takes it for UTC
    assert schedule.is_due(moment(last).astimezone(BERLIN)) == expected
    assert (schedule.remaining_estimate(moment(last)) <= timedelta(0)) is expected[0]


def test_an_entry_of_celerys_beat():
    clock = [moment("2026-10-10 12:00:07")]
    entry = ScheduleEntry(
        name="sync",
        task="sync",
        schedule=every("10s", nowfun=lambda: clock[0]),
        last_run_at=clock[0],
        app=app,
    )
    assert entry.is_due() == (False, 3)
    clock[0] = moment("2026-10-10 12:00:10.020")
    assert entry.is_due() == (True, 9.98)
    assert next(entry).is_due() == (False, 9.98)


@pytest.mark.parametrize(
    "schedule",
    [every("10s"), every(timedelta(days=2)), every("10x"), cron("*/5 * * * *"), cron("nonsense"),
     cron("@daily", timezone="Europe/Berlin"), cron("@daily", timezone=BERLIN), cron("@daily", timezone=UTC),
     every("1d", at=["02:30", time(14)], timezone=BERLIN), every("1d", at="nonsense"), every("1d", at=NUMBER),
     once("2026-12-01 09:00", timezone="Asia/Tokyo"), once(datetime(2026, 12, 1, 9, tzinfo=BERLIN)),
     once(NUMBER)],
)  # fmt: skip
def test_schedules_are_values(schedule):
    schedule.app = app  # which is not pickled
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule == copy.deepcopy(schedule)
    assert hash(again) == hash(schedule)
    assert repr(again) == repr(schedule)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
@pytest.mark.parametrize(
    ("make", "given"),
    [
        (every, {"interval": "1d", "at": "02:30", "timezone": BERLIN}),
        (cron, {"text": "@daily", "timezone": "UTC"}),
        (once, {"when": datetime(2026, 12, 1), "timezone": UTC}),
    ],
)
def test_a_copy_keeps_all_that_was_said(make, given, again):
    said = {"name": "report", "args": ("eu",), "kwargs": {"n": [1]}, "options": {"queue": "q"}}
    policy = {"overlap": "queue", "lease": "1m"}
    schedule = make(**given, **said, **policy, nowfun=moment)
    copied = again(schedule)
    assert copied == schedule and copied is not schedule
    assert {name: getattr(copied, name) for name in given} == given
    assert copied.declaration == schedule.declaration == Declaration(**said, policy=policy)
    assert copied.nowfun is moment


def test_a_deep_copy_shares_nothing():
    schedule = every("10s", kwargs={"n": [1]}, lease={"odd": []})
    copied = copy.deepcopy(schedule)
    copied.declaration.kwargs["n"].append(2)
    copied.declaration.policy["lease"]["odd"].append(2)
    assert schedule.declaration == Declaration(kwargs={"n": [1]}, policy={"lease": {"odd": []}})


def test_what_is_said_of_the_job_makes_no_other_schedule():
    plain, said = every("10s"), every("10s", name="report", args=(1,), overlap="queue")
    assert plain == said and hash(plain) == hash(said) and repr(plain) == repr(said)
    assert fire_times(plain, timezone=UTC).key == fire_times(said, timezone=UTC).key
    assert plain.declaration == Declaration()


def test_as_a_decorator_it_leaves_the_target_as_it_is():
    def report():
        pass

    assert every("10s")(cron("@daily")(once("2026-12-01 09:00")(report))) is report


def test_equal_and_not():
    assert every("60s") == every(60) == every("1m") == every(timedelta(minutes=1)) != every("2m")
    assert hash(every("60s")) == hash(every("1m"))
    assert cron("@daily") != cron("@hourly")
    assert cron("@daily") != cron("@daily", timezone="UTC")
    assert cron("@daily", timezone="Europe/Berlin") == cron("@daily", timezone=BERLIN)
    assert every(60) != cron("* * * * *")
    assert every(60) != schedules.schedule(60) and every(60) != 60
    assert every("1d", at="2:30") == every("24h", at=[time(2, 30)]) != every("1d", at="02:31")
    assert every("1d", at=["02:30", "14:00"]) == every("1d", at=("14:00:00", "02:30")) != every("1d")
    assert every("1d", at="02:30", timezone=BERLIN) == every("1d", at="02:30", timezone="Europe/Berlin")
    assert every("1d", at="02:30", timezone=BERLIN) != every("1d", at="02:30")
    assert cron("@daily", timezone=dateutil_tz.gettz("Europe/Berlin")) == cron("@daily", timezone=BERLIN)
    assert once("2026-12-01T09:00+01:00") == once("2026-12-01T08:00Z") != once("2026-12-01T08:00")
    assert once(datetime(2026, 12, 1, 9)) == once("2026-12-01 09:00")
    assert once("2026-12-01 09:00") != once("2026-12-01 09:00", timezone="UTC")
    assert repr(every("1d", at=["14:00", "2:30:05"])) == "every('1d', at=['02:30:05', '14:00'])"
    assert repr(every("1d", at="00:00")) == "every('1d', at='00:00')"
    assert repr(once("2026-12-01 09:00")) == "once('2026-12-01T09:00:00')"
    assert repr(every(90)) == "every('1m30s')"
    assert repr(cron("@daily", timezone=BERLIN)) == "cron('@daily', timezone='Europe/Berlin')"


# The sun


def test_solar():
    pytest.importorskip("ephem")
    times = fire_times(schedules.solar("sunset", 52.52, 13.40), timezone=UTC)
    found = [
        iso(time) for time in times.between(from_iso("2026-06-20T00:00Z"), from_iso("2026-06-23T00:00Z"))
    ]
    assert [time[:15] for time in found] == ["2026-06-20T19:3", "2026-06-21T19:3", "2026-06-22T19:3"]
    assert all(time.endswith(".000Z") for time in found)
    assert times.key == "solar sunset 52.52 13.4"


@pytest.mark.parametrize("event", ["sunrise", "sunset", "solar_noon", "dawn_civil", "dusk_astronomical"])
@pytest.mark.parametrize(
    ("lat", "lon"), [(52.5, 13.4), (-33.9, 151.2), (69.6, 18.9), (0, 179.9), (40.7, -74)]
)
def test_solar_is_the_same_from_any_start(event, lat, lon):
    pytest.importorskip("ephem")
    times = fire_times(schedules.solar(event, lat, lon), timezone=UTC)
    found = list(times.between(from_iso("2026-01-01T00:00Z"), from_iso("2027-01-01T00:00Z")))
    assert len(found) > 150
    assert all(later - earlier > 20 * HOUR for earlier, later in pairwise(found))
    for earlier, later in list(pairwise(found))[::15]:
        for start in (earlier, earlier + 1, (earlier + later) // 2, later - 1):
            assert times.next(start) == later
        for end in (later - 1, (earlier + later) // 2, earlier):
            assert times.previous(end) == earlier

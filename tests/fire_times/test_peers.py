"""What users of other schedulers complained of, with what is right: the times themselves.

A test is named after the project and the issue it comes from; its input is the thread's own, where that had
one. Cases that take a node (a clock set back, a restart, slots that nobody saw) are in test_peers_nodes.py.

Elsewhere: the table of clock changes of celery, APScheduler, croniter, taskiq and arq is
``test_the_table_of_the_peers`` in tests/test_schedules.py, and the rule that apscheduler#115 asks for is
what it states. A database or a broker that goes away (celery#3409, #3135, #3957, redbeat#77,
apscheduler#109, django-celery-beat#101) is in tests/test_scheduler.py, and so is what a bad entry costs
(celery#9951). Not about times: locks (redbeat#129, #208, #230, celery-once#147, celery-singleton#3), stored
formats, prefixes, expiry of messages (celery#3153), load on databases (django-celery-beat#927), listings
(redbeat#155), and jobs that are added while beat runs (procrastinate#564, apscheduler#305).
"""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab

from anarchon_celery.errors import ScheduleError
from anarchon_celery.schedules import as_schedule, cron, fire_times
from anarchon_celery.slots import DAY, Due, due, from_iso, iso
from tests.fire_times.walks import fires, times_of


def next_of(schedule, zone: str, after: str) -> str:
    return iso(times_of(schedule, zone).next(from_iso(after)))


# Clock changes ---------------------------------------------------------------------------------------------


def test_celery_10107_an_hourly_crontab_runs_in_the_repeated_hour():
    times = times_of(crontab(minute=0, hour="*"), "US/Pacific")
    last, now = from_iso("2026-11-01T08:00Z"), from_iso("2026-11-01T09:00Z")
    assert now == times.next(last)
    offered = due(
        times, after=last, now=now, on_time_since=now - 10_000, delay=lambda slot: 0, catch_up="latest",
        window=None,
    )  # fmt: skip
    assert Due(slots=(now,)) == offered, "Celery 5.7 answers: not due"


def test_celery_6438_per_minute_jobs_do_not_stop_when_summer_time_ends():
    times = times_of("* * * * *", "Europe/Paris")
    found = fires(times, "2020-10-25T00:00Z", "2020-10-25T02:00Z")
    assert [f"2020-10-25T0{hour}:{minute:02}:00Z" for hour in (0, 1) for minute in range(60)] == found


def test_celery_1604_a_daily_job_runs_once_on_the_day_of_the_change():
    times = times_of(crontab(hour=17, minute=0), "America/New_York")
    assert ["2015-11-01T22:00:00Z"] == fires(times, "2015-11-01T04:00Z", "2015-11-02T05:00Z")


def test_apscheduler_1059_a_time_that_does_not_exist_is_never_given():
    times = times_of(crontab(minute=0, hour=2), "US/Eastern")
    (found,) = times.between(from_iso("2013-03-10T05:00Z"), from_iso("2013-03-11T05:00Z"))
    assert "2013-03-10T07:00:00.000Z" == iso(found)
    assert "03:00" == f"{datetime.fromtimestamp(found / 1000, ZoneInfo('US/Eastern')):%H:%M}"


def test_apscheduler_370_a_next_time_is_never_before_now():
    times = times_of("0 1 * * *", "Europe/Dublin")
    now, end, found = from_iso("2019-03-30T00:30Z"), from_iso("2019-04-01T12:00Z"), set()
    for moment in range(now, end, 7 * 60_000):
        following = times.next(moment)
        assert moment < following <= moment + DAY + 3_600_000
        found.add(iso(following)[:16])
    expected = ["2019-03-30T01:00", "2019-03-31T01:00", "2019-04-01T00:00", "2019-04-02T00:00"]
    assert expected == sorted(found)


# Zones -----------------------------------------------------------------------------------------------------


def test_celery_4743_nine_forty_five_in_moscow():
    found = next_of(crontab(hour=9, minute=45), "Europe/Moscow", "2018-05-26T06:40:34Z")
    assert "2018-05-26T06:45:00.000Z" == found


@pytest.mark.parametrize("zone", ["UTC", "Australia/Brisbane"])
def test_celery_4169_a_nowfun_of_another_zone_keeps_no_job_from_being_due(zone):
    brisbane = ZoneInfo("Australia/Brisbane")
    schedule = crontab(minute="*/5", nowfun=lambda: datetime(2017, 7, 26, 10, 2, tzinfo=brisbane))
    assert "2017-07-26T00:05:00.000Z" == next_of(schedule, zone, "2017-07-26T00:02Z")


def test_redbeat_160_no_zone_has_the_offset_of_1883():
    pytz = pytest.importorskip("pytz")
    new_york = pytz.timezone("America/New_York")
    assert "LMT-1 day, 19:04:00" in repr(new_york), "this is what stood in the way: minus four hours 56"
    for times in (
        times_of(cron("0 10 2 4 *", timezone=new_york)),
        fire_times(crontab(0, 10, day_of_month=2, month_of_year=4), timezone=new_york),
    ):
        assert ["2020-04-02T14:00:00Z"] == fires(times, "2020-01-01T00:00Z", "2021-01-01T00:00Z")


class InZone(crontab):
    """A crontab that brings its zone along, as django-celery-beat's does."""

    def __init__(self, *args, tz, **kwargs):
        super().__init__(*args, **kwargs)
        self.tz = tz


def test_redbeat_255_a_zone_of_pytz_is_accepted():
    pytz = pytest.importorskip("pytz")
    for schedule in (
        cron("30 9 * * *", timezone=pytz.timezone("Asia/Kolkata")),
        InZone(30, 9, tz=pytz.timezone("Asia/Kolkata")),
    ):
        assert "2026-10-10T04:00:00.000Z" == next_of(schedule, "UTC", "2026-10-10T00:00Z")


def test_sqlalchemy_celery_beat_15_a_zone_may_be_a_text():
    for schedule in (
        cron("0 8 * * *", timezone="Asia/Shanghai"),
        InZone(0, 8, tz="Asia/Shanghai"),
        InZone(0, 8, tz=ZoneInfo("Asia/Shanghai")),
    ):
        assert "2026-10-10T00:00:00.000Z" == next_of(schedule, "Europe/Berlin", "2026-10-09T12:00Z")


@pytest.mark.parametrize("schedule", [crontab(minute="*/10"), "*/10 * * * *"])
def test_celery_sqlalchemy_scheduler_2_every_ten_minutes_is_every_ten_minutes_in_shanghai(schedule):
    times = times_of(schedule, "Asia/Shanghai")
    expected = [f"2026-10-10T12:{minute}:00Z" for minute in range(10, 60, 10)]
    assert expected == fires(times, "2026-10-10T12:01Z", "2026-10-10T13:00Z")


def test_django_celery_beat_875_seven_in_los_angeles_on_every_day_of_a_year():
    """A filter by hours, in the wrong zone, kept jobs from ever running."""
    losangeles = ZoneInfo("America/Los_Angeles")
    for zone in ("UTC", "EST", "America/Los_Angeles"):  # the app's
        times = times_of(InZone(0, 7, tz=losangeles), zone)
        found = fires(times, "2025-01-01T08:00Z", "2026-01-01T08:00Z")
        assert 365 == len(found) == len({time[:10] for time in found})
        summer = [time for time in found if "2025-03-09" <= time < "2025-11-02"]
        assert {"T14:00:00Z"} == {time[10:] for time in summer}
        assert {"T15:00:00Z"} == {time[10:] for time in found if time not in summer}


def test_django_celery_beat_885_an_app_in_est_on_a_server_in_utc():
    times = times_of(crontab(minute=0, hour=7), "EST")
    assert ["2025-07-01T12:00:00Z"] == fires(times, "2025-07-01T00:00Z", "2025-07-02T00:00Z")


@pytest.mark.parametrize(
    ("schedule", "zone", "winter", "summer"),
    [
        ((30, 10), "Europe/Brussels", "2026-01-05T10:30+01:00", "2026-07-06T10:30+02:00"),
        ((30, 10), "Europe/London", "2026-01-05T10:30Z", "2026-07-06T10:30+01:00"),
        ((30, 10), "US/Eastern", "2026-01-05T10:30-05:00", "2026-07-06T10:30-04:00"),
    ],
)
def test_django_celery_beat_194_a_row_fires_in_its_own_zone(schedule, zone, winter, summer):
    times = times_of(InZone(*schedule, day_of_week="mon", tz=ZoneInfo(zone)), "UTC")
    assert from_iso(winter) == times.next(from_iso("2026-01-01T00:00Z"))
    assert from_iso(summer) == times.next(from_iso("2026-07-01T00:00Z"))


def test_procrastinate_1472_office_hours_of_blantyre():
    """Procrastinate has the seconds last; first they are here."""
    times = times_of("*/10 * 8-17 * * 1-5", "Africa/Blantyre")
    found = fires(times, "2026-10-09T00:00Z", "2026-10-12T00:00Z")  # Friday to Sunday
    expected = [
        f"2026-10-09T{hour:02}:{minute:02}:{second:02}Z"
        for hour in range(6, 16) for minute in range(60) for second in range(0, 60, 10)
    ]  # fmt: skip
    assert expected == found


# The edges of crontab --------------------------------------------------------------------------------------


def refusal(make) -> str:
    """The line that refuses a crontab: Celery's own from 5.7 on, else ours, when its times are asked for."""
    with pytest.raises((ScheduleError, ValueError)) as raised:
        fire_times(make(), timezone=ZoneInfo("UTC"))
    return str(raised.value)


def test_celery_2714_the_31st_of_april_is_refused_and_hangs_nobody():
    with pytest.raises(ScheduleError, match="day of month 31 does not exist"):
        as_schedule("0 0 31 4 *")
    assert "\n" not in refusal(lambda: crontab(0, 0, day_of_month=31, month_of_year=4))


def test_django_celery_beat_748_a_row_that_can_never_fire_is_refused():
    assert "\n" not in refusal(lambda: crontab(day_of_week=1, day_of_month=31, month_of_year=2))
    with pytest.raises(ScheduleError, match="month '31'"):
        as_schedule("* * 1 31 2")
    mondays = fires(times_of("0 0 31 2 1"), "2026-01-01T00:00Z", "2026-12-31T00:00Z")
    assert ["02", "09", "16", "23"] == [time[8:10] for time in mondays], "of a text either day will do"


@pytest.mark.parametrize("schedule", [crontab(minute=0, hour="23-6"), "0 23-6 * * *"])
def test_celery_1114_hours_over_midnight(schedule):
    found = fires(times_of(schedule), "2026-10-10T12:00Z", "2026-10-11T12:00Z")
    assert [23, 0, 1, 2, 3, 4, 5, 6] == [int(time[11:13]) for time in found]


# The next time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [3600, "@hourly", crontab(minute=0)])
def test_redbeat_210_the_next_time_shown_is_the_next_time(schedule):
    times = times_of(schedule)
    assert "2021-09-01T00:00:00.000Z" == iso(times.previous(from_iso("2021-09-01T00:45Z")))
    assert "2021-09-01T01:00:00.000Z" == next_of(schedule, "UTC", "2021-09-01T00:45Z")


def test_redbeat_154_a_midnight_job_is_first_due_at_midnight():
    for moment in ("2020-03-20T00:00Z", "2020-03-20T12:34:56Z", "2020-03-20T23:54:59Z", "2020-03-20T23:55Z"):
        assert "2020-03-21T00:00:00.000Z" == next_of("0 0 * * *", "UTC", moment)

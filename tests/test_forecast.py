"""What a person is told of a job's next times, and of the clock in between."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_celery.forecast import (
    ClockChange,
    change_text,
    clock_changes,
    forecast,
    local_text,
    offset_text,
    read_moment,
)
from anarchon_celery.slots import DAY, EPOCH, HOUR, MINUTE, SECOND, Interval, Once, from_iso, iso
from anarchon_celery.wallclock import Cron, Zone

ALL = tuple(range(24))
GONE = "{} does not exist, first instant after"


def zone(name: str) -> Zone:
    return Zone(name, ZoneInfo(name))


def at(*times: str, zone_name: str, every_occurrence: bool = False, **fields) -> Cron:
    """A job at times of day that share their minutes."""
    hours, minutes = (tuple(sorted({int(time[part]) for time in times})) for part in (slice(2), slice(3, 5)))
    given: dict[str, Any] = {"hours": hours, "minutes": minutes} | fields
    return Cron(zone=zone(zone_name), every_occurrence=every_occurrence, **given)


def told(times, begin: str, count: int, name: str = "") -> list[tuple[str, str, str, str | None]]:
    """The forecast: UTC, local, what the clock did before, and the note."""
    within = zone(name) if name else times.zone
    found = forecast(times, within, begin=read_moment(begin, within), count=count)
    return [
        (
            iso(time.at)[:16], time.local.replace(":00.000", ""), " ".join(map(change_text, time.changes)),
            time.note,
        )
        for time in found
    ]  # fmt: skip


# Fire times and clock changes


def test_a_fixed_time_in_the_gap_of_spring():
    assert [
        ("2026-03-28T01:30", "2026-03-28T02:30+01:00", "", None),
        ("2026-03-29T01:00", "2026-03-29T03:00+02:00", "clock +1 h", GONE.format("02:30")),
        ("2026-03-30T00:30", "2026-03-30T02:30+02:00", "", None),
    ] == told(at("02:30", zone_name="Europe/Berlin"), "2026-03-28", 3)


def test_a_fixed_time_in_the_hour_that_autumn_repeats():
    assert [
        ("2026-10-24T00:30", "2026-10-24T02:30+02:00", "", None),
        ("2026-10-25T00:30", "2026-10-25T02:30+02:00", "", "first of two 02:30"),
        ("2026-10-26T01:30", "2026-10-26T02:30+01:00", "clock -1 h", None),
    ] == told(at("02:30", zone_name="Europe/Berlin"), "2026-10-24", 3)


def test_a_wildcard_in_the_hour_that_autumn_repeats():
    half_hourly = at("00:00", "00:30", zone_name="Europe/Berlin", hours=ALL, every_occurrence=True)
    assert [
        ("2026-10-24T23:30", "2026-10-25T01:30+02:00", "", None),
        ("2026-10-25T00:00", "2026-10-25T02:00+02:00", "", "first of two 02:00"),
        ("2026-10-25T00:30", "2026-10-25T02:30+02:00", "", "first of two 02:30"),
        ("2026-10-25T01:00", "2026-10-25T02:00+01:00", "clock -1 h", "second of two 02:00"),
        ("2026-10-25T01:30", "2026-10-25T02:30+01:00", "", "second of two 02:30"),
        ("2026-10-25T02:00", "2026-10-25T03:00+01:00", "", None),
    ] == told(half_hourly, "2026-10-25 01:30", 6)


def test_a_wildcard_leaves_the_gap_of_spring_out_without_a_word_about_times_it_never_had():
    half_hourly = at("00:00", "00:30", zone_name="Europe/Berlin", hours=ALL, every_occurrence=True)
    assert [
        ("2026-03-29T00:30", "2026-03-29T01:30+01:00", "", None),
        ("2026-03-29T01:00", "2026-03-29T03:00+02:00", "clock +1 h", None),
    ] == told(half_hourly, "2026-03-29 01:30", 2)


def test_an_interval_is_told_in_the_zone_of_its_reader():
    assert [
        ("2026-04-05T02:20", "2026-04-04T23:20-03:00", "", "first of two 23:20"),
        ("2026-04-05T02:40", "2026-04-04T23:40-03:00", "", "first of two 23:40"),
        ("2026-04-05T03:00", "2026-04-04T23:00-04:00", "clock -1 h", "second of two 23:00"),
    ] == told(Interval(20 * MINUTE), "2026-04-04 23:20", 3, "America/Santiago")


def test_a_change_of_half_an_hour():
    assert [
        ("2026-10-02T15:45", "2026-10-03T02:15+10:30", "", None),
        ("2026-10-03T15:30", "2026-10-04T02:30+11:00", "clock +30 min", GONE.format("02:15")),
    ] == told(at("02:15", zone_name="Australia/Lord_Howe"), "2026-10-03", 2)


def test_a_change_of_a_whole_day():
    assert [
        ("2011-12-30T09:00", "2011-12-29T23:00-10:00", "", None),
        ("2011-12-31T09:00", "2011-12-31T23:00+14:00", "clock +24 h", None),
    ] == told(at("23:00", zone_name="Pacific/Apia"), "2011-12-29", 2)


def test_a_gap_over_midnight_names_the_day_that_lost_its_time():
    """In Toronto, on 30 March 1919, 23:30 was followed by 00:30."""
    assert [
        ("1919-03-31T04:30", "1919-03-31T00:30-04:00", "", GONE.format("1919-03-30 23:45")),
        ("1919-04-01T03:45", "1919-03-31T23:45-04:00", "", None),
    ] == told(at("23:45", zone_name="America/Toronto"), "1919-03-30 22:00", 2)


def test_what_falls_on_the_end_of_the_gap_anyway_has_lost_nothing():
    assert [
        ("2026-03-29T01:00", "2026-03-29T03:00+02:00", "", None),
    ] == told(at("03:00", zone_name="Europe/Berlin"), "2026-03-29", 1)  # fmt: skip


def test_of_a_yearly_job_each_change_between_is_told():
    yearly = at("12:00", zone_name="Europe/Berlin", days_of_month=(1,), months=(1,))
    assert [
        ("2027-01-01T11:00", "2027-01-01T12:00+01:00", "", None),
        ("2028-01-01T11:00", "2028-01-01T12:00+01:00", "clock +1 h clock -1 h", None),
    ] == told(yearly, "2026-06-01", 2)


def test_a_time_of_day_is_told_as_exactly_as_it_is():
    notes = [row[3] for row in told(Interval(1500), "2026-10-25T01:00:01Z", 2, "Europe/Berlin")]
    assert ["second of two 02:00:01.500", "second of two 02:00:03"] == notes


def test_a_forecast_begins_with_its_begin_and_ends_where_the_job_does():
    noon = from_iso("2026-10-10T12:00Z")
    for begin, expected in ((noon - 1, [noon]), (noon, [noon]), (noon + 1, [])):
        found = forecast(Once(noon), zone("Europe/Berlin"), begin=begin, count=3)
        assert expected == [time.at for time in found]


def test_a_forecast_ends_before_the_calendar_does():
    begin = from_iso("9985-01-01T00:00Z")
    found = forecast(Interval(365 * DAY), zone("Europe/Berlin"), begin=begin, count=1000)
    assert (6, "9990") == (len(found), iso(found[-1].at)[:4])


def test_a_forecast_looks_no_further_than_asked():
    class Costly(Once):
        def next(self, after: int) -> int | None:
            assert after < self.time, "asked once too often"
            return super().next(after)

    assert 1 == len(forecast(Costly(DAY), zone("Europe/Berlin"), begin=0, count=1))


# Clock changes, against zoneinfo

zones = st.sampled_from([
    "Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Africa/Casablanca",
    "Asia/Kolkata", "Pacific/Apia", "UTC",
])  # fmt: skip
instants = st.integers(from_iso("2005-01-01T00:00Z"), from_iso("2036-01-01T00:00Z"))
near_changes = st.builds(
    lambda change, away: change + away,
    st.sampled_from([
        from_iso(f"{text}Z") for text in
        ("2026-03-29T01:00", "2026-10-25T01:00", "2026-04-05T03:00", "2026-04-04T15:00", "2026-03-22T02:00")
    ]),
    st.integers(-2 * HOUR, 2 * HOUR),
)  # fmt: skip


def as_datetime(instant: int, name: str) -> datetime:
    return (EPOCH + timedelta(milliseconds=instant)).astimezone(ZoneInfo(name))


@given(zones, instants, st.integers(0, 500 * DAY))
def test_the_changes_lead_from_one_offset_to_the_other(name, after, length):
    within = zone(name)
    offset, last = within.offset(after), after
    for change in clock_changes(within, after, after + length):
        assert last < change.at <= after + length
        assert offset == within.offset(change.at - 1)
        assert offset + change.by == within.offset(change.at)
        offset, last = within.offset(change.at), change.at
    assert offset == within.offset(after + length)


class ThereAndBack(tzinfo):
    """An hour ahead on the second day of 1970."""

    def utcoffset(self, local):
        first, end = datetime(1970, 1, 2, 1, tzinfo=self), datetime(1970, 1, 3, 1, tzinfo=self)
        return timedelta(hours=first <= local < end and not local.fold)

    def fromutc(self, moment):
        if moment.day == 2:
            return moment + timedelta(hours=1)
        return moment.replace(fold=moment.day == 3 and moment.hour == 0)


def test_a_change_that_is_taken_back_on_the_next_day_is_told():
    changes = clock_changes(Zone("there and back", ThereAndBack()), DAY // 2, 30 * DAY)
    assert (ClockChange(DAY, HOUR), ClockChange(2 * DAY, -HOUR)) == changes


@given(zones, instants | near_changes)
def test_twice_is_what_zoneinfo_calls_a_fold(name, instant):
    (time,) = forecast(Once(instant), zone(name), begin=instant, count=1)
    local = as_datetime(instant, name)
    twice = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
    expected = ("second" if local.fold else "first") if twice else None
    assert expected == (time.note and time.note.split()[0])
    assert local.isoformat(timespec="milliseconds") == time.local


# What people write


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("2026-03-29T01:00:30.250Z", "Europe/Berlin", "2026-03-29T01:00:30.250Z"),
        ("2026-03-29T03:00+02:00", "America/New_York", "2026-03-29T01:00:00.000Z"),
        ("2026-03-29", "Europe/Berlin", "2026-03-28T23:00:00.000Z"),
        ("2026-03-29 01:59:59.999", "Europe/Berlin", "2026-03-29T00:59:59.999Z"),
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:00:00.000Z"),  # does not exist
        ("2026-03-29 03:00", "Europe/Berlin", "2026-03-29T01:00:00.000Z"),
        ("2026-10-25T02:30:10", "Europe/Berlin", "2026-10-25T00:30:10.000Z"),  # twice
        ("2026-10-25T03:00", "Europe/Berlin", "2026-10-25T02:00:00.000Z"),
        ("2026-09-06", "America/Santiago", "2026-09-06T04:00:00.000Z"),  # has no midnight
        ("2011-12-30 15:00", "Pacific/Apia", "2011-12-30T10:00:00.000Z"),  # a day that was left out
        ("2026-07-01", "Asia/Kolkata", "2026-06-30T18:30:00.000Z"),
    ],
)
def test_moments(text, name, expected):
    assert expected == iso(read_moment(text, zone(name)))


@given(zones, instants | near_changes)
def test_a_local_time_is_read_as_the_first_instant_that_has_it(name, instant):
    local = as_datetime(instant, name)
    first = local.replace(fold=0).astimezone(timezone.utc)
    text = local.replace(tzinfo=None).isoformat(timespec="milliseconds")
    assert (first - EPOCH) // timedelta(milliseconds=1) == read_moment(text, zone(name))


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026", "2026-13-01", "2026-02-30", "2026-03-29 25:00", "2026-03-29 2:30", "29.3.2026"],
)
def test_what_is_no_moment(text):
    with pytest.raises(ValueError) as refused:
        read_moment(text, zone("Europe/Berlin"))
    right = "2026-03-29, '2026-03-29 02:30' (local), 2026-03-29T01:00:30Z or 2026-03-29T03:00+02:00"
    assert f"{text!r} is no moment: write it as {right}" == str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["1899-12-31", "0001-01-01", "0001-01-01T00:00+14:00", "9990-01-01T00:00Z", "9999-12-31 23:59"],
)
def test_moments_that_no_calendar_needs(text):
    with pytest.raises(ValueError) as refused:
        read_moment(text, zone("America/New_York"))
    assert f"{text!r} is too far away: a year from 1900 to 9989 is right" == str(refused.value)


# What people read


def test_local_times_with_their_weekday():
    berlin = zone("Europe/Berlin")
    assert "Sun 2026-03-29 03:00:00 +02:00" == local_text(from_iso("2026-03-29T01:00Z"), berlin)
    assert "Thu 1970-01-01 01:00:00.250 +01:00" == local_text(250, berlin)
    assert "Wed 1969-12-31 19:00:00 -05:00" == local_text(0, zone("America/New_York"))


@pytest.mark.parametrize(
    ("ms", "offset", "change"),
    [
        (HOUR, "+01:00", "clock +1 h"),
        (-HOUR, "-01:00", "clock -1 h"),
        (-30 * MINUTE, "-00:30", "clock -30 min"),
        (90 * MINUTE, "+01:30", "clock +1 h 30 min"),
        (DAY, "+24:00", "clock +24 h"),
        (53 * MINUTE + 28 * SECOND, "+00:53:28", "clock +53 min 28 s"),
    ],
)
def test_offsets_and_changes(ms, offset, change):
    assert (offset, change) == (offset_text(ms), change_text(ClockChange(0, ms)))

"""Fire times, and which slots a node offers."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from time import process_time
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anarchon_celery.daily import daily as daily_at
from anarchon_celery.errors import ScheduleError
from anarchon_celery.slots import (
    COUNTED,
    DAY,
    HOUR,
    MINUTE,
    Due,
    Interval,
    Leap,
    Once,
    Slot,
    due,
    first_due,
    from_iso,
    iso,
    jitter,
)
from anarchon_celery.wallclock import LAST, Cron, Zone, from_local

BERLIN, UTC = "Europe/Berlin", "UTC"
ZONES = [
    UTC, BERLIN, "America/New_York", "America/Santiago", "America/St_Johns", "Australia/Lord_Howe",
    "Africa/Casablanca", "Asia/Kathmandu", "Pacific/Apia", "America/Havana", "Antarctica/Troll",
]  # fmt: skip
NOON = from_iso("2026-10-10T12:00:30Z")


def zone(name: str) -> Zone:
    return Zone(name, ZoneInfo(name))


def daily(hour: int, minute: int, name: str, **fields) -> Cron:
    return Cron(zone=zone(name), hours=(hour,), minutes=(minute,), **fields)


def fires(times, start: str, end: str) -> list[str]:
    """The fire times from start (included) to end (excluded), without seconds."""
    return [iso(time)[:16] for time in times.between(from_iso(start) - 1, from_iso(end) - 1)]


# Slots and instants


def test_slot_shows_job_and_time():
    slot = Slot("report", from_iso("2026-10-10T12:00:30Z"))
    assert str(slot) == "report @ 2026-10-10T12:00:30.000Z"
    assert slot.datetime == datetime(2026, 10, 10, 12, 0, 30, tzinfo=timezone.utc)
    assert slot.datetime.tzinfo is timezone.utc
    assert slot < Slot("report", slot.time + 1) < Slot("sync", 0)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00.000Z", 0),
        ("2026-10-10T12:00:30.250Z", 1_791_633_630_250),
        ("2026-10-10T14:00:30.250+02:00", 1_791_633_630_250),
        ("2026-10-10 12:00:30.250999Z", 1_791_633_630_250),
        ("2026-10-10T12:00Z", 1_791_633_600_000),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)
def test_from_iso(text, ms):
    assert from_iso(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026-10-10", "2026-10-10T12:00:30", "2026-02-30T00:00:00Z", "2026-10-10T25:00:00Z",
     "20261010T120030Z", "2026-10-10T12:00:30.1Z", "2026-10-10T12:00:30.000Z ", "٢026-10-10T12:00:30Z",
     "2026-10-10T12:00:30+25:00"],
)  # fmt: skip
def test_from_iso_refuses(text):
    with pytest.raises(ValueError, match="is no instant: write it as"):
        from_iso(text)


@settings(deadline=None)
@given(st.integers(-(10**13), 10**14))
def test_iso_reads_back(ms):
    assert from_iso(iso(ms)) == ms


# Intervals and single instants


def test_interval_counts_from_the_epoch():
    every = Interval(10_000)
    assert iso(every.next(NOON)) == "2026-10-10T12:00:40.000Z"
    assert iso(every.next(NOON - 1)) == "2026-10-10T12:00:30.000Z"
    assert iso(every.previous(NOON)) == "2026-10-10T12:00:30.000Z"
    assert iso(every.previous(NOON - 1)) == "2026-10-10T12:00:20.000Z"
    assert every.key == "every 10000 ms"


def test_weeks_begin_on_thursday():
    assert (
        datetime.fromtimestamp(Interval(7 * DAY).next(NOON) / 1000, timezone.utc).strftime("%a %H:%M")
        == "Thu 00:00"
    )


@pytest.mark.parametrize("every", [99, 1, 0, -1000])
def test_an_interval_below_100_ms_is_refused(every):
    with pytest.raises(ScheduleError, match="give 100 ms or more"):
        Interval(every)


def test_once():
    once = Once(NOON)
    assert (once.next(NOON - 1), once.next(NOON)) == (NOON, None)
    assert (once.previous(NOON), once.previous(NOON - 1)) == (NOON, None)
    assert once.key == "once 2026-10-10T12:00:30.000Z"


# Local times where clocks change: the table of the peers, and some they do not have


@pytest.mark.parametrize(
    ("hour", "minute", "name", "start", "end", "expected"),
    [
        pytest.param(2, 30, BERLIN, "2026-03-28T12:00Z", "2026-03-30T12:00Z",
                     ["2026-03-29T01:00", "2026-03-30T00:30"], id="Berlin, spring: at 03:00"),
        pytest.param(2, 30, BERLIN, "2026-10-24T12:00Z", "2026-10-26T12:00Z",
                     ["2026-10-25T00:30", "2026-10-26T01:30"], id="Berlin, autumn: the first of two"),
        pytest.param(2, 0, BERLIN, "2026-10-24T12:00Z", "2026-10-26T00:00Z", ["2026-10-25T00:00"],
                     id="Berlin, autumn: the first moment that is repeated"),
        pytest.param(3, 0, BERLIN, "2026-10-24T12:00Z", "2026-10-26T00:00Z", ["2026-10-25T02:00"],
                     id="Berlin, autumn: the first moment that is not"),
        pytest.param(3, 0, BERLIN, "2026-03-28T12:00Z", "2026-03-30T00:00Z", ["2026-03-29T01:00"],
                     id="Berlin, spring: the end of the gap itself"),
        pytest.param(0, 0, "America/Santiago", "2026-09-05T12:00Z", "2026-09-07T00:00Z", ["2026-09-06T04:00"],
                     id="Santiago: no midnight"),
        pytest.param(23, 30, "America/Santiago", "2026-04-04T12:00Z", "2026-04-06T00:00Z",
                     ["2026-04-05T02:30"], id="Santiago: the last hour twice"),
        pytest.param(2, 15, "Australia/Lord_Howe", "2026-10-03T00:00Z", "2026-10-04T12:00Z",
                     ["2026-10-03T15:30"], id="Lord Howe: a gap of 30 minutes"),
        pytest.param(1, 45, "Australia/Lord_Howe", "2026-04-04T00:00Z", "2026-04-05T12:00Z",
                     ["2026-04-04T14:45"], id="Lord Howe: 30 minutes twice"),
        pytest.param(2, 30, "America/New_York", "2026-03-08T00:00Z", "2026-03-09T00:00Z",
                     ["2026-03-08T07:00"], id="New York, spring"),
        pytest.param(1, 30, "America/New_York", "2026-11-01T00:00Z", "2026-11-02T00:00Z",
                     ["2026-11-01T05:30"], id="New York, autumn"),
        pytest.param(23, 30, "America/St_Johns", "2010-11-06T12:00Z", "2010-11-08T02:00Z",
                     ["2010-11-07T02:00"], id="St. John's 2010: over midnight, 23:30"),
        pytest.param(0, 0, "America/St_Johns", "2010-11-06T12:00Z", "2010-11-08T12:00Z",
                     ["2010-11-07T02:30", "2010-11-08T03:30"], id="St. John's 2010: over midnight, 00:00"),
        pytest.param(12, 0, "Pacific/Apia", "2011-12-29T00:00Z", "2011-12-31T12:00Z",
                     ["2011-12-29T22:00", "2011-12-30T22:00"], id="Apia 2011: no 30 December at all"),
    ],
)  # fmt: skip
def test_fixed_times_run_once_per_local_day(hour, minute, name, start, end, expected):
    assert fires(daily(hour, minute, name), start, end) == expected


@pytest.mark.parametrize(
    ("hours", "minutes", "start", "end", "expected"),
    [
        pytest.param(range(24), (0, 30), "2026-10-24T23:45Z", "2026-10-25T02:45Z",
                     ["00:00", "00:30", "01:00", "01:30", "02:00", "02:30"], id="every 30 minutes, autumn"),
        pytest.param(range(24), (0,), "2026-10-24T22:30Z", "2026-10-25T04:30Z",
                     ["23:00", "00:00", "01:00", "02:00", "03:00", "04:00"], id="hourly, autumn"),
        pytest.param(range(24), (0,), "2026-03-28T22:30Z", "2026-03-29T04:30Z",
                     ["23:00", "00:00", "01:00", "02:00", "03:00", "04:00"], id="hourly, spring"),
        pytest.param((2,), range(0, 60, 15), "2026-03-28T12:00Z", "2026-03-29T12:00Z", [],
                     id="a step within the hour that spring leaves out"),
        pytest.param((2,), (0, 30), "2026-10-24T12:00Z", "2026-10-25T12:00Z",
                     ["00:00", "00:30", "01:00", "01:30"], id="a step within the hour that autumn repeats"),
    ],
)  # fmt: skip
def test_wildcards_run_at_every_real_occurrence(hours, minutes, start, end, expected):
    times = Cron(zone=zone(BERLIN), hours=tuple(hours), minutes=tuple(minutes), every_occurrence=True)
    assert [time[11:] for time in fires(times, start, end)] == expected


def test_several_fixed_times_in_one_gap_run_together():
    times = Cron(zone=zone(BERLIN), hours=(1, 2, 3), minutes=(0, 20, 40), seconds=(0, 30))
    found = list(times.between(from_iso("2026-03-29T00:40:30Z"), from_iso("2026-03-29T01:20Z")))
    assert [iso(time)[11:19] for time in found] == ["01:00:00", "01:00:30", "01:20:00"]


def test_weekdays_over_a_change_of_clocks():
    times = daily(9, 0, "America/New_York", days_of_week=(1, 2, 3, 4, 5))
    assert fires(times, "2026-03-06T00:00Z", "2026-03-11T00:00Z") == [
        "2026-03-06T14:00", "2026-03-09T13:00", "2026-03-10T13:00",
    ]  # fmt: skip


# Single local times, and several of a day


@pytest.mark.parametrize(
    ("local", "name", "expected"),
    [
        ("2026-12-01T09:00", BERLIN, "2026-12-01T08:00:00.000Z"),
        ("2026-12-01T09:00:00.250", BERLIN, "2026-12-01T08:00:00.250Z"),
        ("2027-03-28T02:30", BERLIN, "2027-03-28T01:00:00.000Z"),  # left out: the first instant after the gap
        ("2027-03-28T03:00", BERLIN, "2027-03-28T01:00:00.000Z"),
        ("2026-10-25T02:30", BERLIN, "2026-10-25T00:30:00.000Z"),  # twice: the first
        ("2026-09-06T00:00", "America/Santiago", "2026-09-06T04:00:00.000Z"),
        ("2026-10-04T02:15", "Australia/Lord_Howe", "2026-10-03T15:30:00.000Z"),
        ("2011-12-30T12:00", "Pacific/Apia", "2011-12-30T10:00:00.000Z"),  # no such day
        ("2011-12-31T00:00", "Pacific/Apia", "2011-12-30T10:00:00.000Z"),
    ],
)
def test_from_local(local, name, expected):
    moment = datetime.fromisoformat(local)
    assert iso(from_local(zone(name), moment)) == expected
    assert iso(from_local(zone(name), moment.replace(tzinfo=timezone.utc))) == expected


def test_daily_at_times_of_which_hours_by_minutes_would_make_too_many():
    times = daily_at(zone(BERLIN), [14 * 3600, 2 * 3600 + 1800, 14 * 3600])
    assert fires(times, "2026-10-24T12:00Z", "2026-10-26T12:00Z") == [
        "2026-10-24T12:00", "2026-10-25T00:30", "2026-10-25T13:00", "2026-10-26T01:30",
    ]  # fmt: skip
    assert fires(times, "2026-03-28T12:00Z", "2026-03-29T12:01Z") == [
        "2026-03-28T13:00", "2026-03-29T01:00", "2026-03-29T12:00",
    ]  # fmt: skip
    assert times.key == "daily 9000000,50400000 Europe/Berlin"


def test_daily_is_a_cron_where_one_says_the_same():
    hours = [2 * 3600 + 1800, 14 * 3600 + 1800]
    assert daily_at(zone(BERLIN), hours) == Cron(zone=zone(BERLIN), hours=(2, 14), minutes=(30,))
    assert daily_at(zone(BERLIN), [15]) == Cron(zone=zone(BERLIN), hours=(0,), minutes=(0,), seconds=(15,))


# Days


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"days_of_month": (13,), "days_of_week": (5,)}, ["2026-02-13", "2026-03-13", "2026-11-13"]),
        ({"days_of_month": (13,), "days_of_week": (5,), "either_day": True, "months": (11,)},
         ["2026-11-06", "2026-11-13", "2026-11-20", "2026-11-27"]),
        ({"days_of_month": (LAST,), "months": (1, 2, 4)}, ["2026-01-31", "2026-02-28", "2026-04-30"]),
        ({"days_of_month": (31,), "months": (1, 2, 3, 4)}, ["2026-01-31", "2026-03-31"]),
        ({"days_of_week": (), "nth_days_of_week": ((1, 2), (5, LAST)), "months": (5, 10)},
         ["2026-05-11", "2026-05-29", "2026-10-12", "2026-10-30"]),
        ({"days_of_week": (), "nth_days_of_week": ((0, 5),), "months": (1, 2, 3, 4, 5, 6, 7, 8)},
         ["2026-03-29", "2026-05-31", "2026-08-30"]),
    ],
)  # fmt: skip
def test_days_of_2026(fields, expected):
    found = fires(daily(0, 0, UTC, **fields), "2026-01-01T00:00Z", "2027-01-01T00:00Z")
    assert [time[:10] for time in found] == expected


def test_29_february_on_a_monday_over_a_year_that_leaps_none():
    times = daily(0, 0, UTC, days_of_month=(29,), months=(2,), days_of_week=(1,))
    assert fires(times, "2026-01-01T00:00Z", "2120-01-01T00:00Z") == [
        "2044-02-29T00:00", "2072-02-29T00:00", "2112-02-29T00:00",
    ]  # fmt: skip
    assert iso(times.previous(from_iso("2112-02-28T00:00Z")) or 0) == "2072-02-29T00:00:00.000Z"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"days_of_month": (31,), "months": (4,)}, "31 does not exist in month 4: give 30 at most"),
        ({"days_of_month": (30, 31), "months": (2,)}, "day of month 30 .* month 2: give 29 at most"),
        ({"days_of_month": (31,), "months": (2, 4, 6)}, "day of month 31 .* months 2, 4, 6: give 30 at"),
        ({"hours": ()}, "hours allows no value"),
        ({"days_of_week": ()}, "days_of_week allows no value"),
    ],
)
def test_what_never_fires_is_refused_with_its_field(fields, message):
    with pytest.raises(ScheduleError, match=message):
        Cron(**{"zone": zone(UTC), "minutes": (0,), "hours": (0,), **fields})


def test_key_is_the_same_text_for_the_same_schedule():
    assert daily(2, 30, BERLIN, days_of_week=(1, 5)).key == "cron 0 30 2 * * 1,5 - and once Europe/Berlin"
    nth = daily(2, 30, UTC, days_of_week=(), nth_days_of_week=((1, 2), (5, LAST)), every_occurrence=True)
    assert nth.key == "cron 0 30 2 * *  1#2,5#-1 and every UTC"
    assert daily(2, 30, UTC).key != daily(2, 30, BERLIN).key


# Properties of all fire times


def some(low: int, high: int):
    return st.one_of(
        st.just(tuple(range(low, high + 1))),
        st.sets(st.integers(low, high), min_size=1, max_size=6).map(lambda found: tuple(sorted(found))),
    )


crons = st.builds(
    Cron,
    zone=st.sampled_from(ZONES).map(zone),
    seconds=st.one_of(st.just((0,)), some(0, 59)),
    minutes=some(0, 59),
    hours=some(0, 23),
    days_of_month=st.one_of(st.just(tuple(range(1, 32))), some(1, 28), st.just((LAST,))),
    months=some(1, 12),
    days_of_week=some(0, 6),
    either_day=st.booleans(),
    every_occurrence=st.booleans(),
)
dailies = st.builds(
    daily_at, st.sampled_from(ZONES).map(zone), st.sets(st.integers(0, 86_399), min_size=1, max_size=5)
)
schedules = st.one_of(crons, dailies, st.integers(100, 3 * DAY).map(Interval))
# 2006 to 2037, and often near a change of clocks.
CHANGES = [
    "2026-03-29T01:00Z", "2026-10-25T01:00Z", "2026-03-08T07:00Z", "2026-11-01T06:00Z", "2026-09-06T04:00Z",
    "2026-04-05T03:00Z", "2026-10-03T15:30Z", "2026-04-04T15:00Z", "2010-11-07T02:31Z", "2010-03-14T03:31Z",
    "2011-12-30T10:00Z", "2026-02-15T02:00Z", "2026-03-22T02:00Z", "2026-11-01T05:00Z",
]  # fmt: skip
instants = st.one_of(
    st.integers(from_iso("2006-01-01T00:00Z"), from_iso("2037-01-01T00:00Z")),
    st.builds(
        lambda change, off: from_iso(change) + off,
        st.sampled_from(CHANGES),
        st.integers(-26 * HOUR, 26 * HOUR),
    ),
)


@settings(deadline=None)
@given(schedules, instants)
def test_strictly_increasing_and_next_and_previous_agree(times, start):
    found = [start]
    for _ in range(30):
        following = times.next(found[-1])
        if following is None:
            break
        assert following > found[-1]
        assert times.previous(following) == following
        if len(found) > 1:
            assert times.previous(following - 1) == found[-1]
        found.append(following)


@settings(deadline=None)
@given(schedules, instants, st.integers(0, 3 * DAY))
def test_the_same_from_any_start(times, start, later):
    following = times.next(start)
    assume(following is not None and following > start + later)
    assert times.next(start + later) == following


@settings(deadline=None)
@given(schedules, instants, st.integers(0, 3 * DAY), st.integers(0, 500))
def test_count_is_what_between_yields(times, after, length, most):
    found = 0
    for _ in times.between(after, after + length):
        found += 1
        if found == most:
            break
    assert times.count(after, after + length, most) == min(found, most)


@settings(deadline=None)
@given(crons, instants)
def test_each_fire_time_is_one_of_the_local_times_given(times, start):
    """Unless it is the end of a gap."""
    time = times.next(start)
    assume(time is not None and times.zone.offset(time) == times.zone.offset(time - 1))
    local = datetime.fromtimestamp(time / 1000, times.zone.tzinfo)
    assert (local.second, local.minute) == (
        (local.second if local.second in times.seconds else None),
        (local.minute if local.minute in times.minutes else None),
    )
    assert local.hour in times.hours
    assert local.month in times.months


@settings(deadline=None)
@given(st.sampled_from(ZONES), st.integers(0, 23), st.integers(0, 59), instants)
def test_a_fixed_time_runs_once_on_every_local_day(name, hour, minute, start):
    assume(name != "Pacific/Apia")  # which once had no 30 December
    times = daily(hour, minute, name)
    found = list(times.between(start, start + 10 * DAY))
    days = Counter(datetime.fromtimestamp(time / 1000, ZoneInfo(name)).date() for time in found)
    assert max(days.values()) == 1
    assert len(days) == (max(days) - min(days)).days + 1


def test_every_second_job_counts_years_at_once():
    whole = {"hours": tuple(range(24)), "minutes": tuple(range(60)), "seconds": tuple(range(60))}
    times = Cron(zone=zone(BERLIN), every_occurrence=True, **whole)
    assert times.count(NOON, NOON + 3000 * DAY, 10**9) == 3000 * DAY // 1000


def test_10_000_jobs_are_planned_within_a_second():
    fresh = [
        Cron(
            zone=zone(ZONES[i % len(ZONES)]),
            minutes=(i % 60,),
            hours=tuple(range(i % 24, 24)),
            days_of_week=(i % 7,),
        )
        for i in range(100)
    ]
    started = process_time()
    for i in range(10_000):
        fresh[i % 100].next(NOON + i)
    assert process_time() - started < 1


def test_what_fires_once_in_decades_is_found_at_once():
    times = daily(0, 0, BERLIN, days_of_month=(29,), months=(2,), days_of_week=(1,))
    started = process_time()
    for i in range(100):
        times.next(NOON + i * DAY)
    assert process_time() - started < 1


# Jitter


def test_jitter_is_the_same_each_time_and_differs_by_job_slot_and_node():
    waits = {
        jitter(job, slot, node, 10**6, None) for job in ("a", "b") for slot in (1, 2) for node in ("x", "y")
    }
    assert len(waits) == 8
    assert jitter("a", 1, "x", 10**6, None) == jitter("a", 1, "x", 10**6, None) == 55_830


@pytest.mark.parametrize(
    ("longest", "gap", "most"), [(100, None, 100), (100, 1000, 100), (100, 50, 25), (0, 50, 0)]
)
def test_jitter_reaches_from_0_to_the_most(longest, gap, most):
    waits = [jitter("report", slot, "node", longest, gap) for slot in range(4000)]
    assert (min(waits), max(waits)) == (0, most)


def test_jitter_is_even():
    counts = Counter(jitter("report", NOON + 1000 * i, "node", 9, None) for i in range(10_000))
    assert all(900 < counts[wait] < 1100 for wait in range(10))


def test_jitter_makes_every_node_win_its_share():
    nodes = "abcde"
    wins = Counter(
        min(nodes, key=lambda node: jitter("report", slot, node, 100_000, None)) for slot in range(5000)
    )
    assert all(900 < wins[node] < 1100 for node in nodes)


# What is due

EVERY = Interval(10_000)


def offer(
    times=EVERY, *, after, now, since=None, delay=lambda slot: 0, catch_up="latest", window=None, limit=1000,
    most_late=1000,
):
    """due() in seconds since NOON; since defaults to what came due in the last 10 s."""
    found = due(
        times, after=NOON + after * 1000, now=NOON + now * 1000,
        on_time_since=NOON + (now - 10 if since is None else since) * 1000,
        delay=delay, catch_up=catch_up, window=None if window is None else window * 1000, limit=limit,
        most_late=most_late,
    )  # fmt: skip
    leap = found.leap and (relative(found.leap.first), relative(found.leap.last), found.leap.count)
    return [relative(slot) for slot in found.slots], found.late, leap


def relative(instant: int) -> float:
    return (instant - NOON) / 1000


def test_nothing_is_due_before_the_next_slot():
    assert offer(after=0, now=9.999) == ([], 0, None)


def test_a_slot_is_due_at_its_time():
    assert offer(after=0, now=10) == ([10], 0, None)


def test_a_slot_is_due_when_its_jitter_has_passed():
    def wait(slot: int) -> int:
        return 2000

    assert offer(after=0, now=11.999, delay=wait) == ([], 0, None)
    assert offer(after=0, now=12, delay=wait) == ([10], 0, None)
    assert offer(after=0, now=21.9, delay=wait) == ([10], 0, None)


def test_all_that_came_due_since_the_last_look_is_on_time():
    assert offer(after=0, now=30, since=0, catch_up="none") == ([10, 20, 30], 0, None)


def test_coming_due_counts_with_the_jitter():
    """A slot before the last look whose jitter passed after it is on time."""
    assert offer(after=0, now=25, since=11, delay=lambda slot: 2000, catch_up="none") == ([10, 20], 0, None)


@pytest.mark.parametrize(
    ("catch_up", "window", "expected"),
    [
        ("latest", None, ([40, 50], 1, (10, 30, 3))),
        ("none", None, ([50], 0, (10, 40, 4))),
        ("all", None, ([10, 20, 30, 40, 50], 4, None)),
        ("latest", 10, ([40, 50], 1, (10, 30, 3))),
        ("latest", 9, ([50], 0, (10, 40, 4))),
        ("all", 30, ([20, 30, 40, 50], 3, (10, 10, 1))),
        ("all", 29, ([30, 40, 50], 2, (10, 20, 2))),
        ("all", 0, ([50], 0, (10, 40, 4))),
    ],
)
def test_catch_up(catch_up, window, expected):
    assert offer(after=0, now=50, catch_up=catch_up, window=window) == expected


def test_late_slots_alone():
    assert offer(after=0, now=50, since=50, catch_up="latest") == ([50], 1, (10, 40, 4))
    assert offer(after=0, now=50, since=50, catch_up="none") == ([], 0, (10, 50, 5))
    assert offer(after=0, now=50, since=99, catch_up="all") == ([10, 20, 30, 40, 50], 5, None)


def test_the_window_is_for_late_slots_only():
    assert offer(after=0, now=50, since=0, catch_up="latest", window=0) == ([10, 20, 30, 40, 50], 0, None)


def test_the_limit_takes_the_oldest_first():
    assert offer(after=0, now=50, catch_up="all", limit=2) == ([10, 20], 2, None)
    assert offer(after=0, now=50, catch_up="latest", limit=1) == ([40], 1, (10, 30, 3))
    assert offer(after=0, now=50, since=0, limit=3) == ([10, 20, 30], 0, None)


def test_slots_at_and_before_the_epoch():
    found = due(
        EVERY, after=-25_000, now=0, on_time_since=0, delay=lambda slot: 0, catch_up="latest", window=None
    )
    assert found == Due((0,), 1, Leap(-20_000, -10_000, 2))


@pytest.mark.parametrize("catch_up", ["latest", "none", "all"])
@pytest.mark.parametrize("kind", ["interval", "cron"])
def test_years_of_an_every_second_job_are_decided_at_once(kind, catch_up):
    whole = {"hours": tuple(range(24)), "minutes": tuple(range(60)), "seconds": tuple(range(60))}
    cron = Cron(zone=zone(BERLIN), every_occurrence=True, **whole)
    started = process_time()
    found = due(
        Interval(1000) if kind == "interval" else cron,
        after=NOON - 3000 * DAY, now=NOON, on_time_since=NOON - 10_000, delay=lambda slot: 100,
        catch_up=catch_up, window=HOUR if catch_up == "all" else None,
    )  # fmt: skip
    assert process_time() - started < 0.5
    on_time = tuple(NOON - 10_000 + 1000 * i for i in range(10))
    assert found == {
        "latest": Due((NOON - 11_000, *on_time), 1, Leap(NOON - 3000 * DAY + 1000, NOON - 12_000, COUNTED)),
        "none": Due(on_time, 0, Leap(NOON - 3000 * DAY + 1000, NOON - 11_000, COUNTED)),
        "all": Due(  # of the hour the newest 1000; what came on time is for the next look
            tuple(range(NOON - 1_010_000, NOON - 10_000, 1000)), 1000,
            Leap(NOON - 3000 * DAY + 1000, NOON - 1_011_000, COUNTED),
        ),
    }[catch_up]  # fmt: skip


@pytest.mark.parametrize("most", [1, 3, 4, 5])
def test_all_catches_up_the_newest_of_the_late_slots(most):
    found = offer(after=0, now=50, since=40, catch_up="all", most_late=most)
    late = [10, 20, 30, 40][-most:]
    leap = None if most >= 4 else (10, late[0] - 10, 4 - most)
    assert found == ([*late, 50], len(late), leap)


def test_the_newest_late_slots_are_offered_oldest_first_in_several_looks():
    assert offer(after=0, now=50, since=50, catch_up="all", most_late=3, limit=2) == (
        [30, 40], 2, (10, 20, 2),
    )  # fmt: skip
    assert offer(after=40, now=50, since=50, catch_up="all", most_late=3, limit=2) == ([50], 1, None)


def test_the_window_comes_before_the_newest():
    assert offer(after=0, now=50, since=50, catch_up="all", most_late=3, window=10) == (
        [40, 50], 2, (10, 30, 3),
    )  # fmt: skip


def test_a_month_of_an_every_second_job_is_caught_up_quickly():
    started = process_time()
    found = due(
        Interval(1000), after=NOON - 30 * DAY, now=NOON, on_time_since=NOON, delay=lambda slot: 0,
        catch_up="all", window=None, limit=200,
    )  # fmt: skip
    assert process_time() - started < 0.2
    first = NOON - 999_000
    assert found.slots == tuple(range(first, first + 200_000, 1000))
    assert (found.late, found.leap) == (200, Leap(NOON - 30 * DAY + 1000, first - 1000, COUNTED))


def waiting(times, job: str, longest: int):
    """The delay of a real node: jitter, at most half the gap."""

    def delay(slot: int) -> int:
        following = times.next(slot)
        return jitter(job, slot, "node", longest, None if following is None else following - slot)

    return delay


@settings(deadline=None)
@given(
    times=st.one_of(crons, st.integers(MINUTE, DAY).map(Interval)),
    after=instants,
    length=st.integers(0, 20 * HOUR),
    since=st.integers(-HOUR, 20 * HOUR),
    longest=st.integers(0, HOUR),
    catch_up=st.sampled_from(["latest", "all", "none"]),
    window=st.one_of(st.none(), st.integers(0, 20 * HOUR)),
    limit=st.integers(1, 40),
    most_late=st.integers(1, 40),
)
def test_every_due_slot_is_offered_or_leapt_or_waits(
    times, after, length, since, longest, catch_up, window, limit, most_late
):
    now, delay = after + length, waiting(times, "report", longest)
    assume(times.count(after, now, 3000) < 3000)
    came_due = [slot for slot in times.between(after, now) if slot + delay(slot) <= now]
    late = [slot for slot in came_due if slot + delay(slot) <= after + since]
    found = due(
        times, after=after, now=now, on_time_since=after + since, delay=delay,
        catch_up=catch_up, window=window, limit=limit, most_late=most_late,
    )  # fmt: skip
    leapt = [s for s in came_due if found.leap and found.leap.first <= s <= found.leap.last]

    assert len(found.slots) <= limit
    assert not set(leapt) & set(found.slots)
    decided = [*leapt, *found.slots]
    assert decided == came_due[: len(decided)]  # the leap first, then the offered, without a hole
    assert len(decided) == len(came_due) or len(found.slots) == limit
    assert found.slots[: found.late] == tuple(slot for slot in found.slots if slot in late)
    if found.leap:
        assert found.leap == Leap(leapt[0], leapt[-1], len(leapt))
    assert all(slot in late for slot in leapt)
    if window is not None:
        assert all(now - slot <= window for slot in found.slots[: found.late])
    expected = {"latest": late[-1:], "all": late, "none": []}[catch_up]
    in_window = [slot for slot in expected if window is None or now - slot <= window]
    assert list(found.slots[: found.late]) == in_window[-most_late:][:limit]


# A job that was never seen


@pytest.mark.parametrize(
    ("first_seen", "window", "expected"),
    [
        (3, 60, [0, 10]),  # its latest slot, and what follows
        (3, 3.001, [0, 10]),
        (3, 3, [10]),  # not younger than the window
        (3, 0, [10]),
        (0, 60, [0, 10]),
        (0, 0, [10]),
    ],
)
def test_a_job_never_seen_begins_with_its_latest_slot_if_that_is_young(first_seen, window, expected):
    cursor = first_due(EVERY, first_seen=NOON + first_seen * 1000, window=int(window * 1000))
    slots, _, leap = offer(after=(cursor - NOON) / 1000, now=12, since=-1)
    assert (slots, leap) == (expected, None)


def test_a_job_never_seen_whose_slot_is_still_to_come():
    assert first_due(Once(NOON), first_seen=NOON - 5, window=60_000) == NOON - 5

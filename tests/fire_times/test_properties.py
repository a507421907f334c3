"""What holds of all fire times, whatever is written, in whatever zone, from wherever one looks.

tests/test_slots.py has properties of the walk by its fields; these are of what people write, and of what
nodes rely on: that two which began at different moments, one of them inside a repeated hour, name the same
slots, that windows join without a seam, and that every question is answered with little work.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import count, islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab
from hypothesis import assume, example, given
from hypothesis import strategies as st

from anarchon_celery.schedules import every, once
from anarchon_celery.slots import DAY, HOUR, MINUTE, from_iso, iso
from anarchon_celery.wallclock import LAST, Cron, Zone
from tests.fire_times.walks import times_of

UTC = timezone.utc
#: Some zones, and instants at which the clocks of each are changed.
CHANGES = {
    "UTC": ["2026-03-29T01:00Z"],
    "Africa/Casablanca": ["2026-02-15T02:00Z", "2026-03-22T02:00Z"],
    "America/Havana": ["2026-03-08T05:00Z", "2026-11-01T05:00Z"],
    "America/New_York": ["2026-03-08T07:00Z", "2026-11-01T06:00Z"],
    "America/Santiago": ["2026-09-06T04:00Z", "2026-04-05T03:00Z"],
    "America/St_Johns": ["2010-03-14T03:31Z", "2010-11-07T02:31Z"],
    "Antarctica/Troll": ["2026-03-29T01:00Z", "2026-10-25T01:00Z"],
    "Asia/Kathmandu": ["2026-10-25T01:00Z"],
    "Australia/Lord_Howe": ["2026-10-03T15:30Z", "2026-04-04T15:00Z"],
    "Europe/Berlin": ["2026-03-29T01:00Z", "2026-10-25T01:00Z"],
    "Europe/Dublin": ["2026-03-29T01:00Z", "2026-10-25T01:00Z"],
    "Pacific/Apia": ["2011-12-30T10:00Z", "2021-04-03T14:00Z"],
    "Pacific/Chatham": ["2026-09-26T14:00Z", "2026-04-04T14:00Z"],
}
ZONES = [*CHANGES]
BEGIN, END = from_iso("2006-01-01T00:00Z"), from_iso("2036-01-01T00:00Z")


# What people write -----------------------------------------------------------------------------------------


def words(low: int, high: int, *more: str) -> st.SearchStrategy[str]:
    """The ways to write a field."""
    number = st.integers(low, high)
    step = st.integers(1, high)
    plain = st.one_of(number.map(str), st.builds("{}-{}".format, number, number))
    stepped = st.builds("{}/{}".format, st.one_of(st.just("*"), plain), step)
    lists = st.lists(st.one_of(plain, stepped), min_size=2, max_size=3).map(",".join)
    return st.one_of(st.just("*"), plain, stepped, lists, *map(st.just, more))


night = st.sampled_from(["0", "1", "2", "23", "0,23", "1,2,3", "0-3", "1/2"])  # when clocks are changed
texts = st.builds(
    "{}{} {} {} {} {}".format,
    st.one_of(st.just(""), words(0, 59, "H").map("{} ".format)),
    words(0, 59, "H", "H/15"),
    st.one_of(words(0, 23, "H", "H(0-5)"), night),
    st.one_of(st.just("*"), words(1, 28, "L", "?", "25-L", "H")),
    st.one_of(st.just("*"), words(1, 12, "mar,oct", "nov-feb")),
    st.one_of(st.just("*"), words(0, 7, "mon-fri", "SUN", "?", "L7", "sun#1,sun#5", "5L")),
)
names = st.sampled_from(["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"])
crontabs = st.builds(
    crontab,
    minute=st.sampled_from(["*", "*/15", "0", "0,30", "7-50/9"]),
    hour=st.sampled_from(["*", "*/3", "2", "1,2,3", "22-3", "0"]),
    day_of_week=st.sampled_from(["*", "*", "sun", "mon-fri", "0,3"]),
    day_of_month=st.sampled_from(["*", "*", "1-7", "25-31", "13"]),
    month_of_year=st.sampled_from(["*", "*", "3,10", "*/2"]),
)
hours = st.one_of(st.integers(0, 23), st.sampled_from([0, 1, 2, 3, 23]))
times_of_day = st.builds("{:02}:{:02}".format, hours, st.integers(0, 59))
dailies = st.lists(times_of_day, min_size=1, max_size=4).map(lambda at: every("1d", at=at))
moments = st.datetimes(datetime(2006, 1, 1), datetime(2035, 12, 31))
schedules = st.one_of(texts, texts, names, crontabs, dailies, moments.map(once), st.integers(1, 10**6))

instants = st.integers(BEGIN, END)


def near(zone: str) -> st.SearchStrategy[tuple[str, int]]:
    """A zone, and an instant near a change of its clocks; often inside the repeated hour."""
    changes = st.sampled_from(CHANGES[zone]).map(from_iso)
    off = st.one_of(st.integers(-26 * HOUR, 26 * HOUR), st.integers(-2 * HOUR, 2 * HOUR))
    return st.tuples(st.just(zone), st.builds(int.__add__, changes, off))


zones = st.sampled_from(ZONES)
looks = st.one_of(st.tuples(zones, instants), zones.flatmap(near), zones.flatmap(near))


# From wherever one looks -----------------------------------------------------------------------------------


@given(schedules, looks)
def test_strictly_increasing_and_back_again(schedule, look):
    times, start = times_of(schedule, look[0]), look[1]
    found = list(islice(times.between(start, END), 20))
    assert all(start < earlier < later for earlier, later in pairwise(found))
    back: list[int] = []
    time = times.previous(found[-1]) if found else None
    while time is not None and time > start:
        back.append(time)
        time = times.previous(time - 1)
    assert found == back[::-1]
    before = times.previous(start)
    if before is not None:
        assert before <= start
        assert found[:1] == [it for it in [times.next(before)] if it is not None and it <= END]


@given(schedules, looks, st.lists(st.integers(0, 2 * DAY), min_size=1, max_size=6))
def test_nodes_that_began_at_different_moments_name_the_same_slots(schedule, look, later):
    """Also those that began inside the repeated hour, and those at a slot, just before it and just after."""
    times, begin = times_of(schedule, look[0]), look[1]
    whole = list(islice(times.between(begin, END), 60))
    assume(whole)
    starts = [begin + off for off in later] + [whole[0] - 1, whole[0], whole[0] + 1, whole[len(whole) // 2]]
    for start in starts:
        expected = [time for time in whole if time > start]
        assert expected == list(times.between(start, whole[-1])), f"began at {iso(start)}"


@given(schedules, looks, st.integers(0, 2 * DAY), st.integers(0, 2 * DAY))
@example("30 2 * * *", ("Europe/Berlin", from_iso("2026-10-24T20:00Z")), 5 * HOUR, DAY)
@example("0,30 2,3 * * *", ("Europe/Berlin", from_iso("2026-03-28T20:00Z")), 5 * HOUR, DAY)
@example("15,45 0,23 * * *", ("America/Toronto", from_iso("1919-03-31T00:00Z")), 5 * HOUR, DAY)
@example("0 0,1 * * *", ("America/Santiago", from_iso("2026-09-06T00:00Z")), 4 * HOUR, DAY)
def test_two_windows_that_meet_are_one(schedule, look, first, second):
    times, a = times_of(schedule, look[0]), look[1]
    b, c = a + first, a + first + second
    assume(times.count(a, c, 5_000) < 5_000)
    whole = list(times.between(a, c))
    assert whole == [*times.between(a, b), *times.between(b, c)]
    assert len(whole) == times.count(a, c, 5_000) == times.count(a, b, 5_000) + times.count(b, c, 5_000)


@given(schedules, looks)
def test_who_reads_the_same_text_anew_names_the_same_slots(schedule, look):
    zone, start = look
    one, two = times_of(schedule, zone), times_of(schedule, zone)
    assert one.key == two.key
    assert list(islice(one.between(start, END), 5)) == list(islice(two.between(start, END), 5))


# Only what is written, and what the zone has ---------------------------------------------------------------


def allows(times: Cron, local: datetime) -> bool:
    """Tell whether the fields allow a local time; written once more, in plain words."""
    tomorrow = local.date() + timedelta(days=1)
    weekday, week = local.isoweekday() % 7, (local.day + 6) // 7
    last_week = (local.date() + timedelta(days=7)).month != local.month
    by_month = local.day in times.days_of_month or (LAST in times.days_of_month and tomorrow.day == 1)
    nth = {n for day, n in times.nth_days_of_week if day == weekday}
    by_week = weekday in times.days_of_week or week in nth or (LAST in nth and last_week)
    return (
        local.microsecond == 0
        and local.second in times.seconds
        and local.minute in times.minutes
        and local.hour in times.hours
        and local.month in times.months
        and (by_month or by_week if times.either_day else by_month and by_week)
    )


@given(st.one_of(texts, names, crontabs), looks)
@example("*/30 1,2 * * *", ("Australia/Lord_Howe", from_iso("2026-04-04T13:00Z")))
@example("10,40 0,1 * * *", ("America/Havana", from_iso("2026-03-08T04:00Z")))
def test_a_slot_shows_what_is_written_or_is_the_first_instant_after_a_gap(schedule, look):
    zone, start = look
    times, there = times_of(schedule, zone), ZoneInfo(zone)
    for time in islice(times.between(start, END), 12):
        local = datetime.fromtimestamp(time / 1000, there)
        if allows(times, local):
            assert times.every_occurrence or local.fold == 0, f"{iso(time)} is its second time"
            continue
        before = datetime.fromtimestamp((time - 1000) / 1000, there)
        assert before.utcoffset() < local.utcoffset(), f"{iso(time)} is no end of a gap"
        assert not times.every_occurrence, "a wildcard does not run for what was left out"
        left_out = before.replace(tzinfo=None) + timedelta(seconds=1)
        while not allows(times, left_out):
            left_out += timedelta(seconds=1)
            assert left_out < local.replace(tzinfo=None), f"at {iso(time)} nothing was left out"


@given(st.one_of(texts, names, crontabs), looks)
def test_between_two_slots_there_is_nothing_that_is_written(schedule, look):
    """Unless it is the second time of a fixed one."""
    zone, start = look
    times, there = times_of(schedule, zone), ZoneInfo(zone)
    for minute in range(start // MINUTE * MINUTE, start + 2 * HOUR, MINUTE):
        local = datetime.fromtimestamp(minute / 1000, there)
        if allows(times, local) and (times.every_occurrence or local.fold == 0):
            assert minute == times.previous(minute), f"{iso(minute)} was left out"


@given(dailies, looks)
def test_a_fixed_time_runs_on_every_day_that_there_is(schedule, look):
    zone, start = look
    times, there = times_of(schedule, zone), ZoneInfo(zone)

    def date(instant: int):
        return datetime.fromtimestamp(instant / 1000, there).date()

    shown = {date(instant) for instant in range(start, start + 5 * DAY, HOUR)}
    found = [date(time) for time in times.between(start - 2 * DAY, start + 7 * DAY)]
    assert shown <= set(found)
    assert all(found.count(day) <= len(set(schedule.at)) for day in shown)


@given(looks, st.integers(-90, 90))
def test_once_is_when_the_fixed_time_of_that_date_runs(look, minutes):
    """Also for a local time that the zone leaves out, or has twice."""
    zone, at = look
    local = datetime.fromtimestamp(at // 1000, ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    local += timedelta(minutes=minutes)
    times = times_of(f"{local:%S %M %H %d %m *}", zone)
    found = list(times.between(at - 2 * DAY, at + 2 * DAY))
    assume(found or zone != "Pacific/Apia")  # which has no 30 December 2011
    assert found == [times_of(once(local), zone).next(0)]


def test_once_on_a_day_that_there_is_not_is_the_first_instant_after_it():
    (time,) = times_of(once("2011-12-30 12:00"), "Pacific/Apia").between(0, END)
    assert "2011-12-30T10:00:00.000Z" == iso(time), "31 December, 00:00 there"


@given(
    looks, st.integers(0, 59), st.sampled_from(["*", "*/2", "2", "1,2", "0-3"]),
    st.sampled_from([("*", "*"), ("13", "*"), ("1-7", "*"), ("*", "sun"), ("*", "mon-fri"), ("*", "0,3")]),
)  # fmt: skip
def test_a_crontab_and_the_same_text_agree_where_they_mean_the_same(look, minute, hour, days):
    """At most one of the days restricted: Celery lets both match, POSIX either."""
    zone, start = look
    written = crontab(minute, hour, day_of_month=days[0], day_of_week=days[1])
    times, text = times_of(written, zone), times_of(f"{minute} {hour} {days[0]} * {days[1]}", zone)
    assert list(islice(times.between(start, END), 10)) == list(islice(text.between(start, END), 10))
    assert times.previous(start) == text.previous(start)


# Intervals -------------------------------------------------------------------------------------------------


@given(st.one_of(st.integers(100, 2_000), st.integers(100, 400 * DAY)), looks)
def test_intervals_count_from_the_epoch_down_to_100_ms(ms, look):
    zone, start = look
    times = times_of(timedelta(milliseconds=ms), zone)
    first = times.next(start)
    assert (0, True) == (first % ms, 0 < first - start <= ms)
    assert [first + n * ms for n in range(5)] == list(islice(times.between(start, first + 5 * ms), 5))
    assert first - ms == times.previous(first - 1)


# Little work -----------------------------------------------------------------------------------------------


class Counting(tzinfo):
    """A zone that counts how often it is asked."""

    def __init__(self, name: str) -> None:
        self.zone, self.asked = ZoneInfo(name), 0

    def fromutc(self, moment: datetime) -> datetime:
        self.asked += 1
        return self.zone.fromutc(moment.replace(tzinfo=self.zone)).replace(tzinfo=self)

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        return None if moment is None else moment.replace(tzinfo=self.zone).utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str:
        return self.zone.key


unique = count()


def counted(schedule, zone: str) -> tuple[Cron, Counting]:
    """Fire times of which nothing is remembered yet, and what counts their questions."""
    asked = Counting(zone)
    return replace(times_of(schedule), zone=Zone(f"{zone} {next(unique)}", asked)), asked


#: Of a day its offset is asked at some places, and where they differ to the millisecond of the change.
A_DAY = 45
A_LOOK = 5 * A_DAY  # the day itself, those about it, and the next that matches


def ask(question: str, schedule, zone: str, at: int) -> tuple[int | None, int]:
    """The answer to a question that nobody has put before, and how often the zone had to be asked for it."""
    times, asked = counted(schedule, zone)
    answer = times.count(at, at + 2 * DAY, 1_000) if question == "count" else getattr(times, question)(at)
    return answer, asked.asked


@given(st.one_of(texts, names, crontabs, dailies), looks)
def test_any_question_is_answered_by_a_look_at_a_few_days(schedule, look):
    zone, at = look
    for question in ("next", "previous"):
        answer, asked = ask(question, schedule, zone, at)
        years = 41 if answer is None else abs(answer - at) // (365 * DAY) + 1
        # A day may match and yet have nothing: a step in the hour that its spring leaves out.
        assert 0 < asked <= A_LOOK + (years - 1) * 2 * A_DAY
    assert 0 < ask("count", schedule, zone, at)[1] <= A_LOOK


@pytest.mark.parametrize(
    ("schedule", "zone", "question", "at", "expected"),
    [
        (crontab(0, 0, day_of_month=29, month_of_year=2, day_of_week=1), "Europe/Berlin", "next",
         "2072-03-01T00:00Z", "2112-02-28T23:00:00.000Z"),
        (crontab(0, 0, day_of_month=29, month_of_year=2, day_of_week=1), "America/New_York", "previous",
         "2112-02-28T00:00Z", "2072-02-29T05:00:00.000Z"),
        ("0 0 * 2 mon#5", "Asia/Kathmandu", "next", "2044-03-01T00:00Z", "2072-02-28T18:15:00.000Z"),
        ("59 59 23 29 2 *", "UTC", "next", "2096-03-01T00:00Z", "2104-02-29T23:59:59.000Z"),
        ("0 0 30 12 *", "Pacific/Apia", "next", "2011-12-01T00:00Z", "2012-12-29T10:00:00.000Z"),
        ("*/20 2 * * L7", "Europe/Berlin", "next", "2026-03-01T00:00Z", "2026-04-26T00:00:00.000Z"),
    ],
)  # fmt: skip
def test_what_is_rare_is_found_by_a_look_at_a_few_days(schedule, zone, question, at, expected):
    answer, asked = ask(question, schedule, zone, from_iso(at))
    assert expected == iso(answer)
    assert asked <= A_LOOK


@pytest.mark.parametrize("question", ["next", "previous"])
@pytest.mark.parametrize(
    ("schedule", "zone"),
    [
        ("*/20 2 * 3 L7", "Europe/Berlin"),
        (crontab("*/20", 2, month_of_year=3, day_of_month="8-14", day_of_week="sun"), "America/New_York"),
    ],
)
def test_a_step_that_its_zone_leaves_out_every_year_is_given_up_in_the_end(schedule, zone, question):
    """That it can never fire is no property of the text: until 2006 New York changed its clocks in April."""
    answer, asked = ask(question, schedule, zone, from_iso("2060-01-01T00:00Z"))
    assert answer is None
    assert 40 <= asked <= 42 * A_DAY


@pytest.mark.parametrize("schedule", ["@yearly", crontab(0, 0, day_of_month=1, month_of_year=1)])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Apia", "America/Santiago"])
def test_a_walk_ends_with_the_calendar(schedule, zone):
    times = times_of(schedule, zone)
    forwards = list(times.between(from_iso("9990-06-01T00:00Z"), from_iso("9999-12-01T00:00Z")))
    assert 8 == len(forwards)
    backwards = [from_iso("0010-06-01T00:00Z")]
    while (time := times.previous(backwards[-1] - 1)) is not None:
        backwards.append(time)
    assert 9 == len(backwards[1:])

"""Schedules that nobody can look into: each slot follows from the one before."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from celery import Celery, schedules

from anarchon_celery import chain as chain_module
from anarchon_celery.chain import CHECKS, KEPT, SUCCESSORS, UNSAID, Chain
from anarchon_celery.errors import ScheduleError
from anarchon_celery.schedules import cron, every, fire_times
from anarchon_celery.slots import DAY, HOUR, MINUTE, Due, Leap, due, first_due, from_iso, iso


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However slow this machine is, a look ends where the checks do."""
    monkeypatch.setattr(chain_module, "SECONDS", math.inf)


BERLIN = ZoneInfo("Europe/Berlin")
NOON = from_iso("2026-10-10T12:00:30Z")
app = Celery("test", set_as_current=False, config_source={"timezone": "Europe/Berlin"})


class Asked(schedules.BaseSchedule):
    """Has no idea but an answer, and keeps the instants at which it was asked."""

    def __init__(self, answer, **kwargs):
        super().__init__(app=app, **kwargs)
        self.answer = answer
        self.asked = []

    def is_due(self, last_run_at):
        self.asked.append(instant(self.now()))
        return self.answer(instant(last_run_at), instant(self.now()))


class Workdays(schedules.crontab):
    """A crontab with holidays."""

    holidays = ("2026-10-12", "2026-10-14")

    def is_due(self, last_run_at):
        if str(self.now().date()) in self.holidays:
            return schedules.schedstate(False, 3600)
        return super().is_due(last_run_at)


class Delayed(schedules.schedule):
    """An interval whose rest is what it says, and a second more."""

    def remaining_estimate(self, last_run_at):
        return super().remaining_estimate(last_run_at) + timedelta(seconds=1)


class Polled(schedules.BaseSchedule):
    """As django-celery-beat does it: not due, look again in five seconds."""

    def __init__(self, every, **kwargs):
        super().__init__(**kwargs)
        self.every = every

    def is_due(self, last_run_at):
        return schedules.schedstate(self.now() - last_run_at >= self.every, 5.0)


def instant(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)


def chain(schedule, zone=BERLIN) -> Chain:
    times = fire_times(schedule, timezone=zone)
    assert isinstance(times, Chain)
    return times


def shown(times, after: str, until: str) -> list[str]:
    return [iso(time)[:19] for time in times.between(from_iso(after), from_iso(until))]


def late(times, catch_up: str, *, after: int, now: int, **more) -> Due:
    return due(
        times, after=after, now=now, on_time_since=now - 10_000, delay=lambda slot: 0, catch_up=catch_up,
        window=None, **more,
    )  # fmt: skip


# What the successor is


def test_a_crontab_with_holidays():
    times = chain(Workdays(0, 9, app=app))
    assert shown(times, "2026-10-10T12:00Z", "2026-10-17T00:00Z") == [
        "2026-10-11T07:00:00",
        "2026-10-12T22:00:00",  # what the holiday kept is due as soon as that is over: so its is_due() says
        "2026-10-13T07:00:00",
        "2026-10-14T22:00:00",
        "2026-10-15T07:00:00",
        "2026-10-16T07:00:00",
    ]


def test_a_schedule_of_its_own():
    """Every 40 s from the last slot on, and it says so."""
    times = chain(Asked(lambda last, now: (now >= last + 40_000, (last + 40_000 - now) / 1000)))
    assert times.next(NOON) == NOON + 40_000
    assert times.next(NOON + 7) == NOON + 40_007
    assert shown(times, "2026-10-10T12:00:30Z", "2026-10-10T12:02:30Z") == [
        "2026-10-10T12:01:10", "2026-10-10T12:01:50", "2026-10-10T12:02:30",
    ]  # fmt: skip


def test_one_that_only_says_what_remains():
    assert chain(Delayed(30, app=app)).next(NOON) == NOON + 31_000


def test_the_next_check_is_no_slot():
    times = chain(Polled(timedelta(hours=1), app=app))
    assert times.next(NOON) == NOON + HOUR
    assert chain(Polled(timedelta(seconds=12), app=app)).next(NOON) == NOON + 15_000  # as it is looked at


def test_one_that_is_always_due_is_due_at_each_of_its_checks():
    times = chain(Asked(lambda last, now: (True, 5)))
    assert times.next(NOON) == NOON + 5_000
    assert chain(Asked(lambda last, now: (True, 0))).next(NOON) == NOON + 100


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (timedelta(minutes=2), 120_000),
        (None, UNSAID * 1000),
        (2, 2_000),
        (0.25, 250),
        (0.0004, 100),
        (1.0004, 1_001),  # the next whole millisecond: before it the answer would be the same
        (0.3, 300),
        (True, 1_000),
    ],
)
def test_seconds_to_the_next_check(seconds, expected):
    assert chain(Asked(lambda last, now: (now > last, seconds))).next(NOON) == NOON + expected


def test_its_clock_is_ours_and_nothing_else():
    def wrong() -> datetime:
        raise AssertionError("asked for the time")

    schedule = Asked(lambda last, now: (now > last, 7), nowfun=wrong)
    schedule.now = wrong
    assert chain(schedule).next(NOON) == NOON + 7_000
    assert schedule.asked == [NOON, NOON + 7_000]
    assert (schedule.now, schedule.nowfun) == (wrong, wrong)  # it is a copy that is asked


def test_one_that_asks_its_nowfun_itself():
    class Asking(schedules.BaseSchedule):
        def is_due(self, last_run_at):
            return self.nowfun() - last_run_at >= timedelta(seconds=9), 3

    assert chain(Asking(app=app)).next(NOON) == NOON + 9_000


def test_it_is_told_the_time_in_the_zone_of_the_app():
    seen = []

    class Noting(schedules.BaseSchedule):
        def is_due(self, last_run_at):
            seen.append((str(last_run_at), str(self.now()), last_run_at.tzinfo))
            return (True, 60)

    chain(Noting(app=app)).next(NOON)
    first = "2026-10-10 14:00:30+02:00"
    assert seen == [(first, first, BERLIN), (first, "2026-10-10 14:01:30+02:00", BERLIN)]


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        (("*/15", "*"), "2026-10-24T22:00Z"),
        (("*/15", "*"), "2026-10-25T01:20Z"),  # Celery 5.7 is due all through the rest of the hour
        ((0, "*"), "2026-10-24T22:00Z"),  # Celery leaves the repeated hour out
        ((30, "1,2,3"), "2026-10-25T01:20Z"),
        ((30, "1,2,3"), "2026-03-28T23:20Z"),
    ],
)
def test_what_a_subclass_leaves_to_celerys_arithmetic_is_right_where_clocks_change(fields, start):
    plain = fire_times(schedules.crontab(*fields, app=app), timezone=BERLIN)
    expected = list(plain.between(from_iso(start), from_iso(start) + 6 * HOUR))
    assert expected
    assert list(chain(Workdays(*fields, app=app)).between(from_iso(start), from_iso(start) + 6 * HOUR)) == (
        expected
    )


def test_the_rest_that_a_crontab_adds_to_where_clocks_change():
    class Later(schedules.crontab):
        def remaining_estimate(self, last_run_at, **ffwd):
            return super().remaining_estimate(last_run_at, **ffwd) + timedelta(seconds=5)

    start = from_iso("2026-10-25T00:50:30Z")
    assert iso(chain(Later("*/15", app=app)).next(start)) == "2026-10-25T01:00:05.000Z"


class Own(schedules.schedule):
    def is_due(self, last_run_at):
        return super().is_due(last_run_at)


def test_a_relative_interval_of_a_subclass_is_rounded_as_celery_does():
    times = chain(Own(timedelta(hours=1), relative=True, app=app))
    assert iso(times.next(NOON)) == "2026-10-10T13:00:00.000Z"


def test_an_interval_of_a_subclass_where_clocks_change():
    start = from_iso("2026-10-25T00:59:30Z")
    assert chain(Own(60, app=app)).next(start) == start + 60_000
    assert chain(Own(timedelta(days=1), app=app)).next(start) == start + DAY


def test_the_sun_with_an_opinion():
    pytest.importorskip("ephem")

    class Sunday(schedules.solar):
        def is_due(self, last_run_at):
            return super().is_due(last_run_at) if self.now().weekday() == 6 else (False, 3600)

    plain = schedules.solar("sunset", 52.5, 13.4, app=app)
    times = chain(Sunday("sunset", 52.5, 13.4, app=app))
    saturday = from_iso("2026-10-10T20:00Z")
    assert times.next(saturday) == fire_times(plain, timezone=BERLIN).next(saturday)


def test_one_of_ours_with_an_opinion():
    class Even(cron):
        def is_due(self, last_run_at):
            return super().is_due(last_run_at) if self.now().hour % 2 == 0 else (False, 60)

    times = chain(Even("0 * * * *", app=app))
    assert shown(times, "2026-10-10T11:30Z", "2026-10-10T15:00Z") == [
        "2026-10-10T12:00:00", "2026-10-10T14:00:00",
    ]  # fmt: skip


def test_django_celery_beats_crontab_is_a_crontab():
    """Its is_due() only brings the last run into its own zone."""

    class TzAwareCrontab(schedules.crontab):
        def is_due(self, last_run_at):
            raise AssertionError

    TzAwareCrontab.is_due.__module__ = "django_celery_beat.tzcrontab"
    schedule = TzAwareCrontab(0, 6)
    schedule.tz = ZoneInfo("Asia/Tokyo")
    assert fire_times(schedule, timezone=BERLIN).key == "cron 0 0 6 * * * - and once Asia/Tokyo"


# Bounds


def test_one_that_is_never_due_is_looked_at_for_some_checks_at_a_time():
    schedule = Asked(lambda last, now: (False, 5))
    times = chain(schedule)
    assert times.next(NOON) is None
    assert len(schedule.asked) == CHECKS
    assert times.looked_until(NOON) == NOON + CHECKS * 5_000

    assert times.next(NOON) is None
    assert schedule.asked[CHECKS] == NOON + CHECKS * 5_000  # goes on from there
    assert times.looked_until(NOON) == NOON + 2 * CHECKS * 5_000
    assert times.looked_until(NOON + 1) is None


def test_a_search_that_was_cut_short_ends_at_the_slot():
    times = chain(Polled(timedelta(days=1), app=app))
    looks = 0
    while times.next(NOON) is None:
        assert times.looked_until(NOON) == NOON + (looks + 1) * CHECKS * 5_000
        looks += 1
    assert (times.next(NOON), looks) == (NOON + DAY, 17)
    assert times.looked_until(NOON) is None


def test_one_that_is_not_due_in_this_calendar():
    times = chain(Asked(lambda last, now: (False, 1e15)))
    assert (times.next(NOON), times.looked_until(NOON)) == (None, None)
    assert times.since(NOON).looked_until(NOON) is None


def test_answers_are_kept_so_that_a_slot_is_searched_once():
    schedule = Asked(lambda last, now: (now > last, 60))
    times = chain(schedule)
    assert times.next(NOON) == times.next(NOON) == NOON + MINUTE
    assert len(schedule.asked) == 2
    for slot in range(NOON + 1, NOON + KEPT + 1):
        times.next(slot)
    times.next(NOON)
    assert schedule.asked[-1] == NOON + MINUTE  # but not for ever


def test_one_that_raises():
    class Broken(schedules.BaseSchedule):
        def is_due(self, last_run_at):
            raise LookupError("no calendar")

    times = chain(Broken(app=app))
    for _ in range(2):
        with pytest.raises(LookupError, match="no calendar"):
            times.next(NOON)


@pytest.mark.parametrize(
    "answer",
    [None, True, 5, (), (True,), (True, 5, 6), "ab", (False, "5"), (False, math.nan), (False, math.inf),
     (False, -math.inf), (False, -0.5), (True, timedelta(seconds=-1)), (False, 10**400), (False, 1j),
     (False, Decimal(5))],
)  # fmt: skip
def test_answers_that_are_none(answer):
    with pytest.raises(ScheduleError) as raised:
        chain(Asked(lambda last, now: answer)).next(NOON)
    right = "a pair is right: whether it is due, and the seconds to the next check"
    assert f"Asked.is_due() answered {answer!r}: {right}" == str(raised.value)


def test_one_that_has_nothing_to_say():
    with pytest.raises(ScheduleError, match=r"Lunar has no is_due\(last_run_at\): give it one"):
        fire_times(type("Lunar", (schedules.BaseSchedule,), {})(app=app), timezone=BERLIN)


# From a cursor on


def test_a_chain_has_no_past():
    times = chain(Asked(lambda last, now: (now > last, 60)))
    assert times.previous(NOON) is None
    assert first_due(times, first_seen=NOON, window=HOUR) == NOON
    assert times.chained and times.since(NOON).chained
    assert not fire_times(every(10), timezone=BERLIN).chained


def test_a_walk_from_a_cursor():
    walk = chain(Asked(lambda last, now: (now > last, 60))).since(NOON)
    at = [NOON + n * MINUTE for n in range(20)]
    assert walk.previous(NOON) is None
    assert walk.previous(at[3] - 1) == at[2]
    assert walk.previous(at[3]) == at[3]
    assert walk.next(at[3]) == at[4]
    assert walk.next(0) == at[1]
    assert walk.next(at[10] + 5) == at[11]
    assert list(walk.between(at[2], at[5])) == at[3:6]
    assert list(walk.between(at[5], at[2])) == []
    assert walk.count(at[2], at[5], 99) == 3
    assert walk.count(at[2], at[5], 2) == 2
    assert walk.count(at[5], at[2], 2) == 0
    assert walk.since(NOON) is walk
    assert walk.since(NOON + 1).next(NOON + 1) == at[1] + 1
    assert not walk.cut_short(at[19])
    assert walk.looked_until(at[19]) is None


def test_two_nodes_walk_the_same_way_from_the_same_floor():
    one, two = (chain(Workdays("*/20", "8-18", app=app)) for _ in range(2))
    two.next(NOON - DAY)  # whatever it saw before
    until = NOON + 7 * DAY
    assert list(one.since(NOON).between(NOON, until)) == list(two.between(NOON, until)) != []


def test_a_walk_ends_after_so_many_successors():
    times = chain(Asked(lambda last, now: (True, 1)))
    walk = times.since(NOON)
    end = NOON + SUCCESSORS * 1000
    assert walk.count(NOON, NOON + DAY, 10**9) == SUCCESSORS
    assert walk.previous(NOON + DAY) == end
    assert walk.next(end) is None
    assert walk.looked_until(end) == end + 1000
    assert walk.cut_short(NOON + DAY) and not walk.cut_short(end)
    assert walk.cut_short(end + 1000) and not walk.cut_short(end + 999)
    assert times.since(end).next(end) == end + 1000


def test_a_walk_ends_after_so_many_checks():
    schedule = Asked(lambda last, now: (now - last >= 900 * 5000, 5))
    walk = chain(schedule).since(NOON)
    assert walk.cut_short(NOON + 365 * DAY)
    assert 2 * SUCCESSORS < len(schedule.asked) < 2 * SUCCESSORS + CHECKS
    assert walk.count(NOON, NOON + 365 * DAY, 10**9) == 2 * SUCCESSORS // 901


def test_latest_and_none_leap_over_what_was_walked_and_go_on():
    times = chain(Asked(lambda last, now: (True, 1)))
    end, now = NOON + SUCCESSORS * 1000, NOON + 12_000 * 1000 + 500
    for catch_up in ("latest", "none"):
        found = late(times, catch_up, after=NOON, now=now)
        assert found == Due(leap=Leap(NOON + 1000, end, SUCCESSORS))
    found = late(times, "latest", after=end, now=now)
    assert found.late == 1
    assert found.slots == tuple(range(NOON + 11_990_000, NOON + 12_000_001, 1000))
    assert found.leap == Leap(end + 1000, NOON + 11_989_000, 1989)


def test_a_slot_is_not_the_latest_while_the_search_goes_on():
    """5,000 s without a slot are more than one look."""
    times = chain(Asked(lambda last, now: (now - last >= (10_000_000 if last == NOON + 1000 else 1000), 1)))
    now = NOON + 10_100_000
    assert late(times, "latest", after=NOON, now=now) == Due(leap=Leap(NOON + 1000, NOON + 1000, 1))
    looks = 0
    while (found := late(times, "latest", after=NOON + 1000, now=now)) == Due():
        looks += 1
        assert looks < 12
    assert looks > 0
    assert found.slots[0] == NOON + 10_090_000 and found.late == 1
    assert found.leap == Leap(NOON + 10_001_000, NOON + 10_089_000, 89)


def test_all_offers_what_was_walked_of_a_walk_that_was_cut_short():
    times = chain(Asked(lambda last, now: (now - last >= (10_000_000 if last == NOON + 1000 else 1000), 1)))
    found = late(times, "all", after=NOON, now=NOON + 10_100_000)
    assert found == Due((NOON + 1000,), 1)


def test_all_offers_the_oldest_first():
    times = chain(Asked(lambda last, now: (True, 60)))
    found = late(times, "all", after=NOON, now=NOON + 10 * MINUTE, limit=3)
    assert found == Due(tuple(NOON + n * MINUTE for n in (1, 2, 3)), 3)


# The key


def test_the_key_tells_type_repr_and_zone():
    times = chain(Workdays(0, 9, app=app))
    shown = "<crontab: 0 9 * * * (m/h/dM/MY/d)>"
    assert times.key == f"chain tests.test_chain.Workdays {shown} Europe/Berlin"
    assert times.since(NOON).key == times.key
    plain = chain(Asked(None))
    assert plain.key == "chain tests.test_chain.Asked <tests.test_chain.Asked object> Europe/Berlin"


def test_the_key_is_the_same_in_every_process():
    code = (
        "from tests.test_chain import BERLIN, Asked, chain;"
        "padding = [object() for _ in range(999)]; print(chain(Asked(None)).key)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == chain(Asked(None)).key


def test_a_schedule_that_is_slow_to_answer_is_asked_for_a_while_only_and_further_later(monkeypatch):
    """Else it would hold up the other jobs of its node."""
    monkeypatch.setattr(chain_module, "SECONDS", 0.05)
    slow = Asked(lambda last, now: time.sleep(0.02) or (now - last >= 2_000, 0.1))
    times = fire_times(slow, timezone=BERLIN)
    looks = 0
    while (found := times.next(NOON)) is None:
        looks += 1
        assert NOON < times.looked_until(NOON) <= NOON + 2_000
        assert len(slow.asked) <= 4 * looks
    assert (NOON + 2_000, None) == (found, times.looked_until(NOON))
    assert looks >= 5
    assert [NOON + n * 100 for n in range(21)] == slow.asked, "no check is made twice"


def test_a_schedule_that_exits_does_not_end_beat_with_it():
    def leave(last, now):
        raise SystemExit("enough")

    with pytest.raises(ScheduleError) as refused:
        fire_times(Asked(leave), timezone=BERLIN).next(NOON)
    assert "Asked.is_due() exits: enough" == str(refused.value)

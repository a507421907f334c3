"""The walk against cronsim, which does as Debian's cron does, and where the two have to differ.

A difference is known only by what it comes from: undone, the two must agree again, to the second. Anything
else fails. How often each was met is printed, with what else ours is right by: the contract, or that the
zone has, or has not, the local time in question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import combinations, islice
from random import Random
from typing import cast
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from anarchon_celery.slots import DAY, HOUR, MINUTE, from_iso, iso
from anarchon_celery.wallclock import Cron
from tests.fire_times.walks import times_of

UTC = timezone.utc
ZONES = [
    "UTC", "Africa/Cairo", "Africa/Casablanca", "America/Asuncion", "America/Havana", "America/New_York",
    "America/Nuuk", "America/Santiago", "America/Scoresbysund", "America/St_Johns", "Antarctica/Troll",
    "Asia/Beirut", "Asia/Gaza", "Asia/Kathmandu", "Asia/Kolkata", "Australia/Lord_Howe", "Australia/Sydney",
    "Europe/Berlin", "Europe/Dublin", "Europe/London",
]  # fmt: skip
# Not Pacific/Chatham: where clocks go back there, from 03:45 to 02:45, cronsim 2.8 goes round for ever. What
# our walk does, tests/fire_times/test_every_minute.py compares.
BEGIN, END = from_iso("2024-01-01T00:00Z"), from_iso("2030-12-31T00:00Z")
FOLLOWING = 4  # fire times compared in each case


# Cases -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Something to compare, and what either side says."""

    text: str
    zone: str
    start: int

    def __str__(self) -> str:
        return f"{self.text!r} in {self.zone} from {iso(self.start)}"

    @property
    def words(self) -> list[str]:
        return self.text.split()[-5:]

    @property
    def times(self) -> Cron:
        return cast(Cron, times_of(self.text, self.zone))

    def theirs(self, number: int = FOLLOWING) -> list[int]:
        found = CronSim(self.text, datetime.fromtimestamp(self.start // 1000, ZoneInfo(self.zone)))
        return [int(it.timestamp()) * 1000 for it in islice(found, number)]

    def shown(self) -> str:
        return f"ours {[*map(iso, ours(self.times, self.start))]}, theirs {[*map(iso, self.theirs())]}"


def ours(times: Cron, start: int) -> list[int]:
    found: list[int] = []
    for _ in range(FOLLOWING):
        if (time := times.next(found[-1] if found else start)) is None:
            break
        found.append(time)
    return found


def changes(name: str) -> list[int]:
    """The instants at which a zone's clocks are changed, to the minute."""
    zone, found = ZoneInfo(name), []
    for day in range(BEGIN, END, DAY):
        low, high = day, day + DAY
        if (before := _offset(zone, low)) != _offset(zone, high):
            while high - low > MINUTE:
                middle = (low + high) // 2 // MINUTE * MINUTE
                low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
            found.append(high)
    return found


def _offset(zone: ZoneInfo, instant: int):
    return datetime.fromtimestamp(instant / 1000, UTC).astimezone(zone).utcoffset()


CHANGES = {name: changes(name) for name in ZONES}


def cases(chance: Random) -> Iterator[Case]:
    """Yield cases for ever: most of them within some hours of a change of clocks."""
    while True:
        zone = chance.choice(ZONES)
        if CHANGES[zone] and chance.random() < 0.75:
            change = chance.choice(CHANGES[zone])
            start = change + chance.randrange(-30 * HOUR, 4 * HOUR, 1000)
            about = datetime.fromtimestamp(change / 1000, ZoneInfo(zone))
        else:
            start = chance.randrange(BEGIN, END, 1000)
            about = datetime.fromtimestamp(start / 1000, ZoneInfo(zone))
        yield Case(some_text(chance, about), zone, start)


def some_text(chance: Random, about: datetime) -> str:
    words = [
        some_word(chance, 0, 59, about.minute),
        some_word(chance, 0, 23, (about.hour + chance.randrange(-2, 2)) % 24),
        *["*"] * 3,
    ]
    if chance.random() < 0.25:
        words[2] = chance.choice([some_word(chance, 1, 28, min(about.day, 28)), "L", "*/2", "10-28/3"])
    if chance.random() < 0.1:
        words[3] = some_word(chance, 1, 12, about.month)
    if chance.random() < 0.25:
        nth = f"{chance.randrange(8)}#{chance.randrange(1, 6)}"
        last = f"{chance.randrange(8)}L"
        words[4] = chance.choice([some_word(chance, 0, 6, about.isoweekday() % 7), "1-5", "sun", nth, last])
    if chance.random() < 0.1:
        words.insert(0, chance.choice(["0", "30", "*/20", "5,45"]))
    return " ".join(words)


def some_word(chance: Random, low: int, high: int, near: int) -> str:
    one = near if chance.random() < 0.5 else chance.randrange(low, high + 1)
    last = chance.randrange(one, high + 1)
    step = chance.randrange(1, 1 + (high - low) // 2)
    return chance.choice(
        [str(one)] * 3
        + ["*", f"*/{step}", f"{one}/{step}", f"{one}-{last}", f"{one}-{last}/{step}", f"{low},{one},{last}"]
    )


# Known differences -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What is compared: our schedule, and what cronsim found."""

    case: Case
    times: Cron
    theirs: tuple[int, ...]

    @property
    def agree(self) -> bool:
        return ours(self.times, self.case.start) == list(self.theirs[:FOLLOWING])


def a_range_of_one(said: Said) -> Said | None:
    """'7-7/6': a range ends where it says, so this is 7 alone. cronsim forgets the range, and reads '7/6'."""
    case = replace(said.case, text=re.sub(r"\b(\d+)-\1/", r"\1/", said.case.text))
    return None if case == said.case else replace(said, case=case, times=case.times)


def a_step_without_a_star(said: Said) -> Said | None:
    """'5/15', '1-9/2', '0-59' in hour or minute: the contract says a wildcard or a step, and this is one.

    A job that is to run every 20 minutes from 5 on does so in both hours of autumn. To Debian's cron, and
    to cronsim, only what begins with a star is a wildcard, so that the same job would pause for an hour.
    """
    minute, hour, *_ = said.case.words
    if not said.times.every_occurrence or minute.startswith("*") or hour.startswith("*"):
        return None
    return replace(said, times=replace(said.times, every_occurrence=False))


def six_fields(said: Said) -> Said | None:
    """'30 30 2 * * *': seconds change nothing in the rule, a fixed hour and minute is once a day.

    cronsim keeps the rule for five fields, since Debian's cron knows no seconds: with six a nightly job
    would not run at all in spring, and run twice in autumn.
    """
    if len(said.case.text.split()) == 5 or said.times.every_occurrence:
        return None
    return replace(said, times=replace(said.times, every_occurrence=True))


def a_step_over_all_days(said: Said) -> Said | None:
    """'0 0 */2 * mon': POSIX lets either day match unless one of the two is '*', and '*/2' is not.

    For Debian's cron it is enough that a field begins with a star, and then both must match.
    """
    if not said.times.either_day or "*" not in said.case.words[2][0] + said.case.words[4][0]:
        return None
    return replace(said, times=replace(said.times, either_day=False))


def sunday_as_7(said: Said) -> Said | None:
    """'1/2' in day of week: 1, 3, 5. 7 is another name of Sunday and no eighth day, so steps end at 6.

    cronsim goes on to 7, so that the step from Saturday would have Sunday in it.
    """
    match = re.fullmatch(r"(\d)/(\d)", said.case.words[4])
    if match is None or 7 not in range(int(match[1]), 8, int(match[2])):
        return None
    return replace(said, times=replace(said.times, days_of_week=(0, *said.times.days_of_week)))


def from_within_the_fold(said: Said) -> Said | None:
    """A look from within the repeated hour: cronsim forgets in which of the two, and goes back to the first.

    A node that starts then would run again what has run. Only what lies before the start is let off.
    """
    start = datetime.fromtimestamp(said.case.start / 1000, ZoneInfo(said.case.zone))
    later = [time for time in said.theirs if time > said.case.start]
    return _let_off(said, later) if start.fold else None


def a_midnight_that_is_left_out(said: Said) -> Said | None:
    """'0 */7 * * 0' in Havana, where 9 March 2025 began at 01:00: a wildcard runs at real occurrences only.

    cronsim begins a day at 00:00 even where there is none, and an hour later is at 02:00. Let off is what it
    puts at the end of such a gap although its own fields do not allow the time that is then, and what it
    leaves out in the hour from there although they do.
    """
    if not said.times.every_occurrence:
        return None
    real = [time for time in said.theirs if not _ends_midnight_gap(said, time) or _allowed(said, time)]
    hours = [it for it in CHANGES[said.case.zone] if _ends_midnight_gap(said, it)]
    left_out = _left_out(said, lambda time: any(0 <= time - it < HOUR for it in hours))
    return _let_off(said, [*real, *left_out])


def a_change_within_an_hour(said: Said) -> Said | None:
    """'0 */2 * * *' in Lord Howe, 5 April 2026: 02:00+10:30 exists, and so it runs.

    cronsim goes from hour to hour by 60 minutes, which misses the hour where clocks are not changed from a
    full one to a full one. Let off is what it leaves out within a day of that although its fields allow it.
    """
    if not said.times.every_occurrence:
        return None
    uneven = [
        it
        for it in CHANGES[said.case.zone]
        if _local(said, it).minute or (_local(said, it - MINUTE).minute + 1) % 60
    ]
    left_out = _left_out(said, lambda time: any(-HOUR <= time - it < 30 * HOUR for it in uneven))
    return _let_off(said, [*said.theirs, *left_out])


DIFFERENCES: tuple[Callable[[Said], Said | None], ...] = (
    a_range_of_one, a_step_without_a_star, six_fields, a_step_over_all_days, sunday_as_7,
    from_within_the_fold, a_midnight_that_is_left_out, a_change_within_an_hour,
)  # fmt: skip


def _local(said: Said, instant: int) -> datetime:
    return datetime.fromtimestamp(instant / 1000, ZoneInfo(said.case.zone))


def _allowed(said: Said, instant: int) -> bool:
    """Tell whether the fields, as cronsim reads them, allow the local time of an instant."""
    local, read = _local(said, instant), CronSim(said.case.text, datetime(2024, 1, 1, tzinfo=UTC))
    time = local.second in read.seconds and local.minute in read.minutes and local.hour in read.hours
    return time and local.month in read.months and read.match_day(local.date())


def _ends_midnight_gap(said: Said, instant: int) -> bool:
    before, after, zone = _local(said, instant - 1), _local(said, instant), ZoneInfo(said.case.zone)
    gap = _offset(zone, instant - 1) < _offset(zone, instant)
    return gap and before.date() < after.date() and after.hour > 0


def _left_out(said: Said, near: Callable[[int], bool]) -> list[int]:
    found = ours(said.times, said.case.start)
    return [time for time in found if time not in said.theirs and near(time) and _allowed(said, time)]


def _let_off(said: Said, theirs: list[int]) -> Said | None:
    return replace(said, theirs=tuple(sorted(theirs))) if set(theirs) != set(said.theirs) else None


def explained(case: Case) -> tuple[str, ...] | None:
    """Return which differences explain that the two disagree, the fewest; none where they agree."""
    if ours(case.times, case.start) == case.theirs():
        return ()
    # More of theirs than are compared: of some, those before the start are let off.
    plain = Said(case, case.times, tuple(case.theirs(60 + FOLLOWING)))
    for size in range(1, 4):
        for chosen in combinations(DIFFERENCES, size):
            said: Said | None = plain
            for undo in chosen:
                said = said and undo(said)
            if said and said.agree:
                return tuple(undo.__name__ for undo in chosen)
    return None


@pytest.mark.parametrize(
    ("text", "zone", "start", "why", "expected"),
    [
        ("0 7-7/6 * * *", "UTC", "2026-10-10T00:00Z", a_range_of_one, ["10T07:00", "11T07:00"]),
        ("5/20 2 * * *", "Europe/Berlin", "2026-10-25T00:20Z", a_step_without_a_star,
         ["25T00:25", "25T00:45", "25T01:05", "25T01:25"]),
        ("0 2-4/2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", a_step_without_a_star,
         ["29T02:00", "30T00:00", "30T02:00"]),
        ("30 30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", six_fields, ["25T00:30", "26T01:30"]),
        ("0 0 */2 * mon", "UTC", "2026-10-10T12:00Z", a_step_over_all_days,
         ["11T00:00", "12T00:00", "13T00:00"]),
        ("0 0 13 * */3", "UTC", "2026-10-10T12:00Z", a_step_over_all_days,
         ["11T00:00", "13T00:00", "14T00:00"]),
        ("0 0 * * 1/2", "UTC", "2026-10-10T12:00Z", sunday_as_7, ["12T00:00", "14T00:00", "16T00:00"]),
        ("15 2 * * *", "Europe/Berlin", "2026-10-25T01:10Z", from_within_the_fold, ["26T01:15", "27T01:15"]),
        ("0 */7 * * 0", "America/Havana", "2025-03-09T01:31Z", a_midnight_that_is_left_out,
         ["09T11:00", "09T18:00"]),
        ("* 1-7 * * 0", "America/Santiago", "2028-09-02T12:00Z", a_midnight_that_is_left_out,
         ["03T04:00", "03T04:01"]),
        ("0 */2 * * *", "Australia/Lord_Howe", "2026-04-04T12:00Z", a_change_within_an_hour,
         ["04T13:00", "04T15:30", "04T17:30"]),
    ],
)  # fmt: skip
def test_each_known_difference(text, zone, start, why, expected):
    case = Case(text, zone, from_iso(start))
    assert (why.__name__,) == explained(case)
    assert expected == [iso(time)[8:16] for time in ours(case.times, case.start)[: len(expected)]]


@pytest.mark.parametrize(
    ("number", "agreed", "seed"),
    [
        (1_500, 1_300, "quick"),
        *[
            pytest.param(4_000, 3_600, seed, marks=pytest.mark.slow)
            for seed in ("first", "second")
        ],
    ],
)
def test_as_cronsim(number, agreed, seed, capsys):
    met: Counter[str] = Counter()
    for case in islice(cases(Random(seed)), number):
        why = explained(case)
        assert why is not None, f"{case}: {case.shown()}"
        met[" and ".join(why) or "agreed"] += 1
    with capsys.disabled():
        print(f"\n{number} cases: " + ", ".join(f"{count} {what}" for what, count in met.most_common()))
    assert agreed <= met["agreed"]

"""Cron texts: croniter parses each field, once it is written so that all its versions mean the same.

What croniter lets pass with another meaning, and what can never fire, is refused with a line that
names the field and says what would be right.

``H`` is a value that the job's name decides, so that a hundred nightly jobs spread: ``H`` any of the
field (of the days of a month the first 28, which every month has), ``H(0-29)`` one of a range,
``H/15`` and ``H(0-29)/10`` every so many from a first one on.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

from croniter import CroniterError, croniter

from .errors import ScheduleError
from .wallclock import LAST, Cron, Zone

_ALIASES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
_FIELDS = (  # in croniter's order: name, least and greatest value
    ("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7),
    ("second", 0, 59),
)  # fmt: skip
_DAY_OF_MONTH, _MONTH, _DAY_OF_WEEK = 2, 3, 4
_NAMES = {
    _MONTH: {
        "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6,
        "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11, "dec": 12,
    },
    _DAY_OF_WEEK: {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6},
}  # fmt: skip
_RIGHT = (  # by field: what a refusal shows
    "0 to 59, as in 5, 0-29, */15, 5/15 or H",
    "0 to 23, as in 2, 22-4, */6 or H(0-5)",
    "1 to 31, as in 1, 1-7, */10 or H, and L for the last",
    "1 to 12 or jan to dec, as in 1, jul, nov-feb or */3",
    "0 (Sunday) to 7 or sun to sat, as in mon-fri, fri#2 for the second Friday, L5 for the last one",
    "0 to 59, as in 0, */10 or H",
)
_RANGE = re.compile(r"(?:\*|([0-9]+|[a-z]+)(-(?:[0-9]+|[a-z]+))?)(/[0-9]{1,4})?")
_HASHED = re.compile(r"h(?:\(([0-9]+|[a-z]+)(-(?:[0-9]+|[a-z]+))\))?(/[0-9]{1,4})?")
_HAS_HASH = re.compile(r"(?<![a-z@])h(?![a-z])")  # not that of 'thu' or '@hourly'
_NTH = re.compile(r"([0-9a-z-]+)(#[1-5])|l([0-7])|([0-7])l")


def read_cron(text: str, zone: Zone, job: str = "") -> Cron:
    """Read a cron text; jobs with the same text and zone share the result, unless it has an ``H``.

    Args:
        text: five fields, six with seconds first, or ``@daily`` and friends.
        zone: the zone of its local times.
        job: the name that decides what ``H`` stands for.

    Raises:
        ScheduleError: it cannot be read, or can never fire; one line that names the field.
    """
    if not isinstance(text, str):
        raise ScheduleError(f"cron {text!r}: it is not a text")
    return _read(text, zone, job if _HAS_HASH.search(text.lower()) else "")


@lru_cache(maxsize=4096)
def _read(text: str, zone: Zone, job: str) -> Cron:
    try:
        words = _words(text)
        (minutes, _), (hours, _), (days, _), (months, _), (weekdays, nth), (seconds, _) = (
            _expand(position, _unhashed(position, word, job), word) for position, word in enumerate(words)
        )
        return Cron(
            zone=zone,
            seconds=seconds,
            minutes=minutes,
            hours=hours,
            days_of_month=days,
            months=months,
            days_of_week=weekdays,
            nth_days_of_week=nth,
            either_day=not _is_open(words[_DAY_OF_MONTH]) and not _is_open(words[_DAY_OF_WEEK]),
            every_occurrence=recurs(words[0], minutes, 60) or recurs(words[1], hours, 24),
        )
    except ScheduleError as reason:
        raise ScheduleError(f"cron {text!r}: {reason}") from None


def _words(text: str) -> list[str]:
    """Return the six fields of a cron text, seconds last, as croniter has them."""
    lower = text.strip().lower()
    if lower.startswith("@") and lower not in _ALIASES:
        raise ScheduleError(f"there is no such name: give one of {', '.join(_ALIASES)}")
    words = _ALIASES.get(lower, lower).split()
    if len(words) not in (5, 6):
        raise ScheduleError(
            f"it has {len(words)} field{'s' * (len(words) != 1)}: "
            "give 5 (minute, hour, day of month, month, day of week), or 6 with seconds first"
        )
    return [*words, "0"] if len(words) == 5 else [*words[1:], words[0]]


def _is_open(word: str) -> bool:
    """Tell whether a day field leaves the choice to the other one."""
    return not {"*", "?", "*/1"}.isdisjoint(word.split(","))


def recurs(written: object, values: tuple[int, ...], all_values: int) -> bool:
    """Tell whether an hour or minute field has a wildcard or a step, or comes to the same as a wildcard."""
    return len(values) == all_values or (isinstance(written, str) and ("*" in written or "/" in written))


@lru_cache(maxsize=4096)
def _expand(position: int, plain_word: str, word: str) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return the values of one field, and the nth days of the week; ``word`` is how it was written."""
    name, low, high = _FIELDS[position]
    terms = plain_word.split(",")
    if position == _DAY_OF_WEEK and len({_NTH.fullmatch(term) is None for term in terms}) > 1:
        raise ScheduleError(
            f"{name} {word!r} mixes plain days and those with # or L: give one kind, as in mon#1,L5"
        )
    texts = ["*"] * 6
    texts[position] = ",".join(_plain(position, term, word) for term in terms)
    try:
        expanded, nth = croniter.expand(" ".join(texts))
    except CroniterError:
        raise _refusal(position, word, word) from None
    found = expanded[position]
    values = range(low, high + (position != _DAY_OF_WEEK)) if "*" in found else found
    pairs = ((day, LAST if n == "l" else int(n)) for day, all_n in nth.items() for n in all_n)
    plain = (LAST if value == "l" else int(value) for value in values if value not in nth)
    return tuple(sorted(plain)), tuple(sorted(pairs))


def _plain(position: int, term: str, word: str) -> str:
    """Return one term in the form that all versions of croniter read alike, and as cron does.

    They differ on '59/15' and 'L7', misread '9-9' and '22-4/3', take '1W' for '1' and 'R' for random.
    """
    if term == "*/1" or (word == "?" and position in (_DAY_OF_MONTH, _DAY_OF_WEEK)):
        return "*"
    if term == "*" or (term == "l" and position == _DAY_OF_MONTH):
        return term
    nth = _NTH.fullmatch(term) if position == _DAY_OF_WEEK else None
    if nth and not nth[1]:
        return f"l{int(nth[3] or nth[4]) % 7}"
    numbers = _numbers(position, nth[1] if nth else term, word)
    return ",".join(f"{number}{nth[2] if nth else ''}" for number in numbers)


def _unhashed(position: int, word: str, job: str) -> str:
    """Return a field with the numbers that ``H`` stands for in it.

    Not croniter's way: it takes no ``H`` in a list, and shifts one checksum for all fields, so that the
    minute decides the hour: of the 360 times of 'H H(0-5) * * *' it only ever uses 60.
    """
    if "h" not in word:
        return word
    digest = blake2b(f"{job}\0{position}".encode(), digest_size=8).digest()
    chance = int.from_bytes(digest, "big")
    return ",".join(_chosen(position, term, word, chance) for term in word.split(","))


def _chosen(position: int, term: str, word: str, chance: int) -> str:
    """Return the values of 'h', 'h(0-29)', 'h/15' or 'h(0-29)/10'; any other term as it is."""
    match = _HASHED.fullmatch(term)
    if match is None:
        return term
    first, last, step = match.groups()
    if first is None:
        _, low, high = _FIELDS[position]
        values = list(range(low, {_DAY_OF_MONTH: 28, _DAY_OF_WEEK: 6}.get(position, high) + 1))
    else:
        values = _numbers(position, first + last, word)
    every = int(step[1:]) if step else len(values)
    if every == 0:
        raise _refusal(position, term, word)
    return ",".join(map(str, values[chance * min(every, len(values)) >> 64 :: every]))


def _numbers(position: int, term: str, word: str) -> list[int]:
    """Return the values of '5', '5-9', '22-2', '*/5', '5/15', '5-59/15'."""
    _, low, high = _FIELDS[position]
    match = _RANGE.fullmatch(term)
    if match is None:
        raise _refusal(position, term, word)
    first, last, step = match.groups()
    greatest = 6 if position == _DAY_OF_WEEK else high
    start = low if first is None else _number(position, first, word)
    if last == "-l" and position == _DAY_OF_MONTH:
        end = high
    elif last is not None:
        end = _number(position, last[1:], word)
    else:
        end = greatest if step or first is None else start
    every = int(step[1:]) if step else 1
    if every == 0:
        raise _refusal(position, term, word)
    if position != _DAY_OF_WEEK:
        return _steps(start, end, every, low, greatest)
    if start == 7:  # Sunday begins a week as 0, and ends one as 7
        start, end = 0, end % 7
    return [day % 7 for day in _steps(start, end, every, low, greatest)]


def _steps(start: int, end: int, step: int, low: int, high: int) -> list[int]:
    """Return a range, over the end of the field where it ends before it begins: '22-2'."""
    whole = range(start, end + 1) if start <= end else [*range(start, high + 1), *range(low, end + 1)]
    return list(whole[::step])


def _number(position: int, text: str, word: str) -> int:
    _, low, high = _FIELDS[position]
    value = int(text) if text.isdigit() and len(text) < 5 else _NAMES.get(position, {}).get(text, -1)
    if not low <= value <= high:
        raise _refusal(position, text, word)
    return value


def _refusal(position: int, term: str, word: str) -> ScheduleError:
    part = f"{term!r} in " if term != word else ""
    return ScheduleError(f"cannot read {part}{_FIELDS[position][0]} {word!r}: give {_RIGHT[position]}")

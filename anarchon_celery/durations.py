"""Durations as people write them, as whole milliseconds and back.

A number is seconds, a :class:`~datetime.timedelta` is itself, and text is days, hours, minutes,
seconds and milliseconds, largest first: ``'250ms'``, ``'10s'``, ``'5m'``, ``'1h30m'``, ``'2d'``.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_TEXT = re.compile("".join(rf"(?:([0-9]+){unit}(?![a-z]))?" for unit in _UNITS))
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_RIGHT = "seconds as a number, a timedelta, or text such as '250ms', '10s', '5m', '1h30m', '2d'"
_TYPED = "seconds as a number such as 3600, or 250ms, 10s, 5m, 1h30m, 2d"


def milliseconds(value: int | float | timedelta | str) -> int:
    """Return a duration as whole milliseconds.

    Args:
        value: seconds as a number, a ``timedelta``, or text such as ``'1h30m'``. Zero is a duration.
            What is finer than a millisecond is rounded.

    Raises:
        ValueError: it is none of these, or it is negative or endless; one line that says what would be right.
    """
    if isinstance(value, str):
        found = _from_text(value)
    elif isinstance(value, timedelta):
        found = round(value / timedelta(milliseconds=1))
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        found = round(value * 1000) if abs(value) < 1e15 else None
    else:
        found = None
    if found is None:
        raise ValueError(f"{value!r} is no duration: give {_RIGHT}")
    if found < 0:
        raise ValueError(f"{value!r} is negative; a duration is zero or more")
    return found


def written(text: str) -> int:
    """Return a duration that was typed, as whole milliseconds: there a number of seconds is text, too.

    Args:
        text: seconds such as ``'3600'`` and ``'1.5'``, or what :func:`milliseconds` reads.

    Raises:
        ValueError: it is none of these; one line that says what would be right.
    """
    if len(text) <= 40 and _NUMBER.fullmatch(text):
        return milliseconds(float(text))
    found = _from_text(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration: give {_TYPED}")
    return found


def text(ms: int) -> str:
    """Return milliseconds in the grammar of :func:`milliseconds`: ``'1h30m'``, ``'250ms'``, ``'0s'``.

    Args:
        ms: whole milliseconds, zero or more.

    Raises:
        ValueError: it is negative.
    """
    if ms < 0:
        raise ValueError(f"{ms!r} is negative; a duration is zero or more")
    parts = []
    for unit, size in _UNITS.items():
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _from_text(value: str) -> int | None:
    """Read ``'1h30m'``; ``None`` if it is not of that form."""
    match = _TEXT.fullmatch(value)
    if match is None or not value or len(value) > 40:
        return None
    return sum(int(count or 0) * size for count, size in zip(match.groups(), _UNITS.values(), strict=True))

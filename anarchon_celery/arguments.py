"""The arguments of a run that somebody asked for: kept as JSON in the run's record, and in its header.

What Celery's own JSON can carry can be given: dates, times, decimals and UUIDs too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kombu.utils import json

from .errors import ArgumentsError, in_one_line

#: How long they may be, in bytes of JSON: they travel in headers, and a worker's parent reads them there.
MOST = 4096


def written(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str | None:
    """Return arguments as they are kept; None of either stands for the entry's, and of both for nothing.

    Raises:
        ArgumentsError: one line: they cannot be kept.
    """
    if args is None and kwargs is None:
        return None
    try:
        text = str(json.dumps([args, kwargs]))
    except Exception as reason:  # of somebody's own type
        raise ArgumentsError(f"the arguments cannot be written as JSON: {in_one_line(reason)}") from reason
    if (size := len(text.encode("utf-8", "replace"))) > MOST:
        raise ArgumentsError(f"the arguments are {size} bytes of JSON: {MOST} at most are right")
    return text


def read(text: str) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Return arguments that were kept.

    Raises:
        ArgumentsError: one line: somebody edited them.
    """
    try:
        args, kwargs = json.loads(text)
        return None if args is None else [*args], None if kwargs is None else {**kwargs}
    except Exception as reason:
        raise ArgumentsError(f"the arguments of the run cannot be read: {in_one_line(reason)}") from reason

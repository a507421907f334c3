"""What is typed after ``python -m tests.…``: what cannot be meant is an error of argparse."""

from __future__ import annotations

import argparse
from pathlib import Path


def at_least_1(text: str) -> int:
    """How many."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f'{text!r}: a whole number from 1 on is right')
    return int(text)


def numbers(text: str) -> list[int]:
    """Some numbers, with commas between; none is an empty text."""
    given = text.split(',') if text else []
    if not all(one.isascii() and one.isdigit() for one in given):
        raise argparse.ArgumentTypeError(f'{text!r}: numbers with commas between are right, such as 3,17')
    return [int(one) for one in given]


def seconds(text: str) -> float:
    """For how long."""
    try:
        found = float(text)
    except ValueError:
        found = -1
    if not 0 <= found < float('inf'):
        raise argparse.ArgumentTypeError(f'{text!r}: seconds from 0 on are right')
    return found


def file(text: str) -> Path:
    """A file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f'{text!r}: there is no such file')
    return Path(text)

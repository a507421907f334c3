"""The arguments of a run that somebody asked for: what can be kept, and what is said of all else."""

from __future__ import annotations

import json
from datetime import date
from uuid import UUID

import pytest

from anarchon_celery import board, headers
from anarchon_celery.arguments import MOST, read, written
from anarchon_celery.config import Policy
from anarchon_celery.errors import ArgumentsError
from anarchon_celery.protocol import Run


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (["ü", 1, None, 2.5], {"full": True}),
        ([], {}),
        (None, {"day": date(2026, 3, 29), "id": UUID(int=7)}),
        ([{"deep": [1, [2]]}], None),
    ],
)
def test_what_is_written_is_read(args, kwargs):
    text = written(args, kwargs)
    json.loads(text)
    assert (args, kwargs) == read(text)


def test_none_at_all_is_nothing():
    assert written(None, None) is None


class Odd:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ([Odd()], "the arguments cannot be written as JSON: "),
        (["x" * MOST], f"the arguments are {MOST + 12} bytes of JSON: {MOST} at most are right"),
    ],
)
def test_what_cannot_be_kept_is_said_in_one_line(args, line):
    with pytest.raises(ArgumentsError) as refused:
        written(args, None)
    assert str(refused.value).startswith(line)
    assert 1 == len(str(refused.value).splitlines())


@pytest.mark.parametrize("text", ["", "[1", "[1]", "{}", "[1, 2, 3]", "[[], [1]]", "[3, null]"])
def test_what_somebody_edited_is_said_in_one_line(text):
    with pytest.raises(ArgumentsError, match="the arguments of the run cannot be read: "):
        read(text)


def test_the_longest_ones_fit_on_a_board():
    """A child says there what it holds; every character may need another one before it."""
    text = written(['"' * ((MOST - 14) // 2)], None)
    assert MOST - 2 <= len(text) <= MOST
    run = Run(job="j" * 255, slot=0, arguments=text)
    header = headers.write(run, "proj.tasks.report", Policy(), task_id="i" * 36)
    said = {"header": header, "names": "n" * 1000}
    assert len(json.dumps(said)) < board._HALF - board._LENGTH.size

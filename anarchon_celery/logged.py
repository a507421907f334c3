"""What every record of this package in the log carries beside its line: all of it, None where unknown.

==========  ===================================================================
job         the job's name
slot        its fire time, as text: ``2026-10-10T12:00:30.000Z``
attempt     1, 2, …: how often the run was begun
fence       the fencing token of that attempt
node        who says it: a beat's ``host:pid``, a worker's ``celery@host:pid``
event       what happened, by name: ``run_started``
==========  ===================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypedDict

#: The node that this process is, as far as it is one.
_process: str | None = None

#: Who speaks in this thread, if not the process's node: an embedded beat is forked from a worker, for one.
_speaker: ContextVar[str | None] = ContextVar("anarchon_speaker", default=None)


class Fields(TypedDict):
    """The fields of a record."""

    job: str | None
    slot: str | None
    attempt: int | None
    fence: int | None
    node: str | None
    event: str


class Whose(TypedDict, total=False):
    """Of which attempt a happening is, under which fence, on which node."""

    attempt: int | None
    fence: int | None
    node: str | None


def fields(
    event: str, *, job: str | None = None, slot: str | None = None, attempt: int | None = None,
    fence: int | None = None, node: str | None = None,
) -> Fields:  # fmt: skip
    """Return the fields of a record; who does not say its node is the one that speaks here."""
    return Fields(job=job, slot=slot, attempt=attempt, fence=fence, node=node or speaker(), event=event)


def speaker() -> str | None:
    """Return the node that speaks here; None in a command, for example."""
    return _speaker.get() or _process


def speak_as(node: str | None) -> None:
    """This process is that node."""
    global _process
    _process = node


@contextmanager
def speaking_as(node: str | None) -> Iterator[None]:
    """What is said within is said by that node."""
    before = _speaker.set(node)
    try:
        yield
    finally:
        _speaker.reset(before)

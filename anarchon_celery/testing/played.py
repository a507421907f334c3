"""What ran on a stage, as a test reads it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..protocol import Run
from .clock import aware


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One time that a message began the body of a task.

    Attributes:
        task: the task's name.
        job: the job's name; None of a task that something else than a beat sent.
        slot: the run's fire time, aware UTC; None likewise.
        kind: the run's: ``scheduled``, ``manual`` or ``backfill``; empty likewise.
        number: the attempt: 1, 2, …; 0 of a task without the base class ``anarchon_celery.Task``.
        fence: its fencing token; 0 likewise.
        began: when, by the stage's clock, aware UTC.
        ended: likewise.
        state: Celery's: ``SUCCESS``, ``FAILURE``, ``RETRY``, ``IGNORED`` (of a run that was lost, handed over
            or cancelled), ``REJECTED``; or ``KILLED``.
        result: what the task returned.
        exception: what it raised, if it did.
    """

    task: str
    job: str | None = None
    slot: datetime | None = None
    kind: str = ""
    number: int = 0
    fence: int = 0
    began: datetime
    ended: datetime
    state: str
    result: Any = None
    exception: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRun:
    """A run as the store has it, and the attempts at it.

    Attributes:
        job: the job's name.
        slot: the fire time, aware UTC.
        kind: ``scheduled``, ``manual`` or ``backfill``.
        state: the store's: ``succeeded``, ``failed``, ``published`` (a task without the base class),
            ``skipped``, ``missed``, ``cancelled``, ``abandoned``; or of one that is not over: ``claimed``,
            ``queued``, ``running``, ``released``, ``buffered``.
        trigger: ``scheduled``, ``catch-up``, ``takeover``, ``manual`` or ``backfill``.
        attempt: how often it was begun under a lease.
        crashes: how many of its holders died.
        count: how many slots this record stands for.
        reason: why it ended so, in words, if there is more to say.
        attempts: each time its task was begun, oldest first.
    """

    job: str
    slot: datetime
    kind: str
    state: str
    trigger: str
    attempt: int
    crashes: int
    count: int
    reason: str | None
    attempts: tuple[Attempt, ...]

    @property
    def result(self) -> Any:
        """What the last attempt returned."""
        return self.attempts[-1].result if self.attempts else None

    @property
    def exception(self) -> BaseException | None:
        """What the last attempt raised, if it did."""
        return self.attempts[-1].exception if self.attempts else None


def played(runs: Iterable[Run], attempts: Iterable[Attempt]) -> list[PlayedRun]:
    """Put records of the store and the attempts at their runs together."""
    of_run: dict[Any, list[Attempt]] = {}
    # One that was lost ended after the next one.
    for one in sorted(attempts, key=lambda one: (one.number, one.began)):
        of_run.setdefault((one.job, one.slot, one.kind), []).append(one)
    return [_played(run, of_run.get((run.job, aware(run.slot), run.kind), ())) for run in runs]


def _played(run: Run, attempts: Iterable[Attempt]) -> PlayedRun:
    return PlayedRun(
        job=run.job, slot=aware(run.slot), kind=run.kind, state=run.state, trigger=run.trigger,
        attempt=run.attempt, crashes=run.crashes, count=run.count, reason=run.reason,
        attempts=tuple(attempts),
    )  # fmt: skip


"""What somebody asks for, beside the schedule: a run for now, runs of slots that were, the end of one.

Pure functions over a ledger, as all transitions: see :mod:`.transitions`. A run that somebody asked for is of
its own kind, so that it never meets the run of a slot; floors and pauses are none of its affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .floors import decide
from .ledger import Ledger
from .protocol import ASKED_AGAIN_WITHIN, BACKFILL, BUFFERED, MANUAL, Request, Requested, Run, RunKey
from .turns import buffer, end, has_to_wait, until


def trigger(ledger: Ledger, now: int, nonce: str, asked: Request) -> Requested:
    """Enter a run for now: of two in one millisecond the later takes the next one that is free."""
    known = [run for run in ledger.runs.values() if (run.job, run.kind) == (asked.job, MANUAL)]
    since = now - ASKED_AGAIN_WITHIN
    if before := next((run for run in known if run.request == nonce and run.slot >= since), None):
        return _answered(before)
    if refused := _refused(ledger, now, asked):
        return refused
    taken, slot = {run.slot for run in known}, now
    while slot in taken:
        slot += 1
    return _enter(ledger, now, nonce, asked, RunKey(asked.job, slot, MANUAL))


def backfill(
    ledger: Ledger, now: int, nonce: str, asked: Request, slots: Sequence[int]
) -> list[Requested]:
    """Enter runs of slots that were, oldest first."""
    return [_backfill(ledger, now, nonce, asked, RunKey(asked.job, slot, BACKFILL)) for slot in slots]


def _backfill(ledger: Ledger, now: int, nonce: str, asked: Request, key: RunKey) -> Requested:
    if (run := ledger.runs.get(key)) is not None:
        return _answered(run) if run.request == nonce else Requested(answer="taken", run=run)
    if refused := _refused(ledger, now, asked):
        return refused
    if key.slot > now:
        return Requested(answer="early", wait=key.slot - now)
    return _enter(ledger, now, nonce, asked, key)


def _refused(ledger: Ledger, now: int, asked: Request) -> Requested | None:
    """Why nothing may enter now."""
    if asked.job not in ledger.jobs:
        return Requested(answer="unknown")
    wait = ledger.young_for(asked.lease, now)
    return Requested(answer="wait", wait=wait) if wait else None


def _enter(ledger: Ledger, now: int, nonce: str, asked: Request, key: RunKey) -> Requested:
    run = Run(
        job=key.job, slot=key.slot, kind=key.kind, state="released", trigger=key.kind, dispatch=0,
        arguments=asked.arguments, asked_by=asked.by, request=nonce,
    )  # fmt: skip
    if asked.overlap != "allow" and has_to_wait(ledger, run):
        return _answered(buffer(ledger, run, now))
    return _answered(ledger.put_run(until(run, now, 0)))


def _answered(run: Run) -> Requested:
    return Requested(answer="buffered" if run.state == BUFFERED else "released", run=run)


def cancel(ledger: Ledger, now: int, key: RunKey, reason: str) -> Run | None:
    """Have a run stop: its holder hears it at the next heartbeat, one without a holder ends at once.

    Answers the run as it is then; None where there is none.
    """
    run = ledger.runs.get(key)
    if run is None:
        return None
    if run.state == "running":
        return ledger.put_run(replace(run, stop=reason)) if run.stop is None else run
    if run.ended and not run.may_start_late:
        return run
    return end(ledger, run, now, "cancelled", reason)


def forget_job(ledger: Ledger, now: int, job: str, keys: Sequence[RunKey]) -> int:
    """Drop ended runs of a job, and take all of it for decided up to now; returns how many went."""
    if (known := ledger.jobs.get(job)) is not None:
        decide(ledger, known, now)
    gone = [key for key in keys if key in ledger.runs and ledger.runs[key].ended]
    for key in gone:
        ledger.drop_run(key)
    return len(gone)

"""Whose turn it is among the runs of a job: how a run ends, waits, goes on; and what a pause does.

Every end goes through :func:`end`, which lets the oldest run that waits go on if nothing else of its
job is active. Pure functions over a ledger, as all transitions: see :mod:`.transitions`.
"""

from __future__ import annotations

from dataclasses import replace

from .ledger import Ledger
from .protocol import BUFFERED, Run


def until(run: Run, now: int, span: int) -> Run:
    """Return the run with its deadline ``span`` milliseconds ahead."""
    return replace(run, deadline=now + span, span=span)


def is_held_back(ledger: Ledger, run: Run) -> bool:
    """Whether the run may not go on because its job is paused: only scheduled ones care."""
    job = ledger.jobs.get(run.job)
    return run.kind == "scheduled" and job is not None and job.paused is not None


def has_to_wait(ledger: Ledger, run: Run) -> bool:
    """Whether others of its job are in the way of a run that comes, where overlap forbids them.

    For one that somebody asked for only what runs counts, and other such runs, those that wait too.
    """
    if run.kind == "scheduled":
        return ledger.others_active(run.key)
    others = ledger.active_of(run.job) + ledger.buffered_of(run.job)
    return any(
        other.state == "running" or other.kind != "scheduled" for other in others if other.key != run.key
    )


# Ends and waits ---------------------------------------------------------------------------------


def end(ledger: Ledger, run: Run, now: int, state: str, reason: str | None) -> Run:
    """End a run, and let the next one go on: every end goes through here."""
    run = end_for_another(ledger, run, now, state, reason)
    promote(ledger, now, run.job)
    return run


def end_for_another(ledger: Ledger, run: Run, now: int, state: str, reason: str | None) -> Run:
    """End a run in whose place another one is put in the same step: none that waits goes on."""
    return ledger.put_run(
        replace(run, state=state, deadline=None, span=None, not_before=None, finished_at=now, reason=reason)
    )


def buffer(ledger: Ledger, run: Run, now: int) -> Run:
    """Let a run wait; it has no deadline until it is promoted."""
    run = ledger.put_run(
        replace(run, state=BUFFERED, deadline=None, span=None, finished_at=None, reason=None)
    )
    promote(ledger, now, run.job)
    return run


def promote(ledger: Ledger, now: int, job: str, *, side_by_side: bool = False) -> None:
    """Let the oldest run of a job that waits go on, if no other is active; a retry at its time.

    Where overlap allows it, ``side_by_side``, all that wait go on: after a pause there may be several.
    """
    for run in ledger.buffered_of(job):
        if ledger.active.get(job) and not side_by_side:
            return
        if not is_held_back(ledger, run):
            delay = max(0, (run.not_before or now) - now)
            ledger.put_run(until(replace(run, state="released"), now, delay))


# Pause and resume -------------------------------------------------------------------------------


def pause(ledger: Ledger, now: int, name: str, reason: str, by: str) -> bool:
    """Pause a job; one that is paused already gets the new reason, and stays paused since then."""
    job = ledger.jobs.get(name)
    if job is None:
        return False
    since = now if job.paused_at is None else job.paused_at
    ledger.put_job(replace(job, paused=reason, paused_by=by, paused_at=since))
    hold_back(ledger, now, name)
    return True


def hold_back(ledger: Ledger, now: int, name: str) -> None:
    """Let the runs of a paused job wait, but for those that a worker has."""
    for run in ledger.active_of(name):
        if run.state != "running" and is_held_back(ledger, run):
            buffer(ledger, run, now)


def resume(ledger: Ledger, now: int, name: str) -> bool:
    """Let a paused job go on, beginning with the oldest run that waits."""
    job = ledger.jobs.get(name)
    if job is None or job.paused is None:
        return False
    ledger.put_job(replace(job, paused=None, paused_by=None, paused_at=None))
    promote(ledger, now, name)
    return True

"""The transitions of those who hold a run: how a worker starts, renews, puts back, ends and gives it up.

Pure functions over a ledger, as all transitions: see :mod:`.transitions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .ledger import Ledger
from .protocol import (
    BUFFERED,
    EARLIER_TRY,
    PUT_BACK,
    YOUNG,
    Holding,
    Job,
    Release,
    Renewal,
    Run,
    RunKey,
    Stale,
    Start,
    Started,
)
from .turns import buffer, end, has_to_wait, is_held_back, until

# start ------------------------------------------------------------------------------------------


#: A message of a run that is not known may be of one that went with history, if it is this much older (ms)
#: than the loss of writes; else its claim is among them.
HISTORY_AT_LEAST = 86_400_000


def start(ledger: Ledger, now: int, asked: Start) -> Started | Stale:
    """Give the run to this delivery, under a new fence, if it may have it."""
    run = ledger.runs.get(asked.key)
    if run is not None and run.state == "running" and run.token == asked.token:
        return _started(ledger, run)
    if wait := ledger.young_for(asked.lease, now):
        return Stale(why=YOUNG, wait=wait)
    run = run or _recorded_anew(ledger, asked)
    if run is None:
        return Stale(why="unknown")
    if run.retries is not None and asked.retries < run.retries:
        return Stale(why=EARLIER_TRY)
    if why := _not_startable(ledger, run, now, asked):
        return Stale(why=why)
    if run.not_before is not None and run.not_before > now:
        return Stale(why="too early for its retry", wait=run.not_before - now)
    if asked.overlap != "allow" and _meets_another(ledger, run):
        _let_wait(ledger, run, now)
        return Stale(why=BUFFERED)
    return _start(ledger, run, now, asked)


def _recorded_anew(ledger: Ledger, asked: Start) -> Run | None:
    """A run claimed before this store came to be, or lost since: what is known of it is in the message."""
    if asked.claimed_at >= ledger.origin.born:
        return None
    job = ledger.jobs.get(asked.key.job)
    is_decided = job is not None and job.floor is not None and asked.key.slot <= job.floor
    is_old = ledger.origin.created <= asked.claimed_at < ledger.origin.born - HISTORY_AT_LEAST
    if is_old and is_decided and asked.key.kind == "scheduled":
        return None  # it was not lost: it ended, and went with old history
    # It comes as a late start, so that it meets the overlap policy again.
    return Run(
        job=asked.key.job, slot=asked.key.slot, kind=asked.key.kind, state="published",
        trigger=asked.trigger, dispatch=asked.dispatch, claimed_at=asked.claimed_at,
        arguments=asked.arguments,
    )  # fmt: skip


def _not_startable(ledger: Ledger, run: Run, now: int, asked: Start) -> str | None:
    held_back = is_held_back(ledger, run)
    if run.state in ("claimed", "queued", "released"):
        if run.stop is not None:
            return "cancelled"
        # Given back by a crash: beat counts those, and may have to abandon it.
        return "paused" if held_back else run.state if run.state == "released" and run.crashes else None
    if run.state == BUFFERED and held_back:
        return "paused"
    if run.may_start_late:
        return _late(ledger, run, now, asked.overlap, held_back=held_back)
    return run.state


def _meets_another(ledger: Ledger, run: Run) -> bool:
    """Whether another run of the job runs, and somebody asked for one of the two: neither had to wait yet."""
    running = [other for other in ledger.active_of(run.job) if other.state == "running"]
    return any("scheduled" != other.kind or "scheduled" != run.kind for other in running)


def _late(ledger: Ledger, run: Run, now: int, overlap: str, *, held_back: bool) -> str | None:
    """What a start meets that comes late: the pause and the overlap policy, as at its claim."""
    busy = overlap != "allow" and has_to_wait(ledger, run)
    if not (busy or held_back):
        return None
    one_waits = any(other.kind == "scheduled" for other in ledger.buffered_of(run.job))
    if run.kind == "scheduled" and not held_back and (overlap == "skip" or one_waits):
        end(ledger, run, now, "skipped", "overlap")
        return "overlap"
    _let_wait(ledger, run, now)
    return "paused" if held_back else BUFFERED


def _let_wait(ledger: Ledger, run: Run, now: int) -> None:
    """Let a run wait whose message has come: those sent before it count no more.

    A worker that asks has the base class. If the store did not know it by now, the run would count as over
    each time it was sent, and could so let another one go on that waits for it, for ever.
    """
    job = _job_of(ledger, run.job, now)
    if not job.supervised:
        ledger.put_job(replace(job, supervised=True))
    buffer(ledger, replace(run, unstarted=0), now)


def _start(ledger: Ledger, run: Run, now: int, asked: Start) -> Started:
    job = _job_of(ledger, run.job, now)
    fence = max(job.fence + 1, now * 1000)
    ledger.put_job(replace(job, fence=fence, supervised=True))
    # Celery's own retry goes on under the same number.
    anew = run.retries is None
    attempt = run.attempt + anew
    started = replace(
        run, state="running", attempt=attempt, fence=fence, owner=asked.worker, token=asked.token,
        trigger="takeover" if anew and run.attempt else run.trigger, task_id=asked.task_id,
        lease=asked.lease, started_at=now, finished_at=None, reason=None, unstarted=0, retries=None,
        not_before=None,
    )  # fmt: skip
    ledger.put_run(until(started, now, asked.lease))
    return _started(ledger, started)


def _job_of(ledger: Ledger, name: str, now: int) -> Job:
    """The job that a worker has a run of; one that is not known comes to be."""
    return ledger.jobs.get(name) or Job(name=name, first_seen=now, seen=now)


def _started(ledger: Ledger, run: Run) -> Started:
    return Started(
        attempt=run.attempt, fence=run.fence, trigger=run.trigger, store=ledger.origin.identity
    )


# what a holder does -----------------------------------------------------------------------------


def renew(ledger: Ledger, now: int, holdings: Sequence[Holding]) -> list[Renewal]:
    """Move the deadline of each lease that is still held; an expired one too, if nobody took it.

    A run that the store has forgotten is put back: then the ledger has to have the job, and all its runs.
    """
    return [_renew(ledger, now, holding) for holding in holdings]


def _renew(ledger: Ledger, now: int, holding: Holding) -> Renewal:
    run = ledger.runs.get(holding.key)
    store = ledger.origin.identity
    if run is None or run.state != "running" or run.token != holding.token:
        if can_be_put_back(run, holding) and (forgotten := _put_back(ledger, now, run, holding)):
            return forgotten
        return Renewal(answer="lost", reason=lost_to(run), store=store)
    if run.stop is not None:
        return Renewal(answer="stop", reason=run.stop, store=store)
    ledger.put_run(until(run, now, run.lease or 0))
    return Renewal(answer="ok", store=store)


def can_be_put_back(run: Run | None, holding: Holding) -> bool:
    """Whether the record is older than the lease that its holder trusts: then the store has forgotten it."""
    if run is None or not holding.trusted:
        return holding.trusted
    return run.fence < holding.fence and not (run.ended and not run.may_start_late)


def _put_back(ledger: Ledger, now: int, run: Run | None, holding: Holding) -> Renewal | None:
    """Record again what only the holder knows. Old enough, the store goes by its own records."""
    if holding.store == ledger.origin.identity:
        ledger.lose_writes(now)
    others = [other for other in ledger.active_of(holding.key.job) if other.key != holding.key]
    if not ledger.young_for(holding.lease, now) and (run is not None or others):
        return None
    if holding.overlap == "allow":
        others = []
    # What was begun before anybody told the store: what runs has the later fence, all else can wait.
    if any(other.state == "running" and other.fence > holding.fence for other in others):
        return None
    job = _job_of(ledger, holding.key.job, now)
    ledger.put_job(replace(job, fence=max(job.fence, holding.fence), supervised=True))
    known = run or Run(
        job=holding.key.job, slot=holding.key.slot, kind=holding.key.kind, trigger=holding.trigger,
        dispatch=holding.dispatch, claimed_at=holding.claimed_at, arguments=holding.arguments,
    )  # fmt: skip
    held = replace(
        known, state="running", attempt=holding.attempt, fence=holding.fence, owner=holding.owner,
        token=holding.token, task_id=holding.task_id, lease=holding.lease, unstarted=0, retries=None,
        started_at=holding.fence // 1000, finished_at=None, reason=None, not_before=None,
    )  # fmt: skip
    ledger.put_run(until(held, now, holding.lease))
    for other in others:
        if other.state != "running":
            buffer(ledger, other, now)
    return Renewal(answer="ok", reason=PUT_BACK, store=ledger.origin.identity)


def lost_to(run: Run | None) -> str:
    """What became of a run that somebody thought was theirs, in words for the log."""
    if run is None:
        return "the store does not know the run"
    if run.state == "running":
        return f"taken over as attempt {run.attempt}"
    if run.state == BUFFERED:
        return f"taken back, attempt {run.attempt + 1} waits"
    return f"taken over as attempt {run.attempt + 1}" if run.active else run.state


def _held(ledger: Ledger, key: RunKey, token: str | None) -> Run | None:
    run = ledger.runs.get(key)
    return run if run is not None and run.state == "running" and run.token == token else None


def finish(ledger: Ledger, now: int, key: RunKey, token: str, outcome: str, reason: str | None) -> bool:
    """End a run that is still held; false means that it was lost and nothing was written."""
    if run := _held(ledger, key, token):
        end(ledger, run, now, outcome, reason)
        return True
    return _already(ledger, key, token, outcome)


def _already(ledger: Ledger, key: RunKey, token: str | None, *states: str) -> bool:
    """Whether this very call was carried out before and only its answer was lost."""
    run = ledger.runs.get(key)
    return run is not None and run.state in states and run.token == token


def requeue(
    ledger: Ledger, now: int, key: RunKey, token: str, *, delay: int, retries: int, start_timeout: int
) -> bool:
    """Let a held run wait for Celery's retry, before that is published; one that is to stop ends."""
    if not (run := _held(ledger, key, token)):
        return _already(ledger, key, token, "queued", BUFFERED) and ledger.runs[key].retries is not None
    if run.stop is not None:
        end(ledger, run, now, "cancelled", run.stop)
        return False
    waiting = replace(
        run, state="queued", queued_at=now, not_before=now + delay, retries=retries, unstarted=1
    )  # fmt: skip
    if is_held_back(ledger, run):
        buffer(ledger, waiting, now)
    else:
        ledger.put_run(until(waiting, now, delay + start_timeout))
    return True


def release(ledger: Ledger, now: int, releases: Sequence[Release]) -> list[bool]:
    """Give runs back at once, or after a delay: held ones, and claims whose publish failed."""
    return [_release(ledger, now, one) for one in releases]


def _release(ledger: Ledger, now: int, one: Release) -> bool:
    run = ledger.runs.get(one.key)
    by_holder = one.token is not None
    if run is None or (run.token != one.token if by_holder else run.nonce != one.nonce):
        return False
    if run.state != ("running" if by_holder else "claimed"):
        return _was_released(run, by_holder=by_holder)
    # A publish that certainly failed was no dispatch.
    run = replace(run, dispatch=run.dispatch - (not by_holder), crashes=run.crashes + one.crash)
    if by_holder and run.stop is not None:
        end(ledger, run, now, "cancelled", run.stop)
    elif is_held_back(ledger, run):
        buffer(ledger, run, now)
    else:
        ledger.put_run(until(replace(run, state="released"), now, one.delay))
    return True


def _was_released(run: Run, *, by_holder: bool) -> bool:
    """Whether who gives the run back did so before, and only the answer was lost."""
    if run.state == "released":
        return True
    if run.state == BUFFERED:
        return not by_holder or run.retries is None  # else it was not given back, but waits for its retry
    return by_holder and run.state == "cancelled" and run.stop is not None

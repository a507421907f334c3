"""The transitions of the protocol, as pure functions over a ledger.

A :class:`~anarchon_celery.ledger.Ledger` holds the jobs and runs one step looks at; each function
reads it, puts the changed records back and answers. The memory store keeps one ledger for good, the
SQL store loads the rows a step needs and writes what changed: both in one atomic step, so that what
stands here is what happens. The Lua scripts of the Redis store say the same in their language, and
are held against this by the tests.

The order is that of a run's life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from .ledger import Ledger
from .protocol import (
    LONGEST_START_TIMEOUT,
    MAX_DISPATCHES,
    ORPHANED_AFTER,
    REMEMBERED_HASHES,
    Claim,
    Claimed,
    Holding,
    Job,
    Offer,
    Redispatch,
    Registered,
    Registration,
    Release,
    Renewal,
    Run,
    RunKey,
    Sent,
    Stale,
    Start,
    Started,
)

# register ---------------------------------------------------------------------------------------


def register(ledger: Ledger, now: int, registrations: Sequence[Registration]) -> list[Registered]:
    """Remember jobs and schedule hashes; answer what is known of each."""
    return [_register(ledger, now, asked) for asked in registrations]


def _register(ledger: Ledger, now: int, asked: Registration) -> Registered:
    job = ledger.jobs.get(asked.job)
    if job is None or not job.hashes:
        job = _learnt(job, now, asked)
    hashes = dict(job.hashes)
    # The first hash of a job counts from the job's own beginning, a later one from now on.
    effective = hashes.setdefault(asked.hash, now if hashes else job.first_seen)
    remembered = tuple(hashes.items())[-REMEMBERED_HASHES:]
    supervised = job.supervised or asked.supervised
    job = replace(job, hashes=remembered, seen=max(job.seen, now), supervised=supervised)
    ledger.put_job(job)
    return Registered(
        job=job.name, floor=job.floor, first_seen=job.first_seen, effective=effective, supervised=supervised
    )


def _learnt(started: Job | None, now: int, asked: Registration) -> Job:
    """A job no node has registered here: new, or learnt back from the memory of a node."""
    first_seen = now if asked.first_seen is None else min(asked.first_seen, now)
    floor = None if asked.cursor is None else min(asked.cursor, now)
    if started is None:
        return Job(name=asked.job, first_seen=first_seen, seen=now, floor=floor)
    # In a wiped store a message left over from before may have started it already.
    known = [at for at in (started.floor, floor) if at is not None]
    return replace(started, first_seen=min(started.first_seen, first_seen), floor=max(known, default=None))


# claim ------------------------------------------------------------------------------------------


def claim(ledger: Ledger, now: int, node: str, nonce: str, offers: Sequence[Offer]) -> list[Claimed]:
    """Decide the slots of each job, in their order."""
    return [_claim_job(ledger, now, node, nonce, offer) for offer in offers]


def _claim_job(ledger: Ledger, now: int, node: str, nonce: str, offer: Offer) -> Claimed:
    keys = [RunKey(offer.job, slot) for slot in offer.slots]
    job = ledger.jobs.get(offer.job)
    if job is None or not job.hashes:
        return Claimed(job=offer.job, floor=None, claims=_all(keys, "unknown"))
    if _leap_is_out_of_date(job, offer):
        return Claimed(job=offer.job, floor=job.floor, claims=_all(keys, "wait"))
    missed = _record_leap(ledger, now, node, nonce, job, offer)
    claims = tuple(
        _claim_slot(ledger, now, node, nonce, offer, key, late=position < offer.late)
        for position, key in enumerate(keys)
    )
    return Claimed(job=offer.job, floor=ledger.jobs[offer.job].floor, claims=claims, missed=missed)


def _all(keys: Sequence[RunKey], answer: str) -> tuple[Claim, ...]:
    return tuple(Claim(key=key, answer=answer) for key in keys)  # type: ignore[arg-type]


def _leap_is_out_of_date(job: Job, offer: Offer) -> bool:
    """Whether others decided part of what this node wants to pass over: it must look again."""
    if offer.leap is None or job.floor is None or job.floor < offer.leap.first:
        return False
    return job.floor < offer.leap.last


def _record_leap(ledger: Ledger, now: int, node: str, nonce: str, job: Job, offer: Offer) -> Run | None:
    """Write the one record of the slots that nobody will run, and raise the floor over them."""
    leap = offer.leap
    if leap is None or leap.last > now:
        return None
    run = ledger.runs.get(RunKey(offer.job, leap.first))
    if job.floor is not None and job.floor >= leap.last:
        # By this very call, if its answer was lost.
        return run if run is not None and (run.state, run.nonce) == ("missed", nonce) else None
    ledger.put_job(replace(job, floor=leap.last))
    if run is not None:
        return None
    return ledger.put_run(
        Run(
            job=offer.job, slot=leap.first, state="missed", trigger="catch-up", dispatch=0, node=node,
            nonce=nonce, finished_at=now, reason="came due while no node was looking",
            until=leap.last, count=leap.count,
        )
    )  # fmt: skip


def _claim_slot(
    ledger: Ledger, now: int, node: str, nonce: str, offer: Offer, key: RunKey, *, late: bool
) -> Claim:
    job, run = ledger.jobs[key.job], ledger.runs.get(key)
    if run is not None or (job.floor is not None and key.slot <= job.floor):
        return _met_again(key, run, nonce)
    if key.slot > now:
        return Claim(key=key, answer="early", wait=key.slot - now)
    ledger.put_job(replace(job, floor=key.slot))
    new = Run(
        job=key.job, slot=key.slot, node=node, nonce=nonce, claimed_at=now,
        trigger="catch-up" if late else "scheduled",
    )  # fmt: skip
    if offer.overlap == "skip" and ledger.active.get(key.job):
        skipped = replace(new, state="skipped", dispatch=0, finished_at=now, reason="overlap")
        return Claim(key=key, answer="overlap", run=ledger.put_run(skipped))
    return Claim(key=key, answer="won", run=ledger.put_run(_until(new, now, offer.claim_timeout)))


def _met_again(key: RunKey, run: Run | None, nonce: str) -> Claim:
    """The slot is decided: by this very call if its answer was lost, else by somebody else."""
    if run is not None and run.nonce == nonce:
        if run.state == "claimed":
            return Claim(key=key, answer="won", run=run)
        if run.state == "skipped" and run.reason == "overlap":
            return Claim(key=key, answer="overlap", run=run)
    return Claim(key=key, answer="taken", run=run)


def _until(run: Run, now: int, span: int) -> Run:
    """The run with its deadline ``span`` milliseconds ahead."""
    return replace(run, deadline=now + span, span=span)


def _end(ledger: Ledger, run: Run, now: int, state: str, reason: str | None) -> Run:
    """Every end goes through here."""
    return ledger.put_run(
        replace(run, state=state, deadline=None, span=None, not_before=None, finished_at=now, reason=reason)
    )


# redispatch and sent ----------------------------------------------------------------------------


#: What the answer of a redispatch was, by the state it left.
_REDISPATCHED: dict[str, Literal["won", "cancelled", "abandoned"]] = {
    "claimed": "won", "cancelled": "cancelled", "abandoned": "abandoned",
}  # fmt: skip


def redispatch(ledger: Ledger, now: int, node: str, nonce: str, asked: Sequence[Redispatch]) -> list[Claim]:
    """Claim again what is past its deadline and still as it was seen; end what may not go on."""
    return [_redispatch(ledger, now, node, nonce, one) for one in asked]


def _redispatch(ledger: Ledger, now: int, node: str, nonce: str, seen: Redispatch) -> Claim:
    run = ledger.runs.get(seen.key)
    if run is not None and run.nonce == nonce and run.state in _REDISPATCHED:
        return Claim(key=seen.key, answer=_REDISPATCHED[run.state], run=run)
    as_seen = run is not None and (run.state, run.dispatch, run.deadline) == (
        seen.state, seen.dispatch, seen.deadline,
    )  # fmt: skip
    if run is None or not as_seen or seen.deadline > now:
        return Claim(key=seen.key, answer="taken", run=run)
    # Whoever held it holds it no more, whatever becomes of it now.
    run = replace(run, crashes=run.crashes + (run.state == "running"), token=None, nonce=nonce)
    if run.stop is not None:
        return Claim(key=seen.key, answer="cancelled", run=_end(ledger, run, now, "cancelled", run.stop))
    if hopeless := _hopeless(ledger.jobs.get(run.job), run, now, seen.max_crashes):
        if run.crashes >= seen.max_crashes:
            run = replace(run, unstarted=0)  # it was started: no late message may start it again
        return Claim(key=seen.key, answer="abandoned", run=_end(ledger, run, now, "abandoned", hopeless))
    again = replace(
        run, state="claimed", node=node, claimed_at=now, dispatch=run.dispatch + 1,
        trigger="takeover" if run.attempt and run.retries is None else run.trigger,
    )  # fmt: skip
    return Claim(key=seen.key, answer="won", run=ledger.put_run(_until(again, now, seen.claim_timeout)))


def _hopeless(job: Job | None, run: Run, now: int, max_crashes: int) -> str | None:
    """Why the run is given up, if it is."""
    if run.crashes >= max_crashes:
        return f"{run.crashes} worker{'s' * (run.crashes > 1)} died running it"
    if run.unstarted >= MAX_DISPATCHES:
        return f"dispatched {run.unstarted} times and never started"
    if job is None or job.seen < now - ORPHANED_AFTER:
        return "no node has had its job for a day"
    return None


def sent(ledger: Ledger, now: int, published: Sequence[Sent]) -> None:
    """Note which claims were published; where a worker was faster there is nothing to note."""
    for one in published:
        run = ledger.runs.get(one.key)
        if run is not None and run.state == "claimed" and run.dispatch == one.dispatch:
            _sent(ledger, now, run, one)


def _sent(ledger: Ledger, now: int, run: Run, one: Sent) -> None:
    job = ledger.jobs.get(run.job)
    run = replace(run, task_id=one.task_id, queued_at=now, unstarted=run.unstarted + 1)
    known = job is not None and job.supervised
    if not run.attempt and not (known if one.supervised is None else one.supervised):
        _end(ledger, run, now, "published", None)
        return
    span = one.countdown + start_timeout(one.start_timeout, run.unstarted)
    ledger.put_run(replace(_until(run, now, span), state="queued"))


def start_timeout(first: int, dispatches: int) -> int:
    """How long a message may wait: doubled for each dispatch since the last start, up to an hour."""
    doubled: int = first << (dispatches - 1)
    return max(first, min(doubled, LONGEST_START_TIMEOUT))


# start ------------------------------------------------------------------------------------------


def start(ledger: Ledger, now: int, asked: Start) -> Started | Stale:
    """Give the run to this delivery, under a new fence, if it may have it."""
    run = ledger.runs.get(asked.key) or _recorded_anew(ledger, asked)
    if run is None:
        return Stale(why="unknown")
    if run.state == "running" and run.token == asked.token:
        return Started(attempt=run.attempt, fence=run.fence, trigger=run.trigger)
    if why := _not_startable(ledger, run, now, asked):
        return Stale(why=why)
    if run.not_before is not None and run.not_before > now:
        return Stale(why="too early for its retry", wait=run.not_before - now)
    return _start(ledger, run, now, asked)


def _recorded_anew(ledger: Ledger, asked: Start) -> Run | None:
    """A run claimed before this store came to be: what is known of it is in the message."""
    if asked.claimed_at >= ledger.created:
        return None
    # It comes as a late start, so that it meets the overlap policy again.
    return Run(
        job=asked.key.job, slot=asked.key.slot, kind=asked.key.kind, state="published",
        trigger=asked.trigger, dispatch=asked.dispatch, claimed_at=asked.claimed_at,
    )  # fmt: skip


def _not_startable(ledger: Ledger, run: Run, now: int, asked: Start) -> str | None:
    if run.state in ("claimed", "queued", "released"):
        return "cancelled" if run.stop is not None else None
    late = run.state == "published" or (run.state == "abandoned" and run.unstarted > 0)
    if not late:
        return run.state
    if asked.overlap == "skip" and ledger.others_active(run.key):
        _end(ledger, run, now, "skipped", "overlap")
        return "overlap"
    return None


def _start(ledger: Ledger, run: Run, now: int, asked: Start) -> Started:
    job = ledger.jobs.get(run.job) or Job(name=run.job, first_seen=now, seen=now)
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
    ledger.put_run(_until(started, now, asked.lease))
    return Started(attempt=attempt, fence=fence, trigger=started.trigger)


# what a holder does -----------------------------------------------------------------------------


def renew(ledger: Ledger, now: int, holdings: Sequence[Holding]) -> list[Renewal]:
    """Move the deadline of each lease that is still held; an expired one too, if nobody took it."""
    return [_renew(ledger, now, holding) for holding in holdings]


def _renew(ledger: Ledger, now: int, holding: Holding) -> Renewal:
    run = ledger.runs.get(holding.key)
    if run is None or run.state != "running" or run.token != holding.token:
        return Renewal(answer="lost", reason=lost_to(run))
    if run.stop is not None:
        return Renewal(answer="stop", reason=run.stop)
    ledger.put_run(_until(run, now, run.lease or 0))
    return Renewal(answer="ok")


def lost_to(run: Run | None) -> str:
    """What became of a run that somebody thought was theirs, in words for the log."""
    if run is None:
        return "the store does not know the run"
    if run.state == "running":
        return f"taken over as attempt {run.attempt}"
    return f"taken over as attempt {run.attempt + 1}" if run.active else run.state


def _held(ledger: Ledger, key: RunKey, token: str | None) -> Run | None:
    run = ledger.runs.get(key)
    return run if run is not None and run.state == "running" and run.token == token else None


def finish(ledger: Ledger, now: int, key: RunKey, token: str, outcome: str, reason: str | None) -> bool:
    """End a run that is still held; false means that it was lost and nothing was written."""
    if run := _held(ledger, key, token):
        _end(ledger, run, now, outcome, reason)
        return True
    return _already(ledger, key, token, outcome)


def _already(ledger: Ledger, key: RunKey, token: str | None, state: str) -> bool:
    """Whether this very call was carried out before and only its answer was lost."""
    run = ledger.runs.get(key)
    return run is not None and run.state == state and run.token == token


def requeue(
    ledger: Ledger, now: int, key: RunKey, token: str, *, delay: int, retries: int, start_timeout: int
) -> bool:
    """Let a held run wait for Celery's retry, before that is published."""
    if not (run := _held(ledger, key, token)):
        return _already(ledger, key, token, "queued")
    waiting = replace(
        run, state="queued", queued_at=now, not_before=now + delay, retries=retries, unstarted=1
    )  # fmt: skip
    ledger.put_run(_until(waiting, now, delay + start_timeout))
    return True


def release(ledger: Ledger, now: int, releases: Sequence[Release]) -> list[bool]:
    """Give runs back at once, or after a delay: held ones, and claims whose publish failed."""
    return [_release(ledger, now, one) for one in releases]


def _release(ledger: Ledger, now: int, one: Release) -> bool:
    run = ledger.runs.get(one.key)
    if run is None:
        return False
    mine = run.token == one.token if one.token is not None else run.nonce == one.nonce
    if run.state == "released" and mine:
        return True
    if not mine or run.state != ("running" if one.token is not None else "claimed"):
        return False
    # A publish that certainly failed was no dispatch.
    dispatch = run.dispatch - (one.token is None)
    released = replace(run, state="released", dispatch=dispatch, crashes=run.crashes + one.crash)
    ledger.put_run(_until(released, now, one.delay))
    return True


# the store's clock went back --------------------------------------------------------------------


def rewind(ledger: Ledger, now: int) -> None:
    """Cut what lies further ahead than it could have been set: floors, deadlines, first-seen times."""
    for job in list(ledger.jobs.values()):
        if (cut := _cut_job(job, now)) != job:
            ledger.put_job(cut)
        for run in list(ledger.active.get(job.name, {}).values()):
            if run.span is not None and run.deadline is not None and run.deadline > now + run.span:
                ledger.put_run(_cut(run, now, run.span, run.deadline))


def _cut_job(job: Job, now: int) -> Job:
    return replace(
        job, floor=None if job.floor is None else min(job.floor, now), first_seen=min(job.first_seen, now),
        hashes=tuple((hash, min(since, now)) for hash, since in job.hashes),
    )  # fmt: skip


def _cut(run: Run, now: int, span: int, deadline: int) -> Run:
    """The run with its deadline as if it had just been set; a retry's time moves with it."""
    ahead = deadline - (now + span)
    not_before = None if run.not_before is None else run.not_before - ahead
    return _until(replace(run, not_before=not_before), now, span)


# history ----------------------------------------------------------------------------------------


def forget(ledger: Ledger, now: int, keys: Sequence[RunKey]) -> None:
    """Drop ended runs; the floor is raised over them, so that no node finds the way free again."""
    for key in keys:
        ledger.drop_run(key)
        job = ledger.jobs.get(key.job)
        if job is not None and key.kind == "scheduled" and key.slot <= now and key.slot > (job.floor or 0):
            ledger.put_job(replace(job, floor=key.slot))

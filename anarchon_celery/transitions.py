"""The transitions of the protocol, as pure functions over a ledger.

A :class:`~anarchon_celery.ledger.Ledger` holds the jobs and runs one step looks at; each function
reads it, puts the changed records back and answers. The memory store keeps one ledger for good, the
SQL store loads the rows a step needs and writes what changed: both in one atomic step, so that what
stands here is what happens. The Lua scripts of the Redis store say the same in their language, and
are held against this by the tests.

The order is that of a run's life. The claim has a module of its own, :mod:`.claiming`, and so has
what becomes of the other runs of a job: :mod:`.turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from .claiming import claim
from .floors import cut, decide, higher, with_schedule
from .ledger import Ledger
from .protocol import (
    BUFFERED,
    LONGEST_START_TIMEOUT,
    MAX_DISPATCHES,
    ORPHANED_AFTER,
    PUT_BACK,
    YOUNG,
    Claim,
    Holding,
    Job,
    KnownSchedule,
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
from .turns import buffer, end, hold_back, is_held_back, pause, resume, until

__all__ = [
    "register", "claim", "redispatch", "sent", "start", "start_timeout",
    "renew", "can_be_put_back", "lost_to", "finish", "requeue", "release", "pause", "resume", "rewind",
    "forget",
]  # fmt: skip

# register ---------------------------------------------------------------------------------------


def register(ledger: Ledger, now: int, registrations: Sequence[Registration]) -> list[Registered]:
    """Remember jobs and schedule hashes; answer what is known of each."""
    return [_register(ledger, now, asked) for asked in registrations]


def _register(ledger: Ledger, now: int, asked: Registration) -> Registered:
    known = ledger.jobs.get(asked.job)
    job = known if known is not None and known.hashes else _learnt(known, now, asked)
    supervised = job.supervised or asked.supervised
    job = replace(with_schedule(job, now, asked), seen=max(job.seen, now), supervised=supervised)
    ledger.put_job(job)
    if job.paused is not None and (known is None or known.paused is None):
        hold_back(ledger, now, job.name)
    return _registered(job, asked)


def _registered(job: Job, asked: Registration) -> Registered:
    known = job.known(asked.hash) or KnownSchedule(asked.hash, job.first_seen)
    effective, floor = known.since, known.floor
    if asked.cursor is not None and asked.effective is not None:
        # Another node may have begun the schedule anew: to who goes on with it, it counts as before.
        effective = min(effective, asked.effective)
    return Registered(
        job=job.name, floor=floor, first_seen=job.first_seen, effective=effective,
        supervised=job.supervised, paused=job.paused,
    )  # fmt: skip


def _learnt(started: Job | None, now: int, asked: Registration) -> Job:
    """A job no node has registered here: new, or learnt back from the memory of a node."""
    first_seen = now if asked.first_seen is None else min(asked.first_seen, now)
    floor = None if asked.cursor is None else min(asked.cursor, now)
    if started is None:
        started = Job(name=asked.job, first_seen=first_seen, seen=now)
    if started.paused is None and asked.paused is not None:
        started = replace(started, paused=asked.paused, paused_at=now)
    # In a wiped store a message left over from before may have started it already.
    first_seen = min(started.first_seen, first_seen)
    return replace(started, first_seen=first_seen, floor=higher(started.floor, floor))


# redispatch and sent ----------------------------------------------------------------------------


#: What the answer of a redispatch was, by the state it left.
_REDISPATCHED: dict[str, Literal["won", "cancelled", "abandoned", "paused"]] = {
    "claimed": "won", "cancelled": "cancelled", "abandoned": "abandoned", BUFFERED: "paused",
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
    if run.state == "running" and (wait := ledger.young_for(run.lease or 0, now)):
        return Claim(key=seen.key, answer="wait", run=run, wait=wait)
    # Whoever held it holds it no more, whatever becomes of it now.
    run = replace(run, crashes=run.crashes + (run.state == "running"), token=None, nonce=nonce)
    if run.stop is not None:
        return Claim(key=seen.key, answer="cancelled", run=end(ledger, run, now, "cancelled", run.stop))
    if hopeless := _hopeless(ledger.jobs.get(run.job), run, now, seen.max_crashes):
        if run.crashes >= seen.max_crashes:
            run = replace(run, unstarted=0)  # it was started: no late message may start it again
        return Claim(key=seen.key, answer="abandoned", run=end(ledger, run, now, "abandoned", hopeless))
    if is_held_back(ledger, run):
        return Claim(key=seen.key, answer="paused", run=buffer(ledger, run, now))
    again = replace(
        run, state="claimed", node=node, claimed_at=now, dispatch=run.dispatch + 1,
        trigger="takeover" if run.attempt and run.retries is None else run.trigger,
    )  # fmt: skip
    return Claim(key=seen.key, answer="won", run=ledger.put_run(until(again, now, seen.claim_timeout)))


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
        end(ledger, run, now, "published", None)
        return
    span = one.countdown + start_timeout(one.start_timeout, run.unstarted)
    ledger.put_run(replace(until(run, now, span), state="queued"))


def start_timeout(first: int, dispatches: int) -> int:
    """How long a message may wait: doubled for each dispatch since the last start, up to an hour."""
    doubled: int = first << (dispatches - 1)
    return max(first, min(doubled, LONGEST_START_TIMEOUT))


# start ------------------------------------------------------------------------------------------


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
    if why := _not_startable(ledger, run, now, asked):
        return Stale(why=why)
    if run.not_before is not None and run.not_before > now:
        return Stale(why="too early for its retry", wait=run.not_before - now)
    return _start(ledger, run, now, asked)


def _recorded_anew(ledger: Ledger, asked: Start) -> Run | None:
    """A run claimed before this store came to be, or lost since: what is known of it is in the message."""
    if asked.claimed_at >= ledger.origin.born:
        return None
    job = ledger.jobs.get(asked.key.job)
    is_decided = job is not None and job.floor is not None and asked.key.slot <= job.floor
    if asked.claimed_at >= ledger.origin.created and is_decided and asked.key.kind == "scheduled":
        return None  # it was not lost: it ended, and went with old history
    # It comes as a late start, so that it meets the overlap policy again.
    return Run(
        job=asked.key.job, slot=asked.key.slot, kind=asked.key.kind, state="published",
        trigger=asked.trigger, dispatch=asked.dispatch, claimed_at=asked.claimed_at,
    )  # fmt: skip


def _not_startable(ledger: Ledger, run: Run, now: int, asked: Start) -> str | None:
    held_back = is_held_back(ledger, run)
    if run.state in ("claimed", "queued", "released"):
        return "cancelled" if run.stop is not None else "paused" if held_back else None
    if run.state == BUFFERED and held_back:
        return "paused"
    if run.state == "published" or (run.state == "abandoned" and run.unstarted > 0):
        return _late(ledger, run, now, asked.overlap, held_back=held_back)
    return run.state


def _late(ledger: Ledger, run: Run, now: int, overlap: str, *, held_back: bool) -> str | None:
    """What a start meets that comes late: the pause and the overlap policy, as at its claim."""
    busy = overlap != "allow" and ledger.others_active(run.key)
    if not (busy or held_back):
        return None
    one_waits = any(other.kind == "scheduled" for other in ledger.buffered_of(run.job))
    if not held_back and (overlap == "skip" or one_waits):
        end(ledger, run, now, "skipped", "overlap")
        return "overlap"
    # Its message has come: those sent before it count no more.
    buffer(ledger, replace(run, unstarted=0), now)
    return "paused" if held_back else BUFFERED


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
    ledger.put_run(until(started, now, asked.lease))
    return _started(ledger, started)


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
    is_over = run.ended and run.state != "published" and not (run.state == "abandoned" and run.unstarted > 0)
    return run.fence < holding.fence and not is_over


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
    job = ledger.jobs.get(holding.key.job) or Job(name=holding.key.job, first_seen=now, seen=now)
    ledger.put_job(replace(job, fence=max(job.fence, holding.fence), supervised=True))
    known = run or Run(
        job=holding.key.job, slot=holding.key.slot, kind=holding.key.kind, trigger=holding.trigger,
        dispatch=holding.dispatch, claimed_at=holding.claimed_at,
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


# the store's clock went back --------------------------------------------------------------------


def rewind(ledger: Ledger, now: int) -> None:
    """Cut what lies further ahead than it could have been set: floors, deadlines, first-seen times."""
    for job in list(ledger.jobs.values()):
        if (shortened := cut(job, now)) != job:
            ledger.put_job(shortened)
    for run in [run for of_job in ledger.active.values() for run in of_job.values()]:
        if run.span is not None and run.deadline is not None and run.deadline > now + run.span:
            ledger.put_run(_cut(run, now, run.span, run.deadline))
    for run in [run for of_job in ledger.buffered.values() for run in of_job.values()]:
        # How long this retry was to wait is not known any more.
        if run.not_before is not None and run.not_before > now:
            ledger.put_run(replace(run, not_before=now))


def _cut(run: Run, now: int, span: int, deadline: int) -> Run:
    """The run with its deadline as if it had just been set; a retry's time moves with it."""
    ahead = deadline - (now + span)
    not_before = None if run.not_before is None else run.not_before - ahead
    return until(replace(run, not_before=not_before), now, span)


# history ----------------------------------------------------------------------------------------


def forget(ledger: Ledger, now: int, keys: Sequence[RunKey]) -> None:
    """Drop ended runs; all floors are raised over them, so that no node finds the way free again."""
    for key in keys:
        ledger.drop_run(key)
        job = ledger.jobs.get(key.job)
        if job is not None and key.kind == "scheduled" and key.slot <= now:
            decide(ledger, job, key.slot)

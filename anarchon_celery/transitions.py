"""The transitions of the protocol, as pure functions over a ledger.

A :class:`~anarchon_celery.ledger.Ledger` holds the jobs and runs one step looks at; each function
reads it, puts the changed records back and answers. The memory store keeps one ledger for good, the
SQL store loads the rows a step needs and writes what changed: both in one atomic step, so that what
stands here is what happens. The Lua scripts of the Redis store say the same in their language, and
are held against this by the tests.

The order is that of a run's life. The claim has a module of its own, :mod:`.claiming`, and so have
what the holder of a run does, :mod:`.holding`, what somebody asks for, :mod:`.requests`, and what becomes
of the other runs of a job: :mod:`.turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from .claiming import claim
from .floors import cut, decide, higher, is_below, with_schedule
from .holding import can_be_put_back, finish, lost_to, release, renew, requeue, start
from .ledger import Ledger
from .protocol import (
    BUFFERED,
    LONGEST_START_TIMEOUT,
    MAX_DISPATCHES,
    ORPHANED_AFTER,
    Claim,
    Job,
    KnownSchedule,
    Redispatch,
    Registered,
    Registration,
    Run,
    RunKey,
    Sent,
    Settle,
)
from .requests import backfill, cancel, forget_job, trigger
from .turns import buffer, end, hold_back, is_held_back, pause, resume, until

__all__ = [
    "register", "claim", "redispatch", "sent", "settle", "start", "start_timeout",
    "renew", "can_be_put_back", "lost_to", "finish", "requeue", "release", "pause", "resume", "rewind",
    "forget", "trigger", "backfill", "cancel", "forget_job",
]  # fmt: skip

# register ---------------------------------------------------------------------------------------


def register(ledger: Ledger, now: int, registrations: Sequence[Registration]) -> list[Registered]:
    """Remember jobs and schedule hashes; answer what is known of each."""
    if any(_is_lost(ledger, now, asked) for asked in registrations):
        ledger.lose_writes(now)
    return [_register(ledger, now, asked) for asked in registrations]


def _is_lost(ledger: Ledger, now: int, asked: Registration) -> bool:
    """Whether the store decided more for this node than it knows of, though it is the one that decided."""
    job = ledger.jobs.get(asked.job)
    if job is None or job.known(asked.hash) is None or ledger.known_as != ledger.origin.identity:
        return False
    return is_below(job, asked.hash, asked.floor, now)


def _register(ledger: Ledger, now: int, asked: Registration) -> Registered:
    known = ledger.jobs.get(asked.job)
    job = known if known is not None and known.hashes else _learnt(known, now, asked)
    supervised = job.supervised or asked.supervised
    job = replace(with_schedule(job, now, asked), seen=max(job.seen, now), supervised=supervised)
    ledger.put_job(job)
    if ledger.origin.is_wiped and is_below(job, asked.hash, asked.floor, now):
        decide(ledger, job, asked.floor or 0, asked.hash)  # another node knew less
        job = ledger.jobs[job.name]
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
    # What runs is its holder's; what is queued could not start.
    lease = max(run.lease or 0, seen.lease)
    if run.state in ("running", "queued") and (wait := ledger.young_for(lease, now)):
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


# settle -----------------------------------------------------------------------------------------


def settle(ledger: Ledger, now: int, settled: Sequence[Settle]) -> list[bool]:
    """End runs that nobody will start; false means that one is not so, and nothing was written."""
    return [_settle(ledger, now, one) for one in settled]


def _settle(ledger: Ledger, now: int, one: Settle) -> bool:
    run = ledger.runs.get(one.key)
    if run is None or one.dispatch not in (None, run.dispatch):
        return False
    if run.state in ("claimed", "queued", "released"):
        end(ledger, run, now, one.outcome, one.reason)
        return True
    return run.state == one.outcome  # this very call was carried out before


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

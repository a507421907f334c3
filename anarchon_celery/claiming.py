"""The claim: how the slots that came due are decided, one after the other. Pure, see :mod:`.transitions`.

Per slot, in this order: decided already, not due yet, its job is paused, it has to wait for its turn,
and else what the overlap policy says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .floors import decide, floor_of, is_below, is_unknown
from .ledger import Ledger
from .protocol import BUFFERED, LEAPT, OVERTAKEN, Claim, Claimed, Job, Offer, Run, RunKey
from .turns import buffer, end_for_another, promote, until

#: The answers that go with a record of this call's own.
_DECIDED = ("won", "overlap", "paused", "cancelled")

Answer = Literal["won", "overlap", "paused", "cancelled", "taken"]


def claim(ledger: Ledger, now: int, node: str, nonce: str, offers: Sequence[Offer]) -> list[Claimed]:
    """Decide the slots of each job, in their order; none if the store lost what it had decided."""
    jobs = [(ledger.jobs.get(offer.job), offer) for offer in offers]
    if any(job is not None and is_below(job, offer.hash, offer.floor, now) for job, offer in jobs):
        ledger.lose_writes(now)
    return [_claim_job(ledger, now, node, nonce, offer) for offer in offers]


def _claim_job(ledger: Ledger, now: int, node: str, nonce: str, offer: Offer) -> Claimed:
    keys = [RunKey(offer.job, slot) for slot in offer.slots]
    job = ledger.jobs.get(offer.job)
    if job is None or is_unknown(job, offer.hash):
        return Claimed(job=offer.job, floor=None, claims=_all(keys, "unknown"))
    floor = floor_of(job, offer.hash)
    if wait := ledger.young_for(offer.lease, now):
        return Claimed(job=offer.job, floor=floor, claims=_all(keys, "wait", wait))
    if offer.chained and floor != offer.after:
        return _chain_is_broken(ledger, floor, nonce, offer, keys)
    if _leap_is_out_of_date(floor, offer):
        return Claimed(job=offer.job, floor=floor, claims=_all(keys, "wait"))
    missed = _record_leap(ledger, now, node, nonce, job, offer)
    deciding = _Deciding(ledger, now, node, nonce, offer)
    claims = [deciding.answer(key, late=position < offer.late) for position, key in enumerate(keys)]
    claims = [_as_it_is_now(ledger, claim) for claim in claims]
    own = {claim.key for claim in claims if claim.answer in _DECIDED}
    floor = floor_of(ledger.jobs[offer.job], offer.hash)
    return Claimed(
        job=offer.job, floor=floor, claims=tuple(claims), missed=missed,
        ended=tuple(run for run in deciding.ended if run.key not in own),
    )  # fmt: skip


def _all(keys: Sequence[RunKey], answer: str, wait: int = 0) -> tuple[Claim, ...]:
    return tuple(Claim(key=key, answer=answer, wait=wait) for key in keys)  # type: ignore[arg-type]


def _as_it_is_now(ledger: Ledger, claim: Claim) -> Claim:
    """The answer for a slot after all slots of the call: a later one may have taken its place."""
    if claim.run is None:
        return claim
    run = ledger.runs[claim.key]
    is_overtaken = claim.answer == "won" and run.state == "cancelled"
    return replace(claim, run=run, answer="cancelled" if is_overtaken else claim.answer)


# Nothing is decided -----------------------------------------------------------------------------


def _chain_is_broken(
    ledger: Ledger, floor: int | None, nonce: str, offer: Offer, keys: Sequence[RunKey]
) -> Claimed:
    """The slots follow another floor: by this call if its answer was lost, else the node must look again."""
    runs = {key: run for key in keys if (run := ledger.runs.get(key)) is not None and run.nonce == nonce}
    claims = [
        _met_again(key, runs[key], nonce) if key in runs else Claim(key=key, answer="wait") for key in keys
    ]
    return Claimed(
        job=offer.job, floor=floor, claims=tuple(claims), missed=_missed_before(ledger, nonce, offer)
    )


def _leap_is_out_of_date(floor: int | None, offer: Offer) -> bool:
    """Whether others decided part of what this node wants to pass over: it must look again."""
    return offer.leap is not None and floor is not None and offer.leap.first <= floor < offer.leap.last


# The leap ---------------------------------------------------------------------------------------


def _record_leap(ledger: Ledger, now: int, node: str, nonce: str, job: Job, offer: Offer) -> Run | None:
    """Write the one record of the slots that nobody will run, and raise the floor over them."""
    leap = offer.leap
    if leap is None or leap.last > now:
        return None
    floor = floor_of(job, offer.hash)
    if floor is not None and floor >= leap.last:
        return _missed_before(ledger, nonce, offer)
    decide(ledger, job, leap.last, offer.hash)
    key = _free_for_leap(ledger, job, offer)
    if key is None:
        return None
    return ledger.put_run(
        Run(
            job=key.job, slot=key.slot, kind=key.kind, state="missed", trigger="catch-up", dispatch=0,
            node=node, nonce=nonce, finished_at=now, reason="came due while no node was looking",
            until=leap.last, count=leap.count,
        )
    )  # fmt: skip


def keys_of_leap(offer: Offer) -> list[RunKey]:
    """The runs that a leap looks at: where its record may stand, and that of its last slot."""
    last = () if offer.leap is None else (offer.leap.last,)
    return [*_places_for_leap(offer), *(RunKey(offer.job, slot) for slot in last)]


def _places_for_leap(offer: Offer) -> list[RunKey]:
    """At its first slot; beside that if it has a run, for another schedule or since the clock went back."""
    first = () if offer.leap is None else (offer.leap.first,)
    return [RunKey(offer.job, slot, kind) for slot in first for kind in ("scheduled", LEAPT)]


def _free_for_leap(ledger: Ledger, job: Job, offer: Offer) -> RunKey | None:
    scheduled, beside, last = keys_of_leap(offer)
    first = ledger.runs.get(scheduled)
    if first is None:
        return scheduled
    # Of one schedule, up to the last one: then all were decided before the clock went back.
    is_decided = last in ledger.runs or (first.until or first.slot) >= last.slot
    return None if (is_decided and len(job.hashes) == 1) or beside in ledger.runs else beside


def _missed_before(ledger: Ledger, nonce: str, offer: Offer) -> Run | None:
    """The record of the leap, if this very call wrote it and its answer was lost."""
    runs = [ledger.runs[key] for key in _places_for_leap(offer) if key in ledger.runs]
    return next((run for run in runs if (run.state, run.nonce) == ("missed", nonce)), None)


# One slot after the other -----------------------------------------------------------------------


@dataclass(slots=True)
class _Deciding:
    """What is known while the slots of one offer are decided, from one to the next."""

    ledger: Ledger
    now: int
    node: str
    nonce: str
    offer: Offer
    ended: list[Run] = field(default_factory=list)
    has_to_wait: bool = False

    def answer(self, key: RunKey, *, late: bool) -> Claim:
        """Decide one slot."""
        job, run = self.ledger.jobs[key.job], self.ledger.runs.get(key)
        floor = floor_of(job, self.offer.hash)
        if run is not None or (floor is not None and key.slot <= floor):
            if not self.has_to_wait and key.slot <= self.now:
                decide(self.ledger, job, key.slot, self.offer.hash)
            return _met_again(key, run, self.nonce)
        if key.slot > self.now:
            return Claim(key=key, answer="early", wait=key.slot - self.now)
        if job.paused is not None:
            return self._skip(self._new(key, late=late), "paused")
        busy = self._is_busy()
        # Whatever is behind a late slot that waits is late too.
        self.has_to_wait |= late and busy and self.offer.catch_up == "all"
        if self.has_to_wait:
            return Claim(key=key, answer="wait")
        return self._by_policy(self._new(key, late=late), busy=busy)

    def _new(self, key: RunKey, *, late: bool) -> Run:
        """Raise the floor, and return the run that is to be recorded."""
        decide(self.ledger, self.ledger.jobs[key.job], key.slot, self.offer.hash)
        return Run(
            job=key.job, slot=key.slot, node=self.node, nonce=self.nonce, claimed_at=self.now,
            trigger="catch-up" if late else "scheduled",
        )  # fmt: skip

    def _is_busy(self) -> bool:
        """Whether the policy has to be asked. One that waits for nothing, after an edit, goes on first."""
        allowed = self.offer.overlap == "allow"
        promote(self.ledger, self.now, self.offer.job, side_by_side=allowed)
        return bool(self.ledger.active.get(self.offer.job)) and not allowed

    def _by_policy(self, new: Run, *, busy: bool) -> Claim:
        if busy and (self.offer.overlap == "skip" or self._is_overtaken(new)):
            return self._skip(new, "overlap")
        if busy:
            self._displace()
            if self.offer.overlap == "cancel":
                self._overtake()
            if self.ledger.active.get(new.job):
                waiting = buffer(self.ledger, replace(new, dispatch=0), self.now)
                return Claim(key=new.key, answer="overlap", run=waiting)
        won = self.ledger.put_run(until(new, self.now, self.offer.claim_timeout))
        return Claim(key=new.key, answer="won", run=won)

    def _skip(self, new: Run, why: Literal["overlap", "paused"]) -> Claim:
        skipped = replace(new, state="skipped", dispatch=0, finished_at=self.now, reason=why)
        return Claim(key=new.key, answer=why, run=self.ledger.put_run(skipped))

    def _is_overtaken(self, new: Run) -> bool:
        """Whether a later slot, of another schedule, has the place that this one would take."""
        others = self.ledger.buffered_of(new.job)
        if self.offer.overlap == "cancel":
            others += self.ledger.active_of(new.job)
        return any(run.kind == "scheduled" and run.slot > new.slot for run in others)

    def _displace(self) -> None:
        """One slot of a job waits, the newest: it takes the place of an older one."""
        for run in self.ledger.buffered_of(self.offer.job):
            if run.kind == "scheduled":
                self._end(run, "skipped", "overlap")

    def _overtake(self) -> None:
        """Under ``cancel``: ask what runs to stop, end what was not started; not what somebody asked for."""
        for run in self.ledger.active_of(self.offer.job):
            if run.state != "running":
                if run.kind == "scheduled":
                    self._end(run, "cancelled", OVERTAKEN)
            elif run.stop is None:
                self.ledger.put_run(replace(run, stop=OVERTAKEN))

    def _end(self, run: Run, state: str, reason: str) -> None:
        self.ended.append(end_for_another(self.ledger, run, self.now, state, reason))


# A slot that is decided already -----------------------------------------------------------------


def _met_again(key: RunKey, run: Run | None, nonce: str) -> Claim:
    """The slot is decided: by this very call if its answer was lost, else by somebody else."""
    if run is None or run.nonce != nonce:
        return Claim(key=key, answer="taken", run=run)
    return Claim(key=key, answer=_answer_before(run), run=run)


def _answer_before(run: Run) -> Answer:
    """What a call was answered that decided this run, as far as its record still tells."""
    if run.state == "claimed":
        return "won"
    if run.state == "skipped" and run.reason in ("overlap", "paused"):
        return "overlap" if run.reason == "overlap" else "paused"
    was_buffered = run.dispatch == 0
    if was_buffered and (run.state in (BUFFERED, "released") or run.reason == OVERTAKEN):
        return "overlap"
    if run.reason == OVERTAKEN:
        return "cancelled"
    # Won, but its job was paused before anybody could learn of it.
    return "paused" if run.state == BUFFERED else "taken"

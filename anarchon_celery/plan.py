"""What a beat node knows of its jobs: from where on each is undecided, and what comes due next.

The plan touches only what is due: a heap holds the next due time of each job. A job's cursor is
the later of the store's floor and the moment its schedule counts from; the store moves the floor,
the answers bring it here, and nobody else does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile

from .config import Policy
from .errors import Stopped, in_one_line
from .events import JobNotDue, JobRefused, emit
from .protocol import Claimed, Offer, Registered, Registration
from .slots import FireTimes, Once, due, first_due, iso, jitter
from .youth import young_for

#: The most slots of one job that are offered in one look.
MOST_SLOTS = 200

#: Answers after which a slot is offered no more.
DECIDED = ("won", "taken", "overlap", "paused", "cancelled")


@dataclass(slots=True)
class PlannedJob:
    """One job of this node.

    ``cursor`` is None until the store has told of it, ``floor`` what it told. ``supervised`` is None where
    this node does not know: then the store does, and ``learnt`` is what it said last, as ``paused`` is.
    ``hash`` is the schedule's, as it was registered.
    """

    name: str
    times: FireTimes
    policy: Policy
    supervised: bool | None = None
    learnt: bool = False
    paused: str | None = None
    hash: str | None = None
    floor: int | None = None
    cursor: int | None = None
    first_seen: int | None = None
    effective: int = 0
    next_slot: int | None = None
    due_at: int | None = None
    not_before: int = 0
    patience: int = 0
    said_not_due: bool = False


@dataclass(slots=True)
class Plan:
    """All jobs of a node. Times are milliseconds, by the store's clock."""

    node: str
    claim_timeout: int
    first_catch_up: int
    poll: int = 1_000
    #: Since when the store is one that forgot what was known: what comes due while it is young does not age.
    young_since: int | None = None
    jobs: dict[str, PlannedJob] = field(default_factory=dict)
    _heap: list[tuple[int, str]] = field(default_factory=list)

    def registrations(self) -> list[Registration]:
        """Return what the node knows of its jobs, for the store."""
        known: list[Registration] = []
        for job in list(self.jobs.values()):
            with self._or_drop(job):
                known.append(self._registration(job))
        return known

    def _registration(self, job: PlannedJob) -> Registration:
        job.hash = job.times.key
        return Registration(
            job=job.name, hash=job.hash, cursor=job.cursor, floor=job.floor, first_seen=job.first_seen,
            effective=None if job.cursor is None else job.effective,
            supervised=job.learnt if job.supervised is None else job.supervised, paused=job.paused,
        )  # fmt: skip

    def learn(self, answers: Iterable[Registered]) -> None:
        """Take over what the store knows; it is right, and a cursor ahead of it goes back."""
        for answer in answers:
            job = self.jobs.get(answer.job)
            if job is None:
                continue
            job.learnt, job.paused, job.floor = answer.supervised, answer.paused, answer.floor
            job.first_seen, job.effective = answer.first_seen, answer.effective
            job.not_before = 0  # it was told by a clock that may have gone back since
            with self._or_drop(job):
                self._move(job, self._cursor(job, answer.floor))

    def _cursor(self, job: PlannedJob, floor: int | None) -> int:
        """From where on the job is undecided: what lies before its schedule counts is not caught up."""
        if isinstance(job.times, Once):  # but its one time leaves a record, however long ago it was
            return job.effective if floor is None and job.times.time > job.effective else floor or 0
        if floor is not None:
            return max(floor, job.effective)
        if job.effective != job.first_seen:
            return job.effective
        # Nobody ever decided a slot of this job: its latest one counts, if it is young.
        return first_due(job.times, first_seen=job.effective, window=self.first_catch_up)

    def _window(self, job: PlannedJob) -> int | None:
        """How old a late slot may be to be run; a one-off job's that was past at first sight not at all."""
        if isinstance(job.times, Once) and job.times.time <= job.effective:
            is_new = job.effective == job.first_seen
            if not (is_new and job.effective - job.times.time < self.first_catch_up):
                return 0
        return job.policy.catch_up_window

    @contextmanager
    def _or_drop(self, job: PlannedJob) -> Iterator[None]:
        """A schedule that raises costs its own job, with a line, and no other."""
        try:
            yield
        except Stopped:
            raise
        except (Exception, SystemExit) as reason:
            self.jobs.pop(job.name, None)
            emit(JobRefused(f"entry {job.name!r}: {in_one_line(reason)}", job.name))

    def _delay(self, job: PlannedJob) -> Delay:
        return Delay(job, self.node)

    def _move(self, job: PlannedJob, cursor: int) -> None:
        job.cursor = cursor
        job.next_slot = job.times.next(cursor)
        if job.next_slot is None:
            job.due_at = self._look_again(job, cursor)
        else:
            job.due_at = max(job.next_slot + self._delay(job)(job.next_slot), job.not_before)
        if job.due_at is not None:
            heapq.heappush(self._heap, (job.due_at, job.name))

    def _look_again(self, job: PlannedJob, cursor: int) -> int | None:
        """When to ask a schedule again that looked ahead in vain; None if it fires no more."""
        looked_until = job.times.looked_until(cursor)
        if not (job.said_not_due or isinstance(job.times, Once)):
            job.said_not_due = True
            emit(JobNotDue(job.name, iso(cursor), None if looked_until is None else iso(looked_until)))
        return None if looked_until is None else max(looked_until, job.not_before)

    def next_due(self) -> int | None:
        """Return when the next slot of any job comes due."""
        while self._heap:
            due_at, name = self._heap[0]
            job = self.jobs.get(name)
            if job is not None and job.due_at == due_at:
                return due_at
            heapq.heappop(self._heap)
        return None

    def due(self, now: int) -> list[Offer]:
        """Return the slots that came due by ``now`` and are not decided, by job.

        A slot is late once it is older than the claim timeout. That holds for a node that has just
        begun to look, too: else it could write off what a living node is just about to claim.
        An offered job comes due again when its offer was decided, or given up.
        """
        offers: list[Offer] = []
        for job in list(self._take_due(now)):
            with self._or_drop(job):
                offers += self._offer(job, now, self._on_time_since(job, now))
        return sorted(offers, key=lambda offer: offer.job)

    def _on_time_since(self, job: PlannedJob, now: int) -> int:
        """From when on a slot is not late: while the store is young nothing ages."""
        until = job.policy.lease + self.claim_timeout
        is_spared = young_for(self.young_since, until, now) > 0
        return (self.young_since or now if is_spared else now) - self.claim_timeout

    def _take_due(self, now: int) -> Iterator[PlannedJob]:
        while (due_at := self.next_due()) is not None and due_at <= now:
            job = self.jobs[heapq.heappop(self._heap)[1]]
            job.due_at = None
            yield job

    def _offer(self, job: PlannedJob, now: int, since: int) -> list[Offer]:
        assert job.cursor is not None
        # What came due before the job was first seen is late, however short that was ago.
        found = due(
            job.times, after=job.cursor, now=now, on_time_since=max(since, job.effective),
            delay=self._delay(job), catch_up=job.policy.catch_up, window=self._window(job),
            limit=MOST_SLOTS,
        )  # fmt: skip
        if not found.slots and found.leap is None:
            self._move(job, job.cursor)
            return []
        offer = Offer(
            job=job.name, hash=job.hash, slots=found.slots, late=found.late, leap=found.leap,
            overlap=job.policy.overlap, catch_up=job.policy.catch_up,
            chained=job.times.chained, after=job.floor if job.times.chained else None,
            claim_timeout=self.claim_timeout, lease=job.policy.lease, floor=job.floor,
        )  # fmt: skip
        return [offer]

    def decided(self, answer: Claimed, now: int) -> None:
        """Move the job's cursor to where the store says that decisions end."""
        job = self.jobs.get(answer.job)
        if job is None:
            return
        cursor = max(answer.floor or 0, job.effective if answer.floor is not None else job.cursor or 0)
        # A run may exist above the floor, where the store's clock went back: it is decided too.
        # What lies behind one that waits is come back to: it may have run for another schedule.
        in_order = takewhile(lambda claim: claim.answer != "wait", answer.claims)
        decided = [claim.key.slot for claim in in_order if claim.answer in DECIDED]
        cursor = max([cursor, *decided])
        job.floor = answer.floor
        self._note_pause(job, answer)
        job.not_before = now + self._wait(job, answer, is_moved=cursor != job.cursor, has_won=bool(decided))
        with self._or_drop(job):
            self._move(job, cursor)

    def _note_pause(self, job: PlannedJob, answer: Claimed) -> None:
        """Keep in mind whether the job is paused, for a store that forgets it."""
        said = {claim.answer for claim in answer.claims}
        if "won" in said:
            job.paused = None
        elif "paused" in said:
            job.paused = job.paused or "paused"

    def _wait(self, job: PlannedJob, answer: Claimed, *, is_moved: bool, has_won: bool) -> int:
        """For how long not to offer the job: until its slot is due, or the run before it may have ended."""
        wait = max((claim.wait for claim in answer.claims), default=0)
        if not any(claim.answer == "wait" for claim in answer.claims) or (is_moved and not has_won):
            job.patience = 0  # or others were faster, and it looks again at once
            return wait
        # Short runs are caught up quickly, long ones are asked after every poll.
        shortest = max(1, self.poll // 16)
        job.patience = shortest if has_won else max(shortest, min(2 * job.patience, self.poll))
        return max(wait, job.patience)

    def offer_again(self, offers: Iterable[Offer]) -> None:
        """Look afresh at jobs whose offer was given up unanswered."""
        for offer in offers:
            job = self.jobs.get(offer.job)
            if job is not None and job.due_at is None and job.cursor is not None:
                with self._or_drop(job):
                    self._move(job, job.cursor)


@dataclass(frozen=True, slots=True)
class Delay:
    """The jitter of one job on this node: at most half the gap to the job's next slot."""

    job: PlannedJob
    node: str

    def __call__(self, slot: int) -> int:
        """Return the milliseconds this node waits before it claims the slot."""
        longest = self.job.policy.jitter
        if not longest:
            return 0
        following = self.job.times.next(slot)
        gap = None if following is None else following - slot
        return jitter(self.job.name, slot, self.node, longest, gap)

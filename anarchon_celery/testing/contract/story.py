"""One job on one store, and what happens to it: what most tests of the contract are told with."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...protocol import (
    Claim,
    Claimed,
    Expired,
    Holding,
    Job,
    Node,
    Offer,
    Redispatch,
    Registered,
    Registration,
    Release,
    Renewal,
    Request,
    Requested,
    Run,
    RunKey,
    Sent,
    Settle,
    Stale,
    Start,
    Started,
)
from ...stores import Store, new_nonce

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000

#: The slot most tests are about, and the time when most begin.
T = 1_790_000_000_000

#: A claim that no store here is younger than; and one that every store is younger than.
YOUNG, OLD = 4_000_000_000_000, 1

BEAT = Node(id="incarnation-1", name="one:1")

OTHER = Node(id="incarnation-2", name="two:2")

#: How old the time may be at which a node was seen.
SEEN_EVERY = 5 * SECOND

ODD_NAMES = [
    "a", "A", " a", "a ", "a b", "a  b", "a:b", "a:b:manual", f"a:{T}", f"a:{T}:scheduled",
    'a"b', "a'b", "a`b", "a\\b", "a\nb", "a\tb", "a%sb", "a_b", "a{b}", "{a}b", "a*b?[c]", "a|b,c;d", "a/b",
    "a@b", "a.b", "a--b", "a,", "0", "-1", "1e3", "null", "nil", "true", "[]", "None",
    "été", "e\u0301te\u0301", "задача", "任务", "🕰️",
    "report @ 2026-10-10T12:00:30.000Z", "x" * 200,
]  # fmt: skip


@dataclass
class Story:
    """One job on one store, and what happens to it. What a test does not say is as in most tests."""

    store: Store
    job: str = "report"
    now: int = T
    kind = "scheduled"  #: of the runs that the verbs are about

    def key(self, slot: int = T) -> RunKey:
        return RunKey(self.job, slot, self.kind)

    def run(self, slot: int = T) -> Run:
        run = self.store.run(self.key(slot))
        assert run is not None
        return run

    def record(self) -> Job:
        return next(job for job in self.store.jobs() if job.name == self.job)

    def register(self, hash: str = "h1", *, now: int | None = None, **memory) -> Registered:
        asked = [Registration(job=self.job, hash=hash, **memory)]
        return self.store.register(BEAT, asked, now=now or self.now)[0]

    def offer(self, *slots: int, nonce: str = "n1", **how) -> Claimed:
        offer = Offer(job=self.job, slots=slots, **how)
        return self.store.claim("one:1", [offer], nonce=nonce, now=self.now)[0]

    def claim(self, slot: int = T, **how) -> Claim:
        return self.offer(slot, **how).claims[0]

    def sent(
        self, slot: int = T, *, dispatch: int | None = None, supervised: bool | None = True, **how
    ) -> None:
        dispatch = self.run(slot).dispatch if dispatch is None else dispatch
        published = Sent(
            key=self.key(slot), dispatch=dispatch, task_id=f"task-{dispatch}", supervised=supervised, **how
        )
        self.store.sent([published], now=self.now)

    def as_seen(self, slot: int = T, **how) -> Redispatch:
        run = self.run(slot)
        assert run.deadline is not None
        seen = Redispatch(key=run.key, state=run.state, dispatch=run.dispatch, deadline=run.deadline)
        return replace(seen, **how)

    def redispatch(self, slot: int = T, *, nonce: str = "m1", seen: Redispatch | None = None, **how) -> Claim:
        seen = seen or self.as_seen(slot, **how)
        return self.store.redispatch("two:2", [seen], nonce=nonce, now=self.now)[0]

    def expired(self, limit: int = 100, *, node: Node = BEAT, **how) -> Expired:
        return self.store.expired(node, limit, now=self.now, **how)

    def start(self, slot: int = T, *, token: str = "t1", claimed_at: int = YOUNG, **how) -> Started | Stale:
        asked = Start(
            key=self.key(slot), token=token, worker="celery@one:3", task_id=f"task-of-{token}",
            claimed_at=claimed_at, **how,
        )  # fmt: skip
        return self.store.start(asked, now=self.now)

    def renew(self, slot: int = T, *, token: str = "t1", fence: int | None = None) -> Renewal:
        fence = self.run(slot).fence if fence is None else fence
        return self.store.renew([Holding(key=self.key(slot), token=token, fence=fence)], now=self.now)[0]

    def finish(self, slot: int = T, outcome: str = "succeeded", *, token: str = "t1", **how) -> bool:
        return self.store.finish(self.key(slot), token, outcome, now=self.now, **how)

    def requeue(self, slot: int = T, *, token: str = "t1", delay: int = MINUTE, retries: int = 1) -> bool:
        return self.store.requeue(
            self.key(slot), token, delay=delay, retries=retries, start_timeout=5 * MINUTE, now=self.now
        )

    def release(self, slot: int = T, **how) -> bool:
        return self.store.release([Release(key=self.key(slot), **how)], now=self.now)[0]

    def settle(
        self, slot: int = T, outcome: str = "published", *, reason: str = "r", dispatch: int | None = None
    ) -> bool:
        one = Settle(key=self.key(slot), outcome=outcome, reason=reason, dispatch=dispatch)
        return self.store.settle([one], now=self.now)[0]

    def of(self, kind: str) -> Story:
        """The same story, told of runs of that kind."""
        self.kind = kind
        return self

    def trigger(self, nonce: str = "a1", *, job: str | None = None, **how) -> Requested:
        asked = Request(job=job or self.job, by="anna@desk", **how)
        return self.store.trigger(asked, nonce=nonce, now=self.now)

    def backfill(self, *slots: int, nonce: str = "b1", **how) -> list[Requested]:
        asked = Request(job=self.job, by="anna@desk", **how)
        return self.store.backfill(asked, slots, nonce=nonce, now=self.now)

    def cancel(self, slot: int = T, reason: str = "no need") -> Run | None:
        return self.store.cancel(self.key(slot), reason=reason, now=self.now)

    def dispatched(self, slot: int = T, **how) -> None:
        """Dispatch a released run, as any beat does at its next poll."""
        assert [self.key(slot)] == [run.key for run in self.expired().runs if run.key == self.key(slot)]
        assert self.redispatch(slot, nonce=f"dispatch {slot} {self.kind}").won
        self.sent(slot, **how)

    def state(self, slot: int = T) -> str:
        return self.run(slot).state

    # What takes more than one verb

    def begin(self, slot: int = T, *, token: str = "t1", **how) -> Started:
        """Claim, publish and start a run."""
        assert self.claim(slot, nonce=new_nonce(), **how).won
        self.sent(slot)
        started = self.start(slot, token=token)
        assert isinstance(started, Started)
        return started

    def begin_again(self, slot: int = T, *, token: str = "t2") -> Started:
        """Let the deadline pass, take the run over, publish and start it."""
        self.wait_for_deadline(slot)
        assert self.redispatch(slot, nonce=new_nonce()).won
        self.sent(slot)
        started = self.start(slot, token=token)
        assert isinstance(started, Started)
        return started

    def wait_for_deadline(self, slot: int = T) -> None:
        deadline = self.run(slot).deadline
        assert deadline is not None
        self.now = max(self.now, deadline)

    def expires_at(self, slot: int = T) -> int:
        """Return the run's deadline, after a look at whether the store goes by it."""
        deadline = self.run(slot).deadline
        assert deadline is not None
        before, then = (self.store.expired(BEAT, 9, now=now).runs for now in (deadline - 1, deadline))
        assert ((), (self.run(slot),)) == (before, then)
        return deadline


def everything(store: Store) -> tuple[list[Run], list[Job]]:
    return store.runs(limit=1_000_000), store.jobs()


@contextmanager
def nothing_written(store: Store):
    before = everything(store)
    yield
    assert before == everything(store)


def answers(claimed: Claimed) -> list[str]:
    return [claim.answer for claim in claimed.claims]

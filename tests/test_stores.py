"""THE contract: what every store does, one sentence of the protocol per test.

Each test runs on every store, with the time the test says; only the last part asks the stores' own clocks.
"""

from __future__ import annotations

import multiprocessing
import re
import secrets
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import pytest

from anarchon_celery.errors import StoreError, StoreReplaced, StoreUnreachable, StoreUnusable
from anarchon_celery.folding import FOLD_AFTER
from anarchon_celery.protocol import (
    OVERTAKEN,
    REMEMBERED_HASHES,
    Claim,
    Claimed,
    Expired,
    Holding,
    Job,
    KnownSchedule,
    Node,
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
from anarchon_celery.slots import Leap
from anarchon_celery.stores import CHUNK, Store, new_nonce, open_store
from tests.servers import free_port

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000

#: The slot most tests are about, and the time when most begin.
T = 1_790_000_000_000

#: A claim that no store here is younger than; and one that every store is younger than.
YOUNG, OLD = 4_000_000_000_000, 1

BEAT = Node(id="incarnation-1", name="one:1")
OTHER = Node(id="incarnation-2", name="two:2")

#: How old the time may be at which a node was seen.
SEEN_EVERY = 5 * SECOND

KINDS = ("memory", "sqlite", "postgresql", "mariadb", "redis")

#: Tables of databases that run already are used again and again: so many stores at once.
PREFIXES = cycle([f"site-{number}" for number in range(6)])

ODD_NAMES = [
    "a", "A", " a", "a ", "a b", "a  b", "a:b", "a:b:manual", f"a:{T}", f"a:{T}:scheduled",
    'a"b', "a'b", "a`b", "a\\b", "a\nb", "a\tb", "a%sb", "a_b", "a{b}", "{a}b", "a*b?[c]", "a|b,c;d", "a/b",
    "a@b", "a.b", "a--b", "a,", "0", "-1", "1e3", "null", "nil", "true", "[]", "None",
    "été", "e\u0301te\u0301", "задача", "任务", "🕰️",
    "report @ 2026-10-10T12:00:30.000Z", "x" * 200,
]  # fmt: skip


# The stage --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A place for a store; who opens it twice has two handles on one store."""

    kind: str
    url: str
    prefix: str

    def open(self) -> Store:
        return open_store(self.url, prefix=self.prefix)


def new_site(kind: str, request: pytest.FixtureRequest) -> Site:
    """A place that nobody has used."""
    name = secrets.token_hex(4)
    if kind == "redis":
        return Site(kind, request.getfixturevalue("redis_server").url(), f"test-{name}")
    if kind in ("postgresql", "mariadb"):
        server, prefix = request.getfixturevalue(f"{kind}_server"), next(PREFIXES)
        for used in (prefix, f"{prefix}-other"):
            server.empty(used)
        return Site(kind, server.url(), prefix)
    if kind == "sqlite":
        return Site(kind, f"sqlite:///{request.getfixturevalue('tmp_path')}/{name}.db", "anarchon")
    return Site(kind, f"memory://{name}", "anarchon")


@pytest.fixture(params=KINDS)
def site(request):
    """Where the test's store is; a test of one kind names it by ``parametrize(..., indirect=True)``."""
    return new_site(request.param, request)


@pytest.fixture
def store(site):
    opened = site.open()
    yield opened
    opened.close()


@pytest.fixture
def story(store):
    """A job that was registered an hour before its slot T; it is T now."""
    told = Story(store)
    told.register(now=T - HOUR)
    return told


@dataclass
class Story:
    """One job on one store, and what happens to it. What a test does not say is as in most tests."""

    store: Store
    job: str = "report"
    now: int = T

    def key(self, slot: int = T) -> RunKey:
        return RunKey(self.job, slot)

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


# register ---------------------------------------------------------------------------------------


def test_a_job_is_remembered_with_the_time_it_was_first_seen(store):
    answer = Story(store).register("h1", now=T)
    assert answer == Registered(job="report", floor=None, first_seen=T, effective=T, supervised=False)
    known = KnownSchedule("h1", T, seen=T)
    assert [Job(name="report", hashes=(known,), first_seen=T, seen=T)] == store.jobs()


def test_registering_again_says_only_that_the_job_is_still_had(story):
    before = story.record()
    assert story.register("h1", now=T).first_seen == T - HOUR
    (known,) = before.hashes
    assert replace(before, seen=T, hashes=(known._replace(seen=T),)) == story.record()


def test_a_new_hash_takes_effect_from_the_time_it_was_first_seen(story):
    assert story.register("h2", now=T).effective == T
    assert story.register("h2", now=T + HOUR).first_seen == T - HOUR
    assert story.record().hashes == (("h1", T - HOUR, None, T - HOUR), ("h2", T, None, T + HOUR))


def test_old_and_new_hash_side_by_side_keep_their_times(story):
    """A node that goes on has a cursor."""
    story.register("h2", now=T)
    assert story.register("h1", now=T + 1, cursor=T - MINUTE).effective == T - HOUR
    assert story.register("h2", now=T + 2).effective == T
    assert story.record().seen == T + 2


def test_a_store_that_does_not_know_a_job_learns_it_back_from_a_nodes_memory(store):
    answer = Story(store).register(cursor=T - MINUTE, first_seen=T - DAY, supervised=True)
    assert answer == Registered(
        job="report", floor=T - MINUTE, first_seen=T - DAY, effective=T - DAY, supervised=True
    )
    assert tuple(answers(Story(store).offer(T - MINUTE, T))) == ("taken", "won")


def test_what_a_node_remembers_from_the_future_is_cut_to_now(store):
    answer = Story(store).register(cursor=T + HOUR, first_seen=T + HOUR)
    assert (answer.floor, answer.first_seen) == (T, T)


@pytest.mark.parametrize("cursor", [T - DAY, T + 1 * MINUTE])
def test_of_a_job_that_the_store_knows_the_store_is_right(story, cursor):
    story.begin()
    story.now += HOUR
    answer = story.register(cursor=cursor, first_seen=T - 9 * DAY, supervised=False)
    assert answer == Registered(
        job="report", floor=T, first_seen=T - HOUR, effective=T - HOUR, supervised=True
    )


def test_a_job_without_a_floor_is_known_too(story):
    assert story.register(cursor=T - MINUTE).floor is None


def test_a_job_that_only_a_late_message_brought_back_is_still_learnt_from_memory(store):
    story = Story(store)
    assert isinstance(story.start(claimed_at=OLD), Started)
    assert story.claim(T + MINUTE).answer == "unknown"
    fence = story.record().fence
    answer = story.register(cursor=T - MINUTE, first_seen=T - DAY)
    assert answer == Registered(
        job="report", floor=T - MINUTE, first_seen=T - DAY, effective=T - DAY, supervised=True
    )
    assert fence == story.record().fence


def test_a_node_changes_no_job_but_its_own(story):
    before = story.record()
    story.store.register(OTHER, [Registration(job="other", hash="x")], now=T)
    story.store.register(OTHER, [], now=T + 1)
    assert [job.name for job in story.store.jobs()] == ["other", "report"]
    assert before == story.record()


def test_jobs_are_answered_in_the_order_asked(store):
    asked = [Registration(job=name, hash="h") for name in ("b", "c", "a")]
    assert [answer.job for answer in store.register(BEAT, asked, now=T)] == ["b", "c", "a"]
    assert [job.name for job in store.jobs()] == ["a", "b", "c"]


def test_nodes_are_listed_by_name_and_known_by_incarnation(store):
    third = Node(id="incarnation-3", name="one:1", kind="worker")
    for node in (OTHER, third, BEAT):
        store.register(node, [], now=T)
    assert [replace(node, seen=T) for node in (BEAT, third, OTHER)] == store.nodes()


def test_a_node_lives_that_registers_or_looks_for_expired_runs(store):
    """To within a few seconds: a store need not write at each idle poll."""
    store.register(BEAT, [], now=T)
    store.expired(OTHER, 10, now=T + 1)
    assert {node.name: node.seen for node in store.nodes()} == {"one:1": T, "two:2": T + 1}
    store.expired(BEAT, 10, now=T + SEEN_EVERY)
    store.register(OTHER, [], now=T + 2)
    assert {node.name: node.seen for node in store.nodes()} == {"one:1": T + SEEN_EVERY, "two:2": T + 2}


def test_a_node_that_is_shown_by_another_name_is_seen_so_at_once(store):
    store.register(BEAT, [], now=T)
    store.expired(replace(BEAT, name="new:1"), 10, now=T + 1)
    assert store.nodes() == [replace(BEAT, name="new:1", seen=T + 1)]


# claim ------------------------------------------------------------------------------------------


def test_a_claim_is_won_by_one(story):
    won = story.claim(nonce="n1")
    expected = Run(
        job="report", slot=T, node="one:1", nonce="n1", claimed_at=T,
        deadline=T + 10 * SECOND, span=10 * SECOND,
    )  # fmt: skip
    assert Claim(key=story.key(), answer="won", run=expected) == won
    assert Claim(key=story.key(), answer="taken", run=expected) == story.claim(nonce="n2")
    assert [expected] == story.store.runs()


def test_a_claim_raises_the_floor(story):
    assert story.offer(T).floor == T
    assert T == story.record().floor == story.register().floor


def test_a_claim_whose_answer_was_lost_has_the_same_answer_again(story):
    first = story.offer(T, nonce="n1")
    story.now += SECOND
    with nothing_written(story.store):
        assert first == story.offer(T, nonce="n1")


def test_an_overlap_whose_answer_was_lost_has_the_same_answer_again(story):
    story.begin()
    story.now += MINUTE
    first = story.offer(T + MINUTE, nonce="n2")
    assert answers(first) == ["overlap"]
    with nothing_written(story.store):
        assert first == story.offer(T + MINUTE, nonce="n2")
    assert answers(story.offer(T + MINUTE, nonce="n3")) == ["taken"]


def test_a_leap_whose_answer_was_lost_has_the_same_answer_again(story):
    leap = Leap(first=T - 3 * MINUTE, last=T - MINUTE, count=3)
    first = story.offer(T, leap=leap, nonce="n1")
    assert first.missed is not None
    with nothing_written(story.store):
        assert first == story.offer(T, leap=leap, nonce="n1")
    assert story.offer(T, leap=leap, nonce="n2").missed is None


def test_a_claim_that_another_node_took_over_is_not_won_again(story):
    story.claim(nonce="n1")
    story.wait_for_deadline()
    story.redispatch(nonce="m1")
    with nothing_written(story.store):
        assert story.claim(nonce="n1").answer == "taken"


@pytest.mark.parametrize("slot", [T, T - 1, T - HOUR])
def test_no_slot_at_or_below_the_floor_is_claimed_anew(story, slot):
    story.claim(T)
    story.now += HOUR
    with nothing_written(story.store):
        assert story.claim(slot, nonce="n2").answer == "taken"


def test_a_floor_without_a_run_answers_taken_without_one(story):
    story.claim(T)
    assert Claim(key=story.key(T - 1), answer="taken", run=None) == story.claim(T - 1, nonce="n2")


def test_a_slot_that_is_not_due_is_early_and_leaves_no_trace(story):
    with nothing_written(story.store):
        claimed = story.offer(T + 1500, T + 2500)
    assert Claimed(
        job="report", floor=None,
        claims=(
            Claim(key=story.key(T + 1500), answer="early", wait=1500),
            Claim(key=story.key(T + 2500), answer="early", wait=2500),
        ),
    ) == claimed  # fmt: skip
    story.now = T + 1500
    assert answers(story.offer(T + 1500, T + 2500, nonce="n2")) == ["won", "early"]


def test_a_slot_is_due_at_its_very_millisecond(story):
    story.now = T - 1
    assert (story.claim().answer, story.claim().wait) == ("early", 1)
    story.now = T
    assert story.claim().answer == "won"


def test_a_slot_above_the_floor_that_exists_is_taken_even_if_it_is_early(story):
    story.now = T + MINUTE
    story.claim(T + MINUTE)
    story.now = T
    assert story.claim(T + MINUTE, nonce="n2").answer == "taken"


def test_a_job_nobody_registered_is_unknown(store):
    with nothing_written(store):
        claimed = Story(store).offer(T, T - 1)
    assert (answers(claimed), claimed.floor) == (["unknown", "unknown"], None)


def test_overlap_skip_records_the_slot_as_skipped_and_raises_the_floor(story):
    story.begin()
    story.now += MINUTE
    claimed = story.offer(T + MINUTE, nonce="n2", overlap="skip")
    skipped = Run(
        job="report", slot=T + MINUTE, state="skipped", dispatch=0, node="one:1", nonce="n2",
        claimed_at=story.now, finished_at=story.now, reason="overlap",
    )  # fmt: skip
    assert (Claim(key=skipped.key, answer="overlap", run=skipped),) == claimed.claims
    assert (T + MINUTE, skipped) == (claimed.floor, story.run(T + MINUTE))


@pytest.mark.parametrize("state", ["claimed", "queued", "running", "released"])
def test_an_active_run_holds_its_job_in_every_state(story, state):
    story.claim(T, nonce="n1")
    if state in ("queued", "running"):
        story.sent()
    if state == "running":
        story.start()
    if state == "released":
        story.release(nonce="n1")
    assert state == story.run().state
    story.now += MINUTE
    assert story.claim(T + MINUTE, nonce="n2").answer == "overlap"


def test_an_active_run_past_its_deadline_still_holds_its_job(story):
    story.begin()
    story.now += HOUR
    assert story.claim(T + HOUR, nonce="n2").answer == "overlap"


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_an_ended_run_holds_nothing(story, outcome):
    story.begin()
    story.finish(outcome=outcome)
    story.now += MINUTE
    assert story.claim(T + MINUTE, nonce="n2").answer == "won"


def test_a_run_of_another_job_holds_nothing(story):
    story.begin()
    other = Story(story.store, job="other")
    other.register()
    assert other.claim(nonce="n2").answer == "won"


def test_overlap_allow_is_as_if_there_were_no_other_run(story):
    story.begin()
    story.now += MINUTE
    assert story.claim(T + MINUTE, nonce="n2", overlap="allow").answer == "won"
    assert {"running", "claimed"} == {run.state for run in story.store.runs()}


def test_several_slots_of_one_job_are_decided_in_their_order(story):
    story.now += 2 * MINUTE
    claimed = story.offer(T, T + MINUTE, T + 2 * MINUTE)
    assert (answers(claimed), claimed.floor) == (["won", "overlap", "overlap"], T + 2 * MINUTE)


def test_several_slots_of_one_job_are_all_won_under_allow(story):
    story.now += 2 * MINUTE
    slots = (T, T + MINUTE, T + 2 * MINUTE)
    assert answers(story.offer(*slots, overlap="allow")) == ["won"] * 3
    assert [run.slot for run in story.store.runs()] == sorted(slots, reverse=True)


def test_several_jobs_in_one_call_are_answered_in_the_order_asked(store):
    store.register(BEAT, [Registration(job=name, hash="h") for name in "abc"], now=T)
    offers = [Offer(job=name, slots=(T,)) for name in ("c", "nobody", "a", "b")]
    claimed = store.claim("one:1", offers, nonce="n1", now=T)
    assert [
        (answer.job, answers(answer)) for answer in claimed
    ] == [("c", ["won"]), ("nobody", ["unknown"]), ("a", ["won"]), ("b", ["won"])]


def test_late_slots_are_begun_as_catch_up(story):
    story.now += MINUTE
    story.offer(T, T + MINUTE, late=1, overlap="allow")
    assert (story.run(T).trigger, story.run(T + MINUTE).trigger) == ("catch-up", "scheduled")


def test_the_claim_timeout_is_the_callers(story):
    story.claim(claim_timeout=3 * SECOND)
    assert story.expires_at() == T + 3 * SECOND


def test_a_leap_writes_one_missed_record_from_the_first_leapt_slot_on(story):
    leap = Leap(first=T - 9 * MINUTE, last=T - MINUTE, count=9)
    claimed = story.offer(T, leap=leap, late=1)
    missed = Run(
        job="report", slot=T - 9 * MINUTE, state="missed", trigger="catch-up", dispatch=0, node="one:1",
        nonce="n1", finished_at=T, reason="came due while no node was looking", until=T - MINUTE, count=9,
    )  # fmt: skip
    assert (missed, T, ["won"]) == (claimed.missed, claimed.floor, answers(claimed))
    assert missed == story.run(T - 9 * MINUTE)
    assert len(story.store.runs()) == 2


def test_a_leap_alone_raises_the_floor(story):
    claimed = story.offer(leap=Leap(first=T - 2 * MINUTE, last=T - MINUTE, count=2))
    assert (claimed.floor, claimed.claims, claimed.missed.state) == (T - MINUTE, (), "missed")
    assert story.claim(T - MINUTE, nonce="n2").answer == "taken"
    assert story.claim(T, nonce="n2").answer == "won"


def test_a_leap_that_somebody_else_wrote_already_is_not_written_again(story):
    leap = Leap(first=T - 3 * MINUTE, last=T - MINUTE, count=3)
    story.offer(leap=leap, nonce="n1")
    claimed = story.offer(T, leap=leap, nonce="n2")
    assert (claimed.missed, answers(claimed)) == (None, ["won"])
    assert len(story.store.runs()) == 2


@pytest.mark.parametrize("decided", [T - 3 * MINUTE, T - 2 * MINUTE])
def test_a_leap_computed_from_an_old_cursor_decides_nothing(story, decided):
    story.now = decided
    story.claim(decided, nonce="n1")
    story.now = T
    with nothing_written(story.store):
        claimed = story.offer(T, leap=Leap(first=T - 3 * MINUTE, last=T - MINUTE, count=3), nonce="n2")
    assert (answers(claimed), claimed.floor, claimed.missed) == (["wait"], decided, None)


def test_a_leap_into_the_future_is_not_written(story):
    with nothing_written(story.store):
        claimed = story.offer(T + HOUR, leap=Leap(first=T - MINUTE, last=T + MINUTE, count=3))
    assert (claimed.missed, answers(claimed)) == (None, ["early"])


# sent -------------------------------------------------------------------------------------------


def test_a_published_claim_is_queued_and_the_dispatch_counts(story):
    claimed = story.claim().run
    story.now += 500
    story.sent()
    assert story.run() == replace(
        claimed, state="queued", task_id="task-1", queued_at=T + 500, unstarted=1,
        deadline=T + 500 + 5 * MINUTE, span=5 * MINUTE,
    )  # fmt: skip


def test_a_claim_of_a_job_nobody_supervises_ends_as_published(story):
    claimed = story.claim().run
    story.now += 500
    story.sent(supervised=False)
    assert story.run() == replace(
        claimed, state="published", task_id="task-1", queued_at=T + 500, unstarted=1, finished_at=T + 500,
        deadline=None, span=None,
    )  # fmt: skip
    assert (story.expired().next_deadline, story.record().supervised) == (None, False)


def test_a_job_that_the_store_knows_as_supervised_is_queued(story):
    story.register(supervised=True)
    story.claim()
    story.sent(supervised=None)
    assert story.run().state == "queued"


def test_a_node_that_knows_a_job_as_unsupervised_is_right(story):
    """Its task lost the base class, or somebody says so: nobody would ever start its runs."""
    story.register(supervised=True)
    story.claim()
    story.sent(supervised=False)
    assert story.run().state == "published"


def test_a_run_that_was_ever_started_stays_supervised(story):
    story.begin()
    story.release(token="t1")
    story.redispatch()
    story.sent(supervised=False)
    assert story.run().state == "queued"


def test_sent_is_nothing_where_the_worker_was_faster(story):
    story.claim()
    story.start()
    with nothing_written(story.store):
        story.sent(dispatch=1)


def test_sent_is_nothing_where_the_run_has_ended(story):
    story.claim()
    story.start()
    story.finish()
    with nothing_written(story.store):
        story.sent(dispatch=1, supervised=False)


@pytest.mark.parametrize("dispatch", [1, 3])
def test_sent_is_nothing_where_the_dispatch_differs(story, dispatch):
    story.claim()
    story.wait_for_deadline()
    story.redispatch()
    with nothing_written(story.store):
        story.sent(dispatch=dispatch)
    story.sent(dispatch=2)
    assert (story.run().state, story.run().dispatch) == ("queued", 2)


def test_sent_twice_moves_no_deadline(story):
    story.claim()
    story.sent()
    story.now += MINUTE
    with nothing_written(story.store):
        story.sent()


def test_sent_of_a_run_nobody_knows_is_nothing(story):
    with nothing_written(story.store):
        story.sent(dispatch=1)


# deadlines, expired and redispatch --------------------------------------------------------------


def test_a_claim_expires_after_the_claim_timeout(story):
    story.claim()
    assert story.expires_at() == T + 10 * SECOND


def test_a_message_expires_after_the_countdown_and_the_start_timeout(story):
    story.claim()
    story.sent(countdown=7 * SECOND, start_timeout=4 * MINUTE)
    assert story.expires_at() == T + 7 * SECOND + 4 * MINUTE


def test_the_start_timeout_doubles_for_each_dispatch_up_to_an_hour(story):
    waited = []
    story.claim()
    for attempt in range(5):
        story.sent(start_timeout=8 * MINUTE)
        waited.append((story.expires_at() - story.now) // MINUTE)
        story.wait_for_deadline()
        story.redispatch(nonce=f"m{attempt}")
    assert waited == [8, 16, 32, 60, 60]


def test_a_start_timeout_over_an_hour_stays_what_it_is(story):
    story.claim()
    story.sent(start_timeout=2 * HOUR)
    assert story.expires_at() == T + 2 * HOUR


def test_the_start_timeout_is_doubled_only_since_the_last_start(story):
    story.claim()
    for nonce in ("m1", "m2"):
        story.sent()
        story.wait_for_deadline()
        story.redispatch(nonce=nonce)
    story.start()
    story.wait_for_deadline()
    story.redispatch(nonce="m3")
    story.sent()
    assert story.expires_at() - story.now == 5 * MINUTE


def test_a_running_run_expires_a_lease_after_its_start_or_last_renewal(story):
    story.claim()
    story.start(lease=20 * SECOND)
    assert story.expires_at() == T + 20 * SECOND
    story.now += 7 * SECOND
    story.renew()
    assert story.expires_at() == T + 27 * SECOND


def test_a_retry_expires_after_its_delay_and_the_start_timeout(story):
    story.begin()
    story.requeue(delay=MINUTE)
    assert story.expires_at() == T + 6 * MINUTE


def test_a_released_run_expires_at_once_or_after_its_delay(story):
    story.begin()
    story.release(token="t1")
    assert story.expires_at() == T
    story.redispatch()
    story.release(nonce="m1", delay=3 * SECOND)
    assert story.expires_at() == T + 3 * SECOND


def test_an_ended_run_never_expires(story):
    story.begin()
    story.finish()
    story.now += 9 * DAY
    assert Expired(runs=(), next_deadline=None) == story.expired()


def test_expired_runs_come_oldest_first_in_pages(store):
    names = ["b", "a:1", "a", "é", "a b", "Z"]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T)
    for name in names:
        for slot, timeout in ((T - 2, 5), (T - 1, 5), (T, 4)):
            offer = Offer(job=name, slots=(slot,), overlap="allow", claim_timeout=timeout)
            store.claim("one:1", [offer], nonce=f"{name}-{slot}", now=T)
    expected = sorted(
        (T + (4 if slot == T else 5), RunKey(name, slot)) for name in names for slot in (T - 2, T - 1, T)
    )
    found = list[tuple[int, RunKey]]()
    while page := store.expired(BEAT, 4, after=found[-1] if found else None, now=T + 5).runs:
        found += [(run.deadline, run.key) for run in page]
        assert len(page) == 4 or len(found) == len(expected)
    assert expected == found


def test_expired_says_when_the_next_deadline_is(story):
    assert story.expired().next_deadline is None
    story.now = T + 2
    story.offer(T, overlap="allow", claim_timeout=5, nonce="n1")
    story.offer(T + 1, overlap="allow", claim_timeout=9, nonce="n2")
    story.offer(T + 2, overlap="allow", claim_timeout=7, nonce="n3")
    assert story.expired().next_deadline == T + 7
    story.now = T + 9
    first = story.expired(1)
    assert ([run.slot for run in first.runs], first.next_deadline) == ([T], T + 11)
    story.now = T + 11
    assert story.expired(1).next_deadline is None


def test_an_expired_run_is_claimed_again(story):
    seen = story.claim().run
    story.now += MINUTE
    again = story.redispatch(nonce="m1")
    expected = replace(
        seen, node="two:2", nonce="m1", dispatch=2, claimed_at=story.now, deadline=story.now + 10 * SECOND
    )
    assert Claim(key=story.key(), answer="won", run=expected) == again
    assert expected == story.run()


def test_a_redispatch_whose_answer_was_lost_has_the_same_answer_again(story):
    story.claim()
    story.wait_for_deadline()
    seen = story.as_seen()
    first = story.redispatch(nonce="m1", seen=seen)
    story.now += SECOND
    with nothing_written(story.store):
        assert first == story.redispatch(nonce="m1", seen=seen)
        assert story.redispatch(nonce="m2", seen=seen).answer == "taken"


def test_an_abandonment_whose_answer_was_lost_has_the_same_answer_again(story):
    story.begin()
    story.wait_for_deadline()
    seen = story.as_seen(max_crashes=1)
    first = story.redispatch(nonce="m1", seen=seen)
    assert (first.answer, first.run.state) == ("abandoned", "abandoned")
    with nothing_written(story.store):
        assert first == story.redispatch(nonce="m1", seen=seen)
        assert story.redispatch(nonce="m2", seen=seen).answer == "taken"


@pytest.mark.parametrize("other", [{"state": "queued"}, {"dispatch": 2}, {"deadline": T + 1}])
def test_a_run_is_redispatched_only_if_it_is_as_it_was_seen(story, other):
    story.claim()
    story.wait_for_deadline()
    seen = story.as_seen(**other)
    with nothing_written(story.store):
        assert Claim(key=story.key(), answer="taken", run=story.run()) == story.redispatch(seen=seen)


def test_a_run_that_was_renewed_meanwhile_is_not_redispatched(story):
    story.begin()
    story.wait_for_deadline()
    seen = story.as_seen()
    story.renew()
    with nothing_written(story.store):
        assert story.redispatch(seen=seen).answer == "taken"


def test_a_run_before_its_deadline_is_not_redispatched(story):
    story.claim()
    story.now += 10 * SECOND - 1
    with nothing_written(story.store):
        assert story.redispatch().answer == "taken"
    story.now += 1
    assert story.redispatch().answer == "won"


def test_a_run_nobody_knows_is_not_redispatched(story):
    seen = Redispatch(key=story.key(), state="claimed", dispatch=1, deadline=T)
    with nothing_written(story.store):
        assert Claim(key=story.key(), answer="taken") == story.redispatch(seen=seen)


def test_redispatches_are_answered_in_the_order_asked(story):
    story.now = T + 2
    story.offer(T, T + 1, T + 2, overlap="allow", claim_timeout=5)
    story.now = T + 9
    seen = [story.as_seen(T + 2), story.as_seen(T, dispatch=7), story.as_seen(T + 1)]
    answered = story.store.redispatch("two:2", seen, nonce="m1", now=story.now)
    assert [
        (claim.key.slot, claim.answer) for claim in answered
    ] == [(T + 2, "won"), (T, "taken"), (T + 1, "won")]


def test_only_a_redispatch_from_running_counts_a_crash(story):
    story.claim()
    story.wait_for_deadline()
    assert story.redispatch(nonce="m1").run.crashes == 0
    story.sent()
    story.wait_for_deadline()
    assert story.redispatch(nonce="m2").run.crashes == 0
    story.start()
    story.release(token="t1")
    assert story.redispatch(nonce="m3").run.crashes == 0
    story.start(token="t2")
    story.wait_for_deadline()
    assert story.redispatch(nonce="m4").run.crashes == 1


def test_a_run_whose_holder_died_max_crashes_times_is_abandoned(story):
    story.begin()
    story.begin_again(token="t2")
    story.begin_again(token="t3")
    story.wait_for_deadline()
    last = story.run()
    ended = story.redispatch(nonce="m3")
    expected = replace(
        last, state="abandoned", crashes=3, token=None, nonce="m3", deadline=None, span=None,
        finished_at=story.now, reason="3 workers died running it",
    )  # fmt: skip
    assert Claim(key=story.key(), answer="abandoned", run=expected) == ended
    assert expected == story.run()


def test_max_crashes_is_the_callers(story):
    story.begin()
    story.wait_for_deadline()
    assert story.redispatch(nonce="m1", max_crashes=2).answer == "won"
    story.start(token="t2")
    story.wait_for_deadline()
    assert story.redispatch(nonce="m2", max_crashes=2).answer == "abandoned"
    assert story.run().reason == "2 workers died running it"


def test_handovers_are_no_crashes(story):
    story.begin(token="t0")
    for handover in range(9):
        assert story.release(token=f"t{handover}")
        story.begin_again(token=f"t{handover + 1}")
    assert (story.run().attempt, story.run().crashes) == (10, 0)


def dispatch_in_vain(story: Story) -> Claim:
    """Publish a claimed run five times without a start; return the answer of the sixth attempt."""
    for time_over in range(5):
        story.sent(start_timeout=MINUTE)
        story.wait_for_deadline()
        answer = story.redispatch(nonce=f"v{time_over}")
    return answer


def test_a_run_dispatched_five_times_without_a_start_is_abandoned(story):
    story.claim()
    answer = dispatch_in_vain(story)
    assert (answer.answer, answer.run.reason) == ("abandoned", "dispatched 5 times and never started")
    assert (story.run().state, story.run().dispatch, story.run().unstarted) == ("abandoned", 5, 5)


def test_the_dispatches_are_counted_since_the_last_start(story):
    story.claim()
    for nonce in ("m1", "m2", "m3", "m4"):
        story.sent()
        story.wait_for_deadline()
        story.redispatch(nonce=nonce)
    story.start()
    story.release(token="t1")
    story.redispatch(nonce="m5")
    assert dispatch_in_vain(story).answer == "abandoned"
    assert (story.run().dispatch, story.run().unstarted) == (10, 5)


def test_an_abandoned_run_that_never_started_may_be_started_by_a_late_message(story):
    story.claim()
    dispatch_in_vain(story)
    assert Started(attempt=1, fence=story.now * 1000, trigger="scheduled") == story.start()
    assert (story.run().state, story.run().finished_at, story.run().reason) == ("running", None, None)
    assert story.finish()


@pytest.mark.parametrize("max_crashes", [1, 2])
def test_an_abandonment_by_crashes_is_for_good(story, max_crashes):
    story.begin()
    story.wait_for_deadline()
    story.redispatch(nonce="m1", max_crashes=2)
    story.sent()  # max_crashes 1: a message waits, and a node with another policy judges
    if max_crashes == 2:
        story.start(token="t2")
    story.wait_for_deadline()
    assert story.redispatch(nonce="m2", max_crashes=max_crashes).answer == "abandoned"
    with nothing_written(story.store):
        assert Stale(why="abandoned") == story.start(token="t3")


def test_a_run_whose_job_no_node_has_had_for_a_day_is_abandoned(story):
    story.begin()
    story.register(now=T + SECOND)
    story.now = T + DAY
    assert frozenset() == story.expired().orphaned
    story.now = T + DAY + 2 * SECOND
    assert frozenset({"report"}) == story.expired().orphaned
    assert story.redispatch().answer == "abandoned"
    assert story.run().reason == "no node has had its job for a day"


def test_a_job_that_some_node_has_is_not_orphaned(story):
    story.begin()
    story.now = T + 2 * DAY
    story.store.register(OTHER, [Registration(job="report", hash="h9")], now=story.now - HOUR)
    assert frozenset() == story.expired().orphaned
    assert story.redispatch().answer == "won"


def test_only_jobs_of_the_page_are_called_orphaned(story):
    story.claim()
    other = Story(story.store, job="other", now=T + 1)
    other.register()
    other.claim(T + 1, nonce="n2")
    story.now = T + 3 * DAY
    assert story.expired().orphaned == {"report", "other"}
    assert story.expired(1).orphaned == {"report"}
    after = (T + 10 * SECOND, story.key())
    assert story.expired(after=after).orphaned == {"other"}


# start ------------------------------------------------------------------------------------------


def test_a_start_gives_attempt_and_fence_and_marks_the_job_supervised(story):
    story.claim()
    story.sent()
    queued = story.run()
    story.now += 250
    assert Started(attempt=1, fence=(T + 250) * 1000, trigger="scheduled") == story.start()
    assert story.run() == replace(
        queued, state="running", attempt=1, fence=(T + 250) * 1000, owner="celery@one:3", token="t1",
        task_id="task-of-t1", lease=30 * SECOND, started_at=T + 250, unstarted=0,
        deadline=T + 250 + 30 * SECOND, span=30 * SECOND,
    )  # fmt: skip
    assert (story.record().supervised, story.record().fence) == (True, (T + 250) * 1000)


def test_a_start_whose_answer_was_lost_has_the_same_answer_again(story):
    started = story.begin()
    story.now += SECOND
    with nothing_written(story.store):
        assert started == story.start()
        assert Stale(why="running") == story.start(token="t2")


def test_a_run_may_be_started_before_it_is_known_to_be_published(story):
    story.claim()
    assert Started(attempt=1, fence=T * 1000, trigger="scheduled") == story.start()


def test_a_released_run_may_be_started_by_any_message(story):
    story.begin()
    story.release(token="t1", delay=MINUTE)
    started = story.start(token="t2", dispatch=1)
    assert (started.attempt, started.fence) == (2, T * 1000 + 1)


def test_an_older_message_may_start_the_run(story):
    story.claim()
    story.sent()
    story.wait_for_deadline()
    story.redispatch()
    story.sent()
    assert isinstance(story.start(dispatch=1), Started)
    with nothing_written(story.store):
        assert Stale(why="running") == story.start(token="t2", dispatch=2)


def test_a_running_run_is_never_started_by_another_even_past_its_lease(story):
    story.begin()
    story.now += DAY
    with nothing_written(story.store):
        assert Stale(why="running") == story.start(token="t2")


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_an_ended_run_is_not_started(story, outcome):
    story.begin()
    story.finish(outcome=outcome)
    with nothing_written(story.store):
        assert Stale(why=outcome) == story.start(token="t2")
        assert Stale(why=outcome) == story.start(token="t1")


def test_a_skipped_or_missed_slot_is_not_started(story):
    story.offer(T, leap=Leap(first=T - 2, last=T - 1, count=2))
    story.now += 1
    story.offer(T + 1, nonce="n2")
    with nothing_written(story.store):
        assert Stale(why="missed") == story.start(T - 2)
        assert Stale(why="skipped") == story.start(T + 1)


def test_a_published_run_may_be_started_late_and_is_supervised_from_then_on(story):
    story.claim()
    story.sent(supervised=False)
    assert Started(attempt=1, fence=T * 1000, trigger="scheduled") == story.start()
    assert (story.run().state, story.run().finished_at) == ("running", None)
    assert story.finish()
    story.now += MINUTE
    story.claim(T + MINUTE, nonce="n2")
    story.sent(T + MINUTE, supervised=None)
    assert story.run(T + MINUTE).state == "queued"


def publish_two(story: Story) -> None:
    """Slot T is published, and the next one as well, and is running."""
    for slot in (T, T + MINUTE):
        story.now = slot
        story.claim(slot, nonce=f"n{slot}")
        story.sent(slot, supervised=False)
    story.start(T + MINUTE, token="t2")


def test_a_late_start_meets_the_overlap_policy_again(story):
    publish_two(story)
    assert Stale(why="overlap") == story.start(T, overlap="skip")
    assert ("skipped", "overlap", story.now, 0) == (
        story.run().state, story.run().reason, story.run().finished_at, story.run().attempt,
    )  # fmt: skip
    assert isinstance(story.start(T, token="t3"), Stale)


def test_a_late_start_under_allow_is_as_if_there_were_no_other_run(story):
    publish_two(story)
    assert isinstance(story.start(T, overlap="allow"), Started)
    assert [run.state for run in story.store.runs()] == ["running", "running"]


def test_a_late_start_of_an_abandoned_run_meets_the_overlap_policy_too(story):
    story.claim()
    dispatch_in_vain(story)
    slot = story.now
    story.claim(slot, nonce="n2")
    assert Stale(why="overlap") == story.start(T)
    assert story.run(T).state == "skipped"


def test_the_fence_grows_over_all_slots_of_a_job(story):
    assert story.begin(T, overlap="allow").fence == T * 1000
    story.now += 2
    assert story.begin(T + 1, token="t2", overlap="allow").fence == T * 1000 + 2000
    assert story.begin(T + 2, token="t3", overlap="allow").fence == T * 1000 + 2001
    story.now -= HOUR
    story.release(T + 2, token="t3")
    assert story.start(T + 2, token="t4").fence == T * 1000 + 2002
    assert story.record().fence == T * 1000 + 2002


def test_the_fences_of_two_jobs_are_their_own(story):
    story.begin()
    story.release(token="t1")
    story.start(token="t2")
    other = Story(story.store, job="other")
    other.register()
    assert (story.run().fence, other.begin().fence) == (T * 1000 + 1, T * 1000)


def test_a_takeover_raises_the_attempt(story):
    story.begin()
    story.wait_for_deadline()
    story.redispatch()
    story.sent()
    assert (story.run().trigger, story.run().attempt) == ("takeover", 1)
    assert Started(attempt=2, fence=story.now * 1000, trigger="takeover") == story.start(token="t2")


def test_a_run_that_was_never_begun_is_not_taken_over(story):
    story.claim()
    story.sent()
    story.wait_for_deadline()
    story.redispatch()
    assert Started(attempt=1, fence=story.now * 1000, trigger="scheduled") == story.start()


def test_a_store_comes_to_be_with_its_first_step(store):
    """A claim from before that may be one that it lost; one from then on it would know."""
    story = Story(store)
    story.register(now=T)
    assert Stale(why="unknown") == story.start(claimed_at=T)
    assert isinstance(story.start(claimed_at=T - 1), Started)


def test_a_store_younger_than_the_claim_records_the_run_anew(story):
    asked = {"dispatch": 3, "trigger": "catch-up", "claimed_at": OLD}
    assert Started(attempt=1, fence=T * 1000, trigger="catch-up") == story.start(**asked)
    assert story.run() == Run(
        job="report", slot=T, state="running", trigger="catch-up", dispatch=3, attempt=1, fence=T * 1000,
        owner="celery@one:3", token="t1", task_id="task-of-t1", deadline=T + 30 * SECOND, span=30 * SECOND,
        lease=30 * SECOND, claimed_at=OLD, started_at=T,
    )  # fmt: skip
    assert story.finish()


def test_a_run_recorded_anew_meets_the_overlap_policy(story):
    story.begin()
    assert Stale(why="overlap") == story.start(T - MINUTE, token="t2", claimed_at=OLD)
    assert (story.run(T - MINUTE).state, story.run(T - MINUTE).reason) == ("skipped", "overlap")
    assert isinstance(story.start(T - HOUR, token="t3", claimed_at=OLD, overlap="allow"), Started)


def test_a_slot_recorded_anew_is_not_claimed(story):
    story.start(claimed_at=OLD)
    assert story.claim().answer == "taken"


def test_a_run_that_an_older_store_does_not_know_is_not_started(story):
    with nothing_written(story.store):
        assert Stale(why="unknown") == story.start(claimed_at=YOUNG)


def test_kinds_are_apart(store):
    story = Story(store)
    story.register()
    keys = [RunKey("report", T, kind) for kind in ("scheduled", "manual", "backfill")]
    for key in keys:
        asked = Start(key=key, token=f"t-{key.kind}", worker="w", claimed_at=OLD, overlap="allow")
        assert isinstance(store.start(asked, now=T), Started)
    assert store.finish(keys[1], "t-manual", "failed", now=T)
    assert [store.run(key).state for key in keys] == ["running", "failed", "running"]
    assert [run.kind for run in store.runs()] == ["backfill", "manual", "scheduled"]


# renew ------------------------------------------------------------------------------------------


def test_a_renewal_moves_the_deadline_and_nothing_else(story):
    story.begin()
    before = story.run()
    story.now += 10 * SECOND
    assert Renewal(answer="ok") == story.renew()
    assert replace(before, deadline=story.now + 30 * SECOND) == story.run()


def test_a_lease_that_ran_out_but_that_nobody_took_is_renewed(story):
    story.begin()
    story.now += HOUR
    assert Renewal(answer="ok") == story.renew()
    assert story.now + 30 * SECOND == story.run().deadline


def test_a_lease_that_was_taken_over_is_lost(story):
    fence = story.begin().fence
    lost = Renewal(answer="lost", reason="taken over as attempt 2")
    story.wait_for_deadline()
    for step in (story.redispatch, story.sent, lambda: story.start(token="t2")):
        step()
        with nothing_written(story.store):
            assert lost == story.renew(token="t1", fence=fence)


def test_a_lease_of_an_ended_run_is_lost_to_its_state(story):
    story.begin()
    story.finish(outcome="failed")
    with nothing_written(story.store):
        assert Renewal(answer="lost", reason="failed") == story.renew()


def test_a_lease_on_a_run_that_is_gone_is_lost(story):
    assert Renewal(answer="lost", reason="the store does not know the run") == story.renew(fence=1)


def test_renewals_are_answered_in_the_order_asked(story):
    story.now = T + 2
    for slot, token in ((T, "t1"), (T + 1, "t2"), (T + 2, "t3")):
        story.begin(slot, token=token, overlap="allow")
    story.now += 1
    held = [(T + 2, "t3"), (T + 1, "nobody"), (T - 1, "t0"), (T, "t1")]
    answered = story.store.renew(
        [Holding(key=story.key(slot), token=token, fence=1) for slot, token in held], now=story.now
    )
    assert [renewal.answer for renewal in answered] == ["ok", "lost", "lost", "ok"]


def test_all_leases_of_a_process_are_renewed_in_one_call(store):
    names = [f"job {number}" for number in range(CHUNK)]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T)
    claimed = store.claim("one:1", [Offer(job=name, slots=(T,)) for name in names], nonce="n1", now=T)
    assert [claim.answer for answer in claimed for claim in answer.claims] == ["won"] * CHUNK
    keys = [RunKey(name, T) for name in names]
    store.sent([Sent(key=key, dispatch=1, task_id="i", supervised=True) for key in keys], now=T)
    for key in keys:
        store.start(Start(key=key, token=f"t-{key.job}", worker="w"), now=T)
    held = [Holding(key=key, token=f"t-{key.job}", fence=T * 1000) for key in keys]
    assert [Renewal(answer="ok")] * CHUNK == store.renew(held, now=T + SECOND)
    assert {T + 31 * SECOND} == {run.deadline for run in store.runs(limit=CHUNK)}
    released = [Release(key=key, token=f"t-{key.job}") for key in keys]
    assert store.release(released, now=T + SECOND) == [True] * CHUNK
    expired = store.expired(BEAT, CHUNK, now=T + SECOND).runs
    seen = [Redispatch(key=run.key, state=run.state, dispatch=1, deadline=run.deadline) for run in expired]
    answered = store.redispatch("two:2", seen, nonce="m1", now=T + SECOND)
    assert [claim.answer for claim in answered] == ["won"] * CHUNK


# finish, requeue, release -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "reason"), [("succeeded", None), ("failed", "ValueError: 'é'"), ("cancelled", "revoked")]
)
def test_a_holder_ends_its_run(story, outcome, reason):
    story.begin()
    before = story.run()
    story.now += SECOND
    assert story.finish(outcome=outcome, reason=reason)
    expected = replace(
        before, state=outcome, reason=reason, finished_at=story.now, deadline=None, span=None
    )
    assert expected == story.run()


def test_a_finish_whose_answer_was_lost_is_true_again(story):
    story.begin()
    story.finish()
    story.now += SECOND
    with nothing_written(story.store):
        assert story.finish()
        assert not story.finish(outcome="failed")
        assert not story.finish(token="t2")


def test_a_holder_past_its_lease_may_finish_if_nobody_took_the_run(story):
    story.begin()
    story.now += HOUR
    assert story.finish()


def test_a_retry_waits_as_queued(story):
    story.begin()
    before = story.run()
    story.now += SECOND
    assert story.requeue(delay=MINUTE, retries=2)
    assert story.run() == replace(
        before, state="queued", queued_at=story.now, not_before=story.now + MINUTE, retries=2, unstarted=1,
        deadline=story.now + 6 * MINUTE, span=6 * MINUTE,
    )  # fmt: skip
    assert story.claim(T + SECOND, nonce="n2").answer == "overlap"


def test_a_requeue_whose_answer_was_lost_is_true_again(story):
    story.begin()
    story.requeue()
    story.now += SECOND
    with nothing_written(story.store):
        assert story.requeue()
        assert not story.requeue(token="t2")


def test_a_retry_is_not_started_before_its_time(story):
    story.begin()
    story.requeue(delay=MINUTE)
    story.now += MINUTE - 1
    with nothing_written(story.store):
        wait = T + MINUTE - story.now
        assert Stale(why="too early for its retry", wait=wait) == story.start(token="t2")
    story.now += 1
    assert isinstance(story.start(token="t2"), Started)


def test_a_retry_goes_on_under_the_same_attempt_with_a_new_fence(story):
    story.begin()
    story.requeue(delay=0)
    assert Started(attempt=1, fence=T * 1000 + 1, trigger="scheduled") == story.start(token="t2")
    run = story.run()
    assert (run.retries, run.not_before, run.unstarted, run.token) == (None, None, 0, "t2")


def test_a_retry_that_was_lost_is_dispatched_again_with_the_same_retries(story):
    story.begin()
    story.requeue(retries=2)
    story.wait_for_deadline()
    again = story.redispatch()
    assert (
        again.run.retries, again.run.crashes, again.run.attempt, again.run.trigger,
    ) == (2, 0, 1, "scheduled")  # fmt: skip
    story.sent()
    assert (story.run().retries, story.run().unstarted) == (2, 2)
    assert (story.start(token="t2").attempt, story.run().trigger) == (1, "scheduled")
    assert story.run().retries is None


def test_a_retry_whose_publish_failed_keeps_its_retries(story):
    story.begin()
    story.requeue(retries=2)
    story.wait_for_deadline()
    story.redispatch(nonce="m1")
    assert story.release(nonce="m1")
    assert (story.run().retries, story.run().dispatch) == (2, 1)
    assert isinstance(answer := story.start(token="t2"), Started)
    assert answer.attempt == 1


def test_a_worker_that_dies_running_a_retry_is_taken_over(story):
    story.begin()
    story.requeue(delay=0)
    story.start(token="t2")
    assert (story.begin_again(token="t3").attempt, story.run().trigger) == (2, "takeover")
    assert story.run().crashes == 1


def test_a_handover_gives_the_run_back_at_once(story):
    story.begin()
    before = story.run()
    story.now += SECOND
    assert story.release(token="t1")
    assert replace(before, state="released", deadline=story.now, span=0) == story.run()
    assert story.begin_again().attempt == 2


@pytest.mark.parametrize(("crash", "crashes"), [(False, 0), (True, 1)])
def test_a_release_whose_answer_was_lost_is_true_again_and_counts_once(story, crash, crashes):
    story.begin()
    assert story.release(token="t1", delay=SECOND, crash=crash)
    story.now += 1
    with nothing_written(story.store):
        assert story.release(token="t1", delay=SECOND, crash=crash)
        assert not story.release(token="t2")
    assert crashes == story.run().crashes


def test_crashes_that_a_worker_reports_count_like_those_that_beat_finds(story):
    story.begin(token="t0")
    for crash in range(2):
        story.release(token=f"t{crash}", crash=True)
        story.begin_again(token=f"t{crash + 1}")
    story.release(token="t2", crash=True)
    assert (
        story.redispatch().answer, story.run().reason,
    ) == ("abandoned", "3 workers died running it")  # fmt: skip


def test_a_claim_whose_publish_failed_is_given_back_and_was_no_dispatch(story):
    before = story.claim().run
    assert story.release(nonce="n1", delay=2 * SECOND)
    expected = replace(before, state="released", dispatch=0, deadline=T + 2 * SECOND, span=2 * SECOND)
    assert expected == story.run()
    with nothing_written(story.store):
        assert story.release(nonce="n1", delay=2 * SECOND)
    story.wait_for_deadline()
    again = story.redispatch().run
    assert (again.dispatch, again.unstarted, again.crashes) == (1, 0, 0)


def test_publishes_that_fail_abandon_nothing(story):
    story.claim(nonce="m0")
    for failure in range(9):
        assert story.release(nonce=f"m{failure}")
        assert story.redispatch(nonce=f"m{failure + 1}").answer == "won"
    assert story.run().dispatch == 1


def test_a_claim_is_given_back_only_by_the_call_that_won_it(story):
    story.claim(nonce="n1")
    with nothing_written(story.store):
        assert not story.release(nonce="n2")
        assert not story.release(token="t1")
    story.wait_for_deadline()
    story.redispatch(nonce="m1")
    with nothing_written(story.store):
        assert not story.release(nonce="n1")


def test_a_claim_that_was_published_or_started_is_not_given_back(story):
    story.claim(nonce="n1")
    story.sent()
    with nothing_written(story.store):
        assert not story.release(nonce="n1")
    story.start()
    with nothing_written(story.store):
        assert not story.release(nonce="n1")


def test_releases_are_answered_in_the_order_asked(story):
    story.now = T + 1
    story.begin(T, token="t1", overlap="allow")
    story.claim(T + 1, nonce="n2", overlap="allow")
    releases = [
        Release(key=story.key(T + 1), nonce="n2"),
        Release(key=story.key(T + 9), token="t9"),
        Release(key=story.key(T), token="t2"),
        Release(key=story.key(T), token="t1"),
    ]
    assert story.store.release(releases, now=story.now) == [True, False, False, True]


def lose_to_a_claim(story: Story) -> None:
    story.wait_for_deadline()
    story.redispatch()


def lose_to_a_message(story: Story) -> None:
    lose_to_a_claim(story)
    story.sent()


def lose_to_a_failed_publish(story: Story) -> None:
    lose_to_a_claim(story)
    story.release(nonce="m1")


def lose_to_a_start(story: Story) -> None:
    lose_to_a_message(story)
    story.start(token="t2")


def lose_to_a_retry(story: Story) -> None:
    lose_to_a_start(story)
    story.requeue(token="t2")


def lose_to_a_handover(story: Story) -> None:
    lose_to_a_start(story)
    story.release(token="t2")


def lose_to_an_end(story: Story) -> None:
    lose_to_a_start(story)
    story.finish(token="t2")


def lose_for_good(story: Story) -> None:
    story.wait_for_deadline()
    story.redispatch(max_crashes=1)


@pytest.mark.parametrize(
    "lose",
    [
        lose_to_a_claim, lose_to_a_message, lose_to_a_failed_publish, lose_to_a_start, lose_to_a_retry,
        lose_to_a_handover, lose_to_an_end, lose_for_good,
    ],
)  # fmt: skip
def test_a_holder_that_lost_its_run_is_refused_and_nothing_is_written(story, lose):
    story.begin()
    lose(story)
    with nothing_written(story.store):
        assert story.renew().answer == "lost"
        assert [
            story.finish(outcome=outcome) for outcome in ("succeeded", "failed", "cancelled")
        ] == [False, False, False]
        assert not story.requeue()
        assert not story.release(token="t1")
        assert not story.release(token="t1", crash=True)


def test_nobody_holds_a_run_that_does_not_exist(story):
    with nothing_written(story.store):
        assert not story.finish()
        assert not story.requeue()
        assert not story.release(token="t1")
        assert not story.release(nonce="n1")


def test_nobody_holds_a_run_that_was_not_started(story):
    story.claim()
    with nothing_written(story.store):
        assert not story.finish()
        assert not story.requeue()
        assert not story.release(token="t1")
        assert story.renew().answer == "lost"


# overlap queue ----------------------------------------------------------------------------------


def wait_behind(story: Story, **how) -> Run:
    """Slot T is running, and the next one, a minute later, waits for it."""
    story.begin(**how)
    story.now = T + MINUTE
    claim = story.claim(T + MINUTE, nonce="n2", overlap="queue")
    assert claim.answer == "overlap"
    return story.run(T + MINUTE)


def test_overlap_queue_lets_the_slot_wait_and_raises_the_floor(story):
    story.begin()
    story.now += MINUTE
    claimed = story.offer(T + MINUTE, nonce="n2", overlap="queue", late=1)
    waiting = Run(
        job="report", slot=T + MINUTE, state="buffered", trigger="catch-up", dispatch=0, node="one:1",
        nonce="n2", claimed_at=story.now,
    )  # fmt: skip
    assert Claimed(
        job="report", floor=T + MINUTE, claims=(Claim(key=waiting.key, answer="overlap", run=waiting),)
    ) == claimed  # fmt: skip
    assert waiting == story.run(T + MINUTE)


@pytest.mark.parametrize("overlap", ["queue", "cancel"])
def test_a_slot_that_meets_no_other_is_won(story, overlap):
    assert story.claim(overlap=overlap).won


def test_one_slot_of_a_job_waits_an_older_one_is_skipped(story):
    older = wait_behind(story)
    story.now += MINUTE
    claimed = story.offer(T + 2 * MINUTE, nonce="n3", overlap="queue")
    skipped = replace(older, state="skipped", reason="overlap", finished_at=story.now)
    assert ((skipped,), ["overlap"]) == (claimed.ended, answers(claimed))
    assert skipped == story.run(T + MINUTE)
    assert story.run(T + 2 * MINUTE).state == "buffered"
    assert story.run(T).state == "running"


def test_of_several_slots_in_one_call_the_newest_waits(story):
    story.now += 2 * MINUTE
    claimed = story.offer(T, T + MINUTE, T + 2 * MINUTE, overlap="queue")
    assert (answers(claimed), claimed.ended) == (["won", "overlap", "overlap"], ())
    assert [claim.run.state for claim in claimed.claims] == ["claimed", "skipped", "buffered"]
    assert [claim.run for claim in claimed.claims] == [story.run(claim.key.slot) for claim in claimed.claims]
    with nothing_written(story.store):
        assert claimed == story.offer(T, T + MINUTE, T + 2 * MINUTE, overlap="queue")


def test_a_run_that_waits_has_no_deadline_and_is_not_started(story):
    waiting = wait_behind(story)
    story.now = T + DAY
    assert [run.slot for run in story.expired().runs] == [T]
    assert [waiting] == story.store.runs(state="buffered") == story.store.runs(job="report", state="buffered")
    assert [T + MINUTE, T] == [run.slot for run in story.store.runs(job="report")]
    seen = Redispatch(key=waiting.key, state="buffered", dispatch=0, deadline=T)
    with nothing_written(story.store):
        assert Stale(why="buffered") == story.start(T + MINUTE, token="t2")
        assert story.redispatch(seen=seen).answer == "taken"
        story.sent(T + MINUTE)
        assert not story.finish(T + MINUTE)
        assert story.claim(T + MINUTE, nonce="n9", overlap="queue").answer == "taken"
        assert story.store.prune(history=0, most=0, now=story.now) == 0


def test_runs_that_wait_are_listed_newest_first(store):
    for job in ("b", "a"):
        story = Story(store, job=job)
        story.register(now=T - HOUR)
        wait_behind(story)
    assert ["a", "b"] == [run.job for run in store.runs(state="buffered")]
    assert ["a"] == [run.job for run in store.runs(state="buffered", limit=1)]
    assert ["b"] == [run.job for run in store.runs(job="b", state="buffered")]


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
def test_a_run_that_waits_holds_its_job(story, overlap):
    """Behind the run that it waits for there is nobody else's turn."""
    wait_behind(story)
    story.finish()
    assert story.claim(T + MINUTE, nonce="n2").answer == "overlap"
    story.now += MINUTE
    answer = story.claim(T + 2 * MINUTE, nonce="n3", overlap=overlap)
    assert answer.answer == ("won" if overlap == "cancel" else "overlap")
    assert story.run(T + MINUTE).state == ("cancelled" if overlap == "cancel" else "released")


def test_overlap_queue_is_idempotent_whatever_became_of_the_run(story):
    story.begin()
    story.now += MINUTE

    def ask() -> Claim:
        return story.claim(T + MINUTE, nonce="n2", overlap="queue")

    first = ask()
    with nothing_written(story.store):
        assert first == ask()
    story.finish()
    with nothing_written(story.store):
        assert Claim(key=first.key, answer="overlap", run=story.run(T + MINUTE)) == ask()
    story.now += MINUTE
    assert story.claim(T + 2 * MINUTE, nonce="n3", overlap="cancel").won
    with nothing_written(story.store):
        assert ("overlap", "cancelled") == (ask().answer, ask().run.state)


def test_a_displaced_run_is_still_told_as_overlap(story):
    wait_behind(story)
    story.now += MINUTE
    story.claim(T + 2 * MINUTE, nonce="n3", overlap="queue")
    again = story.claim(T + MINUTE, nonce="n2", overlap="queue")
    assert (again.answer, again.run.state, again.run.reason) == ("overlap", "skipped", "overlap")


# every end lets the next one go on --------------------------------------------------------------


def end_by_finish(story: Story) -> None:
    assert story.finish(outcome="failed")


def end_by_crash(story: Story) -> None:
    story.wait_for_deadline()
    assert story.redispatch(max_crashes=1).answer == "abandoned"


def end_unsupervised(story: Story) -> None:
    """The run was never started."""
    story.sent(supervised=False)
    assert story.run().state == "published"


@pytest.mark.parametrize("ending", [end_by_finish, end_by_crash, end_unsupervised])
def test_every_end_promotes_the_run_that_waits(story, ending):
    if ending is end_unsupervised:
        story.claim()
        story.now += MINUTE
        story.claim(T + MINUTE, nonce="n2", overlap="queue")
        waiting = story.run(T + MINUTE)
    else:
        waiting = wait_behind(story)
    ending(story)
    assert story.run().ended
    assert replace(waiting, state="released", deadline=story.now, span=0) == story.run(T + MINUTE)
    assert [T + MINUTE] == [run.slot for run in story.expired().runs]


def test_a_promoted_run_is_dispatched_for_the_first_time(story):
    wait_behind(story)
    story.finish()
    promoted = story.run(T + MINUTE)
    won = story.redispatch(T + MINUTE)
    assert replace(
        promoted, state="claimed", dispatch=1, node="two:2", nonce="m1", claimed_at=story.now,
        deadline=story.now + 10 * SECOND, span=10 * SECOND,
    ) == won.run  # fmt: skip
    story.sent(T + MINUTE)
    started = story.start(T + MINUTE, token="t2")
    assert started == Started(attempt=1, fence=story.now * 1000, trigger="scheduled")


def test_a_promoted_run_may_be_displaced_no_more(story):
    wait_behind(story)
    story.finish()
    story.now += MINUTE
    claimed = story.offer(T + 2 * MINUTE, nonce="n3", overlap="queue")
    assert (claimed.ended, story.run(T + MINUTE).state) == ((), "released")


def test_an_end_promotes_nothing_while_another_run_is_active(story):
    story.begin()
    story.now += MINUTE
    assert story.claim(T + 1, nonce="n2", overlap="allow").won
    story.claim(T + MINUTE, nonce="n3", overlap="queue")
    story.finish()
    assert story.run(T + MINUTE).state == "buffered"
    story.start(T + 1, token="t2")
    story.finish(T + 1, token="t2")
    assert story.run(T + MINUTE).state == "released"


def test_the_oldest_that_waits_goes_first(story):
    """Several wait where a pause made them."""
    story.now = T + 2
    story.offer(T, T + 1, T + 2, overlap="allow")
    story.store.pause("report", reason="r", by="anna", now=story.now)
    story.store.resume("report", now=story.now)
    states = [(run.slot - T, run.state) for run in story.store.runs()]
    assert states == [(2, "buffered"), (1, "buffered"), (0, "released")]


def test_an_end_promotes_nothing_of_another_job(story):
    wait_behind(story)
    other = Story(story.store, job="other", now=story.now)
    other.register()
    other.begin(T + MINUTE, token="t9")
    other.finish(T + MINUTE, token="t9")
    assert story.run(T + MINUTE).state == "buffered"


# overlap cancel ---------------------------------------------------------------------------------


def test_overlap_cancel_asks_what_runs_to_stop_and_waits(story):
    story.begin()
    running = story.run()
    story.now += MINUTE
    claimed = story.offer(T + MINUTE, nonce="n2", overlap="cancel")
    assert (answers(claimed), claimed.ended) == (["overlap"], ())
    assert replace(running, stop=OVERTAKEN) == story.run()
    assert (story.run(T + MINUTE).state, story.run(T + MINUTE).dispatch) == ("buffered", 0)
    with nothing_written(story.store):
        assert claimed == story.offer(T + MINUTE, nonce="n2", overlap="cancel")
        assert Renewal(answer="stop", reason=OVERTAKEN) == story.renew()


@pytest.mark.parametrize("state", ["claimed", "queued", "released"])
def test_overlap_cancel_ends_what_was_not_started_and_wins(story, state):
    story.claim()
    if state == "queued":
        story.sent()
    if state == "released":
        story.release(nonce="n1")
    before = story.run()
    story.now += MINUTE
    claimed = story.offer(T + MINUTE, nonce="n2", overlap="cancel")
    ended = replace(
        before, state="cancelled", reason=OVERTAKEN, finished_at=story.now, deadline=None, span=None
    )
    assert ((ended,), ["won"], ended) == (claimed.ended, answers(claimed), story.run())
    with nothing_written(story.store):
        assert Stale(why="cancelled") == story.start()
        again = story.offer(T + MINUTE, nonce="n2", overlap="cancel")
    assert replace(claimed, ended=()) == again


def test_a_claim_that_was_overtaken_before_its_answer_came_is_told_as_cancelled(story):
    story.claim(nonce="n1")
    story.now += MINUTE
    story.claim(T + MINUTE, nonce="n2", overlap="cancel")
    with nothing_written(story.store):
        assert Claim(key=story.key(), answer="cancelled", run=story.run()) == story.claim(nonce="n1")
        assert story.claim(nonce="n3").answer == "taken"


def test_of_several_slots_in_one_call_under_cancel_the_newest_is_won(story):
    story.now += 2 * MINUTE
    slots = (T, T + MINUTE, T + 2 * MINUTE)
    claimed = story.offer(*slots, overlap="cancel")
    assert (answers(claimed), claimed.ended) == (["cancelled", "cancelled", "won"], ())
    assert [claim.run for claim in claimed.claims] == [story.run(slot) for slot in slots]
    with nothing_written(story.store):
        assert claimed == story.offer(*slots, overlap="cancel")


def test_overlap_cancel_displaces_what_waits_and_ends_all_but_what_runs(story):
    story.begin()
    story.now += MINUTE
    assert story.claim(T + 1, nonce="n2", overlap="allow").won
    story.claim(T + 2, nonce="n3", overlap="queue")
    claimed = story.offer(T + MINUTE, nonce="n4", overlap="cancel")
    assert [(T + 2, "skipped", "overlap"), (T + 1, "cancelled", OVERTAKEN)] == [
        (run.slot, run.state, run.reason) for run in claimed.ended
    ]
    assert answers(claimed) == ["overlap"]
    assert [(T + MINUTE, "buffered"), (T, "running")] == [
        (run.slot, run.state) for run in story.store.runs() if not run.ended
    ]


def test_an_answer_shows_a_run_as_the_whole_call_left_it(story):
    """So that the same call is answered the same again."""
    story.claim(nonce="n1")
    story.now += MINUTE
    claimed = story.offer(T, T + MINUTE, nonce="n2", overlap="cancel")
    assert (answers(claimed), claimed.ended) == (["taken", "won"], (story.run(),))
    assert story.run() == claimed.claims[0].run
    assert replace(claimed, ended=()) == story.offer(T, T + MINUTE, nonce="n2", overlap="cancel")


def test_what_a_claim_ends_is_told_oldest_first(story):
    story.now = T + 2
    story.offer(T, T + 1, T + 2, overlap="allow")
    story.now = T + MINUTE
    claimed = story.offer(T + MINUTE, nonce="n2", overlap="cancel")
    assert [T, T + 1, T + 2] == [run.slot for run in claimed.ended]


def stopped(story: Story) -> None:
    """Slot T is running and asked to stop, the next one waits."""
    story.begin()
    story.now = T + MINUTE
    assert story.claim(T + MINUTE, nonce="n2", overlap="cancel").answer == "overlap"


@pytest.mark.parametrize("crash", [False, True])
def test_a_run_that_is_to_stop_ends_when_it_is_given_back(story, crash):
    stopped(story)
    before = story.run()
    assert story.release(token="t1", delay=MINUTE, crash=crash)
    expected = replace(
        before, state="cancelled", reason=OVERTAKEN, finished_at=story.now, deadline=None, span=None,
        crashes=int(crash),
    )  # fmt: skip
    assert (expected, "released") == (story.run(), story.run(T + MINUTE).state)
    with nothing_written(story.store):
        assert story.release(token="t1", delay=MINUTE, crash=crash)
        assert not story.release(token="t2")
        assert not story.release(nonce="n1")


def test_a_run_that_is_to_stop_is_not_retried(story):
    stopped(story)
    assert not story.requeue()
    assert ("cancelled", OVERTAKEN, None) == (story.run().state, story.run().reason, story.run().retries)
    assert story.run(T + MINUTE).state == "released"
    with nothing_written(story.store):
        assert not story.requeue()


def test_a_run_that_is_to_stop_ends_at_its_deadline(story):
    stopped(story)
    story.wait_for_deadline()
    ended = story.redispatch()
    assert (ended.answer, ended.run.reason, ended.run.crashes) == ("cancelled", OVERTAKEN, 1)
    assert story.run(T + MINUTE).state == "released"


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_a_run_that_is_to_stop_may_be_ended_by_its_holder(story, outcome):
    stopped(story)
    assert story.finish(outcome=outcome)
    assert (outcome, "released") == (story.run().state, story.run(T + MINUTE).state)


# catch-up all -----------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
def test_under_catch_up_all_late_slots_are_won_one_after_the_other(story, overlap):
    story.now += 3 * MINUTE
    slots = [T, T + MINUTE, T + 2 * MINUTE]
    for number, slot in enumerate(slots):
        claimed = story.offer(
            *slots, late=3, catch_up="all", overlap=overlap, nonce=f"n{number}"
        )
        expected = ["taken"] * number + ["won"] + ["wait"] * (2 - number)
        assert (expected, slot, ()) == (answers(claimed), claimed.floor, claimed.ended)
        with nothing_written(story.store):
            later = story.offer(*slots[number:], late=3, catch_up="all", overlap=overlap, nonce="n9")
            assert answers(later) == ["taken"] + ["wait"] * (2 - number)
        story.start(slot, token=f"t{number}")
        assert story.finish(slot, token=f"t{number}")
    assert [run.state for run in story.store.runs()] == ["succeeded"] * 3


def test_a_late_slot_that_waits_is_asked_again_with_the_same_answer(story):
    story.now += MINUTE
    first = story.offer(T, T + MINUTE, late=2, catch_up="all")
    assert answers(first) == ["won", "wait"]
    with nothing_written(story.store):
        assert first == story.offer(T, T + MINUTE, late=2, catch_up="all")


def test_slots_behind_one_that_waits_count_as_late_and_wait(story):
    story.begin()
    story.now += 2 * MINUTE
    with nothing_written(story.store):
        claimed = story.offer(
            T, T + MINUTE, T + 2 * MINUTE, T + HOUR, late=2, catch_up="all", overlap="cancel", nonce="n2"
        )
    # What is decided, and what is not due, is told as ever.
    assert (answers(claimed), claimed.floor) == (["taken", "wait", "wait", "early"], T)


def test_under_catch_up_all_slots_on_time_meet_the_overlap_policy(story):
    story.begin()
    story.now += MINUTE
    assert story.claim(T + MINUTE, nonce="n2", catch_up="all").answer == "overlap"


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_under_another_catch_up_late_slots_meet_the_overlap_policy(story, catch_up):
    story.begin()
    story.now += MINUTE
    assert story.claim(T + MINUTE, nonce="n2", catch_up=catch_up, late=1).answer == "overlap"


def test_under_catch_up_all_and_allow_late_slots_are_all_won(story):
    story.begin()
    story.now += 2 * MINUTE
    claimed = story.offer(
        T + MINUTE, T + 2 * MINUTE, late=2, catch_up="all", overlap="allow", nonce="n2"
    )
    assert answers(claimed) == ["won", "won"]


def test_a_leap_is_written_even_where_the_late_slots_wait(story):
    story.begin()
    story.now += 5 * MINUTE
    leap = Leap(first=T + MINUTE, last=T + 2 * MINUTE, count=2)
    claimed = story.offer(T + 3 * MINUTE, late=1, catch_up="all", leap=leap, nonce="n2")
    assert (claimed.missed.state, answers(claimed), claimed.floor) == ("missed", ["wait"], T + 2 * MINUTE)


# chained schedules ------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [None, T - 1, T + 1])
def test_a_slot_that_was_computed_from_another_floor_is_not_decided(story, after):
    story.claim()
    story.now += MINUTE
    leap = Leap(first=T + 1, last=T + 2, count=2)
    with nothing_written(story.store):
        claimed = story.offer(
            T + MINUTE, T + HOUR, chained=True, after=after, leap=leap, overlap="allow", nonce="n2"
        )
    assert (answers(claimed), claimed.floor, claimed.missed) == (["wait", "wait"], T, None)


def test_a_slot_that_was_computed_from_a_floor_that_is_not_there_is_not_decided(story):
    with nothing_written(story.store):
        assert story.claim(chained=True, after=T - MINUTE).answer == "wait"


def test_a_slot_that_was_computed_from_the_floor_is_decided(story):
    assert story.claim(chained=True, after=None).won
    story.now += MINUTE
    assert story.claim(T + MINUTE, chained=True, after=T, overlap="allow", nonce="n2").won


def test_after_counts_only_for_a_chained_schedule(story):
    assert story.claim(chained=False, after=T - DAY).won


def test_a_chained_claim_whose_answer_was_lost_has_the_same_answer_again(story):
    story.claim(nonce="n0")
    story.now += MINUTE
    leap = Leap(first=T + 1, last=T + 2, count=2)
    asked = {"chained": True, "after": T, "leap": leap, "overlap": "queue"}
    first = story.offer(T + 3, T + MINUTE, nonce="n1", **asked)
    assert answers(first) == ["overlap", "overlap"]
    assert first.missed is not None
    with nothing_written(story.store):
        assert first == story.offer(T + 3, T + MINUTE, nonce="n1", **asked)
        assert answers(story.offer(T + 3, T + MINUTE, nonce="n2", **asked)) == ["wait", "wait"]


# several schedules of one job ---------------------------------------------------------------------


@pytest.fixture
def deploy(story):
    """Nodes with h1 and, since a minute before T, nodes with h2; it is a minute past T."""
    story.register("h2", now=T - MINUTE)
    story.now = T + MINUTE
    return story


def floors(story: Story) -> dict[str, int | None]:
    return {known.hash: known.floor for known in story.record().hashes}


def begins(story: Story) -> list[tuple[str, int]]:
    return [(known.hash, known.since) for known in story.record().hashes]


def test_a_slot_before_what_another_schedule_decided_is_decided_too(deploy):
    assert deploy.claim(T + 10 * SECOND, hash="h1").won
    claimed = deploy.offer(T, T + 5 * SECOND, hash="h2", overlap="allow", nonce="n2")
    assert (["won", "won"], T + 5 * SECOND) == (answers(claimed), claimed.floor)
    assert len(deploy.store.runs()) == 3


def test_what_a_claim_decides_raises_the_floor_of_its_schedule_and_the_jobs(deploy):
    assert deploy.offer(T + SECOND, hash="h1").floor == T + SECOND
    assert ({"h1": T + SECOND, "h2": None}, T + SECOND) == (floors(deploy), deploy.record().floor)
    assert deploy.offer(T, hash="h2", overlap="allow", nonce="n2").floor == T
    assert ({"h1": T + SECOND, "h2": T}, T + SECOND) == (floors(deploy), deploy.record().floor)


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
def test_a_slot_that_meets_a_run_of_another_schedule_leaves_a_record(deploy, overlap):
    deploy.begin(T + 10 * SECOND, hash="h1")
    assert deploy.claim(T, hash="h2", overlap=overlap, nonce="n2").answer == "overlap"
    assert ("buffered" if overlap == "queue" else "skipped") == deploy.run(T).state
    assert {"h1": T + 10 * SECOND, "h2": T} == floors(deploy)


@pytest.mark.parametrize("overlap", ["queue", "cancel"])
def test_a_slot_displaces_no_later_one(deploy, overlap):
    deploy.begin(T - SECOND, hash="h1")
    assert deploy.claim(T + SECOND, hash="h1", overlap="queue", nonce="n1").run.state == "buffered"
    before = deploy.run(T - SECOND), deploy.run(T + SECOND)
    claimed = deploy.offer(T, hash="h2", overlap=overlap, nonce="n2")
    assert (["overlap"], "skipped") == (answers(claimed), deploy.run(T).state)
    assert before == (deploy.run(T - SECOND), deploy.run(T + SECOND))
    with nothing_written(deploy.store):
        assert claimed == deploy.offer(T, hash="h2", overlap=overlap, nonce="n2")


@pytest.mark.parametrize("state", ["claimed", "queued", "running", "released"])
def test_a_slot_stops_no_run_of_a_later_one(deploy, state):
    deploy.claim(T + SECOND, hash="h1", nonce="n1")
    if state in ("queued", "running"):
        deploy.sent(T + SECOND)
    if state == "running":
        deploy.start(T + SECOND)
    if state == "released":
        deploy.release(T + SECOND, nonce="n1")
    before = deploy.run(T + SECOND)
    claimed = deploy.offer(T, hash="h2", overlap="cancel", nonce="n2")
    assert (state, before) == (before.state, deploy.run(T + SECOND))
    assert (["overlap"], "skipped", ()) == (answers(claimed), deploy.run(T).state, claimed.ended)


def test_a_slot_may_wait_for_a_later_one_to_end(deploy):
    deploy.begin(T + SECOND, hash="h1")
    deploy.offer(T, hash="h2", overlap="queue", nonce="n2")
    deploy.finish(T + SECOND)
    assert deploy.run(T).state == "released"


def test_a_run_of_a_kind_of_its_own_overtakes_no_slot(deploy):
    later = Start(
        key=RunKey("report", T + SECOND, "manual"), token="t", worker="w", claimed_at=OLD, overlap="allow"
    )
    deploy.store.start(later, now=deploy.now)
    assert deploy.claim(T, hash="h2", overlap="cancel", nonce="n2").run.state == "buffered"


def test_a_skip_while_the_job_is_paused_raises_the_floor_of_its_schedule(deploy):
    pause(deploy)
    deploy.offer(T + SECOND, hash="h1")
    claimed = deploy.offer(T, hash="h2", nonce="n2")
    assert (["paused"], T) == (answers(claimed), claimed.floor)
    assert {"h1": T + SECOND, "h2": T} == floors(deploy)


def test_no_slot_at_or_below_the_floor_of_its_schedule_is_claimed_anew(deploy):
    deploy.claim(T, hash="h2")
    with nothing_written(deploy.store):
        assert Claim(key=deploy.key(T - 1), answer="taken") == deploy.claim(T - 1, hash="h2", nonce="n2")


def test_a_slot_that_ran_for_another_schedule_is_taken_and_raises_the_floor(deploy):
    won = deploy.claim(T, hash="h1")
    claimed = deploy.offer(T, hash="h2", nonce="n2")
    assert (Claim(key=deploy.key(), answer="taken", run=won.run),) == claimed.claims
    assert (T, {"h1": T, "h2": T}, T) == (claimed.floor, floors(deploy), deploy.record().floor)
    with nothing_written(deploy.store):
        assert claimed == deploy.offer(T, hash="h2", nonce="n2")


def test_a_slot_that_is_taken_raises_no_floor_over_one_that_waits(deploy):
    deploy.begin(T + SECOND, hash="h1")
    with nothing_written(deploy.store):
        claimed = deploy.offer(T, T + SECOND, late=1, catch_up="all", hash="h2", nonce="n2")
    assert (["wait", "taken"], None) == (answers(claimed), claimed.floor)


def test_a_slot_that_is_taken_and_not_due_raises_no_floor(deploy):
    """Its run exists because the store's clock went back."""
    deploy.claim(T + SECOND, hash="h1")
    deploy.now = T
    with nothing_written(deploy.store):
        assert deploy.claim(T + SECOND, hash="h2", nonce="n2").answer == "taken"


def test_a_claim_whose_answer_was_lost_is_told_again_whatever_another_schedule_decided(deploy):
    first = deploy.offer(T, hash="h2", overlap="allow", nonce="n1")
    deploy.claim(T + SECOND, hash="h1", overlap="allow", nonce="n2")
    with nothing_written(deploy.store):
        assert first == deploy.offer(T, hash="h2", overlap="allow", nonce="n1")


def test_an_offer_that_names_no_schedule_goes_by_the_jobs_floor_and_raises_all(deploy):
    deploy.claim(T, hash="h1")
    assert deploy.claim(T - 1, nonce="n2").answer == "taken"
    assert deploy.offer(T + SECOND, overlap="allow", nonce="n3").floor == T + SECOND
    assert {"h1": T + SECOND, "h2": T + SECOND} == floors(deploy)


def test_the_only_schedule_of_a_job_and_the_job_have_one_floor(story):
    story.claim(T, hash="h1", overlap="allow")
    story.now += SECOND
    story.claim(T + SECOND, overlap="allow", nonce="n2")
    assert (T + SECOND, {"h1": T + SECOND}) == (story.record().floor, floors(story))


def test_a_schedule_that_the_store_does_not_know_is_unknown(deploy):
    """In a wiped store the nodes of another schedule may have registered first."""
    with nothing_written(deploy.store):
        claimed = deploy.offer(T, T + 1, hash="h3")
    assert (["unknown", "unknown"], None) == (answers(claimed), claimed.floor)


def test_a_schedule_that_may_have_been_forgotten_goes_by_the_jobs_floor_and_raises_all(story):
    for number in range(REMEMBERED_HASHES):
        story.register(f"h{number + 2}", now=T - MINUTE)
    story.claim(T - SECOND, hash="h2")
    claimed = story.offer(T - 2 * SECOND, T, hash="h1", overlap="allow", nonce="n2")
    assert (["taken", "won"], T) == (answers(claimed), claimed.floor)
    assert {f"h{number + 2}": T for number in range(REMEMBERED_HASHES)} == floors(story)


def test_a_schedule_is_registered_with_its_own_floor(deploy):
    deploy.claim(T, hash="h1")
    assert (T, None) == (deploy.register("h1", cursor=T).floor, deploy.register("h2").floor)


def test_a_chained_slot_follows_from_the_floor_of_its_schedule(deploy):
    deploy.claim(T, hash="h1")
    with nothing_written(deploy.store):
        claimed = deploy.offer(T + SECOND, hash="h2", chained=True, after=T, overlap="allow", nonce="n2")
    assert (["wait"], None) == (answers(claimed), claimed.floor)
    claimed = deploy.offer(T + SECOND, hash="h2", chained=True, after=None, overlap="allow", nonce="n2")
    assert (["won"], T + SECOND) == (answers(claimed), claimed.floor)


def test_a_leap_is_out_of_date_by_the_floor_of_its_schedule(deploy):
    leap = Leap(first=T - 2 * SECOND, last=T, count=3)
    deploy.claim(T - SECOND, hash="h1")
    claimed = deploy.offer(leap=leap, hash="h2", nonce="n2")
    assert (T, 3) == (claimed.floor, claimed.missed.count)
    assert {"h1": T - SECOND, "h2": T} == floors(deploy)
    with nothing_written(deploy.store):
        claimed = deploy.offer(T + SECOND, leap=leap, hash="h1", nonce="n3")
    assert (["wait"], T - SECOND) == (answers(claimed), claimed.floor)


def test_a_leap_whose_first_slot_ran_for_another_schedule_is_recorded_beside_it(deploy):
    deploy.claim(T, hash="h1")
    leap = Leap(first=T, last=T + 2 * SECOND, count=3)
    claimed = deploy.offer(T + 3 * SECOND, leap=leap, hash="h2", overlap="allow", nonce="n2")
    assert ("missed", T, "leapt", T + 2 * SECOND, 3) == (
        claimed.missed.state, claimed.missed.slot, claimed.missed.kind, claimed.missed.until,
        claimed.missed.count,
    )  # fmt: skip
    assert (["won"], "claimed") == (answers(claimed), deploy.run().state)
    assert claimed.missed == deploy.store.run(RunKey("report", T, "leapt"))
    with nothing_written(deploy.store):
        assert claimed == deploy.offer(T + 3 * SECOND, leap=leap, hash="h2", overlap="allow", nonce="n2")
        assert deploy.offer(leap=leap, hash="h2", nonce="n3").missed is None


def test_two_schedules_that_pass_over_the_same_slot_leave_a_record_each(deploy):
    leap = Leap(first=T, last=T + 2 * SECOND, count=3)
    kinds = [deploy.offer(leap=leap, hash=hash, nonce=hash).missed.kind for hash in ("h1", "h2")]
    assert ["scheduled", "leapt"] == kinds
    deploy.register("h3")
    assert deploy.offer(leap=leap, hash="h3", nonce="n3").missed is None, "no third one"


def test_of_one_schedule_a_leap_over_a_slot_that_has_a_run_is_not_recorded(story):
    """The store's clock went back, and the slots were decided before that."""
    story.claim(T)
    story.expired()
    story.now = T - HOUR
    story.expired()
    story.now = T + HOUR
    assert story.offer(leap=Leap(first=T, last=T + 1, count=2), nonce="n2").missed is None
    assert story.record().floor == T + 1


@pytest.mark.parametrize("known", [True, False])
def test_forgetting_a_run_raises_the_floor_of_each_schedule(deploy, known):
    deploy.begin(T, hash="h1")
    deploy.finish(T)
    if known:
        deploy.claim(T - 1, hash="h2", nonce="n2")
    assert deploy.store.prune(history=0, most=0, now=T + HOUR) == 1
    assert {"h1": T, "h2": T} == floors(deploy)
    assert deploy.claim(T, hash="h2", nonce="n3").answer == "taken"


def test_forgetting_a_run_lowers_no_floor_of_a_schedule(deploy):
    deploy.begin(T, hash="h1")
    deploy.finish(T)
    deploy.claim(T + SECOND, hash="h2", nonce="n2")
    assert deploy.store.prune(history=0, most=0, now=T + HOUR) == 1
    assert ({"h1": T, "h2": T + SECOND}, T + SECOND) == (floors(deploy), deploy.record().floor)


def test_forgetting_what_did_not_come_due_raises_no_floor(deploy):
    """A record of another kind says nothing of the slots of a schedule."""
    deploy.claim(T, hash="h1")
    deploy.offer(leap=Leap(first=T, last=T + SECOND, count=2), hash="h2", nonce="n2")
    assert deploy.store.prune(history=0, most=0, now=T + HOUR) == 1
    assert {"h1": T, "h2": T + SECOND} == floors(deploy)


def test_where_the_clock_went_back_all_floors_and_beginnings_are_cut(deploy):
    deploy.claim(T, hash="h1")
    deploy.claim(T + SECOND, hash="h2", overlap="allow", nonce="n2")
    deploy.register("h3")
    deploy.expired()
    deploy.now = T
    deploy.expired()
    assert ({"h1": T, "h2": T, "h3": None}, T) == (floors(deploy), deploy.record().floor)
    assert [("h1", T - HOUR), ("h2", T - MINUTE), ("h3", T)] == begins(deploy)


# A schedule that is learnt back


def test_the_floor_that_a_node_remembers_is_that_of_its_schedule(store):
    story = Story(store)
    assert story.register("h1", cursor=T - SECOND, first_seen=T - DAY).floor == T - SECOND
    assert story.register("h2", cursor=T - MINUTE, first_seen=T - DAY).floor == T - MINUTE
    assert ({"h1": T - SECOND, "h2": T - MINUTE}, T - SECOND) == (floors(story), story.record().floor)
    assert story.register("h3", cursor=T + MINUTE).floor == T, "nothing is decided that is not due"
    assert ({"h1": T - SECOND, "h2": T - MINUTE, "h3": T}, T) == (floors(story), story.record().floor)


def test_from_when_on_a_schedule_counts_is_learnt_back_too(store):
    """So that what is undecided between its cursor and now is not lost."""
    story = Story(store)
    story.register("h2", cursor=T - MINUTE, effective=T - HOUR, first_seen=T - DAY)
    answer = story.register("h1", cursor=T - SECOND, effective=T - DAY, first_seen=T - DAY)
    assert (T - DAY, T - DAY, T - SECOND) == (answer.effective, answer.first_seen, answer.floor)
    assert [("h2", T - HOUR), ("h1", T - DAY)] == begins(story), "the last seen is the last"
    assert story.register("h2").effective == T - HOUR, "so who starts with it catches up"


def test_a_beginning_from_the_future_is_cut_to_now(store):
    answer = Story(store).register("h1", cursor=T - SECOND, effective=T + HOUR, first_seen=T - DAY)
    assert (T, T - DAY) == (answer.effective, answer.first_seen)


def test_who_starts_remembers_no_beginning(story):
    assert story.register("h2", effective=T - MINUTE).effective == T


def test_a_floor_from_before_any_schedule_is_that_of_the_first(store):
    story = Story(store)
    assert isinstance(story.start(claimed_at=OLD), Started)
    story.finish()
    assert store.prune(history=0, most=0, now=T + 1) == 1
    story.now = T + SECOND
    assert story.register("h1").floor == T
    assert (story.register("h2").floor, floors(story)) == (None, {"h1": T, "h2": None})


def test_a_floor_from_before_any_schedule_is_lowered_by_no_nodes_memory(store):
    story = Story(store)
    story.start(claimed_at=OLD)
    story.finish()
    store.prune(history=0, most=0, now=T + 1)
    story.now = T + SECOND
    assert (story.register("h1", cursor=T - MINUTE).floor, floors(story)) == (T, {"h1": T})


# A schedule that comes back


def test_a_schedule_that_nobody_had_for_long_while_there_was_another_begins_anew(deploy):
    deploy.claim(T - 2 * MINUTE, hash="h1")
    deploy.claim(T, hash="h2", overlap="allow", nonce="n2")
    deploy.now = T - MINUTE + 2 * HOUR + 1
    deploy.register("h2", cursor=T)
    deploy.now += MINUTE
    answer = deploy.register("h1")
    assert (deploy.now, T - HOUR, T - 2 * MINUTE) == (answer.effective, answer.first_seen, answer.floor)
    assert [("h2", T - MINUTE), ("h1", deploy.now)] == begins(deploy)
    assert {"h1": T - 2 * MINUTE, "h2": T} == floors(deploy)


def test_it_does_not_while_the_other_one_was_seen_no_more_than_two_hours_later(deploy):
    """Nodes register every hour: in a deploy both are seen, and who is restarted in it loses nothing."""
    deploy.now = T - HOUR + 2 * HOUR
    deploy.register("h2", cursor=T)
    deploy.now += DAY
    assert T - HOUR == deploy.register("h1").effective


def test_after_an_outage_the_schedule_that_went_on_catches_up_whoever_started_last(deploy):
    """A node with another schedule came and went: that makes this one no newcomer."""
    for hour in range(10):
        deploy.now = T + hour * HOUR
        deploy.register("h1", cursor=T, effective=T - HOUR)
    deploy.now += 3 * DAY
    assert T - HOUR == deploy.register("h1").effective


def test_who_starts_last_has_the_newest_schedule_though_the_clock_went_back_a_little(deploy):
    deploy.register("h3")
    deploy.now -= SECOND
    deploy.register("h1")
    assert ["h2", "h3", "h1"] == [hash for hash, _ in begins(deploy)]


def test_a_node_that_starts_with_the_newest_schedule_catches_up(deploy):
    deploy.now += DAY
    with nothing_new(deploy):
        assert deploy.register("h2").effective == T - MINUTE


def test_a_node_that_goes_on_begins_nothing_anew(deploy):
    with nothing_new(deploy):
        assert deploy.register("h1", cursor=T).effective == T - HOUR


def test_to_a_node_that_goes_on_its_schedule_counts_as_before(deploy):
    """Else what it has not decided yet would be lost when another node begins that schedule anew."""
    deploy.now = T + DAY
    deploy.register("h2", cursor=T)
    began = deploy.register("h1").effective
    assert deploy.now == began
    with nothing_new(deploy):
        answer = deploy.register("h1", cursor=T - SECOND, effective=T - HOUR)
        assert (T - HOUR, None) == (answer.effective, answer.floor)
        assert deploy.register("h1", cursor=T, effective=T + 2 * DAY).effective == began


def test_a_schedule_that_was_forgotten_begins_anew(story):
    for number in range(REMEMBERED_HASHES):
        story.register(f"h{number + 2}", now=T - MINUTE)
    assert story.register("h1").effective == T
    assert (REMEMBERED_HASHES, "h3", "h1") == (
        len(begins(story)), begins(story)[0][0], begins(story)[-1][0],
    )  # fmt: skip


def test_a_schedule_that_a_node_goes_on_with_is_not_forgotten_for_being_old(story):
    for number in range(REMEMBERED_HASHES):
        story.register(f"h{number + 2}", now=T - MINUTE)
    assert story.register("h1", cursor=T - SECOND, effective=T - HOUR).effective == T - HOUR
    assert (REMEMBERED_HASHES, "h3", "h1") == (
        len(begins(story)), begins(story)[0][0], begins(story)[-1][0],
    )  # fmt: skip


def test_what_the_job_did_under_another_schedule_stays_taken(deploy):
    deploy.claim(T, hash="h1")
    deploy.claim(T + SECOND, hash="h2", overlap="allow", nonce="n2")
    deploy.register("h1")
    claimed = deploy.offer(T, T + SECOND, hash="h1", nonce="n3")
    assert (["taken", "taken"], T + SECOND) == (answers(claimed), claimed.floor)


@contextmanager
def nothing_new(story: Story):
    """Nothing is written but that the job is still had."""
    before = dict(begins(story)), floors(story)
    yield
    assert before == (dict(begins(story)), floors(story))


# pause and resume -------------------------------------------------------------------------------


def pause(story: Story, reason: str = "an upgrade", by: str = "anna") -> bool:
    return story.store.pause(story.job, reason=reason, by=by, now=story.now)


def resume(story: Story) -> bool:
    return story.store.resume(story.job, now=story.now)


def test_a_job_is_paused_with_reason_and_by_whom(story):
    before = story.record()
    assert pause(story)
    paused = replace(before, paused="an upgrade", paused_by="anna", paused_at=T)
    assert paused == story.record()
    assert story.register().paused == "an upgrade"
    with nothing_written(story.store):
        assert pause(story)


def test_a_job_that_is_paused_again_has_the_new_reason_and_is_paused_since_then(story):
    pause(story)
    story.now += MINUTE
    assert pause(story, "é: ''", "bob")
    job = story.record()
    assert (job.paused, job.paused_by, job.paused_at) == ("é: ''", "bob", T)


def test_a_pause_without_a_reason_is_one(story):
    assert pause(story, "")
    assert (story.claim().answer, story.register().paused) == ("paused", "")


def test_a_job_the_store_does_not_have_is_not_paused(story):
    with nothing_written(story.store):
        assert not story.store.pause("other", reason="r", by="anna", now=T)
        assert not story.store.resume("other", now=T)


def test_a_job_that_is_resumed_is_as_before(story):
    before = story.record()
    pause(story)
    assert resume(story)
    assert before == story.record()
    with nothing_written(story.store):
        assert not resume(story)
    assert story.claim().won


def test_a_slot_of_a_paused_job_is_skipped_and_raises_the_floor(story):
    pause(story)
    leap = Leap(first=T - 2, last=T - 1, count=2)
    claimed = story.offer(T, leap=leap)
    skipped = Run(
        job="report", slot=T, state="skipped", dispatch=0, node="one:1", nonce="n1", claimed_at=T,
        finished_at=T, reason="paused",
    )  # fmt: skip
    assert (Claim(key=skipped.key, answer="paused", run=skipped),) == claimed.claims
    assert (T, "missed", skipped) == (claimed.floor, claimed.missed.state, story.run())
    with nothing_written(story.store):
        assert claimed == story.offer(T, leap=leap)
        assert story.claim(nonce="n2").answer == "taken"


def test_late_slots_of_a_paused_job_are_skipped_under_catch_up_all_too(story):
    story.begin()
    pause(story)
    story.now += 2 * MINUTE
    claimed = story.offer(T + MINUTE, T + 2 * MINUTE, late=2, catch_up="all", nonce="n2")
    assert answers(claimed) == ["paused", "paused"]


def test_a_slot_of_a_paused_job_that_is_not_due_is_early(story):
    pause(story)
    with nothing_written(story.store):
        assert story.claim(T + 1).answer == "early"


@pytest.mark.parametrize("state", ["claimed", "queued", "released"])
def test_a_pause_lets_what_does_not_run_wait_and_a_resume_lets_it_go_on(story, state):
    story.claim()
    if state == "queued":
        story.sent()
    if state == "released":
        story.release(nonce="n1", delay=MINUTE)
    before = story.run()
    story.now += SECOND
    pause(story)
    waiting = replace(before, state="buffered", deadline=None, span=None)
    assert waiting == story.run()
    with nothing_written(story.store):
        assert Stale(why="paused") == story.start()
        story.sent(dispatch=1)
    story.now += HOUR
    resume(story)
    assert replace(waiting, state="released", deadline=story.now, span=0) == story.run()
    assert isinstance(story.start(), Started)


def test_a_claim_that_was_paused_before_its_answer_came_is_told_as_paused(story):
    story.claim(nonce="n1")
    pause(story)
    with nothing_written(story.store):
        assert Claim(key=story.key(), answer="paused", run=story.run()) == story.claim(nonce="n1")
        assert story.release(nonce="n1")


def test_what_runs_goes_on_while_its_job_is_paused(story):
    story.begin()
    before = story.run()
    pause(story)
    assert before == story.run()
    assert story.renew().answer == "ok"
    assert story.finish()


def test_a_run_of_a_paused_job_whose_holder_died_waits_after_its_crash_counted(story):
    story.begin()
    before = story.run()
    pause(story)
    story.wait_for_deadline()
    seen = story.as_seen()
    answer = story.redispatch(seen=seen)
    waiting = replace(
        before, state="buffered", crashes=1, token=None, nonce="m1", deadline=None, span=None
    )
    assert Claim(key=story.key(), answer="paused", run=waiting) == answer
    assert waiting == story.run()
    with nothing_written(story.store):
        assert answer == story.redispatch(seen=seen)
        assert Renewal(answer="lost", reason="taken back, attempt 2 waits") == story.renew()
        assert not story.finish()
    resume(story)
    assert story.redispatch(nonce="m2").run.trigger == "takeover"
    assert story.start(token="t2").attempt == 2


def test_limits_end_a_run_of_a_paused_job_too(story):
    story.begin()
    pause(story)
    story.wait_for_deadline()
    assert story.redispatch(max_crashes=1).answer == "abandoned"


def test_a_run_of_a_paused_job_that_is_given_back_waits(story):
    story.begin()
    before = story.run()
    pause(story)
    assert story.release(token="t1", delay=MINUTE, crash=True)
    assert replace(before, state="buffered", crashes=1, deadline=None, span=None) == story.run()
    with nothing_written(story.store):
        assert story.release(token="t1", delay=MINUTE, crash=True)
        assert not story.requeue()
    resume(story)
    assert story.begin_again().attempt == 2


def test_a_retry_of_a_paused_job_waits_for_the_resume_and_then_for_its_time(story):
    story.begin()
    before = story.run()
    pause(story)
    assert story.requeue(delay=HOUR, retries=2)
    waiting = replace(
        before, state="buffered", queued_at=T, not_before=T + HOUR, retries=2, unstarted=1,
        deadline=None, span=None,
    )  # fmt: skip
    assert waiting == story.run()
    with nothing_written(story.store):
        assert story.requeue(delay=HOUR, retries=2)
        assert not story.release(token="t1")
        assert Stale(why="paused") == story.start(token="t2")
    story.now += MINUTE
    resume(story)
    assert replace(waiting, state="released", deadline=T + HOUR, span=HOUR - MINUTE) == story.run()
    assert story.start(token="t2").wait == HOUR - MINUTE
    story.wait_for_deadline()
    assert story.redispatch().run.retries == 2
    assert story.start(token="t2").attempt == 1


def test_a_retry_whose_time_has_come_goes_on_at_once(story):
    story.begin()
    pause(story)
    story.requeue(delay=MINUTE)
    story.now += HOUR
    resume(story)
    assert (story.run().deadline, story.run().span) == (story.now, 0)
    assert isinstance(story.start(token="t2"), Started)


def test_an_end_promotes_nothing_of_a_paused_job(story):
    waiting = wait_behind(story)
    pause(story)
    story.finish()
    assert waiting == story.run(T + MINUTE)
    with nothing_written(story.store):
        assert Stale(why="paused") == story.start(T + MINUTE)
    resume(story)
    assert story.run(T + MINUTE).state == "released"


def test_a_resume_promotes_nothing_while_another_run_is_active(story):
    waiting = wait_behind(story)
    pause(story)
    resume(story)
    assert waiting == story.run(T + MINUTE)


def test_where_overlap_allows_it_the_next_slot_lets_all_go_on_that_wait(story):
    """Else what a pause held back would wait until nothing of its job runs, which may never be."""
    story.register()
    slots = [T + n * MINUTE for n in range(4)]
    for slot in slots[:3]:
        story.now = slot
        story.claim(slot, nonce=new_nonce(), overlap="allow")
    pause(story)
    resume(story)
    assert ["released", "buffered", "buffered"] == [story.run(slot).state for slot in slots[:3]]
    story.now = slots[3]
    assert story.claim(slots[3], nonce=new_nonce(), overlap="allow").won
    promoted = [(story.run(slot).state, story.run(slot).deadline) for slot in slots[1:3]]
    assert 2 * [("released", story.now)] == promoted


def test_while_the_job_is_paused_overlap_allow_lets_nothing_go_on(story):
    waiting = wait_behind(story)
    pause(story)
    story.now = T + 2 * MINUTE
    assert "paused" == story.claim(T + 2 * MINUTE, nonce=new_nonce(), overlap="allow").answer
    assert waiting == story.run(T + MINUTE)


def test_a_pause_touches_no_other_job(story):
    other = Story(story.store, job="other")
    other.register()
    other.claim()
    before = other.record(), other.run()
    pause(story)
    assert before == (other.record(), other.run())


def test_a_store_that_does_not_know_a_job_learns_that_it_is_paused(store):
    story = Story(store)
    answer = story.register(paused="an upgrade")
    assert answer.paused == "an upgrade"
    job = story.record()
    assert (job.paused, job.paused_by, job.paused_at) == ("an upgrade", None, T)
    assert story.claim().answer == "paused"


def test_of_a_job_that_the_store_knows_the_store_knows_whether_it_is_paused(story):
    assert story.register(paused="an upgrade").paused is None
    pause(story, "a move")
    assert story.register(paused=None).paused == "a move"
    assert story.register("h2", paused="an upgrade").paused == "a move"
    assert story.record().paused_by == "anna"


def test_a_job_that_a_late_message_brought_back_learns_that_it_is_paused(store):
    story = Story(store)
    story.start(claimed_at=OLD)
    story.requeue(delay=0)
    assert story.run().state == "queued"
    assert story.register(paused="an upgrade").paused == "an upgrade"
    assert (story.run().state, story.run().deadline) == ("buffered", None)


def test_a_job_that_a_late_message_brought_back_stays_paused_as_it_is(store):
    story = Story(store)
    story.start(claimed_at=OLD)
    pause(story, "a move", "bob")
    assert story.register(paused="an upgrade").paused == "a move"
    assert (story.record().paused_by, story.record().paused_at) == ("bob", T)


# late starts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", ["queue", "cancel"])
def test_a_late_start_waits_behind_another_run(story, overlap):
    publish_two(story)
    published = story.run()
    assert Stale(why="buffered") == story.start(overlap=overlap)
    assert replace(published, state="buffered", unstarted=0, finished_at=None) == story.run()
    assert (story.run(T + MINUTE).state, story.run(T + MINUTE).stop) == ("running", None)
    story.finish(T + MINUTE, token="t2")
    assert story.redispatch().run.dispatch == 2
    assert isinstance(story.start(), Started)


@pytest.mark.parametrize("overlap", ["queue", "cancel"])
def test_a_late_start_is_skipped_where_another_slot_waits(story, overlap):
    publish_two(story)
    story.now += MINUTE
    story.claim(T + 2 * MINUTE, nonce="n9", overlap="queue")
    assert Stale(why="overlap") == story.start(overlap=overlap)
    assert ("skipped", "overlap") == (story.run().state, story.run().reason)
    assert story.run(T + 2 * MINUTE).state == "buffered"


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel", "allow"])
def test_a_late_start_of_a_paused_job_waits(story, overlap):
    publish_two(story)
    pause(story)
    assert Stale(why="paused") == story.start(overlap=overlap)
    assert (story.run().state, story.run().finished_at) == ("buffered", None)
    with nothing_written(story.store):
        assert Stale(why="paused") == story.start(overlap=overlap)


def test_an_abandoned_run_that_waits_after_a_late_start_has_all_its_dispatches_again(story):
    story.claim()
    dispatch_in_vain(story)
    slot = story.now
    story.begin(slot, token="t2")
    assert Stale(why="buffered") == story.start(overlap="queue")
    story.finish(slot, token="t2")
    assert story.redispatch().won


def test_a_run_recorded_anew_waits_behind_another_one(story):
    story.begin()
    answer = story.start(T - MINUTE, token="t2", claimed_at=OLD, overlap="queue", dispatch=3)
    assert Stale(why="buffered") == answer
    assert story.run(T - MINUTE) == Run(
        job="report", slot=T - MINUTE, state="buffered", dispatch=3, claimed_at=OLD
    )
    story.finish()
    assert story.run(T - MINUTE).state == "released"


def test_a_run_recorded_anew_waits_while_its_job_is_paused(story):
    pause(story)
    assert Stale(why="paused") == story.start(claimed_at=OLD)
    assert Run(job="report", slot=T, state="buffered", claimed_at=OLD) == story.run()


def test_of_one_instant_the_scheduled_run_goes_first_and_a_pause_is_not_about_the_others(story):
    def start(kind: str) -> Started | Stale:
        asked = Start(
            key=RunKey("report", T - 1, kind), token=kind, worker="w", claimed_at=OLD, overlap="queue"
        )
        return story.store.start(asked, now=story.now)

    def states() -> dict[str, str]:
        return {run.kind: run.state for run in story.store.runs() if run.slot == T - 1}

    story.begin()
    assert [Stale(why="buffered")] * 3 == [start(kind) for kind in ("backfill", "manual", "scheduled")]
    story.finish()
    assert states() == {"scheduled": "released", "manual": "buffered", "backfill": "buffered"}
    pause(story)
    assert states() == {"scheduled": "buffered", "manual": "released", "backfill": "buffered"}
    assert isinstance(start("manual"), Started)
    assert story.store.finish(RunKey("report", T - 1, "manual"), "manual", "succeeded", now=story.now)
    assert states() == {"scheduled": "buffered", "manual": "succeeded", "backfill": "released"}


# prune ------------------------------------------------------------------------------------------


def ended(story: Story, *slots: int) -> None:
    for slot in slots:
        story.now = max(story.now, slot)
        story.begin(slot, overlap="allow", token=f"t{slot}")
        story.finish(slot, token=f"t{slot}")


def slots_of(store: Store) -> list[int]:
    return sorted(run.slot for run in store.runs(limit=1_000_000))


def test_ended_runs_are_forgotten_by_age(story):
    ended(story, T, T + MINUTE, T + 2 * MINUTE)
    assert story.store.prune(history=HOUR, most=100, now=T + HOUR) == 0
    assert story.store.prune(history=HOUR, most=100, now=T + HOUR + 1) == 1
    assert slots_of(story.store) == [T + MINUTE, T + 2 * MINUTE]


def test_ended_runs_are_forgotten_by_count_of_their_job(story):
    ended(story, *(T + minute * MINUTE for minute in range(5)))
    other = Story(story.store, job="other")
    other.register()
    ended(other, T, T + 1)
    assert story.store.prune(history=DAY, most=2, now=story.now) == 3
    assert sorted(run.slot for run in story.store.runs(job="report")) == [T + 3 * MINUTE, T + 4 * MINUTE]
    assert len(story.store.runs(job="other")) == 2


def test_prune_goes_in_batches_oldest_slot_first(story):
    ended(story, *(T + minute * MINUTE for minute in range(5)))
    prune = {"history": 0, "most": 100, "limit": 2, "now": T + DAY}
    assert story.store.prune(**prune) == 2
    assert slots_of(story.store) == [T + 2 * MINUTE, T + 3 * MINUTE, T + 4 * MINUTE]
    assert [story.store.prune(**prune) for _ in range(3)] == [2, 1, 0]
    assert story.store.runs() == []


def test_every_end_is_history_and_no_active_run_is(story):
    publish_two(story)  # published, running
    story.now = T + 2 * MINUTE
    story.offer(T + 2 * MINUTE, nonce="n3")  # skipped
    story.now = T + 10 * MINUTE
    story.offer(leap=Leap(first=T + 3 * MINUTE, last=T + 9 * MINUTE, count=7), nonce="n4")  # missed
    story.claim(T + 10 * MINUTE, overlap="allow", nonce="n5")  # claimed
    assert story.store.prune(history=HOUR, most=100, now=T + DAY) == 3
    assert [run.state for run in story.store.runs()] == ["claimed", "running"]
    assert story.store.prune(history=0, most=0, now=T + 9 * DAY) == 0
    assert story.finish(T + MINUTE, token="t2")
    assert story.expires_at(T + 10 * MINUTE) == T + 10 * MINUTE + 10 * SECOND


def test_a_slot_that_was_forgotten_is_not_claimed_anew(story):
    ended(story, T, T + MINUTE)
    assert story.store.prune(history=0, most=0, now=T + HOUR) == 2
    story.now = T + HOUR
    with nothing_written(story.store):
        assert answers(story.offer(T, T + MINUTE, nonce="n9")) == ["taken", "taken"]
        assert Stale(why="unknown") == story.start()


def test_forgetting_a_run_above_the_floor_raises_it(story):
    story.start(claimed_at=OLD)
    story.finish()
    assert story.record().floor is None
    assert story.store.prune(history=0, most=0, now=T + 1) == 1
    assert story.record().floor == T
    assert Claim(key=story.key(), answer="taken") == story.claim()


def test_forgetting_an_old_run_lowers_no_floor(story):
    ended(story, T, T + MINUTE)
    assert story.store.prune(history=DAY, most=1, now=T + HOUR) == 1
    assert (story.record().floor, slots_of(story.store)) == (T + MINUTE, [T + MINUTE])


def test_the_fence_grows_on_after_history_is_forgotten(story):
    ended(story, T)
    story.store.prune(history=0, most=0, now=T + 1)
    story.now = T + 1 - DAY
    assert story.start(T - DAY, claimed_at=OLD).fence == T * 1000 + 1


# folding ----------------------------------------------------------------------------------------

KEEP = {"history": 30 * DAY, "most": 1000}


def skipped(story: Story, *minutes: int, **how) -> None:
    """Skip slots that come due so many minutes after T."""
    for minute in minutes:
        story.now = T + minute * MINUTE
        assert story.claim(story.now, nonce=f"n{minute}", **how).answer in ("overlap", "paused")


def housekeeping(story: Story, after: int = FOLD_AFTER, **how) -> int:
    """Prune when so much time has passed since now; return how many went."""
    return story.store.prune(**KEEP | how, now=story.now + after)


def told(story: Story) -> list[tuple[int, str, int, int | None]]:
    """The job's runs, oldest first: after how many minutes, state, for how many slots and until when."""
    return [
        ((run.slot - T) // MINUTE, run.state, run.count, run.until and (run.until - T) // MINUTE)
        for run in reversed(story.store.runs(job=story.job, limit=1_000_000))
    ]


@pytest.fixture
def busy(story):
    """The job's run of T goes on and on."""
    story.begin()
    return story


def test_skips_that_follow_each_other_become_one_row_after_a_while(busy):
    skipped(busy, 1, 2, 3, 4, 5)
    before = busy.run(T + MINUTE)
    assert housekeeping(busy, FOLD_AFTER - 1) == 3
    assert [(0, "running", 1, None), (1, "skipped", 4, 4), (5, "skipped", 1, None)] == told(busy)
    assert housekeeping(busy) == 1
    last = T + 5 * MINUTE
    assert replace(before, until=last, count=5, finished_at=last) == busy.run(T + MINUTE)
    with nothing_written(busy.store):
        assert housekeeping(busy) == 0
        assert housekeeping(busy, DAY) == 0


def test_a_later_skip_joins_the_row_there_is(busy):
    skipped(busy, 1, 2)
    assert housekeeping(busy) == 1
    skipped(busy, 3)
    assert (housekeeping(busy, FOLD_AFTER - 1), housekeeping(busy)) == (0, 1)
    assert [(0, "running", 1, None), (1, "skipped", 3, 3)] == told(busy)


def test_skips_are_folded_in_batches_too(busy):
    skipped(busy, *range(1, 7))
    assert [housekeeping(busy, limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert [(0, "running", 1, None), (1, "skipped", 6, 6)] == told(busy)


def win(story: Story) -> None:
    story.now = T + 3 * MINUTE
    assert story.claim(story.now, overlap="allow", nonce="n3").won


def run_to_the_end(story: Story) -> None:
    story.now = T + 3 * MINUTE
    story.begin(story.now, overlap="allow", token="t3")
    assert story.finish(story.now, token="t3")


def wait(story: Story) -> None:
    story.now = T + 3 * MINUTE
    assert story.claim(story.now, overlap="queue", nonce="n3").run.state == "buffered"


def miss(story: Story) -> None:
    story.now = T + 4 * MINUTE - 1
    story.offer(leap=Leap(T + 3 * MINUTE, T + 4 * MINUTE - 1, 60), nonce="n3")


@pytest.mark.parametrize("between", [pause, win, run_to_the_end, wait, miss])
def test_what_keeps_skips_apart(busy, between):
    """Another reason; a run of any other state."""
    skipped(busy, 1, 2)
    between(busy)
    skipped(busy, 4, 5)
    assert housekeeping(busy) == 2
    rows = [row for row in told(busy) if row[1] == "skipped"]
    assert [(1, "skipped", 2, 2), (4, "skipped", 2, 5)] == rows


@pytest.mark.parametrize("ended", [True, False])
def test_runs_of_other_kinds_and_other_jobs_keep_none_apart(busy, ended):
    other = Story(busy.store, job="repor")
    other.register(now=T - HOUR)
    other.begin()
    manual = RunKey("report", T + 90 * SECOND, "manual")
    started = busy.store.start(
        Start(key=manual, token="m", worker="w", claimed_at=OLD, overlap="allow"), now=T + 90 * SECOND
    )
    assert isinstance(started, Started)
    for minute in (1, 2, 3):
        skipped(busy, minute)
        skipped(other, minute)
    if ended:
        assert busy.store.finish(manual, "m", "succeeded", now=busy.now)
    assert housekeeping(busy) == 4
    assert [(0, "running", 1, None), (1, "skipped", 3, 3)] == told(other)
    manual = (1, "succeeded" if ended else "running", 1, None)
    assert [(0, "running", 1, None), (1, "skipped", 3, 3), manual] == told(busy)


def test_a_slot_that_was_folded_away_is_not_claimed_anew(busy):
    skipped(busy, 1, 2, 3)
    assert busy.offer(*(T + minute * MINUTE for minute in (1, 2)), nonce="n2").claims[1].answer == "overlap"
    assert housekeeping(busy) == 2
    busy.now += HOUR
    with nothing_written(busy.store):
        slots = [T + minute * MINUTE for minute in (1, 2, 3)]
        assert answers(busy.offer(*slots, nonce="n9", overlap="allow")) == ["taken"] * 3
        assert answers(busy.offer(*slots, nonce="n1", overlap="allow")) == ["overlap", "taken", "taken"]


def test_what_nodes_with_another_schedule_may_catch_up_is_not_folded(deploy):
    """Of one that nobody had for hours nothing is caught up: its floor is raised, as by what is forgotten."""
    deploy.begin(T, hash="h1")
    skipped(deploy, 2, 3, 4, hash="h1")
    assert housekeeping(deploy) == 0
    assert deploy.claim(T + 3 * MINUTE, hash="h2", overlap="allow", nonce="m3").answer == "taken"
    assert (housekeeping(deploy), {"h1": T + 4 * MINUTE, "h2": T + 3 * MINUTE}) == (1, floors(deploy))
    deploy.register("h1", now=T + 2 * HOUR)
    assert housekeeping(deploy, 2 * HOUR - 5 * MINUTE) == 0
    assert housekeeping(deploy, 2 * HOUR) == 1
    assert {"h1": T + 4 * MINUTE, "h2": T + 4 * MINUTE} == floors(deploy)
    assert deploy.claim(T + 4 * MINUTE, hash="h2", overlap="allow", nonce="m4").answer == "taken"


def test_what_was_decided_late_is_folded_late(deploy):
    deploy.begin(T, hash="h1")
    skipped(deploy, 3, 4, hash="h1")
    deploy.now = T + 9 * MINUTE
    earlier = [deploy.claim(T + minute * MINUTE, hash="h2", nonce="m").answer for minute in (2, 4)]
    assert ["overlap", "taken"] == earlier
    assert housekeeping(deploy, FOLD_AFTER - 1) == 1
    assert [(2, "skipped", 1, None), (3, "skipped", 2, 4)] == told(deploy)[1:]
    assert housekeeping(deploy) == 1
    assert [(2, "skipped", 3, 4)] == told(deploy)[1:]
    assert deploy.run(T + 2 * MINUTE).finished_at == T + 9 * MINUTE


def test_two_rows_that_stand_for_several_become_one_when_what_was_between_is_skipped_too(busy):
    """A run that was published, and whose message comes late."""
    skipped(busy, 1, 2)
    win(busy)
    busy.sent(busy.now, supervised=False)
    skipped(busy, 4, 5)
    assert housekeeping(busy) == 2
    assert Stale(why="overlap") == busy.start(T + 3 * MINUTE, token="t3")
    assert housekeeping(busy) == 2
    assert [(0, "running", 1, None), (1, "skipped", 5, 5)] == told(busy)


def test_a_schedule_holds_up_nothing_from_before_it_was_seen(busy):
    skipped(busy, 1, 2)
    busy.register("h2", now=T + 2 * MINUTE)
    assert (housekeeping(busy), floors(busy)["h2"]) == (1, T + 2 * MINUTE)


def test_a_row_that_stands_for_many_counts_as_one_and_is_as_old_as_the_last_of_them(busy):
    assert busy.finish()
    busy.now += 1
    busy.begin(T + 1, token="t2")
    skipped(busy, 1, 2, 3)
    assert busy.store.prune(history=30 * DAY, most=2, now=busy.now + FOLD_AFTER) == 2
    assert [(0, "succeeded", 1, None), (0, "running", 1, None), (1, "skipped", 3, 3)] == told(busy)
    assert busy.store.prune(history=HOUR, most=2, now=busy.now + HOUR) == 1
    assert [(0, "running", 1, None), (1, "skipped", 3, 3)] == told(busy)
    assert busy.store.prune(history=HOUR, most=2, now=busy.now + HOUR + 1) == 1
    assert [(0, "running", 1, None)] == told(busy)


def a_months_slots() -> list[tuple[int, ...]]:
    """What came due in each minute: for a quarter of an hour a slot each second, then one every hour."""
    minutes = range(T + MINUTE, T + HOUR // 4, MINUTE)
    seconds = [tuple(range(minute - MINUTE + SECOND, minute + 1, SECOND)) for minute in minutes]
    return seconds + [(at,) for at in range(T + HOUR, T + 30 * DAY, HOUR)]


@pytest.mark.slow
@pytest.mark.parametrize("site", ["memory", "sqlite"], indirect=True)
def test_a_job_that_is_skipped_for_a_month_leaves_a_handful_of_rows(busy):
    slots, most = a_months_slots(), 0
    for some in slots:
        busy.now = some[-1]
        assert {"overlap"} == set(answers(busy.offer(*some, nonce=str(some[0]))))
        busy.store.prune(**KEEP, now=busy.now)
        if busy.now < T + HOUR:
            most = max(most, len(told(busy)))
    assert housekeeping(busy) > 0
    count = sum(map(len, slots))
    assert [("running", 1), ("skipped", count)] == [row[1:3] for row in told(busy)]
    assert most <= 2 + (FOLD_AFTER + MINUTE) // SECOND, "no more than what is too young"


def live_a_month(store: Store, jobs: int = 50) -> Iterator[list[int]]:
    """Of each job a run a day, and three that are skipped meanwhile; yield what each prune took that day."""
    names = [f"job {number:03}" for number in range(jobs)]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T - DAY)
    for day in range(T, T + 30 * DAY, DAY):
        slots = tuple(range(day, day + 4 * MINUTE, MINUTE))
        offers = [Offer(job=name, slots=slots) for name in names]
        store.claim("one:1", offers, nonce=f"n{day}", now=slots[-1])
        published = [Sent(key=RunKey(name, day), dispatch=1, task_id="i", supervised=False) for name in names]
        store.sent(published, now=slots[-1])
        gone = [1]
        while gone[-1]:
            gone.append(store.prune(history=7 * DAY, most=12, limit=100, now=day + HOUR))
        yield gone[1:]


@pytest.fixture
def patient(monkeypatch):
    """However slow the machine, a housekeeping looks at all runs before it is over."""
    monkeypatch.setattr("anarchon_celery.stores.redis._LOOK_FOR", 60)
    monkeypatch.setattr("anarchon_celery.stores.records.LOOK_FOR", 60)


@pytest.mark.slow
def test_a_store_that_is_used_for_a_month_stays_small(store, patient):
    """Twelve rows of each job: of six days, else it would be seven."""
    for day, gone in enumerate(live_a_month(store)):
        assert max(gone) <= 100
        assert sum(gone) == 50 * (2 if day < 6 else 4)
        assert len(store.runs(limit=1_000_000)) == 50 * 2 * min(day + 1, 6)
    assert len(store.jobs()) == 50


# a clock that went back -------------------------------------------------------------------------


def test_deadlines_further_away_than_their_state_allows_are_cut(story):
    story.begin()
    story.expired()
    story.now = T - HOUR
    assert T - HOUR + 30 * SECOND == story.expired().next_deadline == story.run().deadline


def test_a_floor_beyond_now_is_cut_and_runs_that_exist_are_still_taken(story):
    ended(story, T - MINUTE, T)
    story.expired()
    story.now = T - HOUR
    story.expired()
    assert story.record().floor == T - HOUR
    story.now = T
    assert answers(story.offer(T - MINUTE, T - 1, T, nonce="n2")) == ["taken", "won", "taken"]
    assert story.record().floor == T, "the last one is decided as well"


def test_a_clock_that_went_back_by_a_second_cuts_nothing(story):
    story.begin()
    story.expired()
    story.now -= SECOND
    with nothing_written(story.store):
        story.expired()


def test_a_deadline_that_its_state_allows_is_not_cut(story):
    story.begin()
    story.now = T + 20 * SECOND
    story.expired()
    story.now = T + 10 * SECOND
    with nothing_written(story.store):
        assert story.expired().next_deadline == T + 30 * SECOND


def test_a_retry_that_waits_may_go_on_at_once_where_the_clock_went_back(story):
    """How long it was to wait is not known any more."""
    story.begin()
    pause(story)
    story.requeue(delay=MINUTE)
    waiting = story.run()
    story.expired()
    story.now = T - HOUR
    story.expired()
    assert replace(waiting, not_before=story.now) == story.run()
    resume(story)
    assert story.run().deadline == story.now


# whoever asks -----------------------------------------------------------------------------------


def test_runs_are_listed_newest_slot_first_and_by_job_and_state(store):
    names = ["b", "a", "é"]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T)
    offers = [Offer(job=name, slots=(T - 1, T)) for name in names]
    store.claim("one:1", offers, nonce="n1", now=T)
    listed = [RunKey(name, slot) for slot in (T, T - 1) for name in ("a", "b", "é")]
    assert listed == [run.key for run in store.runs()]
    assert listed[:4] == [run.key for run in store.runs(limit=4)]
    assert [RunKey("b", T), RunKey("b", T - 1)] == [run.key for run in store.runs(job="b")]
    assert listed[3:] == [run.key for run in store.runs(state="claimed")]
    assert [RunKey("a", T - 1)] == [run.key for run in store.runs(job="a", state="claimed", limit=1)]
    assert store.runs(job="nobody") == []
    assert store.runs(state="running") == []


def test_fifty_runs_are_listed_unless_more_are_asked_for(story):
    story.now = T + 60
    story.offer(*range(T, T + 60), overlap="allow")
    assert list(range(T + 59, T + 9, -1)) == [run.slot for run in story.store.runs()]
    assert len(story.store.runs(limit=100)) == 60


def test_a_chunk_of_slots_is_decided_in_one_call(story):
    story.now = T + CHUNK
    claimed = story.offer(*range(T, T + CHUNK), overlap="allow")
    assert (answers(claimed), claimed.floor) == (["won"] * CHUNK, T + CHUNK - 1)


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_a_job_may_have_any_name(store, name):
    story = Story(store, job=name)
    story.register()
    story.begin()
    assert [(T, name)] == [(run.slot, run.job) for run in story.store.runs(job=name)]
    assert story.renew().answer == "ok"
    assert story.begin_again().attempt == 2
    assert story.requeue(token="t2", delay=0)
    assert isinstance(story.start(token="t3"), Started)
    assert story.finish(token="t3")
    assert name == story.record().name
    assert store.prune(history=0, most=0, now=story.now + 1) == 1
    assert story.claim(nonce="n2").answer == "taken"


def test_jobs_whose_names_look_alike_are_apart(store):
    store.register(BEAT, [Registration(job=name, hash=f"hash of {name}") for name in ODD_NAMES], now=T)
    offers = [Offer(job=name, slots=(T,)) for name in ODD_NAMES]
    claimed = store.claim("one:1", offers, nonce="n1", now=T)
    assert [(name, "won") for name in ODD_NAMES] == [
        (claim.key.job, claim.answer) for answer in claimed for claim in answer.claims
    ]
    assert sorted(ODD_NAMES) == [job.name for job in store.jobs()]
    assert sorted(ODD_NAMES) == [run.job for run in store.runs()]
    assert sorted(ODD_NAMES) == [run.job for run in store.expired(BEAT, 99, now=T + HOUR).runs]
    assert {f"hash of {name}" for name in ODD_NAMES} == {job.hashes[0][0] for job in store.jobs()}


def test_words_are_kept_as_they_are(store):
    node = Node(id="i:1", name="höst {1}:\t'2'", kind='be"at')
    store.register(node, [Registration(job="report", hash='{"every": "5s", "é": [1, null]}')], now=T)
    offer = Offer(job="report", slots=(T,))
    store.claim(node.name, [offer], nonce="n 'ö'", now=T)
    store.start(Start(key=RunKey("report", T), token="t:\"é\"", worker="wörker 1", task_id=None), now=T)
    store.finish(RunKey("report", T), "t:\"é\"", "failed", reason="a\nb: é 100 %\x1b[0m", now=T)
    run, (job,) = store.runs()[0], store.jobs()
    assert (node.name, "n 'ö'", 't:"é"', "wörker 1", None, "a\nb: é 100 %\x1b[0m") == (
        run.node, run.nonce, run.token, run.owner, run.task_id, run.reason,
    )  # fmt: skip
    known = KnownSchedule('{"every": "5s", "é": [1, null]}', since=T, floor=T, seen=T)
    assert ([replace(node, seen=T)], (known,)) == (store.nodes(), job.hashes)


def test_an_empty_call_is_answered_with_nothing(store):
    assert store.register(BEAT, [], now=T) == []
    assert store.claim("one:1", [], nonce="n1", now=T) == []
    assert store.redispatch("one:1", [], nonce="m1", now=T) == []
    assert store.renew([], now=T) == []
    assert store.release([], now=T) == []
    store.sent([], now=T)
    assert everything(store) == ([], [])


# one store, several handles ---------------------------------------------------------------------


def test_two_handles_on_one_store_meet(site, story):
    second = Story(site.open())
    assert story.claim(nonce="n1").won
    assert second.claim(nonce="n2").answer == "taken"
    assert isinstance(second.start(), Started)
    assert everything(story.store) == everything(second.store)
    second.store.close()


def test_two_prefixes_on_one_store_do_not_meet(site, story):
    story.begin()
    stranger = Story(replace(site, prefix=f"{site.prefix}-other").open())
    assert (*everything(stranger.store), stranger.store.nodes()) == ([], [], [])
    stranger.register()
    assert stranger.claim(nonce="n2").won
    assert 1 == len(story.store.runs()) == len(stranger.store.runs())
    stranger.store.close()


def test_a_store_that_was_closed_may_be_used_again(story):
    story.begin()
    story.store.close()
    assert story.renew().answer == "ok"
    story.store.close()
    story.store.close()
    assert story.run().state == "running"


def test_an_answer_names_the_store(site, store):
    second = site.open()
    stranger = replace(site, prefix=f"{site.prefix}-other").open()
    for handle in (store, second, stranger):
        handle.register(BEAT, [])
    assert store.identity
    assert store.identity == second.identity
    assert store.identity != stranger.identity
    second.close()
    stranger.close()


def wipe(site: Site, request: pytest.FixtureRequest) -> None:
    if site.kind == "redis":
        request.getfixturevalue("redis_server").flush()
    elif site.kind in ("postgresql", "mariadb"):
        request.getfixturevalue(f"{site.kind}_server").empty(site.prefix)
    else:
        for path in request.getfixturevalue("tmp_path").glob("*.db*"):
            path.unlink()


@pytest.mark.parametrize("site", ["sqlite", "postgresql", "mariadb", "redis"], indirect=True)
def test_a_wiped_store_is_another_and_learns_its_jobs_back(site, story, request):
    story.begin()
    before = story.store.identity
    wipe(site, request)
    story.now += MINUTE
    with pytest.raises(StoreReplaced):
        story.claim(T + MINUTE, nonce="n2")
    assert everything(story.store) == ([], [])
    assert story.register(cursor=T, first_seen=T - HOUR, supervised=True).floor == T
    assert before != story.store.identity
    story.now += MINUTE
    assert answers(story.offer(T, T + MINUTE, nonce="n3")) == ["taken", "won"]
    assert story.renew(fence=1) == Renewal(answer="lost", reason="the store does not know the run")


def test_a_handle_may_be_used_by_several_threads(story):
    slots = range(T, T + 20)
    story.now = T + 20

    def claim_all(racer: int) -> list[int]:
        claims = [story.claim(slot, nonce=f"racer-{racer}", overlap="allow") for slot in slots]
        return [claim.key.slot for claim in claims if claim.won]

    with ThreadPoolExecutor(8) as threads:
        won = [slot for slots_won in threads.map(claim_all, range(8)) for slot in slots_won]
    assert list(slots) == sorted(won)


# a store that cannot be used --------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_unreachable():
    store = open_store(f"redis://:secret@127.0.0.1:{free_port()}/0")
    with pytest.raises(StoreUnreachable, match=re.escape(store.shown)) as error:
        store.register(BEAT, [], now=T)
    assert "secret" not in store.shown + str(error.value)
    store.close()


def test_a_file_that_cannot_be_opened_is_told(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/nobody/made/this.db")
    with pytest.raises(StoreError, match=re.escape("this.db")):
        store.register(BEAT, [], now=T)
    store.close()


def test_an_unknown_scheme_is_told_with_the_known_ones():
    with pytest.raises(StoreUnusable, match="'mongodb': known are memory, sqlite, postgresql"):
        open_store("mongodb://localhost/0")


# whose clock ------------------------------------------------------------------------------------


def wall_clock() -> int:
    return int(time.time() * 1000)


def test_a_step_without_a_time_is_judged_by_the_stores_clock(store):
    before = wall_clock()
    store.register(BEAT, [Registration(job="report", hash="h")])
    slot = wall_clock() + HOUR
    early = store.claim("one:1", [Offer(job="report", slots=(slot,))], nonce="n1")[0].claims[0]
    due = store.claim("one:1", [Offer(job="report", slots=(before - MINUTE,))], nonce="n2")[0].claims[0]
    store.sent([Sent(key=due.key, dispatch=1, task_id="i", supervised=True)])
    started = store.start(Start(key=due.key, token="t1", worker="w"))
    after = wall_clock()
    run = store.run(due.key)
    seen = store.jobs()[0].seen
    assert (early.answer, due.answer) == ("early", "won")
    assert slot - after <= early.wait <= slot - before
    assert before <= seen <= run.claimed_at <= run.queued_at <= run.started_at <= after
    assert before * 1000 <= started.fence <= after * 1000
    assert store.run(due.key).deadline == run.started_at + 30 * SECOND


def test_every_verb_reads_the_clock(store):
    key = RunKey("report", wall_clock() - MINUTE)
    store.register(BEAT, [Registration(job="report", hash="h")])
    store.claim("one:1", [Offer(job="report", slots=(key.slot,))], nonce="n1")
    started = store.start(Start(key=key, token="t1", worker="w"))
    assert [Renewal(answer="ok")] == store.renew([Holding(key=key, token="t1", fence=started.fence)])
    assert store.requeue(key, "t1", delay=0, retries=1, start_timeout=0)
    first = store.expired(BEAT, 10).runs[0]
    seen = Redispatch(key=key, state=first.state, dispatch=first.dispatch, deadline=first.deadline)
    assert store.redispatch("one:1", [seen], nonce="m1")[0].won
    assert store.start(Start(key=key, token="t2", worker="w")).fence > started.fence
    assert store.release([Release(key=key, token="t2")]) == [True]
    store.start(Start(key=key, token="t3", worker="w"))
    assert store.finish(key, "t3", "succeeded")
    assert wall_clock() - MINUTE < store.run(key).finished_at <= wall_clock()
    assert store.prune(history=HOUR, most=10) == 0
    assert store.prune(history=HOUR, most=0) == 1


def test_every_answer_tells_the_stores_time(store):
    assert not store.clock.known
    before = wall_clock()
    store.expired(BEAT, 10)
    assert store.clock.known
    assert before - 1 <= store.clock.now() <= wall_clock() + 1


@pytest.mark.parametrize("site", ["postgresql", "mariadb", "redis"], indirect=True)
def test_the_clock_of_a_server_judges_not_the_clients(store, monkeypatch):
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - 86_400)
    store.register(BEAT, [Registration(job="report", hash="h")])
    assert abs(store.jobs()[0].seen - right() * 1000) < HOUR


# many at once -----------------------------------------------------------------------------------

RACERS, RACED = 8, 50


#: Where the processes of one race wait for each other.
_barrier: Any = None


def get_ready(barrier) -> None:
    global _barrier
    _barrier = barrier
    warnings.simplefilter("error")


def race(site: Site, racer: int) -> tuple[list[str], list[str], list[int]]:
    """Claim 50 slots of one job and a slot of 50 jobs, start them all; return both, and the job's fences."""
    store, nonce, now = site.open(), f"racer-{racer}", T + RACED
    store.expired(BEAT, 10, now=T)
    won, slots, jobs = [], range(T, T + RACED), [f"job {number}" for number in range(RACED)]
    _barrier.wait(60)
    for slot in slots:
        offer = Offer(job="report", slots=(slot,), overlap="allow")
        won += store.claim(nonce, [offer], nonce=nonce, now=now)
    won += store.claim(nonce, [Offer(job=name, slots=(T,)) for name in jobs], nonce=nonce, now=now)
    _barrier.wait(60)
    keys = [*(RunKey("report", slot) for slot in slots), *(RunKey(name, T) for name in jobs)]
    begun = [store.start(Start(key=key, token=nonce, worker=nonce), now=now) for key in keys]
    store.close()
    return (
        [str(claim.key) for answer in won for claim in answer.claims if claim.won],
        [str(key) for key, answer in zip(keys, begun, strict=True) if isinstance(answer, Started)],
        [answer.fence for answer in begun[:RACED] if isinstance(answer, Started)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_of_many_processes_at_one_instant_exactly_one_wins_each_slot(kind, request):
    site = new_site(kind, request)
    store = site.open()
    names = ["report", *(f"job {number}" for number in range(RACED))]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T - HOUR)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(RACERS, get_ready, (spawn.Barrier(RACERS),)) as pool:
        raced = pool.starmap_async(race, [(site, racer) for racer in range(RACERS)], chunksize=1).get(120)
        pool.close()
        pool.join()
    won, begun, fences = (sorted(one for racer in raced for one in racer[part]) for part in range(3))
    everyone = sorted(str(run.key) for run in store.runs(limit=1000))
    assert len(everyone) == 2 * RACED
    assert everyone == won
    assert everyone == begun
    assert list(range((T + RACED) * 1000, (T + RACED) * 1000 + RACED)) == fences
    store.close()


ROUNDS = 20


def rounds(site: Site, racer: int) -> tuple[list[list[str]], float]:
    """Claim 50 jobs' slots of one instant, in one call, 20 times; live the life of what was won meanwhile.

    Return what was won in each round, and the seconds that claims took.
    """
    store, name, names = site.open(), f"racer-{racer}", [f"job {number}" for number in range(RACED)]
    store.expired(BEAT, 10, now=T)
    won, spent = [], 0.0
    for slot in range(T, T + ROUNDS):
        _barrier.wait(60)
        began = time.perf_counter()
        offers = [Offer(job=job, slots=(slot,), overlap="allow") for job in names]
        claimed = store.claim(name, offers, nonce=f"{name}-{slot}", now=slot)
        spent += time.perf_counter() - began
        keys = [claim.key for answer in claimed for claim in answer.claims if claim.won]
        won.append([str(key) for key in keys])
        store.sent([Sent(key=key, dispatch=1, task_id=name, supervised=True) for key in keys], now=slot)
        asked = [Start(key=key, token=name, worker=name, overlap="allow") for key in keys[:3]]
        starts = [store.start(one, now=slot) for one in asked]
        held = [Holding(key=key, token=name, fence=one.fence) for key, one in zip(keys, starts, strict=False)]
        assert {"ok"} >= {one.answer for one in store.renew(held, now=slot)}
        assert all(store.finish(one.key, name, "succeeded", now=slot) for one in held)
        store.register(OTHER, [Registration(job=job, hash="h") for job in names], now=slot)
        store.prune(history=HOUR, most=5, limit=20, now=slot)
    store.close()
    return won, spent


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_twenty_rounds_of_many_processes_have_one_winner_each(kind, request):
    site = new_site(kind, request)
    store, names = site.open(), [f"job {number}" for number in range(RACED)]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T - HOUR)
    deadlocks = deadlocks_of(kind, request)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(RACERS, get_ready, (spawn.Barrier(RACERS),)) as pool:
        raced = pool.starmap_async(rounds, [(site, racer) for racer in range(RACERS)], chunksize=1).get(170)
        pool.close()
        pool.join()
    expected = [sorted(str(RunKey(name, slot)) for name in names) for slot in range(T, T + ROUNDS)]
    assert expected == [sorted(key for won, _ in raced for key in won[round]) for round in range(ROUNDS)]
    spent = sum(spent for _, spent in raced) / RACERS / ROUNDS / RACED
    with request.getfixturevalue("capsys").disabled():
        print(f"\n{kind}: {spent * 1000:.2f} ms a slot, {RACERS} processes claim {RACED} at one instant")
    assert deadlocks_of(kind, request) == deadlocks
    store.close()


def deadlocks_of(kind: str, request: pytest.FixtureRequest) -> int:
    """How many deadlocks a database has met so far."""
    if kind not in ("postgresql", "mariadb"):
        return 0
    return request.getfixturevalue(f"{kind}_server").deadlocks()


def end_or_claim(site: Site, racer: int) -> None:
    """End the run of each of 50 jobs, or claim their next slots meanwhile: each job at one instant."""
    store, names = site.open(), [f"job {number}" for number in range(RACED)]
    store.expired(BEAT, 10, now=T)
    for name in names:
        _barrier.wait(60)
        if racer == 0:
            assert store.finish(RunKey(name, T), "t", "succeeded", now=T + 1)
        else:
            offer = Offer(job=name, slots=(T + 1,), overlap="queue")
            store.claim(f"racer-{racer}", [offer], nonce=f"racer-{racer}", now=T + 1)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_a_run_that_comes_to_wait_as_the_other_ends_goes_on(kind, request):
    site = new_site(kind, request)
    store, names = site.open(), [f"job {number}" for number in range(RACED)]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T - HOUR)
    store.claim("one:1", [Offer(job=name, slots=(T,)) for name in names], nonce="n1", now=T)
    for name in names:
        store.start(Start(key=RunKey(name, T), token="t", worker="w"), now=T)
    spawn, racers = multiprocessing.get_context("spawn"), 3
    with spawn.Pool(racers, get_ready, (spawn.Barrier(racers),)) as pool:
        pool.starmap_async(end_or_claim, [(site, racer) for racer in range(racers)], chunksize=1).get(120)
        pool.close()
        pool.join()
    states = [run.state for run in store.runs(limit=1000) if run.slot == T + 1]
    assert (len(states), {*states} - {"claimed", "released"}) == (RACED, set())
    store.close()



def test_a_released_run_that_an_older_message_starts_is_a_takeover(story):
    story.claim()
    story.sent()
    story.start()
    story.release(token="t1")
    assert story.start(token="t2") == Started(attempt=2, fence=T * 1000 + 1, trigger="takeover")
    assert story.run().trigger == "takeover"


def test_a_retry_may_start_as_long_after_its_requeue_where_the_clock_went_back(story):
    story.claim()
    story.sent()
    story.start()
    story.requeue(delay=MINUTE, retries=1)
    story.expired()
    story.now = T - HOUR
    story.expired()
    assert (story.run().deadline, story.run().not_before) == (T - HOUR + 6 * MINUTE, T - HOUR + MINUTE)


def test_a_node_that_was_not_seen_for_a_day_is_forgotten_when_another_registers(store):
    store.register(BEAT, [], now=T)
    store.register(OTHER, [], now=T + DAY)
    assert [node.name for node in store.nodes()] == ["one:1", "two:2"]
    store.register(OTHER, [], now=T + DAY + 1)
    assert [node.name for node in store.nodes()] == ["two:2"]


def test_one_worker_that_died_is_one(story):
    story.claim()
    story.sent()
    story.start()
    story.now = T + HOUR
    assert story.redispatch(max_crashes=1).run.reason == "1 worker died running it"

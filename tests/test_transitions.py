"""The transitions where the store contract cannot reach: stop flags, edits, a ledger's books, its bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_celery.ledger import Ledger
from anarchon_celery.protocol import (
    ACTIVE,
    BUFFERED,
    ENDED,
    OVERTAKEN,
    REMEMBERED_HASHES,
    Claim,
    Holding,
    Job,
    KnownSchedule,
    Offer,
    Redispatch,
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
from anarchon_celery.transitions import (
    claim,
    finish,
    forget,
    lost_to,
    redispatch,
    register,
    release,
    renew,
    requeue,
    rewind,
    sent,
    start,
    start_timeout,
)
from anarchon_celery.youth import Origin

MINUTE = 60_000
T = 1_790_000_000_000
KEY = RunKey("report", T)
JOB = Job(name="report", hashes=(KnownSchedule("h1", T),), first_seen=T, seen=T)
CLAIMED = Run(job="report", slot=T, nonce="n1", claimed_at=T, deadline=T + 10_000, span=10_000)
RUNNING = replace(
    CLAIMED, state="running", attempt=1, fence=T * 1000, token="t1", lease=30_000,
    deadline=T + 30_000, span=30_000,
)  # fmt: skip


def ledger(*runs: Run, job: Job = JOB) -> Ledger:
    return Ledger([job], runs)


def ask(token: str = "t1", **how) -> Start:
    return Start(key=KEY, token=token, worker="w", **how)


# A run that somebody asked to stop --------------------------------------------------------------


def test_a_run_that_is_to_stop_is_told_and_keeps_its_deadline():
    books = ledger(replace(RUNNING, stop="cancelled by anna"))
    told = renew(books, T + 9_000, [Holding(key=KEY, token="t1", fence=T * 1000)])
    assert [Renewal(answer="stop", reason="cancelled by anna")] == told
    assert books.changed_runs == {}


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_a_run_that_is_to_stop_may_be_ended_by_its_holder(outcome):
    books = ledger(replace(RUNNING, stop="cancelled by anna"))
    assert finish(books, T + 1, KEY, "t1", outcome, None)
    assert outcome == books.runs[KEY].state


@pytest.mark.parametrize("state", ["claimed", "queued", "released"])
def test_a_run_that_is_to_stop_is_not_started(state):
    books = ledger(replace(CLAIMED, state=state, stop="cancelled by anna"))
    assert Stale(why="cancelled") == start(books, T + 1, ask())
    assert books.changed_runs == {}


@pytest.mark.parametrize("state", ["claimed", "queued", "running", "released"])
def test_a_run_that_is_to_stop_is_cancelled_at_its_deadline(state):
    run = replace(RUNNING, state=state, stop="cancelled by anna")
    books = ledger(run)
    seen = Redispatch(key=KEY, state=state, dispatch=1, deadline=T + 30_000, max_crashes=1)
    (first,) = redispatch(books, T + 30_000, "two:2", "m1", [seen])
    expected = replace(
        run, state="cancelled", reason="cancelled by anna", crashes=int(state == "running"),
        token=None, nonce="m1", deadline=None, span=None, finished_at=T + 30_000,
    )  # fmt: skip
    assert Claim(key=KEY, answer="cancelled", run=expected) == first
    assert [first] == redispatch(books, T + 30_001, "two:2", "m1", [seen])
    assert redispatch(books, T + 30_001, "two:2", "m2", [seen])[0].answer == "taken"
    assert not finish(books, T + 30_002, KEY, "t1", "cancelled", None)


def test_a_run_that_is_to_stop_already_keeps_its_reason():
    books = ledger(replace(RUNNING, stop="cancelled by anna"), replace(RUNNING, slot=T - 1))
    (claimed,) = claim(books, T + 1, "one:1", "n2", [Offer(job="report", slots=(T + 1,), overlap="cancel")])
    assert [claim.answer for claim in claimed.claims] == ["overlap"]
    assert ["cancelled by anna", OVERTAKEN] == [books.runs[RunKey("report", at)].stop for at in (T, T - 1)]


# What an edit may have left behind --------------------------------------------------------------

PAUSED = replace(JOB, paused="an upgrade")
WAITING = replace(CLAIMED, state=BUFFERED, dispatch=0, deadline=None, span=None)


@pytest.mark.parametrize("state", ["claimed", "queued", "released"])
def test_no_run_of_a_paused_job_is_started(state):
    books = ledger(replace(CLAIMED, state=state), job=PAUSED)
    assert Stale(why="paused") == start(books, T + 1, ask())
    assert books.changed_runs == {}


def test_a_claim_of_a_paused_job_that_is_given_back_waits():
    books = ledger(CLAIMED, job=PAUSED)
    assert release(books, T + 1, [Release(key=KEY, nonce="n1", delay=MINUTE)]) == [True]
    assert {KEY: WAITING} == books.changed_runs


@pytest.mark.parametrize("state", ["claimed", "queued", "released"])
def test_a_run_of_a_paused_job_waits_from_its_deadline_on(state):
    books = ledger(replace(CLAIMED, state=state), job=PAUSED)
    seen = Redispatch(key=KEY, state=state, dispatch=1, deadline=T + 10_000)
    (answer,) = redispatch(books, T + 10_000, "two:2", "m1", [seen])
    assert Claim(key=KEY, answer="paused", run=replace(WAITING, dispatch=1, nonce="m1")) == answer


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
def test_a_run_that_waits_for_nothing_goes_on_at_the_next_claim(overlap):
    books = ledger(WAITING)
    (claimed,) = claim(books, T + 1, "one:1", "n2", [Offer(job="report", slots=(T + 1,), overlap=overlap)])
    expected = ("won", "cancelled") if overlap == "cancel" else ("overlap", "released")
    assert expected == (claimed.claims[0].answer, books.runs[KEY].state)


def test_no_run_of_a_kind_of_its_own_is_displaced():
    manual = replace(WAITING, kind="manual")
    books = ledger(RUNNING, manual)
    (claimed,) = claim(books, T + 1, "one:1", "n2", [Offer(job="report", slots=(T + 1,), overlap="queue")])
    assert (claimed.ended, books.runs[manual.key]) == ((), manual)


# What a store remembers -------------------------------------------------------------------------


def test_hashes_are_remembered_the_latest_ones():
    books = Ledger()
    for number in range(REMEMBERED_HASHES + 2):
        register(books, T + number, [Registration(job="report", hash=f"h{number}")])
    assert [f"h{number}" for number in range(2, REMEMBERED_HASHES + 2)] == [
        known.hash for known in books.jobs["report"].hashes
    ]
    assert books.jobs["report"].first_seen == T


@pytest.mark.parametrize(("claimed_at", "known"), [(T - 1, True), (T, False), (T + 1, False)])
def test_a_run_is_recorded_anew_only_if_it_was_claimed_before_the_store_came_to_be(claimed_at, known):
    books = Ledger(origin=Origin(created=T, born=T))
    answer = start(books, T + MINUTE, ask(claimed_at=claimed_at))
    assert known == isinstance(answer, Started)
    assert known == bool(books.runs) == bool(books.jobs)
    assert known or Stale(why="unknown") == answer


def test_a_run_recorded_anew_makes_its_job_known():
    books = Ledger(origin=Origin(created=T, born=T))
    start(books, T + MINUTE, ask(claimed_at=0))
    assert books.jobs == {
        "report": Job(
            name="report", first_seen=T + MINUTE, seen=T + MINUTE, fence=(T + MINUTE) * 1000, supervised=True
        )
    }


def test_a_run_without_a_job_is_abandoned_at_its_deadline():
    seen = Redispatch(key=KEY, state="claimed", dispatch=1, deadline=T + 10_000)
    (ended,) = redispatch(Ledger(runs=[CLAIMED]), T + 10_000, "two:2", "m1", [seen])
    assert (ended.answer, ended.run.reason) == ("abandoned", "no node has had its job for a day")


def test_a_run_that_was_ever_started_is_queued_even_if_its_job_is_unknown():
    books = Ledger(runs=[replace(CLAIMED, attempt=1)])
    sent(books, T, [Sent(key=KEY, dispatch=1, task_id="i")])
    assert books.runs[KEY].state == "queued"


# Nodes with several schedules -------------------------------------------------------------------


@dataclass
class Beat:
    """A node that knows one schedule, and looks now and then at what came due."""

    hash: str
    every: int
    cursor: int = 0

    def slots(self, after: int, until: int) -> range:
        return range(after // self.every * self.every + self.every, until + 1, self.every)

    def look(self, books: Ledger, now: int, nonce: str, overlap: str) -> list[RunKey]:
        """Offer what this node takes for undecided; return what it won."""
        slots = tuple(self.slots(self.cursor, now))
        offer = Offer(job="report", slots=slots, hash=self.hash, overlap=overlap)
        (claimed,) = claim(books, now, self.hash, nonce, [offer])
        assert {"won", "taken", "overlap", "cancelled"} >= {one.answer for one in claimed.claims}
        self.cursor = max([self.cursor, claimed.floor or 0, *slots])
        return [one.key for one in claimed.claims if one.won]

    def register(self, books: Ledger, now: int) -> None:
        (known,) = register(books, now, [Registration(job="report", hash=self.hash)])
        self.cursor = max(known.floor or 0, known.effective)


looks = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 25)), max_size=30)


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel", "allow"])
@given(looks=looks)
def test_whoever_looks_when_each_slot_of_each_schedule_is_decided_once(overlap, looks):
    """During a deploy, by nodes that come late for their jitter, or because they were stalled."""
    beats = [Beat("h1", 10), Beat("h1", 10), Beat("h2", 15), Beat("h2", 15)]
    books, now, won = Ledger(), 1000, []
    for beat in beats:
        beat.register(books, now)
    for number, (which, wait) in enumerate([*looks, *((which, 0) for which in range(4))]):
        now += wait
        won += beats[which].look(books, now, f"n{number}", overlap)
    expected = {*beats[0].slots(1000, now), *beats[2].slots(1000, now)}
    assert sorted(expected) == sorted(run.slot for run in books.runs.values())
    assert len(won) == len(set(won))
    assert set(won) == set(books.runs) or overlap != "allow"


# The ledger's books -----------------------------------------------------------------------------


def test_every_state_is_active_or_ended_or_waits():
    assert not ACTIVE & ENDED
    assert len(ACTIVE | ENDED | {BUFFERED}) == 12
    assert [(True, False), (False, True), (False, False)] == [
        (run.active, run.ended) for run in (CLAIMED, replace(CLAIMED, state="skipped"), WAITING)
    ]


def test_a_ledger_knows_what_a_step_changed():
    books = ledger()
    claim(books, T, "one:1", "n1", [Offer(job="report", slots=(T,))])
    assert {"report": replace(JOB, floor=T, hashes=(KnownSchedule("h1", T, T),))} == books.changed_jobs
    assert {KEY: replace(CLAIMED, node="one:1")} == books.changed_runs


def test_a_refusal_changes_nothing():
    books = ledger(RUNNING, job=replace(JOB, floor=T, hashes=(KnownSchedule("h1", T, T),)))
    claim(books, T + 1, "one:1", "n2", [Offer(job="report", slots=(T, T + 9))])
    start(books, T, ask("t2"))
    finish(books, T, KEY, "t2", "failed", None)
    requeue(books, T, KEY, "t2", delay=0, retries=1, start_timeout=1)
    release(books, T, [Release(key=KEY, token="t2"), Release(key=KEY, nonce="n1")])
    renew(books, T, [Holding(key=KEY, token="t2", fence=1)])
    assert (books.changed_jobs, books.changed_runs) == ({}, {})


def test_only_active_runs_count_as_others():
    earlier = replace(RUNNING, slot=T - MINUTE)
    books = ledger(CLAIMED, earlier)
    assert books.others_active(KEY)
    finish(books, T, earlier.key, "t1", "succeeded", None)
    assert not books.others_active(KEY)
    assert books.others_active(earlier.key)


def test_a_ledger_knows_what_is_active_and_what_waits_oldest_first():
    runs = [
        replace(run, slot=slot, kind=kind)
        for run in (WAITING, RUNNING)
        for slot, kind in ((T + 1, "scheduled"), (T, "backfill"), (T, "scheduled"), (T, "manual"))
    ]
    books = ledger(*runs[:4])
    expected = [RunKey("report", T, kind) for kind in ("scheduled", "manual", "backfill")]
    expected.append(RunKey("report", T + 1))
    assert ([], expected) == (books.active_of("report"), [run.key for run in books.buffered_of("report")])
    for run in runs[4:]:
        books.put_run(run)
    assert (expected, []) == ([run.key for run in books.active_of("report")], books.buffered_of("report"))
    assert books.active_of("other") == books.buffered_of("other") == []


def test_what_is_forgotten_is_gone_and_below_the_floor():
    done = replace(CLAIMED, state="succeeded", deadline=None, span=None, finished_at=T)
    books = ledger(done, replace(done, kind="manual", slot=T + 1))
    forget(books, T + MINUTE, list(books.runs))
    assert (books.runs, books.jobs["report"].floor) == ({}, T)


def test_rewinding_cuts_only_what_lies_too_far_ahead():
    books = ledger(CLAIMED, replace(RUNNING, slot=T - 1, deadline=T + 1), job=replace(JOB, floor=T - MINUTE))
    rewind(books, T)
    assert (books.changed_jobs, books.changed_runs) == ({}, {})
    rewind(books, T - 1)
    assert {KEY: replace(CLAIMED, deadline=T - 1 + 10_000)} == books.changed_runs
    rewind(books, T - 2 * MINUTE)
    assert books.jobs["report"].floor == T - 2 * MINUTE
    assert {T - 2 * MINUTE + 10_000, T - 2 * MINUTE + 30_000} == {run.deadline for run in books.runs.values()}


def test_rewinding_lets_no_retry_wait_for_a_time_that_is_far():
    """How long it was to wait is not known any more: it may go on as soon as it is its turn."""
    retry = replace(WAITING, retries=1, not_before=T + MINUTE)
    books = ledger(retry, replace(retry, slot=T - 1, not_before=T - MINUTE))
    rewind(books, T)
    assert {KEY: replace(retry, not_before=T)} == books.changed_runs


# Small words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dispatches", "minutes"), [(1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (6, 60), (60, 60)]
)
def test_a_start_timeout_doubles_up_to_an_hour(dispatches, minutes):
    assert minutes * MINUTE == start_timeout(5 * MINUTE, dispatches)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (None, "the store does not know the run"),
        (RUNNING, "taken over as attempt 1"),
        (replace(RUNNING, attempt=2), "taken over as attempt 2"),
        (replace(RUNNING, state="claimed"), "taken over as attempt 2"),
        (replace(RUNNING, state="queued"), "taken over as attempt 2"),
        (replace(RUNNING, state="released"), "taken over as attempt 2"),
        (replace(RUNNING, state=BUFFERED), "taken back, attempt 2 waits"),
        (replace(RUNNING, state="abandoned"), "abandoned"),
    ],
)
def test_a_lost_lease_is_told_to_whom(run, words):
    assert words == lost_to(run)


def test_a_run_is_written_as_in_the_log():
    assert str(KEY) == "report @ 2026-09-21T14:13:20.000Z"

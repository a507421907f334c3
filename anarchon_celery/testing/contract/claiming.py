"""Slots are decided, and what was published is noted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...protocol import (
    Claim,
    Claimed,
    Offer,
    Registration,
    Run,
)
from ...slots import Leap
from .story import (
    BEAT,
    HOUR,
    MINUTE,
    SECOND,
    Story,
    T,
    answers,
    nothing_written,
)


class Claiming:
    """Slots are decided, and what was published is noted."""

    def test_a_claim_is_won_by_one(self, story):
        won = story.claim(nonce="n1")
        expected = Run(
            job="report", slot=T, node="one:1", nonce="n1", claimed_at=T,
            deadline=T + 10 * SECOND, span=10 * SECOND,
        )  # fmt: skip
        assert Claim(key=story.key(), answer="won", run=expected) == won
        assert Claim(key=story.key(), answer="taken", run=expected) == story.claim(nonce="n2")
        assert [expected] == story.store.runs()

    def test_a_claim_raises_the_floor(self, story):
        assert story.offer(T).floor == T
        assert T == story.record().floor == story.register().floor

    def test_a_claim_whose_answer_was_lost_has_the_same_answer_again(self, story):
        first = story.offer(T, nonce="n1")
        story.now += SECOND
        with nothing_written(story.store):
            assert first == story.offer(T, nonce="n1")

    def test_an_overlap_whose_answer_was_lost_has_the_same_answer_again(self, story):
        story.begin()
        story.now += MINUTE
        first = story.offer(T + MINUTE, nonce="n2")
        assert answers(first) == ["overlap"]
        with nothing_written(story.store):
            assert first == story.offer(T + MINUTE, nonce="n2")
        assert answers(story.offer(T + MINUTE, nonce="n3")) == ["taken"]

    def test_a_leap_whose_answer_was_lost_has_the_same_answer_again(self, story):
        leap = Leap(first=T - 3 * MINUTE, last=T - MINUTE, count=3)
        first = story.offer(T, leap=leap, nonce="n1")
        assert first.missed is not None
        with nothing_written(story.store):
            assert first == story.offer(T, leap=leap, nonce="n1")
        assert story.offer(T, leap=leap, nonce="n2").missed is None

    def test_a_claim_that_another_node_took_over_is_not_won_again(self, story):
        story.claim(nonce="n1")
        story.wait_for_deadline()
        story.redispatch(nonce="m1")
        with nothing_written(story.store):
            assert story.claim(nonce="n1").answer == "taken"

    @pytest.mark.parametrize("slot", [T, T - 1, T - HOUR])
    def test_no_slot_at_or_below_the_floor_is_claimed_anew(self, story, slot):
        story.claim(T)
        story.now += HOUR
        with nothing_written(story.store):
            assert story.claim(slot, nonce="n2").answer == "taken"

    def test_a_floor_without_a_run_answers_taken_without_one(self, story):
        story.claim(T)
        assert Claim(key=story.key(T - 1), answer="taken", run=None) == story.claim(T - 1, nonce="n2")

    def test_a_slot_that_is_not_due_is_early_and_leaves_no_trace(self, story):
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

    def test_a_slot_is_due_at_its_very_millisecond(self, story):
        story.now = T - 1
        assert (story.claim().answer, story.claim().wait) == ("early", 1)
        story.now = T
        assert story.claim().answer == "won"

    def test_a_slot_above_the_floor_that_exists_is_taken_even_if_it_is_early(self, story):
        story.now = T + MINUTE
        story.claim(T + MINUTE)
        story.now = T
        assert story.claim(T + MINUTE, nonce="n2").answer == "taken"

    def test_a_job_nobody_registered_is_unknown(self, store):
        with nothing_written(store):
            claimed = Story(store).offer(T, T - 1)
        assert (answers(claimed), claimed.floor) == (["unknown", "unknown"], None)

    def test_overlap_skip_records_the_slot_as_skipped_and_raises_the_floor(self, story):
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
    def test_an_active_run_holds_its_job_in_every_state(self, story, state):
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

    def test_an_active_run_past_its_deadline_still_holds_its_job(self, story):
        story.begin()
        story.now += HOUR
        assert story.claim(T + HOUR, nonce="n2").answer == "overlap"

    @pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
    def test_an_ended_run_holds_nothing(self, story, outcome):
        story.begin()
        story.finish(outcome=outcome)
        story.now += MINUTE
        assert story.claim(T + MINUTE, nonce="n2").answer == "won"

    def test_a_run_of_another_job_holds_nothing(self, story):
        story.begin()
        other = Story(story.store, job="other")
        other.register()
        assert other.claim(nonce="n2").answer == "won"

    def test_overlap_allow_is_as_if_there_were_no_other_run(self, story):
        story.begin()
        story.now += MINUTE
        assert story.claim(T + MINUTE, nonce="n2", overlap="allow").answer == "won"
        assert {"running", "claimed"} == {run.state for run in story.store.runs()}

    def test_several_slots_of_one_job_are_decided_in_their_order(self, story):
        story.now += 2 * MINUTE
        claimed = story.offer(T, T + MINUTE, T + 2 * MINUTE)
        assert (answers(claimed), claimed.floor) == (["won", "overlap", "overlap"], T + 2 * MINUTE)

    def test_several_slots_of_one_job_are_all_won_under_allow(self, story):
        story.now += 2 * MINUTE
        slots = (T, T + MINUTE, T + 2 * MINUTE)
        assert answers(story.offer(*slots, overlap="allow")) == ["won"] * 3
        assert [run.slot for run in story.store.runs()] == sorted(slots, reverse=True)

    def test_several_jobs_in_one_call_are_answered_in_the_order_asked(self, store):
        store.register(BEAT, [Registration(job=name, hash="h") for name in "abc"], now=T)
        offers = [Offer(job=name, slots=(T,)) for name in ("c", "nobody", "a", "b")]
        claimed = store.claim("one:1", offers, nonce="n1", now=T)
        assert [(answer.job, answers(answer)) for answer in claimed] == [
            ("c", ["won"]),
            ("nobody", ["unknown"]),
            ("a", ["won"]),
            ("b", ["won"]),
        ]

    def test_late_slots_are_begun_as_catch_up(self, story):
        story.now += MINUTE
        story.offer(T, T + MINUTE, late=1, overlap="allow")
        assert (story.run(T).trigger, story.run(T + MINUTE).trigger) == ("catch-up", "scheduled")

    def test_the_claim_timeout_is_the_callers(self, story):
        story.claim(claim_timeout=3 * SECOND)
        assert story.expires_at() == T + 3 * SECOND

    def test_a_leap_writes_one_missed_record_from_the_first_leapt_slot_on(self, story):
        leap = Leap(first=T - 9 * MINUTE, last=T - MINUTE, count=9)
        claimed = story.offer(T, leap=leap, late=1)
        missed = Run(
            job="report", slot=T - 9 * MINUTE, state="missed", trigger="catch-up", dispatch=0, node="one:1",
            nonce="n1", finished_at=T, reason="came due while no node was looking", until=T - MINUTE, count=9,
        )  # fmt: skip
        assert (missed, T, ["won"]) == (claimed.missed, claimed.floor, answers(claimed))
        assert missed == story.run(T - 9 * MINUTE)
        assert len(story.store.runs()) == 2

    def test_a_leap_alone_raises_the_floor(self, story):
        claimed = story.offer(leap=Leap(first=T - 2 * MINUTE, last=T - MINUTE, count=2))
        assert (claimed.floor, claimed.claims, claimed.missed.state) == (T - MINUTE, (), "missed")
        assert story.claim(T - MINUTE, nonce="n2").answer == "taken"
        assert story.claim(T, nonce="n2").answer == "won"

    def test_a_leap_that_somebody_else_wrote_already_is_not_written_again(self, story):
        leap = Leap(first=T - 3 * MINUTE, last=T - MINUTE, count=3)
        story.offer(leap=leap, nonce="n1")
        claimed = story.offer(T, leap=leap, nonce="n2")
        assert (claimed.missed, answers(claimed)) == (None, ["won"])
        assert len(story.store.runs()) == 2

    @pytest.mark.parametrize("decided", [T - 3 * MINUTE, T - 2 * MINUTE])
    def test_a_leap_computed_from_an_old_cursor_decides_nothing(self, story, decided):
        story.now = decided
        story.claim(decided, nonce="n1")
        story.now = T
        with nothing_written(story.store):
            claimed = story.offer(T, leap=Leap(first=T - 3 * MINUTE, last=T - MINUTE, count=3), nonce="n2")
        assert (answers(claimed), claimed.floor, claimed.missed) == (["wait"], decided, None)

    def test_a_leap_into_the_future_is_not_written(self, story):
        with nothing_written(story.store):
            claimed = story.offer(T + HOUR, leap=Leap(first=T - MINUTE, last=T + MINUTE, count=3))
        assert (claimed.missed, answers(claimed)) == (None, ["early"])

    def test_a_published_claim_is_queued_and_the_dispatch_counts(self, story):
        claimed = story.claim().run
        story.now += 500
        story.sent()
        assert story.run() == replace(
            claimed, state="queued", task_id="task-1", queued_at=T + 500, unstarted=1,
            deadline=T + 500 + 5 * MINUTE, span=5 * MINUTE,
        )  # fmt: skip

    def test_a_claim_of_a_job_nobody_supervises_ends_as_published(self, story):
        claimed = story.claim().run
        story.now += 500
        story.sent(supervised=False)
        assert story.run() == replace(
            claimed, state="published", task_id="task-1", queued_at=T + 500, unstarted=1, finished_at=T + 500,
            deadline=None, span=None,
        )  # fmt: skip
        assert (story.expired().next_deadline, story.record().supervised) == (None, False)

    def test_a_job_that_the_store_knows_as_supervised_is_queued(self, story):
        story.register(supervised=True)
        story.claim()
        story.sent(supervised=None)
        assert story.run().state == "queued"

    def test_a_node_that_knows_a_job_as_unsupervised_is_right(self, story):
        """Its task lost the base class, or somebody says so: nobody would ever start its runs."""
        story.register(supervised=True)
        story.claim()
        story.sent(supervised=False)
        assert story.run().state == "published"

    def test_a_run_that_was_ever_started_stays_supervised(self, story):
        story.begin()
        story.release(token="t1")
        story.redispatch()
        story.sent(supervised=False)
        assert story.run().state == "queued"

    def test_sent_is_nothing_where_the_worker_was_faster(self, story):
        story.claim()
        story.start()
        with nothing_written(story.store):
            story.sent(dispatch=1)

    def test_sent_is_nothing_where_the_run_has_ended(self, story):
        story.claim()
        story.start()
        story.finish()
        with nothing_written(story.store):
            story.sent(dispatch=1, supervised=False)

    @pytest.mark.parametrize("dispatch", [1, 3])
    def test_sent_is_nothing_where_the_dispatch_differs(self, story, dispatch):
        story.claim()
        story.wait_for_deadline()
        story.redispatch()
        with nothing_written(story.store):
            story.sent(dispatch=dispatch)
        story.sent(dispatch=2)
        assert (story.run().state, story.run().dispatch) == ("queued", 2)

    def test_sent_twice_moves_no_deadline(self, story):
        story.claim()
        story.sent()
        story.now += MINUTE
        with nothing_written(story.store):
            story.sent()

    def test_sent_of_a_run_nobody_knows_is_nothing(self, story):
        with nothing_written(story.store):
            story.sent(dispatch=1)

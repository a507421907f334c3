"""A slot comes due while another run of its job is active."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...protocol import (
    OVERTAKEN,
    Claim,
    Claimed,
    Redispatch,
    Renewal,
    Run,
    Stale,
    Started,
)
from .scenes import (
    end_by_crash,
    end_by_finish,
    end_settled,
    end_unsupervised,
    stopped,
    wait_behind,
)
from .story import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Story,
    T,
    answers,
    nothing_written,
)


class Overlapping:
    """A slot comes due while another run of its job is active."""

    def test_overlap_queue_lets_the_slot_wait_and_raises_the_floor(self, story):
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
    def test_a_slot_that_meets_no_other_is_won(self, story, overlap):
        assert story.claim(overlap=overlap).won

    def test_one_slot_of_a_job_waits_an_older_one_is_skipped(self, story):
        older = wait_behind(story)
        story.now += MINUTE
        claimed = story.offer(T + 2 * MINUTE, nonce="n3", overlap="queue")
        skipped = replace(older, state="skipped", reason="overlap", finished_at=story.now)
        assert ((skipped,), ["overlap"]) == (claimed.ended, answers(claimed))
        assert skipped == story.run(T + MINUTE)
        assert story.run(T + 2 * MINUTE).state == "buffered"
        assert story.run(T).state == "running"

    def test_of_several_slots_in_one_call_the_newest_waits(self, story):
        story.now += 2 * MINUTE
        claimed = story.offer(T, T + MINUTE, T + 2 * MINUTE, overlap="queue")
        assert (answers(claimed), claimed.ended) == (["won", "overlap", "overlap"], ())
        assert [claim.run.state for claim in claimed.claims] == ["claimed", "skipped", "buffered"]
        assert [claim.run for claim in claimed.claims] == [
            story.run(claim.key.slot) for claim in claimed.claims
        ]
        with nothing_written(story.store):
            assert claimed == story.offer(T, T + MINUTE, T + 2 * MINUTE, overlap="queue")

    def test_a_run_that_waits_has_no_deadline_and_is_not_started(self, story):
        waiting = wait_behind(story)
        story.now = T + DAY
        assert [run.slot for run in story.expired().runs] == [T]
        assert (
            [waiting]
            == story.store.runs(state="buffered")
            == story.store.runs(job="report", state="buffered")
        )
        assert [T + MINUTE, T] == [run.slot for run in story.store.runs(job="report")]
        seen = Redispatch(key=waiting.key, state="buffered", dispatch=0, deadline=T)
        with nothing_written(story.store):
            assert Stale(why="buffered") == story.start(T + MINUTE, token="t2")
            assert story.redispatch(seen=seen).answer == "taken"
            story.sent(T + MINUTE)
            assert not story.finish(T + MINUTE)
            assert story.claim(T + MINUTE, nonce="n9", overlap="queue").answer == "taken"
            assert story.store.prune(history=0, most=0, now=story.now) == 0

    def test_runs_that_wait_are_listed_newest_first(self, store):
        for job in ("b", "a"):
            story = Story(store, job=job)
            story.register(now=T - HOUR)
            wait_behind(story)
        assert ["a", "b"] == [run.job for run in store.runs(state="buffered")]
        assert ["a"] == [run.job for run in store.runs(state="buffered", limit=1)]
        assert ["b"] == [run.job for run in store.runs(job="b", state="buffered")]

    @pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
    def test_a_run_that_waits_holds_its_job(self, story, overlap):
        """Behind the run that it waits for there is nobody else's turn."""
        wait_behind(story)
        story.finish()
        assert story.claim(T + MINUTE, nonce="n2").answer == "overlap"
        story.now += MINUTE
        answer = story.claim(T + 2 * MINUTE, nonce="n3", overlap=overlap)
        assert answer.answer == ("won" if overlap == "cancel" else "overlap")
        assert story.run(T + MINUTE).state == ("cancelled" if overlap == "cancel" else "released")

    def test_overlap_queue_is_idempotent_whatever_became_of_the_run(self, story):
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

    def test_a_displaced_run_is_still_told_as_overlap(self, story):
        wait_behind(story)
        story.now += MINUTE
        story.claim(T + 2 * MINUTE, nonce="n3", overlap="queue")
        again = story.claim(T + MINUTE, nonce="n2", overlap="queue")
        assert (again.answer, again.run.state, again.run.reason) == ("overlap", "skipped", "overlap")

    @pytest.mark.parametrize("ending", [end_by_finish, end_by_crash, end_unsupervised, end_settled])
    def test_every_end_promotes_the_run_that_waits(self, story, ending):
        if ending in (end_unsupervised, end_settled):
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

    def test_a_promoted_run_is_dispatched_for_the_first_time(self, story):
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

    def test_a_promoted_run_may_be_displaced_no_more(self, story):
        wait_behind(story)
        story.finish()
        story.now += MINUTE
        claimed = story.offer(T + 2 * MINUTE, nonce="n3", overlap="queue")
        assert (claimed.ended, story.run(T + MINUTE).state) == ((), "released")

    def test_an_end_promotes_nothing_while_another_run_is_active(self, story):
        story.begin()
        story.now += MINUTE
        assert story.claim(T + 1, nonce="n2", overlap="allow").won
        story.claim(T + MINUTE, nonce="n3", overlap="queue")
        story.finish()
        assert story.run(T + MINUTE).state == "buffered"
        story.start(T + 1, token="t2")
        story.finish(T + 1, token="t2")
        assert story.run(T + MINUTE).state == "released"

    def test_the_oldest_that_waits_goes_first(self, story):
        """Several wait where a pause made them."""
        story.now = T + 2
        story.offer(T, T + 1, T + 2, overlap="allow")
        story.store.pause("report", reason="r", by="anna", now=story.now)
        story.store.resume("report", now=story.now)
        states = [(run.slot - T, run.state) for run in story.store.runs()]
        assert states == [(2, "buffered"), (1, "buffered"), (0, "released")]

    def test_an_end_promotes_nothing_of_another_job(self, story):
        wait_behind(story)
        other = Story(story.store, job="other", now=story.now)
        other.register()
        other.begin(T + MINUTE, token="t9")
        other.finish(T + MINUTE, token="t9")
        assert story.run(T + MINUTE).state == "buffered"

    def test_overlap_cancel_asks_what_runs_to_stop_and_waits(self, story):
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
    def test_overlap_cancel_ends_what_was_not_started_and_wins(self, story, state):
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

    def test_a_claim_that_was_overtaken_before_its_answer_came_is_told_as_cancelled(self, story):
        story.claim(nonce="n1")
        story.now += MINUTE
        story.claim(T + MINUTE, nonce="n2", overlap="cancel")
        with nothing_written(story.store):
            assert Claim(key=story.key(), answer="cancelled", run=story.run()) == story.claim(nonce="n1")
            assert story.claim(nonce="n3").answer == "taken"

    def test_of_several_slots_in_one_call_under_cancel_the_newest_is_won(self, story):
        story.now += 2 * MINUTE
        slots = (T, T + MINUTE, T + 2 * MINUTE)
        claimed = story.offer(*slots, overlap="cancel")
        assert (answers(claimed), claimed.ended) == (["cancelled", "cancelled", "won"], ())
        assert [claim.run for claim in claimed.claims] == [story.run(slot) for slot in slots]
        with nothing_written(story.store):
            assert claimed == story.offer(*slots, overlap="cancel")

    def test_overlap_cancel_displaces_what_waits_and_ends_all_but_what_runs(self, story):
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

    def test_an_answer_shows_a_run_as_the_whole_call_left_it(self, story):
        """So that the same call is answered the same again."""
        story.claim(nonce="n1")
        story.now += MINUTE
        claimed = story.offer(T, T + MINUTE, nonce="n2", overlap="cancel")
        assert (answers(claimed), claimed.ended) == (["taken", "won"], (story.run(),))
        assert story.run() == claimed.claims[0].run
        assert replace(claimed, ended=()) == story.offer(T, T + MINUTE, nonce="n2", overlap="cancel")

    def test_what_a_claim_ends_is_told_oldest_first(self, story):
        story.now = T + 2
        story.offer(T, T + 1, T + 2, overlap="allow")
        story.now = T + MINUTE
        claimed = story.offer(T + MINUTE, nonce="n2", overlap="cancel")
        assert [T, T + 1, T + 2] == [run.slot for run in claimed.ended]

    @pytest.mark.parametrize("crash", [False, True])
    def test_a_run_that_is_to_stop_ends_when_it_is_given_back(self, story, crash):
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

    def test_a_run_that_is_to_stop_is_not_retried(self, story):
        stopped(story)
        assert not story.requeue()
        assert ("cancelled", OVERTAKEN, None) == (story.run().state, story.run().reason, story.run().retries)
        assert story.run(T + MINUTE).state == "released"
        with nothing_written(story.store):
            assert not story.requeue()

    def test_a_run_that_is_to_stop_ends_at_its_deadline(self, story):
        stopped(story)
        story.wait_for_deadline()
        ended = story.redispatch()
        assert (ended.answer, ended.run.reason, ended.run.crashes) == ("cancelled", OVERTAKEN, 1)
        assert story.run(T + MINUTE).state == "released"

    @pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
    def test_a_run_that_is_to_stop_may_be_ended_by_its_holder(self, story, outcome):
        stopped(story)
        assert story.finish(outcome=outcome)
        assert (outcome, "released") == (story.run().state, story.run(T + MINUTE).state)

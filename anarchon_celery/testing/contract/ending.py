"""A run ends, waits for its retry, or is given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...protocol import (
    Release,
    Stale,
    Started,
)
from .scenes import (
    lose_for_good,
    lose_to_a_claim,
    lose_to_a_failed_publish,
    lose_to_a_handover,
    lose_to_a_message,
    lose_to_a_retry,
    lose_to_a_start,
    lose_to_an_end,
)
from .story import (
    HOUR,
    MINUTE,
    SECOND,
    T,
    nothing_written,
)


class Ending:
    """A run ends, waits for its retry, or is given back."""

    @pytest.mark.parametrize(
        ("outcome", "reason"), [("succeeded", None), ("failed", "ValueError: 'é'"), ("cancelled", "revoked")]
    )
    def test_a_holder_ends_its_run(self, story, outcome, reason):
        story.begin()
        before = story.run()
        story.now += SECOND
        assert story.finish(outcome=outcome, reason=reason)
        expected = replace(
            before, state=outcome, reason=reason, finished_at=story.now, deadline=None, span=None
        )
        assert expected == story.run()

    def test_a_finish_whose_answer_was_lost_is_true_again(self, story):
        story.begin()
        story.finish()
        story.now += SECOND
        with nothing_written(story.store):
            assert story.finish()
            assert not story.finish(outcome="failed")
            assert not story.finish(token="t2")

    def test_a_holder_past_its_lease_may_finish_if_nobody_took_the_run(self, story):
        story.begin()
        story.now += HOUR
        assert story.finish()

    def test_a_retry_waits_as_queued(self, story):
        story.begin()
        before = story.run()
        story.now += SECOND
        assert story.requeue(delay=MINUTE, retries=2)
        assert story.run() == replace(
            before, state="queued", queued_at=story.now, not_before=story.now + MINUTE, retries=2,
            unstarted=1, deadline=story.now + 6 * MINUTE, span=6 * MINUTE,
        )  # fmt: skip
        assert story.claim(T + SECOND, nonce="n2").answer == "overlap"

    def test_a_requeue_whose_answer_was_lost_is_true_again(self, story):
        story.begin()
        story.requeue()
        story.now += SECOND
        with nothing_written(story.store):
            assert story.requeue()
            assert not story.requeue(token="t2")

    def test_a_retry_is_not_started_before_its_time(self, story):
        story.begin()
        story.requeue(delay=MINUTE)
        story.now += MINUTE - 1
        with nothing_written(story.store):
            wait = T + MINUTE - story.now
            assert Stale(why="too early for its retry", wait=wait) == story.start(token="t2", retries=1)
        story.now += 1
        assert isinstance(story.start(token="t2", retries=1), Started)

    @pytest.mark.parametrize(
        "state", ["queued", "claimed", "queued again", "released", "buffered", "published"]
    )
    def test_a_retry_is_not_started_by_a_message_of_an_earlier_try(self, story, state):
        """The broker delivers it again after the run was requeued: it would begin Celery's count anew."""
        story.begin()
        story.requeue(delay=0, retries=2)
        if state == "buffered":
            story.store.pause("report", reason="r", by="anna", now=story.now)
        elif state == "published":
            assert story.settle()
        elif state != "queued":
            story.wait_for_deadline()
            assert story.redispatch(nonce="m1").won
            assert story.release(nonce="m1") if state == "released" else True
            if state == "queued again":
                story.sent()
        assert story.run().state == state.partition(" ")[0]
        for retries in (0, 1):
            with nothing_written(story.store):
                assert Stale(why="of an earlier try") == story.start(token="t2", retries=retries)
        story.store.resume("report", now=story.now)
        assert isinstance(story.start(token="t2", retries=2), Started)

    def test_a_run_that_does_not_wait_for_a_retry_is_started_by_a_message_of_any_try(self, story):
        """A retry that was handed over begins from the beginning; a retry's message may come then."""
        story.begin()
        story.release(token="t1")
        assert isinstance(story.start(token="t2", retries=3), Started)
        story.requeue(token="t2", delay=0, retries=1)
        story.start(token="t3", retries=1)
        story.release(token="t3")
        assert isinstance(story.start(token="t4"), Started)

    def test_a_retry_goes_on_under_the_same_attempt_with_a_new_fence(self, story):
        story.begin()
        story.requeue(delay=0)
        assert Started(attempt=1, fence=T * 1000 + 1, trigger="scheduled") == story.start(
            token="t2", retries=1
        )
        run = story.run()
        assert (run.retries, run.not_before, run.unstarted, run.token) == (None, None, 0, "t2")

    def test_a_retry_that_was_lost_is_dispatched_again_with_the_same_retries(self, story):
        story.begin()
        story.requeue(retries=2)
        story.wait_for_deadline()
        again = story.redispatch()
        assert (
            again.run.retries, again.run.crashes, again.run.attempt, again.run.trigger,
        ) == (2, 0, 1, "scheduled")  # fmt: skip
        story.sent()
        assert (story.run().retries, story.run().unstarted) == (2, 2)
        assert (story.start(token="t2", retries=2).attempt, story.run().trigger) == (1, "scheduled")
        assert story.run().retries is None

    def test_a_retry_whose_publish_failed_keeps_its_retries(self, story):
        story.begin()
        story.requeue(retries=2)
        story.wait_for_deadline()
        story.redispatch(nonce="m1")
        assert story.release(nonce="m1")
        assert (story.run().retries, story.run().dispatch) == (2, 1)
        assert isinstance(answer := story.start(token="t2", retries=2), Started)
        assert answer.attempt == 1

    def test_a_worker_that_dies_running_a_retry_is_taken_over(self, story):
        story.begin()
        story.requeue(delay=0)
        story.start(token="t2", retries=1)
        assert (story.begin_again(token="t3").attempt, story.run().trigger) == (2, "takeover")
        assert story.run().crashes == 1

    def test_a_handover_gives_the_run_back_at_once(self, story):
        story.begin()
        before = story.run()
        story.now += SECOND
        assert story.release(token="t1")
        assert replace(before, state="released", deadline=story.now, span=0) == story.run()
        assert story.begin_again().attempt == 2

    @pytest.mark.parametrize(("crash", "crashes"), [(False, 0), (True, 1)])
    def test_a_release_whose_answer_was_lost_is_true_again_and_counts_once(self, story, crash, crashes):
        story.begin()
        assert story.release(token="t1", delay=SECOND, crash=crash)
        story.now += 1
        with nothing_written(story.store):
            assert story.release(token="t1", delay=SECOND, crash=crash)
            assert not story.release(token="t2")
        assert crashes == story.run().crashes

    def test_who_ended_a_run_or_let_it_wait_for_a_retry_gives_nothing_back(self, story):
        story.begin()
        story.requeue()
        with nothing_written(story.store):
            assert not story.release(token="t1")
        story.now += HOUR
        story.start(token="t2", retries=1)
        story.finish(token="t2")
        with nothing_written(story.store):
            assert not story.release(token="t2")

    def test_a_claim_whose_run_was_cancelled_is_not_given_back(self, story):
        story.claim(nonce="n1")
        story.cancel()
        with nothing_written(story.store):
            assert not story.release(nonce="n1")

    def test_crashes_that_a_worker_reports_count_like_those_that_beat_finds(self, story):
        story.begin(token="t0")
        for crash in range(2):
            story.release(token=f"t{crash}", crash=True)
            story.begin_again(token=f"t{crash + 1}")
        story.release(token="t2", crash=True)
        assert (
            story.redispatch().answer, story.run().reason,
        ) == ("abandoned", "3 workers died running it")  # fmt: skip

    def test_a_claim_whose_publish_failed_is_given_back_and_was_no_dispatch(self, story):
        before = story.claim().run
        assert story.release(nonce="n1", delay=2 * SECOND)
        expected = replace(before, state="released", dispatch=0, deadline=T + 2 * SECOND, span=2 * SECOND)
        assert expected == story.run()
        with nothing_written(story.store):
            assert story.release(nonce="n1", delay=2 * SECOND)
        story.wait_for_deadline()
        again = story.redispatch().run
        assert (again.dispatch, again.unstarted, again.crashes) == (1, 0, 0)

    def test_publishes_that_fail_abandon_nothing(self, story):
        story.claim(nonce="m0")
        for failure in range(9):
            assert story.release(nonce=f"m{failure}")
            assert story.redispatch(nonce=f"m{failure + 1}").answer == "won"
        assert story.run().dispatch == 1

    def test_a_claim_is_given_back_only_by_the_call_that_won_it(self, story):
        story.claim(nonce="n1")
        with nothing_written(story.store):
            assert not story.release(nonce="n2")
            assert not story.release(token="t1")
        story.wait_for_deadline()
        story.redispatch(nonce="m1")
        with nothing_written(story.store):
            assert not story.release(nonce="n1")

    def test_a_claim_that_was_published_or_started_is_not_given_back(self, story):
        story.claim(nonce="n1")
        story.sent()
        with nothing_written(story.store):
            assert not story.release(nonce="n1")
        story.start()
        with nothing_written(story.store):
            assert not story.release(nonce="n1")

    def test_releases_are_answered_in_the_order_asked(self, story):
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

    @pytest.mark.parametrize(
        "lose",
        [
            lose_to_a_claim, lose_to_a_message, lose_to_a_failed_publish, lose_to_a_start, lose_to_a_retry,
            lose_to_a_handover, lose_to_an_end, lose_for_good,
        ],
    )  # fmt: skip
    def test_a_holder_that_lost_its_run_is_refused_and_nothing_is_written(self, story, lose):
        story.begin()
        lose(story)
        with nothing_written(story.store):
            assert story.renew().answer == "lost"
            assert [story.finish(outcome=outcome) for outcome in ("succeeded", "failed", "cancelled")] == [
                False,
                False,
                False,
            ]
            assert not story.requeue()
            assert not story.release(token="t1")
            assert not story.release(token="t1", crash=True)

    def test_nobody_holds_a_run_that_does_not_exist(self, story):
        with nothing_written(story.store):
            assert not story.finish()
            assert not story.requeue()
            assert not story.release(token="t1")
            assert not story.release(nonce="n1")

    def test_nobody_holds_a_run_that_was_not_started(self, story):
        story.claim()
        with nothing_written(story.store):
            assert not story.finish()
            assert not story.requeue()
            assert not story.release(token="t1")
            assert story.renew().answer == "lost"

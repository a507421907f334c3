"""A worker begins a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...protocol import (
    Run,
    RunKey,
    Stale,
    Start,
    Started,
)
from ...slots import Leap
from .scenes import (
    dispatch_in_vain,
    publish_two,
)
from .story import (
    DAY,
    HOUR,
    MINUTE,
    OLD,
    SECOND,
    YOUNG,
    Story,
    T,
    nothing_written,
)


class Starting:
    """A worker begins a run."""

    def test_a_start_gives_attempt_and_fence_and_marks_the_job_supervised(self, story):
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

    def test_a_start_whose_answer_was_lost_has_the_same_answer_again(self, story):
        started = story.begin()
        story.now += SECOND
        with nothing_written(story.store):
            assert started == story.start()
            assert Stale(why="running") == story.start(token="t2")

    def test_a_run_may_be_started_before_it_is_known_to_be_published(self, story):
        story.claim()
        assert Started(attempt=1, fence=T * 1000, trigger="scheduled") == story.start()

    def test_a_released_run_may_be_started_by_any_message(self, story):
        story.begin()
        story.release(token="t1", delay=MINUTE)
        started = story.start(token="t2", dispatch=1)
        assert (started.attempt, started.fence) == (2, T * 1000 + 1)

    def test_a_run_that_a_crash_gave_back_is_started_by_no_message_until_beat_counted(self, story):
        story.begin()
        story.release(token="t1", crash=True)
        with nothing_written(story.store):
            assert Stale(why="released") == story.start(token="t2", dispatch=1)
        assert story.redispatch().won
        assert 2 == story.start(token="t2", dispatch=1).attempt

    def test_an_older_message_may_start_the_run(self, story):
        story.claim()
        story.sent()
        story.wait_for_deadline()
        story.redispatch()
        story.sent()
        assert isinstance(story.start(dispatch=1), Started)
        with nothing_written(story.store):
            assert Stale(why="running") == story.start(token="t2", dispatch=2)

    def test_a_running_run_is_never_started_by_another_even_past_its_lease(self, story):
        story.begin()
        story.now += DAY
        with nothing_written(story.store):
            assert Stale(why="running") == story.start(token="t2")

    @pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
    def test_an_ended_run_is_not_started(self, story, outcome):
        story.begin()
        story.finish(outcome=outcome)
        with nothing_written(story.store):
            assert Stale(why=outcome) == story.start(token="t2")
            assert Stale(why=outcome) == story.start(token="t1")

    def test_a_skipped_or_missed_slot_is_not_started(self, story):
        story.offer(T, leap=Leap(first=T - 2, last=T - 1, count=2))
        story.now += 1
        story.offer(T + 1, nonce="n2")
        with nothing_written(story.store):
            assert Stale(why="missed") == story.start(T - 2)
            assert Stale(why="skipped") == story.start(T + 1)

    def test_a_published_run_may_be_started_late_and_is_supervised_from_then_on(self, story):
        story.claim()
        story.sent(supervised=False)
        assert Started(attempt=1, fence=T * 1000, trigger="scheduled") == story.start()
        assert (story.run().state, story.run().finished_at) == ("running", None)
        assert story.finish()
        story.now += MINUTE
        story.claim(T + MINUTE, nonce="n2")
        story.sent(T + MINUTE, supervised=None)
        assert story.run(T + MINUTE).state == "queued"

    def test_a_late_start_meets_the_overlap_policy_again(self, story):
        publish_two(story)
        assert Stale(why="overlap") == story.start(T, overlap="skip")
        assert ("skipped", "overlap", story.now, 0) == (
            story.run().state, story.run().reason, story.run().finished_at, story.run().attempt,
        )  # fmt: skip
        assert isinstance(story.start(T, token="t3"), Stale)

    def test_a_late_start_under_allow_is_as_if_there_were_no_other_run(self, story):
        publish_two(story)
        assert isinstance(story.start(T, overlap="allow"), Started)
        assert [run.state for run in story.store.runs()] == ["running", "running"]

    def test_a_late_start_of_an_abandoned_run_meets_the_overlap_policy_too(self, story):
        story.claim()
        dispatch_in_vain(story)
        slot = story.now
        story.claim(slot, nonce="n2")
        assert Stale(why="overlap") == story.start(T)
        assert story.run(T).state == "skipped"

    def test_the_fence_grows_over_all_slots_of_a_job(self, story):
        assert story.begin(T, overlap="allow").fence == T * 1000
        story.now += 2
        assert story.begin(T + 1, token="t2", overlap="allow").fence == T * 1000 + 2000
        assert story.begin(T + 2, token="t3", overlap="allow").fence == T * 1000 + 2001
        story.now -= HOUR
        story.release(T + 2, token="t3")
        assert story.start(T + 2, token="t4").fence == T * 1000 + 2002
        assert story.record().fence == T * 1000 + 2002

    def test_the_fences_of_two_jobs_are_their_own(self, story):
        story.begin()
        story.release(token="t1")
        story.start(token="t2")
        other = Story(story.store, job="other")
        other.register()
        assert (story.run().fence, other.begin().fence) == (T * 1000 + 1, T * 1000)

    def test_a_takeover_raises_the_attempt(self, story):
        story.begin()
        story.wait_for_deadline()
        story.redispatch()
        story.sent()
        assert (story.run().trigger, story.run().attempt) == ("takeover", 1)
        assert Started(attempt=2, fence=story.now * 1000, trigger="takeover") == story.start(token="t2")

    def test_a_run_that_was_never_begun_is_not_taken_over(self, story):
        story.claim()
        story.sent()
        story.wait_for_deadline()
        story.redispatch()
        assert Started(attempt=1, fence=story.now * 1000, trigger="scheduled") == story.start()

    def test_a_store_comes_to_be_with_its_first_step(self, store):
        """A claim from before that may be one that it lost; one from then on it would know."""
        story = Story(store)
        story.register(now=T)
        assert Stale(why="unknown") == story.start(claimed_at=T)
        assert isinstance(story.start(claimed_at=T - 1), Started)

    def test_a_store_younger_than_the_claim_records_the_run_anew(self, story):
        asked = {"dispatch": 3, "trigger": "catch-up", "claimed_at": OLD}
        assert Started(attempt=1, fence=T * 1000, trigger="catch-up") == story.start(**asked)
        assert story.run() == Run(
            job="report", slot=T, state="running", trigger="catch-up", dispatch=3, attempt=1, fence=T * 1000,
            owner="celery@one:3", token="t1", task_id="task-of-t1", deadline=T + 30 * SECOND,
            span=30 * SECOND, lease=30 * SECOND, claimed_at=OLD, started_at=T,
        )  # fmt: skip
        assert story.finish()

    def test_a_run_recorded_anew_meets_the_overlap_policy(self, story):
        story.begin()
        assert Stale(why="overlap") == story.start(T - MINUTE, token="t2", claimed_at=OLD)
        assert (story.run(T - MINUTE).state, story.run(T - MINUTE).reason) == ("skipped", "overlap")
        assert isinstance(story.start(T - HOUR, token="t3", claimed_at=OLD, overlap="allow"), Started)

    def test_a_slot_recorded_anew_is_not_claimed(self, story):
        story.start(claimed_at=OLD)
        assert story.claim().answer == "taken"

    def test_a_run_that_an_older_store_does_not_know_is_not_started(self, story):
        with nothing_written(story.store):
            assert Stale(why="unknown") == story.start(claimed_at=YOUNG)

    def test_kinds_are_apart(self, store):
        story = Story(store)
        story.register()
        keys = [RunKey("report", T, kind) for kind in ("scheduled", "manual", "backfill")]
        for key in keys:
            asked = Start(key=key, token=f"t-{key.kind}", worker="w", claimed_at=OLD, overlap="allow")
            assert isinstance(store.start(asked, now=T), Started)
        assert store.finish(keys[1], "t-manual", "failed", now=T)
        assert [store.run(key).state for key in keys] == ["running", "failed", "running"]
        assert [run.kind for run in store.runs()] == ["backfill", "manual", "scheduled"]

    def test_a_released_run_that_an_older_message_starts_is_a_takeover(self, story):
        story.claim()
        story.sent()
        story.start()
        story.release(token="t1")
        assert story.start(token="t2") == Started(attempt=2, fence=T * 1000 + 1, trigger="takeover")
        assert story.run().trigger == "takeover"

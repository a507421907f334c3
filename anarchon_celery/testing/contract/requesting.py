"""Somebody asks for a run for now."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ...protocol import (
    ASKED_AGAIN_WITHIN,
    BUFFERED,
    OVERTAKEN,
    Renewal,
    Requested,
    Run,
    Stale,
    Started,
)
from .scenes import (
    ARGUMENTS,
)
from .story import (
    MINUTE,
    SECOND,
    Story,
    T,
    nothing_written,
)


class Requesting:
    """Somebody asks for a run for now."""

    def test_a_run_for_now_enters_released_and_is_dispatched_like_any_other(self, story):
        answer = story.trigger(arguments=ARGUMENTS)
        entered = Run(
            job="report", slot=T, kind="manual", state="released", trigger="manual", dispatch=0, deadline=T,
            span=0,
            arguments=ARGUMENTS, asked_by="anna@desk", request="a1",
        )  # fmt: skip
        assert Requested(answer="released", run=entered) == answer
        assert [entered] == story.store.runs()
        assert story.of("manual").expires_at() == T
        won, run = story.redispatch(), story.run()
        assert ("won", run) == (won.answer, won.run)
        assert (1, "manual", ARGUMENTS) == (run.dispatch, run.trigger, run.arguments)
        story.sent()
        assert Started(attempt=1, fence=T * 1000, trigger="manual") == story.start()
        assert (True, "succeeded") == (story.finish(), story.state())

    def test_it_ignores_the_floor_and_never_moves_it(self, story):
        assert story.claim().won
        before = story.record()
        story.now += MINUTE
        assert "released" == story.trigger(overlap="allow").answer
        assert before == story.record()
        assert story.claim(T + SECOND, nonce="n2", overlap="allow").won

    def test_of_two_in_one_millisecond_the_later_takes_the_next_one_that_is_free(self, story):
        found = [story.trigger(f"a{n}", overlap="allow").run.slot for n in range(3)]
        story.now += 1
        assert [T, T + 1, T + 2, T + 3] == [*found, story.trigger("a3", overlap="allow").run.slot]

    def test_several_at_once_enter_a_run_each(self, make_store, story):
        def ask(number: int) -> tuple[str, int]:
            asking = Story(make_store())
            found = asking.trigger(f"a{number}")
            asking.store.close()
            return found.answer, found.run.slot

        with ThreadPoolExecutor(6) as pool:
            found = sorted(pool.map(ask, range(6)), key=lambda one: one[1])
        assert [("released", T), *(("buffered", T + n) for n in range(1, 6))] == found

    def test_the_same_request_enters_one_run_whatever_became_of_it_meanwhile(self, story):
        story.trigger()
        story.trigger("a2")
        with nothing_written(story.store):
            assert ("released", T) == (story.trigger().answer, story.trigger().run.slot)
            assert ("buffered", T + 1) == (story.trigger("a2").answer, story.trigger("a2").run.slot)
        story.of("manual").dispatched()
        story.start()
        story.now += SECOND
        with nothing_written(story.store):
            assert T == story.trigger().run.slot
        story.finish()
        with nothing_written(story.store):
            assert T == story.trigger().run.slot
        story.now = T + ASKED_AGAIN_WITHIN + 1
        assert story.now == story.trigger(overlap="allow").run.slot

    def test_of_a_job_that_no_node_has_told_of_nothing_is_entered(self, story):
        with nothing_written(story.store):
            assert Requested(answer="unknown") == story.trigger(job="nobody's")
        story.job = "nobody's"
        assert [Requested(answer="unknown")] == story.backfill(T)

    def test_its_arguments_are_still_there_when_it_is_taken_over(self, story):
        story.trigger(arguments=ARGUMENTS)
        story.of("manual").dispatched()
        story.start()
        story.wait_for_deadline()
        again = story.redispatch(nonce="later")
        assert ("takeover", ARGUMENTS, 2) == (again.run.trigger, again.run.arguments, again.run.dispatch)

    @pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
    def test_beside_a_run_that_runs_it_waits_in_any_number(self, story, overlap):
        story.begin()
        story.now += SECOND
        assert ["buffered"] * 3 == [story.trigger(f"a{n}", overlap=overlap).answer for n in range(3)]
        assert [None] == [run.stop for run in story.store.runs(state="running")]
        story.finish()
        assert ["buffered", "buffered", "released"] == [run.state for run in story.store.runs()[:3]]

    def test_where_overlap_allows_it_nothing_is_waited_for(self, story):
        story.begin()
        assert ["released"] * 2 == [story.trigger(f"a{n}", overlap="allow").answer for n in range(2)]

    def test_a_scheduled_run_that_does_not_run_is_not_waited_for(self, story):
        """Its message may lie in a queue for long."""
        assert story.claim().won
        story.sent()
        assert "released" == story.trigger().answer
        assert "buffered" == story.trigger("a2").answer

    @pytest.mark.parametrize("first", ["manual", "scheduled"])
    def test_of_the_two_the_one_that_is_begun_later_waits_for_the_other(self, story, first):
        second = {"manual": "scheduled", "scheduled": "manual"}[first]
        story.claim()
        story.sent()
        story.trigger()
        story.of("manual").dispatched()
        assert isinstance(story.of(first).start(), Started)
        with_message = story.of(second).start(token="t2")
        assert Stale(why=BUFFERED) == with_message
        assert (BUFFERED, None, 0) == (story.state(), story.run().deadline, story.run().unstarted)
        assert Stale(why=BUFFERED) == story.start(token="t2")
        story.of(first).finish()
        assert "released" == story.of(second).state()
        story.dispatched()
        assert isinstance(story.start(token="t3"), Started)

    def test_under_allow_none_waits_at_its_start(self, story):
        story.claim(overlap="allow")
        story.sent()
        story.trigger(overlap="allow")
        story.of("manual").dispatched()
        assert isinstance(story.start(overlap="allow"), Started)
        assert isinstance(story.of("scheduled").start(token="t2", overlap="allow"), Started)

    def test_a_retry_that_comes_too_early_keeps_its_time(self, story):
        story.begin()
        assert story.requeue(delay=MINUTE)
        story.trigger()
        story.of("manual").dispatched()
        assert isinstance(story.start(token="t2"), Started)
        too_early = story.of("scheduled").start(token="t3", retries=1)
        assert Stale(why="too early for its retry", wait=MINUTE) == too_early
        story.now += MINUTE
        assert Stale(why=BUFFERED) == story.start(token="t3", retries=1)
        assert story.of("manual").finish(token="t2")
        story.of("scheduled").dispatched()
        started = Started(attempt=1, fence=story.now * 1000, trigger="scheduled")
        assert started == story.start(token="t4", retries=1)

    @pytest.mark.parametrize(
        ("overlap", "answer", "state"),
        [("skip", "overlap", "skipped"), ("queue", "overlap", BUFFERED), ("cancel", "overlap", BUFFERED)],
    )
    def test_a_slot_meets_it_by_the_overlap_policy_and_takes_no_place_of_one(
        self, story, overlap, answer, state
    ):
        story.trigger()
        story.trigger("a2")
        story.now += SECOND
        claim = story.claim(T + SECOND, overlap=overlap)
        assert (answer, state) == (claim.answer, claim.run.state)
        assert ["released", BUFFERED] == [story.of("manual").state(slot) for slot in (T, T + 1)]

    def test_under_cancel_a_slot_asks_one_that_runs_to_stop(self, story):
        story.trigger()
        story.of("manual").dispatched()
        story.start()
        story.now += SECOND
        story.of("scheduled").claim(T + SECOND, overlap="cancel")
        assert Renewal(answer="stop", reason=OVERTAKEN) == story.of("manual").renew()

    def test_the_oldest_that_waits_goes_first_of_whatever_kind(self, story):
        story.begin()
        story.now += SECOND
        story.trigger()
        story.now += SECOND
        story.claim(T + 2 * SECOND, nonce="n2", overlap="queue")
        story.finish()
        found = {run.slot: run.state for run in story.store.runs()}
        assert {T: "succeeded", T + SECOND: "released", T + 2 * SECOND: BUFFERED} == found

    def test_a_new_one_does_not_go_before_one_that_waits(self, story):
        story.begin()
        story.trigger("a1")
        assert story.requeue()
        story.now += SECOND
        assert "buffered" == story.trigger("a2").answer
        story.of("scheduled").start(token="t2", retries=1)
        story.now += MINUTE
        story.start(token="t2", retries=1)
        assert story.finish(token="t2")
        assert ["released", BUFFERED] == [story.of("manual").state(slot) for slot in (T, T + SECOND)]

    def test_a_late_message_of_one_waits_and_is_never_skipped(self, story):
        story.trigger()
        story.of("manual").dispatched(supervised=False)
        assert "published" == story.state()
        story.now += SECOND
        story.of("scheduled").begin(T + SECOND)
        assert Stale(why=BUFFERED) == story.of("manual").start(token="late")
        assert BUFFERED == story.state()
        story.of("scheduled").finish(T + SECOND)
        assert "released" == story.of("manual").state()

    def test_it_ignores_a_pause(self, story):
        story.claim()
        story.sent()
        story.store.pause("report", reason="r", by="b", now=T)
        assert BUFFERED == story.state()
        assert "released" == story.trigger().answer
        story.of("manual").dispatched()
        assert isinstance(story.start(), Started)
        assert story.finish()
        assert BUFFERED == story.of("scheduled").state()

    def test_what_is_paused_is_not_waited_for(self, story):
        story.begin()
        story.trigger()
        story.store.pause("report", reason="r", by="b", now=T)
        assert BUFFERED == story.of("manual").state()
        assert story.of("scheduled").requeue()
        assert (BUFFERED, "released") == (story.state(), story.of("manual").state())

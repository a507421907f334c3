"""History becomes smaller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...folding import FOLD_AFTER
from ...protocol import (
    Claim,
    RunKey,
    Stale,
    Start,
    Started,
)
from ...slots import Leap
from .scenes import (
    ended,
    floors,
    housekeeping,
    miss,
    pause,
    publish_two,
    run_to_the_end,
    skipped,
    slots_of,
    told,
    wait,
    win,
)
from .story import (
    DAY,
    HOUR,
    MINUTE,
    OLD,
    SECOND,
    Story,
    T,
    answers,
    nothing_written,
)


class Pruning:
    """History becomes smaller."""

    @pytest.fixture
    def busy(self, story):
        """The job's run of T goes on and on."""
        story.begin()
        return story

    def test_ended_runs_are_forgotten_by_age(self, story):
        ended(story, T, T + MINUTE, T + 2 * MINUTE)
        assert story.store.prune(history=HOUR, most=100, now=T + HOUR) == 0
        assert story.store.prune(history=HOUR, most=100, now=T + HOUR + 1) == 1
        assert slots_of(story.store) == [T + MINUTE, T + 2 * MINUTE]

    def test_ended_runs_are_forgotten_by_count_of_their_job(self, story):
        ended(story, *(T + minute * MINUTE for minute in range(5)))
        other = Story(story.store, job="other")
        other.register()
        ended(other, T, T + 1)
        assert story.store.prune(history=DAY, most=2, now=story.now) == 3
        assert sorted(run.slot for run in story.store.runs(job="report")) == [T + 3 * MINUTE, T + 4 * MINUTE]
        assert len(story.store.runs(job="other")) == 2

    def test_prune_goes_in_batches_oldest_slot_first(self, story):
        ended(story, *(T + minute * MINUTE for minute in range(5)))
        prune = {"history": 0, "most": 100, "limit": 2, "now": T + DAY}
        assert story.store.prune(**prune) == 2
        assert slots_of(story.store) == [T + 2 * MINUTE, T + 3 * MINUTE, T + 4 * MINUTE]
        assert [story.store.prune(**prune) for _ in range(3)] == [2, 1, 0]
        assert story.store.runs() == []

    def test_every_end_is_history_and_no_active_run_is(self, story):
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

    def test_a_slot_that_was_forgotten_is_not_claimed_anew(self, story):
        ended(story, T, T + MINUTE)
        assert story.store.prune(history=0, most=0, now=T + HOUR) == 2
        story.now = T + HOUR
        with nothing_written(story.store):
            assert answers(story.offer(T, T + MINUTE, nonce="n9")) == ["taken", "taken"]
            assert Stale(why="unknown") == story.start()

    def test_forgetting_a_run_above_the_floor_raises_it(self, story):
        story.start(claimed_at=OLD)
        story.finish()
        assert story.record().floor is None
        assert story.store.prune(history=0, most=0, now=T + 1) == 1
        assert story.record().floor == T
        assert Claim(key=story.key(), answer="taken") == story.claim()

    def test_forgetting_an_old_run_lowers_no_floor(self, story):
        ended(story, T, T + MINUTE)
        assert story.store.prune(history=DAY, most=1, now=T + HOUR) == 1
        assert (story.record().floor, slots_of(story.store)) == (T + MINUTE, [T + MINUTE])

    def test_the_fence_grows_on_after_history_is_forgotten(self, story):
        ended(story, T)
        story.store.prune(history=0, most=0, now=T + 1)
        story.now = T + 1 - DAY
        assert story.start(T - DAY, claimed_at=OLD).fence == T * 1000 + 1

    def test_skips_that_follow_each_other_become_one_row_after_a_while(self, busy):
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

    def test_a_later_skip_joins_the_row_there_is(self, busy):
        skipped(busy, 1, 2)
        assert housekeeping(busy) == 1
        skipped(busy, 3)
        assert (housekeeping(busy, FOLD_AFTER - 1), housekeeping(busy)) == (0, 1)
        assert [(0, "running", 1, None), (1, "skipped", 3, 3)] == told(busy)

    def test_skips_are_folded_in_batches_too(self, busy):
        skipped(busy, *range(1, 7))
        assert [housekeeping(busy, limit=2) for _ in range(4)] == [2, 2, 1, 0]
        assert [(0, "running", 1, None), (1, "skipped", 6, 6)] == told(busy)

    @pytest.mark.parametrize("between", [pause, win, run_to_the_end, wait, miss])
    def test_what_keeps_skips_apart(self, busy, between):
        """Another reason; a run of any other state."""
        skipped(busy, 1, 2)
        between(busy)
        skipped(busy, 4, 5)
        assert housekeeping(busy) == 2
        rows = [row for row in told(busy) if row[1] == "skipped"]
        assert [(1, "skipped", 2, 2), (4, "skipped", 2, 5)] == rows

    @pytest.mark.parametrize("ended", [True, False])
    def test_runs_of_other_kinds_and_other_jobs_keep_none_apart(self, busy, ended):
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

    def test_a_slot_that_was_folded_away_is_not_claimed_anew(self, busy):
        skipped(busy, 1, 2, 3)
        assert (
            busy.offer(*(T + minute * MINUTE for minute in (1, 2)), nonce="n2").claims[1].answer == "overlap"
        )
        assert housekeeping(busy) == 2
        busy.now += HOUR
        with nothing_written(busy.store):
            slots = [T + minute * MINUTE for minute in (1, 2, 3)]
            assert answers(busy.offer(*slots, nonce="n9", overlap="allow")) == ["taken"] * 3
            assert answers(busy.offer(*slots, nonce="n1", overlap="allow")) == ["overlap", "taken", "taken"]

    def test_what_nodes_with_another_schedule_may_catch_up_is_not_folded(self, deploy):
        """Of one that nobody had for hours nothing is caught up: its floor is raised, as by forgetting."""
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

    def test_what_was_decided_late_is_folded_late(self, deploy):
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

    def test_two_rows_that_stand_for_several_become_one_when_what_was_between_is_skipped_too(self, busy):
        """A run that was published, and whose message comes late."""
        skipped(busy, 1, 2)
        win(busy)
        busy.sent(busy.now, supervised=False)
        skipped(busy, 4, 5)
        assert housekeeping(busy) == 2
        assert Stale(why="overlap") == busy.start(T + 3 * MINUTE, token="t3")
        assert housekeeping(busy) == 2
        assert [(0, "running", 1, None), (1, "skipped", 5, 5)] == told(busy)

    def test_a_schedule_holds_up_nothing_from_before_it_was_seen(self, busy):
        skipped(busy, 1, 2)
        busy.register("h2", now=T + 2 * MINUTE)
        assert (housekeeping(busy), floors(busy)["h2"]) == (1, T + 2 * MINUTE)

    def test_a_row_that_stands_for_many_counts_as_one_and_is_as_old_as_the_last_of_them(self, busy):
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

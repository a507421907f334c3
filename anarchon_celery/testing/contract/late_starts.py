"""A message comes when its run is over."""

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
from .scenes import (
    dispatch_in_vain,
    pause,
    publish_two,
)
from .story import (
    MINUTE,
    OLD,
    T,
    nothing_written,
)


class StartingLate:
    """A message comes when its run is over."""

    @pytest.mark.parametrize("overlap", ["queue", "cancel"])
    def test_a_late_start_waits_behind_another_run(self, story, overlap):
        publish_two(story)
        published = story.run()
        assert Stale(why="buffered") == story.start(overlap=overlap)
        assert replace(published, state="buffered", unstarted=0, finished_at=None) == story.run()
        assert (story.run(T + MINUTE).state, story.run(T + MINUTE).stop) == ("running", None)
        story.finish(T + MINUTE, token="t2")
        assert story.redispatch().run.dispatch == 2
        assert isinstance(story.start(), Started)

    @pytest.mark.parametrize("overlap", ["queue", "cancel"])
    def test_a_late_start_is_skipped_where_another_slot_waits(self, story, overlap):
        publish_two(story)
        story.now += MINUTE
        story.claim(T + 2 * MINUTE, nonce="n9", overlap="queue")
        assert Stale(why="overlap") == story.start(overlap=overlap)
        assert ("skipped", "overlap") == (story.run().state, story.run().reason)
        assert story.run(T + 2 * MINUTE).state == "buffered"

    @pytest.mark.parametrize("overlap", ["skip", "queue", "cancel", "allow"])
    def test_a_late_start_of_a_paused_job_waits(self, story, overlap):
        publish_two(story)
        pause(story)
        assert Stale(why="paused") == story.start(overlap=overlap)
        assert (story.run().state, story.run().finished_at) == ("buffered", None)
        with nothing_written(story.store):
            assert Stale(why="paused") == story.start(overlap=overlap)

    def test_an_abandoned_run_that_waits_after_a_late_start_has_all_its_dispatches_again(self, story):
        story.claim()
        dispatch_in_vain(story)
        slot = story.now
        story.begin(slot, token="t2")
        assert Stale(why="buffered") == story.start(overlap="queue")
        story.finish(slot, token="t2")
        assert story.redispatch().won

    @pytest.mark.parametrize("overlap", ["queue", "cancel"])
    def test_two_runs_of_a_job_not_known_as_supervised_do_not_wait_for_each_other_in_turn(
        self, story, overlap
    ):
        """A start that has to wait tells of the base class too: no run of the job is over once it is sent."""
        story.claim()
        story.sent(supervised=None)
        assert ("published", False) == (story.state(), story.record().supervised)
        story.now += MINUTE
        story.claim(T + MINUTE, nonce="n2", overlap="queue")
        assert Stale(why="buffered") == story.start(overlap=overlap)
        assert story.record().supervised
        story.sent(T + MINUTE, supervised=None)
        assert ("buffered", "queued") == (story.state(), story.state(T + MINUTE))
        assert isinstance(story.start(T + MINUTE, token="t2", overlap=overlap), Started)
        story.finish(T + MINUTE, token="t2")
        assert "released" == story.state()

    def test_a_run_recorded_anew_waits_behind_another_one(self, story):
        story.begin()
        answer = story.start(T - MINUTE, token="t2", claimed_at=OLD, overlap="queue", dispatch=3)
        assert Stale(why="buffered") == answer
        assert story.run(T - MINUTE) == Run(
            job="report", slot=T - MINUTE, state="buffered", dispatch=3, claimed_at=OLD
        )
        story.finish()
        assert story.run(T - MINUTE).state == "released"

    def test_a_run_recorded_anew_waits_while_its_job_is_paused(self, story):
        pause(story)
        assert Stale(why="paused") == story.start(claimed_at=OLD)
        assert Run(job="report", slot=T, state="buffered", claimed_at=OLD) == story.run()

    def test_of_one_instant_the_scheduled_run_goes_first_and_a_pause_is_not_about_the_others(self, story):
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

"""Somebody asks a run to stop, or forgets those that ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...protocol import (
    Registration,
    Renewal,
    Stale,
)
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


def claimed(story):
    story.claim()


def queued(story):
    story.claim()
    story.sent()


def released(story):
    story.begin()
    story.release(token="t1")


def published(story):
    story.claim()
    story.sent(supervised=False)


def waiting(story):
    story.store.pause("report", reason="r", by="b", now=T - MINUTE)
    story.store.resume("report", now=T - MINUTE)
    story.claim()
    story.store.pause("report", reason="r", by="b", now=T)


class Cancelling:
    """Somebody asks a run to stop, or forgets those that ended."""

    def test_one_that_runs_hears_it_at_its_next_heartbeat(self, story):
        story.begin()
        assert ("running", "no need") == (story.cancel().state, story.cancel(reason="again").stop)
        assert Renewal(answer="stop", reason="no need") == story.renew()
        assert story.release(token="t1")
        assert ("cancelled", "no need") == (story.state(), story.run().reason)

    def test_one_whose_holder_died_ends_when_its_deadline_passes(self, story):
        story.begin()
        story.cancel()
        story.wait_for_deadline()
        assert "cancelled" == story.redispatch().answer

    @pytest.mark.parametrize("come_there", [claimed, queued, released, published, waiting])
    def test_one_that_does_not_run_ends_at_once(self, story, come_there):
        come_there(story)
        story.trigger()
        story.now += SECOND
        run = story.cancel()
        assert ("cancelled", "no need", story.now, None) == (
            run.state,
            run.reason,
            run.finished_at,
            run.deadline,
        )
        assert run == story.run()
        with nothing_written(story.store):
            assert run == story.cancel(reason="again")
            assert Stale(why="cancelled") == story.start(token="late")

    def test_the_next_one_goes_on(self, story):
        story.trigger()
        story.trigger("a2")
        assert "cancelled" == story.of("manual").cancel().state
        assert "released" == story.state(T + 1)

    @pytest.mark.parametrize("reason", ["overlap", "paused"])
    def test_one_that_was_won_is_not_told_as_skipped_whatever_the_reason_reads_like(self, story, reason):
        story.claim(nonce="n1")
        story.cancel(reason=reason)
        with nothing_written(story.store):
            assert "taken" == story.claim(nonce="n1").answer

    def test_one_that_is_over_stays_as_it_is(self, story):
        story.begin()
        story.finish()
        with nothing_written(story.store):
            assert "succeeded" == story.cancel().state
            assert story.cancel(T + MINUTE) is None

    def test_ended_history_goes_and_a_floor_of_now_stays(self, story):
        story.begin()
        story.finish()
        story.trigger()
        story.of("manual").cancel()
        story.now += SECOND
        story.claim(T + SECOND, nonce="n2")
        other = Story(story.store, job="other")
        other.register(now=T - HOUR)
        other.begin()
        other.finish()
        assert 2 == story.store.forget("report", now=T + MINUTE)
        assert [("report", "claimed"), ("other", "succeeded")] == [
            (run.job, run.state) for run in story.store.runs()
        ]
        job = story.record()
        assert (T + MINUTE, [T + MINUTE]) == (job.floor, [known.floor for known in job.hashes])
        story.now += 2 * MINUTE
        assert ["taken", "overlap"] == answers(story.offer(T + MINUTE, T + MINUTE + 1, nonce="n3"))
        assert 1 == story.store.forget("report", now=story.now)
        assert 0 == story.store.forget("report", now=story.now)
        assert 0 == story.store.forget("nobody's", now=story.now)

    def test_it_is_forgotten_in_batches(self, story):
        for n in range(5):
            story.trigger(f"a{n}")
            story.of("manual").cancel(T + n)
            assert "cancelled" == story.state(T + n)
        assert [2, 2, 1, 0] == [story.store.forget("report", limit=2, now=T + MINUTE) for _ in range(4)]
        assert [] == story.store.runs()

    def test_a_node_tells_of_itself(self, store):
        node = replace(
            BEAT, app="proj", version="1.0", celery="5.6.0", python="3.12.1", clock_offset=-1500,
            schedule="ab12",
        )  # fmt: skip
        store.register(node, [Registration(job="report", hash="h")], now=T)
        assert [replace(node, seen=T)] == store.nodes()
        store.register(replace(node, clock_offset=3), [], now=T + 1)
        assert [replace(node, seen=T + 1, clock_offset=3)] == store.nodes()
        store.expired(replace(node, schedule="cd34", clock_offset=4), 10, now=T + 2)
        assert [replace(node, seen=T + 2, clock_offset=4, schedule="cd34")] == store.nodes()

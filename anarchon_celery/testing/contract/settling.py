"""A run ends without a start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...protocol import (
    Settle,
    Started,
)
from .scenes import (
    begin_to,
)
from .story import (
    MINUTE,
    SECOND,
    T,
    nothing_written,
)


class Settling:
    """A run ends without a start."""

    @pytest.mark.parametrize("outcome", ["cancelled", "published"])
    @pytest.mark.parametrize("state", ["claimed", "queued", "released"])
    def test_a_run_that_was_not_started_is_settled(self, story, state, outcome):
        begin_to(state, story)
        before = story.run()
        story.now += SECOND
        assert story.settle(outcome=outcome, reason="expired")
        assert story.run() == replace(
            before, state=outcome, reason="expired", finished_at=story.now, deadline=None, span=None
        )
        assert story.expired().runs == ()

    @pytest.mark.parametrize("outcome", ["cancelled", "published"])
    def test_a_settlement_whose_answer_was_lost_is_true_again(self, story, outcome):
        begin_to("queued", story)
        assert story.settle(outcome=outcome, dispatch=1)
        story.now += SECOND
        with nothing_written(story.store):
            assert story.settle(outcome=outcome, dispatch=1, reason="another")
            assert not story.settle(outcome="cancelled" if outcome == "published" else "published")

    @pytest.mark.parametrize("state", ["running", "buffered", "succeeded", "failed"])
    def test_what_runs_or_waits_or_has_ended_is_not_settled(self, story, state):
        begin_to(state, story)
        with nothing_written(story.store):
            assert [story.settle(outcome=outcome) for outcome in ("cancelled", "published")] == [False, False]

    @pytest.mark.parametrize("state", ["published", "cancelled"])
    def test_a_run_with_another_end_keeps_it(self, story, state):
        begin_to(state, story)
        with nothing_written(story.store):
            assert [story.settle(outcome=outcome) for outcome in ("cancelled", "published")] == [
                state == "cancelled", state == "published",
            ]  # fmt: skip

    def test_a_run_that_the_store_does_not_know_is_not_settled(self, story):
        with nothing_written(story.store):
            assert not story.settle()

    def test_a_settlement_may_be_of_one_dispatch_only(self, story):
        begin_to("queued", story)
        story.wait_for_deadline()
        story.redispatch()
        with nothing_written(story.store):
            assert not story.settle(dispatch=1)
            assert not story.settle(dispatch=3)
        assert story.settle(dispatch=2)
        with nothing_written(story.store):
            assert not story.settle(dispatch=1)

    def test_a_retry_that_nobody_will_start_is_settled(self, story):
        story.begin()
        story.requeue(delay=MINUTE)
        assert story.settle(outcome="cancelled", reason="revoked")
        assert (story.run().state, story.run().not_before) == ("cancelled", None)

    def test_a_message_that_comes_late_may_start_what_was_settled_as_published(self, story):
        begin_to("queued", story)
        story.settle(outcome="published")
        assert isinstance(story.start(), Started)

    def test_settlements_are_answered_in_the_order_asked(self, story):
        story.now = T + 1
        story.offer(T, T + 1, overlap="allow")
        story.start(T + 1)
        asked = [Settle(key=story.key(at), outcome="published", reason="r") for at in (T + 1, T + 9, T)]
        assert story.store.settle(asked, now=story.now) == [False, False, True]

"""Late slots, and schedules whose slots follow from each other."""

from __future__ import annotations

import pytest

from ...slots import Leap
from .story import (
    DAY,
    HOUR,
    MINUTE,
    T,
    answers,
    nothing_written,
)


class CatchingUp:
    """Late slots, and schedules whose slots follow from each other."""

    @pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
    def test_under_catch_up_all_late_slots_are_won_one_after_the_other(self, story, overlap):
        story.now += 3 * MINUTE
        slots = [T, T + MINUTE, T + 2 * MINUTE]
        for number, slot in enumerate(slots):
            claimed = story.offer(*slots, late=3, catch_up="all", overlap=overlap, nonce=f"n{number}")
            expected = ["taken"] * number + ["won"] + ["wait"] * (2 - number)
            assert (expected, slot, ()) == (answers(claimed), claimed.floor, claimed.ended)
            with nothing_written(story.store):
                later = story.offer(*slots[number:], late=3, catch_up="all", overlap=overlap, nonce="n9")
                assert answers(later) == ["taken"] + ["wait"] * (2 - number)
            story.start(slot, token=f"t{number}")
            assert story.finish(slot, token=f"t{number}")
        assert [run.state for run in story.store.runs()] == ["succeeded"] * 3

    def test_a_late_slot_that_waits_is_asked_again_with_the_same_answer(self, story):
        story.now += MINUTE
        first = story.offer(T, T + MINUTE, late=2, catch_up="all")
        assert answers(first) == ["won", "wait"]
        with nothing_written(story.store):
            assert first == story.offer(T, T + MINUTE, late=2, catch_up="all")

    def test_slots_behind_one_that_waits_count_as_late_and_wait(self, story):
        story.begin()
        story.now += 2 * MINUTE
        with nothing_written(story.store):
            claimed = story.offer(
                T, T + MINUTE, T + 2 * MINUTE, T + HOUR, late=2, catch_up="all", overlap="cancel", nonce="n2"
            )
        # What is decided, and what is not due, is told as ever.
        assert (answers(claimed), claimed.floor) == (["taken", "wait", "wait", "early"], T)

    def test_under_catch_up_all_slots_on_time_meet_the_overlap_policy(self, story):
        story.begin()
        story.now += MINUTE
        assert story.claim(T + MINUTE, nonce="n2", catch_up="all").answer == "overlap"

    @pytest.mark.parametrize("catch_up", ["latest", "none"])
    def test_under_another_catch_up_late_slots_meet_the_overlap_policy(self, story, catch_up):
        story.begin()
        story.now += MINUTE
        assert story.claim(T + MINUTE, nonce="n2", catch_up=catch_up, late=1).answer == "overlap"

    def test_under_catch_up_all_and_allow_late_slots_are_all_won(self, story):
        story.begin()
        story.now += 2 * MINUTE
        claimed = story.offer(T + MINUTE, T + 2 * MINUTE, late=2, catch_up="all", overlap="allow", nonce="n2")
        assert answers(claimed) == ["won", "won"]

    def test_a_leap_is_written_even_where_the_late_slots_wait(self, story):
        story.begin()
        story.now += 5 * MINUTE
        leap = Leap(first=T + MINUTE, last=T + 2 * MINUTE, count=2)
        claimed = story.offer(T + 3 * MINUTE, late=1, catch_up="all", leap=leap, nonce="n2")
        assert (claimed.missed.state, answers(claimed), claimed.floor) == ("missed", ["wait"], T + 2 * MINUTE)

    @pytest.mark.parametrize("after", [None, T - 1, T + 1])
    def test_a_slot_that_was_computed_from_another_floor_is_not_decided(self, story, after):
        story.claim()
        story.now += MINUTE
        leap = Leap(first=T + 1, last=T + 2, count=2)
        with nothing_written(story.store):
            claimed = story.offer(
                T + MINUTE, T + HOUR, chained=True, after=after, leap=leap, overlap="allow", nonce="n2"
            )
        assert (answers(claimed), claimed.floor, claimed.missed) == (["wait", "wait"], T, None)

    def test_a_slot_that_was_computed_from_a_floor_that_is_not_there_is_not_decided(self, story):
        with nothing_written(story.store):
            assert story.claim(chained=True, after=T - MINUTE).answer == "wait"

    def test_a_slot_that_was_computed_from_the_floor_is_decided(self, story):
        assert story.claim(chained=True, after=None).won
        story.now += MINUTE
        assert story.claim(T + MINUTE, chained=True, after=T, overlap="allow", nonce="n2").won

    def test_after_counts_only_for_a_chained_schedule(self, story):
        assert story.claim(chained=False, after=T - DAY).won

    def test_a_chained_claim_whose_answer_was_lost_has_the_same_answer_again(self, story):
        story.claim(nonce="n0")
        story.now += MINUTE
        leap = Leap(first=T + 1, last=T + 2, count=2)
        asked = {"chained": True, "after": T, "leap": leap, "overlap": "queue"}
        first = story.offer(T + 3, T + MINUTE, nonce="n1", **asked)
        assert answers(first) == ["overlap", "overlap"]
        assert first.missed is not None
        with nothing_written(story.store):
            assert first == story.offer(T + 3, T + MINUTE, nonce="n1", **asked)
            assert answers(story.offer(T + 3, T + MINUTE, nonce="n2", **asked)) == ["wait", "wait"]

"""A job is paused, and goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...protocol import (
    Claim,
    Renewal,
    Run,
    Stale,
    Started,
)
from ...slots import Leap
from ...stores import new_nonce
from .scenes import (
    pause,
    resume,
    wait_behind,
)
from .story import (
    HOUR,
    MINUTE,
    OLD,
    SECOND,
    Story,
    T,
    answers,
    nothing_written,
)


class Pausing:
    """A job is paused, and goes on."""

    def test_a_job_is_paused_with_reason_and_by_whom(self, story):
        before = story.record()
        assert pause(story)
        paused = replace(before, paused="an upgrade", paused_by="anna", paused_at=T)
        assert paused == story.record()
        assert story.register().paused == "an upgrade"
        with nothing_written(story.store):
            assert pause(story)

    def test_a_job_that_is_paused_again_has_the_new_reason_and_is_paused_since_then(self, story):
        pause(story)
        story.now += MINUTE
        assert pause(story, "é: ''", "bob")
        job = story.record()
        assert (job.paused, job.paused_by, job.paused_at) == ("é: ''", "bob", T)

    def test_a_pause_without_a_reason_is_one(self, story):
        assert pause(story, "")
        assert (story.claim().answer, story.register().paused) == ("paused", "")

    def test_a_job_the_store_does_not_have_is_not_paused(self, story):
        with nothing_written(story.store):
            assert not story.store.pause("other", reason="r", by="anna", now=T)
            assert not story.store.resume("other", now=T)

    def test_a_job_that_is_resumed_is_as_before(self, story):
        before = story.record()
        pause(story)
        assert resume(story)
        assert before == story.record()
        with nothing_written(story.store):
            assert not resume(story)
        assert story.claim().won

    def test_a_slot_of_a_paused_job_is_skipped_and_raises_the_floor(self, story):
        pause(story)
        leap = Leap(first=T - 2, last=T - 1, count=2)
        claimed = story.offer(T, leap=leap)
        skipped = Run(
            job="report", slot=T, state="skipped", dispatch=0, node="one:1", nonce="n1", claimed_at=T,
            finished_at=T, reason="paused",
        )  # fmt: skip
        assert (Claim(key=skipped.key, answer="paused", run=skipped),) == claimed.claims
        assert (T, "missed", skipped) == (claimed.floor, claimed.missed.state, story.run())
        with nothing_written(story.store):
            assert claimed == story.offer(T, leap=leap)
            assert story.claim(nonce="n2").answer == "taken"

    def test_late_slots_of_a_paused_job_are_skipped_under_catch_up_all_too(self, story):
        story.begin()
        pause(story)
        story.now += 2 * MINUTE
        claimed = story.offer(T + MINUTE, T + 2 * MINUTE, late=2, catch_up="all", nonce="n2")
        assert answers(claimed) == ["paused", "paused"]

    def test_a_slot_of_a_paused_job_that_is_not_due_is_early(self, story):
        pause(story)
        with nothing_written(story.store):
            assert story.claim(T + 1).answer == "early"

    @pytest.mark.parametrize("state", ["claimed", "queued", "released"])
    def test_a_pause_lets_what_does_not_run_wait_and_a_resume_lets_it_go_on(self, story, state):
        story.claim()
        if state == "queued":
            story.sent()
        if state == "released":
            story.release(nonce="n1", delay=MINUTE)
        before = story.run()
        story.now += SECOND
        pause(story)
        waiting = replace(before, state="buffered", deadline=None, span=None)
        assert waiting == story.run()
        with nothing_written(story.store):
            assert Stale(why="paused") == story.start()
            story.sent(dispatch=1)
        story.now += HOUR
        resume(story)
        assert replace(waiting, state="released", deadline=story.now, span=0) == story.run()
        assert isinstance(story.start(), Started)

    def test_a_claim_that_was_paused_before_its_answer_came_is_told_as_paused(self, story):
        story.claim(nonce="n1")
        pause(story)
        with nothing_written(story.store):
            assert Claim(key=story.key(), answer="paused", run=story.run()) == story.claim(nonce="n1")
            assert story.release(nonce="n1")

    def test_what_runs_goes_on_while_its_job_is_paused(self, story):
        story.begin()
        before = story.run()
        pause(story)
        assert before == story.run()
        assert story.renew().answer == "ok"
        assert story.finish()

    def test_a_run_of_a_paused_job_whose_holder_died_waits_after_its_crash_counted(self, story):
        story.begin()
        before = story.run()
        pause(story)
        story.wait_for_deadline()
        seen = story.as_seen()
        answer = story.redispatch(seen=seen)
        waiting = replace(
            before, state="buffered", crashes=1, token=None, nonce="m1", deadline=None, span=None
        )
        assert Claim(key=story.key(), answer="paused", run=waiting) == answer
        assert waiting == story.run()
        with nothing_written(story.store):
            assert answer == story.redispatch(seen=seen)
            assert Renewal(answer="lost", reason="taken back, attempt 2 waits") == story.renew()
            assert not story.finish()
        resume(story)
        assert story.redispatch(nonce="m2").run.trigger == "takeover"
        assert story.start(token="t2").attempt == 2

    def test_limits_end_a_run_of_a_paused_job_too(self, story):
        story.begin()
        pause(story)
        story.wait_for_deadline()
        assert story.redispatch(max_crashes=1).answer == "abandoned"

    def test_a_run_of_a_paused_job_that_is_given_back_waits(self, story):
        story.begin()
        before = story.run()
        pause(story)
        assert story.release(token="t1", delay=MINUTE, crash=True)
        assert replace(before, state="buffered", crashes=1, deadline=None, span=None) == story.run()
        with nothing_written(story.store):
            assert story.release(token="t1", delay=MINUTE, crash=True)
            assert not story.requeue()
        resume(story)
        assert story.begin_again().attempt == 2

    def test_a_retry_of_a_paused_job_waits_for_the_resume_and_then_for_its_time(self, story):
        story.begin()
        before = story.run()
        pause(story)
        assert story.requeue(delay=HOUR, retries=2)
        waiting = replace(
            before, state="buffered", queued_at=T, not_before=T + HOUR, retries=2, unstarted=1,
            deadline=None, span=None,
        )  # fmt: skip
        assert waiting == story.run()
        with nothing_written(story.store):
            assert story.requeue(delay=HOUR, retries=2)
            assert not story.release(token="t1")
            assert Stale(why="paused") == story.start(token="t2", retries=2)
        story.now += MINUTE
        resume(story)
        assert replace(waiting, state="released", deadline=T + HOUR, span=HOUR - MINUTE) == story.run()
        assert story.start(token="t2", retries=2).wait == HOUR - MINUTE
        story.wait_for_deadline()
        assert story.redispatch().run.retries == 2
        assert story.start(token="t2", retries=2).attempt == 1

    def test_a_retry_whose_time_has_come_goes_on_at_once(self, story):
        story.begin()
        pause(story)
        story.requeue(delay=MINUTE)
        story.now += HOUR
        resume(story)
        assert (story.run().deadline, story.run().span) == (story.now, 0)
        assert isinstance(story.start(token="t2", retries=1), Started)

    def test_an_end_promotes_nothing_of_a_paused_job(self, story):
        waiting = wait_behind(story)
        pause(story)
        story.finish()
        assert waiting == story.run(T + MINUTE)
        with nothing_written(story.store):
            assert Stale(why="paused") == story.start(T + MINUTE)
        resume(story)
        assert story.run(T + MINUTE).state == "released"

    def test_a_resume_promotes_nothing_while_another_run_is_active(self, story):
        waiting = wait_behind(story)
        pause(story)
        resume(story)
        assert waiting == story.run(T + MINUTE)

    def test_where_overlap_allows_it_the_next_slot_lets_all_go_on_that_wait(self, story):
        """Else what a pause held back would wait until nothing of its job runs, which may never be."""
        story.register()
        slots = [T + n * MINUTE for n in range(4)]
        for slot in slots[:3]:
            story.now = slot
            story.claim(slot, nonce=new_nonce(), overlap="allow")
        pause(story)
        resume(story)
        assert ["released", "buffered", "buffered"] == [story.run(slot).state for slot in slots[:3]]
        story.now = slots[3]
        assert story.claim(slots[3], nonce=new_nonce(), overlap="allow").won
        promoted = [(story.run(slot).state, story.run(slot).deadline) for slot in slots[1:3]]
        assert 2 * [("released", story.now)] == promoted

    def test_while_the_job_is_paused_overlap_allow_lets_nothing_go_on(self, story):
        waiting = wait_behind(story)
        pause(story)
        story.now = T + 2 * MINUTE
        assert "paused" == story.claim(T + 2 * MINUTE, nonce=new_nonce(), overlap="allow").answer
        assert waiting == story.run(T + MINUTE)

    def test_a_pause_touches_no_other_job(self, story):
        other = Story(story.store, job="other")
        other.register()
        other.claim()
        before = other.record(), other.run()
        pause(story)
        assert before == (other.record(), other.run())

    def test_a_store_that_does_not_know_a_job_learns_that_it_is_paused(self, store):
        story = Story(store)
        answer = story.register(paused="an upgrade")
        assert answer.paused == "an upgrade"
        job = story.record()
        assert (job.paused, job.paused_by, job.paused_at) == ("an upgrade", None, T)
        assert story.claim().answer == "paused"

    def test_of_a_job_that_the_store_knows_the_store_knows_whether_it_is_paused(self, story):
        assert story.register(paused="an upgrade").paused is None
        pause(story, "a move")
        assert story.register(paused=None).paused == "a move"
        assert story.register("h2", paused="an upgrade").paused == "a move"
        assert story.record().paused_by == "anna"

    def test_a_job_that_a_late_message_brought_back_learns_that_it_is_paused(self, store):
        story = Story(store)
        story.start(claimed_at=OLD)
        story.requeue(delay=0)
        assert story.run().state == "queued"
        assert story.register(paused="an upgrade").paused == "an upgrade"
        assert (story.run().state, story.run().deadline) == ("buffered", None)

    def test_a_job_that_a_late_message_brought_back_stays_paused_as_it_is(self, store):
        story = Story(store)
        story.start(claimed_at=OLD)
        pause(story, "a move", "bob")
        assert story.register(paused="an upgrade").paused == "a move"
        assert (story.record().paused_by, story.record().paused_at) == ("bob", T)

"""The clock that counts is the store's, also when it goes back."""

from __future__ import annotations

from dataclasses import replace

from ...protocol import (
    Holding,
    Offer,
    Redispatch,
    Registration,
    Release,
    Renewal,
    Request,
    RunKey,
    Sent,
    Start,
)
from ...slots import Leap
from .scenes import (
    ended,
    pause,
    resume,
    wall_clock,
)
from .story import (
    BEAT,
    HOUR,
    MINUTE,
    SECOND,
    T,
    answers,
    nothing_written,
)


def _went_back_after(story, *slots):
    """Have these slots run, and then the store's clock set back by an hour, and every floor cut."""
    ended(story, *slots)
    story.expired()
    story.now = T - HOUR
    story.expired()


class GoingByTheClock:
    """The clock that counts is the store's, also when it goes back."""

    def test_deadlines_further_away_than_their_state_allows_are_cut(self, story):
        story.begin()
        story.expired()
        story.now = T - HOUR
        assert T - HOUR + 30 * SECOND == story.expired().next_deadline == story.run().deadline

    def test_a_floor_beyond_now_is_cut_and_runs_that_exist_are_still_taken(self, story):
        ended(story, T - MINUTE, T)
        story.expired()
        story.now = T - HOUR
        story.expired()
        assert story.record().floor == T - HOUR
        story.now = T
        assert answers(story.offer(T - MINUTE, T - 1, T, nonce="n2")) == ["taken", "won", "taken"]
        assert story.record().floor == T, "the last one is decided as well"

    def test_a_leap_from_a_run_to_a_run_is_not_recorded(self, story):
        """They were decided before the clock went back."""
        _went_back_after(story, T - MINUTE, T)
        story.now = T + HOUR
        assert story.offer(leap=Leap(first=T - MINUTE, last=T, count=2), nonce="n2").missed is None
        assert story.record().floor == T

    def test_a_leap_that_was_recorded_before_the_clock_went_back_is_recorded_once(self, story):
        leap = Leap(first=T - MINUTE, last=T + MINUTE, count=3)
        story.now = T + HOUR
        missed = story.offer(leap=leap).missed
        story.expired()
        story.now = T - HOUR
        story.expired()
        story.now = T + HOUR
        assert story.offer(leap=leap, nonce="n2").missed is None
        assert [missed] == story.store.runs()

    def test_a_leap_beyond_what_ran_is_recorded_beside_its_first_slot(self, story):
        """The clock went back, and then further ahead than it had been: nobody decided those."""
        _went_back_after(story, T - MINUTE, T)
        story.now, leap = T + HOUR, Leap(first=T - MINUTE, last=T + MINUTE, count=3)
        claimed = story.offer(leap=leap, nonce="n2")
        missed = claimed.missed
        assert ("missed", T - MINUTE, "leapt") == (missed.state, missed.slot, missed.kind)
        assert (T + MINUTE, 3, T + MINUTE) == (missed.until, missed.count, claimed.floor)
        assert missed == story.store.run(missed.key)
        assert story.run(T - MINUTE).state == "succeeded"
        with nothing_written(story.store):
            assert claimed == story.offer(leap=leap, nonce="n2")

    def test_a_clock_that_went_back_by_a_second_cuts_nothing(self, story):
        story.begin()
        story.expired()
        story.now -= SECOND
        with nothing_written(story.store):
            story.expired()

    def test_a_deadline_that_its_state_allows_is_not_cut(self, story):
        story.begin()
        story.now = T + 20 * SECOND
        story.expired()
        story.now = T + 10 * SECOND
        with nothing_written(story.store):
            assert story.expired().next_deadline == T + 30 * SECOND

    def test_a_retry_that_waits_may_go_on_at_once_where_the_clock_went_back(self, story):
        """How long it was to wait is not known any more."""
        story.begin()
        pause(story)
        story.requeue(delay=MINUTE)
        waiting = story.run()
        story.expired()
        story.now = T - HOUR
        story.expired()
        assert replace(waiting, not_before=story.now) == story.run()
        resume(story)
        assert story.run().deadline == story.now

    def test_a_step_without_a_time_is_judged_by_the_stores_clock(self, store):
        before = wall_clock()
        store.register(BEAT, [Registration(job="report", hash="h")])
        slot = wall_clock() + HOUR
        early = store.claim("one:1", [Offer(job="report", slots=(slot,))], nonce="n1")[0].claims[0]
        due = store.claim("one:1", [Offer(job="report", slots=(before - MINUTE,))], nonce="n2")[0].claims[0]
        store.sent([Sent(key=due.key, dispatch=1, task_id="i", supervised=True)])
        started = store.start(Start(key=due.key, token="t1", worker="w"))
        after = wall_clock()
        run = store.run(due.key)
        seen = store.jobs()[0].seen
        assert (early.answer, due.answer) == ("early", "won")
        assert slot - after <= early.wait <= slot - before
        assert before <= seen <= run.claimed_at <= run.queued_at <= run.started_at <= after
        assert before * 1000 <= started.fence <= after * 1000
        assert store.run(due.key).deadline == run.started_at + 30 * SECOND

    def test_every_verb_reads_the_clock(self, store):
        before = wall_clock()
        key = RunKey("report", before - MINUTE)
        store.register(BEAT, [Registration(job="report", hash="h")])
        store.claim("one:1", [Offer(job="report", slots=(key.slot,))], nonce="n1")
        started = store.start(Start(key=key, token="t1", worker="w"))
        assert [Renewal(answer="ok")] == store.renew([Holding(key=key, token="t1", fence=started.fence)])
        assert store.requeue(key, "t1", delay=0, retries=1, start_timeout=0)
        first = store.expired(BEAT, 10).runs[0]
        seen = Redispatch(key=key, state=first.state, dispatch=first.dispatch, deadline=first.deadline)
        assert store.redispatch("one:1", [seen], nonce="m1")[0].won
        assert store.start(Start(key=key, token="t2", worker="w", retries=1)).fence > started.fence
        assert store.release([Release(key=key, token="t2")]) == [True]
        store.start(Start(key=key, token="t3", worker="w"))
        assert store.finish(key, "t3", "succeeded")
        assert wall_clock() - MINUTE < store.run(key).finished_at <= wall_clock()
        asked = Request(job="report", by="anna")
        entered = store.trigger(asked, nonce="a1").run
        (backfilled,) = store.backfill(asked, [key.slot], nonce="b1")
        assert (before, "buffered") <= (entered.slot, backfilled.answer) <= (wall_clock(), "buffered")
        assert before <= store.cancel(entered.key, reason="r").finished_at <= wall_clock()
        assert store.prune(history=HOUR, most=10) == 0
        assert store.prune(history=HOUR, most=1) == 1
        assert store.forget("report") == 1
        assert before <= store.jobs()[0].floor <= wall_clock()

    def test_every_answer_tells_the_stores_time(self, store):
        assert not store.clock.known
        before = wall_clock()
        store.expired(BEAT, 10)
        assert store.clock.known
        assert before - 1 <= store.clock.now() <= wall_clock() + 1

    def test_a_retry_may_start_as_long_after_its_requeue_where_the_clock_went_back(self, story):
        story.claim()
        story.sent()
        story.start()
        story.requeue(delay=MINUTE, retries=1)
        story.expired()
        story.now = T - HOUR
        story.expired()
        assert (story.run().deadline, story.run().not_before) == (T - HOUR + 6 * MINUTE, T - HOUR + MINUTE)

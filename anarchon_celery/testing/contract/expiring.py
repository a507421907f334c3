"""What is past its deadline is found, and dispatched again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...protocol import (
    Claim,
    Expired,
    Offer,
    Redispatch,
    Registration,
    RunKey,
    Stale,
    Started,
)
from .scenes import (
    dispatch_in_vain,
)
from .story import (
    BEAT,
    DAY,
    HOUR,
    MINUTE,
    OTHER,
    SECOND,
    Story,
    T,
    nothing_written,
)


class Expiring:
    """What is past its deadline is found, and dispatched again."""

    def test_a_claim_expires_after_the_claim_timeout(self, story):
        story.claim()
        assert story.expires_at() == T + 10 * SECOND

    def test_a_message_expires_after_the_countdown_and_the_start_timeout(self, story):
        story.claim()
        story.sent(countdown=7 * SECOND, start_timeout=4 * MINUTE)
        assert story.expires_at() == T + 7 * SECOND + 4 * MINUTE

    def test_the_start_timeout_doubles_for_each_dispatch_up_to_an_hour(self, story):
        waited = []
        story.claim()
        for attempt in range(5):
            story.sent(start_timeout=8 * MINUTE)
            waited.append((story.expires_at() - story.now) // MINUTE)
            story.wait_for_deadline()
            story.redispatch(nonce=f"m{attempt}")
        assert waited == [8, 16, 32, 60, 60]

    def test_a_start_timeout_over_an_hour_stays_what_it_is(self, story):
        story.claim()
        story.sent(start_timeout=2 * HOUR)
        assert story.expires_at() == T + 2 * HOUR

    def test_the_start_timeout_is_doubled_only_since_the_last_start(self, story):
        story.claim()
        for nonce in ("m1", "m2"):
            story.sent()
            story.wait_for_deadline()
            story.redispatch(nonce=nonce)
        story.start()
        story.wait_for_deadline()
        story.redispatch(nonce="m3")
        story.sent()
        assert story.expires_at() - story.now == 5 * MINUTE

    def test_a_running_run_expires_a_lease_after_its_start_or_last_renewal(self, story):
        story.claim()
        story.start(lease=20 * SECOND)
        assert story.expires_at() == T + 20 * SECOND
        story.now += 7 * SECOND
        story.renew()
        assert story.expires_at() == T + 27 * SECOND

    def test_a_retry_expires_after_its_delay_and_the_start_timeout(self, story):
        story.begin()
        story.requeue(delay=MINUTE)
        assert story.expires_at() == T + 6 * MINUTE

    def test_a_released_run_expires_at_once_or_after_its_delay(self, story):
        story.begin()
        story.release(token="t1")
        assert story.expires_at() == T
        story.redispatch()
        story.release(nonce="m1", delay=3 * SECOND)
        assert story.expires_at() == T + 3 * SECOND

    def test_an_ended_run_never_expires(self, story):
        story.begin()
        story.finish()
        story.now += 9 * DAY
        assert Expired(runs=(), next_deadline=None) == story.expired()

    def test_expired_runs_come_oldest_first_in_pages(self, store):
        names = ["b", "a:1", "a", "é", "a b", "Z"]
        store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T)
        for name in names:
            for slot, timeout in ((T - 2, 5), (T - 1, 5), (T, 4)):
                offer = Offer(job=name, slots=(slot,), overlap="allow", claim_timeout=timeout)
                store.claim("one:1", [offer], nonce=f"{name}-{slot}", now=T)
        expected = sorted(
            (T + (4 if slot == T else 5), RunKey(name, slot)) for name in names for slot in (T - 2, T - 1, T)
        )
        found = list[tuple[int, RunKey]]()
        while page := store.expired(BEAT, 4, after=found[-1] if found else None, now=T + 5).runs:
            found += [(run.deadline, run.key) for run in page]
            assert len(page) == 4 or len(found) == len(expected)
        assert expected == found

    def test_expired_says_when_the_next_deadline_is(self, story):
        assert story.expired().next_deadline is None
        story.now = T + 2
        story.offer(T, overlap="allow", claim_timeout=5, nonce="n1")
        story.offer(T + 1, overlap="allow", claim_timeout=9, nonce="n2")
        story.offer(T + 2, overlap="allow", claim_timeout=7, nonce="n3")
        assert story.expired().next_deadline == T + 7
        story.now = T + 9
        first = story.expired(1)
        assert ([run.slot for run in first.runs], first.next_deadline) == ([T], T + 11)
        story.now = T + 11
        assert story.expired(1).next_deadline is None

    def test_an_expired_run_is_claimed_again(self, story):
        seen = story.claim().run
        story.now += MINUTE
        again = story.redispatch(nonce="m1")
        expected = replace(
            seen, node="two:2", nonce="m1", dispatch=2, claimed_at=story.now, deadline=story.now + 10 * SECOND
        )
        assert Claim(key=story.key(), answer="won", run=expected) == again
        assert expected == story.run()

    def test_a_redispatch_whose_answer_was_lost_has_the_same_answer_again(self, story):
        story.claim()
        story.wait_for_deadline()
        seen = story.as_seen()
        first = story.redispatch(nonce="m1", seen=seen)
        story.now += SECOND
        with nothing_written(story.store):
            assert first == story.redispatch(nonce="m1", seen=seen)
            assert story.redispatch(nonce="m2", seen=seen).answer == "taken"

    def test_an_abandonment_whose_answer_was_lost_has_the_same_answer_again(self, story):
        story.begin()
        story.wait_for_deadline()
        seen = story.as_seen(max_crashes=1)
        first = story.redispatch(nonce="m1", seen=seen)
        assert (first.answer, first.run.state) == ("abandoned", "abandoned")
        with nothing_written(story.store):
            assert first == story.redispatch(nonce="m1", seen=seen)
            assert story.redispatch(nonce="m2", seen=seen).answer == "taken"

    @pytest.mark.parametrize("other", [{"state": "queued"}, {"dispatch": 2}, {"deadline": T + 1}])
    def test_a_run_is_redispatched_only_if_it_is_as_it_was_seen(self, story, other):
        story.claim()
        story.wait_for_deadline()
        seen = story.as_seen(**other)
        with nothing_written(story.store):
            assert Claim(key=story.key(), answer="taken", run=story.run()) == story.redispatch(seen=seen)

    def test_a_run_that_was_renewed_meanwhile_is_not_redispatched(self, story):
        story.begin()
        story.wait_for_deadline()
        seen = story.as_seen()
        story.renew()
        with nothing_written(story.store):
            assert story.redispatch(seen=seen).answer == "taken"

    def test_a_run_before_its_deadline_is_not_redispatched(self, story):
        story.claim()
        story.now += 10 * SECOND - 1
        with nothing_written(story.store):
            assert story.redispatch().answer == "taken"
        story.now += 1
        assert story.redispatch().answer == "won"

    def test_a_run_nobody_knows_is_not_redispatched(self, story):
        seen = Redispatch(key=story.key(), state="claimed", dispatch=1, deadline=T)
        with nothing_written(story.store):
            assert Claim(key=story.key(), answer="taken") == story.redispatch(seen=seen)

    def test_redispatches_are_answered_in_the_order_asked(self, story):
        story.now = T + 2
        story.offer(T, T + 1, T + 2, overlap="allow", claim_timeout=5)
        story.now = T + 9
        seen = [story.as_seen(T + 2), story.as_seen(T, dispatch=7), story.as_seen(T + 1)]
        answered = story.store.redispatch("two:2", seen, nonce="m1", now=story.now)
        assert [(claim.key.slot, claim.answer) for claim in answered] == [
            (T + 2, "won"),
            (T, "taken"),
            (T + 1, "won"),
        ]

    def test_only_a_redispatch_from_running_counts_a_crash(self, story):
        story.claim()
        story.wait_for_deadline()
        assert story.redispatch(nonce="m1").run.crashes == 0
        story.sent()
        story.wait_for_deadline()
        assert story.redispatch(nonce="m2").run.crashes == 0
        story.start()
        story.release(token="t1")
        assert story.redispatch(nonce="m3").run.crashes == 0
        story.start(token="t2")
        story.wait_for_deadline()
        assert story.redispatch(nonce="m4").run.crashes == 1

    def test_a_run_whose_holder_died_max_crashes_times_is_abandoned(self, story):
        story.begin()
        story.begin_again(token="t2")
        story.begin_again(token="t3")
        story.wait_for_deadline()
        last = story.run()
        ended = story.redispatch(nonce="m3")
        expected = replace(
            last, state="abandoned", crashes=3, token=None, nonce="m3", deadline=None, span=None,
            finished_at=story.now, reason="3 workers died running it",
        )  # fmt: skip
        assert Claim(key=story.key(), answer="abandoned", run=expected) == ended
        assert expected == story.run()

    def test_max_crashes_is_the_callers(self, story):
        story.begin()
        story.wait_for_deadline()
        assert story.redispatch(nonce="m1", max_crashes=2).answer == "won"
        story.start(token="t2")
        story.wait_for_deadline()
        assert story.redispatch(nonce="m2", max_crashes=2).answer == "abandoned"
        assert story.run().reason == "2 workers died running it"

    def test_handovers_are_no_crashes(self, story):
        story.begin(token="t0")
        for handover in range(9):
            assert story.release(token=f"t{handover}")
            story.begin_again(token=f"t{handover + 1}")
        assert (story.run().attempt, story.run().crashes) == (10, 0)

    def test_a_run_dispatched_five_times_without_a_start_is_abandoned(self, story):
        story.claim()
        answer = dispatch_in_vain(story)
        assert (answer.answer, answer.run.reason) == ("abandoned", "dispatched 5 times and never started")
        assert (story.run().state, story.run().dispatch, story.run().unstarted) == ("abandoned", 5, 5)

    def test_the_dispatches_are_counted_since_the_last_start(self, story):
        story.claim()
        for nonce in ("m1", "m2", "m3", "m4"):
            story.sent()
            story.wait_for_deadline()
            story.redispatch(nonce=nonce)
        story.start()
        story.release(token="t1")
        story.redispatch(nonce="m5")
        assert dispatch_in_vain(story).answer == "abandoned"
        assert (story.run().dispatch, story.run().unstarted) == (10, 5)

    def test_an_abandoned_run_that_never_started_may_be_started_by_a_late_message(self, story):
        story.claim()
        dispatch_in_vain(story)
        assert Started(attempt=1, fence=story.now * 1000, trigger="scheduled") == story.start()
        assert (story.run().state, story.run().finished_at, story.run().reason) == ("running", None, None)
        assert story.finish()

    @pytest.mark.parametrize("max_crashes", [1, 2])
    def test_an_abandonment_by_crashes_is_for_good(self, story, max_crashes):
        story.begin()
        story.wait_for_deadline()
        story.redispatch(nonce="m1", max_crashes=2)
        story.sent()  # max_crashes 1: a message waits, and a node with another policy judges
        if max_crashes == 2:
            story.start(token="t2")
        story.wait_for_deadline()
        assert story.redispatch(nonce="m2", max_crashes=max_crashes).answer == "abandoned"
        with nothing_written(story.store):
            assert Stale(why="abandoned") == story.start(token="t3")

    def test_a_run_whose_job_no_node_has_had_for_a_day_is_abandoned(self, story):
        story.begin()
        story.register(now=T + SECOND)
        story.now = T + DAY
        assert frozenset() == story.expired().orphaned
        story.now = T + DAY + 2 * SECOND
        assert frozenset({"report"}) == story.expired().orphaned
        assert story.redispatch().answer == "abandoned"
        assert story.run().reason == "no node has had its job for a day"

    def test_a_job_that_some_node_has_is_not_orphaned(self, story):
        story.begin()
        story.now = T + 2 * DAY
        story.store.register(OTHER, [Registration(job="report", hash="h9")], now=story.now - HOUR)
        assert frozenset() == story.expired().orphaned
        assert story.redispatch().answer == "won"

    def test_only_jobs_of_the_page_are_called_orphaned(self, story):
        story.claim()
        other = Story(story.store, job="other", now=T + 1)
        other.register()
        other.claim(T + 1, nonce="n2")
        story.now = T + 3 * DAY
        assert story.expired().orphaned == {"report", "other"}
        assert story.expired(1).orphaned == {"report"}
        after = (T + 10 * SECOND, story.key())
        assert story.expired(after=after).orphaned == {"other"}

    def test_one_worker_that_died_is_one(self, story):
        story.claim()
        story.sent()
        story.start()
        story.now = T + HOUR
        assert story.redispatch(max_crashes=1).run.reason == "1 worker died running it"

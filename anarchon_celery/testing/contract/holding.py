"""A lease is renewed."""

from __future__ import annotations

from dataclasses import replace

from ...protocol import (
    Holding,
    Offer,
    Redispatch,
    Registration,
    Release,
    Renewal,
    RunKey,
    Sent,
    Start,
)
from ...stores import CHUNK
from .story import (
    BEAT,
    HOUR,
    SECOND,
    T,
    nothing_written,
)


class Renewing:
    """A lease is renewed."""

    def test_a_renewal_moves_the_deadline_and_nothing_else(self, story):
        story.begin()
        before = story.run()
        story.now += 10 * SECOND
        assert Renewal(answer="ok") == story.renew()
        assert replace(before, deadline=story.now + 30 * SECOND) == story.run()

    def test_a_lease_that_ran_out_but_that_nobody_took_is_renewed(self, story):
        story.begin()
        story.now += HOUR
        assert Renewal(answer="ok") == story.renew()
        assert story.now + 30 * SECOND == story.run().deadline

    def test_a_lease_that_was_taken_over_is_lost(self, story):
        fence = story.begin().fence
        lost = Renewal(answer="lost", reason="taken over as attempt 2")
        story.wait_for_deadline()
        for step in (story.redispatch, story.sent, lambda: story.start(token="t2")):
            step()
            with nothing_written(story.store):
                assert lost == story.renew(token="t1", fence=fence)

    def test_a_lease_of_an_ended_run_is_lost_to_its_state(self, story):
        story.begin()
        story.finish(outcome="failed")
        with nothing_written(story.store):
            assert Renewal(answer="lost", reason="failed") == story.renew()

    def test_a_lease_on_a_run_that_is_gone_is_lost(self, story):
        assert Renewal(answer="lost", reason="the store does not know the run") == story.renew(fence=1)

    def test_renewals_are_answered_in_the_order_asked(self, story):
        story.now = T + 2
        for slot, token in ((T, "t1"), (T + 1, "t2"), (T + 2, "t3")):
            story.begin(slot, token=token, overlap="allow")
        story.now += 1
        held = [(T + 2, "t3"), (T + 1, "nobody"), (T - 1, "t0"), (T, "t1")]
        answered = story.store.renew(
            [Holding(key=story.key(slot), token=token, fence=1) for slot, token in held], now=story.now
        )
        assert [renewal.answer for renewal in answered] == ["ok", "lost", "lost", "ok"]

    def test_all_leases_of_a_process_are_renewed_in_one_call(self, store):
        names = [f"job {number}" for number in range(CHUNK)]
        store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T)
        claimed = store.claim("one:1", [Offer(job=name, slots=(T,)) for name in names], nonce="n1", now=T)
        assert [claim.answer for answer in claimed for claim in answer.claims] == ["won"] * CHUNK
        keys = [RunKey(name, T) for name in names]
        store.sent([Sent(key=key, dispatch=1, task_id="i", supervised=True) for key in keys], now=T)
        for key in keys:
            store.start(Start(key=key, token=f"t-{key.job}", worker="w"), now=T)
        held = [Holding(key=key, token=f"t-{key.job}", fence=T * 1000) for key in keys]
        assert [Renewal(answer="ok")] * CHUNK == store.renew(held, now=T + SECOND)
        assert {T + 31 * SECOND} == {run.deadline for run in store.runs(limit=CHUNK)}
        released = [Release(key=key, token=f"t-{key.job}") for key in keys]
        assert store.release(released, now=T + SECOND) == [True] * CHUNK
        expired = store.expired(BEAT, CHUNK, now=T + SECOND).runs
        seen = [
            Redispatch(key=run.key, state=run.state, dispatch=1, deadline=run.deadline) for run in expired
        ]
        answered = store.redispatch("two:2", seen, nonce="m1", now=T + SECOND)
        assert [claim.answer for claim in answered] == ["won"] * CHUNK

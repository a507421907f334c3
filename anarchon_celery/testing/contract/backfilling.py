"""Somebody asks for runs of slots that were."""

from __future__ import annotations

from ...protocol import (
    Holding,
    Requested,
    RunKey,
    Start,
    Started,
)
from .scenes import (
    ARGUMENTS,
)
from .story import (
    HOUR,
    MINUTE,
    OLD,
    SECOND,
    T,
    nothing_written,
)


class Backfilling:
    """Somebody asks for runs of slots that were."""

    def test_slots_that_were_enter_in_their_order_beside_what_ran(self, story):
        story.begin()
        story.finish()
        before = story.record()
        slots = [T - 2 * MINUTE, T - MINUTE, T]
        found = story.backfill(*slots, arguments=ARGUMENTS)
        assert ["released", "buffered", "buffered"] == [one.answer for one in found]
        assert [(slot, "backfill", "backfill", ARGUMENTS) for slot in slots] == [
            (one.run.slot, one.run.kind, one.run.trigger, one.run.arguments) for one in found
        ]
        assert before == story.record()
        story.of("backfill").dispatched(slots[0])
        story.start(slots[0], token="t2")
        story.finish(slots[0], token="t2")
        assert "released" == story.state(slots[1])

    def test_a_slot_is_backfilled_once_and_the_same_request_is_known_again(self, story):
        first = story.backfill(T - MINUTE, T)
        with nothing_written(story.store):
            assert first == story.backfill(T - MINUTE, T)
            assert ["taken", "taken"] == [one.answer for one in story.backfill(T - MINUTE, T, nonce="b2")]
        assert first[0].run == story.backfill(T - MINUTE, nonce="b2")[0].run

    def test_a_slot_that_is_not_due_is_not_backfilled(self, story):
        with nothing_written(story.store):
            assert [Requested(answer="early", wait=1)] == story.backfill(T + 1)
        assert [] == story.backfill()

    def test_in_a_young_store_nothing_is_entered(self, wipe_store, story):
        story.begin()
        wipe_store()
        story.now += MINUTE
        story.register(cursor=T, first_seen=T - HOUR, supervised=True)
        with nothing_written(story.store):
            assert Requested(answer="wait", wait=30 * SECOND) == story.trigger()
            assert [Requested(answer="wait", wait=30 * SECOND)] == story.backfill(T)
        story.now += 30 * SECOND
        assert "released" == story.trigger().answer

    def test_a_store_that_forgot_it_is_told_of_its_arguments_by_its_message(self, story):
        asked = Start(
            key=RunKey("report", T, "manual"), token="t1", worker="w", claimed_at=OLD, trigger="manual",
            arguments=ARGUMENTS,
        )  # fmt: skip
        assert isinstance(story.store.start(asked, now=T), Started)
        assert (ARGUMENTS, "manual") == (story.of("manual").run().arguments, story.run().trigger)

    def test_a_store_that_forgot_it_is_told_of_its_arguments_by_its_holder(self, story):
        held = Holding(
            key=RunKey("report", T, "manual"), token="t1", fence=T * 1000, trigger="manual",
            arguments=ARGUMENTS, store="another", trusted=True,
        )  # fmt: skip
        story.store._at, story.store.identity = T, "another"
        (said,) = story.store.renew([held], now=T)
        assert ("ok", ARGUMENTS) == (said.answer, story.of("manual").run().arguments)

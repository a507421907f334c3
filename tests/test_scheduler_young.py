"""Beats whose store has forgotten something: they register again, nothing is lost, nothing runs beside."""

from __future__ import annotations

from anarchon_celery import scheduler
from anarchon_celery.protocol import PUT_BACK, Holding, Start
from tests.rollback import snapshot, wipe
from tests.stage import T, clock, lines, log, on_every_store, stage
from tests.test_scheduler import no_broker
from tests.test_scheduler_policies import decided, finish, hold, published, sync, told, two

__all__ = ["clock", "log", "no_broker", "stage"]  # fixtures

FORGOT = "is another store than before: wiped, restored or failed over; for one lease (30 s) nothing starts"


def held(stage, beat, ms: int = 0, *, overlap: str = "skip") -> Holding:
    """A worker starts the run and keeps what a keeper keeps."""
    key, claimed_at = stage.the_run(ms).key, stage.the_run(ms).claimed_at
    started = stage.store.start(Start(key=key, token="t", worker="w:1"))
    return Holding(
        key=key, token="t", fence=started.fence, attempt=started.attempt, owner="w:1",
        trigger=started.trigger, claimed_at=claimed_at, overlap=overlap, store=started.store, trusted=True,
    )  # fmt: skip


@on_every_store
def test_what_comes_due_while_a_wiped_store_is_young_is_offered_as_if_it_came_due_then(stage, log):
    beats = two(stage, sync(overlap="allow", catch_up="latest"))
    stage.play(1_000, *beats)
    hold(stage)
    finish(stage)
    published(stage)
    wipe(stage.store.store)
    stage.play(31_000, *beats)
    assert ([], {}) == (published(stage), decided(stage))
    stage.play(35_000, *beats)
    assert [10, 20, 30] == published(stage)
    assert {"scheduled"} == {run.trigger for run in stage.store.runs()}, "none is late"
    assert 2 == len(lines(log, FORGOT)), "each node tells it once"
    stage.play(60_000, *beats)
    assert [40, 50, 60] == published(stage)
    assert [] == told(log, "missed")


@on_every_store
def test_a_run_that_its_holder_put_back_keeps_the_next_slots_off(stage, log):
    beats = two(stage, sync())
    stage.play(1_000, *beats)
    holding = held(stage, beats[0])
    wipe(stage.store.store)
    stage.play(4_000, *beats)
    assert PUT_BACK == stage.store.renew([holding])[0].reason
    for until in range(14_000, 44_000, 10_000):
        stage.play(until, *beats)
        assert "ok" == stage.store.renew([holding])[0].answer
    assert [0] == published(stage), "before it was wiped"
    assert {0: "running", 10: "skipped", 20: "skipped", 30: "skipped"} == {
        slot: state for slot, (state, _) in decided(stage).items()
    }
    finish(stage)
    stage.play(44_000, *beats)
    assert [40] == published(stage)


@on_every_store
def test_a_store_that_lost_its_last_second_loses_no_slot_and_no_run(stage, log):
    beats = two(stage, sync())
    stage.play(9_500, *beats)
    hold(stage)
    finish(stage)
    published(stage)
    restore = snapshot(stage.store.store)
    stage.play(10_500, *beats)
    assert [10] == published(stage)
    holding = held(stage, beats[0], 10_000)
    restore()
    stage.play(13_000, *beats)
    assert [] == published(stage), "though no run of it is known"
    assert PUT_BACK == stage.store.renew([holding])[0].reason
    assert stage.store.finish(holding.key, "t", "succeeded")
    stage.play(45_000, *beats)
    assert [20] == published(stage)[:1]
    assert ("succeeded", None) == decided(stage)[10]
    assert 2 == len(lines(log, FORGOT))


@on_every_store
def test_a_claim_that_was_lost_with_its_message_is_made_again(stage, log):
    beats = two(stage, sync(overlap="allow"))
    stage.play(9_500, *beats)
    restore = snapshot(stage.store.store)
    stage.play(10_500, *beats)
    assert [0, 10] == published(stage)
    restore()
    stage.play(40_500, *beats)
    assert [] == published(stage)
    stage.play(42_000, *beats)
    assert [10, 20, 30, 40] == published(stage)


def test_a_run_past_its_deadline_is_left_to_its_holder_while_the_store_is_young(stage, log):
    beats = two(stage, sync(every=3600))
    stage.play(500, *beats)
    hold(stage)
    restore = snapshot(stage.store.store)
    stage.store.pause("sync", reason="r", by="anna")
    stage.play(25_000, *beats)  # notes that they live
    restore()
    stage.play(54_000, *beats)
    assert ("running", 0) == (stage.the_run().state, stage.the_run().crashes)
    stage.play(57_000, *beats)
    assert ("queued", 1) == (stage.the_run().state, stage.the_run().crashes)


def test_a_beat_whose_jobs_are_all_gone_registers_with_another_store_too(stage, log):
    beat = stage.beat(sync())
    beat.tick()
    beat.plan.jobs.clear()
    wipe(stage.store.store)
    stage.run(beat, 3_000)
    assert 0 < beat.tick()
    assert 1 == len(lines(log, FORGOT))
    assert 1 == len(stage.store.nodes())


def test_a_beat_whose_store_is_replaced_between_two_chunks_registers_all_jobs_again(stage, monkeypatch):
    monkeypatch.setattr(scheduler, "CHUNK", 1)
    jobs = {f"job-{n}": sync()["sync"] for n in range(3)}
    beat, faults = stage.faulty_beat(jobs)
    beat.tick()
    beat._registered_at = None
    calls = faults.calls["register"]

    def wipe_after_the_first(verb: str) -> bool:
        if verb == "register" and faults.calls["register"] == calls + 1:
            wipe(stage.store.store)
        return False

    faults.loses = wipe_after_the_first
    stage.run(beat, 2_000)
    assert set(jobs) == {job.name for job in stage.store.jobs()}
    assert calls + 6 == faults.calls["register"]


def test_what_was_asked_of_a_store_that_forgot_it_is_asked_again(stage, log):
    """The answer of the claim was lost, and then the store."""
    beat, faults = stage.faulty_beat(sync())
    beat.tick()
    hold(stage)
    finish(stage)
    published(stage)
    faults.lose_answer_of = ["claim"]
    stage.run(beat, 10_200)
    wipe(stage.store.store)
    stage.run(beat, 35_000)
    assert [10] == published(stage)[:1]


def test_a_node_goes_back_to_a_claim_that_was_lost_though_it_first_gives_it_back(stage, log, no_broker):
    """Of giving back nothing is refused; but it has to register all the same."""
    beat, faults = stage.faulty_beat(sync(), broker=no_broker)
    stage.run(beat, 9_500)
    restore = snapshot(stage.store.store)
    faults.loses = lambda verb: verb == "release"
    stage.clock.ms = 10_000
    beat.tick()
    assert 10 in decided(stage)
    restore()
    assert 10 not in decided(stage)
    faults.loses = lambda verb: False
    stage.run(beat, 35_000)
    assert 10 in decided(stage)


def test_a_node_registers_though_it_first_hears_of_it_by_recording_what_it_did(stage, log):
    beat, faults = stage.faulty_beat(sync())
    beat.tick()
    hold(stage)
    finish(stage)
    published(stage)
    faults.lose_answer_of = ["sent"]
    stage.run(beat, 10_200)
    wipe(stage.store.store)
    stage.run(beat, 2_000)
    (job,) = stage.store.jobs()
    assert job.floor == T + 10_000

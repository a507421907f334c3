"""Overlap, catch-up, pause, changed schedules, chains, one-off jobs: as the nodes of a cluster decide them.

Beats and stores are the real ones. Each decision is told once, by the node that made it; where order
matters the test is played on every store. Times are milliseconds, or seconds in what is told, after T.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import timedelta

import pytest
from celery.schedules import BaseSchedule

from anarchon_celery import cron, headers, once
from anarchon_celery.arguments import written
from anarchon_celery.protocol import OVERTAKEN, Request, RunKey, Start, Started
from anarchon_celery.slots import from_iso, iso
from tests.rollback import wipe
from tests.stage import (
    HOUR,
    MINUTE,
    SECOND,
    Faults,
    T,
    Worker,
    clock,
    lines,
    log,
    on_every_store,
    put_in_front,
    stage,
)

__all__ = ["clock", "log", "stage"]  # fixtures

DAY = 24 * HOUR


def sync(every=10, **policy):
    """A job of every ten seconds that a worker has to start."""
    policy = {"supervised": True} | policy
    return {"sync": {"task": "proj.sync", "schedule": every, "options": {"anarchon": policy}}}


def told(log, containing: str = "") -> list[str]:
    """What was said of runs, as ``10: skipped (taken)``: the seconds, and the line."""
    found = []
    for line in lines(log, containing):
        if slot := re.match(r"sync @ (\S+Z): ", line):
            found.append(f"{(from_iso(slot[1]) - T) / SECOND:g}: {line[slot.end() :]}")
    return found


def published(stage) -> list[int]:
    """The slots of the messages in the queue, in their order, in seconds."""
    return [(from_iso(slot) - T) // SECOND for slot in stage.slots()]


def hold(stage, ms: int = 0, *, token: str = "t", lease: int = 30_000) -> None:
    """A worker starts the run."""
    asked = Start(key=RunKey("sync", T + ms), token=token, worker="w:1", lease=lease)
    assert isinstance(stage.store.start(asked), Started)


def finish(stage, ms: int = 0, outcome: str = "succeeded", *, token: str = "t") -> None:
    assert stage.store.finish(RunKey("sync", T + ms), token, outcome)


def decided(stage) -> dict[int, tuple[str, str | None]]:
    """State and reason of each run, by its slot in seconds."""
    runs = reversed(stage.store.runs(limit=10_000))
    return {(run.slot - T) // SECOND: (run.state, run.reason) for run in runs}


def two(stage, schedule, **conf):
    """Two nodes, each asking in its own turn."""
    return [stage.beat(schedule, anarchon_node=name, **conf) for name in ("one:1", "two:2")]


def floors(stage, *beats) -> set[int | None]:
    """Up to where the store and each node think that the slots are decided."""
    (job,) = [job for job in stage.store.jobs() if job.name == "sync"]
    return {job.floor, *(beat.plan.jobs["sync"].floor for beat in beats)}


WAITS = "buffered until the run before it ends"
PAUSED = "buffered until its job is resumed"
SKIPPED = "skipped (overlap)"


# Overlap: queue ---------------------------------------------------------------------------------


@on_every_store
def test_under_queue_a_slot_waits_for_the_run_before_it_and_is_published_within_a_poll_of_its_end(stage, log):
    beat = stage.beat(sync(overlap="queue"))
    beat.tick()
    hold(stage)
    stage.run(beat, 13_300)
    assert [0] == published(stage)
    waiting = stage.the_run(10_000)
    assert ("buffered", 0, None, None) == (
        waiting.state, waiting.dispatch, waiting.deadline, waiting.reason,
    )  # fmt: skip
    finish(stage)
    stage.run(beat, 1_000)
    assert [10] == published(stage)
    run = stage.the_run(10_000)
    assert ("queued", 1, "scheduled") == (run.state, run.dispatch, run.trigger)
    assert run.queued_at - T - 13_300 <= 1_000
    assert [
        "0: dispatched by one:1 (attempt 1, catch-up)",
        f"10: {WAITS}",
        "10: dispatched by one:1 (attempt 1, scheduled)",
    ] == told(log)  # fmt: skip


@on_every_store
def test_under_queue_the_newest_slot_takes_the_place_of_the_one_that_waits_and_both_are_told_once(stage, log):
    beat = stage.beat(sync(overlap="queue"))
    beat.tick()
    hold(stage)
    stage.run(beat, 29_000)
    finish(stage)
    stage.run(beat, 1_000)
    assert [0, 20] == published(stage), "and 30 waits in its turn"
    assert {
        0: ("succeeded", None), 10: ("skipped", "overlap"), 20: ("queued", None), 30: ("buffered", None),
    } == decided(stage)  # fmt: skip
    assert [
        "0: dispatched by one:1 (attempt 1, catch-up)",
        f"10: {WAITS}",
        f"10: {SKIPPED}",
        f"20: {WAITS}",
        f"30: {WAITS}",
        "20: dispatched by one:1 (attempt 1, scheduled)",
    ] == told(log)


def test_under_queue_each_of_two_nodes_tells_its_own_decisions_and_what_it_lost(stage, log):
    beats = two(stage, sync(overlap="queue"))
    stage.play(100, *beats)
    hold(stage)
    stage.play(20_100, *beats)
    finish(stage)
    stage.play(21_200, *beats)
    assert [0, 20] == published(stage)
    counted = Counter(told(log))
    assert {
        f"10: {WAITS}": 1,
        f"10: {SKIPPED}": 1,
        "10: skipped (taken)": 1,
        f"20: {WAITS}": 1,
        "20: skipped (taken)": 1,
    } == {line: times for line, times in counted.items() if not line.startswith("0:") and "disp" not in line}
    assert 1 == sum(times for line, times in counted.items() if line.startswith("20: dispatched"))
    assert {T + 20_000} == floors(stage, *beats)


def test_under_queue_slots_of_one_look_leave_the_newest_waiting(stage, log):
    # The node was kept from looking; both slots are on time still.
    beat = stage.beat(sync(3, overlap="queue"))
    beat.tick()
    hold(stage)
    stage.clock.ms = 9_500
    beat.tick()
    assert {
        0: ("running", None), 3: ("skipped", "overlap"), 6: ("skipped", "overlap"), 9: ("buffered", None),
    } == decided(stage)  # fmt: skip
    assert [f"3: {SKIPPED}", f"6: {SKIPPED}", f"9: {WAITS}"] == told(log)[1:], "as it is in the end"


def test_a_slot_that_waits_is_not_told_twice_when_the_answer_was_lost(stage, log):
    beat, faults = stage.faulty_beat(sync(overlap="queue"))
    beat.tick()
    hold(stage)
    stage.run(beat, 9_500)
    faults.lose_answer_of = ["claim"]
    stage.run(beat, 2_000)
    first, second = [asked for asked in faults.asked if asked[0] == "claim"][1:]
    assert first == second
    assert [f"10: {WAITS}"] == told(log, "10.000Z")
    assert ("buffered", None) == decided(stage)[10]


def test_a_slot_that_waited_and_went_on_before_the_answer_came_is_not_told_of_as_skipped(stage, log):
    beat, faults = stage.faulty_beat(sync(overlap="queue"))
    beat.tick()
    hold(stage)
    stage.run(beat, 9_500)
    faults.lose_answer_of = ["claim"]
    stage.clock.ms = 10_000
    beat.tick()
    finish(stage)  # promotes it, before the node has learnt of it
    stage.messages()
    stage.run(beat, 2_000)
    assert [10] == published(stage)
    assert [f"10: {WAITS}", "10: dispatched by one:1 (attempt 1, scheduled)"] == told(log)[1:]


# Overlap: cancel --------------------------------------------------------------------------------


@on_every_store
def test_under_cancel_a_run_that_was_not_started_ends_and_its_message_is_stale(stage, log):
    beat = stage.beat(sync(overlap="cancel"))
    stage.run(beat, 10_000)
    first, second = stage.messages()
    assert [iso(T), iso(T + 10_000)] == [message.headers["anarchon"]["slot"] for message in (first, second)]
    assert {0: ("cancelled", OVERTAKEN), 10: ("queued", None)} == decided(stage)
    late = Start(key=RunKey("sync", T), token="t", worker="w:1", overlap="cancel")
    assert "cancelled" == stage.store.start(late).why
    hold(stage, 10_000)
    assert [
        "0: dispatched by one:1 (attempt 1, catch-up)",
        f"0: cancelled: {OVERTAKEN}",
        "10: dispatched by one:1 (attempt 1, scheduled)",
    ] == told(log)


@on_every_store
def test_under_cancel_a_run_is_asked_to_stop_and_the_next_follows_within_a_poll_of_its_end(stage, log):
    beat = stage.beat(sync(overlap="cancel"))
    worker = Worker(stage, takes=HOUR)
    stage.play(20_900, beat, worker)
    assert [0, 10_000] == [ms for ms, _ in worker.began]
    assert [(0, 10_000, "cancelled"), (10_000, 20_000, "cancelled")] == worker.ended
    assert worker.began[1][1] - worker.ended[0][1] <= 1_100
    assert {
        0: ("cancelled", OVERTAKEN), 10: ("cancelled", OVERTAKEN), 20: ("released", None),
    } == decided(stage)  # fmt: skip
    assert [
        "0: dispatched by one:1 (attempt 1, catch-up)",
        f"10: {WAITS}",
        "10: dispatched by one:1 (attempt 1, scheduled)",
        f"20: {WAITS}",
    ] == told(log)


def test_under_cancel_a_run_whose_worker_died_before_it_stopped_is_ended_by_beat_and_told_once(stage, log):
    beats = two(stage, sync(60, overlap="cancel"))
    stage.play(59_900, *beats)
    hold(stage, lease=5_000)
    stage.play(66_100, *beats)
    assert ("cancelled", OVERTAKEN, 1, None) == (
        (run := stage.the_run()).state, run.reason, run.crashes, run.token,
    )  # fmt: skip
    assert [f"0: cancelled: {OVERTAKEN}"] == told(log, ": cancelled")
    assert 60 == published(stage)[-1], "and the slot that waited for it is out"


def test_a_run_that_beat_ended_is_told_once_though_the_answer_was_lost(stage, log):
    beat, faults = stage.faulty_beat(sync(60, overlap="cancel"))
    stage.run(beat, 59_900)
    hold(stage, lease=5_000)
    faults.lose_answer_of = ["redispatch"]
    stage.run(beat, 8_000)
    first, second = [asked for asked in faults.asked if asked[0] == "redispatch"][:2]
    assert first == second
    assert [f"0: cancelled: {OVERTAKEN}"] == told(log, ": cancelled")
    assert [0, 60] == published(stage)


def late_for_two_slots(stage, **policy):
    """A node that has two slots of one job to offer at once, neither of them late."""
    beat, faults = stage.faulty_beat(sync(3, overlap="cancel"))
    beat.tick()
    hold(stage)
    finish(stage)
    stage.messages()
    stage.clock.ms = 6_500
    return beat, faults


@on_every_store
def test_of_two_slots_of_one_look_the_older_is_cancelled_unpublished_and_told_once(stage, log):
    beat, _ = late_for_two_slots(stage)
    beat.tick()
    assert [6] == published(stage)
    assert {0: ("succeeded", None), 3: ("cancelled", OVERTAKEN), 6: ("queued", None)} == decided(stage)
    assert [
        f"3: cancelled: {OVERTAKEN}", "6: dispatched by one:1 (attempt 1, scheduled)",
    ] == told(log)[1:]  # fmt: skip
    stage.run(beat, 2_400)
    assert 2 == len(told(log)) - 1, "neither is offered again"


def test_and_so_it_is_when_the_answer_was_lost(stage, log):
    beat, faults = late_for_two_slots(stage)
    faults.lose_answer_of = ["claim"]
    beat.tick()
    stage.run(beat, 2_400)
    first, second = [asked for asked in faults.asked if asked[0] == "claim"][1:]
    assert first == second
    assert [6] == published(stage)
    assert [
        f"3: cancelled: {OVERTAKEN}", "6: dispatched by one:1 (attempt 1, scheduled)",
    ] == told(log)[1:]  # fmt: skip


@pytest.mark.parametrize(
    ("overlap", "end"), [("cancel", f"cancelled: {OVERTAKEN}"), ("queue", SKIPPED)], ids=["cancel", "queue"]
)
def test_what_another_node_ended_before_the_answer_came_is_told_by_that_one_alone(stage, log, overlap, end):
    schedule = sync(3, overlap=overlap)
    beat, faults = stage.faulty_beat(schedule, anarchon_node="one:1")
    other = stage.beat(schedule, anarchon_node="two:2")
    other.tick()
    if overlap == "queue":
        hold(stage)
    stage.run(beat, 2_900)
    faults.lose_answer_of = ["claim"]
    stage.clock.ms = 3_000
    beat.tick()
    stage.clock.ms = 6_000
    other.tick()
    assert [f"3: {end}"] == told(log, f"sync @ {iso(T + 3_000)}: {end}")
    stage.run(beat, 1_000)
    assert [f"3: {end}"] == told(log, f"sync @ {iso(T + 3_000)}: {end}")


def test_under_cancel_a_run_that_does_not_heed_is_waited_for_until_its_lease_ends(stage, log):
    beat = stage.beat(sync(10, overlap="cancel", lease=6))
    deaf = Worker(stage, takes=HOUR, heeds=False)
    stage.play(15_500, beat, deaf)
    assert [(0, 0)] == [(ms, at // 1000) for ms, at in deaf.began], "its lease is still its own"
    stage.play(17_200, beat, deaf)
    assert [0, 10_000] == [ms for ms, _ in deaf.began]
    assert ("cancelled", OVERTAKEN) == decided(stage)[0]


# Catch-up: all ----------------------------------------------------------------------------------


def outage(stage, ms: int, **how) -> None:
    """One slot is decided and run; then nobody looks for so long."""
    beat = stage.beat(sync(**how))
    beat.tick()
    hold(stage)
    finish(stage)
    stage.messages()
    beat.close()
    stage.clock.advance(ms)


@on_every_store
def test_under_all_each_slot_that_nobody_saw_runs_in_turn(stage, log):
    outage(stage, 65_000, catch_up="all")
    beats = two(stage, sync(catch_up="all"))
    worker = Worker(stage, takes=1_500)
    stage.play(100_000, *beats, worker)
    # By when 60 has its turn it is late; 70 is not, and meets the overlap policy.
    assert [10, 20, 30, 40, 50, 60, 80, 90, 100] == [ms // SECOND for ms, _ in worker.began], "oldest first"
    assert all(done <= began for (_, done, _), (_, began) in pairwise_ends(worker)), "one after the other"
    assert [] == worker.stale
    late = {(run.slot - T) // SECOND for run in stage.store.runs() if run.trigger == "catch-up"}
    assert {0, 10, 20, 30, 40, 50, 60} == late
    assert [f"70: {SKIPPED}"] == told(log, SKIPPED)
    assert 9 == len([line for line in told(log, "dispatched") if not line.startswith("0:")])
    assert {T + 100_000} == floors(stage, *beats)


def pairwise_ends(worker):
    """Each run's end beside the beginning of the next."""
    return zip(worker.ended, worker.began[1:], strict=False)


def test_under_all_what_comes_due_behind_a_late_slot_waits_for_its_turn_too(stage, log):
    outage(stage, 35_000, catch_up="all")
    beat = stage.beat(sync(catch_up="all"))
    stage.run(beat, 100)
    assert {0: ("succeeded", None), 10: ("queued", None)} == decided(stage)
    stage.run(beat, 20_000)
    assert {0, 10} == set(decided(stage)), "30, 40 and 50 are not decided before 20 is"
    assert ["10: dispatched by one:1 (attempt 1, catch-up)"] == told(log)[1:], "and nothing is said of them"
    assert {T + 10_000} == floors(stage, beat)


@pytest.mark.parametrize(("poll", "times"), [(1, 10), (2.5, 4)])
def test_under_all_a_node_that_waits_for_a_long_run_asks_once_a_poll(stage, poll, times):
    outage(stage, 65_000, catch_up="all")
    beat, faults = stage.faulty_beat(sync(catch_up="all"), anarchon_poll=poll)
    stage.run(beat, 5_000)
    assert faults.calls["claim"] <= 5 + times, "a little oftener at first"
    faults.calls.clear()
    stage.run(beat, 10_000)
    assert times - 1 <= faults.calls["claim"] <= times + 1
    assert times - 1 <= faults.calls["expired"] <= times + 1


def test_under_all_the_next_follows_within_a_poll_of_the_end_of_the_one_before(stage):
    outage(stage, 65_000, catch_up="all")
    beat = stage.beat(sync(catch_up="all"))
    worker = Worker(stage, takes=2_300)
    stage.play(80_000, beat, worker)
    waits = [began - done for (_, done, _), (_, began) in pairwise_ends(worker)]
    assert 5 <= len(waits)
    assert max(waits) <= 1_100


def test_under_all_a_job_of_every_second_works_its_backlog_off(stage, log):
    outage(stage, 40_000, every=1, catch_up="all")
    beats = two(stage, sync(1, catch_up="all"))
    worker = Worker(stage, takes=200)
    stage.play(90_000, *beats, worker)
    began = [slot // SECOND for slot, _ in worker.began]
    skipped = [slot for slot, (state, _) in decided(stage).items() if state == "skipped"]
    assert [slot for slot in range(1, 91) if slot not in skipped] == began, "oldest first"
    # The last late one is followed by some that are on time by then: they meet the overlap policy.
    assert skipped == [*range(skipped[0], skipped[0] + len(skipped))]
    assert len(skipped) <= 11
    assert [] == [slot for slot, at in worker.began if slot >= 80_000 and at >= slot + SECOND], "in time"
    assert [] == told(log, "missed")


@on_every_store
def test_under_all_and_allow_a_thousand_slots_are_caught_up_in_order_and_the_older_ones_recorded(stage, log):
    how = {"every": 1, "catch_up": "all", "overlap": "allow"}
    outage(stage, 1_215_000, **how)
    beats = two(stage, sync(**how), anarchon_claim_timeout=5)
    faults = put_in_front(beats[0], Faults(beats[0].store))
    for _ in range(8):
        beats[0].tick()
    # On time are the slots of the last five seconds; of the late ones the newest thousand are run.
    first = 1_215 - 5 - 1_000 + 1
    assert [*range(first, 1_216)] == published(stage)
    missed = stage.the_run(1_000)
    assert ("missed", T + (first - 1) * SECOND, first - 1) == (missed.state, missed.until, missed.count)
    assert ["1: skipped (missed)"] == told(log, "missed")
    assert 2 <= faults.calls["claim"] <= 10, "not one by one"
    before = len(told(log, "dispatched"))
    beats[1].tick()
    assert [] == published(stage), "nothing is left to the other node"
    assert before == len(told(log, "dispatched"))
    assert {T + 1_215_000} == floors(stage, *beats)


def test_under_all_what_is_older_than_the_window_is_one_record_and_the_rest_runs(stage, log):
    how = {"catch_up": "all", "overlap": "allow", "catch_up_window": 30}
    outage(stage, 65_000, **how)
    beat = stage.beat(sync(**how))
    beat.tick()
    assert [40, 50, 60] == published(stage)
    assert {0: ("succeeded", None), 10: ("missed", "came due while no node was looking")} == {
        slot: why for slot, why in decided(stage).items() if slot < 40
    }
    assert 3 == stage.the_run(10_000).count
    assert ["10: skipped (missed)"] == told(log, "missed")


def test_under_all_a_slot_that_was_missed_is_told_once_though_the_answer_was_lost(stage, log):
    how = {"catch_up": "all", "overlap": "allow", "catch_up_window": 30}
    outage(stage, 65_000, **how)
    beat, faults = stage.faulty_beat(sync(**how))
    faults.lose_answer_of = ["claim"]
    stage.run(beat, 2_000)
    assert [40, 50, 60] == published(stage)
    assert ["10: skipped (missed)"] == told(log, "missed")


def test_under_all_and_queue_the_late_ones_run_in_turn_and_the_newest_on_time_waits(stage, log):
    outage(stage, 45_000, catch_up="all", overlap="queue")
    beats = two(stage, sync(catch_up="all", overlap="queue"))
    worker = Worker(stage, takes=2_500)
    stage.play(100_000, *beats, worker)
    began = [ms for ms, _ in worker.began]
    assert [*range(10_000, began[-1] + 1, 10_000)] == began
    assert began[-1] >= 90_000
    assert [] == told(log, SKIPPED)


# Pause ------------------------------------------------------------------------------------------


@on_every_store
def test_while_a_job_is_paused_each_slot_is_recorded_as_skipped_once_and_nothing_published(stage, log):
    beats = two(stage, sync())
    stage.play(100, *beats)
    hold(stage)
    finish(stage)
    published(stage)
    assert stage.store.pause("sync", reason="migration", by="alice")
    stage.play(30_100, *beats)
    assert [] == published(stage)
    assert {
        0: ("succeeded", None), 10: ("skipped", "paused"), 20: ("skipped", "paused"),
        30: ("skipped", "paused"),
    } == decided(stage)  # fmt: skip
    for at in (10, 20, 30):
        assert [f"{at}: skipped (paused)", f"{at}: skipped (taken)"] == sorted(told(log, f"{at}.000Z"))
    assert stage.store.resume("sync")
    stage.play(40_100, *beats)
    assert [40] == published(stage), "what was skipped stays skipped"
    assert {T + 40_000} == floors(stage, *beats)


def test_a_slot_skipped_by_a_pause_is_told_once_though_the_answer_was_lost(stage, log):
    beat, faults = stage.faulty_beat(sync())
    beat.tick()
    stage.store.pause("sync", reason="migration", by="alice")
    stage.run(beat, 9_500)
    faults.lose_answer_of = ["claim"]
    stage.run(beat, 2_000)
    assert ["10: skipped (paused)"] == told(log, "10.000Z")


@on_every_store
def test_a_run_that_waits_in_a_queue_is_held_back_by_a_pause_and_goes_on_when_it_is_over(stage, log):
    beat = stage.beat(sync(60))
    beat.tick()
    assert [0] == published(stage)
    assert stage.store.pause("sync", reason="migration", by="alice")
    assert "buffered" == stage.the_run().state
    late = Start(key=RunKey("sync", T), token="t", worker="w:1")
    assert "paused" == stage.store.start(late).why
    stage.run(beat, 30_000)
    assert [] == published(stage)
    assert stage.store.resume("sync")
    stage.run(beat, 1_000)
    assert [0] == published(stage)
    assert ("queued", 2) == (stage.the_run().state, stage.the_run().dispatch)


@on_every_store
def test_a_run_whose_worker_dies_while_its_job_is_paused_waits_and_is_told_once(stage, log):
    beats = two(stage, sync(60))
    stage.play(100, *beats)
    hold(stage, lease=5_000)
    published(stage)
    assert stage.store.pause("sync", reason="migration", by="alice")
    stage.play(20_000, *beats)
    assert ("buffered", 1) == (stage.the_run().state, stage.the_run().crashes)
    assert [f"0: {PAUSED}"] == told(log, "buffered")
    assert [] == published(stage)
    assert stage.store.resume("sync")
    stage.play(21_100, *beats)
    assert [0] == published(stage)
    assert 1 == len(told(log, "(attempt 2, takeover)"))


def test_that_a_run_waits_for_the_end_of_a_pause_is_told_once_though_the_answer_was_lost(stage, log):
    beat, faults = stage.faulty_beat(sync(60))
    beat.tick()
    hold(stage, lease=5_000)
    published(stage)
    stage.store.pause("sync", reason="migration", by="alice")
    faults.lose_answer_of = ["redispatch"]
    stage.run(beat, 8_000)
    first, second = [asked for asked in faults.asked if asked[0] == "redispatch"]
    assert first == second
    assert [f"0: {PAUSED}"] == told(log, "buffered")
    assert ("buffered", 1) == (stage.the_run().state, stage.the_run().crashes)


@on_every_store
def test_a_claim_that_was_paused_before_it_was_heard_of_waits_unpublished(stage, log):
    beat, faults = stage.faulty_beat(sync(60))
    faults.lose_answer_of = ["claim"]
    beat.tick()
    assert "claimed" == stage.the_run().state
    stage.store.pause("sync", reason="migration", by="alice")
    stage.run(beat, 15_000)
    assert [] == published(stage)
    assert [f"0: {PAUSED}"] == told(log)
    stage.store.resume("sync")
    stage.run(beat, 1_000)
    assert [0] == published(stage)


def test_under_queue_what_waits_for_a_run_stays_when_its_job_is_paused(stage, log):
    beat = stage.beat(sync(overlap="queue"))
    beat.tick()
    hold(stage)
    stage.run(beat, 10_500)
    published(stage)
    stage.store.pause("sync", reason="migration", by="alice")
    finish(stage)
    stage.run(beat, 10_000)
    assert [] == published(stage)
    assert {0: ("succeeded", None), 10: ("buffered", None), 20: ("skipped", "paused")} == decided(stage)
    stage.store.resume("sync")
    stage.run(beat, 1_000)
    assert [10] == published(stage)
    assert [f"10: {WAITS}", "20: skipped (paused)", "10: dispatched by one:1 (attempt 1, scheduled)"] == (
        told(log)[1:]
    )


def test_a_node_that_learnt_of_a_pause_tells_a_store_that_has_forgotten_everything(stage, log):
    beat = stage.beat(sync(60))
    beat.tick()
    hold(stage)
    finish(stage)
    published(stage)
    stage.store.pause("sync", reason="migration", by="alice")
    beat._registered_at = None  # an hour later
    beat.tick()
    wipe(stage.store.store)
    stage.run(beat, 60_500)
    assert [] == published(stage)
    assert ("skipped", "paused") == decided(stage)[60]


# A changed schedule -----------------------------------------------------------------------------


@on_every_store
def test_a_changed_schedule_counts_from_now_and_nothing_before_it_is_caught_up(stage, log):
    before = stage.beat(sync(60))
    before.tick()
    hold(stage)
    finish(stage)
    before.close()
    published(stage)
    stage.clock.ms = 5 * MINUTE + 34_000
    beats = two(stage, sync(10, catch_up="all", overlap="allow"))
    stage.play(stage.clock.ms + 7_000, *beats)
    assert [340] == published(stage)
    assert {0: ("succeeded", None), 340: ("queued", None)} == decided(stage)
    assert {T + 340_000} == floors(stage, *beats)


def test_only_other_arguments_change_no_fire_time(stage, log):
    before = stage.beat(sync(60))
    before.tick()
    hold(stage)
    finish(stage)
    before.close()
    published(stage)
    stage.clock.ms = 61_000
    edited = sync(60, lease="1m")
    edited["sync"] |= {"args": ("eu",), "kwargs": {"full": True}}
    stage.beat(edited).tick()
    assert [60] == published(stage), "what came due while nobody looked is caught up as ever"


@on_every_store
def test_old_and_new_nodes_side_by_side_publish_each_slot_of_either_schedule_once(stage, log):
    old = stage.beat(sync(10, overlap="allow"), anarchon_node="one:1")
    stage.play(14_000, old)
    new = stage.beat(sync(15, overlap="allow"), anarchon_node="two:2")
    stage.play(45_100, old, new)
    assert [0, 10, 15, 20, 30, 40, 45] == published(stage)
    assert {"queued"} == {state for state, _ in decided(stage).values()}
    assert 7 == len(told(log, "dispatched"))
    assert {T + 45_000} >= floors(stage, new)


def test_a_zone_that_is_edited_takes_effect_from_now_on(stage, log):
    # 15:00 UTC is T; five in the afternoon in Berlin.
    before = stage.beat(sync(cron("0 17 * * *", timezone="Europe/Berlin")))
    before.tick()
    hold(stage)
    finish(stage)
    before.close()
    assert [0] == published(stage)
    stage.clock.ms = 3 * HOUR
    after = stage.beat(sync(cron("0 17 * * *", timezone="UTC"), catch_up="all"))
    after.tick()
    assert [] == published(stage), "17:00 UTC is past, and never was a time of the schedule that counted then"
    assert {0} == set(decided(stage))


# Chains -----------------------------------------------------------------------------------------


class Growing(BaseSchedule):
    """Somebody's own: seven seconds after the last time, five where that was odd; checked every second."""

    def is_due(self, last_run_at):
        gap = 5 if last_run_at.second % 2 else 7
        return self.now() >= last_run_at + timedelta(seconds=gap), 1.0

    def __repr__(self):
        return "<Growing>"


class Failing(Growing):
    """It has a fault that comes out at some of its times."""

    def is_due(self, last_run_at):
        if self.now().second >= 30:
            raise ZeroDivisionError("no such holiday")
        return super().is_due(last_run_at)

    def __repr__(self):
        return "<Failing>"


class Seldom(Growing):
    """Every hour, but looked at far too often: one look does not come as far."""

    def is_due(self, last_run_at):
        return self.now() >= last_run_at + timedelta(hours=1), 1.0

    def __repr__(self):
        return "<Seldom>"


def growing(until: int, last: int = 0) -> list[int]:
    """The seconds at which ``Growing`` is due up to then, after a last time."""
    found = []
    while (last := last + (5 if last % 2 else 7)) <= until:
        found.append(last)
    return found


@on_every_store
def test_a_chain_is_published_each_slot_once_whichever_node_looks(stage, log):
    beats = two(stage, sync(Growing(), overlap="allow"), anarchon_jitter=0.2)
    stage.play(61_000, *beats)
    assert growing(60) == published(stage)
    assert {(slot, "queued") for slot in growing(60)} == {
        (slot, state) for slot, (state, _) in decided(stage).items()
    }
    assert len(growing(60)) == len(told(log, "dispatched"))
    assert {T + growing(60)[-1] * SECOND} == floors(stage, *beats)


@on_every_store
def test_a_node_that_was_stalled_finds_the_chain_where_the_other_has_brought_it(stage, log):
    stalled, other = two(stage, sync(Growing(), overlap="allow"))
    stage.play(8_000, stalled, other)
    stage.play(40_000, other)
    stage.play(47_500, stalled, other)
    other.close()
    stage.play(70_000, stalled)
    assert growing(70) == published(stage)
    assert set(growing(70)) == set(decided(stage))
    assert [] == told(log, "missed")
    assert {T + growing(70)[-1] * SECOND} == floors(stage, stalled)


@on_every_store
def test_what_a_chain_missed_is_passed_over_in_one_record_but_for_the_latest(stage, log):
    before = stage.beat(sync(Growing(), overlap="allow"))
    stage.play(8_000, before)
    before.close()
    published(stage)
    stage.clock.ms = 60_000
    beats = two(stage, sync(Growing(), overlap="allow"))
    for beat in beats:
        beat.tick()
    late = [slot for slot in growing(50) if slot > 7]  # older than the claim timeout
    on_time = [slot for slot in growing(60) if slot > 50]
    assert [late[-1], *on_time] == published(stage)
    missed = stage.the_run(late[0] * SECOND)
    assert ("missed", T + late[-2] * SECOND, len(late) - 1) == (missed.state, missed.until, missed.count)
    assert [f"{late[0]}: skipped (missed)"] == told(log, "missed")


def test_under_all_each_slot_that_a_chain_missed_runs_in_turn(stage, log):
    how = {"every": Growing(), "catch_up": "all"}
    before = stage.beat(sync(**how))
    stage.play(100, before)
    before.close()
    stage.clock.ms = 40_000
    beats = two(stage, sync(**how))
    worker = Worker(stage, takes=500)
    stage.play(90_000, *beats, worker)
    late = {(run.slot - T) // SECOND for run in stage.store.runs() if run.trigger == "catch-up"}
    assert set(growing(30)) <= late
    # What came due meanwhile is on time when its turn comes, and meets the overlap policy.
    skipped = {slot for slot, (state, _) in decided(stage).items() if state == "skipped"}
    assert not late & skipped
    assert [slot for slot in growing(89) if slot not in skipped] == [ms // SECOND for ms, _ in worker.began]
    assert [] == told(log, "missed")


def test_a_claim_of_a_chain_whose_answer_was_lost_is_published_once_asked_again(stage, log):
    beat, faults = stage.faulty_beat(sync(Growing(), overlap="allow"))
    stage.run(beat, 6_500)
    faults.lose_answer_of = ["claim"]
    stage.run(beat, 1_500)
    first, second = [asked for asked in faults.asked if asked[0] == "claim"]
    assert first == second
    assert [7] == published(stage)
    assert ["7: dispatched by one:1 (attempt 1, scheduled)"] == told(log)
    stage.run(beat, 6_000)
    assert [12] == published(stage)


@on_every_store
def test_a_chain_follows_from_its_own_slots_beside_those_of_another_schedule(stage, log):
    # During a deploy the old nodes have another schedule for the job, and each has a floor of its own.
    old = stage.beat(sync(10, overlap="allow"), anarchon_node="old:1")
    stage.play(4_000, old)
    new = two(stage, sync(Growing(), overlap="allow"))
    stage.play(60_500, old, *new)
    sent = published(stage)
    assert sorted({*range(0, 61, 10), *growing(60, last=4)}) == sorted(sent) == list(decided(stage))


def test_a_chain_that_raises_after_some_slots_is_dropped_with_a_line_and_the_others_go_on(stage, log):
    schedule = sync(Failing(), overlap="allow")
    schedule["other"] = {"task": "proj.other", "schedule": 10}
    beats = two(stage, schedule)
    stage.play(60_100, *beats)
    by_job: dict[str, list[int]] = {"sync": [], "other": []}
    for message in stage.messages():
        told_of = message.headers["anarchon"]
        by_job[told_of["job"]].append((from_iso(told_of["slot"]) - T) // SECOND)
    # That 24 has no successor comes out as it falls due.
    assert [7, 12, 19] == [slot for slot in by_job["sync"] if slot < 24]
    assert by_job["sync"][3:] in ([], [24])
    assert [*range(0, 61, 10)] == by_job["other"]
    why = "entry 'sync': ZeroDivisionError: no such holiday; this job stays out, the others go on"
    assert [why, why] == lines(log, "stays out"), "once on each node"
    assert [] == lines(log, "this look failed")
    assert [["other"], ["other"]] == [list(beat.plan.jobs) for beat in beats]


def test_a_chain_that_cannot_say_what_it_is_any_more_is_dropped_with_a_line(stage, log, monkeypatch):
    def shown(self):
        raise ConnectionError("no database")

    schedule = sync(Growing(), overlap="allow")
    schedule["other"] = {"task": "proj.other", "schedule": 10}
    beat = stage.beat(schedule)
    stage.run(beat, 1_000)
    monkeypatch.setattr(Growing, "__repr__", shown)
    beat._registered_at = None  # an hour later
    stage.run(beat, 9_500)
    why = "entry 'sync': ConnectionError: no database; this job stays out, the others go on"
    assert [why] == lines(log, "stays out")
    assert [] == lines(log, "this look failed")
    assert ["other", "other"] == [message.headers["anarchon"]["job"] for message in stage.messages()]


def test_a_chain_that_is_not_due_as_far_as_it_was_asked_is_told_of_once_and_published_when_it_is(stage, log):
    beat = stage.beat(sync(Seldom()))
    stage.run(beat, 59 * MINUTE)
    assert [] == published(stage)
    until = iso(T + 1_000 * SECOND)
    line = f"entry 'sync': its schedule is not due before {until}, as far as it was asked"
    line += "; it is asked again then"
    assert [line] == lines(log, "is not due")
    stage.run(beat, MINUTE)
    assert [3600] == published(stage)
    stage.run(beat, HOUR)
    assert [line] == lines(log, "is not due"), "not for every slot"


class Never(Growing):
    """Somebody's own that has no time any more, and says so by looking very far."""

    def is_due(self, last_run_at):
        return False, 86400.0 * 36500

    def __repr__(self):
        return "<Never>"


def test_a_chain_that_is_never_due_is_told_of_once_and_asked_no_more(stage, log):
    schedule = sync(Never())
    schedule["other"] = {"task": "proj.other", "schedule": 10}
    beats = two(stage, schedule)
    stage.play(30_100, *beats)
    never = f"entry 'sync': its schedule has no fire time after {iso(T)}"
    assert [never, never] == lines(log, "entry 'sync'"), "once on each node"
    assert 4 == len(stage.messages())
    assert {None} == {beat.plan.jobs["sync"].due_at for beat in beats}
    for beat in beats:
        checks = beat.plan.jobs["sync"].times.checks
        stage.play(stage.clock.ms + 60_000, *beats)
        assert checks == beat.plan.jobs["sync"].times.checks


# Once -------------------------------------------------------------------------------------------


def at(ms: int):
    return once(iso(T + ms))


@on_every_store
def test_a_one_off_job_runs_once_whatever_nodes_there_are_and_come(stage, log):
    beats = two(stage, sync(at(7_000)))
    stage.play(8_000, *beats)
    assert [7] == published(stage)
    assert [0, 1] == sorted(len(told(log, f"dispatched by {name}")) for name in ("one:1", "two:2"))
    for beat in beats:
        beat.close()
    stage.clock.ms = 9_000
    hold(stage, 7_000)
    finish(stage, 7_000)
    later = two(stage, sync(at(7_000)))
    stage.play(15_000, later[0])
    stage.clock.ms = DAY
    stage.play(DAY + 5_000, *later)
    assert [] == published(stage)
    assert [("succeeded", "scheduled")] == [(run.state, run.trigger) for run in stage.store.runs()]


@pytest.mark.parametrize(
    ("age", "catch_up", "state"),
    [
        (59_000, "latest", "queued"), (59_000, "all", "queued"), (59_000, "none", "missed"),
        (60_000, "latest", "missed"), (60_000, "all", "missed"), (DAY, "none", "missed"),
    ],
)  # fmt: skip
def test_a_one_off_job_that_was_past_at_first_sight(stage, log, age, catch_up, state):
    beats = two(stage, sync(at(-age), catch_up=catch_up))
    stage.play(2_100, *beats)
    (run,) = stage.store.runs()
    assert (state, T - age, 1) == (run.state, run.slot, run.count)
    seconds = -age // SECOND
    assert ([seconds] if state == "queued" else []) == published(stage)
    first = f"{seconds}: dispatched by one:1 (attempt 1, catch-up)"
    assert [first if state == "queued" else f"{seconds}: skipped (missed)"] == (
        [line for line in told(log) if "taken" not in line]
    )


@on_every_store
@pytest.mark.parametrize(("catch_up", "state"), [("latest", "queued"), ("all", "queued"), ("none", "missed")])
def test_a_one_off_job_whose_time_came_while_nobody_looked(stage, log, catch_up, state):
    before = stage.beat(sync(at(HOUR), catch_up=catch_up))
    before.tick()
    before.close()
    stage.clock.ms = 30 * HOUR
    beats = two(stage, sync(at(HOUR), catch_up=catch_up))
    stage.play(30 * HOUR + 2_100, *beats)
    assert {3600: (state, None if state == "queued" else "came due while no node was looking")} == (
        decided(stage)
    )
    assert ([3600] if state == "queued" else []) == published(stage)


def test_a_one_off_job_that_was_moved_to_another_time_runs_then(stage, log):
    before = stage.beat(sync(at(HOUR)))
    before.tick()
    before.close()
    after = stage.beat(sync(at(2_000)))
    stage.run(after, 3_000)
    hold(stage, 2_000)
    finish(stage, 2_000)
    stage.run(after, HOUR)
    assert [2] == published(stage), "and not at the other one too"
    assert {2: ("succeeded", None)} == decided(stage)


def test_a_one_off_job_that_was_moved_and_came_due_while_nobody_looked_runs_late(stage, log):
    for time in (HOUR, 2 * HOUR):
        before = stage.beat(sync(at(time)))
        before.tick()
        before.close()
        stage.clock.advance(1_000)
    stage.clock.ms = 30 * HOUR
    stage.beat(sync(at(2 * HOUR))).tick()
    assert [7200] == published(stage)
    assert {7200: ("queued", None)} == decided(stage)


def test_a_one_off_job_that_was_run_and_moved_on_runs_again(stage, log):
    before = stage.beat(sync(at(2_000)))
    stage.run(before, 2_100)
    hold(stage, 2_000)
    finish(stage, 2_000)
    before.close()
    after = stage.beat(sync(at(60_000)))
    stage.run(after, MINUTE)
    assert [2, 60] == published(stage)


def test_a_one_off_job_that_was_set_to_the_past_is_recorded_as_missed(stage, log):
    before = stage.beat(sync(at(HOUR)))
    before.tick()
    before.close()
    stage.clock.ms = 2_000
    beats = two(stage, sync(at(1_000)))
    stage.play(4_000, *beats)
    assert [] == published(stage)
    assert {1: ("missed", "came due while no node was looking")} == decided(stage)
    assert ["1: skipped (missed)"] == told(log, "missed")


def test_a_one_off_job_outlives_a_store_that_forgets_everything_before_its_time(stage, log):
    beat = stage.beat(sync(at(7_000)))
    stage.run(beat, 2_000)
    wipe(stage.store.store)
    stage.run(beat, 2_000)
    assert {T} == floors(stage, beat), "from when the job was seen first, as the node remembers"
    stage.run(beat, 10_000)
    assert [] == published(stage), "holders put their runs back first"
    stage.run(beat, 20_000)
    assert [7] == published(stage)


def test_a_one_off_job_that_has_run_does_not_run_again_in_a_store_that_forgets_everything(stage, log):
    beat = stage.beat(sync(at(2_000)))
    stage.run(beat, 3_000)
    assert [2] == published(stage)
    wipe(stage.store.store)
    stage.run(beat, 40_000)
    assert [] == published(stage)
    assert {} == decided(stage)


def test_a_one_off_job_that_comes_due_while_it_is_paused_does_not_run(stage, log):
    beat = stage.beat(sync(at(7_000)))
    beat.tick()
    stage.store.pause("sync", reason="not yet", by="alice")
    stage.run(beat, 8_000)
    stage.store.resume("sync")
    stage.run(beat, 8_000)
    assert [] == published(stage)
    assert ["7: skipped (paused)"] == told(log)


# Many nodes, lost answers -----------------------------------------------------------------------

#: What a node says of what it decided itself, less what it only found decided.
DECISIONS = ("dispatched by", SKIPPED, WAITS, PAUSED, "skipped (paused)", "skipped (missed)")


def three(stage, schedule):
    """Three nodes with some jitter, the same each time the test is run."""
    beats = [stage.beat(schedule, anarchon_node=f"{n}:{n}", anarchon_jitter=0.3) for n in (1, 2, 3)]
    for beat in beats:
        beat.plan.node = beat.node.name
    return beats


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel", "allow"])
@pytest.mark.parametrize("catch_up", ["latest", "all"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_answers_are_lost_each_slot_is_decided_once_and_told_once(
    stage, log, overlap, catch_up, seed
):
    chance = random.Random(f"{overlap} {catch_up} {seed}")
    schedule = sync(3, overlap=overlap, catch_up=catch_up, start_timeout=20, lease=6)
    beats = three(stage, schedule)
    on_the_way = [put_in_front(beat, Faults(beat.store)) for beat in beats]
    worker = Worker(stage, takes=4_100, every=250)
    for faults in on_the_way:
        faults.loses = lambda verb: chance.random() < 0.1
    stage.play(24_000, *beats, worker)
    stage.store.pause("sync", reason="migration", by="alice")
    stage.play(30_000, *beats, worker)
    stage.store.resume("sync")
    stage.play(48_000, *beats, worker)
    for faults in on_the_way:
        faults.loses = lambda verb: False
    stage.play(54_500, *beats, worker)

    runs = stage.store.runs(limit=1_000)
    covered = [slot - T for run in runs for slot in range(run.slot, (run.until or run.slot) + 1, 3_000)]
    (floor,) = floors(stage, *beats)
    assert [*range(0, floor - T + 1, 3_000)] == sorted(covered), "one record of each, and none left out"
    assert 36_000 <= floor - T
    sent = Counter((message["slot"], message["dispatch"]) for message in worker.messages)
    assert {1} == set(sent.values()), "no dispatch is published twice"
    said = Counter(line for line in told(log) if any(decision in line for decision in DECISIONS))
    assert {1} == set(said.values()), said.most_common(3)
    assert {1} == set(Counter(ms for ms, _ in worker.began).values())
    if overlap != "allow":
        assert all(done <= began for (_, done, _), (_, began) in pairwise_ends(worker))
    assert [] == lines(log, "this look failed")


@pytest.mark.parametrize("seed", range(3))
def test_whatever_answers_are_lost_a_chain_goes_on_from_slot_to_slot(stage, log, seed):
    chance = random.Random(seed)
    schedule = sync(Growing(), overlap="allow")
    beats = three(stage, schedule)
    on_the_way = [put_in_front(beat, Faults(beat.store)) for beat in beats]
    for faults in on_the_way:
        faults.loses = lambda verb: chance.random() < 0.15
    stage.play(60_000, *beats)
    for faults in on_the_way:
        faults.loses = lambda verb: False
    stage.play(68_000, *beats)
    assert growing(67) == sorted(published(stage)), "whose answer was lost comes a little later"
    assert growing(67) == list(decided(stage))
    assert {T + 67_000} == floors(stage, *beats)
    assert [] == lines(log, "missed") + lines(log, "this look failed")


# What somebody asks for -------------------------------------------------------------------------


@on_every_store
def test_a_run_that_somebody_asked_for_has_its_own_arguments_after_a_takeover_too(stage):
    entry = {"task": "proj.sync", "schedule": 3600, "args": ("eu",), "kwargs": {"full": True}}
    beat = stage.beat({"sync": entry}, anarchon_first_catch_up=0)
    beat.tick()
    asked = Request(job="sync", by="anna", arguments=written(["us"], None))
    assert "released" == stage.store.trigger(asked, nonce="n").answer
    for dispatch, trigger, after in ((1, "manual", 1_000), (2, "takeover", 32_000)):
        stage.run(beat, after)
        (message,) = stage.messages()
        header = message.headers["anarchon"]
        assert [["us"], {"full": True}] == message.decode()[:2]
        assert ("manual", dispatch, trigger) == (header["kind"], header["dispatch"], header["trigger"])
        order = headers.read(header)
        started = stage.store.start(order.start(token=f"t{dispatch}", worker="w", task_id=header["id"]))
        assert (dispatch, trigger) == (started.attempt, started.trigger)
    assert ["sync"] == [run.job for run in stage.store.runs()]

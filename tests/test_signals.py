"""Signals: one for each happening, with what a receiver is given; and what a beat tells by them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import datetime, timezone

import pytest

from anarchon_celery import events, signals
from anarchon_celery.logged import speak_as, speaking_as
from anarchon_celery.protocol import Release, RunKey, Settle, Start
from anarchon_celery.stores import open_store
from tests.stage import T, clock, log, stage
from tests.test_events import KEY, NODE_LINES, RUN_LINES, concrete

__all__ = ["clock", "log", "stage"]  # fixtures

EVENTS = sorted(concrete(events.Event) - {events.RunEvent}, key=lambda event: event.__name__)


@contextmanager
def heard(*which, **how):
    """Note what a receiver of these signals is called with, or of all."""
    calls = []

    def receiver(**given):
        calls.append(given)

    connected = which or tuple(signals.ALL.values())
    for signal in connected:
        signal.connect(receiver, weak=False, **how)
    yield calls
    for signal in connected:
        signal.disconnect(receiver, **how)


def names(calls):
    return [call["event"].name for call in calls]


# One for each -----------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS, ids=[event.__name__ for event in EVENTS])
def test_each_happening_has_a_signal_of_its_name(event):
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()
    expected = {"run_lost": "lease_lost"}.get(name, name)
    assert expected == event.signal.name
    assert signals.ALL[expected] is event.signal is getattr(signals, expected)


def test_each_signal_has_a_happening():
    assert sorted(signals.ALL) == sorted(event.signal.name for event in EVENTS)


@pytest.mark.parametrize("event", [event for event, _, _ in RUN_LINES + NODE_LINES], ids=str)
def test_what_a_receiver_is_given(event):
    with heard() as calls, speaking_as("speaker:1"):
        events.emit(event)
    (call,) = calls
    assert {"signal", "sender", *signals.GIVEN} == set(call)
    assert call["signal"] is event.signal and call["event"] is event
    of_a_run = isinstance(event.of, RunKey)
    at = datetime(2026, 10, 10, 12, 0, 30, tzinfo=timezone.utc)
    assert ((at, "scheduled") if of_a_run else (None, None)) == (call["slot"], call["kind"])
    job = "report" if of_a_run else event.of
    assert (job, job or event.node or "speaker:1") == (call["job"], call["sender"])
    assert (event.node or "speaker:1") == call["node"]
    assert getattr(event, "attempt", None) == call["attempt"]


def test_a_receiver_of_one_job_hears_of_no_other():
    with heard(signals.run_failed, sender="report") as calls:
        for job in ("report", "other"):
            events.emit(events.RunFailed(RunKey(job, T), 12, "ValueError: x", attempt=1, fence=7, node="w:1"))
    assert [("report", 1, 7, "w:1")] == [
        (call["job"], call["attempt"], call["fence"], call["node"]) for call in calls
    ]


def test_a_receiver_that_raises_is_logged_and_keeps_nobody_from_hearing(log):
    def broken(**_):
        raise ValueError("of the receiver")

    with heard(signals.run_finished) as before:
        signals.run_finished.connect(broken)
        with heard(signals.run_finished) as after:
            events.emit(events.RunFinished(KEY, 203))
        signals.run_finished.disconnect(broken)
    assert ["run_finished"] == names(before) == names(after)
    (said,) = [record for record in log.records if record.name == "celery.utils.dispatch.signal"]
    assert "broken" in said.getMessage() and "ValueError: of the receiver" in said.exc_text


def test_a_receiver_that_calls_exit_ends_no_thread_of_the_node(log):
    def leaves(**_):
        sys.exit("enough")

    def beats():
        events.emit(events.RunLost(KEY, 31_000, "gone"))
        survived.append(True)

    survived = []
    signals.lease_lost.connect(leaves)
    heartbeat = threading.Thread(target=beats)
    heartbeat.start()
    heartbeat.join()
    assert [True] == survived
    (said,) = [record for record in log.records if record.name == "celery.utils.dispatch.signal"]
    assert "of lease_lost called exit()" in said.getMessage()
    with pytest.raises(SystemExit):  # as Celery stops a worker
        events.emit(events.RunLost(KEY, 31_000, "gone"))
    signals.lease_lost.disconnect(leaves)


def test_signals_are_sent_where_the_log_is_silent():
    events.log_runs(False)
    with heard(signals.run_finished) as calls:
        events.emit(events.RunFinished(KEY, 203))
    assert ["run_finished"] == names(calls)


def test_who_speaks_is_the_process_unless_somebody_else_does():
    speak_as(None)  # a worker in this process may have been one
    with heard(signals.store_back) as calls:
        events.emit(events.StoreBack())
        speak_as("celery@a:1")
        try:
            events.emit(events.StoreBack())
            with speaking_as("a:1"):
                events.emit(events.StoreBack())
            events.emit(events.StoreBack())
        finally:
            speak_as(None)
    assert [None, "celery@a:1", "a:1", "celery@a:1"] == [call["node"] for call in calls]


def test_a_child_forked_while_its_parent_sends_can_send():
    with heard(signals.run_started), signals.run_started.lock:
        child = os.fork()
        if not child:
            events.emit(events.RunStarted(KEY, "scheduled", attempt=1))
            os._exit(0)
    assert (child, 0) == os.waitpid(child, 0)


def test_importing_them_brings_no_more_than_celery_itself():
    code = "import sys, celery.utils.dispatch; import anarchon_celery.metrics; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()  # fmt: skip
    assert {"prometheus_client", "rich", "opentelemetry", "anarchon_celery.gauges"}.isdisjoint(loaded)


# What a beat tells ------------------------------------------------------------------------------


def sync(**policy):
    entry = {"task": "proj.sync", "schedule": 60, "options": {"anarchon": policy | {"supervised": True}}}
    return {"sync": entry}


def test_a_slot_is_claimed_and_its_run_dispatched_and_others_skip_it(stage):
    first, second = (stage.beat(sync(), anarchon_node=name) for name in ("one:1", "two:2"))
    with heard(signals.beat_started) as calls:
        first.tick()
        second.tick()
    assert ["one:1", "two:2"] == [call["sender"] for call in calls]
    stage.clock.advance(60_000)
    first._wake_at = second._wake_at = None  # else they were stalled
    stage.store.settle([Settle(key=RunKey("sync", T), outcome="cancelled", reason="out of the way")])
    with heard() as calls:
        first.tick()
        second.tick()
    told = [(call["event"].name, call["sender"], call["node"]) for call in calls]
    assert [
        ("slot_claimed", "sync", "one:1"), ("run_dispatched", "sync", "one:1"),
        ("slot_skipped", "sync", "two:2"),
    ] == told  # fmt: skip
    claimed, dispatched, skipped = (call["event"] for call in calls)
    assert ("scheduled", 1, 0, 1) == (
        claimed.trigger, dispatched.dispatch, dispatched.late_ms, dispatched.attempt
    )  # fmt: skip
    assert "taken" == skipped.why


@pytest.mark.parametrize(("released", "was", "ms"), [(False, "running", 30_000), (True, "released", 600)])
def test_a_takeover_is_told_with_how_long_nobody_held_the_run(stage, released, was, ms):
    beat = stage.beat(sync())
    beat.tick()
    key = RunKey("sync", T)
    store = open_store(stage.url)
    store.start(Start(key=key, token="t", worker="w:1", lease=30_000))
    if released:
        stage.clock.ms = 5_400
        store.release([Release(key=key, token="t")])
        stage.clock.advance(600)
    with heard(signals.run_taken_over, signals.run_dispatched) as calls:
        stage.run(beat, 31_000)
    assert ["run_taken_over", "run_dispatched"] == names(calls)
    over, sent = (call["event"] for call in calls)
    assert (was, 1, 2) == (over.was, over.attempt, sent.attempt)
    assert ms <= over.ms < ms + 1_000
    assert None is sent.late_ms


def test_slots_that_are_passed_over_are_missed(stage):
    beat = stage.beat(sync(catch_up="none"))
    beat.tick()
    stage.messages()
    with heard(signals.slot_missed) as calls:
        stage.clock.advance(10 * 60_000)
        beat.tick()
    ((event, slot),) = [(call["event"], call["slot"].timestamp()) for call in calls]
    assert (9, T / 1000 + 60) == (event.count, slot)

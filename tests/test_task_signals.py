"""What a run tells by signals, and by the fields of its records in the log."""

from __future__ import annotations

import pytest

from anarchon_celery import HandedOver
from tests.test_signals import heard
from tests.test_task import as_in_a_worker, log, make_stage, stage

OUTCOMES = {
    "run_finished": (None, {}),
    "run_failed": (ValueError("x"), {"error": "ValueError: x"}),
    "run_handed_over": (HandedOver("the worker stops"), {}),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_run_tells_its_start_and_its_end(stage, log, outcome):
    raised, told = OUTCOMES[outcome]

    @stage.task()
    def job(self):
        stage.log.append(self.lease)
        if raised is not None:
            raise raised

    key = stage.dispatch()
    with heard() as calls:
        stage.deliver()
    (lease,) = stage.log
    assert ["run_started", outcome] == [call["event"].name for call in calls]
    assert {("job", "job", lease.slot, 1, lease.fence, "celery@b:41907")} == {
        tuple(call[name] for name in ("sender", "job", "slot", "attempt", "fence", "node")) for call in calls
    }
    start, end = (call["event"] for call in calls)
    assert 0 <= start.waited_ms < 5_000 and 0 <= end.ms < 5_000
    assert told == {name: getattr(end, name) for name in told}

    records = [record for record in log.records if record.name == "anarchon_celery.runs"][-2:]
    slot = lease.slot.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    expected = [("job", slot, 1, lease.fence, "celery@b:41907", name) for name in ("run_started", outcome)]
    assert expected == [(r.job, r.slot, r.attempt, r.fence, r.node, r.event) for r in records]
    assert key.job == "job"


def test_a_message_that_may_start_nothing_tells_who_it_came_to(stage):
    @stage.task()
    def job(self):
        pass

    stage.dispatch()
    (message,) = stage.messages()
    stage.execute(message)
    with heard() as calls:
        stage.execute(message)
    assert [("slot_skipped", "stale", "celery@b:41907")] == [
        (call["event"].name, call["event"].why, call["node"]) for call in calls
    ]

"""A message of beat's that a task without the base class runs: the store hears of it, before the body runs.

Beat, store and queue are the real ones, and Celery's ``Request.execute`` runs the message in this thread.
"""

from __future__ import annotations

import pytest
from celery import Task as PlainTask
from celery.worker.request import Request

from anarchon_celery import keeper, unsupervised
from anarchon_celery.errors import StoreUnreachable
from anarchon_celery.protocol import PLAIN
from tests.test_task import as_in_a_worker, make_stage

__all__ = ["as_in_a_worker", "make_stage"]  # fixtures


@pytest.fixture
def stage(make_stage, monkeypatch):
    """A task without the base class, which notes the state of its run as its body begins."""
    stage = make_stage()
    monkeypatch.setattr(unsupervised, "_quiet_until", 0.0)

    @stage.task(base=PlainTask)
    def job(self):
        stage.log.append([run.state for run in stage.store.runs(job="job")])

    return stage


def deliver(stage, **header) -> None:
    """Run the message in the queue as a worker would, with another header."""
    (message,) = stage.messages()
    told = message.headers["anarchon"]
    if isinstance(told, dict):
        message.headers["anarchon"] = told | header
    task = stage.app.tasks[message.headers["task"]]
    Request(message, app=stage.app, hostname="celery@b", task=task).execute()


def test_a_run_that_beat_expects_to_be_supervised_is_published(stage):
    key = stage.dispatch(anarchon={"supervised": True})
    assert stage.run(key).state == "queued"
    deliver(stage)
    assert ([["published"]], PLAIN) == (stage.log, stage.run(key).reason)


def test_a_run_of_which_beat_does_not_know_what_it_is_is_published(stage):
    key = stage.dispatch(anarchon={"supervised": True})
    deliver(stage, supervised=None)
    assert stage.run(key).state == "published"


def test_a_plain_task_that_beat_knows_as_one_costs_no_call(stage):
    key = stage.dispatch()
    deliver(stage)
    assert [["published"]] == stage.log and stage.run(key).reason is None
    assert keeper._keepers == {}, "no store was opened"


@pytest.mark.parametrize(
    "header", [{"id": "another"}, {"task": "proj.another"}, {"v": 99}, {"slot": "soon"}], ids=str
)
def test_a_header_that_is_of_another_message_or_cannot_be_read_ends_nothing(stage, header):
    stage.dispatch(anarchon={"supervised": True})
    deliver(stage, **header)
    assert [["queued"]] == stage.log


def test_a_call_by_hand_has_no_run(stage):
    key = stage.dispatch(anarchon={"supervised": True})
    stage.app.tasks["proj.job"].apply()
    stage.app.tasks["proj.job"].apply(headers={"anarchon": stage.messages()[0].headers["anarchon"]})
    assert stage.run(key).state == "queued"


def test_a_store_that_is_away_is_told_of_once_and_the_task_runs(stage, monkeypatch, caplog):
    calls = []

    def away(*asked, **how):
        calls.append(asked)
        raise StoreUnreachable("redis://h does not answer")

    stage.dispatch(anarchon={"supervised": True})
    monkeypatch.setattr(keeper.keeper_of(stage.app, bool).store, "settle", away)
    (message,) = stage.messages()
    for _ in range(3):
        Request(message, app=stage.app, hostname="celery@b", task=stage.app.tasks["proj.job"]).execute()
    assert (1, 3) == (len(calls), len(stage.log))
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["runs without the base class, which the store does not know: redis://h does not answer"] == [
        line.rpartition("Z: ")[2] for line in said
    ]

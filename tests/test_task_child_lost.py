"""A request whose child died: what is told to the worker's parent of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError

from anarchon_celery import worker
from tests.test_task import as_in_a_worker, make_stage, stage


@pytest.fixture
def told(monkeypatch):
    told = []
    lost = lambda *what, **more: told.append((*what, more))  # noqa: E731
    monkeypatch.setattr(worker, '_parent', SimpleNamespace(lost=lost, pid=None))
    return told


def lose(stage, **headers):
    """Let the child die that has the message of a run."""
    (message,) = stage.messages()
    message.headers.update(headers)
    task = stage.app.tasks[message.headers['task']]
    request = worker.Request(message, app=stage.app, hostname='celery@b', task=task)
    try:
        raise WorkerLostError('signal 9 (SIGKILL)')
    except WorkerLostError:
        request.on_failure(ExceptionInfo())
    return request


def test_its_reason_is_one_line_without_a_traceback(stage, told):
    @stage.task()
    def job(self):
        pass

    stage.dispatch()
    request = lose(stage)
    ((order, token, name, task_id, reason, more),) = told
    assert ('job', request._token, 'celery@b:41907', request.id) == (order.key.job, token, name, task_id)
    assert 'WorkerLostError: signal 9 (SIGKILL)' == reason
    assert {'retries': 0} == more
    assert 'PENDING' == stage.app.AsyncResult(request.id).state


def test_which_retry_it_was_is_told(stage, told):
    @stage.task()
    def job(self):
        pass

    stage.dispatch()
    lose(stage, retries=2)
    assert [{'retries': 2}] == [more for *_, more in told]

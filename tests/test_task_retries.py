"""Celery's retries of a run: long ones, expiring ones, and messages of an earlier try that come again."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from tests.processes import wait_until
from tests.test_task import as_in_a_worker, lines, log, make_stage, run_worker, stage


def test_a_redelivered_first_message_starts_no_run_that_waits_for_its_retry(stage, log):
    """Else it would begin anew, and Celery's count of retries with it."""

    @stage.task(max_retries=1)
    def job(self):
        stage.log.append((self.request.retries, self.lease.attempt))
        raise self.retry(countdown=0)

    key = stage.dispatch()
    (first,) = stage.messages()
    stage.execute(first)
    stage.execute(first)  # redelivered by its broker
    assert ("queued", 1) == (stage.run(key).state, stage.run(key).retries)
    assert "skipped (stale)" == lines(log)[-1]
    stage.deliver()
    assert [(0, 1), (1, 1)] == stage.log
    assert "failed" == stage.run(key).state, "its retries are used up"


def test_the_message_of_a_try_that_was_dispatched_again_has_its_count(stage):
    """A retry whose message was lost: beat sends another one, of the same try."""

    @stage.task()
    def job(self):
        stage.log.append((self.request.retries, self.lease.attempt))
        if not self.request.retries:
            raise self.retry(countdown=0)

    key = stage.dispatch()
    stage.deliver()
    assert 1 == len(stage.messages()), "lost"
    (beat,) = stage.beats
    stage.take_over(key, start=False)
    run = stage.run(key)
    assert 1 == run.retries
    beat.publisher.publish(beat.schedule["job"], run, beat.plan.jobs["job"].policy)
    stage.deliver()
    assert [(0, 1), (1, 1)] == stage.log
    assert "succeeded" == stage.run(key).state


def test_a_retry_that_waits_for_longer_than_the_lease_is_not_taken_over(make_stage, run_worker):
    stage = make_stage()

    @stage.task()
    def job(self):
        stage.log.append((self.request.retries, self.lease.attempt))
        if not self.request.retries:
            raise self.retry(countdown=2.5)

    with run_worker(stage):
        key = stage.dispatch(anarchon={"lease": 1, "heartbeat": 0.2})
        wait_until(lambda: stage.beats[0].tick() and stage.run(key).state == "succeeded")
    run = stage.run(key)
    assert (1, 1, 0) == (run.attempt, run.dispatch, run.crashes)
    assert [(0, 1), (1, 1)] == stage.log


@pytest.mark.parametrize("how", ["entry", "retry"])
def test_a_retry_has_the_expiry_of_its_run_or_its_own(stage, how):
    @stage.task()
    def job(self):
        if not self.request.retries:
            raise self.retry(countdown=0, **({"expires": 300} if how == "retry" else {}))

    key = stage.dispatch(expires=600)
    (first,) = stage.messages()
    stage.execute(first)
    (again,) = stage.messages()
    if how == "entry":
        assert first.headers["expires"] == again.headers["expires"]
    else:
        left = datetime.fromisoformat(again.headers["expires"]) - datetime.now(timezone.utc)
        assert timedelta(seconds=290) < left <= timedelta(seconds=300)
    stage.execute(again)
    assert "succeeded" == stage.run(key).state


def test_a_retry_with_other_arguments_in_another_queue_goes_on_with_the_run(stage):
    @stage.task()
    def job(self, n):
        stage.log.append((n, self.lease.job, self.lease.attempt))
        if n < 2:
            raise self.retry(args=(n + 1,), countdown=0, queue=f"slow-{stage.queue}")

    key = stage.dispatch(args=(1,))
    stage.deliver()
    stage.deliver(f"slow-{stage.queue}")
    assert [(1, "job", 1), (2, "job", 1)] == stage.log
    assert "succeeded" == stage.run(key).state

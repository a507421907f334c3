"""Subclasses with a ``__call__``, a ``before_start`` and hooks of their own; bodies that exit."""

from __future__ import annotations

import re
import sys
from functools import partial

import pytest
from billiard.process import current_process
from celery import signals
from celery.exceptions import Ignore, Reject, Retry, WorkerShutdown

from anarchon_celery import HandedOver, Task, current_lease
from anarchon_celery.stores import open_store
from tests import projects
from tests.processes import wait_until
from tests.test_task import (
    STARTED,
    as_in_a_worker,
    lines,
    log,
    make_stage,
    run_worker,
    stage,
    stop_the_worker,
)

# A __call__ of their own ---------------------------------------------------------------------------


class Runs:
    """A mixin that goes on to the body by itself, and never to another ``__call__``."""

    def __call__(self, *args, **kwargs):
        SEEN.append(current_lease().job)
        return self.run(*args, **kwargs)


class CallsOn:
    """A mixin that goes on to the next ``__call__``."""

    def __call__(self, *args, **kwargs):
        SEEN.append(current_lease().job)
        return super().__call__(*args, **kwargs)


SEEN: list = []


class MixedIn(Runs, Task):
    abstract = True


class MixedInLast(Task, Runs):
    abstract = True


class Cooperative(CallsOn, Task):
    abstract = True


class Own(Task):
    abstract = True

    def __call__(self, *args, **kwargs):
        SEEN.append(self.lease.job)
        return self.run(*args, **kwargs)


class Twice(CallsOn, Own):
    abstract = True


@pytest.mark.parametrize(
    ("base", "seen"),
    [(MixedIn, 1), (MixedInLast, 0), (Cooperative, 1), (Own, 1), (Twice, 2)],
    ids=lambda it: getattr(it, "__name__", None),
)
def test_a_subclass_with_a_call_of_its_own_is_supervised(stage, log, base, seen):
    SEEN.clear()

    @stage.task(base=base)
    def job(self, n):
        SEEN.append(("body", self.lease.job))
        return n

    key = stage.dispatch(args=(5,))
    assert 5 == stage.deliver().result
    assert [*seen * ["job"], ("body", "job")] == SEEN
    assert [STARTED, "finished in N ms"] == lines(log)
    assert ("succeeded", 1) == (stage.run(key).state, stage.run(key).attempt)
    assert 6 == job(6), "called by hand it is an ordinary task"
    assert [*seen * [None], ("body", None)] == SEEN[seen + 1 :]


def test_a_call_of_its_own_that_fails_is_a_failure_of_the_run(stage):
    class Fails(Task):
        abstract = True

        def __call__(self, *args, **kwargs):
            self.run(*args, **kwargs)
            raise ValueError("after the body")

    @stage.task(base=Fails)
    def job(self):
        pass

    key = stage.dispatch()
    assert "FAILURE" == stage.deliver().state
    assert ("failed", "ValueError: after the body") == (stage.run(key).state, stage.run(key).reason)


def test_a_lease_lost_in_a_call_of_its_own_stores_nothing(stage):
    @stage.task(base=Own)
    def job(self):
        stage.take_over(key)
        wait_until(lambda: self.lease.aborted)

    key = stage.dispatch(anarchon={"heartbeat": 0.02})
    assert "PENDING" == stage.deliver().state
    assert "another" == stage.run(key).token


# before_start --------------------------------------------------------------------------------------


def starting(what):
    """A base class that does this before the body."""

    class Before(Task):
        abstract = True

        def before_start(self, task_id, args, kwargs):
            super().before_start(task_id, args, kwargs)
            return what(self)

    return Before


@pytest.mark.parametrize(
    ("reason", "state", "why"),
    [
        (ValueError("not today"), "failed", "ValueError: not today"),
        (Ignore(), "succeeded", None),
        (Reject("no", requeue=False), "failed", "rejected by the task"),
        (Reject("not now", requeue=True), "released", None),
        (SystemExit(3), "failed", "SystemExit: 3"),
    ],
    ids=["an error", "Ignore", "Reject", "Reject, requeue", "SystemExit"],
)
def test_what_before_start_raises_ends_the_run_as_the_body_would(stage, log, reason, state, why):
    def what(task):
        raise reason

    @stage.task(base=starting(what))
    def job(self):
        stage.log.append("ran")

    key = stage.dispatch()
    stage.deliver()
    assert (state, why, 1) == (stage.run(key).state, stage.run(key).reason, stage.run(key).attempt)
    assert [] == stage.log
    assert STARTED == lines(log)[0]


def test_before_start_is_under_the_lease_of_the_body(stage, log):
    seen = []

    @stage.task(base=starting(lambda task: seen.append((task.lease, stage.run(key).state))))
    def job(self):
        seen.append((self.lease, stage.run(key).state))

    key = stage.dispatch()
    stage.deliver()
    assert [(seen[0][0], "running")] * 2 == seen
    assert "job" == seen[0][0].job
    assert [STARTED, "finished in N ms"] == lines(log)


class Called:
    """A callable that is no function, and so is not bound."""

    def __init__(self, it) -> None:
        self.it = it

    def __call__(self, *args):
        return self.it(*args)


@pytest.mark.parametrize("kind", [staticmethod, Called], ids=["static method", "callable"])
def test_before_start_may_be_any_callable(stage, kind):
    def before(task_id, args, kwargs):
        stage.log.append((task_id, args, kwargs, current_lease().job))

    @stage.task(before_start=kind(before))
    def job(self, n):
        stage.log.append(n)

    stage.dispatch(args=(5,))
    stage.deliver()
    assert [(stage.task_id, [5], {}, "job"), 5] == stage.log


def test_before_start_is_not_run_for_a_message_that_is_stale(stage):
    seen = []

    @stage.task(base=starting(lambda task: seen.append(task.request.id)))
    def job(self):
        pass

    stage.dispatch()
    (message,) = stage.messages()
    stage.execute(message)
    stage.execute(message)
    assert 1 == len(seen)
    job.delay()
    stage.deliver()
    assert 2 == len(seen), "an ordinary call"


def test_a_retry_from_before_start_is_a_retry_of_the_run(stage, log):
    def what(task):
        if not task.request.retries:
            raise task.retry(countdown=0)

    @stage.task(base=starting(what))
    def job(self):
        stage.log.append((self.request.retries, self.lease.attempt))

    key = stage.dispatch()
    assert "RETRY" == stage.deliver().state
    assert ("queued", 1) == (stage.run(key).state, stage.run(key).retries)
    stage.deliver()
    assert [(1, 1)] == stage.log
    assert "succeeded" == stage.run(key).state


def test_a_handover_that_before_start_swallows_is_one(stage, stop_the_worker):
    def what(task):
        stop_the_worker()
        wait_until(lambda: task.lease.aborted)
        with pytest.raises(HandedOver):
            task.lease.check()

    @stage.task(base=starting(what))
    def job(self):
        stage.log.append("ran")

    key = stage.dispatch()
    stage.deliver()
    assert ([], "released") == (stage.log, stage.run(key).state)


def test_a_receiver_of_prerun_that_raises_does_nothing(stage):
    @signals.task_prerun.connect
    def fails(**_):
        stage.log.append("prerun")
        raise ValueError("nobody hears this")

    @stage.task()
    def job(self):
        return 1

    try:
        key = stage.dispatch()
        assert 1 == stage.deliver().result
    finally:
        signals.task_prerun.disconnect(fails)
    assert (["prerun"], "succeeded") == (stage.log, stage.run(key).state)


# Hooks after the body --------------------------------------------------------------------------------


def hooked(name):
    def hook(self, *args):
        raise RuntimeError(f"{name} is broken")

    return type("Hooked", (Task,), {"abstract": True, name: hook})


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
@pytest.mark.parametrize("name", ["on_failure", "after_return"])
def test_a_body_that_failed_has_failed_whatever_its_hooks_do(stage, name):
    @stage.task(base=hooked(name))
    def job(self):
        raise ValueError("no such report")

    key = stage.dispatch()
    stage.deliver()
    assert ("failed", "ValueError: no such report") == (stage.run(key).state, stage.run(key).reason)


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
@pytest.mark.parametrize("name", ["on_success", "after_return"])
def test_a_body_that_succeeded_has_succeeded_whatever_its_hooks_do(stage, name):
    """Its result is stored by then. Celery 5.7 logs the error; before, it was announced as a failure."""

    @stage.task(base=hooked(name))
    def job(self):
        return 1

    key = stage.dispatch()
    assert "SUCCESS" == stage.deliver().state
    assert ("succeeded", None) == (stage.run(key).state, stage.run(key).reason)


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
def test_a_hook_of_retries_that_raises_does_not_keep_the_retry(stage):
    @stage.task(base=hooked("on_retry"))
    def job(self):
        if not self.request.retries:
            raise self.retry(countdown=0)

    key = stage.dispatch()
    stage.deliver()
    assert "queued" == stage.run(key).state
    stage.deliver()
    assert ("succeeded", 1) == (stage.run(key).state, stage.run(key).attempt)


@pytest.mark.filterwarnings("ignore:Exception raised outside body")
def test_a_result_that_cannot_be_stored_is_a_failure(stage):
    @stage.task()
    def job(self):
        return 1

    def refuse(*args, **kwargs):
        raise RuntimeError("the result backend is away")

    key = stage.dispatch()
    stage.app.backend.mark_as_done = refuse
    stage.deliver()
    assert ("failed", "RuntimeError: the result backend is away") == (
        stage.run(key).state, stage.run(key).reason,
    )  # fmt: skip


def test_a_retry_that_was_raised_and_never_sent_is_a_failure(stage):
    @stage.task()
    def job(self):
        raise Retry("by hand")

    key = stage.dispatch()
    stage.deliver()
    assert [] == stage.messages()
    assert ("failed", "Retry: by hand") == (stage.run(key).state, stage.run(key).reason)


# Bodies that exit ------------------------------------------------------------------------------------


class GreenletExit(BaseException):
    __module__ = "greenlet"


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        (SystemExit(1), "SystemExit: 1"),
        (SystemExit(), "SystemExit"),
        (SystemExit(-241), "SystemExit: -241"),
        (SystemExit("no config"), "SystemExit: no config"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
    ],
    ids=repr,
)
def test_a_body_that_exits_has_failed(stage, log, reason, why):
    @stage.task()
    def job(self):
        raise reason

    key = stage.dispatch()
    result = stage.deliver()
    assert ("FAILURE", why) == (result.state, str(result.result))
    assert ("failed", why) == (stage.run(key).state, stage.run(key).reason)
    assert [STARTED, f"failed after N ms: {why}"] == lines(log)


@pytest.mark.parametrize("reason", [SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_an_exit_is_not_retried(stage, reason):
    @stage.task(autoretry_for=(Exception,))
    def job(self):
        raise reason

    key = stage.dispatch()
    stage.deliver()
    assert ([], "failed") == (stage.messages(), stage.run(key).state)


@pytest.mark.parametrize("reason", [SystemExit(-241), SystemExit(-247)], ids=repr)
def test_in_a_child_of_prefork_the_exit_of_a_signal_is_the_pools(stage, monkeypatch, reason):
    monkeypatch.setattr(current_process(), "_name", "ForkPoolWorker-1")

    @stage.task()
    def job(self):
        raise reason

    key = stage.dispatch()
    with pytest.raises(SystemExit):
        stage.deliver()
    assert ("released", 1) == (stage.run(key).state, stage.run(key).crashes), "no parent knew why"


@pytest.mark.parametrize("reason", [GreenletExit(), WorkerShutdown(0)], ids=lambda it: type(it).__name__)
def test_the_exits_of_pools_are_left_to_them(stage, reason):
    @stage.task()
    def job(self):
        raise reason

    key = stage.dispatch()
    with pytest.raises(type(reason)):
        stage.deliver()
    assert ("released", 1) == (stage.run(key).state, stage.run(key).crashes)


def test_an_exit_of_a_lost_run_stores_nothing(stage):
    @stage.task()
    def job(self):
        stage.take_over(key)
        wait_until(lambda: self.lease.aborted)
        sys.exit(1)

    key = stage.dispatch(anarchon={"heartbeat": 0.02})
    assert "PENDING" == stage.deliver().state
    assert "another" == stage.run(key).token


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_worker_outlives_the_exit_of_a_task(make_stage, run_worker, pool):
    """Celery's own tasks stay pending for ever in threads, and take the solo pool's worker with them."""
    stage = make_stage()

    @stage.task()
    def job(self):
        sys.exit(1)

    @stage.task("proj.next")
    def after(self):
        stage.log.append("ran")

    with run_worker(stage, pool=pool):
        key = stage.dispatch()
        wait_until(lambda: stage.run(key).state == "failed")
        after.delay()
        wait_until(lambda: stage.log)
    assert "SystemExit: 1" == stage.run(key).reason


@pytest.mark.cluster
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_in_its_pool_an_exit_is_a_failure_and_no_crash(pool, tmp_path, processes, redis_url, redis_server):
    if pool == "gevent":
        pytest.importorskip("gevent")
    projects.write(tmp_path, broker=redis_server.url(1), store=redis_url, body="sys.exit(1)")
    processes.celery("-A", "proj", "beat", "-l", "info", name="beat")
    worker = processes.celery("-A", "proj", "worker", "-P", pool, "-c", "1", "-l", "info", name="worker")
    worker.wait_for(r"failed after \d+ ms: SystemExit: 1", 40)
    store = open_store(redis_url)
    try:
        (run,) = store.runs(job="job", limit=9)
        assert ("failed", "SystemExit: 1", 1, 0) == (run.state, run.reason, run.attempt, run.crashes)
    finally:
        store.close()
    assert 0 == worker.stop(30)
    assert "WorkerLostError" not in worker.output, "its process lives on"
    assert re.search(r"raised unexpected: BodyExited\('SystemExit: 1'", worker.output)

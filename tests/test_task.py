"""The base class: a message of beat's, run under a lease by Celery's own request and tracer.

Beat is the real one, and so are the store, the queue, the result and, in the last part, the worker. Most
tests take a message from the queue themselves and let Celery's ``Request.execute`` run it in this thread.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import cached_property

import pytest
from celery import Celery, chord, group, signals
from celery.app import trace
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Ignore, Reject, Retry, WorkerTerminate
from kombu.exceptions import OperationalError

from anarchon_celery import (
    HandedOver,
    LeaseLost,
    Scheduler,
    Task,
    board,
    current_lease,
    events,
    keeper,
    returning,
    worker,
)
from anarchon_celery import task as task_module
from anarchon_celery.errors import StaleFence, StoreUnreachable
from anarchon_celery.fencing import fenced_write
from anarchon_celery.protocol import OVERTAKEN, Node, Offer, Redispatch, RunKey, Start, Started
from anarchon_celery.slots import iso
from anarchon_celery.stores import memory, new_nonce, open_store
from anarchon_celery.stores.clock import monotonic
from tests.processes import wait_until
from tests.servers import free_port

# The stage --------------------------------------------------------------------------------------


class Stage:
    """A beat and a worker's tasks in one process, and the queue between them."""

    def __init__(self, **conf) -> None:
        name = secrets.token_hex(4)
        self.queue = f"q-{name}"
        self.app = Celery("proj", broker="memory://", backend="cache+memory://", set_as_current=False)
        self.app.conf.update(
            {
                "anarchon_store": f"memory://{name}", "anarchon_jitter": 0, "anarchon_node": "one:1",
                "task_default_queue": self.queue, "timezone": "UTC", "result_expires": None,
                "worker_hijack_root_logger": False, "broker_transport_options": {"polling_interval": 0.02},
            }
            | conf
        )  # fmt: skip
        self.log: list = []
        self.beats: list[Scheduler] = []
        self.task_id = ""
        self.token: str | None = None

    # what a project has

    def task(self, name: str = "proj.job", base=Task, **options):
        return self.app.task(name=name, base=base, bind=True, shared=False, **options)

    # what beat does

    def dispatch(self, *, args=(), kwargs=None, **options) -> RunKey:
        """Let a beat publish one slot of a job."""
        task, job = "proj.job", "job"
        policy = {"lease": 10, "heartbeat": 0.2} | options.pop("anarchon", {})
        entry = {"task": task, "schedule": 1, "args": args, "kwargs": kwargs or {}}
        self.app.conf.beat_schedule = {job: entry | {"options": options | {"anarchon": policy}}}
        beat = Scheduler(app=self.app)
        self.beats.append(beat)
        beat.tick()
        (run,) = self.store.runs(job=job, limit=1)
        return run.key

    @cached_property
    def store(self):
        return open_store(self.app.conf.anarchon_store)

    def run(self, key: RunKey):
        return self.store.run(key)

    def take_over(self, key: RunKey, *, start: bool = True) -> None:
        """Dispatch the run again, and start it elsewhere, as if its deadline had passed."""
        run = self.run(key)
        asked = Redispatch(key=key, state=run.state, dispatch=run.dispatch, deadline=run.deadline)
        (claim,) = self.store.redispatch("other", [asked], nonce=new_nonce(), now=run.deadline)
        assert claim.won
        if start:
            other = Start(key=key, token="another", worker="celery@b:2", lease=30_000)
            assert isinstance(self.store.start(other, now=run.deadline), Started)

    def overtake(self, key: RunKey) -> None:
        """Let the next slot of the job come due under overlap ``cancel``."""
        slot = key.slot + 1000
        offer = Offer(job=key.job, slots=(slot,), overlap="cancel")
        now = max(slot, round(time.time() * 1000))
        (claimed,) = self.store.claim("other", [offer], nonce=new_nonce(), now=now)
        assert [("overlap", "buffered")] == [(claim.answer, claim.run.state) for claim in claimed.claims]

    # what a worker does

    def messages(self, queue: str | None = None) -> list:
        with self.app.connection_for_read() as connection:
            channel = connection.channel()
            found = []
            while message := channel.basic_get(queue or self.queue, no_ack=True):
                found.append(message)
        return found

    def execute(self, message):
        """Run a message as a worker's parent and child would; return its result."""
        task = self.app.tasks[message.headers["task"]]
        request = task.Request
        made = worker.Request(message, app=self.app, hostname="celery@b", task=task)
        assert f"{worker.Request.__module__}:{worker.Request.__name__}" == request
        self.task_id = made.id
        header = made._request_dict.get("anarchon")
        self.token = header.get("token") if isinstance(header, dict) else None
        made.execute()
        return self.result

    def deliver(self, queue: str | None = None):
        (message,) = self.messages(queue)
        return self.execute(message)

    @property
    def result(self):
        return self.app.AsyncResult(self.task_id)

    def close(self) -> None:
        for beat in self.beats:
            beat.close()
        self.store.close()
        self.app.close()
        memory._ROOMS.pop((self.app.conf.anarchon_store, "anarchon"), None)


def a_board(monkeypatch):
    monkeypatch.setenv(board.WHERE, "")
    return board.make()


@pytest.fixture
def as_in_a_worker(monkeypatch):
    """What every real worker process does first; and a stop byte of this test's own."""
    trace._install_stack_protection()
    monkeypatch.setattr(trace, "_localized", [])
    monkeypatch.setattr(keeper, "LOOK_EVERY", 10)
    monkeypatch.setattr(keeper, "_keepers", {})
    monkeypatch.setattr(worker, "_board", a_board(monkeypatch))
    monkeypatch.setattr(board.Board, "parent", 41907)
    yield
    trace.reset_worker_optimizations()


@pytest.fixture
def make_stage(as_in_a_worker):
    stages = []

    def make(**conf) -> Stage:
        stages.append(Stage(**conf))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()
    for _, held in keeper._keepers.values():
        for each in list(held._leases.values()):
            held.let_go(each)
        held.store.close()


@pytest.fixture
def stage(make_stage):
    return make_stage()


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.DEBUG, "anarchon_celery")
    caplog.set_level(logging.INFO, "celery")
    yield caplog
    events.log_runs(True)


@pytest.fixture
def stop_the_worker(as_in_a_worker):
    """Tell the worker to stop, by the signal that Celery sends in its parent."""
    return lambda: signals.worker_shutting_down.send(
        sender="celery@b", sig="SIGTERM", how="Warm", exitcode=0
    )  # fmt: skip


def lines(log, containing: str = "") -> list[str]:
    """What was said of runs but for their dispatch, their slots cut off and times as ``N``."""
    said = [r.getMessage() for r in log.records if r.name == "anarchon_celery.runs"]
    shown = [re.sub(r"\d+ ms", "N ms", line.split("Z: ", 1)[1]) for line in said]
    return [line for line in shown if containing in line and not line.startswith("dispatched by")]


STARTED = "started on celery@b:41907 (attempt 1, catch-up)"


# From start to finish ---------------------------------------------------------------------------


def test_a_run_is_started_and_finished(stage, log):
    seen = {}

    @stage.task()
    def job(self, who, *, loud):
        run = stage.run(key)
        seen.update(run=run, lease=self.lease, current=current_lease(), id=self.request.id, who=(who, loud))
        return "done"

    key = stage.dispatch(args=("eu",), kwargs={"loud": True})
    result = stage.deliver()
    assert ("SUCCESS", "done") == (result.state, result.result)
    lease, run = seen["lease"], seen["run"]
    assert seen["current"] is lease
    assert ("job", key.slot, 1, "catch-up") == (
        lease.job, lease.slot.timestamp() * 1000, lease.attempt, lease.trigger,
    )  # fmt: skip
    assert ("running", "celery@b:41907", run.fence, stage.task_id) == (
        run.state, run.owner, lease.fence, run.task_id,
    )  # fmt: skip
    assert (("eu", True), stage.task_id) == (seen["who"], seen["id"])
    assert ("succeeded", None, 0) == (stage.run(key).state, stage.run(key).reason, stage.run(key).crashes)
    assert [STARTED, "finished in N ms"] == lines(log)
    assert current_lease().job is None, "the lease ended with the body"


def test_the_lease_covers_the_result_and_what_follows(stage):
    # Celery publishes links and stores the result after the body; the run ends after that.
    states = []
    mark_as_done = stage.app.backend.mark_as_done

    def mark(*args, **kwargs):
        states.append(stage.run(key).state)
        return mark_as_done(*args, **kwargs)

    stage.app.backend.mark_as_done = mark

    @stage.task()
    def job(self):
        return 1

    key = stage.dispatch()
    stage.deliver()
    assert ["running", "succeeded"] == [*states, stage.run(key).state]


def test_a_failure_is_final(stage, log):
    @stage.task()
    def job(self):
        raise ValueError("no such report")

    key = stage.dispatch()
    assert "FAILURE" == stage.deliver().state
    assert ("failed", "ValueError: no such report") == (stage.run(key).state, stage.run(key).reason)
    assert [STARTED, "failed after N ms: ValueError: no such report"] == lines(log)


def test_a_failure_is_told_in_one_line(stage, log):
    @stage.task()
    def job(self):
        raise ValueError("first\n\tsecond")

    key = stage.dispatch()
    stage.deliver()
    assert "ValueError: first second" == stage.run(key).reason
    assert [STARTED, "failed after N ms: ValueError: first second"] == lines(log)


@pytest.mark.parametrize(
    ("reason", "state", "why"),
    [
        (Ignore(), "succeeded", None),
        (Reject("no", requeue=False), "failed", "rejected by the task"),
        (Reject("not now", requeue=True), "released", None),
    ],
    ids=["Ignore", "Reject", "Reject, requeue"],
)
def test_a_tasks_own_ignore_or_reject_ends_the_run(stage, reason, state, why):
    @stage.task()
    def job(self):
        raise reason

    key = stage.dispatch()
    stage.deliver()
    assert (state, why) == (stage.run(key).state, stage.run(key).reason)


# A write that is refused -------------------------------------------------------------------------


def refusing(stage, **options):
    """A job whose write is refused, as what it writes to was written by a later run."""

    @stage.task(**options)
    def job(self, overtaken=False):
        stage.log.append("ran")
        if overtaken:
            stage.take_over(key_of(self.lease))
        fenced_write("the rates", lambda fence: False)

    return job


def key_of(lease) -> RunKey:
    return RunKey(lease.job, round(1000 * lease.slot.timestamp()))


def test_a_refused_write_fails_the_run_and_is_not_retried(stage, log):
    refusing(stage, autoretry_for=(Exception,), retry_backoff=False)
    key = stage.dispatch()
    stage.deliver()
    assert [] == stage.messages(), "a retry would write with a higher fence"
    run = stage.run(key)
    reason = f"StaleRun: the rates: written by a later run, so fence {run.fence} is refused"
    assert ("failed", reason, 1) == (run.state, run.reason, run.attempt)
    assert [STARTED, f"failed after N ms: {reason}"] == lines(log)


def test_a_refused_write_of_a_run_that_was_taken_over_is_a_lost_lease(stage, log):
    refusing(stage)
    key = stage.dispatch(args=(True,))
    stage.deliver()
    assert ("running", 2) == (stage.run(key).state, stage.run(key).attempt)
    assert [STARTED, "lease lost after N ms: it had ended or moved on before"] == lines(log)


def test_a_refused_write_that_the_task_expects_is_no_end(stage, log):
    @stage.task()
    def job(self):
        with suppress(StaleFence):
            fenced_write("the rates", lambda fence: False)
        return "the others"

    key = stage.dispatch()
    assert "the others" == stage.deliver().result
    assert "succeeded" == stage.run(key).state


def test_a_refused_write_of_a_call_by_hand_is_a_failure(stage):
    job = refusing(stage)
    with pytest.raises(StaleFence, match="outside a run"):
        job()
    job.delay()
    result = stage.deliver()
    assert "FAILURE" == result.state
    assert str(StaleFence("the rates", 0)) == str(result.result)


def test_a_task_that_replaces_itself_is_done(stage):
    @stage.task("proj.other")
    def other(self):
        stage.log.append(self.lease.job)

    @stage.task()
    def job(self):
        return self.replace(other.si())

    key = stage.dispatch()
    stage.deliver()
    assert "succeeded" == stage.run(key).state
    stage.deliver()
    assert [None] == stage.log, "its replacement is an ordinary task"


def test_a_second_delivery_of_a_message_is_stale_and_ignored(stage, log):
    @stage.task()
    def job(self):
        stage.log.append("ran")

    stage.dispatch()
    (message,) = stage.messages()
    stage.execute(message)
    stage.execute(message)
    assert ["ran"] == stage.log
    assert [STARTED, "finished in N ms", "skipped (stale)"] == lines(log)
    assert "SUCCESS" == stage.result.state, "what the first one stored stays"
    assert [] == stage.messages()


def in_a_thread(what, *args):
    thread = threading.Thread(target=what, args=args)
    thread.start()
    return thread


def test_a_doubled_message_beside_its_first_delivery_ends_nothing(stage, log):
    """As on the threads pool, where both run in one process: they have one task id."""
    doubled, first_may_end = threading.Event(), threading.Event()

    @stage.task()
    def job(self):
        doubled.set()
        assert first_may_end.wait(10)

    key = stage.dispatch()
    (message,) = stage.messages()
    first = in_a_thread(stage.execute, message)
    assert doubled.wait(10)
    stage.execute(message)
    assert [STARTED, "skipped (stale)"] == lines(log)
    assert "running" == stage.run(key).state
    first_may_end.set()
    first.join(10)
    assert "succeeded" == stage.run(key).state


@pytest.mark.parametrize("throw", [True, False])
def test_a_retry_beside_the_body_that_asked_for_it_is_not_ended_with_it(stage, throw):
    """The retry has the task id of its first try, whose end may come while it runs."""
    retrying, may_end = threading.Event(), threading.Event()
    after: list = []

    @stage.task()
    def job(self):
        if self.request.retries:
            retrying.set()
            assert may_end.wait(10)
            return
        try:
            self.retry(countdown=0, throw=throw)
        finally:
            (message,) = stage.messages()
            after.append(in_a_thread(stage.execute, message))
            assert retrying.wait(10)
            after.append(self.lease.aborted)

    key = stage.dispatch()
    stage.deliver()
    (held,) = [each for _, one in keeper._keepers.values() for each in one._leases.values()]
    assert (stage.run(key).token, True) == (held.token, after[1]), "the first body holds nothing any more"
    assert "running" == stage.run(key).state
    may_end.set()
    after[0].join(10)
    assert "succeeded" == stage.run(key).state


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("cannot parse caf\udce9.csv"), "ValueError: cannot parse caf?.csv"),
        (Unspeakable(), "Unspeakable: (its text cannot be made)"),
    ],
    ids=["half a character", "unspeakable"],
)
def test_whatever_the_text_of_an_error_is_its_run_has_failed(make_stage, tmp_path, error, reason):
    stage = make_stage(anarchon_store=f"sqlite:///{tmp_path / 'store.db'}", result_backend="disabled")

    @stage.task()
    def job(self):
        raise error

    key = stage.dispatch()
    stage.deliver()
    assert ("failed", reason) == (stage.run(key).state, stage.run(key).reason)
    assert {} == next(iter(keeper._keepers.values()))[1]._leases


def test_a_message_of_a_run_that_another_worker_runs_is_ignored(stage, log):
    @stage.task()
    def job(self):
        stage.log.append("ran")

    key = stage.dispatch()
    stage.store.start(Start(key=key, token="another", worker="celery@c:3"))
    before = stage.run(key)
    assert "PENDING" == stage.deliver().state
    assert ([], before, ["skipped (stale)"]) == (stage.log, stage.run(key), lines(log))


def test_a_takeover_is_the_next_attempt_with_a_higher_fence(stage, log):
    @stage.task()
    def job(self):
        stage.log.append((self.lease.attempt, self.lease.trigger, self.lease.fence))

    key = stage.dispatch(anarchon={"lease": 1, "heartbeat": 0.2})
    stage.messages()
    first = stage.store.start(Start(key=key, token="another", worker="celery@c:3", lease=1))
    wait_until(lambda: stage.store.expired(Node(id="n", name="n"), 10).runs)
    stage.beats[0].close()
    beat = Scheduler(app=stage.app)
    stage.beats.append(beat)
    beat.tick()
    again = [m for m in stage.messages() if m.headers["anarchon"]["slot"] == iso(key.slot)]
    stage.execute(again[0])
    ((attempt, trigger, fence),) = stage.log
    assert (2, "takeover") == (attempt, trigger)
    assert fence > first.fence
    assert "started on celery@b:41907 (attempt 2, takeover)" in lines(log)


# Messages that are no run -----------------------------------------------------------------------


def test_called_by_hand_it_is_an_ordinary_task(stage):
    @stage.task()
    def job(self, n):
        stage.log.append((self.lease.job, self.lease.remaining))
        return n + 1

    assert 2 == job(1)
    assert 3 == job.apply((2,)).result
    job.delay(3)
    assert 4 == stage.deliver().result
    assert 3 * [(None, float("inf"))] == stage.log
    assert ([], {}) == (stage.store.runs(), keeper._keepers), "no store was asked"


def test_applied_at_once_a_header_makes_no_run(stage):
    @stage.task()
    def job(self):
        return self.lease.job

    stage.dispatch()
    (message,) = stage.messages()
    assert job.apply(headers={"anarchon": message.headers["anarchon"]}).result is None


def test_a_header_that_names_another_task_is_none_of_ours(stage):
    # Groups and chords copy the headers of whoever applies them to all their members.
    @stage.task("proj.member")
    def member(self, n):
        stage.log.append((n, self.lease.job))

    @stage.task()
    def job(self):
        group(member.s(n) for n in (1, 2)).apply_async(headers=self.request.headers)

    key = stage.dispatch()
    stage.deliver()
    for message in stage.messages():
        assert message.headers["anarchon"]["job"] == "job"
        stage.execute(message)
    assert [(1, None), (2, None)] == sorted(stage.log)
    assert "succeeded" == stage.run(key).state


def test_a_task_called_from_a_run_is_ordinary_and_may_be_itself(stage, log):
    @stage.task()
    def job(self, depth=0):
        stage.log.append(depth)
        return depth if depth else job(1)

    key = stage.dispatch()
    assert 1 == stage.deliver().result
    assert [0, 1] == stage.log
    assert [STARTED, "finished in N ms"] == lines(log)
    assert ("succeeded", 1) == (stage.run(key).state, stage.run(key).attempt)


def test_what_a_run_sends_is_no_run(stage):
    @stage.task("proj.child")
    def child(self):
        stage.log.append(self.lease.job)

    @stage.task()
    def job(self):
        child.delay()
        stage.log.append(self.lease.job)

    stage.dispatch()
    stage.deliver()
    stage.deliver()
    assert ["job", None] == stage.log


# Given back -------------------------------------------------------------------------------------


def given_back(stage, queue: str | None = None):
    """Take the message that was given back; check that it waits."""
    (message,) = stage.messages(queue)
    eta = datetime.fromisoformat(message.headers["eta"])
    wait = (eta - datetime.now(timezone.utc)).total_seconds()
    assert returning.GIVEN_BACK_FOR - 3 < wait <= returning.GIVEN_BACK_FOR
    return message


def test_a_header_of_a_version_of_others_is_given_back(stage, log):
    @stage.task()
    def job(self, n):
        stage.log.append("ran")

    key = stage.dispatch(args=(7,), expires=600)
    (message,) = stage.messages()
    message.headers["anarchon"]["v"] = 2
    assert "PENDING" == stage.execute(message).state
    again = given_back(stage)
    for name in ("id", "anarchon", "expires", "retries", "task"):
        assert message.headers[name] == again.headers[name]
    assert message.payload[:2] == again.payload[:2]
    assert ([], "queued") == (stage.log, stage.run(key).state)
    line = "given back for 5 s: header version 2 is unknown to this worker, which reads 1"
    assert [line] == lines(log)
    assert ["WARNING"] == [r.levelname for r in log.records if "given back" in r.getMessage()]


def test_what_is_given_back_goes_to_the_queue_it_came_from(stage):
    @stage.task()
    def job(self):
        stage.log.append("ran")

    reports = f"reports-{stage.queue}"
    stage.dispatch(queue=reports)
    (message,) = stage.messages(reports)
    message.headers["anarchon"]["v"] = 2
    stage.execute(message)
    assert [] == stage.messages()
    given_back(stage, reports)


def test_a_header_beyond_reading_is_dropped_with_a_line(stage, log):
    """No other worker could read it either; the start timeout of its run sends another."""

    @stage.task()
    def job(self):
        stage.log.append("ran")

    stage.dispatch()
    (message,) = stage.messages()
    message.headers["anarchon"] = "nonsense"
    stage.execute(message)
    assert ([], []) == (stage.messages(), stage.log)
    records = [r.getMessage() for r in log.records if "dropped" in r.getMessage()]
    why = "dropped: the 'anarchon' header is str, not a mapping"
    assert [f"[anarchon] proj.job[{stage.task_id}]: {why}"] == records


def test_while_the_store_is_away_a_message_is_given_back_and_not_run(make_stage, log):
    stage = make_stage()

    @stage.task()
    def job(self):
        stage.log.append("ran")

    stage.dispatch()
    stage.app.conf.anarchon_store = f"redis://127.0.0.1:{free_port()}/0"
    assert "PENDING" == stage.deliver().state
    assert [] == stage.log
    given_back(stage)
    (line,) = lines(log)
    assert line.startswith("given back for 5 s: redis://127.0.0.1:")
    assert "does not answer" in line


def test_what_cannot_be_given_back_either_is_dropped_with_a_line_and_no_failure(stage, log):
    """Its run is as it was: the start timeout sends another message."""

    @stage.task()
    def job(self):
        stage.log.append("ran")

    def broker_down(*args, **kwargs):
        raise OperationalError("nobody listens")

    key = stage.dispatch()
    (message,) = stage.messages()
    message.headers["anarchon"]["v"] = 2
    stage.app.amqp.send_task_message = broker_down
    assert ("PENDING", None) == (stage.execute(message).state, stage.result.result)
    assert ([], [], "queued") == (stage.messages(), stage.log, stage.run(key).state)
    why = "header version 2 is unknown to this worker, which reads 1; OperationalError: nobody listens"
    dropped = [r.getMessage() for r in log.records if "dropped" in r.getMessage()]
    assert [f"[anarchon] {key}: dropped: {why}"] == dropped


def test_what_is_given_back_keeps_no_token_of_its_delivery(stage, stop_the_worker):
    @stage.task()
    def job(self):
        stage.log.append("ran")

    stage.dispatch()
    (message,) = stage.messages()
    sent = dict(message.headers["anarchon"])
    stop_the_worker()
    stage.execute(message)
    assert stage.token is not None
    (again,) = stage.messages()
    assert sent == again.headers["anarchon"]


def test_a_message_given_back_is_run_when_it_comes_again(stage, log):
    @stage.task()
    def job(self):
        stage.log.append("ran")

    key = stage.dispatch()
    (message,) = stage.messages()
    message.headers["anarchon"]["v"] = 2
    stage.execute(message)
    again = given_back(stage)
    again.headers["anarchon"]["v"] = 1
    stage.execute(again)
    assert (["ran"], "succeeded") == (stage.log, stage.run(key).state)


def test_each_delivery_has_a_token_of_its_own_and_none_travels(stage):
    tokens = []

    @stage.task()
    def job(self):
        assert stage.run(key).token == stage.token, "the worker's parent made it"
        tokens.append(stage.token)
        raise self.retry(countdown=0)

    key = stage.dispatch()
    stage.deliver()
    (message,) = stage.messages()
    assert "token" not in message.headers["anarchon"]
    stage.execute(message)
    assert 2 == len({*tokens, None} - {None})


# Retry ------------------------------------------------------------------------------------------


def test_a_retry_goes_on_under_the_same_attempt(stage, log):
    @stage.task(max_retries=3)
    def job(self):
        stage.log.append((self.lease.attempt, self.request.retries, self.lease.fence))
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return "done"

    key = stage.dispatch()
    assert "RETRY" == stage.deliver().state
    run = stage.run(key)
    assert ("queued", 1, 1) == (run.state, run.attempt, run.retries)
    assert "RETRY" == stage.deliver().state
    assert ("SUCCESS", "done") == (stage.deliver().state, stage.result.result)
    assert [(1, 0), (1, 1), (1, 2)] == [seen[:2] for seen in stage.log]
    fences = [seen[2] for seen in stage.log]
    assert sorted(set(fences)) == fences, "each start has a higher one"
    run = stage.run(key)
    assert ("succeeded", 1, 0) == (run.state, run.attempt, run.crashes)
    assert [
        STARTED, "retry 1 requested after N ms", STARTED, "retry 2 requested after N ms",
        STARTED, "finished in N ms",
    ] == lines(log)  # fmt: skip


def test_the_run_waits_before_the_retry_is_published(stage):
    states = []
    send_task_message = stage.app.amqp.send_task_message

    @stage.task()
    def job(self):
        stage.app.amqp.send_task_message = noting
        raise self.retry(countdown=60)

    def noting(*args, **kwargs):
        states.append(stage.run(key).state)
        return send_task_message(*args, **kwargs)

    key = stage.dispatch()
    stage.deliver()
    assert ["queued"] == states


@pytest.mark.parametrize(
    "when",
    [
        lambda: {"countdown": 60},
        lambda: {"eta": datetime.now(timezone.utc) + timedelta(seconds=60)},
        lambda: {"eta": datetime.now() + timedelta(seconds=60)},
    ],
    ids=["countdown", "eta", "naive eta"],
)
def test_a_retry_is_not_startable_before_its_time(stage, log, when):
    @stage.task()
    def job(self):
        raise self.retry(**when())

    key = stage.dispatch()
    stage.deliver()
    run = stage.run(key)
    assert 58_000 < run.not_before - run.queued_at <= 60_000
    assert 300_000 == run.deadline - run.not_before
    stage.deliver()  # on a host whose clock runs ahead: it waits, and is not lost
    assert re.fullmatch(r"given back for (59\.\d+|60) s: too early for its retry", lines(log)[-1])
    assert run == stage.run(key)


def test_a_naive_eta_is_in_utc_as_the_workers_of_celery_read_it():
    app = Celery("proj", set_as_current=False, changes={"timezone": "America/New_York"})
    eta = datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(seconds=30)
    assert 29_000 < task_module._milliseconds_until(None, eta, app) <= 30_000
    assert 29_000 < task_module._milliseconds_until(0, eta, app) <= 30_000, "as Celery takes 0 for none"
    assert 2_000 == task_module._milliseconds_until(2, eta, app)


def test_the_header_survives_headers_of_the_retrys_own(stage):
    @stage.task()
    def job(self):
        stage.log.append((self.lease.job, (self.request.headers or {}).get("tenant")))
        if not self.request.retries:
            raise self.retry(countdown=0, headers={"tenant": "a"})

    key = stage.dispatch()
    stage.deliver()
    stage.deliver()
    assert [("job", None), ("job", "a")] == stage.log
    assert "succeeded" == stage.run(key).state


def test_autoretry_is_a_retry(stage):
    @stage.task(autoretry_for=(ValueError,), default_retry_delay=0, retry_backoff=False, max_retries=1)
    def job(self):
        raise ValueError("again")

    key = stage.dispatch()
    stage.deliver()
    assert ("queued", 1) == (stage.run(key).state, stage.run(key).retries)
    assert "FAILURE" == stage.deliver().state
    assert ("failed", "ValueError: again") == (stage.run(key).state, stage.run(key).reason)


def test_retries_that_are_used_up_are_a_failure(stage):
    @stage.task(max_retries=0)
    def job(self):
        raise self.retry(countdown=0)

    key = stage.dispatch()
    stage.deliver()
    assert "failed" == stage.run(key).state
    assert stage.run(key).reason.startswith("MaxRetriesExceededError: ")
    assert [] == stage.messages()


def test_a_retry_that_is_asked_for_and_not_raised_is_one_too(stage):
    @stage.task()
    def job(self):
        self.retry(countdown=60, throw=False)
        return "and on"

    key = stage.dispatch()
    assert "SUCCESS" == stage.deliver().state
    assert "queued" == stage.run(key).state
    assert 1 == len(stage.messages())


def test_a_retry_that_took_long_to_publish_is_no_loss(stage, log):
    @stage.task()
    def job(self):
        mine = self.lease
        try:
            raise self.retry(countdown=60)
        finally:
            mine.trusted_until = 0.0

    key = stage.dispatch()
    assert "RETRY" == stage.deliver().state
    assert "queued" == stage.run(key).state
    assert [STARTED, "retry 1 requested after N ms"] == lines(log)


def test_a_run_that_was_lost_is_not_retried(stage, log):
    @stage.task()
    def job(self):
        stage.take_over(key)
        raise self.retry(countdown=0)

    key = stage.dispatch()
    assert "PENDING" == stage.deliver().state
    assert [] == stage.messages()
    assert ("running", "another") == (stage.run(key).state, stage.run(key).token)
    assert 1 == len(lines(log, "lease lost after N ms: "))


def test_a_plain_call_is_retried_as_ever(stage):
    @stage.task()
    def job(self):
        if not self.request.retries:
            raise self.retry(countdown=0)
        return self.lease.job

    job.delay()
    assert "RETRY" == stage.deliver().state
    assert ("SUCCESS", None) == (stage.deliver().state, stage.result.result)


def test_a_retry_of_another_task_by_its_own_id_is_none_of_this_run(stage):
    @stage.task("proj.child")
    def child(self):
        return self.request.retries

    @stage.task()
    def job(self):
        child.apply_async(retries=3)

    key = stage.dispatch()
    stage.deliver()
    assert "succeeded" == stage.run(key).state
    assert 3 == stage.deliver().result


# Handed over ------------------------------------------------------------------------------------


def test_a_task_that_waits_stops_with_its_worker_and_hands_over(stage, log, stop_the_worker):
    @stage.task()
    def job(self):
        stop_the_worker()
        self.lease.wait(60)
        stage.log.append("went on")

    key = stage.dispatch()
    assert "PENDING" == stage.deliver().state
    run = stage.run(key)
    assert ("released", 0, 1) == (run.state, run.crashes, run.attempt)
    assert [] == stage.log
    assert [STARTED, "interrupted after N ms, handed over to another instance"] == lines(log)


@pytest.mark.parametrize("swallowed", ["returns", "raises", "retries"])
def test_check_that_has_raised_decides_whatever_the_body_makes_of_it(stage, log, stop_the_worker, swallowed):
    @stage.task()
    def job(self):
        stop_the_worker()
        try:
            self.lease.wait(60)
        except Exception as stopped:
            if swallowed == "raises":
                raise ValueError("in the middle") from stopped
            if swallowed == "retries":
                raise self.retry(countdown=0) from stopped
        return "half a report"

    key = stage.dispatch()
    assert ("PENDING", None) == (stage.deliver().state, stage.result.result), "nothing is stored"
    assert "released" == stage.run(key).state
    assert [] == stage.messages()
    assert [STARTED, "interrupted after N ms, handed over to another instance"] == lines(log)


def test_autoretry_does_not_catch_a_handover(stage, stop_the_worker):
    @stage.task(autoretry_for=(Exception,), retry_backoff=False, default_retry_delay=0)
    def job(self):
        stop_the_worker()
        self.lease.wait(60)

    key = stage.dispatch()
    assert "PENDING" == stage.deliver().state
    assert ("released", []) == (stage.run(key).state, stage.messages())


def test_a_task_that_does_not_look_finishes_while_the_worker_stops(stage, stop_the_worker):
    @stage.task()
    def job(self):
        stop_the_worker()
        wait_until(lambda: self.lease.aborted)
        return "a whole report"

    key = stage.dispatch()
    assert "SUCCESS" == stage.deliver().state
    assert "succeeded" == stage.run(key).state


def test_a_message_that_comes_to_a_stopping_worker_is_left_to_others(stage, log, stop_the_worker):
    @stage.task()
    def job(self):
        stage.log.append("ran")

    key = stage.dispatch()
    stop_the_worker()
    stage.deliver()
    assert ([], "queued", 1) == (stage.log, stage.run(key).state, len(stage.messages()))
    assert ["given back for 0 s: the worker stops"] == lines(log)


def test_a_job_that_does_not_hand_over_is_run_by_a_stopping_worker(stage, stop_the_worker):
    @stage.task()
    def job(self):
        self.lease.check()

    key = stage.dispatch(anarchon={"handover": False})
    stop_the_worker()
    stage.deliver()
    assert "succeeded" == stage.run(key).state


@pytest.mark.parametrize(("stops", "crashes"), [(True, 0), (False, 1)])
def test_a_task_that_its_pool_ends_is_handed_over_if_the_worker_stops(stage, stop_the_worker, stops, crashes):
    @stage.task()
    def job(self):
        if stops:
            stop_the_worker()
        raise WorkerTerminate

    key = stage.dispatch()
    with pytest.raises(SystemExit):
        stage.deliver()
    assert ("released", crashes) == (stage.run(key).state, stage.run(key).crashes)
    ((_, held),) = keeper._keepers.values()
    assert {} == held._leases, "renewed no more"


# Lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["by check", "with a result", "with an error"])
def test_of_a_lost_run_nothing_is_stored_and_nothing_published(stage, log, ends):
    @stage.task("proj.link")
    def link(self, result):
        stage.log.append("linked")

    @stage.task()
    def job(self):
        stage.take_over(key)
        wait_until(lambda: self.lease.aborted)
        self.update_state(state="PROGRESS")
        if ends == "by check":
            self.lease.check()
        if ends == "with an error":
            raise ValueError
        return "late"

    key = stage.dispatch(link=link.s(), anarchon={"lease": 10, "heartbeat": 0.02})
    assert ("PENDING", None) == (stage.deliver().state, stage.result.result)
    assert [] == stage.messages()
    assert ("running", "another", 2) == (stage.run(key).state, stage.run(key).token, stage.run(key).attempt)
    assert [STARTED, "lease lost after N ms: taken over as attempt 2"] == lines(log)


def test_a_lost_run_that_its_pool_ends_while_the_worker_stops_is_lost_and_not_handed_over(
    stage, log, stop_the_worker
):
    @stage.task()
    def job(self):
        stage.take_over(key)
        wait_until(lambda: lines(log, "lease lost"))  # it is told, then said
        stop_the_worker()
        raise WorkerTerminate

    key = stage.dispatch(anarchon={"lease": 10, "heartbeat": 0.02})
    with pytest.raises(SystemExit):
        stage.deliver()
    assert ("running", "another") == (stage.run(key).state, stage.run(key).token)
    assert [STARTED, "lease lost after N ms: taken over as attempt 2"] == lines(log)


def test_of_a_run_that_was_kept_the_link_is_published(stage):
    @stage.task("proj.link")
    def link(self, result):
        stage.log.append(result)

    @stage.task()
    def job(self):
        return "in time"

    stage.dispatch(link=link.s())
    stage.deliver()
    stage.deliver()
    assert ["in time"] == stage.log


def test_a_loss_that_is_seen_only_at_the_end_is_a_loss(stage, log):
    # The heartbeat did not come to it: the store refuses the end, and says so.
    @stage.task()
    def job(self):
        stage.take_over(key)
        return "late"

    key = stage.dispatch(anarchon={"lease": 60, "heartbeat": 30})
    stage.deliver()
    assert "another" == stage.run(key).token
    assert [STARTED, "lease lost after N ms: it had ended or moved on before"] == lines(log)


def test_a_body_that_outlives_its_trust_asks_before_it_stores(stage, log, monkeypatch):
    @stage.task()
    def job(self):
        held = self.lease
        stage.log.append(held)
        ((_, mine),) = keeper._keepers.values()
        mine.let_go(held)  # as where the heartbeat was starved
        held.trusted_until = 0.0
        return "late, and still its own"

    key = stage.dispatch()
    assert "SUCCESS" == stage.deliver().state
    assert stage.log[0].trusted_until > 0
    assert "running" == stage.run(key).state


class Late:
    """The real store, and a way to it on which the answer to a start takes longer than the lease."""

    def __init__(self, store) -> None:
        self.store = store
        self.late = 0.0

    def monotonic(self) -> float:
        return monotonic() + self.late

    def __getattr__(self, name):
        return getattr(self.store, name)

    def start(self, *args, **kwargs):
        answer = self.store.start(*args, **kwargs)
        self.late = 60.0
        return answer


@pytest.fixture
def starved(stage):
    """The keeper of the stage's app, without a heartbeat."""
    mine = keeper.keeper_of(stage.app, worker.stopping)
    mine._beat = lambda: None
    return mine


def test_on_a_start_that_is_answered_too_late_nothing_is_begun(stage, log, starved, monkeypatch):
    late = Late(starved.store)
    starved.store = late
    monkeypatch.setattr(keeper.Keeper, "monotonic", lambda self: late.monotonic())

    @stage.task()
    def job(self):
        stage.log.append("ran")

    key = stage.dispatch()
    assert ("PENDING", None) == (stage.deliver().state, stage.result.result)
    assert ([], "released") == (stage.log, stage.run(key).state)
    assert ["lease lost after N ms: the store answered too late"] == lines(log)
    assert {} == starved._leases


@pytest.mark.parametrize("heartbeat_was_first", [False, True])
def test_a_task_that_stops_for_want_of_trust_gives_back_what_is_still_its_own(
    stage, log, starved, heartbeat_was_first
):
    @stage.task()
    def job(self):
        self.lease.trusted_until = 0.0
        if heartbeat_was_first:
            starved._look([self.lease])
        self.lease.check()
        stage.log.append("went on")

    key = stage.dispatch(anarchon={"lease": 60, "heartbeat": 30})
    assert ("PENDING", None) == (stage.deliver().state, stage.result.result)
    assert ([], "released") == (stage.log, stage.run(key).state), "not kept for another lease"
    what = "it" if heartbeat_was_first else "the lease"
    assert [STARTED, f"lease lost after N ms: {what} could not be renewed in time"] == lines(log)


def test_lost_and_handed_over_are_no_failures_to_celery(stage):
    for kind in (LeaseLost, HandedOver):
        assert issubclass(kind, Ignore)
        assert not issubclass(kind, (Reject, Retry))


# Asked to stop ----------------------------------------------------------------------------------

ASKED = f"asked to stop after N ms: {OVERTAKEN}"
CANCELLED = f"cancelled after N ms: {OVERTAKEN}"


@pytest.mark.parametrize("ends", ["by check", "by wait", "by check, swallowed", "in a retry"])
def test_a_run_that_is_asked_to_stop_and_does_ends_as_cancelled(stage, log, ends):
    @stage.task("proj.link")
    def link(self, result):
        stage.log.append("linked")

    @stage.task()
    def job(self):
        stage.overtake(key)
        if ends == "by wait":
            self.lease.wait(15)
        wait_until(lambda: self.lease.aborted)
        assert OVERTAKEN == self.lease.reason
        if ends == "by check":
            self.lease.check()
        if ends == "by check, swallowed":
            with suppress(LeaseLost):
                self.lease.check()
        if ends == "in a retry":
            raise self.retry(countdown=1)
        return "late"

    key = stage.dispatch(link=link.s(), anarchon={"lease": 10, "heartbeat": 0.02})
    assert ("PENDING", None) == (stage.deliver().state, stage.result.result)
    assert [] == stage.messages(), "nothing is published on its behalf"
    assert ("cancelled", OVERTAKEN, 0) == (
        stage.run(key).state, stage.run(key).reason, stage.run(key).crashes,
    )  # fmt: skip
    assert [STARTED, ASKED, CANCELLED] == lines(log)
    (next_one,) = stage.store.runs(state="released")
    assert key.slot < next_one.slot, "the slot that waited for it is promoted"


@pytest.mark.parametrize(
    ("ends", "state", "line"),
    [
        ("with a result", "succeeded", "finished in N ms"),
        ("with an error", "failed", "failed after N ms: KeyError: 5"),
    ],
)
def test_a_run_that_was_asked_to_stop_and_came_to_its_own_end_ended_so(stage, log, ends, state, line):
    """It was still its own, and what it did is done."""

    @stage.task()
    def job(self):
        stage.overtake(key)
        wait_until(lambda: self.lease.aborted)
        if ends == "with an error":
            raise KeyError(5)
        return "done"

    key = stage.dispatch(anarchon={"lease": 10, "heartbeat": 0.02})
    assert ("SUCCESS" if state == "succeeded" else "FAILURE") == stage.deliver().state
    assert state == stage.run(key).state
    assert [STARTED, ASKED, line] == lines(log)
    (next_one,) = stage.store.runs(state="released")
    assert key.slot < next_one.slot, "the slot that waited for it is promoted"


def test_a_body_that_was_asked_to_stop_and_outlives_its_trust_is_cancelled(stage, log):
    @stage.task()
    def job(self):
        stage.overtake(key)
        wait_until(lambda: self.lease.aborted)
        self.lease.trusted_until = 0.0
        return "late"

    key = stage.dispatch(anarchon={"lease": 10, "heartbeat": 0.02})
    assert "PENDING" == stage.deliver().state
    assert ("cancelled", OVERTAKEN) == (stage.run(key).state, stage.run(key).reason)
    assert [STARTED, ASKED, CANCELLED] == lines(log)


def test_a_run_that_is_asked_to_stop_is_renewed_no_more(stage):
    @stage.task()
    def job(self):
        stage.overtake(key)
        wait_until(lambda: self.lease.aborted)
        asked = stage.run(key).deadline
        time.sleep(0.2)  # several heartbeats
        stage.log.append(stage.run(key).deadline == asked)

    key = stage.dispatch(anarchon={"lease": 10, "heartbeat": 0.02})
    stage.deliver()
    assert [True] == stage.log


def test_a_task_that_is_asked_to_stop_is_told_by_a_lost_lease(stage):
    @stage.task()
    def job(self):
        stage.overtake(key)
        try:
            self.lease.wait(15)
        except LeaseLost as told:
            stage.log.append((str(told), self.lease.remaining > 8))
            raise

    key = stage.dispatch(anarchon={"lease": 10, "heartbeat": 0.02})
    stage.deliver()
    assert [(OVERTAKEN, True)] == stage.log, "which is its own until it stops"


def test_a_run_that_is_asked_to_stop_when_its_body_is_over_ends_as_it_did(stage, log):
    mark_as_done = stage.app.backend.mark_as_done

    def mark(*args, **kwargs):
        stage.overtake(key)
        ((_, mine),) = keeper._keepers.values()
        (held,) = mine._leases.values()
        mine.confirm(held)
        return mark_as_done(*args, **kwargs)

    stage.app.backend.mark_as_done = mark

    @stage.task()
    def job(self):
        return "in time"

    key = stage.dispatch()
    assert ("SUCCESS", "in time") == (stage.deliver().state, stage.result.result)
    assert "succeeded" == stage.run(key).state
    assert [STARTED, "finished in N ms"] == lines(log)


def test_a_run_that_is_asked_to_stop_and_ended_by_its_pool_is_cancelled(stage, log):
    @stage.task()
    def job(self):
        stage.overtake(key)
        wait_until(lambda: self.lease.aborted)
        raise WorkerTerminate

    key = stage.dispatch(anarchon={"lease": 10, "heartbeat": 0.02})
    with pytest.raises(SystemExit):
        stage.deliver()
    assert ("cancelled", OVERTAKEN) == (stage.run(key).state, stage.run(key).reason)
    assert [STARTED, ASKED, CANCELLED] == lines(log)


def test_that_it_was_asked_to_stop_counts_for_more_than_that_its_worker_stops(stage, log, stop_the_worker):
    @stage.task()
    def job(self):
        stage.overtake(key)
        wait_until(lambda: self.lease.aborted)
        stop_the_worker()
        raise WorkerTerminate

    key = stage.dispatch(anarchon={"lease": 10, "heartbeat": 0.02})
    with pytest.raises(SystemExit):
        stage.deliver()
    assert ("cancelled", OVERTAKEN) == (stage.run(key).state, stage.run(key).reason)
    assert [STARTED, ASKED, CANCELLED] == lines(log)
    ((_, mine),) = keeper._keepers.values()
    assert {} == mine._leases


@pytest.mark.parametrize("swallowed", ["returns", "raises", "retries"])
def test_a_run_whose_body_swallows_that_it_is_to_stop_is_cancelled_all_the_same(stage, log, swallowed):
    @stage.task(autoretry_for=(Exception,), default_retry_delay=0)
    def job(self):
        stage.overtake(key)
        try:
            self.lease.wait(15)
        except Exception as stopped:
            if swallowed == "raises":
                raise ValueError("in the middle") from stopped
            if swallowed == "retries":
                raise self.retry(countdown=0) from stopped
        return "half a report"

    key = stage.dispatch(anarchon={"lease": 10, "heartbeat": 0.02})
    assert ("PENDING", None) == (stage.deliver().state, stage.result.result), "nothing is stored"
    assert ("cancelled", OVERTAKEN) == (stage.run(key).state, stage.run(key).reason)
    assert [] == stage.messages()
    assert [STARTED, ASKED, CANCELLED] == lines(log)


def test_a_run_whose_worker_stops_first_is_cancelled_if_it_is_asked_to_stop(stage, log, stop_the_worker):
    @stage.task()
    def job(self):
        stop_the_worker()
        wait_until(lambda: self.lease.aborted)
        stage.overtake(key)
        wait_until(lambda: self.lease.reason == OVERTAKEN)
        self.lease.check()

    key = stage.dispatch(anarchon={"lease": 10, "heartbeat": 0.02})
    stage.deliver()
    assert ("cancelled", OVERTAKEN) == (stage.run(key).state, stage.run(key).reason)
    assert [STARTED, ASKED, CANCELLED] == lines(log)


def test_a_run_that_hands_over_unaware_that_it_is_to_stop_ends(stage, stop_the_worker):
    @stage.task()
    def job(self):
        stage.overtake(key)
        stop_the_worker()
        self.lease.wait(15)

    key = stage.dispatch(anarchon={"lease": 60, "heartbeat": 30})
    stage.deliver()
    assert ("cancelled", OVERTAKEN) == (stage.run(key).state, stage.run(key).reason), "and no attempt follows"


def test_a_run_that_retries_unaware_that_it_is_to_stop_ends(stage):
    @stage.task()
    def job(self):
        stage.overtake(key)
        raise self.retry(countdown=1)

    key = stage.dispatch(anarchon={"lease": 60, "heartbeat": 30})
    assert ("PENDING", None) == (stage.deliver().state, stage.result.result)
    assert ("cancelled", OVERTAKEN) == (stage.run(key).state, stage.run(key).reason)
    assert [] == stage.messages()


def test_a_run_that_is_asked_to_stop_is_not_given_back(stage, starved):
    released = []
    release = starved.store.release

    def release_and_note(*args, **kwargs):
        released.append(args)
        return release(*args, **kwargs)

    starved.store.release = release_and_note

    @stage.task()
    def job(self):
        stage.overtake(key)
        starved.confirm(self.lease)
        self.lease.check()

    key = stage.dispatch()
    stage.deliver()
    assert ("cancelled", []) == (stage.run(key).state, released)


def test_an_end_as_cancelled_that_cannot_be_recorded_is_said_so(stage, log, starved, monkeypatch):
    monkeypatch.setattr(keeper, "RELEASE_WITHIN", 0.1)

    def away(*args, **kwargs):
        raise StoreUnreachable("it is down")

    @stage.task()
    def job(self):
        stage.overtake(key)
        starved.confirm(self.lease)
        starved.store.finish = away
        self.lease.check()

    key = stage.dispatch()
    assert ("PENDING", None) == (stage.deliver().state, stage.result.result)
    assert ("running", OVERTAKEN) == (stage.run(key).state, stage.run(key).stop)
    assert [STARTED, ASKED, "cancelled, but that could not be recorded: it is down"] == lines(log)


def test_a_run_that_gives_up_before_it_is_told_to_stop_is_cancelled_too(stage, log):
    # The heartbeat did not come to it; that it was asked to stop is learnt as it gives up.
    @stage.task()
    def job(self):
        stage.overtake(key)
        raise LeaseLost("something else came up")

    key = stage.dispatch(anarchon={"lease": 60, "heartbeat": 30})
    stage.deliver()
    assert ("cancelled", OVERTAKEN) == (stage.run(key).state, stage.run(key).reason)
    assert [STARTED, ASKED, CANCELLED] == lines(log)


# In a worker ------------------------------------------------------------------------------------


@pytest.fixture
def run_worker(make_stage):
    """Run a worker of Celery's in a thread of this process."""

    def run(stage, **how):
        trace.setup_worker_optimizations(stage.app, "celery@b")  # the test worker leaves it out
        how = {"pool": "threads", "concurrency": 2, "perform_ping_check": False} | how
        return start_worker(stage.app, hostname="celery@b", shutdown_timeout=30, **how)

    return run


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_worker_runs_what_beat_sent(make_stage, run_worker, log, pool):
    stage = make_stage()

    @stage.task()
    def job(self, n):
        stage.log.append((n, self.lease.job, self.lease.attempt, self.request.id))
        if not self.request.retries:
            raise self.retry(countdown=0.3)
        return n

    with run_worker(stage, pool=pool):
        key = stage.dispatch(args=(5,))
        wait_until(lambda: stage.run(key).state == "succeeded")
        (first, second) = stage.log
        assert (5, "job", 1) == first[:3]
        assert first == second
        assert ("SUCCESS", 5) == (lambda it: (it.state, it.result))(stage.app.AsyncResult(first[3]))
    said = [re.sub(r"b:\d+", "b:41907", line) for line in lines(log)]
    assert [STARTED, "retry 1 requested after N ms", STARTED, "finished in N ms"] == said


def test_a_worker_that_stops_hands_over_and_another_goes_on(make_stage, run_worker, log):
    stage = make_stage()

    @stage.task()
    def job(self):
        stage.log.append(self.lease.attempt)
        if self.lease.attempt == 1:
            self.lease.wait(60)
        return "done"

    with run_worker(stage):
        key = stage.dispatch()
        wait_until(lambda: stage.log)
        signals.worker_shutting_down.send(sender="celery@b", sig="SIGTERM", how="Warm", exitcode=0)
        wait_until(lambda: stage.run(key).state == "released")
    with run_worker(stage):
        wait_until(lambda: stage.beats[0].tick() and stage.run(key).state == "succeeded")
    assert [1, 2] == stage.log[:2]
    said = [re.sub(r"b:\d+", "b:41907", line) for line in lines(log)]
    for line in (
        "interrupted after N ms, handed over to another instance",
        "started on celery@b:41907 (attempt 2, takeover)",
        "finished in N ms",
    ):
        assert line in said


def test_a_chord_of_ordinary_calls_works_with_the_base_class(make_stage, run_worker):
    stage = make_stage(task_cls=Task)

    @stage.task("proj.add")
    def add(self, n):
        return n + 1

    @stage.task("proj.sum")
    def total(self, numbers):
        stage.log.append(sum(numbers))

    with run_worker(stage):
        chord([add.s(1), add.s(2)])(total.s())
        wait_until(lambda: stage.log)
    assert [5] == stage.log


@pytest.mark.parametrize(
    ("conf", "line"),
    [
        ({"anarchon_leese": 5}, "anarchon: anarchon_leese=5: no such setting"),
        (
            {"anarchon_store": "redis://localhost", "anarchon_store_options": {"colour": "blue"}},
            "anarchon: redis://localhost:6379/0: the query of its URL, or anarchon_store_options, cannot be ",
        ),
    ],
)
def test_a_worker_with_an_impossible_setting_does_not_start(make_stage, conf, line):
    with pytest.raises(SystemExit) as stopped:
        make_stage(**conf).app.WorkController(hostname="celery@b", pool="solo")
    assert str(stopped.value.code).startswith(line)
    assert 1 == len(str(stopped.value.code).splitlines())

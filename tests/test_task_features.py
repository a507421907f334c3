"""What of Celery's own works with a leased task, as docs/tasks.md says."""

from __future__ import annotations

import pytest
from celery import chain, chord, group
from celery.contrib.abortable import AbortableTask
from celery.exceptions import Ignore

from anarchon_celery import Task, current_lease
from anarchon_celery.stores import open_store
from tests import projects
from tests.processes import wait_until
from tests.test_task import STARTED, as_in_a_worker, lines, log, make_stage, run_worker, stage

# How a task is made --------------------------------------------------------------------------------


def test_a_task_that_is_not_bound_asks_for_its_lease(stage):
    @stage.app.task(name="proj.job", base=Task, shared=False)
    def job(n):
        stage.log.append((n, current_lease().job, current_lease().attempt))

    key = stage.dispatch(args=(5,))
    stage.deliver()
    assert [(5, "job", 1)] == stage.log
    assert "succeeded" == stage.run(key).state


@pytest.mark.parametrize("how", ["task", "entry"])
def test_a_run_whose_result_is_ignored_is_recorded_all_the_same(stage, how):
    @stage.task(ignore_result=how == "task")
    def job(self):
        return "done"

    key = stage.dispatch(**({"ignore_result": True} if how == "entry" else {}))
    assert "PENDING" == stage.deliver().state
    assert "succeeded" == stage.run(key).state


@pytest.mark.parametrize(
    ("id", "seen", "reason"),
    [(7, [(7, "job")], ""), ("seven", [], "ValidationError: 1 validation error for Order id ")],
)
def test_pydantic_arguments_are_made_within_the_lease(stage, id, seen, reason):
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):
        id: int

    def job(self, order: Order) -> Order:
        stage.log.append((order.id, self.lease.job))
        return order

    job.__annotations__ = {"order": Order, "return": Order}
    stage.task(pydantic=True)(job)
    key = stage.dispatch(kwargs={"order": {"id": id}})
    result = stage.deliver().result
    assert seen == stage.log
    assert (stage.run(key).reason or "").startswith(reason)
    assert "failed" == stage.run(key).state if reason else {"id": 7} == result


def test_abortable_tasks_of_celerys_mix_in(stage):
    class Abortable(Task, AbortableTask):
        abstract = True

    @stage.task(base=Abortable)
    def job(self):
        stage.log.append((self.lease.job, self.is_aborted()))

    key = stage.dispatch()
    stage.deliver()
    assert ([("job", False)], "succeeded") == (stage.log, stage.run(key).state)


def test_a_rate_limit_holds_runs_back_in_the_worker(make_stage, run_worker):
    stage = make_stage()

    @stage.task(rate_limit="100/s")
    def job(self):
        stage.log.append(self.lease.job)

    with run_worker(stage):
        keys = [stage.dispatch(), stage.dispatch()]
        wait_until(lambda: {stage.run(key).state for key in keys} == {"succeeded"})
    assert ["job"] * len(set(keys)) == stage.log


def test_the_state_that_celery_stores_at_the_start_is_stored_as_ever(stage):
    seen = []

    @stage.task(track_started=True)
    def job(self):
        seen.append(stage.app.AsyncResult(self.request.id).state)

    stage.dispatch()
    assert "SUCCESS" == stage.deliver().state
    assert ["STARTED"] == seen


# What follows a task -------------------------------------------------------------------------------


def following(stage):
    """Tasks that say that they were run, and how they are given to an entry."""

    def ran(self, *args):
        stage.log.append((self.name.removeprefix("proj."), self.lease.job))

    for name in ("link", "errback", "next"):
        stage.task(f"proj.{name}")(ran)
    tasks = stage.app.tasks
    following = tasks["proj.next"].si()
    following.freeze()
    return {
        "link": tasks["proj.link"].si(), "link_error": tasks["proj.errback"].si(),
        "chain": [following],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ends", "state", "follows"),
    [
        ("well", "succeeded", [("link", None), ("next", None)]),
        ("badly", "failed", [("errback", None)]),
        ("ignored", "succeeded", []),
        ("lost", "running", []),
        ("lost, badly", "running", []),
    ],
)
def test_what_follows_a_run(stage, ends, state, follows):
    @stage.task()
    def job(self):
        if "lost" in ends:
            stage.take_over(key)
            wait_until(lambda: self.lease.aborted)
        if "badly" in ends:
            raise ValueError("no such report")
        if ends == "ignored":
            raise Ignore

    key = stage.dispatch(**following(stage), anarchon={"heartbeat": 0.02})
    stage.deliver()
    assert state == stage.run(key).state
    for message in stage.messages():
        stage.execute(message)
    assert follows == sorted(stage.log)


def test_chains_groups_and_chords_of_a_body_are_ordinary_calls(make_stage, run_worker):
    stage = make_stage()

    @stage.task("proj.add")
    def add(self, n, m=1):
        stage.log.append(self.lease.job)
        return n + m

    @stage.task("proj.sum")
    def total(self, numbers):
        stage.log.append(self.lease.job)
        results.append(sum(numbers))

    results: list = []

    @stage.task()
    def job(self):
        chain(add.s(1), add.s(10)).apply_async()
        group(add.s(n) for n in (1, 2)).apply_async()
        chord([add.s(1), add.s(2)])(total.s())

    with run_worker(stage):
        key = stage.dispatch()
        wait_until(lambda: results and len(stage.log) == 7)
        assert "succeeded" == stage.run(key).state
    assert ([5], {None}) == (results, set(stage.log))


def test_what_replaces_a_run_is_an_ordinary_call_of_the_same_id(stage):
    @stage.task("proj.other")
    def other(self):
        stage.log.append((self.lease.job, self.request.id))
        return "done"

    @stage.task()
    def job(self):
        raise self.replace(other.si())

    key = stage.dispatch(link=following(stage)["link"])
    stage.deliver()
    first = stage.task_id
    assert "succeeded" == stage.run(key).state, "what it began goes on without it"
    assert "done" == stage.deliver().result
    stage.deliver()
    assert [(None, first), ("link", None)] == stage.log


# Where a message goes ------------------------------------------------------------------------------


def test_a_takeover_goes_where_the_first_message_went(stage):
    @stage.task()
    def job(self):
        stage.log.append(self.lease.attempt)

    queue = f"reports-{stage.queue}"
    key = stage.dispatch(queue=queue, priority=4, anarchon={"start_timeout": 300})
    (first,) = stage.messages(queue)
    stage.take_over(key, start=False)
    (beat,) = stage.beats
    beat.publisher.publish(beat.schedule["job"], stage.run(key), beat.plan.jobs["job"].policy)
    (again,) = stage.messages(queue)
    assert first.headers["id"] != again.headers["id"]
    assert (4, queue) == (again.properties["priority"], again.delivery_info["routing_key"])
    stage.execute(again)
    stage.execute(first)
    assert [1] == stage.log


# Acks, redelivery, lost children: real brokers and workers ------------------------------------------


LATE = {"acks_late": True}


@pytest.mark.cluster
def test_a_message_that_redis_delivers_again_is_not_run_beside_the_first(
    tmp_path, processes, redis_url, redis_server
):
    broker, options = redis_server.url(1), {"visibility_timeout": 1}
    projects.write(
        tmp_path, broker=broker, store=redis_url, body="until('go')", how=LATE,
        conf={"broker_transport_options": options},
    )  # fmt: skip
    worker = processes.celery(
        "-A", "proj", "worker", "-B", "-P", "threads", "-c", "2", "-l", "info", name="worker"
    )
    worker.wait_for("waits for go", 40)
    restore = restoring(broker, options)
    wait_until(lambda: restore() or "skipped (stale)" in worker.output)
    (tmp_path / "go").touch()
    worker.wait_for(r"finished in \d+ ms")
    assert 0 == worker.stop(30)
    assert 1 == worker.output.count("waits for go")
    with redis_server.client(1) as client:
        assert 0 == client.llen("celery") + client.hlen("unacked"), "each delivery was acked"


def restoring(broker, options):
    """Look for what was not acked in time, as any consumer does now and then."""
    from celery import Celery

    app = Celery(broker=broker, set_as_current=False)
    app.conf.broker_transport_options = options

    def restore():
        with app.connection_for_read() as connection:
            connection.default_channel.qos.restore_visible()

    return restore


@pytest.mark.cluster
def test_a_message_that_rabbitmq_delivers_again_is_not_run_beside_the_first(
    tmp_path, processes, redis_url, rabbitmq_server
):
    projects.write(tmp_path, broker=rabbitmq_server.new_url(), store=redis_url, body="until('go')", how=LATE)
    worker = processes.celery(
        "-A", "proj", "worker", "-B", "-P", "threads", "-c", "2", "-l", "info", name="worker"
    )
    worker.wait_for("waits for go", 40)
    rabbitmq_server.control("close_all_connections", "--global", "by the test")
    worker.wait_for(r"skipped \(stale\)", 40)
    (tmp_path / "go").touch()
    worker.wait_for(r"finished in \d+ ms")
    assert 1 == worker.output.count("waits for go")


SURVIVES = """
if self.lease.attempt == 1:
    print(f"child {os.getpid()}", flush=True)
    time.sleep(60)
return self.lease.attempt
"""


@pytest.mark.cluster
@pytest.mark.parametrize(
    "how",
    [{"acks_late": True, "reject_on_worker_lost": True}, {"retry_on_worker_lost": True}],
    ids=["reject_on_worker_lost", "retry_on_worker_lost"],
)
def test_a_child_that_is_killed_has_one_successor(tmp_path, processes, redis_url, redis_server, how):
    """Whatever Celery itself sends again: any message may start the run, and only one does."""
    from os import kill

    projects.write(
        tmp_path, broker=redis_server.url(1), store=redis_url, body=SURVIVES, how=how,
        options={"anarchon": {"lease": 2}},
    )  # fmt: skip
    worker = processes.celery("-A", "proj", "worker", "-B", "-c", "2", "-l", "info", name="worker")
    kill(int(worker.wait_for(r"child (\d+)", 40)[1]), 9)
    worker.wait_for(r"started on \S+ \(attempt 2, takeover\)", 40)
    worker.wait_for(r"finished in \d+ ms", 40)
    store = open_store(redis_url)
    try:
        (run,) = store.runs(job="job", limit=9)
    finally:
        store.close()
    assert ("succeeded", 2, 1) == (run.state, run.attempt, run.crashes)
    assert 2 == worker.output.count(": started on ")
    assert 0 == worker.stop(30)

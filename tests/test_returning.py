"""Messages that go back to their queue: within a bounded time, as they came, and not for ever."""

from __future__ import annotations

import socket
import threading

import pytest
from celery import Celery, signals
from kombu.entity import Exchange, Queue

from anarchon_celery import returning, unknown
from anarchon_celery.stores import open_store
from tests import projects
from tests.processes import wait_until
from tests.servers import free_port
from tests.test_task import as_in_a_worker, lines, log, make_stage, run_worker, stage, stop_the_worker
from tests.test_task import given_back as waits_again

UNKNOWN = "this worker does not know its task 'proj.job'"


@pytest.fixture(autouse=True)
def rooms(monkeypatch):
    monkeypatch.setattr(unknown, "_rooms", {})
    monkeypatch.setattr(unknown, "LOOK_EVERY", 0.02)


def same(first, again):
    """Whether a message is what it was; it says how often it came back."""
    assert not again.errors, "it can be opened"
    told = {name: value for name, value in again.headers.items() if name != returning.RETURNED}
    assert {name: value for name, value in first.headers.items() if name != returning.RETURNED} == told
    for name in ("body", "content_type", "content_encoding"):
        assert getattr(first, name) == getattr(again, name)
    for name in ("correlation_id", "reply_to", "priority", "delivery_mode"):
        assert first.properties.get(name) == again.properties.get(name)
    for name in ("exchange", "routing_key"):
        assert first.delivery_info[name] == again.delivery_info[name]


def dropped(log):
    return [r.getMessage().split("Z: ")[-1] for r in log.records if "dropped: " in r.getMessage()]


# By a child ----------------------------------------------------------------------------------------


def of_another_version(stage, **options):
    @stage.task()
    def job(self):
        stage.log.append("ran")

    stage.dispatch(**options)
    (message,) = stage.messages(options.get("queue"))
    message.headers["anarchon"]["v"] = 2
    return message


def test_a_message_nobody_takes_goes_back_until_its_run_is_sent_again(stage, log):
    message = of_another_version(stage, anarchon={"start_timeout": 10})
    for times in (1, 2):
        stage.execute(message)
        message = waits_again(stage)
        assert times == message.headers[returning.RETURNED]
    stage.execute(message)
    assert [] == stage.messages()
    why = "header version 2 is unknown to this worker, which reads 1"
    assert [f"dropped: {why}; nobody took it"] == dropped(log)


def test_a_message_that_waits_for_the_store_goes_back_for_as_long_as_it_takes(stage):
    @stage.task()
    def job(self):
        stage.log.append("ran")

    stage.dispatch(anarchon={"start_timeout": 1})
    stage.app.conf.anarchon_store = f"redis://127.0.0.1:{free_port()}/0"
    for _ in range(3):
        stage.deliver()
    assert returning.RETURNED not in waits_again(stage).headers


def test_a_broker_that_hangs_does_not_hang_the_worker(stage, log, monkeypatch):
    message = of_another_version(stage)
    monkeypatch.setattr(returning, "PATIENCE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stage.app.conf.broker_write_url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        stage.app.amqp._producer_pool = None
        executing = threading.Thread(target=stage.execute, args=[message], daemon=True)
        executing.start()
        executing.join(20)
        assert not executing.is_alive()
    (line,) = dropped(log)
    assert line.startswith("dropped: header version 2 is unknown to this worker, which reads 1; BrokerDown: ")


@pytest.mark.parametrize("priority", [None, 3])
def test_what_is_given_back_keeps_its_priority(stage, priority):
    options = {} if priority is None else {"priority": priority}
    message = of_another_version(stage, **options)
    stage.execute(message)
    assert (priority or 0) == (waits_again(stage).properties["priority"] or 0)


# By the parent: tasks that it does not know ---------------------------------------------------------


def arrives(stage, message):
    """What Celery's consumer does with the message of a task that is not registered."""
    told = message.headers if "task" in message.headers else message.payload  # of protocol 1
    signals.task_unknown.send(
        sender=type("Consumer", (), {"app": stage.app}), message=message,
        name=told["task"], id=told["id"], exc=KeyError(),
    )  # fmt: skip


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(unknown, "GIVEN_BACK_FOR", 0.3)


@pytest.mark.parametrize(
    "options",
    [{}, {"priority": 4, "expires": 600}, {"queue": "reports"}, {"compression": "gzip"}, {"countdown": 60}],
    ids=lambda it: " ".join(it) or "plain",
)
def test_a_message_of_an_unknown_task_goes_back_as_it_came(stage, log, soon, options):
    options |= {"queue": f"reports-{stage.queue}"} if "queue" in options else {}
    key = stage.dispatch(args=(7,), kwargs={"who": "eu"}, **options)
    (message,) = stage.messages(options.get("queue"))
    dispatched = stage.run(key)
    arrives(stage, message)
    assert [] == stage.messages(options.get("queue")), "it is held for a while"
    (again,) = wait_until(lambda: stage.messages(options.get("queue")))
    same(message, again)
    assert ([7], {"who": "eu"}) == tuple(again.payload[:2])
    assert [f"given back for 0.3 s: {UNKNOWN}"] == lines(log, "given back")
    assert dispatched == stage.run(key), "no dispatch was spent"


def test_a_message_of_celerys_first_protocol_goes_back_too(make_stage, log, soon):
    stage = make_stage(task_protocol=1)
    stage.dispatch()
    (message,) = stage.messages()
    assert "task" not in message.headers
    arrives(stage, message)
    (again,) = wait_until(stage.messages)
    same(message, again)
    assert [f"given back for 0.3 s: {UNKNOWN}"] == lines(log, "given back")


def test_a_message_to_an_exchange_of_its_own_goes_back_through_it(stage, soon):
    name = f"reports-{stage.queue}"
    stage.app.conf.task_queues = [Queue(name, Exchange(f"x-{name}", type="topic"), routing_key="eu.#")]
    stage.dispatch(queue=name, routing_key="eu.north")
    (message,) = stage.messages(name)
    arrives(stage, message)
    (again,) = wait_until(lambda: stage.messages(name))
    same(message, again)
    assert f"x-{name}" == again.delivery_info["exchange"]


@pytest.mark.cluster
@pytest.mark.parametrize("broker", ["redis_url", "rabbitmq_url"])
def test_it_goes_back_as_it_came_through_real_brokers(make_stage, soon, broker, request):
    stage = make_stage(broker_url=request.getfixturevalue(broker), broker_transport_options={})
    stage.app.conf.task_queues = [Queue(stage.queue, max_priority=9)]

    def get():
        with stage.app.connection_for_read() as connection:
            return Queue(stage.queue, no_declare=True)(connection.default_channel).get(no_ack=True)

    stage.dispatch(args=("é", {"n": 7}), priority=4, expires=600, compression="gzip", serializer="json")
    message = get()
    arrives(stage, message)
    same(message, wait_until(get))


def test_an_unknown_task_is_given_back_at_once_when_the_worker_stops(stage, log, stop_the_worker):
    stage.dispatch()
    (message,) = stage.messages()
    arrives(stage, message)
    stop_the_worker()
    (again,) = wait_until(stage.messages, 2)
    same(message, again)
    assert 1 == len(lines(log, "given back"))


def test_a_worker_that_is_gone_holds_no_message_back(stage):
    stage.dispatch()
    (message,) = stage.messages()
    arrives(stage, message)
    signals.worker_shutdown.send(sender=stage)
    same(message, *stage.messages())


def test_an_unknown_task_that_cannot_be_given_back_is_dropped_with_a_line(stage, log, soon):
    stage.dispatch()
    (message,) = stage.messages()
    stage.app.conf.broker_write_url = f"redis://127.0.0.1:{free_port()}/0"
    arrives(stage, message)
    wait_until(lambda: dropped(log))
    (line,) = dropped(log)
    assert line.startswith(f"dropped: {UNKNOWN}; BrokerDown: ")


@pytest.mark.parametrize("returned", ["x", [], {}, -5, 1.5, float("inf"), True, None])
def test_a_count_that_nobody_can_mean_is_begun_anew(returned):
    assert 1 == returning.counted_once_more({returning.RETURNED: returned})[returning.RETURNED]


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 1e300, -1, "x", None, [], 10**400])
def test_a_start_timeout_that_nobody_can_mean_lets_no_message_go_round_for_ever(timeout):
    message, rounds = {"anarchon": {"v": 2, "start_timeout": timeout}}, 0
    while message is not None and rounds < 1_000:
        message, rounds = returning.counted_once_more(message), rounds + 1
    assert rounds in (61, 721), "once each five seconds for five minutes, or for the longest timeout there is"


def test_an_unknown_task_is_given_back_until_its_run_is_sent_again(stage, log, soon):
    stage.dispatch(anarchon={"start_timeout": 10})
    (message,) = stage.messages()
    message.headers[returning.RETURNED] = 2
    arrives(stage, message)
    assert [f"dropped: {UNKNOWN}; nobody took it"] == dropped(log)
    assert {} == unknown._rooms


def test_unknown_tasks_that_are_no_runs_are_celerys_affair(stage, soon):
    stage.dispatch()
    (message,) = stage.messages()
    message.headers["id"] = "copied"
    arrives(stage, message)
    del message.headers["anarchon"]
    arrives(stage, message)
    assert {} == unknown._rooms


def test_a_worker_that_does_not_know_a_task_leaves_it_to_one_that_does(make_stage, run_worker, log, soon):
    """Celery itself stores a failure of the message, and drops it."""
    stage = make_stage()
    key = stage.dispatch()
    with run_worker(stage):
        wait_until(lambda: lines(log, "given back"))

    @stage.task()
    def job(self):
        stage.log.append("ran")

    with run_worker(stage):
        wait_until(lambda: stage.run(key).state == "succeeded")
    assert (["ran"], 1, 1) == (stage.log, stage.run(key).attempt, stage.run(key).dispatch)


# Real workers of three kinds -----------------------------------------------------------------------

BEFORE = """
from anarchon_celery import headers, unknown

unknown.GIVEN_BACK_FOR = 0.5
headers.VERSION = 2 if os.environ["KIND"] == "newer" else 1
"""


@pytest.mark.cluster
def test_a_message_passes_workers_that_cannot_run_it_until_one_can(
    tmp_path, processes, redis_url, redis_server
):
    projects.write(
        tmp_path, broker=redis_server.url(1), backend=redis_server.url(1), store=redis_url, before=BEFORE,
        body="return 'done'", known="os.environ['KIND'] != 'without the task'",
    )  # fmt: skip

    def start(kind, *words):
        command = ("-A", "proj", *words, "-l", "info")
        return processes.celery(*command, name=f"{words[0]} {kind}", env={"KIND": kind})

    beat = start("sends", "beat")
    newer = start("newer", "worker", "-c", "1")
    newer.wait_for(r"given back for 5 s: header version 1 is unknown to this worker", 40)
    assert newer.stop() == 0
    without = start("without the task", "worker", "-c", "1")
    without.wait_for(r"given back for 0\.5 s: this worker does not know its task 'proj\.job'", 40)
    start("knows it", "worker", "-c", "1").wait_for(r"job @ \S+: finished in \d+ ms", 60)
    store = open_store(redis_url)
    try:
        (run,) = store.runs(job="job", limit=9)
    finally:
        store.close()
    assert ("succeeded", 1, 1) == (run.state, run.attempt, run.dispatch)
    result = Celery(backend=redis_server.url(1), set_as_current=False).AsyncResult(run.task_id)
    assert ("SUCCESS", "done") == (result.state, result.result), "Celery had stored NotRegistered"
    assert beat.stop() == 0

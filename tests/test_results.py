"""What the result backend tells of runs that nobody started; where it cannot, and where it hangs."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from billiard.exceptions import WorkerLostError
from celery import Celery, states
from celery.exceptions import NotRegistered

from anarchon_celery.protocol import PLAIN, Node, Offer, Registration, Run, RunKey, Sent, Start
from anarchon_celery.results import Results
from anarchon_celery.stores import Store
from anarchon_celery.stores.memory import MemoryStore
from tests.processes import wait_until

T = 1_790_000_000_000


@pytest.fixture
def store() -> Store:
    """A store with a run that was published as ``task-1``, and is past its deadline."""
    store = MemoryStore()
    store.register(Node(id="i", name="one:1"), [Registration(job="sync", hash="h", supervised=True)], now=T)
    publish(store)
    return store


def publish(store: Store, slot: int = T, task_id: str = "task-1") -> None:
    offer = Offer(job="sync", slots=(slot,), overlap="allow")
    assert store.claim("one:1", [offer], nonce="n", now=slot)[0].claims[0].won
    store.sent([Sent(key=RunKey("sync", slot), dispatch=1, task_id=task_id)], now=slot)


@pytest.fixture
def app(tmp_path) -> Iterator[Celery]:
    app = Celery("proj", broker="memory://", backend=f"file://{tmp_path}", set_as_current=False)
    yield app
    app.close()


def the_run(store: Store) -> Run:
    run = store.run(RunKey("sync", T))
    assert run is not None and run.state == "queued"
    return run


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("anarchon_celery")]


@pytest.mark.parametrize("state", ["SUCCESS", "FAILURE"])
def test_a_run_that_somebody_ran_is_published(store, app, caplog, state):
    app.backend.store_result("task-1", 7 if state == "SUCCESS" else ValueError("no"), state)
    caplog.set_level(logging.INFO)
    assert Results(app).settle(store, [the_run(store)]) == []
    (run,) = store.runs()
    assert (run.state, run.reason, run.dispatch) == ("published", PLAIN, 1)
    assert [line.count("not dispatched again: run by a task without") for line in lines(caplog)] == [1]


@pytest.mark.parametrize(
    ("state", "result"),
    [
        (None, None), ("PENDING", None), ("STARTED", None), ("RETRY", ValueError("again")), ("REVOKED", None),
        ("FAILURE", NotRegistered("proj.sync")), ("FAILURE", WorkerLostError("killed")),
    ],
)  # fmt: skip
def test_what_does_not_say_that_a_body_ran_to_its_end_is_dispatched_again(store, app, state, result):
    """A worker that does not know the task stores a failure, and so does one whose child was killed."""
    if state is not None:
        app.backend.store_result("task-1", result, state)
    run = the_run(store)
    assert Results(app).settle(store, [run]) == [run] == store.runs()


def test_of_many_runs_only_those_are_left_out_that_somebody_ran(store, app):
    for number in (2, 3):
        publish(store, T + number, f"task-{number}")
    app.backend.store_result("task-2", None, states.SUCCESS)
    runs = store.runs()
    assert [T + 3, T] == [run.slot for run in Results(app).settle(store, runs)]


def test_only_runs_that_wait_for_a_message_to_start_them_are_looked_up(store, app):
    """A retry has the id of the try before it, which may have any result."""
    app.backend.store_result("task-1", None, states.SUCCESS)
    key = RunKey("sync", T)
    store.start(Start(key=key, token="t", worker="w", task_id="task-1"), now=T)
    results = Results(app)
    assert results.settle(store, store.runs()) == store.runs()
    assert store.requeue(key, "t", delay=0, retries=1, start_timeout=0, now=T)
    assert results.settle(store, [the_run(store)]) == store.runs()


def test_a_run_that_was_started_meanwhile_is_not_settled(store, app):
    app.backend.store_result("task-1", None, states.SUCCESS)
    seen = the_run(store)
    store.start(Start(key=seen.key, token="t", worker="w"), now=T)
    assert Results(app).settle(store, [seen]) == []
    assert [run.state for run in store.runs()] == ["running"]


@pytest.mark.parametrize("backend", [None, "rpc://", "nonsense://"])
def test_without_a_backend_that_keeps_states_all_are_dispatched_again(store, backend):
    app = Celery("proj", broker="memory://", backend=backend, set_as_current=False)
    assert Results(app).settle(store, [the_run(store)]) == store.runs()
    app.close()


@pytest.fixture
def hangs() -> Iterator[str]:
    """The URL of a Redis that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def looking_up() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "anarchon-results"]


def test_a_backend_that_hangs_is_waited_for_once_and_then_left_alone(store, hangs, caplog):
    app = Celery("proj", broker="memory://", backend=hangs, set_as_current=False)
    app.conf.update(
        redis_socket_timeout=3, redis_retry_on_timeout=False, result_backend_always_retry=True,
        result_backend_max_retries=1, result_backend_base_sleep_between_retries_ms=10,
    )  # fmt: skip
    results = Results(app, within=0.3)
    began = time.monotonic()
    for _ in range(20):
        assert results.settle(store, [the_run(store)]) == store.runs()
    assert 0.3 <= time.monotonic() - began < 2
    assert [line.count("no answer within 0.3 s") for line in lines(caplog)] == [1]
    assert all(thread.daemon for thread in looking_up())
    wait_until(lambda: not looking_up(), 30)  # else it would go on beside other tests


def test_a_backend_that_was_away_is_asked_again_after_a_while(store, app, caplog, tmp_path):
    app.backend.store_result("task-1", None, states.SUCCESS)
    (found,) = tmp_path.iterdir()
    content = found.read_bytes()
    found.write_bytes(b"{")
    results = Results(app, quiet_for=0)
    assert results.settle(store, [the_run(store)]) == store.runs()
    assert [line.count("the result backend cannot say") for line in lines(caplog)] == [1]
    found.write_bytes(content)
    assert results.settle(store, [the_run(store)]) == []

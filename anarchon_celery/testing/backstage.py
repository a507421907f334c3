"""A Celery app while it is on a stage: the stage's store, broker, results and time in place of its own.

What an app keeps of the world outside is put aside, and put back afterwards. The broker is kombu's in memory,
each stage's its own, so that messages are really written, routed and read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery, _state, states
from celery.app import trace
from celery.app.task import Task as CeleryTask
from celery.backends.cache import CacheBackend
from celery.exceptions import TimeoutError as ResultTimeout
from celery.utils.threads import LocalStack
from kombu.connection import Connection
from kombu.pools import ProducerPool
from kombu.transport import memory, virtual

from .clock import Clock, TestingError, aware

#: Lets so many seconds pass, or less if something is done before.
Wait = Callable[[float, Callable[[], bool]], None]

#: How long a result is waited for of which nobody said how long (seconds, of the stage's time).
RESULT_WITHIN = 3600.0

#: What a stage says in place of the app; ``settings`` of a test may say otherwise.
SETTINGS: dict[str, Any] = {
    "anarchon_first_catch_up": 0,  # what came due before the stage began is of no interest
    "anarchon_jitter": 0,
    "anarchon_node": "stage:1",
    "anarchon_prefix": "anarchon",
    "anarchon_store_options": {},
    "task_always_eager": False,
}


class Post:
    """A broker in memory, of one stage."""

    def __init__(self) -> None:
        """Begin with no queue."""
        self.queues: dict[str, Any] = {}
        of_stage = {"queues": self.queues, "events": defaultdict(set)}
        channel = type("Channel", (memory.Channel,), of_stage)
        state = {"Channel": channel, "global_state": virtual.BrokerState()}
        self._transport = type("Transport", (memory.Transport,), state)

    def connection(self, *args: Any, **kwargs: Any) -> Connection:
        """Return a connection to it, whatever was asked for."""
        return Connection("stage", transport=self._transport)

    def take(self) -> list[Any]:
        """Take all messages out, queue by queue."""
        found: list[Any] = []
        if not any(queue.qsize() for queue in self.queues.values()):
            return found
        with self.connection() as connection:
            channel = connection.channel()
            for queue in list(self.queues):
                while (message := channel.basic_get(queue, no_ack=True)) is not None:
                    found.append(message)
        return found


class Results(CacheBackend):  # type: ignore[misc]
    """A result backend in memory: who waits for a result lets the stage's time pass."""

    supports_native_join = False  # it sleeps
    pass_time: Wait

    def wait_for(self, task_id: str, timeout: float | None = None, *_: Any, **__: Any) -> Any:
        """Return what is known of a task once it is over; see Celery's."""

        def is_over() -> bool:
            return self.get_task_meta(task_id)["status"] in states.READY_STATES

        self.pass_time(RESULT_WITHIN if timeout is None else timeout, is_over)
        if is_over():
            return self.get_task_meta(task_id)
        if timeout is None:
            raise TestingError(f"task {task_id} has no result within an hour of the stage: was it sent?")
        raise ResultTimeout("The operation timed out.")


@contextmanager
def on_stage(app: Celery, clock: Clock, post: Post, settings: Mapping[str, Any]) -> Iterator[None]:
    """Have the app live by this clock and this broker meanwhile."""
    if isinstance(app._backend_cache, Results):
        raise TestingError(f"app {app.main!r} is on a stage already: end that one first")
    app.finalize()
    with _settings(app, settings), _world(app, clock, post), _stack_protection(app):
        yield


@contextmanager
def _settings(app: Celery, settings: Mapping[str, Any]) -> Iterator[None]:
    app.conf.get("timezone")  # it is lazy: what is put over it now would be part of it else
    changes = app.conf.changes
    before = dict(changes)
    app.conf.update({**SETTINGS, **settings})
    try:
        yield
    finally:
        changes.clear()
        changes.update(before)


@contextmanager
def _world(app: Celery, clock: Clock, post: Post) -> Iterator[None]:
    """What an app has made to reach others, and how it makes them."""
    before = app._backend_cache, vars(app._local).pop("backend", None), app._pool, app.amqp._producer_pool
    app._backend_cache = Results(app=app, url="memory://")
    app._pool = post.connection().Pool(limit=10)
    app.amqp._producer_pool = ProducerPool(app._pool, limit=10)
    ways = dict.fromkeys(("connection", "connection_for_read", "connection_for_write"), post.connection)
    here = {**ways, "now": lambda: aware(clock.wall()).astimezone(app.timezone)}
    vars(app).update(here)
    try:
        yield
    finally:
        for name in here:
            vars(app).pop(name)
        app._pool.force_close_all()
        app._backend_cache, of_thread, app._pool, app.amqp._producer_pool = before
        if of_thread is not None:
            app._local.backend = of_thread


@contextmanager
def _stack_protection(app: Celery) -> Iterator[None]:
    """What every worker does first, so that a task class may have a ``__call__`` of its own."""
    is_there = hasattr(CeleryTask, "_stackprotected")
    trace._install_stack_protection()
    try:
        yield
    finally:
        if not is_there:
            trace.reset_worker_optimizations(app)


@contextmanager
def as_in_a_process_of_its_own(task: Any) -> Iterator[None]:
    """Celery keeps of a task what is true of one process: here one run of it may be within another."""
    before, blocks = (vars(task).get("__trace__"), task.request_stack), _state.task_join_will_block()
    task.__trace__, task.request_stack = None, LocalStack()
    _state._set_task_join_will_block(True)  # a task that waits for another is refused, as by a worker
    try:
        yield
    finally:
        task.__trace__, task.request_stack = before
        _state._set_task_join_will_block(blocks)

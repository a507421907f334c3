"""Nodes at play: real beats on one store and one queue, a worker's side of it, and a clock to move.

The stores and kombu's memory broker are the real ones. Where a store has to fail, ``Faults`` stands on the
way to it; where it has a clock of its own, ``Faults`` tells it the test's.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, cast

import pytest
from celery import Celery

from anarchon_celery import Scheduler, events, headers
from anarchon_celery.errors import StoreUnreachable
from anarchon_celery.protocol import Holding, Run, RunKey, Started
from anarchon_celery.slots import iso
from anarchon_celery.stores import Store, memory, new_nonce, open_store
from anarchon_celery.stores.clock import StoreClock
from tests.databases import DATABASES

#: A full hour, when most tests begin.
T = 1_790_002_800_000
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000

#: What ``Faults`` stands in the way of.
VERBS = (
    "register", "claim", "sent", "expired", "redispatch", "release", "prune", "settle",
    "start", "renew", "finish", "pause", "resume", "trigger", "backfill", "cancel", "forget", "leave",
)  # fmt: skip


class Clock:
    """The host's time, moved by the test: what the memory store reads, and what nodes count with."""

    def __init__(self) -> None:
        self.ms = 0
        self.stepped = 0

    def wall(self) -> int:
        return T + self.ms + self.stepped

    def monotonic(self) -> float:
        return 1000 + self.ms / 1000

    def advance(self, ms: int) -> None:
        self.ms += ms

    def step(self, ms: int) -> None:
        """Set the wall clock, as an operator would; the monotonic one goes on."""
        self.stepped += ms


class Faults:
    """The real store, and a way to it that fails when a test says so, or gives it another time."""

    def __init__(self, store: Store, now: Callable[[], int] | None = None) -> None:
        self.store = store
        self.now = now
        self.down = False
        self.lose_answer_of: list[str] = []
        self.loses: Callable[[str], bool] = lambda verb: False
        self.calls: Counter[str] = Counter()
        self.asked: list[tuple[str, tuple, dict]] = []

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.store, name)
        if name not in VERBS:
            return verb

        def call(*args, **kwargs):
            self.calls[name] += 1
            self.asked.append((name, args, kwargs))
            if self.down:
                raise StoreUnreachable("it is down")
            answer = verb(*args, **kwargs) if self.now is None else verb(*args, **kwargs, now=self.now())
            if name in self.lose_answer_of:
                self.lose_answer_of.remove(name)
                raise StoreUnreachable("the answer was lost")
            if self.loses(name):
                raise StoreUnreachable("the answer was lost")
            return answer

        return call


def put_in_front(beat: Scheduler, faults: Faults) -> Faults:
    """Let a beat meet its store through the faults."""
    beat.store = beat.dispatcher.store = cast(Store, faults)
    return faults


class Actor(Protocol):
    """Whoever does something when its time comes: a beat, or a worker."""

    def tick(self) -> float:
        """Do it; return the seconds until the next time."""
        ...


class Stage:
    """Nodes on one store and one queue."""

    def __init__(self, clock: Clock | None, url: str) -> None:
        self.clock = clock
        self.url = url
        self.queue = f"q-{secrets.token_hex(4)}"
        self.beats: list[Scheduler] = []
        self.apps: list[Celery] = []
        self._awake: dict[int, int] = {}

    # nodes

    def app(self, schedule, *, broker: str = "memory://", **conf) -> Celery:
        app = Celery("proj", broker=broker, set_as_current=False)
        app.conf.update(
            {
                "anarchon_store": self.url, "anarchon_jitter": 0, "anarchon_node": "one:1",
                "task_default_queue": self.queue, "result_expires": None, "timezone": "UTC",
                "beat_schedule": schedule,
            }
            | conf
        )  # fmt: skip
        self.apps.append(app)
        return app

    def beat(self, schedule=None, *, app: Celery | None = None, **conf) -> Scheduler:
        beat = Scheduler(app=app or self.app(schedule, **conf))
        beat.node = replace(beat.node, id="00000000" + beat.node.id[8:])  # it polls on the full second
        if self.clock is not None:
            beat.store.clock = StoreClock(self.clock.monotonic)
        if self._now is not None:
            put_in_front(beat, Faults(beat.store, self._now))
        self.beats.append(beat)
        return beat

    def faulty_beat(self, schedule=None, **conf) -> tuple[Scheduler, Faults]:
        beat = self.beat(schedule, **conf)
        return beat, put_in_front(beat, Faults(beat.store))

    @property
    def _now(self) -> Callable[[], int] | None:
        """What a store is told as the time that does not read the test's clock."""
        return None if self.clock is None or self.url.startswith("memory:") else self.clock.wall

    # time

    def run(self, beat: Scheduler, ms: int) -> None:
        """Let beat loop for so long: a tick, and a sleep for as long as it said."""
        until = self.clock.ms + ms
        while self.clock.ms <= until:
            pause = beat.tick()
            assert 0 <= pause <= 5
            self.clock.advance(max(1, round(pause * 1000)))
        self.clock.ms = until

    def play(self, until: int, *actors: Actor) -> None:
        """Let nodes and workers act side by side up to a time (after T), each when it wants to."""
        awake = {id(actor): self.clock.ms for actor in actors} | self._awake
        while (now := max(self.clock.ms, min(awake[id(actor)] for actor in actors))) <= until:
            self.clock.ms = now
            for actor in actors:
                if awake[id(actor)] <= now:
                    awake[id(actor)] = now + max(1, round(actor.tick() * 1000))
        self.clock.ms = until
        self._awake = awake

    # what is there

    @cached_property
    def store(self) -> Any:
        """The store, as workers and people meet it."""
        return Faults(open_store(self.url), self._now)

    def messages(self, queue: str | None = None) -> list:
        """Take what is in the queue."""
        with self.apps[0].connection_for_read() as connection:
            channel = connection.channel()
            found = []
            while message := channel.basic_get(queue or self.queue, no_ack=True):
                found.append(message)
        return found

    def slots(self) -> list[str]:
        return [message.headers["anarchon"]["slot"] for message in self.messages()]

    def states(self) -> dict[int, str]:
        return {run.slot - T: run.state for run in reversed(self.store.runs(limit=10_000))}

    def the_run(self, ms: int = 0, job: str = "sync") -> Run:
        run: Run = self.store.run(RunKey(job, T + ms))
        return run

    def close(self) -> None:
        for beat in self.beats:
            beat.close()
        for app in self.apps:
            app.close()
        self.store.close()
        memory._ROOMS.pop((self.url, "anarchon"), None)


@dataclass
class Worker:
    """A worker as the store sees it: it starts what comes, renews it, and ends it after a while.

    ``stale`` are the slots of messages that it was refused, ``began`` those it started and when, in order.
    """

    stage: Stage
    takes: int
    every: int = 100
    heeds: bool = True
    began: list[tuple[int, int]] = field(default_factory=list)
    stale: list[tuple[int, str]] = field(default_factory=list)
    ended: list[tuple[int, int, str]] = field(default_factory=list)
    messages: list[dict] = field(default_factory=list)
    holds: dict[str, tuple[Holding, int]] = field(default_factory=dict)

    def tick(self) -> float:
        """Renew, end, begin."""
        self._renew()
        for token, (holding, began) in list(self.holds.items()):
            if self.stage.clock.ms >= began + self.takes:
                self._end(token, holding, "succeeded")
        for message in self.stage.messages():
            self._begin(message.headers)
        return self.every / 1000

    def _renew(self) -> None:
        held = [(token, holding) for token, (holding, _) in self.holds.items()]
        answers = self.stage.store.renew([holding for _, holding in held]) if held else []
        for (token, holding), said in zip(held, answers, strict=True):
            if said.answer == "stop" and self.heeds:
                self._end(token, holding, "cancelled", said.reason)
            elif said.answer == "lost":
                del self.holds[token]

    def _begin(self, told: dict) -> None:
        order = headers.read(told["anarchon"])
        self.messages.append(told["anarchon"])
        token = new_nonce()
        answer = self.stage.store.start(order.start(token=token, worker="w:1", task_id=told["id"]))
        if isinstance(answer, Started):
            held = Holding(key=order.key, token=token, fence=answer.fence)
            self.holds[token] = (held, self.stage.clock.ms)
            self.began.append((order.key.slot - T, self.stage.clock.ms))
        else:
            self.stale.append((order.key.slot - T, answer.why))

    def _end(self, token: str, held: Holding, outcome: str, reason: str | None = None) -> None:
        del self.holds[token]
        if self.stage.store.finish(held.key, token, outcome, reason=reason):
            self.ended.append((held.key.slot - T, self.stage.clock.ms, outcome))


# Fixtures, and what is said ---------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(memory, "_wall_clock", clock.wall)
    return clock


@pytest.fixture
def stage(request, clock):
    """A stage on the memory store; on another one by ``@on_every_store``."""
    kind = getattr(request, "param", "memory")
    if kind == "redis":
        url = request.getfixturevalue("redis_url")
    elif kind == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/jobs.db"
    elif kind in DATABASES:
        server = request.getfixturevalue(f"{kind}_server")
        server.empty("anarchon")
        url = server.store_url()
    else:
        url = f"memory://{secrets.token_hex(4)}"
    stage = Stage(clock, url)
    yield stage
    stage.close()


on_every_store = pytest.mark.parametrize("stage", ["memory", "sqlite", *DATABASES, "redis"], indirect=True)


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.DEBUG, "anarchon_celery")
    caplog.set_level(logging.INFO, "celery")
    yield caplog
    events.log_runs(True)


def lines(log, containing: str = "") -> list[str]:
    return [
        record.getMessage().removeprefix("[anarchon] ")
        for record in log.records
        if record.name.startswith("anarchon_celery") and containing in record.getMessage()
        and record.levelno >= logging.INFO
    ]


def slot(ms: int) -> str:
    return f"sync @ {iso(T + ms)}"

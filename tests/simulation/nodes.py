"""Beats and workers: the real scheduler and keeper, in processes that are paused, killed, begun again."""

from __future__ import annotations

import math
from typing import Any

from celery.utils.imports import symbol_by_name
from celery.utils.time import maybe_iso8601, maybe_make_aware

from anarchon_celery import headers
from anarchon_celery.config import Config
from anarchon_celery.headers import Order
from anarchon_celery.keeper import LINGER, Keeper
from anarchon_celery.lease import HeldLease
from anarchon_celery.protocol import Started
from anarchon_celery.scheduler import Scheduler
from anarchon_celery.testing.clock import instant
from anarchon_celery.trust import LOOK_EVERY

from .jobs import app_of
from .world import Actor, Host, Process, World

#: How many messages a worker runs at once.
SLOTS = 12

#: The longest that is slept through where there is nothing to do (ms).
LONGEST = 300_000

#: And while clocks go apart: a tenth of longer would be taken for a jump by a beat, which looks every poll.
LONGEST_APART = 4_000


class Beat:
    """A node's beat. It sleeps through the looks that would find nothing."""

    def __init__(self, cluster: Any, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.world: World = cluster.world
        self.host = Host(self.world)
        self.app = app_of('beats')
        self.process: Process | None = None
        self._idle: Actor | None = None

    def begin(self) -> None:
        if self.process is None or self.process.dead:
            self.process = Process(self.world, self.name, 'beat', self.host)
            self.world.spawn(self.process, self._live)

    def _live(self) -> None:
        process = self.process
        assert process is not None
        process.scheduler = scheduler = Scheduler(app=self.app)  # type: ignore[attr-defined]
        try:
            while True:
                self._sleep(scheduler, scheduler.tick())
        finally:
            if not process.dead:
                scheduler.close()
                process.dead = True

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """As Celery does it: ``close()`` in the signal's handler, in the midst of whatever it is at."""
        process = self.process
        if process is None or process.dead or not hasattr(process, 'scheduler'):
            return

        def handler() -> None:
            process.scheduler.close()
            raise SystemExit

        for actor in process.actors:
            self.world.wake(actor, handler)

    def pause(self, until: float) -> None:
        if self.process is not None:
            self.look_by(self.world.now)
            self.process.paused_until = until

    # sleep

    def _sleep(self, scheduler: Any, pause: float) -> None:
        world = self.world
        self._idle, self._scheduler = world.current, scheduler
        self._first = world.now + max(1, round(pause * 1000)) / self.host.rate
        self._every = scheduler.config.poll / self.host.rate
        latest, at = world.now + self._longest(), self._round(self._needed(scheduler))
        while True:
            self._wakes(at)
            world.sleep(at - world.now)
            at = min(self._needed(scheduler), latest)
            if at <= world.now + self._every:
                break
            at = self._round(at)  # a deadline that has been moved meanwhile
        self._idle = None

    def _longest(self) -> float:
        return LONGEST if self.host.rate == self.cluster.store_host.rate else LONGEST_APART

    def _round(self, at: float) -> float:
        """The first look that is not before that time."""
        return self._first + max(0, math.ceil((at - self._first) / self._every)) * self._every

    def _wakes(self, at: float) -> None:
        ahead = (at - self.world.now) * self.host.rate / 1000
        self._scheduler._wake_at = self.host.monotonic() + ahead

    def look_by(self, at: float) -> None:
        """Look at that time, if not before: something has changed."""
        if self._idle is not None and not self._idle.process.paused:
            at = self._round(max(at, self.world.now))
            if at < self._idle.wakes_at:
                self._wakes(at)
                self.world.alarm(self._idle, at)

    def _needed(self, scheduler: Any) -> float:
        """When there is something to do next."""
        is_busy = (
            scheduler._store_patience.on or scheduler._questions or scheduler.dispatcher._marks
            or scheduler.dispatcher._releases or not scheduler._started
            or scheduler._registered_at is None or scheduler.dispatcher.waits_for_broker
            or self._idle.process.polled_at <= self.cluster.changed_at
        )  # fmt: skip
        if is_busy:
            return self.world.now
        due = scheduler.plan.next_due()
        deadlines = [
            run.deadline for of_job in self.cluster.room.recorded().active.values()
            for run in of_job.values() if run.deadline is not None
        ]  # fmt: skip
        by_estimate = due is not None and due - scheduler.store.clock.now()
        by_store = min(deadlines, default=math.inf) - self.cluster.store_host.wall()
        coming = [by_store, self._longest()]
        if by_estimate is not False:
            coming.append(by_estimate)
        return self.world.now + min(coming) / self.cluster.store_host.rate


class Worker:
    """A worker with a pool of threads: it takes messages, runs them, and its keeper renews their leases."""

    def __init__(self, cluster: Any, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.world: World = cluster.world
        self.host = Host(self.world)
        self.app = app_of(name)
        self.process: Process | None = None

    def begin(self) -> None:
        if self.process is None or self.process.dead:
            self.process = Process(self.world, self.name, 'worker', self.host)
            self.busy = 0
            self._held: list[Any] = []  # with a time of their own, not yet acknowledged
            self._ready: list[Any] = []  # whose time has come, for the next thread
            self.process.keeper = HeartbeatsOfTheWorld(self.cluster, self.process, self.app)
            self.world.at(self.world.now, self.cluster.broker.deliver)

    @property
    def takes_messages(self) -> bool:
        process = self.process
        return (
            process is not None and not (process.dead or process.stopping or process.paused)
            and self.busy < SLOTS and not self.cluster.weather.is_on('broker refuses', process)
        )  # fmt: skip

    def take(self, raw: Any) -> None:
        process, message = self.process, self.cluster.broker.read(raw)
        assert process is not None
        eta = maybe_iso8601(message.headers.get('eta'))
        wait = eta and instant(maybe_make_aware(eta, self.app.timezone)) - self.host.wall()
        if not wait or wait <= 0:
            self._run(raw)
            return
        self._held.append(raw)
        self.world.at(self.world.now + wait / self.host.rate, lambda: self._is_time(process, raw))

    def _is_time(self, process: Process, raw: Any) -> None:
        if process.paused:
            self.world.at(process.paused_until, lambda: self._is_time(process, raw))
        elif process is self.process and raw in self._held:
            self._held.remove(raw)
            if self.busy < SLOTS:
                self._run(raw)
            else:
                self._ready.append(raw)

    def _run(self, raw: Any) -> None:
        process = self.process
        assert process is not None
        self.busy += 1
        actor = self.world.spawn(process, lambda: self._work(process, raw))
        actor.task = self.app.tasks[raw['headers']['task']]

    def _work(self, process: Process, raw: Any) -> None:
        task = self.world.current.task
        made = symbol_by_name(task.Request)
        request = made(
            self.cluster.broker.read(raw), app=self.app, hostname=f'celery@{self.name}', task=task
        )
        try:
            request.execute()
        finally:
            if not process.dead:
                self.world.at(self.world.now, lambda: self._next(process))

    def _next(self, process: Process) -> None:
        if process.dead or process is not self.process:
            return
        self.busy -= 1
        if process.stopping:
            if not self.busy:
                process.dead = True
        elif self._ready:
            self._run(self._ready.pop(0))
        else:
            self.cluster.broker.deliver()

    def kill(self) -> None:
        if self.process is not None and not self.process.dead:
            self.process.kill()
            self._give_back()

    def stop(self) -> None:
        """A warm stop: what runs is told so at its next look, and may go on."""
        process = self.process
        if process is None or process.dead:
            return
        process.stopping = True
        process.dead = not self.busy
        process.keeper.look_soon()
        self._give_back()

    def _give_back(self) -> None:
        """What was not acknowledged is in the queue again."""
        for raw in [*self._held, *self._ready]:
            self.cluster.broker.put_back(raw)
        self._held, self._ready = [], []

    def pause(self, until: float) -> None:
        if self.process is not None:
            self.process.paused_until = until
            self.world.at(until + 1, self.cluster.broker.deliver)

    def look_by(self, at: float) -> None:
        """It hears of nothing but by its heartbeats."""


class HeartbeatsOfTheWorld(Keeper):
    """The keeper, whose thread is one of the world's; it sleeps through the looks that would find nothing."""

    def __init__(self, cluster: Any, process: Process, app: Any) -> None:
        self.cluster, self.process = cluster, process
        self._thread: Actor | None = None
        with cluster.acting_as(process):
            super().__init__(Config.of(app), lambda: process.stopping)

    def monotonic(self) -> float:
        return self.process.host.monotonic()

    def _held(
        self, order: Order, started: Started, token: str, task_id: str, asked_at: float, *, owner: str
    ) -> HeldLease:
        lease = WatchedLease(order, started, token, task_id, asked_at, owner=owner, clock=self.monotonic)
        lease.watch = self.cluster.watch
        lease.process = self.process
        lease._told = Told(self.process)  # type: ignore[assignment]
        lease.watch.leased(lease)
        return lease

    def _beat(self) -> None:
        super()._beat()
        self.look_soon()

    def look_soon(self) -> None:
        world = self.process.world
        thread = self._thread
        if thread is not None and not thread.greenlet.dead and thread.wakes_at > world.now + LOOK_EVERY:
            world.alarm(thread, world.now + LOOK_EVERY)

    def sleep(self) -> None:
        """Sleep until the next look that finds something to do."""
        world, now = self.process.world, self.monotonic()
        self._thread = world.current
        held = [*self._leases.values(), *self._losing.values()]
        wait = min((self._needed(lease, now) for lease in held), default=LINGER)
        world.sleep(max(LOOK_EVERY / 1000, min(wait, 10.0)) * 1000 / self.process.host.rate)

    def _needed(self, lease: HeldLease, now: float) -> float:
        renews = max(lease.renewed_at + lease.order.heartbeat / 1000, self._quiet_until)
        coming = [renews if not lease.is_renewed_no_more else math.inf, lease.trusted_until]
        return min(at for at in coming if at > now) - now if any(at > now for at in coming) else 0.0


class WatchedLease(HeldLease):
    """A lease that says to whoever watches for how long it is trusted."""

    watch: Any
    process: Process

    def renewed(self, asked_at: float, store: str = '') -> None:
        super().renewed(asked_at, store)
        self.watch.trusts(self)


class Told:
    """What a lease's task waits for: a ``threading.Event`` of the world."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_set = False
        self._waits: Actor | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._waits is not None:
            self._process.world.wake(self._waits)

    def wait(self, seconds: float) -> bool:
        if not self._is_set:
            world = self._process.world
            self._waits = world.current
            try:
                world.sleep(max(0.1, seconds * 1000 / self._process.host.rate))
            finally:
                self._waits = None
        return self._is_set


def key_of(request: Any) -> Any:
    """The run that a request is of."""
    return headers.read(request.headers[headers.HEADER]).key

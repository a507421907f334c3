"""Five nodes, a store, a broker and a person for a simulated hour, and what goes wrong meanwhile."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from billiard import einfo
from celery.app import trace
from celery.app.task import Task as CeleryTask
from kombu.pools import ProducerPool

from anarchon_celery import interrupting, native, presence, signals, stores, unsupervised, worker
from anarchon_celery import keeper as keepers
from anarchon_celery import scheduler as schedulers
from anarchon_celery.errors import StoreError
from anarchon_celery.protocol import Request, Run, RunKey
from anarchon_celery.stores import clock as clocks
from anarchon_celery.stores import memory
from anarchon_celery.testing.clock import aware
from tests.rollback import snapshot

from .bodies import Throwing, work
from .broker import Broker
from .faults import BEATS, NODES, WORKERS, Fault
from .jobs import GAPS, JOBS, app_of, at_work
from .nodes import Beat, Worker
from .watch import Watch
from .way import Way
from .weather import Weather
from .world import HOUR, MINUTE, Host, Killed, Process, T, World

_version = cache(version)  #: which reads a file, for each beat that begins

#: After a fault, for how long it may show (ms): a start timeout, or a lease and a hold-off.
AFTERWARDS = 75_000


class Cluster:
    """All of it, for one seed."""

    def __init__(self, seed: int, faults: Iterable[Fault]) -> None:
        self.seed, self.faults = seed, list(faults)
        self.world = World(seed)
        self.weather = Weather(self.world)
        self.store_host = Host(self.world)
        self.room = memory.Room(self.store_host)
        self.watch = Watch(self.world, self)
        self.broker = Broker(self.world, self.weather, self.watch)
        self._ids = random.Random(f'ids {seed}')
        self.changed_at = 0.0  #: when something last went wrong, or right
        self._opens: Process | None = None
        self.person = Process(self.world, 'person', 'person', Host(self.world))
        self.nodes: dict[str, Any] = {}
        self._disturbed = [(one.at - 1, one.until + AFTERWARDS + _lingers(one)) for one in self.faults]

    # the hour

    def play(self) -> None:
        """Let an hour pass, then let all come to rest."""
        with self._in_place():
            self.nodes = {name: Beat(self, name) for name in BEATS}
            self.nodes |= {name: Worker(self, name) for name in WORKERS}
            self.broker.workers = [self.nodes[name] for name in WORKERS]
            self.people = Way(self.room, self.person, self.weather, self.watch.observe)
            for position, node in enumerate(self.nodes.values()):
                self.world.at(10.0 * position, node.begin)
            for fault in self.faults:
                self._plan(fault)
            try:
                self.world.run(HOUR)
                self.ended_at = self.store_host.wall()
                self.world.run(4 * HOUR, self._is_at_rest)
            finally:
                for node in self.nodes.values():
                    node.kill()
                self.person.kill()

    def _is_at_rest(self) -> bool:
        ledger = self.room.recorded()
        left = [*ledger.active.values(), *ledger.buffered.values()]
        is_over = all(key.slot > self.ended_at for of_job in left for key in of_job)
        return is_over and self.world.now > HOUR + MINUTE

    def is_calm(self, since: float, until: float) -> bool:
        """Whether nothing was wrong meanwhile, or may still have shown."""
        return not any(begin <= until and end >= since for begin, end in self._disturbed)

    def deadlines_moved(self, runs: Iterable[Run], now: int) -> None:
        """Beats that sleep through idle looks look again when something is to be done sooner."""
        soonest = min((run.deadline for run in runs if run.deadline is not None), default=None)
        if soonest is not None:
            self._all_look(self.world.now + (soonest - now) / self.store_host.rate)

    def _all_look(self, at: float) -> None:
        for name in BEATS:
            self.nodes[name].look_by(at)

    # faults

    def _plan(self, fault: Fault) -> None:
        if fault.kind == 'store rolled back':
            self.world.at(fault.at - fault.value, lambda: self._remember(fault))
        begin, end = _DOINGS.get(fault.kind, (Cluster._on, Cluster._off))
        self.world.at(fault.at, lambda: self._do(begin, fault))
        self.world.at(fault.until, lambda: self._do(end, fault))

    def _do(self, what: Callable[[Cluster, Fault], object] | None, fault: Fault) -> None:
        if what is not None:
            what(self, fault)
            self.changed_at = self.world.now
            self._all_look(self.world.now)

    def _on(self, fault: Fault) -> None:
        self.weather.on.append(fault)

    def _off(self, fault: Fault) -> None:
        self.weather.on.remove(fault)
        self.broker.deliver()

    def _remember(self, fault: Fault) -> None:
        self._before = snapshot(memory.MemoryStore('', self.room))

    def _roll_back(self, fault: Fault) -> None:
        ledger = self.room.recorded()
        had = ledger.runs, ledger.jobs
        self._before()
        has = self.room.recorded()
        self.watch.lost((has.runs, has.jobs) != had)

    def _wipe(self, fault: Fault) -> None:
        self.room.wipe()
        self.watch.wiped()

    def _set_store_clock(self, fault: Fault) -> None:
        self.store_host.step(int(fault.value))
        self.watch.clock_was_set(int(fault.value))

    def _kill(self, fault: Fault) -> None:
        self.nodes[fault.who or ''].kill()

    def _stop(self, fault: Fault) -> None:
        self.nodes[fault.who or ''].stop()

    def _begin(self, fault: Fault) -> None:
        """Again; a worker that still stops is waited for."""
        node = self.nodes[fault.who or '']
        if node.process is None or node.process.dead:
            node.begin()
        elif node.process.stopping:
            self.world.at(self.world.now + 1000, lambda: self._begin(fault))

    def _pause(self, fault: Fault) -> None:
        self.nodes[fault.who or ''].pause(fault.until)

    def _beats_go(self, fault: Fault) -> None:
        for name in BEATS:
            self.nodes[name].kill()

    def _beats_come(self, fault: Fault) -> None:
        for name in BEATS:
            self.nodes[name].begin()

    def _set_clock(self, fault: Fault) -> None:
        self.nodes[fault.who or ''].host.step(int(fault.value))

    def _set_clock_right(self, fault: Fault) -> None:
        self.nodes[fault.who or ''].host.set_right()

    def _run_at(self, fault: Fault) -> None:
        host = self.store_host if fault.who is None else self.nodes[fault.who].host
        host.run_at(fault.value)

    def _run_true(self, fault: Fault) -> None:
        host = self.store_host if fault.who is None else self.nodes[fault.who].host
        host.run_at(1.0)
        if fault.who is not None:
            host.set_right()

    # people

    def _somebody(self, do: Callable[[], object]) -> None:
        def carefully() -> None:
            for _ in range(100):
                try:
                    do()
                    return
                except StoreError:
                    self.world.sleep(1000)

        self.world.spawn(self.person, carefully)

    def _pause_job(self, fault: Fault) -> None:
        self._somebody(lambda: self.people.pause(fault.who or '', reason='a look', by='a person'))

    def _resume_job(self, fault: Fault) -> None:
        self._somebody(lambda: self.people.resume(fault.who or ''))

    def _trigger(self, fault: Fault) -> None:
        nonce = stores.new_nonce()
        self._somebody(lambda: self.people.trigger(_request(fault), nonce=nonce))

    def _backfill(self, fault: Fault) -> None:
        gap, nonce = GAPS[fault.who or ''], stores.new_nonce()
        last = (self.store_host.wall() // gap - 1) * gap
        slots = [last - gap, last]
        self._somebody(lambda: self.people.backfill(_request(fault), slots, nonce=nonce))

    def _cancel(self, fault: Fault) -> None:
        runs = self.room.recorded().active_of(fault.who or '')
        for run in runs[:1]:
            self._somebody(lambda: self.people.cancel(run.key, reason='a person'))  # noqa: B023

    # what stands where threads, clocks and connections are

    @contextmanager
    def acting_as(self, process: Process) -> Iterator[None]:
        """What is opened meanwhile is that process's."""
        self._opens = process
        try:
            yield
        finally:
            self._opens = None

    def _open_store(self, url: str, **_: Any) -> Way:
        process = self._opens or self._here
        return Way(self.room, process, self.weather, self.watch.observe)

    @property
    def _here(self) -> Process:
        assert self.world.current is not None
        return self.world.current.process

    def _wall(self) -> float:
        return self._here.host.wall() / 1000

    def _sleep(self, seconds: float) -> None:
        self.world.sleep(seconds * 1000 / self._here.host.rate)

    def _id(self, bytes: int) -> str:
        return f'{self._ids.getrandbits(8 * bytes):0{2 * bytes}x}'

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        of_clock = SimpleNamespace(**{**vars(time), 'time': self._wall})
        instead: list[tuple[Any, str, Any]] = [
            (memory, 'open_store', self._open_store),
            (stores, 'secrets', SimpleNamespace(token_hex=self._id)),
            (native, 'start_thread', lambda do, name: self.world.spawn(self._here, do)),
            (native, 'sleep', lambda seconds: self._here.keeper.sleep()),
            (keepers, 'time', SimpleNamespace(sleep=self._sleep)),
            (clocks, 'time', of_clock),
            (presence, 'time', SimpleNamespace(time_ns=lambda: self._here.host.wall() * 1_000_000)),
            (interrupting, 'body', lambda: Throwing(self.world)),
            (unsupervised, 'monotonic', lambda: self._here.host.monotonic()),
            (unsupervised, '_quiet_until', 0.0),
            (worker, 'keeper', lambda app: self._here.keeper),
            (worker, 'stopping', lambda: self._here.stopping),
            (worker, 'shown', lambda hostname: f'{hostname}:{self._here.name}'),
            # What took much of the time, such as tracebacks that nobody reads.
            (presence, 'version', _version),
            (schedulers, 'PRUNE_EVERY', 5 * MINUTE),
            (einfo, 'Traceback', lambda tb: tb),
            (einfo, 'traceback', SimpleNamespace(format_exception=lambda *raised: [repr(raised[1])])),
        ]
        with ExitStack() as stack:
            for where, name, what in instead:
                stack.enter_context(patch.object(where, name, what))
            stack.enter_context(_quiet())
            stack.enter_context(_stack_protection())
            for node in ('beats', *WORKERS):
                self._furnish(app_of(node))
            for signal, heard in (
                (signals.tick_failed, self._tick_failed),
                (signals.run_abandoned, self._abandoned),
            ):
                signal.connect(heard, weak=False)
                stack.callback(signal.disconnect, heard)
            at_work.append(lambda task: work(self, task))
            stack.callback(at_work.pop)
            yield

    def _furnish(self, app: Any) -> None:
        """Let an app reach this broker, and go by the clock of whoever acts."""
        ways = ('connection', 'connection_for_read', 'connection_for_write')
        vars(app).update(dict.fromkeys(ways, self.broker.connection))
        vars(app).update({'now': lambda: aware(self._here.host.wall()).astimezone(app.timezone)})
        app._pool = self.broker.connection().Pool(limit=10)
        app.amqp._producer_pool = ProducerPool(app._pool, limit=10)

    def _tick_failed(self, event: Any = None, **_: Any) -> None:
        self.watch.say('no surprise', f'{self._here}: {event}')

    def _abandoned(self, job: Any = None, slot: Any = None, kind: Any = None, **_: Any) -> None:
        self.watch.told_abandoned[RunKey(job, int(slot.timestamp() * 1000), kind)] += 1


def _request(fault: Fault) -> Request:
    policy = JOBS[fault.who or ''][2]
    return Request(job=fault.who or '', by='a person', overlap=policy.get('overlap', 'skip'), lease=30_000)


def _lingers(fault: Fault) -> float:
    """For how long a fault goes on by itself (ms)."""
    if fault.kind in ('messages delayed', 'broker slow'):
        return fault.value
    return 300_000.0 if fault.kind in ('messages lost', 'queue stands still', 'node stopped') else 0.0


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _stack_protection() -> Iterator[None]:
    """What every worker does first, so that a task class may have a ``__call__`` of its own."""
    is_there = hasattr(CeleryTask, '_stackprotected')
    trace._install_stack_protection()
    try:
        yield
    finally:
        if not is_there:
            trace.reset_worker_optimizations(app_of('beats'))


#: What begins and ends a fault; those that are not here are weather.
_DOINGS: dict[str, tuple[Any, Any]] = {
    'store rolled back': (Cluster._roll_back, None),
    'store wiped': (Cluster._wipe, None),
    'store clock set': (Cluster._set_store_clock, None),
    'store clock runs': (Cluster._run_at, Cluster._run_true),
    'node paused': (Cluster._pause, None),
    'node killed': (Cluster._kill, Cluster._begin),
    'node stopped': (Cluster._stop, Cluster._begin),
    'all beats down': (Cluster._beats_go, Cluster._beats_come),
    'clock set': (Cluster._set_clock, Cluster._set_clock_right),
    'clock runs': (Cluster._run_at, Cluster._run_true),
    'job paused': (Cluster._pause_job, Cluster._resume_job),
    'somebody triggers': (Cluster._trigger, None),
    'somebody cancels': (Cluster._cancel, None),
    'somebody backfills': (Cluster._backfill, None),
}

__all__ = ['HOUR', 'NODES', 'Cluster', 'Killed', 'T']

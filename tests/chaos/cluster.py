"""The cluster: five beats and four workers, each with a way to the store and a wall clock of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from celery import Celery

from anarchon_celery.stores import Store, open_store
from tests.chaos import jobs
from tests.chaos.journal import Journal
from tests.chaos.places import PLACES, Place
from tests.clocks import ShiftedClock
from tests.processes import Process
from tests.proxy import Proxy
from tests.rabbitmq import RabbitMQ
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
BEATS, WORKERS, CHILDREN = 5, 4, 4
QUIET = ('--without-gossip', '--without-mingle', '--without-heartbeat')


class Node:
    """A beat or a worker, whichever process it is at the time."""

    def __init__(self, name: str, process: Process, proxy: Proxy | None, clock: ShiftedClock) -> None:
        self.name, self.process, self.proxy, self.clock = name, process, proxy, clock
        self.kind = name.split('-')[0]
        self.is_struck = False  #: it is one strike's at a time

    def __repr__(self) -> str:
        return self.name


class Cluster:
    """All of it; ``journal`` is where everybody writes."""

    def __init__(self, folder: Path, history: Path, *, store: str, broker: str, entries: dict) -> None:
        self.folder, self.history, self.entries = folder, history, entries
        self.journal = Journal(history)
        self._closing: list[Callable[[], None]] = [self.journal.close]
        try:
            self._open(folder, store, broker)
        except BaseException:
            self.close()
            raise

    def _open(self, folder: Path, store: str, broker: str) -> None:
        self.broker = RabbitMQ() if broker == 'rabbitmq' else RedisServer(folder / 'broker')
        self._closing.append(self.broker.close)
        self.broker.start()
        # Who watches is not shown what the server forgets: its writes are all in one file, in their order.
        self.resources = RedisServer(folder / 'resources', options=NEVER_SHORTENED).start()
        self._closing.append(self.resources.close)
        self.place: Place = PLACES[store](folder)
        self._closing.append(self.place.close)
        self.url, _ = self.place.way()
        self.store: Store = open_store(self.url)
        self._closing.append(self.store.close)
        self.nodes = [self._node(f'beat-{n}') for n in range(1, BEATS + 1)]
        self.nodes += [self._node(f'worker-{n}') for n in range(1, WORKERS + 1)]
        self._closing += [node.process.close for node in self.nodes]
        self.app = Celery('control', broker=self.broker.url())

    def conf(self, url: str, entries: dict) -> dict[str, object]:
        return {
            'beat_schedule': entries, 'broker_url': self.broker.url(), 'result_expires': None,
            'broker_connection_retry_on_startup': True, 'worker_prefetch_multiplier': 1,
            'anarchon_store': url, 'anarchon_lease': jobs.LEASE, 'anarchon_heartbeat': jobs.HEARTBEAT,
            'anarchon_poll': jobs.POLL, 'anarchon_start_timeout': jobs.START_TIMEOUT,
            'anarchon_claim_timeout': jobs.CLAIM_TIMEOUT, 'anarchon_max_crashes': jobs.MAX_CRASHES,
            'anarchon_history': HISTORY, 'anarchon_log_runs': False,
        }  # fmt: skip

    def _node(self, name: str, entries: dict | None = None) -> Node:
        folder = self.folder / name
        folder.mkdir()
        url, proxy = self.place.way()
        clock = ShiftedClock(folder)
        env = {
            'CHAOS_CONF': json.dumps(self.conf(url, self.entries if entries is None else entries)),
            'CHAOS_HISTORY': os.fspath(self.history), 'CHAOS_NODE': name,
            'CHAOS_RESOURCES': self.resources.url(), 'PYTHONPATH': os.fspath(ROOT),
            'PYTHONFAULTHANDLER': '1', **clock.env,  # SIGABRT has it say where it stands
        }  # fmt: skip
        words = ['beat', '-S', 'anarchon_celery.Scheduler'] if name.startswith('beat') else worker_words(name)
        words = [sys.executable, '-m', 'celery', '-A', 'tests.chaos.app', *words, '-l', 'warning']
        return Node(name, Process(words, name=name, folder=folder, env=env), proxy, clock)

    def start(self, node: Node) -> None:
        self.journal.write('start', node=node.name)
        node.process.start()

    def closing_beat(self) -> Node:
        """One that fires nothing more, and takes over what was left."""
        never = {name: {**entry, 'schedule': {'once': NEVER}} for name, entry in self.entries.items()}
        node = self._node('beat-closing', never)
        self._closing.append(node.process.close)
        return node

    def servers(self) -> list[int]:
        """The processes of the store and of the broker."""
        servers = [self.broker.process, *self.place.processes()]
        return [pid for process in servers if process.alive for pid in process.group]

    def of(self, kind: str) -> list[Node]:
        return [node for node in self.nodes if node.kind == kind]

    def tell_the_time(self) -> None:
        """Which wall-clock time it is at which monotonic one: the stores count by the former."""
        before = time.monotonic()
        wall = time.time()
        self.journal.write('clock', at=(before + time.monotonic()) / 2, wall=wall)

    def close(self) -> None:
        for close in reversed(self._closing):
            close()


NEVER = '2100-01-01T00:00:00Z'
HISTORY = '10m'  #: how long ended runs are kept, by all nodes
NEVER_SHORTENED = ['--appendfsync', 'no', '--auto-aof-rewrite-percentage', '0']


def worker_words(name: str) -> list[str]:
    return ['worker', '-n', f'{name}@%h', '-c', str(CHILDREN), *QUIET]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

"""All scenes at the same time: one beat, one Redis, a worker for each, and one that runs second attempts."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from celery import Celery
from celery.app.defaults import NAMESPACES

from anarchon_celery.protocol import Run
from anarchon_celery.stores import open_store
from tests.cluster.cluster import Cluster
from tests.cluster.endings.scene import ALONE, APP, POLL, Part, Scene, casts_of, join, over
from tests.cluster.endings.ways import POOLS, WAYS, nothing
from tests.processes import Process, Processes, wait_until
from tests.proxy import Proxy
from tests.servers import RedisServer

#: How long all may take to come to rest once it is done (seconds).
REST = 45.0


@dataclass(frozen=True, slots=True)
class Ending:
    """What a row of the table says, and the seconds that passed until the second attempt began."""

    part: Part
    sees: str
    run: str
    second: str
    seconds: float | None = None


def parts_of(pools: Sequence[str]) -> list[Part]:
    """All rows of some pools."""
    return [
        Part(pool, way, body) for pool in pools for way in WAYS if pool in way.pools for body in way.bodies
    ]


def missing(pool: str) -> str | None:
    """Why there is no such pool here, if so."""
    if pool in ('gevent', 'eventlet') and importlib.util.find_spec(pool) is None:
        return f'{pool}: it is not installed'
    if pool == 'prefork, spawn' and 'pool_start_method' not in NAMESPACES['worker']:
        return f'{pool}: this Celery has no worker_pool_start_method'
    return None


def play(parts: list[Part], folder: Path, processes: Processes) -> list[Ending]:
    """Play all parts at the same time, and tell how each one ended."""
    with stage(parts, folder, processes) as (cluster, scenes), Deadlines(cluster) as deadlines:
        rescue = start(cluster, scenes)
        let_rescue_in(scenes)
        acts = [(scene, way) for scene in scenes for way in dict.fromkeys(part.way for part in scene.parts)]
        with ThreadPoolExecutor(len(acts)) as all_at_once:
            done = [all_at_once.submit(scene.act, way) for scene, way in acts]
        for failed in filter(None, (act.exception() for act in done)):
            print(failed)  # its row says what came of that
        pairs = [(scene, part) for scene in scenes for part in scene.parts]
        with contextlib.suppress(AssertionError):  # what is not at rest says so in its row
            wait_until(lambda: all(scene.at_rest(part) for scene, part in pairs), REST)
        seen = {part: ending(scene, part, rescue.pid, deadlines) for scene, part in pairs}
        return [seen[part] for part in parts]


@contextlib.contextmanager
def stage(parts: list[Part], folder: Path, processes: Processes) -> Iterator[tuple[Cluster, list[Scene]]]:
    """A Redis, ways to it that can be cut, and the scenes."""
    with contextlib.ExitStack() as stack:
        server = RedisServer(folder / 'redis')
        stack.callback(server.close)
        server.start()
        app = Celery('stage', broker=server.url(1), set_as_current=False)
        stack.callback(app.close)
        cluster = Cluster(
            processes, folder, {}, store=server.url(0), broker={'broker_url': server.url(1)},
            anarchon_first_catch_up='2d', anarchon_poll=POLL, anarchon_jitter=0,
        )  # fmt: skip
        stack.callback(cluster.close)
        stack.callback(processes.close)
        yield (
            cluster,
            [
                Scene(name, cast, cluster, app, stack.enter_context(Proxy(server.port)))
                for name, cast in casts_of(parts).items()
            ],
        )


def start(cluster: Cluster, scenes: list[Scene]) -> Process:
    """Start all, and wait until each first attempt is where it is to be ended; return who runs the second."""
    where = ('-n', 'rescue@%h', '-Q', 'later', '-c', '4', *POOLS['threads'])
    rescue = cluster.celery(APP, 'worker', *where, *ALONE, name='rescue')
    for scene in scenes:
        scene.start()
    for worker in (rescue, *(scene.worker for scene in scenes)):
        worker.wait_for(r' ready\.', 60)
    entries = {job: entry for scene in scenes for job, entry in scene.entries().items()}
    beat = cluster.celery(APP, 'beat', '-S', 'anarchon_celery.Scheduler', name='beat', beat_schedule=entries)
    beat.wait_for(r'\[anarchon\] started as', 30)
    for scene in scenes:
        scene.wait_until_begun()
    return rescue


def let_rescue_in(scenes: list[Scene]) -> None:
    """From now on somebody else is there for what the workers leave, and they take no more."""
    left = [scene for scene in scenes if not scene.way.late]
    if left:
        app = scenes[0].app
        app.control.broadcast('leave', destination=[scene.address for scene in left])
        join(app, f'rescue@{socket.gethostname()}', [scene.name for scene in left])


class Deadlines:
    """Looks at the store all the time, for until when each attempt was held."""

    def __init__(self, cluster: Cluster) -> None:
        self._store = open_store(cluster.conf['anarchon_store'])
        self._last: dict[tuple[str, int, int], int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Deadlines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        self._store.close()

    def passed(self, run: Run, at: float) -> bool:
        """Whether the lease of the first attempt was over at that time (seconds)."""
        return 1000 * at >= self._last[run.job, run.slot, 1]

    def _look(self) -> None:
        while not self._over.wait(0.05):
            for run in self._store.runs(state='running', limit=1000):
                self._last[run.job, run.slot, run.attempt] = run.deadline or 0


def ending(scene: Scene, part: Part, rescue: int, deadlines: Deadlines) -> Ending:
    """Read from the store, and from what the task wrote, how a part ended."""
    run, first, second = scene.run(part), scene.first(part), scene.second(part)
    if part.way.stops and scene.worker.alive:
        return Ending(part, sees(first, rescue), 'STUCK: its worker does not end', '–')
    if second is None:
        return Ending(part, sees(first, rescue), became(run), '–')
    since = scene.acted[part.way]
    if part.way.act is nothing and first[-1]['at'] < second:  # what it did itself was its last line
        since = first[-1]['at']
    how = 'when its lease is over' if deadlines.passed(run, second) else 'when given back'
    return Ending(part, sees(first, rescue), became(run), how, second - since)


def sees(lines: list[dict], rescue: int) -> str:
    """What the first attempt saw, where it was to be ended."""
    if not lines or lines[0]['pid'] == rescue:
        return 'not begun'
    told = [in_words(line['event']) for line in lines if line['event'] not in ('start', 'end')]
    if any(line['event'] == 'end' for line in lines):
        told.append('ends by itself')
    elif not over(lines):
        told.append('killed')
    return ', then '.join(told)


def in_words(event: str) -> str:
    """What the task wrote of an exception: that it was ``raised``, or ``swallowed``."""
    how, _, name = event.partition(' ')
    return f'`{name}`' if how == 'raised' else f'{how} `{name}`'


def became(run: Run) -> str:
    """What became of the run after its first attempt, or without it."""
    if not run.ended:
        return f'STUCK: {run.state}, attempt {run.attempt}, {run.crashes} crashes'
    if run.attempt == 2 and run.state == 'succeeded':
        return 'handed over' if run.crashes == 0 else 'taken over'
    if run.attempt > 2:
        return f'{run.state}, attempt {run.attempt}, {run.crashes} crashes'
    return f'{run.state} ({run.reason})' if run.reason else run.state

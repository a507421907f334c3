"""A scene: one worker with a queue of its own, the first attempts of some jobs, and what is done to it."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from celery import Celery

from anarchon_celery.protocol import Release, Run
from tests.cluster.cluster import Cluster, slot_of
from tests.cluster.endings.ways import POOLS, PROCESSES, Way
from tests.processes import Process, wait_until
from tests.proxy import Proxy

APP = 'tests.cluster.endings.app'
#: Of each run, in seconds. What is done at once must be told from what waits for the lease.
LEASE, HEARTBEAT, GRACE, POLL = 6.0, 1.0, 1.0, 0.5

#: So many workers at once have no need to talk to each other.
ALONE = ('--without-mingle', '--without-gossip', '--without-heartbeat')


@dataclass(frozen=True, slots=True)
class Part:
    """A row of the table: one job, whose first attempt is ended in one way."""

    pool: str
    way: Way
    body: str

    @property
    def job(self) -> str:
        return f'{self.pool.replace(", ", "-")}.{self.way.word}.{self.body}'


@dataclass(slots=True)
class Scene:
    """The parts that one worker plays, all of one way, or such as may share a worker."""

    name: str
    parts: list[Part]
    cluster: Cluster
    app: Celery
    proxy: Proxy  #: its way to the store
    _worker: Process | None = None
    acted: dict[Way, float] = field(default_factory=dict)

    @property
    def way(self) -> Way:
        """The first of its ways, which is the only one where the worker needs something for it."""
        return self.parts[0].way

    @property
    def worker(self) -> Process:
        assert self._worker is not None
        return self._worker

    @property
    def address(self) -> str:
        return f'{self.name}@{socket.gethostname()}'

    def entries(self) -> dict[str, dict]:
        """The jobs, whose latest slot runs as soon as beat sees them."""
        anarchon = {'lease': LEASE, 'heartbeat': HEARTBEAT, 'stop_grace': GRACE}
        return {
            part.job: {
                'task': f'{APP}.{part.body}',
                'schedule': '1d',
                'options': {'queue': self.name, 'anarchon': anarchon, **part.way.options},
            }
            for part in self.parts
        }

    def start(self) -> None:
        """Start the worker; one whose tasks come late listens to nothing yet."""
        way = self.way
        conf = dict(way.conf)
        if self.parts[0].pool == 'prefork, spawn':
            conf['worker_pool_start_method'] = 'spawn'
        conf['anarchon_store'] = f'redis://127.0.0.1:{self.proxy.port}/0'
        size = [] if '--autoscale' in way.flags else ['-c', str(len(self.parts))]
        queues = [f'{self.name}.own', *([] if way.late else [self.name])]
        self._worker = self.cluster.celery(
            APP, 'worker', '-n', f'{self.name}@%h', '-Q', ','.join(queues), *size,
            *POOLS[self.parts[0].pool], *ALONE, *way.flags, name=self.name, env=way.env, **conf,
        )  # fmt: skip

    def act(self, way: Way) -> None:
        """Do it, to those whose way it is."""
        self.acted[way] = time.time()
        way.act(replace(self, parts=[part for part in self.parts if part.way is way]))

    # what the ways work with

    def runs(self) -> list[Run]:
        return [self.run(part) for part in self.parts]

    def run(self, part: Part) -> Run:
        """The run of the part's first slot."""
        return self.cluster.runs(part.job)[0]

    def history(self, part: Part) -> list[dict]:
        first = self.run(part).slot
        return [line for line in self.cluster.history() if line['job'] == part.job and slot_of(line) == first]

    def task_ids(self) -> list[str]:
        wait_until(lambda: all(run.task_id for run in self.runs()))
        return [str(run.task_id) for run in self.runs()]

    def task_pids(self) -> list[int]:
        return [self.history(part)[0]['pid'] for part in self.parts]

    def control(self, command: str, *arguments, **how) -> None:
        """Tell the worker over remote control, without waiting for an answer."""
        getattr(self.app.control, command)(*arguments, destination=[self.address], **how)

    def consume(self) -> None:
        """Let the worker have its queue."""
        join(self.app, self.address, [self.name])

    def send(self, task: str) -> None:
        """Send a plain task to the worker, over the queue that it shares with nobody."""
        self.app.send_task(f'{APP}.{task}', queue=f'{self.name}.own')

    def release(self, run: Run) -> None:
        """Give a run away behind its holder's back."""
        assert self.cluster.store.release([Release(key=run.key, token=run.token)]) == [True]

    def age(self) -> float:
        """The seconds since its first run was published."""
        run = self.runs()[0]
        return time.time() - (run.queued_at or time.time() * 1000) / 1000

    def wait_for_second_attempts(self) -> None:
        wait_until(lambda: all(map(self.second, self.parts)), 30, why=self.told)

    def wait_until_begun(self) -> None:
        wait_until(lambda: all(map(self.begun, self.parts)), 30, why=self.told)

    # what became of it

    def first(self, part: Part) -> list[dict]:
        return [line for line in self.history(part) if line['attempt'] == 1]

    def second(self, part: Part) -> float | None:
        """When the second attempt began."""
        return next((line['at'] for line in self.history(part) if line['attempt'] == 2), None)

    def begun(self, part: Part) -> bool:
        """Whether its act may come: it was begun, or was turned away."""
        if part.way.late:
            return bool(self.cluster.runs(part.job)) and self.run(part).queued_at is not None
        if {'ENDINGS_UNKNOWN', 'ENDINGS_HEADER_VERSION'} & part.way.env.keys():
            return 'given back' in self.worker.output or 'unregistered task' in self.worker.output
        return bool(self.cluster.runs(part.job) and self.history(part))

    def at_rest(self, part: Part) -> bool:
        """Whether nothing more is to come: of the run, its first attempt, and a worker that is to stop."""
        if part.way.stops and self.worker.alive:
            return False
        return self.run(part).ended and (
            not self.first(part) or over(self.first(part)) or not lives(self.first(part)[0]['pid'])
        )

    def told(self) -> str:
        """For people who look for what went wrong."""
        runs = [run for part in self.parts for run in self.cluster.runs(part.job)]
        return f'{self.name}: {runs}\n{self.worker.tail(25)}'


def over(lines: list[dict]) -> bool:
    """Whether the body has come to its end, and could write that down."""
    return any(line['event'] == 'end' or line['event'].startswith('raised') for line in lines)


def lives(pid: int) -> bool:
    try:
        state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
    except OSError:
        return False
    return state != 'Z' and pid != os.getpid()


def join(app: Celery, address: str, queues: list[str]) -> None:
    """Let a worker take messages of some queues more."""
    how = {'arguments': {'queues': queues}, 'destination': [address]}
    assert app.control.broadcast('join', reply=True, timeout=15, limit=1, **how), f'{address} does not answer'


def casts_of(parts: list[Part]) -> dict[str, list[Part]]:
    """Who plays what, in a worker for each, or together where they cannot be in each other's way."""
    casts: dict[str, list[Part]] = {}
    for part in parts:
        casts.setdefault(company(part), []).append(part)
    return casts


def company(part: Part) -> str:
    """The name of the worker that plays the part."""
    if part.pool not in PROCESSES or part.way.stops:
        return part.job  # what else runs in a worker that stops may hold up the second attempt
    return f'{part.job.split(".")[0]}.{part.way.word if part.way.aside else "together"}'

"""What is looked at from outside while the cluster runs: the store's records, and what everybody uses."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from anarchon_celery.protocol import ACTIVE, BUFFERED, Run, RunKey
from tests.chaos.cluster import Cluster
from tests.chaos.processor import Waits

#: How often, in seconds: what is active, the ended runs, what is used, all ended runs that there are.
ACTIVE_EVERY, ENDED_EVERY, USED_EVERY, ALL_EVERY = 2.0, 15.0, 15.0, 240.0
SERVERS_EVERY = 0.5
#: What of a record is kept.
FIELDS = (
    'job', 'slot', 'kind', 'state', 'trigger', 'dispatch', 'unstarted', 'attempt', 'crashes', 'fence', 'node',
    'owner', 'claimed_at', 'started_at', 'finished_at', 'reason', 'until', 'count', 'stop',
)  # fmt: skip
LATE, STARVED = 0.1, 0.05  #: seconds; what is worth saying of a thread that is woken late, or has to wait


class Recorder(threading.Thread):
    """Writes all that to the history, before the store forgets it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self._known: dict[RunKey, tuple] = {}
        self._over = threading.Event()
        self._here, self._there = Waits(), Waits()
        self.slots = 0  #: runs and skips so far

    def run(self) -> None:
        every = {
            self.look_at_active: ACTIVE_EVERY, self.look_at_ended: ENDED_EVERY,
            self.look_at_used: USED_EVERY, self.look_at_all: ALL_EVERY, self.look_at_servers: SERVERS_EVERY,
        }  # fmt: skip
        due = dict.fromkeys(every, 0.0)
        while not self._over.is_set():
            before = time.monotonic()
            time.sleep(0.1)
            if (late := round(time.monotonic() - before - 0.1, 3)) > LATE:
                self.cluster.journal.write('stalled', node='servers', main=0, seconds=late)
            for look, at in due.items():
                if time.monotonic() >= at:
                    self._try(look)
                    due[look] = time.monotonic() + every[look]

    def _try(self, look: Callable[[], None]) -> None:
        """Look; while the store is away there is nothing to see."""
        try:
            look()
        except Exception as reason:
            self.cluster.journal.write('not seen', reason=f'{type(reason).__name__}: {reason}'[:200])

    def stop(self) -> None:
        self._over.set()
        self.join()

    def active(self) -> list[Run]:
        states = (*ACTIVE, BUFFERED)
        return [run for state in states for run in self.cluster.store.runs(state=state, limit=5000)]

    def look_at_servers(self) -> None:
        """Whether they are given the processor; a call passes through two threads of the proxies, here."""
        starved = 2 * self._here.longest([os.getpid()]) + self._there.longest(self.cluster.servers())
        if starved > STARVED:
            self.cluster.journal.write('starved', node='servers', main=0, seconds=round(starved, 3))

    def look_at_active(self) -> None:
        self.cluster.tell_the_time()
        store = self.cluster.store
        runs = [(run.job, run.slot, run.state, run.deadline) for run in self.active()]
        self.cluster.journal.write('active', now=store.clock.now(), runs=runs)
        floors = {job.name: job.floor for job in store.jobs()}
        self.cluster.journal.write('floors', floors=floors)

    def look_at_ended(self) -> None:
        """Of the last minute."""
        self.keep(self.cluster.store.runs(limit=60 * len(self.cluster.entries)))

    def look_at_all(self) -> None:
        self.keep(self.cluster.store.runs(limit=1_000_000))

    def keep(self, runs: list[Run]) -> None:
        for run in runs:
            fields = {name: value for name, value in asdict(run).items() if name in FIELDS}
            if run.ended and self._known.get(run.key) != tuple(fields.values()):
                self.slots += run.key not in self._known
                self._known[run.key] = tuple(fields.values())
                self.cluster.journal.write('run', **{key: value for key, value in fields.items() if value})

    def look_at_used(self) -> None:
        for node in self.cluster.nodes:
            pids = node.process.group if node.process.alive else []
            rss, files = sum(map(rss_of, pids)), [files_of(pid) for pid in pids]
            self.cluster.journal.write(
                'used', node=node.name, main=node.process.pid, processes=len(pids), rss=rss,
                own_rss=rss_of(node.process.pid), files=sum(files), most_files=max(files, default=0),
            )  # fmt: skip
        rows, nodes = self.cluster.place.rows(), len(self.cluster.store.nodes())
        self.cluster.journal.write('kept', known_nodes=nodes, **rows)


def rss_of(pid: int) -> int:
    """Its resident memory (bytes)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f'/proc/{pid}/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')
    return 0


def files_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f'/proc/{pid}/fd'))
    return 0


def writes(folder: Path) -> Iterator[tuple[str, int]]:
    """All writes to the resources, in their order, as their server kept them: the resource, and the fence."""
    for file in sorted((folder / 'appendonlydir').glob('*.incr.aof')):
        with file.open('rb') as log:
            while head := log.readline():
                words = [_word(log) for _ in range(int(head[1:]))]
                if words[0].upper() == b'SET':
                    yield words[1].decode(), int(words[2])
                elif words[0].upper() == b'HSET':
                    fields = dict(zip(words[2::2], words[3::2], strict=True))
                    if b'fence' in fields:
                        yield words[1].decode(), int(fields[b'fence'])


def _word(log) -> bytes:
    length = int(log.readline()[1:])
    word: bytes = log.read(length + 2)[:-2]
    return word

"""How far one store goes: what each verb costs its server, and from that a cluster that is not here.

Measured is the CPU time of the server's own processes while one client asks it for many verbs, a chunk
a call and one a call. The model adds up what a cluster asks for in one minute: each job is due once, each
node offers all of them (one wins), each run is started and finished, each node polls every second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import time

from anarchon_celery.protocol import Node, Offer, Registration, RunKey, Sent, Start, Started
from anarchon_celery.stores import CHUNK, Store, new_nonce, open_store

from .arena import Arena
from .figures import Line, Row

#: What a claimed job is in the model's store: as many as are measured.
NODES, JOBS = 50, 10_000


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of the server: for one slot in a chunk; for one call of ``start``, ``finish``, a poll."""

    won: float
    lost: float
    sent: float
    start: float
    finish: float
    poll: float

    def of_a_minute(self, nodes: int, jobs: int) -> float:
        """Return the CPU seconds that the server needs for one minute of such a cluster."""
        of_a_job = self.won + (nodes - 1) * self.lost + self.sent + self.start + self.finish
        return jobs * of_a_job + nodes * 60 * self.poll

    def most_jobs(self, nodes: int, cores: int) -> float:
        """Return how many jobs a minute use up so many cores."""
        of_a_job = (self.of_a_minute(nodes, 1_000_000) - self.of_a_minute(nodes, 0)) / 1_000_000
        return max(0.0, (60 * cores - self.of_a_minute(nodes, 0)) / of_a_job)


def capacity(arena: Arena, rounds: int, jobs: int) -> list[Row]:
    """Rows of the load on one store, and of where it ends."""
    servers = {
        "one Redis": ("redis", [arena.redis.process.pid], 1),
        "one PostgreSQL": ("postgresql", [arena.postgres.process.pid], os.cpu_count() or 1),
    }
    load, ends = [], []
    for who, (kind, pids, cores) in servers.items():
        seen = [_measured(arena.store(kind), lambda pids=pids: _cpu_of(pids), jobs) for _ in range(rounds)]
        shares = [100 * costs.of_a_minute(NODES, JOBS) / 60 for costs in seen]
        note = "; ".join(f"{name} {1e6 * getattr(seen[-1], name):.0f}" for name in Costs.__slots__)
        load.append(Line(who, "% of a core", shares, note=f"µs each: {note}"))
        most = [costs.most_jobs(NODES, cores) for costs in seen]
        ends.append(Line(who, "jobs a minute", most, note=f"cores used up: {cores}"))
    work = f"{NODES} nodes: modelled from the server's CPU time for each verb, measured here"
    return [
        Row(f"load of {NODES} nodes × {JOBS:,} jobs a minute", work, "", load),
        Row(f"where one store ends, {NODES} nodes", work, "", ends),
    ]


def _measured(url: str, cpu: Callable[[], float], jobs: int) -> Costs:
    """Ask a store for all verbs, and see what each costs its server."""
    store = open_store(url)
    slot = int(time() * 1000)
    names = [f"job-{number:06}" for number in range(jobs)]
    chunks = [names[start : start + CHUNK] for start in range(0, jobs, CHUNK)]
    node = Node(id="bench", name="a:1")
    for some in chunks:
        store.register(node, [Registration(job=job, hash="h") for job in some], now=slot - 1000)

    def each(ask: Callable[[], None], count: int) -> float:
        before = cpu()
        ask()
        return (cpu() - before) / count

    def claim() -> None:
        for some in chunks:
            store.claim("a:1", [Offer(job=job, slots=(slot,), hash="h") for job in some], nonce=new_nonce())

    try:
        won, lost = each(claim, jobs), each(claim, jobs)
        keys = [[RunKey(job, slot) for job in some] for some in chunks]
        return Costs(
            won=won, lost=lost,
            sent=each(lambda: [store.sent([_sent(key) for key in some]) for some in keys] and None, jobs),
            start=each(lambda: _start(store, keys), jobs),
            finish=each(lambda: _finish(store, keys), jobs),
            poll=each(lambda: [store.expired(node, CHUNK) for _ in range(500)] and None, 500),
        )  # fmt: skip
    finally:
        store.close()


def _sent(key: RunKey) -> Sent:
    return Sent(key=key, dispatch=1, task_id="t", supervised=True)


def _start(store: Store, keys: list[list[RunKey]]) -> None:
    for key in (key for some in keys for key in some):
        answer = store.start(Start(key=key, token=key.job, worker="w"))
        assert isinstance(answer, Started), answer


def _finish(store: Store, keys: list[list[RunKey]]) -> None:
    for key in (key for some in keys for key in some):
        assert store.finish(key, key.job, "succeeded")


def _cpu_of(pids: list[int]) -> float:
    """Return the CPU time of processes and their children, in seconds: finer than ticks where it can be."""
    return sum(_spent(pid) for pid in _with_children(pids))


def _spent(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _with_children(pids: list[int]) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.parent.name)
        if pid in pids or int(fields[1]) in pids:
            found.append(pid)
    return found

"""The memory store: the protocol's transitions under a lock, for one process and for tests."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from .. import folding, transitions
from ..ledger import Ledger
from ..protocol import (
    GONE_AFTER,
    ORPHANED_AFTER,
    Claim,
    Claimed,
    Expired,
    Holding,
    Job,
    Node,
    Offer,
    Redispatch,
    Registered,
    Registration,
    Release,
    Renewal,
    Run,
    RunKey,
    Sent,
    Stale,
    Start,
    Started,
)
from . import Store

Answer = TypeVar("Answer")

#: One store per URL and prefix, so that a beat and a worker in one process meet.
_STORES: dict[tuple[str, str], MemoryStore] = {}
_OPENING = threading.Lock()


def open_store(url: str, *, prefix: str, options: Mapping[str, Any]) -> MemoryStore:
    """Return this process's store of that name."""
    with _OPENING:
        return _STORES.setdefault((url, prefix), MemoryStore(url))


class MemoryStore(Store):
    """The model made runnable."""

    def __init__(self, shown: str = "memory://") -> None:
        """Begin empty."""
        super().__init__()
        self.shown = shown
        self._lock = threading.RLock()
        self._own_identity = secrets.token_hex(8)
        self._ledger = Ledger()
        self._begun = False
        self._nodes: dict[str, Node] = {}
        self._latest = 0

    def _step(self, now: int | None, transition: Callable[[Ledger, int], Answer]) -> Answer:
        """Do one transition, alone, at one time."""
        before = self.clock.monotonic()
        with self._lock:
            read = _wall_clock() if now is None else now
            if not self._begun:
                self._ledger.created, self._begun = read, True
            answer = transition(self._ledger, read)
            self._ledger.changed_jobs.clear()
            self._ledger.changed_runs.clear()
            self._answered(before, read, self._own_identity)
        return answer

    def register(
        self, node: Node, registrations: Sequence[Registration], *, now: int | None = None
    ) -> list[Registered]:
        """See :meth:`Store.register`."""

        def step(ledger: Ledger, now: int) -> list[Registered]:
            self._nodes = {id: known for id, known in self._nodes.items() if known.seen >= now - GONE_AFTER}
            self._nodes[node.id] = replace(node, seen=now)
            return transitions.register(ledger, now, registrations)

        return self._step(now, step)

    def claim(
        self, node: str, offers: Sequence[Offer], *, nonce: str, now: int | None = None
    ) -> list[Claimed]:
        """See :meth:`Store.claim`."""
        return self._step(now, lambda ledger, now: transitions.claim(ledger, now, node, nonce, offers))

    def sent(self, published: Sequence[Sent], *, now: int | None = None) -> None:
        """See :meth:`Store.sent`."""
        self._step(now, lambda ledger, now: transitions.sent(ledger, now, published))

    def expired(
        self, node: Node, limit: int, *, after: tuple[int, RunKey] | None = None, now: int | None = None
    ) -> Expired:
        """See :meth:`Store.expired`."""

        def step(ledger: Ledger, now: int) -> Expired:
            if now < self._latest - 1000:
                transitions.rewind(ledger, now)
            self._latest = now
            self._nodes[node.id] = replace(node, seen=now)
            return self._past_deadline(ledger, now, limit, after)

        return self._step(now, step)

    def _past_deadline(
        self, ledger: Ledger, now: int, limit: int, after: tuple[int, RunKey] | None
    ) -> Expired:
        waiting = sorted(
            ((run.deadline, run.key) for of_job in ledger.active.values() for run in of_job.values()
             if run.deadline is not None),
        )  # fmt: skip
        page = [
            ledger.runs[key] for deadline, key in waiting
            if deadline <= now and (after is None or (deadline, key) > after)
        ][:limit]  # fmt: skip
        jobs = ledger.jobs
        orphaned = {
            run.job for run in page if run.job not in jobs or jobs[run.job].seen < now - ORPHANED_AFTER
        }
        return Expired(
            runs=tuple(page),
            next_deadline=next((deadline for deadline, _ in waiting if deadline > now), None),
            orphaned=frozenset(orphaned),
        )

    def redispatch(
        self, node: str, asked: Sequence[Redispatch], *, nonce: str, now: int | None = None
    ) -> list[Claim]:
        """See :meth:`Store.redispatch`."""
        return self._step(now, lambda ledger, now: transitions.redispatch(ledger, now, node, nonce, asked))

    def start(self, asked: Start, *, now: int | None = None) -> Started | Stale:
        """See :meth:`Store.start`."""
        return self._step(now, lambda ledger, now: transitions.start(ledger, now, asked))

    def renew(self, holdings: Sequence[Holding], *, now: int | None = None) -> list[Renewal]:
        """See :meth:`Store.renew`."""
        return self._step(now, lambda ledger, now: transitions.renew(ledger, now, holdings))

    def finish(
        self, key: RunKey, token: str, outcome: str, *, reason: str | None = None, now: int | None = None
    ) -> bool:
        """See :meth:`Store.finish`."""
        return self._step(
            now, lambda ledger, now: transitions.finish(ledger, now, key, token, outcome, reason)
        )

    def requeue(
        self, key: RunKey, token: str, *, delay: int, retries: int, start_timeout: int, now: int | None = None
    ) -> bool:
        """See :meth:`Store.requeue`."""
        return self._step(
            now,
            lambda ledger, now: transitions.requeue(
                ledger, now, key, token, delay=delay, retries=retries, start_timeout=start_timeout
            ),
        )

    def release(self, releases: Sequence[Release], *, now: int | None = None) -> list[bool]:
        """See :meth:`Store.release`."""
        return self._step(now, lambda ledger, now: transitions.release(ledger, now, releases))

    def pause(self, job: str, *, reason: str, by: str, now: int | None = None) -> bool:
        """See :meth:`Store.pause`."""
        return self._step(now, lambda ledger, now: transitions.pause(ledger, now, job, reason, by))

    def resume(self, job: str, *, now: int | None = None) -> bool:
        """See :meth:`Store.resume`."""
        return self._step(now, lambda ledger, now: transitions.resume(ledger, now, job))

    def prune(self, *, history: int, most: int, limit: int = 500, now: int | None = None) -> int:
        """See :meth:`Store.prune`."""

        def step(ledger: Ledger, now: int) -> int:
            aged = _aged(ledger, now - history)[:limit]
            transitions.forget(ledger, now, aged)
            folded = _fold(ledger, now, limit - len(aged))
            surplus = _surplus(ledger, most)[: limit - len(aged) - folded]
            transitions.forget(ledger, now, surplus)
            return len(aged) + folded + len(surplus)

        return self._step(now, step)

    def runs(self, *, job: str | None = None, state: str | None = None, limit: int = 50) -> list[Run]:
        """See :meth:`Store.runs`."""
        with self._lock:
            found = [
                run for run in self._ledger.runs.values()
                if job in (None, run.job) and state in (None, run.state)
            ]  # fmt: skip
        found.sort(key=lambda run: (-run.slot, run.job, run.kind))
        return found[:limit]

    def jobs(self) -> list[Job]:
        """See :meth:`Store.jobs`."""
        with self._lock:
            return sorted(self._ledger.jobs.values(), key=lambda job: job.name)

    def nodes(self) -> list[Node]:
        """See :meth:`Store.nodes`."""
        with self._lock:
            return sorted(self._nodes.values(), key=lambda node: (node.name, node.id))

    def close(self) -> None:
        """There is nothing to give back."""


def _wall_clock() -> int:
    return int(time.time() * 1000)


def _aged(ledger: Ledger, oldest: int) -> list[RunKey]:
    """Ended runs that finished before ``oldest``."""
    aged = [run.key for run in ledger.runs.values() if run.ended and (run.finished_at or 0) < oldest]
    return sorted(aged, key=lambda key: (key.slot, key.job, key.kind))


def _fold(ledger: Ledger, now: int, most: int) -> int:
    """Fold skips that follow each other, and return how many went."""
    scheduled = [ledger.runs[key] for key in sorted(ledger.runs) if key.kind == "scheduled"]
    folded = 0
    for chain in folding.chains(scheduled, now):
        keys = folding.foldable(chain, ledger.jobs.get(chain[0].job), now, most - folded)
        folded += len(folding.fold(ledger, now, keys))
    return folded


def _surplus(ledger: Ledger, most: int) -> list[RunKey]:
    """Ended runs that are not among their job's ``most`` newest."""
    ended = [run.key for run in ledger.runs.values() if run.ended]
    kept: dict[str, int] = {}
    doomed = []
    for key in sorted(ended, key=lambda key: (key.job, -key.slot, key.kind)):
        kept[key.job] = kept.get(key.job, 0) + 1
        if kept[key.job] > most:
            doomed.append(key)
    return sorted(doomed, key=lambda key: (key.slot, key.job, key.kind))

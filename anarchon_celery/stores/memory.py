"""The memory store: the protocol's transitions under a lock, for one process and for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    Request,
    Requested,
    Run,
    RunKey,
    Sent,
    Settle,
    Stale,
    Start,
    Started,
    Success,
)
from ..youth import Origin, met
from . import NOTED, Store, new_identity, successes_among
from .clock import HostClock

Answer = TypeVar("Answer")

#: The verbs that note that their node lives, whatever they change.
_SEEN = frozenset({"register", "expired"})

#: One room per URL and prefix, so that a beat and a worker in one process meet.
_ROOMS: dict[tuple[str, str], Room] = {}
_OPENING = threading.Lock()


def open_store(
    url: str, *, prefix: str, options: Mapping[str, Any], within: float = float("inf")
) -> MemoryStore:
    """Return a store in this process's room of that name."""
    with _OPENING:
        return MemoryStore(url, _ROOMS.setdefault((url, prefix), Room()))


@contextmanager
def furnished(url: str, room: Room, *, prefix: str = "anarchon") -> Iterator[None]:
    """Have this room at that URL meanwhile: one with a clock of its own, say."""
    with _OPENING:
        before = _ROOMS.get((url, prefix))
        _ROOMS[url, prefix] = room
    try:
        yield
    finally:
        with _OPENING:
            _ROOMS.pop((url, prefix))
            if before is not None:
                _ROOMS[url, prefix] = before


class _ThisHosts(HostClock):
    def wall(self) -> int:
        return _wall_clock()


class Room:
    """What is stored, the lock under which it is, and the clock by which it is judged."""

    def __init__(self, clock: HostClock | None = None) -> None:
        """Begin empty; ``clock`` is this host's, unless another one is given."""
        self.lock = threading.RLock()
        self.clock = clock or _ThisHosts()
        self.wipe()

    def wipe(self) -> None:
        """Forget everything."""
        self.ledger: Ledger | None = None
        self.nodes: dict[str, Node] = {}
        self.latest = 0

    def ledger_at(self, now: int) -> Ledger:
        """Return what is stored; it comes to be with the first step."""
        if self.ledger is None:
            self.ledger = Ledger(origin=Origin(identity=new_identity(), created=now, born=now))
        return self.ledger

    def recorded(self) -> Ledger:
        """Return what is stored, to be looked at."""
        return self.ledger or Ledger()


class MemoryStore(Store):
    """The model made runnable."""

    def __init__(self, shown: str = "memory://", room: Room | None = None) -> None:
        """Store in that room, or in one of its own."""
        self.room = room or Room()
        super().__init__(clock=self.room.clock.monotonic)
        self.shown = shown

    @contextmanager
    def opened(self) -> Iterator[Room]:
        """Have the room, alone. A store that keeps it elsewhere reads it before and writes it after."""
        with self.room.lock:
            yield self.room

    def _step(self, verb: str, now: int | None, transition: Callable[[Ledger, int], Answer]) -> Answer:
        """Do one transition, alone, at one time."""
        before = self.clock.monotonic()
        with self.opened() as room:
            read = room.clock.wall() if now is None else now
            ledger = room.ledger_at(read)
            ledger.next_identity, ledger.known_as = new_identity(), self.identity
            ledger.origin = self._met(ledger, read)
            self._refuse_a_stranger(ledger.origin, verb)
            answer = transition(ledger, read)
            is_noted = (verb in _SEEN or bool(verb in NOTED and ledger.changed_runs)) and self._note(read)
            ledger.changed_jobs.clear()
            ledger.changed_runs.clear()
            self._answered(
                before, read, ledger.origin.identity, ledger.origin.young_since, noted=is_noted,
                verb=verb,
            )  # fmt: skip
        return answer

    def _met(self, ledger: Ledger, now: int) -> Origin:
        known = self.room.nodes.get(self._node or "")
        noted = None if known is None else known.seen
        return met(ledger.origin, now, self._caller, noted, ledger.next_identity)

    def _note(self, now: int) -> bool:
        """Note that the node lives whose call this is."""
        if known := self.room.nodes.get(self._node or ""):
            self.room.nodes[known.id] = replace(known, seen=now)
        return known is not None

    def register(
        self, node: Node, registrations: Sequence[Registration], *, now: int | None = None
    ) -> list[Registered]:
        """See :meth:`Store.register`."""

        def step(ledger: Ledger, now: int) -> list[Registered]:
            nodes = self.room.nodes
            for gone in [known.id for known in nodes.values() if known.seen < now - GONE_AFTER]:
                del nodes[gone]
            nodes[node.id] = replace(node, seen=now)
            return transitions.register(ledger, now, registrations)

        self._calls_as(node)
        return self._step("register", now, step)

    def claim(
        self, node: str, offers: Sequence[Offer], *, nonce: str, now: int | None = None
    ) -> list[Claimed]:
        """See :meth:`Store.claim`."""
        return self._step(
            "claim", now, lambda ledger, now: transitions.claim(ledger, now, node, nonce, offers)
        )

    def sent(self, published: Sequence[Sent], *, now: int | None = None) -> None:
        """See :meth:`Store.sent`."""
        self._step("sent", now, lambda ledger, now: transitions.sent(ledger, now, published))

    def expired(
        self, node: Node, limit: int, *, after: tuple[int, RunKey] | None = None, now: int | None = None
    ) -> Expired:
        """See :meth:`Store.expired`."""

        def step(ledger: Ledger, now: int) -> Expired:
            if now < self.room.latest - 1000:
                transitions.rewind(ledger, now)
            self.room.latest = now
            self.room.nodes[node.id] = replace(node, seen=now)
            return self._past_deadline(ledger, now, limit, after)

        self._calls_as(node)
        return self._step("expired", now, step)

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
        return self._step(
            "redispatch", now, lambda ledger, now: transitions.redispatch(ledger, now, node, nonce, asked)
        )

    def leave(self, node: Node, *, now: int | None = None) -> None:
        """See :meth:`Store.leave`."""

        def step(ledger: Ledger, now: int) -> None:
            self.room.nodes.pop(node.id, None)

        self._calls_as_nobody()
        self._step("leave", now, step)

    def start(self, asked: Start, *, now: int | None = None) -> Started | Stale:
        """See :meth:`Store.start`."""
        return self._step("start", now, lambda ledger, now: transitions.start(ledger, now, asked))

    def renew(self, holdings: Sequence[Holding], *, now: int | None = None) -> list[Renewal]:
        """See :meth:`Store.renew`."""
        return self._step("renew", now, lambda ledger, now: transitions.renew(ledger, now, holdings))

    def finish(
        self, key: RunKey, token: str, outcome: str, *, reason: str | None = None, now: int | None = None
    ) -> bool:
        """See :meth:`Store.finish`."""
        return self._step(
            "finish", now, lambda ledger, now: transitions.finish(ledger, now, key, token, outcome, reason)
        )

    def requeue(
        self, key: RunKey, token: str, *, delay: int, retries: int, start_timeout: int, now: int | None = None
    ) -> bool:
        """See :meth:`Store.requeue`."""
        return self._step(
            "requeue",
            now,
            lambda ledger, now: transitions.requeue(
                ledger, now, key, token, delay=delay, retries=retries, start_timeout=start_timeout
            ),
        )

    def release(self, releases: Sequence[Release], *, now: int | None = None) -> list[bool]:
        """See :meth:`Store.release`."""
        return self._step("release", now, lambda ledger, now: transitions.release(ledger, now, releases))

    def settle(self, settled: Sequence[Settle], *, now: int | None = None) -> list[bool]:
        """See :meth:`Store.settle`."""
        return self._step("settle", now, lambda ledger, now: transitions.settle(ledger, now, settled))

    def pause(self, job: str, *, reason: str, by: str, now: int | None = None) -> bool:
        """See :meth:`Store.pause`."""
        return self._step("pause", now, lambda ledger, now: transitions.pause(ledger, now, job, reason, by))

    def resume(self, job: str, *, now: int | None = None) -> bool:
        """See :meth:`Store.resume`."""
        return self._step("resume", now, lambda ledger, now: transitions.resume(ledger, now, job))

    def trigger(self, asked: Request, *, nonce: str, now: int | None = None) -> Requested:
        """See :meth:`Store.trigger`."""
        return self._step("trigger", now, lambda ledger, now: transitions.trigger(ledger, now, nonce, asked))

    def backfill(
        self, asked: Request, slots: Sequence[int], *, nonce: str, now: int | None = None
    ) -> list[Requested]:
        """See :meth:`Store.backfill`."""
        return self._step(
            "backfill", now, lambda ledger, now: transitions.backfill(ledger, now, nonce, asked, slots)
        )

    def cancel(self, key: RunKey, *, reason: str, now: int | None = None) -> Run | None:
        """See :meth:`Store.cancel`."""
        return self._step("cancel", now, lambda ledger, now: transitions.cancel(ledger, now, key, reason))

    def forget(self, job: str, *, limit: int = 500, now: int | None = None) -> int:
        """See :meth:`Store.forget`."""

        def step(ledger: Ledger, now: int) -> int:
            ended = sorted(run.key for run in ledger.runs.values() if run.job == job and run.ended)
            return transitions.forget_job(ledger, now, job, ended[:limit])

        return self._step("forget", now, step)

    def prune(self, *, history: int, most: int, limit: int = 500, now: int | None = None) -> int:
        """See :meth:`Store.prune`."""

        def step(ledger: Ledger, now: int) -> int:
            aged = _aged(ledger, now - history)[:limit]
            transitions.forget(ledger, now, aged)
            folded = _fold(ledger, now, limit - len(aged))
            surplus = _surplus(ledger, most)[: limit - len(aged) - folded]
            transitions.forget(ledger, now, surplus)
            return len(aged) + folded + len(surplus)

        return self._step("prune", now, step)

    def runs(self, *, job: str | None = None, state: str | None = None, limit: int = 50) -> list[Run]:
        """See :meth:`Store.runs`."""
        found = self._look(
            lambda room: [
                run for run in room.recorded().runs.values()
                if job in (None, run.job) and state in (None, run.state)
            ]
        )  # fmt: skip
        found.sort(key=lambda run: (-run.slot, run.job, run.kind))
        return found[:limit]

    def jobs(self) -> list[Job]:
        """See :meth:`Store.jobs`."""
        return self._look(lambda room: sorted(room.recorded().jobs.values(), key=lambda job: job.name))

    def nodes(self) -> list[Node]:
        """See :meth:`Store.nodes`."""
        return self._look(lambda room: sorted(room.nodes.values(), key=lambda node: (node.name, node.id)))

    def successes(self) -> dict[str, Success]:
        """See :meth:`Store.successes`."""
        return self._look(lambda room: successes_among(room.recorded().runs.values()))

    def _look(self, what: Callable[[Room], Answer]) -> Answer:
        """Only read, and learn the time."""
        before = self.clock.monotonic()
        with self.opened() as room:
            self.clock.observe(before, self.clock.monotonic(), room.clock.wall())
            return what(room)

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

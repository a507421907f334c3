"""A child's seat at the board: what it says there of the run it holds, and what it hears of its lease.

The parent makes the same lease of what is said, and renews that.
"""

from __future__ import annotations

import os
import time
from typing import Any

from . import native
from .board import Full, Place
from .headers import Order
from .lease import HeldLease
from .protocol import Start, Started
from .stores.clock import monotonic

#: How long a child waits for its parent to see to what the one before it left (seconds).
FREE_WITHIN = 1.0


#: What a child says of a run that it holds, the weaker before the stronger: of two threads that speak
#: at the same time the later one may know less.
PHASES = ("held", "lost", "ending", "exiting")


class Seat:
    """The place of this process, for one run at a time; its task and its heartbeat speak for it."""

    def __init__(self, place: Place) -> None:
        """Sit down; nothing is said yet."""
        self.pid = os.getpid()
        self._place = place
        self._lock = native.new_lock()
        self._token: str | None = None

    def take(self, order: Order, asked: Start) -> None:
        """Say what is about to be started, so that the parent can give it back if this process dies."""
        until = monotonic() + FREE_WITHIN
        while (left := self._place.read()) is not None and left["pid"] != self.pid and monotonic() < until:
            time.sleep(0.01)
        self._ask(order, asked, "starting")

    def exit(self, order: Order, asked: Start) -> None:
        """Say that the pool ends this process while it asks for the start."""
        self._ask(order, asked, "exiting")

    def _ask(self, order: Order, asked: Start, phase: str) -> None:
        with self._lock:
            self._token = asked.token
            self._write({
                "pid": self.pid, "token": asked.token, "phase": phase, "header": order.header,
                "task_id": asked.task_id, "owner": asked.worker, "retries": asked.retries,
            })  # fmt: skip

    def say(self, lease: HeldLease, phase: str) -> None:
        """Say how it goes: ``held``, ``ending``, ``lost``, or ``exiting`` where the pool ends the body."""
        with self._lock:
            if lease.token == self._token:  # else it was left meanwhile
                self._write({
                    "pid": self.pid, "token": lease.token, "phase": max(phase, _of(lease), key=PHASES.index),
                    "header": lease.order.header, "attempt": lease.attempt, "fence": lease.fence,
                    "trigger": lease.trigger, "store": lease.store, "task_id": lease.task_id,
                    "owner": lease.owner, "began_at": lease.began_at, "renewed_at": lease.renewed_at,
                })  # fmt: skip

    def hear(self, lease: HeldLease) -> dict[str, Any] | None:
        """Return what the parent says of this lease: ``renewed_at``, ``store``, ``stop`` and ``lost``."""
        heard = self._place.heard()
        return heard if heard is not None and heard["token"] == lease.token else None

    def leave(self, token: str) -> None:
        """Say no more of this run."""
        with self._lock:
            if token == self._token:
                self._token = None
                self._place.write(None)

    def _write(self, said: dict[str, Any]) -> None:
        try:
            self._place.write(said)
        except Full:  # a very long name: this process renews its lease alone
            self._place.write(None)


def _of(lease: HeldLease) -> str:
    if lease.left_to_parent:
        return "exiting"
    return "ending" if lease.ending else "lost" if lease.lost else "held"


def lease_from(said: dict[str, Any], order: Order) -> HeldLease | None:
    """Return the lease that a child told of; None while its start is not answered."""
    if "fence" not in said:
        return None
    started = Started(
        attempt=said["attempt"], fence=said["fence"], trigger=said["trigger"], store=said["store"]
    )
    lease = HeldLease(order, started, said["token"], said["task_id"], said["began_at"], owner=said["owner"])
    lease.renewed(said["renewed_at"], said["store"])
    return lease


def answer(lease: HeldLease) -> dict[str, Any]:
    """Return what a parent says of a lease; see :meth:`Seat.hear`."""
    told = str(lease.ended) if lease.ended is not None else None
    return {
        "token": lease.token, "renewed_at": lease.renewed_at, "store": lease.store,
        "stop": told if lease.cancelled else None, "lost": told if lease.lost else None,
    }  # fmt: skip

"""What a node tells the cluster of itself: its versions, how far its clock is off, what its schedule is.

A beat tells it with its registrations and its polls. A worker has none of these: its parent tells it every
few seconds. Who stops takes leave, and is known no more; who is killed is seen to be gone.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha1
from importlib.metadata import version

import celery

from .errors import StoreError
from .protocol import Node
from .stores import Store, new_nonce
from .stores.budget import at_most
from .stores.clock import monotonic

#: How often a worker says that it lives, and how long that may take: its leases wait meanwhile (seconds).
EVERY, WITHIN = 15, 1.0


def this_node(kind: str, name: str, app: str | None) -> Node:
    """Return this process as a node, with a random id: containers share names and pids."""
    return Node(
        id=new_nonce(), name=name, kind=kind, app=app, version=version("anarchon-celery"),
        celery=celery.__version__, python=platform.python_version(),
    )  # fmt: skip


def by_the_clock(node: Node, store: Store) -> Node:
    """Return the node with how far its wall clock is ahead of the store's, as far as that is known (ms)."""
    if not store.clock.known:
        return node
    return replace(node, clock_offset=time.time_ns() // 1_000_000 - store.clock.now())


def schedule_hash(jobs: Iterable[object]) -> str:
    """Return what is the same on nodes with the same jobs: each is given with all that makes it differ."""
    return sha1("\n".join(sorted(map(repr, jobs))).encode(), usedforsecurity=False).hexdigest()[:12]


def take_leave(node: Node, store: Store) -> None:
    """Tell that a node stops; where that is not heard, it is shown as gone."""
    with suppress(StoreError), at_most(WITHIN):
        store.leave(node)


class Presence:
    """A worker's, told to the store again and again until it stops; by one thread."""

    def __init__(self, node: Node) -> None:
        """Tell of this node."""
        self._node = node
        self._told_at: float | None = None

    def tell(self, store: Store) -> None:
        """Tell it, if it is time; a store that is away hears it later."""
        now = monotonic()
        if self._told_at is not None and now - self._told_at < EVERY:
            return
        self._told_at = now
        with suppress(StoreError), at_most(WITHIN):
            store.register(by_the_clock(self._node, store), [])

    def take_leave(self, store: Store) -> None:
        """Tell that it stops, if anything was told of it."""
        if self._told_at is not None:
            take_leave(self._node, store)

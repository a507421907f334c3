"""A store of somebody else's: the model, kept in a file, as a distribution of its own would bring it."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anarchon_celery.stores.memory import MemoryStore, Room


class ShelfStore(MemoryStore):
    """Reads all there is before each step, and writes all of it afterwards; alone, of all processes."""

    def __init__(self, path: Path, shown: str) -> None:
        super().__init__(shown, Room())
        self.path = path

    @contextmanager
    def opened(self) -> Iterator[Room]:
        with super().opened() as room, self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            room.wipe()
            if self.path.exists():
                room.ledger, room.nodes, room.latest = pickle.loads(self.path.read_bytes())
            try:
                yield room
            finally:
                self.path.write_bytes(pickle.dumps((room.ledger, room.nodes, room.latest)))


def open_store(url: str, *, prefix: str, options: Mapping[str, Any], within: float) -> ShelfStore:
    path = Path(url.partition("://")[2])
    return ShelfStore(path.with_name(f"{path.name}-{prefix}"), url)


def no_store(url: str, **how: Any) -> str:
    return "a shelf"

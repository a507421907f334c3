"""The history: one file of JSON lines, to which all processes append.

A line says ``what`` it is and ``at`` which monotonic time; the machine has one such clock for all processes,
and no nemesis moves it. An append of one short line is one piece.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path


class Journal:
    """A process's way to the file; made before a fork, it serves parent and children."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, *, at: float | None = None, **fields: object) -> None:
        line = {'what': what, 'at': round(time.monotonic() if at is None else at, 4), **fields}
        os.write(self._file, json.dumps(line, separators=(',', ':')).encode() + b'\n')

    def close(self) -> None:
        os.close(self._file)


class Follower:
    """Reads on from where it was, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._file = path.open('rb')
        self._rest = b''

    def news(self) -> Iterator[dict]:
        *lines, self._rest = (self._rest + self._file.read()).split(b'\n')
        yield from map(json.loads, lines)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Iterator[dict]:
    """All lines of a history; a last one that was cut short is left out."""
    with path.open('rb') as file:
        for line in file:
            if line.endswith(b'\n'):
                yield json.loads(line)

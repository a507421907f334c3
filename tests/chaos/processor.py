"""For how long threads were ready to run and others had the processor: what a busy machine takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path


class Waits:
    """Of the threads of some processes: how long that one waited that waited most, from look to look."""

    def __init__(self) -> None:
        self._before: dict[Path, int] = {}

    def longest(self, pids: Iterable[int]) -> float:
        """Seconds since the last look; of a thread that is new, nothing."""
        now = {file: waited for pid in pids for file, waited in _threads(pid)}
        before, self._before = self._before, now
        return max((waited - before.get(file, waited) for file, waited in now.items()), default=0) / 1e9


def _threads(pid: int) -> Iterable[tuple[Path, int]]:
    """How long each thread of a process waited so far (ns)."""
    for file in Path(f'/proc/{pid}/task').glob('*/schedstat'):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            yield file, int(file.read_text().split()[1])

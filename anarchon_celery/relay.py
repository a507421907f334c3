"""What a worker's children count, on its way to the worker: a pipe made before they are.

A line is written in one piece and never waited for: where the pipe is full, because the worker is stopped
for example, it is dropped and counted. A pipe took 990 lines before it was full, a datagram socket 278 or,
by name, 11; a line costs a child five microseconds, with what it takes to write it as JSON. Nobody leaves a
file behind.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from select import PIPE_BUF

from .measures import Sample

_DROPPED = "anarchon_samples_dropped_total"


class Relay:
    """Read in the process that made it, written to in all others."""

    def __init__(self) -> None:
        """Make the pipe."""
        self._made_by = os.getpid()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._found_at = self._writer  # in the process that made it
        self._identity = _identity_of(self._writer)
        self._dropped = 0

    def send(self, samples: Sequence[Sample]) -> None:
        """Pass them on, if there is room."""
        if self._dropped:
            samples = [*samples, Sample(_DROPPED, (), self._dropped)]
        line = json.dumps(samples, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if len(line) <= PIPE_BUF and self._is_ours():
            try:
                os.write(self._writer, line)
            except OSError:  # it is full, or the worker is gone
                pass
            else:
                self._dropped = 0
                return
        self._dropped += sum(sample[0] != _DROPPED for sample in samples)

    def follow(self, take: Callable[[Sequence[Sample]], None]) -> None:
        """Let ``take`` have all that is sent, in a thread of this process."""
        threading.Thread(target=self._read, args=[take], name="anarchon-relay", daemon=True).start()

    def close(self) -> None:
        """Give the pipe back; for tests."""
        os.close(self._writer)

    def _read(self, take: Callable[[Sequence[Sample]], None]) -> None:
        left = b""
        while read := os.read(self._reader, 65_536):
            *lines, left = (left + read).split(b"\n")
            for line in lines:
                take([Sample(name, tuple(labels), value) for name, labels, value in json.loads(line)])
        os.close(self._reader)

    def _is_ours(self) -> bool:
        """Whether the file is still the pipe: Celery closes those of an embedded beat, which opens others."""
        if _identity_of(self._writer) == self._identity:
            return True
        try:  # Linux has it by the name of the process that made it
            writer = os.open(f"/proc/{self._made_by}/fd/{self._found_at}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        if _identity_of(writer) != self._identity:
            os.close(writer)
            return False
        self._writer = writer
        return True


def _identity_of(file: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino

"""The board: memory that a worker's parent shares with the children of its pool.

A child writes what it holds on a place of its own, its index in the pool; the parent writes beside
it until when that is good, and whether the worker stops. Both look ten times a second and when they
must know; neither waits for the other, and what a killed child left stays there for its parent.

What is written goes into the idle half of a page, and one byte then says that this half counts: so
a writer killed in the middle leaves what was there before, and a reader sees the one or the other.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from zlib import crc32

#: Where children that are not forked find the memory.
WHERE = "ANARCHON_BOARD"

#: So many children are followed by their parent; those above renew their leases themselves.
PLACES = 1024

_HEADER = struct.Struct("<QB")  # the parent's pid, and whether the worker stops
_MARKS = 64  # a byte for each place that is taken
_LENGTH = struct.Struct("<II")  # of a text, and its checksum
_HALF = 12_288  # a header with the longest arguments, and a long name
_PAGE = 1 + 2 * _HALF
_PLACE = 2 * _PAGE  # the child's page, then the parent's
_FIRST = 4096  # where the places begin
_TRIES = 100


class Full(ValueError):
    """What is to be written is longer than a page takes."""


class Board:
    """The memory of one worker."""

    def __init__(self, memory: mmap.mmap) -> None:
        """Take memory that :func:`make` or :func:`find` returned."""
        self._memory = memory

    @property
    def parent(self) -> int:
        """The process that made it."""
        pid: int = _HEADER.unpack_from(self._memory)[0]
        return pid

    @property
    def stopping(self) -> bool:
        """Whether the worker was told to stop."""
        return self._memory[_HEADER.size - 1] != 0

    def stop(self) -> None:
        """Tell the children that the worker stops: one byte, as a signal handler may."""
        self._memory[_HEADER.size - 1] = 1

    def place(self, index: int) -> Place | None:
        """Return the place of a child; None for one that has none."""
        return Place(self._memory, index) if 0 <= index < PLACES else None

    def taken(self) -> Iterator[Place]:
        """Yield the places on which something is written by a child."""
        marks = self._memory[_MARKS : _MARKS + PLACES]
        index = -1
        while (index := marks.find(1, index + 1)) >= 0:
            yield Place(self._memory, index)


class Place:
    """The place of one child: a page that the child writes, and one that its parent does."""

    def __init__(self, memory: mmap.mmap, index: int) -> None:
        """Count from 0, as the pool does."""
        self._memory, self.index = memory, index
        self._child = _FIRST + index * _PLACE
        self._parent = self._child + _PAGE

    @property
    def taken(self) -> bool:
        """Whether the child wrote something, and did not wipe it."""
        return self._memory[_MARKS + self.index] != 0

    def write(self, said: dict[str, Any] | None) -> None:
        """Write what the child says; None wipes it.

        Raises:
            Full: it is too long, and nothing was written.
        """
        self._write(self._child, said)
        self._memory[_MARKS + self.index] = said is not None

    @property
    def stamp(self) -> bytes:
        """Another one each time that the child says something else."""
        page, half = self._child, self._memory[self._child] % 2
        at = page + 1 + half * _HALF
        return bytes([half]) + self._memory[at : at + _LENGTH.size]

    def read(self) -> dict[str, Any] | None:
        """Return what the child says."""
        return self._read(self._child)

    def answer(self, said: dict[str, Any]) -> None:
        """Write what the parent says to what it read.

        Raises:
            Full: it is too long, and nothing was written.
        """
        self._write(self._parent, said)

    def heard(self) -> dict[str, Any] | None:
        """Return what the parent says."""
        return self._read(self._parent)

    def _write(self, page: int, said: dict[str, Any] | None) -> None:
        text = b"" if said is None else json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > _HALF - _LENGTH.size:
            raise Full(f"{len(text)} bytes")
        idle = 1 - self._memory[page] % 2
        at = page + 1 + idle * _HALF
        self._memory[at + _LENGTH.size : at + _LENGTH.size + len(text)] = text
        _LENGTH.pack_into(self._memory, at, len(text), crc32(text))
        self._memory[page] = idle

    def _read(self, page: int) -> dict[str, Any] | None:
        for _ in range(_TRIES):  # while it was read, it may have been written twice
            at = page + 1 + self._memory[page] % 2 * _HALF
            length, checksum = _LENGTH.unpack_from(self._memory, at)
            text = self._memory[at + _LENGTH.size : at + _LENGTH.size + min(length, _HALF)]
            if crc32(text) == checksum:
                said: dict[str, Any] | None = json.loads(text) if text else None
                return said
        return None


def make() -> Board:
    """Make the board of this worker, before its pool is."""
    file, path = _nameless() or _named()
    os.truncate(file, _FIRST + PLACES * _PLACE)  # what nobody writes on takes no memory
    memory = mmap.mmap(file, _FIRST + PLACES * _PLACE)
    _HEADER.pack_into(memory, 0, os.getpid(), 0)
    os.environ[WHERE] = path
    return Board(memory)


def _nameless() -> tuple[int, str] | None:
    """Memory that is gone with the last process that has it (Linux); None where there is no such thing.

    A file would not do: whoever writes to its memory while its disk is full is killed by SIGBUS.
    """
    try:
        file = os.memfd_create("anarchon-board")
    except (AttributeError, OSError):
        return None
    path = f"/proc/{os.getpid()}/fd/{file}"
    if os.path.exists(path):
        return file, path
    os.close(file)
    return None


def _named() -> tuple[int, str]:
    file, path = tempfile.mkstemp(prefix="anarchon-")
    atexit.register(_remove, path, os.getpid())
    return file, path


def find() -> Board | None:
    """Return the board of this process's parent, for a child that was not forked."""
    with suppress(KeyError, OSError, ValueError), open(os.environ[WHERE], "r+b") as file:
        board = Board(mmap.mmap(file.fileno(), _FIRST + PLACES * _PLACE))
        if board.parent == os.getppid():
            return board
    return None


def _remove(path: str, made_by: int) -> None:
    if os.getpid() == made_by:
        with suppress(OSError):
            os.unlink(path)

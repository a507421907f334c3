"""What a worker's parent knows of its children: what each holds, and which have died."""

from __future__ import annotations

import os
import select
from typing import Any

from . import headers
from .board import Place
from .lease import HeldLease, LeaseLost
from .seat import answer, lease_from
from .stores.clock import monotonic


class Child:
    """What one child holds, as its parent knows it."""

    def __init__(self, place: Place, said: dict[str, Any]) -> None:
        """Read what it said.

        Raises:
            HeaderError: it cannot be read.
        """
        self.place, self.pid, self.token = place, int(said["pid"]), str(said["token"])
        self.order = headers.read(said["header"])
        self.asked = self.order.start(
            token=self.token, worker=said["owner"], task_id=said["task_id"], retries=said.get("retries", 0)
        )
        self.phase = ""
        self.stamp = b""  #: of what it said last
        self.lease: HeldLease | None = None  #: None until its start was answered
        self.exits_since: float | None = None
        self.lost_since: float | None = None  #: since when it was seen to go on with a lease that is lost
        self.died_at: float | None = None
        self.killed = False
        self.seen_to = False
        self.hear(said)

    def hear(self, said: dict[str, Any]) -> None:
        """Take what it says now."""
        self.phase = said["phase"]
        if self.phase == "exiting" and self.exits_since is None:
            self.exits_since = monotonic()
        self.lease = self.lease or lease_from(said, self.order)
        if self.lease is not None:
            self.lease.ending = self.phase == "ending"
            if said["renewed_at"] > self.lease.renewed_at:  # this process was late, so the child did it
                self.lease.renewed(said["renewed_at"], said["store"])
            if self.phase == "lost":
                self.lease.tell(LeaseLost("its child says so"))

    def is_at_it(self) -> bool:
        """Whether it has not come to the end of this run meanwhile, and to the next task perhaps."""
        said = self.place.read()
        return said is not None and said["token"] == self.token

    def wipe(self) -> None:
        """Wipe what it left when it died, unless the next child has written there."""
        said = self.place.read()
        if said is None or said["token"] == self.token:
            self.place.write(None)

    def tell(self) -> None:
        """Write on the board how its lease goes."""
        if self.lease is not None:
            self.place.answer(answer(self.lease))

    @property
    def ms(self) -> int:
        """For how long it held the run."""
        return self.lease.ms if self.lease is not None else 0


class Deaths:
    """Tells which processes have died, those included that nobody has waited for yet."""

    def __init__(self) -> None:
        """Watch nobody."""
        self._files: dict[int, int | None] = {}

    def watch(self, pid: int) -> None:
        """Look at this process from now on."""
        if pid not in self._files:
            try:
                self._files[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                self._files[pid] = -1  # gone already
            except (AttributeError, OSError):  # not Linux, one before 5.3, a sandbox, or no more files
                self._files[pid] = None

    def forget(self, pid: int) -> None:
        """Look at it no more."""
        file = self._files.pop(pid, None)
        if file is not None and file >= 0:
            os.close(file)

    def dead(self) -> set[int]:
        """Return those that have died."""
        dead = {pid for pid, file in self._files.items() if file == -1 or (file is None and not _lives(pid))}
        if followed := {file: pid for pid, file in self._files.items() if file is not None and file >= 0}:
            poll = select.poll()
            for file in followed:
                poll.register(file, select.POLLIN)
            dead |= {followed[file] for file, _ in poll.poll(0)}
        return dead


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:  # it is gone, or by now somebody else's
        return False
    return _state(pid) != b"Z"


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped, by a signal or a debugger, and does not go on; only Linux tells."""
    return _state(pid) in (b"T", b"t")


def _state(pid: int) -> bytes | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1]
    except OSError:
        return None

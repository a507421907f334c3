"""Who was hit, as those say who are; and the orders that they read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.crash_points.points import Case
from tests.crash_points.told import Key


@dataclass(frozen=True, slots=True)
class Blow:
    """A process that was hit: its role, its node's process group, when (seconds), and about which runs."""

    fault: str
    role: str
    pid: int
    node: int
    side: str
    at: float
    keys: tuple[Key, ...]

    @property
    def whole(self) -> bool:
        """Whether all of a node was hit: a worker whose parent dies does not live on.

        Who sleeps within a transaction has locks: the worker may not renew for as long.
        """
        return ' ' in self.fault or self.role != 'child' or (self.stops and self.side == 'within')

    @property
    def kills(self) -> bool:
        return self.fault.startswith('kill')

    @property
    def ends(self) -> bool:
        """Whether its node is gone after that."""
        return self.fault == 'sigterm' or (self.kills and self.whole)

    @property
    def stops(self) -> bool:
        return self.fault.startswith('stop')

    def go_on(self) -> None:
        """SIGCONT to whom it stopped."""
        with contextlib.suppress(ProcessLookupError):
            if ' ' in self.fault:
                os.killpg(self.node, signal.SIGCONT)
            else:
                os.kill(self.pid, signal.SIGCONT)


class Orders:
    """The file that says who is to be hit, and those that say who was."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / 'orders'
        self._number = 0

    def give(self, case: Case) -> None:
        """Let the blows of a case fall, one after the other."""
        self._number += 1
        self._strikes = case.strikes
        draft = self._folder / 'draft'
        text = json.dumps({'case': self._number, 'strikes': [asdict(strike) for strike in case.strikes]})
        draft.write_text(text)
        draft.rename(self._file)

    def withdraw(self) -> None:
        self._file.unlink(missing_ok=True)

    def blow(self, place: int) -> Blow | None:
        """The blow at a place in the order, if it has fallen."""
        try:
            said = json.loads((self._folder / f'struck-{self._number}-{place}').read_text())
        except FileNotFoundError:
            return None
        keys = tuple(Key.of(pair) for pair in said.pop('keys'))
        strike = self._strikes[place]
        return Blow(fault=strike.fault, side=strike.side, keys=keys, **said)

"""What the processes wrote down, read while they go on: each verb and its answer, and what the bodies did."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Key(NamedTuple):
    """A scheduled run: its job and fire time."""

    job: str
    slot: int

    @classmethod
    def of(cls, pair: list) -> Key:
        return cls(*pair)


@dataclass(frozen=True, slots=True)
class Said:
    """That somebody was answered yes: who, about which run, when it asked and when it knew (seconds)."""

    verb: str
    pid: int
    node: int
    begun: float
    done: float
    key: Key
    token: str | None = None
    attempt: int = 0
    fence: int = 0
    retries: int = 0
    nonce: str | None = None
    seen: tuple[str, int, int] = ('', 0, 0)  #: state, dispatch and deadline of what is dispatched again


class Told:
    """All that was told so far; :meth:`read` goes on where it ended."""

    def __init__(self, file: Path) -> None:
        self._file, self._offset = file, 0
        self.said: list[Said] = []
        self.bodies: list[dict[str, Any]] = []

    def read(self) -> Told:
        with self._file.open('rb') as file:
            file.seek(self._offset)
            text = file.read()
        whole, _, _ = text.rpartition(b'\n')
        for line in whole.splitlines():
            self._take(json.loads(line))
        self._offset += len(whole) + bool(whole)
        return self

    def _take(self, line: dict[str, Any]) -> None:
        if 'event' in line:
            self.bodies.append({**line, 'key': Key.of(line['key'])})
            return
        answer = line['answer']
        for one in answer if isinstance(answer, list) else [answer]:
            if not one:
                continue
            more = dict(one) if isinstance(one, dict) else {}
            if 'seen' in more:
                more['seen'] = tuple(more['seen'])
            keys = [more.pop('key')] if 'key' in more else line['keys']  # a publication has no more to say
            whose = line['verb'], line['pid'], line['node'], line['begun'], line['done']
            self.said += [Said(*whose, Key.of(key), **more) for key in keys]

    def of(self, *verbs: str) -> list[Said]:
        """What was answered to some verbs, by when it was known."""
        return sorted((one for one in self.said if one.verb in verbs), key=lambda one: one.done)

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.bodies if line['event'] == event]

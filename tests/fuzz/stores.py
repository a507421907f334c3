"""A store of each kind to spoil: private servers, started when the first one asks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.databases import DATABASES
from tests.servers import RedisServer

KINDS = ('sqlite', *DATABASES, 'redis')


def _unlink(folder: Path, names: str) -> None:
    for each in folder.glob(names):
        each.unlink()


class Stores:
    """Where they are, and how each is emptied."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self._made: dict[str, tuple[str, Callable[[], None]]] = {}

    def __getitem__(self, kind: str) -> tuple[str, Callable[[], None]]:
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: str) -> tuple[str, Callable[[], None]]:
        if kind == 'sqlite':
            file = self._folder / 'jobs.db'
            return f'sqlite:///{file}', lambda: _unlink(self._folder, 'jobs.db*')
        if kind == 'redis':
            server = RedisServer(self._folder / 'redis', options=['--appendfsync', 'no'])
            self._open.callback(server.close)
            return server.start().url(), server.flush
        database = DATABASES[kind]()
        self._open.callback(database.close)
        return database.start().store_url(), lambda: database.empty('anarchon')

    def close(self) -> None:
        """Stop the servers."""
        self._open.close()

"""Private servers: where the nodes meet, and where their messages and what they write go."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.databases import DATABASES
from tests.rabbitmq import RabbitMQ
from tests.servers import RedisServer

STORES = ('redis', 'postgresql', 'mariadb', 'sqlite')
BROKERS = ('redis', 'rabbitmq')


class Places:
    """A place of its own for each cluster, on servers that all share; these start when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._servers: dict[str, Any] = {}
        self._numbers = itertools.count(1)
        self._stack = contextlib.ExitStack()

    def number(self) -> int:
        """Of another cluster."""
        return next(self._numbers)

    def store(self, kind: str, number: int) -> str:
        if kind == 'redis':
            return self.redis.url(3 * number)
        if kind == 'sqlite':
            return f'sqlite:///{self.folder / f"store-{number}.db"}'
        server = self._server(kind)
        server.run(f'CREATE DATABASE {server.quoted(f"crash_{number}")}')
        return server.url(f'crash_{number}')

    def broker(self, kind: str, number: int) -> str:
        return self.redis.url(3 * number + 1) if kind == 'redis' else self._server(kind).new_url()

    def data(self, number: int) -> str:
        """A Redis for what the tasks write."""
        return self.redis.url(3 * number + 2)

    @property
    def redis(self) -> RedisServer:
        return self._server('redis')

    def _server(self, kind: str) -> Any:
        if kind not in self._servers:
            servers: dict[str, Callable[[], Any]] = {'rabbitmq': RabbitMQ, 'redis': self._redis, **DATABASES}
            made = servers[kind]()
            self._stack.callback(made.close)
            self._servers[kind] = made.start()
        return self._servers[kind]

    def _redis(self) -> RedisServer:
        # No disk: a kill of the server is no part of this.
        return RedisServer(self.folder / 'redis', options=('--databases', '64', '--appendonly', 'no'))

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def places(folder: Path) -> Iterator[Places]:
    some = Places(folder)
    try:
        yield some
    finally:
        some.close()

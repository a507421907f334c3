"""Where the nodes meet, and what can happen to that place as a whole: a server of each kind, or a file.

Each node has a way there of its own, a proxy, so that one alone can be cut off; so has whoever watches.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.databases import MariaDB, PostgreSQL
from tests.processes import Process
from tests.proxy import Proxy
from tests.servers import RedisServer


class Place:
    """A server that is killed and started again, and comes back with all that it had answered."""

    word = b''  #: in each request that changes something

    def __init__(self, server: Any) -> None:
        self.server = server
        self.ways: list[Proxy] = []

    def way(self) -> tuple[str, Proxy | None]:
        """Return the URL of a new way to it, and the proxy there."""
        proxy = Proxy(self.server.port)
        self.ways.append(proxy)
        return self.server.url().replace(f':{self.server.port}/', f':{proxy.port}/'), proxy

    def down(self) -> None:
        self.server.kill()

    def is_down(self) -> bool:
        """Whether it answers nobody; a strike that is at work meanwhile may have to end first."""
        return True

    def up(self) -> None:
        self.server.start()

    def processes(self) -> list[Process]:
        """Those that answer, and what they started."""
        return [self.server.process]

    def rows(self) -> dict[str, int]:
        """How much it keeps."""
        raise NotImplementedError

    def close(self) -> None:
        for proxy in self.ways:
            proxy.close()
        self.server.close()


class RedisPlace(Place):
    """A master and a replica, which may be cut off from what the master has answered, and then take over."""

    word = b'EVALSHA'

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        super().__init__(RedisServer(folder / 'redis-0', options=OPTIONS).start())
        self._follow()

    def _follow(self) -> None:
        """Begin a replica."""
        self.count += 1
        self.link = Proxy(self.server.port)
        self.replica = RedisServer(self.folder / f'redis-{self.count}', options=OPTIONS).start()
        with self.replica.client() as client:  # no option: started again it is to be what it is then
            client.replicaof('127.0.0.1', str(self.link.port))

    def has_replica(self) -> bool:
        """Whether the replica has what the master has."""
        if not self.server.running:
            return False
        with self.server.client() as client:
            found: Any = client.info('replication')
        return found['connected_slaves'] == 1 and found['slave0']['state'] == 'online'

    def freeze_replica(self) -> None:
        """From now on it learns nothing."""
        self.link.answers_vanish = True

    def promote(self) -> int:
        """The master dies, with all that it answered since; the replica is the master, and gets a new one.

        Returns so many bytes of writes that are lost.
        """
        with self.server.client(timeout=30) as client:
            written: Any = client.info('replication')
        self.server.kill()
        self.link.close()
        with self.replica.client(timeout=30) as client:
            known: Any = client.info('replication')
            client.replicaof('NO', 'ONE')
        self.server.close()
        shutil.rmtree(self.server.folder)
        self.server = self.replica
        for proxy in self.ways:
            proxy.server = ('127.0.0.1', self.server.port)
            proxy.reset()
        self._follow()
        return int(written['master_repl_offset'] - known['slave_repl_offset'])

    def rows(self) -> dict[str, int]:
        with self.server.client() as client:
            memory: Any = client.info('memory')
            return {'keys': int(client.dbsize()), 'bytes': memory['used_memory']}

    def close(self) -> None:
        super().close()
        self.link.close()
        self.replica.close()


#: How much of a master's stream a replica that was away may ask for again.
OPTIONS = ['--repl-diskless-sync-delay', '0', '--repl-backlog-size', '16mb']


class DatabasePlace(Place):
    """PostgreSQL or MariaDB, which write down what they have answered."""

    def __init__(self, server: PostgreSQL | MariaDB, word: bytes) -> None:
        super().__init__(server.start())
        self.word = word

    def rows(self) -> dict[str, int]:
        tables = [self.server.quoted(f'anarchon_{name}') for name in ('runs', 'jobs', 'nodes')]
        counts = [int(self.server.run(f'SELECT count(*) FROM {table}')[0][0]) for table in tables]
        return dict(zip(('runs', 'jobs', 'nodes'), counts, strict=True))


class FilePlace(Place):
    """A SQLite file; there is no network, and somebody else may keep it for himself, and die with it."""

    _KEEP = (
        'import sqlite3, sys, time; db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60);'
        'db.execute("BEGIN EXCLUSIVE"); db.execute("DELETE FROM anarchon_runs"); print("locked");'
        'time.sleep(600)'
    )

    def __init__(self, folder: Path) -> None:
        self.file, self.ways = folder / 'store.db', []
        command = [sys.executable, '-c', self._KEEP, str(self.file)]
        self.other = Process(command, name='other', folder=folder)

    def way(self) -> tuple[str, Proxy | None]:
        return f'sqlite:///{self.file}', None

    def down(self) -> None:
        self._mark = self.other.mark()
        self.other.start()

    def is_down(self) -> bool:
        return 'locked' in self.other.output[self._mark :]

    def up(self) -> None:
        self.other.kill()

    def processes(self) -> list[Process]:
        return []

    def rows(self) -> dict[str, int]:
        return {'bytes': self.file.stat().st_size}

    def close(self) -> None:
        self.other.close()


PLACES: dict[str, Callable[[Path], Place]] = {
    'redis': RedisPlace,
    'postgresql': lambda folder: DatabasePlace(PostgreSQL(durable=True), b'COMMIT\0'),
    'mariadb': lambda folder: DatabasePlace(MariaDB(durable=True), b'\x03COMMIT'),
    'sqlite': FilePlace,
}

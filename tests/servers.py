"""Real servers for tests, private ones: from the installed binaries, on free ports, in a test's folder.

A server that is not installed skips the test, by name. With ``ANARCHON_TEST_REQUIRE=redis,…`` it fails.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from tests.processes import Process, wait_until

# ANARCHON_TEST_REDIS_SERVER: another binary for all tests of Redis, such as that of a valkey-server.
BINARIES = {
    'redis': 'redis-server',
    'postgresql': 'postgres',
    'mariadb': 'mariadbd',
    'rabbitmq': 'rabbitmq-server',
    'chromium': 'chromedriver',  # Debian's comes with the browser
    'cc': 'cc',
    'openssl': 'openssl',
}


def required() -> set[str]:
    """The servers whose absence is a failure."""
    names = set(os.environ.get('ANARCHON_TEST_REQUIRE', '').replace(',', ' ').split())
    if unknown := ', '.join(sorted(names - BINARIES.keys())):
        raise pytest.UsageError(f'ANARCHON_TEST_REQUIRE: {unknown}: not one of {", ".join(BINARIES)}')
    return names


def require(name: str) -> str:
    """Return the path of a server's binary, or skip (or fail) the test that asks."""
    # Debian keeps servers where a user's PATH does not look.
    places = [os.environ.get('PATH', ''), '/usr/sbin', *glob.glob('/usr/lib/postgresql/*/bin')]
    if found := shutil.which(BINARIES[name], path=os.pathsep.join(places)):
        return found
    reason = f'{name}: {BINARIES[name]} is not installed'
    if name in required():
        pytest.fail(f'{reason}, and ANARCHON_TEST_REQUIRE asks for it', pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


class RedisServer:
    """A Redis that keeps every answered write, so that a kill loses nothing it has confirmed.

    The port stays the same over stop, kill and start: a URL that was handed out stays good.
    """

    def __init__(self, folder: Path, *, options: Sequence[str] = ()) -> None:
        """Prepare it; ``options`` come last on its command line and override the ones here."""
        self.binary = os.environ.get('ANARCHON_TEST_REDIS_SERVER') or require('redis')
        self.folder = folder
        self.options = options
        self.was_ready = False
        self._settle()

    def start(self, tries: int = 5) -> RedisServer:
        """Start it and wait until it answers; if it runs already, wake it if it is paused."""
        if self.running:
            self.resume()
            wait_until(self._answers)
            return self
        mark = self.process.mark()
        try:
            self.process.start().wait_for('Ready to accept connections', after=mark)
        except AssertionError:  # somebody else may have taken the port since it was found free
            if self.was_ready or tries == 1 or 'Address already in use' not in self.process.output:
                raise
            self.close()
            self._settle()
            return self.start(tries - 1)
        self.was_ready = True
        return self

    def stop(self) -> None:
        """SIGTERM: it closes its connections and its files."""
        self.resume()
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def restart(self) -> None:
        """Stop it and start it again, with its data."""
        self.stop()
        self.start()

    def suspend(self) -> None:
        """SIGSTOP: connections stay open and get no answer."""
        self.process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()

    def close(self) -> None:
        """Kill it if need be, and reap it."""
        self.process.close()

    @property
    def running(self) -> bool:
        """Whether its process lives, paused or not."""
        return self.process.alive

    def url(self, db: int = 0) -> str:
        """Return the URL of one of its 16 databases."""
        return f'redis://127.0.0.1:{self.port}/{db}'

    @contextlib.contextmanager
    def client(self, db: int = 0, *, timeout: float = 5) -> Iterator[redis.Redis]:
        """A plain client that tries once, closed at the end of the block."""
        client = redis.Redis(
            host='127.0.0.1',
            port=self.port,
            db=db,
            decode_responses=True,
            socket_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            yield client
        finally:
            client.close()

    def flush(self) -> None:
        """Empty all its databases and forget its scripts."""
        with self.client() as client:
            client.flushall()
            client.script_flush()

    def _settle(self) -> None:
        """Choose a port, which stays: a URL that was handed out must stay good."""
        self.port = free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        words = [word for setting in self.settings().items() for word in setting]
        name = f'redis-{self.port}'
        self.process = Process([self.binary, *words, *self.options], name=name, folder=self.folder)

    def settings(self) -> dict[str, str]:
        """What its command line says before ``options``."""
        return {
            '--bind': '127.0.0.1',
            '--port': str(self.port),
            '--dir': str(self.folder),
            '--save': '',
            '--appendonly': 'yes',
            '--appendfsync': 'always',
        }

    def _answers(self) -> bool:
        with self.client() as client, contextlib.suppress(redis.RedisError):
            return bool(client.ping())
        return False


class SecureRedisServer(RedisServer):
    """One that speaks TLS only, by a certificate for 127.0.0.1 and ``localhost`` made on the spot.

    In ``certificates`` are ``ca.pem``, and ``client.pem`` with ``client.key``, which it asks for where
    ``options`` say ``--tls-auth-clients yes``.
    """

    def __init__(self, folder: Path, *, options: Sequence[str] = ()) -> None:
        """Make the certificates, and prepare it."""
        self.certificates = folder / 'certificates'
        make_certificates(self.certificates)
        super().__init__(folder, options=options)
        self.binary = require('redis')  # others may be built without TLS
        self._settle()

    def settings(self) -> dict[str, str]:
        """See RedisServer."""
        return {
            **super().settings(),
            '--port': '0',
            '--tls-port': str(self.port),
            '--tls-cert-file': str(self.certificates / 'server.pem'),
            '--tls-key-file': str(self.certificates / 'server.key'),
            '--tls-ca-cert-file': str(self.certificates / 'ca.pem'),
            '--tls-auth-clients': 'no',
        }

    def url(self, db: int = 0) -> str:
        """See RedisServer; whom to trust is to be added."""
        return f'rediss://127.0.0.1:{self.port}/{db}'


def make_certificates(folder: Path) -> None:
    """Write the certificates and keys of an authority, of a server here, and of a client, for a day."""
    folder.mkdir(parents=True)
    openssl = require('openssl')

    def run(*words: str) -> None:
        subprocess.run([openssl, *words], check=True, cwd=folder, capture_output=True)

    key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
    # Python 3.13 looks strictly at what an authority says of itself, and of what it signs.
    authority = ['-x509', '-days', '1', '-addext', 'keyUsage=critical,keyCertSign,cRLSign']
    run('req', *authority, *key, '-keyout', 'ca.key', '-out', 'ca.pem', '-subj', '/CN=test')
    (folder / 'names').write_text(
        'subjectAltName=IP:127.0.0.1,DNS:localhost\n'
        'subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n'
    )
    for name in ('server', 'client'):
        run('req', *key, '-keyout', f'{name}.key', '-out', f'{name}.csr', '-subj', f'/CN={name}')
        signed = ['-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-days', '1', '-extfile', 'names']
        run('x509', '-req', '-in', f'{name}.csr', '-out', f'{name}.pem', *signed)


class WatchedRedis:
    """A master, replicas, and three sentinels that promote a replica within about two seconds."""

    MASTER = 'mymaster'

    def __init__(self, folder: Path, *, replicas: int = 1, options: Sequence[str] = ()) -> None:
        """Prepare them; ``options`` are for the master and the replicas."""
        self.folder = folder
        self.options = ['--repl-diskless-sync-delay', '0', *options]
        self.master = RedisServer(folder / 'master', options=self.options)
        self.replicas = [RedisServer(folder / f'replica-{n}') for n in range(replicas)]
        self.sentinels: list[RedisServer] = []

    def start(self) -> WatchedRedis:
        """Start all, and wait until all know each other."""
        self.master.start()
        for replica in self.replicas:
            replica.options = ['--replicaof', '127.0.0.1', str(self.master.port), *self.options]
            replica._settle()
            replica.start()
        self.wait_for_replicas()
        for number in range(3):
            sentinel = Sentinel(self.folder / f'sentinel-{number}', self.MASTER, self.master.port)
            self.sentinels.append(sentinel.start())
        wait_until(lambda: all(self._knows_all(sentinel) for sentinel in self.sentinels))
        return self

    def wait_for_replicas(self, count: int | None = None) -> None:
        """Wait until so many replicas, or all, have what the master has."""
        count = len(self.replicas) if count is None else count
        with self.master.client() as client:
            wait_until(lambda: client.info('replication')['connected_slaves'] == count)
            wait_until(
                lambda: all(
                    client.info('replication')[f'slave{n}']['state'] == 'online' for n in range(count)
                )
            )

    def wait_for_failover(self) -> RedisServer:
        """Wait until another server is the master, for all sentinels, and takes writes; return it."""
        ports = {replica.port: replica for replica in self.replicas}

        def promoted() -> RedisServer | None:
            named = {self._master_of(sentinel) for sentinel in self.sentinels}
            found = ports.get(named.pop()) if len(named) == 1 else None
            if found is None:
                return None
            with found.client() as client:
                return found if client.info('replication')['role'] == 'master' else None

        return wait_until(promoted, 30)

    def url(self, db: int = 0) -> str:
        """Return a URL that names all sentinels."""
        hosts = ';'.join(f'sentinel://127.0.0.1:{one.port}' for one in self.sentinels)
        return f'{hosts}/{db}?master_name={self.MASTER}'

    def close(self) -> None:
        """Kill all, and reap them."""
        for server in (*self.sentinels, *self.replicas, self.master):
            server.close()

    def _knows_all(self, sentinel: RedisServer) -> bool:
        with sentinel.client() as client:
            state = client.sentinel_masters()[self.MASTER]  # type: ignore[call-overload]
        return state['num-other-sentinels'] == 2 and state['num-slaves'] == len(self.replicas)

    def _master_of(self, sentinel: RedisServer) -> int:
        with sentinel.client() as client:
            return client.sentinel_masters()[self.MASTER]['port']  # type: ignore[call-overload]


class Sentinel(RedisServer):
    """One sentinel of a master on this machine."""

    def __init__(self, folder: Path, master: str, port: int) -> None:
        """Prepare it."""
        self.watched = (master, port)
        super().__init__(folder)

    def start(self, tries: int = 5) -> RedisServer:
        """Start it and wait until it answers."""
        self.process.start()
        wait_until(self._answers)
        return self

    def _settle(self) -> None:
        self.port = free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        master, port = self.watched
        file = self.folder / 'sentinel.conf'
        lines = [
            f'bind 127.0.0.1\nport {self.port}\ndir {self.folder}',
            f'sentinel monitor {master} 127.0.0.1 {port} 2',
            f'sentinel down-after-milliseconds {master} 500\nsentinel failover-timeout {master} 5000',
        ]
        file.write_text('\n'.join(lines) + '\n')
        self.process = Process(
            [self.binary, str(file), '--sentinel'], name=f'sentinel-{self.port}', folder=self.folder
        )


class RedisCluster:
    """Three masters that share the slots, each with so many replicas."""

    SLOTS = (range(5461), range(5461, 10923), range(10923, 16384))

    def __init__(self, folder: Path, *, replicas: int = 0) -> None:
        """Prepare them."""
        options = ['--cluster-enabled', 'yes', '--cluster-node-timeout', '1000']
        count = 3 * (1 + replicas)
        self.nodes = [ClusterNode(folder / f'node-{n}', options=options) for n in range(count)]
        self.masters, self.replicas = self.nodes[:3], self.nodes[3:]

    def start(self) -> RedisCluster:
        """Start all, make a cluster of them, and wait until each of them finds it well."""
        for number, node in enumerate(self.nodes):
            node.start()
            with node.client() as client:
                client.execute_command('CLUSTER', 'SET-CONFIG-EPOCH', number + 1)
                if node in self.masters:
                    client.execute_command('CLUSTER', 'ADDSLOTS', *self.SLOTS[number])
                client.execute_command('CLUSTER', 'MEET', '127.0.0.1', self.nodes[0].port)
        wait_until(lambda: all(self._known_by(node) == len(self.nodes) for node in self.nodes))
        for number, replica in enumerate(self.replicas):
            with replica.client() as client:
                client.execute_command('CLUSTER', 'REPLICATE', self.id_of(self.masters[number % 3]))
        wait_until(lambda: all(self.is_well(node) for node in self.nodes))
        return self

    def url(self) -> str:
        """Return a URL that names all masters."""
        return 'redis+cluster://' + ','.join(f'127.0.0.1:{node.port}' for node in self.masters)

    def id_of(self, node: RedisServer) -> str:
        """Return what the cluster calls a node."""
        with node.client() as client:
            return client.execute_command('CLUSTER', 'MYID')

    def owner(self, tag: str) -> RedisServer:
        """Return the master that has the keys with this hash tag."""
        slot = key_slot(tag.encode())
        return next(node for node, slots in zip(self.masters, self.SLOTS, strict=True) if slot in slots)

    def is_well(self, node: RedisServer) -> bool:
        """Whether a node says that all slots are served."""
        with node.client() as client:
            return 'cluster_state:ok' in client.execute_command('CLUSTER', 'INFO').split()

    def close(self) -> None:
        """Kill all, and reap them."""
        for node in self.nodes:
            node.close()

    def _known_by(self, node: RedisServer) -> int:
        with node.client() as client:
            return len(client.execute_command('CLUSTER', 'NODES').splitlines())


class ClusterNode(RedisServer):
    """One whose port leaves room for that of the cluster's bus, which is 10,000 above it."""

    def _settle(self) -> None:
        while True:
            super()._settle()
            with socket.socket() as bus:
                if self.port < 55000 and bus.connect_ex(('127.0.0.1', self.port + 10000)):
                    return

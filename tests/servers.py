"""Real servers for tests, private ones: from the installed binaries, on free ports, in a test's folder.

A server that is not installed skips the test, by name. With ``ANARCHON_TEST_REQUIRE=redis,…`` it fails.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.processes import Process, wait_until

BINARIES = {
    'redis': 'redis-server',
    'postgresql': 'postgres',
    'mariadb': 'mariadbd',
    'rabbitmq': 'rabbitmq-server',
    'cc': 'cc',
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
        self.binary = require('redis')
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
        settings = {
            '--bind': '127.0.0.1',
            '--port': str(self.port),
            '--dir': str(self.folder),
            '--save': '',
            '--appendonly': 'yes',
            '--appendfsync': 'always',
        }
        words = [word for setting in settings.items() for word in setting]
        name = f'redis-{self.port}'
        self.process = Process([self.binary, *words, *self.options], name=name, folder=self.folder)

    def _answers(self) -> bool:
        with self.client() as client, contextlib.suppress(redis.RedisError):
            return bool(client.ping())
        return False

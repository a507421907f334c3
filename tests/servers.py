"""Real servers for tests, private ones: from the installed binaries, on free ports, in a folder of the test's.

A server that is not installed skips the test, by name. With ``ANARCHON_TEST_REQUIRE=redis,…`` it fails.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis

from tests.processes import LOOK, Process

BINARIES = {
    "redis": "redis-server",
    "postgresql": "postgres",
    "mariadb": "mariadbd",
    "rabbitmq": "rabbitmq-server",
}


def required() -> set[str]:
    """The servers whose absence is a failure."""
    names = {name for part in os.environ.get("ANARCHON_TEST_REQUIRE", "").split(",") if (name := part.strip())}
    if unknown := sorted(names - BINARIES.keys()):
        raise pytest.UsageError(f"ANARCHON_TEST_REQUIRE: {', '.join(unknown)}: not one of {', '.join(BINARIES)}")
    return names


def require(name: str) -> str:
    """Return the path of a server's binary, or skip (or fail) the test that asks."""
    # Debian keeps servers where a user's PATH does not look.
    places = [os.environ.get("PATH", ""), "/usr/sbin", *glob.glob("/usr/lib/postgresql/*/bin")]
    if found := shutil.which(BINARIES[name], path=os.pathsep.join(places)):
        return found
    reason = f"{name}: {BINARIES[name]} is not installed"
    if name in required():
        pytest.fail(f"{reason}, and ANARCHON_TEST_REQUIRE asks for it", pytrace=False)
    pytest.skip(reason)


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class RedisServer:
    """A Redis that keeps every answered write, so that a kill loses nothing it has confirmed.

    The port stays the same over stop, kill and start: a URL that was handed out stays good.
    """

    def __init__(self, folder: Path, *, options: Sequence[str] = ()) -> None:
        """Prepare it; ``options`` come last on its command line and override the ones here."""
        self.binary = require("redis")
        self.folder = folder
        self.options = options
        self.port = 0
        self.process: Process | None = None

    def start(self) -> RedisServer:
        """Start it and wait until it answers; nothing to do if it runs, wake it if it is paused."""
        if self.running:
            self.resume()
            self._wait_until_ready()
        elif self.port:
            self._launch()
        else:
            self._launch_on_a_free_port()
        return self

    def stop(self) -> None:
        """SIGTERM: it closes its connections and its files."""
        if self.process is not None:
            self.process.resume()
            self.process.stop()

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()

    def restart(self) -> None:
        """Stop it and start it again, with its data."""
        self.stop()
        self.start()

    def suspend(self) -> None:
        """SIGSTOP: connections stay open and get no answer."""
        if self.process is not None:
            self.process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None:
            self.process.resume()

    def close(self) -> None:
        """Kill it if need be, and reap it."""
        if self.process is not None:
            self.process.close()

    @property
    def running(self) -> bool:
        """Whether its process lives, paused or not."""
        return self.process is not None and self.process.alive

    def url(self, db: int = 0) -> str:
        """Return the URL of one of its 16 databases."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    @contextlib.contextmanager
    def client(self, db: int = 0):
        """A plain client, closed at the end of the block."""
        client = redis.Redis(port=self.port, db=db, decode_responses=True, socket_timeout=5)
        try:
            yield client
        finally:
            client.close()

    def flush(self) -> None:
        """Empty all its databases and forget its scripts."""
        with self.client() as client:
            client.flushall()
            client.script_flush()

    def _launch_on_a_free_port(self, tries: int = 5) -> None:
        for left in reversed(range(tries)):
            self.port = free_port()
            try:
                return self._launch()
            except AssertionError:  # somebody else took the port between the look and the bind
                if not left or "Address already in use" not in self.process.output:
                    raise

    def _launch(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "--bind": "127.0.0.1",
            "--port": str(self.port),
            "--dir": str(self.folder),
            "--save": "",
            "--appendonly": "yes",
            "--appendfsync": "always",
        }
        words = [word for pair in settings.items() for word in pair]
        self.close()
        self.process = Process([self.binary, *words, *self.options], name="redis", folder=self.folder)
        mark = self.process.mark()
        self.process.start().wait_for("Ready to accept connections", after=mark)

    def _wait_until_ready(self, deadline: float = 15) -> None:
        until = time.monotonic() + deadline
        while True:
            try:
                with self.client() as client:
                    return client.ping()
            except redis.RedisError:
                if time.monotonic() > until:
                    raise
                time.sleep(LOOK)

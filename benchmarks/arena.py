"""Where contestants meet: private servers, and a process for each of them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.databases import PostgreSQL
from tests.servers import RedisServer

from . import peers
from .counting import PostgresCalls, RedisCalls

#: As most people run it: what it is told is on the disk within a second.
DURABILITY = ("--appendfsync", "everysec")


class Arena:
    """A Redis as broker, another as store, a PostgreSQL as store."""

    def __init__(self, folder: Path, *, with_peers: bool, without: Sequence[str] = ()) -> None:
        self.folder, self.without = folder, without
        self.python = {False: sys.executable, True: str(peers.interpreter()) if with_peers else None}
        self.with_peers = with_peers
        self.broker = RedisServer(folder / "broker", options=DURABILITY).start()
        self.redis = RedisServer(folder / "store", options=DURABILITY).start()
        self.postgres = PostgreSQL().start()
        self.postgres.run("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
        self.postgres.kill()
        self.postgres.start()
        self.postgres.run("CREATE EXTENSION pg_stat_statements")

    def store(self, kind: str) -> str:
        """Return the URL of a store of that kind, as empty as a new one."""
        if kind == "redis":
            self.redis.flush()
            return self.redis.url()
        self.postgres.run("DROP SCHEMA public CASCADE")
        self.postgres.run("CREATE SCHEMA public")
        self.postgres.run("CREATE EXTENSION pg_stat_statements")
        return self.postgres.url()

    def has(self, who: str, *, is_peer: bool) -> bool:
        """Whether somebody takes part."""
        return (self.with_peers or not is_peer) and not any(name in who for name in self.without)

    def clear_broker(self) -> None:
        """Drop all messages."""
        self.broker.flush()

    def waiting(self) -> int:
        """Return how many messages the contestants have sent."""
        with self.broker.client() as client:
            return int(client.llen("bench"))

    @contextlib.contextmanager
    def counted(self, kind: str) -> Iterator[Counter[str]]:
        """Count what arrives at the store of that kind while the block runs."""
        counter = RedisCalls(self.redis.port) if kind == "redis" else PostgresCalls(self.postgres)
        with counter.counted() as found:
            yield found

    @contextlib.contextmanager
    def probe(self, kind: str, **order: Any) -> Iterator[Probe]:
        """Start a contestant's process, and end it after the block."""
        is_peer = kind in ("redbeat", "django")
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            order = {"kind": kind, "broker": self.broker.url(), "folder": folder, "conf": {}, **order}
            probe = Probe(self.python[is_peer], order)
            try:
                yield probe
            finally:
                probe.close()

    def close(self) -> None:
        """End all servers."""
        for server in (self.broker, self.redis, self.postgres):
            server.close()


class Probe:
    """A contestant in a process of its own, see :mod:`benchmarks.probe`."""

    def __init__(self, python: str | None, order: dict[str, Any]) -> None:
        assert python is not None, f"{order['kind']} is one of the peers"
        self.kind = order["kind"]
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.probe", json.dumps(order)], cwd=peers.ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": _path(python)},
        )  # fmt: skip
        self.answer()

    def tell(self, step: str) -> None:
        """Have it take a step."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return what it says of the step it took."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.kind} ended with status {self.process.wait()}")
        told: dict[str, Any] = json.loads(line)
        return told

    def do(self, step: str) -> dict[str, Any]:
        """Have it take a step, and wait for that."""
        self.tell(step)
        return self.answer()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


def _path(python: str) -> str:
    """Where a contestant finds what it runs: this tree; and ours what else this process found."""
    given = os.environ.get("PYTHONPATH", "") if python == sys.executable else ""
    return os.pathsep.join(filter(None, [str(peers.ROOT), given]))


def come_due(probes: Sequence[Probe]) -> float:
    """Have the jobs of all these come due at one whole second, which is returned."""
    ahead = 1.0
    while True:
        begun = time.time()
        at = float(-(-(begun + ahead) // 1))
        if all([probe.do(f"come_due {at}")["in_time"] for probe in probes]) and time.time() < at:
            return at
        ahead = max(2 * ahead, 1.5 * (time.time() - begun))

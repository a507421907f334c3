"""Calls of a store, counted where they arrive: at the server.

A call of Redis is a command that a client sent, as MONITOR shows it: what a script does inside is part
of the call. A call of PostgreSQL is a statement that a client sent, as pg_stat_statements has it, without
what only frames others. Both cost time, so they are counted in a round that is not timed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anarchon_celery.stores import redis
from anarchon_celery.stores.redis import _script

#: What a client sends once for each connection.
OF_CONNECTIONS = ("HELLO", "CLIENT", "SELECT", "AUTH", "PING", "INFO", "CONFIG")

#: What goes with statements that do something, most of it in one request with them.
FRAMES = ("BEGIN", "COMMIT", "ROLLBACK", "SET", "SAVEPOINT", "RELEASE", "SHOW")


def by_verb(calls: Counter[str]) -> dict[str, int]:
    """Return calls of our scripts by the verb; one that the server did not know is sent once more, whole."""
    folder = Path(redis.__file__).with_name("lua")
    verbs = {_script(file.stem)[1]: file.stem for file in folder.glob("*.lua")}
    return {verbs.get(name, name): count for name, count in calls.items()}


class RedisCalls:
    """The commands that arrive at one Redis."""

    def __init__(self, port: int) -> None:
        self.port = port

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Count the commands of clients while the block runs, by name, and a script's by its hash.

        They are there at the end of the block.
        """
        found: Counter[str] = Counter()
        with socket.create_connection(("127.0.0.1", self.port)) as listener:
            listener.sendall(b"MONITOR\r\n")
            lines = listener.makefile("rb")
            lines.readline()
            reader = threading.Thread(target=_read, args=(lines, found))
            reader.start()
            yield found
            with socket.create_connection(("127.0.0.1", self.port)) as speaker:
                speaker.sendall(b"ECHO counted\r\n")
                speaker.recv(100)
            reader.join(60)
            if reader.is_alive():
                raise RuntimeError("the commands could not be counted: the reader is behind")


def _read(lines: Any, found: Counter[str]) -> None:
    for line in lines:
        head, _, words = line.decode(errors="replace").partition("] ")
        name, *more = (word.strip('"') for word in words.split(None, 2)[:2])
        if name.upper() == "ECHO":
            return
        if not head.endswith(" lua") and name.upper() not in OF_CONNECTIONS:
            found[more[0] if name.upper() == "EVALSHA" else name.upper()] += 1


class PostgresCalls:
    """The statements that arrive at one PostgreSQL."""

    def __init__(self, server: Any) -> None:
        self.server = server

    @contextlib.contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Count the statements of clients while the block runs, by their first word."""
        found: Counter[str] = Counter()
        self.server.run("SELECT pg_stat_statements_reset()")
        yield found
        ours = "%pg_stat_statements%"
        asked = "SELECT query, calls FROM pg_stat_statements WHERE toplevel AND query NOT LIKE %s"
        for query, calls in self.server.run(asked, ours):
            if (word := query.split(None, 1)[0].upper()) not in FRAMES:
                found[word] += calls

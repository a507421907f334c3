"""What kinds of database differ in, said once for each: the rest of the SQL store asks no names.

A kind is one :class:`Dialect`; those of servers are in :mod:`.postgresql` and :mod:`.mariadb`.
SQLite's is below, with what it takes to let many processes work on one file:

- A transaction that writes begins with ``BEGIN IMMEDIATE``: it waits for its turn before it reads,
  where a deferred one would find "database is locked" when it first writes.
- The journal is a write-ahead log, so that reading waits for nobody.
- ``synchronous`` is ``FULL``: what was answered survives a power loss, not only a crash.
- A call waits 3 seconds for its turn (``connect_args={"timeout": …}``), but never longer than it has left.
- A file that was moved or removed is let go of: else some nodes would go on with what others no
  longer see.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Select,
    String,
    Text,
    bindparam,
    cast,
    event,
    func,
    select,
    tuple_,
)
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.pool import QueuePool
from sqlalchemy.types import TypeEngine

from ..errors import StoreUnusable
from .budget import left
from .filesystems import refuse_a_shared_one
from .options import SECONDS, Right
from .waking import WakeUps

#: How long a call may take in all, in seconds; half of the claim timeout where that is shorter.
LONGEST_CALL = 5.0

#: Which part of that it waits for its turn.
PATIENCE = 0.6

#: How connections to a server are kept. A step leaves none in a transaction, so that no rollback is sent
#: with each return: where that fails, the pool logs a traceback, and MariaDB takes a round trip more.
POOL: Mapping[str, Any] = {
    "pool_size": 5, "max_overflow": 10, "pool_use_lifo": True, "pool_reset_on_return": None,
}  # fmt: skip


def silence(patience: float) -> float:
    """For how long a server bears with a transaction in which its node says nothing (seconds).

    Less than others wait for what that one has locked, so that they have it in the end; a step that was only
    slow is done again.
    """
    return max(1.0, patience * 2 / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of database."""

    #: What has to be installed.
    driver: str
    #: The database's time in milliseconds, read when the statement runs, as SQL.
    now: str
    #: What is looked up, 255 characters at most; compared as Python compares texts.
    names: TypeEngine[str]
    #: Whether the deadline stands in the index of live runs: not where that makes heartbeats dear.
    deadlines_indexed: bool = False
    #: Whether a column made of the state finds the live runs: where no index can have a condition.
    phased: bool = False
    #: Whether one statement that finds rows in several ways has to unite their keys first; and whether
    #: it had better have nothing but keys, which are looked for before.
    keys_united: bool = False
    keys_first: bool = False
    #: The hint that a table's rows are found by an index, where the planner has to be told.
    by_index: str | None = None
    #: Options of each table, what is said of it when it was made, and the longest name of one.
    table: Mapping[str, Any] = field(default_factory=dict)
    made: str | None = None
    longest_name: int | None = None
    #: Execution options of a transaction that only reads, and of one that writes.
    reading: Mapping[str, Any] = field(default_factory=dict)
    writing: Mapping[str, Any] = field(default_factory=dict)
    #: The condition that columns are among the rows given as a parameter; and what is passed for it.
    among: Callable[[Sequence[ColumnElement[Any]], str], ColumnElement[bool]]
    listed: Callable[[str, Sequence[Sequence[Any]]], dict[str, Any]]
    #: The condition that a column is among the few that a select finds, which is to be done first.
    within: Callable[[ColumnElement[Any], Select[Any]], ColumnElement[bool]] = ColumnElement.in_
    #: Rows as a table to select from, made of one parameter for each column; where that is the quickest
    #: way to write many rows.
    rows: Callable[[Mapping[str, type]], FromClause] | None = None
    #: Whether rows that come to have the same are written by one statement: where the above is not had.
    alike_at_once: bool = False
    #: The URL and the options of the engine, made from what was configured, and for how many seconds a
    #: call waits for its turn.
    engine: Callable[[URL, Mapping[str, Any], float], tuple[URL, dict[str, Any]]]
    #: Listen to the engine, before it is used.
    attend: Callable[[Engine, float], None]
    #: While the tables of a prefix are made: nobody else makes them.
    alone: Callable[[Connection, str], AbstractContextManager[None]] = lambda *_: nullcontext()
    #: What waits for runs that come to be released, by a connection of the engine's kind, its prefix and what
    #: is shown of it; and the statement that tells of them, if the database can.
    wake_ups: Callable[[Engine, str, str], WakeUps] | None = None
    woken: Callable[[str], str] | None = None
    #: What asks a transaction how far it is kept from others; None where there is only one way.
    isolation: str | None = None
    #: What asks a server, as rows of name and value, whether it keeps what it answered over a power loss;
    #: and by a name: the values that do not, and what is right.
    durability: str | None = None
    lax: Mapping[str, tuple[frozenset[str], str]] = field(default_factory=dict)
    #: What an error is known by: its words, or the code of a server that has codes.
    sign: Callable[[BaseException], str] = str
    #: Signs: of tables that are not there, of what waiting does not mend, of what goes better the next time.
    missing: tuple[str, ...]
    hopeless: tuple[str, ...]
    passing: tuple[str, ...] = ()
    #: What the driver's options have to be of which it would say too little, too late.
    rights: Mapping[str, Right] = field(default_factory=dict)
    #: By a sign: what would be right. The first that is found counts.
    remedies: Mapping[str, str] = field(default_factory=dict)

    def says_missing(self, error: DBAPIError) -> bool:
        """Whether the error is that the tables were not made yet."""
        return self._says(error, self.missing)

    def says_hopeless(self, error: DBAPIError) -> bool:
        """Whether somebody has to change something before the database can be used."""
        if not isinstance(error, (OperationalError, InterfaceError)):
            return not self.says_passing(error)
        return self._says(error, self.hopeless)

    def says_passing(self, error: DBAPIError) -> bool:
        """Whether the same step may go well when it is done again at once.

        Others were in its way, or the connection was dead since a server went away.
        """
        return error.connection_invalidated or self._says(error, self.passing)

    def to_do(self, error: DBAPIError) -> str:
        """What would be right, as the end of a line; nothing where that is not known."""
        return next((f": {right}" for sign, right in self.remedies.items() if self._says(error, (sign,))), "")

    def _says(self, error: DBAPIError, signs: tuple[str, ...]) -> bool:
        said = "" if error.orig is None else self.sign(error.orig)
        return any(sign in said for sign in signs)


# SQLite -----------------------------------------------------------------------------------------


def _among_json(columns: Sequence[ColumnElement[Any]], parameter: str) -> ColumnElement[bool]:
    """Rows as one JSON text: one statement for any number of them. The casts let the key's index be used."""
    each = func.json_each(bindparam(parameter, type_=Text)).table_valued("value")
    rows = select(
        *(
            cast(func.json_extract(each.c.value, f"$[{place}]"), column.type)
            for place, column in enumerate(columns)
        )
    )
    return columns[0].in_(rows) if len(columns) == 1 else tuple_(*columns).in_(rows)


def _sqlite_engine(url: URL, given: Mapping[str, Any], patience: float) -> tuple[URL, dict[str, Any]]:
    connect = {"check_same_thread": False, **given.get("connect_args", {})}
    if "timeout" not in url.query:
        connect.setdefault("timeout", patience)
    options = {**given, "connect_args": connect}
    if _is_in_memory(url):
        # The one connection is the database; threads take turns.
        pool = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": patience}
        return url, {**pool, **options}
    if "poolclass" not in given:
        options = {"poolclass": QueuePool, "max_overflow": -1, **options}
    if url.database and not url.database.startswith("file:"):
        # Where it is shall not depend on where a process later stands.
        url = url.set(database=os.path.abspath(url.database))
    return url, options


def _is_in_memory(url: URL) -> bool:
    database = url.database or ""
    return database in ("", ":memory:") or ":memory:" in database or url.query.get("mode") == "memory"


def _attend_sqlite(engine: Engine, _patience: float) -> None:
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "connect", _configure)
    event.listen(engine, "checkout", _let_go_of_a_moved_file)
    event.listen(engine, "begin", _begin)
    event.listen(engine, "handle_error", _keep_if_interrupted)


def _connect(dialect: Any, _record: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    path = str(arguments[0])
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    if path and path != ":memory:":
        refuse_a_shared_one(path)
    try:
        return dialect.connect(*arguments, **options)
    except (TypeError, ValueError) as reason:
        raise StoreUnusable(f"anarchon_store_options: connect_args: {reason}") from None


def _configure(connection: sqlite3.Connection, record: Any) -> None:
    connection.isolation_level = None  # transactions begin where _begin says, and nowhere else
    connection.execute("PRAGMA synchronous = FULL").close()
    (record.info["patience"],) = connection.execute("PRAGMA busy_timeout").fetchone()
    _use_write_ahead_log(connection, record.info["patience"])
    path = connection.execute("PRAGMA database_list").fetchall()[0][2]
    record.info["file"] = (path, _identity(path)) if path else None


def _use_write_ahead_log(connection: sqlite3.Connection, patience: int) -> None:
    """Change the journal's mode, which the file keeps: for that SQLite itself does not wait its turn."""
    until = time.monotonic() + min(patience / 1000, left() / 2)
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.005)


def _let_go_of_a_moved_file(_connection: Any, record: Any, _proxy: Any) -> None:
    if (file := record.info.get("file")) and _identity(file[0]) != file[1]:
        raise DisconnectionError(f"{file[0]} is another file now")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _begin(connection: Connection) -> None:
    patience = min(connection.info["patience"], max(0, left() * 1000))
    connection.connection.execute(f"PRAGMA busy_timeout = {patience:.0f}").close()
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


def _keep_if_interrupted(error: ExceptionContext) -> None:
    """Have what a signal interrupts rolled back, as any other transaction.

    A connection that is closed instead, with a statement of which somebody still knows, keeps its lock.
    """
    if not isinstance(error.original_exception, Exception):
        error.is_disconnect = False


def _listed_json(parameter: str, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {parameter: json.dumps(rows)}


SQLITE = Dialect(
    driver="Python's sqlite3",
    now="CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
    names=String(255),
    deadlines_indexed=True,
    reading={"sqlite_begin": "BEGIN"},
    writing={"sqlite_begin": "BEGIN IMMEDIATE"},
    among=_among_json,
    listed=_listed_json,
    engine=_sqlite_engine,
    attend=_attend_sqlite,
    missing=("no such table",),
    rights={"timeout": SECONDS},
    remedies={
        "unable to open": "a file is right whose folder is there, and in which this user may write",
        "readonly": "this user needs the right to write to the file, and to its folder",
        "not a database": "another file is right, or one that is not there yet",
        "malformed": "put a backup in its place, or start with a file that is not there yet",
    },
    hopeless=("not a database", "malformed", "readonly", "no such column", "no column named"),
)

"""MariaDB and MySQL as a store, by PyMySQL: what it takes, beside what all servers take.

- Transactions are ``READ COMMITTED``: no gap is locked. Rows are found and locked by whole keys, jobs
  first, then runs, each in the order of the primary key; what the keys are is looked for without a lock.
- There are no partial indexes: a column made of the state (``phase``) finds the live runs.
- Texts are compared as bytes, blanks at their end too: ``utf8mb4_nopad_bin``, on MySQL ``utf8mb4_0900_bin``.
- Rows that come to have the same, as renewed leases do, are written by one statement; others by one message,
  which is several statements, each of one row.
- The tables are made under ``GET_LOCK``: making one ends a transaction.
- A replica is refused where it is met: when a connection is made, and when it refuses to write.

``innodb_flush_log_at_trx_commit`` and ``sync_binlog`` stay as the server has them: 1 and 1 are what keeps
an answer over a power loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from math import ceil
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, String, bindparam, event, func, select, tuple_
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.compiler import compiles

from ..errors import StoreUnreachable, StoreUnusable
from .budget import left
from .connecting import Connector, leave_an_interrupted_one
from .dialects import POOL, Dialect, silence
from .options import SECONDS, WHOLE

#: How long an answer is waited for, and the server's first word.
ANSWER_WITHIN, CONNECTED_WITHIN = 3.5, 3

#: How long MySQL keeps a connection that says nothing (seconds): in the middle of a step, or at rest.
IDLE_FOR = 60

#: The oldest that have what this takes: MariaDB's bytes without padding, MySQL's.
_OLDEST = {"MariaDB": (10, 4), "MySQL": (8, 0)}


#: What PyMySQL is told by the mode of TLS. By itself it takes TLS where nobody asks, if the server has it.
_TLS: dict[str, dict[str, Any]] = {
    "DISABLED": {"ssl_disabled": True},
    "PREFERRED": {},
    "REQUIRED": {"ssl": {"check_hostname": False}},
}


class _Name(String):
    """A text that is compared as bytes."""

    cache_ok = True


@compiles(_Name, "mysql")
def _name(_type: _Name, compiler: Any, **_: Any) -> str:
    collation = "utf8mb4_nopad_bin" if compiler.dialect.is_mariadb else "utf8mb4_0900_bin"
    return f"VARCHAR({_type.length}) CHARACTER SET utf8mb4 COLLATE {collation}"


def _engine(url: URL, given: Mapping[str, Any], patience: float) -> tuple[URL, dict[str, Any]]:
    if url.drivername not in ("mysql", "mysql+pymysql", "mariadb", "mariadb+pymysql"):
        raise StoreUnusable(f"{url.drivername}:// is of another driver: mysql+pymysql:// is right")
    timeouts = {"read_timeout": ANSWER_WITHIN, "write_timeout": ANSWER_WITHIN}
    own = {"charset": "utf8mb4", "connect_timeout": CONNECTED_WITHIN, **timeouts}
    connect = {name: value for name, value in own.items() if name not in url.query}
    url, tls = _tls(url)
    connect = {**connect, **tls, **given.get("connect_args", {})}
    pool = {"pool_timeout": patience, **POOL}
    return url.set(drivername="mysql+pymysql"), {**pool, **given, "connect_args": connect}


def _tls(url: URL) -> tuple[URL, dict[str, Any]]:
    """Take the mode of TLS out of the URL: hosts write it as the server's own client has it."""
    modes = {name: value for name, value in url.query.items() if re.fullmatch("ssl[-_]?mode", name.lower())}
    if not modes:
        return url, {}
    asked = str(next(iter(modes.values()))).upper()
    if asked not in _TLS:
        right = f"one of {', '.join(_TLS)} is right, or ssl_ca=, which checks more"
        raise StoreUnusable(f"ssl-mode={asked}: {right}")
    return url.difference_update_query(modes), _TLS[asked]


def _attend(engine: Engine, patience: float) -> None:
    connector = Connector(partial(_connect, max(1, ceil(patience))))
    event.listen(engine, "do_connect", connector)
    event.listen(engine, "engine_disposed", connector.close)
    event.listen(engine, "do_executemany", _execute_many)
    event.listen(engine, "handle_error", _leave_a_replica)
    event.listen(engine, "handle_error", leave_an_interrupted_one)


def _connect(
    patience: int, _dialect: Any, _record: Any, arguments: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    from pymysql.constants import CLIENT

    flags = options.get("client_flag", 0) | CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
    try:
        connection = _patient()(*arguments, **{**options, "client_flag": flags})
    except (TypeError, ValueError, AttributeError, RuntimeError, OSError) as reason:  # not the server's
        raise StoreUnusable(f"an option of the URL, or of anarchon_store_options: {reason}") from None
    try:
        _set_up(connection, patience)
    except BaseException:
        connection.close()
        raise
    return connection


@lru_cache(maxsize=1)
def _patient() -> Any:
    """The kind of connection that waits no longer than the call may take."""
    from pymysql.connections import Connection as Client

    class Patient(Client):  # type: ignore[misc]
        _read_timeout: float | None
        _write_timeout: float | None
        _longest: tuple[float, float] | None = None

        def _read_bytes(self, num_bytes: int) -> Any:
            self._hurry()
            return super()._read_bytes(num_bytes)

        def _write_bytes(self, data: Any) -> None:
            self._hurry()
            super()._write_bytes(data)

        def _hurry(self) -> None:
            """Have the client's own timeouts, for each read, end with the call."""
            if self._longest is None:
                self._longest = (self._read_timeout or ANSWER_WITHIN, self._write_timeout or ANSWER_WITHIN)
            seconds = max(0.001, left())  # 0 would be another mode
            self._read_timeout, self._write_timeout = (min(longest, seconds) for longest in self._longest)
            if self._sock is not None:
                self._sock.settimeout(self._read_timeout)

    return Patient


def _set_up(connection: Any, patience: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION(), @@global.read_only")
        version, read_only = cursor.fetchone()
        kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
        found = tuple(map(int, re.findall(r"\d+", version.removeprefix("5.5.5-"))[:2]))
        if found < _OLDEST[kind]:
            oldest = ".".join(map(str, _OLDEST[kind]))
            raise StoreUnusable(f"the server is {kind} {version}: {oldest} or newer is right")
        if read_only not in (0, "0", "OFF"):
            raise StoreUnusable(
                f"{connection.host}:{connection.port} is read-only, as a replica is: the primary is right"
            )
        # Else who vanishes in the middle of a step, without a word, has its jobs locked for hours.
        longest = (
            f"max_statement_time = {patience},"
            f" idle_transaction_timeout = {round(silence(patience))}"
            if kind == "MariaDB" else f"max_execution_time = {patience}000, wait_timeout = {IDLE_FOR}"
        )  # fmt: skip
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(
            f"SET SESSION innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience},"
            f" {longest},"
            " time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
        )
    connection.commit()


def _execute_many(cursor: Any, statement: str, parameters: Sequence[Any], _context: Any) -> bool:
    """Send all at once: PyMySQL does so for inserts alone, and of others sends one after the other."""
    if statement.startswith("INSERT"):
        return False
    done = 0
    cursor.execute("; ".join(cursor.mogrify(statement, row) for row in parameters))
    while True:
        done += cursor.rowcount
        if not cursor.nextset():
            break
    cursor.rowcount = done
    return True


def _leave_a_replica(context: ExceptionContext) -> None:
    """Have new connections made, which may lead to the primary."""
    if context.original_exception is not None and _sign(context.original_exception) in _READ_ONLY:
        context.is_disconnect = True


def _sign(error: BaseException) -> str:
    """The number of an error."""
    return str(error.args[0]) if error.args else ""


def _among(columns: Sequence[ColumnElement[Any]], parameter: str) -> ColumnElement[bool]:
    """All rows, one by one: it is the planner's only way to the keys."""
    rows: Any = bindparam(parameter, expanding=True)
    return columns[0].in_(rows) if len(columns) == 1 else tuple_(*columns).in_(rows)


def _listed(parameter: str, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {parameter: [tuple(row) if len(row) > 1 else row[0] for row in rows]}


@contextmanager
def _alone(connection: Connection, prefix: str) -> Iterator[None]:
    database = connection.engine.url.database
    name = f"anarchon {database} {prefix}"[:64]
    if connection.execute(select(func.get_lock(name, min(3.0, left())))).scalar_one() != 1:
        raise StoreUnreachable(f"somebody else makes or upgrades the tables {prefix}_* for now")
    try:
        yield
        connection.exec_driver_sql("COMMIT")  # before another one looks
    finally:
        with suppress(SQLAlchemyError):  # a connection that is gone has no lock
            connection.execute(select(func.release_lock(name)))


_READ_ONLY = ("1290", "1792", "1836")

MARIADB = Dialect(
    isolation="SHOW VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')",
    durability="SHOW GLOBAL VARIABLES WHERE Variable_name = 'innodb_flush_log_at_trx_commit'",
    lax={"innodb_flush_log_at_trx_commit": (frozenset({"0", "2"}), "1")},
    driver="PyMySQL, by anarchon-celery[mysql],",
    now="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000",
    names=_Name(255),
    phased=True,
    keys_first=True,
    alike_at_once=True,
    by_index="FORCE INDEX (`{}`)",
    table={"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_row_format": "DYNAMIC"},
    longest_name=64,
    among=_among,
    listed=_listed,
    engine=_engine,
    attend=_attend,
    alone=_alone,
    sign=_sign,
    missing=("1146",),
    hopeless=(
        *_READ_ONLY, "1044", "1045", "1049", "1142", "1143", "1227", "1698",  # no right, no database
        "1054", "1176", "1665",  # tables of somebody else; a binary log that cannot be written so
    ),
    passing=(
        "1213", "1205", "1020",  # deadlock, lock wait, a row that changed meanwhile
        "1062",  # somebody else made the same row at the same time
    ),
    rights={**dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), SECONDS), "port": WHOLE},
    remedies={
        **dict.fromkeys(
            ("1044", "1142", "1143"),
            "the user needs the right to make tables once (CREATE, INDEX; to upgrade, ALTER), and after that "
            "to select, insert, update and delete",
        ),
        "1049": "create it, or name another one in anarchon_store",
        **dict.fromkeys(("1045", "1698"), "look at the user and the password in anarchon_store"),
    },
)  # fmt: skip

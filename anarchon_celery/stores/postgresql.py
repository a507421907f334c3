"""PostgreSQL as a store, by psycopg 3: what it takes, beside what all servers take.

- Each transaction is ``READ COMMITTED`` and says so itself; the statement that begins it sets the
  timeouts too, for this transaction alone. So a pooler that hands out connections by transaction
  (pgbouncer) loses nothing, and no statement is prepared for longer than it takes.
- A step locks its jobs, then its runs, each in the order of their keys: ``COLLATE "C"`` is Python's order.
- Heartbeats write the deadline, which is in no index, and each page has some room: so they are HOT, no
  index is written. That ``expired`` reads all live runs is cheap, there are few: a partial index has them.
- The tables are made under an advisory lock, which ends with the transaction.
- A server that is stopped answers nothing, and TCP does not notice: each wait for an answer ends a
  little later than the server's own timeout, and the connection with it.
- A replica is refused where it is met: when a connection is made, and when it refuses to write.

``synchronous_commit`` stays as the server has it: ``on`` is what keeps an answer over a power loss.
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    FromClause,
    Select,
    String,
    Text,
    bindparam,
    event,
    func,
    tuple_,
)
from sqlalchemy import select as sql_select
from sqlalchemy.engine import URL, ExceptionContext

from ..errors import StoreUnusable
from .budget import left
from .connecting import Connector, leave_an_interrupted_one
from .dialects import POOL, Dialect, silence
from .notifications import Notifications, notify

#: How long an answer is waited for, and how long one is waited for while a connection is made.
ANSWER_WITHIN, CONNECTED_WITHIN = 3.5, 3

#: What psycopg waits for, as poll knows it.
_POLLED = {1: select.POLLIN, 2: select.POLLOUT, 3: select.POLLIN | select.POLLOUT}

#: What libpq is asked, unless the URL or the options say it.
_CONNECT = {
    "connect_timeout": CONNECTED_WITHIN, "application_name": "anarchon", "client_encoding": "utf8",
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": CONNECTED_WITHIN * 1000,
}  # fmt: skip


def _engine(url: URL, given: Mapping[str, Any], patience: float) -> tuple[URL, dict[str, Any]]:
    if url.drivername not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise StoreUnusable(f"{url.drivername}:// is of another driver: postgresql+psycopg:// is right")
    connect = {name: value for name, value in _CONNECT.items() if name not in url.query}
    # Transactions begin where _begin says, and nowhere else; a server keeps nothing from one to the next.
    own = {"autocommit": True, "prepare_threshold": None}
    connect = {**connect, **given.get("connect_args", {}), **own}
    pool = {"pool_timeout": patience, **POOL}
    options = {"use_native_hstore": False, **pool, **given, "connect_args": connect}
    return url.set(drivername="postgresql+psycopg"), options


def _attend(engine: Engine, patience: float) -> None:
    connector = Connector(_connect)
    # The server gives up before we do, if it can.
    waits = {
        "statement_timeout": patience, "lock_timeout": patience,
        "idle_in_transaction_session_timeout": silence(patience),
    }  # fmt: skip
    timeouts = "".join(f"; SET LOCAL {name} = {round(1000 * seconds)}" for name, seconds in waits.items())

    def begin(connection: Connection) -> None:
        kind = connection.get_execution_options().get("transaction", "")
        if kind is None:  # one statement, by itself
            return
        # Without parameters it is one message, though it is several statements.
        connection.exec_driver_sql(
            f"BEGIN ISOLATION LEVEL READ COMMITTED{kind}{timeouts}",
            execution_options={"no_parameters": True},
        )

    event.listen(engine, "do_connect", connector)
    event.listen(engine, "engine_disposed", connector.close)
    event.listen(engine, "begin", begin)
    event.listen(engine, "handle_error", _leave_a_replica)
    event.listen(engine, "handle_error", leave_an_interrupted_one)


def _connect(_dialect: Any, _record: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    connection = _patient().connect(*arguments, **options)
    try:
        asked = "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'"
        if connection.execute(asked).fetchone()[0]:
            where = f"{connection.info.host or 'the server'}:{connection.info.port}"
            raise StoreUnusable(f"{where} is read-only, as a replica is: the primary is right")
    except BaseException:
        connection.close()
        raise
    return connection


@lru_cache(maxsize=1)
def _patient() -> Any:
    """The kind of connection that waits for an answer, but not for ever."""
    import psycopg

    class Patient(psycopg.Connection[Any]):
        def wait(self, gen: Any, *_: Any, **__: Any) -> Any:
            patience = min(ANSWER_WITHIN, max(0.0, left()))
            until = time.monotonic() + patience
            try:
                wanted = next(gen)
                while ready := _ready(self.pgconn, wanted, until):
                    wanted = gen.send(ready)
            except StopIteration as end:
                return end.value
            self.pgconn.finish()
            with suppress(Exception):  # what it would still send
                gen.close()
            raise psycopg.OperationalError(f"no answer within {patience:.1f} s")

    return Patient


def _ready(pgconn: Any, wanted: int, until: float) -> int:
    """Wait until there is something to read (1) or room to write (2), as psycopg counts; 0 in the end."""
    waiting = select.poll()
    waiting.register(pgconn.socket, _POLLED[wanted])
    try:
        found = waiting.poll(max(0.0, until - time.monotonic()) * 1000)
    except BaseException:
        pgconn.finish()  # somebody interrupts: what comes back later would be the answer to another question
        raise
    if not found:
        return 0
    ready = sum(flag for flag, polled in _POLLED.items() if flag < 3 and found[0][1] & polled)
    return ready or wanted  # an error or an end, which is met by who reads


def _leave_a_replica(context: ExceptionContext) -> None:
    """Have new connections made, which may lead to the primary."""
    if context.original_exception is not None and "25006" in _sign(context.original_exception):
        context.is_disconnect = True


def _sign(error: BaseException) -> str:
    """The code of an error; of one from before the server answers, there are words alone.

    What looks like a code in them is a port, or a name.
    """
    return getattr(error, "sqlstate", None) or re.sub(r"\d", "", str(error))


_ARRAYS: dict[type, ARRAY[Any]] = {str: ARRAY(Text), int: ARRAY(BigInteger)}


def _rows(columns: Mapping[str, type]) -> FromClause:
    arrays = [bindparam(name, type_=_ARRAYS[kind]) for name, kind in columns.items()]
    return func.unnest(*arrays).table_valued(*columns).render_derived()


def _among(columns: Sequence[ColumnElement[Any]], parameter: str) -> ColumnElement[bool]:
    """An array for each column: the planner sees how long they are."""
    arrays: list[ColumnElement[Any]] = [
        bindparam(f"{parameter}_{place}", type_=_ARRAYS[column.type.python_type])
        for place, column in enumerate(columns)
    ]
    if len(columns) == 1:
        return columns[0] == func.any(arrays[0])
    rows = func.unnest(*arrays).table_valued(*(column.name for column in columns)).render_derived()
    return tuple_(*columns).in_(sql_select(*rows.c))


def _within(column: ColumnElement[Any], few: Select[Any]) -> ColumnElement[bool]:
    """As an array, which is made once: the planner would rather look at all that may be among them."""
    return column == func.any(func.array(few.scalar_subquery()))


def _listed(parameter: str, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {f"{parameter}_{place}": list(cells) for place, cells in enumerate(zip(*rows, strict=True))}


@contextmanager
def _alone(connection: Connection, prefix: str) -> Iterator[None]:
    digest = blake2b(f"anarchon {prefix}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big", signed=True)
    connection.execute(sql_select(func.pg_advisory_xact_lock(number)))
    yield


POSTGRESQL = Dialect(
    wake_ups=Notifications,
    woken=notify,
    isolation="SHOW transaction_isolation",
    durability="SELECT name, setting FROM pg_settings WHERE name IN "
    "('fsync', 'full_page_writes', 'synchronous_commit')",
    lax=dict.fromkeys(("fsync", "full_page_writes", "synchronous_commit"), (frozenset({"off"}), "on")),
    driver="psycopg, by anarchon-celery[postgresql],",
    now="CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) AS BIGINT)",
    names=String(255, collation="C"),
    keys_united=True,
    made="ALTER TABLE %(fullname)s SET (fillfactor = 80)",
    longest_name=63,
    reading={"transaction": " READ ONLY"},
    writing={"transaction": ""},
    among=_among,
    listed=_listed,
    within=_within,
    rows=_rows,
    engine=_engine,
    attend=_attend,
    alone=_alone,
    sign=_sign,
    missing=("42P01",),
    hopeless=(
        "25006",  # read-only
        "28P01", "28000", "3D000", "password authentication failed", "does not exist", "no pg_hba.conf entry",
        "for connection option", "invalid sslmode", "unrecognized configuration parameter",
    ),
    passing=(
        "40001", "40P01",  # serialization, deadlock
        "23505",  # somebody else made the same row at the same time
    ),
    remedies={
        "42501": "the user needs the right to make tables once (CREATE on the schema; to upgrade, to own "
        "them), and after that to select, insert, update and delete",
        '  database "': "create it, or name another one in anarchon_store",
        '  role "': "create it, or name another user in anarchon_store",
        "password authentication failed": "look at the password in anarchon_store",
    },
)  # fmt: skip

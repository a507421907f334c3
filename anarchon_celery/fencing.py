"""Writes that a later run has not overtaken: for SQLAlchemy, Django, Redis, and whatever can refuse.

A run whose worker was paused for longer than its lease is somebody else's, and may not know that yet. So
what it writes to keeps the *fence* of the last writer beside the data, and takes a write only if that is not
higher than the writer's own: compared and written in one step, there. Who is late gets ``StaleFence``.

::

    fenced_update(session, update(Rate).where(Rate.currency == "USD").values(rate=rate))   SQLAlchemy
    fenced_upsert(session, Rate, {"currency": "USD"}, {"rate": rate})                      or made if need be
    fenced(Rate.objects.filter(currency="USD")).update(rate=rate)                          Django
    fenced(Rate.objects).update_or_create(currency="USD", defaults={"rate": rate})         or made if need be
    fenced_hset(client, "rate:USD", {"rate": rate})                                        Redis, a hash
    fenced_write("the rate", lambda fence: put_unless_later(rate, fence))                  anything else

The fence is that of the run in this thread, unless one is given. It is an integer of 16 digits: a column for
it is a ``BIGINT``; NULL counts as 0. One run may write as often as it likes. Outside a run the fence is 0, so
that a task called by hand, as in a test or a shell, works, and leaves alone what a run has written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import AnarchonError, StaleFence
from .lease import StaleRun, current_lease

if TYPE_CHECKING:  # who writes to one of these need not load the others
    from redis import Redis, RedisCluster
    from sqlalchemy import ColumnElement, Connection, Table, Update
    from sqlalchemy.orm import Session, scoped_session

Answer = TypeVar("Answer")


def fenced_write(resource: str, write: Callable[[int], Answer], *, fence: int | None = None) -> Answer:
    """Write to whatever can refuse a write on a condition.

    Args:
        resource: what is written, in words; an error names it.
        write: called with the fence; writes if no higher one is stored, in one step, and stores it; returns
            something true if it did, such as the number of rows.
        fence: the fence, if not that of this thread's run.

    Returns:
        What ``write`` returned.

    Raises:
        StaleFence: it returned something false.
    """
    mine = _mine(fence)
    if not (answer := write(mine)):
        raise _refused(resource, mine)
    return answer


def _mine(fence: int | None) -> int:
    return current_lease().fence if fence is None else fence


def _refused(resource: str, mine: int, stored: int | None = None) -> StaleFence:
    """Return the error: inside a run one that Celery neither retries nor stores."""
    kind = StaleFence if current_lease().job is None else StaleRun
    return kind(resource, mine, stored)


# SQLAlchemy -------------------------------------------------------------------------------------

if TYPE_CHECKING:
    Database = Connection | Session | scoped_session[Any]


def fenced_update(
    connection: Database, statement: Update, *, fence: int | None = None, column: str = "fence"
) -> int:
    """Execute an ``update()``, of the Core or the ORM, on the rows that no later run has written.

    Args:
        connection: a connection or a session; what is in one transaction stays in it.
        statement: the update, without the fence.
        fence: the fence, if not that of this thread's run.
        column: the column that keeps the fence.

    Returns:
        How many rows were written.

    Raises:
        StaleFence: a later run has written one of the rows; that one is as it was, the others are written.
    """
    mine = _mine(fence)
    table: Any = statement.table
    written: Any = connection.execute(
        statement.where(_is_not_later(table.c[column], mine)).values({column: mine})
    )
    rows = [] if statement.whereclause is None else [statement.whereclause]
    _refuse_later(connection, table.name, table.c[column], mine, rows)
    return int(written.rowcount)


def fenced_upsert(
    connection: Database, table: Any, key: Mapping[str, Any], values: Mapping[str, Any], *,
    fence: int | None = None, column: str = "fence",
) -> None:  # fmt: skip
    """Write one row, unless a later run has written it; make it if it is not there yet.

    For SQLite, PostgreSQL, MariaDB and MySQL. It is one statement: of several that make the row, the latest
    wins.

    Args:
        connection: a connection or a session.
        table: the table, or the class that is mapped to it.
        key: the row, by the columns of its primary key, or of another unique one.
        values: what is written, by column.
        fence: the fence, if not that of this thread's run.
        column: the column that keeps the fence.

    Raises:
        StaleFence: a later run has written the row; it is as it was.
    """
    mine = _mine(fence)
    table = getattr(table, "__table__", table)
    connection.execute(_upsert(_dialect(connection, table), table, key, {**values, column: mine}, column))
    rows = [table.c[name] == value for name, value in key.items()]
    named = ", ".join(f"{name}={value!r}" for name, value in key.items())
    _refuse_later(connection, f"{table.name} {named}", table.c[column], mine, rows)


def _is_not_later(stored: ColumnElement[Any], mine: Any) -> ColumnElement[bool]:
    ours: ColumnElement[bool] = (stored <= mine) | stored.is_(None)
    return ours


def _refuse_later(
    connection: Database, resource: str, stored: Any, mine: int, rows: list[ColumnElement[bool]]
) -> None:
    """Raise if one of the rows was left alone.

    They are locked, since else a transaction may be shown them as they were when it began.
    """
    from sqlalchemy import select

    later: Any = connection.execute(select(stored).where(stored > mine, *rows).with_for_update())
    if found := later.scalars().all():
        raise _refused(resource, mine, max(found))


def _dialect(connection: Any, table: Table) -> str:
    bind = connection.get_bind(clause=table) if hasattr(connection, "get_bind") else connection
    return str(bind.dialect.name)


def _upsert(
    dialect: str, table: Table, key: Mapping[str, Any], values: Mapping[str, Any], column: str
) -> Any:
    """Return the statement that makes the row, or writes the values over those of no later run."""
    if dialect in ("mysql", "mariadb"):
        return _upsert_mysql(table, key, values, column)
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    elif dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
    else:
        raise AnarchonError(f"fenced_upsert on {dialect}: make the row first, then use fenced_update")
    statement = insert(table).values({**key, **values})
    return statement.on_conflict_do_update(
        index_elements=list(key),
        set_={name: statement.excluded[name] for name in values},
        where=_is_not_later(table.c[column], statement.excluded[column]),
    )


def _upsert_mysql(table: Table, key: Mapping[str, Any], values: Mapping[str, Any], column: str) -> Any:
    """As above. Each column has the condition, as a row can have none; it holds once the fence is set."""
    from sqlalchemy import case
    from sqlalchemy.dialects.mysql import insert

    statement = insert(table).values({**key, **values})
    ours = _is_not_later(table.c[column], statement.inserted[column])
    return statement.on_duplicate_key_update(
        {name: case((ours, statement.inserted[name]), else_=table.c[name]) for name in values}
    )


# Django -----------------------------------------------------------------------------------------


def fenced(rows: Any, *, fence: int | None = None, field: str = "fence") -> FencedRows:
    """Return rows of a Django model, to be written unless a later run has written them.

    Args:
        rows: a queryset, or a model's manager. The fence, and what is written, are fields of that model, not
            of one that it inherits from.
        fence: the fence, if not that of this thread's run.
        field: the field that keeps the fence, a ``BigIntegerField``.
    """
    return FencedRows(rows, _mine(fence), field)


class FencedRows:
    """Rows of a Django model; made by :func:`fenced`."""

    def __init__(self, rows: Any, mine: int, field: str) -> None:
        """Take the rows from where they are written, not from a replica."""
        rows = rows.all()
        self._rows = rows.using(rows.select_for_update().db)
        self._mine, self._field = mine, field

    def update(self, **values: Any) -> int:
        """Update the rows, as Django's ``update()`` does.

        Returns:
            How many rows were written.

        Raises:
            StaleFence: a later run has written one of them; that one is as it was, the others are written.
        """
        rows = self._rows
        if len(rows.query.alias_map) > 1:  # joined, they are found before the one that is written is locked
            found = list(rows.values_list("pk", flat=True))
            rows = rows.model._base_manager.using(rows.db).filter(pk__in=found)
        ours = rows.exclude(**{f"{self._field}__gt": self._mine})  # so that NULL is ours, too
        written: int = ours.update(**values, **{self._field: self._mine})
        self._refuse_later()
        return written

    def update_or_create(self, defaults: Mapping[str, Any] | None = None, **key: Any) -> tuple[Any, bool]:
        """Write the one row with this key, made if it is not there yet; a constraint keeps the key unique.

        Returns:
            The object, and whether it was made.

        Raises:
            StaleFence: a later run has written it; it is as it was.
        """
        values = dict(defaults or {})
        found, made = self._rows.get_or_create(defaults={**values, self._field: self._mine}, **key)
        if not made:
            FencedRows(self._rows.filter(pk=found.pk), self._mine, self._field).update(**values)
            found.refresh_from_db(using=self._rows.db)
        return found, made

    def _refuse_later(self) -> None:
        """Raise if one of the rows was left alone."""
        from django.db import connections

        later = self._rows.filter(**{f"{self._field}__gt": self._mine}).order_by(f"-{self._field}")
        connection = connections[self._rows.db]
        if connection.in_atomic_block and connection.vendor == "mysql":
            later = later.select_for_update()  # else it may be shown them as they were when it began
        if (stored := later.values_list(self._field, flat=True).first()) is not None:
            raise _refused(self._rows.model._meta.label, self._mine, stored)


# Redis ------------------------------------------------------------------------------------------

#: One key: its fence is a field beside the data, so that it works in a cluster, and both end together.
HSET = """\
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored and tonumber(stored) > tonumber(ARGV[2]) then
    return stored
end
for place = 3, #ARGV, 2 do
    redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1])
end
return false
"""


def fenced_hset(
    client: Redis | RedisCluster, key: str, mapping: Mapping[str, Any], *,
    fence: int | None = None, field: str = "fence",
) -> None:  # fmt: skip
    """Set fields of a hash in Redis or Valkey, unless a later run has written it.

    Args:
        client: a client of redis-py, also of a cluster.
        key: the key of the hash; it is made if it is not there yet.
        mapping: the fields, with what redis-py takes as values.
        fence: the fence, if not that of this thread's run.
        field: the field of the hash that keeps the fence.

    Raises:
        StaleFence: a later run has written the hash; it is as it was.
    """
    mine = _mine(fence)
    words = [word for pair in {**mapping, field: mine}.items() for word in pair]
    stored: Any = client.eval(HSET, 1, key, field, mine, *words)
    if stored is not None:
        raise _refused(f"the hash {key}", mine, int(stored))

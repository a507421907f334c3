"""The ways from an older layout of the tables to a newer one; what is new in which is in :mod:`.versions`.

A way is plain DDL in one transaction, under the lock under which tables are made. MariaDB commits each
DDL by itself: so a way looks at what is there already, and the new number is written last. One that
died in the middle is gone again from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, TableClause, column, insert, inspect, select, table, update


def to_3(connection: Connection, prefix: str) -> None:
    """Let nodes have an app, and the store an age."""
    _add_column(connection, f"{prefix}_nodes", "app", "TEXT")
    said = _said(connection, prefix)
    if "created" in said:  # else all that lacks is written at the next use
        _say(connection, prefix, {"born": said["created"], "young": "0"})


def to_4(connection: Connection, prefix: str) -> None:
    """Let runs be asked for with arguments, and nodes tell their versions, clock and schedule."""
    after = "count"
    for name in ("arguments", "asked_by", "request"):
        _add_column(connection, f"{prefix}_runs", name, "TEXT", after=after)
        after = name
    for name, kind in (
        ("version", "TEXT"), ("celery", "TEXT"), ("python", "TEXT"), ("clock_offset", "BIGINT"),
        ("schedule", "TEXT"),
    ):  # fmt: skip
        _add_column(connection, f"{prefix}_nodes", name, kind)


#: By the version that they lead to, from the one before.
WAYS: Mapping[int, Callable[[Connection, str], None]] = {3: to_3, 4: to_4}


def go(connection: Connection, prefix: str, version: int) -> None:
    """Go the way to this version, unless somebody else did so meanwhile."""
    if version_in(connection, prefix) == str(version - 1):
        WAYS[version](connection, prefix)
        meta = _meta(prefix)
        connection.execute(update(meta).where(meta.c.name == "version").values(value=str(version)))


def version_in(connection: Connection, prefix: str) -> str | None:
    """Return the version that the tables of a prefix say; None where there are none yet."""
    if not inspect(connection).has_table(_meta(prefix).name):
        return None
    return _said(connection, prefix).get("version")


# what ways are made of --------------------------------------------------------------------------


def _meta(prefix: str) -> TableClause:
    return table(f"{prefix}_meta", column("name"), column("value"))


def _said(connection: Connection, prefix: str) -> dict[str, str]:
    meta = _meta(prefix)
    return {name: value for name, value in connection.execute(select(meta.c.name, meta.c.value))}


def _say(connection: Connection, prefix: str, new: Mapping[str, str]) -> None:
    known = _said(connection, prefix)
    rows = [{"name": name, "value": value} for name, value in new.items() if name not in known]
    if rows:
        connection.execute(insert(_meta(prefix)), rows)


def _add_column(connection: Connection, name: str, added: str, kind: str, *, after: str = "") -> None:
    """Add a column at the end, or where a new table has it: there may be a computed one behind that."""
    if added not in {one["name"] for one in inspect(connection).get_columns(name)}:
        quote = connection.dialect.identifier_preparer.quote
        place = f" AFTER {quote(after)}" if after and connection.dialect.name in ("mysql", "mariadb") else ""
        connection.exec_driver_sql(f"ALTER TABLE {quote(name)} ADD COLUMN {quote(added)} {kind}{place}")

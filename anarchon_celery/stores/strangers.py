"""Tables that have the names of ours, and are somebody else's."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, Table, inspect

from ..errors import StoreUnusable


def refuse_strangers(connection: Connection, *tables: Table) -> None:
    """Refuse the first table that is there and has not the columns that it is to have.

    Raises:
        StoreUnusable: One line: the table, what is strange in it, what to do.
    """
    looked = inspect(connection)
    for table in tables:
        if looked.has_table(table.name):
            columns = {column["name"]: column["type"] for column in looked.get_columns(table.name)}
            if strange := _what_is_strange(table, columns):
                to_do = "set another anarchon_prefix, or rename that table"
                raise StoreUnusable(f"the table {table.name} is somebody else's ({strange}): {to_do}")


def _what_is_strange(table: Table, columns: Mapping[str, object]) -> str | None:
    if lacking := [column.name for column in table.c if column.name not in columns]:
        return f"it has no column {lacking[0]!r}"
    for column in table.c:
        if _kind(columns[column.name]) is not column.type.python_type:
            return f"its column {column.name!r} is {columns[column.name]}"
    return None


def _kind(sort: object) -> type | None:
    """Which of Python's types a column holds; None where SQLAlchemy has none for it."""
    try:
        found: type | None = getattr(sort, "python_type", None)
    except NotImplementedError:
        return None
    return found

"""Stores as earlier releases made them, to upgrade.

The files of a version were made by the release that had it: of the tables what each database says of
them, and of what is in them the rows, or keys, after one story that was told to each store. Who raises the
version adds files of the version before, made by the last commit that had it.

The story: ten jobs on two nodes, of which one is paused; runs that are claimed, queued, running, released,
buffered, and ended in six ways. `T` is the slot of most of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, column, insert, table

T = 1_790_000_000_000

HERE = Path(__file__).parent
VERSIONS = (2, 3)
ROWS: dict[int, dict[str, list[dict[str, Any]]]] = {
    version: json.loads((HERE / f'v{version}_rows.json').read_text('utf-8')) for version in VERSIONS
}


def make_tables(connection: Connection, kind: str, version: int) -> None:
    """Make tables of that version, with the rows of the story."""
    for statement in (HERE / f'v{version}_{kind}.sql').read_text('utf-8').removesuffix(';\n').split(';\n'):
        connection.exec_driver_sql(statement.strip())
    for name, rows in ROWS[version].items():
        for row in rows:
            connection.execute(insert(table(f'anarchon_{name}', *map(column, row))), row)


def make_keys(client: Any, version: int) -> None:
    """Make keys of that version, with the records of the story."""
    for key, ((kind, value),) in _keys(version):
        if kind == 'hash':
            client.hset(key, mapping=value)
        elif kind == 'set':
            client.sadd(key, *value)
        else:
            client.zadd(key, value)


def _keys(version: int) -> list[Any]:
    keys = json.loads((HERE / f'v{version}_redis.json').read_text('utf-8'))
    return [(key, list(value.items())) for key, value in keys.items()]

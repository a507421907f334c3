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
ROWS: dict[str, list[dict[str, Any]]] = json.loads((HERE / 'v2_rows.json').read_text('utf-8'))


def make_tables(connection: Connection, kind: str) -> None:
    """Make tables of version 2, with the rows of the story."""
    for statement in (HERE / f'v2_{kind}.sql').read_text('utf-8').removesuffix(';\n').split(';\n'):
        connection.exec_driver_sql(statement.strip())
    for name, rows in ROWS.items():
        for row in rows:
            connection.execute(insert(table(f'anarchon_{name}', *map(column, row))), row)


def make_keys(client: Any) -> None:
    """Make keys of version 2, with the records of the story."""
    for key, ((kind, value),) in _keys():
        if kind == 'hash':
            client.hset(key, mapping=value)
        elif kind == 'set':
            client.sadd(key, *value)
        else:
            client.zadd(key, value)


def _keys() -> list[Any]:
    keys = json.loads((HERE / 'v2_redis.json').read_text('utf-8'))
    return [(key, list(value.items())) for key, value in keys.items()]

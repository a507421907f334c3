"""What a store had, to be put in place of what it has, as a restored backup is, or a replica.

The records themselves are copied, past the store, as the server of each kind has them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from anarchon_celery.stores import Store
from anarchon_celery.stores.memory import MemoryStore
from anarchon_celery.stores.redis import RedisStore
from anarchon_celery.stores.sql import SqlStore


def snapshot(store: Store) -> Callable[[], None]:
    """Remember what is there now; what is returned brings it back."""
    if isinstance(store, MemoryStore):
        return _of_memory(store)
    if isinstance(store, RedisStore):
        return _of_redis(store)
    assert isinstance(store, SqlStore)
    return _of_tables(store)


def _of_memory(store: MemoryStore) -> Callable[[], None]:
    room = store.room
    ledger, nodes, latest = deepcopy((room.ledger, room.nodes, room.latest))

    def restore() -> None:
        room.ledger, room.nodes, room.latest = deepcopy((ledger, nodes, latest))

    return restore


def _of_redis(store: RedisStore) -> Callable[[], None]:
    client = store._link._client_there()

    def keys() -> list[bytes]:
        return list(client.scan_iter(f'{store.prefix}:*', count=1000))

    dumped = {key: client.dump(key) or b'' for key in keys()}

    def restore() -> None:
        for key in keys():
            client.delete(key)
        for key, value in dumped.items():
            client.restore(key, 0, value)

    return restore


def _of_tables(store: SqlStore) -> Callable[[], None]:
    tables = store._tables.metadata.sorted_tables
    stored = {table: [column for column in table.c if column.computed is None] for table in tables}
    with store._engine.begin() as connection:
        rows = {
            table: [row._asdict() for row in connection.execute(table.select().with_only_columns(*columns))]
            for table, columns in stored.items()
        }

    def restore() -> None:
        with store._writing.begin() as connection:
            for table in tables:
                connection.execute(table.delete())
                if rows[table]:
                    connection.execute(table.insert(), rows[table])

    return restore


def wipe(store: Store) -> None:
    """Let its server forget everything."""
    if isinstance(store, MemoryStore):
        store.room.wipe()
    elif isinstance(store, RedisStore):
        client = store._link._client_there()
        for key in client.scan_iter(f'{store.prefix}:*', count=1000):
            client.delete(key)
    else:
        assert isinstance(store, SqlStore)
        store._tables.metadata.drop_all(store._engine)

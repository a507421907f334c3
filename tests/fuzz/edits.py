"""What somebody does to a store by hand: to the tables of a database, or the keys of a Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import redis
from hypothesis import strategies as st
from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import NullType

from anarchon_celery.protocol import LATEST
from anarchon_celery.stores import open_store
from anarchon_celery.stores.sql import SqlStore
from tests.fuzz.values import NUMBERS, TEXTS
from tests.stage import T

TIMES = st.sampled_from(
    [T, T + 1_000, T + 2_500, T + 3_600_000, T - 10**9, LATEST, LATEST + 1, 2**53 - 1]
)
HASHES = st.sampled_from(
    ['[["h", 1, null, 1]]', '[["h"]]', '[[1, 2, 3, 4]]', '{"a": 1}', '[["h", 1, 1e30, 1]]']
)
CELLS = st.none() | TIMES | NUMBERS | TEXTS | HASHES | st.sampled_from([b'\xff', b''])
SCORES = TIMES | st.sampled_from([0.0, -1.0, float('inf'), float('-inf'), 1e308, 0.5, T + 0.4])
MEMBERS = TEXTS | st.sampled_from(
    [
        'bad\x000\x00scheduled',
        f'bad\x00{T:015}\x00scheduled',
        'bad\x00' + '9' * 40 + '\x00x',
        '\x00\x00',
        'good\x00-1\x00',
        f'bad\x00{T}\x00scheduled',
        f'good\x00{T}\x00scheduled',
        'bad\x00' + '9' * 400 + '\x00x',
    ]
)
NODES = st.sampled_from(
    [
        '{"name": "a", "seen": 1, "kind": "worker"}',
        '{"name": "a", "seen": 1e300, "kind": "beat"}',
        '{"name": "a", "seen": 1, "kind": "beat", "clock_offset": 0.5}',
        '{"name": "a", "seen": 1}',
        '{"name": 5}',
        '{"seen": "x"}',
        '[1]',
        '5',
        'null',
        '{"name": "a"}',
    ]
)

#: What no script sets anew where somebody made it something else: it may be somebody else's.
PEOPLES = ('{anarchon}:meta', '{anarchon}:jobs')

#: What is of all jobs, and not only found by it.
SHARED = (*PEOPLES, '{anarchon}:nodes')

#: How many edits are made at once.
MANY = st.integers(1, 4)


@dataclass
class Edited:
    """What was done; ``shared`` is what belongs to all jobs, and ``mend`` takes back what only people can."""

    done: list[str] = field(default_factory=list)
    shared: bool = False
    mend: Callable[[], None] = lambda: None


def edits_of(data: st.DataObject, url: str) -> Edited:
    """Make some edits to what the store at ``url`` keeps."""
    if url.startswith('redis:'):
        with redis.Redis.from_url(url) as client:
            return _to_keys(data, client, url)
    store = cast(SqlStore, open_store(url))
    with closing(store):
        return _to_tables(data, store, url)


# Tables -----------------------------------------------------------------------------------------


def _to_tables(data: st.DataObject, store: SqlStore, url: str) -> Edited:
    tables, edited = store._tables, Edited()
    names = {'runs': tables.runs, 'jobs': tables.jobs, 'nodes': tables.nodes, 'meta': tables.meta}
    with store._engine.begin() as connection:
        meta = [dict(row._mapping) for row in connection.execute(select(tables.meta))]
    for _ in range(data.draw(MANY, 'edits')):
        name = data.draw(st.sampled_from(['runs', 'runs', 'runs', 'jobs', 'jobs', 'nodes', 'meta']), 'table')
        table = names[name]
        key = [column for column in table.primary_key]
        with store._engine.begin() as connection:
            rows = [row for row in connection.execute(select(*key)).all() if row[0] != 'good']
        if not rows:
            continue
        row = data.draw(st.sampled_from(rows), 'row')
        columns = [column for column in table.c if column.name != 'phase']
        column, cell = data.draw(st.sampled_from(columns), 'column'), data.draw(CELLS, 'cell')
        here = [
            column == bindparam(f'k{n}', part, type_=NullType())
            for n, (column, part) in enumerate(zip(key, row, strict=True))
        ]
        statement: Any = (
            update(table).where(*here).values({column: bindparam('cell', cell, type_=NullType())})
        )
        if data.draw(st.integers(0, 9), 'is it deleted') == 0:
            statement, cell = delete(table).where(*here), 'deleted'
        with (
            suppress(SQLAlchemyError, OverflowError, ValueError, TypeError),
            store._engine.begin() as connection,
        ):
            connection.execute(statement)  # what the database does not take is no edit
            edited.done.append(f'{name}.{column.name} of {tuple(row)}: {cell!r:.60}')
            edited.shared |= name in ('meta', 'nodes')
    edited.mend = lambda: _mend_tables(url, meta)
    return edited


def _mend_tables(url: str, meta: list[dict[str, Any]]) -> None:
    """Put back what says which store this is, as somebody would from a backup."""
    with closing(cast(SqlStore, open_store(url))) as store, store._engine.begin() as connection:
        connection.execute(delete(store._tables.meta))
        connection.execute(insert(store._tables.meta), meta)


# Keys -------------------------------------------------------------------------------------------


def _to_keys(data: st.DataObject, client: redis.Redis, url: str) -> Edited:
    edited, kept = Edited(), {key: client.dump(key) for key in PEOPLES}
    for _ in range(data.draw(MANY, 'edits')):
        names = sorted(name for name in client.scan_iter() if not name.endswith(b':good'))
        name = _one_of(data, names, 'key')
        how = data.draw(st.sampled_from(['', '', '', 'gone', 'other']), 'how') or client.type(name).decode()
        with suppress(redis.ResponseError, redis.DataError, UnicodeEncodeError):  # it does not take that
            said = _HOW[how](data, client, name)
            edited.done.append(f'{name!r}: {said}')
            edited.shared |= name.decode() in SHARED
    edited.mend = lambda: _mend_keys(url, kept)
    return edited


def _one_of(data: st.DataObject, names: Sequence[Any], what: str) -> Any:
    """Draw one; not from the names themselves, of which there may be fewer when it is drawn again."""
    return names[data.draw(st.integers(0, 9_999), what) % len(names)]


def _to_hash(data: st.DataObject, client: redis.Redis, name: bytes) -> str:
    field = _one_of(data, sorted(client.hkeys(name)), 'field')
    if data.draw(st.integers(0, 3), 'is it deleted') == 0:
        return f'without {field!r}, {client.hdel(name, field)}'
    cell = data.draw(
        NODES | CELLS if name.endswith(b':nodes') else CELLS.filter(lambda it: it is not None), 'cell'
    )
    return f'{field!r}={cell!r:.60}, {client.hset(name, field, cell)}'


def _to_zset(data: st.DataObject, client: redis.Redis, name: bytes) -> str:
    member, score = data.draw(MEMBERS, 'member'), data.draw(SCORES, 'score')
    return f'with {member!r:.60} at {score}, {client.zadd(name, {member: score})}'


def _to_set(data: st.DataObject, client: redis.Redis, name: bytes) -> str:
    member = data.draw(MEMBERS, 'member')
    return f'with {member!r:.60}, {client.sadd(name, member)}'


def _gone(data: st.DataObject, client: redis.Redis, name: bytes) -> str:
    return f'gone, {client.delete(name)}'


def _other(data: st.DataObject, client: redis.Redis, name: bytes) -> str:
    client.delete(name)
    makes: list[Callable[[], Any]] = [
        lambda: client.set(name, 'x'),
        lambda: client.rpush(name, 'x'),
        lambda: client.sadd(name, 'x'),
        lambda: client.hset(name, 'x', 'y'),
        lambda: client.zadd(name, {'x': 1}),
    ]
    return f'another type, {data.draw(st.sampled_from(makes), "type")()}'


_HOW = {
    'hash': _to_hash,
    'zset': _to_zset,
    'set': _to_set,
    'gone': _gone,
    'other': _other,
    'string': _other,
    'list': _other,
}


def _mend_keys(url: str, kept: dict[str, Any]) -> None:
    with redis.Redis.from_url(url) as client:
        for key, dumped in kept.items():
            client.delete(key)
            client.restore(key, 0, dumped)

"""The tables of the SQL store: which there are, and what their rows may hold.

``<prefix>_meta`` holds texts by name: the version of the tables, which store this is (identity,
created, born, young: :class:`~anarchon_celery.youth.Origin`), and the latest time a poll saw.
``_jobs``, ``_runs`` and ``_nodes`` hold the protocol's values, with a column for each field: texts,
integers, and JSON where a field is a tuple. Reading a row trusts nothing, since somebody may have
edited it by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    ColumnElement,
    Computed,
    Connection,
    Index,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    bindparam,
    event,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.types import TypeEngine

from ..errors import StoreUnusable
from ..protocol import (
    ACTIVE,
    BUFFERED,
    ENDED,
    KINDS,
    LATEST,
    NODE_KINDS,
    TRIGGERS,
    Job,
    KnownSchedule,
    Node,
    Run,
)
from ..youth import Origin
from . import new_identity
from .dialects import Dialect
from .strangers import refuse_strangers
from .upgrades import version_in
from .versions import of_another_version

#: Of the tables' shape: who changes a column raises it, and says in :mod:`.versions` how to upgrade.
VERSION = 4

#: As texts, so that a database can see that they are the conditions of its partial indexes.
_ENDED = ", ".join(f"'{state}'" for state in sorted(ENDED))
_LIVE = f"state NOT IN ({_ENDED})"
_OVER = f"state IN ({_ENDED})"

#: Where there are no partial indexes: 0 for an ended run, 1 for an active one, 2 for one that waits.
_PHASE = f"CASE WHEN {_OVER} THEN 0 WHEN state = '{BUFFERED}' THEN 2 ELSE 1 END"

Value = TypeVar("Value")

#: By the first word of a field's annotation: the column's type, and the type of what stands in it.
_TYPES: dict[str, tuple[type[BigInteger | SmallInteger | Text], type]] = {
    "int": (BigInteger, int), "bool": (SmallInteger, int), "str": (Text, str), "tuple": (Text, str),
}  # fmt: skip

#: What meta holds of the store's origin.
_ORIGIN = ("identity", "created", "born", "young")

#: What is counted, and cannot be below zero.
_COUNTS = {"dispatch", "unstarted", "attempt", "crashes", "fence", "count"}

#: What is an instant, and has to be one that can be said.
_INSTANTS = {
    "slot", "deadline", "not_before", "claimed_at", "queued_at", "started_at", "finished_at", "until",
    "first_seen", "seen", "floor", "paused_at",
}  # fmt: skip


class Shape(Generic[Value]):
    """What the rows of one kind of value look like."""

    def __init__(self, values: type[Value], *key: str, **words: frozenset[str]) -> None:
        """Take the fields from the dataclass; those of ``key`` name a row, ``words`` hold one of these."""
        self.values, self.key = values, key
        annotated = {one.name: str(one.type) for one in fields(values)}  # type: ignore[arg-type]
        self.names = tuple(annotated)
        self._kinds = {name: text.partition(" ")[0].partition("[")[0] for name, text in annotated.items()}
        self._optional = {name for name, text in annotated.items() if text.endswith("None")}
        self._allowed = [
            {_TYPES[kind][1], *([type(None)] if name in self._optional else [])}
            for name, kind in self._kinds.items()
        ]
        self._sound: set[tuple[type, ...]] = set()  # rows of a kind that was looked at already: they are many
        self._counts = _COUNTS & annotated.keys()
        self._instants = _INSTANTS & annotated.keys()
        self._words = words
        self._coded = [name for name, kind in self._kinds.items() if kind in _READ]
        self._cells = attrgetter(*self.names)

    def columns(self, names: TypeEngine[str]) -> Iterable[Column[Any]]:
        """Return the columns; what is looked up is of a length that every database can index."""
        for name, kind in self._kinds.items():
            looked_up = name in self.key or name == "state"
            sort = names if looked_up and kind == "str" else _TYPES[kind][0]()
            yield Column(
                name, sort, primary_key=name in self.key, autoincrement=False, nullable=name in self._optional
            )

    def read(self, row: Iterable[Any]) -> Value:
        """Return the value of a row.

        Raises:
            ValueError: it cannot be one; the message says why.
        """
        cells = dict(zip(self.names, row, strict=True))
        if (types := tuple(map(type, cells.values()))) not in self._sound:
            for (name, cell), allowed in zip(cells.items(), self._allowed, strict=True):
                if type(cell) not in allowed:
                    raise unreadable(name, cell)
            self._sound.add(types)
        for name in self._counts:
            if cells[name] < 0:
                raise unreadable(name, cells[name])
        for name in self._instants:
            if not is_instant(cells[name]):
                raise unreadable(name, cells[name])
        for name, words in self._words.items():
            if cells[name] not in words:
                raise unreadable(name, cells[name])
        for name in self._coded:
            cells[name] = _READ[self._kinds[name]](name, cells[name])
        return self.values(**cells)

    def written(self, value: Value) -> dict[str, Any]:
        """Return the row of a value."""
        row = dict(zip(self.names, self._cells(value), strict=True))
        for name in self._coded:
            row[name] = _written(row[name])
        return row

    def differing(self, stored: Value | None, value: Value) -> dict[str, Any]:
        """Return the columns that have to be written; all of a row that could not be read."""
        if stored is None:
            return self.written(value)
        cells = zip(self.names, self._cells(stored), self._cells(value), strict=True)
        return {name: _written(new) for name, old, new in cells if new != old}

    def key_of(self, value: Value) -> dict[str, Any]:
        """Return what ``is_key`` asks for."""
        return {f"key_{name}": getattr(value, name) for name in self.key}

    def is_key(self, table: Table) -> list[ColumnElement[bool]]:
        """Return the condition that a row is the one of ``key_of``."""
        return [table.c[name] == bindparam(f"key_{name}") for name in self.key]


def is_instant(cell: int | None) -> bool:
    """Whether a field may hold this number, if it names an instant."""
    return cell is None or 0 <= cell <= LATEST


def _bool(name: str, cell: int) -> bool:
    if cell not in (0, 1):
        raise unreadable(name, cell)
    return bool(cell)


def _schedules(name: str, cell: str) -> tuple[KnownSchedule, ...]:
    try:
        known = tuple(
            KnownSchedule(hash, since, floor, seen) for hash, since, floor, seen in json.loads(cell)
        )
    except (TypeError, ValueError):
        raise unreadable(name, cell) from None
    if not all((type(one.hash), type(one.since), type(one.seen)) == (str, int, int) for one in known):
        raise unreadable(name, cell)
    if not all(type(one.floor) in (int, type(None)) for one in known):
        raise unreadable(name, cell)
    if not all(is_instant(at) for one in known for at in (one.since, one.floor, one.seen)):
        raise unreadable(name, cell)
    return known


_READ: dict[str, Callable[[str, Any], Any]] = {"bool": _bool, "tuple": _schedules}


def _written(cell: Any) -> Any:
    if type(cell) is tuple:
        return json.dumps(cell, separators=(",", ":"))
    return int(cell) if type(cell) is bool else cell


def unreadable(name: str, cell: Any) -> ValueError:
    """Return the error that a field holds what it cannot."""
    text = repr(cell)
    return ValueError(f"{name} is {text if len(text) <= 60 else f'{text[:57]}...'}")


JOB: Shape[Job] = Shape(Job, "name")
NODE: Shape[Node] = Shape(Node, "id", kind=NODE_KINDS)


class _RunShape(Shape[Run]):
    """A run's deadline has to fit its state."""

    def read(self, row: Iterable[Any]) -> Run:
        run = super().read(row)
        if run.active and run.deadline is None:
            raise ValueError(f"it is {run.state} and has no deadline")
        return run


RUN = _RunShape(
    Run, "job", "slot", "kind", state=ACTIVE | ENDED | {BUFFERED}, kind=KINDS, trigger=TRIGGERS
)


class Unmade(Exception):
    """The tables are not there, or not whole."""


class Unmet(Exception):
    """What the caller knows of the store is not noted in it."""


@dataclass(slots=True)
class Moment:
    """What time it is in the store, which one it is, and when it noted that the caller's node lives."""

    now: int
    origin: Origin
    latest: int
    noted: int | None = None
    gave_back: bool = False  #: whether runs came to be released in it


class Tables:
    """The four tables of one prefix, as one kind of database has them."""

    def __init__(self, prefix: str, dialect: Dialect) -> None:
        """Lay the tables out; nothing is made yet."""
        self.prefix, self.dialect = prefix, dialect
        self.metadata = MetaData()
        name, value = Column("name", String(64), primary_key=True), Column("value", Text, nullable=False)
        self.meta = self._table("meta", name, value)
        self.jobs = self._table("jobs", *JOB.columns(dialect.names))
        self.runs = self._table("runs", *RUN.columns(dialect.names))
        self.nodes = self._table("nodes", *NODE.columns(dialect.names))
        self.run_row = tuple(self.runs.c)
        self.run_key = (self.runs.c.job, self.runs.c.slot, self.runs.c.kind)
        self._index()
        self._now = literal_column(dialect.now, BigInteger)
        seen = select(self.nodes.c.seen).where(self.nodes.c.id == bindparam("node")).scalar_subquery()
        self._moment = select(self.meta.c.name, self.meta.c.value, self._now, seen)
        named = self.meta.c.name.in_(_ORIGIN)
        self._origin = select(self.meta.c.name, self.meta.c.value).where(named).order_by(self.meta.c.name)

    def _table(self, name: str, *columns: Column[Any]) -> Table:
        table = Table(f"{self.prefix}_{name}", self.metadata, *columns, **self.dialect.table)
        if self.dialect.made is not None:
            said = DDL(self.dialect.made)  # type: ignore[no-untyped-call]
            event.listen(table, "after_create", said)
        return table

    def refuse_long_names(self) -> None:
        """Refuse a prefix that makes names some of which would be one name, cut off."""
        most = self.dialect.longest_name
        if most is not None and (over := len(f"{self.prefix}_runs_finished") - most) > 0:
            long = f"the prefix {self.prefix!r} is too long for names of tables"
            raise StoreUnusable(f"{long}: by {over} letters")

    def _index(self) -> None:
        """Index the live runs by job, those that wait, the ended ones by their end, and all by slot."""
        runs, name = self.runs.c, self.runs.name
        if self.dialect.phased:
            self.live, self.over, self.waiting = map(text, ("phase IN (1, 2)", "phase = 0", "phase = 2"))
            phase = Column("phase", SmallInteger, Computed(_PHASE, persisted=True))
            self.runs.append_column(phase)
            Index(f"{name}_live", phase, *self.run_key)
        else:
            self.live, self.over = text(_LIVE), text(_OVER)
            self._index_the_live()
        Index(f"{name}_finished", runs.finished_at, sqlite_where=self.over, postgresql_where=self.over)
        Index(f"{name}_slot", runs.slot.desc(), runs.job, runs.kind)

    def _index_the_live(self) -> None:
        """In indexes of their own, with a condition. A buffered run is live, and its deadline NULL."""
        runs, name = self.runs.c, self.runs.name
        live: dict[str, Any] = {"sqlite_where": self.live, "postgresql_where": self.live}
        # All of the key, or SQLite would rather read a job's history, which comes in order.
        Index(f"{name}_live", *self.run_key, **live)
        if self.dialect.deadlines_indexed:
            self.waiting = text(f"{_LIVE} AND deadline IS NULL")
            Index(f"{name}_deadline", runs.deadline, *self.run_key, **live)
        else:
            self.waiting = text(f"state = '{BUFFERED}'")
            Index(f"{name}_waiting", *self.run_key, postgresql_where=self.waiting)

    def create(self, connection: Connection, now: int | None) -> None:
        """Make what is not there yet, in a transaction that has no other beside it."""
        self.refuse_others(connection)
        self.metadata.create_all(connection)
        created = connection.execute(select(self._now)).scalar_one() if now is None else now
        said = connection.execute(select(self.meta.c.name, self.meta.c.value))
        known = {name: value for name, value in said}
        meta = {
            "version": VERSION, "identity": new_identity(), "created": created,
            "born": known.get("created", created), "young": 0, "latest": 0,
        }  # fmt: skip
        lacking = [{"name": name, "value": str(meta[name])} for name in sorted(meta.keys() - known.keys())]
        if lacking:
            connection.execute(insert(self.meta), lacking)

    def moment(self, connection: Connection, now: int | None, node: str | None = None) -> Moment:
        """Read which store this is, and the time unless ``now`` says it; refuse another version's tables."""
        rows = connection.execute(self._moment, {"node": node}).all()
        said: dict[str, str] = {row[0]: row[1] for row in rows}
        if said.get("version", str(VERSION)) != str(VERSION):
            raise self._of_another_version(said["version"])
        if not {"version", "latest", *_ORIGIN} <= said.keys():
            raise Unmade(f"{self.meta.name} is not whole")
        noted = rows[0][3] if isinstance(rows[0][3], int) else None
        return Moment(
            rows[0][2] if now is None else now, self._origin_of(said), self._number(said, "latest"), noted
        )

    def _origin_of(self, said: dict[str, str]) -> Origin:
        return Origin(
            identity=said["identity"], created=self._number(said, "created"), born=self._number(said, "born"),
            follows=said["young"] != "0",
        )  # fmt: skip

    def _number(self, said: dict[str, str], name: str) -> int:
        try:
            return int(said[name])
        except ValueError:
            edited = f"{self.meta.name} was edited: {unreadable(name, said[name])}"
            raise StoreUnusable(f"{edited}, where a whole number is right") from None

    def put_origin(self, connection: Connection, change: Callable[[Origin], Origin]) -> Origin:
        """Change which store this is, in a transaction that writes; who comes second sees the change.

        Returns what it is then.
        """
        said = {row[0]: row[1] for row in connection.execute(self._origin.with_for_update())}
        if (changed := change(origin := self._origin_of(said))) != origin:
            values = {"identity": changed.identity, "born": changed.born, "young": int(changed.follows)}
            for name, value in sorted(values.items()):
                self._put(connection, name, str(value))
        return changed

    def version(self, connection: Connection) -> str | None:
        """Return the version that stands in the tables; None where there are none yet."""
        refuse_strangers(connection, self.meta)
        return version_in(connection, self.prefix)

    def refuse_others(self, connection: Connection) -> None:
        """Refuse tables of another version, and such as are somebody else's."""
        if (found := self.version(connection)) not in (None, str(VERSION)):
            raise self._of_another_version(str(found))
        refuse_strangers(connection, self.jobs, self.runs, self.nodes)

    @property
    def shown(self) -> str:
        """What they are called together."""
        return f"the tables {self.prefix}_*"

    def _of_another_version(self, found: str) -> StoreUnusable:
        return of_another_version(found, VERSION, self.shown)

    def put_latest(self, connection: Connection, now: int) -> None:
        """Keep the latest time a poll saw."""
        self._put(connection, "latest", str(now))

    def _put(self, connection: Connection, name: str, value: str) -> None:
        connection.execute(update(self.meta).where(self.meta.c.name == name).values(value=value))

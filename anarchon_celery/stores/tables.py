"""The tables of the SQL store: their columns, what a row may hold, how rows are read and written.

``<prefix>_meta`` holds texts by name: the version of the tables, which store this is, when it was
made, and the latest time a poll saw. ``_jobs``, ``_runs`` and ``_nodes`` have a column for each
field of the protocol's values, under its name: texts, integers, and one JSON text, ``jobs.hashes``.

Somebody may have edited a row by hand. A run that cannot be read counts as ended, a job as not
registered, so that its nodes teach it to the store again; each is a warning once, with its key.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    MetaData,
    Row,
    SmallInteger,
    String,
    Table,
    Text,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    update,
)

from ..errors import StoreUnusable
from ..protocol import ACTIVE, ENDED, Job, Node, Run, RunKey
from ..transitions import Ledger
from .dialects import Dialect

logger = logging.getLogger(__name__)

#: Of the tables' shape. Who changes a column raises it, and says how to upgrade.
VERSION = 1

#: Conditions as texts, so that a database can see that they are those of its partial indexes.
_ENDED = ", ".join(f"'{state}'" for state in sorted(ENDED))
LIVE = text(f"state NOT IN ({_ENDED})")
OVER = text(f"state IN ({_ENDED})")

_KEYS: Mapping[type, tuple[str, ...]] = {Run: ("job", "slot", "kind"), Job: ("name",), Node: ("id",)}
_COUNTS = {"dispatch", "unstarted", "attempt", "crashes", "fence", "count"}
_BEFORE_ALL = (-1, RunKey("", 0, ""))


class Unmade(Exception):
    """The tables are not there yet, or not what they say of themselves."""


class Moment(NamedTuple):
    """Which store this is, and what time it is in it."""

    now: int
    identity: str
    created: int
    latest: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A ledger, and by key the rows it was loaded from; None for one that could not be read."""

    ledger: Ledger
    jobs: dict[str, Job | None] = field(default_factory=dict)
    runs: dict[RunKey, Run | None] = field(default_factory=dict)


class Tables:
    """The four tables of one prefix."""

    def __init__(self, prefix: str, dialect: Dialect) -> None:
        """Lay out the tables as this kind of database has them."""
        self.prefix, self.dialect = prefix, dialect
        self.metadata = MetaData()
        self.meta = Table(
            f"{prefix}_meta", self.metadata,
            Column("name", String(64), primary_key=True), Column("value", Text, nullable=False),
        )  # fmt: skip
        self.jobs, self.runs, self.nodes = (self._table(f"{prefix}_{name}", values) for name, values in (
            ("jobs", Job), ("runs", Run), ("nodes", Node),
        ))  # fmt: skip
        self._index()
        self._prepare()
        self._updates: dict[tuple[Table, tuple[str, ...]], Any] = {}
        self._reported: set[tuple[str, str]] = set()

    def _table(self, name: str, values: type) -> Table:
        key = _KEYS[values]
        return Table(name, self.metadata, *(self._column(one, key) for one in fields(values)))

    def _column(self, one: Field[Any], key: Sequence[str]) -> Column[Any]:
        annotated = str(one.type)
        if one.name in (*key, "state") and annotated == "str":
            kind: Any = String(255, collation=self.dialect.collation)
        else:
            kind = {"int": BigInteger, "bool": SmallInteger}.get(annotated.partition(" ")[0], Text)
        is_key, optional = one.name in key, annotated.endswith("None")
        return Column(one.name, kind, primary_key=is_key, autoincrement=False, nullable=optional)

    def _index(self) -> None:
        """Index the live runs by job and by deadline, and all by slot and by their end."""
        runs, live = self.runs.c, {"sqlite_where": LIVE, "postgresql_where": LIVE}
        name = self.runs.name
        Index(f"{name}_live", runs.job, **live)
        if self.dialect.deadlines_indexed:
            Index(f"{name}_deadline", runs.deadline, runs.job, runs.slot, runs.kind, **live)
        Index(f"{name}_slot", runs.slot.desc(), runs.job, runs.kind)
        Index(f"{name}_finished", runs.finished_at)

    def _prepare(self) -> None:
        """Make the statements that are always the same."""
        runs, jobs, key = self.runs.c, self.jobs.c, self.run_key
        among = self.dialect.among
        self._moment = select(
            self.meta.c.name, self.meta.c.value, literal_column(self.dialect.now, BigInteger)
        )  # fmt: skip
        # Rows are locked, where a database locks rows, in the order of their keys.
        self._jobs_named = (
            select(self.jobs).where(among([jobs.name], "names")).order_by(jobs.name).with_for_update()
        )
        asked = select(self.runs).order_by(*key).with_for_update()
        self._runs_keyed = asked.where(among(key, "keys"))
        self._runs_live = asked.where(LIVE, among([runs.job], "names"))
        self._due = (
            select(self.runs)
            .where(LIVE, runs.deadline <= bindparam("now"))
            .where(
                tuple_(runs.deadline, *key)
                > tuple_(bindparam("deadline"), bindparam("job"), bindparam("slot"), bindparam("kind"))
            )
            .order_by(runs.deadline, *key)
            .limit(bindparam("limit"))
        )
        self._next = select(func.min(runs.deadline)).where(LIVE, runs.deadline > bindparam("now"))
        self._known_since = select(jobs.name).where(among([jobs.name], "names"), jobs.seen >= bindparam("since"))
        self._delete = delete(self.runs).where(*(column == bindparam(f"key_{column.name}") for column in key))

    @property
    def run_key(self) -> tuple[Column[Any], Column[Any], Column[Any]]:
        """The columns that name a run."""
        return self.runs.c.job, self.runs.c.slot, self.runs.c.kind

    # the store itself ---------------------------------------------------------------------------

    def create(self, connection: Connection) -> None:
        """Make what is not there yet; one transaction that no other can be beside."""
        self.metadata.create_all(connection)
        now = connection.execute(select(literal_column(self.dialect.now, BigInteger))).scalar_one()
        known = set(connection.execute(select(self.meta.c.name)).scalars())
        made = {"version": VERSION, "identity": secrets.token_hex(8), "created": now, "latest": 0}
        rows = [{"name": name, "value": str(value)} for name, value in sorted(made.items()) if name not in known]
        if rows:
            connection.execute(insert(self.meta), rows)

    def moment(self, connection: Connection, now: int | None) -> Moment:
        """Read which store this is and what time it is, unless ``now`` says that; refuse another version."""
        rows = connection.execute(self._moment).all()
        said = {row[0]: row[1] for row in rows}
        if not {"version", "identity", "created", "latest"} <= said.keys():
            raise Unmade(f"{self.meta.name} lacks rows")
        if said["version"] != str(VERSION):
            raise StoreUnusable(
                f"the tables {self.prefix}_* are of version {said['version']}, "
                f"this anarchon_celery knows version {VERSION}: use the one that made them"
            )
        try:
            return Moment(
                now=rows[0][2] if now is None else now,
                identity=said["identity"], created=int(said["created"]), latest=int(said["latest"]),
            )  # fmt: skip
        except ValueError as reason:
            raise StoreUnusable(f"a row of {self.meta.name} cannot be read: {reason}") from None

    def put_latest(self, connection: Connection, now: int) -> None:
        """Keep the latest time a poll saw."""
        connection.execute(update(self.meta).where(self.meta.c.name == "latest").values(value=str(now)))

    # what a step works on -----------------------------------------------------------------------

    def load(
        self, connection: Connection, moment: Moment, *,
        keys: Iterable[RunKey] = (), jobs: Iterable[str] = (), live: bool = False,
    ) -> Loaded:  # fmt: skip
        """Load these runs and jobs, and all live runs of the jobs if asked: a statement for each kind."""
        asked, named = self.dialect.listed(sorted(set(keys))), self.dialect.listed([[n] for n in sorted(set(jobs))])
        found = connection.execute(self._jobs_named, {"names": named}).all() if jobs else []
        rows = list(connection.execute(self._runs_keyed, {"keys": asked})) if keys else []
        if live:
            rows += connection.execute(self._runs_live, {"names": named})
        return self.loaded(moment, found, rows)

    def load_ahead(self, connection: Connection, moment: Moment) -> Loaded:
        """Load what lies further ahead than it could have been set: the store's clock went back."""
        runs, jobs, now = self.runs.c, self.jobs.c, moment.now
        ahead = select(self.runs).where(LIVE, runs.deadline > now + runs.span).order_by(*self.run_key)
        names = select(runs.job).where(LIVE, runs.deadline > now + runs.span)
        found = select(self.jobs).where(or_(jobs.floor > now, jobs.name.in_(names))).order_by(jobs.name)
        return self.loaded(
            moment,
            connection.execute(found.with_for_update()).all(),
            connection.execute(ahead.with_for_update()).all(),
        )

    def loaded(self, moment: Moment, jobs: Iterable[Row[Any]], runs: Iterable[Row[Any]]) -> Loaded:
        """Return rows as a ledger."""
        loaded = Loaded(Ledger(created=moment.created))
        for row in jobs:
            loaded.jobs[row.name] = self._job(row)
        for row in runs:
            loaded.runs[RunKey(row.job, row.slot, row.kind)] = self._run(row)
        return loaded

    def save(self, connection: Connection, loaded: Loaded) -> None:
        """Write what a step changed, and of each row only that."""

"""The records of the SQL store: the protocol's values, read from the tables and written to them.

A row that somebody edited by hand so that it cannot be read stops nothing but itself: a run counts
as ended, a job as not registered, so that its nodes teach it to the store again. Each is one
warning, with its key.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Insert,
    Row,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    union,
    update,
)

from ..errors import shortened
from ..folding import chains, foldable
from ..ledger import Ledger
from ..logged import fields
from ..protocol import BUFFERED, ENDED, KINDS, ORPHANED_AFTER, Expired, Job, Node, Run, RunKey, Success
from . import WELL, new_identity
from .tables import JOB, NODE, RUN, Moment, Shape, Tables, is_instant

logger = logging.getLogger(__name__)

#: How many jobs' histories are counted at once, and rows looked at; and for how many seconds by one call.
JOBS_AT_ONCE = 100
ROWS_AT_ONCE = 2_000
LOOK_FOR = 0.2

#: Rows of jobs that this transaction has.
Locked = Sequence[Row[Any]]

_BEFORE_ALL = (-1, RunKey("", 0, ""))


class Place(NamedTuple):
    """Where a look at the runs begins, in the order of their keys."""

    job: str
    slot: int


FIRST = Place("", 0)


class Loaded(NamedTuple):
    """A ledger, and what it was loaded from, by key; None is a job that cannot be read."""

    ledger: Ledger
    jobs: dict[str, Job | None]
    runs: dict[RunKey, Run]


class Write(NamedTuple):
    """How rows are written: each by itself, or many by one statement, if there is one."""

    each: Insert | Update
    many: Insert | Update | None


class Records:
    """What stands in the tables."""

    def __init__(self, tables: Tables) -> None:
        """Make the statements that are always the same."""
        self.jobs, self.runs, self.nodes = tables.jobs, tables.runs, tables.nodes
        self.run_key, self.dialect = tables.run_key, tables.dialect
        self._live, self._over, self._waiting = tables.live, tables.over, tables.waiting
        self._all_runs = select(*tables.run_row)
        self._writes: dict[tuple[str, tuple[str, ...]], Write] = {}
        self._alike: dict[tuple[str, tuple[str, ...]], Update] = {}
        self._warned: set[str] = set()
        self._prepare_steps()
        self._prepare_looks()
        self._prepare_history()

    def _prepare_steps(self) -> None:
        jobs, runs, among = self.jobs.c, self.runs.c, self.dialect.among
        # Rows are locked, where a database locks rows, in the order of their keys.
        self._jobs_named = self._locked(
            select(self.jobs).where(among([jobs.name], "names")).order_by(jobs.name), self.jobs
        )
        other = self.runs.alias()
        self._waits = select(other.c.job).where(self._waiting, among([other.c.job], "waiting"))
        self._waits = self._by_index(self._waits, other, f"{self.runs.name}_live")
        self._ways: dict[str, ColumnElement[bool]] = {
            "keys": among(self.run_key, "keys"),
            "live": and_(self._live, among([runs.job], "live")),
            "waiting": and_(self._live, self.dialect.within(runs.job, self._waits)),
        }
        live_keys = select(*self.run_key).where(self._ways["live"])
        self._live_keys = self._by_index(live_keys, self.runs, f"{self.runs.name}_live")
        self._finding: dict[tuple[str, ...], Select[Any]] = {}
        self._drop = delete(self.runs).where(*RUN.is_key(self.runs))
        self._see = update(self.nodes).where(*NODE.is_key(self.nodes)).values(seen=bindparam("seen"))

    def _locked(self, asked: Select[Any], table: Table) -> Select[Any]:
        return self._by_index(asked, table, "PRIMARY").with_for_update()

    def _by_index(self, asked: Select[Any], table: FromClause, index: str) -> Select[Any]:
        """Where a planner has to be told: it takes another index that has more in it, or locks more."""
        hint = self.dialect.by_index
        return asked if hint is None else asked.with_hint(table, hint.format(index))

    def _prepare_looks(self) -> None:
        jobs, runs, among = self.jobs.c, self.runs.c, self.dialect.among
        self._run = self._all_runs.where(*RUN.is_key(self.runs))
        in_order = (runs.deadline, *self.run_key)
        after: list[Any] = [bindparam(f"after_{column.name}") for column in in_order]
        self._due = (
            self._all_runs
            .where(self._live, runs.deadline <= bindparam("now"), tuple_(*in_order) > tuple_(*after))
            .order_by(*in_order)
            .limit(bindparam("most"))
        )
        self._next = select(func.min(runs.deadline)).where(self._live, runs.deadline > bindparam("now"))
        self._known_since = select(jobs.name).where(
            among([jobs.name], "names"), jobs.seen >= bindparam("since")
        )

    def _prepare_history(self) -> None:
        jobs, runs, number = self.jobs.c, self.runs.c, func.count()
        page = select(jobs.name).where(jobs.name > bindparam("after")).order_by(jobs.name)
        self._page = page.limit(JOBS_AT_ONCE)
        named = self.dialect.among([runs.job], "names")
        by_job = select(runs.job, number).where(named).group_by(runs.job)
        self._numbers = by_job.having(number > bindparam("most")).order_by(runs.job)
        self._live_numbers = by_job.where(self._live)
        over = select(*self.run_key).where(self._over).limit(bindparam("most"))
        look = select(runs.job, runs.slot, runs.state, runs.reason, runs.finished_at, runs.until)
        job: Any = bindparam("job")
        slot: Any = bindparam("slot")
        onward = (runs.job >= job, or_(runs.job > job, runs.slot >= slot))
        look = look.where(runs.kind == "scheduled", *onward).limit(bindparam("most"))
        # By what is not fixed of the key: else a planner would sort.
        self._in_order = self._by_index(look.order_by(runs.job, runs.slot), self.runs, "PRIMARY")
        self._jobs_seen = select(self.jobs).where(self.dialect.among([jobs.name], "names"))
        of_job = (runs.job == job, runs.slot >= slot, runs.kind == bindparam("kind"))
        self._since = select(*self.run_key).where(*of_job).order_by(runs.slot)
        self._oldest = over.where(runs.job == bindparam("job")).order_by(runs.slot, runs.kind.desc())
        self._aged = over.where(runs.finished_at < bindparam("oldest")).order_by(runs.finished_at)

    # what a step works on -----------------------------------------------------------------------

    def lock(self, connection: Connection, names: Sequence[str]) -> Sequence[Row[Any]]:
        """Take these jobs, in their order: who has them is alone with their runs, but for heartbeats."""
        if not names:
            return ()
        return connection.execute(self._jobs_named, self._listed(names=[(name,) for name in names])).all()

    def load(
        self, connection: Connection, moment: Moment, jobs: Sequence[Row[Any]] = (), *,
        keys: Sequence[RunKey] = (), live: Sequence[str] = (), waiting: Sequence[str] = (),
    ) -> Loaded:  # fmt: skip
        """Load these runs; all live ones of ``live`` jobs, and of those ``waiting`` jobs of which one waits.

        ``jobs`` are the rows of :meth:`lock`.
        """
        if self.dialect.keys_first:
            keys, live, waiting = self._all_keys(connection, keys, live, waiting), (), ()
        ways: dict[str, Sequence[tuple[Any, ...]]] = {
            "keys": keys, "live": [(name,) for name in live], "waiting": [(name,) for name in waiting],
        }  # fmt: skip
        ways = {way: rows for way, rows in ways.items() if rows}
        runs = connection.execute(self._runs_found(ways), self._listed(**ways)).all() if ways else ()
        return self._loaded(moment, jobs, runs)

    def _listed(self, **ways: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        listed: dict[str, Any] = {}
        for way, rows in ways.items():
            listed |= self.dialect.listed(way, sorted(set(rows)))
        return listed

    def _all_keys(
        self, connection: Connection, keys: Sequence[RunKey], live: Sequence[str], waiting: Sequence[str]
    ) -> Sequence[RunKey]:
        """Look for keys without a lock: who has the jobs is alone with their runs."""
        if waiting:
            asked = self._listed(waiting=[(name,) for name in waiting])
            live = [*live, *connection.execute(self._waits, asked).scalars()]
        if not live:
            return keys
        found = connection.execute(self._live_keys, self._listed(live=[(name,) for name in live]))
        return [*keys, *(RunKey(*row) for row in found)]

    def _runs_found(self, ways: Iterable[str]) -> Select[Any]:
        """The statement that finds runs in these ways; there are not many, and each is made once."""
        if (asked := tuple(ways)) not in self._finding:
            conditions = [self._ways[way] for way in asked]
            if len(asked) > 1 and self.dialect.keys_united:
                united = union(*(select(*self.run_key).where(one) for one in conditions))
                conditions = [tuple_(*self.run_key).in_(united)]
            found = self._all_runs.where(or_(*conditions)).order_by(*self.run_key)
            self._finding[asked] = self._locked(found, self.runs)
        return self._finding[asked]

    def load_ahead(self, connection: Connection, moment: Moment) -> Loaded:
        """Load all jobs, and the runs whose deadline lies further ahead than it can have been set.

        And those that wait for a later time than now.
        """
        runs = self.runs.c
        too_far = runs.deadline > moment.now + runs.span
        waiting = and_(runs.state == BUFFERED, runs.not_before > moment.now)
        ahead = select(*self.run_key).where(self._live, or_(too_far, waiting))
        named = select(self.jobs).order_by(self.jobs.c.name)
        jobs = connection.execute(self._locked(named, self.jobs)).all()
        return self.load(connection, moment, jobs, keys=[RunKey(*row) for row in connection.execute(ahead)])

    def _loaded(self, moment: Moment, jobs: Iterable[Row[Any]], runs: Iterable[Row[Any]]) -> Loaded:
        of_jobs = {row.name: self._job_of(row) for row in jobs}
        of_runs = {run.key: run for run in map(self._run_of, runs)}
        known = [job for job in of_jobs.values() if job is not None]
        ledger = Ledger(known, of_runs.values(), origin=moment.origin, next_identity=new_identity())
        return Loaded(ledger, of_jobs, of_runs)

    def save(self, connection: Connection, loaded: Loaded) -> None:
        """Write what a step changed: new rows whole, of the others the columns that differ."""
        ledger = loaded.ledger
        self._put(connection, self.jobs, JOB, ledger.changed_jobs, loaded.jobs)
        self._put(connection, self.runs, RUN, ledger.changed_runs, loaded.runs)

    def _put(
        self, connection: Connection, table: Table, shape: Shape[Any],
        changed: Mapping[Any, Any], stored: Mapping[Any, Any],
    ) -> None:  # fmt: skip
        fresh: list[dict[str, Any]] = []
        moved: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for key, value in sorted(changed.items(), key=itemgetter(0)):
            if key not in stored:
                fresh.append(shape.written(value))
            elif differing := shape.differing(stored[key], value):
                moved.setdefault(tuple(differing), []).append(differing | shape.key_of(value))
        if fresh:
            self._write(connection, self._insert(table, shape), fresh)
        for names, rows in moved.items():
            if self.dialect.alike_at_once:
                rows = self._write_alike(connection, table, shape, names, rows)
            self._write(connection, self._update(table, shape, names), rows)

    def _write_alike(
        self, connection: Connection, table: Table, shape: Shape[Any], names: tuple[str, ...],
        rows: Sequence[dict[str, Any]],
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Write the rows that come to have the same here, as renewed leases do; return the others."""
        alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for row in rows:
            alike.setdefault(tuple(row[name] for name in names), []).append(row)
        for cells, some in alike.items():
            if len(some) > 1:
                keys = self._listed(keys=[tuple(row[f"key_{name}"] for name in shape.key) for row in some])
                update = self._update_alike(table, shape, names)
                connection.execute(update, dict(zip(names, cells, strict=True)) | keys)
        return [some[0] for some in alike.values() if len(some) == 1]

    def _write(self, connection: Connection, write: Write, rows: Sequence[dict[str, Any]]) -> None:
        if not rows:
            return
        if write.many is None or len(rows) == 1:
            connection.execute(write.each, rows)
        else:
            connection.execute(write.many, {name: [row[name] for row in rows] for name in rows[0]})

    def _insert(self, table: Table, shape: Shape[Any]) -> Write:
        """The statements that write new rows; as those below, made once."""
        if (known := self._writes.get((table.name, ()))) is not None:
            return known
        many = None
        if self.dialect.rows is not None:
            rows = self.dialect.rows({name: table.c[name].type.python_type for name in shape.names})
            many = insert(table).from_select(shape.names, select(*rows.c))
        return self._writes.setdefault((table.name, ()), Write(insert(table), many))

    def _update(self, table: Table, shape: Shape[Any], names: tuple[str, ...]) -> Write:
        """The statements that write these columns of rows; there are not many."""
        if (known := self._writes.get((table.name, names))) is not None:
            return known
        many = None
        values: dict[str, Any] = {name: bindparam(name) for name in names}
        if self.dialect.rows is not None:
            key = {f"key_{name}": name for name in shape.key}
            cells = {name: table.c[key.get(name, name)].type.python_type for name in (*names, *key)}
            rows = self.dialect.rows(cells)
            same = [table.c[name] == rows.c[cell] for cell, name in key.items()]
            many = update(table).where(*same).values({name: rows.c[name] for name in names})
        each = update(table).where(*shape.is_key(table)).values(values)
        return self._writes.setdefault((table.name, names), Write(each, many))

    def _update_alike(self, table: Table, shape: Shape[Any], names: tuple[str, ...]) -> Update:
        """The statement that writes the same into all rows of these keys; made once, as those above."""
        if (known := self._alike.get((table.name, names))) is not None:
            return known
        key = [table.c[name] for name in shape.key]
        written = update(table).where(self.dialect.among(key, "keys"))
        if self.dialect.by_index is not None:
            written = written.with_hint(self.dialect.by_index.format("PRIMARY"))
        written = written.values({name: bindparam(name) for name in names})
        return self._alike.setdefault((table.name, names), written)

    def drop(self, connection: Connection, keys: Sequence[RunKey]) -> None:
        """Delete these runs."""
        rows = [{f"key_{name}": part for name, part in key._asdict().items()} for key in sorted(keys)]
        if rows:
            connection.execute(self._drop, rows)

    # what is looked at --------------------------------------------------------------------------

    def due(
        self, connection: Connection, now: int, limit: int, after: tuple[int, RunKey] | None
    ) -> Expired:
        """Return a page of the runs past their deadline; see :meth:`Store.expired`."""
        due: list[Run] = []
        while len(due) < limit:
            deadline, key = after or _BEFORE_ALL
            place = {f"after_{name}": part for name, part in {"deadline": deadline, **key._asdict()}.items()}
            rows = connection.execute(self._due, {"now": now, "most": limit, **place}).all()
            due += [run for run in map(self._run_of, rows) if run.active]
            if len(rows) < limit:
                break
            # More than once only where rows cannot be read.
            after = rows[-1].deadline, RunKey(rows[-1].job, rows[-1].slot, rows[-1].kind)
        upcoming = connection.execute(self._next, {"now": now}).scalar_one()
        due = due[:limit]
        return Expired(runs=tuple(due), next_deadline=upcoming, orphaned=self._orphaned(connection, now, due))

    def _orphaned(self, connection: Connection, now: int, due: Sequence[Run]) -> frozenset[str]:
        jobs = {run.job for run in due}
        if not jobs:
            return frozenset()
        asked = {"since": now - ORPHANED_AFTER, **self._listed(names=[(job,) for job in jobs])}
        return frozenset(jobs.difference(connection.execute(self._known_since, asked).scalars()))

    def run(self, connection: Connection, key: RunKey) -> Run | None:
        """Return one run."""
        row = connection.execute(self._run, {f"key_{n}": part for n, part in key._asdict().items()}).first()
        return None if row is None else self._run_of(row)

    def find_runs(self, connection: Connection, job: str | None, state: str | None, limit: int) -> list[Run]:
        """Return runs, newest slot first."""
        runs, asked = self.runs.c, self._all_runs
        newest_first: ColumnElement[Any] = runs.slot.desc()
        if job is not None:
            asked = asked.where(runs.job == job)
        if state is not None:
            asked = asked.where(runs.state == state)
        if state is not None and state not in ENDED:
            # By the index of the few live ones, not through all slots in their order.
            asked, newest_first = asked.where(self._live), -runs.slot
        rows = connection.execute(asked.order_by(newest_first, runs.job, runs.kind).limit(limit))
        # One of a kind that is none has no name that anybody could ask for.
        return [run for run in map(self._run_of, rows) if run.kind in KINDS]

    def all_jobs(self, connection: Connection) -> list[Job]:
        """Return all jobs, by name."""
        rows = connection.execute(select(self.jobs).order_by(self.jobs.c.name))
        return [job for job in map(self._job_of, rows) if job is not None]

    def successes(self, connection: Connection) -> dict[str, Success]:
        """Return of each job the newest slot that was run well, and when that ended."""
        runs = self.runs.c
        well = runs.state.in_(WELL)
        newest = select(runs.job, func.max(runs.slot).label("slot")).where(well).group_by(runs.job).subquery()
        rows = connection.execute(
            select(runs.job, runs.slot, func.max(runs.finished_at))
            .join(newest, and_(runs.job == newest.c.job, runs.slot == newest.c.slot))
            .where(well)
            .group_by(runs.job, runs.slot)
        )
        return {job: Success(slot, finished_at or slot) for job, slot, finished_at in rows}

    def aged(self, connection: Connection, oldest: int, limit: int) -> list[RunKey]:
        """Return ended runs from before ``oldest``."""
        rows = connection.execute(self._aged, {"oldest": oldest, "most": limit})
        return [RunKey(*row) for row in rows]

    def since(self, connection: Connection, job: str, slot: int, kind: str) -> list[RunKey]:
        """Return runs of a job and a kind, from that slot on."""
        asked = {"job": job, "slot": slot, "kind": kind}
        return [RunKey(*row) for row in connection.execute(self._since, asked)]

    def ended_of(self, connection: Connection, job: str, limit: int) -> list[RunKey]:
        """Return ended runs of a job, oldest first."""
        rows = connection.execute(self._oldest, {"job": job, "most": limit})
        return [RunKey(*row) for row in rows]

    def surplus(
        self, connection: Connection, most: int, limit: int, after: str
    ) -> tuple[list[RunKey], str]:
        """Return ended runs beyond the ``most`` newest of their job.

        The jobs are looked at page by page, for a while: from the one behind ``after``, to the one that
        is returned; after the last one it is none.
        """
        doomed: list[RunKey] = []
        until = time.monotonic() + LOOK_FOR
        while names := connection.execute(self._page, {"after": after}).scalars().all():
            doomed += self._surplus(connection, names, most, limit)
            if len(doomed) >= limit:
                return doomed[:limit], after
            after = names[-1]
            if time.monotonic() > until:
                return doomed, after
        return doomed, ""

    def foldable(
        self, connection: Connection, now: int, limit: int, at: Place
    ) -> tuple[list[list[RunKey]], Place]:
        """Return chains of skips, of which ``limit`` may go.

        The runs are looked at page by page, for a while: from ``at`` on, to the place that is returned;
        after the last one it is the first.
        """
        found: list[list[RunKey]] = []
        left, many, until = limit, max(ROWS_AT_ONCE, limit + 1), time.monotonic() + LOOK_FOR
        while True:
            asked = {"job": at.job, "slot": at.slot, "most": many}
            rows = connection.execute(self._in_order, asked).all()
            whole, onward = _whole_chains(rows, now, is_last=len(rows) < many)
            for keys in self._allowed(connection, whole, now, limit):
                found.append(keys[: left + 1])
                left -= len(found[-1]) - 1
                if left == 0:
                    return found, at
            at = onward
            if at == FIRST or time.monotonic() > until:
                return found, at

    def _allowed(
        self, connection: Connection, whole: Sequence[Sequence[Any]], now: int, limit: int
    ) -> Iterator[list[RunKey]]:
        """The keys of these chains, as far as their jobs let them be folded."""
        if not whole:
            return
        listed = self._listed(names=[(name,) for name in {chain[0].job for chain in whole}])
        jobs = {row.name: self._job_of(row) for row in connection.execute(self._jobs_seen, listed)}
        for chain in whole:
            if keys := foldable(chain, jobs.get(chain[0].job), now, limit):
                yield keys

    def _surplus(self, connection: Connection, names: Sequence[str], most: int, limit: int) -> list[RunKey]:
        """The oldest of each job that has too many: found from the old end, so that few rows are read."""
        listed = self._listed(names=[(name,) for name in names])
        numbers = connection.execute(self._numbers, {"most": most, **listed}).all()
        if not numbers:
            return []
        live = {job: number for job, number in connection.execute(self._live_numbers, listed)}
        doomed: list[RunKey] = []
        for job, number in numbers:
            surplus = min(number - live.get(job, 0) - most, limit - len(doomed))
            if surplus > 0:
                rows = connection.execute(self._oldest, {"job": job, "most": surplus})
                doomed += [RunKey(*row) for row in rows]
        return doomed

    # nodes --------------------------------------------------------------------------------------

    def node(self, connection: Connection, id: str) -> Node | None:
        """Return one node."""
        row = connection.execute(select(self.nodes).where(self.nodes.c.id == id)).first()
        return None if row is None else self._node_of(row)

    def put_node(self, connection: Connection, node: Node, moment: Moment) -> None:
        """Keep a node, and that it lives."""
        row = NODE.written(replace(node, seen=moment.now))
        moment.noted = moment.now
        write = self._update(self.nodes, NODE, tuple(row)).each
        known = connection.execute(write, row | NODE.key_of(node))
        if not known.rowcount:
            connection.execute(insert(self.nodes), row)

    def note(self, connection: Connection, id: str | None, moment: Moment) -> None:
        """Note that a node lives, if it is known."""
        if id is not None and connection.execute(self._see, {"key_id": id, "seen": moment.now}).rowcount:
            moment.noted = moment.now

    def drop_node(self, connection: Connection, node: Node) -> None:
        """Forget a node."""
        connection.execute(delete(self.nodes).where(*NODE.is_key(self.nodes)), NODE.key_of(node))

    def drop_nodes(self, connection: Connection, before: int) -> None:
        """Forget nodes that were last seen before then, by key: what is only looked at is not locked."""
        nodes = self.nodes.c
        found = select(nodes.id).where(nodes.seen < before).order_by(nodes.id)
        if gone := connection.execute(found).scalars().all():
            connection.execute(
                delete(self.nodes).where(*NODE.is_key(self.nodes)), [{"key_id": id} for id in gone]
            )

    def all_nodes(self, connection: Connection) -> list[Node]:
        """Return all nodes, by name."""
        nodes = self.nodes.c
        rows = connection.execute(select(self.nodes).order_by(nodes.name, nodes.id))
        return [node for node in map(self._node_of, rows) if node is not None]

    # rows that somebody may have edited ---------------------------------------------------------

    def _run_of(self, row: Row[Any]) -> Run:
        try:
            return RUN.read(row)
        except ValueError as reason:
            slot = row.slot if isinstance(row.slot, int) and is_instant(row.slot) else 0
            self._warn(self.runs, f"{RunKey(row.job, slot)} ({row.kind})", reason)
            return Run(
                job=row.job, slot=slot, kind=row.kind, state="abandoned",
                reason=f"its row in {self.runs.name} cannot be read: {reason}",
            )  # fmt: skip

    def _job_of(self, row: Row[Any]) -> Job | None:
        try:
            return JOB.read(row)
        except ValueError as reason:
            self._warn(self.jobs, row.name, reason)
            return None

    def _node_of(self, row: Row[Any]) -> Node | None:
        try:
            return NODE.read(row)
        except ValueError as reason:
            self._warn(self.nodes, row.id, reason)
            return None

    def _warn(self, table: Table, key: str, reason: ValueError) -> None:
        said = f"{table.name}: the row of {key} cannot be read and is left out: {reason}"
        if said not in self._warned:
            self._warned.add(said)
            logger.warning("[anarchon] %s", shortened(said), extra={**fields("record_unreadable")})


def _whole_chains(
    rows: Sequence[Any], now: int, *, is_last: bool
) -> tuple[list[list[Any]], Place]:
    """The chains of a page, and where the next one begins: with the chain that may go on there."""
    found = list(chains(rows, now))
    if is_last:
        return found, FIRST
    last = rows[-1]
    if found and found[-1][-1] is last and found[-1][0] is not rows[0]:
        last = found.pop()[0]
    return found, Place(last.job, last.slot)

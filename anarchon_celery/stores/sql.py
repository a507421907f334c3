"""The SQL store: the protocol's transitions, each in one transaction, timed by the database.

How a step is done is in :mod:`.transactions`; :mod:`.records` reads and writes the tables of
:mod:`.tables`. What one kind of database does differently is in :mod:`.dialects`, which also says what
SQLite promises here. This module says of each verb what it has to look at.

URLs are SQLAlchemy's: ``sqlite:///jobs.db`` is a file where the process was started,
``sqlite:////srv/jobs.db`` an absolute one, ``sqlite://`` is in memory, for tests: gone when closed.
Options are those of SQLAlchemy's ``create_engine``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from .. import claiming, folding, transitions
from ..ledger import Ledger
from ..protocol import (
    ASKED_AGAIN_WITHIN,
    BACKFILL,
    GONE_AFTER,
    MANUAL,
    Claim,
    Claimed,
    Expired,
    Holding,
    Job,
    Node,
    Offer,
    Redispatch,
    Registered,
    Registration,
    Release,
    Renewal,
    Request,
    Requested,
    Run,
    RunKey,
    Sent,
    Settle,
    Stale,
    Start,
    Started,
    Success,
)
from . import Upgrade
from .budget import at_most, is_late
from .dialects import LONGEST_CALL
from .records import FIRST, Locked
from .tables import VERSION, Moment
from .transactions import REPEATS, Answer, TransactionalStore
from .upgrades import go
from .versions import read_version, ways_from

#: What finds runs that may go, at most so many: each alone, or several that become one.
Search = Callable[[Connection, int, int], list[list[RunKey]]]

#: What an idle poll leaves as it is: a node seen less long ago, a latest time this close.
SEEN_EVERY = 5_000
LATEST_EVERY = 1_000


def open_store(
    url: str, *, prefix: str = "anarchon", options: Mapping[str, Any] | None = None,
    within: float = LONGEST_CALL,
) -> SqlStore:  # fmt: skip
    """Return the store at ``url``; nothing is connected until the first verb."""
    return SqlStore(url, prefix=prefix, options=options, within=within)


class SqlStore(TransactionalStore):
    """A store in a database; each object has connections of its own, opened when they are needed."""

    def __init__(
        self, url: str, *, prefix: str = "anarchon", options: Mapping[str, Any] | None = None,
        within: float = LONGEST_CALL,
    ) -> None:  # fmt: skip
        """Prepare the engine; see :func:`open_store`."""
        super().__init__(url, prefix=prefix, options=options, within=within)
        self._latest: int | None = None
        self._pruned_to, self._folded_to = "", FIRST

    # beat ---------------------------------------------------------------------------------------

    def register(
        self, node: Node, registrations: Sequence[Registration], *, now: int | None = None
    ) -> list[Registered]:
        """See :meth:`Store.register`."""
        jobs = [asked.job for asked in registrations]
        paused = [asked.job for asked in registrations if asked.paused is not None]

        def work(connection: Connection, moment: Moment, locked: Locked) -> list[Registered]:
            loaded = self._records.load(connection, moment, locked, live=paused)
            loaded.ledger.known_as = self.identity
            answer = transitions.register(loaded.ledger, moment.now, registrations)
            self._save(connection, moment, loaded)
            self._keep_origin(connection, moment, loaded.ledger.origin)
            self._records.drop_nodes(connection, moment.now - GONE_AFTER)
            self._records.put_node(connection, node, moment)
            return answer

        self._calls_as(node)
        return self._do("register", self._writing, now, work, jobs)

    def claim(
        self, node: str, offers: Sequence[Offer], *, nonce: str, now: int | None = None
    ) -> list[Claimed]:
        """See :meth:`Store.claim`."""
        keys = [RunKey(offer.job, slot) for offer in offers for slot in offer.slots]
        keys += [key for offer in offers for key in claiming.keys_of_leap(offer)]
        return self._step(
            "claim", now,
            lambda ledger, now: transitions.claim(ledger, now, node, nonce, offers),
            keys=keys, jobs=[offer.job for offer in offers],
            live=[offer.job for offer in offers if offer.overlap != "allow"],
            waiting=[offer.job for offer in offers if offer.overlap == "allow"],
        )  # fmt: skip

    def sent(self, published: Sequence[Sent], *, now: int | None = None) -> None:
        """See :meth:`Store.sent`."""
        keys = [one.key for one in published]
        self._step(
            "sent", now,
            lambda ledger, now: transitions.sent(ledger, now, published),
            keys=keys, jobs=[key.job for key in keys], waiting=[key.job for key in keys],
        )  # fmt: skip

    def expired(
        self, node: Node, limit: int, *, after: tuple[int, RunKey] | None = None, now: int | None = None
    ) -> Expired:
        """See :meth:`Store.expired`. An idle poll only reads, except once in a while."""

        def look(connection: Connection, moment: Moment, _: Locked) -> Expired | None:
            if not self._is_noted(connection, moment, node):
                return None
            self._latest = moment.now
            return self._records.due(connection, moment.now, limit, after)

        def note(connection: Connection, moment: Moment, _: Locked) -> Expired:
            if self._went_back(moment):
                loaded = self._records.load_ahead(connection, moment)
                transitions.rewind(loaded.ledger, moment.now)
                self._save(connection, moment, loaded)
            self._records.put_node(connection, node, moment)
            self._tables.put_latest(connection, moment.now)
            self._latest = moment.now
            return self._records.due(connection, moment.now, limit, after)

        self._calls_as(node)
        with at_most(self.within):
            found = self._do("expired", self._reading, now, look)
            return found or self._do("expired", self._writing, now, note)

    def _is_noted(self, connection: Connection, moment: Moment, node: Node) -> bool:
        """Whether what a poll writes is near enough to what stands there."""
        if self._went_back(moment) or abs(moment.now - moment.latest) >= LATEST_EVERY:
            return False
        known = self._records.node(connection, node.id)
        if known is None or abs(moment.now - known.seen) >= SEEN_EVERY:
            return False
        return replace(known, seen=node.seen, clock_offset=node.clock_offset) == node

    def _went_back(self, moment: Moment) -> bool:
        """Whether the store's clock went back by more than a second since the last poll."""
        # What is stored is the latest time but for a second; of this store's own polls it is known.
        near = self._latest is not None and abs(self._latest - moment.latest) < LATEST_EVERY
        latest = self._latest if near and self._latest is not None else moment.latest
        return moment.now < latest - 1000

    def redispatch(
        self, node: str, asked: Sequence[Redispatch], *, nonce: str, now: int | None = None
    ) -> list[Claim]:
        """See :meth:`Store.redispatch`."""
        keys = [one.key for one in asked]
        return self._step(
            "redispatch", now,
            lambda ledger, now: transitions.redispatch(ledger, now, node, nonce, asked),
            keys=keys, jobs=[key.job for key in keys], waiting=[key.job for key in keys],
        )  # fmt: skip

    def leave(self, node: Node, *, now: int | None = None) -> None:
        """See :meth:`Store.leave`."""

        def work(connection: Connection, moment: Moment, locked: Locked) -> None:
            self._records.drop_node(connection, node)

        self._calls_as_nobody()
        self._do("leave", self._writing, now, work)

    # workers ------------------------------------------------------------------------------------

    def start(self, asked: Start, *, now: int | None = None) -> Started | Stale:
        """See :meth:`Store.start`."""
        return self._step(
            "start", now,
            lambda ledger, now: transitions.start(ledger, now, asked),
            keys=[asked.key], jobs=[asked.key.job],
            # A late start meets the overlap policy.
            live=[asked.key.job] if asked.overlap != "allow" else (),
            waiting=[asked.key.job] if asked.overlap == "allow" else (),
        )  # fmt: skip

    def renew(self, holdings: Sequence[Holding], *, now: int | None = None) -> list[Renewal]:
        """See :meth:`Store.renew`. Only what is forgotten needs the jobs, and all their runs."""
        answers = self._step(
            "renew", now, lambda ledger, now: _renewed(ledger, now, holdings),
            keys=[held.key for held in holdings],
        )  # fmt: skip
        forgotten = [held for held, said in zip(holdings, answers, strict=True) if said is None]
        put_back = iter(self._put_back(forgotten, now) if forgotten else ())
        return [next(put_back) if said is None else said for said in answers]

    def _put_back(self, holdings: Sequence[Holding], now: int | None) -> list[Renewal]:
        """Put back what the store has forgotten."""
        jobs = [held.key.job for held in holdings]
        return self._step(
            "renew", now, lambda ledger, now: transitions.renew(ledger, now, holdings),
            keys=[held.key for held in holdings], jobs=jobs, live=jobs,
        )  # fmt: skip

    def finish(
        self, key: RunKey, token: str, outcome: str, *, reason: str | None = None, now: int | None = None
    ) -> bool:
        """See :meth:`Store.finish`."""
        return self._step(
            "finish", now,
            lambda ledger, now: transitions.finish(ledger, now, key, token, outcome, reason),
            keys=[key], jobs=[key.job], waiting=[key.job],
        )  # fmt: skip

    def requeue(
        self, key: RunKey, token: str, *, delay: int, retries: int, start_timeout: int, now: int | None = None
    ) -> bool:
        """See :meth:`Store.requeue`."""
        return self._step(
            "requeue", now,
            lambda ledger, now: transitions.requeue(
                ledger, now, key, token, delay=delay, retries=retries, start_timeout=start_timeout
            ),
            keys=[key], jobs=[key.job], waiting=[key.job],
        )  # fmt: skip

    def release(self, releases: Sequence[Release], *, now: int | None = None) -> list[bool]:
        """See :meth:`Store.release`."""
        keys = [one.key for one in releases]
        return self._step(
            "release", now,
            lambda ledger, now: transitions.release(ledger, now, releases),
            keys=keys, jobs=[key.job for key in keys], waiting=[key.job for key in keys],
        )  # fmt: skip

    # whoever ------------------------------------------------------------------------------------

    def settle(self, settled: Sequence[Settle], *, now: int | None = None) -> list[bool]:
        """See :meth:`Store.settle`."""
        keys = [one.key for one in settled]
        return self._step(
            "settle", now,
            lambda ledger, now: transitions.settle(ledger, now, settled),
            keys=keys, jobs=[key.job for key in keys], waiting=[key.job for key in keys],
        )  # fmt: skip

    def pause(self, job: str, *, reason: str, by: str, now: int | None = None) -> bool:
        """See :meth:`Store.pause`."""
        return self._step(
            "pause", now,
            lambda ledger, now: transitions.pause(ledger, now, job, reason, by),
            jobs=[job], live=[job],
        )  # fmt: skip

    def resume(self, job: str, *, now: int | None = None) -> bool:
        """See :meth:`Store.resume`."""
        return self._step(
            "resume", now,
            lambda ledger, now: transitions.resume(ledger, now, job),
            jobs=[job], waiting=[job],
        )  # fmt: skip

    def trigger(self, asked: Request, *, nonce: str, now: int | None = None) -> Requested:
        """See :meth:`Store.trigger`. What the store may know of it is among the latest such runs."""

        def work(connection: Connection, moment: Moment, locked: Locked) -> Requested:
            latest = self._records.since(connection, asked.job, moment.now - ASKED_AGAIN_WITHIN, MANUAL)
            loaded = self._records.load(connection, moment, locked, keys=latest, live=[asked.job])
            answer = transitions.trigger(loaded.ledger, moment.now, nonce, asked)
            self._save(connection, moment, loaded)
            return answer

        return self._do("trigger", self._writing, now, work, [asked.job])

    def backfill(
        self, asked: Request, slots: Sequence[int], *, nonce: str, now: int | None = None
    ) -> list[Requested]:
        """See :meth:`Store.backfill`."""
        return self._step(
            "backfill", now,
            lambda ledger, now: transitions.backfill(ledger, now, nonce, asked, slots),
            keys=[RunKey(asked.job, slot, BACKFILL) for slot in slots], jobs=[asked.job], live=[asked.job],
        )  # fmt: skip

    def cancel(self, key: RunKey, *, reason: str, now: int | None = None) -> Run | None:
        """See :meth:`Store.cancel`."""
        return self._step(
            "cancel", now,
            lambda ledger, now: transitions.cancel(ledger, now, key, reason),
            keys=[key], jobs=[key.job], waiting=[key.job],
        )  # fmt: skip

    def forget(self, job: str, *, limit: int = 500, now: int | None = None) -> int:
        """See :meth:`Store.forget`."""

        def work(connection: Connection, moment: Moment, locked: Locked) -> int:
            keys = self._records.ended_of(connection, job, limit)
            loaded = self._records.load(connection, moment, locked, keys=keys)
            gone = transitions.forget_job(loaded.ledger, moment.now, job, keys)
            self._save(connection, moment, loaded)
            self._records.drop(connection, keys)
            return gone

        return self._do("forget", self._writing, now, work, [job])

    def prune(self, *, history: int, most: int, limit: int = 500, now: int | None = None) -> int:
        """See :meth:`Store.prune`. The searches only read; what they found is looked at again.

        With many runs a search is spread over several calls, so that none of them takes long.
        """
        room = limit
        searches = [self._aged(history), self._foldable, self._surplus(most)]
        with at_most(self.within):
            while room > 0 and searches and not is_late():
                found = self._do("prune", self._reading, now, partial(_first_that_finds, searches, room))
                room -= self._forget(found, now) if found else 0
        return limit - room

    def _aged(self, history: int) -> Search:
        def search(connection: Connection, now: int, limit: int) -> list[list[RunKey]]:
            return [[key] for key in self._records.aged(connection, now - history, limit)]

        return search

    def _foldable(self, connection: Connection, now: int, limit: int) -> list[list[RunKey]]:
        found, self._folded_to = self._records.foldable(connection, now, limit, self._folded_to)
        return found

    def _surplus(self, most: int) -> Search:
        def search(connection: Connection, now: int, limit: int) -> list[list[RunKey]]:
            doomed, self._pruned_to = self._records.surplus(connection, most, limit, self._pruned_to)
            return [[key] for key in doomed]

        return search

    def _forget(self, found: Sequence[Sequence[RunKey]], now: int | None) -> int:
        """Drop runs that stand alone, and fold those that follow each other."""
        keys = [key for chain in found for key in chain]

        def work(connection: Connection, moment: Moment, locked: Locked) -> int:
            loaded = self._records.load(connection, moment, locked, keys=keys)
            gone = [key for chain in found for key in _gone(loaded.ledger, moment.now, chain)]
            self._save(connection, moment, loaded)
            self._records.drop(connection, gone)
            return len(gone)

        return self._do("prune", self._writing, now, work, [key.job for key in keys])

    def run(self, key: RunKey) -> Run | None:
        """See :meth:`Store.run`."""
        return self._look(lambda connection: self._records.run(connection, key))

    def runs(self, *, job: str | None = None, state: str | None = None, limit: int = 50) -> list[Run]:
        """See :meth:`Store.runs`."""
        return self._look(lambda connection: self._records.find_runs(connection, job, state, limit))

    def jobs(self) -> list[Job]:
        """See :meth:`Store.jobs`."""
        return self._look(self._records.all_jobs)

    def nodes(self) -> list[Node]:
        """See :meth:`Store.nodes`."""
        return self._look(self._records.all_nodes)

    def successes(self) -> dict[str, Success]:
        """See :meth:`Store.successes`."""
        return self._look(self._records.successes)

    def complaints(self) -> list[str]:
        """See :meth:`Store.complaints`."""
        found = self._look(lambda connection: [*self._apart(connection), *self._lost(connection)])
        return [f"{self.shown}: {line}" for line in found]

    def _apart(self, connection: Connection) -> Iterator[str]:
        """Something between, or an option, may undo what a transaction says."""
        if self.dialect.isolation is None:
            return
        found = connection.exec_driver_sql(self.dialect.isolation).first()
        level = str(found[-1]) if found else "READ COMMITTED"
        if level.upper().replace("-", " ") != "READ COMMITTED":
            yield (
                f"transactions are {level}, where READ COMMITTED is right: leave isolation_level out of "
                "anarchon_store_options, and out of what is between"
            )

    def _lost(self, connection: Connection) -> Iterator[str]:
        """A server may answer before what it was told is on its disk."""
        if self.dialect.durability is None:
            return
        for name, value in connection.exec_driver_sql(self.dialect.durability):
            lax, right = self.dialect.lax.get(name, (frozenset(), ""))
            if str(value).lower() in lax:
                yield (
                    f"{name} is {value}, so that a power loss may take back what was answered: set it to "
                    f"{right}, or be ready for runs that are lost and slots that run twice"
                )

    def upgrade(self, *, dry: bool = False) -> Upgrade:
        """See :meth:`Store.upgrade`."""
        with self._told():
            found = self._patiently(self._version)
            ways = ways_from(found)
            for version in () if dry else ways:
                self._patiently(partial(self._go, version))
        return Upgrade(found, ways)

    def _version(self) -> int | None:
        with self._reading.begin() as connection:
            found = self._tables.version(connection)
        return read_version(found, VERSION, self._tables.shown)

    def _go(self, version: int) -> None:
        prefix = self._tables.prefix
        with self._writing.begin() as connection, self.dialect.alone(connection, prefix):
            go(connection, prefix, version)

    def _patiently(self, work: Callable[[], Answer]) -> Answer:
        """Do some work, again where that helps: others may be in its way."""
        for _ in range(REPEATS):
            try:
                return work()
            except DBAPIError as error:
                if not self.dialect.says_passing(error):
                    raise
        return work()

def _renewed(ledger: Ledger, now: int, holdings: Sequence[Holding]) -> list[Renewal | None]:
    """Renew what is known; None stands for what the store may have forgotten."""
    return [
        None if transitions.can_be_put_back(ledger.runs.get(held.key), held)
        else transitions.renew(ledger, now, [held])[0]
        for held in holdings
    ]  # fmt: skip


def _first_that_finds(
    searches: list[Search], limit: int, connection: Connection, moment: Moment, _: Locked
) -> list[list[RunKey]]:
    """Search until something is found; what was searched is searched no more."""
    while searches:
        if found := searches.pop(0)(connection, moment.now, limit):
            return found
    return []


def _gone(ledger: Ledger, now: int, chain: Sequence[RunKey]) -> list[RunKey]:
    """Fold a chain, or forget the one there is; return what is to be dropped."""
    if len(chain) > 1:
        return folding.fold(ledger, now, chain)
    ended = [key for key in chain if key in ledger.runs and ledger.runs[key].ended]
    transitions.forget(ledger, now, ended)
    return ended



"""How a store in a database does a step: in one transaction, timed by the database, again where that helps.

A step locks the jobs it is about, reads the store's time and which store it is, loads the rows, lets
the protocol's transitions decide, and writes what changed. A call is one step, or the few that one
verb takes, and has its time (:mod:`.budget`); what the database said is told in one line.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from ..errors import StoreError, StoreReplaced, StoreUnreachable, StoreUnusable
from ..ledger import Ledger
from ..protocol import RunKey
from ..youth import Origin, met
from . import LOOKS, NOTED, Store, new_identity
from .budget import at_most, beside, is_late, left, whole
from .dialects import LONGEST_CALL, PATIENCE, SQLITE, Dialect
from .mariadb import MARIADB
from .options import A_CLASS, A_DICT, SECONDS, TAKEN, WHOLE, Right, refuse_wrong
from .postgresql import POSTGRESQL
from .records import Loaded, Locked, Records
from .tables import Moment, Tables, Unmade, Unmet
from .urls import refuse_wrong_query, shown, url_of
from .waking import WakeUps

Answer = TypeVar("Answer")
Work = Callable[[Connection, Moment, Locked], Answer]


@dataclass(frozen=True, slots=True)
class Step(Generic[Answer]):
    """One transaction: whose verb's it is, and what is done in it, once it has the jobs."""

    verb: str
    engine: Engine
    now: int | None
    work: Work[Answer]
    jobs: Sequence[str] = ()


#: By the name of the back end in the URL; some have two.
DIALECTS: Mapping[str, Dialect] = {
    "sqlite": SQLITE,
    "postgresql": POSTGRESQL,
    "postgres": POSTGRESQL,
    "mysql": MARIADB,
    "mariadb": MARIADB,
}

#: What the engine's options have to be of which it would say too little, too late.
RIGHTS = {
    **dict.fromkeys(("pool_size", "max_overflow", "pool_recycle"), WHOLE),
    "pool_timeout": SECONDS, "connect_args": A_DICT, "execution_options": A_DICT, "poolclass": A_CLASS,
    "echo": Right(lambda it: it in (True, False, "debug"), "True or False is right"),
}  # fmt: skip

#: How often a step is done again that others were in the way of.
REPEATS = 3

#: How long the tables may be made, in seconds: they are some thirty statements.
MAKING = 20.0

#: The last part of a call, in which no statement begins: what was begun is rolled back in good order.
CLOSING = 0.2


class TransactionalStore(Store):
    """A store whose steps are transactions; each object has connections of its own, opened when needed."""

    def __init__(
        self, url: str, *, prefix: str = "anarchon", options: Mapping[str, Any] | None = None,
        within: float = LONGEST_CALL,
    ) -> None:  # fmt: skip
        """Prepare the engine; see :func:`open_store`."""
        super().__init__()
        self.within = min(LONGEST_CALL, within)
        patience = PATIENCE * self.within
        parsed = url_of(url)
        if parsed.get_backend_name() not in DIALECTS:
            known = ", ".join(DIALECTS)
            raise StoreUnusable(f"no store for {parsed.get_backend_name()!r} yet: known are {known}")
        self.dialect = DIALECTS[parsed.get_backend_name()]
        refuse_wrong(options or {}, RIGHTS)
        refuse_wrong((options or {}).get("connect_args") or {}, self.dialect.rights, "connect_args: ")
        refuse_wrong_query(parsed, self.dialect.rights)
        parsed, settings = self.dialect.engine(parsed, options or {}, patience)
        self.shown = shown(parsed)
        self._engine = self._made(parsed, settings)
        self.dialect.attend(self._engine, patience)
        for what in ("before_cursor_execute", "commit"):
            event.listen(self._engine, what, _refuse_a_late_one)
        self._reading = self._engine.execution_options(**self.dialect.reading)
        self._writing = self._engine.execution_options(**self.dialect.writing)
        self._tables = Tables(prefix, self.dialect)
        self._tables.refuse_long_names()
        self._records = Records(self._tables)

    def _made(self, url: URL, settings: Mapping[str, Any]) -> Engine:
        try:
            return create_engine(url, **settings)
        except ImportError as reason:
            lacks = f"{self.dialect.driver} is needed ({_line(reason)})"
            raise StoreUnusable(f"{self.shown}: {lacks}") from reason
        except (ArgumentError, TypeError, ValueError, LookupError, AttributeError) as reason:
            why = _line(reason).partition(", using configuration ")[0]
            raise StoreUnusable(f"{self.shown}: {TAKEN} {why}") from reason

    # one transaction ----------------------------------------------------------------------------

    def _step(
        self, verb: str, now: int | None, transition: Callable[[Ledger, int], Answer], *,
        keys: Sequence[RunKey] = (), jobs: Sequence[str] = (), live: Sequence[str] = (),
        waiting: Sequence[str] = (),
    ) -> Answer:  # fmt: skip
        """Do one transition on what :meth:`Records.load` says."""

        def work(connection: Connection, moment: Moment, locked: Locked) -> Answer:
            loaded = self._records.load(
                connection, moment, locked, keys=keys, live=live, waiting=waiting
            )
            answer = transition(loaded.ledger, moment.now)
            self._save(connection, moment, loaded)
            self._keep_origin(connection, moment, loaded.ledger.origin)
            if verb in NOTED and loaded.ledger.changed_runs:
                self._records.note(connection, self._node, moment)
            return answer

        return self._do(verb, self._writing, now, work, jobs)

    def _save(self, connection: Connection, moment: Moment, loaded: Loaded) -> None:
        self._records.save(connection, loaded)
        moment.gave_back = any(run.state == "released" for run in loaded.ledger.changed_runs.values())

    def _keep_origin(self, connection: Connection, moment: Moment, origin: Origin) -> None:
        """Keep that the store turned out to have lost writes; do the step again if another was faster."""
        if origin == moment.origin:
            return
        before, moment.origin = moment.origin, origin
        kept = self._tables.put_origin(connection, lambda stored: origin if stored == before else stored)
        if kept != origin:
            raise Unmet

    def _do(
        self, verb: str, engine: Engine, now: int | None, work: Work[Answer], jobs: Sequence[str] = ()
    ) -> Answer:
        """Do some work at one moment, in one transaction, and learn the time from it."""
        answer, before, moment = self._repeated(Step(verb, engine, now, work, jobs))
        if moment.gave_back:
            self._wake()
        origin, noted = moment.origin, moment.noted == moment.now
        self._answered(
            before, moment.now, origin.identity, origin.young_since, noted=noted, verb=verb
        )
        return answer

    def _wake(self) -> None:
        """Tell beats that listen. After the step, and in vain if need be: they poll as well."""
        if self.dialect.woken is None:
            return
        words = self.dialect.woken(self._tables.prefix)
        with (
            suppress(SQLAlchemyError, StoreError), at_most(self.within),
            self._engine.execution_options(transaction=None).begin() as connection,
        ):  # fmt: skip
            connection.exec_driver_sql(words)

    def wake_ups(self) -> WakeUps | None:
        """See :meth:`Store.wake_ups`."""
        if self.dialect.wake_ups is None:
            return None
        return self.dialect.wake_ups(self._engine, self._tables.prefix, self.shown)

    def _look(self, work: Callable[[Connection], Answer]) -> Answer:
        """Only read."""
        return self._do("look", self._reading, None, lambda connection, *_: work(connection))

    def _repeated(self, step: Step[Answer]) -> tuple[Answer, float, Moment]:
        """Do some work in one transaction; again where that helps, since every verb may be repeated."""
        with at_most(self.within), self._told():
            for repeats in range(REPEATS):
                try:
                    return self._transaction(step)
                except Unmade:
                    self._create(step.now)
                except Unmet:
                    self._meet(step.now)
                except DBAPIError as error:
                    if self.dialect.says_missing(error):
                        self._create(step.now)
                    elif self.dialect.says_passing(error) and not is_late():
                        time.sleep(random.uniform(0, 0.01) * (repeats + 1))  # or they meet again
                    else:
                        self._refuse_others(error)
                        raise
            return self._transaction(step)

    def _create(self, now: int | None) -> None:
        """Make the tables. It may take longer than a call: nothing is claimed yet, nor held."""
        alone, prefix = self.dialect.alone, self._tables.prefix
        with beside(MAKING), self._writing.begin() as connection, alone(connection, prefix):
            self._tables.create(connection, now)

    def _meet(self, now: int | None) -> None:
        """Note in the store what this caller knows of it: that it is another one, or lost writes."""
        with self._writing.begin() as connection:
            moment = self._tables.moment(connection, now, self._node)
            self._tables.put_origin(connection, partial(self._met, moment))

    def _met(self, moment: Moment, origin: Origin) -> Origin:
        return met(origin, moment.now, self._caller, moment.noted, new_identity())

    def _transaction(self, step: Step[Answer]) -> tuple[Answer, float, Moment]:
        before = self.clock.monotonic()
        connection = step.engine.connect()
        # Not engine.begin(): who is interrupted at its yield, by a signal, would leave the transaction open,
        # and wait for its locks when he gives back what he has.
        try:
            with connection.begin():
                # The time is read when the turn has come.
                locked = self._records.lock(connection, step.jobs)
                moment = self._tables.moment(connection, step.now, self._node)
                if step.verb not in LOOKS and self._met(moment, moment.origin) != moment.origin:
                    raise Unmet
                self._refuse_a_stranger(moment.origin, step.verb)
                return step.work(connection, moment, locked), before, moment
        finally:
            connection.close()

    def _refuse_others(self, error: DBAPIError) -> None:
        """Say of tables of another version, or somebody else's, rather that than what they lack."""
        if self.dialect.says_hopeless(error):
            with suppress(SQLAlchemyError), self._reading.begin() as connection:
                self._tables.refuse_others(connection)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say in one line what the database said."""
        try:
            yield
        except StoreReplaced:
            raise
        except StoreError as error:
            raise type(error)(f"{self.shown}: {error}") from None
        except Unmade as error:
            raise StoreUnusable(f"{self.shown}: {error}") from None
        except Unmet:
            raise StoreUnreachable(f"{self.shown} changes while it is asked") from None
        except DBAPIError as error:
            if (late := _refusal_behind(error)) is not None:
                raise StoreUnreachable(f"{self.shown}: {late}") from error
            kind = StoreUnusable if self.dialect.says_hopeless(error) else StoreUnreachable
            raise kind(f"{self.shown}: {_line(error.orig)}{self.dialect.to_do(error)}") from error
        except ArgumentError as error:
            raise StoreUnusable(f"{self.shown}: {TAKEN} {_line(error)}") from error
        except SQLAlchemyError as error:
            raise StoreUnreachable(f"{self.shown}: {_line(error)}") from error

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self._engine.dispose()


def _refuse_a_late_one(*_: Any) -> None:
    if left() < CLOSING * whole():
        raise StoreUnreachable(f"it answers too slowly: {whole():g} s are not enough for a call")


def _refusal_behind(error: BaseException) -> BaseException | None:
    """Our own reason, where what failed is the rollback that it led to."""
    behind = error.__context__
    while behind is not None and not isinstance(behind, StoreUnreachable):
        behind = behind.__context__
    return behind


def _line(error: BaseException | None) -> str:
    """What an error says, as one line; without the number before it, and the statement behind it."""
    parts: tuple[Any, ...] = getattr(error, "args", ())
    text = f"{parts[1]} ({parts[0]})" if list(map(type, parts)) == [int, str] else str(error)
    return " ".join(text.partition("\nLINE ")[0].split())

"""The store: where the nodes meet. One interface, the protocol's verbs; one module per kind.

Each verb is one atomic step in the store, judged by the store's clock, read in the same step.
Verbs that change something may be repeated after a lost answer (see :mod:`anarchon_celery.protocol`).
Losing a race is an answer; the only exceptions are :class:`~anarchon_celery.errors.StoreUnreachable`
and :class:`~anarchon_celery.errors.StoreUnusable`.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..errors import StoreReplaced
from ..protocol import (
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
from ..youth import Caller, Origin
from .clock import StoreClock, monotonic
from .waking import WakeUps

#: The verbs of a beat that knows another store: it has to register first.
REFUSED_TO_STRANGERS = frozenset({"claim", "sent", "expired", "redispatch", "prune"})

#: What changes nothing: these name nothing that the caller knows.
LOOKS = frozenset({"runs", "jobs", "nodes", "look", "successes"})

#: The verbs that note, if they change a run, that their node lives: what they answered must not get lost.
NOTED = frozenset({"claim", "redispatch"})

#: What they are told, after the store's name.
ANOTHER = "is another store than before: wiped, restored or failed over"

#: The states of runs that went well, as far as is known.
WELL = ("succeeded", "published")

#: No verb takes more items than this in one step; callers with more send several.
CHUNK = 200


@dataclass(frozen=True, slots=True)
class Upgrade:
    """From which version of the store's layout to which others, and what is new in each of those.

    ``found`` is None where nothing is kept yet; without ``ways`` there is nothing to do.
    """

    found: int | None
    ways: Mapping[int, str]


class Store(ABC):
    """The verbs of the protocol: what a store has to do, also one of somebody else's.

    What they are about is told in :mod:`anarchon_celery.protocol`, what each does to the records in
    :mod:`anarchon_celery.transitions` and the modules that it names: a store reads the records of a step, has
    them do it, and writes what they changed, as one atomic step that no other process sees half of.
    :class:`~anarchon_celery.stores.memory.MemoryStore` is the shortest, and may be derived from. What they
    have in common is tested by ``anarchon_celery.testing.StoreContract``.

    - Every verb takes an optional ``now`` (ms since the epoch): the store's time for this step, for tests
      only. Without it the clock of the store counts, read in the same step; never that of who calls.
    - Instants are milliseconds since the epoch, durations milliseconds.
    - A handle is used by several threads, and nothing is connected before the first verb.
    - A verb raises ``StoreUnreachable`` when there was no answer (it may have acted), ``StoreUnusable`` when
      the store cannot be used as it is, and those of a beat but ``register`` raise ``StoreReplaced`` when the
      store is not the one that was registered with. Nothing else.
    - A changing call that is made again after a lost answer changes nothing more, and is answered the same.
    """

    #: Where the store is, fit for a log: without a password.
    shown: str = ""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        """Count time between the answers with ``clock`` (seconds, monotonic)."""
        self.clock = StoreClock(clock)
        #: Which store answered last; another one means wiped, failed over or restored.
        self.identity: str | None = None
        #: Since when it is another one than some node or holder knew (ms, store time); None if it is not.
        self.young_since: int | None = None
        self._at: int | None = None
        self._node: str | None = None
        self._noted: int | None = None

    # beat ---------------------------------------------------------------------------------------

    @abstractmethod
    def register(
        self, node: Node, registrations: Sequence[Registration], *, now: int | None = None
    ) -> list[Registered]:
        """Remember the node, its jobs and their schedule hashes; answer what is known of each, in that order.

        Nodes that were not seen for a day are forgotten.
        """

    @abstractmethod
    def claim(
        self, node: str, offers: Sequence[Offer], *, nonce: str, now: int | None = None
    ) -> list[Claimed]:
        """Decide slots: of all nodes that offer one, exactly one is answered ``won``.

        Under the same ``nonce`` the same slots are asked for again, and answered the same.
        """

    @abstractmethod
    def sent(self, published: Sequence[Sent], *, now: int | None = None) -> None:
        """Note which claims were published."""

    @abstractmethod
    def expired(
        self, node: Node, limit: int, *, after: tuple[int, RunKey] | None = None, now: int | None = None
    ) -> Expired:
        """Return runs past their deadline, oldest first; and note that the node lives.

        They come ordered by (deadline, key), at most ``limit``; ``after`` is the last pair of the
        page before. Where the store's clock went back by more than a second since the last such
        call, deadlines and floors from the future are cut first (:func:`transitions.rewind`).
        """

    @abstractmethod
    def redispatch(
        self, node: str, asked: Sequence[Redispatch], *, nonce: str, now: int | None = None
    ) -> list[Claim]:
        """Claim expired runs again, each only if it is still as it was seen; of a paused job it waits."""

    @abstractmethod
    def leave(self, node: Node, *, now: int | None = None) -> None:
        """Forget a node that stops. What is asked after that is nobody's."""

    # workers ------------------------------------------------------------------------------------

    @abstractmethod
    def start(self, asked: Start, *, now: int | None = None) -> Started | Stale:
        """Begin a run under a new fence, or learn why this message may not, or may only later.

        Each fence of a job is larger than all before it, also after the store lost its last writes.
        """

    @abstractmethod
    def renew(self, holdings: Sequence[Holding], *, now: int | None = None) -> list[Renewal]:
        """Move the deadlines of held runs; put back what the store has forgotten and its holder trusts."""

    @abstractmethod
    def finish(
        self, key: RunKey, token: str, outcome: str, *, reason: str | None = None, now: int | None = None
    ) -> bool:
        """End a held run as ``succeeded``, ``failed`` or ``cancelled``; false if it was lost."""

    @abstractmethod
    def requeue(
        self, key: RunKey, token: str, *, delay: int, retries: int, start_timeout: int, now: int | None = None
    ) -> bool:
        """Let a held run wait for a retry of Celery's.

        False if it was lost, or ended because it is to stop: then do not publish.
        """

    @abstractmethod
    def release(self, releases: Sequence[Release], *, now: int | None = None) -> list[bool]:
        """Give runs back: held ones by token, claims whose publish failed by nonce.

        A held one that is to stop ends.
        """

    # whoever ------------------------------------------------------------------------------------

    @abstractmethod
    def settle(self, settled: Sequence[Settle], *, now: int | None = None) -> list[bool]:
        """End runs that were not started and will not be; true of one that has that end already, too.

        False of any other one: nothing is written.
        """

    @abstractmethod
    def pause(self, job: str, *, reason: str, by: str, now: int | None = None) -> bool:
        """Pause a job: its scheduled runs that do not run yet wait; false if the store has no such job.

        One that is paused already gets the new reason and name, and stays paused since then.
        """

    @abstractmethod
    def resume(self, job: str, *, now: int | None = None) -> bool:
        """Let a paused job go on, beginning with the oldest run that waits; false if it was not paused."""

    @abstractmethod
    def trigger(self, asked: Request, *, nonce: str, now: int | None = None) -> Requested:
        """Enter a run of kind ``manual`` for now; it is dispatched at once, or when others let it."""

    @abstractmethod
    def backfill(
        self, asked: Request, slots: Sequence[int], *, nonce: str, now: int | None = None
    ) -> list[Requested]:
        """Enter runs of kind ``backfill`` for slots that were, oldest first."""

    @abstractmethod
    def cancel(self, key: RunKey, *, reason: str, now: int | None = None) -> Run | None:
        """Have a run stop, and return it as it is then: one that runs is to stop, any other has ended.

        None if there is none; one that was over before is as it was.
        """

    @abstractmethod
    def forget(self, job: str, *, limit: int = 500, now: int | None = None) -> int:
        """Forget ended runs of a job, ``limit`` at most; returns how many.

        No slot up to now is claimed anew.
        """

    @abstractmethod
    def prune(self, *, history: int, most: int, limit: int = 500, now: int | None = None) -> int:
        """Make history smaller, in steps; returns how many runs went, ``limit`` at most.

        Ended runs older than ``history`` are forgotten; then skips that follow each other are folded into one
        (:mod:`anarchon_celery.folding`); then runs beyond the ``most`` newest of their job are forgotten. The
        floor is raised over each in the same step.
        """

    @abstractmethod
    def runs(self, *, job: str | None = None, state: str | None = None, limit: int = 50) -> list[Run]:
        """Return runs, newest slot first, those of one slot by job and kind; ``limit`` at most."""

    @abstractmethod
    def jobs(self) -> list[Job]:
        """Return all jobs the store knows, by name."""

    @abstractmethod
    def nodes(self) -> list[Node]:
        """Return all nodes the store remembers, by name."""

    def successes(self) -> dict[str, Success]:
        """Return of each job the newest slot that was run well, and when that ended.

        Of a task without the base class nothing more is known than that it was published. Where very many
        runs of a job are newer than its success, the oldest slot that was looked at may stand for it.
        """
        return successes_among(run for state in WELL for run in self.runs(state=state, limit=1_000_000))

    def upgrade(self, *, dry: bool = False) -> Upgrade:
        """Bring what an older release made to the layout of this one; ``dry``: only say what that takes.

        What is begun and was not ended, because somebody died meanwhile, is gone on with.
        """
        return Upgrade(None, {})

    def wake_ups(self) -> WakeUps | None:
        """Return what tells of runs that come to be ``released``, not connected yet; None if nothing does."""
        return None

    def complaints(self) -> list[str]:
        """Return what its server says of itself that is not right for a store, and what would be."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Give connections back; the store may be used again."""

    def run(self, key: RunKey) -> Run | None:
        """Return one run, for tests and commands."""
        return next((run for run in self.runs(job=key.job, limit=1_000_000) if run.key == key), None)

    # who calls, and who answers -----------------------------------------------------------------

    @property
    def _caller(self) -> Caller:
        """What every call names."""
        return Caller(self.identity, self._at, self._node, self._noted)

    def _calls_as(self, node: Node) -> None:
        """From now on calls are of this node."""
        if node.id != self._node:
            self._node, self._noted = node.id, None

    def _calls_as_nobody(self) -> None:
        """From now on calls are of no node: that none is known must not look as if it had been forgotten."""
        self._node = self._noted = None

    def _refuse_a_stranger(self, origin: Origin, verb: str) -> None:
        """Do nothing for a node that knows another store.

        Raises:
            StoreReplaced: it has to register first.
        """
        if verb in REFUSED_TO_STRANGERS and self.identity not in (None, origin.identity):
            self.young_since = origin.young_since
            raise StoreReplaced(f"{self.shown} {ANOTHER}")

    def _answered(
        self, before: float, now: int, identity: str, young_since: int | None, *, noted: bool = False,
        verb: str = "",
    ) -> None:  # fmt: skip
        """Learn from an answer the time, which store it is from, and that it notes that this node lives.

        A beat goes on knowing the store that it knew, until it registers with another one. Who only looks
        learns no more than the time.
        """
        self.clock.observe(before, self.clock.monotonic(), now)
        if verb in LOOKS:
            return
        self.young_since = young_since
        if verb == "register" or self._node is None:
            self.identity = identity
        if self.identity == identity:
            self._at = now
        if noted:
            self._noted = now


def successes_among(runs: Iterable[Run]) -> dict[str, Success]:
    """Return of each job the newest success; see :meth:`Store.successes`."""
    found: dict[str, Success] = {}
    for run in runs:
        if run.state in WELL:
            success = Success(run.slot, run.finished_at or run.slot)
            found[run.job] = max(success, found.get(run.job, success))
    return found


def new_identity() -> str:
    """Return what a store is known by: 64 random bits."""
    return secrets.token_hex(8)


def new_nonce() -> str:
    """Return what makes one call known again: 128 random bits."""
    return secrets.token_hex(16)


#: Which module opens which scheme; each has ``open_store(url, *, prefix, options, within)``.
_MODULES = {
    "memory": "memory",
    "sqlite": "sql",
    "postgresql": "sql",
    "postgresql+psycopg": "sql",
    "postgres": "sql",
    "mysql": "sql",
    "mysql+pymysql": "sql",
    "mariadb": "sql",
    "mariadb+pymysql": "sql",
    "redis": "redis",
    "rediss": "redis",
    "redis+socket": "redis",
    "redis+cluster": "redis",
    "rediss+cluster": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "valkey+socket": "redis",
    "valkey+cluster": "redis",
    "valkeys+cluster": "redis",
    "unix": "redis",
    "sentinel": "redis",
}

SCHEMES = tuple(_MODULES)


def open_store(
    url: str, *, prefix: str = "anarchon", options: Mapping[str, Any] | None = None,
    within: float = float("inf"),
) -> Store:  # fmt: skip
    """Return the store at ``url``; nothing is connected until the first verb.

    A call takes ``within`` seconds at most, connecting included; each kind of store has a bound of
    its own too.

    Raises:
        StoreUnusable: the scheme is none of ``SCHEMES`` and nobody else's (:mod:`.installed`), or the URL
            cannot be read.
    """
    scheme = url.partition(":")[0].partition("+")[0].lower()
    module = import_module(f".{_MODULES.get(scheme, 'installed')}", __name__)
    store: Store = module.open_store(url, prefix=prefix, options=dict(options or {}), within=within)
    return store

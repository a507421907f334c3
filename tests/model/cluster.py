"""The cluster: its small scenes, and all there is in it at one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .loading import rules
from .store import numbered

NOW = 1_000_000
SLOTS = (NOW - 30, NOW - 20, NOW - 10)
JOB, HASHES = 'job', ('old', 'new')
SINCE = NOW - 100  # from when on its schedules count
LEASE, CLAIM_TIMEOUT, START_TIMEOUT = 3_000, 1_000, 5_000
SPANS = (0, LEASE, CLAIM_TIMEOUT, START_TIMEOUT, 2 * START_TIMEOUT, 4 * START_TIMEOUT)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A small cluster: what its job is like, and how often each fault may come.

    ``schedules`` says which slots each beat has, where it is not all of them. Beats that ``remember`` know
    up to where the store said that all is decided; ``passes`` are nodes that pass over all but the latest.
    """

    slots: int = 1
    beats: int = 1
    workers: int = 1
    overlap: str = 'skip'
    catch_up: str = 'latest'
    supervised: bool | None = True
    told: bool | None = None  # what beats know of the task: whether it has the base class
    max_crashes: int = 2
    max_dispatches: int = 3
    twice: bool = False  # each call is made again, as after a lost answer
    schedules: tuple[tuple[int, ...], ...] = ()
    remember: bool = False
    passes: bool = False
    chained: bool = False
    faults: tuple[tuple[str, int], ...] = ()

    def may(self, *faults: str) -> bool:
        """Whether one of these may come here."""
        return any(fault in faults for fault, _ in self.faults)


class Beat(NamedTuple):
    """A beat: what it is about to do, its schedule, and what it remembers of what the store told it."""

    items: frozenset = frozenset()
    schedule: int = 0
    floor: int | None = None
    store: str = 'A'


class Won(NamedTuple):
    """A run that a beat has claimed and not yet published."""

    key: Any
    dispatch: int
    retries: int
    old: bool = False


class Out(NamedTuple):
    """A run that a beat has published, and not yet told the store so."""

    key: Any
    dispatch: int


class Seen(NamedTuple):
    """A run that a beat has seen past its deadline."""

    key: Any
    state: str
    dispatch: int
    deadline: int


class Message(NamedTuple):
    """What lies in the broker's queue; ``old`` where it was claimed before the store lost writes."""

    key: Any
    dispatch: int
    retries: int
    old: bool = False


class Held(NamedTuple):
    """What a worker holds: the run, and whether it trusts its lease."""

    key: Any
    fence: int
    attempt: int
    dispatch: int
    retries: int
    trusts: bool = True
    told: bool = False
    requeued: bool = False
    store: str = ''


class State(NamedTuple):
    """All there is at one moment."""

    job: int  # the number of its record
    runs: tuple[int, ...]
    origin: Any
    due: int
    beats: tuple[Beat, ...]
    workers: tuple[Held | None, ...]
    queue: tuple[Message, ...]
    left: tuple[tuple[str, int], ...]
    top: int  # the highest fence there ever was
    gone: frozenset  # the keys of runs that went with history
    before: tuple | None = None  # what the store would be without its last write


def started(scene: Scene) -> State:
    """The cluster before anything came due: its beats have registered the job."""
    it = rules()
    origin = it.youth.Origin(identity='A')
    ledger = it.ledger.Ledger(origin=origin)
    for hash in HASHES[: len(scene.schedules) or 1]:
        it.transitions.register(ledger, SINCE, [it.protocol.Registration(job=JOB, hash=hash)])
    job = replace(ledger.jobs[JOB], supervised=bool(scene.supervised), seen=NOW)
    return State(
        job=numbered(job), runs=(), origin=origin, due=0,
        beats=tuple(Beat(schedule=at if scene.schedules else 0) for at in range(scene.beats)),
        workers=(None,) * scene.workers, queue=(), left=tuple(sorted(scene.faults)), top=0, gone=frozenset(),
    )  # fmt: skip

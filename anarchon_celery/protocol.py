"""The claim and lease protocol: its story, its states, and the values that travel.

A *job* fires at *slots*, which every node computes from the schedule alone. The store keeps one
*run* for each slot somebody decided on, and the run is the truth: a message in the broker is only
a hint that it may be started. A run's life:

::

    claim ──▶ claimed ──sent──▶ queued ──start──▶ running ──finish──▶ succeeded, failed
                 ▲                 │                │  │
                 │                 │ deadline       │  └─requeue (Celery's retry)──▶ queued
                 ├───redispatch────┴────────────────┴─release──▶ released ──▶ (redispatch)
                 │                                                  ▲
               claim, while an earlier run is active ──▶ buffered ──┘ the end of that run

One rule for liveness: every active run has exactly one deadline, and when it passes any beat node
may dispatch the run again. What moves the deadline differs by state, because a message in a queue
has no heartbeat:

==========  ==============================================================  ====================
state       deadline                                                        moved by
==========  ==============================================================  ====================
claimed     claim + claim timeout                                           nothing
queued      publish + countdown + start timeout, doubled for each dispatch  nothing
            since the last start, an hour at most
running     last renewal + lease                                            the heartbeat
released    now, or a short back-off                                        nothing
buffered    none, until the run it waits for ends; then it is released      the end of that run
==========  ==============================================================  ====================

Who may do what:

- What a slot meets that comes due while an earlier run of its job is active is the job's *overlap*
  policy: ``skip`` records it as ``skipped``; ``queue`` lets it wait as ``buffered``, one slot per job, an
  older one that waits becomes ``skipped``; ``cancel`` does the same, and asks the earlier run to stop (one
  that does not run ends at once, and the slot is won); ``allow`` looks at nothing,
  and lets all go on that wait. The newest slot counts: one that comes after a later one, of another
  schedule, displaces and stops nothing, and is ``skipped``.
- Every end goes through one step: if the job has no other active run, its oldest buffered one is
  *promoted*: it becomes ``released``.
- While a job is *paused* its scheduled runs are ``running`` or ``buffered``, nothing else. A slot that comes
  due is recorded as ``skipped``; ``resume`` promotes.
- A *late* slot under catch-up ``all`` whose job has an active run waits, unless overlap allows it, and every
  slot behind it waits too: no record, no floor; it is offered again.
- Per schedule of a job, known by its hash, there is a *floor*: each of its slots up to there is decided, and
  none is claimed anew. A claim at or below the floor is ``taken``, as one whose run exists; what a claim
  decides or finds decided raises the floor of its schedule, and the job's, which is the highest of all. So
  during a deploy, while some nodes have an old schedule and some a new one, a slot of one that lies before
  what the other decided is decided too. An offer that names no schedule goes by the job's floor and
  raises all; one of a schedule that the store does not know is ``unknown``: its node has to register.
- A schedule takes effect when it is first seen. It *comes back* if a node starts with it (and remembers
  nothing of the job) and another one was seen long after it was last seen: then it takes effect anew, from
  now. What came due while the job had another schedule is not caught up. A node that goes on has it as it
  had it.
- A worker may start a run only from ``claimed``, ``queued`` or ``released`` (any message of the
  run will do; to insist on the newest would starve a job whose queue is slow), or late from
  ``published`` and from ``abandoned`` without a start. Never from ``running``: an expired lease is
  taken over by beat alone, so that the crash limit and the hold-off hold; nor, for the limit's sake, from
  ``released`` once a holder has died on it.
- A run that waits for a retry of Celery's is started by a message of that try or a later one: an earlier one,
  delivered again, would begin Celery's count anew.
- Somebody may ask for runs of their own kind, with arguments of their own: a ``manual`` one for now,
  ``backfill`` ones for slots that were. They enter as ``released``, whatever floor and pause say, and move no
  floor. Where overlap forbids they are ``buffered``, in any number, and no slot takes the place of one; for
  them only what runs counts, and other such runs. So a scheduled run that is to be started may meet one that
  runs, and the other way round: under any overlap policy but ``allow`` it waits for the end of that one.
- Somebody may ask a run to stop: one that runs hears it at its next heartbeat, any other ends at once.
- Whoever meets the message of a run and knows that nobody will start it *settles* it: ``cancelled`` or
  ``published``, from ``claimed``, ``queued`` or ``released``.
- The start mints the *fence*: the larger of the job's last one plus one and the store's time in
  microseconds, so that a store that lost its last write cannot issue one twice.
- ``renew``, ``finish``, ``requeue`` and ``release`` carry the holder's *token*. Who no longer
  holds the run changes nothing, and is told.
- Every changing call may be repeated after a lost answer: a claim and a redispatch know themselves
  by their nonce, the others by the token or the state they leave.

A store that was wiped, restored or failed over has forgotten something: it gets another identity, and is
young for one lease of each job, while nodes register again and holders put their runs back; see
:mod:`anarchon_celery.youth`.

All instants are milliseconds since the epoch by the store's clock, all durations milliseconds;
a fence is an integer near the microseconds since the epoch. The transitions themselves are in
:mod:`anarchon_celery.transitions`; this module only holds values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .slots import Leap, Slot

#: States in which a run has a deadline, and other slots of its job meet the overlap policy.
ACTIVE: frozenset[str] = frozenset({"claimed", "queued", "running", "released"})

#: The state of a run that waits for the end of another one, or for its job to be resumed.
BUFFERED = "buffered"

#: States that change no more, the two late starts aside.
ENDED: frozenset[str] = frozenset(
    {"succeeded", "failed", "published", "skipped", "missed", "cancelled", "abandoned"}
)

#: The last instant that a record may name: of 14 digits, as many as Lua's JSON writes; in the year 5138.
LATEST = 99_999_999_999_999

#: How often a run is dispatched without ever being started before it is abandoned.
MAX_DISPATCHES = 5

#: The longest a message may wait in its queue before it is sent again, however often it was.
LONGEST_START_TIMEOUT = 3_600_000

#: A run whose job no node registered for this long is abandoned at its deadline.
ORPHANED_AFTER = 86_400_000

#: The kind of a record of slots passed over, where the first of them was decided for another schedule.
LEAPT = "leapt"

#: Why a run is asked to stop under overlap ``cancel``.
OVERTAKEN = "overlap: the next slot came due"

#: Why a message may not start a run that waits for a later one of Celery's retries.
EARLIER_TRY = "of an earlier try"

#: The kinds of runs that somebody asked for: one for now, and those of slots that were.
MANUAL, BACKFILL = "manual", "backfill"

#: All kinds of runs, what a run may have been begun for, and the kinds of nodes.
KINDS: frozenset[str] = frozenset({"scheduled", MANUAL, BACKFILL, LEAPT})
TRIGGERS: frozenset[str] = frozenset({"scheduled", "catch-up", "takeover", MANUAL, BACKFILL})
NODE_KINDS: frozenset[str] = frozenset({"beat", "worker"})

#: For how long the same request is known again, after a lost answer (ms).
ASKED_AGAIN_WITHIN = 600_000

#: Why a run is settled as published.
PLAIN = "run by a task without the base class"

#: Why a message has to wait, and why a lease is renewed, in a store that has forgotten runs.
YOUNG = "the store is young: holders put their runs back first"
PUT_BACK = "put back"

#: A schedule that was last seen this long before another one comes back, where a node starts with it. Nodes
#: register every hour: in a deploy both are seen.
COMEBACK_AFTER = 7_200_000

#: How many schedule hashes of a job are remembered: more than deploys overlap.
REMEMBERED_HASHES = 8

#: A node that was not seen for this long is forgotten when another one registers.
GONE_AFTER = 86_400_000


class RunKey(NamedTuple):
    """The name of a run: a job, a fire time, and how it came to be."""

    job: str
    slot: int
    kind: str = "scheduled"

    def __str__(self) -> str:
        """Return the slot as the log writes it."""
        return str(Slot(self.job, self.slot))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The store's record of one run.

    ``dispatch`` numbers the publications, ``unstarted`` counts those since the last start.
    ``span`` is the length of the deadline when it was set: no deadline may lie further ahead.
    ``retries`` is set while a retry of Celery's waits to be started, ``not_before`` until when.
    ``until`` and ``count`` belong to a record that stands for several slots: a ``missed`` one, or a
    ``skipped`` one that others were folded into.
    ``arguments`` (JSON: ``[args or null, kwargs or null]``), ``asked_by`` and ``request`` belong to a run
    that somebody asked for: what its task is called with in place of the entry's, who it was, and the
    request's nonce.
    """

    job: str
    slot: int
    kind: str = "scheduled"
    state: str = "claimed"
    trigger: str = "scheduled"
    dispatch: int = 1
    unstarted: int = 0
    attempt: int = 0
    crashes: int = 0
    fence: int = 0
    node: str | None = None
    owner: str | None = None
    task_id: str | None = None
    token: str | None = None
    nonce: str | None = None
    deadline: int | None = None
    span: int | None = None
    lease: int | None = None
    not_before: int | None = None
    retries: int | None = None
    stop: str | None = None
    claimed_at: int | None = None
    queued_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    reason: str | None = None
    until: int | None = None
    count: int = 1
    arguments: str | None = None
    asked_by: str | None = None
    request: str | None = None

    @property
    def key(self) -> RunKey:
        """The name of this run."""
        return RunKey(self.job, self.slot, self.kind)

    @property
    def active(self) -> bool:
        """Whether the run has a deadline; a buffered one has none."""
        return self.state in ACTIVE

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state in ENDED

    @property
    def may_start_late(self) -> bool:
        """Whether a message that comes late may still start it, though it is over."""
        return self.state == "published" or (self.state == "abandoned" and self.unstarted > 0)


class Success(NamedTuple):
    """A job's newest slot that was run well, and when that ended."""

    slot: int
    finished_at: int


class KnownSchedule(NamedTuple):
    """A schedule of a job: its hash, from when on it counts, up to where it is decided, when last seen."""

    hash: str
    since: int
    floor: int | None = None
    seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The store's record of one job.

    ``hashes`` holds its schedules, the last seen last, so that during a deploy old and new nodes both know
    from when on theirs counts and up to where it is decided; ``floor`` is the highest of their floors.
    ``paused`` is the reason, None while it is not.
    """

    name: str
    hashes: tuple[KnownSchedule, ...] = ()
    first_seen: int
    seen: int
    floor: int | None = None
    fence: int = 0
    supervised: bool = False
    paused: str | None = None
    paused_by: str | None = None
    paused_at: int | None = None

    def known(self, hash: str | None) -> KnownSchedule | None:
        """Return one of its schedules."""
        return next((known for known in self.hashes if known.hash == hash), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A beat or worker process: its random incarnation, the name it is shown by, when last seen.

    ``app`` is the main name of its Celery app, where that has one and the node told it; ``version`` is this
    package's, ``celery`` and ``python`` are theirs. ``clock_offset`` is how far its wall clock is ahead of
    the store's (ms), ``schedule`` the hash of all its jobs, of a beat.
    """

    id: str
    name: str
    kind: str = "beat"
    seen: int = 0
    app: str | None = None
    version: str | None = None
    celery: str | None = None
    python: str | None = None
    clock_offset: int | None = None
    schedule: str | None = None


# What nodes and workers ask ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One job as a node knows it: its schedule's hash, and what the node remembers of the job.

    A node that has just started has no ``cursor``; ``effective`` and ``floor`` are what it was told before.
    """

    job: str
    hash: str
    cursor: int | None = None
    floor: int | None = None
    effective: int | None = None
    first_seen: int | None = None
    supervised: bool = False
    paused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The slots of one job that came due, oldest first; the first ``late`` of them are late.

    ``hash`` is the schedule they are of. Of a ``chained`` one each slot depends on the one before: it was
    computed from the floor ``after``, and if that is not the floor any more nothing is decided. ``floor`` is
    what the node was told: where the store's own is lower, it lost writes.
    """

    job: str
    slots: tuple[int, ...]
    hash: str | None = None
    late: int = 0
    leap: Leap | None = None
    overlap: str = "skip"
    catch_up: str = "latest"
    chained: bool = False
    after: int | None = None
    claim_timeout: int = 10_000
    lease: int = 30_000
    floor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redispatch:
    """A run past its deadline, as it was seen; it is dispatched again only if it is still so."""

    key: RunKey
    state: str
    dispatch: int
    deadline: int
    max_crashes: int = 3
    claim_timeout: int = 10_000
    lease: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A claim that was published; ``supervised`` is None where the node does not know: the store may."""

    key: RunKey
    dispatch: int
    task_id: str
    supervised: bool | None = None
    countdown: int = 0
    start_timeout: int = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A delivery that wants to run: made from its headers, with the token of this delivery.

    ``retries`` is which of Celery's retries the message is.
    """

    key: RunKey
    token: str
    worker: str
    task_id: str | None = None
    dispatch: int = 1
    trigger: str = "scheduled"
    claimed_at: int = 0
    lease: int = 30_000
    overlap: str = "skip"
    retries: int = 0
    arguments: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Runs of a job that somebody asks for, and how its policy has them.

    ``arguments`` stand in place of the entry's: JSON, ``[args or null, kwargs or null]``.
    """

    job: str
    by: str
    arguments: str | None = None
    overlap: str = "skip"
    lease: int = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """A run that ends without a start, as whoever met its message says; of one ``dispatch`` or of any.

    The outcome is ``cancelled`` (the message expired or was revoked), or ``published`` (a task without the
    base class ran it).
    """

    key: RunKey
    outcome: str
    reason: str
    dispatch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A lease somebody holds, as ``renew`` names it; with what a store has to be told that forgot it.

    ``store`` is the identity that knew of it last. It is put back only while its holder trusts it.
    """

    key: RunKey
    token: str
    fence: int
    attempt: int = 1
    lease: int = 30_000
    owner: str | None = None
    task_id: str | None = None
    trigger: str = "scheduled"
    dispatch: int = 1
    claimed_at: int | None = None
    overlap: str = "skip"
    arguments: str | None = None
    store: str = ""
    trusted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A run given back: by its holder (``token``), or by the node whose claim it is (``nonce``)."""

    key: RunKey
    token: str | None = None
    nonce: str | None = None
    delay: int = 0
    crash: bool = False


# What the store answers -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What the store knows of a job; ``effective`` and ``floor`` are those of the given hash."""

    job: str
    floor: int | None
    first_seen: int
    effective: int
    supervised: bool
    paused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The answer for one slot.

    ``won`` (with the run), ``taken`` (with its state, where a run exists), ``overlap`` (``skipped`` or
    ``buffered``, as the run's state says), ``paused`` (likewise), ``wait`` (nothing was decided),
    ``early`` (with the milliseconds to wait), ``cancelled`` (a redispatch that ended the run; a slot that
    was won, and lost its place to a later one before the answer), ``abandoned`` (a redispatch that ended
    the run), ``unknown`` (the job is not registered, or its schedule is not).
    """

    key: RunKey
    answer: Literal[
        "won", "taken", "overlap", "paused", "wait", "early", "cancelled", "abandoned", "unknown"
    ]  # fmt: skip
    run: Run | None = None
    wait: int = 0

    @property
    def won(self) -> bool:
        """Whether this node is the one to publish the run."""
        return self.answer == "won"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """The answers for one job, its schedule's floor now, and the record of what was passed over, if any.

    ``ended`` are runs of other calls that this decision ended: a buffered one whose place was taken
    (``skipped``), one that did not run under overlap ``cancel`` (``cancelled``). Of slots in this call
    their own answers say so. After a lost answer they are not told again.
    """

    job: str
    floor: int | None
    claims: tuple[Claim, ...]
    missed: Run | None = None
    ended: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """The answer for one run that somebody asked for.

    ``released`` (it is dispatched at once), ``buffered`` (it waits for others of its job), ``taken`` (that
    slot has such a run already), ``early`` (that slot is not due for ``wait`` milliseconds), ``wait`` (the
    store is young for so long), ``unknown`` (no node has told the store of the job).
    """

    answer: Literal["released", "buffered", "taken", "early", "wait", "unknown"]
    run: Run | None = None
    wait: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """A page of runs past their deadline, oldest first, and the next deadline after ``now``."""

    runs: tuple[Run, ...]
    next_deadline: int | None
    orphaned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The run is this worker's, under this attempt and fence; ``store`` is the identity that knows of it."""

    attempt: int
    fence: int
    trigger: str
    store: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """The message may not start its run; ``why`` is a state or a word.

    ``wait`` is set where the message only came too early: the milliseconds until it may.
    """

    why: str
    wait: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """The answer for one lease: ``ok``, ``stop`` or ``lost``, with the reason for a person.

    ``ok`` with the reason :data:`PUT_BACK`: the store had forgotten the run. ``store`` is the identity that
    knows of it now.
    """

    answer: Literal["ok", "stop", "lost"]
    reason: str = ""
    store: str = field(default="", compare=False)

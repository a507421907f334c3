"""One frozen value per happening; :func:`emit` says it once, by name.

It becomes a line in the log, whose record carries the fields of :mod:`.logged`, and a signal of
:mod:`.signals`. The lines are the contract's, word for word. Lines about single runs go to a logger of their
own, ``anarchon_celery.runs``, so that ``anarchon_log_runs = False`` is a level and not a condition.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any, ClassVar

from celery.utils.log import get_logger

from . import logged, signals
from .errors import shortened
from .logged import Whose
from .protocol import Run, RunKey
from .slots import Slot, iso

_nodes_logger = get_logger("anarchon_celery")
_runs_logger = get_logger("anarchon_celery.runs")
_receivers_logger = get_logger("celery.utils.dispatch.signal")  #: which says what else receivers raise


def log_runs(wanted: bool) -> None:
    """Write the lines of single runs, or keep to warnings about them."""
    _runs_logger.setLevel(logging.NOTSET if wanted else logging.WARNING)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; ``str()`` of it is its line in the log, made from ``line``.

    ``node`` is where, if that is not the node that says it.
    """

    level: ClassVar[int] = logging.INFO
    logger: ClassVar[logging.Logger] = _nodes_logger
    line: ClassVar[str]
    signal: ClassVar[Any]
    node: str | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        # One line, whatever names of others have in them: nobody else's is to look like one of ours.
        return " ".join(self.line.format(it=self).splitlines())

    @property
    def name(self) -> str:
        """What happened, as the log's records and the signals name it."""
        return str(self.signal.name)

    @property
    def of(self) -> RunKey | str | None:
        """The run it is of; or only the job, or none."""
        return None

    @property
    def whose(self) -> Whose:
        """Of which attempt it is, as far as it is of one."""
        return Whose(node=self.node)


def emit(event: Event) -> None:
    """Say that it happened: to the log, and to whoever is connected to its signal."""
    if event.logger.isEnabledFor(event.level):
        event.logger.log(event.level, "[anarchon] %s", shortened(str(event)), extra={**fields(event)})
    if event.signal.receivers:
        _send(event)


def fields(event: Event) -> logged.Fields:
    """Return what its record in the log carries."""
    of = event.of
    if isinstance(of, RunKey):
        return logged.fields(event.name, job=of.job, slot=iso(of.slot), **event.whose)
    return logged.fields(event.name, job=of, **event.whose)


def _send(event: Event) -> None:
    of, told = event.of, fields(event)
    run = of if isinstance(of, RunKey) else None
    try:
        event.signal.send(
            sender=told["job"] or told["node"], event=event, job=told["job"],
            slot=None if run is None else Slot(run.job, run.slot).datetime,
            kind=None if run is None else run.kind,
            attempt=told["attempt"], fence=told["fence"], node=told["node"],
        )  # fmt: skip
    except SystemExit:
        # Celery ends a process by it, in the main thread; elsewhere it would end the heartbeat, unseen.
        if threading.current_thread() is threading.main_thread():
            raise
        line = "A receiver of %s called exit(), which ends nothing here"
        _receivers_logger.exception(line, event.name, extra={**fields(event)})


def attempt_of(run: Run) -> Whose:
    """Return which attempt of a run was the last, as the store has it; it may have none yet."""
    return Whose(attempt=run.attempt or None, fence=run.fence or None)


# nodes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeatStarted(Event):
    """A beat knows its jobs and the store knows it."""

    signal = signals.beat_started
    line = "started as {it.node} (store {it.store}, {it.jobs} {it.noun}, lease {it.lease})"
    store: str
    jobs: int
    lease: str

    @property
    def noun(self) -> str:
        """What there are so many of."""
        return "job" if self.jobs == 1 else "jobs"


@dataclass(frozen=True, slots=True)
class Noted(Event):
    """Something a person should know about the settings."""

    level = logging.WARNING
    signal = signals.noted
    line = "{it.note}"
    note: str


@dataclass(frozen=True, slots=True)
class JobRefused(Event):
    """An entry that cannot be meant; the other jobs go on."""

    level = logging.ERROR
    signal = signals.job_refused
    line = "{it.reason}; this job stays out, the others go on"
    reason: str
    job: str | None = None

    @property
    def of(self) -> str | None:
        """See :attr:`Event.of`."""
        return self.job


@dataclass(frozen=True, slots=True)
class JobNotDue(Event):
    """A schedule has no fire time: none that is found yet, or none at all where ``until`` is None."""

    level = logging.WARNING
    signal = signals.job_not_due
    line = "entry {it.job!r}: its schedule {it.found}"
    job: str
    after: str
    until: str | None = None

    @property
    def of(self) -> str:
        """See :attr:`Event.of`."""
        return self.job

    @property
    def found(self) -> str:
        """What is known of its next fire time."""
        if self.until is None:
            return f"has no fire time after {self.after}"
        return f"is not due before {self.until}, as far as it was asked; it is asked again then"


@dataclass(frozen=True, slots=True)
class StoreLost(Event):
    """The store did not answer; the node waits and tries again."""

    level = logging.WARNING
    signal = signals.store_lost
    line = "waiting for the store: {it.reason}; trying again in {it.retry_in:g} s"
    reason: str
    retry_in: float


@dataclass(frozen=True, slots=True)
class StoreBack(Event):
    """The store answers again."""

    signal = signals.store_back
    line = "the store answers again"


@dataclass(frozen=True, slots=True)
class StoreForgot(Event):
    """The store is another one than before; for a lease of each job its runs are only put back."""

    level = logging.WARNING
    signal = signals.store_forgot
    line = "{it.reason}; for one lease ({it.seconds:g} s) nothing starts, and runs are put back"
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BrokerLost(Event):
    """There is no connection to the broker: claimed runs are given back, so that others have them."""

    level = logging.WARNING
    signal = signals.broker_lost
    line = "waiting for the broker: {it.reason}; trying again in {it.retry_in:g} s"
    reason: str
    retry_in: float


@dataclass(frozen=True, slots=True)
class BrokerBack(Event):
    """The broker takes messages again."""

    signal = signals.broker_back
    line = "the broker takes messages again"


@dataclass(frozen=True, slots=True)
class WorkerGone(Event):
    """The worker whose beat this is was killed; its beat goes too."""

    level = logging.WARNING
    signal = signals.worker_gone
    line = "stops: process {it.pid}, the worker whose beat this is, is gone"
    pid: int


@dataclass(frozen=True, slots=True)
class TickFailed(Event):
    """Something nobody thought of; beat outlives it."""

    level = logging.ERROR
    signal = signals.tick_failed
    line = "this look failed, the next one follows: {it.reason}"
    reason: str


@dataclass(frozen=True, slots=True)
class HeldOff(Event):
    """The node was stalled or the store's clock jumped: it takes nothing over for a while."""

    level = logging.WARNING
    signal = signals.held_off
    line = "{it.why}: takes over no running run for {it.seconds:g} s"
    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MetricsServed(Event):
    """A node answers Prometheus."""

    signal = signals.metrics_served
    line = "metrics are served at {it.url}"
    url: str


@dataclass(frozen=True, slots=True)
class MetricsNotServed(Event):
    """A node cannot answer Prometheus; it goes on without."""

    level = logging.ERROR
    signal = signals.metrics_not_served
    line = "metrics are not served: {it.reason}"
    reason: str


# runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunEvent(Event):
    """Something that happened to one run, in an attempt at it if there was one."""

    logger = _runs_logger
    key: RunKey
    attempt: int | None = field(default=None, kw_only=True)
    fence: int | None = field(default=None, kw_only=True)

    @property
    def of(self) -> RunKey:
        """See :attr:`Event.of`."""
        return self.key

    @property
    def whose(self) -> Whose:
        """See :attr:`Event.whose`."""
        return Whose(attempt=self.attempt, fence=self.fence, node=self.node)


@dataclass(frozen=True, slots=True)
class SlotClaimed(RunEvent):
    """A beat won the slot: it is the one to publish its run."""

    level = logging.DEBUG
    signal = signals.slot_claimed
    line = "{it.key}: claimed by {it.node} ({it.trigger})"
    trigger: str


@dataclass(frozen=True, slots=True)
class RunDispatched(RunEvent):
    """A beat published the run."""

    signal = signals.run_dispatched
    line = "{it.key}: dispatched by {it.node} (attempt {it.attempt}, {it.trigger})"
    trigger: str
    dispatch: int = 1  #: 1, 2, …: how often it was sent
    late_ms: int | None = None  #: how long after its slot, if it was sent for the first time


@dataclass(frozen=True, slots=True)
class RunStarted(RunEvent):
    """A worker began the run."""

    signal = signals.run_started
    line = "{it.key}: started on {it.node} (attempt {it.attempt}, {it.trigger})"
    trigger: str
    waited_ms: int | None = None  #: since its slot was claimed for this message; None of a retry


@dataclass(frozen=True, slots=True)
class RunTakenOver(RunEvent):
    """A beat sends the run again, whose attempt came to no end.

    ``was`` is what it was until now: ``running``, with a holder that was silent for ``ms``, or ``released``,
    given back ``ms`` ago. If its message cannot be sent now, it is taken over once more.
    """

    level = logging.DEBUG
    signal = signals.run_taken_over
    line = "{it.key}: taken over by {it.node}, {it.why}"
    was: str
    ms: int

    @property
    def why(self) -> str:
        """Since when it had no holder."""
        if self.was == "running":
            return f"{self.ms} ms after its last heartbeat"
        return f"{self.ms} ms after it was to start again"


@dataclass(frozen=True, slots=True)
class RunFinished(RunEvent):
    """The task returned and its result is stored."""

    signal = signals.run_finished
    line = "{it.key}: finished in {it.ms} ms"
    ms: int


@dataclass(frozen=True, slots=True)
class RunFailed(RunEvent):
    """The task raised: a final end."""

    signal = signals.run_failed
    line = "{it.key}: failed after {it.ms} ms: {it.error}"
    ms: int
    error: str


@dataclass(frozen=True, slots=True)
class RunRetried(RunEvent):
    """The task asked Celery for a retry; the run waits for it under the same attempt."""

    signal = signals.run_retried
    line = "{it.key}: retry {it.retries} requested after {it.ms} ms"
    ms: int
    retries: int


@dataclass(frozen=True, slots=True)
class RunHandedOver(RunEvent):
    """The task stopped when asked, and the run was given up on purpose."""

    signal = signals.run_handed_over
    line = "{it.key}: interrupted after {it.ms} ms, handed over to another instance"
    ms: int


@dataclass(frozen=True, slots=True)
class RunLost(RunEvent):
    """The lease is gone while the task runs; the task is told."""

    level = logging.WARNING
    signal = signals.lease_lost
    line = "{it.key}: lease lost after {it.ms} ms: {it.reason}"
    ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunCrashed(RunEvent):
    """The process that ran it died; the run starts again."""

    level = logging.WARNING
    signal = signals.run_crashed
    line = "{it.key}: its worker died after {it.ms} ms, the run is given back: {it.reason}"
    ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunInterrupted(RunEvent):
    """The task went on after its lease was lost, and is interrupted."""

    level = logging.WARNING
    signal = signals.run_interrupted
    line = "{it.key}: interrupted after {it.ms} ms: it went on for {it.late:g} s after its lease was lost"
    ms: int
    late: float


@dataclass(frozen=True, slots=True)
class RunKilled(RunEvent):
    """The task could not be interrupted either: its process is killed."""

    level = logging.ERROR
    signal = signals.run_killed
    line = "{it.key}: process {it.pid} is killed: its task went on for {it.late:g} s after its lease was lost"
    pid: int
    late: float


@dataclass(frozen=True, slots=True)
class RunPutBack(RunEvent):
    """The store had forgotten the run; its holder has recorded it again, and goes on."""

    level = logging.WARNING
    signal = signals.run_put_back
    line = "{it.key}: put back after {it.ms} ms into a store that had forgotten it"
    ms: int


@dataclass(frozen=True, slots=True)
class RunAskedToStop(RunEvent):
    """The run is to stop for good; the task is told."""

    signal = signals.run_asked_to_stop
    line = "{it.key}: asked to stop after {it.ms} ms: {it.reason}"
    ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunCancelled(RunEvent):
    """The run was stopped for good; ``ms`` is how long it was held, None if it was not started."""

    signal = signals.run_cancelled
    line = "{it.key}: cancelled{it.after}: {it.reason}"
    reason: str
    ms: int | None = None

    @property
    def after(self) -> str:
        """After how long, if it ran."""
        return "" if self.ms is None else f" after {self.ms} ms"


@dataclass(frozen=True, slots=True)
class RunWasPlain(RunEvent):
    """A worker without the base class ran the message, as its result shows: the run is not sent again."""

    level = logging.WARNING
    signal = signals.run_was_plain
    line = "{it.key}: not dispatched again: run by a task without the base class, as its result shows"


@dataclass(frozen=True, slots=True)
class RunNotSettled(RunEvent):
    """A task without the base class runs, and the store does not hear of it: it may be sent again."""

    level = logging.WARNING
    signal = signals.run_not_settled
    line = "{it.key}: runs without the base class, which the store does not know: {it.reason}"
    reason: str


@dataclass(frozen=True, slots=True)
class RunBuffered(RunEvent):
    """The slot's run waits."""

    signal = signals.run_buffered
    line = "{it.key}: buffered until {it.until}"
    until: str


@dataclass(frozen=True, slots=True)
class SlotSkipped(RunEvent):
    """Somebody else has the slot, or nobody gets it: ``why`` is one word."""

    signal = signals.slot_skipped
    line = "{it.key}: skipped ({it.why})"
    why: str


@dataclass(frozen=True, slots=True)
class SlotMissed(RunEvent):
    """Slots that came due while nobody looked are passed over, as catch-up says; ``key`` is the first."""

    signal = signals.slot_missed
    line = "{it.key}: skipped (missed)"
    count: int = 1


@dataclass(frozen=True, slots=True)
class RunAbandoned(RunEvent):
    """The run is given up for good."""

    level = logging.ERROR
    signal = signals.run_abandoned
    line = "{it.key}: abandoned: {it.reason}"
    reason: str


@dataclass(frozen=True, slots=True)
class MessageGivenBack(Event):
    """A message this worker cannot run now is published again, for later or for another worker."""

    level = logging.WARNING
    logger = _runs_logger
    signal = signals.message_given_back
    line = "{it.what}: given back for {it.delay:g} s: {it.reason}"
    what: RunKey | str
    reason: str
    delay: float

    @property
    def of(self) -> RunKey | None:
        """See :attr:`Event.of`."""
        return self.what if isinstance(self.what, RunKey) else None


@dataclass(frozen=True, slots=True)
class MessageDropped(Event):
    """A message that no worker could read; its run is dispatched again when its deadline passes."""

    level = logging.ERROR
    logger = _runs_logger
    signal = signals.message_dropped
    line = "{it.what}: dropped: {it.reason}"
    what: RunKey | str
    reason: str

    @property
    def of(self) -> RunKey | None:
        """See :attr:`Event.of`."""
        return self.what if isinstance(self.what, RunKey) else None


@dataclass(frozen=True, slots=True)
class RunNotPublished(RunEvent):
    """The message of a claimed run is not out, or perhaps not."""

    level = logging.ERROR
    signal = signals.run_not_published
    line = "{it.key}: not published, {it.fate}: {it.reason}"
    reason: str
    certain: bool

    @property
    def fate(self) -> str:
        """What becomes of the run."""
        return "given back" if self.certain else "perhaps out, so its deadline decides"


@dataclass(frozen=True, slots=True)
class RunUnrecorded(RunEvent):
    """The end of a run could not be written while its lease was trusted; it will run again."""

    level = logging.ERROR
    signal = signals.run_unrecorded
    line = "{it.key}: {it.outcome}, but that could not be recorded: {it.reason}"
    outcome: str
    reason: str

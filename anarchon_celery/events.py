"""One frozen value per happening; :func:`emit` says it once, by name.

The lines are the contract's, word for word. Lines about single runs go to a logger of their own,
``anarchon_celery.runs``, so that ``anarchon_log_runs = False`` is a level and not a condition.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from celery.utils.log import get_logger

from .protocol import RunKey

_nodes_logger = get_logger("anarchon_celery")
_runs_logger = get_logger("anarchon_celery.runs")


def log_runs(wanted: bool) -> None:
    """Write the lines of single runs, or keep to warnings about them."""
    _runs_logger.setLevel(logging.NOTSET if wanted else logging.WARNING)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; ``str()`` of it is its line in the log, made from ``line``."""

    level: ClassVar[int] = logging.INFO
    logger: ClassVar[logging.Logger] = _nodes_logger
    line: ClassVar[str]

    def __str__(self) -> str:
        return self.line.format(it=self)


def emit(event: Event) -> None:
    """Say that it happened."""
    event.logger.log(event.level, "[anarchon] %s", event)


# nodes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeatStarted(Event):
    """A beat knows its jobs and the store knows it."""

    line = "started as {it.node} (store {it.store}, {it.jobs} {it.noun}, lease {it.lease})"
    node: str
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
    line = "{it.note}"
    note: str


@dataclass(frozen=True, slots=True)
class JobRefused(Event):
    """An entry that cannot be meant; the other jobs go on."""

    level = logging.ERROR
    line = "{it.reason}; this job stays out, the others go on"
    reason: str


@dataclass(frozen=True, slots=True)
class JobNotDue(Event):
    """A schedule has no fire time: none that is found yet, or none at all where ``until`` is None."""

    level = logging.WARNING
    line = "entry {it.job!r}: its schedule {it.found}"
    job: str
    after: str
    until: str | None = None

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
    line = "waiting for the store: {it.reason}; trying again in {it.retry_in:g} s"
    reason: str
    retry_in: float


@dataclass(frozen=True, slots=True)
class StoreBack(Event):
    """The store answers again."""

    line = "the store answers again"


@dataclass(frozen=True, slots=True)
class StoreForgot(Event):
    """The store is another one than before; for a lease of each job its runs are only put back."""

    level = logging.WARNING
    line = "{it.reason}; for one lease ({it.seconds:g} s) nothing starts, and runs are put back"
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BrokerLost(Event):
    """There is no connection to the broker: claimed runs are given back, so that others have them."""

    level = logging.WARNING
    line = "waiting for the broker: {it.reason}; trying again in {it.retry_in:g} s"
    reason: str
    retry_in: float


@dataclass(frozen=True, slots=True)
class BrokerBack(Event):
    """The broker takes messages again."""

    line = "the broker takes messages again"


@dataclass(frozen=True, slots=True)
class TickFailed(Event):
    """Something nobody thought of; beat outlives it."""

    level = logging.ERROR
    line = "this look failed, the next one follows: {it.reason}"
    reason: str


@dataclass(frozen=True, slots=True)
class HeldOff(Event):
    """The node was stalled or the store's clock jumped: it takes nothing over for a while."""

    level = logging.WARNING
    line = "{it.why}: takes over no running run for {it.seconds:g} s"
    why: str
    seconds: float


# runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunEvent(Event):
    """Something that happened to one run."""

    logger = _runs_logger
    key: RunKey


@dataclass(frozen=True, slots=True)
class RunDispatched(RunEvent):
    """A beat published the run."""

    line = "{it.key}: dispatched by {it.node} (attempt {it.attempt}, {it.trigger})"
    node: str
    attempt: int
    trigger: str


@dataclass(frozen=True, slots=True)
class RunStarted(RunEvent):
    """A worker began the run."""

    line = "{it.key}: started on {it.worker} (attempt {it.attempt}, {it.trigger})"
    worker: str
    attempt: int
    trigger: str


@dataclass(frozen=True, slots=True)
class RunFinished(RunEvent):
    """The task returned and its result is stored."""

    line = "{it.key}: finished in {it.ms} ms"
    ms: int


@dataclass(frozen=True, slots=True)
class RunFailed(RunEvent):
    """The task raised: a final end."""

    line = "{it.key}: failed after {it.ms} ms: {it.error}"
    ms: int
    error: str


@dataclass(frozen=True, slots=True)
class RunRetried(RunEvent):
    """The task asked Celery for a retry; the run waits for it under the same attempt."""

    line = "{it.key}: retry {it.retries} requested after {it.ms} ms"
    ms: int
    retries: int


@dataclass(frozen=True, slots=True)
class RunHandedOver(RunEvent):
    """The task stopped when asked, and the run was given up on purpose."""

    line = "{it.key}: interrupted after {it.ms} ms, handed over to another instance"
    ms: int


@dataclass(frozen=True, slots=True)
class RunLost(RunEvent):
    """The lease is gone while the task runs; the task is told."""

    level = logging.WARNING
    line = "{it.key}: lease lost after {it.ms} ms: {it.reason}"
    ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunPutBack(RunEvent):
    """The store had forgotten the run; its holder has recorded it again, and goes on."""

    level = logging.WARNING
    line = "{it.key}: put back after {it.ms} ms into a store that had forgotten it"
    ms: int


@dataclass(frozen=True, slots=True)
class RunAskedToStop(RunEvent):
    """The run is to stop for good; the task is told."""

    line = "{it.key}: asked to stop after {it.ms} ms: {it.reason}"
    ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunCancelled(RunEvent):
    """The run was stopped for good; ``ms`` is how long it was held, None if it was not started."""

    line = "{it.key}: cancelled{it.after}: {it.reason}"
    reason: str
    ms: int | None = None

    @property
    def after(self) -> str:
        """After how long, if it ran."""
        return "" if self.ms is None else f" after {self.ms} ms"


@dataclass(frozen=True, slots=True)
class RunBuffered(RunEvent):
    """The slot's run waits."""

    line = "{it.key}: buffered until {it.until}"
    until: str


@dataclass(frozen=True, slots=True)
class SlotSkipped(RunEvent):
    """Somebody else has the slot, or nobody gets it: ``why`` is one word."""

    line = "{it.key}: skipped ({it.why})"
    why: str


@dataclass(frozen=True, slots=True)
class RunAbandoned(RunEvent):
    """The run is given up for good."""

    level = logging.ERROR
    line = "{it.key}: abandoned: {it.reason}"
    reason: str


@dataclass(frozen=True, slots=True)
class MessageGivenBack(Event):
    """A message this worker cannot run now is published again, for later or for another worker."""

    level = logging.WARNING
    logger = _runs_logger
    line = "{it.what}: given back for {it.delay:g} s: {it.reason}"
    what: RunKey | str
    reason: str
    delay: float


@dataclass(frozen=True, slots=True)
class MessageDropped(Event):
    """A message that no worker could read; its run is dispatched again when its deadline passes."""

    level = logging.ERROR
    logger = _runs_logger
    line = "{it.what}: dropped: {it.reason}"
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunNotPublished(RunEvent):
    """The message of a claimed run is not out, or perhaps not."""

    level = logging.ERROR
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
    line = "{it.key}: {it.outcome}, but that could not be recorded: {it.reason}"
    outcome: str
    reason: str

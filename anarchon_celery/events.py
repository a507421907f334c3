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
    """Something that happened; ``str()`` of it is its line in the log."""

    level: ClassVar[int] = logging.INFO
    logger: ClassVar[logging.Logger] = _nodes_logger


def emit(event: Event) -> None:
    """Say that it happened."""
    event.logger.log(event.level, "[anarchon] %s", event)


# nodes ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeatStarted(Event):
    """A beat knows its jobs and the store knows it."""

    node: str
    store: str
    jobs: int
    lease: str

    def __str__(self) -> str:
        """Return the line."""
        noun = "job" if self.jobs == 1 else "jobs"
        return f"started as {self.node} (store {self.store}, {self.jobs} {noun}, lease {self.lease})"


@dataclass(frozen=True, slots=True)
class Noted(Event):
    """Something a person should know about the settings."""

    level = logging.WARNING
    note: str

    def __str__(self) -> str:
        """Return the line."""
        return self.note


@dataclass(frozen=True, slots=True)
class JobRefused(Event):
    """An entry that cannot be meant; the other jobs go on."""

    level = logging.ERROR
    reason: str

    def __str__(self) -> str:
        """Return the line."""
        return f"{self.reason}; this job stays out, the others go on"


@dataclass(frozen=True, slots=True)
class StoreLost(Event):
    """The store did not answer; the node waits and tries again."""

    level = logging.WARNING
    reason: str
    retry_in: float

    def __str__(self) -> str:
        """Return the line."""
        return f"waiting for the store: {self.reason}; trying again in {self.retry_in:g} s"


@dataclass(frozen=True, slots=True)
class StoreBack(Event):
    """The store answers again."""

    def __str__(self) -> str:
        """Return the line."""
        return "the store answers again"


@dataclass(frozen=True, slots=True)
class BrokerLost(Event):
    """There is no connection to the broker: claimed runs are given back, so that others have them."""

    level = logging.WARNING
    reason: str
    retry_in: float

    def __str__(self) -> str:
        """Return the line."""
        return f"waiting for the broker: {self.reason}; trying again in {self.retry_in:g} s"


@dataclass(frozen=True, slots=True)
class BrokerBack(Event):
    """The broker takes messages again."""

    def __str__(self) -> str:
        """Return the line."""
        return "the broker takes messages again"


@dataclass(frozen=True, slots=True)
class TickFailed(Event):
    """Something nobody thought of; beat outlives it."""

    level = logging.ERROR
    reason: str

    def __str__(self) -> str:
        """Return the line."""
        return f"this look failed, the next one follows: {self.reason}"


@dataclass(frozen=True, slots=True)
class HeldOff(Event):
    """The node was stalled or the store's clock jumped: it takes nothing over for a while."""

    level = logging.WARNING
    why: str
    seconds: float

    def __str__(self) -> str:
        """Return the line."""
        return f"{self.why}: takes over no running run for {self.seconds:g} s"


# runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunEvent(Event):
    """Something that happened to one run."""

    logger = _runs_logger
    key: RunKey

    def __str__(self) -> str:
        """Return the line: the slot, and what happened to it."""
        return f"{self.key}: {self.what}"

    @property
    def what(self) -> str:
        """What happened, as the log says it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class RunDispatched(RunEvent):
    """A beat published the run."""

    node: str
    attempt: int
    trigger: str

    @property
    def what(self) -> str:
        """What happened."""
        return f"dispatched by {self.node} (attempt {self.attempt}, {self.trigger})"


@dataclass(frozen=True, slots=True)
class RunStarted(RunEvent):
    """A worker began the run."""

    worker: str
    attempt: int
    trigger: str

    @property
    def what(self) -> str:
        """What happened."""
        return f"started on {self.worker} (attempt {self.attempt}, {self.trigger})"


@dataclass(frozen=True, slots=True)
class RunFinished(RunEvent):
    """The task returned and its result is stored."""

    ms: int

    @property
    def what(self) -> str:
        """What happened."""
        return f"finished in {self.ms} ms"


@dataclass(frozen=True, slots=True)
class RunFailed(RunEvent):
    """The task raised: a final end."""

    ms: int
    error: str

    @property
    def what(self) -> str:
        """What happened."""
        return f"failed after {self.ms} ms: {self.error}"


@dataclass(frozen=True, slots=True)
class RunRetried(RunEvent):
    """The task asked Celery for a retry; the run waits for it under the same attempt."""

    ms: int
    retries: int

    @property
    def what(self) -> str:
        """What happened."""
        return f"retry {self.retries} requested after {self.ms} ms"


@dataclass(frozen=True, slots=True)
class RunHandedOver(RunEvent):
    """The task stopped when asked, and the run was given up on purpose."""

    ms: int

    @property
    def what(self) -> str:
        """What happened."""
        return f"interrupted after {self.ms} ms, handed over to another instance"


@dataclass(frozen=True, slots=True)
class RunLost(RunEvent):
    """The lease is gone while the task runs; the task is told."""

    level = logging.WARNING
    ms: int
    reason: str

    @property
    def what(self) -> str:
        """What happened."""
        return f"lease lost after {self.ms} ms: {self.reason}"


@dataclass(frozen=True, slots=True)
class SlotSkipped(RunEvent):
    """Somebody else has the slot, or nobody gets it: ``why`` is one word."""

    why: str

    @property
    def what(self) -> str:
        """What happened."""
        return f"skipped ({self.why})"


@dataclass(frozen=True, slots=True)
class RunAbandoned(RunEvent):
    """The run is given up for good."""

    level = logging.ERROR
    reason: str

    @property
    def what(self) -> str:
        """What happened."""
        return f"abandoned: {self.reason}"


@dataclass(frozen=True, slots=True)
class MessageGivenBack(RunEvent):
    """A message this worker cannot run now is published again, for later or for another worker."""

    level = logging.WARNING
    reason: str
    delay: float

    @property
    def what(self) -> str:
        """What happened."""
        return f"given back for {self.delay:g} s: {self.reason}"


@dataclass(frozen=True, slots=True)
class RunNotPublished(RunEvent):
    """The message of a claimed run is not out, or perhaps not."""

    level = logging.ERROR
    reason: str
    certain: bool

    @property
    def what(self) -> str:
        """What happened."""
        fate = "given back" if self.certain else "perhaps out, so its deadline decides"
        return f"not published, {fate}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RunUnrecorded(RunEvent):
    """The end of a run could not be written while its lease was trusted; it will run again."""

    level = logging.ERROR
    outcome: str
    reason: str

    @property
    def what(self) -> str:
        """What happened."""
        return f"{self.outcome}, but that could not be recorded: {self.reason}"

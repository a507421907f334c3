"""What the commands work with: the app's settings, its jobs as its entries say, and its store."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from io import TextIOWrapper
from typing import Any

import click
from celery import Celery
from celery.schedules import BaseSchedule, schedule

from . import durations
from .config import Config, Policy, check_celerys, did_you_mean
from .entries import Entry, planned_jobs
from .errors import SettingError, StoreError, in_one_line
from .events import JobRefused
from .origins import in_words, notes_on, told_in_words
from .plan import PlannedJob
from .presence import EVERY
from .protocol import Job, Node, Run
from .slots import FireTimes
from .stores import Store
from .wallclock import Cron, Zone
from .zones import zone_of as named_zone


class Refused(click.ClickException):
    """One line and status 2, without the usage of a command that is right."""

    exit_code = 2


@contextmanager
def store_errors() -> Iterator[None]:
    """A store that does not answer ends the command with one line and status 1."""
    try:
        yield
    except StoreError as reason:
        raise click.ClickException(str(reason)) from reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AppJob:
    """A job as this app's entries have it. ``zone`` is the schedule's own, else the app's."""

    name: str
    schedule: str
    times: FireTimes
    zone: Zone
    supervised: bool | None
    policy: Policy
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as this app has it, and as the store does; one of the two may not know it.

    ``not_before`` is set where its schedule was not asked about more at once, and ``fails`` where it raised;
    else no ``next_at`` is never.
    """

    name: str
    mine: AppJob | None
    stored: Job | None
    last_slot: int | None
    next_at: int | None = None
    not_before: int | None = None
    fails: bool = False

    @property
    def schedule(self) -> str:
        """The schedule as this app has it, else as the store was told last."""
        if self.mine is not None:
            return self.mine.schedule
        hashes = self.stored.hashes if self.stored else ()
        return told_in_words(hashes[-1].hash) if hashes else ""

    @property
    def zone(self) -> str | None:
        """The name of the zone in which this app has it."""
        return None if self.mine is None else self.mine.zone.name

    @property
    def supervised(self) -> bool:
        """Whether its runs are followed to their end; who knows a task as a plain one is right."""
        if self.mine is not None and self.mine.supervised is not None:
            return self.mine.supervised
        return self.stored is not None and self.stored.supervised


@dataclass(slots=True)
class Desk:
    """An app, and its store: opened when a command needs it."""

    app: Celery
    config: Config
    no_color: bool = False
    refusals: list[str] = field(default_factory=list)
    _store: Store | None = None
    _jobs: dict[str, AppJob] | None = None

    @property
    def store(self) -> Store:
        """The store; nothing is connected until the first verb."""
        if self._store is None:
            self._store = _opened(self.config)
        return self._store

    def close(self) -> None:
        """Give connections back."""
        if self._store is not None:
            self._store.close()

    def is_alive(self, node: Node, now: int | None = None) -> bool:
        """Whether the node was seen when it had to be, a few times over; a store may note that late."""
        silence = 3_000 * EVERY if node.kind == "worker" else 10_000 + 3 * self.config.poll
        return node.seen >= (self.store.clock.now() if now is None else now) - silence

    # jobs ---------------------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[str, AppJob]:
        """The app's jobs by name; what was refused is in ``refusals``, a line for each."""
        if self._jobs is None:
            try:
                check_celerys(self.app)
            except SettingError as reason:
                raise Refused(str(reason)) from reason
            self.app.loader.init_worker()  # as beat does: importing the modules makes entries and tasks
            self.app.finalize()
            found, self.refusals = planned_jobs(self.app, self.config)
            self._jobs = {name: job for name, of_app in found.items() if (job := self._job(*of_app))}
        return self._jobs

    def _job(self, entry: Entry, job: PlannedJob) -> AppJob | None:
        try:
            return AppJob(
                name=job.name, schedule=schedule_text(entry.schedule), times=job.times,
                zone=zone_of(entry.schedule, job.times, self.app), supervised=job.supervised,
                policy=job.policy, entry=entry,
            )  # fmt: skip
        except Exception as reason:  # somebody's own schedule; it costs its own job, as in beat
            self._refuse(job.name, reason)
            return None

    def _refuse(self, name: str, reason: Exception) -> None:
        self.refusals.append(f"entry {name!r}: {in_one_line(reason)}")

    def job(self, name: str) -> AppJob:
        """Return one job of the app, or end the command with one line."""
        if name in self.jobs:
            return self.jobs[name]
        for line in self.refusals:
            if line.startswith((f"entry {name!r}: ", f"entry {name!r} (")):
                raise Refused(line)
        raise self.unknown(name, self.jobs)

    def stored(self, name: str) -> Job:
        """Return one job of the store, or end the command with one line."""
        stored = {job.name: job for job in self.store.jobs()}
        if name in stored:
            return stored[name]
        if name in self.jobs:
            raise Refused(f"no node has told the store of {name!r} yet: start a beat first")
        raise self.unknown(name, {**stored, **self.jobs})

    def unknown(self, name: str, known: Mapping[str, Any]) -> Refused:
        """Answer a name that no job has with the nearest one, else with where to look."""
        near = did_you_mean(name, known) or "; `jobs` lists all there are"
        return Refused(f"there is no job {name!r}{near}")

    def views(self, *, last_slots: bool = True) -> list[JobView]:
        """Return all jobs of the app and of the store, by name; their last slots take a call for each."""
        mine = self.jobs
        stored = {job.name: job for job in self.store.jobs()}
        last = self._last_slots(stored) if last_slots else {}
        views = (
            JobView(name=name, mine=mine.get(name), stored=stored.get(name), last_slot=last.get(name))
            for name in sorted(mine.keys() | stored.keys())
        )
        return [self._with_next(view) for view in views]

    def _last_slots(self, stored: Mapping[str, Job]) -> dict[str, int]:
        """Return the newest slot of each job that has a record; what somebody asked for is none."""
        found: dict[str, int] = {}  # one call tells of all jobs that fire often
        for run in self.store.runs(limit=1000):
            if run.kind == "scheduled":
                found.setdefault(run.job, run.until or run.slot)
        for name in stored.keys() - found.keys():
            if (newest := self._newest_scheduled(name)) is not None:
                found[name] = newest.until or newest.slot
        return found

    def _newest_scheduled(self, name: str) -> Run | None:
        """Return the newest run of a job's schedule: mostly the newest one there is."""
        for limit in (1, 1000):
            runs = self.store.runs(job=name, limit=limit)
            found = next((run for run in runs if run.kind == "scheduled"), None)
            if found is not None or len(runs) < limit:
                return found
        return None

    def _with_next(self, view: JobView) -> JobView:
        if view.mine is None:
            return view
        try:
            times, begin = begun(view.mine.times, view.stored, self.store.clock.now() + 1)
            next_at = times.next(begin - 1)
            not_before = times.looked_until(begin - 1) if next_at is None else None
        except Exception as reason:
            self._refuse(view.name, reason)
            return replace(view, fails=True)
        return replace(view, next_at=next_at, not_before=not_before)

    def notes(self) -> list[str]:
        """Return what beat says of entries that somebody wrote and that will not run."""
        return notes_on(self.app) if self.jobs or self.refusals else []

    def refusal_lines(self) -> list[str]:
        """Return what beat says of the entries that it refuses."""
        return [str(JobRefused(line)) for line in self.refusals]


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def pass_desk(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its desk; it is made here, so that ``COMMAND --help`` needs no project."""

    @click.pass_context
    @wraps(command)
    def with_desk(context: click.Context, /, *args: Any, **kwargs: Any) -> None:
        for stream in (sys.stdout, sys.stderr):  # what a terminal has no characters for is no reason to fail
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        for word in filter(lambda given: isinstance(given, str), kwargs.values()):
            if any("\ud800" <= one <= "\udfff" for one in word):
                raise Refused(f"{word!r}: text in UTF-8 is right")
        context.obj = _desk_of(context.obj)
        context.call_on_close(context.obj.close)
        context.invoke(command, context.obj, *args, **kwargs)

    return with_desk


def _desk_of(given: Any) -> Desk:
    """Return what a command of Celery's is given as a desk, or end the command with one line."""
    if given.app.main == "default":
        raise Refused("name your project: celery -A proj anarchon …")
    try:
        return Desk(given.app, Config.of(given.app), no_color=bool(given.no_color))
    except SettingError as reason:
        raise Refused(str(reason)) from reason


def _opened(config: Config) -> Store:
    """Return the store; one that cannot be opened was set wrong, or lacks its driver."""
    try:
        return config.open_store()
    except StoreError as reason:
        if isinstance(reason.__cause__, ImportError):
            raise click.ClickException(str(reason)) from reason
        raise Refused(str(reason)) from reason


def begun(times: FireTimes, stored: Job | None, begin: int) -> tuple[FireTimes, int]:
    """Return fire times as they follow from what the store says was decided, and from when on to ask them.

    Most are the same from anywhere. Where each depends on the one before, and the store does not know the
    schedule, they follow from where the asking begins.
    """
    if not times.chained:
        return times, begin
    known = stored.known(times.key) if stored else None
    cursor = begin - 1 if known is None else max(known.since, known.floor or known.since)
    return times.since(cursor), max(begin, cursor + 1)


def zone_of(schedule: BaseSchedule, times: FireTimes, app: Celery) -> Zone:
    """Return the zone in which a person reads a schedule: its own, else the app's."""
    if isinstance(times, Cron):
        return times.zone
    return named_zone(getattr(schedule, "timezone", None) or app.timezone)


def schedule_text(given: BaseSchedule) -> str:
    """Return a schedule in words, without its zone; one of somebody's own as it shows itself."""
    if type(given) is schedule:
        return f"every {durations.text(durations.milliseconds(given.run_every))}"
    words = re.sub(r",? timezone=[^,)]*", "", in_words(given))
    return re.sub(r"<(\w+): (.*?)( \(m/.*\))?>", r"\1 \2", words)  # crontab and solar

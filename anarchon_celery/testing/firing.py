"""When jobs fire, computed as a beat does, to be compared with when they should."""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo
from typing import Any

from celery import Celery

from ..config import Config, did_you_mean
from ..entries import Jobs, planned_jobs
from ..errors import ScheduleError
from ..schedules import as_schedule, fire_times
from ..slots import FireTimes
from ..zones import zone_of
from .clock import TestingError, aware, instant


def fires(
    what: Any, start: datetime | str, end: datetime | str, *, job: str | None = None,
    timezone: str | tzinfo | None = None,
) -> list[datetime]:  # fmt: skip
    """Return when a job, or a schedule, fires from ``start`` on and before ``end``.

    Args:
        what: a Celery app, of which ``job`` names an entry; or a schedule: whatever an entry may give as
            one, such as ``'10s'``, ``cron('30 2 * * *')`` or a ``crontab``.
        start: an aware ``datetime``, or a text with its zone, such as ``'2026-10-24T12:00:00Z'``.
        end: likewise.
        job: the name of the entry; with a schedule it is what ``H`` in a cron text depends on.
        timezone: in place of the app's, of a schedule that has no zone of its own; UTC unless given.

    Returns:
        Aware datetimes. They are in UTC, since Python compares two of one zone by their local times, and the
        same local time comes twice in autumn.

    Raises:
        ScheduleError: beat refuses that entry, with its line; or there is no such job, or no such schedule.
        TestingError: a moment is none, or leaves its zone open.
    """
    begin, until = instant(start), instant(end)
    times = _of_app(what, job) if isinstance(what, Celery) else _of_schedule(what, job or "", timezone)
    return [aware(at) for at in times.since(begin - 1).between(begin - 1, until - 1)]


def refusals(app: Celery) -> list[str]:
    """Return what beat would say of the entries that it refuses, a line for each: best there is none.

    Args:
        app: the Celery app; its tasks' modules are imported, as at a beat's start.

    Raises:
        SettingError: an ``anarchon_*`` setting is wrong.
    """
    return jobs_of(app)[1]


def jobs_of(app: Celery) -> tuple[Jobs, list[str]]:
    """Return the jobs of an app as its beat has them, and a line for each that is refused."""
    app.loader.init_worker()  # as beat does: importing the modules makes entries and tasks
    app.finalize()
    return planned_jobs(app, Config.of(app))


def no_such_job(name: str, jobs: Jobs, refused: list[str]) -> ScheduleError:
    """Say why an app does not have a job: the line it is refused with, else the nearest name."""
    for line in refused:
        if line.startswith((f"entry {name!r}: ", f"entry {name!r} (")):
            return ScheduleError(line)
    there = f"; there are {', '.join(sorted(jobs))}" if jobs else "; there are none"
    return ScheduleError(f"there is no job {name!r}{did_you_mean(name, jobs) or there}")


def _of_app(app: Celery, name: str | None) -> FireTimes:
    jobs, refused = jobs_of(app)
    if name is None:
        raise TestingError("job= is missing: which of the app's jobs is it about?")
    if name not in jobs:
        raise no_such_job(name, jobs, refused)
    return jobs[name][1].times


def _of_schedule(given: Any, job: str, zone: str | tzinfo | None) -> FireTimes:
    of_app = zone_of(zone).tzinfo if zone is not None else timezone.utc
    return fire_times(as_schedule(given), timezone=of_app, job=job)

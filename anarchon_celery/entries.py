"""From ``beat_schedule`` to planned jobs: each entry read on its own, so that a bad one hurts no other."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab

from .config import Config, policy_of
from .errors import ScheduleError
from .plan import PlannedJob
from .schedules import as_schedule, fire_times
from .task import Task


class Entry(ScheduleEntry):  # type: ignore[misc]
    """A schedule entry whose ``schedule`` may be anything the contract lists."""

    def __init__(self, *args: Any, schedule: Any = None, **fields: Any) -> None:
        """Take Celery's fields of an entry."""
        super().__init__(*args, schedule=as_schedule(schedule), **fields)


#: What an entry may say, as Celery has it.
FIELDS = ("task", "schedule", "args", "kwargs", "options", "relative", "last_run_at", "total_run_count")


def read_entry(app: Celery, name: str, fields: Any) -> Entry:
    """Return one entry of ``beat_schedule``.

    Raises:
        ScheduleError: one line that names the entry and what is wrong with it.
    """
    if isinstance(fields, Entry):
        return fields
    try:
        _check(name, fields)
        return Entry(**{**fields, "name": name, "app": app})
    except ScheduleError as reason:
        raise ScheduleError(f"entry {name!r}: {reason}") from reason


def _check(name: Any, fields: Any) -> None:
    """Refuse what would only come out when the job is due."""
    if not isinstance(name, str) or not name.isprintable() or not _is_unicode(name):
        raise ScheduleError("a text of printable characters is right as a name")
    if not isinstance(fields, Mapping) or "task" not in fields or "schedule" not in fields:
        given = ", ".join(map(repr, fields)) if isinstance(fields, Mapping) else type(fields).__name__
        raise ScheduleError(f"a dict with 'task' and 'schedule' is right, not {given}")
    for field in fields:
        if field not in FIELDS:
            near = "".join(f"; did you mean {one!r}?" for one in get_close_matches(str(field), FIELDS, 1))
            raise ScheduleError(f"an entry has no key {field!r}{near}")
    if not isinstance(fields["task"], str) or not fields["task"]:
        raise ScheduleError(f"task={fields['task']!r}: the name of a task is right")
    for field, kind, right in _KINDS:
        if fields.get(field) is not None and not isinstance(fields[field], kind):
            raise ScheduleError(f"{field} is of type {type(fields[field]).__name__}: a {right} is right")


_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("args", (list, tuple), "list or tuple"),
    ("kwargs", Mapping, "dict"),
    ("options", Mapping, "dict"),
)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _time_limit(app: Celery, entry: Entry, task: Any) -> float | None:
    """The hard time limit under which the entry's task runs, in seconds."""
    limits = entry.options.get("time_limit"), getattr(task, "time_limit", None), app.conf.task_time_limit
    return next((limit for limit in limits if limit), None)


def planned(app: Celery, config: Config, entry: Entry) -> PlannedJob:
    """Return the job of one entry: its fire times and its policy.

    Raises:
        ScheduleError: one line: the schedule cannot be read.
        SettingError: one line: a policy key or value under ``options['anarchon']`` is wrong.
    """
    task = app.tasks.get(entry.task)
    policy = policy_of(
        config, entry.name, entry.options,
        time_limit=_time_limit(app, entry, task), is_crontab=isinstance(entry.schedule, crontab),
    )  # fmt: skip
    try:
        times = fire_times(entry.schedule, timezone=app.timezone)
    except ScheduleError as reason:
        raise ScheduleError(f"entry {entry.name!r}: {reason}") from reason
    supervised = policy.supervised
    if supervised is None and task is not None:  # one that only the workers have may be of either kind
        supervised = isinstance(task, Task)
    return PlannedJob(name=entry.name, times=times, policy=policy, supervised=supervised)

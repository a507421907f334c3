"""Where entries come from: ``beat_schedule``, ``add_periodic_task`` and the decorators meet here.

Each entry keeps its origin, as people know it, so that of two with one name both can be named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule

from . import durations
from .decorators import Declaration, declared, forgotten
from .methods import registered_by

#: Where an app keeps what ``add_periodic_task`` added to it.
ADDED = "_anarchon_added"

PERIODIC = "add_periodic_task"


@dataclass(frozen=True, slots=True)
class GivenEntry:
    """One entry, unread. ``policy`` is what its decorator says of it; None: it has no decorator."""

    name: Any
    fields: Any
    origin: str = "beat_schedule"
    policy: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Added:
    """What one call of ``add_periodic_task`` did to the schedule there was."""

    schedule: Any
    key: Any
    entry: Any
    before: Any  #: what had the key; None: nothing


def entries_of(app: Celery) -> list[GivenEntry]:
    """Return all entries of an app, those that another one displaced too; the app is finalized.

    Celery's own (``celery.backend_cleanup``) are not among them.
    """
    decorated = list(_decorated(app))  # finalizes the app: handlers of Celery's signals add entries
    return [*_configured(app), *decorated]


def notes_on(app: Celery) -> list[str]:
    """Return a line for whoever starts a node about each thing that somebody wrote and that will not run."""
    entries_of(app)
    if not isinstance(app.conf.beat_schedule, Mapping):
        return forgotten(app)
    return [*_unread_settings(app.conf), *_unread_additions(app), *forgotten(app)]


# decorators -------------------------------------------------------------------------------------


def _decorated(app: Celery) -> Iterator[GivenEntry]:
    for task, schedules in declared(app):
        for place, schedule in enumerate(schedules):
            said: Declaration = getattr(schedule, "declaration", Declaration())
            fields = {
                "task": task.name, "schedule": schedule,
                "args": said.args, "kwargs": said.kwargs, "options": said.options,
            }  # fmt: skip
            origin = registered_by(app, task.name) or f"@{type(schedule).__name__} on {task.name}"
            yield GivenEntry(_name(said, task.name, place, schedule), fields, origin, said.policy or {})


def _name(said: Declaration, task: str, place: int, schedule: BaseSchedule) -> Any:
    """The first job of a task has the task's name; a further one tells its schedule as well."""
    if said.name is not None:
        return said.name
    return task if place == 0 else f"{task}: {in_words(schedule)}"


def in_words(schedule: BaseSchedule) -> str:
    """Return a schedule without what makes it Python: ``every 30s``, ``cron 30 2 * * *``."""
    written = re.fullmatch(r"(\w+)\((.*)\)", repr(schedule), re.DOTALL)
    return f"{written[1]} {written[2]}".replace("'", "") if written else repr(schedule)


def told_in_words(key: str) -> str:
    """Return a schedule that only the store was told of: an interval in the words of one that is here."""
    interval = re.fullmatch(r"every ([0-9]{1,15}) ms", key)
    return f"every {durations.text(int(interval[1]))}" if interval else key


# beat_schedule and add_periodic_task ------------------------------------------------------------


def _configured(app: Celery) -> Iterator[GivenEntry]:
    """Yield what is in the schedule, and what ``add_periodic_task`` lost from it."""
    schedule = app.conf.beat_schedule
    if not isinstance(schedule, Mapping):
        return
    additions = _added(app)
    added = {id(one.entry) for one in additions}
    setting = _read_setting(app.conf).removeprefix("app.conf.")

    def origin(fields: Any) -> str:
        return PERIODIC if id(fields) in added else setting

    for name, fields in schedule.items():
        yield GivenEntry(name, fields, origin(fields))
    for one in additions:
        if one.schedule is schedule and one.key in schedule:
            lost = [it for it in (one.before, one.entry) if it is not None and it is not schedule[one.key]]
            yield from (GivenEntry(one.key, fields, origin(fields)) for fields in lost)


def _added(app: Celery) -> list[Added]:
    additions: list[Added] = vars(app).setdefault(ADDED, [])
    return additions


def _spellings(conf: Any) -> tuple[str, ...]:
    """Return what the setting may be called, what is right first."""
    prefix = conf.prefix or ""
    own = prefix + ("BEAT_SCHEDULE" if prefix.isupper() else "beat_schedule")
    return tuple(dict.fromkeys((own, "beat_schedule", "CELERYBEAT_SCHEDULE")))


def _settings(conf: Any) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Yield each setting that gives a schedule, as it was written."""
    for place, mapping in enumerate(conf.maps[:-1]):  # the last are Celery's defaults
        for key in _spellings(conf):
            if key in mapping and isinstance(mapping[key], Mapping):
                yield (f"app.conf.{key}" if place == 0 and key.islower() else key), mapping[key]


def _read_setting(conf: Any) -> str:
    """Return the name of the setting that Celery reads; which it is differs by its versions."""
    read = conf.beat_schedule
    return next((key for key, schedule in _settings(conf) if schedule is read), _spellings(conf)[0])


def _unread_settings(conf: Any) -> Iterator[str]:
    """Tell of schedules that another one hides: Celery takes one, and says nothing."""
    read, name = conf.beat_schedule, _read_setting(conf)
    for key, hidden in _settings(conf):
        unread = [entry for entry, fields in hidden.items() if read.get(entry) is not fields]
        if unread:
            yield f"{name} is read, {key} is not: {_entries(len(unread))} of it left out; put all into {name}"


def _unread_additions(app: Celery) -> Iterator[str]:
    """Tell of entries that were added to a schedule before another was set in its place."""
    schedule = app.conf.beat_schedule
    lost = {one.key for one in _added(app) if one.schedule is not schedule and one.key not in schedule}
    if lost:
        yield f"beat_schedule was set after {PERIODIC}: {_entries(len(lost))} of that left out; set it before"


def _entries(count: int) -> str:
    return f"{count} entry" if count == 1 else f"{count} entries"


def _watch_additions() -> None:
    """Let ``add_periodic_task`` leave a note of what it displaces.

    Celery puts the new entry over the old one, silently if it was given a name: there is no other way to
    know of two jobs with one name. What the method does stays Celery's.
    """
    original = getattr(Celery, "_add_periodic_task", None)
    if original is None:  # in a Celery to come, perhaps: two with one name are one again, then
        return

    @wraps(original)
    def add(self: Any, *args: Any, **kwargs: Any) -> Any:
        key = args[0] if args else kwargs.get("key")
        entry = args[1] if len(args) > 1 else kwargs.get("entry")
        schedule = self._conf.beat_schedule
        before = schedule.get(key) if isinstance(schedule, Mapping) else None
        result = original(self, *args, **kwargs)
        _added(self).append(Added(schedule, key, entry, before))
        return result

    Celery._add_periodic_task = add


_watch_additions()

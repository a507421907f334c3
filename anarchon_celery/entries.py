"""From entries to planned jobs: each entry read on its own, so that a bad one hurts no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from difflib import get_close_matches
from typing import Any, TypeAlias

from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.beat import Scheduler as CeleryScheduler
from celery.schedules import crontab

from .config import Config, policy_of
from .decorators import Declaration
from .errors import AnarchonError, ScheduleError, Stopped, in_one_line
from .origins import GivenEntry, entries_of
from .plan import PlannedJob
from .schedules import as_schedule, fire_times
from .slots import FireTimes
from .task import Task


class Entry(ScheduleEntry):  # type: ignore[misc]
    """A schedule entry whose ``schedule`` may be anything the contract lists."""

    def __init__(self, *args: Any, schedule: Any = None, **fields: Any) -> None:
        """Take Celery's fields of an entry."""
        super().__init__(*args, schedule=as_schedule(schedule), **fields)

    def default_now(self) -> datetime:
        """Return now, in UTC: Celery's way through the app's zone takes a fifth of the start of many jobs."""
        return datetime.now(timezone.utc)


#: What there is for each job, by its name.
Jobs: TypeAlias = dict[str, tuple[Entry, PlannedJob]]

#: Databases find jobs by name in an index, whose entries have a length.
LONGEST_NAME = 255

#: What an entry may say, as Celery has it.
FIELDS = ("task", "schedule", "args", "kwargs", "options", "relative", "last_run_at", "total_run_count")


# all entries ------------------------------------------------------------------------------------


def planned_jobs(app: Celery, config: Config) -> tuple[Jobs, list[str]]:
    """Return all jobs of an app as its beat has them, Celery's own too, and a line for each one refused.

    No store is needed. Modules with tasks are to be imported before, as beat does at its start.
    """
    own, refused = read_jobs(app, config, _own_entries(app))
    jobs, refused_too = read_jobs(app, config, entries_of(app))
    schedule = app.conf.beat_schedule
    if not isinstance(schedule, Mapping):
        given = type(schedule).__name__
        refused.append(f"beat_schedule is of type {given}: a dict of entries by name is right")
    return own | jobs, refused + refused_too


class _Collector(CeleryScheduler):  # type: ignore[misc]
    def update_from_dict(self, entries: Any) -> None:
        self.schedule.update(entries)


def _own_entries(app: Celery) -> list[GivenEntry]:
    """Return the entries that Celery gives every beat."""
    collector = _Collector(app, lazy=True)
    collector.install_default_entries(collector.schedule)
    return [GivenEntry(name, fields, "Celery") for name, fields in collector.schedule.items()]


def read_jobs(app: Celery, config: Config, given: Iterable[GivenEntry]) -> tuple[Jobs, list[str]]:
    """Read entries; of each wrong one there is a line instead, of two with one name a line for both."""
    jobs: Jobs = {}
    refused = []
    by_name: dict[Any, list[GivenEntry]] = {}
    for one in map(_as_written, given):  # a name that is no text may not even be a key
        by_name.setdefault(one.name if isinstance(one.name, str) else id(one), []).append(one)
    for first, *others in by_name.values():
        try:
            _refuse_others(app, first, others)
            entry = read_entry(app, first.name, first.fields, policy=first.policy)
            jobs[entry.name] = entry, planned(app, config, entry)
        except Stopped:
            raise
        except (Exception, SystemExit) as reason:  # ours, or of a schedule that is somebody's own code
            refused.append(_refusal(first, reason))
    return jobs, refused


def _as_written(given: GivenEntry) -> GivenEntry:
    """Return an entry as a dict, also where it is an object of Celery's, which its beat takes too."""
    if not isinstance(given.fields, ScheduleEntry):
        return given
    fields = {field: getattr(given.fields, field) for field in FIELDS if hasattr(given.fields, field)}
    return replace(given, fields=fields)


def _refusal(given: GivenEntry, reason: BaseException) -> str:
    """Say in one line what is wrong, and where it was written if that is not the settings."""
    entry = f"entry {given.name!r}"
    text = str(reason) if isinstance(reason, AnarchonError) else in_one_line(reason)
    is_said = isinstance(reason, _Namesakes) or given.origin.lower().endswith("beat_schedule")
    return f"{entry}{'' if is_said else f' ({given.origin})'}: {text.removeprefix(f'{entry}: ')}"


# two with one name ------------------------------------------------------------------------------


class _Namesakes(ScheduleError):
    """Two entries with one name; it names the origins of both."""


def _refuse_others(app: Celery, first: GivenEntry, others: Iterable[GivenEntry]) -> None:
    """Refuse a second entry of that name, unless it says the same, as when a handler runs twice."""
    for other in others:
        one, two = _comparable(app, first), _comparable(app, other)
        if differ := [field for field in one.keys() | two.keys() if one.get(field) != two.get(field)]:
            both = " and by ".join(f"{it.origin} ({_shown_schedule(it)})" for it in (first, other))
            what = "kind" if "fields" in differ else " and ".join(sorted(differ))
            raise _Namesakes(f"given by {both}, which differ in {what}: one needs another name")


def _comparable(app: Celery, given: GivenEntry) -> dict[str, Any]:
    """Return what makes two entries the same, however it is written: of the schedule the fire times."""
    fields = given.fields
    if not isinstance(fields, Mapping):
        return {"fields": fields}
    compared = {"task": fields.get("task"), "schedule": fields.get("schedule")}
    for field, kind, plain in (("args", list, tuple), ("kwargs", Mapping, dict), ("options", Mapping, dict)):
        value = fields.get(field) or plain()
        compared[field] = plain(value) if isinstance(value, kind) else value
    compared["options"] = _with_policy(compared["options"], given.policy)
    with suppress(ScheduleError):  # it is compared as it is written, then
        compared["schedule"] = _times(app, given.name, as_schedule(compared["schedule"])).key
    return compared


def _shown_schedule(given: GivenEntry) -> str:
    schedule = given.fields.get("schedule") if isinstance(given.fields, Mapping) else given.fields
    try:
        return repr(schedule)
    except Stopped:
        raise
    except (Exception, SystemExit):  # somebody's own
        return type(schedule).__name__


# one entry --------------------------------------------------------------------------------------


def read_entry(app: Celery, name: str, fields: Any, *, policy: Mapping[str, Any] | None = None) -> Entry:
    """Return one entry; ``policy`` is what a decorator says of it, None where it has none.

    Raises:
        ScheduleError: one line that names the entry and what is wrong with it.
    """
    try:
        _check(name, fields)
        if policy is None:
            _refuse_declaration(fields["schedule"])
        options = _with_policy(fields.get("options"), policy)
        return Entry(**{**fields, "name": name, "app": app, "options": options})
    except ScheduleError as reason:
        raise ScheduleError(f"entry {name!r}: {reason}") from reason


def _with_policy(options: Any, policy: Mapping[str, Any] | None) -> Any:
    """Put the policy of a decorator where an entry has its own."""
    if not policy or not isinstance(options or {}, Mapping):
        return options
    own = (options or {}).get("anarchon") or {}
    if not isinstance(own, Mapping):
        raise ScheduleError(f"options['anarchon'] is of type {type(own).__name__}: a dict is right")
    if twice := sorted(own.keys() & policy.keys()):
        both = "by the decorator and under options['anarchon']"
        raise ScheduleError(f"{twice[0]} is given twice, {both}: one is right")
    return {**(options or {}), "anarchon": {**own, **policy}}


def _refuse_declaration(schedule: Any) -> None:
    """Refuse what a schedule says of its job, where it is not a decorator: nobody would read it."""
    declaration = getattr(schedule, "declaration", None)
    if isinstance(declaration, Declaration) and (given := declaration.given):
        right = f"the entry's {given[0]!r}" if given[0] in _OF_ENTRY else f"options['anarchon'][{given[0]!r}]"
        raise ScheduleError(f"{schedule!r} with {given[0]}=…: that is for decorators; {right} is right here")


_OF_ENTRY = ("name", "args", "kwargs", "options")


def _check(name: Any, fields: Any) -> None:
    """Refuse what would only come out when the job is due."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or not _is_unicode(name):
        raise ScheduleError("a text of printable characters is right as a name")
    if len(name) > LONGEST_NAME:
        raise ScheduleError(f"a name of {len(name)} characters: {LONGEST_NAME} at most is right")
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


# its job ----------------------------------------------------------------------------------------


def planned(app: Celery, config: Config, entry: Entry) -> PlannedJob:
    """Return the job of one entry: its fire times and its policy.

    Raises:
        ScheduleError: one line: the schedule cannot be read.
        SettingError: one line: a policy key or value under ``options['anarchon']`` is wrong.
    """
    task = app.tasks.get(entry.task)
    policy = policy_of(
        config, entry.name, entry.options,
        time_limit=_time_limit(config, entry, task), is_crontab=isinstance(entry.schedule, crontab),
    )  # fmt: skip
    try:
        _check_arguments(entry, task)
        times = _times(app, entry.name, entry.schedule)
        _check_key(times)
    except ScheduleError as reason:
        raise ScheduleError(f"entry {entry.name!r}: {reason}") from reason
    supervised = policy.supervised
    if supervised is None and task is not None:  # one that only the workers have may be of either kind
        supervised = isinstance(task, Task)
    return PlannedJob(name=entry.name, times=times, policy=policy, supervised=supervised)


def _check_arguments(entry: Entry, task: Any) -> None:
    """Refuse what the task cannot be called with, as Celery would each time the job is due."""
    if (reason := _misfit(task, entry.args or (), entry.kwargs or {})) is not None:
        raise ScheduleError(f"its args and kwargs do not fit task {entry.task!r}: {reason}")


def refuse_arguments(
    app: Celery, entry: Entry, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> None:
    """Refuse arguments, in place of an entry's, that do not fit its task; None of either is the entry's own.

    Raises:
        ScheduleError: one line that says why.
    """
    args = entry.args or () if args is None else args
    kwargs = entry.kwargs or {} if kwargs is None else kwargs
    if (reason := _misfit(app.tasks.get(entry.task), args, kwargs)) is not None:
        raise ScheduleError(f"these arguments do not fit task {entry.task!r}: {reason}")


def _misfit(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why a task that is known here cannot be called with these arguments, if it cannot."""
    if not getattr(task, "typing", False) or not hasattr(task, "__header__"):  # a task made from a class
        return None
    if any(isinstance(value, BeatLazyFunc) for value in (*args, *kwargs.values())):
        return None
    try:
        task.__header__(*args, **kwargs)
    except TypeError as reason:
        return str(reason)
    return None


def _check_key(times: FireTimes) -> None:
    """Refuse fire times that no node could name to the store: of a schedule that is somebody's own."""
    key: Any = times.key
    if not isinstance(key, str) or not _is_unicode(key):
        raise ScheduleError(f"its repr() is no text that can be stored: {key!r}")


def _times(app: Celery, job: str, schedule: Any) -> FireTimes:
    return fire_times(schedule, timezone=app.timezone, job=job)


def _time_limit(config: Config, entry: Entry, task: Any) -> float | None:
    """The hard time limit under which the entry's task runs, in seconds."""
    limits = entry.options.get("time_limit"), getattr(task, "time_limit", None), config.time_limit
    return next((limit for limit in limits if limit), None)

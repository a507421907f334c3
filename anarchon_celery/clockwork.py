"""The schedules of our own: :class:`every`, :class:`cron` and :class:`once`.

They are schedules of Celery's kind, work in any ``beat_schedule``, under Celery's own beat too, and are
decorators of a task. What is wrong with one is reported when its fire times are asked for, not when
the module that makes it is imported: it must not take the others along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time, timedelta, tzinfo
from typing import Any, TypeVar

from celery import schedules
from celery.schedules import BaseSchedule

from . import durations
from .crontexts import read_cron
from .daily import daily
from .decorators import Declaration, declare
from .errors import ScheduleError
from .moments import interval_of, moment, shown_times, time_of_day
from .slots import DAY, EPOCH, FireTimes, Once, iso
from .wallclock import from_local
from .zones import zone_of

Target = TypeVar("Target")


class Clockwork(BaseSchedule):  # type: ignore[misc]
    """A schedule that Celery's own beat can ask, answered from fire times.

    ``declaration`` is what it says as a decorator of its job, beside the times; it makes no difference
    to which schedules are equal.
    """

    def __new__(cls, first: Any = None, *args: Any, **kwargs: Any) -> Clockwork:
        """Refuse ``@every`` without parentheses: it would make a schedule of the function below it."""
        if callable(first):
            raise ScheduleError(f"@{cls.__name__} needs its schedule: @{cls.__name__}({cls._example!r})")
        made: Clockwork = super().__new__(cls)
        return made

    #: What an argument looks like.
    _example = ""

    def __init__(
        self,
        nowfun: Callable[[], datetime] | None,
        app: Any,
        name: str | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any] | None,
        policy: Mapping[str, Any],
    ) -> None:
        super().__init__(nowfun=nowfun, app=app)
        self.declaration = Declaration(name, args, kwargs, options, policy)

    def __call__(self, target: Target) -> Target:
        """Decorate a task, or a method of a class: it runs by this schedule."""
        return declare(self, target)

    def fire_times(self, timezone: tzinfo, job: str = "") -> FireTimes:
        """Return the fire times, for a job by its name, in its own zone or else the given one."""
        raise NotImplementedError

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time from now to the first fire time after the last run."""
        following = self.fire_times(self.tz).next(_ms(self.maybe_make_aware(last_run_at)))
        now = _ms(self.now())
        return timedelta(milliseconds=DAY if following is None else following - now)

    def is_due(self, last_run_at: datetime) -> schedules.schedstate:
        """Return whether a fire time has passed since the last run, and the seconds to the next look."""
        remaining = self.remaining_estimate(last_run_at).total_seconds()
        if remaining > 0:
            return schedules.schedstate(is_due=False, next=remaining)
        return schedules.schedstate(is_due=True, next=self.remaining_estimate(self.now()).total_seconds())

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))

    def __reduce__(self) -> tuple[Any, ...]:
        said = self.declaration
        of_job = {"name": said.name, "args": said.args, "kwargs": said.kwargs, "options": said.options}
        given = {**self._given(), **of_job, **said.policy, "nowfun": self.nowfun}
        return _made, (type(self), given)

    def _given(self) -> dict[str, Any]:
        """Return what the fire times were made from, by the names of the arguments."""
        raise NotImplementedError


def _made(kind: type[Clockwork], given: dict[str, Any]) -> Clockwork:
    return kind(**given)


class every(Clockwork):
    """Every so often, counted from the epoch, so that all nodes agree: ``every('10s')``.

    Or each day at local times: ``every('1d', at='02:30', timezone='Europe/Berlin')``. What is wrong is
    reported when the fire times are asked for, not when the module is imported.

    Args:
        interval: seconds as a number, a ``timedelta``, or text such as ``'1h30m'``; 100 ms or more.
        at: with an interval of a day, the time of day: ``'02:30'``, ``'02:30:15'``, a ``datetime.time``,
            or a list of them.
        timezone: of ``at``: a zone's name or a ``tzinfo``; default: the app's.
        name: as a decorator, the job's name; default: the task's.
        args: as a decorator, the positional arguments of the task.
        kwargs: as a decorator, its keyword arguments.
        options: as a decorator, the options of ``apply_async``.
        nowfun: as for Celery's schedules, returns the current time.
        app: as for Celery's schedules.
        policy: as a decorator, the job's own settings: ``overlap='skip'``, ``lease='1m'``, …
    """

    _example = "30s"

    def __init__(
        self,
        interval: int | float | timedelta | str,
        *,
        at: str | time | Iterable[str | time] | None = None,
        timezone: str | tzinfo | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        nowfun: Callable[[], datetime] | None = None,
        app: Any = None,
        **policy: Any,
    ) -> None:
        self.interval = interval
        self.at = at if at is None or isinstance(at, (str, time)) or not isinstance(at, Iterable) else [*at]
        self.timezone = timezone
        super().__init__(nowfun, app, name, args, kwargs, options, policy)

    def fire_times(self, timezone: tzinfo, job: str = "") -> FireTimes:
        """Return the fire times; the zone and the job's name make no difference to an interval.

        Raises:
            ScheduleError: the interval cannot be read or is shorter than 100 ms, or a time or the zone cannot
                be read; one line.
        """
        interval = interval_of(self.interval)
        if self.at is None and self.timezone is None:
            return interval
        if self.at is None:
            right = "without at= an interval counts from the epoch and has no zone"
            raise ScheduleError(f"{self!r}: {right}; leave timezone= out, or give at='02:30' to every('1d')")
        if interval.every != DAY:
            right = "at= goes with every('1d') only"
            raise ScheduleError(f"{self!r}: {right}; for Mondays at 02:30 give cron('30 2 * * mon')")
        if not (times := self.at if isinstance(self.at, list) else [self.at]):
            raise ScheduleError(f"{self!r}: at= is empty; give 'HH:MM', or a list of them")
        zone = zone_of(timezone if self.timezone is None else self.timezone)
        return daily(zone, map(time_of_day, times))

    def __repr__(self) -> str:
        at = "" if self.at is None else f", at={shown_times(self.at)!r}"
        return f"every({self._canonical()!r}{at}{_shown_zone(self.timezone)})"

    def _canonical(self) -> object:
        try:
            return durations.text(durations.milliseconds(self.interval))
        except ValueError:
            return self.interval

    def _given(self) -> dict[str, Any]:
        return {"interval": self.interval, "at": self.at, "timezone": self.timezone}


class cron(Clockwork):
    """Local times by a cron text: ``cron('30 2 * * mon-fri', timezone='Europe/Berlin')``.

    What is wrong is reported when the fire times are asked for, not when the module is imported.

    Args:
        text: five fields, six with seconds first, or ``@daily`` and friends. ``H`` in a field is a value that
            the job's name decides, so that jobs spread: ``'H H(0-5) * * *'`` (Celery's own beat does not tell
            the name: there all have the same).
        timezone: a zone's name or a ``tzinfo``; default: the app's.
        name: as a decorator, the job's name; default: the task's.
        args: as a decorator, the positional arguments of the task.
        kwargs: as a decorator, its keyword arguments.
        options: as a decorator, the options of ``apply_async``.
        nowfun: as for Celery's schedules, returns the current time.
        app: as for Celery's schedules.
        policy: as a decorator, the job's own settings: ``overlap='skip'``, ``lease='1m'``, …
    """

    _example = "30 2 * * *"

    def __init__(
        self,
        text: str,
        timezone: str | tzinfo | None = None,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        nowfun: Callable[[], datetime] | None = None,
        app: Any = None,
        **policy: Any,
    ) -> None:
        self.text = text
        self.timezone = timezone
        super().__init__(nowfun, app, name, args, kwargs, options, policy)

    def fire_times(self, timezone: tzinfo, job: str = "") -> FireTimes:
        """Return the fire times, in the schedule's own zone or else the given one.

        Raises:
            ScheduleError: the text cannot be read or can never fire, or there is no such zone; one line that
                names the field.
        """
        return read_cron(self.text, zone_of(timezone if self.timezone is None else self.timezone), job)

    def __repr__(self) -> str:
        return f"cron({self.text!r}{_shown_zone(self.timezone)})"

    def _given(self) -> dict[str, Any]:
        return {"text": self.text, "timezone": self.timezone}


class once(Clockwork):
    """One time only, in the life of all nodes together: ``once('2026-12-01T09:00:00+01:00')``.

    What is wrong is reported when the fire time is asked for, not when the module is imported.

    Args:
        when: ISO text with or without an offset, or a ``datetime``. Without one it is a local time: of two
            the first is meant; for one that the zone leaves out, the first instant after it.
        timezone: of a local time: a zone's name or a ``tzinfo``; default: the app's.
        name: as a decorator, the job's name; default: the task's.
        args: as a decorator, the positional arguments of the task.
        kwargs: as a decorator, its keyword arguments.
        options: as a decorator, the options of ``apply_async``.
        nowfun: as for Celery's schedules, returns the current time.
        app: as for Celery's schedules.
        policy: as a decorator, the job's own settings: ``overlap='skip'``, ``lease='1m'``, …
    """

    _example = "2026-12-01T09:00:00Z"

    def __init__(
        self,
        when: str | datetime,
        *,
        timezone: str | tzinfo | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        nowfun: Callable[[], datetime] | None = None,
        app: Any = None,
        **policy: Any,
    ) -> None:
        self.when = when
        self.timezone = timezone
        super().__init__(nowfun, app, name, args, kwargs, options, policy)

    def fire_times(self, timezone: tzinfo, job: str = "") -> FireTimes:
        """Return the one fire time.

        Raises:
            ScheduleError: it cannot be read, or there is no such zone; one line.
        """
        zone = zone_of(timezone if self.timezone is None else self.timezone)
        when = moment(self.when)
        return Once(from_local(zone, when) if isinstance(when, datetime) else when)

    def __repr__(self) -> str:
        return f"once({self._canonical()!r}{_shown_zone(self.timezone)})"

    def _canonical(self) -> object:
        try:
            when = moment(self.when)
        except ScheduleError:
            return self.when
        return when.isoformat() if isinstance(when, datetime) else iso(when)

    def _given(self) -> dict[str, Any]:
        return {"when": self.when, "timezone": self.timezone}


def _ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def _shown_zone(zone: Any) -> str:
    if zone is None:
        return ""
    try:
        return f", timezone={zone_of(zone).name!r}"
    except ScheduleError:
        return f", timezone={zone!r}"

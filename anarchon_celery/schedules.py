"""From what people write as a schedule to fire times.

:func:`as_schedule` reads what an entry may hold, :func:`fire_times` turns any schedule of Celery's
kind into the pure function of :mod:`anarchon_celery.slots`. Celery's own arithmetic (``is_due``,
``remaining_delta``) depends on the last run and goes wrong when clocks change: it is asked only where a
schedule says in no other way when it is due, see :mod:`anarchon_celery.chain`.
"""

from __future__ import annotations

from datetime import timedelta, tzinfo
from functools import lru_cache
from typing import Any

from celery import schedules
from celery.schedules import BaseSchedule

from . import durations
from .chain import Chain, Following
from .clockwork import Clockwork, cron, every, once
from .crontexts import read_cron, recurs
from .errors import ScheduleError
from .moments import interval_of, near_duration
from .slots import FireTimes
from .sun import Solar
from .wallclock import Cron, Zone
from .zones import UTC, zone_of

__all__ = ["as_schedule", "cron", "every", "fire_times", "once"]

_RIGHT = (
    "seconds as a number, a timedelta, a text such as '10s', '1h30m', '*/5 * * * *', '@daily', "
    "or one of Celery's schedules"
)
# Celery's arithmetic in a zone of its own, which is what the walk does, but right.
_AS_CRONTAB = "django_celery_beat.tzcrontab"


def as_schedule(value: Any) -> BaseSchedule:
    """Return what an entry gives as its schedule as a schedule.

    Args:
        value: seconds as a number, a ``timedelta``, a duration text (``'10s'``), a cron text
            (``'*/5 * * * *'``, ``'@daily'``), or any schedule of Celery's kind, which is returned as it is.

    Raises:
        ScheduleError: it is none of these, or cannot be meant; one line that says what would be right.
    """
    if isinstance(value, BaseSchedule):
        return value
    is_cron = isinstance(value, str) and (value.strip().startswith("@") or len(value.split()) > 1)
    try:
        if is_cron:
            read_cron(value, UTC)
            return cron(value)
        durations.milliseconds(value)
    except (ScheduleError, ValueError):
        near = near_duration(value)
        if is_cron and not near:
            raise
        right = f"did you mean {near!r}?" if near else f"give {_RIGHT}"
        raise ScheduleError(f"{value!r} is no schedule: {right}") from None
    interval_of(value)
    return every(value)


def fire_times(schedule: BaseSchedule, *, timezone: tzinfo, job: str = "") -> FireTimes:
    """Return the fire times of a schedule.

    Args:
        schedule: any schedule of Celery's kind. One that is none of ours or Celery's, or that is derived
            from one and decides for itself when it is due, is a :class:`~anarchon_celery.chain.Chain`.
        timezone: the app's; a schedule with a zone of its own keeps that.
        job: the job's name, which decides what ``H`` in a cron text stands for.

    Raises:
        ScheduleError: it cannot be read, or can never fire.
    """
    if _is_plain(schedule, Clockwork):
        times: FireTimes = schedule.fire_times(timezone, job)
        return times
    if _is_plain(schedule, schedules.crontab):
        return _crontab(schedule, timezone)
    if _is_plain(schedule, schedules.solar):
        return Solar(schedule)
    if _is_plain(schedule, schedules.schedule):
        return interval_of(schedule.run_every)
    kind = type(schedule)
    if kind.is_due is BaseSchedule.is_due:
        raise ScheduleError(
            f"{kind.__name__} has no is_due(last_run_at): give it one, or derive it from crontab"
        )
    return Chain(schedule, zone_of(timezone), *_derived(schedule, timezone))


def _derived(schedule: BaseSchedule, timezone: tzinfo) -> tuple[type[BaseSchedule], Following] | tuple[()]:
    """Return the class of Celery's that a schedule is derived from, and its next fire time."""
    if isinstance(schedule, schedules.crontab):
        return schedules.crontab, _crontab(schedule, timezone).next
    if isinstance(schedule, schedules.solar):
        return schedules.solar, Solar(schedule).next
    every = getattr(schedule, "run_every", None)
    if isinstance(schedule, schedules.schedule) and isinstance(every, timedelta) and not schedule.relative:
        return schedules.schedule, lambda last: last + every // timedelta(milliseconds=1)
    return ()


def _is_plain(schedule: BaseSchedule, plain: type[BaseSchedule]) -> bool:
    """Tell a schedule of a kind that we know from one that decides for itself when it is due."""
    kind = type(schedule)
    return isinstance(schedule, plain) and all(
        getattr(kind, name, None) is getattr(plain, name, None)
        or getattr(kind, name).__module__ == _AS_CRONTAB
        for name in ("is_due", "remaining_estimate", "remaining_delta")
    )


def _crontab(schedule: schedules.crontab, timezone: tzinfo) -> Cron:
    """Return the fire times of a crontab: Celery's meaning, a day must match in month and in week."""
    fields = (
        schedule.minute,
        schedule.hour,
        schedule.day_of_month,
        schedule.month_of_year,
        schedule.day_of_week,
    )
    minutes, hours, days, months, weekdays = (tuple(sorted(values)) for values in fields)
    wild = recurs(schedule._orig_minute, minutes, 60) or recurs(schedule._orig_hour, hours, 24)
    try:
        return _shared(zone_of(_own_zone(schedule) or timezone), minutes, hours, days, months, weekdays, wild)
    except ScheduleError as reason:
        raise ScheduleError(f"{schedule!r}: {reason}") from None


@lru_cache(maxsize=4096)
def _shared(
    zone: Zone,
    minutes: tuple[int, ...],
    hours: tuple[int, ...],
    days: tuple[int, ...],
    months: tuple[int, ...],
    weekdays: tuple[int, ...],
    recurs: bool,
) -> Cron:
    return Cron(
        zone=zone,
        minutes=minutes,
        hours=hours,
        days_of_month=days,
        months=months,
        days_of_week=weekdays,
        every_occurrence=recurs,
    )


def _own_zone(schedule: schedules.crontab) -> str | tzinfo | None:
    """Return the zone that a subclass of crontab brings along; Celery's own has the app's."""
    kind = type(schedule)
    if kind is schedules.crontab:
        return None
    own: str | tzinfo | None = vars(schedule).get("tz") if kind.tz is BaseSchedule.tz else schedule.tz
    return own

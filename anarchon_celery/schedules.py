"""From what people write as a schedule to fire times.

:class:`every` and :class:`cron` are schedules of Celery's kind: they work in any ``beat_schedule``,
under Celery's own beat too. :func:`as_schedule` reads what an entry may hold, :func:`fire_times` turns
any schedule into the pure function of :mod:`anarchon_celery.slots`. Celery's own arithmetic
(``is_due``, ``remaining_delta``) is never used: it depends on the last run and goes wrong when clocks change.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from datetime import timezone as fixed_zone
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from celery import schedules
from celery.schedules import BaseSchedule

from . import durations
from .crontexts import read_cron, recurs
from .errors import ScheduleError
from .slots import DAY, MINUTE, SECOND, FireTimes, Interval
from .wallclock import Cron, Zone

_EPOCH = datetime(1970, 1, 1, tzinfo=fixed_zone.utc)
_UTC = Zone("UTC", fixed_zone.utc)
_RIGHT = (
    "seconds as a number, a timedelta, a text such as '10s', '1h30m', '*/5 * * * *', '@daily', "
    "or one of Celery's schedules"
)


class _Clockwork(BaseSchedule):  # type: ignore[misc]
    """A schedule that Celery's own beat can ask, answered from fire times."""

    def fire_times(self, timezone: tzinfo) -> FireTimes:
        raise NotImplementedError

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time from now to the first fire time after the last run."""
        following = self.fire_times(self.tz).next(_instant(self.maybe_make_aware(last_run_at)))
        now = _instant(self.now())
        return timedelta(milliseconds=DAY if following is None else following - now)

    def is_due(self, last_run_at: datetime) -> schedules.schedstate:
        """Return whether a fire time has passed since the last run, and the seconds to the next look."""
        remaining = self.remaining_estimate(last_run_at).total_seconds()
        if remaining > 0:
            return schedules.schedstate(is_due=False, next=remaining)
        return schedules.schedstate(is_due=True, next=self.remaining_estimate(self.now()).total_seconds())


class every(_Clockwork):
    """Every so often, counted from the epoch, so that all nodes agree: ``every('10s')``.

    Args:
        interval: seconds as a number, a ``timedelta``, or text such as ``'1h30m'``; 100 ms or more. A wrong
            one is reported when its fire times are asked for, not when the module is imported.
        nowfun: as for Celery's schedules, returns the current time.
        app: as for Celery's schedules.
    """

    def __init__(
        self,
        interval: int | float | timedelta | str,
        nowfun: Callable[[], datetime] | None = None,
        app: Any = None,
    ) -> None:
        self.interval = interval
        super().__init__(nowfun=nowfun, app=app)

    def fire_times(self, timezone: tzinfo) -> FireTimes:
        """Return the fire times; the zone makes no difference to an interval.

        Raises:
            ScheduleError: the interval cannot be read, or is shorter than 100 ms.
        """
        return _interval(self.interval)

    def __repr__(self) -> str:
        return f"every({self._canonical()!r})"

    def __eq__(self, other: object) -> bool:
        return self._canonical() == other._canonical() if isinstance(other, every) else NotImplemented

    def __hash__(self) -> int:
        return hash(("every", repr(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.interval, self.nowfun)

    def _canonical(self) -> object:
        try:
            return durations.text(durations.milliseconds(self.interval))
        except ValueError:
            return self.interval


class cron(_Clockwork):
    """Local times by a cron text: ``cron('30 2 * * mon-fri', timezone='Europe/Berlin')``.

    Args:
        text: five fields, six with seconds first, or ``@daily`` and friends. A wrong one is reported when its
            fire times are asked for, not when the module is imported.
        timezone: a zone's name or a ``tzinfo``; default: the app's.
        nowfun: as for Celery's schedules, returns the current time.
        app: as for Celery's schedules.
    """

    def __init__(
        self,
        text: str,
        timezone: str | tzinfo | None = None,
        nowfun: Callable[[], datetime] | None = None,
        app: Any = None,
    ) -> None:
        self.text = text
        self.timezone = timezone
        super().__init__(nowfun=nowfun, app=app)

    def fire_times(self, timezone: tzinfo) -> FireTimes:
        """Return the fire times, in the schedule's own zone or else the given one.

        Raises:
            ScheduleError: the text cannot be read or can never fire, or there is no such zone; one line that
                names the field.
        """
        return read_cron(self.text, _zone(timezone if self.timezone is None else self.timezone))

    def __repr__(self) -> str:
        zone = "" if self.timezone is None else f", timezone={str(self.timezone)!r}"
        return f"cron({self.text!r}{zone})"

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other) if isinstance(other, cron) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.timezone, self.nowfun)


def as_schedule(value: Any) -> BaseSchedule:
    """Return what an entry gives as its schedule as a schedule.

    Args:
        value: seconds as a number, a ``timedelta``, a duration text (``'10s'``), a cron text
            (``'*/5 * * * *'``, ``'@daily'``), or any of Celery's schedules, which is returned as it is.

    Raises:
        ScheduleError: it is none of these, or cannot be meant; one line that says what would be right.
    """
    if isinstance(value, BaseSchedule):
        return value
    if isinstance(value, str) and (value.strip().startswith("@") or len(value.split()) > 1):
        read_cron(value, _UTC)
        return cron(value)
    try:
        durations.milliseconds(value)
    except ValueError:
        raise ScheduleError(f"{value!r} is no schedule: give {_RIGHT}") from None
    _interval(value)
    return every(value)


def fire_times(schedule: BaseSchedule, *, timezone: tzinfo) -> FireTimes:
    """Return the fire times of a schedule.

    Args:
        schedule: ``every``, ``cron``, or one of Celery's ``schedule``, ``crontab``, ``solar``.
        timezone: the app's; a schedule with a zone of its own keeps that.

    Raises:
        ScheduleError: it cannot be read, can never fire, or is of a kind that is not supported.
    """
    if isinstance(schedule, _Clockwork):
        return schedule.fire_times(timezone)
    if isinstance(schedule, schedules.crontab):
        return _crontab(schedule, timezone)
    if isinstance(schedule, schedules.solar):
        return Solar(schedule)
    if isinstance(schedule, schedules.schedule) and _is_plain(schedule):
        return _interval(schedule.run_every)
    raise ScheduleError(
        f"{schedule!r}: schedules of type {type(schedule).__name__} are not supported yet; "
        "give an interval, a cron text, or Celery's schedule, crontab or solar"
    )


def _is_plain(schedule: schedules.schedule) -> bool:
    """Tell Celery's interval from a subclass that decides for itself when it is due."""
    kind, plain = type(schedule), schedules.schedule
    return bool(kind.is_due is plain.is_due and kind.remaining_estimate is plain.remaining_estimate)


def _instant(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _interval(value: Any) -> Interval:
    try:
        return Interval(durations.milliseconds(value))
    except ValueError as reason:
        raise ScheduleError(str(reason)) from None
    except ScheduleError as reason:
        raise ScheduleError(f"{value!r}: {reason}") from None


# Zones


def _zone(zone: str | tzinfo) -> Zone:
    """Return a zone under the name it has in every process, as Python's own where that knows it."""
    if isinstance(zone, str):
        return _named_zone(zone)
    # What zoneinfo, pytz and dateutil call it.
    of_file = re.match(r"tzfile\('(?:.*/zoneinfo/)?(.+)'\)", repr(zone))
    name = getattr(zone, "key", None) or getattr(zone, "zone", None) or (of_file and of_file[1])
    try:
        if name:
            return _named_zone(name)
        if (offset := zone.utcoffset(None)) is not None:
            return Zone(str(fixed_zone(offset)), fixed_zone(offset))
    except Exception:  # whatever a zone without a name does when asked without a date
        pass
    return Zone(name or re.sub(r" at 0x[0-9a-f]+", "", repr(zone)), zone)


@lru_cache(maxsize=1024)
def _named_zone(name: str) -> Zone:
    try:
        return Zone(name, ZoneInfo(name))
    except (KeyError, ValueError, OSError):
        near = get_close_matches(name, available_timezones(), 1) or ["Europe/Berlin"]
        raise ScheduleError(f"there is no time zone {name!r}: did you mean {near[0]!r}?") from None


# Celery's schedules


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
        return _shared(_zone(_own_zone(schedule) or timezone), minutes, hours, days, months, weekdays, wild)
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


class Solar(FireTimes):
    """Sunrise and the like, computed for each local solar day from its date alone, to the second."""

    __slots__ = ("_observer", "_schedule")

    def __init__(self, schedule: schedules.solar) -> None:
        self._schedule = schedule
        self._observer = schedule.cal.copy()

    @property
    def key(self) -> str:
        """Event and place."""
        return f"solar {self._schedule.event} {self._schedule.lat} {self._schedule.lon}"

    def next(self, after: int) -> int | None:
        """Return the first event strictly after an instant, of the next 400 days."""
        day = after // DAY
        days = range(day - 2, day + 400)
        return next((time for n in days for time in self._events(n) if time > after), None)

    def previous(self, until: int) -> int | None:
        """Return the latest event at or before an instant, of the last 400 days."""
        day = until // DAY
        days = range(day + 2, day - 400, -1)
        return next((time for n in days for time in self._events(n)[::-1] if time <= until), None)

    def _events(self, day: int) -> list[int]:
        """Return the events of one day: none or two of them where polar day or night begins."""
        time, end = self._begin(day), self._begin(day + 1)
        found = []
        while (event := self._event(time)) is not None and event < end:
            found.append(event)
            time = event + MINUTE
        return found

    def _begin(self, day: int) -> int:
        """Begin the day where the event is not: at mean midnight of the place, or at noon for sunset."""
        half = DAY // 2 if self._schedule.method == "next_setting" else 0
        return (day * DAY - int(self._schedule.lon / 360 * DAY) + half) // SECOND * SECOND

    def _event(self, start: int) -> int | None:
        ephem, schedule = self._schedule.ephem, self._schedule
        centre = {"use_center": True} if schedule.use_center else {}
        begin = ephem.Date((_EPOCH + timedelta(milliseconds=start)).replace(tzinfo=None))
        try:
            event = getattr(self._observer, schedule.method)(ephem.Sun(), start=begin, **centre)
        except ephem.CircumpolarError:
            return None
        time = _instant(event.datetime().replace(tzinfo=fixed_zone.utc))
        return (time + SECOND // 2) // SECOND * SECOND

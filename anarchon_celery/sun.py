"""Fire times by the sun: Celery's ``solar``, as a pure function of the date."""

from __future__ import annotations

from datetime import timedelta, timezone

from celery import schedules

from .slots import DAY, EPOCH, MINUTE, SECOND, FireTimes


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
        begin = ephem.Date((EPOCH + timedelta(milliseconds=start)).replace(tzinfo=None))
        try:
            event = getattr(self._observer, schedule.method)(ephem.Sun(), start=begin, **centre)
        except ephem.CircumpolarError:
            return None
        time = (event.datetime().replace(tzinfo=timezone.utc) - EPOCH) // timedelta(milliseconds=1)
        rounded: int = (time + SECOND // 2) // SECOND * SECOND
        return rounded

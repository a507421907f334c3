"""Some times of each day, of which hours by minutes would make too many: 02:30 and 14:00."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from .slots import DAY, SECOND
from .wallclock import Cron, Zone


@dataclass(frozen=True, slots=True, kw_only=True)
class Daily(Cron):
    """Local times of each day, in milliseconds; hours, minutes and seconds are those that occur in them."""

    times: tuple[int, ...]
    __hash__ = Cron.__hash__

    def _written(self) -> str:
        return f"daily {','.join(map(str, self.times))} {self.zone.name}"

    def _rank(self, time: int) -> int:
        return bisect_left(self.times, min(max(time, 0), DAY))

    def _time_of_day(self, rank: int) -> int:
        return self.times[rank]


def daily(zone: Zone, times: Iterable[int]) -> Cron:
    """Return the fire times of each day at some local times, given in seconds; once a day each."""
    return _daily(zone, tuple(sorted({*times})))


@lru_cache(maxsize=4096)
def _daily(zone: Zone, of_day: tuple[int, ...]) -> Cron:
    hours = tuple(sorted({time // 3600 for time in of_day}))
    minutes = tuple(sorted({time // 60 % 60 for time in of_day}))
    seconds = tuple(sorted({time % 60 for time in of_day}))
    if len(hours) * len(minutes) * len(seconds) == len(of_day):  # as a cron text would say it: the same key
        return Cron(zone=zone, hours=hours, minutes=minutes, seconds=seconds)
    in_ms = tuple(time * SECOND for time in of_day)
    return Daily(zone=zone, hours=hours, minutes=minutes, seconds=seconds, times=in_ms)

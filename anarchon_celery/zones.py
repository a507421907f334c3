"""Time zones as people give them: by name, or as a ``tzinfo`` of zoneinfo, pytz or dateutil."""

from __future__ import annotations

import re
from datetime import timezone, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from .errors import ScheduleError
from .wallclock import Zone

UTC = Zone("UTC", timezone.utc)
_RIGHT = "give a name such as 'UTC' or 'Europe/Berlin', or a tzinfo"


def zone_of(zone: Any) -> Zone:
    """Return a zone under the name it has in every process, as Python's own where that knows it.

    Raises:
        ScheduleError: there is no such zone; one line.
    """
    if isinstance(zone, str):
        return _named(zone)
    if not isinstance(zone, tzinfo):
        raise ScheduleError(f"{zone!r} is no time zone: {_RIGHT}")
    # What zoneinfo, pytz and dateutil call it.
    of_file = re.match(r"tzfile\('(?:.*/zoneinfo/)?(.+)'\)", repr(zone))
    name = getattr(zone, "key", None) or getattr(zone, "zone", None) or (of_file and of_file[1])
    try:
        if name:
            return _named(name)
        if (offset := zone.utcoffset(None)) is not None:
            return Zone(str(timezone(offset)), timezone(offset))
    except Exception:  # whatever a zone without a name does when asked without a date
        pass
    return Zone(name or re.sub(r" at 0x[0-9a-f]+", "", repr(zone)), zone)


@lru_cache(maxsize=1024)
def _named(name: str) -> Zone:
    try:
        return Zone(name, ZoneInfo(name))
    except (KeyError, ValueError, OSError):
        known = {zone.lower(): zone for zone in available_timezones()}
        near = get_close_matches(name.lower(), known, 1, cutoff=0.75)
        right = f"did you mean {known[near[0]]!r}?" if near else _RIGHT
        raise ScheduleError(f"there is no time zone {name!r}: {right}") from None

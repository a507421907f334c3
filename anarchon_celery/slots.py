"""Slots: which instants a job is due at, and which of them a node offers to the store.

Everything here is a pure function of its arguments: no clock is read, no store asked. Instants are
whole milliseconds since the epoch in UTC, durations whole milliseconds.

Fire times are the same from whatever moment somebody starts to look, so that all nodes compute the
same slots. Intervals are here; local times are in :mod:`anarchon_celery.wallclock`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from itertools import islice

from .errors import ScheduleError

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
SHORTEST = 100  # of intervals: below it, claiming costs more than the job can be worth
COUNTED = 10_000  # leapt slots are counted up to here

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{3}(\d{3})?)?)?(Z|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class Slot:
    """A job at one fire time; ``str(slot)`` is ``report @ 2026-10-10T12:00:30.000Z``."""

    job: str
    time: int

    @property
    def datetime(self) -> datetime:
        """The fire time as an aware UTC datetime."""
        return EPOCH + timedelta(milliseconds=self.time)

    def __str__(self) -> str:
        return f"{self.job} @ {iso(self.time)}"


def iso(ms: int) -> str:
    """Return an instant as text: ``2026-10-10T12:00:30.000Z``."""
    return (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_iso(text: str) -> int:
    """Return the instant that a text such as ``2026-10-10T12:00:30.000Z`` or ``…T14:00+02:00`` names.

    Raises:
        ValueError: it is not of this form, names no real date, or leaves its zone open.
    """
    try:
        if not _ISO.fullmatch(text):
            raise ValueError
        return (datetime.fromisoformat(text.replace("Z", "+00:00")) - EPOCH) // timedelta(milliseconds=1)
    except ValueError:
        right = "write it as 2026-10-10T12:00:30Z or 2026-10-10T14:00:30+02:00"
        raise ValueError(f"{text!r} is no instant: {right}") from None


class FireTimes(ABC):
    """The instants a schedule fires at: strictly increasing, and the same whoever asks from wherever."""

    __slots__ = ()

    #: Whether each time depends on the one before, so that they can only be walked from a known one on.
    chained: bool = False

    @property
    @abstractmethod
    def key(self) -> str:
        """Schedule and zone as stable text, the same in every process; another key is another schedule."""

    @abstractmethod
    def next(self, after: int) -> int | None:
        """Return the first fire time strictly after an instant, if there is one."""

    @abstractmethod
    def previous(self, until: int) -> int | None:
        """Return the latest fire time at or before an instant, if there is one."""

    def between(self, after: int, until: int) -> Iterator[int]:
        """Yield the fire times in ``(after, until]``, oldest first."""
        time = self.next(after)
        while time is not None and time <= until:
            yield time
            time = self.next(time)

    def since(self, cursor: int) -> FireTimes:
        """Return the fire times as seen from a cursor; only chained ones look different from there."""
        return self

    def looked_until(self, after: int) -> int | None:
        """Return until when ``next`` looked in vain and will go on later; ``None`` if its answer stands."""
        return None

    def cut_short(self, until: int) -> bool:
        """Tell whether there may be more fire times up to an instant than could be walked at one look."""
        return False

    def count(self, after: int, until: int, most: int) -> int:
        """Return how many fire times lie in ``(after, until]``, or ``most`` if there are more."""
        return sum(1 for _ in islice(self.between(after, until), most))


@dataclass(frozen=True, slots=True)
class Interval(FireTimes):
    """Every so many milliseconds, counted from the epoch; a week therefore begins on Thursday 00:00 UTC."""

    every: int

    def __post_init__(self) -> None:
        if self.every < SHORTEST:
            raise ScheduleError(f"an interval of {self.every} ms is too short: give {SHORTEST} ms or more")

    @property
    def key(self) -> str:
        """The interval."""
        return f"every {self.every} ms"

    def next(self, after: int) -> int:
        """Return the first multiple of the interval after an instant."""
        return (after // self.every + 1) * self.every

    def previous(self, until: int) -> int:
        """Return the last multiple of the interval up to an instant."""
        return until // self.every * self.every

    def count(self, after: int, until: int, most: int) -> int:
        """Count by division."""
        return max(0, min(until // self.every - after // self.every, most))


@dataclass(frozen=True, slots=True)
class Once(FireTimes):
    """One instant."""

    time: int

    @property
    def key(self) -> str:
        """The instant."""
        return f"once {iso(self.time)}"

    def next(self, after: int) -> int | None:
        """Return the instant, if it is still to come."""
        return self.time if self.time > after else None

    def previous(self, until: int) -> int | None:
        """Return the instant, if it has come."""
        return self.time if self.time <= until else None


def jitter(job: str, slot: int, node: str, longest: int, gap: int | None) -> int:
    """Return how long a node waits before it claims a slot, evenly spread and the same each time.

    Args:
        job: the job's name.
        slot: its fire time.
        node: the node, by what identifies it.
        longest: the longest delay, in milliseconds.
        gap: the time to the job's next slot, if there is one; half of it is the most, so that order is kept.
    """
    most = longest if gap is None else min(longest, gap // 2)
    digest = blake2b(f"{job}\0{slot}\0{node}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * (most + 1) >> 64


@dataclass(frozen=True, slots=True)
class Leap:
    """Undecided slots that are passed over; ``count`` stops at :data:`COUNTED`."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class Due:
    """What a node offers: slots oldest first, the first ``late`` of them late; ``leap`` lies before them."""

    slots: tuple[int, ...] = ()
    late: int = 0
    leap: Leap | None = None


def due(
    times: FireTimes,
    *,
    after: int,
    now: int,
    on_time_since: int,
    delay: Callable[[int], int],
    catch_up: str,
    window: int | None,
    limit: int = 1000,
    most_late: int = 1000,
) -> Due:
    """Decide which of a job's slots to offer to the store.

    Args:
        times: the job's fire times.
        after: the cursor: what lies up to here is decided.
        now: the store's time.
        on_time_since: a slot that came due after this instant is on time, an older one is late.
        delay: the jitter of a slot, at most half the gap to the next; a slot comes due at its time + delay.
        catch_up: which late slots to offer: ``'latest'``, ``'all'`` or ``'none'``.
        window: a late slot older than this is not offered; ``None``: however old.
        limit: the most slots to offer at one look; the rest is offered at the next.
        most_late: the most late slots that ``'all'`` catches up; if there are more, the newest.
    """
    times = times.since(after)
    last = _last_due(times, now, delay)
    if last is None or last <= after:
        return Due()
    last_late = _last_due(times, min(on_time_since, now), delay)
    last_late = after if last_late is None else max(after, last_late)
    if catch_up != "all" and times.cut_short(min(on_time_since, now)):
        # Which slot is the latest is not known yet: pass over what was walked, and go on from there.
        return Due(leap=_leap(times, after, last_late))
    since = after if window is None else max(after, now - window - 1)
    late = _late(times, since, last_late, catch_up, limit, most_late)
    leap = _leap(times, after, late[0] - 1 if late else last_late)
    on_time = islice(times.between(last_late, last), limit - len(late))
    return Due((*late, *on_time), len(late), leap)


def first_due(times: FireTimes, *, first_seen: int, window: int) -> int:
    """Return the cursor from which :func:`due` begins for a job of which no slot was ever decided.

    Of its slots up to ``first_seen`` only the latest counts, and only if it is younger than ``window``.
    How old it is counts from its own time, without jitter: all nodes must agree.
    """
    latest = times.previous(first_seen)
    return latest - 1 if latest is not None and first_seen - latest < window else first_seen


def _last_due(times: FireTimes, instant: int, delay: Callable[[int], int]) -> int | None:
    """Return the last slot that had come due by an instant; as order is kept, all before it had too."""
    slot = times.previous(instant)
    while slot is not None and slot + delay(slot) > instant:
        slot = times.previous(slot - 1)
    return slot


def _late(times: FireTimes, after: int, last: int, catch_up: str, limit: int, most: int) -> tuple[int, ...]:
    """Return the late slots that catch-up offers, of those in ``(after, last]``."""
    if last <= after or catch_up == "none":
        return ()
    if catch_up == "latest":
        return (last,)
    return tuple(islice(times.between(_before_newest(times, after, last, most), last), limit))


def _before_newest(times: FireTimes, after: int, last: int, most: int) -> int:
    """Return after which instant only the newest few of the slots in ``(after, last]`` lie."""
    if times.count(after, last, most + 1) <= most:
        return after
    for _ in range(most):
        slot = times.previous(last)
        last = after if slot is None else slot - 1
    return last


def _leap(times: FireTimes, after: int, until: int) -> Leap | None:
    """Return the slots in ``(after, until]`` as one leap, if there are any."""
    first, last = times.next(after), times.previous(until)
    if first is None or last is None or first > until:
        return None
    return Leap(first, last, times.count(after, until, COUNTED))

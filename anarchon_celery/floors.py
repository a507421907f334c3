"""Up to where each schedule of a job is decided, and from when on it counts. Pure, see :mod:`.transitions`.

During a deploy nodes with an old and with a new schedule run side by side. What the ones decided says
nothing of an earlier slot of the others, so each schedule has a floor of its own.
"""

from __future__ import annotations

from dataclasses import replace

from .ledger import Ledger
from .protocol import COMEBACK_AFTER, REMEMBERED_HASHES, Job, KnownSchedule, Registration


def is_below(job: Job, hash: str | None, told: int | None, now: int) -> bool:
    """Whether a schedule is decided less far than a node was told: what was decided beyond is lost."""
    floor = floor_of(job, hash)
    return told is not None and told <= now and (floor is None or floor < told)


def is_unknown(job: Job, hash: str | None) -> bool:
    """Whether a node has to register first: the job or its schedule, unless it may have been forgotten."""
    if hash is None or job.known(hash) is not None:
        return not job.hashes
    return len(job.hashes) < REMEMBERED_HASHES


def floor_of(job: Job, hash: str | None) -> int | None:
    """Up to where a schedule is decided; the job, where no schedule is named or it is not known."""
    known = job.known(hash)
    return job.floor if known is None else known.floor


def decide(ledger: Ledger, job: Job, slot: int, hash: str | None = None) -> None:
    """Raise the floor of a job and of its schedule to this slot; of all where none is named or known."""
    one = job.known(hash)
    hashes = tuple(
        known._replace(floor=higher(known.floor, slot)) if one in (None, known) else known
        for known in job.hashes
    )
    if (decided := replace(job, floor=higher(job.floor, slot), hashes=hashes)) != job:
        ledger.put_job(decided)


def higher(floor: int | None, other: int | None) -> int | None:
    """The higher one of two floors; None lies below all."""
    return max((at for at in (floor, other) if at is not None), default=None)


def cut(job: Job, now: int) -> Job:
    """The job without what lies ahead of the store's clock, which went back."""
    return replace(
        job, floor=_lower(job.floor, now), first_seen=min(job.first_seen, now),
        hashes=tuple(
            known._replace(
                since=min(known.since, now), floor=_lower(known.floor, now), seen=min(known.seen, now)
            )
            for known in job.hashes
        ),
    )  # fmt: skip


def _lower(floor: int | None, now: int) -> int | None:
    return None if floor is None else min(floor, now)


# Schedules come, go on and come back ------------------------------------------------------------


def with_schedule(job: Job, now: int, asked: Registration) -> Job:
    """The job with this schedule among those it has: a new one, one that goes on, one that came back."""
    known = job.known(asked.hash)
    others = [other for other in job.hashes if other.hash != asked.hash]
    if known is None:
        known = _first_sight(job, now, asked)
    elif asked.cursor is None and any(other.seen - known.seen > COMEBACK_AFTER for other in others):
        # What came due while the job had another schedule did not come due. Its floor stays: what was
        # decided is so for good, also to nodes that never stopped having it.
        known = known._replace(since=now)
    known = known._replace(seen=max(known.seen, now))
    hashes = (*others[1 - REMEMBERED_HASHES :], known)
    return replace(job, floor=higher(job.floor, known.floor), hashes=hashes)


def _first_sight(job: Job, now: int, asked: Registration) -> KnownSchedule:
    """A schedule the store does not know: new, or learnt back from the memory of a node."""
    # The first one of a job counts from the job's own beginning, a later one from now on.
    since, floor = (now, None) if job.hashes else (job.first_seen, job.floor)
    if asked.cursor is None:
        return KnownSchedule(asked.hash, since, floor)
    if asked.effective is not None:
        since = min(asked.effective, now)
    return KnownSchedule(asked.hash, since, higher(floor, min(asked.cursor, now)))

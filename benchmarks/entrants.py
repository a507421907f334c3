"""Who is measured, under which names; and the steps through which each of them goes with so many jobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .arena import Arena, come_due


@dataclass(frozen=True, slots=True)
class Entrant:
    """One contestant on one kind of store.

    ``once_above``: with more jobs one round is enough. ``has_store``: not a file, or nothing at all.
    """

    who: str
    kind: str
    store: str
    is_peer: bool = False
    has_store: bool = True
    once_above: int = 50_000
    farthest: int = 1_000_000  #: with more jobs one round takes longer than all others together


OURS = Entrant("anarchon-celery, Redis", "ours", "redis")
OURS_SQL = Entrant("anarchon-celery, PostgreSQL", "ours", "postgresql")
BARE = Entrant("apply_async, no scheduler", "bare", "redis", has_store=False)
ON_THE_SECOND = Entrant("sleep and apply_async, no scheduler", "second", "redis", has_store=False)
CELERY = Entrant("celery beat, a file", "celery", "redis", has_store=False, once_above=2_000)
REDBEAT = Entrant("celery-redbeat, Redis", "redbeat", "redis", is_peer=True, once_above=2_000)
DJANGO = Entrant(
    "django-celery-beat, PostgreSQL", "django", "postgresql", is_peer=True, once_above=500, farthest=1_000
)

EVERYBODY = (OURS, OURS_SQL, BARE, CELERY, REDBEAT, DJANGO)


@dataclass(slots=True)
class Course:
    """What one entrant did with so many jobs: what each step told, round by round, and its store calls."""

    start: list[dict[str, Any]] = field(default_factory=list)
    idle: list[dict[str, Any]] = field(default_factory=list)
    emit: list[dict[str, Any]] = field(default_factory=list)
    calls: dict[str, Counter[str]] = field(default_factory=dict)
    ticks: int = 1  #: in the idle step of the round that was counted
    emitted: int = 1


class Courses:
    """The courses run so far: several rows look at one."""

    def __init__(self, arena: Arena, rounds: int, *, patient: bool = False) -> None:
        """Run so many rounds; 0: the one that counts is timed, for the order of magnitude."""
        self.arena, self.rounds, self.patient = arena, rounds, patient
        self._run: dict[tuple[str, int], Course] = {}

    def with_jobs(self, jobs: int, entrants: tuple[Entrant, ...] = EVERYBODY) -> dict[Entrant, Course]:
        """Have everybody go through a course with so many jobs, the rounds interleaved."""
        those = [one for one in self._here(entrants) if self.patient or jobs <= one.farthest]
        new = [one for one in those if (one.who, jobs) not in self._run]
        for one in new:
            self._run[one.who, jobs] = Course()
            self._go(one, jobs, counts=True, times=self._times_what_it_counts(one, jobs))
        for number in range(self.rounds):
            for one in new:
                course = self._run[one.who, jobs]
                if jobs <= one.once_above or (number == 0 and not course.emit):
                    self._go(one, jobs)
        return {one: self._run[one.who, jobs] for one in those}

    def left_out(self, jobs: int) -> list[str]:
        """Return who would be here, but needs too long with so many jobs."""
        return [one.who for one in self._here(EVERYBODY) if jobs > one.farthest and not self.patient]

    def _here(self, entrants: tuple[Entrant, ...]) -> list[Entrant]:
        return [one for one in entrants if self.arena.has(one.who, is_peer=one.is_peer)]

    def _times_what_it_counts(self, one: Entrant, jobs: int) -> bool:
        """Only where a round takes minutes, and counting little: redbeat's many commands would be slower."""
        return self.rounds == 0 or (jobs > one.once_above and one is not REDBEAT)

    def _go(self, entrant: Entrant, jobs: int, *, counts: bool = False, times: bool = True) -> None:
        """Go through one round."""
        arena, course, told = self.arena, self._run[entrant.who, jobs], {}
        url = arena.store(entrant.store)
        arena.clear_broker()
        with arena.probe(entrant.kind, store=url, jobs=jobs) as probe:
            for step in ("start", "idle", "come_due", "emit"):
                if step == "idle" and entrant.kind == "bare":
                    continue
                if step == "come_due":
                    come_due([probe])
                elif not counts:
                    told[step] = probe.do(step)
                else:
                    with arena.counted(entrant.store) as calls:
                        told[step] = probe.do(step)
                    course.calls[step] = calls
        for step in ("start", "idle", "emit") if times else ():
            if step in told:
                getattr(course, step).append(told[step])
        if counts:
            course.ticks = told.get("idle", {}).get("ticks", 1)
            course.emitted = told["emit"]["emitted"]

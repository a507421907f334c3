"""Rows about growth: the same work with ten times as many jobs, or twice as many nodes."""

from __future__ import annotations

from collections.abc import Callable

from .entrants import BARE, CELERY, OURS, OURS_SQL, REDBEAT, Course, Courses, Entrant
from .figures import Line, Row

#: Who goes how far: beyond, one round of it would take longer than all others together.
FARTHEST: dict[Entrant, int] = {OURS: 100_000, OURS_SQL: 10_000, CELERY: 10_000, REDBEAT: 10_000, BARE: 0}

_FAR = "Each goes as far as one round of it does not take longer than all others together"

_OF: dict[str, tuple[str, Callable[[Course], list[float]], str]] = {
    "emission": ("ms", lambda course: [1000 * told["seconds"] for told in course.emit], "flat"),
    "idle tick": ("ms", lambda course: [1000 * told["seconds"] for told in course.idle], "flat"),
    "start": ("s", lambda course: [told["seconds"] for told in course.start], "in proportion"),
    "memory": ("MB", lambda course: [told["megabytes"] for told in course.emit], "in proportion"),
}


def growth(courses: Courses, sizes: tuple[int, ...]) -> list[Row]:
    """Emission, idle tick, start and memory, at each number of jobs."""
    ran: dict[tuple[Entrant, int], Course] = {}
    for size in sizes:
        those = tuple(one for one, farthest in FARTHEST.items() if farthest >= size)
        ran |= {(one, size): course for one, course in courses.with_jobs(size, those).items()}
    rows = []
    for name, (unit, values, goal) in _OF.items():
        of_emission = name in ("emission", "memory")
        lines = [
            Line(_who(one, size), unit, values(course), note=_note(course, size) if of_emission else "")
            for (one, size), course in ran.items()
        ]
        lines.sort(key=lambda line: line.who.partition(":")[0] != OURS.who)
        rows.append(Row(f"growth: {name}", "by the number of jobs", goal, lines, _FAR))
    return rows


def _who(one: Entrant, size: int) -> str:
    return f"{one.who}: {size:,} jobs"


def _note(course: Course, size: int) -> str:
    emitted = min(told["emitted"] for told in course.emit)
    return "" if emitted >= size else f"over the first {emitted:,} of them"

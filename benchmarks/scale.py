"""Rows about many jobs in one beat: what an emission, an idle tick, a start and the memory come to."""

from __future__ import annotations

from collections.abc import Callable

from .entrants import BARE, Course, Courses, Entrant
from .figures import Line, Row

Made = Callable[[Entrant, Course], Line]


def _row(courses: Courses, jobs: int, name: str, work: str, goal: str, made: Made, *, bare: bool) -> Row:
    ran = courses.with_jobs(jobs)
    lines = [made(one, course) for one, course in ran.items() if bare or one is not BARE]
    absent = ", ".join(courses.left_out(jobs))
    note = f"Left out: {absent}, which takes many minutes with so many (--patient)" if absent else ""
    return Row(name, work, goal, lines, note)


def emission(courses: Courses, jobs: int) -> Row:
    """One emission, of so many that come due at one instant."""

    def line(one: Entrant, course: Course) -> Line:
        calls = course.calls["emit"].total() / max(1, course.emitted) if one.has_store else None
        values = [1000 * told["seconds"] for told in course.emit]
        cpu = [1000 * told["cpu"] for told in course.emit]
        emitted = course.emit[0]["emitted"]
        note = "" if emitted == jobs else f"over the first {emitted:,} of them"
        return Line(one.who, "ms", values, cpu, calls, note)

    return _row(
        courses, jobs, f"one emission, {jobs:,} due at once",
        "from the instant at which all are due until the last is published and recorded, by their number",
        "at most 1.15 × a bare apply_async, 0.05 store calls", line, bare=True,
    )  # fmt: skip


def idle(courses: Courses, jobs: int) -> Row:
    """One time round the loop while nothing is due."""

    def line(one: Entrant, course: Course) -> Line:
        calls = course.calls["idle"].total() / course.ticks if one.has_store else None
        values = [1000 * told["seconds"] for told in course.idle]
        return Line(one.who, "ms", values, [1000 * told["cpu"] for told in course.idle], calls)

    return _row(
        courses, jobs, f"idle tick, {jobs:,} jobs",
        "one tick while nothing is due; polls of the store that came due meanwhile are in it",
        "at most 0.2 ms, no store call between polls", line, bare=False,
    )  # fmt: skip


def start(courses: Courses, jobs: int) -> Row:
    """The start of a beat on an empty store."""

    def line(one: Entrant, course: Course) -> Line:
        values, cpu = ([told[name] for told in course.start] for name in ("seconds", "cpu"))
        calls = float(course.calls["start"].total()) if one.has_store else None
        return Line(one.who, "s", values, cpu, calls)

    return _row(
        courses, jobs, f"start, {jobs:,} static jobs",
        "from making the scheduler until its first tick is over, on a store that is empty",
        "at most 1 s, 60 store calls", line, bare=False,
    )  # fmt: skip


def memory(courses: Courses, jobs: int) -> Row:
    """The memory of a beat that has published."""

    def line(one: Entrant, course: Course) -> Line:
        return Line(one.who, "MB", [told["megabytes"] for told in course.emit])

    return _row(
        courses, jobs, f"memory, {jobs:,} jobs",
        "resident after all of them were emitted once", "at most Celery's own beat", line, bare=False,
    )  # fmt: skip

"""Rows about several beats on one store: how they share one instant, and what each costs the others."""

from __future__ import annotations

import contextlib
from statistics import median
from typing import Any

from tests.processes import wait_until

from .arena import Arena, come_due
from .figures import Line, Row


def at_one_instant(arena: Arena, rounds: int, jobs: int, counts: tuple[int, ...]) -> Row:
    """Several nodes with the same jobs, all of which come due at one instant, under the default jitter."""
    seen: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    calls = {count: _once(arena, jobs, count, counts=True)["calls"] for count in counts}
    for _ in range(rounds):
        for count in counts:
            seen[count].append(_once(arena, jobs, count))
    four_first = sorted(counts, key=lambda count: (count != 4, count))
    lines = [_line(count, jobs, seen[count], calls[count]) for count in four_first]
    return Row(
        f"{jobs:,} jobs at one instant",
        "from the instant at which all are due until the last one is published, by whichever node",
        "four nodes at least 1.7 times as fast as one, on cores of their own; none above 40 %", lines,
    )  # fmt: skip


def _line(count: int, jobs: int, seen: list[dict[str, Any]], calls: int) -> Line:
    largest = [max(told["shares"]) / jobs for told in seen]
    note = f"by the busiest node {median(largest):.0%} (in one round {max(largest):.0%})" if count > 1 else ""
    who = f"{count} node{'s' if count > 1 else ''}"
    return Line(who, "ms", [told["last"] for told in seen], calls=calls / jobs, note=note)


def _once(arena: Arena, jobs: int, nodes: int, *, counts: bool = False) -> dict[str, Any]:
    """Have so many nodes share them: milliseconds until the last one, and how many each published."""
    url = arena.store("redis")
    arena.clear_broker()
    with contextlib.ExitStack() as stack:
        order = {"store": url, "jobs": jobs, "conf": {"anarchon_jitter": "100ms"}}
        probes = [stack.enter_context(arena.probe("ours", **order)) for _ in range(nodes)]
        for probe in probes:
            probe.do("start")
        due = come_due(probes)
        counted = stack.enter_context(arena.counted("redis")) if counts else {}
        for probe in probes:
            probe.tell("attend")
        wait_until(lambda: arena.waiting() >= jobs, 120)
        told = [_ended(probe) for probe in probes]
    published = [[at for at in one["published"] if at >= due] for one in told]
    assert sum(map(len, published)) == jobs, "each was published once"
    last = max(max(one, default=due) for one in published)
    return {"last": 1000 * (last - due), "shares": [*map(len, published)], "calls": sum(counted.values())}


def _ended(probe: Any) -> dict[str, Any]:
    probe.tell("")  # which ends what it attends to
    told: dict[str, Any] = probe.answer()
    return told

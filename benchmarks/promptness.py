"""The row about one job alone: how long after its instant its message is out."""

from __future__ import annotations

from itertools import pairwise

from tests.processes import wait_until

from .arena import Arena
from .entrants import CELERY, DJANGO, ON_THE_SECOND, OURS, OURS_SQL, REDBEAT, Entrant
from .figures import Line, Row, percentile


def lateness(arena: Arena, rounds: int, seconds: int) -> list[Row]:
    """One job each second, without jitter."""
    everybody = (OURS, OURS_SQL, ON_THE_SECOND, CELERY, REDBEAT, DJANGO)
    those = [one for one in everybody if arena.has(one.who, is_peer=one.is_peer)]
    seen: dict[Entrant, list[list[float]]] = {one: [] for one in those}
    for _ in range(rounds):
        for one in those:
            seen[one].append(_late(arena, one, seconds))
    work = (
        "one job each second; how long after the full second it is out (beats of others: how far from a "
        "second after the last one)"
    )
    note = "What other beats miss a second by adds up, because they count from the last one"
    return [
        Row(
            f"lateness, p{round(100 * part)}", work, goal,
            [Line(one.who, "ms", [percentile(late, part) for late in seen[one]]) for one in those], note,
        )
        for part, goal in ((0.5, "at most 3 ms"), (0.99, "at most 25 ms"))
    ]  # fmt: skip


def _late(arena: Arena, entrant: Entrant, seconds: int) -> list[float]:
    """Milliseconds, for each emission of one job."""
    url = arena.store(entrant.store)
    arena.clear_broker()
    conf = {"anarchon_overlap": "allow"}  # since no worker ends the run before
    with arena.probe(entrant.kind, store=url, jobs=1, period=1, conf=conf) as probe:
        probe.do("start")
        probe.tell("attend")
        wait_until(lambda: arena.waiting() > seconds, 60 + 3 * seconds)
        probe.tell("")
        published = probe.answer()["published"]
    if entrant.kind in ("ours", "second"):
        return [1000 * (at % 1) for at in published[1:]]
    return [1000 * abs(following - at - 1) for at, following in pairwise(published)]

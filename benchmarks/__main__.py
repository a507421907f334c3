"""``python -m benchmarks``: measure what is asked for, print each row as soon as it is there."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import capacity, failover, growth, heartbeats, nodes, promptness, report, scale, walk
from .arena import Arena
from .entrants import Courses
from .figures import Row
from .peers import ROOT

#: What ``--write`` writes.
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "images" / "benchmarks.svg"
MEASURED = ROOT / "benchmarks" / "measured.json"
BEGIN, END = "<!-- What follows is written by python -m benchmarks --write -->", "<!-- and ends here -->"


def rows_of(
    arena: Arena, courses: Courses, *, quick: bool, most: int
) -> dict[str, Callable[[], Row | Iterable[Row]]]:
    """Return what makes each row, by a name that ``--only`` finds."""
    rounds = max(1, courses.rounds)
    some, many = (200, 200) if quick else (min(1_000, most), min(10_000, most))
    sizes = [size for size in (100, 1_000, 10_000, 100_000) if size <= most]
    few, two = (1, 1) if quick else (min(rounds, 3), min(rounds, 2))
    return {
        "emission": lambda: [scale.emission(courses, size) for size in sorted({some, many})],
        "nodes": lambda: nodes.at_one_instant(arena, few, some, (1, 4) if quick else (1, 2, 4, 8)),
        "idle": lambda: scale.idle(courses, many),
        "start": lambda: scale.start(courses, many),
        "memory": lambda: scale.memory(courses, many),
        "lateness": lambda: promptness.lateness(arena, two, 5 if quick else 30),
        "walk": lambda: walk.row(rounds, 500 if quick else 10_000),
        "failover": lambda: failover.of_beat(arena, few, everybody=not quick),
        "holder": lambda: failover.of_holder(arena, few),
        "heartbeats": lambda: heartbeats.heartbeats(arena, two, (20,) if quick else (100, 200), 20),
        "growth": lambda: growth.growth(courses, (100, 200) if quick else tuple(sizes)),
        "capacity": lambda: capacity.capacity(arena, few, 400 if quick else 10_000),
    }


def main(words: list[str] | None = None) -> int:
    """Measure, print and keep; 1 if some rows could not be measured."""
    asked = _asked(words)
    found: list[Row] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        arena = Arena(Path(folder), with_peers=not asked.without_peers, without=asked.without)
        with contextlib.closing(arena):
            rounds = asked.repeat or (1 if asked.quick else 5)
            courses = Courses(arena, 0 if asked.quick else rounds, patient=asked.patient)
            machine = report.machine()
            print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
            rows = rows_of(arena, courses, quick=asked.quick, most=asked.most)
            if nowhere := [word for word in asked.only or () if not any(word in name for name in rows)]:
                raise SystemExit(f"no row is called {', '.join(nowhere)}: there are {', '.join(rows)}")
            for name, make in rows.items():
                if asked.only and not any(word in name for word in asked.only):
                    continue
                try:
                    made = make()
                except Exception:  # the other rows took long, too
                    print(f"\n{name}:\n{traceback.format_exc()}", flush=True)
                    failed.append(name)
                    continue
                new = [made] if isinstance(made, Row) else list(made)
                found += new
                print(f"\n{report.table(new)}", flush=True)
                rows_to_keep = _with_others(found, machine) if asked.write and asked.only else found
                _keep(asked, report.as_json(rows_to_keep, rounds, machine), rows_to_keep)
    if failed:
        print(f"\nnot measured: {', '.join(failed)}")
    return 1 if failed else 0


def _with_others(found: list[Row], machine: dict[str, Any]) -> list[Row]:
    """Return these and what else was measured on this machine before: they are some of its rows."""
    before = json.loads(MEASURED.read_text())
    if {**before["machine"], "load": None} != {**machine, "load": None}:
        return found
    new = {row.name: row for row in found}
    kept = [new.pop(row.name, row) for row in map(Row.of_json, before["rows"])]
    return [*kept, *new.values()]


def _keep(asked: Any, measured: dict[str, Any], rows: list[Row]) -> None:
    if asked.write:
        asked.json, asked.plot = MEASURED, PICTURE
    if asked.json:
        Path(asked.json).write_text(json.dumps(measured, indent=1) + "\n")
    if asked.plot:
        from .picture import draw

        draw(rows, Path(asked.plot))
    if asked.write:
        PAGE.write_text(page(PAGE.read_text(), json.loads(MEASURED.read_text())))


def page(text: str, measured: dict[str, Any]) -> str:
    """Return the page with what was measured."""
    begin, _, rest = text.partition(BEGIN)
    return f"{begin}{BEGIN}\n\n{report.written(measured)}\n\n{END}{rest.partition(END)[2]}"


def _asked(words: list[str] | None) -> Any:
    parser = argparse.ArgumentParser("python -m benchmarks", description="us beside our peers, here")
    parser.add_argument("--quick", action="store_true", help="few jobs and one round: the order of magnitude")
    parser.add_argument("--only", action="append", metavar="ROW", help="rows with this name; again for more")
    parser.add_argument("--json", metavar="FILE", help="where to write all figures")
    parser.add_argument("--plot", metavar="FILE", help="where to draw them (.svg or .png)")
    parser.add_argument("--write", action="store_true", help="write them into docs/performance.md, all three")
    parser.add_argument("--patient", action="store_true", help="also whose single round takes many minutes")
    parser.add_argument("--most", type=int, metavar="JOBS", default=100_000, help="with so many jobs at most")
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds (5)")
    parser.add_argument("--without", action="append", metavar="WHO", default=[], help="whoever has this name")
    parser.add_argument("--without-peers", action="store_true", help="only what needs no other package")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())

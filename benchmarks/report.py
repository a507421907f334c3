"""The table that people read, and the file that programs read."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from statistics import median
from typing import Any

from .figures import Line, Row, shown


def table(rows: Iterable[Row]) -> str:
    """Return rows as text: for each one who took how many times as long as the first, ratios first."""
    return "\n\n".join(_block(row) for row in rows)


def _block(row: Row) -> str:
    head = [
        f"{row.name}: {row.work}",
        *(f"  {note}" for note in (row.goal and f"goal: {row.goal}", row.note) if note),
    ]
    cells = [_cells(line, row.lines[0]) for line in row.lines]
    widths = [max(len(one[column]) for one in cells) for column in range(len(cells[0]))]
    for one in cells:
        padded = [
            text.rjust(width) if column in (0, 2) else text.ljust(width)
            for column, (text, width) in enumerate(zip(one, widths, strict=True))
        ]
        head.append(f"  {'  '.join(padded)}".rstrip())
    return "\n".join(head)


def _cells(line: Line, first: Line) -> tuple[str, ...]:
    least, most = line.spread
    ratio = "1 ×" if line is first else f"{shown(line.ratio_to(first))} ×"
    spread = f"({shown(least)} – {shown(most)})" if len(line.values) > 1 else "(one round)"
    calls = "" if line.calls is None else f"{shown(line.calls)} store calls"
    cpu = "" if not line.cpu else f"CPU {shown(median(line.cpu))}, {shown(line.cpu_ratio_to(first))} ×"
    return ratio, line.who, shown(line.median), f"{line.unit} {spread}", cpu, calls, line.note


def machine() -> dict[str, Any]:
    """Return on what this runs."""
    redis = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=False).stdout
    return {
        "cores": os.cpu_count(), "processor": _processor(), "system": platform.system(),
        "python": platform.python_version(), "celery": version("celery"), "kombu": version("kombu"),
        "redis-py": version("redis"), "redis": redis.partition("v=")[2].partition(" ")[0],
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def written(measured: Mapping[str, Any]) -> str:
    """Return what was measured as a page has it, made from the file for programs."""
    names = ("", "median (least – most)", "times ours", "CPU, times ours", "store calls", "")
    head = [f"| {' | '.join(names)} |".replace("|  |", "| |"), "|---" * len(names) + "|"]
    parts = [_machine_in_words(measured)]
    for row in measured["rows"]:
        goal = f" Goal: {row['goal']}." if row["goal"] else ""
        note = f" {row['note']}." if row.get("note") else ""
        title = f"### {row['name']}\n\n{row['work']}.{goal}{note}\n"
        parts.append("\n".join([title, *head, *map(_written, row["lines"])]))
    return "\n\n".join(parts)


def _written(line: Mapping[str, Any]) -> str:
    least, most = line["spread"]
    spread = f" ({shown(least)} – {shown(most)})" if least != most else ""
    cpu = shown(line["times_our_cpu"]) if "times_our_cpu" in line else ""
    calls = "" if line["calls"] is None else shown(line["calls"])
    figure = f"{shown(line['median'])} {line['unit']}{spread}"
    cells = (line["who"], figure, shown(line["times_ours"]), cpu, calls, line["note"])
    return f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|"


def _machine_in_words(measured: Mapping[str, Any]) -> str:
    it = measured["machine"]
    names = ("python", "celery", "kombu", "redis-py", "redis")
    versions = ", ".join(f"{name} {it[name]}" for name in names)
    busy = (
        " Other work kept it busy: absolute figures are several times what it takes alone."
        if it["load"] > it["cores"] else ""
    )  # fmt: skip
    return (
        f"{it['cores']} cores ({it['processor']}), {it['system']}, {versions}. Rounds: {measured['rounds']}, "
        "or fewer where one takes long; a figure without a spread is of one. "
        f"When it began, {it['load']} processes wanted to run there.{busy}"
    )


def as_json(rows: Iterable[Row], rounds: int, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that was measured; the machine is as it was before."""
    return {"machine": machine, "rounds": rounds, "rows": [row.as_json() for row in rows]}

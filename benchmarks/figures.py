"""What was measured: one line for each contestant in each row, with all its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(slots=True)
class Line:
    """One contestant in one row. ``values`` has one figure a round; ``cpu`` the CPU time of the same work."""

    who: str
    unit: str
    values: list[float]
    cpu: list[float] = field(default_factory=list)
    calls: float | None = None  #: store calls, counted at the server, for one piece of the work
    note: str = ""

    @property
    def median(self) -> float:
        """The figure that stands for all rounds."""
        return median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the most of all rounds."""
        return min(self.values), max(self.values)

    def ratio_to(self, other: Line) -> float:
        """How many times the other's figure it is: the median over the rounds, each against its own."""
        pairs = zip(self.values, other.values, strict=False)
        return median(mine / theirs if theirs else float("inf") for mine, theirs in pairs)

    def cpu_ratio_to(self, other: Line) -> float:
        """How many times the other's CPU time it takes, which other work on the machine changes less."""
        return median(self.cpu) / median(other.cpu) if other.cpu and median(other.cpu) else float("inf")

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        plain = {name: getattr(self, name) for name in ("who", "unit", "values", "cpu", "calls", "note")}
        return {**plain, "median": self.median, "spread": list(self.spread)}


@dataclass(slots=True)
class Row:
    """One measure: what work it is, what we want, and how everybody did; the first line is ours."""

    name: str
    work: str
    goal: str
    lines: list[Line]
    note: str = ""  #: what is to be known of the whole row

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        lines = [
            {**line.as_json(), "times_ours": line.ratio_to(self.lines[0])} | _cpu(line, self.lines[0])
            for line in self.lines
        ]
        return {
            "name": self.name, "work": self.work, "goal": self.goal, "note": self.note, "lines": lines
        }  # fmt: skip

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> Row:
        """Return the row that :meth:`as_json` told of."""
        names = ("who", "unit", "values", "cpu", "calls", "note")
        lines = [Line(**{name: line[name] for name in names}) for line in plain["lines"]]
        return cls(plain["name"], plain["work"], plain["goal"], lines, plain["note"])


def _cpu(line: Line, first: Line) -> dict[str, float]:
    return {"times_our_cpu": line.cpu_ratio_to(first)} if line.cpu else {}


def shown(value: float) -> str:
    """Write a figure as people read it: three digits that mean something."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - _magnitude(value))}f}"


def _magnitude(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which so large a part of them lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]

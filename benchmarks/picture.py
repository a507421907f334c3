"""The picture of a run: how many times as long as we everybody takes, and how that grows with the jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .figures import Line, Row, shown

#: In the order in which they are drawn, each with its colour in both halves.
COLOURS = {
    "anarchon-celery": "#1b7f5c", "celery-redbeat": "#c0562b", "celery beat": "#3f6fb0",
    "django-celery-beat": "#8a5aa8", "apply_async": "#888888",
}  # fmt: skip


#: Light becomes dark, and each colour stays itself.
_IN_THE_DARK = "@media (prefers-color-scheme: dark) { svg { filter: invert(1) hue-rotate(180deg) } }"

_TITLE = "anarchon-celery beside other schedulers of Celery"


def draw(rows: Sequence[Row], file: Path) -> None:
    """Write the picture; its kind is the file's ending."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": "anarchon", "svg.fonttype": "none"}
    import matplotlib.pyplot as pyplot

    compared = [row for row in rows if _is_compared(row)]
    grown = [row for row in rows if row.name.startswith("growth: ") and "jobs" in row.work]
    tall = 0.5 * sum(len(row.lines) for row in compared) / 2 + 1
    figure, axes = pyplot.subplots(
        2, 1, figsize=(9, 3.6 + tall), height_ratios=[tall, 3.2], layout="constrained"
    )
    _bars(axes[0], compared)
    _curves(axes[1], grown)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None, dpi=110)
    pyplot.close(figure)
    if file.suffix == ".svg":
        _describe(file, compared)


def _describe(file: Path, rows: Sequence[Row]) -> None:
    """Say in words what the picture shows, for those who cannot see it."""
    said = "; ".join(
        f"{row.name}: " + ", ".join(f"{line.who} {shown(line.ratio_to(row.lines[0]))}" for line in row.lines)
        for row in rows
    )
    words = f"<title>{_TITLE}</title>\n <desc>Times as much as the first of each: {said}.</desc>"
    words += f"\n <style>{_IN_THE_DARK}</style>"
    head, tag, rest = file.read_text().partition("<svg ")
    attributes, end, body = rest.partition(">")
    lines = f'{head}{tag}role="img" {attributes}{end}\n {words}{body}'.splitlines()
    file.write_text("\n".join(line.rstrip() for line in lines) + "\n")


def _is_compared(row: Row) -> bool:
    return not row.name.startswith(("growth", "load", "where")) and len({_maker(it) for it in row.lines}) > 1


def _maker(line: Line) -> str:
    return next((name for name in COLOURS if line.who.startswith(name)), line.who)


def _bars(axis: Any, rows: Sequence[Row]) -> None:
    """One bar for each line: its ratio to ours, on a scale on which ten times is always as wide."""
    place, ticks = 0.0, []
    for row in reversed(rows):
        begin = place
        for line in reversed(row.lines):
            ratio = max(line.ratio_to(row.lines[0]), 0.01)
            axis.barh(place, ratio, left=0, color=COLOURS.get(_maker(line), "#bbbbbb"), height=0.8)
            axis.text(ratio * 1.08, place, f"{shown(ratio)} ×  {line.who}", va="center", fontsize=7)
            place += 1
        ticks.append(((begin + place - 1) / 2, row.name))
        place += 1
    axis.set_xscale("log")
    axis.set_yticks([at for at, _name in ticks], [name for _at, name in ticks], fontsize=8)
    left, right = axis.get_xlim()
    axis.set_xlim(left, right * 20)
    axis.set_title("times as much as anarchon-celery with Redis (log scale)", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)


def _curves(axis: Any, rows: Sequence[Row]) -> None:
    """One emission, by the number of jobs that are due at once."""
    row = next((row for row in rows if row.name == "growth: emission"), None)
    if row is None:
        axis.set_visible(False)
        return
    whose: dict[str, list[tuple[int, float]]] = {}
    for line in row.lines:
        who, _, size = line.who.partition(": ")
        whose.setdefault(who, []).append((int(size.split()[0].replace(",", "")), line.median))
    for who, points in whose.items():
        colour = next((COLOURS[name] for name in COLOURS if who.startswith(name)), "#bbbbbb")
        style = "--" if "PostgreSQL" in who else "-"
        axis.plot(*zip(*sorted(points), strict=True), style, marker="o", color=colour, label=who)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("jobs due at one instant", fontsize=8)
    axis.set_ylabel("ms for each emission", fontsize=8)
    axis.legend(fontsize=7)
    axis.spines[["top", "right"]].set_visible(False)

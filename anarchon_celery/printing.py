"""How the commands print: tables and texts for people, JSON for machines.

Where nobody reads a terminal a table is plain, and as wide as it has to be: one line for each row.
On a terminal that is too narrow for it each row becomes a card; and only a terminal gets colours, unless
somebody wants none (``NO_COLOR``, Celery's ``--no-color``). What somebody wrote is shown as text:
a control character in it does nothing to the terminal.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from .desk import Desk

#: How wide what nobody reads on a terminal may be.
WIDEST = 100_000

Row = Sequence[str | None]

#: What a schedule is marked with that differs from those of most beats.
ODD = " !"

#: Cells that are to be seen.
TONES = {
    "running": "green", "alive": "green", "failed": "red", "abandoned": "red", "gone": "red",
    "missed": "yellow", "cancelled": "yellow",
}  # fmt: skip


def console() -> Console:
    """Return what prints for people."""
    context = click.get_current_context(silent=True)
    desk = context.find_object(Desk) if context else None
    width = None if sys.stdout.isatty() else WIDEST
    return Console(highlight=False, width=width, no_color=True if desk and desk.no_color else None)


def printer() -> Callable[[Any], None]:
    """Return what prints for people: tables, and texts of a line or a few."""
    screen = console()

    def print_(one: Any) -> None:
        shown = "\n".join(map(plain, one.split("\n"))) if isinstance(one, str) else one
        screen.print(shown, markup=False)

    return print_


def print_json(value: Any) -> None:
    """Print for machines; somebody may look at it on a terminal all the same."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text))


def plain(text: str) -> str:
    """Return a text with what is no character to be shown as it would be written in Python."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def table(heads: Sequence[str], rows: Sequence[Row]) -> Table:
    """Return a table that is folded where it is too wide."""
    made = Table(box=None, pad_edge=False)
    for head in heads:
        made.add_column(head, overflow="fold")
    for row in rows:
        made.add_row(*(plain(cell or "") for cell in row))
    return made


class TableOrCards:
    """A table where it fits; else a card for each row: its first cell, and below it all that is not empty."""

    def __init__(self, heads: Sequence[str], rows: Sequence[Row]) -> None:
        self.heads, self.rows = heads, [[plain(cell or "") for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(cell_len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        if sum(widths) + 2 * len(widths) - 2 <= options.max_width:
            yield from _line(self.heads, widths, bold=True)
            for row in self.rows:
                yield from _line(row, widths)
            return
        for row in self.rows:
            yield Text(row[0], style="bold")
            yield self._card(row)

    def _card(self, row: Sequence[str]) -> Table:
        card = Table.grid(padding=(0, 2))
        card.add_column(min_width=2 + max(map(len, self.heads)))
        card.add_column(overflow="fold")
        for head, cell in list(zip(self.heads, row, strict=True))[1:]:
            if cell:
                card.add_row(f"  {head}", Text(cell, style=_tone(cell)))
        return card


def _tone(cell: str) -> str:
    return "yellow" if cell.endswith(ODD) else TONES.get(cell, "")


def _line(row: Sequence[str], widths: Sequence[int], *, bold: bool = False) -> Iterator[Segment]:
    """Return a row as one line, made at once: a table of rich's takes a second for a thousand rows."""
    filled = len(row) - next((place for place, cell in enumerate(reversed(row)) if cell), len(row))
    for place, cell in enumerate(row[:filled]):
        yield Segment(cell, Style.parse(f"{_tone(cell)}{' bold' * bold}"))
        if place < filled - 1:
            yield Segment(" " * (widths[place] - cell_len(cell) + 2))
    yield Segment.line()

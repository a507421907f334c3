"""The table as docs/endings.md has it: written from what was seen, and read again to compare."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.cluster.endings.play import Ending
from tests.cluster.endings.scene import Part
from tests.cluster.endings.ways import POOLS, SHORT

PAGE = Path(__file__).parents[3] / 'docs' / 'endings.md'
HEAD = '| what happens | to a task that | which sees | its run is | attempt 2 starts |\n' + '|---' * 5 + '|\n'

#: The bodies, as the page calls them.
TASKS = {
    'cooperative': 'looks at its lease',
    'unaware': f'never looks, and ends after {SHORT:g} s',
    'sleeping': 'never looks, in one long call',
    'busy': 'never looks, and computes',
    'swallowing': 'swallows every exception',
    'in_c': 'is in C code that keeps the GIL',
    'exits': 'calls `sys.exit()`',
    'fails': 'raises',
    'stranger': 'this worker does not know',
}


def subject(part: Part) -> tuple[str, str]:
    """What a row is about."""
    return part.way.title, TASKS[part.body]


def outcome(ending: Ending) -> tuple[str, ...]:
    """What has to be the same each time: a row less its seconds."""
    return (*subject(ending.part), ending.sees, ending.run, ending.second)


def row(ending: Ending) -> str:
    """One line of the page."""
    cells = list(outcome(ending))
    if ending.seconds is not None:
        cells[-1] += f' ({ending.seconds:.1f} s)'
    return f'| {" | ".join(cells)} |\n'


def written(pool: str) -> list[tuple[str, ...]]:
    """The outcomes that the page tells of a pool."""
    table = PAGE.read_text().partition(marked(pool))[2].partition('\n\n')[0]
    rows = [line.strip('| ').split(' | ') for line in table.splitlines() if line.startswith('| ')][1:]
    return [(*cells[:-1], re.sub(r' \([\d.]+ s\)$', '', cells[-1])) for cells in rows]


def write(endings: Iterable[Ending]) -> None:
    """Put what was seen in the place of the tables of these pools; the others stay."""
    tables: dict[str, str] = {}
    for ending in endings:
        pool = ending.part.pool
        tables[pool] = tables.get(pool, f'{marked(pool)}\n{HEAD}') + row(ending)
    text = PAGE.read_text()
    for pool, table in tables.items():
        before, mark, after = text.partition(marked(pool))
        assert mark, f'{PAGE.name} has no place for {pool}'
        _, end, after = after.partition('\n\n')
        text = f'{before}{table.rstrip()}{end}{after}'
    PAGE.write_text(text)


def marked(pool: str) -> str:
    """What stands before the table of a pool."""
    assert pool in POOLS
    return f'<!-- python -m tests.cluster.endings: {pool} -->'

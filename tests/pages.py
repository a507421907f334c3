"""The Markdown of the docs as tests read it: blocks of code, what is said above each, links, anchors.

A block of code is run by a test, or says why not, in a comment right above it::

    <!-- not run: needs a cluster -->               and why nobody does
    <!-- run by tests/test_x.py::test_y -->         that test reads the page
    <!-- with: rows = [1, 2] -->                    Python before it, which the page takes for granted

Without one it is run, or checked, by tests/test_docs_blocks.py.
"""

from __future__ import annotations

import re
import sys
import textwrap
import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from celery import Celery, _state

import anarchon_celery

ROOT = Path(__file__).parents[1]
DOCS = ROOT / 'docs'

#: Pages whose blocks the tests of their own part run. A part may not be there yet.
PARTS = ('django.md', 'log.md', 'metrics.md', 'signals.md', 'testing.md')


@dataclass(frozen=True)
class Block:
    """A block of code: its place, the heading above it, its language, its text, what is said of it."""

    place: str
    section: str
    language: str
    text: str
    said: str = ''

    @property
    def commands(self) -> list[str]:
        """What is typed."""
        return [line[2:] for line in self.text.splitlines() if line.startswith('$ ')]

    def told(self, what: str) -> str | None:
        """What follows `what` in the comment above; None if that says something else."""
        return self.said[len(what) :].strip() if self.said.startswith(what) else None


@cache
def blocks(path: Path) -> tuple[Block, ...]:
    """All blocks of code of a page, in their order."""
    found, section, said = [], '', ''
    lines = iter(enumerate(path.read_text().splitlines(), 1))
    for number, line in lines:
        if fence := re.fullmatch(r' *(```+)(\S*)( .*)?', line):
            text = []
            for _, inner in lines:
                if inner.strip() == fence[1]:
                    break
                text.append(inner)
            place = f'{path.relative_to(ROOT)}:{number}'
            found.append(Block(place, section, fence[2], textwrap.dedent('\n'.join([*text, ''])), said))
            said = ''
        elif comment := re.fullmatch(r' *<!-- (.*) -->', line):
            said = comment[1]
        elif line.strip():
            said = ''
            section = line.lstrip('#').strip() if line.startswith('#') else section
    return tuple(found)


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r'^( *)(```+).*?^ *\2$', '', path.read_text(), flags=re.M | re.S)


def links(path: Path) -> list[str]:
    """Where a page leads to, within the project."""
    found = re.findall(r'\]\(([^)\s]+)\)', prose(path))
    return [link for link in found if not link.startswith(('http://', 'https://', 'mailto:'))]


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, as code hosts and the site make them."""
    texts = re.findall(r'^#{1,3} (.*)$', prose(path), re.M)
    plain = [re.sub(r'[^\w\- ]', '', text.lower()).replace(' ', '-') for text in texts]
    return frozenset(plain)


def table(text: str, *header: str) -> list[list[str]]:
    """The rows of the tables with this header."""
    rows, inside = [], False
    for line in text.splitlines():
        cells = re.split(r' *\| *', line)[1:-1] if line.startswith('|') else []
        if not inside:
            inside = [*header] == cells
        elif not cells:
            inside = False
        elif not set(line) <= set('|-'):
            rows.append(cells)
    return rows


def project(monkeypatch) -> types.ModuleType:
    """A module with an app, as pages take it for granted."""
    module = types.ModuleType('proj.tasks')
    monkeypatch.setitem(sys.modules, 'proj.tasks', module)
    # A task is given to every app that comes later: those of this page to none.
    monkeypatch.setattr(_state, '_on_app_finalizers', {*_state._on_app_finalizers})
    app = Celery('proj', broker='memory://', set_as_current=False)
    app.conf.update(anarchon_store='memory://', result_expires=None, timezone='UTC')
    public = {name: getattr(anarchon_celery, name) for name in anarchon_celery.__all__}
    vars(module).update(public, anarchon_celery=anarchon_celery, app=app)
    return module

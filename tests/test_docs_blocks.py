"""Each block of code in the docs is run or checked here, or says by whom else, or why it is not."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec

import click
import pytest
from celery.bin.beat import beat
from celery.bin.worker import worker

from anarchon_celery import events
from anarchon_celery.cli import anarchon
from anarchon_celery.config import Config
from anarchon_celery.entries import planned_jobs
from anarchon_celery.protocol import Node, Registration
from tests import pages
from tests.pages import DOCS, PARTS, ROOT, Block
from tests.test_cli import Desk

PYPROJECT, MAKEFILE = (ROOT / 'pyproject.toml').read_text(), (ROOT / 'Makefile').read_text()
SHELL = {'cd', 'eval', 'export', 'kill', 'mkdir'}

PAGES = [path for path in sorted(DOCS.glob('*.md')) if path.name not in PARTS]
ALL = [block for path in PAGES for block in pages.blocks(path) if not block.language.startswith('{')]
MARKS = ('not run: ', 'run by ', 'with: ')


def ids(block: Block) -> str:
    return block.place


@pytest.mark.parametrize('block', [block for block in ALL if block.said], ids=ids)
def test_what_is_said_above_a_block_is_true(block):
    assert any(map(block.said.startswith, MARKS)), f'{block.place}: {block.said!r} is none of {MARKS}'
    if by := block.told('run by '):
        file, _, test = by.partition('::')
        source = (ROOT / file).read_text()
        assert f'def {test}(' in source
        assert block.place.partition('/')[2].partition(':')[0].removesuffix('.md') in source


def test_a_page_with_tests_of_its_own_has_them():
    files = [path for path in ROOT.glob('tests/test_*.py') if not path.name.startswith('test_docs_')]
    tests = ''.join(path.read_text() for path in files)
    there = [page for page in PARTS if (DOCS / page).exists() and pages.blocks(DOCS / page)]
    assert [] == [page for page in there if page not in tests]


# Python -----------------------------------------------------------------------------------------


def is_run_here(block: Block) -> bool:
    return block.language == 'python' and not block.said.startswith(MARKS[:2])


@pytest.mark.parametrize(
    'page', [page for page in PAGES if any(map(is_run_here, pages.blocks(page)))], ids=lambda page: page.name
)
def test_the_python_of_a_page_runs(page, monkeypatch, tmp_path):
    """Its blocks follow each other in one module, whose app has settings and entries that can be meant."""
    monkeypatch.chdir(tmp_path)
    module = pages.project(monkeypatch)
    printed = ''
    for block in pages.blocks(page):
        if is_run_here(block):
            exec(block.told('with: ') or '', vars(module))
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, block.place, 'exec'), vars(module))
            printed = out.getvalue()
        elif printed:
            assert (block.language, block.text) == ('', printed), block.place
            printed = ''
    assert printed == '', f'{page.name} does not show what it prints'
    _, refused = planned_jobs(module.app, Config.of(module.app))
    assert [] == refused


# what is typed ----------------------------------------------------------------------------------


def options_of(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def check_celery(words: list[str]) -> None:
    """Raise if Celery, or we, have no such command or option."""
    assert words[0] == '-A' and words[1].isidentifier(), 'an app comes first: -A proj'
    name, *rest = words[2:]
    if name == 'anarchon':
        command = anarchon.commands[rest[0]]
        command.make_context(rest[0], rest[1:])
    else:
        given = {word.partition('=')[0] for word in rest if word.startswith('-')}
        assert given <= options_of({'beat': beat, 'worker': worker}[name]) | {'-l'}


def check(command: str) -> None:
    """Raise if what is typed does not exist."""
    program, *words = shlex.split(command, comments=True)
    if program == 'celery':
        check_celery(words)
    elif program == 'make':
        assert all(re.search(rf'^{word}:', MAKEFILE, re.M) for word in words)
    elif program == 'pip':
        assert words[0] == 'install'
        assert all(f'{extra} = [' in PYPROJECT for extra in re.findall(r'\[([\w-]+)\]', ' '.join(words)))
    elif program == 'python':
        assert words[0] == '-m' and find_spec(words[1])
    else:
        assert program in SHELL, f'{program}: say above the block why it is not run'


README = pages.blocks(ROOT / 'README.md')


@pytest.mark.parametrize(
    'block', [it for it in (*ALL, *README) if it.language == 'console' and not it.told('not run:')], ids=ids
)
def test_what_is_typed_exists(block):
    assert block.commands
    for command in block.commands:
        if 'COMMAND' not in command:
            check(command)


@pytest.fixture
def desk():
    """The command line of a project with a job `report`, of which the store has heard."""
    desk = Desk(beat_schedule={'report': {'task': 'proj.report', 'schedule': 300}})
    desk.store.register(Node(id='i', name='host:1', app='proj'), [Registration(job='report', hash='h')])
    return desk


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_our_commands_on_a_page_run(page, desk):
    for block in pages.blocks(page):
        for command in block.commands:
            words = shlex.split(command, comments=True)
            if 'anarchon' in words[:4] and 'COMMAND' not in words and not block.told('not run:'):
                done = desk.run(*words[4:])
                assert done.exit_code == 0 or words[4] == 'doctor', done.output


@pytest.mark.parametrize(
    'wrong',
    [
        'celery -A proj anarchon no-such', 'celery -A proj anarchon runs --no-such',
        'celery anarchon runs', 'celery -A proj anarchon runs --state no-such',
        'celery -A proj anarchon next', 'celery -A proj beat --no-such', 'celery -A proj no-such',
        'make no-such', "pip install 'anarchon-celery[no-such]'", 'python -m no_such', 'no-such',
    ],
)  # fmt: skip
def test_what_does_not_exist_is_found(wrong):
    with pytest.raises((AssertionError, KeyError, click.ClickException)):
        check(wrong)


# what is shown ----------------------------------------------------------------------------------


def lines_of_events() -> list[str]:
    """What matches each line of the log that there is."""
    lines = [vars(it)['line'] for it in vars(events).values() if isinstance(it, type) and 'line' in vars(it)]
    known = [re.sub(r'\\\{it\\?\..*?\\\}', '.+', re.escape(line)) for line in lines if isinstance(line, str)]
    return [line for line in known if line != '.+']


LINES = lines_of_events()


def is_shown_by_python(block: Block) -> bool:
    """Whether it stands right after a block of Python, which is run and prints it."""
    of_page = pages.blocks(ROOT / block.place.partition(':')[0])
    before = of_page[of_page.index(block) - 1] if of_page.index(block) else None
    return before is not None and is_run_here(before)


SHOWN = [it for it in (*ALL, *README) if it.language == '' and not it.said and not is_shown_by_python(it)]


@pytest.mark.parametrize('block', SHOWN, ids=ids)
def test_what_is_shown_are_lines_of_the_log(block):
    assert len(LINES) > 20
    for line in block.text.splitlines():
        assert line.startswith('[anarchon] '), f'{block.place}: say above the block why it is not run'
        assert any(re.fullmatch(known, line.removeprefix('[anarchon] ')) for known in LINES), line


def test_every_other_language_is_run_elsewhere():
    known = ('python', 'console', '')
    assert [] == [it.place for it in ALL if it.language not in known and not it.said.startswith(MARKS[:2])]


def examples() -> list[str]:
    """What `make test ARGS=…` is shown with."""
    text = MAKEFILE + (ROOT / 'CONTRIBUTING.md').read_text() + ''.join(path.read_text() for path in PAGES)
    shown = re.findall(r"make test ARGS=(\"[^\"]*\"|'[^']*'|[^\s`]+)", text)
    return [shlex.split(words)[0] for words in shown]


def test_there_are_examples_of_some_tests():
    assert 4 == len(examples())


@pytest.mark.parametrize('words', examples())
def test_an_example_of_some_tests_has_some(words):
    options = ['--collect-only', '-q', '-p', 'no:cacheprovider']
    command = [sys.executable, '-m', 'pytest', *options, *shlex.split(words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout[-1000:]


def test_who_has_a_clone_is_told_how_extras_are_installed_as_long_as_there_is_no_release():
    for path in (ROOT / 'README.md', *sorted(DOCS.glob('*.md'))):
        text = path.read_text()
        for extra in re.findall(r"\$ pip install 'anarchon-celery(\[[^]]+\])'", text):
            assert f"from a clone it is `pip install '.{extra}'`" in text, (path.name, extra)
    for name in ('README.md', 'docs/quick-start.md', 'docs/stores.md'):
        assert "`pip install '.[postgresql]'`" in (ROOT / name).read_text()

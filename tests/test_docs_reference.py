"""Nothing that users meet is undocumented: settings, commands, options, names, log lines, metrics."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from inspect import getmembers, isclass, isfunction

import pytest

import anarchon_celery
from anarchon_celery import durations, events, fencing
from anarchon_celery.cli import anarchon
from anarchon_celery.config import OPTIONS, SETTINGS, Config, Policy
from anarchon_celery.protocol import ACTIVE, BUFFERED, ENDED
from tests import pages
from tests.pages import DOCS

PAGE = (DOCS / 'settings.md').read_text()
FOR_ALL = pages.table(PAGE, 'setting', 'default', 'what it is')
FOR_EACH = pages.table(PAGE, 'setting', 'in an entry', 'default', 'what it is')


# settings ---------------------------------------------------------------------------------------


def name_of(cell: str) -> str:
    return cell.strip('`').removeprefix('anarchon_')


def test_all_settings_are_on_the_page_and_no_others():
    told = [name_of(row[0]) for row in (*FOR_ALL, *FOR_EACH) if row[0] != '–']
    assert len(told) == len({*told})
    assert SETTINGS.keys() == {*told}


def test_what_a_job_may_say_is_on_the_page():
    assert sorted(OPTIONS) == sorted(name_of(row[1]) for row in FOR_EACH)
    assert all(row[0] in ('–', f'`anarchon_{name_of(row[1])}`') for row in FOR_EACH)


def default(text: str):
    """What a cell of the defaults means."""
    if text.startswith('`'):
        return ast.literal_eval(text.strip('`'))
    return None if text == 'none' else durations.milliseconds(text.replace(' min', 'm').replace(' ', ''))


IN_WORDS = {'metrics', 'store', 'node', 'heartbeat', 'max_runtime', 'supervised', 'max_crashes'}


DEFAULTS = [(name_of(row[0]), row[1]) for row in FOR_ALL]
DEFAULTS += [(name_of(row[1]), row[2]) for row in FOR_EACH]


@pytest.mark.parametrize(('name', 'text'), DEFAULTS)
def test_defaults_are_as_the_page_says(name, text):
    actual = Config(store='memory://')
    within = actual.policy if name in OPTIONS else actual
    value = getattr(within, {'node': 'node_name'}.get(name, name))
    if name not in IN_WORDS:
        assert default(text) == value
    elif name == 'heartbeat':
        assert ('a third of the lease', Policy().lease) == (text, 3 * value)
    elif name == 'max_crashes':
        assert text == str(value)
    elif name != 'store':
        assert not value


# commands ---------------------------------------------------------------------------------------

COMMANDS = (DOCS / 'commands.md').read_text()


@pytest.mark.parametrize('name', sorted(anarchon.commands))
def test_each_option_is_on_the_page(name):
    assert f'`{name}' in COMMANDS
    told = {*re.findall(r'(?<![\w-])--?[a-z][a-z-]*', COMMANDS)}
    for parameter in anarchon.commands[name].params:
        assert parameter.param_type_name == 'argument' or told & {*parameter.opts}, parameter.opts


def test_the_states_of_a_run_are_explained():
    page = (DOCS / 'how-it-works.md').read_text()
    assert [] == [state for state in sorted(ACTIVE | ENDED | {BUFFERED}) if f'`{state}`' not in page]


# Python -----------------------------------------------------------------------------------------

API = (DOCS / 'api.md').read_text()


def documented(module: str) -> list[str]:
    return re.findall(rf'^\.\. auto\w+:: {re.escape(module)}\.(\w+)$', API, re.M)


def public(module) -> list[str]:
    """What a module offers: what it says, else the classes and functions that are its own."""
    if hasattr(module, '__all__'):
        return sorted(module.__all__)
    own = getmembers(module, lambda it: (isclass(it) or isfunction(it)) and it.__module__ == module.__name__)
    return [name for name, _ in own if not name.startswith('_')]


def test_all_public_names_are_in_the_reference():
    assert public(anarchon_celery) == sorted(documented('anarchon_celery'))
    assert public(fencing) == sorted(documented('anarchon_celery.fencing'))


@pytest.mark.parametrize('name', ['signals', 'testing'])
def test_all_names_of_optional_modules_are_on_their_pages(name):
    module = import_module(f'anarchon_celery.{name}')
    names = public(module)
    if name == 'signals':
        names = [one for one, value in vars(module).items() if type(value).__name__ == 'Signal']
    page = (DOCS / f'{name}.md').read_text() + API
    assert names
    assert [] == [one for one in names if not re.search(rf'\b{one}\b', page)]


# what nodes say ---------------------------------------------------------------------------------


def test_each_happening_is_on_the_page_of_the_log():
    kinds = [it for it in vars(events).values() if isclass(it) and 'line' in vars(it)]
    page = (DOCS / 'log.md').read_text()
    assert [] == [it.__name__ for it in kinds if f'`{it.signal.name}`' not in page]


def test_each_metric_is_on_the_page_of_metrics():
    metrics = import_module('anarchon_celery.measures').METRICS
    rows = pages.table((DOCS / 'metrics.md').read_text(), 'metric', 'labels', '')
    assert sorted(metrics) == sorted(row[0].strip('`') for row in rows)

"""The quick starts of README.md and docs/quick-start.md run as written, with the installed package."""

import os
import re
import signal
import subprocess
import venv
from pathlib import Path

import pytest
from celery import Celery

from anarchon_celery.config import Config
from tests import pages
from tests.processes import wait_until

ROOT = Path(__file__).parents[1]


README, PAGE = ROOT / 'README.md', ROOT / 'docs' / 'quick-start.md'


def blocks(section, language, page=README):
    """The blocks of one section in one language."""
    found = pages.blocks(page)
    wanted = [block for block in found if (block.section, block.language) == (section, language)]
    assert wanted, f'{section!r} has no block in {language!r}: {sorted({it.section for it in found})}'
    return wanted


def commands(section, page=README):
    return [command for block in blocks(section, 'console', page) for command in block.commands]


def shell(folder):
    """What differs in a shell where the environment of this folder of commands is active."""
    dropped = ('PYTHONPATH', 'PYTHONHOME', 'REDIS_URL', 'DJANGO_SETTINGS_MODULE')
    path = os.pathsep.join((str(folder), os.environ.get('PATH', os.defpath)))
    return {**dict.fromkeys(dropped), 'PATH': path, 'PIP_DISABLE_PIP_VERSION_CHECK': '1'}


@pytest.fixture(scope='module')
def active(tmp_path_factory):
    """Install as the README says, into an empty environment; return what its shell has set."""
    folder = tmp_path_factory.mktemp('environment')
    venv.create(folder, with_pip=True)
    active = shell(folder / 'bin')
    env = {name: value for name, value in {**os.environ, **active}.items() if value is not None}
    for command in commands('Install'):
        done = subprocess.run(command, shell=True, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return active


@pytest.fixture
def type_in(processes, active):
    """Type a command into a terminal of its own, and go on."""

    def type_in(command, folder, name=None):
        name = name or f'terminal-{len(processes.all) + 1}'
        return processes.start('/bin/sh', '-c', f'exec {command}', cwd=folder, env=active, name=name)

    return type_in


def as_pattern(line):
    """What matches a line of the log that the README shows, whenever and wherever it was written."""
    pattern = re.escape(line)
    for shown, any_such in (
        (r'2026\S+?Z', r'\S+Z'),
        (r'my\\-laptop:\d+', r'\S+:\d+'),
        (r'\d+\\ ms', r'\d+ ms'),
        (r'on\\ \w@', r'on \w@'),
        (r'(?<=attempt\\ )\d', r'\d'),
    ):
        pattern = re.sub(shown, lambda _, it=any_such: it, pattern)
    return pattern


@pytest.mark.parametrize('command', commands('Two commands'))
def test_make_knows_both(command):
    done = subprocess.run(f'{command} -n', shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {'make demo': 'example_project.demo', 'make test': 'pytest'}[command] in done.stdout


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_existing_project(type_in, redis_url, tmp_path):
    section = 'Quick start for an existing project'
    code = next(block.text for block in blocks(section, 'python') if block.text.startswith('# proj.py'))
    there = 'redis://localhost:6379/0'
    assert there in code
    (tmp_path / 'proj.py').write_text(code.replace(there, redis_url))

    start, look = (block.commands for block in blocks(section, 'console'))
    worker, beat = start
    works = type_in(worker, tmp_path)
    beats = [type_in(beat, tmp_path) for _ in range(2)]
    started = works.wait_for(r'\[anarchon\] report @ (\S+): started on \S+ \(attempt 1, ', 60)
    for each in beats:
        each.wait_for(r'\[anarchon\] started as \S+:\d+ \(store redis://', 60)
    assert 1 == sum(f'report @ {started[1]}: dispatched by' in each.output for each in beats)
    shown = []
    for command in look:
        terminal = type_in(command, tmp_path)
        assert terminal.wait(60) == 0, terminal.tail()
        shown.append(terminal.output)
    status, table, as_json, jobs, coming, paused, goes_on, asked_for, well = shown
    assert 'running' in status
    assert started[1] in table
    assert '"state": "running"' in as_json
    assert 'every 30s' in jobs
    assert 5 == len(re.findall(r'^\S+Z  ', coming, re.MULTILINE))
    assert paused.startswith('report is paused: the disk is full (by ')
    assert goes_on.startswith('report goes on; it was paused: the disk is full (by ')
    # On a slow machine the run has ended by now.
    then = '(waits for the runs of its job .*|dispatched at the next poll of a beat)'
    assert re.fullmatch(rf'report @ \S+Z \(manual\): {then}\n', asked_for)
    assert well == 'nothing is wrong\n'
    # A deploy: the run is handed over, and nobody is there to take it.
    assert works.stop(30) == 0
    assert 'handed over to another instance' in works.output


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_terminals(type_in, processes, tmp_path):
    assert commands('1. Install', PAGE) == commands('Install')  # which `active` did
    make, into = commands('2. Write the project', PAGE)
    folder = tmp_path / into.removeprefix('cd ')
    assert f'mkdir {folder.name}' == make
    folder.mkdir()
    (code,) = blocks('2. Write the project', 'python', PAGE)
    (folder / 'quick_start.py').write_text(code.text)
    nodes, (kill,) = commands('3. Run three nodes', PAGE), commands('5. Kill the one that runs it', PAGE)
    terminals = {name: type_in(node, folder, name) for name, node in zip('abc', nodes, strict=True)}
    for terminal in terminals.values():
        terminal.wait_for(r'\[anarchon\] started as ', 60)

    def runner(attempt, slot=r'\S+Z'):
        """The terminal where report starts, once it does: its name, its process, the slot."""
        line = re.compile(rf'report @ ({slot}): started on (\w)@\S+:(\d+) \(attempt {attempt}, ')
        found = wait_until(lambda: line.search(everything(terminals)), 60, why=said)
        return found[2], found[3], found[1]

    def said():
        return '\n'.join(terminal.tail(15) for terminal in terminals.values())

    first, _, slot = runner(1)
    # Ctrl-C goes to all that runs in a terminal.
    terminals[first].signal(signal.SIGINT, group=True)
    second, pid, _ = runner(2, slot)
    assert first != second
    terminals[first].wait(30)  # with Celery's status for Ctrl-C, which is 1

    assert '41907' in kill
    type_in(kill.replace('41907', pid), folder, 'fourth')
    assert terminals[second].wait() == -signal.SIGKILL
    wait_until(lambda: not terminals[second].group, why=lambda: 'its beat ends too, as the notes say')
    third, _, _ = runner(3, slot)
    assert {'a', 'b', 'c'} == {first, second, third}
    # It may all have come between two slots: then one that waits for nobody has yet to be skipped as taken.
    terminals['again'] = type_in(nodes['abc'.index(first)], folder, 'again')

    for look in commands('What just happened', PAGE):
        terminal = type_in(look, folder)
        assert terminal.wait(60) == 0, terminal.tail()
        assert 'report' in terminal.output

    stopped = blocks('4. Stop the one that runs `report`', '', PAGE)
    for block in (*blocks('3. Run three nodes', '', PAGE), *stopped):
        for line in block.text.splitlines():
            shown = as_pattern(line)
            assert wait_until(lambda shown=shown: re.search(shown, everything(terminals)), 30, why=said)
    assert 'Traceback' not in everything(terminals)


@pytest.mark.parametrize('language', ['console', ''])
def test_the_readme_tells_the_same_story(language):
    """What it shows is on the page, which is what is run; its own file is played by the demo."""
    page = {block.text for block in pages.blocks(PAGE)}
    readme = blocks('See it, with three terminals', language)
    assert {it.text.removeprefix('$ cd example_project\n') for it in readme} <= page


@pytest.mark.parametrize(
    ('block', 'store'),
    [*zip(blocks('Switch to a real store', 'python', PAGE), ('redis://', 'postgresql://'), strict=True)],
)
def test_one_line_switches_to_a_real_store(block, store):
    app = Celery('quick_start')
    exec(block.text, {'app': app})
    assert Config.of(app).store.startswith(store)


def everything(terminals):
    return ''.join(terminal.output for terminal in terminals.values())


def test_the_settings_for_django_are_settings():
    section = 'Quick start for an existing project'
    code = next(block.text for block in blocks(section, 'python') if block.text.startswith('# settings.py'))
    settings = {}
    exec(code, settings)
    app = Celery('shop')
    settings = {key: value for key, value in settings.items() if key.isupper()}
    app.config_from_object(settings, namespace='CELERY')
    assert app.conf.beat_scheduler == 'anarchon_celery.Scheduler'
    config = Config.of(app)
    assert (config.store, config.policy.lease) == ('redis://localhost:6379/1', 30_000)

"""The wheel builds, installs into an empty environment and starts there."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ELSEWHERE = {'PYTHONPATH': None, 'PYTHONHOME': None}  # the tree must not stand in for the wheel
APP = """\
from celery import Celery

app = Celery('app', broker='filesystem://')
app.conf.broker_transport_options = dict.fromkeys(
    ['data_folder_in', 'data_folder_out', 'control_folder'], 'broker')
app.conf.anarchon_store = 'sqlite:///jobs.db'
app.conf.beat_schedule = {'sync': {'task': 'app.sync', 'schedule': 10}}


@app.task
def sync():
    pass
"""


def run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.fixture(scope='module')
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp('dist')
    run(sys.executable, '-m', 'build', '--wheel', '--no-isolation', '--outdir', folder)
    (built,) = folder.glob('anarchon_celery-*.whl')
    return built


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory) -> Path:
    """The folder of the commands of an environment with nothing but the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp('empty')
    venv.create(folder)
    # By this environment's pip: to install one more takes as long. No bytecode of what is never imported.
    pip = [sys.executable, '-m', 'pip', '--python', folder / 'bin' / 'python', '--disable-pip-version-check']
    run(*pip, 'install', '--quiet', '--no-compile', wheel)
    return folder / 'bin'


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / 'app.py').write_text(APP)
    (tmp_path / 'broker').mkdir()
    return tmp_path


def test_the_wheel_has_what_is_not_python_too(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    scripts = {str(path.relative_to(ROOT)) for path in ROOT.glob('anarchon_celery/stores/lua/*.lua')}
    assert scripts
    django = ROOT / 'anarchon_celery' / 'django'
    pages = {str(path.relative_to(ROOT)) for path in django.rglob('*.*') if path.suffix in ('.html', '.css')}
    assert pages
    assert names >= scripts | pages | {'anarchon_celery/py.typed'}
    assert not [name for name in names if not name.startswith('anarchon_celery')]


def test_the_commands_are_there(installed, processes, project):
    shown = processes.start(installed / 'celery', '-A', 'app', 'anarchon', '--help', env=ELSEWHERE)
    assert 0 == shown.wait(), shown.tail()
    assert 'status' in shown.output


def test_beat_starts(installed, processes, project):
    words = [installed / 'celery', '-A', 'app', 'beat', '-S', 'anarchon', '-l', 'info']
    beat = processes.start(*words, env=ELSEWHERE)
    beat.wait_for(r'\[anarchon\] started as \S+:\d+ \(store sqlite:///\S*jobs\.db, \d+ jobs?, lease 30 s\)')
    assert 0 == beat.stop(), beat.tail()


def test_the_package_is_the_installed_one(installed, processes, project):
    asked = processes.start(
        installed / 'python', '-c', 'import anarchon_celery as it; print(it.__file__)', env=ELSEWHERE
    )
    assert 0 == asked.wait(), asked.tail()
    assert Path(asked.output.strip()).is_relative_to(installed.parent)

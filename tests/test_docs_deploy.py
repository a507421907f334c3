"""What is copied from docs/systemd.md, kubernetes.md, postgresql.md, mariadb.md works; so does a move."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from celery import Celery

from anarchon_celery.config import Config
from anarchon_celery.protocol import Node, Registration, Request
from anarchon_celery.slots import iso
from tests import pages
from tests.pages import DOCS
from tests.stage import T, clock, stage  # noqa: F401 - fixtures
from tests.test_docs_blocks import check

# systemd ----------------------------------------------------------------------------------------

#: The units by the names that their first lines say.
UNITS = {
    block.text.splitlines()[0].rpartition('/')[2]: block.text
    for block in pages.blocks(DOCS / 'systemd.md')
    if block.language == 'ini'
}


def test_the_units():
    assert {'shop-beat.service', 'shop-worker.service'} == UNITS.keys()
    for text in UNITS.values():
        unit = ConfigParser(interpolation=None)
        unit.optionxform = str
        unit.read_string(text)
        assert ['Unit', 'Service', 'Install'] == unit.sections()
        service = unit['Service']
        assert ('mixed', 'always') == (service['KillMode'], service['Restart'])
        python, _, rest = service['ExecStart'].partition('/bin/')
        assert f'{service["WorkingDirectory"]}/venv' == python
        check(rest.replace('%%', '%'))


@pytest.mark.skipif(not shutil.which('systemd-analyze'), reason='systemd-analyze is not installed')
def test_systemd_takes_the_units(tmp_path):
    celery = Path(sys.executable).with_name('celery')
    for name, text in UNITS.items():
        (tmp_path / name).write_text(
            text.replace('/srv/shop/venv/bin/celery', str(celery)).replace('/srv/shop', str(tmp_path))
        )
    words = ['systemd-analyze', 'verify', '--man=no', *(tmp_path / name for name in UNITS)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (0, '') == (done.returncode, done.stderr)


# Kubernetes -------------------------------------------------------------------------------------


@pytest.fixture
def objects():
    """What the manifest has, by kind and name."""
    (text,) = [it.text for it in pages.blocks(DOCS / 'kubernetes.md') if it.language == 'yaml']
    found = list(yaml.safe_load_all(text))
    assert all({'apiVersion', 'kind', 'metadata'} < one.keys() for one in found)
    return {(one['kind'], one['metadata']['name']): one for one in found}


def test_the_manifest(objects):
    for name in ('shop-beat', 'shop-worker'):
        spec = objects['Deployment', name]['spec']
        pod = spec['template']
        assert spec['selector']['matchLabels'] == pod['metadata']['labels'] == {'app': name}
        assert spec['replicas'] >= 2
        (container,) = pod['spec']['containers']
        check(' '.join(container['command']))
        assert [{'configMapRef': {'name': 'shop'}}] == container['envFrom']
        for probe in (container['readinessProbe'], container['livenessProbe']):
            command = probe['exec']['command']
            check(' '.join(command))
            assert f'--{name.removeprefix("shop-")}' == command[-1]
            assert 1 < probe['timeoutSeconds'] < probe['periodSeconds']
        assert '--live' in container['livenessProbe']['exec']['command']
        assert '--live' not in container['readinessProbe']['exec']['command']
    budget = objects['PodDisruptionBudget', 'shop-beat']['spec']
    assert budget['selector'] == objects['Deployment', 'shop-beat']['spec']['selector']
    assert budget['minAvailable'] < objects['Deployment', 'shop-beat']['spec']['replicas']


def test_what_the_manifest_sets_is_heard(objects, monkeypatch):
    for name, value in objects['ConfigMap', 'shop']['data'].items():
        monkeypatch.setenv(name, value)
    app = Celery('shop', set_as_current=False)
    assert 'redis://redis:6379/0' == app.conf.broker_url == Config.of(app).store


# databases --------------------------------------------------------------------------------------


def set_up(page: str, administrator, port: int, monkeypatch) -> None:
    """Do what the page says, then use the store as a node does."""
    found = pages.blocks(DOCS / page)
    (statements,) = [block.text for block in found if block.language == 'sql']
    for statement in filter(str.strip, statements.split(';')):
        administrator(statement)
    module = pages.project(monkeypatch)
    exec(next(block.text for block in found if block.language == 'python'), vars(module))
    url = re.sub(r'localhost:\d+', f'127.0.0.1:{port}', module.app.conf.anarchon_store)
    module.app.conf.anarchon_store = url
    store = Config.of(module.app).open_store()
    node = Node(id='n', name='host:1')
    try:
        store.register(node, [Registration(job='report', hash='h')])
        assert ['report'] == [job.name for job in store.jobs()]
    finally:
        store.close()


def test_setting_up_postgresql(postgresql_server, monkeypatch):
    with postgresql_server.connect('postgres') as connection:
        connection.autocommit = True
        try:
            set_up('postgresql.md', connection.execute, postgresql_server.port, monkeypatch)
        finally:
            connection.execute('DROP DATABASE IF EXISTS jobs WITH (FORCE)')
            connection.execute('DROP ROLE IF EXISTS anarchon')


def test_setting_up_mariadb(mariadb_server, monkeypatch):
    try:
        set_up('mariadb.md', mariadb_server.run, mariadb_server.port, monkeypatch)
    finally:
        mariadb_server.run('DROP DATABASE IF EXISTS jobs')
        mariadb_server.run("DROP USER IF EXISTS 'anarchon'@'%'")


# from another beat ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('first_catch_up', 'at_once', 'in_the_gap'),
    [
        (0, [], [T + 60_000]),  # as docs/from-celery-beat.md says
        (60, [T + 60_000], []),  # by default: here right, but 30 s later it would be sent twice
    ],
)
def test_a_switch_from_another_beat_loses_and_doubles_nothing(stage, first_catch_up, at_once, in_the_gap):  # noqa: F811
    """The old beat sent the slot of T, and was stopped 50 s later; the new one begins 20 s after that."""
    stage.clock.ms = 70_000
    entry = {'task': 'proj.sync', 'schedule': 60, 'options': {'anarchon': {'overlap': 'allow'}}}
    beat = stage.beat({'sync': entry}, anarchon_first_catch_up=first_catch_up)
    stage.run(beat, 1_000)
    assert [iso(slot) for slot in at_once] == stage.slots()
    if in_the_gap:
        stage.store.backfill(Request(job='sync', by='anna'), in_the_gap, nonce='n')
    stage.run(beat, 60_000)
    assert [iso(slot) for slot in (*in_the_gap, T + 120_000)] == stage.slots()


def test_by_default_a_slot_that_the_other_beat_sent_may_be_doubled(stage):  # noqa: F811
    stage.clock.ms = 20_000
    beat = stage.beat({'sync': {'task': 'proj.sync', 'schedule': 60}})
    stage.run(beat, 1_000)
    assert [iso(T)] == stage.slots()

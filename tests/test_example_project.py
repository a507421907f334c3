"""The Django project is what it says: it runs with no server, and by one setting on Redis."""

import shutil
import sqlite3
from contextlib import closing
from email import message_from_bytes
from pathlib import Path

import pytest

from anarchon_celery.stores import open_store
from tests.processes import wait_until

pytest.importorskip('django')

EXAMPLE = Path(__file__).parents[1] / 'example_project'
# The same jobs, all of them every 2 seconds.
HASTY = """\
from shop.settings import *
CELERY_BEAT_SCHEDULE = {
    name: {**entry, 'schedule': '2s'} for name, entry in CELERY_BEAT_SCHEDULE.items()
}
"""
# How their runs end; what is published is not watched afterwards.
ENDS = {
    ('send-due-invoices', 'succeeded'),
    ('sync-exchange-rates', 'succeeded'),
    ('nightly-report', 'succeeded'),
    ('clear-expired-sessions', 'published'),
}
OWN = {'DJANGO_SETTINGS_MODULE': None, 'REDIS_URL': None}


@pytest.fixture
def project(tmp_path, processes):
    """A copy of the project, with its tables."""
    folder = tmp_path / 'project'
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns('var', 'broker', '__pycache__', '*.db*'))
    (folder / 'hasty.py').write_text(HASTY)
    manage(processes, folder, 'migrate', '--verbosity', '0')
    return folder


def manage(processes, folder, *words):
    """Run ``manage.py``, which has to succeed; return its output."""
    done = processes.python('manage.py', *words, cwd=folder, env=OWN, name=f'manage-{len(processes.all)}')
    assert done.wait(60) == 0, done.tail()
    return done.output


def rows(folder, query):
    with closing(sqlite3.connect(folder / 'var' / 'shop.sqlite3', timeout=20)) as connection:
        return connection.execute(query).fetchall()


def test_django_finds_nothing_wrong(project, processes):
    assert 'no issues' in manage(processes, project, 'check')
    assert 'No changes' in manage(processes, project, 'makemigrations', '--check', '--dry-run')


@pytest.mark.cluster
@pytest.mark.timeout(180)
@pytest.mark.parametrize('where', ['no server', 'redis'])
def test_beat_and_worker_run_its_jobs(where, project, processes, request):
    url = request.getfixturevalue('redis_url') if where == 'redis' else None
    manage(processes, project, 'sample_data')
    how = {'cwd': project, 'env': {'DJANGO_SETTINGS_MODULE': 'hasty', 'REDIS_URL': url}}
    # No scheduler is named: the setting is Django's.
    nodes = [
        processes.celery('-A', 'shop', 'worker', '-P', 'threads', '-l', 'info', name='worker', **how),
        processes.celery('-A', 'shop', 'beat', '-l', 'info', name='beat-1', **how),
        processes.celery('-A', 'shop', 'beat', '-l', 'info', name='beat-2', **how),
    ]
    for beat in nodes[1:]:
        beat.wait_for(r'\[anarchon\] started as \S+:\d+ \(store ', 40)

    with closing(open_store(url or f'sqlite:///{project / "var" / "anarchon.db"}', prefix='shop')) as store:

        def ended():
            scheduled = [run for run in store.runs(limit=1000) if run.trigger == 'scheduled']
            return {(run.job, run.state) for run in scheduled}

        wait_until(lambda: ENDS <= ended(), 60, why=lambda: str(ended()))
        wait_until(lambda: not rows(project, 'SELECT 1 FROM django_session'), 40)
        for node in nodes:
            assert node.stop(30) == 0, node.tail()
        runs = store.runs(limit=1000)

    assert [(1, 1)] == sorted({(run.attempt, run.dispatch) for run in runs if run.state == 'succeeded'})
    # Both invoices that were due were mailed, once; the third one waits.
    sent = rows(project, 'SELECT sent_at IS NOT NULL, fence > 0 FROM billing_invoice ORDER BY due')
    assert [(1, 1), (1, 1), (0, 0)] == sent
    mails = [message_from_bytes(path.read_bytes()) for path in (project / 'var' / 'mail').iterdir()]
    assert ['customer-1@example.com', 'customer-2@example.com'] == sorted(mail['To'] for mail in mails)
    assert [3] == [count for (count,) in rows(project, 'SELECT count(*) FROM billing_exchangerate')]
    # What is written has the fence of the last run that wrote it.
    last = max(run.fence for run in runs if run.job == 'sync-exchange-rates')
    assert [(last,)] * 3 == rows(project, 'SELECT fence FROM billing_exchangerate')
    assert [(0,)] == rows(project, 'SELECT invoices FROM office_dailyreport')  # nothing was sent yesterday
    stores = 'redis://' if url else 'sqlite:///'
    assert f'(store {stores}' in nodes[1].output


LATE = """
import sys
sys.path.insert(0, '.')
import django
django.setup()
from datetime import datetime, timezone
from anarchon_celery import StaleFence
from anarchon_celery.lease import Lease, held
from billing.models import ExchangeRate
from billing.tasks import sync_exchange_rates

def run(fence, hour):
    lease = Lease()
    lease.fence, lease.slot = fence, datetime(2026, 10, 10, hour, tzinfo=timezone.utc)
    with held(lease):
        sync_exchange_rates()

run(fence=8, hour=12)
try:
    run(fence=7, hour=11)
except StaleFence as refused:
    print(refused)
print(sorted({(rate.fence, rate.as_of.hour) for rate in ExchangeRate.objects.all()}))
"""


def test_a_late_run_does_not_overwrite_a_later_one(project, processes):
    env = {**OWN, 'DJANGO_SETTINGS_MODULE': 'shop.settings'}
    done = processes.python('-c', LATE, cwd=project, env=env)
    assert done.wait(60) == 0, done.tail()
    assert 'billing.ExchangeRate: written by a run with fence 8, so ' in done.output
    assert '[(8, 12)]' in done.output

"""Django: the ORM's connections are closed around leased tasks as around others, and are not ours to open."""

from __future__ import annotations

import inspect
import re

import pytest
from celery.fixups.django import DjangoWorkerFixup

from tests.processes import wait_until

pytest.importorskip("django")
pytestmark = pytest.mark.cluster

#: Newer versions of Celery close all of them; older ones keep those that CONN_MAX_AGE keeps.
KEEPS = "close_if_unusable_or_obsolete" in inspect.getsource(DjangoWorkerFixup)
CLOSED = "default" if KEEPS else "default,kept"

SETTINGS = """
DATABASES = {{
    alias: {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{folder}/" + name, "CONN_MAX_AGE": age}}
    for alias, name, age in (("default", "one.db", 0), ("kept", "two.db", 600))
}}
CELERY_BROKER_URL = {broker!r}
CELERY_BEAT_SCHEDULER = "anarchon_celery.Scheduler"
CELERY_ANARCHON_STORE = "sqlite:///{folder}/one.db"  # the file of Django's too: its connections are not
CELERY_ANARCHON_JITTER = 0
CELERY_BEAT_SCHEDULE = {{
    "job": {{"task": "proj.job", "schedule": 1, "options": {{"anarchon": {{"lease": 3, "heartbeat": 0.1}}}}}}
}}
"""

PROJECT = """
import os, threading
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from celery import Celery, shared_task
from celery.signals import task_prerun
from django.db import connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver
import anarchon_celery

app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")

def closed():
    return ",".join(alias for alias in connections if connections[alias].connection is None)

@task_prerun.connect  # before Celery's own, which closes them as well
def look(**_):
    print(f"left closed: {closed()}", flush=True)

@receiver(connection_created)
def opened(**_):
    print(f"opened by: {threading.current_thread().name}", flush=True)

@shared_task(name="proj.job", base=anarchon_celery.Task, bind=True)
def job(self):
    print(f"found closed: {closed()} in {threading.current_thread().name}", flush=True)
    for alias in connections:
        connections[alias].cursor().execute("SELECT 1")
    self.lease.wait(0.5)  # a few heartbeats
"""


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_connections_are_closed_around_a_run_and_opened_by_its_body_only(
    pool, tmp_path, processes, redis_server, redis_url
):
    (tmp_path / "settings.py").write_text(SETTINGS.format(folder=tmp_path, broker=redis_server.url(1)))
    (tmp_path / "proj.py").write_text(PROJECT)
    worker = processes.celery(
        "-A", "proj", "worker", "-B", "-P", pool, "-c", "1", "-l", "info", name="worker"
    )
    wait_until(lambda: worker.output.count("finished in") >= 2, 60, why=worker.tail)
    assert 0 == worker.stop(30)
    said = worker.output
    first, *later = re.findall(r"left closed: (\S+)", said)
    assert ("default,kept", {CLOSED}) == (first, set(later))
    (_, thread), *later = re.findall(r"found closed: (\S+) in (\S+)", said)
    assert {(CLOSED, thread)} == set(later)
    assert {thread} == set(re.findall(r"opened by: (\S+)", said)), "and by none of our threads"

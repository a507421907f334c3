"""What docs/security.md claims, claim by claim."""

from __future__ import annotations

import ast
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from celery import Celery

import anarchon_celery
from anarchon_celery.dispatch import BrokerDown, Publisher
from anarchon_celery.endpoints import endpoints
from anarchon_celery.errors import StoreUnusable
from anarchon_celery.protocol import (
    Node,
    Offer,
    Redispatch,
    Registration,
    Release,
    Request,
    RunKey,
    Sent,
    Stale,
    Start,
    Started,
)
from anarchon_celery.stores import open_store
from tests.servers import free_port
from tests.stage import T
from tests.test_cli import Desk
from tests.test_task import as_in_a_worker, log, make_stage, stage

PACKAGE = Path(anarchon_celery.__file__).parent

#: What would run what somebody else wrote.
RUNS_WHAT_IT_READS = {'pickle', 'marshal', 'shelve', 'dill', 'yaml', 'eval', 'exec', 'compile', '__import__'}

BEAT, RUN = Node(id='i', name='a:1'), RunKey('report', T)

EVIL = "x'; DROP TABLE anarchon_runs; --\"`${0}"


# What is read -----------------------------------------------------------------------------------


def named_by(node: ast.AST) -> list[str]:
    """The modules that this imports, or the function that it calls by its bare name."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or '']
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return [node.func.id]
    return []


def test_nothing_that_is_read_is_run():
    files = sorted(PACKAGE.rglob('*.py'))
    assert PACKAGE / 'headers.py' in files
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = {name.partition('.')[0] for name in named_by(node)}
            assert not RUNS_WHAT_IT_READS & names, f'{file}:{node.lineno}'


@pytest.mark.parametrize('line', ['import pickle', 'from marshal import loads', 'eval("1")', 'import yaml.x'])
def test_what_would_run_it_is_seen(line):
    found = [name for node in ast.walk(ast.parse(line)) for name in named_by(node)]
    assert RUNS_WHAT_IT_READS & {name.partition('.')[0] for name in found}


# Who writes the store ---------------------------------------------------------------------------


def test_who_writes_the_store_chooses_the_arguments_but_not_the_task(stage):
    key = stage.dispatch(args=('mine',))
    (sent,) = stage.messages()
    beat = stage.beats[0]
    asked = stage.store.trigger(Request(job='job', arguments='[["theirs"], null]', by='somebody'), nonce='n')
    assert asked.run is not None
    beat._poll_at = 0
    beat.tick()
    (message,) = stage.messages()
    assert sent.headers['task'] == message.headers['task'] == 'proj.job'
    assert ['theirs'] == list(message.decode()[0])
    assert key.job == message.headers['anarchon']['job']


def test_a_run_of_a_job_that_no_beat_has_is_sent_by_none(stage):
    stage.dispatch()
    stage.messages()
    stage.store.register(Node(id='i', name='x'), [Registration(job='theirs', hash='h')])
    stage.store.trigger(Request(job='theirs', by='somebody'), nonce='n')
    stage.beats[0]._poll_at = 0
    stage.beats[0].tick()
    assert [] == [one for one in stage.messages() if one.headers['anarchon']['job'] == 'theirs']


@pytest.fixture
def edited(tmp_path):
    """A store with a run that somebody holds, and a way to edit its tables by hand."""
    file = tmp_path / 'jobs.db'
    store = open_store(f'sqlite:///{file}')
    store.register(BEAT, [Registration(job='report', hash='h')], now=T)
    assert claim(store).won
    assert isinstance(start(store, 'first'), Started)

    def edit(statement: str) -> None:
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(statement)

    yield store, edit
    store.close()


def claim(store, nonce='n'):
    (claimed,) = store.claim('a:1', [Offer(job='report', slots=(T,))], nonce=nonce, now=T)
    return claimed.claims[0]


def start(store, token):
    return store.start(Start(key=RUN, token=token, worker='w', claimed_at=T), now=T + 1)


def test_who_moves_a_deadline_has_a_run_begun_twice_but_not_with_one_fence(edited):
    store, edit = edited
    first = store.run(RUN)
    edit(f'UPDATE anarchon_runs SET deadline = {T}')
    (run,) = store.expired(BEAT, 10, now=T + 1).runs
    asked = Redispatch(key=RUN, state='running', dispatch=1, deadline=run.deadline)
    assert store.redispatch('a:1', [asked], nonce='m', now=T + 1)[0].won
    assert start(store, 'second').fence > first.fence
    assert not store.finish(RUN, 'first', 'succeeded', now=T + 2)


def test_who_deletes_a_record_has_the_run_end_without_one(edited):
    store, edit = edited
    edit('DELETE FROM anarchon_runs')
    assert 'taken' == claim(store, 'another').answer
    assert isinstance(start(store, 'second'), Stale)
    assert not store.finish(RUN, 'first', 'succeeded', now=T + 2)
    assert [] == store.runs()


def test_who_changes_the_version_makes_all_wait(edited):
    store, edit = edited
    edit("UPDATE anarchon_meta SET value = '999' WHERE name = 'version'")
    for verb in (lambda: claim(store, 'another'), lambda: start(store, 'second'), lambda: store.runs()):
        with pytest.raises(StoreUnusable, match='999'):
            verb()


def test_a_text_of_the_length_of_a_file_is_read_whole(edited):
    store, edit = edited
    edit("UPDATE anarchon_runs SET reason = printf('%.*c', 1000000, 'x')")
    assert 1_000_000 == len(store.run(RUN).reason)


def test_what_is_due_is_asked_for_in_pages(stage):
    """However many somebody adds: the next page is another call."""
    asked = []
    stage.dispatch()
    beat = stage.beats[0]
    expired = beat.store.expired

    def noted(node, limit, **how):
        asked.append(limit)
        return expired(node, limit, **how)

    beat.store.expired = noted
    beat._poll_at = 0
    beat.tick()
    assert [200] == asked


# Who writes the queue ---------------------------------------------------------------------------


def forged(stage, **fields):
    """A message like beat's, with another header."""
    stage.dispatch()
    (message,) = stage.messages()
    message.headers['anarchon'].update(fields)
    return message


@pytest.mark.parametrize(
    'fields', [{'slot': '2100-01-01T00:00:00.000Z'}, {'job': 'theirs'}, {'kind': 'manual'}]
)
def test_a_forged_header_begins_no_run_that_the_store_does_not_know(stage, fields):
    ran = []

    @stage.task()
    def job(self):
        ran.append(self.lease.job)

    stage.execute(forged(stage, **fields))
    assert [] == ran
    assert ['queued'] == [run.state for run in stage.store.runs()]


def test_but_for_one_that_says_it_was_claimed_before_the_store_was_made(stage):
    """So that messages are run that a store has forgotten which was wiped."""
    ran = []

    @stage.task()
    def job(self):
        ran.append(self.lease.job)

    old = '2020-01-01T00:00:00.000Z'
    stage.execute(forged(stage, job='theirs', slot=old, claimed=old))
    assert ['theirs'] == ran


def test_a_forged_header_begins_no_run_that_is_over_and_takes_none_that_is_held(stage):
    ran = []

    @stage.task()
    def job(self):
        ran.append(self.lease.attempt)

    message = forged(stage)
    stage.execute(message)
    stage.execute(message)
    assert [1] == ran


def test_a_name_with_a_line_break_forges_no_line_of_the_log(stage, log):
    @stage.task()
    def job(self):
        pass

    stage.execute(forged(stage, job='x\n[anarchon] job @ 2026-10-10T12:00:30.000Z: succeeded'))
    lines = [record.getMessage() for record in log.records if record.name.startswith('anarchon')]
    assert lines
    assert all(1 == len(line.splitlines()) for line in lines), lines


# Names ------------------------------------------------------------------------------------------


@pytest.fixture(params=['sqlite', 'postgresql', 'mariadb', 'redis'])
def url(request, tmp_path):
    if request.param == 'sqlite':
        return f'sqlite:///{tmp_path}/jobs.db'
    if request.param == 'redis':
        return request.getfixturevalue('redis_url')
    server = request.getfixturevalue(f'{request.param}_server')
    server.empty('anarchon')
    return server.url()


def a_life(store, job: str) -> None:
    """All verbs that a job needs, from its first registration to its last row."""
    beat, key = Node(id='i', name='a:1'), RunKey(job, T)
    store.register(beat, [Registration(job=job, hash='h')], now=T)
    (claimed,) = store.claim('a:1', [Offer(job=job, slots=(T,))], nonce='n', now=T)
    assert claimed.claims[0].won
    store.sent([Sent(key=key, dispatch=1, task_id='t', supervised=True)], now=T)
    store.start(Start(key=key, token='t', worker='w'), now=T)
    store.release([Release(key=key, token='t')], now=T)
    store.expired(beat, 10, now=T + 1)
    store.pause(job, reason='r', by='b', now=T)
    store.resume(job, now=T)
    store.cancel(key, reason='r', now=T + 1)
    store.prune(history=0, most=0, now=T + 100_000)
    store.forget(job, now=T + 100_000)
    store.leave(beat, now=T + 100_000)


def test_a_name_is_a_name_and_no_command(url):
    with closing(open_store(url)) as store:
        a_life(store, EVIL)
        store.register(Node(id='i', name='a:1'), [Registration(job=EVIL, hash='h')], now=T)
        assert EVIL in [job.name for job in store.jobs()]
        assert [] == store.runs()


# The least rights in a database -----------------------------------------------------------------


def test_rows_are_all_that_a_user_of_postgresql_needs_once_the_tables_are_there(postgresql_server):
    server = postgresql_server
    server.empty('anarchon')
    with closing(open_store(server.url())) as store:
        store.jobs()
    if server.run("SELECT 1 FROM pg_roles WHERE rolname = 'least'"):
        server.run('DROP OWNED BY least')
        server.run('DROP ROLE least')
    server.run('CREATE ROLE least LOGIN')
    for name in ('meta', 'jobs', 'runs', 'nodes'):
        server.run(f'GRANT SELECT, INSERT, UPDATE, DELETE ON anarchon_{name} TO least')
    with closing(open_store(server.url().replace('://postgres@', '://least@'))) as store:
        a_life(store, 'report')


def test_rows_are_all_that_a_user_of_mariadb_needs_once_the_tables_are_there(mariadb_server):
    server = mariadb_server
    server.empty('anarchon')
    with closing(open_store(server.url())) as store:
        store.jobs()
    server.run("CREATE OR REPLACE USER least@'127.0.0.1' IDENTIFIED BY 'x'")
    server.run("GRANT SELECT, INSERT, UPDATE, DELETE ON test.* TO least@'127.0.0.1'")
    with closing(open_store(server.url().replace('//root@', '//least:x@'))) as store:
        a_life(store, 'report')


# Who has neither --------------------------------------------------------------------------------


def test_a_bare_port_is_this_hosts_alone():
    assert {'127.0.0.1'} == {one.host for one in endpoints(9808).values()}


@pytest.mark.parametrize('command', ['status', 'runs', 'jobs', 'doctor', 'health', 'prune'])
def test_no_command_shows_a_password(command):
    desk = Desk(anarchon_store=f'redis://somebody:secret@127.0.0.1:{free_port()}/0')
    desk.app.conf.broker_url = f'amqp://somebody:secret@127.0.0.1:{free_port()}//'
    try:
        result = desk.run(command)
    finally:
        desk.close()
    assert 'secret' not in result.output
    assert 0 != result.exit_code


@pytest.mark.parametrize(
    ('url', 'shown'),
    [
        ('redis://:secret@127.0.0.1:{port}/0', 'redis://:***@'),
        ('amqp://u:secret@127.0.0.1:{port}//', 'amqp://u:***@'),
        ('redis://:secret/s@127.0.0.1:{port}/0', '%2F'),  # its password is taken for a port
        ('redis://127.0.0.1:{port}/0?password=secret', 'cannot be read'),
    ],
)
def test_a_broker_that_does_not_answer_is_shown_without_its_password(url, shown):
    app = Celery('proj', broker=url.format(port=free_port()), set_as_current=False)
    with pytest.raises(BrokerDown, match=re.escape(shown)) as told:
        Publisher(app, patience=1).connected()
    assert 'secret' not in str(told.value)
    app.close()


def test_no_password_is_kept_in_the_store(stage, tmp_path):
    file = tmp_path / 'jobs.db'
    stage.app.conf.anarchon_store = f'sqlite:///{file}'
    stage.app.conf.result_backend = f'redis://somebody:secret@127.0.0.1:{free_port()}/0'

    @stage.task(ignore_result=True)  # else Celery waits for that backend as it publishes
    def job(self):
        pass

    stage.dispatch()
    kept = b''.join(each.read_bytes() for each in tmp_path.glob('jobs.db*'))
    assert b'proj' in kept
    assert b'secret' not in kept

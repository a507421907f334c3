"""Somebody steers a live cluster by the commands: a run for now, slots that were, an end; and sees it all."""

import json
import platform
import re
from datetime import datetime
from zoneinfo import ZoneInfo

import celery
import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

import anarchon_celery
from anarchon_celery import cli, cron
from anarchon_celery.protocol import RunKey
from anarchon_celery.slots import DAY, from_iso, iso
from tests.cluster.cluster import slot_of
from tests.processes import wait_until
from tests.test_cli import check_schema

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def job(task, schedule, *args, **policy):
    options = {'anarchon': {'jitter': 0, **policy}}
    return {'task': f'tests.cluster.app.{task}', 'schedule': schedule, 'args': args, 'options': options}


#: A heartbeat, in seconds (a third of the lease, where none is set): by itself ``long`` goes on for a minute.
HEARTBEAT = 1

JOBS = {
    'report': job('slow', '1d', 60),
    'long': job('slow', '1d', 60, heartbeat=HEARTBEAT, lease=30),
    'night': job('quick', {'cron': '30 * * * *'}, overlap='allow'),
    'tick': job('quick', '1s'),
}


@pytest.fixture
def cluster(file_cluster):
    return file_cluster(JOBS, anarchon_first_catch_up=0, timezone='Europe/Berlin')


@pytest.fixture
def ask(cluster):
    """Ask a command, as in another process with the same settings; its JSON is as the docs say."""
    app = Celery('tests.cluster.app', set_as_current=False)
    app.conf.update(cluster.conf)
    app.conf.beat_schedule = {**JOBS, 'night': {**JOBS['night'], 'schedule': cron('30 * * * *')}}

    def command(*words, status=0):
        asked.add(words[0])
        context = CLIContext(app=app, no_color=True, workdir=None)
        result = CliRunner().invoke(cli.anarchon, [*words, '--json'], obj=context)
        assert status == result.exit_code, result.output
        said = json.loads(result.stdout)
        check_schema(words[0], said)
        return said

    asked = set()
    command.app, command.asked = app, asked
    yield command
    app.close()


def run_of(cluster, said):
    """The run that a command told of, as it is now."""
    key = RunKey(said['job'], from_iso(said['slot']), said['kind'])
    return cluster.store.run(key)


def ends_as(cluster, said, state):
    return wait_until(
        lambda: run if (run := run_of(cluster, said)).state == state else None, 20,
        why=lambda: f'{run_of(cluster, said)}',
    )  # fmt: skip


def test_a_cluster_is_steered(cluster, ask):
    worker = cluster.worker('worker')
    beats = [cluster.beat(f'beat-{n}') for n in range(3)]
    for beat in beats:
        beat.wait_for(r'\[anarchon\] started as', 30)
    worker.wait_for(r'ready\.', 30)
    nodes = wait_until(lambda: four_nodes(ask), 30)
    assert [] == ask('doctor'), 'a healthy cluster'

    # A job is paused, and no beat dispatches what comes due after that, whichever looks first.
    cluster.run_where(lambda run: run.state == 'succeeded', 20, job='tick')
    paused_at = from_iso(ask('pause', 'tick', '--reason', 'deploy')['paused']['at'])
    cluster.run_where(lambda run: run.slot > paused_at + 1_000, 20, job='tick')
    later = [run for run in cluster.runs('tick') if run.slot > paused_at]
    assert {('skipped', 'paused')} == {(run.state, run.reason) for run in later}
    for beat in beats:  # by the next slot each has heard of it
        after = iso((paused_at // 1000 + 1) * 1000)
        beat.wait_for(rf'tick @ {after}: skipped \((paused|taken)\)')
        assert not re.search(rf'tick @ {after}: dispatched', beat.output)
    assert 'succeeded' == ends_as(cluster, ask('trigger', 'tick')['run'], 'succeeded').state

    # A paused job is run now all the same, with other arguments than its entry's.
    ask('pause', 'report', '--reason', 'deploy')
    said = ask('trigger', 'report', '--args', '[0.1]')
    assert ('released', 'manual') == (said['answer'], said['run']['kind'])
    run = ends_as(cluster, said['run'], 'succeeded')
    assert (1, 'manual') == (run.attempt, run.trigger)
    worker.wait_for(rf"report @ {said['run']['slot']}: started on \S+ \(attempt 1, manual\)")
    assert ['report', 'tick'] == [one['job'] for one in ask('status')['paused']]
    ask('resume', 'report')

    # Two slots that were, one after the other.
    today = int(cluster.now()) // DAY * DAY
    between = ['--from', iso(today - 2 * DAY), '--to', iso(today)]
    said = ask('backfill', 'report', *between, '--dry-run')
    assert [None, None] == [one['answer'] for one in said['slots']]
    said = ask('backfill', 'report', *between, '--yes', '--args', '[0.1]')
    assert ['released', 'buffered'] == [one['answer'] for one in said['slots']]
    first, second = (ends_as(cluster, one['run'], 'succeeded') for one in said['slots'])
    assert first.finished_at <= second.started_at

    # A day of 25 hours and one of 23, at once.
    for day, hours in (('2025-10-26', 25), ('2026-03-29', 23)):
        nights = [at['slot'] for at in ask('next', 'night', '-n', str(hours), '--from', day)]
        until = f'{day[:-2]}{int(day[-2:]) + 1}'
        said = ask('backfill', 'night', '--from', day, '--to', until, '--yes')
        assert nights == [one['slot'] for one in said['slots']]
        assert (f'{day}T00:30', f'{day}T23:30') == (local(nights[0]), local(nights[-1]))
        wait_until(lambda nights=nights: set(nights) <= {slot(line) for line in began(cluster, 'night')}, 20)

    # One that runs hears at its next heartbeat that it is to stop.
    said = ask('trigger', 'long')
    ends_as(cluster, said['run'], 'running')
    asked_at = cluster.now()
    assert 'asked to stop' == ask('cancel', 'long', said['run']['slot'])['answer']
    run = ends_as(cluster, said['run'], 'cancelled')
    assert run.finished_at - asked_at < 1000 * (HEARTBEAT + 4)  # four for a slow machine: else it is 10 s
    assert run.reason.startswith('cancelled by ')
    assert 'Cancelled' == cluster.history()[-1]['event']
    assert 'cancelled' == ask('cancel', 'long', said['run']['slot'])['answer']

    # Who sees the cluster.
    versions = (anarchon_celery.__version__, celery.__version__, platform.python_version())
    for node in nodes:
        told = node['app'], node['version'], node['celery'], node['python']
        assert ('tests.cluster.app', *versions) == told
        assert (True, False) == (node['alive'], node['other_schedule'])
        assert abs(node['clock_offset_ms']) < 1000
    assert {12} == {len(node['schedule']) for node in nodes if node['kind'] == 'beat'}
    assert (True, []) == ((well := ask('health', '--beat', '--worker'))['well'], well['wrong'])
    ask.app.conf.beat_schedule['odd'] = job('odd', '1h')
    found = {one['check']: one['finding'] for one in ask('doctor', status=1)}
    assert {'tasks', 'overdue'} == {*found}
    assert "none of the 1 workers that answer knows the task 'tests.cl" in found['tasks']
    assert 'odd is known to no beat: start those anew' in found['overdue']
    found = {run['kind']: run for run in ask('runs', '--job', 'report')}
    assert 0 <= found['manual']['late_ms'] < 10_000
    assert 100 <= found['manual']['took_ms'] < 10_000
    assert (None, run.asked_by) == (found['backfill']['late_ms'], found['backfill']['asked_by'])
    assert 3 == ask('forget', 'report', '--yes')['forgotten']
    assert [] == ask('runs', '--job', 'report')
    assert {'tick', 'odd'} <= {job['job'] for job in ask('jobs')}
    ask('prune')
    ask('upgrade', '--dry-run')
    assert set(cli.anarchon.commands) == ask.asked, 'each command has been asked'

    # Who stops leaves at once; who is killed does not, and is seen to be gone.
    beats[0].stop()
    beats[1].kill()
    worker.stop()
    names = {process.pid: process.name for process in (*beats, worker)}
    left = [names[int(node['node'].rpartition(':')[2])] for node in ask('status')['nodes']]
    assert ['beat-1', 'beat-2'] == sorted(left)


def four_nodes(ask):
    nodes = ask('status')['nodes']
    return nodes if len(nodes) == 4 and all(node['clock_offset_ms'] is not None for node in nodes) else None


def began(cluster, name):
    return [line for line in cluster.history('start') if line['job'] == name]


def slot(line):
    return iso(slot_of(line))


def local(at):
    """The time in Berlin, by the minute."""
    there = datetime.fromtimestamp(from_iso(at) / 1000, ZoneInfo('Europe/Berlin'))
    return there.isoformat()[:16]

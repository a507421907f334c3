"""What somebody may get wrong: one line each, the right exit status, and the other jobs go on."""

import json
import re

import pytest

from tests.servers import free_port

pytestmark = pytest.mark.cluster

TICK = {'tick': {'task': 'tests.cluster.app.quick', 'schedule': 1}}


def lines_of(process):
    """What it printed, without Celery's banner and root's warning."""
    return [line for line in process.output.splitlines() if 'anarchon' in line]


BAD_SETTINGS = {
    'unknown': ({'anarchon_leese': 5}, 'anarchon_leese=5: no such setting; did you mean anarchon_lease?'),
    'scheme': ({'anarchon_store': 'reddis://localhost'}, 'anarchon_store='),
    'lease': ({'anarchon_lease': 3, 'anarchon_heartbeat': 2}, 'a lease shorter than two heartbeats'),
    'overlap': ({'anarchon_overlap': 'skp'}, "did you mean 'skip'?"),
}


@pytest.mark.parametrize('name', BAD_SETTINGS)
@pytest.mark.parametrize('command', ['beat', 'worker', 'status'])
def test_a_bad_setting_stops_the_start_with_one_line(file_cluster, name, command):
    settings, said = BAD_SETTINGS[name]
    cluster = file_cluster(TICK, **settings)
    process = {'beat': cluster.beat, 'worker': cluster.worker, 'status': cluster.command}[command](command)
    assert (2 if command == 'status' else 1) == process.wait(30)
    assert 'Traceback' not in process.output
    assert 1 == len([line for line in lines_of(process) if said in line and 'anarchon_' in line])


def test_wrong_entries_are_reported_once_and_the_others_run(file_cluster):
    quick = 'tests.cluster.app.quick'
    schedule = {
        **TICK,
        'unreadable': {'task': quick, 'schedule': 'every full moon'},
        'cron': {'task': quick, 'schedule': '61 * * * *'},
        'policy': {'task': quick, 'schedule': 1, 'options': {'anarchon': {'overlap': 'skp'}}},
        'key': {'task': quick, 'schedule': 1, 'options': {'anarchon': {'leese': 1}}},
        'short': {'task': quick, 'schedule': 1, 'options': {'anarchon': {'lease': 3, 'heartbeat': 2}}},
        'extra': {'task': quick, 'schedule': 1, 'anarchon': {}},
    }
    cluster = file_cluster(schedule)
    beat = cluster.beat('beat-1')
    cluster.worker('w1', '-P', 'threads')
    cluster.run_where(lambda run: run.state == 'succeeded', 40, 'tick')
    for name in set(schedule) - {'tick'}:
        said = [line for line in beat.output.splitlines() if f"entry '{name}'" in line]
        assert 1 == len(said), name
        assert said[0].endswith('this job stays out, the others go on'), name
    assert {'tick'} == {job.name for job in cluster.store.jobs()}
    assert 'Traceback' not in beat.output


def test_commands_exit_where_nodes_wait(processes, tmp_path, file_cluster):
    nowhere = f'redis://:secret@127.0.0.1:{free_port()}/0'
    cluster = file_cluster(TICK, anarchon_store=nowhere)
    command = cluster.command('status', name='status')
    assert 1 == command.wait(30)
    assert 1 == len(command.output.strip().splitlines())
    beat = cluster.beat('beat-1')
    beat.wait_for('waiting for the store: .*; trying again in', 30)
    assert beat.alive
    assert 'secret' not in command.output + beat.output


def test_status_and_runs_tell_what_happened_as_json(file_cluster):
    old = {'task': 'tests.cluster.app.plain', 'schedule': 1, 'args': ('old',)}
    cluster = file_cluster({**TICK, 'old': old})
    cluster.beat('beat-1')
    cluster.worker('w1', '-P', 'threads')
    cluster.run_where(lambda run: run.state == 'succeeded', 40, 'tick')
    cluster.run_where(lambda run: run.state == 'published', 40, 'old')
    status = cluster.command('status', '--json', name='status')
    runs = cluster.command('runs', '--json', name='runs')
    assert (0, 0) == (status.wait(30), runs.wait(30))
    assert {'store', 'nodes', 'active', 'buffered', 'paused', 'jobs'} == set(json.loads(status.output))
    found = json.loads(runs.output)
    assert {'succeeded', 'published'} <= {run['state'] for run in found}
    assert all(re.fullmatch(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z', run['slot']) for run in found)


def test_a_header_of_an_unknown_version_is_given_back(redis_cluster):
    """Sent by hand, as a newer beat would."""
    cluster = redis_cluster({})
    worker = cluster.worker('w1')
    worker.wait_for(r'ready\.', 30)
    sender = cluster.processes.python(
        '-c',
        'from tests.cluster.app import quick\n'
        'header = {"v": 2, "job": "tick", "slot": "2026-10-10T12:00:30.000Z"}\n'
        'quick.apply_async(headers={"anarchon": header})',
        name='sender', env=cluster.env,
    )  # fmt: skip
    assert 0 == sender.wait(30)
    line = r'tick @ 2026-10-10T12:00:30\.000Z: given back for 5 s: header version 2 is unknown to this worker'
    worker.wait_for(line)
    mark = worker.mark()
    worker.wait_for(line, after=mark)  # it came again: it was not lost, and nobody ran it
    assert [] == cluster.history()

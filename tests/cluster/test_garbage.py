"""Garbage in the queue and in the store, under a live beat and a live worker: the other jobs go on."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.cluster

QUICK = 'tests.cluster.app.quick'

#: What is laid over beat's header, or put in its place.
HEADERS = [
    {'v': 2},
    {'v': None},
    {'slot': 'soon'},
    {'slot': 10**30},
    {'job': ''},
    {'job': ['tick']},
    {'job': 'a\nb'},
    {'lease': 'long'},
    {'lease': 1e308},
    {'dispatch': {}},
    {'start_timeout': -1, 'v': 9},
    {'arguments': '[[['},
    'text',
    5,
    [],
    {'kind': 'x' * 20_000},
    {'claimed': '9999-12-31T23:59:59Z'},
    {'overlap': {'a': [1]}},
]

SENDER = """if True:
    import json, sys
    from tests.cluster.app import quick
    whole = {"v": 1, "job": "bad", "slot": "2026-10-10T12:00:30.000Z", "kind": "scheduled", "dispatch": 1,
             "trigger": "scheduled", "task": quick.name, "claimed": "2026-10-10T12:00:30.000Z", "lease": 30,
             "heartbeat": 10, "start_timeout": 300, "stop_grace": 5, "max_runtime": None, "overlap": "skip",
             "handover": True, "supervised": True}
    for one in json.loads(sys.argv[1]):
        header = {**whole, **one} if isinstance(one, dict) else one
        quick.apply_async(headers={"anarchon": header, "anarchon_returned": one if one == "text" else None})
"""


def spoil(client) -> int:
    """Edit all that is of the one job beyond reading, and an index of all; return how many keys that were."""
    keys = [key for key in client.scan_iter() if key.endswith(':bad')]
    for number, key in enumerate(sorted(keys)):
        if client.type(key) != 'hash' or number % 3 == 0:
            client.delete(key)
            client.set(key, 'what is this?')
        else:
            client.hset(key, mapping={'state': 'runing', 'deadline': 'soon', 'floor': 'x', 'hashes': '[['})
    client.delete('{anarchon}:deadlines')
    client.rpush('{anarchon}:deadlines', 'x')
    client.zadd('{anarchon}:runs', {'garbage': 1, 'bad\0x\0y': -(10**15)})
    client.hset('{anarchon}:nodes', 'x', '{"name": 5}')
    return len(keys)


def test_garbage_in_the_queue_and_in_the_store_stops_nobody_else(redis_cluster, own_redis_server):
    entry = {'task': QUICK, 'schedule': 1}
    cluster = redis_cluster({'tick': entry, 'bad': entry})
    beat, worker = cluster.beat('beat-1'), cluster.worker('w1')
    for job in ('tick', 'bad'):
        cluster.run_where(lambda run: run.state == 'succeeded', 60, job)

    words = json.dumps(HEADERS)
    sender = cluster.processes.python('-c', SENDER, words, name='sender', env=cluster.env)
    assert 0 == sender.wait(60)
    with own_redis_server.client() as client:
        assert 3 < spoil(client)
    since = cluster.now()

    def is_later(run):
        return run.slot > since + 2_000 and run.state == 'succeeded'

    found = cluster.run_where(is_later, 60, 'tick')
    assert (found.attempt, found.dispatch) == (1, 1)
    assert (beat.alive, worker.alive) == (True, True)
    for name in ('status', 'runs', 'jobs', 'doctor'):
        command = cluster.command(name, '--json', name=name)
        assert command.wait(60) in (0, 1 if name == 'doctor' else 0), command.output
        json.loads(command.output)
    assert 'Traceback' not in beat.output + worker.output
    assert 'this look failed' not in beat.output
    assert (0, 0) == (beat.stop(30), worker.stop(30))

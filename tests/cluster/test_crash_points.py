"""A sample of the crash points, chosen by the commit: ``ANARCHON_TEST_SEED`` chooses as another run did.

All of them: ``python -m tests.crash_points --all``. Here is also shown that each wall falls when it should.
"""

import json
import os
import random
import subprocess
from typing import Any

import pytest

from anarchon_celery.protocol import Run
from tests.cluster.cluster import ROOT
from tests.crash_points import walls
from tests.crash_points.places import BROKERS, STORES, places
from tests.crash_points.playing import Share, line_of, play
from tests.crash_points.points import FAULTS, POINTS, cases
from tests.crash_points.told import Key, Told

#: How many cases are played on each of two clusters.
SAMPLE = 5

A, B = Key('one', 1000), Key('one', 2000)


def seed():
    if given := os.environ.get('ANARCHON_TEST_SEED'):
        return int(given)
    words = ['git', 'rev-parse', 'HEAD']
    commit = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return int(commit[:6], 16) if commit else random.SystemRandom().randrange(1_000_000)


@pytest.mark.cluster
@pytest.mark.timed
@pytest.mark.timeout(400)
def test_whoever_is_hit_at_a_point_every_slot_ends_as_it_should(tmp_path):
    """On Redis, and on one of the other stores and brokers, side by side."""
    chance = random.Random(number := seed())
    other, broker = chance.choice([(store, broker) for store in STORES for broker in BROKERS][1:])
    (asleep,) = cases(['write:before'], ['stop'])
    on_redis, on_other = ([*cases(store=store)] for store in ('redis', other))
    shares = [
        Share('redis', 'redis', line_of([asleep, *chance.sample(on_redis, SAMPLE - 1)])),
        Share(other, broker, line_of(chance.sample(on_other, SAMPLE))),
    ]
    print(f'ANARCHON_TEST_SEED={number}')
    with places(tmp_path) as there:
        outcomes = [*play(shares, tmp_path, there)]
    assert [] == [str(outcome) for outcome in outcomes if outcome.wrong]
    assert 2 * SAMPLE == len(outcomes)
    # Else the fault did not bite: who slept before it wrote has written over what others wrote meanwhile.
    slept = next(outcome for outcome in outcomes if outcome.case == asleep)
    assert slept.stale >= 1


def test_each_point_is_played_before_and_after_with_each_fault():
    on_each = sum(2 * len(FAULTS[point.role]) for point in POINTS.values())
    assert on_each == len({*map(str, cases())}) < len({*map(str, cases(store='postgresql'))})
    assert ['claim:after lost'] == [str(case) for case in cases(['claim:after'], ['lost'])]


# what the walls let through -----------------------------------------------------------------------


def did(verb, keys, begun, done, **answer):
    whose = {'pid': answer.pop('pid', 1), 'node': 1, 'role': 'child'}
    listed = {'claim', 'redispatch', 'renew', 'release'}
    said = [{'key': key, **answer} for key in keys] if verb in listed else answer or True
    return {'verb': verb, 'keys': keys, 'begun': begun, 'done': done, 'answer': said, **whose}


def body(event, key, at, fence, *, attempt=1, trusts=False, **more):
    line = {'event': event, 'key': key, 'at': at, 'fence': fence, 'attempt': attempt, 'trusts': trusts}
    return {**line, 'retries': 0, 'token': f't{fence}', 'pid': 1, 'node': 1, 'role': 'child', **more}


def began(key, at, fence, token=None):
    return did('start', [key], at - 0.1, at, token=token or f't{fence}', attempt=1, fence=fence, retries=0)


def run(state, key=A, **more):
    return {key: Run(job=key.job, slot=key.slot, state=state, **more)}


ALONE, NONE = frozenset({'one'}), frozenset[Any]()
SEEN = ['running', 1, 5000]
SKIPPED = run('skipped', reason='overlap')

#: What is looked at, what was written down, and how many times that is wrong.
FALLS = {
    'a slot has no run': (lambda told: walls.ends({}, [A], {}, NONE), [], 1),
    'a slot ended otherwise': (lambda told: walls.ends(run('failed'), [A], {}, NONE), [], 1),
    'it was to fail': (lambda told: walls.ends(run('failed'), [A], {A: 'failed'}, NONE), [], 0),
    'it may not be skipped': (lambda told: walls.ends(SKIPPED, [A], {}, NONE), [], 1),
    'it may be skipped': (lambda told: walls.ends(SKIPPED, [A], {}, ALONE), [], 0),
    'it succeeded without a body': (
        lambda told: walls.bodies_of_successes(run('succeeded', fence=7), told), [body('end', A, 1, 6)], 1,
    ),
    'it succeeded with its body': (
        lambda told: walls.bodies_of_successes(run('succeeded', fence=7), told), [body('end', A, 1, 7)], 0,
    ),
    'an end that changed': (lambda told: walls.final(run('failed'), run('succeeded')), [], 1),
    'an end that was forgotten': (lambda told: walls.final(run('failed'), {}), [], 0),
    'a slot is won twice': (
        walls.winners, [did('claim', [A], 1, 2, nonce='n'), did('claim', [A], 3, 4, nonce='m')], 1,
    ),
    'a claim is asked again': (
        walls.winners, [did('claim', [A], 1, 2, nonce='n'), did('claim', [A], 3, 4, nonce='n')], 0,
    ),
    'a deadline leads to two dispatches': (
        walls.winners,
        [did('redispatch', [A], at, at, nonce=f'{at}', seen=SEEN) for at in (1, 2)], 1,
    ),
    'two messages of one win': (
        walls.winners, [did('claim', [A], 1, 2, nonce='n'), *[did('publish', [A], 3, 4)] * 2], 1,
    ),
    'renewed after another one began': (
        lambda told: walls.leases(told, NONE),
        [began(A, 1, 1), began(A, 2, 2), did('renew', [A], 3, 4, token='t1')], 1,
    ),
    'renewed before': (
        lambda told: walls.leases(told, NONE),
        [began(A, 1, 1), began(A, 3, 2), did('renew', [A], 2, 4, token='t1')], 0,
    ),
    'finished beside another slot under skip': (
        lambda told: walls.leases(told, ALONE),
        [began(A, 1, 1), began(B, 2, 2), did('finish', [A], 3, 4, token='t1')], 1,
    ),
    'finished beside another slot under allow': (
        lambda told: walls.leases(told, NONE),
        [began(A, 1, 1), began(B, 2, 2), did('finish', [A], 3, 4, token='t1')], 0,
    ),
    'trusted after the next one began': (
        lambda told: walls.trust(told, NONE),
        [began(A, 1, 1), began(A, 2, 2), body('works', A, 3, 1, trusts=True)], 1,
    ),
    'not trusted any more': (
        lambda told: walls.trust(told, NONE), [began(A, 1, 1), began(A, 2, 2), body('works', A, 3, 1)], 0,
    ),
    'a fence that falls': (walls.fences, [began(A, 1, 2), began(B, 2, 1)], 1),
    'a fence twice': (walls.fences, [began(A, 1, 2, 'a'), began(B, 1, 2, 'b')], 1),
    'a start that is asked again': (walls.fences, [began(A, 1, 2), began(A, 2, 2)], 0),
    'a stale write': (
        walls.checked_writes,
        [body('checked', A, at, 3 - at, begun=at, scope='one') for at in (1, 2)], 1,
    ),
    'dispatched again too late': (
        lambda told: walls.deadlines(told, 0.5, 0.5),
        [did('redispatch', [A], 6, 6.1, nonce='n', seen=SEEN)], 1,
    ),
    'dispatched again in time': (
        lambda told: walls.deadlines(told, 0.5, 0.5),
        [did('redispatch', [A], 5.8, 5.9, nonce='n', seen=SEEN)], 0,
    ),
    'started twice untouched': (
        lambda told: walls.starts(told, NONE), [body('start', A, 1, 1), body('start', A, 2, 2, attempt=2)], 1,
    ),
    'started twice when its holder was hit': (
        lambda told: walls.starts(told, {A}), [body('start', A, 1, 1), body('start', A, 2, 2, attempt=2)], 0,
    ),
    'one attempt twice': (
        lambda told: walls.starts(told, {A}), [body('start', A, 1, 1), body('start', A, 2, 2)], 1,
    ),
    'more attempts than blows': (lambda told: walls.counts(run('succeeded', attempt=3), {A}, 1), [], 1),
    'as many attempts': (lambda told: walls.counts(run('succeeded', attempt=2), {A}, 1), [], 0),
    'a floor that falls': (lambda told: walls.floors({'one': 2}, {'one': 1}), [], 1),
}  # fmt: skip


@pytest.mark.parametrize('name', FALLS)
def test_a_wall_falls_when_it_should(name, tmp_path):
    wall, lines, times = FALLS[name]
    (tmp_path / 'told').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    found = [*wall(Told(tmp_path / 'told').read())]
    assert times == len(found), found


def test_fences_that_fall_are_counted_where_nothing_checks():
    assert 2 == walls.stale_writes([1, 3, 2, 4, 1])


def test_who_was_hit_held_what_it_began_and_did_not_end(tmp_path):
    lines = [began(A, 1, 1), began(B, 1, 2), did('finish', [A], 2, 3, token='t1')]
    (tmp_path / 'told').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    told = Told(tmp_path / 'told').read()
    assert {B} == walls.held_by(told, 1, whole=True, at=3)
    assert {A, B} == walls.held_by(told, 1, whole=False, at=2)
    assert set() == walls.held_by(told, 2, whole=True, at=3)


def test_who_was_hit_may_hold_what_it_had_asked_for(tmp_path):
    (tmp_path / 'told').write_text(json.dumps(did('asks', [A], 1, 1)) + '\n')
    told = Told(tmp_path / 'told').read()
    assert {A} == walls.held_by(told, 1, whole=True, at=2)
    assert set() == walls.held_by(told, 1, whole=True, at=1 + walls.ANSWERED)

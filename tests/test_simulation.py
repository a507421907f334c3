"""The simulation in short: 500 seeds, and the bugs it has to find. More: ``python -m tests.simulation``."""

from collections import Counter
from dataclasses import replace

import pytest

from anarchon_celery import lease, transitions
from anarchon_celery.trust import Jumps, margin
from tests.simulation.cluster import Cluster
from tests.simulation.faults import WORKERS, Fault
from tests.simulation.hunt import PATCHES, find, known_seed
from tests.simulation.laws import broken
from tests.simulation.seeds import Played, play, smaller
from tests.simulation.watch import AFTER_A_JUMP
from tests.simulation.world import HOUR

SEEDS, CHUNK = 500, 10


@pytest.mark.slow
@pytest.mark.parametrize('first', range(1, SEEDS, CHUNK))
def test_an_hour_in_which_things_go_wrong_breaks_no_law(first):
    for seed in range(first, first + CHUNK):
        played = play(seed)
        assert not played.wrong, f'python -m tests.simulation --seed {seed}: {played.wrong[0]}'
        assert played.counts['bodies'] > 10


def test_a_calm_hour_is_not_spoilt_by_anything():
    played = play(0, only=[])
    assert not played.wrong
    assert played.counts['runs'] > 70


def test_the_same_seed_is_the_same_hour():
    assert play(7).digest == play(7).digest


def test_what_is_written_with_an_older_fence_is_refused_and_the_control_lets_it_in():
    cluster = Cluster(1, PAUSES)
    cluster.play()
    counts = cluster.watch.counts
    assert [] == broken(cluster)
    assert 0 < counts['stale writes refused'] <= counts['stale writes let in by the control']


WIPED_BEFORE_A_SLOT = [
    Fault(2_395_000, 2_430_000, 'store away'),
    Fault(2_399_000, 2_399_000, 'store wiped'),
]


def test_a_wiped_store_is_to_learn_from_beats_that_are_up_how_far_jobs_are_decided(monkeypatch):
    def is_taught_nothing(ledger, now, asked, register=transitions._register):
        nothing = replace(asked, first_seen=None, effective=None, cursor=None, floor=None)
        return register(ledger, now, nothing)

    assert [] == broken_by(WIPED_BEFORE_A_SLOT)
    monkeypatch.setattr(transitions, '_register', is_taught_nothing)
    never = 'skip @ 2026-09-21T15:40:00.000Z was never decided'
    assert f'1 none is lost: {never}' in broken_by(WIPED_BEFORE_A_SLOT)


def test_a_store_that_is_wiped_while_no_beat_is_up_has_nobody_to_learn_from():
    assert [] == broken_by([*WIPED_BEFORE_A_SLOT, Fault(2_390_000, 2_440_000, 'all beats down')])


def broken_by(faults):
    return played_with(faults)[0]


def played_with(faults):
    cluster = Cluster(1, faults)
    cluster.play()
    return broken(cluster), cluster.watch.counts[AFTER_A_JUMP]


#: A worker has a run then, and has just renewed its lease.
JUMP = 1_300_000
FORWARD = Fault(JUMP, JUMP, 'store clock set', value=HOUR)


def beat_begins(at):
    return Fault(at - 1_000, at, 'node killed', 'beat-2')


def test_a_beat_that_begins_after_a_jump_cannot_know_of_it_and_that_is_not_promised():
    assert ([], 1) == played_with([FORWARD, beat_begins(JUMP + 2_000)])


@pytest.mark.parametrize('began', [JUMP - 1_000, JUMP + 32_000])
def test_a_beat_that_knows_of_the_jump_or_begins_a_lease_after_it_lets_the_holder_be(began):
    assert ([], 0) == played_with([FORWARD, beat_begins(began)])


def test_a_beat_that_was_up_when_the_clock_jumped_is_not_excused(monkeypatch):
    monkeypatch.setattr(Jumps, 'spares', lambda *_: False)
    wrong, excused = played_with([FORWARD, beat_begins(JUMP - 1_000)])
    assert 'are both trusted' in wrong[0]
    assert 0 == excused


def test_an_overlap_without_a_jump_is_not_excused(monkeypatch):
    assert_overlaps_are_not_excused(PAUSES + BEATS_BEGIN, monkeypatch)


def test_a_jump_within_the_margin_excuses_nobody(monkeypatch):
    jumps = [Fault(one.at, one.at, 'store clock set', value=margin(20_000)) for one in BEATS_BEGIN]
    assert_overlaps_are_not_excused(PAUSES + jumps + BEATS_BEGIN, monkeypatch)


#: Workers that let their leases end, one after the other; beats that begin before each end.
PAUSES = [
    Fault(at, at + 60_000, 'node paused', WORKERS[number % 2])
    for number, at in enumerate(range(100_000, HOUR, 100_000))
]
BEATS_BEGIN = [Fault(one.at + 15_000, one.at + 17_000, 'all beats down') for one in PAUSES]


def assert_overlaps_are_not_excused(faults, monkeypatch):
    """With leases that are trusted for three times as long as they last."""
    monkeypatch.setattr(lease, 'trusted_until', lambda asked_at, length: asked_at + 3 * length / 1000)
    wrong, excused = played_with(faults)
    assert any('are both trusted' in one for one in wrong)
    assert 0 == excused


@pytest.mark.slow
@pytest.mark.parametrize('patch', PATCHES, ids=lambda patch: patch.stem)
def test_a_bug_is_found(patch):
    found = find(patch, first=known_seed(patch), seeds=3)
    assert found.seed is not None, found.said


def test_a_seed_that_fails_is_made_smaller():
    asked = []

    def fails_with_3_and_5(seed, only):
        asked.append(only)
        broken = ['trust: both'] if {3, 5} <= {*only} else ['rest: other'] if len(only) == 4 else []
        return played(seed, only, broken)

    found = smaller(played(1, range(1, 9), ['trust: both']), fails_with_3_and_5)
    assert (3, 5) == tuple(found.only)
    assert len(asked) < 20


def played(seed, only, wrong):
    return Played(seed, tuple(only), wrong, Counter(), 0.0)

"""A minute of chaos on each store, over Redis and over RabbitMQ: ``python -m tests.chaos``.

``ANARCHON_TEST_CHAOS=600`` makes it so many seconds each, ``ANARCHON_TEST_SEED=…`` deals as another run did.
With ``ANARCHON_TEST_TURN=7`` two are played: Redis, and one of the others, whose turn the number says it is.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.journal import read
from tests.chaos.judging import stale_writes
from tests.chaos.places import PLACES
from tests.chaos.playing import Play
from tests.chaos.report import judged
from tests.chaos.told import Told

SECONDS = float(os.environ.get('ANARCHON_TEST_CHAOS', '60'))
SEED = int(os.environ.get('ANARCHON_TEST_SEED') or random.SystemRandom().randrange(1_000_000))
ALWAYS = {'redis': 'redis'}
BY_TURNS = {'postgresql': 'rabbitmq', 'mariadb': 'rabbitmq', 'sqlite': 'rabbitmq'}


def whose_turn(turn: str | None) -> dict[str, str]:
    """Return the store and the broker of each play; of those by turns one, or all where no turn is given."""
    others = list(BY_TURNS.items())
    return ALWAYS | dict(others if turn is None else [others[int(turn) % len(others)]])


PAIRS = whose_turn(os.environ.get('ANARCHON_TEST_TURN'))

#: All ways in which a worker ends or falls silent: each is met on each of the brokers.
WAYS = {
    'pause worker', 'kill child', 'kill worker', 'kill worker group', 'terminate worker',
    'terminate worker group', 'quit worker',
}  # fmt: skip

pytestmark = [
    pytest.mark.cluster, pytest.mark.timed, pytest.mark.slow, pytest.mark.timeout(300 + 3 * SECONDS)
]  # fmt: skip


@pytest.fixture(scope='module')
def histories():
    """What was told of each store's play."""
    return {}


@pytest.mark.parametrize('store', PAIRS)
def test_each_promise_is_kept(store, tmp_path: Path, histories):
    print(f'ANARCHON_TEST_SEED={SEED}')
    history = tmp_path / 'history'
    how: dict[str, Any] = {'broker': PAIRS[store], 'seconds': SECONDS, 'seed': SEED, 'pace': (0.8, 2.0)}
    Play(tmp_path, history, store=store, **how).play()
    told = histories[store] = Told(read(history))
    assert judged(history) == 0
    assert {*WAYS} <= {fault.kind for fault in told.faults.values()}
    assert sum(map(len, told.attempts.values())) >= 200, 'leased runs'


def test_by_turns_all_are_played_over_two_brokers():
    turns = [whose_turn(str(turn)) for turn in (41, 42, 43)]
    assert [{'redis', 'rabbitmq'}] * 3 == [{*pairs.values()} for pairs in turns]
    assert whose_turn(None) == turns[0] | turns[1] | turns[2]
    assert {*PLACES} == {*whose_turn(None)}


def test_the_faults_bit(histories):
    """What checks no fence took stale writes."""
    if not histories:
        pytest.skip('nothing was played')
    assert any(stale_writes(told, 'unchecked') for told in histories.values())

"""A child at the board: what its keeper says of the run it holds, and what it hears from its parent."""

from __future__ import annotations

import pytest

from anarchon_celery import HandedOver, LeaseLost, board, keeper
from anarchon_celery.config import Policy
from anarchon_celery.lease import Cancelled
from anarchon_celery.protocol import Stale
from anarchon_celery.seat import Seat, answer
from anarchon_celery.stores.clock import monotonic
from tests.processes import wait_until
from tests.test_lease import QUICK, Stage, in_thread, lines
from tests.test_lease import log as log

#: A heartbeat that comes only if somebody is late.
SLOW = Policy(lease=60_000, heartbeat=20_000)
#: One that is trusted for a second and a half.
BRIEF = Policy(lease=2_000, heartbeat=500)


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.setattr(keeper, 'LOOK_EVERY', 10)
    monkeypatch.setenv(board.WHERE, '')
    stage = Stage()
    place = board.make().place(0)
    assert place is not None
    stage.place, stage.keeper._seat = place, Seat(place)
    yield stage
    stage.close()


def test_it_says_what_it_starts_before_it_asks_and_what_it_holds_after(stage):
    phases = []
    start = stage.keeper.store.start

    def asked(*args, **kwargs):
        phases.append((stage.place.read()['phase'], stage.place.read()['token']))
        return start(*args, **kwargs)

    stage.keeper.store.start = asked
    mine = stage.start(policy=SLOW)
    assert [('starting', 'token-report')] == phases
    said = stage.place.read()
    assert ('held', mine.fence, mine.attempt) == (said['phase'], said['fence'], said['attempt'])
    stage.keeper.finish(mine, 'succeeded')
    assert 'ending' == stage.place.read()['phase']
    stage.keeper.over(mine)
    assert stage.place.read() is None


def test_what_may_not_start_leaves_nothing_there(stage):
    order = stage.order(policy=SLOW)
    stage.keeper.start(order, token='one', worker='w', task_id='t')
    assert isinstance(stage.keeper.start(order, token='two', worker='w', task_id='t'), Stale)
    assert stage.place.read() is None


def test_what_its_parent_renews_it_need_not(stage):
    mine = stage.start(policy=QUICK)
    until = monotonic() + 1

    def parent_renews():
        mine_there = answer(mine) | {'renewed_at': monotonic()}
        stage.place.answer(mine_there)
        return monotonic() > until

    wait_until(parent_renews)
    assert 0 == stage.faults.count('renew')
    assert mine.renewed_at > until - 1


def test_where_its_parent_is_late_it_renews_by_itself_and_says_so(stage):
    mine = stage.start(policy=QUICK)
    wait_until(lambda: stage.faults.count('renew') >= 2)
    wait_until(lambda: stage.place.read()['renewed_at'] == mine.renewed_at)
    assert not mine.aborted


def test_after_a_long_look_at_nothing_it_hears_of_renewals_before_it_judges(stage, monkeypatch):
    """As after C code that kept the interpreter: no thread of this process could look."""
    mine = stage.start(policy=SLOW)
    stage.keeper.let_go(mine)  # the heartbeat's thread does not see it
    renewed_at = monotonic() + 100
    monkeypatch.setattr(mine, 'monotonic', lambda: renewed_at)
    stage.place.answer(answer(mine) | {'renewed_at': renewed_at})
    mine.check()
    assert not mine.aborted
    assert 54 == mine.remaining


@pytest.mark.parametrize(('word', 'kind'), [('stop', Cancelled), ('lost', LeaseLost)])
def test_what_its_parent_learns_it_hears_at_once(stage, word, kind):
    mine = stage.start(policy=SLOW)
    with in_thread(lambda: mine.wait(60)) as raised:
        stage.place.answer(answer(mine) | {word: 'because'})
    assert [kind] == [type(error) for error in raised]
    assert 'because' == mine.reason


def test_an_end_is_tried_for_as_long_as_its_parent_renews(stage):
    """The child's own way to the store fails for longer than it could trust the lease by itself."""
    mine = stage.start(policy=BRIEF)
    stage.faults.down = True
    until = mine.trusted_until + 0.5

    def parent_renews():
        renewed_at = monotonic()
        assert ['ok'] == [said.answer for said in stage.store.renew([mine.renewal])]
        stage.place.answer(answer(mine) | {'renewed_at': renewed_at})
        return monotonic() > until

    with in_thread(lambda: stage.keeper.finish(mine, 'succeeded')) as raised:
        wait_until(lambda: mine.ending)
        wait_until(parent_renews)
        stage.faults.down = False
    assert [] == raised
    assert 'succeeded' == stage.run().state


@pytest.mark.parametrize('word', ['stop', 'lost'])
def test_whether_an_end_comes_too_late_its_parent_is_not_asked(stage, word):
    mine = stage.start(policy=SLOW)
    mine.ending = True
    stage.place.answer(answer(mine) | {word: 'because'})
    stage.keeper._hear(mine)
    assert not mine.aborted


def test_what_is_said_to_another_run_is_not_heard(stage):
    mine = stage.start(policy=SLOW)
    stage.place.answer(answer(mine) | {'token': 'of the run before', 'lost': 'because'})
    stage.keeper._hear(mine)
    assert not mine.aborted


def test_that_it_is_lost_is_said(stage):
    mine = stage.start(policy=SLOW)
    stage.keeper.lose(mine, 'because')
    assert 'lost' == stage.place.read()['phase']


def test_a_body_that_its_pool_ends_is_left_to_the_parent(stage, log):
    mine = stage.start(policy=SLOW)
    stage.stopping.set()
    stage.keeper.interrupted(mine, SystemExit(-241))
    stage.keeper.over(mine)
    assert 'exiting' == stage.place.read()['phase']
    assert 'running' == stage.run().state
    assert [] == lines(log)


def test_a_name_that_the_board_does_not_take_is_renewed_by_its_child(stage):
    job = 'ü' * 7000
    mine = stage.start(job, policy=QUICK)
    assert stage.place.read() is None
    wait_until(lambda: stage.faults.count('renew') >= 1)
    stage.stopping.set()
    wait_until(lambda: isinstance(mine.ended, HandedOver))

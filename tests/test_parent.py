"""The worker's parent: it renews what its children hold, and sees to what they leave.

The children are real processes, which really die; what they say on the board is said for them here.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from dataclasses import replace

import pytest
from celery import Celery

from anarchon_celery import board, children, parent, verdicts
from anarchon_celery.config import Config, Policy
from anarchon_celery.headers import Order
from anarchon_celery.lease import HeldLease
from anarchon_celery.parent import Parent
from anarchon_celery.presence import Presence, this_node
from anarchon_celery.protocol import RunKey, Settle, Started
from anarchon_celery.seat import Seat
from anarchon_celery.stores import open_store
from anarchon_celery.stores.clock import monotonic
from anarchon_celery.verdicts import Verdict
from tests.processes import wait_until
from tests.rollback import wipe
from tests.servers import free_port
from tests.test_lease import QUICK, Faults, T, lines
from tests.test_lease import Stage as KeepersStage
from tests.test_lease import log as log

#: Nothing that a busy machine could use up.
LONG = Policy(lease=60_000, heartbeat=20_000)


class Child:
    """A process of a pool: what it says, and how it dies."""

    def __init__(self, place: board.Place) -> None:
        self.process = subprocess.Popen(['sleep', '600'])
        self.pid = self.process.pid
        self.place = place
        self.seat = Seat(place)
        self.seat.pid = self.pid
        self.lease: HeldLease | None = None

    def take(self, order: Order) -> None:
        """Say that it is about to start a run."""
        token = f'token-{order.key.job}'
        self.seat.take(order, order.start(token=token, worker='celery@a:1', task_id='t'))

    def die(self, number: int = signal.SIGKILL, *, reaped: bool = True) -> None:
        self.process.send_signal(number)
        if reaped:
            self.process.wait()
        else:  # a zombie, as long as billiard has not waited for it
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Stage(KeepersStage):
    """A parent that looks when a test says so, its children, and runs for them that a beat has published."""

    def __init__(self) -> None:
        super().__init__()
        self.board = board.make()
        self.parent = Parent(Config.of(self.app), self.board, self.stopping.is_set)
        self.parent._started = True  # no thread of its own: see look()
        self.faults = self.parent.store = Faults(self.store)  # type: ignore[assignment]
        self.children: list[Child] = []

    def look(self) -> None:
        self.parent._look()

    def child(self, job: str = 'report', policy: Policy = LONG, *, started: bool = True) -> Child:
        """A child that was given the message of a run, and has started it."""
        place = self.board.place(len(self.children))
        assert place is not None
        child = Child(place)
        self.children.append(child)
        order = self.order(job, policy)
        child.take(order)
        if started:
            asked_at = monotonic()
            answer = self.store.start(order.start(token=f'token-{job}', worker='celery@a:1', task_id='t'))
            assert isinstance(answer, Started)
            child.lease = HeldLease(order, answer, f'token-{job}', 't', asked_at, owner='celery@a:1')
            child.seat.say(child.lease, 'held')
        return child

    def state(self, job: str = 'report') -> tuple[str, int]:
        return self.run(job).state, self.run(job).crashes

    def close(self) -> None:
        for child in self.children:
            child.close()
            verdicts.forget(child.lease.token if child.lease else '')
        super().close()


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.setenv(board.WHERE, '')
    stage = Stage()
    yield stage
    stage.close()


# its store --------------------------------------------------------------------------------------


def said_of_the_store(log) -> list[str]:
    """What was said of the store, without the reason."""
    said = [r.getMessage().removeprefix('[anarchon] ') for r in log.records if r.name == 'anarchon_celery']
    return [re.sub(r'redis://.*;', '…;', line) for line in said if 'store' in line]


def parent_on(url: str, stopping=lambda: False) -> Parent:
    app = Celery('proj', broker='memory://', set_as_current=False)
    app.conf.anarchon_store = url
    parent = Parent(Config.of(app), board.make(), stopping)
    parent._started = True
    parent.store = open_store(url)
    return parent


def test_a_worker_that_stops_lives_until_its_last_task_is_over(stage):
    """Probes must not take it for dead while it waits for that."""
    stage.look()
    stage.parent.presence = Presence(this_node('worker', 'celery@a:1', 'proj'))
    stage.stopping.set()
    stage.look()
    assert ['celery@a:1'] == [node.name for node in stage.store.nodes() if node.kind == 'worker']
    stage.parent._take_leave()
    assert [] == [node for node in stage.store.nodes() if node.kind == 'worker']


def test_a_worker_says_that_its_store_is_away_and_that_it_answers(own_redis_server, stage, log):
    own_redis_server.stop()
    parent = parent_on(own_redis_server.url())
    parent._look()
    parent._look()  # it waits before it asks again
    away = 'waiting for the store: …; trying again in 0.5 s'
    assert [away] == said_of_the_store(log)
    own_redis_server.start()
    wait_until(lambda: parent._look() or parent._met)
    assert [away, 'the store answers again'] == said_of_the_store(log)
    parent.store.close()


def test_a_store_that_goes_away_while_a_lease_is_renewed_is_said_once_and_again_when_it_is_back(stage, log):
    stage.look()
    stage.child(policy=Policy(lease=10_000, heartbeat=1))
    stage.look()
    stage.faults.down = True
    asked = stage.faults.count('renew')
    wait_until(lambda: stage.look() or stage.faults.count('renew') > asked + 2)
    away = 'waiting for the store: it is down; trying again in 0.00025 s'
    assert [away] == said_of_the_store(log)
    stage.faults.down = False
    wait_until(lambda: stage.look() or len(said_of_the_store(log)) > 1)
    assert [away, 'the store answers again'] == said_of_the_store(log)


def test_a_worker_whose_store_is_there_says_nothing_of_it(redis_url, stage, log):
    parent = parent_on(redis_url)
    parent._look()
    assert parent._met
    assert [] == said_of_the_store(log)
    parent.store.close()


def test_a_worker_that_stops_looks_for_its_store_no_more(stage, log):
    parent = parent_on(f'redis://127.0.0.1:{free_port()}/0', lambda: True)
    parent._look()
    assert [] == said_of_the_store(log)
    parent.store.close()


# renewal ----------------------------------------------------------------------------------------


def test_all_children_are_renewed_in_one_call_and_hear_of_it(stage):
    found = [stage.child(job, QUICK) for job in ('a', 'b', 'c')]
    stage.look()
    assert 0 == stage.faults.count('renew')
    wait_until(lambda: all(child.lease.wants_renewal() for child in found))
    deadlines = [stage.run(job).deadline for job in 'abc']
    stage.look()
    assert 1 == stage.faults.count('renew')
    assert all(stage.run(job).deadline > old for job, old in zip('abc', deadlines, strict=True))
    for child in found:
        heard = child.seat.hear(child.lease)
        assert heard['renewed_at'] > child.lease.renewed_at
        assert (None, None) == (heard['stop'], heard['lost'])


def test_a_child_hears_that_its_run_is_to_stop_and_then_it_is_renewed_no_more(stage):
    child = stage.child(policy=QUICK)
    wait_until(child.lease.wants_renewal)
    stage.overtake()
    stage.look()
    assert 'overlap: the next slot came due' == child.seat.hear(child.lease)['stop']
    wait_until(child.lease.wants_renewal)
    stage.look()
    assert 1 == stage.faults.count('renew')


def test_a_child_hears_that_its_run_is_lost(stage):
    child = stage.child(policy=QUICK)
    stage.take_over()
    wait_until(child.lease.wants_renewal)
    stage.look()
    assert 'taken over as attempt 2' == child.seat.hear(child.lease)['lost']


def test_what_a_store_has_forgotten_is_put_back_and_told(stage, log):
    child = stage.child(policy=Policy(lease=10_000, heartbeat=1))
    stage.look()
    wipe(stage.store)
    wait_until(lambda: stage.look() or stage.run())
    assert ('running', 0) == stage.state()
    assert ['put back after N ms into a store that had forgotten it'] == lines(log)
    assert child.seat.hear(child.lease)['lost'] is None


def test_a_child_whose_words_are_spoiled_costs_no_other_its_renewal(stage):
    spoiled, other = stage.child('a'), stage.child('b', Policy(lease=10_000, heartbeat=1))
    at = stage.board._memory.find(b'token-a')
    stage.board._memory[at : at + 5] = b'TOKEN'
    wait_until(lambda: stage.look() or stage.faults.count('renew'))
    assert [1] == [*stage.parent._children]
    assert other.seat.hear(other.lease)['renewed_at']
    spoiled.seat.say(spoiled.lease, 'held')
    stage.look()
    assert [0, 1] == sorted(stage.parent._children)


def test_a_child_that_renewed_for_itself_is_believed(stage):
    child = stage.child(policy=QUICK)
    stage.look()
    wait_until(child.lease.wants_renewal)
    child.lease.renewed(monotonic())
    child.seat.say(child.lease, 'held')
    stage.look()
    assert 0 == stage.faults.count('renew')


def test_a_run_that_went_on_too_long_is_not_renewed(stage):
    child = stage.child(policy=replace(QUICK, max_runtime=1))
    wait_until(child.lease.wants_renewal)
    stage.look()
    assert 0 == stage.faults.count('renew')


def test_a_dead_child_is_not_renewed(stage):
    child = stage.child(policy=QUICK)
    stage.look()
    wait_until(child.lease.wants_renewal)
    child.die(reaped=False)
    stage.look()
    assert 0 == stage.faults.count('renew')


def test_a_run_whose_end_is_being_recorded_is_not_put_back(stage):
    child = stage.child(policy=QUICK)
    stage.look()
    child.seat.say(child.lease, 'ending')
    wait_until(child.lease.wants_renewal)
    stage.look()
    (holding,) = next(args[0] for verb, args in stage.faults.calls if verb == 'renew')
    assert not holding.trusted


def test_while_the_store_is_away_it_is_asked_no_more_often_than_it_can_help(stage):
    child = stage.child(policy=QUICK)
    wait_until(child.lease.wants_renewal)
    stage.faults.down = True
    stage.look()
    stage.look()
    assert 1 == stage.faults.count('renew')
    stage.faults.down = False
    wait_until(lambda: stage.look() or child.seat.hear(child.lease))
    assert 'running' == stage.run().state


# deaths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize('reaped', [True, False], ids=['reaped', 'a zombie'])
def test_the_run_of_a_killed_child_is_given_back_at_once_and_counts_a_crash(stage, log, reaped):
    child = stage.child()
    stage.look()
    child.die(reaped=reaped)
    stage.look()
    assert ('released', 1) == stage.state()
    (line,) = lines(log)
    assert line == f'its worker died after N ms, the run is given back: process {child.pid}: it was killed'
    assert child.place.read() is None  # for the next child
    stage.look()
    assert 1 == stage.faults.count('release')


def test_a_child_that_is_killed_before_its_start_is_answered_leaves_no_run_behind(stage):
    child = stage.child(started=False)
    order = stage.parent._board.place(0)
    stage.look()
    stage.store.start(stage.parent._children[0].order.start(token='token-report', worker='w', task_id='t'))
    child.die()
    stage.look()
    assert ('released', 1) == stage.state()
    assert order.read() is None


def test_a_child_that_has_left_its_seat_leaves_nothing(stage):
    child = stage.child()
    stage.look()
    stage.store.finish(RunKey('report', T), 'token-report', 'succeeded')
    child.seat.leave('token-report')
    child.die()
    stage.look()
    assert ('succeeded', 0) == stage.state()
    assert 0 == stage.faults.count('release')
    assert not stage.parent._deaths._files


def test_what_the_next_child_of_the_same_place_holds_is_its_own(stage):
    first = stage.child()
    stage.look()
    first.die()
    stage.look()
    second = Child(first.place)
    stage.children.append(second)
    second.take(stage.order('other', LONG))
    stage.look()
    assert [second.pid] == [child.pid for child in stage.parent._children.values()]


def test_a_child_waits_for_what_the_one_before_it_left(stage, monkeypatch):
    first = stage.child()
    second = Child(first.place)
    stage.children.append(second)
    monkeypatch.setattr('anarchon_celery.seat.FREE_WITHIN', 0.2)
    second.take(stage.order('other', LONG))  # but not for ever
    assert 'token-other' == first.place.read()['token']


def test_a_child_that_exits_while_the_worker_stops_hands_over(stage, log):
    child = stage.child()
    stage.look()
    stage.stopping.set()
    child.seat.say(child.lease, 'exiting')
    stage.look()  # it need not be dead yet: its body is over
    assert ('released', 0) == stage.state()
    assert ['interrupted after N ms, handed over to another instance'] == lines(log)
    child.die()
    stage.look()
    assert child.place.read() is None
    assert 1 == stage.faults.count('release')


def test_a_child_that_is_killed_while_the_worker_stops_has_crashed(stage):
    child = stage.child()
    stage.look()
    stage.stopping.set()
    child.die()
    stage.look()
    assert ('released', 1) == stage.state()


def test_a_child_that_exits_and_nobody_said_why_has_crashed_after_a_moment(stage, monkeypatch):
    child = stage.child()
    stage.look()
    child.seat.say(child.lease, 'exiting')
    child.die(signal.SIGTERM)
    stage.look()
    assert ('running', 0) == stage.state()  # a stop, or a verdict, may be on its way
    monkeypatch.setattr(parent, 'VERDICT_WITHIN', 0)
    stage.look()
    assert ('released', 1) == stage.state()


@pytest.mark.parametrize('dies', [True, False], ids=['it died', 'it exits'])
@pytest.mark.parametrize(
    ('verdict', 'state', 'line'),
    [
        (Verdict('cancelled', 'revoked'), 'cancelled', 'cancelled after N ms: revoked'),
        (Verdict('failed', 'TimeLimitExceeded: 2 s'), 'failed', 'failed after N ms: TimeLimitExceeded: 2 s'),
        (Verdict('released', '…'), 'released', 'interrupted after N ms, handed over to another instance'),
    ],
)
def test_what_was_decided_before_is_what_becomes_of_the_run(stage, log, verdict, state, line, dies):
    child = stage.child()
    stage.look()
    verdicts.pass_on('token-report', verdict)
    if dies:
        child.die()
    else:
        child.seat.say(child.lease, 'exiting')
    stage.look()
    assert (state, 0) == stage.state()
    assert [line] == lines(log)


def test_of_a_run_that_was_lost_nothing_is_written(stage):
    child = stage.child()
    stage.look()
    stage.take_over()
    verdicts.pass_on('token-report', Verdict('lost', 'its lease was lost'))
    child.die()
    stage.look()
    assert ('running', 1) == stage.state()
    assert 0 == stage.faults.count('release') + stage.faults.count('finish')


def test_a_store_that_is_away_is_told_when_it_is_back(stage, log):
    child = stage.child()
    stage.look()
    stage.faults.down = True
    child.die()
    stage.look()
    stage.faults.down = False
    assert ('running', 0) == stage.state()
    wait_until(lambda: stage.look() or stage.state() == ('released', 1))
    assert child.place.read() is None


def test_what_could_not_be_told_within_the_lease_is_said(stage, log):
    """Then its deadline has decided, and another worker may have the run."""
    child = stage.child(policy=Policy(lease=300, heartbeat=100))
    stage.look()
    stage.faults.down = True
    child.die()
    wait_until(lambda: stage.look() or not stage.parent._agenda)
    assert ['given back, but that could not be recorded: it is down'] == lines(log)
    stage.faults.down = False
    stage.look()
    assert ('running', 0) == stage.state(), 'and it is not told later'


def test_an_answer_that_is_lost_counts_one_crash(stage):
    child = stage.child()
    stage.look()
    stage.faults.lose_answers['release'] = 1
    child.die()
    stage.look()
    wait_until(lambda: stage.look() or not stage.parent._agenda)
    assert ('released', 1) == stage.state()


def test_the_files_by_which_deaths_are_seen_are_closed(stage):
    before = len(os.listdir('/proc/self/fd'))
    for n in range(20):
        child = stage.child(f'job-{n}')
        stage.look()
        child.die()
        stage.look()
        stage.look()
    assert before == len(os.listdir('/proc/self/fd'))


@pytest.mark.parametrize('how', ['pidfd', 'signal 0'])
def test_a_death_is_seen_with_and_without_pidfd(monkeypatch, how):
    if how == 'signal 0':
        monkeypatch.delattr(os, 'pidfd_open')
    deaths = children.Deaths()
    with subprocess.Popen(['sleep', '600']) as process:
        deaths.watch(process.pid)
        assert set() == deaths.dead()
        process.kill()
        process.wait()
        assert {process.pid} == deaths.dead()
        deaths.forget(process.pid)
        deaths.watch(process.pid)  # it is gone already
        assert {process.pid} == deaths.dead()
        deaths.forget(process.pid)
        assert set() == deaths.dead()


# what goes on after its lease was lost ----------------------------------------------------------


def test_a_child_that_goes_on_after_its_run_was_lost_is_killed_after_twice_the_grace(stage, log):
    child = stage.child(policy=replace(QUICK, stop_grace=200))
    stage.look()
    stage.take_over()
    wait_until(child.lease.wants_renewal)
    stage.look()
    assert 'running' == stage.run().state
    assert child.process.poll() is None
    wait_until(lambda: stage.look() or child.process.poll() is not None)
    assert -signal.SIGKILL == child.process.wait()
    assert lines(log, f'process {child.pid} is killed: its task went on for 0.')
    stage.look()
    assert 0 == stage.faults.count('release') + stage.faults.count('finish')
    assert 'another' == stage.run().token


def test_a_child_that_says_that_it_is_lost_is_killed_too_if_it_goes_on(stage):
    child = stage.child(policy=replace(LONG, stop_grace=100))
    stage.look()
    child.seat.say(child.lease, 'lost')
    wait_until(lambda: stage.look() or child.process.poll() is not None)


def test_one_whose_lease_ran_out_of_trust_is_killed_too(stage):
    child = stage.child(policy=Policy(lease=1_000, heartbeat=200, stop_grace=100))
    stage.faults.down = True
    wait_until(lambda: stage.look() or child.process.poll() is not None)


def test_a_worker_that_was_paused_tells_its_tasks_before_it_kills_any(stage):
    child = stage.child(policy=Policy(lease=1_000, heartbeat=200, stop_grace=200))
    stage.look()
    stage.faults.down = True
    wait_until(lambda: monotonic() > child.lease.trusted_until + 1)  # nobody looks meanwhile
    stage.look()
    assert not stage.parent._children[0].killed
    wait_until(lambda: stage.look() or child.process.poll() is not None)


# what Celery's requests tell --------------------------------------------------------------------


def test_a_message_that_was_dropped_ends_its_run(stage, log):
    order = stage.order()
    stage.parent.settle(order, 'cancelled', 'expired')
    stage.look()
    assert ('cancelled', 'expired') == (stage.run().state, stage.run().reason)
    assert ['cancelled: expired'] == lines(log)


def test_a_message_that_was_dropped_of_a_run_that_is_held_changes_nothing(stage):
    child = stage.child()
    stage.parent.settle(child.lease.order, 'cancelled', 'expired')
    stage.look()
    assert ('running', 0) == stage.state()
    assert [False] == stage.store.settle([Settle(key=child.lease.key, outcome='cancelled', reason='expired')])


def test_a_child_that_died_before_it_said_anything_has_crashed_on_its_run(stage, log):
    order = stage.order()
    stage.parent.lost(order, 'token-report', 'celery@a:1', 't', 'signal 9 (SIGKILL)')
    stage.look()
    assert ('released', 1) == stage.state()
    assert 1 == stage.run().attempt


def test_what_was_seen_to_is_not_begun_again(stage):
    child = stage.child()
    stage.look()
    child.die()
    stage.look()
    stage.parent.lost(child.lease.order, 'token-report', 'celery@a:1', 't', 'signal 9 (SIGKILL)')
    stage.look()
    assert ('released', 1) == stage.state()
    assert 1 == stage.run().attempt


def test_what_its_child_ended_before_it_died_is_not_begun_again(stage):
    child = stage.child()
    stage.store.finish(RunKey('report', T), 'token-report', 'succeeded')
    child.seat.leave('token-report')
    child.die()
    stage.parent.lost(child.lease.order, 'token-report', 'celery@a:1', 't', 'signal 9 (SIGKILL)')
    stage.look()
    assert ('succeeded', 0) == stage.state()


def test_the_thread_looks_until_what_is_left_is_seen_to(stage):
    child = stage.child()
    stage.parent._started = False
    stage.parent.follow()
    stage.parent.store = stage.faults
    wait_until(lambda: stage.parent._children)
    child.die()
    stage.parent.settle(stage.order('other'), 'cancelled', 'expired')
    stage.parent.close()
    assert (('released', 1), ('cancelled', 0)) == (stage.state(), stage.state('other'))


def test_the_thread_goes_on_after_a_look_that_failed(stage, log, monkeypatch):
    """The other children need it, whatever went wrong."""
    child = stage.child()
    stage.parent._started = False
    renewed = stage.parent._renew
    failures = iter([ZeroDivisionError('no such luck')])

    def fails_once():
        for failure in failures:
            raise failure
        renewed()

    monkeypatch.setattr(stage.parent, '_renew', fails_once)
    stage.parent.follow()
    stage.parent.store = stage.faults
    wait_until(lambda: stage.parent._children)
    child.die()
    wait_until(lambda: stage.state() == ('released', 1))
    stage.parent.close()
    (said,) = [r.getMessage() for r in log.records if 'no such luck' in r.getMessage()]
    assert 'ZeroDivisionError: no such luck' in said


def test_verdicts_whose_deliveries_never_end_are_forgotten_at_last(monkeypatch):
    monkeypatch.setattr(verdicts, '_MOST', len(verdicts._verdicts) + 2)
    for token in ('one', 'two', 'three', 'two'):
        verdicts.pass_on(token, Verdict('failed', token))
    first, *others = (verdicts.on(token) for token in ('one', 'two', 'three'))
    for token in ('one', 'two', 'three'):
        verdicts.forget(token)
    assert (None, ['two', 'three']) == (first, [verdict.reason for verdict in others])

"""What a parent must not take for a death, a life or an end; and whose page it is that it wipes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from anarchon_celery import board, children, parent, verdicts
from anarchon_celery.children import is_stopped
from anarchon_celery.protocol import Release
from anarchon_celery.verdicts import Verdict
from tests.processes import wait_until
from tests.test_lease import QUICK, lines
from tests.test_lease import log as log
from tests.test_parent import LONG, Child
from tests.test_parent import stage as stage


@pytest.mark.parametrize('number', [errno.ENOSYS, errno.EPERM, errno.EMFILE], ids=errno.errorcode.get)
def test_who_cannot_be_watched_by_a_file_is_not_taken_for_dead(stage, monkeypatch, number):
    def pidfd_open(pid):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, 'pidfd_open', pidfd_open)
    child = stage.child()
    stage.look()
    assert ('running', 0) == stage.state()
    child.die(reaped=False)
    stage.look()
    assert ('released', 1) == stage.state()


def test_who_has_the_number_of_a_child_now_and_is_somebody_elses_is_no_child(monkeypatch):
    def kill(pid, number):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.delattr(os, 'pidfd_open')
    monkeypatch.setattr(os, 'kill', kill)
    deaths = children.Deaths()
    deaths.watch(os.getpid())
    assert {os.getpid()} == deaths.dead()


def test_a_stopped_child_is_not_renewed_until_it_goes_on(stage):
    child, other = stage.child('a', QUICK), stage.child('b', QUICK)
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(child.pid))
    wait_until(lambda: child.lease.wants_renewal() and other.lease.wants_renewal())
    deadlines = stage.run('a').deadline, stage.run('b').deadline
    stage.look()
    assert (True, False) == (deadlines[0] == stage.run('a').deadline, deadlines[1] == stage.run('b').deadline)
    os.kill(child.pid, signal.SIGCONT)
    wait_until(lambda: not is_stopped(child.pid))
    wait_until(lambda: stage.look() or stage.run('a').deadline > deadlines[0])
    assert other.process.poll() is None


def test_a_process_that_is_gone_is_not_stopped():
    with subprocess.Popen(['true']) as process:
        process.wait()
    assert not is_stopped(process.pid)


# whose run it is, and whose page -------------------------------------------------------------------


def test_who_was_replaced_before_its_death_was_seen_is_seen_to_all_the_same(stage):
    first = stage.child()
    stage.look()
    first.die()
    second = Child(first.place)
    stage.children.append(second)
    second.seat._place.write(None)  # it waited for long enough
    second.take(stage.order('other', LONG))
    stage.look()
    assert ('released', 1) == stage.state()
    assert [second.pid] == [child.pid for child in stage.parent._known()]
    assert 'token-other' == first.place.read()['token']
    stage.look()
    assert 1 == stage.faults.count('release')


def test_what_the_next_child_wrote_meanwhile_is_not_wiped(stage):
    first, second = stage.child(), None
    stage.look()
    first.die()

    def late(verb):
        nonlocal second
        if verb == 'release' and second is None:
            second = Child(first.place)
            stage.children.append(second)
            first.place.write(None)
            second.take(stage.order('other', LONG))

    count = stage.faults.calls.append
    stage.faults.calls = SimpleNamespace(append=lambda call: (late(call[0]), count(call)))
    stage.look()
    assert ('released', 1) == stage.state()
    assert 'token-other' == first.place.read()['token']
    stage.look()
    assert [second.pid] == [child.pid for child in stage.parent._known()]


def test_who_hands_over_and_is_killed_then_has_not_begun_another_attempt(stage):
    child = stage.child()
    stage.look()
    assert [True] == stage.store.release([Release(key=child.lease.key, token='token-report')])
    child.seat.leave('token-report')
    stage.look()
    child.die()
    stage.parent.lost(child.lease.order, 'token-report', 'celery@a:1', 't', 'signal 9 (SIGKILL)')
    stage.look()
    assert ('released', 0, 1) == (*stage.state(), stage.run().attempt)


# before the start is answered ----------------------------------------------------------------------


@pytest.mark.parametrize('exits', [False, True])
def test_who_dies_before_its_start_came_to_the_store_leaves_no_run_that_waits_for_its_message(stage, exits):
    child = stage.child(started=False)
    stage.stopping.set()
    if exits:
        stage.look()
        order = stage.parent._children[0].order
        child.seat.exit(order, order.start(token='token-report', worker='celery@a:1', task_id='t'))
    child.die()
    stage.look()
    assert ('released', int(not exits)) == stage.state()


def test_who_is_revoked_before_its_start_came_to_the_store_is_cancelled(stage, log):
    child = stage.child(started=False)
    verdicts.pass_on('token-report', Verdict('cancelled', 'revoked'))
    child.die()
    stage.faults.down = True
    stage.look()  # the verdict is remembered
    stage.look()
    stage.faults.down = False
    wait_until(lambda: stage.look() or stage.run().ended)
    assert ('cancelled', 'revoked', 0) == (stage.run().state, stage.run().reason, stage.run().attempt)
    assert ['cancelled: revoked'] == lines(log)


def test_a_retry_whose_child_dies_before_its_start_does_not_wait_for_its_deadline(stage):
    order = stage.order()
    first = order.start(token='first', worker='celery@a:1', task_id='t')
    stage.store.start(first)
    assert stage.store.requeue(order.key, 'first', delay=0, retries=2, start_timeout=60_000)
    stage.parent.lost(order, 'second', 'celery@a:1', 't', 'signal 9 (SIGKILL)', retries=2)
    stage.look()
    assert ('released', 1) == stage.state()


def test_who_exits_and_never_comes_to_its_end_has_left_its_body(stage, monkeypatch):
    child = stage.child()
    stage.look()
    child.seat.say(child.lease, 'exiting')
    monkeypatch.setattr(parent, 'EXITS_WITHIN', 0.2)
    stage.look()
    assert ('running', 0) == stage.state()
    wait_until(lambda: stage.look() or stage.state() == ('released', 1))
    assert child.process.poll() is None


# what two threads of a child say -------------------------------------------------------------------


@pytest.mark.parametrize('phase', ['ending', 'exiting'])
def test_a_heartbeat_that_was_answered_late_takes_back_nothing(stage, phase):
    child = stage.child()
    child.lease.ending, child.lease.left_to_parent = True, phase == 'exiting'
    child.seat.say(child.lease, phase)
    child.seat.say(child.lease, 'held')
    child.seat.say(child.lease, 'lost')
    assert phase == child.place.read()['phase']


def test_after_it_left_nothing_more_is_said_of_a_run(stage):
    child = stage.child()
    child.seat.leave('token-report')
    child.seat.say(child.lease, 'held')
    assert (None, False) == (child.place.read(), child.place.taken)


def test_what_two_threads_say_is_written_one_after_the_other(stage, monkeypatch):
    # Both would take the same half of the page for the idle one.
    child, overlapped = stage.child(), []
    written = child.place.write
    inside = threading.Semaphore(1)

    def write(said):
        if not inside.acquire(blocking=False):
            overlapped.append(said)
            return
        time.sleep(0.001)  # let the other one come
        written(said)
        inside.release()

    monkeypatch.setattr(child.place, 'write', write)
    threads = [
        threading.Thread(target=lambda: [child.seat.say(child.lease, 'held') for _ in range(20)])
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == overlapped


def test_the_board_needs_no_disk(monkeypatch):
    # Its processes would be killed by SIGBUS, once the disk is full.
    monkeypatch.setenv(board.WHERE, '')
    monkeypatch.setattr(tempfile, 'tempdir', '/nowhere/to/be/found')
    made = board.make()
    assert os.readlink(os.environ[board.WHERE]).startswith('/memfd:')
    made.place(1).write({'holds': 'report'})


def test_who_came_to_the_next_task_meanwhile_is_not_killed_for_the_one_before(stage):
    child = stage.child(policy=replace(QUICK, stop_grace=0))
    stage.look()
    stage.take_over()
    wait_until(child.lease.wants_renewal)

    def leave(call):
        child.seat.leave('token-report')
        count(call)

    count = stage.faults.calls.append
    stage.faults.calls = SimpleNamespace(append=leave)
    stage.look()  # it hears that the lease is lost, and the child is done with it while the store is asked
    assert child.process.poll() is None
    assert not stage.parent._children[0].killed

"""A message that its pool ends when the body is over, or not begun: its run goes on elsewhere, at once."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from billiard.process import current_process
from celery.exceptions import SoftTimeLimitExceeded, WorkerTerminate

from anarchon_celery import board, keeper, verdicts, worker
from anarchon_celery.verdicts import Verdict
from tests.test_task import STARTED, as_in_a_worker, lines, log, make_stage, stage, stop_the_worker

HANDED_OVER = 'interrupted after N ms, handed over to another instance'


def cut_short(monkeypatch, owner, name, before=lambda: None, *, after=False, by=WorkerTerminate):
    """Let the pool end the message within a call, the first time that it is made."""
    real, cut = getattr(owner, name), []

    def call(*args, **kwargs):
        if cut:
            return real(*args, **kwargs)
        cut.append(name)
        if after:
            real(*args, **kwargs)
        before()
        raise by

    monkeypatch.setattr(owner, name, call)


def deliver(stage):
    with pytest.raises(SystemExit):
        stage.deliver()
    for _, mine in keeper._keepers.values():
        assert {} == mine._leases, 'renewed no more'


def store_of(stage):
    return worker.keeper(stage.app).store


@pytest.mark.parametrize(('stops', 'crashes'), [(True, 0), (False, 1)])
def test_who_is_ended_while_the_result_is_stored_has_not_succeeded(
    stage, monkeypatch, stop_the_worker, stops, crashes
):
    # Celery has published its links then, or not; what it had to store is not stored.
    @stage.task()
    def job(self):
        return 'done'

    cut_short(monkeypatch, stage.app.backend, 'mark_as_done', stop_the_worker if stops else lambda: None)
    key = stage.dispatch()
    deliver(stage)
    assert ('released', crashes) == (stage.run(key).state, stage.run(key).crashes)
    assert 'PENDING' == stage.result.state


def test_who_is_ended_while_its_failure_is_stored_has_not_failed(stage, monkeypatch, stop_the_worker):
    @stage.task()
    def job(self):
        raise ValueError

    cut_short(monkeypatch, stage.app.backend, 'mark_as_failure', stop_the_worker)
    key = stage.dispatch()
    deliver(stage)
    assert ('released', 0) == (stage.run(key).state, stage.run(key).crashes)


def test_who_was_revoked_while_the_result_was_stored_is_cancelled(stage, monkeypatch):
    @stage.task()
    def job(self):
        pass

    revoked = Verdict('cancelled', 'revoked')
    cut_short(monkeypatch, stage.app.backend, 'mark_as_done', lambda: verdicts.pass_on(stage.token, revoked))
    key = stage.dispatch()
    deliver(stage)
    assert ('cancelled', 'revoked') == (stage.run(key).state, stage.run(key).reason)


@pytest.mark.parametrize(('after', 'state'), [(False, 'released'), (True, 'succeeded')])
def test_who_is_ended_while_the_end_is_recorded_gives_back_what_was_not(
    stage, monkeypatch, stop_the_worker, after, state
):
    @stage.task()
    def job(self):
        pass

    cut_short(monkeypatch, store_of(stage), 'finish', stop_the_worker, after=after)
    key = stage.dispatch()
    deliver(stage)
    assert (state, 0) == (stage.run(key).state, stage.run(key).crashes)


def test_who_is_ended_while_it_hands_over_hands_over(stage, monkeypatch, stop_the_worker, log):
    @stage.task()
    def job(self):
        stop_the_worker()
        self.lease.wait(5)

    cut_short(monkeypatch, store_of(stage), 'release')
    key = stage.dispatch()
    deliver(stage)
    assert ('released', 0) == (stage.run(key).state, stage.run(key).crashes)
    assert [STARTED, HANDED_OVER] == lines(log)


@pytest.mark.parametrize(('after', 'state'), [(False, 'queued'), (True, 'released')])
def test_who_is_ended_while_it_starts_gives_back_what_it_began(stage, monkeypatch, after, state):
    @stage.task()
    def job(self):
        pass

    cut_short(monkeypatch, store_of(stage), 'start', after=after)
    key = stage.dispatch()
    deliver(stage)
    assert (state, 0) == (stage.run(key).state, stage.run(key).crashes)


def test_a_retry_that_was_recorded_stays_one(stage, monkeypatch, stop_the_worker):
    @stage.task()
    def job(self):
        raise self.retry(countdown=60)

    cut_short(monkeypatch, stage.app.backend, 'mark_as_retry', stop_the_worker)
    key = stage.dispatch()
    deliver(stage)
    assert ('queued', 1) == (stage.run(key).state, stage.run(key).retries)
    assert 1 == len(stage.messages())


def test_a_hook_that_exits_by_itself_is_not_the_pool(stage, monkeypatch):
    @stage.task()
    def job(self):
        return 'done'

    monkeypatch.setattr(type(stage.app.tasks['proj.job']), 'on_success', lambda *_: sys.exit(3))
    key = stage.dispatch()
    deliver(stage)
    assert ('succeeded', 'SUCCESS') == (stage.run(key).state, stage.result.state)


@pytest.mark.parametrize('call', ['start', 'finish'])
def test_in_a_child_of_prefork_it_is_left_to_the_parent(stage, monkeypatch, call):
    @stage.task()
    def job(self):
        pass

    place = board.make().place(0)
    monkeypatch.setattr(worker, 'place', lambda: place)
    monkeypatch.setattr(worker, 'stopping', lambda: False)
    cut_short(monkeypatch, store_of(stage), call)
    stage.dispatch()
    deliver(stage)
    assert ('exiting', stage.token) == (place.read()['phase'], place.read()['token'])


@pytest.mark.parametrize('ends', ['sys.exit(0)', 'sys.exit(-241)'])
def test_a_fork_of_the_tasks_own_comes_to_its_own_end(stage, monkeypatch, ends):
    # Else it would live on as a second worker, or give a run back that goes on.
    monkeypatch.setattr(current_process(), '_name', 'ForkPoolWorker-1')
    place = board.make().place(0)
    monkeypatch.setattr(worker, 'place', lambda: place)

    @stage.task()
    def job(self):
        child = os.fork()
        if child == 0:
            exec(ends)
        stage.log.append(os.waitpid(child, 0)[1])
        stage.log.append(place.read()['phase'])

    key = stage.dispatch()
    parent = os.getpid()
    try:
        stage.deliver()
    except SystemExit as reason:
        assert os.getpid() != parent
        os._exit(7 if reason.code in (0, -241) else 1)
    finally:
        if os.getpid() != parent:
            os._exit(9)
    assert [7, 'held'] == [os.waitstatus_to_exitcode(stage.log[0]), stage.log[1]]
    assert 'succeeded' == stage.run(key).state


@pytest.mark.parametrize('after', [False, True], ids=['before it', 'after it'])
@pytest.mark.parametrize(
    ('ends', 'call', 'state'), [('returns', 'finish', 'succeeded'), ('hands over', 'release', 'released')]
)
def test_a_soft_time_limit_while_the_end_is_recorded_comes_too_late(
    stage, monkeypatch, stop_the_worker, ends, call, state, after
):
    @stage.task()
    def job(self):
        if ends == 'hands over':
            stop_the_worker()
            self.lease.wait(5)

    cut_short(monkeypatch, store_of(stage), call, after=after, by=SoftTimeLimitExceeded)
    key = stage.dispatch()
    stage.deliver()
    assert (state, 0) == (stage.run(key).state, stage.run(key).crashes)


@pytest.mark.parametrize(('after', 'state'), [(False, 'queued'), (True, 'released')])
def test_a_soft_time_limit_while_the_start_is_asked_for_leaves_no_run_without_a_holder(
    stage, monkeypatch, after, state
):
    @stage.task()
    def job(self):
        pass

    place = board.make().place(0)
    monkeypatch.setattr(worker, 'place', lambda: place)
    cut_short(monkeypatch, store_of(stage), 'start', after=after, by=SoftTimeLimitExceeded)
    key = stage.dispatch()
    assert 'FAILURE' == stage.deliver().state
    assert (state, None) == (stage.run(key).state, place.read())


def test_who_is_told_inside_a_signal_handler_may_hold_what_it_waits_with(stage):
    # The handler runs in the task's own thread, in the midst of whatever that does: in lease.wait(), say.
    @stage.task()
    def job(self):
        with self.lease._told._cond:
            worker.keeper(self.app).end_body(self.lease)
        self.lease.wait(5)

    key = stage.dispatch()
    thread = threading.Thread(target=stage.deliver, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert ('released', 0) == (stage.run(key).state, stage.run(key).crashes)

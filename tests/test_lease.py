"""A lease as a task sees it, and the keeper that starts, renews and ends it.

The store is the real one; ``Faults`` stands on the way to it where it has to fail.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import secrets
import threading
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import cast

import pytest
from celery import Celery

from anarchon_celery import HandedOver, LeaseLost, current_lease, events, headers, keeper
from anarchon_celery.config import Config, Policy
from anarchon_celery.errors import StoreError, StoreUnreachable
from anarchon_celery.keeper import Keeper, keeper_of
from anarchon_celery.lease import Cancelled, HeldLease, held
from anarchon_celery.protocol import (
    OVERTAKEN,
    Node,
    Offer,
    Redispatch,
    Registration,
    RunKey,
    Stale,
    Start,
    Started,
)
from anarchon_celery.stores import Store, memory, new_nonce, open_store
from anarchon_celery.stores.clock import monotonic
from tests.processes import wait_until
from tests.rollback import wipe

T = 1_790_002_800_250
VERBS = ("start", "renew", "finish", "requeue", "release")

#: Renewed often, and trusted for nine seconds: nothing a busy machine could use up.
QUICK = Policy(lease=10_000, heartbeat=200)


class Faults:
    """The real store, and a way to it that fails when a test says so."""

    def __init__(self, store) -> None:
        self.store = store
        self.down = False
        self.fails: Counter[str] = Counter()
        self.lose_answers: Counter[str] = Counter()
        self.calls: list[tuple[str, tuple]] = []

    def count(self, verb: str) -> int:
        return sum(name == verb for name, _ in self.calls)

    def __getattr__(self, name):
        verb = getattr(self.store, name)
        if name not in VERBS:
            return verb

        def call(*args, **kwargs):
            self.calls.append((name, args))
            if self.down or self.fails[name] > 0:
                self.fails[name] -= 1
                raise StoreUnreachable("it is down")
            answer = verb(*args, **kwargs)
            if self.lose_answers[name] > 0:
                self.lose_answers[name] -= 1
                raise StoreUnreachable("the answer was lost")
            return answer

        return call


class Stage:
    """A keeper on a store, and runs for it that a beat has published."""

    def __init__(self) -> None:
        self.url = f"memory://{secrets.token_hex(4)}"
        self.app = Celery("proj", broker="memory://", set_as_current=False)
        self.app.conf.anarchon_store = self.url
        self.store = open_store(self.url)
        self.stopping = threading.Event()
        self.keeper = Keeper(Config.of(self.app), self.stopping.is_set)
        self.faults = Faults(self.keeper.store)
        self.keeper.store = cast(Store, self.faults)

    def order(self, job: str = "report", policy: Policy = QUICK) -> headers.Order:
        """Claim the slot T of a job, as beat does, and read the header of its message."""
        self.store.register(Node(id="n", name="n"), [Registration(job=job, hash="h")])
        (answer,) = self.store.claim("n", [Offer(job=job, slots=(T,))], nonce=new_nonce(), now=T)
        run = answer.claims[0].run
        assert run is not None
        return headers.read(headers.write(run, "proj.report", policy, task_id="a1"))

    def start(self, job: str = "report", policy: Policy = QUICK) -> HeldLease:
        order = self.order(job, policy)
        started = self.keeper.start(order, token=f"token-{job}", worker="celery@a:1", task_id=f"id-{job}")
        assert isinstance(started, HeldLease)
        return started

    def run(self, job: str = "report"):
        return self.store.run(RunKey(job, T))

    def take_over(self, job: str = "report", *, start: bool = True) -> None:
        """Dispatch the run again and start it elsewhere, as if its deadline had passed."""
        run = self.run(job)
        asked = Redispatch(key=run.key, state=run.state, dispatch=run.dispatch, deadline=run.deadline)
        (claim,) = self.store.redispatch("other", [asked], nonce=new_nonce(), now=run.deadline)
        assert claim.won
        if start:
            other = Start(key=run.key, token="another", worker="celery@b:2", lease=30_000)
            assert isinstance(self.store.start(other, now=run.deadline), Started)

    def overtake(self, job: str = "report") -> None:
        """Let the next slot of the job come due under overlap ``cancel``."""
        offer = Offer(job=job, slots=(T + 1_000,), overlap="cancel")
        (claimed,) = self.store.claim("other", [offer], nonce=new_nonce(), now=T + 1_000)
        assert ["overlap"] == [claim.answer for claim in claimed.claims]
        assert OVERTAKEN == self.run(job).stop

    def end_elsewhere(self, job: str = "report") -> None:
        """A beat finds the run past its deadline, and ends it because it was to stop."""
        run = self.run(job)
        asked = Redispatch(key=run.key, state=run.state, dispatch=run.dispatch, deadline=run.deadline)
        (claim,) = self.store.redispatch("other", [asked], nonce=new_nonce(), now=run.deadline)
        assert "cancelled" == claim.answer

    def close(self) -> None:
        for each in list(self.keeper._leases.values()):
            self.keeper.let_go(each)
        self.app.close()
        memory._ROOMS.pop((self.url, "anarchon"), None)


@pytest.fixture
def stage(monkeypatch):
    monkeypatch.setattr(keeper, "LOOK_EVERY", 10)
    monkeypatch.setattr(keeper, "_keepers", {})
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level(logging.DEBUG, "anarchon_celery")
    caplog.set_level(logging.INFO, "celery")
    yield caplog
    events.log_runs(True)


def held_by(keeper, task_id):
    """The lease under which a message runs in this process."""
    return next((lease for lease in keeper._leases.values() if lease.task_id == task_id), None)


def lines(log, containing: str = "") -> list[str]:
    """What was said of runs, their names cut off and times as ``N``."""
    said = [r.getMessage() for r in log.records if r.name == "anarchon_celery.runs"]
    shown = [re.sub(r"\d+ ms", "N ms", line.split("Z: ", 1)[1]) for line in said]
    return [line for line in shown if containing in line]


class Watch:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def watch(monkeypatch):
    """The time by which leases are trusted, moved by the test."""
    watch = Watch()
    monkeypatch.setattr(Keeper, "monotonic", lambda self: watch())
    return watch


@contextmanager
def in_thread(what):
    """Do it in a thread; its exception, if any, is in the list afterwards."""
    raised: list[BaseException] = []

    def run():
        try:
            what()
        except BaseException as reason:
            raised.append(reason)

    thread = threading.Thread(target=run)
    thread.start()
    yield raised
    thread.join(10)
    assert not thread.is_alive()


def test_who_is_revoked_where_nobody_can_end_the_body_is_asked_to_stop_and_held_on(stage, log):
    """In threads and solo. The store knows nothing of it: the run is this worker's until its body ends."""
    mine = stage.start()
    stage.keeper.revoke(mine, "revoked")
    with pytest.raises(LeaseLost, match="revoked"):
        mine.check()
    renewed = mine.renewed_at
    wait_until(lambda: mine.renewed_at > renewed)
    assert ("running", None) == (stage.run().state, stage.run().stop)
    stage.keeper.end_cancelled(mine)
    assert ("cancelled", "revoked") == (stage.run().state, stage.run().reason)
    assert ["asked to stop after N ms: revoked", "cancelled after N ms: revoked"] == lines(log)


# A store that forgets ---------------------------------------------------------------------------


PUT_BACK = "put back after N ms into a store that had forgotten it"


def forget(stage) -> None:
    wipe(stage.store)
    assert stage.run() is None


def test_the_heartbeat_puts_a_run_back_into_a_store_that_forgot_it(stage, log):
    mine = stage.start()
    known = stage.run()
    forget(stage)
    run = wait_until(stage.run)
    assert ("running", 1, mine.fence, "celery@a:1", "id-report", known.claimed_at) == (
        run.state, run.attempt, run.fence, run.owner, run.task_id, run.claimed_at,
    )  # fmt: skip
    wait_until(lambda: lines(log, PUT_BACK))
    renewed = mine.renewed_at
    wait_until(lambda: mine.renewed_at > renewed)
    mine.check()
    assert stage.keeper.store.identity == mine.store, "which could lose it, too"
    stage.keeper.finish(mine, "succeeded")
    assert "succeeded" == stage.run().state
    assert [PUT_BACK, "finished in N ms"] == lines(log)


@pytest.mark.parametrize("how", ["finish", "hand_over", "requeue", "end_cancelled"])
def test_whatever_a_holder_does_last_puts_the_run_back_first(stage, log, how):
    mine = stage.start(policy=Policy(lease=10_000, heartbeat=9_000))  # no heartbeat comes before
    forget(stage)
    if how == "finish":
        stage.keeper.finish(mine, "failed", "ValueError: x")
    elif how == "hand_over":
        stage.keeper.hand_over(mine)
    elif how == "requeue":
        assert stage.keeper.requeue(mine, delay=1_000, retries=1)
    else:
        stage.keeper.ask_to_stop(mine, "by hand")
        stage.keeper.end_cancelled(mine)
    ended = {"finish": "failed", "hand_over": "released", "requeue": "queued", "end_cancelled": "cancelled"}
    assert (ended[how], 1, mine.fence) == (stage.run().state, stage.run().attempt, stage.run().fence)
    assert PUT_BACK in lines(log)


def test_who_does_not_trust_his_lease_any_more_puts_nothing_back(stage, log, watch):
    mine = stage.start()
    stage.keeper.let_go(mine)
    forget(stage)
    watch.at += 9.0
    stage.keeper.finish(mine, "succeeded")
    assert stage.run() is None
    assert ["lease lost after N ms: it had ended or moved on before"] == lines(log)


def test_a_run_that_waits_for_a_young_store_is_told_for_how_long(stage):
    mine = stage.start("other")
    wipe(stage.store)
    order = stage.order()
    answer = stage.keeper.start(order, token="t", worker="celery@a:1", task_id="id")
    assert isinstance(answer, Stale)
    assert 0 < answer.wait <= QUICK.lease
    stage.keeper.let_go(mine)


# Outside a run ----------------------------------------------------------------------------------


def test_outside_a_run_a_lease_never_ends():
    endless = current_lease()
    assert (None, None, 1, 0, "manual") == (
        endless.job, endless.slot, endless.attempt, endless.fence, endless.trigger,
    )  # fmt: skip
    assert (float("inf"), False, None) == (endless.remaining, endless.aborted, endless.reason)
    endless.check()


def test_outside_a_run_waiting_is_sleeping():
    before = time.monotonic()
    current_lease().wait(0.05)
    assert time.monotonic() - before >= 0.05


def test_the_current_lease_is_the_threads_own(stage):
    mine = stage.start()
    outside = current_lease()
    with held(mine):
        assert mine is current_lease()
        found = []
        thread = threading.Thread(target=lambda: found.append(current_lease()))
        thread.start()
        thread.join()
        assert [outside] == found
    assert outside is current_lease()


def test_the_exceptions_are_celerys_way_to_end_a_task_without_a_result():
    from celery.exceptions import Ignore

    from anarchon_celery import AnarchonError

    for kind in (LeaseLost, HandedOver):
        assert issubclass(kind, Ignore)
        assert issubclass(kind, AnarchonError)


# In a run ---------------------------------------------------------------------------------------


def test_a_lease_tells_what_it_is_for(stage):
    mine = stage.start()
    slot = datetime(2026, 9, 21, 15, 0, 0, 250_000, tzinfo=timezone.utc)
    assert ("report", slot, 1, "scheduled") == (mine.job, mine.slot, mine.attempt, mine.trigger)
    assert stage.run().fence == mine.fence > 0
    assert f"<HeldLease report @ 2026-09-21 15:00:00.250000+00:00 attempt 1 fence {mine.fence}>" == repr(mine)
    run = stage.run()
    assert ("running", "celery@a:1", "token-report", "id-report", 10_000) == (
        run.state, run.owner, run.token, run.task_id, run.lease,
    )  # fmt: skip


def test_a_message_that_may_not_start_is_stale_and_nothing_is_held(stage):
    order = stage.order()
    stage.store.start(Start(key=order.key, token="another", worker="w"))
    answer = stage.keeper.start(order, token="t", worker="w", task_id="id")
    assert Stale(why="running") == answer
    assert held_by(stage.keeper, "id") is None


def test_trust_counts_from_before_the_question_and_ends_before_the_lease(stage, watch):
    class Slow(Faults):
        def start(self, asked):
            watch.at += 2.0
            return self.store.start(asked)

    stage.keeper.store = Slow(stage.store)
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=10_000))
    assert 25.0 == mine.remaining, "30 s, less a tenth, less the 2 s that the answer took"
    watch.at += 24.9
    mine.check()
    assert (False, None) == (mine.aborted, mine.reason)
    watch.at += 0.2
    assert (0.0, True) == (mine.remaining, mine.aborted)
    assert "the lease could not be renewed in time" == mine.reason
    with pytest.raises(LeaseLost, match="could not be renewed in time"):
        mine.check()


def test_what_check_raised_is_remembered(stage, watch):
    mine = stage.start()
    mine.tell(HandedOver("the worker stops"))
    assert mine.raised is None
    with pytest.raises(HandedOver) as raised:
        mine.check()
    assert raised.value is mine.raised


def test_a_lost_lease_is_the_last_word(stage):
    mine = stage.start()
    assert mine.tell(HandedOver("the worker stops"))
    assert not mine.tell(HandedOver("the worker stops"))
    assert mine.tell(LeaseLost("taken over"))
    assert not mine.tell(HandedOver("the worker stops"))
    assert not mine.tell(LeaseLost("again"))
    assert ("taken over", True, 0.0) == (mine.reason, mine.lost, mine.remaining)
    with pytest.raises(LeaseLost, match="taken over"):
        mine.check()


def test_wait_ends_after_its_time_when_there_is_nothing_to_tell(stage):
    mine = stage.start()
    before = time.monotonic()
    mine.wait(0.05)
    assert time.monotonic() - before >= 0.049


def test_wait_raises_at_once_what_is_known_already(stage):
    mine = stage.start()
    mine.tell(HandedOver("the worker stops"))
    before = time.monotonic()
    with pytest.raises(HandedOver):
        mine.wait(30)
    assert time.monotonic() - before < 10


def test_how_long_it_was_held(stage, watch):
    mine = stage.start()
    watch.at += 1.2345
    assert 1234 == mine.ms


# The heartbeat ----------------------------------------------------------------------------------


def test_one_call_renews_all_leases_of_a_process(stage):
    jobs = ("a", "b", "c")
    mine = [stage.start(job, Policy(lease=30_000, heartbeat=20)) for job in jobs]
    deadlines = [stage.run(job).deadline for job in jobs]
    wait_until(lambda: all(stage.run(job).deadline > old for job, old in zip(jobs, deadlines, strict=True)))
    wait_until(lambda: stage.faults.count("renew") >= 4)
    last = [args[0] for name, args in stage.faults.calls if name == "renew"][-1]
    assert [each.holding for each in mine] == last


def test_a_lease_lives_as_long_as_the_heartbeat_goes_on(stage, watch):
    mine = stage.start()
    for beats in range(1, 101):  # twenty seconds: twice the lease
        watch.at += 0.2
        wait_until(lambda: mine.renewed_at == watch.at)
        assert beats == stage.faults.count("renew")
    assert 9.0 == mine.remaining
    mine.check()


def test_heartbeats_come_at_their_interval_and_end_with_the_last_lease(stage, watch):
    mine = stage.start()
    watch.at += 0.199
    time.sleep(0.1)
    assert 0 == stage.faults.count("renew")
    watch.at += 0.002
    wait_until(lambda: stage.faults.count("renew") == 1)
    stage.keeper.finish(mine, "succeeded")
    watch.at += 5
    time.sleep(0.1)
    assert 1 == stage.faults.count("renew")


def test_after_a_pause_the_same_thread_goes_on(stage):
    of_others = {*threading.enumerate()}  # the tests before may have left one that is about to end
    stage.keeper.finish(stage.start("a"), "succeeded")
    time.sleep(0.1)
    stage.start("b")
    wait_until(lambda: stage.faults.count("renew") >= 1)
    begun = {*threading.enumerate()} - of_others
    assert ["anarchon-heartbeat"] == [thread.name for thread in begun]


@pytest.mark.parametrize("started", [True, False], ids=["started elsewhere", "dispatched again"])
def test_a_lease_that_another_took_is_lost_and_the_task_is_woken_at_once(stage, log, started):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=50))
    with in_thread(lambda: mine.wait(20)) as raised:
        stage.take_over(start=started)
        wait_until(lambda: raised, 5)
    assert ["taken over as attempt 2"] == [str(reason) for reason in raised]
    assert isinstance(raised[0], LeaseLost)
    assert ["lease lost after N ms: taken over as attempt 2"] == lines(log)
    assert (True, 0.0) == (mine.aborted, mine.remaining)
    assert held_by(stage.keeper, "id-report") is None, "and is renewed no more"


def test_one_lost_lease_does_not_concern_the_others(stage):
    lost, kept = (stage.start(job, Policy(lease=30_000, heartbeat=50)) for job in ("a", "b"))
    stage.take_over("a")
    wait_until(lambda: lost.lost)
    renewed = stage.faults.count("renew")
    wait_until(lambda: stage.faults.count("renew") > renewed)
    kept.check()


def test_when_the_store_is_gone_trust_ends_and_the_task_is_told(stage, watch, log):
    mine = stage.start()
    stage.faults.down = True
    with in_thread(lambda: mine.wait(60)) as raised:
        watch.at += 8.9
        wait_until(lambda: stage.faults.count("renew") >= 1)
        assert ([], False) == (raised, mine.aborted)
        watch.at += 0.1
        wait_until(lambda: raised)
    assert ["it could not be renewed in time"] == [str(reason) for reason in raised]
    assert isinstance(raised[0], LeaseLost)
    assert ["lease lost after N ms: it could not be renewed in time"] == lines(log)


def test_a_waiting_task_sees_the_end_of_trust_by_itself_too(stage):
    mine = stage.start(policy=Policy(lease=800, heartbeat=400))
    stage.keeper.let_go(mine)  # nobody tells it
    with pytest.raises(LeaseLost, match="the lease could not be renewed in time"):
        mine.wait(60)


def test_a_store_that_is_back_in_time_is_no_loss(stage, watch, log):
    mine = stage.start()
    stage.faults.fails["renew"] = 3
    for tried in (1, 2, 3, 4):
        watch.at += 0.2
        wait_until(lambda tried=tried: stage.faults.count("renew") == tried)
    wait_until(lambda: mine.remaining == 9.0)
    assert [] == lines(log)


def test_a_store_that_does_not_answer_is_not_asked_at_every_look(stage, watch):
    stage.start()
    stage.faults.down = True
    watch.at += 0.2
    wait_until(lambda: stage.faults.count("renew") == 1)
    time.sleep(0.2)
    assert 1 == stage.faults.count("renew")


def test_with_a_redis_that_was_killed_trust_ends(own_redis_server, stage, log):
    store = open_store(own_redis_server.url(), options={"socket_timeout": 0.2})
    stage.store, stage.keeper.store = store, store
    mine = stage.start(policy=Policy(lease=2_000, heartbeat=200))
    own_redis_server.kill()
    with pytest.raises(LeaseLost):
        mine.wait(60)
    wait_until(lambda: lines(log, "lease lost after N ms: it could not be renewed in time"))
    own_redis_server.start()
    assert "running" == store.run(mine.key).state, "nobody else was let in meanwhile"
    store.close()


def test_after_max_runtime_a_hung_task_is_renewed_no_more(stage, watch, log):
    hung = stage.start("hung", Policy(lease=3_000, heartbeat=200, max_runtime=1_000))
    healthy = stage.start("healthy")
    for _ in range(19):
        watch.at += 0.2
        wait_until(lambda: healthy.renewed_at == watch.at)
    wait_until(lambda: hung.lost)
    assert 101.0 >= hung.renewed_at > 100.7
    assert ["lease lost after N ms: it ran for longer than its max_runtime of 1 s"] == lines(log)
    assert (None, healthy) == (held_by(stage.keeper, "id-hung"), held_by(stage.keeper, "id-healthy"))
    healthy.check()


def test_a_hung_task_does_not_drive_the_heartbeat_of_the_others(stage, watch):
    stage.start("hung", Policy(lease=60_000, heartbeat=100, max_runtime=1))
    stage.start("healthy")
    watch.at += 0.19
    time.sleep(0.1)
    assert 0 == stage.faults.count("renew")


def test_an_error_of_one_look_does_not_end_the_heartbeat(stage, watch, log):
    class Broken(Faults):
        broken = 1

        def renew(self, holdings):
            if self.broken:
                self.broken -= 1
                raise ZeroDivisionError
            return self.store.renew(holdings)

    stage.keeper.store = Broken(stage.store)
    mine = stage.start()
    watch.at += 0.2
    wait_until(lambda: mine.renewed_at == watch.at)
    assert ["[anarchon] this look failed, the next one follows: ZeroDivisionError"] == [
        record.getMessage() for record in log.records if record.levelname == "ERROR"
    ]


def test_a_stopping_worker_tells_its_tasks(stage):
    mine = stage.start()
    with in_thread(lambda: mine.wait(20)) as raised:
        stage.stopping.set()
        wait_until(lambda: raised, 5)
    assert isinstance(raised[0], HandedOver)
    assert "the worker stops" == mine.reason
    assert "running" == stage.run().state, "it is the task's to stop"


def test_a_job_that_does_not_hand_over_is_not_told(stage):
    mine = stage.start(policy=Policy(lease=10_000, heartbeat=20, handover=False))
    stage.stopping.set()
    wait_until(lambda: stage.faults.count("renew") >= 3)
    mine.check()


# The end ----------------------------------------------------------------------------------------


def test_a_success_is_recorded(stage, log):
    stage.keeper.finish(stage.start(), "succeeded")
    assert ("succeeded", None) == (stage.run().state, stage.run().reason)
    assert ["finished in N ms"] == lines(log)
    assert held_by(stage.keeper, "id-report") is None


def test_a_failure_is_recorded_with_its_reason(stage, log):
    stage.keeper.finish(stage.start(), "failed", "ValueError: no")
    assert ("failed", "ValueError: no") == (stage.run().state, stage.run().reason)
    assert ["failed after N ms: ValueError: no"] == lines(log)


def test_the_end_of_a_run_that_was_lost_is_refused(stage, log):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=10_000))
    stage.take_over()
    before = stage.run()
    stage.keeper.finish(mine, "succeeded")
    assert before == stage.run()
    assert ["lease lost after N ms: it had ended or moved on before"] == lines(log)
    assert mine.lost


def test_an_end_is_recorded_again_and_again_while_the_store_is_away_for_a_moment(stage, log):
    mine = stage.start()
    stage.faults.fails["finish"] = 3
    stage.keeper.finish(mine, "succeeded")
    assert "succeeded" == stage.run().state
    assert 4 == stage.faults.count("finish")
    assert ["finished in N ms"] == lines(log)


def test_an_end_whose_answer_was_lost_is_an_end(stage, log):
    mine = stage.start()
    stage.faults.lose_answers["finish"] = 2
    stage.keeper.finish(mine, "succeeded")
    assert ["finished in N ms"] == lines(log)


def test_an_end_that_cannot_be_recorded_is_given_up_when_trust_ends(stage, log):
    mine = stage.start(policy=Policy(lease=1_000, heartbeat=300))
    stage.faults.down = True
    stage.keeper.finish(mine, "succeeded")
    assert ["succeeded, but that could not be recorded: it is down"] == lines(log, "succeeded")
    assert held_by(stage.keeper, "id-report") is None


@pytest.mark.parametrize("verb", ["finish", "requeue"])
def test_a_heartbeat_that_meets_the_end_of_its_run_is_no_loss(stage, log, verb):
    class Between(Faults):
        def __getattr__(self, name):
            ask = getattr(self.store, name)

            def call(*args, **kwargs):
                answer = ask(*args, **kwargs)
                stage.keeper._renew([mine])  # the thread, before this answer is heard
                return answer

            return call if name == verb else ask

    mine = stage.start(policy=Policy(lease=30_000, heartbeat=10_000))
    stage.keeper.store = Between(stage.store)
    if verb == "finish":
        stage.keeper.finish(mine, "succeeded")
    else:
        assert stage.keeper.requeue(mine, delay=0, retries=1)
    assert (None if verb == "finish" else "the run waits for its retry") == mine.reason
    assert [] == lines(log, "lost")


def test_a_run_is_handed_over(stage, log):
    mine = stage.start()
    stage.keeper.hand_over(mine)
    run = stage.run()
    assert ("released", 0, 1) == (run.state, run.crashes, run.attempt)
    assert run.deadline <= int(time.time() * 1000), "anybody may have it at once"
    assert ["interrupted after N ms, handed over to another instance"] == lines(log)
    assert held_by(stage.keeper, "id-report") is None


def test_a_run_that_was_lost_is_not_handed_over(stage, log):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=10_000))
    stage.take_over()
    before = stage.run()
    stage.keeper.hand_over(mine)
    assert before == stage.run()
    assert ["lease lost after N ms: taken over"] == lines(log)


def test_handing_over_is_tried_again_and_given_up(stage, log, monkeypatch):
    monkeypatch.setattr(keeper, "RELEASE_WITHIN", 0.3)
    mine = stage.start()
    stage.faults.down = True
    before = monotonic()
    stage.keeper.hand_over(mine)
    assert monotonic() - before < 5
    assert stage.faults.count("release") > 1
    assert ["handed over, but that could not be recorded: it is down"] == lines(log)


def test_a_retry_is_waited_for_and_not_renewed(stage):
    mine = stage.start()
    assert stage.keeper.requeue(mine, delay=60_000, retries=1)
    run = stage.run()
    assert ("queued", 1) == (run.state, run.retries)
    assert run.not_before - run.queued_at == 60_000
    assert run.deadline - run.queued_at == 60_000 + 300_000
    assert held_by(stage.keeper, "id-report") is None


def test_a_retry_of_a_run_that_was_lost_is_refused(stage):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=10_000))
    stage.take_over()
    assert not stage.keeper.requeue(mine, delay=0, retries=1)


def test_a_retry_that_cannot_be_recorded_leaves_the_lease_to_be_confirmed(stage):
    mine = stage.start(policy=Policy(lease=700, heartbeat=350))
    stage.keeper.let_go(mine)  # the heartbeat has no part in this
    stage.keeper._leases[mine.token] = mine
    stage.faults.fails["requeue"] = 1_000
    with pytest.raises(StoreError):
        stage.keeper.requeue(mine, delay=0, retries=1)
    stage.take_over()
    stage.keeper.confirm(mine)
    assert "taken over as attempt 2" == mine.reason


def test_a_start_whose_answer_was_lost_is_asked_again_under_the_same_token(stage):
    stage.faults.lose_answers["start"] = 1
    mine = stage.start()
    assert (1, 2) == (mine.attempt, stage.faults.count("start"))
    assert mine.fence == stage.run().fence


def test_a_start_that_has_no_answer_is_given_up_after_a_second(stage):
    order = stage.order()
    stage.faults.down = True
    before = monotonic()
    with pytest.raises(StoreError, match="it is down"):
        stage.keeper.start(order, token="t", worker="w", task_id="id")
    assert monotonic() - before < 5
    assert stage.faults.count("start") > 1
    assert held_by(stage.keeper, "id") is None


def test_a_start_without_any_answer_is_undone_since_nobody_would_hold_it(stage):
    order = stage.order()
    stage.faults.lose_answers["start"] = 1_000
    with pytest.raises(StoreError, match="the answer was lost"):
        stage.keeper.start(order, token="t", worker="w", task_id="id")
    run = stage.run()
    assert ("released", "t", 0) == (run.state, run.token, run.crashes)
    assert (1, []) == (stage.faults.count("release"), list(stage.keeper._leases))


@pytest.mark.parametrize("max_runtime", [None, 1])
def test_a_heartbeat_that_meets_a_task_that_gives_up_keeps_no_run_waiting(stage, log, max_runtime):
    """The task's own check comes first; what the store says of it counts, not that the thread lost it too."""

    class Between(Faults):
        def __getattr__(self, name):
            ask = getattr(self.store, name)

            def call(*args, **kwargs):
                answer = ask(*args, **kwargs)
                stage.keeper.lose(mine, "it could not be renewed in time")  # the thread, at this moment
                return answer

            return call if name == "renew" else ask

    mine = stage.start(policy=Policy(lease=30_000, heartbeat=10_000, max_runtime=max_runtime))
    stage.keeper.store = Between(stage.store)
    wait_until(lambda: mine.too_long or max_runtime is None)
    stage.keeper.give_up(mine, "the end of trust")
    assert ("released" if max_runtime is None else "failed") == stage.run().state



@pytest.mark.parametrize("told_before", [False, True])
def test_a_lease_that_is_given_up_while_it_is_held_is_given_back_at_once(stage, watch, log, told_before):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=29_000))
    stage.keeper.let_go(mine)  # the heartbeat has no part in this
    watch.at += 28
    if told_before:
        stage.keeper.lose(mine, "the end of trust")
    stage.keeper.give_up(mine, "the end of trust")
    assert ("released", 0) == (stage.run().state, stage.run().crashes)
    assert mine.lost
    assert ["lease lost after N ms: the end of trust"] == lines(log)


def test_a_lease_that_is_given_up_when_another_has_it_is_the_others(stage, log):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=29_000))
    stage.take_over()
    theirs = stage.run()
    stage.keeper.give_up(mine, "the end of trust")
    assert theirs == stage.run()
    assert ["lease lost after N ms: taken over as attempt 2"] == lines(log)


def test_a_lease_that_is_given_up_while_the_store_is_away_is_lost(stage, log):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=29_000))
    stage.faults.down = True
    stage.keeper.give_up(mine, "the end of trust")
    assert ("running", True) == (stage.run().state, mine.lost)
    assert ["lease lost after N ms: it is down"] == lines(log)


def test_a_lease_out_of_trust_is_confirmed_where_nobody_took_it(stage, watch):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=29_000))
    stage.keeper.let_go(mine)
    watch.at += 28
    assert mine.out_of_trust
    stage.keeper.confirm(mine)
    assert not mine.aborted


def test_a_lease_out_of_trust_is_lost_where_somebody_took_it_or_nobody_answers(stage):
    mine, other = (stage.start(job, Policy(lease=30_000, heartbeat=29_000)) for job in ("a", "b"))
    stage.take_over("a")
    stage.keeper.confirm(mine)
    assert "taken over as attempt 2" == mine.reason
    stage.faults.down = True
    stage.keeper.confirm(other)
    assert "it is down" == other.reason


# Asked to stop ----------------------------------------------------------------------------------

ASKED = f"asked to stop after N ms: {OVERTAKEN}"

#: Renewed by the test alone.
QUIET = Policy(lease=30_000, heartbeat=29_000)


def test_a_task_that_is_asked_to_stop_is_woken_at_once_and_told_once(stage, log):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=50))
    with in_thread(lambda: mine.wait(20)) as raised:
        stage.overtake()
        wait_until(lambda: raised, 5)
    assert [(Cancelled, OVERTAKEN)] == [(type(reason), str(reason)) for reason in raised]
    assert (OVERTAKEN, True, True, False) == (mine.reason, mine.aborted, mine.cancelled, mine.lost)
    assert 25 < mine.remaining < 30, "it is its own until it stops"
    assert raised == [mine.raised]
    wait_until(lambda: lines(log), 5)  # the task is woken first
    assert [ASKED] == lines(log)
    assert held_by(stage.keeper, "id-report") is mine, "so that its own end would count"
    assert ("running", mine.token) == (stage.run().state, stage.run().token), "until its end is recorded"


def test_one_that_is_asked_to_stop_does_not_concern_the_others(stage):
    asked, kept = (stage.start(job, Policy(lease=30_000, heartbeat=50)) for job in ("a", "b"))
    stage.overtake("a")
    wait_until(lambda: asked.cancelled)
    renewed = stage.faults.count("renew")
    wait_until(lambda: stage.faults.count("renew") > renewed)
    kept.check()
    assert (False, False) == (kept.cancelled, kept.lost)


def test_a_lost_lease_is_not_one_that_was_asked_to_stop(stage, log):
    mine = stage.start(policy=QUIET)
    assert not mine.cancelled
    stage.keeper.lose(mine, "taken over")
    stage.keeper.ask_to_stop(mine, OVERTAKEN)
    assert ("taken over", True, False) == (mine.reason, mine.lost, mine.cancelled)
    assert ["lease lost after N ms: taken over"] == lines(log), "the first word is the last"


def test_one_that_was_asked_to_stop_is_not_lost_on_top_of_it(stage, log):
    mine = stage.start(policy=QUIET)
    stage.keeper.ask_to_stop(mine, OVERTAKEN)
    stage.keeper.ask_to_stop(mine, OVERTAKEN)
    stage.keeper.lose(mine, "taken over")
    assert (OVERTAKEN, True) == (mine.reason, mine.cancelled)
    assert [ASKED] == lines(log)


def test_a_task_whose_worker_stops_is_still_asked_to_stop_for_good(stage, log):
    mine = stage.start(policy=Policy(lease=30_000, heartbeat=50))
    stage.stopping.set()
    wait_until(lambda: mine.aborted)
    assert ("the worker stops", False) == (mine.reason, mine.cancelled)
    stage.overtake()
    wait_until(lambda: mine.cancelled)
    with pytest.raises(Cancelled, match=OVERTAKEN):
        mine.check()
    assert [ASKED] == lines(log)


def test_and_it_is_not_handed_over_afterwards(stage):
    mine = stage.start(policy=QUIET)
    stage.keeper.ask_to_stop(mine, OVERTAKEN)
    assert not mine.tell(HandedOver("the worker stops"))
    assert mine.cancelled


def test_what_is_over_but_for_its_record_is_not_asked_to_stop(stage, log):
    mine = stage.start(policy=QUIET)
    assert not mine.body_over
    mine.body_over = True
    stage.overtake()
    stage.keeper.confirm(mine)
    assert (False, None) == (mine.aborted, mine.reason)
    assert stage.keeper.holds(mine), "its end is still to come"
    stage.keeper.finish(mine, "succeeded")
    assert "succeeded" == stage.run().state
    assert ["finished in N ms"] == lines(log)


def asked(stage) -> HeldLease:
    """A task that knows that it is to stop."""
    mine = stage.start(policy=QUIET)
    stage.overtake()
    stage.keeper.confirm(mine)
    assert mine.cancelled
    return mine


def test_its_end_is_recorded_as_cancelled_and_the_next_slot_goes_on(stage, log):
    stage.keeper.end_cancelled(asked(stage))
    run = stage.run()
    assert ("cancelled", OVERTAKEN, 0, None) == (run.state, run.reason, run.crashes, run.deadline)
    assert "released" == stage.store.run(RunKey("report", T + 1_000)).state
    assert [ASKED, f"cancelled after N ms: {OVERTAKEN}"] == lines(log)


@pytest.mark.parametrize("trouble", ["fails", "lose_answers"])
def test_its_end_is_recorded_again_and_again_while_the_store_is_away_for_a_moment(stage, log, trouble):
    mine = asked(stage)
    getattr(stage.faults, trouble)["finish"] = 3
    stage.keeper.end_cancelled(mine)
    assert 4 == stage.faults.count("finish")
    assert ("cancelled", OVERTAKEN) == (stage.run().state, stage.run().reason)
    assert [ASKED, f"cancelled after N ms: {OVERTAKEN}"] == lines(log)


def test_its_end_that_cannot_be_recorded_is_given_up_and_left_to_its_deadline(stage, log, monkeypatch):
    monkeypatch.setattr(keeper, "RELEASE_WITHIN", 0.3)
    mine = asked(stage)
    stage.faults.down = True
    before = monotonic()
    stage.keeper.end_cancelled(mine)
    assert monotonic() - before < 5
    assert stage.faults.count("finish") > 1
    assert [ASKED, "cancelled, but that could not be recorded: it is down"] == lines(log)
    assert ["ERROR"] == [r.levelname for r in log.records if "recorded" in r.getMessage()]
    stage.end_elsewhere()
    assert ("cancelled", OVERTAKEN) == (stage.run().state, stage.run().reason)


def test_its_end_that_a_beat_recorded_before_is_that_one(stage, log):
    mine = asked(stage)
    stage.end_elsewhere()
    before = stage.run()
    stage.keeper.end_cancelled(mine)
    assert before == stage.run()
    assert [ASKED, f"lease lost after N ms: {OVERTAKEN}"] == lines(log)


def test_a_lease_that_is_given_up_when_it_is_to_stop_is_told_so_and_not_given_back(stage, log):
    mine = stage.start(policy=QUIET)
    stage.overtake()
    stage.keeper.give_up(mine, "the end of trust")
    assert (True, OVERTAKEN) == (mine.cancelled, mine.reason)
    assert ("running", 0) == (stage.run().state, stage.faults.count("release"))
    assert [ASKED] == lines(log)


# Processes --------------------------------------------------------------------------------------


def test_a_process_has_one_keeper_for_an_app(stage):
    mine = keeper_of(stage.app, stage.stopping.is_set)
    assert mine is keeper_of(stage.app, stage.stopping.is_set)
    other = Celery("other", broker="memory://", set_as_current=False)
    other.conf.anarchon_store = stage.url
    assert mine is not keeper_of(other, stage.stopping.is_set)
    other.close()


def test_a_child_of_a_fork_gets_a_keeper_and_a_store_of_its_own(redis_url, stage):
    stage.app.conf.anarchon_store = redis_url
    mine = keeper_of(stage.app, stage.stopping.is_set)
    mine.store.nodes()  # connected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads: the child does little
        child = os.fork()
    if not child:
        status = 1
        try:
            own = keeper_of(stage.app, stage.stopping.is_set)
            own.store.nodes()
            status = 0 if own is not mine and own.store is not mine.store and own.pid == os.getpid() else 2
        finally:
            os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert mine is keeper_of(stage.app, stage.stopping.is_set)
    mine.store.nodes()
    mine.store.close()


def test_an_app_does_not_get_the_keeper_of_one_that_is_gone(stage):
    # Where the new app lies where the old one was, too.
    for _ in range(10):
        app = Celery("other", broker="memory://", set_as_current=False)
        app.conf.anarchon_store = f"memory://{secrets.token_hex(4)}"
        assert app.conf.anarchon_store == keeper_of(app, stage.stopping.is_set).config.store
        app.close()
        del app
        gc.collect()


def test_a_store_that_goes_away_while_it_renews_is_said_once_and_again_when_it_is_back(stage, log):
    def said():
        return [record.event for record in log.records if record.name == "anarchon_celery"]

    stage.start(policy=Policy(lease=10_000, heartbeat=20))
    stage.faults.down = True
    wait_until(lambda: said() and stage.faults.count("renew") > 3)
    assert ["store_lost"] == said()
    stage.faults.down = False
    wait_until(lambda: len(said()) > 1)
    assert ["store_lost", "store_back"] == said()

"""anarchon_celery.testing, as people with jobs use it: fire times, leases, a stage."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery, group
from celery.exceptions import NotRegistered, WorkerShutdown
from celery.exceptions import TimeoutError as ResultTimeout
from celery.schedules import crontab

import anarchon_celery
from anarchon_celery import (
    HandedOver,
    LeaseLost,
    ScheduleError,
    SettingError,
    cron,
    current_lease,
    keeper,
    testing,
)
from anarchon_celery.errors import StaleFence
from anarchon_celery.lease import Cancelled
from anarchon_celery.slots import iso
from anarchon_celery.stores import memory
from anarchon_celery.testing import Clock, TestingError, fires, leased, refusals, stage

NOON = "2026-10-24T12:00:00Z"


def utc(*fields):
    return datetime(*fields, tzinfo=timezone.utc)


def times(found: list[datetime]) -> list[str]:
    return [iso(round(at.timestamp() * 1000)).removesuffix(":00.000Z") for at in found]


@pytest.fixture
def app():
    """An app that would reach for servers that are not there."""
    away = "redis://127.0.0.1:1/0"
    app = Celery("proj", broker=away, backend=away, set_as_current=False)
    app.conf.update(timezone="Europe/Berlin", task_always_eager=True, anarchon_prefix="mine")
    app.conf.beat_schedule = {
        "report": {"task": "report", "schedule": cron("30 2 * * *"), "args": ("eu",)},
        "bad": {"task": "report", "schedule": "sometimes"},
    }
    return app


@pytest.fixture
def report(app):
    """A job of three steps of five seconds each; ``did`` is what it did."""

    @app.task(name="report", base=anarchon_celery.Task, bind=True, shared=False)
    def report(self, region):
        for step in range(3):
            self.lease.wait(5)
            did.append((self.lease.attempt, step))
        return region

    did: list[tuple[int, int]] = []
    report.did = did
    return report


# The clock --------------------------------------------------------------------------------------


def test_a_clock_stands_still_until_it_is_moved():
    clock = Clock(NOON)
    before = clock.monotonic()
    assert utc(2026, 10, 24, 12) == clock.now
    clock.move("1h30m")
    assert (utc(2026, 10, 24, 13, 30), 5400) == (clock.now, clock.monotonic() - before)
    clock.set(utc(2026, 10, 24, 11))
    assert (utc(2026, 10, 24, 11), 5400) == (clock.now, clock.monotonic() - before)
    assert "<Clock at 2026-10-24T11:00:00.000Z>" == repr(clock)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (lambda: Clock("noon"), "'noon' is no moment: '2026-10-24T12:00:00Z' or an aware datetime is right"),
        (lambda: Clock(datetime(2026, 1, 1)), "leaves its zone open: give it one, such as tzinfo="),
        (lambda: Clock().move(-1), "-1 is negative; a duration is zero or more"),
        (lambda: Clock().move("a while"), "'a while' is no duration: give seconds as a number"),
    ],
)
def test_what_is_no_time_is_refused_in_one_line(wrong, line):
    with pytest.raises(TestingError, match=line) as told:
        wrong()
    assert "\n" not in str(told.value)


# Fire times -------------------------------------------------------------------------------------


def test_when_a_job_of_an_app_fires_around_clock_changes(app):
    autumn = fires(app, "2026-10-24T00:00:00Z", "2026-10-26T01:30:00Z", job="report")
    assert ["2026-10-24T00:30", "2026-10-25T00:30"] == times(autumn), "the end is not included"
    assert ["2026-03-29T01:00"] == times(fires(app, utc(2026, 3, 29), utc(2026, 3, 30), job="report"))
    assert {timedelta(0)} == {at.utcoffset() for at in autumn}


@pytest.mark.parametrize(
    ("schedule", "zone", "expected"),
    [
        ("6h", None, ["2026-10-24T12:00", "2026-10-24T18:00"]),
        ("0 15 * * *", "Europe/Berlin", ["2026-10-24T13:00"]),
        (crontab(minute=0, hour=15), None, ["2026-10-24T15:00"]),
        (cron("0 15 * * *", timezone="Asia/Tokyo"), "UTC", ["2026-10-25T06:00"]),
    ],
)
def test_when_a_schedule_fires(schedule, zone, expected):
    assert expected == times(fires(schedule, NOON, "2026-10-25T06:01:00Z", timezone=zone))[: len(expected)]


def test_an_entry_that_beat_refuses_is_told_with_its_line(app):
    (line,) = refusals(app)
    assert line.startswith("entry 'bad': 'sometimes' is no schedule: give seconds as a number")
    with pytest.raises(ScheduleError) as told:
        fires(app, NOON, NOON, job="bad")
    assert line == str(told.value)
    with pytest.raises(ScheduleError, match="there is no job 'reprot'; did you mean 'report'"):
        fires(app, NOON, NOON, job="reprot")
    with pytest.raises(TestingError, match="job= is missing"):
        fires(app, NOON, NOON)


# A lease without a broker -----------------------------------------------------------------------


def test_a_task_under_a_lease_sees_it(app):
    @app.task(base=anarchon_celery.Task, bind=True, shared=False)
    def job(self):
        lease = self.lease
        return lease is current_lease(), lease.job, lease.slot, lease.attempt, lease.fence, lease.trigger

    with leased(job, job="report", slot=NOON, attempt=2, fence=7):
        assert (True, "report", utc(2026, 10, 24, 12), 2, 7, "takeover") == job()
    assert current_lease().job is None
    with leased(job) as lease:
        assert (job.name, 1, 1, "scheduled") == (lease.job, lease.attempt, lease.fence, lease.trigger)
        assert 0 < lease.remaining <= 30


@pytest.mark.parametrize(
    ("end", "raised"), [("lose", LeaseLost), ("cancel", Cancelled), ("hand_over", HandedOver)]
)
def test_a_task_is_told_at_the_look_that_the_test_names(report, end, raised):
    clock = Clock(NOON)
    with leased(report, clock=clock, attempt=3) as lease:
        lease.at_look(2, lambda: getattr(lease, end)("because"))
        with pytest.raises(raised, match="because"):
            report("eu")
        assert "because" == lease.reason
    assert ([(3, 0)], utc(2026, 10, 24, 12, 0, 10)) == (report.did, clock.now)


def test_a_lease_that_nobody_ends_is_held(report):
    with leased(report, lease="1s"):
        assert "eu" == report("eu")


def test_a_lease_may_be_lost_from_another_thread(app):
    @app.task(base=anarchon_celery.Task, bind=True, shared=False)
    def job(self):
        thread.start()
        while True:
            self.lease.wait(1)

    with leased(job) as lease:
        thread = threading.Thread(target=lease.lose)
        with pytest.raises(LeaseLost):
            job()
        thread.join()


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"attempt": 0}, "attempt=0: a whole number of at least 1 is right"),
        ({"fence": 1.5}, "fence=1.5: a whole number of at least 1 is right"),
        ({"slot": "noon"}, "'noon' is no moment"),
        ({"lease": "long"}, "'long' is no duration"),
    ],
)
def test_a_lease_that_there_cannot_be_is_refused(report, how, line):
    with pytest.raises(TestingError, match=line), leased(report, **how):
        pass


@pytest.fixture
def plain(app):
    """The job's task, without the base class."""

    @app.task(name="report", shared=False)
    def plain(region):
        return region.upper()

    return plain


def test_a_task_that_has_no_lease_is_refused(plain):
    with pytest.raises(TestingError, match="has no lease: a task with base=anarchon_celery.Task is right"):
        leased(plain).__enter__()


def test_a_look_that_never_comes_is_told(app, report):
    with pytest.raises(TestingError, match="report looked at its lease 3 times: there was no look 4"):  # noqa: SIM117
        with leased(report) as lease:
            lease.at_look(4, lease.lose)
            report("eu")
    with stage(app, at=NOON) as on:
        on.at_look("report", 9, on.lose)
        with pytest.raises(TestingError, match="report looked at its lease 3 times: there was no look 9"):
            on.run("report")
    with pytest.raises(TestingError, match="report: no attempt began, so that nothing"), stage(app) as on:
        on.at_look("report", 1, on.lose)


def test_a_look_that_is_past_is_refused(report):
    with leased(report) as lease:
        lease.check()
        with pytest.raises(TestingError, match="1 is no look to come: a whole number above 1 is right"):
            lease.at_look(1, lease.lose)


# A stage ----------------------------------------------------------------------------------------


def test_what_comes_due_runs_as_time_goes_on(app, report):
    with stage(app, at=NOON) as on:
        on.advance("2d")
        assert utc(2026, 10, 26, 12) == on.clock.now
        found = on.runs("report")
    assert ["2026-10-25T00:30", "2026-10-26T01:30"] == times([run.slot for run in found])
    assert {("succeeded", "scheduled", 1, "eu")} == {
        (run.state, run.trigger, run.attempt, run.result) for run in found
    }
    (attempt,) = found[0].attempts
    assert (utc(2026, 10, 25, 0, 30), utc(2026, 10, 25, 0, 30, 15)) == (attempt.began, attempt.ended)
    assert ("report", "report", "scheduled", 1, "SUCCESS", None) == (
        attempt.task, attempt.job, attempt.kind, attempt.number, attempt.state, attempt.exception,
    )  # fmt: skip


def test_a_run_is_lost_and_goes_on_elsewhere_meanwhile(app, report):
    with stage(app, at=NOON) as on:
        on.at_look("report", 2, on.lose)
        run = on.run("report", kwargs={"region": "us"}, args=())
    assert ("succeeded", "takeover", 2, 1, "us") == (
        run.state, run.trigger, run.attempt, run.crashes, run.result,
    )  # fmt: skip
    assert [(1, 0), (2, 0), (2, 1), (2, 2)] == report.did
    first, second = run.attempts
    assert [("IGNORED", LeaseLost), ("SUCCESS", type(None))] == [
        (one.state, type(one.exception)) for one in run.attempts
    ]
    assert first.began < second.began < second.ended <= first.ended
    assert first.fence < second.fence


def test_a_write_of_who_lost_the_run_is_stale(app):
    @app.task(name="report", base=anarchon_celery.Task, bind=True, shared=False)
    def report(self, region):
        fetch()
        if self.lease.fence < written[-1:][0]:
            raise StaleFence("report", self.lease.fence)
        written.append(self.lease.fence)

    def fetch():
        if len(on.attempts) == 0 and not lost:
            lost.append(True)
            on.lose()

    written, lost = [0], []
    with stage(app, at=NOON) as on:
        run = on.run("report")
    assert ("succeeded", [2, 1]) == (run.state, [one.number for one in on.attempts])
    assert [0, run.attempts[1].fence] == written


@pytest.mark.parametrize(
    ("happens", "state", "attempts", "crashes"),
    [
        ("crash", "succeeded", [("KILLED", "Killed"), ("SUCCESS", "NoneType")], 1),
        ("stop_worker", "succeeded", [("IGNORED", "HandedOver"), ("SUCCESS", "NoneType")], 0),
        ("cancel", "cancelled", [("IGNORED", "Cancelled")], 0),
    ],
)
def test_what_may_happen_to_a_run(app, report, happens, state, attempts, crashes):
    with stage(app, at=NOON) as on:
        on.at_look("report", 2, getattr(on, happens))
        run = on.run("report")
        took = on.clock.now - utc(2026, 10, 24, 12)
    assert (state, crashes) == (run.state, run.crashes)
    assert attempts == [(one.state, type(one.exception).__name__) for one in run.attempts]
    assert (happens == "crash") == (took > timedelta(seconds=30)), "nobody knows before the lease is over"


def test_of_a_worker_that_crashed_nothing_goes_on_whatever_its_task_catches(app):
    @app.task(name="report", base=anarchon_celery.Task, bind=True, shared=False)
    def report(self, region):
        did.append(self.lease.attempt)
        try:
            self.lease.check()
        except BaseException:
            did.append("caught")
        self.lease.wait(1)
        did.append("went on")

    did: list[object] = []
    with stage(app) as on:
        on.at_look("report", 1, on.crash)
        run = on.run("report", within="5m")
    assert [1, "caught", 2, "went on"] == did
    assert ("succeeded", 1, ["KILLED", "SUCCESS"]) == (
        run.state, run.crashes, [attempt.state for attempt in run.attempts],
    )  # fmt: skip


def test_a_task_that_ends_its_worker_ends_the_call_and_its_run_goes_on_elsewhere(app):
    @app.task(name="report", base=anarchon_celery.Task, bind=True, shared=False)
    def report(self, region):
        did.append(self.lease.attempt)
        if self.lease.attempt == 1:
            raise WorkerShutdown(0)

    did: list[int] = []
    with stage(app) as on:
        with pytest.raises(WorkerShutdown):
            on.run("report")
        (run,) = on.runs("report")
        assert ("released", 1) == (run.state, run.crashes)
        on.advance("5s")
        (run,) = on.runs("report")
    assert ("succeeded", [1, 2]) == (run.state, did)


def test_after_three_crashes_a_run_is_abandoned(app, report):
    with stage(app, at=NOON) as on:
        report.run = lambda region: on.crash()
        run = on.run("report")
    assert ("abandoned", 3, "3 workers died running it") == (run.state, run.attempt, run.reason)


def test_a_failure_and_its_retries_are_in_the_run(app):
    @app.task(
        name="report", base=anarchon_celery.Task, bind=True, shared=False, autoretry_for=(OSError,),
        retry_kwargs={"max_retries": 2, "countdown": 60}, retry_jitter=False,
    )  # fmt: skip
    def report(self, region):
        tries.append((self.request.retries, on.clock.now.minute))
        raise OSError("no route")

    tries: list[tuple[int, int]] = []
    with stage(app, at=NOON) as on:
        run = on.run("report")
    assert [(0, 0), (1, 1), (2, 2)] == tries
    assert ("failed", 1, "OSError: no route") == (run.state, run.attempt, run.reason)
    assert ["RETRY", "RETRY", "FAILURE"] == [one.state for one in run.attempts]
    assert "no route" == str(run.exception)


def test_what_a_task_sends_runs_too_at_its_time(app):
    @app.task(name="other", shared=False)
    def other(number):
        return number, on.clock.now

    @app.task(name="report", base=anarchon_celery.Task, bind=True, shared=False)
    def report(self, region):
        other.apply_async((1,), countdown=3600)
        other.apply_async((2,), queue="elsewhere")
        other.apply_async((3,), countdown=60, expires=30)
        other.apply_async((4,), expires=30)
        other.apply_async((5,), eta=datetime(2026, 10, 24, 12, 30))  # to Celery UTC

    with stage(app, at=NOON) as on:
        assert "succeeded" == on.run("report").state
        on.advance("1h")
        sent = [one for one in on.attempts if one.task == "other"]
    noon = utc(2026, 10, 24, 12)
    after = [(number, (at - noon).seconds // 60) for number, at in (one.result for one in sent)]
    assert [(4, 0), (2, 0), (5, 30), (1, 60)] == after
    assert {(None, None, 0)} == {(one.job, one.slot, one.number) for one in sent}


def test_who_waits_for_a_result_lets_time_pass(app):
    @app.task(name="other", shared=False)
    def other(number):
        return number, on.clock.now

    @app.task(name="report", base=anarchon_celery.Task, bind=True, shared=False)
    def report(self, region):
        return other.delay(1).get(timeout=1)

    with stage(app, at=NOON) as on:
        assert [1, utc(2026, 10, 24, 12)] == other.delay(1).get()
        both = group(other.s(2), other.s(3).set(countdown=600)).apply_async()
        assert [(2, 0), (3, 10)] == [(number, at.minute) for number, at in both.get(timeout=900)]
        with pytest.raises(ResultTimeout):
            other.apply_async((4,), countdown=60).get(timeout=30)
        with pytest.raises(TestingError, match="^task nobody has no result within an hour of "):
            app.AsyncResult("nobody").get()
        assert "RuntimeError: Never call result.get() within a task!" in on.run("report").reason


def test_two_apps_have_stages_at_once_and_one_app_has_one(app, report):
    another = Celery("another", set_as_current=False)
    with stage(app, at=NOON) as on:
        with stage(another) as beside:
            beside.advance("1h")
            assert "succeeded" == on.run("report").state
        with pytest.raises(TestingError, match="^app 'proj' is on a stage already"), stage(app):
            pass
        assert "succeeded" == on.run("report").state


def test_a_slot_that_comes_due_meanwhile_meets_the_overlap_policy(app, report):
    app.conf.beat_schedule["report"]["schedule"] = "10s"
    with stage(app, at=NOON) as on:
        on.advance("40s")
        found = [(run.slot.second, run.state) for run in on.runs("report")]
    assert [(10, "succeeded"), (20, "skipped"), (30, "succeeded"), (40, "skipped")] == found


def test_jobs_of_a_task_without_the_base_class_run_too(app, plain):
    with stage(app, at=NOON) as on:
        run = on.run("report")
    assert ("published", 0, "EU") == (run.state, run.attempt, run.result)


def test_time_in_which_nobody_looked_is_caught_up(app, report):
    app.conf.beat_schedule["report"]["schedule"] = "10m"
    with stage(app, at=NOON, settings={"anarchon_catch_up": "latest"}) as on:
        on.advance("1m")
        on.clock.move("1h")  # all machines were suspended
        on.advance("1m")
        states = [(run.state, run.trigger, run.count) for run in on.runs("report")]
    assert [("missed", "catch-up", 5), ("succeeded", "catch-up", 1)] == states


def test_where_the_clock_is_set_back_no_slot_runs_twice(app, report):
    app.conf.beat_schedule["report"]["schedule"] = "10m"
    with stage(app, at=NOON) as on:
        on.advance("25m")
        on.clock.set(NOON)
        on.advance("35m")
        assert utc(2026, 10, 24, 12, 35) == on.clock.now
        assert [(10, 1), (20, 1), (30, 1)] == [(run.slot.minute, len(run.attempts)) for run in on.runs()]


def test_a_job_may_be_paused_by_the_store(app, report):
    with stage(app, at=NOON) as on:
        assert on.store.pause("report", reason="a move", by="a test")
        on.advance("1d")
        assert [("skipped", "paused")] == [(run.state, run.reason) for run in on.runs()]
        assert "succeeded" == on.run("report").state


def test_a_lease_is_out_of_trust_after_time_in_which_nobody_could_renew_it(app):
    @app.task(name="report", base=anarchon_celery.Task, bind=True, shared=False)
    def report(self, region):
        on.advance("5m")  # it computes: its heartbeats go on
        assert not self.lease.aborted
        on.clock.move("5m")  # its machine stands still
        self.lease.check()

    with stage(app, at=NOON) as on:
        run = on.run("report")
    assert "LeaseLost" == type(run.attempts[0].exception).__name__


def test_the_app_is_as_before(app, report):
    names = ("task_always_eager", "anarchon_store", "anarchon_jitter")
    settings = {name: app.conf.get(name) for name in names}
    pool, rooms = app.pool, len(memory._ROOMS)
    with stage(app, at=NOON, settings={"anarchon_jitter": 5}) as on:
        assert (5, False) == (app.conf.anarchon_jitter, app.conf.task_always_eager)
        assert on.clock.now == app.now()
        on.run("report")
    assert settings == {name: app.conf.get(name) for name in settings}
    assert {"connection_for_write", "now"}.isdisjoint(vars(app))
    assert app.pool is pool
    assert (rooms, None) == (len(memory._ROOMS), keeper.keeper_here(app))


def test_a_stage_after_another_begins_anew(app, report):
    for _ in range(2):
        with stage(app, at=NOON) as on:
            assert [] == on.runs()
            report.apply_async(("eu",), countdown=60)
            on.run("report")
            assert 1 == len(on.runs())


def test_what_is_wrong_is_told(app, report):
    with stage(app, at=NOON) as on:
        with pytest.raises(ScheduleError, match="^entry 'bad': 'sometimes' is no schedule"):
            on.run("bad")
        with pytest.raises(ScheduleError, match="there is no job 'repor'; did you mean 'report'"):
            on.runs("repor")
        with pytest.raises(TestingError, match="0 is no look: a whole number of at least 1 is right"):
            on.at_look("report", 0, on.lose)
        for happens in (on.lose, on.crash, on.stop_worker, on.cancel):
            with pytest.raises(TestingError, match="no task runs under a lease now: call this"):
                happens()
        app.send_task("nobody")
        with pytest.raises(NotRegistered, match="nobody"):
            on.advance(0)
    with pytest.raises(SettingError, match="^beat_schedule is of type list: a dict of entries"):  # noqa: SIM117
        with stage(app, settings={"beat_schedule": []}):
            pass
    with pytest.raises(SettingError, match="anarchon_poll"), stage(app, settings={"anarchon_poll": "often"}):
        pass


def test_pytest_is_imported_for_the_contract_alone():
    code = "import sys, anarchon_celery.testing as t; assert 'pytest' not in sys.modules; t.StoreContract"
    done = subprocess.run([sys.executable, "-c", f"{code}; assert 'pytest' in sys.modules"], check=False)
    assert 0 == done.returncode
    with pytest.raises(AttributeError, match="has no attribute 'StoresContract'"):
        testing.StoresContract  # noqa: B018

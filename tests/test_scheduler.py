"""The beat of every node: ticks on a store and a broker that are there, gone, or forgetful.

The memory store and kombu's memory broker are the real ones; the clock is one that a test moves. Where a
store has to fail, ``Faults`` stands on the way to it, and where a real one has to, it is a private Redis.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from contextlib import closing
from datetime import datetime

import celery
import pytest
from celery import Task
from celery.beat import BeatLazyFunc
from celery.schedules import crontab
from kombu.exceptions import OperationalError
from kombu.utils import functional

import anarchon_celery
from anarchon_celery import Scheduler
from anarchon_celery import scheduler as scheduler_module
from anarchon_celery.dispatch import Publisher
from anarchon_celery.protocol import Holding, Node, Offer, Registration, Release, RunKey, Start, Started
from anarchon_celery.slots import Interval, iso
from anarchon_celery.stores import new_nonce, open_store
from tests import projects
from tests.processes import wait_until
from tests.rollback import wipe
from tests.servers import free_port
from tests.stage import HOUR, MINUTE, SECOND, Faults, Stage, T, clock, lines, log, put_in_front, slot, stage

__all__ = ["clock", "log", "stage"]  # fixtures


@pytest.fixture
def on_redis():
    """A stage whose store a test chooses, in real time."""
    stages = []

    def make(url: str) -> Stage:
        stages.append(Stage(None, url))
        return stages[-1]

    yield make
    for made in stages:
        made.close()


@pytest.fixture
def no_broker(monkeypatch):
    """The URL of a broker that is not there; kombu tries twice, and here without a pause between."""
    monkeypatch.setattr(functional, "sleep", lambda seconds: None)
    return f"redis://127.0.0.1:{free_port()}/0"


def sync(**options):
    """A job of every second that a worker has to start."""
    policy = {"supervised": True} | options.pop("anarchon", {})
    return {"sync": {"task": "proj.sync", "schedule": 1, "options": {"anarchon": policy} | options}}


ALLOW = {"overlap": "allow"}


# Begin ------------------------------------------------------------------------------------------


def test_the_first_tick_registers_and_says_so(stage, log):
    beat = stage.beat({"a": {"task": "t", "schedule": 3600.0}, "b": {"task": "t", "schedule": 3600.0}})
    assert 0 < beat.tick() <= 1
    assert [f"started as one:1 (store {stage.url}, 2 jobs, lease 30 s)"] == lines(log, "started")
    store = open_store(stage.url)
    assert ["a", "b"] == [job.name for job in store.jobs()]
    assert [("one:1", "beat")] == [(node.name, node.kind) for node in store.nodes()]


def test_a_beat_tells_of_its_versions_its_clock_and_its_schedule(stage):
    """The hash is the same on nodes with the same jobs; what a poll tells is as new as the poll."""
    entries = {"a": {"task": "t", "schedule": 3600.0}, "b": {"task": "t", "schedule": 60.0}}
    changed = {"a": entries["a"], "b": entries["b"] | {"task": "another"}}
    for n, schedule in enumerate((entries, dict(reversed(entries.items())), changed)):
        stage.beat(schedule, anarchon_node=f"{n}").tick()
    store = open_store(stage.url)
    one, two, other = store.nodes()
    versions = (anarchon_celery.__version__, celery.__version__, platform.python_version())
    assert versions == (one.version, one.celery, one.python)
    assert one.schedule == two.schedule != other.schedule
    stage.beats[0].tick()
    assert isinstance(store.nodes()[0].clock_offset, int)


def test_it_registers_once_an_hour(stage, log):
    beat, faults = stage.faulty_beat({"a": {"task": "t", "schedule": 24 * 3600.0}})
    beat.tick()
    stage.clock.advance(HOUR - 1)
    beat.tick()
    assert 1 == faults.calls["register"]
    stage.clock.advance(1)
    beat.tick()
    assert 2 == faults.calls["register"]
    assert 1 == len(lines(log, "started as"))


def test_more_jobs_than_one_call_takes_are_registered_and_claimed_in_parts(stage):
    entries = {f"job-{n}": {"task": "t", "schedule": 3600} for n in range(450)}
    beat, faults = stage.faulty_beat(entries)
    beat.tick()
    assert (3, 4) == (faults.calls["register"], faults.calls["claim"])
    assert 450 == len(stage.messages())
    assert {"published"} == {run.state for run in open_store(stage.url).runs(limit=1000)}


def test_warnings_about_settings_are_said_at_the_start(stage, log, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    stage.beat({}, anarchon_store=None)
    assert 1 == len(lines(log, "anarchon_store is not set"))


def test_a_lazy_scheduler_only_has_something_to_show(stage):
    app = stage.app({}, anarchon_store="redis://:secret@nowhere.invalid:6379/1")
    beat = Scheduler(app=app, lazy=True)
    assert "       . store -> redis://:***@nowhere.invalid:6379/1" == beat.info
    beat.close()


def test_celerys_own_entries_are_there(stage):
    beat = stage.beat({"a": {"task": "t", "schedule": 1}}, result_expires=3600, result_backend="file:///tmp")
    assert {"a", "celery.backend_cleanup"} == set(beat.schedule)
    assert {"a", "celery.backend_cleanup"} == set(beat.plan.jobs)


def test_a_loop_goes_on_at_least_every_second(stage):
    assert 1 == stage.beat({}).max_interval
    assert 0.25 == Scheduler(app=stage.app({}), max_interval=0.25, lazy=True).max_interval


@pytest.mark.parametrize(
    ("conf", "line"),
    [
        ({"anarchon_leese": 5}, "anarchon: anarchon_leese=5: no such setting; did you mean anarchon_lease?"),
        ({"anarchon_store": "mongodb://x"}, "anarchon: anarchon_store='mongodb://x': "),
        (
            {"anarchon_store": "redis://localhost", "anarchon_store_options": {"colour": "blue"}},
            "anarchon: redis://localhost:6379/0: the query of its URL, or anarchon_store_options, cannot be ",
        ),
        (
            {"beat_schedule": [{"task": "t", "schedule": 1}]},
            "anarchon: beat_schedule is of type list: a dict of entries by name is right",
        ),
        ({"timezone": "Mars/Olympus"}, "anarchon: timezone='Mars/Olympus': no such time zone ("),
        ({"task_always_eager": True}, "anarchon: task_always_eager=True: beat would run each task itself; "),
    ],
)
def test_an_impossible_setting_stops_the_start_with_one_line(stage, conf, line):
    with pytest.raises(SystemExit) as stopped:
        Scheduler(app=stage.app({}, **conf))
    assert str(stopped.value.code).startswith(line)
    assert 1 == len(str(stopped.value.code).splitlines())


def test_eager_calls_go_on_working_for_whoever_runs_no_beat(stage):
    app = stage.app({}, task_always_eager=True)

    @app.task(base=anarchon_celery.Task, bind=True, shared=False)
    def add(self, one, other):
        return one + other, self.lease.job

    assert (3, None) == add.delay(1, 2).get() == add.apply_async((1, 2)).get()


# Due → claim → publish → mark -------------------------------------------------------------------


def test_a_slot_is_claimed_published_and_recorded(stage, log):
    beat = stage.beat(sync())
    beat.tick()
    run = stage.the_run()
    (message,) = stage.messages()
    assert ("queued", 1, 0, message.headers["id"]) == (run.state, run.dispatch, run.attempt, run.task_id)
    assert ("one:1", T, T + 300_000) == (run.node, run.queued_at, run.deadline)
    assert "proj.sync" == message.headers["task"]
    assert [f"{slot(0)}: dispatched by one:1 (attempt 1, catch-up)"] == lines(log, "dispatched")


def test_every_slot_is_published_once_and_in_time(stage):
    beat = stage.beat(sync(anarchon=ALLOW))
    stage.run(beat, 10_000)
    assert [iso(T + n * SECOND) for n in range(11)] == stage.slots()
    runs = open_store(stage.url).runs(limit=100)
    assert {0} == {run.claimed_at - run.slot for run in runs}, "to the millisecond"


def test_a_tick_with_wins_takes_two_calls_and_one_without_anything_due_takes_none(stage):
    beat, faults = stage.faulty_beat(sync(anarchon=ALLOW), anarchon_poll="1h")
    stage.run(beat, 500)
    faults.calls.clear()
    beat.tick()
    assert Counter() == faults.calls
    stage.clock.ms = 1_000
    beat.tick()
    assert Counter(claim=1, sent=1) == faults.calls


def test_while_a_run_is_active_the_next_slots_are_skipped(stage, log):
    beat = stage.beat(sync())
    stage.run(beat, 2_000)
    assert {0: "queued", 1_000: "skipped", 2_000: "skipped"} == stage.states()
    assert [f"{slot(n)}: skipped (overlap)" for n in (1_000, 2_000)] == lines(log, "skipped")
    assert 1 == len(stage.messages())


def test_two_nodes_publish_each_slot_once_and_both_see_it(stage, log):
    # The lesser delay of each slot wins it; with one store object the answers are the same.
    conf = {"anarchon_jitter": 0.2}
    beats = [stage.beat(sync(anarchon=ALLOW), anarchon_node=name, **conf) for name in ("one:1", "two:2")]
    pauses = [0.0, 0.0]
    for at in range(20_000):
        stage.clock.ms = at
        for n, beat in enumerate(beats):
            if at >= pauses[n]:
                pauses[n] = at + max(1, round(beat.tick() * 1000))
    slots = stage.slots()
    assert [iso(T + n * SECOND) for n in range(20)] == sorted(slots)
    dispatched = Counter(line.split("dispatched by ")[1].split()[0] for line in lines(log, "dispatched"))
    assert 20 == dispatched["one:1"] + dispatched["two:2"]
    assert {"one:1", "two:2"} == set(dispatched), "neither of them leads"
    # Each slot, by the one that did not win it; the first one may be decided before it knew the job.
    later = [line for line in lines(log, "skipped (taken)") if iso(T) not in line]
    assert 19 == len(later)


def test_a_slot_that_the_store_finds_early_is_claimed_when_it_is_due(stage):
    beat = stage.beat(sync())
    beat.tick()
    stage.messages()
    beat.plan.jobs["sync"].policy = beat.config.policy
    stage.clock.ms = 900
    beat.store.clock.observe(1000.9, 1000.9, T + 1_050)  # an estimate that runs ahead
    pause = beat.tick()
    assert stage.the_run(1_000) is None
    assert pause > 0, "it waits instead of asking again and again"
    stage.run(beat, 200)
    assert stage.the_run(1_000) is not None


def test_a_job_without_the_base_class_ends_as_published(stage):
    beat = stage.beat({"sync": {"task": "proj.sync", "schedule": 1}})
    stage.run(beat, 2_000)
    assert {0: "published", 1_000: "published", 2_000: "published"} == stage.states()
    assert 3 == len(stage.messages())


def test_what_a_worker_has_started_is_supervised_from_then_on(stage):
    beat = stage.beat({"sync": {"task": "proj.sync", "schedule": 1}})
    beat.tick()
    started = open_store(stage.url).start(Start(key=RunKey("sync", T), token="t", worker="w"))
    assert isinstance(started, Started)
    open_store(stage.url).finish(RunKey("sync", T), "t", "succeeded")
    stage.run(beat, 1_000)
    assert {0: "succeeded", 1_000: "queued"} == stage.states()


def test_a_task_with_the_base_class_is_supervised_from_the_start(stage):
    app = stage.app({"sync": {"task": "proj.sync", "schedule": 1}})

    @app.task(base=anarchon_celery.Task, name="proj.sync", shared=False)
    def task():
        """Never run here."""

    beat = stage.beat(app=app)
    beat.tick()
    assert {0: "queued"} == stage.states()


@pytest.mark.parametrize(
    ("base", "known", "state"),
    [(None, None, "queued"), (Task, False, "published"), (anarchon_celery.Task, True, "queued")],
    ids=["unknown here", "plain", "base class"],
)
def test_of_supervision_the_store_is_told_what_the_node_knows_and_asked_what_it_does_not(
    stage, base, known, state
):
    # Until now it was one with the base class.
    before = Registration(job="sync", hash=Interval(HOUR).key, supervised=True)
    open_store(stage.url).register(Node(id="n", name="n"), [before], now=T - 1)
    app = stage.app({"sync": {"task": "proj.sync", "schedule": 3600}})
    if base is not None:

        @app.task(base=base, name="proj.sync", shared=False)
        def task():
            """Never run here."""

    beat = stage.beat(app=app)
    faults = put_in_front(beat, Faults(beat.store))
    beat.tick()
    (recorded,) = (args[0] for name, args, _ in faults.asked if name == "sent")
    assert [known] == [one.supervised for one in recorded]
    assert state == stage.the_run().state


@pytest.mark.parametrize(
    ("of_entry", "of_task", "of_all", "seconds"),
    [(7, 8, 9, 7), (None, 8, 9, 8), (None, None, 9, 9), (7, None, None, 7), (None, None, None, None)],
)
def test_a_run_may_take_as_long_as_the_time_limit_of_its_entry_else_its_task_else_all(
    stage, of_entry, of_task, of_all, seconds
):
    options = {} if of_entry is None else {"time_limit": of_entry}
    app = stage.app(
        {"sync": {"task": "proj.sync", "schedule": 1, "options": options}}, task_time_limit=of_all
    )

    @app.task(name="proj.sync", time_limit=of_task, shared=False)
    def task():
        """Never run here."""

    policy = stage.beat(app=app).plan.jobs["sync"].policy
    assert (seconds and seconds * 1000) == policy.max_runtime


def test_a_task_that_beat_does_not_know_has_the_time_limit_of_all(stage):
    beat = stage.beat({"sync": {"task": "proj.sync", "schedule": 1}}, task_time_limit=9)
    assert 9_000 == beat.plan.jobs["sync"].policy.max_runtime


def test_what_came_due_while_nobody_looked_is_recorded_as_missed_but_for_the_latest(stage, log):
    beat = stage.beat({"sync": {"task": "proj.sync", "schedule": 60}})
    beat.tick()
    beat.close()
    stage.clock.advance(5 * MINUTE + 30_000)
    stage.beat({"sync": {"task": "proj.sync", "schedule": 60}}).tick()
    assert {0: "published", MINUTE: "missed", 5 * MINUTE: "published"} == stage.states()
    missed = stage.the_run(MINUTE)
    assert (T + 4 * MINUTE, 4) == (missed.until, missed.count)
    assert [f"{slot(MINUTE)}: skipped (missed)"] == lines(log, "missed")
    assert [f"{slot(5 * MINUTE)}: dispatched by one:1 (attempt 1, catch-up)"] == lines(log, "dispatched")[1:]


def test_with_catch_up_none_all_of_it_is_missed(stage):
    schedule = {
        "sync": {"task": "t", "schedule": 60, "options": {"anarchon": {"catch_up": "none"}}},
    }
    stage.beat(schedule).tick()
    stage.clock.advance(5 * MINUTE + 30_000)
    stage.beat(schedule).tick()
    # The first slot of a job that nobody ever saw is late as well.
    assert {0: "missed", MINUTE: "missed"} == stage.states()
    assert 5 == stage.the_run(MINUTE).count
    assert [] == stage.messages()


# What is published ------------------------------------------------------------------------------


def test_the_options_of_an_entry_survive(stage):
    entry = {
        "task": "proj.sync", "schedule": 1, "args": ("eu", 2), "kwargs": {"full": True},
        "options": {
            "queue": "reports", "priority": 7, "countdown": 60, "expires": 600, "headers": {"tenant": "a"},
            "time_limit": 30, "anarchon": {"lease": "1m"},
        },
    }  # fmt: skip
    beat = stage.beat({"sync": entry})
    before = repr(beat.schedule["sync"].options)
    beat.tick()
    (message,) = stage.messages("reports")
    args, kwargs, _ = message.payload
    assert (["eu", 2], {"full": True}) == (args, kwargs)
    assert 7 == message.properties["priority"]
    assert "a" == message.headers["tenant"]
    assert [30, None] == list(message.headers["timelimit"])
    eta, expires = (datetime.fromisoformat(message.headers[name]) for name in ("eta", "expires"))
    assert 540 == round((expires - eta).total_seconds())
    header = message.headers["anarchon"]
    assert (60, "sync", iso(T), "proj.sync", 1) == tuple(
        header[name] for name in ("lease", "job", "slot", "task", "dispatch")
    )
    assert before == repr(beat.schedule["sync"].options), "and the entry is as it was"
    assert message.headers["celery_beat_task"] is True


def test_a_countdown_moves_the_deadline_of_the_message(stage):
    beat = stage.beat(sync(countdown=60))
    beat.tick()
    assert T + 60_000 + 300_000 == stage.the_run().deadline


def test_each_dispatch_has_a_task_id_and_a_header_of_its_own(stage):
    beat = stage.beat(sync(anarchon=ALLOW | {"start_timeout": 5}))
    stage.run(beat, 5_500)
    messages = stage.messages()
    ids = [message.headers["id"] for message in messages]
    headers = [message.headers["anarchon"] for message in messages]
    assert len(ids) == len(set(ids))
    again = [header["dispatch"] for header in headers if header["slot"] == iso(T)]
    assert [1, 2] == again, "the first one was not started in time"
    assert ["catch-up", "catch-up"] == [
        header["trigger"] for header in headers if header["slot"] == iso(T)
    ], "no takeover: nobody had begun it"


def test_lazy_arguments_are_evaluated_at_each_dispatch(stage):
    counted = iter(range(100))
    entry = {"task": "t", "schedule": 1, "args": (BeatLazyFunc(lambda: next(counted)),)}
    beat = stage.beat({"sync": entry})
    stage.run(beat, 2_000)
    assert [[0], [1], [2]] == [message.payload[0] for message in stage.messages()]


def test_log_runs_false_silences_the_lines_of_runs_and_no_others(stage, log):
    stage.run(stage.beat(sync(), anarchon_log_runs=False), 1_000)
    assert [f"started as one:1 (store {stage.url}, 1 job, lease 30 s)"] == lines(log)
    assert 1 == len(stage.messages())


# Bad entries ------------------------------------------------------------------------------------


class Broken(crontab):
    """Somebody's schedule that raises what it likes."""

    def __init__(self) -> None:
        super().__init__()

    @property
    def tz(self):
        raise ZeroDivisionError("no zone")


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"task": "t", "schedule": "sometimes"}, "entry 'bad': 'sometimes' is no schedule"),
        ({"task": "t", "schedule": "99 * * * *"}, "entry 'bad': cron '99 * * * *': "),
        ({"task": "t"}, "entry 'bad': a dict with 'task' and 'schedule' is right"),
        ("nonsense", "entry 'bad': a dict with 'task' and 'schedule' is right, not str"),
        ({"task": "t", "schedule": 1, "colour": "blue"}, "entry 'bad': "),
        (
            {"task": "t", "schedule": 1, "options": {"anarchon": {"overlop": "skip"}}},
            "entry 'bad': overlop='skip': no such setting; did you mean overlap?",
        ),
        (
            {"task": "t", "schedule": 1, "options": {"anarchon": {"overlap": "sometimes"}}},
            "entry 'bad': overlap='sometimes': one of 'skip', 'queue', 'cancel', 'allow' is right",
        ),
        (
            {"task": "t", "schedule": 1, "options": {"anarchon": {"lease": 5, "heartbeat": 4}}},
            "entry 'bad': ",
        ),
        (
            {"task": "t", "schedule": 1, "options": {"anarchon": "1m"}},
            "entry 'bad': options['anarchon']='1m': a dict is right",
        ),
        ({"task": "t", "schedule": 1, "options": ["queue"]}, "entry 'bad': "),
        ({"task": "t", "schedule": Broken()}, "entry 'bad': "),
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_entry_is_reported_once_in_one_line_and_the_others_run(stage, log, entry, line):
    beat = stage.beat({"bad": entry} | sync())
    stage.run(beat, 2_000)
    (said,) = lines(log, "'bad'")
    assert said.startswith(line)
    assert said.endswith("; this job stays out, the others go on")
    assert 1 == len(said.splitlines())
    assert ["sync"] == [job.name for job in open_store(stage.url).jobs()]
    assert 1 == len(stage.messages())


A_NAME = "a text of printable characters is right as a name"


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("a\nb", {}, A_NAME),
        ("a\0b", {}, A_NAME),
        ("caf\udce9", {}, A_NAME),
        (5, {}, A_NAME),
        ("bad", {"arg": ()}, "an entry has no key 'arg'; did you mean 'args'?"),
        ("bad", {"colour": "blue"}, "an entry has no key 'colour'"),
        ("bad", {5: "blue"}, "an entry has no key 5"),
        ("bad", {"task": ""}, "task='': the name of a task is right"),
        ("bad", {"task": None}, "task=None: the name of a task is right"),
        ("bad", {"args": "eu"}, "args is of type str: a list or tuple is right"),
        ("bad", {"args": 5}, "args is of type int: a list or tuple is right"),
        ("bad", {"args": BeatLazyFunc(tuple)}, "args is of type BeatLazyFunc: a list or tuple is right"),
        ("bad", {"kwargs": [("a", 1)]}, "kwargs is of type list: a dict is right"),
        ("bad", {"kwargs": BeatLazyFunc(dict)}, "kwargs is of type BeatLazyFunc: a dict is right"),
        ("bad", {"options": ["queue"]}, "options is of type list: a dict is right"),
    ],
    ids=[
        "name of two lines", "name with NUL", "name with half a character", "name that is no text",
        "key with a near one", "key", "key that is no text", "no name of a task", "no task", "text for args",
        "number for args", "lazy args", "list for kwargs", "lazy kwargs", "list for options",
    ],
)  # fmt: skip
def test_what_would_only_come_out_when_the_job_is_due_is_refused_at_the_start(stage, log, name, fields, why):
    beat = stage.beat({name: {"task": "t", "schedule": 1} | fields} | sync())
    beat.tick()
    assert [f"entry {name!r}: {why}; this job stays out, the others go on"] == lines(log, "stays out")
    assert ["sync"] == [job.name for job in open_store(stage.url).jobs()]
    assert [iso(T)] == stage.slots()


@pytest.mark.parametrize(
    "options",
    [{"countdown": "soon"}, {"priority": {}, "serializer": "nonsense"}, {"expires": object()}],
    ids=["countdown", "serializer", "expires"],
)
def test_what_cannot_be_published_is_said_and_disturbs_no_other(stage, log, options):
    bad = {"bad": {"task": "t", "schedule": 1, "options": options}}
    beat = stage.beat(bad | sync())
    stage.run(beat, 1_500)
    assert "released" == stage.the_run(job="bad").state
    assert 1 == len(lines(log, "not published, given back: "))
    assert "queued" == stage.the_run(job="sync").state
    assert [] == lines(log, "this look failed")


def test_what_cannot_be_encoded_is_given_back_and_was_no_dispatch(stage, log):
    beat = stage.beat({"sync": {"task": "t", "schedule": 1, "args": (object(),)}})
    beat.tick()
    run = stage.the_run()
    assert ("released", 0, T + 10_000) == (run.state, run.dispatch, run.deadline)
    assert 1 == len(lines(log, f"{slot(0)}: not published, given back: "))
    stage.run(beat, 9_999)
    assert 1 == len(lines(log, f"{slot(0)}: not published, given back: ")), "not again at once"
    stage.run(beat, 1_000)
    assert 2 == len(lines(log, f"{slot(0)}: not published, given back: "))


def test_arguments_that_fail_to_evaluate_are_the_entrys_own_trouble(stage, log):
    def boom():
        raise RuntimeError("no database")

    bad = {"bad": {"task": "t", "schedule": 1, "args": (BeatLazyFunc(boom),)}}
    beat = stage.beat(bad | sync())
    beat.tick()
    assert [f"bad @ {iso(T)}: not published, given back: RuntimeError: no database"] == lines(log, "not pub")
    assert 1 == len(stage.messages())


# The store is away ------------------------------------------------------------------------------


def test_beat_starts_while_the_store_is_down_and_lives_on_when_it_goes_again(
    own_redis_server, on_redis, log
):
    own_redis_server.stop()
    stage = on_redis(own_redis_server.url())
    beat = stage.beat(sync(anarchon=ALLOW), broker="memory://")
    assert 0.5 == beat.tick()
    assert 1 == len(lines(log, "waiting for the store: redis://127.0.0.1:"))
    assert [] == lines(log, "started as")

    own_redis_server.start()
    wait_until(lambda: beat.tick() and stage.messages())
    assert 1 == len(lines(log, "started as one:1"))
    assert 1 == len(lines(log, "the store answers again"))

    own_redis_server.stop()
    wait_until(lambda: beat.tick() and len(lines(log, "waiting for the store")) == 2)
    own_redis_server.start()
    wait_until(lambda: beat.tick() and len(lines(log, "the store answers again")) == 2)
    stage.messages()
    wait_until(lambda: beat.tick() and stage.messages())
    assert [] == lines(log, "this look failed")


def test_a_store_that_does_not_answer_in_time_is_waited_for(own_redis_server, on_redis, log):
    stage = on_redis(own_redis_server.url())
    beat = stage.beat(sync(), broker="memory://", anarchon_store_options={"socket_timeout": 0.2})
    beat.tick()
    own_redis_server.suspend()
    before = time.monotonic()
    wait_until(lambda: beat.tick() and lines(log, "waiting for the store"))
    assert time.monotonic() - before < 5
    own_redis_server.resume()
    wait_until(lambda: beat.tick() and lines(log, "the store answers again"))


def test_the_waits_grow_and_not_every_failure_is_told(stage, log):
    beat, faults = stage.faulty_beat(sync())
    faults.down = True
    assert [0.5, 1.0, 2.0, 3.0, 3.333, 3.333] == [beat.tick() for _ in range(6)]
    assert 3 == len(lines(log, "waiting for the store: it is down; trying again in "))
    faults.down = False
    beat.tick()
    assert ["the store answers again"] == lines(log, "again")[-1:]


def test_a_claim_whose_answer_was_lost_is_asked_again_under_the_same_nonce(stage, log):
    beat, faults = stage.faulty_beat(sync())
    faults.lose_answer_of = ["claim"]
    assert 0.5 == beat.tick()
    assert ({0: "claimed"}, []) == (stage.states(), stage.messages())
    stage.clock.advance(500)
    beat.tick()
    first, second = ((args, kwargs) for name, args, kwargs in faults.asked if name == "claim")
    assert first == second
    assert {0: "queued"} == stage.states()
    assert 1 == len(stage.messages())
    assert [] == lines(log, "taken")


def test_a_win_that_could_not_be_trusted_any_more_is_not_asked_for_again(stage):
    beat, faults = stage.faulty_beat(sync())
    faults.lose_answer_of = ["claim"]
    beat.tick()
    stage.clock.advance(9_000)  # the claim timeout less its margin
    beat.tick()
    nonces = [kwargs["nonce"] for name, _, kwargs in faults.asked if name == "claim"]
    assert len(nonces) == len(set(nonces))
    assert "claimed" == stage.the_run().state, "left to its deadline"
    stage.messages()
    stage.run(beat, 1_500)
    assert "queued" == stage.the_run().state
    assert iso(T) in stage.slots()


def test_what_was_not_asked_before_an_outage_is_looked_at_afresh_after_it(stage, monkeypatch):
    monkeypatch.setattr(scheduler_module, "CHUNK", 2)
    never_late = {"anarchon": {"catch_up": "none"}}
    entries = {f"job-{n}": {"task": "t", "schedule": 60, "options": never_late} for n in range(6)}
    beat, faults = stage.faulty_beat(entries)
    beat.tick()
    stage.clock.advance(MINUTE)
    faults.down = True
    beat.tick()
    stage.clock.advance(30_000)
    faults.down = False
    stage.run(beat, 1_000)
    assert {f"job-{n}": "missed" for n in range(6)} == {
        run.job: run.state for run in open_store(stage.url).runs() if run.slot == T + MINUTE
    }
    assert [] == stage.messages()


def test_what_was_not_asked_before_a_short_outage_is_still_in_time_after_it(stage, log, monkeypatch):
    monkeypatch.setattr(scheduler_module, "CHUNK", 2)
    never_late = {"anarchon": {"catch_up": "none"}}
    entries = {f"job-{n}": {"task": "t", "schedule": 60, "options": never_late} for n in range(6)}
    beat, faults = stage.faulty_beat(entries)
    beat.tick()
    stage.clock.advance(MINUTE)
    faults.down = True
    beat.tick()
    stage.clock.advance(500)
    faults.down = False
    stage.run(beat, 1_000)
    assert [iso(T + MINUTE)] * 6 == stage.slots()
    assert [f"job-{n}" for n in range(6)] == [line.split(" @")[0] for line in lines(log, "scheduled)")]


def test_a_claim_that_was_answered_too_late_is_given_back_unpublished(stage, log):
    beat = stage.beat(sync())
    store = beat.store

    class Slow(Faults):
        def claim(self, *args, **kwargs):
            answer = self.store.claim(*args, **kwargs)
            stage.clock.advance(9_000)
            return answer

    faults = put_in_front(beat, Slow(store))
    beat.tick()
    verbs = [name for name, _, _ in faults.asked if name in ("sent", "release", "redispatch")]
    assert ["release", "redispatch", "sent"] == verbs, "and then it was anybody's: this node's, as it happens"
    run = stage.the_run()
    assert ("queued", 1, T + 9_000) == (run.state, run.dispatch, run.queued_at)
    assert 1 == len(stage.messages())


def test_a_publication_whose_record_was_lost_is_recorded_and_not_repeated(stage, log):
    beat, faults = stage.faulty_beat(sync())
    faults.lose_answer_of = ["sent"]
    assert 0.5 == beat.tick()
    recorded = stage.the_run()
    stage.clock.advance(500)
    beat.tick()
    assert recorded == stage.the_run(), "the same call twice is the same as once"
    assert "queued" == recorded.state
    assert 1 == len(stage.messages())


def test_a_publication_that_could_not_be_recorded_is_recorded_later(stage):
    beat, faults = stage.faulty_beat(sync())
    beat.tick()
    stage.messages()
    open_store(stage.url).start(Start(key=RunKey("sync", T), token="t", worker="w"))
    open_store(stage.url).finish(RunKey("sync", T), "t", "succeeded")

    stage.clock.ms = 1_000
    publish = beat.publisher.publish

    def publish_and_lose_the_store(*args):
        faults.down = True
        return publish(*args)

    beat.publisher.publish = publish_and_lose_the_store
    beat.tick()
    assert "claimed" == stage.the_run(1_000).state
    stage.clock.advance(500)
    faults.down, beat.publisher.publish = False, publish
    beat.tick()
    assert "queued" == stage.the_run(1_000).state
    assert [iso(T + 1_000)] == stage.slots()


def test_a_publication_of_unknown_outcome_is_left_to_its_deadline(stage, log):
    beat = stage.beat(sync())
    publish = beat.publisher.publish

    def publish_and_lose_the_answer(*args):
        publish(*args)
        raise ConnectionResetError("by peer")

    beat.publisher.publish = publish_and_lose_the_answer
    beat.tick()
    beat.publisher.publish = publish
    line = "not published, perhaps out, so its deadline decides: ConnectionResetError: by peer"
    assert [f"{slot(0)}: {line}"] == lines(log, "published")
    assert ("claimed", T + 10_000) == (stage.the_run().state, stage.the_run().deadline)
    stage.run(beat, 9_999)
    assert [iso(T)] == stage.slots()
    stage.run(beat, 1_001)
    assert [iso(T)] == stage.slots(), "once more, since nobody has started it"
    assert ("queued", 2) == (stage.the_run().state, stage.the_run().dispatch)


def test_whatever_goes_wrong_beat_lives_on(stage, log):
    beat = stage.beat(sync())
    plan, beat.plan = beat.plan, None
    assert 1 == beat.tick()
    assert 1 == len(lines(log, "this look failed, the next one follows: AttributeError: "))
    beat.plan = plan
    beat.tick()
    assert 1 == len(stage.messages())


def test_a_store_that_knows_a_job_no_more_learns_it_again(stage):
    beat = stage.beat(sync(anarchon=ALLOW))
    beat.tick()
    stage.messages()
    wipe(stage.store.store)
    stage.run(beat, 32_000)
    slots = range(1_000, 33_000, 1_000)
    assert dict.fromkeys(slots, "queued") == stage.states(), "the decided one is not run again, none is late"


# The broker is away -----------------------------------------------------------------------------


def test_without_a_broker_a_run_is_given_back_and_another_node_publishes_it(stage, log, no_broker):
    cut_off = stage.beat(sync(), broker=no_broker)
    cut_off.tick()
    run = stage.the_run()
    assert ("released", 0, 0) == (run.state, run.dispatch, run.unstarted), "it was no dispatch"
    assert T == run.deadline, "anybody may have it at once"
    assert 1 == len(lines(log, "waiting for the broker: "))

    other = stage.beat(sync(), anarchon_node="two:2")
    other.tick()
    run = stage.the_run()
    assert ("queued", 1, "two:2") == (run.state, run.dispatch, run.node)
    assert [f"{slot(0)}: dispatched by two:2 (attempt 1, catch-up)"] == lines(log, "dispatched")
    assert [iso(T)] == [m.headers["anarchon"]["slot"] for m in messages_of(other, stage.queue)]


def test_only_the_first_of_many_runs_tries_a_broker_that_is_away(stage, log, no_broker):
    entries = {f"job-{n}": {"task": "t", "schedule": 3600} for n in range(20)}
    beat = stage.beat(entries, broker=no_broker)
    tried = count_connections(beat)
    beat.tick()
    assert 1 == tried[0]
    assert {"released"} == {run.state for run in open_store(stage.url).runs()}
    assert 1 == len(lines(log, "waiting for the broker"))


def publish_the_first_and_fail_at_the_second(beat: Scheduler, reason: Exception) -> list[str]:
    """Let the broker lose its answer to ``job-1``; the jobs of all attempts are in the list."""
    tried: list[str] = []
    publish = beat.publisher.publish

    def failing(entry, *rest):
        tried.append(entry.name)
        if entry.name == "job-1":
            raise reason
        return publish(entry, *rest)

    beat.publisher.publish = failing
    return tried


FIVE = {
    f"job-{n}": {"task": "t", "schedule": 3600, "options": {"anarchon": {"supervised": True}}}
    for n in range(5)
}


@pytest.mark.parametrize("reason", [OperationalError("gone"), TimeoutError("timed out")], ids=repr)
def test_a_connection_that_fails_in_the_middle_keeps_no_other_run_waiting(stage, log, reason):
    beat, faults = stage.faulty_beat(FIVE)
    tried = publish_the_first_and_fail_at_the_second(beat, reason)
    beat.tick()
    assert ["job-0", "job-1"] == tried, "the others would wait as long"
    found = {run.job: (run.state, run.dispatch, run.deadline) for run in open_store(stage.url).runs()}
    given_back = {f"job-{n}": ("released", 0, T) for n in (2, 3, 4)}
    # The second one may be out: its deadline decides.
    decided = {"job-0": ("queued", 1, T + 300_000), "job-1": ("claimed", 1, T + 10_000)}
    assert decided | given_back == found
    assert (1, 1) == (faults.calls["sent"], faults.calls["release"])
    assert 1 == len(lines(log, "not published"))


def test_a_message_that_fails_for_a_reason_of_its_own_stops_no_other(stage, log):
    beat = stage.beat(FIVE)
    tried = publish_the_first_and_fail_at_the_second(beat, RuntimeError("a router of the user's"))
    beat.tick()
    assert list(FIVE) == tried
    found = {run.job: (run.state, run.dispatch) for run in open_store(stage.url).runs()}
    assert dict.fromkeys(FIVE, ("queued", 1)) | {"job-1": ("claimed", 1)} == found
    why = "not published, perhaps out, so its deadline decides: RuntimeError: a router of the user's"
    assert [f"job-1 @ {iso(T)}: {why}"] == lines(log, "not published")


def test_a_node_without_a_broker_neither_spins_nor_fails(stage, log, no_broker):
    beat = stage.beat(sync(), broker=no_broker)
    tried = count_connections(beat)
    ticks = 0
    until = 60_000
    while stage.clock.ms < until:
        pause = beat.tick()
        ticks += 1
        stage.clock.advance(max(1, round(pause * 1000)))
    assert ticks < 150
    assert tried[0] < 20
    assert [] == lines(log, "this look failed")
    run = stage.the_run()
    assert ("released", 0) == (run.state, run.dispatch)


def test_a_broker_that_comes_back_is_used_and_said(own_redis_server, stage, log, monkeypatch):
    monkeypatch.setattr(functional, "sleep", lambda seconds: None)
    own_redis_server.stop()
    beat = stage.beat(sync(), broker=own_redis_server.url())
    beat.tick()
    assert "released" == stage.the_run().state
    own_redis_server.start()
    stage.run(beat, 2_000)
    assert 1 == len(lines(log, "the broker takes messages again"))
    run = stage.the_run()
    assert ("queued", 1) == (run.state, run.dispatch)
    with own_redis_server.client() as client:
        assert 1 == client.llen(stage.queue)


# Takeover ---------------------------------------------------------------------------------------


def hold(stage, *, lease: int = 30_000, token: str = "t", ms: int = 0) -> Started:
    """A worker starts the run and is not heard of again."""
    started = open_store(stage.url).start(
        Start(key=RunKey("sync", T + ms), token=token, worker="w:1", lease=lease)
    )
    assert isinstance(started, Started)
    return started


def test_a_run_whose_holder_is_silent_is_dispatched_as_the_next_attempt(stage, log):
    beat = stage.beat(sync())
    beat.tick()
    hold(stage)
    stage.messages()
    stage.run(beat, 29_999)
    assert [] == stage.messages()
    stage.run(beat, 2)
    (message,) = stage.messages()
    header = message.headers["anarchon"]
    assert (iso(T), 2, "takeover") == (header["slot"], header["dispatch"], header["trigger"])
    assert [f"{slot(0)}: dispatched by one:1 (attempt 2, takeover)"] == lines(log, "dispatched")[1:]
    assert ("queued", 1, 1) == (stage.the_run().state, stage.the_run().attempt, stage.the_run().crashes)


def test_a_run_handed_over_is_dispatched_at_the_next_poll(stage):
    beat = stage.beat(sync())
    beat.tick()
    hold(stage)
    stage.messages()
    stage.clock.ms = 5_400
    assert [True] == open_store(stage.url).release([Release(key=RunKey("sync", T), token="t")])
    stage.run(beat, 1_000)
    assert [iso(T)] == stage.slots()
    assert 0 == stage.the_run().crashes


def test_of_two_nodes_one_takes_a_run_over(stage, log):
    beats = [stage.beat(sync(), anarchon_node=name) for name in ("one:1", "two:2")]
    for beat in beats:
        beat.tick()
    hold(stage)
    stage.messages()
    stage.clock.ms = 30_000
    for beat in beats:
        beat._wake_at = None
        beat.tick()
    assert [iso(T)] == stage.slots()
    assert 1 == len(lines(log, "(attempt 2, takeover)"))


def test_a_run_on_which_too_many_workers_died_is_abandoned(stage, log):
    beat = stage.beat(sync(anarchon={"max_crashes": 2}))
    beat.tick()
    hold(stage, lease=1_000)
    stage.run(beat, 2_000)
    hold(stage, lease=1_000, token="t2")
    stage.run(beat, 2_000)
    assert [f"{slot(0)}: abandoned: 2 workers died running it"] == lines(log, "abandoned")
    assert "abandoned" == stage.the_run().state
    assert ["ERROR"] == [r.levelname for r in log.records if "abandoned" in r.getMessage()]


def test_a_redispatch_whose_answer_was_lost_is_asked_again_under_the_same_nonce(stage, log):
    beat, faults = stage.faulty_beat({"sync": sync()["sync"] | {"schedule": 3600}})
    beat.tick()
    hold(stage)
    stage.run(beat, 29_999)
    stage.messages()
    faults.lose_answer_of = ["redispatch"]
    stage.run(beat, 1_001)
    first, second = ((args, kwargs) for name, args, kwargs in faults.asked if name == "redispatch")
    assert first == second
    (message,) = stage.messages()
    header = message.headers["anarchon"]
    assert (iso(T), 2, "takeover") == (header["slot"], header["dispatch"], header["trigger"])
    assert ("queued", 2, 1) == (stage.the_run().state, stage.the_run().dispatch, stage.the_run().crashes)
    assert 1 == len(lines(log, "(attempt 2, takeover)"))


def test_an_abandonment_whose_answer_was_lost_is_still_told(stage, log):
    beat, faults = stage.faulty_beat(sync(anarchon={"max_crashes": 1}))
    beat.tick()
    hold(stage, lease=1_000)
    faults.lose_answer_of = ["redispatch"]
    stage.run(beat, 3_000)
    assert "abandoned" == stage.the_run().state
    assert [f"{slot(0)}: abandoned: 1 worker died running it"] == lines(log, "abandoned")


def test_expired_runs_of_jobs_of_others_are_paged_past(stage, monkeypatch):
    monkeypatch.setattr(scheduler_module, "CHUNK", 10)
    other = stage.beat(
        {f"other-{n:02}": {"task": "t", "schedule": 3600, "options": {"anarchon": {"supervised": True}}}
         for n in range(35)},
        anarchon_node="two:2",
    )  # fmt: skip
    other.tick()
    stage.messages()
    stage.clock.advance(1)
    beat = stage.beat({"sync": sync()["sync"] | {"schedule": 3600}})
    beat.tick()
    stage.messages()
    stage.clock.advance(300_001)
    faults = put_in_front(beat, Faults(beat.store))
    beat._wake_at = None
    beat.tick()
    assert [iso(T)] == stage.slots()
    assert 2 == stage.the_run().dispatch
    assert 4 == faults.calls["expired"]
    faults.calls.clear()
    pause = beat.tick()
    assert pause > 0.5, "their deadlines do not keep it awake"


def test_runs_of_a_job_that_no_node_has_had_for_a_day_are_given_up(stage, log):
    beat = stage.beat(sync())
    beat.tick()
    hold(stage, lease=1_000)
    beat.close()
    other = stage.beat({"else": {"task": "t", "schedule": 3600 * 24 * 7}}, anarchon_node="two:2")
    other.tick()
    stage.clock.advance(24 * HOUR)
    other._wake_at = None
    other.tick()
    assert "running" == stage.the_run().state
    stage.clock.advance(1_001)
    other.tick()
    assert [f"{slot(0)}: abandoned: no node has had its job for a day"] == lines(log, "abandoned")


def test_a_run_of_a_job_this_node_does_not_have_spoils_no_later_tick(stage, log):
    # Its job was orphaned when it was looked up, and registered again by the time it was asked for.
    class Returning(Faults):
        def redispatch(self, node, asked, **kwargs):
            self.store.register(Node(id="n", name="n"), [Registration(job="gone", hash="h")])
            return self.store.redispatch(node, asked, **kwargs)

    gone = stage.beat({"gone": sync()["sync"] | {"schedule": 3600}})
    gone.tick()
    stage.clock.advance(24 * HOUR + 1)
    stage.messages()
    beat = stage.beat(sync(anarchon=ALLOW), anarchon_node="two:2")
    put_in_front(beat, Returning(beat.store))
    stage.run(beat, 3_000)
    assert [] == lines(log, "this look failed")
    assert [] == lines(log, "not published")
    assert {"sync"} == {message.headers["anarchon"]["job"] for message in stage.messages()}
    assert ("released", 1) == (lambda run: (run.state, run.dispatch))(stage.the_run(job="gone"))


# Hold-off ---------------------------------------------------------------------------------------


def test_a_node_that_was_stalled_takes_nothing_running_over_for_a_heartbeat(stage, log):
    beat = stage.beat(sync())
    beat.tick()
    hold(stage)
    stage.messages()
    stage.clock.advance(31_000)  # the node slept through its lease, and the worker may have as well
    beat.tick()
    assert ["stalled for 30.0 s: takes over no running run for 10 s"] == lines(log, "stalled")
    assert [] == [s for s in stage.slots() if s == iso(T)]
    stage.run(beat, 9_999)
    assert [] == [s for s in stage.slots() if s == iso(T)]
    stage.run(beat, 1_001)
    assert iso(T) in stage.slots()


def test_a_stalled_node_takes_over_what_nobody_runs(stage, log):
    beat = stage.beat(sync(anarchon={"start_timeout": 5}))
    beat.tick()
    stage.messages()
    stage.clock.advance(31_000)
    beat.tick()
    assert 1 == len(lines(log, "stalled"))
    assert iso(T) in stage.slots(), "it was queued, not running"


def test_a_short_delay_is_no_stall(stage, log):
    beat = stage.beat(sync())
    pause = beat.tick()
    stage.clock.advance(round(pause * 1000) + 10_000)
    beat.tick()
    assert [] == lines(log, "stalled")


def test_its_own_slow_publishing_is_no_stall(stage, log):
    beat = stage.beat(sync(anarchon=ALLOW))
    publish = beat.publisher.publish

    def slow(*args):
        stage.clock.advance(20_000)
        return publish(*args)

    beat.publisher.publish = slow
    beat.tick()
    beat.tick()
    assert [] == lines(log, "stalled")


def test_when_the_stores_clock_jumps_forward_nothing_running_is_taken_over_for_a_lease(stage, log):
    beat = stage.beat(sync(anarchon=ALLOW))
    beat.tick()
    hold(stage)
    stage.messages()
    stage.run(beat, 1_500)
    stage.clock.step(60_000)
    stage.run(beat, 1_000)
    said = "the store's clock jumped 60.0 s forward: takes over no running run for 30 s"
    assert [said] == lines(log, "jumped")
    stage.run(beat, 28_000)
    assert "running" == stage.the_run().state
    assert iso(T) not in stage.slots()
    stage.run(beat, 3_000)
    assert iso(T) in stage.slots()


def test_a_jump_that_comes_out_while_the_node_registers_is_a_reason_too(stage, log):
    beat = stage.beat({"sync": sync()["sync"] | {"schedule": 3600}})
    beat.tick()
    stage.clock.advance(HOUR)
    hold(stage)
    stage.messages()
    stage.clock.step(60_000)
    beat._wake_at = None  # it was not stalled
    beat.tick()
    said = "the store's clock jumped 60.0 s forward: takes over no running run for 30 s"
    assert [said] == lines(log, "takes over no running run")
    assert "running" == stage.the_run().state


@pytest.mark.parametrize(
    ("lease", "jump", "spared"),
    [(30, 3_500, True), (60, 20_000, True), (5, 1_000, True), (60, 4_000, False), (5, 400, False)],
)
def test_a_run_is_spared_for_its_own_lease_after_a_jump_that_its_margin_does_not_bear(
    stage, log, lease, jump, spared
):
    beat = stage.beat(sync(anarchon=ALLOW | {"lease": lease}))
    beat.tick()
    hold(stage, lease=1000 * lease)
    stage.messages()
    stage.run(beat, 1000 * lease - jump)  # nobody renews it: its deadline is a jump away
    stage.clock.step(jump)
    stage.run(beat, 1_100)
    assert spared == ("running" == stage.the_run().state)
    assert spared == bool(lines(log, f"takes over no running run for {lease} s"))
    stage.run(beat, 1000 * lease + 1_100)
    assert "running" != stage.the_run().state


def test_a_small_jump_is_no_reason_to_hold_off(stage, log):
    beat = stage.beat(sync())
    beat.tick()
    stage.clock.step(3_000)
    stage.run(beat, 3_000)
    assert [] == lines(log, "jumped")


def test_a_great_jump_soon_after_a_small_one_spares_what_runs(stage, log):
    beat = stage.beat(sync(anarchon=ALLOW))
    beat.tick()
    hold(stage)
    stage.run(beat, 1_500)
    stage.clock.step(4_000)
    stage.run(beat, 20_000)
    open_store(stage.url).renew([Holding(key=RunKey("sync", T), token="t", fence=stage.the_run().fence)])
    stage.run(beat, 1_000)
    stage.clock.step(HOUR)
    stage.run(beat, 29_000)
    assert "running" == stage.the_run().state
    assert 2 == len(lines(log, "takes over no running run for 30 s"))
    stage.run(beat, 3_000)
    assert "running" != stage.the_run().state


def test_after_the_stores_clock_went_forth_and_back_a_jump_spares_what_runs(stage):
    beat = stage.beat(sync(anarchon=ALLOW))
    beat.tick()
    stage.clock.step(HOUR)
    stage.run(beat, 2_000)
    stage.clock.step(-HOUR)
    stage.run(beat, 60_000)
    hold(stage, ms=60_000)
    stage.clock.step(60_000)
    stage.run(beat, 29_000)
    assert "running" == stage.the_run(60_000).state


@pytest.mark.parametrize("back", [5_000, HOUR])
def test_when_the_stores_clock_goes_back_beat_goes_on(stage, log, back):
    long_ago = Registration(job="sync", hash=Interval(SECOND).key)
    open_store(stage.url).register(Node(id="n", name="n"), [long_ago], now=T - 2 * HOUR)
    beat, faults = stage.faulty_beat(sync(anarchon=ALLOW))
    stage.run(beat, 3_000)
    registered = faults.calls["register"]
    stage.messages()
    stage.clock.step(-back)
    stage.run(beat, 5_000)
    assert registered < faults.calls["register"], "it learns the floors that the store has cut"
    assert open_store(stage.url).jobs()[0].floor <= stage.clock.wall()
    stage.messages()
    stage.run(beat, 3_000)
    first = T + 3_000 - back + 6_000
    assert [iso(first + n * SECOND) for n in range(3)] == stage.slots()


# Stopping ---------------------------------------------------------------------------------------


class Stop(BaseException):
    """What Celery's signal handler raises after it has called close(): a SystemExit in spirit."""


def test_a_stop_in_the_middle_of_a_tick_gives_back_what_was_not_published(stage, log):
    entries = {
        f"job-{n}": {"task": "t", "schedule": 3600, "options": {"anarchon": {"supervised": True}}}
        for n in range(5)
    }
    beat, faults = stage.faulty_beat(entries)
    publish = beat.publisher.publish

    def stop_at_the_second(entry, *rest):
        if entry.name == "job-1":
            rest[-1]()  # it may be out from here on
            beat.close()  # in the signal handler: it may only look away
            assert 0 == faults.calls["release"] + faults.calls["sent"]
            raise Stop
        return publish(entry, *rest)

    beat.publisher.publish = stop_at_the_second
    with pytest.raises(Stop):
        beat.tick()
    beat.close()
    found = {run.job: (run.state, run.dispatch) for run in open_store(stage.url).runs()}
    expected = {f"job-{n}": ("released", 0) for n in (2, 3, 4)}
    # The second one may be out, for all this node knows: its deadline decides.
    assert expected | {"job-0": ("queued", 1), "job-1": ("claimed", 1)} == found
    calls = Counter(faults.calls)
    beat.close()
    assert calls == faults.calls, "once more changes nothing"


def test_a_stop_before_anything_of_it_was_published_leaves_no_claim(stage):
    """Whether it comes while the message is made, or before: the store's answer is not lost."""
    for name in ("connected", "_send", "publish"):
        beat = stage.beat({f"before {name}": {"task": "t", "schedule": 3600}})
        where = beat.dispatcher if name == "publish" else beat.publisher

        def stopped(*_, beat=beat):
            beat.close()
            raise Stop

        setattr(where, name, stopped)
        with pytest.raises(Stop):
            beat.tick()
        beat.close()
    found = {run.job: (run.state, run.dispatch) for run in open_store(stage.url).runs()}
    assert {("released", 0)} == set(found.values()) and 3 == len(found)


def test_a_stop_while_it_registers_leaves_no_node(stage):
    beat = stage.beat(sync())
    register = beat.store.register

    def stopped(*asked):
        register(*asked)
        beat.close()
        raise Stop

    beat.store.register = stopped
    with pytest.raises(Stop):
        beat.tick()
    assert ["beat"] == [node.kind for node in open_store(stage.url).nodes()]
    beat.close()
    assert [] == open_store(stage.url).nodes()


def test_a_stop_that_is_lost_in_the_middle_of_a_tick_ends_beat_after_it(stage, log):
    """Up to CPython 3.11 what a signal's handler raises during an import may come out as a RuntimeError."""
    beat = stage.beat({name: {"task": "t", "schedule": 3600} for name in ("first", "second")})
    publish = beat.publisher.publish

    def stopped(entry, *rest):
        if entry.name == "first":
            beat.close()
            raise RuntimeError("Error calling __set_name__") from SystemExit()
        return publish(entry, *rest)

    beat.publisher.publish = stopped
    with pytest.raises(SystemExit):
        beat.tick()
    beat.close()
    found = {run.job: run.state for run in open_store(stage.url).runs()}
    assert {"first": "claimed", "second": "published"} == found, "the first one's deadline decides"
    assert [] == open_store(stage.url).nodes(), "it has taken its leave"
    with pytest.raises(SystemExit):
        beat.tick()


SWALLOWS = """
from celery.signals import before_task_publish
import os, signal

@before_task_publish.connect(weak=False)
def stop(**_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException as lost:
        print(f"swallowed {lost!r}", flush=True)
"""


def test_a_real_beat_stops_if_what_it_interrupts_swallows_that(tmp_path, processes, redis_url, redis_server):
    projects.write(tmp_path, broker=redis_server.url(1), store=redis_url, before=SWALLOWS, body="pass")
    beat = processes.celery("-A", "proj", "beat", "-l", "info")
    beat.wait_for("swallowed Stopped", 30)
    assert 0 == beat.wait(20), beat.tail()
    with closing(open_store(redis_url)) as store:
        assert [] == store.nodes(), "it has taken its leave"


def test_a_claim_whose_answer_was_lost_is_given_back_when_the_node_stops(stage):
    beat, faults = stage.faulty_beat(sync())
    faults.lose_answer_of = ["claim"]
    beat.tick()
    assert "claimed" == stage.the_run().state
    beat.close()
    assert ("released", 0, T) == (stage.the_run().state, stage.the_run().dispatch, stage.the_run().deadline)
    assert [] == stage.messages()


def test_a_redispatch_whose_answer_was_lost_is_given_back_when_the_node_stops(stage):
    beat, faults = stage.faulty_beat({"sync": sync()["sync"] | {"schedule": 3600}})
    beat.tick()
    hold(stage)
    stage.run(beat, 29_999)
    stage.messages()
    stage.clock.advance(1)
    faults.lose_answer_of = ["redispatch"]
    beat.tick()
    assert ("claimed", 2) == (stage.the_run().state, stage.the_run().dispatch)
    beat.close()
    assert ("released", 1) == (stage.the_run().state, stage.the_run().dispatch)
    assert [] == stage.messages()


def test_what_another_node_has_won_is_not_given_back_with_what_was_not_heard(stage):
    beat, faults = stage.faulty_beat(sync())
    faults.down = True
    beat.tick()
    other = stage.beat(sync(), anarchon_node="two:2")
    faults.down = False
    beat.plan.learn(beat.store.register(beat.node, beat.plan.registrations()))
    faults.down = True
    beat._registered_at = T
    beat.tick()
    other.tick()
    theirs = stage.the_run()
    faults.down = False
    beat.close()
    asked = [verb for verb, *_ in faults.asked[-2:]]
    assert ["release", "leave"] == asked, "its question was put, for all it knows"
    assert ("queued", "two:2") == (theirs.state, theirs.node)
    assert theirs == stage.the_run()


def test_a_beat_that_stops_is_no_node_any_more(stage):
    beats = [stage.beat(sync(), anarchon_node=name) for name in ("one:1", "two:2")]
    for beat in beats:
        beat.tick()
    looking = open_store(stage.url)
    assert ["one:1", "two:2"] == [node.name for node in looking.nodes()]
    beats[0].close()
    assert ["two:2"] == [node.name for node in looking.nodes()]
    beats[0].close()
    assert looking.young_since is None


def test_closing_with_nothing_to_give_back_only_takes_leave(stage):
    beat, faults = stage.faulty_beat(sync())
    stage.run(beat, 1_000)
    before = Counter(faults.calls)
    beat.close()
    beat.close()
    assert before + Counter({"leave": 1}) == faults.calls


def test_closing_while_the_store_is_away_is_no_error(stage, log):
    beat, faults = stage.faulty_beat(sync())
    faults.lose_answer_of = ["sent"]
    beat.tick()
    faults.down = True
    beat.close()
    assert "the store did not answer while this node stopped: it is down" in lines(log)[-1]


def test_a_closed_beat_may_be_closed_before_it_ever_ticked(stage):
    stage.beat(sync()).close()


# Housekeeping -----------------------------------------------------------------------------------


def test_history_is_cleared_away_every_minute(stage):
    beat, faults = stage.faulty_beat({"sync": {"task": "t", "schedule": 10}}, anarchon_history="30s")
    stage.run(beat, 130_000)
    assert 3 == faults.calls["prune"]
    kept = sorted(stage.states())
    assert 90_000 <= kept[0] <= 100_000
    assert 130_000 == kept[-1]


def test_the_store_of_an_incarnation_is_told_by_its_own_id(stage):
    one, other = stage.beat(sync()), stage.beat(sync())
    assert one.node.id != other.node.id
    one.tick()
    other.tick()
    assert 2 == len(open_store(stage.url).nodes()), "the same name, and yet two nodes"


def test_offers_of_others_are_not_needed(stage):
    # A job that another node registered is neither changed nor claimed by this one.
    store = open_store(stage.url)
    store.register(Node(id="n", name="n"), [Registration(job="theirs", hash="h")])
    theirs = store.jobs()[0]
    stage.run(stage.beat(sync()), 2_000)
    assert theirs == next(job for job in store.jobs() if job.name == "theirs")
    assert [] == store.runs(job="theirs")
    store.claim("n", [Offer(job="theirs", slots=(T,))], nonce=new_nonce())
    assert 1 == len(store.runs(job="theirs"))


# What the tests above use -----------------------------------------------------------------------


def messages_of(beat: Scheduler, queue: str) -> list:
    with beat.app.connection_for_read() as connection:
        channel = connection.channel()
        found = []
        while message := channel.basic_get(queue, no_ack=True):
            found.append(message)
    return found


def count_connections(beat: Scheduler) -> list[int]:
    """Count how often beat tries to connect."""
    tried = [0]
    connected = beat.publisher.connected

    def counting():
        tried[0] += 1
        return connected()

    assert isinstance(beat.publisher, Publisher)
    beat.publisher.connected = counting
    return tried

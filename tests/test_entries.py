"""Entries: where they come from, that they meet in one place, and what is said of two with one name."""

from __future__ import annotations

import logging
import sys
import types
import weakref
from datetime import datetime, timedelta

import pytest
from celery import Celery, _state
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedule

import anarchon_celery
from anarchon_celery import Scheduler, cron, decorators, every, register
from anarchon_celery.config import Config
from anarchon_celery.entries import planned_jobs
from anarchon_celery.origins import entries_of, notes_on
from anarchon_celery.schedules import fire_times


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Celery gives each app a copy of every task there was in the process: here none of other tests'."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    monkeypatch.setattr(_state, "_apps", weakref.WeakSet())
    monkeypatch.setattr(decorators, "_shared", [])
    monkeypatch.setattr(decorators, "_functions", weakref.WeakSet())


def new_app(**conf) -> Celery:
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.update({"anarchon_store": "memory://", "result_expires": None} | conf)
    return app


def task_of(app: Celery, name: str = "sync"):
    @app.task(name=name)
    def sync(*args): ...

    return sync


def jobs(app: Celery) -> dict:
    """The schedule of each job, by name; nothing is refused."""
    found, refused = planned_jobs(app, Config.of(app))
    assert [] == refused
    return {name: entry.schedule for name, (entry, _) in found.items()}


def refused(app: Celery) -> list[str]:
    return planned_jobs(app, Config.of(app))[1]


class Reports:
    @every("30s")
    def sync(self): ...


# all of them ------------------------------------------------------------------------------------


def test_entries_of_all_origins_meet(caplog):
    app = new_app(beat_schedule={"written": {"task": "sync", "schedule": "10s"}})
    every("20s")(task_of(app))
    register(app, Reports(), name="reports")
    app.add_periodic_task(crontab(minute="0"), app.signature("sync"), name="added")

    assert [
        ("written", "beat_schedule"),
        ("added", "add_periodic_task"),
        ("reports.sync", "register(app, Reports())"),
        ("sync", "@every on sync"),
    ] == [(one.name, one.origin) for one in entries_of(app)]
    assert {
        'written': every('10s'), 'added': crontab(minute='0'),
        'reports.sync': every('30s'), 'sync': every('20s'),
    } == jobs(app)  # fmt: skip


def test_beat_has_them_all(caplog):
    caplog.set_level(logging.INFO, logger="anarchon_celery")
    app = new_app(beat_schedule={"written": {"task": "sync", "schedule": "10s"}})
    every("20s", name="wrong", overlap="sometimes")(every("20s", overlap="allow")(task_of(app)))
    register(app, Reports(), name="reports")
    app.add_periodic_task(30, app.signature("sync"), name="added")

    beat = Scheduler(app=app)
    beat.tick()
    beat.close()

    assert {"written", "sync", "reports.sync", "added"} == beat.schedule.keys() == beat.plan.jobs.keys()
    assert "allow" == beat.plan.jobs["sync"].policy.overlap
    assert [True, False] == [beat.plan.jobs[name].supervised for name in ("reports.sync", "sync")]
    (line,) = [message for message in caplog.messages if "stays out" in message]
    assert line.startswith("[anarchon] entry 'wrong' (@every on sync): overlap='sometimes': one of ")
    assert any("memory://, 4 jobs" in message for message in caplog.messages)


def test_celerys_own_are_jobs_too_and_somebody_may_replace_them():
    own = {"celery.backend_cleanup": crontab(minute="0", hour="4")}
    other = {"celery.backend_cleanup": {"task": "celery.backend_cleanup", "schedule": "1d"}}

    assert own == jobs(new_app(result_expires=60, result_backend="file:///tmp"))
    assert {"celery.backend_cleanup": every("1d")} == jobs(
        new_app(result_expires=60, result_backend="file:///tmp", beat_schedule=other)
    )


def test_handlers_of_celerys_signals_add_theirs():
    app = new_app()
    for signal, name in ((app.on_after_configure, "configured"), (app.on_after_finalize, "finalized")):

        def add(sender, name=name, **_):
            sender.add_periodic_task(10, sender.signature("sync"), name=name)

        signal.connect(add, weak=False)
    app.add_periodic_task(10, app.signature("sync"), name="before")

    assert not app.configured
    assert [
        ("before", "add_periodic_task"),
        ("configured", "add_periodic_task"),
        ("finalized", "add_periodic_task"),
    ] == [(one.name, one.origin) for one in entries_of(app)]


def test_no_store_is_needed():
    app = new_app(anarchon_store="redis://127.0.0.1:1", beat_schedule={"a": {"task": "sync", "schedule": 1}})

    assert {"a": every("1s")} == jobs(app)


def test_a_schedule_that_is_no_dict_is_said():
    app = new_app(beat_schedule=[])

    assert ["beat_schedule is of type list: a dict of entries by name is right"] == refused(app)
    assert [] == notes_on(app)


def test_a_schedule_that_spreads_by_the_jobs_name_gets_it():
    spread = cron("H H * * *")
    app = new_app(beat_schedule={name: {"task": "sync", "schedule": spread} for name in ("a", "b")})

    found, _ = planned_jobs(app, Config.of(app))

    assert [fire_times(spread, timezone=app.timezone, job=name).key for name in ("a", "b")] == [
        job.times.key for _, job in found.values()
    ]
    assert found["a"][1].times.key != found["b"][1].times.key


# Django's settings ------------------------------------------------------------------------------


@pytest.fixture
def settings(monkeypatch):
    """Settings such as Django's, of which a namespace is Celery's."""
    module = types.ModuleType("proj.settings")
    monkeypatch.setitem(sys.modules, "proj.settings", module)
    vars(module).update(CELERY_ANARCHON_STORE="memory://", CELERY_RESULT_EXPIRES=None)
    return module


def namespaced(settings) -> Celery:
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.config_from_object(settings, namespace="CELERY")
    return app


def test_a_namespace_of_the_settings_is_read_and_named(settings):
    settings.CELERY_BEAT_SCHEDULE = {"sync": {"task": "sync", "schedule": "10s"}, "bad": {"task": "sync"}}
    app = namespaced(settings)
    every("20s")(task_of(app))

    assert [
        "entry 'sync': given by CELERY_BEAT_SCHEDULE ('10s') and by @every on sync (every('20s')), "
        "which differ in schedule: one needs another name",
        "entry 'bad': a dict with 'task' and 'schedule' is right, not 'task'",
    ] == refused(app)


def test_what_is_added_in_django_stays_apart(settings):
    settings.CELERY_BEAT_SCHEDULE = {"a": {"task": "sync", "schedule": "10s"}}
    app = namespaced(settings)
    app.add_periodic_task(10, app.signature("sync"), name="b")

    assert [("a", "CELERY_BEAT_SCHEDULE"), ("b", "add_periodic_task")] == [
        (one.name, one.origin) for one in entries_of(app)
    ]
    assert [] == notes_on(app)


def test_the_old_name_of_the_setting_is_read_or_said_as_celery_has_it(settings):
    settings.CELERYBEAT_SCHEDULE = {"sync": {"task": "sync", "schedule": "10s"}}
    app = namespaced(settings)

    unread = (
        "CELERY_BEAT_SCHEDULE is read, CELERYBEAT_SCHEDULE is not: 1 entry of it left out; "
        "put all into CELERY_BEAT_SCHEDULE"
    )
    is_read = bool(app.conf.beat_schedule)  # by Celery 5.7, and not by 5.5
    assert is_read == (
        [("sync", "CELERYBEAT_SCHEDULE")] == [(one.name, one.origin) for one in entries_of(app)]
    )
    assert ([] if is_read else [unread]) == notes_on(app)


def test_a_schedule_that_hides_another_is_said_with_how_much_it_hides(settings, caplog):
    both = {"task": "sync", "schedule": "10s"}
    django = {"a": {"task": "sync", "schedule": "10s"}, "b": {"task": "sync", "schedule": 1}, "both": both}
    mine = {"mine": {"task": "sync", "schedule": "20s"}, "both": both}
    settings.CELERY_BEAT_SCHEDULE = django
    app = namespaced(settings)
    app.conf.beat_schedule = mine

    read, hidden, left_out = "app.conf.beat_schedule", "CELERY_BEAT_SCHEDULE", "2 entries"
    if app.conf.beat_schedule is django:  # as Celery 5.5 has it
        read, hidden, left_out = hidden, read, "1 entry"
    beat = Scheduler(app=app)

    assert (django if read == "CELERY_BEAT_SCHEDULE" else mine).keys() == beat.schedule.keys()
    assert [
        f"[anarchon] {read} is read, {hidden} is not: {left_out} of it left out; put all into {read}"
    ] == caplog.messages


def test_a_schedule_that_hides_nothing_is_not_said(settings):
    settings.CELERY_BEAT_SCHEDULE = {"a": {"task": "sync", "schedule": "10s"}}
    app = namespaced(settings)
    app.conf.beat_schedule = dict(settings.CELERY_BEAT_SCHEDULE)

    assert [] == notes_on(app)


def test_without_a_namespace_a_module_has_the_plain_name(settings):
    settings.beat_schedule = {"a": {"task": "sync", "schedule": "10s"}}
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.config_from_object(settings)
    app.conf.beat_schedule = {"b": {"task": "sync", "schedule": "10s"}}

    assert [
        "app.conf.beat_schedule is read, beat_schedule is not: 1 entry of it left out; "
        "put all into app.conf.beat_schedule"
    ] == notes_on(app)


# two with one name ------------------------------------------------------------------------------


def written(app, schedule):
    app.conf.beat_schedule = {"sync": {"task": "sync", "schedule": schedule}}


def added(app, schedule):
    app.add_periodic_task(schedule, app.signature("sync"), name="sync")


def decorated(app, schedule):
    every(schedule)(task_of(app))


def registered(app, schedule):
    class Job:
        @every(schedule, name="sync")
        def run(self): ...

    register(app, Job(), name=f"job-{schedule}")


SAYS = {
    written: "beat_schedule ('{}')",
    added: "add_periodic_task ('{}')",
    decorated: "@every on sync (every('{}'))",
    registered: "register(app, Job()) (every('{}'))",
}


@pytest.mark.parametrize(
    ('one', 'two'),
    [
        (written, added), (written, decorated), (written, registered), (added, added), (added, decorated),
        (added, registered), (decorated, registered), (registered, registered),
    ],
)  # fmt: skip
@pytest.mark.parametrize("when", ["configured", "not yet configured"])
def test_two_entries_with_one_name_are_an_error_that_names_both(one, two, when):
    app = new_app(beat_schedule={})
    if when == "configured":
        assert not app.conf.beat_schedule
    one(app, "10s")
    two(app, "20s")
    app.conf.beat_schedule["other"] = {"task": "sync", "schedule": "1m"}

    found, (line,) = planned_jobs(app, Config.of(app))

    assert ["other"] == [name for name in found]
    assert line.startswith("entry 'sync': given by ")
    assert 1 == line.count(SAYS[one].format("10s")) == line.count(SAYS[two].format("20s"))
    assert line.endswith("schedule: one needs another name") or "schedule and task" in line


def test_two_decorators_with_one_name():
    app = new_app()
    every("10s", name="same")(task_of(app, "a"))
    cron("0 3 * * *", name="same")(task_of(app, "b"))

    assert [
        "entry 'same': given by @every on a (every('10s')) and by @cron on b (cron('0 3 * * *')), "
        "which differ in schedule and task: one needs another name"
    ] == refused(app)


def test_two_further_decorators_that_only_differ_in_arguments_need_names():
    app = new_app()
    every("10s", args=(2,))(every("10s", args=(1,))(every("1m")(task_of(app))))

    assert ["sync"] == [name for name in planned_jobs(app, Config.of(app))[0]]
    assert [
        "entry 'sync: every 10s': given by @every on sync (every('10s')) "
        "and by @every on sync (every('10s')), which differ in args: one needs another name"
    ] == refused(app)


class Unshown(crontab):
    """One that cannot say what it is; that it fires at other times is seen all the same."""

    def __repr__(self):
        raise ValueError("no such repr")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ("10s", "('10s') and by @every on sync (every('20s')), which differ in kind: "),
        ({"task": "sync", "schedule": Unshown()}, "(Unshown) and by @every on sync (every('20s')), which "),
    ],
)
def test_two_of_which_one_is_no_entry_or_cannot_be_shown(fields, line):
    app = new_app(beat_schedule={"sync": fields})
    every("20s")(task_of(app))
    assert refused(app)[0].startswith(f"entry 'sync': given by beat_schedule {line}")


def test_entries_may_be_objects_of_celerys_as_its_own_beat_takes_them():
    made = ScheduleEntry(
        name="sync", task="sync", schedule=10, args=(1,), options={"anarchon": {"overlap": "queue"}}
    )
    app = new_app(beat_schedule={"sync": made, "wrong": ScheduleEntry(name="wrong", task="", schedule=1)})
    found, (line,) = planned_jobs(app, Config.of(app))
    (entry, job) = found["sync"]
    assert ("sync", (1,), "queue") == (entry.task, entry.args, job.policy.overlap)
    assert fire_times(every("10s"), timezone=app.timezone, job="sync").key == job.times.key
    assert "entry 'wrong': task='': the name of a task is right" == line


def test_two_decorators_that_only_differ_in_their_policy():
    app = new_app()
    every("10s", name="same", overlap="allow")(every("10s", name="same")(task_of(app)))

    (line,) = refused(app)

    assert line.endswith(", which differ in options: one needs another name")


def test_the_other_jobs_of_a_beat_go_on(caplog):
    app = new_app(
        beat_schedule={"sync": {"task": "sync", "schedule": 1}, "b": {"task": "sync", "schedule": 1}}
    )
    app.add_periodic_task(2, app.signature("sync"), name="sync")

    beat = Scheduler(app=app)

    assert {"b"} == beat.schedule.keys() == beat.plan.jobs.keys()
    assert [
        "[anarchon] entry 'sync': given by add_periodic_task (2) and by beat_schedule (1), "
        "which differ in schedule: one needs another name; this job stays out, the others go on"
    ] == caplog.messages


@pytest.mark.parametrize(
    "other",
    [
        {"task": "sync", "schedule": schedule(10), "args": [1], "options": None},
        {"task": "sync", "schedule": every("10s"), "args": (1,), "kwargs": {}},
        {"task": "sync", "schedule": 10.0, "args": (1,), "options": {}},
    ],
    ids=["schedule", "every", "number"],
)
def test_two_that_say_the_same_are_one(other):
    app = new_app(beat_schedule={"sync": {"task": "sync", "schedule": "10s", "args": (1,)}})
    assert app.conf.beat_schedule  # configured
    app._add_periodic_task("sync", other, name="sync")

    assert ["sync"] == list(jobs(app))


@pytest.mark.parametrize(
    ("field", "other"),
    [("task", "b"), ("schedule", "20s"), ("args", [1]), ("kwargs", {"a": 1}), ("options", {"queue": "q"})],
)
def test_two_that_differ_in_anything_are_two(field, other):
    entry = {"task": "a", "schedule": "10s"}
    app = new_app(beat_schedule={"sync": entry})
    assert app.conf.beat_schedule
    app._add_periodic_task("sync", {**entry, field: other}, name="sync")

    (line,) = refused(app)
    assert f"which differ in {field}: " in line


def test_a_handler_that_runs_twice_is_no_conflict_and_its_wrong_entry_is_said_once():
    app = new_app()

    @app.on_after_configure.connect
    def add(sender, **_):
        sender.add_periodic_task(crontab(minute="5"), sender.signature("sync"), name="fine")
        sender.add_periodic_task(cron("nonsense"), sender.signature("sync"), name="wrong")

    assert app.conf.timezone is None  # the settings are read
    app.on_after_configure.send(sender=app)
    found, lines = planned_jobs(app, Config.of(app))

    assert ["fine"] == list(found)
    assert ["entry 'wrong' (add_periodic_task)"] == [line.partition(":")[0] for line in lines]


def test_of_three_the_first_that_differs_is_named():
    app = new_app(beat_schedule={"sync": {"task": "sync", "schedule": "10s"}})
    added(app, "10s")
    every("20s")(task_of(app))

    (line,) = refused(app)

    assert "@every on sync (every('20s'))" in line


def test_entries_without_a_name_that_celery_overwrites_are_found_too(caplog):
    app = new_app()
    app.add_periodic_task(10, app.signature("sync"))
    app.add_periodic_task(20, app.signature("sync"))

    (line,) = refused(app)

    assert line.startswith("entry 'sync()': given by add_periodic_task (20) and by add_periodic_task (10), ")


def test_what_is_set_over_an_added_entry_on_purpose_is_a_conflict_and_what_is_deleted_is_none():
    app = new_app(beat_schedule={})
    assert app.conf.beat_schedule == {}
    added(app, "10s")
    app.conf.beat_schedule["sync"] = {"task": "sync", "schedule": "20s"}

    assert ["given by beat_schedule ('20s') and by add_periodic_task ('10s')"] == [
        line.partition(": ")[2].partition(",")[0] for line in refused(app)
    ]
    del app.conf.beat_schedule["sync"]
    assert {} == jobs(app)


def test_entries_added_to_a_schedule_that_was_replaced_are_said():
    app = new_app(beat_schedule={})
    assert app.conf.beat_schedule == {}
    added(app, "10s")
    app.conf.beat_schedule = {"other": {"task": "sync", "schedule": "20s"}}

    assert {"other": every("20s")} == jobs(app)
    assert [
        "beat_schedule was set after add_periodic_task: 1 entry of that left out; set it before"
    ] == notes_on(app)


def test_a_schedule_that_replaces_an_added_entry_by_name_is_no_conflict():
    app = new_app(beat_schedule={})
    assert app.conf.beat_schedule == {}
    added(app, "10s")
    app.conf.beat_schedule = {"sync": {"task": "sync", "schedule": "20s"}}

    assert {"sync": every("20s")} == jobs(app)
    assert [] == notes_on(app)


def test_settings_that_are_read_again_bring_no_conflict():
    app = new_app()

    @app.on_after_configure.connect
    def add(sender, **_):
        sender.add_periodic_task(10, sender.signature("sync"), name="sync")

    assert app.conf.beat_schedule
    app.config_from_object({"anarchon_store": "memory://", "result_expires": None}, force=True)

    assert {"sync": every(10)} == jobs(app)
    assert [] == notes_on(app)


# what a decorator says beside the schedule ------------------------------------------------------


def test_a_policy_joins_the_options():
    app = new_app()
    every("10s", options={"queue": "q", "anarchon": {"lease": "1m"}}, overlap="allow")(task_of(app))

    entry, job = planned_jobs(app, Config.of(app))[0]["sync"]

    assert {"queue": "q", "anarchon": {"lease": "1m", "overlap": "allow"}} == entry.options
    assert (60_000, "allow") == (job.policy.lease, job.policy.overlap)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"overlpa": "allow"}, "overlpa='allow': no such setting; did you mean overlap?"),
        (
            {"lease": "1m", "options": {"anarchon": {"lease": "1m"}}},
            "lease is given twice, by the decorator and under options['anarchon']: one is right",
        ),
        (
            {"lease": "1m", "options": {"anarchon": "lease"}},
            "options['anarchon'] is of type str: a dict is right",
        ),
        ({"options": 5, "lease": "1m"}, "options is of type int: a dict is right"),
        ({"args": 5}, "args is of type int: a list or tuple is right"),
        ({"kwargs": [1]}, "kwargs is of type list: a dict is right"),
        ({"name": "a\nb"}, "a text of printable characters is right as a name"),
        ({"name": "x" * 256}, "a name of 256 characters: 255 at most is right"),
        ({"name": ["a"]}, "a text of printable characters is right as a name"),
    ],
)
def test_a_wrong_word_of_a_decorator_is_no_error_of_the_import_and_names_its_origin(said, line):
    app = new_app()
    every("10s", **said)(task_of(app))

    name = said.get("name", "sync")
    assert [f"entry {name!r} (@every on sync): {line}"] == refused(app)


def test_a_wrong_schedule_of_a_decorator_names_its_origin():
    app = new_app()
    cron("nonsense")(task_of(app))

    (line,) = refused(app)

    assert line.startswith("entry 'sync' (@cron on sync): ")


@pytest.mark.parametrize(
    ("said", "right"),
    [
        (
            {"overlap": "allow"},
            "overlap=…: that is for decorators; options['anarchon']['overlap'] is right here",
        ),
        ({"args": (1,)}, "args=…: that is for decorators; the entry's 'args' is right here"),
        ({"name": "other"}, "name=…: that is for decorators; the entry's 'name' is right here"),
    ],
)
def test_what_only_a_decorator_may_say_is_refused_in_an_entry(said, right):
    app = new_app(beat_schedule={"sync": {"task": "sync", "schedule": every("10s", **said)}})

    assert [f"entry 'sync': every('10s') with {right}"] == refused(app)


def test_one_schedule_may_decorate_and_be_an_entry():
    app = new_app()
    often = every("10s")
    often(task_of(app))
    app.conf.beat_schedule = {"other": {"task": "sync", "schedule": often}}

    assert {"other": often, "sync": often} == jobs(app)


# notes ------------------------------------------------------------------------------------------


def test_what_never_became_a_task_is_said_as_beat_starts(monkeypatch, caplog):
    module = types.ModuleType("proj.jobs")
    monkeypatch.setitem(sys.modules, "proj.jobs", module)
    exec(
        'from anarchon_celery import every\n@every("30s")\ndef report(): ...',
        module.__dict__ | {"__name__": "proj.jobs"},
        module.__dict__,
    )
    vars(module)["report"].__module__ = "proj.jobs"

    Scheduler(app=new_app(), lazy=True)
    assert [] == caplog.messages
    Scheduler(app=new_app())

    assert [
        "[anarchon] every('30s') is above proj.jobs.report, which is no task and never runs: "
        "put @app.task between them"
    ] == caplog.messages


def test_public_names():
    assert {"every", "cron", "once", "register"} <= set(anarchon_celery.__all__)


# what no node could work with -------------------------------------------------------------------


class Own(BaseSchedule):
    """A schedule of somebody's own, which is shown as it is told to."""

    def __init__(self, shown):
        super().__init__(nowfun=datetime.now, app=None)
        self.shown = shown

    def is_due(self, last_run_at):
        return False, 60.0

    def __repr__(self):
        if isinstance(self.shown, BaseException):
            raise self.shown
        return self.shown


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (5, "TypeError: __repr__ returned non-string (type int)"),
        (ValueError("no such repr"), "ValueError: no such repr"),
        ("\ud800", "its repr() is no text that can be stored: "),
        (SystemExit("enough"), "SystemExit: enough"),
    ],
)
def test_a_schedule_that_cannot_be_named_costs_its_own_job_and_no_other(shown, why):
    app = new_app(beat_schedule={
        "own": {"task": "sync", "schedule": Own(shown)}, "other": {"task": "sync", "schedule": "10s"},
    })  # fmt: skip
    found, (line,) = planned_jobs(app, Config.of(app))
    assert ["other"] == list(found)
    assert line.startswith(f"entry 'own': {why}")
    assert 1 == len(line.splitlines())


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((1, 2), {}, "two() takes 1 positional argument but 2 were given"),
        ((), {}, "two() missing 1 required positional argument: 'a'"),
        ((1,), {"b": 2}, "two() got an unexpected keyword argument 'b'"),
    ],
)
def test_arguments_that_do_not_fit_the_task_are_refused_at_once(args, kwargs, why):
    app = new_app()

    @every("10s", args=args, kwargs=kwargs)
    @app.task(name="two")
    def two(a): ...

    said = f"entry 'two' (@every on two): its args and kwargs do not fit task 'two': {why}"
    assert [said] == refused(app)


def test_arguments_that_are_made_later_are_not_looked_at():
    app = new_app(beat_schedule={"two": {"task": "two", "schedule": 1, "args": [BeatLazyFunc(int), 2]}})

    @app.task(name="two")
    def two(a): ...

    assert ["two"] == list(jobs(app))


def test_nor_are_those_of_a_task_that_takes_anything():
    app = new_app(beat_schedule={"two": {"task": "two", "schedule": 1, "args": [1, 2]}})

    @app.task(name="two", typing=False)
    def two(a): ...

    assert ["two"] == list(jobs(app))


@pytest.mark.parametrize("name", ["", " "])
def test_a_job_needs_a_name_that_can_be_seen(name):
    app = new_app(beat_schedule={name: {"task": "sync", "schedule": 1}})
    assert [f"entry {name!r}: a text of printable characters is right as a name"] == refused(app)


@pytest.mark.parametrize("interval", [timedelta.max, "999999999999999999999d", "36501d", 1e300])
def test_an_interval_beyond_all_measure_is_refused(interval):
    app = new_app(beat_schedule={"far": {"task": "sync", "schedule": interval}})
    (line,) = refused(app)
    assert line.startswith("entry 'far': ")
    assert 1 == len(line.splitlines())

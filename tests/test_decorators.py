"""Decorators: what they leave on tasks, functions and methods, and what an app makes of it."""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref

import pytest
from celery import Celery, _state, shared_task
from celery import Task as CeleryTask

import anarchon_celery
from anarchon_celery import cron, decorators, every, once, register
from anarchon_celery.decorators import declare, forgotten
from anarchon_celery.errors import ScheduleError, SettingError
from anarchon_celery.origins import entries_of


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Celery gives each app a copy of every task there was in the process: here none of other tests'."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    monkeypatch.setattr(_state, "_apps", weakref.WeakSet())
    monkeypatch.setattr(decorators, "_shared", [])
    monkeypatch.setattr(decorators, "_functions", weakref.WeakSet())


@pytest.fixture
def module(monkeypatch):
    """Import a module from its text, under a name of its own."""

    def imported(source: str, name: str = "proj.tasks", **known) -> types.ModuleType:
        made = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        made.__dict__.update(known)
        exec("from anarchon_celery import *\nfrom celery import *\n" + source, made.__dict__)
        return made

    return imported


@pytest.fixture
def app():
    return new_app()


def new_app(main="proj", **conf) -> Celery:
    app = Celery(main, broker="memory://", set_as_current=False)
    app.conf.update(conf)
    return app


def jobs(app) -> dict:
    """The entries of decorators, by name: task and schedule."""
    return {one.name: (one.fields["task"], one.fields["schedule"]) for one in entries_of(app)}


# above and below --------------------------------------------------------------------------------


def test_a_task_that_is_yet_to_be_made_is_not_made_for_it(module, app):
    tasks = module('@every("30s")\n@app.task\ndef report(): ...', app=app)

    assert (False, False) == (app.configured, app.finalized)
    assert not tasks.__dict__["report"].__evaluated__()
    assert {"proj.tasks.report": ("proj.tasks.report", every("30s"))} == jobs(app)


def test_what_it_decorates_stays_what_it_is(module, app):
    def plain(): ...

    made = app.task(plain)
    kept = [it for it in (plain, made, shared_task(plain)) if every("1s")(it) is not it]

    assert [] == kept


@pytest.mark.parametrize("above", [True, False], ids=["above", "below"])
@pytest.mark.parametrize(
    "how", ["@app.task", "@app.task(lazy=False)", "@app.task(bind=True)", "@shared_task"]
)
def test_above_and_below_are_the_same(module, app, how, above):
    lines = ['@every("30s")', how] if above else [how, '@every("30s")']
    module("\n".join([*lines, "def report(*self): ..."]), app=app)

    assert {"proj.tasks.report": ("proj.tasks.report", every("30s"))} == jobs(app)


def test_an_app_that_is_finalized_takes_more(module, app):
    app.finalize()

    module('@every("30s")\n@app.task\ndef report(): ...', app=app)

    assert ["proj.tasks.report"] == list(jobs(app))


def test_a_shared_task_is_a_job_of_every_app(module):
    one, two = new_app("one"), new_app("two")

    module('@every("30s")\n@shared_task(name="tidy")\ndef tidy(): ...')

    three = new_app("three")
    assert [["tidy"]] * 3 == [list(jobs(app)) for app in (one, two, three)]


def test_a_shared_task_that_an_app_does_not_have_is_not_its_job(module, app):
    module('@every("30s")\n@shared_task(name="tidy")\ndef tidy(): ...')
    app.tasks.unregister("tidy")

    assert [] == list(jobs(app))


def test_which_app_is_current_makes_no_difference_and_stays_so(module):
    one, two = new_app("one"), new_app("two")
    two.set_current()
    try:
        module('@every("30s")\n@shared_task\ndef tidy(): ...', name="__main__")

        assert (["two.tidy"], ["one.tidy"]) == (list(jobs(two)), list(jobs(one)))
        assert _state.get_current_app() is two
    finally:
        _state._set_current_app(None)


@pytest.mark.parametrize("lines", ['@every("30s")\n@mine.task', '@mine.task\n@every("30s")'])
@pytest.mark.parametrize("finalized", [False, True])
def test_a_task_of_another_app_is_not_this_apps_job(module, lines, finalized):
    mine, other = new_app("mine"), new_app("other")
    if finalized:
        mine.finalize()

    tasks = module(f"{lines}\ndef report(): ...", mine=mine)

    assert "proj.tasks.report" in other.tasks  # Celery has copied the task
    assert [] == list(jobs(other))
    assert finalized or not vars(tasks)["report"].__evaluated__()
    assert ["proj.tasks.report"] == list(jobs(mine))


def test_a_task_made_of_a_function_elsewhere_is_found_too(module, app):
    module('@every("30s")\ndef report(): ...\n\nreport_task = app.task(report)', app=app)

    assert ["proj.tasks.report"] == list(jobs(app))
    assert [] == forgotten(app)


def test_a_wrapper_in_between_hides_nothing(module, app):
    def logged(function):
        return functools.wraps(function)(lambda: function())

    def silent(function):  # passes on what it wraps, and not what that carries
        return functools.wraps(function, updated=())(lambda: function())

    module('@app.task\n@logged\n@every("1m")\ndef one(): ...', app=app, logged=logged)
    module('@app.task\n@silent\n@every("1m")\ndef two(): ...', "proj.more", app=app, silent=silent)

    assert ["proj.more.two", "proj.tasks.one"] == list(jobs(app))
    assert [] == forgotten(app)


def test_of_two_around_a_wrapper_each_counts_once(module, app):
    def logged(function):
        return functools.wraps(function)(lambda: function())

    module('@app.task\n@every("2m")\n@logged\n@every("1m")\ndef one(): ...', app=app, logged=logged)

    assert {
        "proj.tasks.one": ("proj.tasks.one", every("1m")),
        "proj.tasks.one: every 2m": ("proj.tasks.one", every("2m")),
    } == jobs(app)


def test_tasks_that_are_retried_by_celery_keep_their_schedule(module, app):
    module('@app.task(bind=True, autoretry_for=(OSError,))\n@every("1m")\ndef one(self): ...', app=app)

    assert ["proj.tasks.one"] == list(jobs(app))


def test_classes_of_tasks(app):
    class OfMethod(CeleryTask):
        name = "of-method"

        @every("1m")
        def run(self): ...

    @every("2m")
    class OfClass(CeleryTask):
        name = "of-class"

        def run(self): ...

    class Child(OfClass):
        name = "child"

    for kind in (OfMethod, OfClass, Child):
        app.register_task(kind())
    every("3m")(app.tasks["child"])

    assert {
        "of-method": ("of-method", every("1m")),
        "of-class": ("of-class", every("2m")),
        "child": ("child", every("3m")),  # and not its parent's
    } == jobs(app)


@pytest.mark.parametrize("target", [1, "proj.tasks.report", len, None], ids=repr)
def test_what_can_carry_no_schedule_is_refused_in_one_line(target):
    right = f"every('1s') above a {type(target).__name__}: a task, a function or a method is right"
    with pytest.raises(ScheduleError, match=f"^{right}$".replace("(", r"\(").replace(")", r"\)")):
        declare(every("1s"), target)


def test_an_app_that_is_gone_leaves_nothing():
    def one_that_goes(*decorators) -> weakref.ref:
        def report(): ...

        app = new_app()
        for decorate in decorators:
            decorate(app.task(shared=False)(report))
        register(app, Reports())
        entries_of(app)
        return weakref.ref(app)

    gone = one_that_goes(), one_that_goes(every("1m"))
    gc.collect()

    assert (None, None) == (gone[0](), gone[1]())


# what a job is called, and what it says ---------------------------------------------------------


def test_several_on_one_task_tell_their_schedules(module, app):
    module(
        """
@every('1d', name='by-name')
@cron('30 2 * * *', timezone='Europe/Berlin')
@cron('30 2 * * *')
@every(30)
@every('1h')
@app.task
def report(): ...
""",
        app=app,
    )

    assert [
        "proj.tasks.report",
        "proj.tasks.report: every 30s",
        "proj.tasks.report: cron 30 2 * * *",
        "proj.tasks.report: cron 30 2 * * *, timezone=Europe/Berlin",
        "by-name",
    ] == list(jobs(app))
    assert ("proj.tasks.report", every("1h")) == jobs(app)["proj.tasks.report"]


def test_a_name_for_the_first_renames_no_other(module, app):
    module("@every('1m')\n@every('1h', name='hourly')\n@app.task\ndef report(): ...", app=app)

    assert ["hourly", "proj.tasks.report: every 1m"] == list(jobs(app))


def test_what_a_decorator_says_is_what_an_entry_says(module, app):
    module(
        "@cron('0 3 * * *', args=(1,), kwargs={'a': 2}, "
        "options={'queue': 'q'}, overlap='allow', lease='1m')\n"
        "@app.task\ndef report(*args, **kwargs): ...",
        app=app,
    )

    (given,) = entries_of(app)

    assert ("proj.tasks.report", "@cron on proj.tasks.report") == (given.name, given.origin)
    assert {"overlap": "allow", "lease": "1m"} == given.policy
    assert {
        'task': 'proj.tasks.report', 'schedule': cron('0 3 * * *'),
        'args': (1,), 'kwargs': {'a': 2}, 'options': {'queue': 'q'},
    } == given.fields  # fmt: skip


# forgotten ---------------------------------------------------------------------------------------


def test_a_function_that_never_became_a_task_is_told_of(module, app):
    module('@every("30s")\ndef report(): ...\n@app.task\n@every("1m")\ndef sync(): ...', app=app)

    assert [
        "every('30s') is above proj.tasks.report, which is no task and never runs: put @app.task between them"
    ] == forgotten(app)


def test_tasks_of_other_apps_methods_and_local_functions_are_not_forgotten(module, app):
    other = new_app("other")
    module(
        '@other.task(shared=False)\n@every("30s")\ndef report(): ...\n'
        'class Reports:\n    @every("1m")\n    def sync(self): ...\n'
        'def local():\n    @every("1m")\n    def inner(): ...\n    return inner\nkept = local()',
        other=other,
    )

    assert [] == forgotten(app)


# the methods of an object ------------------------------------------------------------------------


class Reports:
    def __init__(self, place="here"):
        self.place = place

    @every("30s")
    def sync(self, what="all"):
        return f"{what} {self.place}"

    @every("1h")
    @cron("@daily", name="nightly")
    def report(self):
        return anarchon_celery.current_lease().trigger

    @staticmethod
    @every("1m")
    def static():
        return "static"

    @every("1m")
    @classmethod
    def of_class(cls):
        return cls.__name__

    def other(self): ...

    @property
    def costly(self):
        raise AssertionError("nobody is to ask for it")


def test_each_decorated_method_becomes_a_task(app):
    tasks = register(app, Reports())

    assert (False, False) == (app.configured, app.finalized)
    assert ["sync", "report", "static", "of_class"] == list(tasks)
    where = "tests.test_decorators.Reports."
    assert {
        f"{where}of_class": (f"{where}of_class", every("1m")),
        "nightly": (f"{where}report", cron("@daily")),
        f"{where}report: every 1h": (f"{where}report", every("1h")),
        f"{where}static": (f"{where}static", every("1m")),
        f"{where}sync": (f"{where}sync", every("30s")),
    } == jobs(app)
    assert {"register(app, Reports())"} == {one.origin for one in entries_of(app)}


def test_the_methods_are_bound_to_the_object(app):
    tasks = register(app, Reports("there"))

    assert "all there" == tasks["sync"]()
    assert "some there" == tasks["sync"].apply(["some"]).get()
    assert "all there" == app.tasks["tests.test_decorators.Reports.sync"].apply().get()
    assert ("manual", "static", "Reports") == (tasks["report"](), tasks["static"](), tasks["of_class"]())
    with app.connection_for_write() as connection:
        tasks["sync"].apply_async(connection=connection)
        tasks["sync"].apply_async(("some",), connection=connection)
        with pytest.raises(TypeError, match="takes from 0 to 1 positional arguments but 2 were given"):
            tasks["sync"].apply_async((1, 2))


def test_the_tasks_are_supervised_unless_said_otherwise(app):
    class Own(anarchon_celery.Task):
        abstract = True

    ours = register(app, Reports(), rate_limit="1/s", max_retries=7)["sync"]
    plain = register(app, Reports(), name="plain", base=CeleryTask)["sync"]
    own = register(Celery("own", task_cls=Own, set_as_current=False), Reports())["sync"]

    assert isinstance(ours, anarchon_celery.Task)
    assert ("1/s", 7) == (ours.rate_limit, ours.max_retries)
    assert not isinstance(plain, anarchon_celery.Task)
    assert isinstance(own, Own)


def test_methods_that_are_inherited_count_and_the_overridden_as_they_are_now(app):
    class Base:
        @every("1m")
        def kept(self):
            return type(self).__name__

        @every("1m")
        def dropped(self): ...

        @every("1m")
        def changed(self): ...

    class Child(Base):
        def dropped(self): ...

        @every("2m")
        def changed(self): ...

    tasks = register(app, Child())

    assert {
        "tests.test_decorators.Child.kept": ("tests.test_decorators.Child.kept", every("1m")),
        "tests.test_decorators.Child.changed": ("tests.test_decorators.Child.changed", every("2m")),
    } == jobs(app)
    assert "Child" == tasks["kept"]()


def test_two_objects_of_a_class_have_two_names(app):
    register(app, Reports("here"))
    tasks = register(app, Reports("there"), name="there")

    assert "there.sync" == tasks["sync"].name
    assert ["all here", "all there"] == [
        app.tasks[name]() for name in ("tests.test_decorators.Reports.sync", "there.sync")
    ]
    assert {"there.sync", "tests.test_decorators.Reports.sync"} <= jobs(app).keys()


@pytest.mark.parametrize("finalized", [False, True])
def test_a_second_registration_under_one_name_is_refused_and_changes_nothing(app, finalized):
    tasks = register(app, Reports("here"))
    if finalized:
        app.finalize()

    with pytest.raises(SettingError) as refused:
        register(app, Reports("there"))

    assert (
        "register(app, Reports()): there is a task 'tests.test_decorators.Reports.sync' already "
        "by register(app, Reports()): give this one name='…'"
    ) == str(refused.value)
    assert "all here" == tasks["sync"]()


def test_one_object_may_be_registered_with_two_apps():
    one, two = new_app("one"), new_app("two")
    there = Reports()
    register(one, there)
    register(two, there)

    assert len(jobs(one)) == len(jobs(two)) == 5


def test_an_object_of_one_app_is_not_another_apps(app):
    register(app, Reports())

    assert {} == jobs(new_app("other"))


def test_a_task_that_is_there_is_not_replaced(app):
    @app.task(name="mine.sync", lazy=False)
    def first(): ...

    with pytest.raises(SettingError, match=r"there is a task 'mine\.sync' already: give this one name="):
        register(app, Reports(), name="mine")

    assert ["mine.sync"] == [name for name in app.tasks if not name.startswith("celery.")]


class Nothing: ...


@pytest.mark.parametrize(
    ('arguments', 'options', 'line'),
    [
        (
            (Nothing(),), {},
            'register(app, Nothing()): no method is decorated: @every, @cron or @once above one is right',
        ),
        ((Reports,), {}, 'register(app, Reports): an object is right, such as Reports()'),
        (
            (Reports(),), {'bind': True},
            'register(app, Reports()): bind is not for methods, they have their object: call current_lease()',
        ),
    ],
)  # fmt: skip
def test_a_registration_that_cannot_be_meant_is_refused_in_one_line(app, arguments, options, line):
    with pytest.raises(SettingError) as refused:
        register(app, *arguments, **options)

    assert line == str(refused.value)


def test_the_app_comes_first(app):
    with pytest.raises(SettingError) as refused:
        register(Reports(), app)

    assert "register(Reports, …): a Celery app comes first, then the object" == str(refused.value)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (every, "@every needs its schedule: @every('30s')"),
        (cron, "@cron needs its schedule: @cron('30 2 * * *')"),
        (once, "@once needs its schedule: @once('2026-12-01T09:00:00Z')"),
    ],
)
def test_a_decorator_without_parentheses_is_refused_where_it_is_written(kind, line):
    with pytest.raises(ScheduleError) as refused:

        @kind
        def report():
            """It would have become a schedule."""

    assert line == str(refused.value)


def test_above_a_class_a_decorator_is_refused():
    right = "a task, a function or a method is right"
    with pytest.raises(ScheduleError) as refused:

        @every("30s")
        class Reports: ...

    assert f"every('30s') above class Reports: {right}, not a class" == str(refused.value)

"""Every way to give a task the base class; importing it is all that a project does."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest
from celery import Celery, shared_task

from anarchon_celery import Task, current_lease
from tests.test_task import as_in_a_worker, log, make_stage, stage


class Own(Task):
    """A project's own."""

    abstract = True


def job(*args):
    SEEN.append((current_lease().job, args))


SEEN: list = []


def by_decorator(stage):
    stage.app.task(name="proj.job", base=Task, shared=False)(job)


def by_shared_task(stage):
    stage.app.set_current()
    shared_task(name="proj.job", base=Task)(job)


def by_subclass(stage):
    stage.app.task(name="proj.job", base=Own, shared=False)(job)


def by_class_of_its_own(stage):
    class Job(Task):
        name = "proj.job"
        run = staticmethod(job)

    stage.app.register_task(Job())


def by_attribute_of_the_app(stage):
    stage.app.Task = type("Named", (Task,), {"abstract": True, "app": stage.app})
    stage.app.task(name="proj.job", shared=False)(job)


def by_app(cls):
    def declare(stage):
        stage.app.task_cls = cls
        stage.app.task(name="proj.job", shared=False)(job)

    return declare


WAYS = [
    by_decorator, by_shared_task, by_subclass, by_class_of_its_own, by_attribute_of_the_app,
    by_app(Task), by_app("anarchon_celery:Task"), by_app("anarchon_celery.task:Task"),
]  # fmt: skip
IDS = [
    "base", "shared_task", "a subclass", "a class", "app.Task",
    "task_cls, a class", "task_cls, text", "task_cls, the module's text",
]  # fmt: skip


@pytest.fixture
def no_tasks_left_behind():
    """A shared task is one of every later app, and an app that was made current stays so."""
    from celery import _state

    before = _state._tls.current_app, _state.default_app, set(_state._on_app_finalizers)
    yield
    _state._tls.current_app, _state.default_app = before[:2]
    for later in set(_state._on_app_finalizers) - before[2]:
        _state._on_app_finalizers.discard(later)


@pytest.mark.parametrize("declare", WAYS, ids=IDS)
def test_a_task_has_a_lease_by(stage, declare, no_tasks_left_behind):
    SEEN.clear()
    declare(stage)
    stage.app.finalize()
    made = stage.app.tasks["proj.job"]
    assert isinstance(made, Task)
    key = stage.dispatch(args=(5,))
    stage.deliver()
    assert [("job", (5,))] == SEEN
    assert "succeeded" == stage.run(key).state
    assert stage.beats[0].plan.jobs["job"].supervised


def test_an_app_made_with_the_class_has_it_from_the_first_task_on():
    for cls in (Task, "anarchon_celery:Task", "anarchon_celery.Task"):
        app = Celery("proj", task_cls=cls, set_as_current=False)
        assert issubclass(app.Task, Task)
        app.close()


# Django ------------------------------------------------------------------------------------------

ON_COMMIT = """\
    import django
    from django.conf import settings
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    django.setup()

    from celery import Celery, shared_task
    from celery.contrib.django.task import DjangoTask
    from django.db import transaction
    import anarchon_celery

    class Both(anarchon_celery.Task, DjangoTask):
        abstract = True

    class OtherWay(DjangoTask, anarchon_celery.Task):
        abstract = True

    app = Celery("proj", broker="memory://")
    sent = []
    for base in (Both, OtherWay):
        @app.task(name=base.__name__, base=base, bind=True)
        def job(self, *args):
            return self.lease.job

        job.apply_async = lambda args=(), kwargs=None, **options: sent.append((base.__name__, args, options))
        with transaction.atomic():
            job.delay_on_commit(1)
            job.apply_async_on_commit((2,), countdown=3)
            assert sent == [], "not before the commit"
        assert job() is None
        print(sent)
        sent.clear()
"""


def test_beside_djangos_task_it_keeps_what_that_one_has(tmp_path, processes):
    pytest.importorskip("django")
    (tmp_path / "on_commit.py").write_text(dedent(ON_COMMIT))
    done = processes.python("on_commit.py", env={"DJANGO_SETTINGS_MODULE": None})
    assert 0 == done.wait(30), done.tail()
    for name in ("Both", "OtherWay"):
        assert f"[('{name}', (1,), {{}}), ('{name}', (2,), {{'countdown': 3}})]" in done.output


def test_the_package_is_all_that_is_imported(tmp_path, processes):
    """Who uses the base class has the worker's side too: no step, no signal to connect by hand."""
    look = "import anarchon_celery, sys; print({'worker', 'unknown'} <= {m[16:] for m in sys.modules})"
    done = processes.start(sys.executable, "-c", look)
    assert 0 == done.wait(30), done.tail()
    assert "True" in done.output

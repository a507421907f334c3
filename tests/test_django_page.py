"""docs/django.md, held to its word: each of its blocks runs, and it names each id of the checks."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
from celery import Celery, _state

pytest.importorskip("django")

from tests import django_site  # after that

django_site.set_up()

from django.contrib.admin import checks as admin_checks  # noqa: E402
from django.core import management  # noqa: E402
from django.core.checks import run_checks  # noqa: E402

from anarchon_celery.django import checks  # noqa: E402
from tests.test_docs import DOCS  # noqa: E402

ROOT = Path(__file__).parents[1]
PAGE = (DOCS / "django.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
PYTHON = {text.splitlines()[0].removeprefix("# "): text for language, text in BLOCKS if language == "python"}


def module(name: str, **given) -> dict:
    values: dict = {**given}
    exec(compile(PYTHON[name], f"docs/django.md {name}", "exec"), values)
    return values


def test_its_settings_are_right():
    values = module("settings.py")
    assert ["anarchon_celery.django"] == values["INSTALLED_APPS"]
    app = Celery("shop", set_as_current=False)
    app.config_from_object(types.SimpleNamespace(**values), namespace="CELERY")
    with django_site.project_of(app):
        assert [] == [it for it in run_checks() if it.id.startswith("anarchon")]
    assert ["nightly-report"] == list(app.conf.beat_schedule)
    app.close()


def test_its_celery_app_is_that_of_the_example_project():
    example = ROOT / "example_project" / "shop"
    assert PYTHON["shop/celery.py"].split("\n\n", 1)[1].strip() in (example / "celery.py").read_text()
    assert PYTHON["shop/__init__.py"].splitlines()[1] in (example / "__init__.py").read_text()


def test_what_it_shows_of_the_check_is_what_the_check_says():
    (said,) = [text for language, text in BLOCKS if not language]
    entry = {"task": "t", "schedule": 1, "options": {"anarchon": {"overlap": "skp"}}}
    app = Celery("shop", broker="memory://", set_as_current=False)
    settings = types.SimpleNamespace(
        CELERY_ANARCHON_LAESE="1m", CELERY_BEAT_SCHEDULE={"nightly-report": entry}, CELERY_RESULT_EXPIRES=None
    )
    app.config_from_object(settings, namespace="CELERY")
    with django_site.project_of(app):
        found = [str(it) for it in run_checks() if it.id.startswith("anarchon")]
    assert said.splitlines() == found
    app.close()


def test_it_names_each_id_of_the_checks():
    assert sorted(checks.IDS) == sorted(re.findall(r"^\| `(anarchon\.\w+)` \|", PAGE, re.MULTILINE))
    source = Path(checks.__file__).read_text()
    assert set(checks.IDS) == set(re.findall(r'id="(anarchon\.\w+)"', source))


def test_an_admin_site_of_ones_own():
    site = module("urls.py")["site"]
    assert 3 == len(site._registry)
    assert [] == [it for model_admin in site._registry.values() for it in model_admin.check()], admin_checks


def test_a_task_with_both_classes(monkeypatch):
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))  # it is shared
    app = Celery("shop", broker="memory://")
    made = module("shop/tasks.py", __name__="shop.tasks")["close_month"]
    assert {"delay_on_commit", "lease"} <= set(dir(made))
    assert made.run() is None
    app.close()


def test_its_commands_exist():
    typed = [
        line.removeprefix("$ ").split() for language, text in BLOCKS if language == "console"
        for line in text.splitlines()
    ]  # fmt: skip
    of_django = [words[2] for words in typed if words[:2] == ["python", "manage.py"]]
    assert ["check", "check", "migrate", "createsuperuser", "runserver"] == of_django
    assert {*of_django} <= management.get_commands().keys()
    others = [" ".join(words) for words in typed if words[0] not in ("python", "cd", "pip")]
    assert ["celery -A shop beat -l info", "celery -A shop worker -l info"] == others

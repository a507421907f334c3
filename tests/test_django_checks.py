"""``manage.py check``: each wrong setting and entry by its name in the settings; whom it leaves alone."""

from __future__ import annotations

import types

import pytest
from celery import Celery

from anarchon_celery import every
from tests.servers import free_port

pytest.importorskip("django")

from tests import django_site  # after that

django_site.set_up()

from django.core.checks import run_checks  # noqa: E402

from anarchon_celery.django import checks, project  # noqa: E402

STORE = {"CELERY_ANARCHON_STORE": "memory://checks"}


@pytest.fixture
def found():
    """What is found with these settings of Django's; one line for each, with its id."""
    apps = []

    def look(*, deploy: bool = False, **settings) -> list[str]:
        app = Celery("proj", broker="memory://", set_as_current=False)
        given = {"CELERY_RESULT_EXPIRES": None, "CELERY_TIMEZONE": "UTC"} | STORE | settings
        app.config_from_object(types.SimpleNamespace(**given), namespace="CELERY")
        apps.append(app)
        with django_site.project_of(app):
            messages = run_checks(include_deployment_checks=deploy)
        return [f"{it.id} {it.msg}" for it in messages if it.id.startswith("anarchon")]

    yield look
    for app in apps:
        app.close()


def test_nothing_is_wrong(found):
    assert [] == found(CELERY_BEAT_SCHEDULE={"sync": {"task": "t", "schedule": "10s"}})


def test_every_wrong_setting_has_a_line_of_its_own(found):
    lines = found(CELERY_ANARCHON_LEASE="long", CELERY_ANARCHON_OVERLAP="skp", CELERY_ANARCHON_LAESE=3)
    duration = "a duration above 0 to 36500d is right, such as 30 (seconds), '250ms' or '1h30m'"
    assert [
        "anarchon.E002 CELERY_ANARCHON_LAESE=3: no such setting; did you mean CELERY_ANARCHON_LEASE?",
        f"anarchon.E002 CELERY_ANARCHON_LEASE='long': {duration}",
        "anarchon.E002 CELERY_ANARCHON_OVERLAP='skp': one of 'skip', 'queue', 'cancel', 'allow' is right; "
        "did you mean 'skip'?",
    ] == sorted(lines)


def test_what_does_not_fit_together(found):
    (line,) = found(CELERY_ANARCHON_LEASE=10, CELERY_ANARCHON_HEARTBEAT=8)
    assert line.startswith("anarchon.E002 CELERY_ANARCHON_HEARTBEAT=8: a lease shorter than two heartbeats")


def test_every_wrong_entry_has_a_line_of_its_own_also_beside_a_wrong_setting(found):
    entries = {
        "often": {"task": "t", "schedule": "often"},
        "typo": {"task": "t", "schedule": 1, "options": {"anarchon": {"overlpa": "skip"}}},
        "right": {"task": "t", "schedule": 1},
        "policy": {"task": "t", "schedule": 1, "options": {"anarchon": {"catch_up": "some"}}},
    }
    lines = found(CELERY_BEAT_SCHEDULE=entries, CELERY_ANARCHON_LEASE="long")
    assert ["E002", "E004", "E004", "E004"] == [line[9:13] for line in lines]
    assert lines[1].startswith("anarchon.E004 CELERY_BEAT_SCHEDULE['often']: ")
    assert (
        "anarchon.E004 CELERY_BEAT_SCHEDULE['typo']: overlpa='skip': no such setting; did you mean overlap?"
        == lines[2]
    )
    assert lines[3].startswith("anarchon.E004 CELERY_BEAT_SCHEDULE['policy']: catch_up='some': one of ")


def nothing():
    """What a task may do."""


def test_entries_of_decorators_are_looked_at_too():
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.update(anarchon_store="memory://checks", result_expires=None)
    every("10s", overlap="skp")(app.task(name="proj.sync", shared=False)(nothing))
    with django_site.project_of(app):
        (found,) = [it for it in run_checks() if it.id.startswith("anarchon")]
    assert found.msg.startswith("entry 'proj.sync' (@every on proj.sync): overlap='skp': one of ")
    app.close()


@pytest.mark.parametrize(
    ("setting", "value", "line"),
    [
        ("CELERY_BEAT_SCHEDULE", ["sync"], "E003 CELERY_BEAT_SCHEDULE is of type list: a dict of "),
        ("CELERY_TIMEZONE", "Berlin", "E003 CELERY_TIMEZONE='Berlin': no such time zone"),
        ("CELERY_ANARCHON_STORE", "redis://localhost:nonsense/1", "E005 "),
        ("CELERY_IMPORTS", ("no_such_module",), "W003 the modules with tasks cannot be imported: Modu"),
        ("CELERY_ANARCHON_STORE", None, "W001 CELERY_ANARCHON_STORE is not set, and the broker"),
        ("CELERYBEAT_SCHEDULE", {"x": {"task": "t", "schedule": 1}}, ""),
    ],
)
def test_what_else_is_said(found, setting, value, line):
    said = found(**{setting: value})
    if not line:  # an old name, which only some versions of Celery read
        assert [] == [one for one in said if ".E" in one]
        return
    assert 1 == len(said), said
    assert said[0].startswith(f"anarchon.{line}")
    assert said[0][:13].partition(".")[2] in [id.partition(".")[2] for id in checks.IDS]


def test_an_app_whose_settings_celery_cannot_read():
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.config_from_object("no_such_module_of_settings")
    with django_site.project_of(app):
        messages = [it for it in run_checks(include_deployment_checks=True) if it.id.startswith("anarchon")]
    assert [("anarchon.E003", "ModuleNotFoundError: No module named 'no_such_module_of_settings'")] == [
        (it.id, it.msg) for it in messages
    ]
    app.close()


def test_settings_that_are_no_settings_of_djangos_are_named_as_they_are_written():
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.update(anarchon_store="memory://checks", timezone="Berlin")
    with django_site.project_of(app):
        (found,) = [it for it in run_checks() if it.id.startswith("anarchon")]
    assert ("anarchon.E003", True) == (found.id, found.msg.startswith("timezone='Berlin': no such time zone"))
    app.close()


def test_the_store_is_asked_only_for_a_deployment(found):
    url = f"redis://127.0.0.1:{free_port()}/1"
    assert [] == found(CELERY_ANARCHON_STORE=url, CELERY_ANARCHON_CLAIM_TIMEOUT=2)
    (line,) = found(CELERY_ANARCHON_STORE=url, CELERY_ANARCHON_CLAIM_TIMEOUT=2, deploy=True)
    assert line.startswith("anarchon.W004 ")
    assert [] == found(deploy=True)
    (line,) = found(CELERY_ANARCHON_STORE=url, CELERY_ANARCHON_LEASE="x", deploy=True)
    assert line.startswith("anarchon.E002 "), "and not where a setting is wrong"


def test_without_an_app_it_says_what_to_do(monkeypatch):
    with django_site.project_of(None):
        assert ["anarchon.E001"] == [it.id for it in run_checks() if it.id.startswith("anarchon")]


def test_other_apps_are_checked_alone(found):
    from django.apps import apps

    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.anarchon_lease = "long"
    with django_site.project_of(app):
        assert [] == checks.check_settings(app_configs=[apps.get_app_config("auth")])
        assert ["anarchon.E002"] == [
            it.id for it in checks.check_settings(app_configs=[apps.get_app_config("anarchon")])
        ]
    app.close()


def test_the_start_of_a_node_is_left_alone():
    """Celery runs Django's checks before it imports the tasks: who finalizes the app then is too early."""
    app = Celery("proj", broker="memory://", set_as_current=False)
    app.conf.update(anarchon_store="memory://checks", anarchon_lease="long")
    app.loader.worker_initialized = True  # as Celery's init_worker does first
    with django_site.project_of(app):
        assert [] == [it for it in run_checks() if it.id.startswith("anarchon")]
    assert not app.finalized
    app.close()


def test_celery_does_not_set_django_up_anew(monkeypatch):
    """In a request, that would forget the path under which the project is mounted."""
    from celery.fixups.django import DjangoFixup

    app = Celery("proj", broker="memory://", set_as_current=False)
    ran = []
    monkeypatch.setattr(DjangoFixup, "on_import_modules", lambda *_, **__: ran.append("set up"))
    fixup = DjangoFixup(app).install()
    monkeypatch.setattr(app, "_fixups", [fixup])
    project.import_tasks(app)
    assert [] == ran
    assert app.loader.worker_initialized
    app.close()


def test_the_app_is_found_as_celery_finds_it(monkeypatch, tmp_path):
    (tmp_path / "shop_of_test" / "config").mkdir(parents=True)
    (tmp_path / "shop_of_test" / "__init__.py").touch()
    (tmp_path / "shop_of_test" / "config" / "__init__.py").touch()
    made = "from celery import Celery\napp = Celery('found', set_as_current=False)\n"
    (tmp_path / "shop_of_test" / "celery.py").write_text(made)
    monkeypatch.syspath_prepend(tmp_path)
    assert "found" == project._of_package("shop_of_test.config.production").main
    assert None is project._of_package("hasty")

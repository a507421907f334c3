"""What ``manage.py check`` says: all that a node would refuse or warn of, before one is started.

Nothing is connected. ``manage.py check --deploy`` asks the store too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click
from celery import Celery
from django.core.checks import CheckMessage, Error, Warning

from ..config import SETTINGS, Config, check_celerys, given, read
from ..desk import Refused
from ..entries import planned_jobs
from ..errors import SettingError, StoreError, in_one_line
from ..origins import notes_on
from .project import NO_APP, celery_app, import_tasks, opened, starts_a_node

#: What each id means; docs/django.md lists them.
IDS = {
    "anarchon.E001": "there is no Celery app",
    "anarchon.E002": "a setting",
    "anarchon.E003": "one of Celery's settings",
    "anarchon.E004": "an entry",
    "anarchon.E005": "the store's URL or options",
    "anarchon.W001": "a setting that is better given",
    "anarchon.W002": "something that is written and not read",
    "anarchon.W003": "the modules with tasks cannot be imported, so that entries are not looked at",
    "anarchon.W004": "the store does not answer, or cannot be used (--deploy)",
    "anarchon.W005": "the store's server may lose what it is given (--deploy)",
}

#: Those of Celery's settings that our lines name as Celery has them.
CELERYS = ("beat_schedule", "timezone")


def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check settings and entries."""
    if app_configs is not None and not any(config.label == "anarchon" for config in app_configs):
        return []
    app = celery_app()
    if app is None:
        return [Error(NO_APP, id="anarchon.E001")]
    return [] if starts_a_node(app) else list(_found(app))


def check_store(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Ask the store whether it is there and can be used, where nothing is wrong with the settings."""
    app = celery_app()
    if app is None or starts_a_node(app) or any(map(CheckMessage.is_serious, check_settings(app_configs))):
        return []
    try:
        with opened() as desk:
            desk.store.jobs()
            return [Warning(line, id="anarchon.W005") for line in desk.store.complaints()]
    except (StoreError, click.ClickException) as reason:
        return [Warning(getattr(reason, "message", str(reason)), id="anarchon.W004")]


def _found(app: Celery) -> Iterator[CheckMessage]:
    try:
        wrong = [Error(line, id="anarchon.E002") for line in _wrong_settings(app)]
    except Exception as reason:  # Celery's own: it cannot read them
        yield Error(in_one_line(reason), id="anarchon.E003")
        return
    yield from wrong
    config = Config(store="") if wrong else Config.of(app)  # entries are looked at all the same
    if not wrong:
        yield from _of_the_store(config)
    try:
        check_celerys(app)
    except SettingError as reason:
        yield Error(_spelled(app.conf, str(reason)), id="anarchon.E003")
        return
    yield from _of_entries(app, config)


def _wrong_settings(app: Celery) -> list[str]:
    """Return a line for each wrong setting; for what does not fit together where each is right by itself."""
    lines = []
    for name, it in given(app.conf).items():
        try:
            read(SETTINGS, {name: it})
        except SettingError as reason:
            lines.append(str(reason))
    if not lines:
        try:
            Config.of(app)
        except SettingError as reason:
            lines.append(str(reason))
    return lines


def _of_the_store(config: Config) -> Iterator[CheckMessage]:
    try:
        config.open_store().close()
    except StoreError as reason:
        yield Error(str(reason), id="anarchon.E005")
    yield from (Warning(line, id="anarchon.W001") for line in config.warnings)


def _of_entries(app: Celery, config: Config) -> Iterator[CheckMessage]:
    try:
        import_tasks(app)
    except Refused as reason:
        yield Warning(reason.message, id="anarchon.W003")
        return
    app.finalize()
    _, refused = planned_jobs(app, config)
    yield from (Error(_of_setting(app.conf, line), id="anarchon.E004") for line in refused)
    yield from (Warning(line, id="anarchon.W002") for line in notes_on(app))


def _of_setting(conf: Any, line: str) -> str:
    """Name an entry of the setting by that; others say where they are written."""
    for name in conf.beat_schedule if isinstance(conf.beat_schedule, Mapping) else ():
        if line.startswith(start := f"entry {name!r}: "):
            return _spelled(conf, f"beat_schedule[{name!r}]: {line.removeprefix(start)}")
    return line


def _spelled(conf: Any, line: str) -> str:
    """Write the name of one of Celery's settings at the begin of a line as Django's settings have it."""
    prefix = conf.prefix or ""
    for key in CELERYS:
        if prefix.isupper() and line.startswith(key):
            return f"{prefix}{key.upper()}{line.removeprefix(key)}"
    return line

"""The project's Celery app in a process of Django's, and a desk to work with its jobs and its store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from weakref import WeakSet

from celery import Celery
from celery.app.utils import find_app
from celery.signals import import_modules
from django.apps import apps
from django.conf import settings

from ..config import Config
from ..desk import Desk, Refused
from ..errors import SettingError, in_one_line

#: What is said where there is no Celery app, and what to do then.
NO_APP = (
    "there is no Celery app: import the one of the project's celery.py in the package of the settings "
    "(from .celery import app as celery_app)"
)

#: The apps whose modules with tasks were imported here; of another one that has begun with it, a beat or a
#: worker is starting in this process.
_imported: WeakSet[Celery] = WeakSet()
_importing = threading.RLock()


def celery_app() -> Celery | None:
    """Return the project's app: the one that was there when Django was ready, else that of its celery.py."""
    config = apps.get_app_config("anarchon")
    if config.celery is None or config.celery.main == "default":
        config.celery = _of_package(getattr(settings, "SETTINGS_MODULE", None) or "")
    app: Celery | None = config.celery
    return app


def _of_package(module: str) -> Celery | None:
    """Find the app of the settings' package, or of one around it, as ``celery -A package`` does."""
    while module := module.rpartition(".")[0]:
        try:
            found = find_app(module)
        except Exception:  # no such module, or none with an app in it
            continue
        if not isinstance(found, ModuleType):
            return found
    return None


def starts_a_node(app: Celery) -> bool:
    """Whether a beat or a worker is just starting here: Celery runs Django's checks before it has its tasks.

    What is wrong it says itself; and to finalize the app now would be too early for it.
    """
    return bool(app.loader.worker_initialized) and app not in _imported


def import_tasks(app: Celery) -> None:
    """Import the modules with tasks, as a beat does at its start: entries may be there.

    Raises:
        Refused: one of them cannot be imported.
    """
    with _importing:
        if app.loader.worker_initialized:
            return
        _imported.add(app)
        _leave_django_alone(app)
        try:
            app.loader.init_worker()
        except Exception as reason:
            app.loader.worker_initialized = False
            line = f"the modules with tasks cannot be imported: {in_one_line(reason)}"
            raise Refused(line) from reason


def _leave_django_alone(app: Celery) -> None:
    """Have Celery not set Django up, as it does before such an import, and run all its checks: it is set up.

    In the middle of a request that would forget under which path the project is mounted.
    """
    for fixup in getattr(app, "_fixups", ()):
        if receiver := getattr(fixup, "on_import_modules", None):
            import_modules.disconnect(receiver)
            import_modules.disconnect(receiver, sender=app)  # as newer versions connect it


@contextmanager
def opened() -> Iterator[Desk]:
    """Work with the app and its store.

    Raises:
        Refused: one line: there is no app, its tasks cannot be imported, or a setting is wrong.
    """
    app = celery_app()
    if app is None:
        raise Refused(NO_APP)
    import_tasks(app)
    try:
        desk = Desk(app, Config.of(app))
    except SettingError as reason:
        raise Refused(str(reason)) from reason
    try:
        yield desk
    finally:
        desk.close()

"""Jobs from the methods of an object: one task for each decorated method, bound to that object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from inspect import getattr_static, signature
from typing import Any

from celery import Celery

from .decorators import is_decorated
from .errors import SettingError
from .task import Task

#: Where an app keeps which of its tasks were made here, and by which call.
REGISTERED = "_anarchon_registered"


def register(app: Celery, obj: object, *, name: str | None = None, **task_options: Any) -> dict[str, Any]:
    """Make a task of each method of an object that ``@every``, ``@cron`` or ``@once`` decorates.

    ::

        class Reports:
            @every("30s")
            def daily(self): ...

        register(app, Reports(database))

    Beat and worker both need them, so call it where the tasks of the project are made. Methods that are
    inherited count too; one that is overridden counts if the new one is decorated. A method asks
    :func:`~anarchon_celery.current_lease` for its lease.

    Args:
        app: the app that is to have the tasks.
        obj: the object; its methods are called with it, not with a task.
        name: what comes before the method's name in the name of the task; default:
            ``<module>.<Class>`` of the object.
        **task_options: as for ``@app.task``; ``base`` is :class:`anarchon_celery.Task` by default.

    Returns:
        The tasks, by the names of the methods.

    Raises:
        SettingError: no method is decorated, or the app has a task of that name; one line.
    """
    call = f"register(app, {type(obj).__name__}())"
    methods = _checked(app, obj, task_options, call)
    names = {method: f"{name or _name_of(app, obj)}.{method}" for method in methods}
    registered = vars(app).setdefault(REGISTERED, {})
    for task in names.values():
        if task in registered or task in app._tasks:
            by = f" by {registered[task]}" if task in registered else ""
            raise SettingError(f"{call}: there is a task {task!r} already{by}: give this one name='…'")
    registered.update(dict.fromkeys(names.values(), call))
    options = {"base": _base(app), **task_options, "shared": False}  # the object is this app's
    return {method: app.task(_bound(obj, method), name=names[method], **options) for method in methods}


def registered_by(app: Celery, task: str) -> str | None:
    """Return the call of :func:`register` that made a task, for people; None for other tasks."""
    call: str | None = vars(app).get(REGISTERED, {}).get(task)
    return call


def _checked(app: Any, obj: object, task_options: dict[str, Any], call: str) -> list[str]:
    """Return the names of the decorated methods; refuse a call that cannot be meant."""
    if not isinstance(app, Celery):
        raise SettingError(f"register({type(app).__name__}, …): a Celery app comes first, then the object")
    if isinstance(obj, type):
        raise SettingError(f"register(app, {obj.__name__}): an object is right, such as {obj.__name__}()")
    if "bind" in task_options:
        raise SettingError(f"{call}: bind is not for methods, they have their object: call current_lease()")
    methods = list(_decorated(type(obj)))
    if not methods:
        raise SettingError(f"{call}: no method is decorated: @every, @cron or @once above one is right")
    return methods


def _decorated(kind: type) -> Iterator[str]:
    """Yield the names of decorated methods as they are written, those of parents first."""
    names = dict.fromkeys(name for parent in reversed(kind.__mro__) for name in vars(parent))
    return (name for name in names if is_decorated(getattr_static(kind, name)))


def _bound(obj: object, method: str) -> Callable[..., Any]:
    """Return a function that calls the object's method, and takes what that takes.

    Celery would count the object among the arguments that a caller has to give.
    """
    bound = getattr(obj, method)

    @wraps(bound)
    def run(*args: Any, **kwargs: Any) -> Any:
        return bound(*args, **kwargs)

    run.__signature__ = signature(bound)  # type: ignore[attr-defined]
    return run


def _name_of(app: Celery, obj: object) -> str:
    """Return module and class as Celery would name them in a task."""
    kind = type(obj)
    name: str = app.gen_task_name(kind.__qualname__.rpartition("<locals>.")[2], kind.__module__)
    return name


def _base(app: Celery) -> type:
    """Return the app's own class of tasks if it is supervised, else ours."""
    own = app.task_cls
    return own if isinstance(own, type) and issubclass(own, Task) else Task

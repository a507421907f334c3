"""Schedules as decorators: what ``@every``, ``@cron`` and ``@once`` leave behind, and how it is found again.

A declaration is kept with what it was put on, so it lives as long as that. A task that is yet to be
made, as ``@app.task`` gives it, is not made for it (that would read the settings while modules are
imported): the declaration is handed on when the app makes the task. Only those of ``@shared_task``
are kept here, since it leaves no object that could carry them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakSet

from celery import Celery
from celery import Task as CeleryTask
from celery._state import _set_current_app, _tls
from celery.local import PromiseProxy, Proxy
from celery.schedules import BaseSchedule

from .errors import ScheduleError

Target = TypeVar("Target")

#: Where a function, a task or the class of one carries the schedules it was decorated with, innermost first.
MARK = "_anarchon_schedules"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a schedule says of its job beside the times: all that an entry of ``beat_schedule`` may say.

    ``policy`` are the keys that an entry has under ``options['anarchon']``.
    """

    name: str | None = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    options: Mapping[str, Any] | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> list[str]:
        """The names of what is said, the policy's keys one by one."""
        own = {"name": self.name, "args": self.args, "kwargs": self.kwargs, "options": self.options}
        return [key for key, value in own.items() if value] + list(self.policy)


#: What a decorator may stand above.
RIGHT = "a task, a function or a method is right"

#: Each task of ``@shared_task`` with a schedule: every app of the process has it.
_shared: list[tuple[Proxy, BaseSchedule]] = []

#: All decorated functions, to tell of those that never became a task.
_functions: WeakSet[FunctionType] = WeakSet()


def declare(schedule: BaseSchedule, target: Target) -> Target:
    """Remember the schedule for ``target``, and return ``target`` as it is.

    Raises:
        ScheduleError: the target cannot carry it; one line.
    """
    # By type(): isinstance() would ask the task itself for its class, and so make it.
    kind: type = type(target)
    if issubclass(kind, PromiseProxy):
        target.__then__(_hand_on, target, schedule)  # type: ignore[attr-defined]
    elif issubclass(kind, Proxy):
        _shared.append((target, schedule))
    else:
        _mark(target, schedule)
    return target


def _hand_on(made: PromiseProxy, schedule: BaseSchedule) -> None:
    _mark(made._get_current_object(), schedule)


def _mark(target: Any, schedule: BaseSchedule) -> None:
    """Keep the schedule on a task, its class or a function; of a method on its function."""
    target = getattr(target, "__func__", target)
    if isinstance(target, type) and not issubclass(target, CeleryTask):
        raise ScheduleError(f"{schedule!r} above class {target.__name__}: {RIGHT}, not a class")
    try:
        # A tuple made anew: functools.wraps copies what an inner function carries to its wrapper.
        setattr(target, MARK, (*_marks(target), schedule))
    except (AttributeError, TypeError):
        raise ScheduleError(f"{schedule!r} above a {type(target).__name__}: {RIGHT}") from None
    if isinstance(target, FunctionType):
        _functions.add(target)


def _marks(target: Any) -> tuple[BaseSchedule, ...]:
    """Return what something carries itself, and does not inherit."""
    marks: tuple[BaseSchedule, ...] = getattr(target, "__dict__", {}).get(MARK, ())
    return marks


def is_decorated(member: Any) -> bool:
    """Whether a member of a class is a method with a schedule."""
    return any(map(_marks, _unwrapped(member)))


def declared(app: Celery) -> Iterator[tuple[CeleryTask, list[BaseSchedule]]]:
    """Yield the decorated tasks of an app, each with its schedules, innermost first; the app is finalized."""
    tasks = app.tasks
    shared: dict[str, list[BaseSchedule]] = {}
    for proxy, schedule in _shared:
        if (name := _name_in(app, proxy)) is not None:
            shared.setdefault(name, []).append(schedule)
    for name, task in sorted(tasks.items()):
        carried = [*_marks_below(app, task), *_marks(type(task)), *_marks(task), *shared.get(name, ())]
        if carried:
            yield task, carried


def _name_in(app: Celery, proxy: Proxy) -> str | None:
    """Return the name of a shared task in an app: it is that of the thread's current app."""
    before = _tls.current_app
    _set_current_app(app)
    try:
        name: str = proxy._get_current_object().name
        return name
    except KeyError:
        return None
    finally:
        _set_current_app(before)


def _marks_below(app: Celery, task: CeleryTask) -> tuple[BaseSchedule, ...]:
    """Return what was put below ``@app.task``, or on a method: the function of the task carries it."""
    for function in _unwrapped(task.run):
        if marks := _marks(function):
            return marks if _owner(function) in (None, app) else ()
    return ()


def _unwrapped(function: Any) -> Iterator[Any]:
    """Yield a function and all that it wraps, from the outside in."""
    seen: set[int] = set()  # what answers any name, such as a mock, would go on for ever
    while function is not None and id(function) not in seen and len(seen) < 100:
        function = getattr(function, "__func__", function)
        seen.add(id(function))
        yield function
        function = getattr(function, "__wrapped__", None)


def _owner(function: Any) -> Celery | None:
    """Return the app whose task a function of a module is; None if it is everybody's or cannot be told.

    Celery copies the tasks of one app to all others of the process, and with them what their
    functions carry: else two apps would both have the job.
    """
    task = _in_its_module(function)
    if issubclass(type(task), PromiseProxy) and not task.__evaluated__():
        return getattr(object.__getattribute__(task, "_Proxy__local"), "__self__", None)
    if issubclass(type(task), PromiseProxy):
        task = task._get_current_object()
    return task.app if issubclass(type(task), CeleryTask) else None


def _in_its_module(function: Any) -> Any:
    """Return what a function's module has under its name; None if it is not of the module itself."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    return getattr(module, "__dict__", {}).get(getattr(function, "__qualname__", None))


def forgotten(app: Celery) -> list[str]:
    """Return one line for each decorated function of a module that no task was made of."""
    used = {id(function) for task in app.tasks.values() for function in _unwrapped(task.run)}
    found = [it for it in list(_functions) if id(it) not in used and _in_its_module(it) is it]
    return sorted(
        f"{_marks(it)[0]!r} is above {it.__module__}.{it.__qualname__}, which is no task and never runs: "
        "put @app.task between them"
        for it in found
    )

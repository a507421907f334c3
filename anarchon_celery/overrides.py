"""What a subclass of the task defines for itself is brought under the lease as well.

Celery's tracer calls ``before_start`` and then ``__call__``, whoever wrote them: a mixin, in any
order of bases, or a subclass that goes on to ``self.run`` and never to ours. So the outermost of
each is wrapped; the ones within see that the run is begun.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import getattr_static
from typing import Any

from celery import Task as CeleryTask

#: What a method that is under the lease has; it is inherited with the method.
_MARK = "anarchon_under_lease"


def under_lease(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method that cares for the lease itself."""
    setattr(method, _MARK, True)
    return method


def bring_under_lease(task: type) -> None:
    """Wrap the ``__call__`` and ``before_start`` that a task would use, unless they are under the lease."""
    _wrap(task, "__call__", last=True)
    # Nobody's own before_start: then the run is begun by the body.
    if task.before_start is not CeleryTask.before_start:  # type: ignore[attr-defined]
        _wrap(task, "before_start", last=False)


def _wrap(task: type, name: str, *, last: bool) -> None:
    method, written = getattr(task, name), getattr_static(task, name)
    if getattr(method, _MARK, False):
        return

    @under_lease
    @wraps(method)
    def begun(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = written.__get__(self, type(self)) if hasattr(written, "__get__") else written
        return self.run_under_lease(bound, args, kwargs, last=last)

    setattr(task, name, begun)

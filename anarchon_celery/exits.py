"""A body that ends with a ``SystemExit`` or the like: was it ended by its pool, or did it end itself?

Celery takes none of these for the end of a task: with ``sys.exit()`` a prefork child dies, a task
in a thread or greenlet stays pending for ever, and the solo pool takes its worker with it. So what
a body raised by itself becomes an ordinary failure.
"""

from __future__ import annotations

from typing import Any

from billiard.process import current_process
from celery.exceptions import WorkerShutdown, WorkerTerminate

from .errors import in_one_line

#: What a prefork child exits with when a signal ends it: SystemExit(-(256 - number)), by billiard.
_BY_SIGNAL = range(-255, -255 + 64)

#: Their exceptions are how a greenlet is ended, or how it learns of its time limit.
_POOLS = {"eventlet", "gevent", "greenlet"}


class BodyExited(RuntimeError):
    """The body of a task ended with what is no ``Exception``, like ``SystemExit: 1``."""


def as_failure(reason: BaseException) -> BodyExited | None:
    """Return what a task's own exit is to Celery; None if it was the pool that ended the task."""
    return None if _is_of_pool(reason) else BodyExited(in_one_line(reason))


def why(reason: Any) -> str:
    """Return why a task failed, in one line."""
    return str(reason) if isinstance(reason, BodyExited) else in_one_line(reason)


def _is_of_pool(reason: BaseException) -> bool:
    if isinstance(reason, (WorkerShutdown, WorkerTerminate)):
        return True
    if isinstance(reason, SystemExit):
        return reason.code in _BY_SIGNAL and _is_in_child()
    return any(kind.__module__.partition(".")[0] in _POOLS for kind in type(reason).__mro__)


def _is_in_child() -> bool:
    """Whether this is a process of a prefork pool: nowhere else is a task ended by a signal's exit."""
    return bool(current_process()._name != "MainProcess")

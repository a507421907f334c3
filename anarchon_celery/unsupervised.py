"""A worker whose task lacks the base class, where beat expects it: it says that it runs the message.

So it is in a deploy that gives a task its base class. Nobody would start the run, and it would be dispatched
again at each start timeout. Best effort: the task runs, whatever the store says.
"""

from __future__ import annotations

from typing import Any

from celery.signals import task_prerun

from . import headers, worker
from .errors import HeaderError, SettingError, StoreError, UnknownVersion
from .events import RunNotSettled, emit
from .protocol import PLAIN, Settle
from .stores.clock import monotonic
from .task import Task

#: For how long a process does not ask a store that did not answer (seconds): plain tasks need none.
QUIET_FOR = 60.0

_quiet_until = 0.0


@task_prerun.connect
def _tell_the_store(sender: Any = None, **_: Any) -> None:
    """End the run as published, before the body runs."""
    global _quiet_until
    if isinstance(sender, Task) or (order := _order_of(sender.request)) is None or monotonic() < _quiet_until:
        return
    try:
        store = worker.keeper(sender.app).store
        store.settle([Settle(key=order.key, outcome="published", reason=PLAIN)])
    except (SettingError, StoreError) as reason:
        _quiet_until = monotonic() + QUIET_FOR
        emit(RunNotSettled(order.key, str(reason)))


def _order_of(request: Any) -> headers.Order | None:
    """The run that beat sent this message for, unless beat knows that nobody supervises it."""
    header = None if request.is_eager else (request.headers or {}).get(headers.HEADER)
    own = headers.is_own(
        header, task_id=request.id, task=request.task, replaced=request.replaced_task_nesting
    )
    if not own or not isinstance(header, dict) or header.get("supervised") is False:
        return None
    try:
        return headers.read(header)
    except (HeaderError, UnknownVersion):  # a plain task needs none
        return None

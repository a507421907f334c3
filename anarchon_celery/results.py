"""What the result backend knows of messages that no run was started with.

A worker of older code, without this package, runs the message of a supervised job as a plain task, and the
store does not hear of it. Its result says so: the run is settled, instead of being dispatched again.

Nobody waits for a result backend: what it does not tell in time is not known, and what is not known is
dispatched again. Celery's backends may wait for minutes, so they are asked in a thread that is left behind.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

from celery import Celery, states
from celery.backends.base import DisabledBackend
from celery.backends.rpc import RPCBackend

from .errors import in_one_line
from .events import Noted, RunWasPlain, emit
from .protocol import PLAIN, Run, Settle
from .stores import Store
from .stores.clock import monotonic

#: For how long one look-up is waited for, and none is made after one that failed (seconds).
WITHIN, QUIET_FOR = 1.0, 60.0

#: They keep no states, or give each away once.
_KNOW_NOTHING = (DisabledBackend, RPCBackend)

#: What Celery stores as a failure though the body may not have begun: the worker did not know the task, as in
#: a deploy, or its child was killed.
_WITHOUT_A_BODY = frozenset({"NotRegistered", "WorkerLostError"})


class Results:
    """The results of one app, as beat asks for them."""

    def __init__(self, app: Celery, *, within: float = WITHIN, quiet_for: float = QUIET_FOR) -> None:
        """Ask the app's result backend, if it has one that keeps states."""
        self._app = app
        self._within, self._quiet_for = within, quiet_for
        self._knows_nothing = False
        self._thread: threading.Thread | None = None
        self._quiet_until = 0.0

    def settle(self, store: Store, runs: Sequence[Run]) -> list[Run]:
        """End what somebody ran whom the store does not know; return the others.

        Raises:
            StoreError: the store did not answer.
        """
        ended = self._ended([run.task_id for run in runs if run.task_id and _awaits_a_start(run)])
        ran = [run for run in runs if run.task_id in ended and _awaits_a_start(run)]
        if not ran:
            return list(runs)
        asked = [
            Settle(key=run.key, outcome="published", reason=PLAIN, dispatch=run.dispatch) for run in ran
        ]
        for run, settled in zip(ran, store.settle(asked), strict=True):
            if settled:
                emit(RunWasPlain(run.key))
        return [run for run in runs if run.key not in {one.key for one in ran}]

    def _ended(self, task_ids: Sequence[str]) -> set[str]:
        """Return those of which a body came to its end, as far as that is found out in time."""
        busy = self._thread is not None and self._thread.is_alive()
        if not task_ids or self._knows_nothing or busy or monotonic() < self._quiet_until:
            return set()
        found: list[str] = []
        self._thread = threading.Thread(
            target=self._look_up, args=[task_ids, found], name="anarchon-results", daemon=True
        )
        self._thread.start()
        self._thread.join(self._within)
        if self._thread.is_alive():
            self._failed(f"no answer within {self._within:g} s")
        return {*found}

    def _look_up(self, task_ids: Sequence[str], found: list[str]) -> None:
        try:
            backend = self._app.backend
            self._knows_nothing = isinstance(backend, _KNOW_NOTHING)
            for task_id in () if self._knows_nothing else task_ids:
                if _is_of_a_body(backend.get_task_meta(task_id, cache=False)):
                    found.append(task_id)
        except Exception as reason:
            self._failed(in_one_line(reason))
        finally:
            _close_djangos_connections()

    def _failed(self, reason: str) -> None:
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + self._quiet_for
            emit(Noted(f"the result backend cannot say whether runs were run that nobody started: {reason}"))


def _awaits_a_start(run: Run) -> bool:
    """Whether its task id is that of the message that is to start it; a retry has the one before it."""
    return run.state == "queued" and run.retries is None


def _is_of_a_body(meta: dict[str, Any]) -> bool:
    """Whether a result is that of a body."""
    if meta.get("status") != states.FAILURE:
        return bool(meta.get("status") == states.SUCCESS)
    return type(meta.get("result")).__name__ not in _WITHOUT_A_BODY


def _close_djangos_connections() -> None:
    """Of this thread, where Django's database is the result backend: nobody else would."""
    if (database := sys.modules.get("django.db")) is not None:
        database.connections.close_all()

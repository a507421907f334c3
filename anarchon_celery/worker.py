"""The worker's parent process, as Celery meets it: signals, and what becomes of each delivery.

A prefork child learns nothing of a warm stop, and of a soft or cold one it hears by being killed. So
the parent relays each stop at once: one byte on the board, which the children look at. The signal
handler only sets that byte (Celery calls it inside a Unix signal handler: no locks, no network).

What ends a body from outside (a revoke, a time limit, a cold stop) goes through the request, which
says why before it happens: see :mod:`.verdicts`. Importing this is all it takes.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError
from billiard.process import current_process
from celery.bootsteps import StartStopStep
from celery.exceptions import Ignore
from celery.signals import worker_init, worker_ready, worker_shutdown, worker_shutting_down
from celery.utils import uuid
from celery.worker.request import Request as CeleryRequest

from . import board, headers, verdicts
from .board import Board, Place
from .config import Config
from .errors import HeaderError, SettingError, StoreError, in_one_line
from .events import Noted, emit
from .headers import Order
from .keeper import Keeper, keeper_here, keeper_of
from .lease import HeldLease
from .logged import speak_as
from .parent import Parent
from .presence import Presence, this_node
from .verdicts import Verdict

#: Shared by the parent and its children: made before they are, found by those that are not forked.
_board: Board | None = None

#: Whether this process is a child of a pool, with a place on the board.
_is_child = False

#: What looks after the children; in the parent only.
_parent: Parent | None = None


def stopping() -> bool:
    """Whether this worker was told to stop, or this is a child that it left behind (not on Linux)."""
    here = _here()
    return here is not None and (here.stopping or (_is_child and os.getppid() != here.parent))


def place() -> Place | None:
    """Return this process's place on the board, if it is a child of a pool; None for all others."""
    global _is_child
    here, index = _here(), getattr(current_process(), "index", None)
    if here is None or index is None or here.parent != os.getppid():
        return None
    _is_child = True
    return here.place(index)


def keeper(app: Any) -> Keeper:
    """Return this process's keeper for an app."""
    return keeper_of(app, stopping, place)


def shown(hostname: str) -> str:
    """Return how this worker is shown: ``celery@my-laptop:41907``, with the pid to signal."""
    here = _here()
    return f"{hostname}:{here.parent if here is not None else os.getpid()}"


def _here() -> Board | None:
    global _board
    if _board is None:
        _board = board.find()
    return _board


@worker_init.connect
def _prepare(sender: Any = None, **_: Any) -> None:
    """Check the settings before any message comes, and make the board before any child."""
    global _board, _parent
    try:
        config = Config.of(sender.app)
        # Not connected here, before the fork: only the URL and the options are read.
        config.open_store().close()
    except (SettingError, StoreError) as reason:
        raise SystemExit(f"anarchon: {reason}") from reason
    speak_as(f"{sender.hostname}:{os.getpid()}")
    for warning in config.warnings:
        emit(Noted(warning))
    _board = board.make()
    _parent = Parent(config, _board, stopping)
    _relay_soft_stop(sender)
    sender.app.steps["worker"].add(RelayOfStops)
    atexit.register(_parent.close)


def _relay_soft_stop(worker: Any) -> None:
    """Tell the children of a soft or cold stop when it begins: Celery's signal comes when it is over."""
    waits = getattr(worker, "wait_for_soft_shutdown", None)
    if waits is None:
        return

    @wraps(waits)
    def wait_for_soft_shutdown() -> Any:
        _relay()
        return waits()

    worker.wait_for_soft_shutdown = wait_for_soft_shutdown


@worker_ready.connect
def _begin(sender: Any = None, **_: Any) -> None:
    """Look after the children, and say whether the store answers; they open it for themselves."""
    if _parent is not None:
        node = this_node("worker", shown(sender.hostname), sender.app.main)
        _parent.presence = Presence(node)
        _parent.follow()


@worker_shutting_down.connect
def _relay(**_: Any) -> None:
    """Tell the children; called inside a signal handler."""
    if _board is not None:
        _board.stop()


class RelayOfStops(StartStopStep):  # type: ignore[misc]
    """Relays a stop by remote control, of which no signal tells; before the pool waits for its tasks."""

    requires = ("celery.worker.components:Pool",)

    def close(self, worker: Any) -> None:
        """Tell the children."""
        _relay()


@worker_shutdown.connect
def _close(**_: Any) -> None:
    if _parent is not None:
        _parent.close()


def _before_fork() -> None:
    if _parent is not None and _parent.pid == os.getpid():
        _parent.before_fork()


def _after_fork() -> None:
    if _parent is not None and _parent.pid == os.getpid():
        _parent.after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)


class Request(CeleryRequest):  # type: ignore[misc]
    """A delivery in the worker's parent, which gives it a token and hands that to the child."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take Celery's arguments; mark the message's header with a token of this delivery."""
        super().__init__(*args, **kwargs)
        self._token = uuid()
        header = self._request_dict.get(headers.HEADER)
        if isinstance(header, dict):
            self._request_dict[headers.HEADER] = {**header, "token": self._token}

    @property
    def order(self) -> Order | None:
        """The run that this message is of; None if it is of none, or cannot be read."""
        told = self._request_dict
        header = told.get(headers.HEADER)
        replaced = told.get("replaced_task_nesting") or 0
        if not headers.is_own(header, task_id=self.id, task=self._type, replaced=replaced):
            return None
        try:
            return headers.read(header)
        except HeaderError:
            return None

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Revoke it while it runs; where the pool cannot end it, its task is asked to stop."""
        verdicts.pass_on(self._token, Verdict("cancelled", "revoked"))
        try:
            super().terminate(pool, signal)
        except NotImplementedError:  # threads, solo
            _with_lease(self._app, self._token, lambda keeper, lease: keeper.revoke(lease, "revoked"))
            raise

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """End it because the worker stops at once, or lost its broker: it starts again elsewhere."""
        verdicts.pass_on(self._token, Verdict("released", "cancelled by its worker"))
        try:
            super().cancel(pool, *args, **kwargs)
        except NotImplementedError:
            # In solo this is raised in the task, in the midst of whatever it does. A body of ours is
            # interrupted, and only its body.
            if self.order is None:
                raise
            _with_lease(self._app, self._token, Keeper.end_body)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Take note of a hard time limit before the pool ends the body."""
        if not soft:
            verdicts.pass_on(self._token, Verdict("failed", f"TimeLimitExceeded: {timeout:g} s"))
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Store no failure of a run that goes on elsewhere because its process died."""
        order = self.order
        if order is not None and self._is_lost(exc_info.exception):
            reason = in_one_line(_within(exc_info.exception))
            if _parent is not None:
                retries = self._request_dict.get("retries") or 0
                name = shown(self._hostname)
                _parent.lost(order, self._token, name, self.id, reason, retries=retries)
            exc_info = _ignored(reason)
        return super().on_failure(exc_info, *args, **kwargs)

    def _is_lost(self, reason: BaseException) -> bool:
        """Whether the child died; who wants such messages back from the broker, or as retries, gets them."""
        task = self.task
        back = (task.acks_late and task.reject_on_worker_lost) or getattr(task, "retry_on_worker_lost", False)
        return isinstance(_within(reason), WorkerLostError) and not back

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        super()._announce_revoked(reason, terminated, signum, expired)
        if terminated:
            verdicts.pass_on(self._token, Verdict("cancelled", "revoked"))
        elif (order := self.order) is not None and _parent is not None:
            _parent.settle(order, "cancelled", reason)


def _within(reason: BaseException) -> BaseException:
    """Return what billiard wrapped together with its traceback's text."""
    within: BaseException = getattr(reason, "exc", reason)
    return within


def _ignored(reason: str) -> ExceptionInfo:
    """Return what makes Celery drop a message, and store nothing."""
    try:
        raise Ignore(reason)
    except Ignore:
        return ExceptionInfo()


def _with_lease(app: Any, token: str, do: Callable[[Keeper, HeldLease], None]) -> None:
    """Do something with the lease of a delivery, if its body runs in this process."""
    here = keeper_here(app)
    lease = here.held(token) if here is not None else None
    if here is not None and lease is not None:
        do(here, lease)

"""The base class of supervised tasks: start → run → finish, requeue or release.

``__call__`` is the one place of a task that sees a return, an exception, a retry and a
``SystemExit`` alike, so the start and every way out of the body are there. The end of a run is
recorded later, at ``task_postrun``: by then Celery has stored the result and published what
follows, all of it still under the lease.

Called by hand, or by ``delay()``, a task is an ordinary task.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime
from traceback import walk_tb
from typing import Any

from celery import Task as CeleryTask
from celery.exceptions import Ignore, Reject
from celery.signals import task_postrun
from celery.utils import uuid
from celery.utils.time import maybe_make_aware

from . import headers, interrupting, unknown, worker  # noqa: F401 - unknown listens to its signal
from .errors import HeaderError, StoreError, UnknownVersion
from .events import MessageDropped, RunRetried, RunStarted, SlotSkipped, emit
from .exits import as_failure, why
from .keeper import Keeper
from .lease import HandedOver, HeldLease, Lease, LeaseLost, RunEnded, StaleRun, current_lease, held
from .overrides import bring_under_lease, under_lease
from .protocol import Stale
from .returning import give_back

#: The hooks that Celery calls when the result is stored.
AFTER_THE_RESULT = ("on_success", "after_return")

#: Where a request carries its lease from the body to its end.
LEASE = "anarchon_lease"


class Task(CeleryTask):  # type: ignore[misc]
    """A Celery task whose scheduled runs are supervised.

    Use it with ``@app.task(base=anarchon_celery.Task, bind=True)``, ``@shared_task(base=…)`` or
    ``Celery(task_cls=…)``. When beat sent it, it runs under a lease, :attr:`lease`; call
    ``self.lease.check()`` between steps so that it stops when its run is handed over or lost.
    """

    abstract = True
    Request = "anarchon_celery.worker:Request"
    # A takeover is the next attempt; Celery's own ways to run a lost task again would compete with it.
    reject_on_worker_lost = False
    retry_on_worker_lost = False

    @property
    def lease(self) -> Lease:
        """The lease of this run; outside a scheduled run one that never ends."""
        return current_lease()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Bring a subclass's own ``__call__`` and ``before_start`` under the lease too."""
        super().__init_subclass__(**kwargs)
        bring_under_lease(cls)

    @under_lease
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body; under a lease, if beat sent this message."""
        return self.run_under_lease(super().__call__, args, kwargs)

    def run_under_lease(self, body: Callable[..., Any], args: Any, kwargs: Any, *, last: bool = True) -> Any:
        """Run the body, or what comes before it; under a lease, if beat sent this message."""
        lease = self._begin()
        if lease is None:
            return body(*args, **kwargs)
        keeper = worker.keeper(self.app)
        try:
            with held(lease), interrupting.body() as lease.body:
                result = body(*args, **kwargs)
        except Exception as reason:
            _settle(keeper, lease, reason)
            raise
        except BaseException as reason:
            if lease.pid != os.getpid():  # a fork of the task's own comes to its end
                raise
            failure = as_failure(reason)
            if failure is None:
                keeper.interrupted(lease, reason)
                raise
            _settle(keeper, lease, failure)
            raise failure from reason
        if last or lease.raised is not None:
            _settle(keeper, lease)
        return result

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Send the task, as Celery does; before a retry of this run is sent, the run is requeued."""
        lease = current_lease()
        if isinstance(lease, HeldLease) and _is_retry_of(lease, kwargs):
            _requeue(worker.keeper(self.app), lease, kwargs, self.app)
            # retry(headers=…) replaces the headers; the run's own must survive.
            carried = headers.carried_on(lease.order.header, self.name)
            kwargs["headers"] = {**(kwargs.get("headers") or {}), headers.HEADER: carried}
        return super().apply_async(*args, **kwargs)

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Store a state of the task, as Celery does; none of a run that is lost."""
        lease = current_lease()
        if not (isinstance(lease, HeldLease) and lease.lost):
            super().update_state(*args, **kwargs)

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """Retry the task, as Celery does; a run that is lost or handed over ends instead."""
        try:
            return super().retry(*args, **kwargs)
        except Reject as rejected:  # what Celery makes of any error while the retry is published
            if isinstance(rejected.reason, RunEnded):
                raise rejected.reason from None
            raise

    def _header(self) -> Any:
        """The header of a message that beat sent for this task; None for any other call."""
        request = self.request
        if request.called_directly or request.is_eager or _is_in_body(request.id):
            return None
        header = (request.headers or {}).get(headers.HEADER)
        own = headers.is_own(
            header, task_id=request.id, task=request.task, replaced=request.replaced_task_nesting
        )
        return header if own else None

    def _begin(self) -> HeldLease | None:
        """The lease of this message's run, begun now or by ``before_start``; None for any other call."""
        header = self._header()
        if header is None:
            return None
        lease: HeldLease | None = getattr(self.request, LEASE, None)
        if lease is None:
            lease = self._start(worker.keeper(self.app), header)
            setattr(self.request, LEASE, lease)
        return None if lease.body_over else lease

    def _start(self, keeper: Keeper, header: Any) -> HeldLease:
        try:
            order = headers.read(header)
        except UnknownVersion as reason:
            what = headers.named(header) or f"{self.name}[{self.request.id}]"
            give_back(self, what, str(reason), counted=True)
        except HeaderError as reason:  # nobody could read it: the run's start timeout sends another
            emit(MessageDropped(f"{self.name}[{self.request.id}]", str(reason)))
            raise Ignore(str(reason)) from None
        if worker.stopping() and order.handover:
            give_back(self, order.key, "the worker stops", delay=0.0)
        request = self.request
        name = worker.shown(request.hostname)
        try:
            answer = keeper.start(
                order, token=order.token or uuid(), worker=name, task_id=request.id,
                retries=request.retries or 0,
            )  # fmt: skip
        except StoreError as reason:
            give_back(self, order.key, str(reason))
        if isinstance(answer, Stale):
            if answer.wait:  # this host's clock runs ahead of the one that asked for the retry
                give_back(self, order.key, answer.why, delay=answer.wait / 1000)
            emit(SlotSkipped(order.key, "stale", node=name))
            raise Ignore(f"{order.key}: {answer.why}")
        if answer.out_of_trust:  # the answer took longer than the lease: nothing is begun on it
            keeper.give_up(answer, "the store answered too late")
            raise answer.ended or RunEnded()
        waited = None if request.retries else max(0, keeper.store.clock.now() - order.claimed_at)
        emit(RunStarted(order.key, answer.trigger, waited, **answer.whose))
        return answer


def _settle(keeper: Keeper, lease: HeldLease, reason: Exception | None = None) -> None:
    """Leave the body: what ``check()`` said counts, whatever the body made of it."""
    if lease.waiting_for_retry:
        return
    if isinstance(reason, RunEnded):  # raised by check(), or by the body itself
        lease.raised = reason
    if isinstance(lease.raised, LeaseLost) and not lease.cancelled:
        keeper.give_up(lease, str(lease.raised) or "the task gave it up")
        if not lease.cancelled:
            raise lease.ended or lease.raised from reason
    elif lease.out_of_trust and not lease.lost:
        keeper.confirm(lease)
    if lease.cancelled and (lease.raised is not None or lease.out_of_trust):
        keeper.end_cancelled(lease)
        raise lease.ended or LeaseLost() from reason
    if lease.lost:
        raise lease.ended or LeaseLost() from reason
    if isinstance(lease.raised, HandedOver):
        keeper.hand_over(lease)
        raise lease.raised from reason
    if isinstance(reason, Exception) and not isinstance(reason, (Ignore, Reject)):
        lease.failure = reason
    lease.body_over = True


def _is_in_body(task_id: str) -> bool:
    """Whether this message's body runs already: then it is its own task that it calls."""
    lease = current_lease()
    return isinstance(lease, HeldLease) and lease.task_id == task_id


def _is_retry_of(lease: HeldLease, options: dict[str, Any]) -> bool:
    return options.get("task_id") == lease.task_id and bool(options.get("retries"))


def _requeue(keeper: Keeper, lease: HeldLease, options: dict[str, Any], app: Any) -> None:
    """Let the run wait for the retry; a run that is lost or handed over is not retried."""
    if lease.raised is not None or lease.lost or lease.cancelled:
        raise lease.raised or lease.ended or RunEnded()
    delay = _milliseconds_until(options.get("countdown"), options.get("eta"), app)
    try:
        waiting = keeper.requeue(lease, delay=delay, retries=options["retries"])
        reason = "it had ended or moved on before"
    except StoreError as error:
        waiting, reason = False, str(error)
    if not waiting:
        keeper.lose(lease, reason)
        raise lease.ended or RunEnded()
    lease.waiting_for_retry = True
    emit(RunRetried(lease.key, lease.ms, options["retries"], **lease.whose))


def _milliseconds_until(countdown: float | None, eta: datetime | None, app: Any) -> int:
    """How long from now a retry may not be started yet: as Celery's workers read it, a naive eta in UTC."""
    if not countdown and eta is not None:
        countdown = (maybe_make_aware(eta, app.timezone) - app.now()).total_seconds()
    return max(0, round(1000 * (countdown or 0)))


def _on_its_way(task: Task, lease: HeldLease) -> Exception | None:
    """What went wrong with what was to be stored or sent after the body: to Celery a failure.

    Celery before 5.7 lets errors of hooks come here as well, when all of it is stored and sent.
    """
    error = sys.exc_info()[1]
    if not isinstance(error, Exception) or not lease.body_over:
        return None
    hooks = [getattr(getattr(type(task), name), "__code__", None) for name in AFTER_THE_RESULT]
    return None if any(frame.f_code in hooks for frame, _ in walk_tb(error.__traceback__)) else error


@task_postrun.connect
def _finish(sender: Any = None, retval: Any = None, state: Any = None, **_: Any) -> None:
    """Record the end of a run, once its result is stored and its callbacks are published."""
    if not isinstance(sender, Task):
        return
    # Not by the message's id: a doubled message, or a retry, may run beside the first one.
    lease = getattr(sender.request, LEASE, None)
    if lease is None or lease.pid != os.getpid():
        return
    keeper = worker.keeper(sender.app)
    try:
        if (ended := _ended_by_pool()) is None:
            _end(sender, keeper, lease, state, retval)
        elif not (lease.ended_by_pool or lease.waiting_for_retry):
            keeper.interrupted(lease, ended)
    finally:
        keeper.over(lease)


def _ended_by_pool() -> BaseException | None:
    """What the pool ends this message with, be it in the midst of what follows the body."""
    error = sys.exc_info()[1]
    if error is None or isinstance(error, Exception) or as_failure(error) is not None:
        return None
    return error


def _end(task: Task, keeper: Keeper, lease: HeldLease, state: Any, retval: Any) -> None:
    if not keeper.holds(lease) or lease.waiting_for_retry:
        return
    try:
        _record_end(keeper, lease, state, retval, _on_its_way(task, lease))
    except BaseException as reason:
        if not isinstance(reason, Exception):  # it was perhaps not recorded
            keeper.interrupted(lease, reason)
        raise


def _record_end(
    keeper: Keeper, lease: HeldLease, state: Any, retval: Any, error: Exception | None
) -> None:  # fmt: skip
    error = lease.failure or error
    if error is not None or state == "FAILURE" or isinstance(retval, StaleRun):
        keeper.finish(lease, "failed", why(error or retval))
    elif state in ("SUCCESS", "IGNORED"):  # an Ignore of the task's own, as after replace(): it is done
        keeper.finish(lease, "succeeded")
    elif state == "REJECTED" and getattr(retval, "requeue", False):
        keeper.hand_over(lease)  # the broker has the message again
    elif state == "REJECTED":
        keeper.finish(lease, "failed", "rejected by the task")

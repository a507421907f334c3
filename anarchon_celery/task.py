"""The base class of supervised tasks: start → run → finish, requeue or release.

``__call__`` is the one place of a task that sees a return, an exception, a retry and a
``SystemExit`` alike, so the start and every way out of the body are there. The end of a run is
recorded later, at ``task_postrun``: by then Celery has stored the result and published what
follows, all of it still under the lease.

Called by hand, or by ``delay()``, a task is an ordinary task.
"""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo
from typing import Any, NoReturn

from celery import Task as CeleryTask
from celery.exceptions import Ignore, Reject
from celery.signals import task_postrun
from celery.utils import uuid
from celery.utils.time import make_aware

from . import headers, worker
from .errors import HeaderError, StoreError, UnknownVersion, in_one_line
from .events import MessageDropped, MessageGivenBack, RunRetried, RunStarted, SlotSkipped, emit
from .keeper import Keeper, keeper_of
from .lease import HandedOver, HeldLease, Lease, LeaseLost, RunEnded, StaleRun, current_lease, held
from .protocol import RunKey, Stale
from .slots import from_iso

#: How long a message that cannot be run now waits before somebody may try again (seconds).
GIVEN_BACK_FOR = 5.0

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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body; under a lease, if beat sent this message."""
        header = self._header()
        if header is None:
            return super().__call__(*args, **kwargs)
        keeper = keeper_of(self.app, worker.stopping)
        lease = self._start(keeper, header)
        setattr(self.request, LEASE, lease)
        try:
            with held(lease):
                result = super().__call__(*args, **kwargs)
        except Exception as reason:
            _settle(keeper, lease, reason)
            raise
        except BaseException:
            _interrupted(keeper, lease)
            raise
        _settle(keeper, lease)
        return result

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Send the task, as Celery does; before a retry of this run is sent, the run is requeued."""
        lease = current_lease()
        if isinstance(lease, HeldLease) and _is_retry_of(lease, kwargs):
            _requeue(keeper_of(self.app, worker.stopping), lease, kwargs, self.app.timezone)
        return super().apply_async(*args, **kwargs)

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
        # Groups and chords copy headers to their members: what names another task is not a run.
        return None if isinstance(header, dict) and header.get("task", self.name) != self.name else header

    def _start(self, keeper: Keeper, header: Any) -> HeldLease:
        try:
            order = headers.read(header)
        except UnknownVersion as reason:
            self._give_back(_named(header) or f"{self.name}[{self.request.id}]", str(reason))
        except HeaderError as reason:  # nobody could read it: the run's start timeout sends another
            emit(MessageDropped(f"{self.name}[{self.request.id}]", str(reason)))
            raise Ignore(str(reason)) from None
        if worker.stopping() and order.handover:
            self._give_back(order.key, "the worker stops", delay=0.0)
        request = self.request
        name = worker.shown(request.hostname)
        try:
            answer = keeper.start(order, token=order.token or uuid(), worker=name, task_id=request.id)
        except StoreError as reason:
            self._give_back(order.key, str(reason))
        if isinstance(answer, Stale):
            if answer.wait:  # this host's clock runs ahead of the one that asked for the retry
                self._give_back(order.key, answer.why, delay=answer.wait / 1000)
            emit(SlotSkipped(order.key, "stale"))
            raise Ignore(f"{order.key}: {answer.why}")
        if answer.out_of_trust:  # the answer took longer than the lease: nothing is begun on it
            keeper.give_up(answer, "the store answered too late")
            raise answer.ended or RunEnded()
        emit(RunStarted(order.key, name, answer.attempt, answer.trigger))
        return answer

    def _give_back(self, what: RunKey | str, reason: str, delay: float = GIVEN_BACK_FOR) -> NoReturn:
        """Publish the message again, as it is: never run it unclaimed, never lose it.

        ``Reject`` would do neither: after an early ack it does nothing, and Celery 5.7 stores a failure.
        """
        request = self.request
        carried = dict(request.headers)
        if isinstance(header := carried[headers.HEADER], dict):  # less the token, which is this delivery's
            carried[headers.HEADER] = {name: value for name, value in header.items() if name != "token"}
        again = self.signature_from_request(
            request, countdown=delay, retries=request.retries, headers=carried
        )
        try:
            again.apply_async()
        except Exception as error:  # no broker either: the run's start timeout sends another
            emit(MessageDropped(str(what), f"{reason}; {in_one_line(error)}"))
        else:
            emit(MessageGivenBack(what, reason, delay))
        raise Ignore(reason)


def _settle(keeper: Keeper, lease: HeldLease, reason: Exception | None = None) -> None:
    """Leave the body: what ``check()`` said counts, whatever the body made of it."""
    if lease.waiting_for_retry:
        return
    if isinstance(reason, RunEnded):  # raised by check(), or by the body itself
        lease.raised = reason
    if isinstance(lease.raised, LeaseLost) and not lease.cancelled:
        keeper.give_up(lease, str(lease.raised) or "the task gave it up")
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
    lease.body_over = True


def _interrupted(keeper: Keeper, lease: HeldLease) -> None:
    """The pool ends the task: released at once while the worker stops, else left to who asked for it."""
    if lease.cancelled:
        keeper.end_cancelled(lease)
    elif worker.stopping() and lease.order.handover and not lease.lost:
        keeper.hand_over(lease)
    keeper.let_go(lease)


def _is_in_body(task_id: str) -> bool:
    """Whether this message's body runs already: then it is its own task that it calls."""
    lease = current_lease()
    return isinstance(lease, HeldLease) and lease.task_id == task_id


def _is_retry_of(lease: HeldLease, options: dict[str, Any]) -> bool:
    return options.get("task_id") == lease.task_id and bool(options.get("retries"))


def _requeue(keeper: Keeper, lease: HeldLease, options: dict[str, Any], zone: tzinfo) -> None:
    """Let the run wait for the retry; a run that is lost or handed over is not retried."""
    if lease.raised is not None or lease.lost or lease.cancelled:
        raise lease.raised or lease.ended or RunEnded()
    delay = _milliseconds_until(options.get("countdown"), options.get("eta"), zone)
    try:
        waiting = keeper.requeue(lease, delay=delay, retries=options["retries"])
        reason = "it had ended or moved on before"
    except StoreError as error:
        waiting, reason = False, str(error)
    if not waiting:
        keeper.lose(lease, reason)
        raise lease.ended or RunEnded()
    lease.waiting_for_retry = True
    emit(RunRetried(lease.key, lease.ms, options["retries"]))
    # retry(headers=…) replaces the headers; the run's own must survive.
    options["headers"] = {
        **(options.get("headers") or {}),
        headers.HEADER: lease.order.header,
    }


def _milliseconds_until(countdown: float | None, eta: datetime | None, zone: tzinfo) -> int:
    """How long from now a retry may not be started yet: as Celery reads it, a naive eta in the app's zone."""
    if not countdown and eta is not None:
        aware = eta if eta.tzinfo else make_aware(eta, zone)
        countdown = (aware - datetime.now(timezone.utc)).total_seconds()
    return max(0, round(1000 * (countdown or 0)))


def _named(header: Any) -> RunKey | None:
    """The run that a header of an unknown version seems to be about, for the log."""
    try:
        return RunKey(str(header["job"]), from_iso(header["slot"]))
    except (KeyError, TypeError, ValueError):
        return None


@task_postrun.connect
def _finish(sender: Any = None, retval: Any = None, state: Any = None, **_: Any) -> None:
    """Record the end of a run, once its result is stored and its callbacks are published."""
    if not isinstance(sender, Task):
        return
    # Not by the message's id: a doubled message, or a retry, may run beside the first one.
    lease = getattr(sender.request, LEASE, None)
    if lease is None or lease.waiting_for_retry:
        return
    keeper = keeper_of(sender.app, worker.stopping)
    try:
        if keeper.holds(lease):
            _record_end(keeper, lease, state, retval)
    finally:
        keeper.let_go(lease)


def _record_end(keeper: Keeper, lease: HeldLease, state: Any, retval: Any) -> None:
    if state == "FAILURE" or isinstance(retval, StaleRun):
        keeper.finish(lease, "failed", in_one_line(retval))
    elif state in ("SUCCESS", "IGNORED"):  # an Ignore of the task's own, as after replace(): it is done
        keeper.finish(lease, "succeeded")
    elif state == "REJECTED" and getattr(retval, "requeue", False):
        keeper.hand_over(lease)  # the broker has the message again
    elif state == "REJECTED":
        keeper.finish(lease, "failed", "rejected by the task")

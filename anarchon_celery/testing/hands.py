"""The workers of a stage: each runs one message, in the test's thread, as a worker process would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.exceptions import WorkerTerminate
from celery.utils.imports import symbol_by_name
from celery.worker.state import revoked as revoked_tasks

from .. import headers, keeper
from ..config import Config
from ..errors import HeaderError
from ..headers import Order
from ..keeper import Keeper
from ..lease import HeldLease
from ..protocol import RunKey, Started
from .backstage import Wait, as_in_a_process_of_its_own
from .clock import Clock, aware
from .leases import WatchedLease
from .played import Attempt


class Killed(WorkerTerminate):  # type: ignore[misc]
    """The process of the task that this is raised in is gone."""


class StagedLease(WatchedLease):
    """A lease on a stage: while its task waits, the others go on."""

    pass_time: Wait
    killed: bool = False

    def looked(self) -> None:
        """Do what was asked for at this look; of a process that was killed nothing goes on."""
        super().looked()
        if self.killed:
            raise Killed

    def wait(self, seconds: float) -> None:
        """Let so much of the stage's time pass, unless the task is to stop."""
        self.pass_time(seconds, lambda: self.ended is not None or self.killed or self.out_of_trust)
        self.check()


class StageKeeper(Keeper):
    """A worker's keeper whose heartbeat is the stage's: no thread beats."""

    lease: StagedLease | None = None
    silent = False  #: cut off from everything: it renews nothing, and hears nothing

    def __init__(self, config: Config, wait: Wait, plans: dict[str, list[Any]]) -> None:
        """Keep one run; ``plans`` are what is to be done at the looks of the next run of a job."""
        self.told_to_stop = False
        self._wait, self._plans = wait, plans
        super().__init__(config, lambda: self.told_to_stop)

    def look(self) -> None:
        """Renew, and tell the task what is learnt, as the heartbeat's thread does."""
        leases = [*self._leases.values(), *self._losing.values()]
        if leases and not self.silent:
            self._look(leases)

    def renew(self) -> None:
        """Renew now."""
        if leases := list(self._leases.values()):
            self._renew(leases)

    @property
    def renews_at(self) -> float | None:
        """When the next heartbeat is due (monotonic seconds)."""
        due = [lease.renewed_at + lease.order.heartbeat / 1000 for lease in self._leases.values()]
        return min(due, default=None) if not self.silent else None

    def interrupted(self, lease: HeldLease, reason: BaseException) -> None:
        """See :meth:`Keeper.interrupted`; who was killed tells nobody."""
        if isinstance(reason, Killed):
            lease.ended_by_pool = True
            self.let_go(lease)
        else:
            super().interrupted(lease, reason)

    def _held(
        self, order: Order, started: Started, token: str, task_id: str, asked_at: float, *, owner: str
    ) -> HeldLease:
        lease = StagedLease(order, started, token, task_id, asked_at, owner=owner, clock=self.monotonic)
        lease.pass_time = self._wait
        for number, do in self._plans.pop(order.key.job, []):
            lease.at_look(number, do)
        self.lease = lease
        return lease

    def _beat(self) -> None:
        """The stage does."""

    def _insist(self, lease: HeldLease, now: float) -> None:
        """Nothing interrupts a body: others may run within it."""


class Hand:
    """A worker, for one message."""

    def __init__(self, app: Any, message: Any, name: str, its_keeper: StageKeeper, clock: Clock) -> None:
        """Take the message."""
        self.app, self.message, self.name = app, message, name
        self.keeper, self.clock = its_keeper, clock
        self.key = _key_of(message)
        self.state: str | None = None
        self.told: Any = None  # what Celery says came out: a value, or an exception

    def ended(self, state: str | None, told: Any) -> None:
        """Celery says how the task ended."""
        self.state, self.told = state, told

    def work(self) -> Attempt | None:
        """Run the message; None if no body was begun, as for a run that is not this message's any more."""
        task = self.app.tasks[self.message.headers["task"]]
        began = self.clock.now
        with keeper.instead(self.app, self.keeper), as_in_a_process_of_its_own(task):
            request = _by_the_clock(symbol_by_name(task.Request), self.clock)
            try:
                request(self.message, app=self.app, hostname=self.name, task=task).execute()
            except Killed:
                self.state, self.told = "KILLED", Killed("the worker was killed")
        return self._attempt(task.name, began)

    def _attempt(self, task: str, began: Any) -> Attempt | None:
        lease = self.keeper.lease
        if self.state is None or (lease is None and self.state == "IGNORED"):
            return None
        is_raised = isinstance(self.told, BaseException) and self.state != "SUCCESS"
        key = self.key
        return Attempt(
            task=task, job=key and key.job, slot=key and aware(key.slot), kind=key.kind if key else "",
            number=lease.attempt if lease else 0, fence=lease.fence if lease else 0, began=began,
            ended=self.clock.now, state=self.state, result=None if is_raised else self.told,
            exception=self.told if is_raised else None,
        )  # fmt: skip


def _key_of(message: Any) -> RunKey | None:
    told = message.headers
    header = told.get(headers.HEADER)
    try:
        own = headers.is_own(header, task_id=told["id"], task=told["task"])
        return headers.read(header).key if own else None
    except HeaderError:
        return None


def _by_the_clock(kind: type, clock: Clock) -> Callable[..., Any]:
    """Return a class of requests that expire by the stage's clock."""
    return type("StagedRequest", (_Expiring, kind), {"clock": clock})


class _Expiring:
    clock: Clock
    expires: Any
    id: str

    def maybe_expire(self) -> bool:
        """See Celery's."""
        if self.expires and self.clock.now.timestamp() > self.expires.timestamp():
            revoked_tasks.add(self.id)
            return True
        return False

"""The lease, as a task sees it: what it runs, how long it may trust that, and when to stop.

A task that wants to stop in time calls :meth:`Lease.check` between its steps, or waits with
:meth:`Lease.wait`. Both raise when the run is no longer the task's: ``LeaseLost`` when somebody
else may have it, ``HandedOver`` when its worker stops and the run is to go on elsewhere. They
derive from Celery's ``Ignore``, so that ``autoretry_for`` does not catch them and nothing is stored.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from celery.exceptions import Ignore

from . import native
from .errors import AnarchonError, StaleFence
from .headers import Order
from .interrupting import Interruptible
from .logged import Whose
from .protocol import Holding, Started
from .slots import Slot
from .stores.clock import monotonic
from .trust import LOOK_EVERY, trusted_until


class RunEnded(AnarchonError, Ignore):  # type: ignore[misc]
    """The run ends here, and Celery stores nothing of it."""


class LeaseLost(RunEnded):
    """The run is not, or no longer surely, this worker's: stop, and write nothing more."""


class Cancelled(LeaseLost):
    """The run is to stop for good: it ends as cancelled, and does not start again."""


class HandedOver(RunEnded):
    """The worker stops; the run starts again elsewhere as soon as this task lets go of it."""


class StaleRun(StaleFence, RunEnded):
    """What a :class:`~anarchon_celery.StaleFence` is inside a run, so that Celery's retries leave it alone.

    A retry would begin with a higher fence, and write the older data over the newer. It is no
    ``LeaseLost``: the store says whether the lease was lost. If it was not, the run ends as failed;
    given back as a lost one is, it too would start again with a higher fence.
    """


class Lease:
    """The right of one worker to one run, until it is told otherwise.

    Attributes:
        job: the job's name; None outside a run.
        slot: the fire time, an aware UTC datetime; None outside a run.
        attempt: 1, 2, …: how often the run was begun.
        fence: the fencing token: it grows with every start of the job. Pass it to what you write to.
        trigger: ``scheduled``, ``catch-up``, ``takeover``, ``manual`` or ``backfill``.
    """

    job: str | None = None
    slot: datetime | None = None
    attempt: int = 1
    fence: int = 0
    trigger: str = "manual"

    @property
    def remaining(self) -> float:
        """The seconds the holder may still trust the lease, if no heartbeat succeeds from now on."""
        return float("inf")

    @property
    def aborted(self) -> bool:
        """Whether the task should stop."""
        return False

    @property
    def reason(self) -> str | None:
        """Why the task should stop, in words; None while it should not."""
        return None

    def check(self) -> None:
        """Go on, or stop.

        Raises:
            LeaseLost: the run is somebody else's, or may be by now.
            HandedOver: the worker stops; the run starts again elsewhere.
        """

    def wait(self, seconds: float) -> None:
        """Sleep, and wake up at once when the task should stop.

        Args:
            seconds: how long.

        Raises:
            LeaseLost: as :meth:`check` does.
            HandedOver: as :meth:`check` does.
        """
        time.sleep(seconds)

    def __repr__(self) -> str:
        """Name the run, for people."""
        return f"<{type(self).__name__} {self.job} @ {self.slot} attempt {self.attempt} fence {self.fence}>"


class HeldLease(Lease):
    """A lease that a heartbeat renews; made by the keeper, read by the task, told by both."""

    def __init__(
        self, order: Order, started: Started, token: str, task_id: str, asked_at: float, *,
        owner: str | None = None, clock: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        """Hold the run of ``order`` from ``asked_at`` on (monotonic seconds, as ``clock`` counts them)."""
        self.monotonic = clock
        slot = Slot(order.key.job, order.key.slot)
        self.job, self.slot = slot.job, slot.datetime
        self.attempt, self.fence, self.trigger = started.attempt, started.fence, started.trigger
        self.order, self.key = order, order.key
        self.token, self.task_id, self.owner = token, task_id, owner
        self.pid = os.getpid()
        self.store = started.store  #: the identity of the store that knows of it
        self.began_at = asked_at
        self.renewed_at = asked_at
        self.trusted_until = trusted_until(asked_at, order.lease)
        longest = order.max_runtime
        self._longest_until = float("inf") if longest is None else asked_at + longest / 1000
        self.raised: RunEnded | None = None
        self.waiting_for_retry = False
        self.failure: Exception | None = None  #: what the body failed with, whatever its hooks make of it
        self.body_over = False  #: what is left to do is to store the result and to record the end
        self.body: Interruptible | None = None  #: what interrupts it, while it runs
        self.interrupted = False
        self.revoked = False  #: its worker asks it to stop for good, and the store knows nothing of that
        self.ended_by_pool = False  #: what becomes of the run was seen to, or is left to the parent
        self.left_to_parent = False  #: the pool ends the body; the parent records what becomes of the run
        self.told_at: float | None = None  #: when the task was told to stop (monotonic seconds)
        self.catch_up: Callable[[], None] | None = None  #: hears what others did for this lease
        self.ending = False  #: its end is being recorded, and whether that was too late will be answered
        self._ended: RunEnded | None = None
        self._told = threading.Event()
        self._look_again_after = LOOK_EVERY / 1000 if native.green() else threading.TIMEOUT_MAX
        self._telling = native.new_lock()

    @property
    def holding(self) -> Holding:
        """The lease as the store knows it, and all that it has to be told if it forgot it."""
        return Holding(
            key=self.key, token=self.token, fence=self.fence, attempt=self.attempt, lease=self.order.lease,
            owner=self.owner, task_id=self.task_id, trigger=self.trigger, dispatch=self.order.dispatch,
            claimed_at=self.order.claimed_at, overlap=self.order.overlap, store=self.store,
            arguments=self.order.arguments,
            trusted=not (self.lost or self.out_of_trust),
        )  # fmt: skip

    @property
    def renewal(self) -> Holding:
        """What a heartbeat asks; a run whose end is being recorded may be over, and is not put back by it."""
        holding = self.holding
        return replace(holding, trusted=holding.trusted and not self.ending)

    @property
    def whose(self) -> Whose:
        """What happens to the run is of this attempt, on its worker."""
        return Whose(attempt=self.attempt, fence=self.fence, node=self.owner)

    @property
    def ms(self) -> int:
        """How long the run has been held, in milliseconds."""
        return round(1000 * (self.monotonic() - self.began_at))

    @property
    def remaining(self) -> float:
        """See :attr:`Lease.remaining`."""
        return 0.0 if self.lost else max(0.0, self.trusted_until - self.monotonic())

    @property
    def ended(self) -> RunEnded | None:
        """What the task is to be told, once there is something."""
        return self._ended

    @property
    def lost(self) -> bool:
        """Whether the lease is known to be lost; one that is to stop for good is held until it does."""
        return isinstance(self._ended, LeaseLost) and not self.cancelled

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop for good."""
        return isinstance(self._ended, Cancelled)

    @property
    def is_renewed_no_more(self) -> bool:
        """Whether there is nothing to renew it for: it is lost, or the store knows that it is to stop."""
        return isinstance(self._ended, LeaseLost) and not self.revoked

    @property
    def rests_until(self) -> float:
        """Until when (monotonic seconds) its keeper has nothing to do for it, unless it is told something."""
        if self._ended is not None:
            return float("-inf")
        return min(self.renewed_at + self.order.heartbeat / 1000, self.trusted_until, self._longest_until)

    def wants_renewal(self, *, late: bool = False) -> bool:
        """Whether a heartbeat is due; or ``late``: by half of itself, or of what is left of the trust."""
        due = self.renewed_at + self.order.heartbeat / 1000
        if late:
            due += min(self.order.heartbeat / 1000, max(0.0, self.trusted_until - due)) / 2
        return self.monotonic() >= due

    @property
    def too_long(self) -> bool:
        """Whether the run went on for longer than its job allows: a hung task must not block it for ever."""
        return self.monotonic() > self._longest_until

    @property
    def out_of_trust(self) -> bool:
        """Whether no answer of the store covers this moment any more."""
        if self.monotonic() < self.trusted_until:
            return False
        if self.catch_up is not None:  # its parent may have renewed it while this process could not look
            self.catch_up()
        return self.monotonic() >= self.trusted_until

    @property
    def aborted(self) -> bool:
        """See :attr:`Lease.aborted`."""
        return self._ended is not None or self.out_of_trust

    @property
    def reason(self) -> str | None:
        """See :attr:`Lease.reason`."""
        if self._ended is not None:
            return str(self._ended)
        return "the lease could not be renewed in time" if self.out_of_trust else None

    @property
    def why_out_of_trust(self) -> str:
        """Why it is not renewed any more, or was not in time."""
        if self.too_long:
            return f"it ran for longer than its max_runtime of {(self.order.max_runtime or 0) / 1000:g} s"
        return "it could not be renewed in time"

    @property
    def lost_since(self) -> float | None:
        """Since when the task should have stopped (monotonic seconds); None while it may go on."""
        if self.lost or self.revoked:
            return self.told_at
        # One that was asked to stop is held until it does, but it is renewed no more.
        return self.trusted_until if self.out_of_trust else None

    def check(self) -> None:
        """See :meth:`Lease.check`."""
        if self._ended is None and self.out_of_trust:
            raise self._raising(LeaseLost(self.reason))
        if self._ended is not None:
            raise self._raising(self._ended)

    def _raising(self, ended: RunEnded) -> RunEnded:
        self.raised = ended
        return ended

    def wait(self, seconds: float) -> None:
        """See :meth:`Lease.wait`."""
        until = self.monotonic() + seconds
        while (left := min(until, self.trusted_until) - self.monotonic()) > 0 and not self._told.wait(
            min(left, self._look_again_after)
        ):
            pass  # the heartbeat may have moved the trust meanwhile
        self.check()

    def tell(self, ended: RunEnded, *, wake: bool = True) -> bool:
        """Tell the task to stop; true if that is news. A lost lease is the last word, and a cancelled run.

        Without ``wake`` no lock is waited for that the task may hold: so a signal handler in its thread
        must do it.
        """
        with self._telling:
            if isinstance(self._ended, LeaseLost) or (self._ended and isinstance(ended, HandedOver)):
                return False
            self._ended = ended
            self.told_at = self.monotonic()
        if wake:
            self.wake()
        return True

    def wake(self) -> None:
        """Let the task look, if it waits and was told to stop."""
        if self._ended is not None and not self._told.is_set():
            self._told.set()

    def renewed(self, asked_at: float, store: str = "") -> None:
        """That store renewed the lease, when asked at this time (monotonic seconds)."""
        self.renewed_at, self.store = asked_at, store or self.store
        self.trusted_until = trusted_until(asked_at, self.order.lease)


_ENDLESS = Lease()
_current = threading.local()


def current_lease() -> Lease:
    """Return the lease of the task that runs in this thread; outside a run one that never ends."""
    lease: Lease = getattr(_current, "lease", _ENDLESS)
    return lease


@contextmanager
def held(lease: Lease) -> Iterator[None]:
    """Make this the current lease of the thread."""
    before = current_lease()
    _current.lease = lease
    try:
        yield
    finally:
        _current.lease = before

"""Leases that a test has a hand in: lost, handed over or cancelled, at a look of the task or from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from .. import headers
from ..config import Policy
from ..headers import Order
from ..lease import Cancelled, HandedOver, HeldLease, LeaseLost, held
from ..protocol import Run, Started
from .clock import Clock, TestingError, instant, milliseconds

#: How often a wait on a lease looks whether the task is to stop, in the test's time (ms).
STEP = 1_000


class WatchedLease(HeldLease):
    """A lease that counts the looks of its task: each ``check()``, each ``wait()``, each read ``aborted``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Hold a run; nobody looked yet."""
        super().__init__(*args, **kwargs)
        self.looks = 0
        self.plans: list[tuple[int, Callable[[], object]]] = []

    def at_look(self, number: int, do: Callable[[], object]) -> None:
        """Do something when the task looks at its lease for the ``number``-th time, counted from 1.

        Args:
            number: of the look.
            do: called without arguments, in the task's thread, before the task is answered.

        Raises:
            TestingError: it looked as often as that already, or the number is none.
        """
        if type(number) is not int or number <= self.looks:
            raise TestingError(f"{number!r} is no look to come: a whole number above {self.looks} is right")
        self.plans.append((number, do))

    def refuse_vain_plans(self, raised: BaseException | None = None) -> None:
        """See that its task, which was told nothing, looked as often as the test took for granted.

        Args:
            raised: what the task raised, and perhaps why it did not.

        Raises:
            TestingError: it did not.
        """
        most = max((number for number, _ in self.plans), default=0)
        if self.looks < most and self.ended is None:
            times = f"{self.looks} time{'s' * (self.looks != 1)}"
            why = f"{self.job} looked at its lease {times}: there was no look {most}"
            raise TestingError(why) from raised

    def looked(self) -> None:
        """Take note of a look, and do what was asked for at it."""
        self.looks += 1
        for number, do in list(self.plans):
            if number == self.looks:
                do()

    def check(self) -> None:
        """See :meth:`~anarchon_celery.Lease.check`."""
        self.looked()
        super().check()

    @property
    def aborted(self) -> bool:
        """See :attr:`~anarchon_celery.Lease.aborted`."""
        self.looked()
        return super().aborted


class LentLease(WatchedLease):
    """A lease that no store knows of: it is held until the test says otherwise."""

    def __init__(self, order: Order, started: Started, clock: Clock) -> None:
        """Hold the run from now on."""
        super().__init__(
            order, started, "lent", "lent", clock.monotonic(), owner="a test", clock=clock.monotonic
        )
        self.clock = clock

    def wait(self, seconds: float) -> None:
        """Move the clock by so many seconds, unless the task is to stop; nothing sleeps."""
        left = milliseconds(seconds)
        while left > 0 and self.ended is None:
            self.clock.move(min(STEP, left) / 1000)
            left -= STEP
        self.check()

    @property
    def out_of_trust(self) -> bool:
        """Never: it is renewed as long as it is not lost."""
        return False

    def lose(self, reason: str = "taken over as attempt 2") -> None:
        """Have the task told, at its next look or at once in a ``wait()``, that its run is somebody else's.

        Args:
            reason: what the task reads as ``self.lease.reason``.
        """
        self.tell(LeaseLost(reason))

    def cancel(self, reason: str = "cancelled") -> None:
        """Have the task told that its run is to stop for good: ``LeaseLost``, as for one that is lost.

        Args:
            reason: what the task reads as ``self.lease.reason``.
        """
        self.tell(Cancelled(reason))

    def hand_over(self, reason: str = "the worker stops") -> None:
        """Have the task told that its worker stops: ``HandedOver``.

        Args:
            reason: what the task reads as ``self.lease.reason``.
        """
        self.tell(HandedOver(reason))


@contextmanager
def leased(
    task: Any, *, job: str | None = None, slot: datetime | str | None = None, attempt: int = 1,
    fence: int = 1, trigger: str | None = None, lease: float | timedelta | str = 30,
    clock: Clock | None = None,
) -> Iterator[LentLease]:  # fmt: skip
    """Call a task under a lease, without store, broker or worker.

    ::

        with leased(report, job="report", attempt=2, fence=7) as lease:
            lease.at_look(3, lease.lose)
            with pytest.raises(LeaseLost):
                report("eu")

    Within the block this thread's tasks see this lease as ``self.lease`` and ``current_lease()``. What the
    task returns or raises is the call's. ``self.lease.wait()`` moves the clock, and does not sleep.

    Args:
        task: the task that will be called; it has to have the base class ``anarchon_celery.Task``.
        job: the job's name; the task's unless given.
        slot: the fire time, aware; what the clock says unless given.
        attempt: 1, 2, …: how often the run was begun, this time included.
        fence: the fencing token.
        trigger: ``scheduled``, ``catch-up``, ``takeover``, ``manual`` or ``backfill``; ``takeover`` from the
            second attempt on, else ``scheduled``, unless given.
        lease: its length: seconds, a ``timedelta``, or text such as ``'1m'``.
        clock: what ``wait()`` moves; one of its own unless given.

    Raises:
        TestingError: the task lacks the base class, or an argument is none that there can be; at the end, if
            it did not look as often as an ``at_look()`` took for granted.
    """
    made = _made(task, job=job, slot=slot, attempt=attempt, fence=fence, trigger=trigger,
                 length=milliseconds(lease), clock=clock or Clock())  # fmt: skip
    with held(made):
        yield made
    made.refuse_vain_plans()


def _made(
    task: Any, *, job: str | None, slot: datetime | str | None, attempt: int, fence: int, trigger: str | None,
    length: int, clock: Clock,
) -> LentLease:  # fmt: skip
    from ..task import Task

    if not isinstance(task, Task):
        raise TestingError(f"{task!r} has no lease: a task with base=anarchon_celery.Task is right")
    for name, number in (("attempt", attempt), ("fence", fence)):
        if type(number) is not int or number < 1:
            raise TestingError(f"{name}={number!r}: a whole number of at least 1 is right")
    trigger = trigger or ("takeover" if attempt > 1 else "scheduled")
    at = clock.wall() if slot is None else instant(slot)
    run = Run(job=job or task.name, slot=at, trigger=trigger, dispatch=attempt, claimed_at=clock.wall())
    policy = Policy(lease=length, heartbeat=max(1, length // 3))
    order = headers.read(headers.write(run, task.name, policy, task_id="leased"))
    started = Started(attempt=attempt, fence=fence, trigger=trigger)
    return LentLease(order, started, clock)

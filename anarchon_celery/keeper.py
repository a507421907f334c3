"""The keeper of a process: its connection to the store, and the heartbeat of all its leases.

One native thread per process renews every lease in one call, and tells each task what it learns:
that its lease is lost, or that the worker stops. The store is opened after a fork, never inherited.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from .config import Config
from .errors import StoreError, in_one_line
from .events import (
    RunAskedToStop,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunHandedOver,
    RunLost,
    RunPutBack,
    RunUnrecorded,
    TickFailed,
    emit,
    log_runs,
)
from .headers import Order
from .lease import Cancelled, HandedOver, HeldLease, LeaseLost
from .protocol import PUT_BACK, Holding, Release, Stale
from .stores import Store
from .stores.clock import monotonic
from .trust import LOOK_EVERY

#: How long a stopping worker tries to give a run back before it leaves it to its deadline (seconds).
RELEASE_WITHIN = 3.0

Answer = TypeVar("Answer")


class Keeper:
    """Starts, renews and ends the runs of one process."""

    def __init__(self, config: Config, stopping: Callable[[], bool]) -> None:
        """Connect when the first run comes; ``stopping`` says whether the worker is."""
        self.pid = os.getpid()
        self.config = config
        self.store: Store = config.open_store()
        self._stopping = stopping
        self._leases: dict[str, HeldLease] = {}
        self._lock = threading.Lock()
        self._something_held = threading.Event()
        self._thread: threading.Thread | None = None
        self._quiet_until = 0.0
        log_runs(config.log_runs)

    # the life of a lease ------------------------------------------------------------------------

    def start(self, order: Order, *, token: str, worker: str, task_id: str) -> HeldLease | Stale:
        """Begin a run, and renew its lease from now on.

        Raises:
            StoreError: the store did not answer; asked again with the same token, it knows.
        """
        asked_at = monotonic()
        asked = order.start(token=token, worker=worker, task_id=task_id)
        try:
            answer = self._persist(partial(self.store.start, asked), until=asked_at + 1.0)
        except StoreError:
            self._undo_start(order, token)
            raise
        if isinstance(answer, Stale):
            return answer
        lease = HeldLease(order, answer, token, task_id, asked_at, owner=worker)
        with self._lock:
            self._leases[token] = lease
            self._beat()
        self._something_held.set()
        return lease

    def _undo_start(self, order: Order, token: str) -> None:
        """The answer was lost, perhaps not the start: nobody would hold what it began."""
        with suppress(StoreError):
            self.store.release([Release(key=order.key, token=token)])

    def holds(self, lease: HeldLease) -> bool:
        """Whether this lease is still renewed."""
        return lease.token in self._leases

    def let_go(self, lease: HeldLease) -> None:
        """Renew this lease no more."""
        with self._lock:
            self._leases.pop(lease.token, None)

    def finish(self, lease: HeldLease, outcome: str, error: str | None = None) -> None:
        """Record the end of a run; where the store does not answer, as long as the lease is trusted."""
        lease.ending = True
        done = partial(self.store.finish, lease.key, lease.token, outcome, reason=error)
        try:
            recorded = self._persist(self._as_holder(lease, done), until=lambda: lease.trusted_until)
        except StoreError as reason:
            emit(RunUnrecorded(lease.key, outcome, str(reason)))
            return
        finally:
            self.let_go(lease)
        if not recorded:
            self.lose(lease, "it had ended or moved on before")
        elif error is None:
            emit(RunFinished(lease.key, lease.ms))
        else:
            emit(RunFailed(lease.key, lease.ms, error))

    def hand_over(self, lease: HeldLease) -> None:
        """Give a run up on purpose, so that another worker has it at once."""
        self.let_go(lease)

        def give_back() -> bool:
            return self.store.release([Release(key=lease.key, token=lease.token)])[0]

        try:
            released = self._persist(self._as_holder(lease, give_back), until=monotonic() + RELEASE_WITHIN)
        except StoreError as reason:
            emit(RunUnrecorded(lease.key, "handed over", str(reason)))
            return
        emit(RunHandedOver(lease.key, lease.ms) if released else RunLost(lease.key, lease.ms, "taken over"))

    def requeue(self, lease: HeldLease, *, delay: int, retries: int) -> bool:
        """Let the run wait for a retry of Celery's, before that is published."""
        lease.ending = True
        requeue = partial(
            self.store.requeue, lease.key, lease.token, delay=delay, retries=retries,
            start_timeout=lease.order.start_timeout,
        )  # fmt: skip
        try:
            waiting = self._persist(self._as_holder(lease, requeue), until=lambda: lease.trusted_until)
        except StoreError:
            lease.ending = False
            raise
        self.let_go(lease)
        if waiting:
            lease.tell(LeaseLost("the run waits for its retry"))
        return waiting

    def ask_to_stop(self, lease: HeldLease, reason: str) -> None:
        """Tell the task that its run is to stop for good; one whose body is over ends as it did.

        It is renewed no more. If its body comes to an end without having looked, that end counts.
        """
        if not lease.body_over and lease.tell(Cancelled(reason)):
            emit(RunAskedToStop(lease.key, lease.ms, reason))

    def end_cancelled(self, lease: HeldLease) -> None:
        """Record that a task stopped because it was asked to stop for good."""
        self.let_go(lease)
        reason = lease.reason or ""
        done = partial(self.store.finish, lease.key, lease.token, "cancelled", reason=reason)
        try:
            recorded = self._persist(self._as_holder(lease, done), until=monotonic() + RELEASE_WITHIN)
        except StoreError as error:
            emit(RunUnrecorded(lease.key, "cancelled", str(error)))
            return
        emit(RunCancelled(lease.key, reason, lease.ms) if recorded else RunLost(lease.key, lease.ms, reason))

    def lose(self, lease: HeldLease, reason: str) -> None:
        """Tell the task that its run is no longer its own, once."""
        if lease.tell(LeaseLost(reason)):
            emit(RunLost(lease.key, lease.ms, reason))
        self.let_go(lease)

    def confirm(self, lease: HeldLease) -> None:
        """Ask the store whether a lease that ran out of trust is still held; tell it if not."""
        try:
            self._renew([lease])
        except StoreError as reason:
            self.lose(lease, str(reason))

    def give_up(self, lease: HeldLease, reason: str) -> None:
        """The task stopped because it no longer trusts its lease: lose it, or give it back if it is ours."""
        if not lease.lost:
            self.confirm(lease)
            if lease.lost or lease.cancelled:
                return
        # Told before of the end of trust, it may be ours still: confirmed, it would be for another lease.
        with suppress(StoreError):
            self.store.release([Release(key=lease.key, token=lease.token)])
        self.lose(lease, reason)

    def _as_holder(self, lease: HeldLease, ask: Callable[[], bool]) -> Callable[[], bool]:
        """Ask; where the run is not ours because the store forgot it, put it back and ask again."""
        return lambda: ask() or (lease.holding.trusted and self._is_put_back(lease) and ask())

    def _is_put_back(self, lease: HeldLease) -> bool:
        """Whether the run is ours after all: the heartbeat may have put it back meanwhile."""
        answer = self.store.renew([lease.holding])[0]
        if answer.reason == PUT_BACK:
            emit(RunPutBack(lease.key, lease.ms))
        return answer.answer == "ok"

    def _persist(self, ask: Callable[[], Answer], until: float | Callable[[], float]) -> Answer:
        """Ask until the store answers or the time is over; every call here knows itself again."""
        wait = 0.05
        while True:
            try:
                return ask()
            except StoreError:
                if monotonic() + wait >= (until() if callable(until) else until):
                    raise
                time.sleep(wait)
                wait = min(2 * wait, 1.0)

    # the heartbeat ------------------------------------------------------------------------------

    def _beat(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="anarchon-heartbeat", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Renew what is held and pass on what is learnt, for as long as the process lives."""
        while True:
            self._something_held.wait()
            with self._lock:
                leases = list(self._leases.values())
                if not leases:
                    self._something_held.clear()
            try:
                self._look(leases)
            except Exception as reason:  # the other leases need their heartbeat
                emit(TickFailed(in_one_line(reason)))
            time.sleep(LOOK_EVERY / 1000)

    def _look(self, leases: list[HeldLease]) -> None:
        if self._stopping():
            for lease in leases:
                if lease.order.handover:
                    lease.tell(HandedOver("the worker stops"))
        now = monotonic()
        renewable = [lease for lease in leases if not (_too_long(lease, now) or lease.cancelled)]
        if now >= self._quiet_until and any(_wants_renewal(lease, now) for lease in renewable):
            self._heartbeat(renewable)
        for lease in leases:
            if lease.out_of_trust and self.holds(lease) and not (lease.ending or lease.cancelled):
                self.lose(lease, _why_out_of_trust(lease, now))

    def _heartbeat(self, leases: list[HeldLease]) -> None:
        try:
            self._renew(leases)
        except StoreError:  # trust runs on meanwhile; when it ends the task is told
            self._quiet_until = monotonic() + min(1.0, leases[0].order.heartbeat / 4000)

    def _renew(self, leases: list[HeldLease]) -> None:
        """Renew all of them in one call."""
        asked_at = monotonic()
        answers = self.store.renew([_to_renew(lease) for lease in leases])
        for lease, answer in zip(leases, answers, strict=True):
            if answer.answer == "ok":
                lease.renewed(asked_at, answer.store)
                if answer.reason == PUT_BACK:
                    emit(RunPutBack(lease.key, lease.ms))
            elif answer.answer == "stop":
                self.ask_to_stop(lease, answer.reason)
            elif self.holds(lease) and not lease.ending:
                self.lose(lease, answer.reason)


def _to_renew(lease: HeldLease) -> Holding:
    """A run whose end is being recorded may be over: it is not put back by a heartbeat."""
    return replace(lease.holding, trusted=lease.holding.trusted and not lease.ending)


def _wants_renewal(lease: HeldLease, now: float) -> bool:
    return now - lease.renewed_at >= lease.order.heartbeat / 1000


def _too_long(lease: HeldLease, now: float) -> bool:
    """Whether the run went on for longer than its job allows: a hung task must not block it for ever."""
    longest = lease.order.max_runtime
    return longest is not None and now - lease.began_at > longest / 1000


def _why_out_of_trust(lease: HeldLease, now: float) -> str:
    if _too_long(lease, now):
        return f"it ran for longer than its max_runtime of {(lease.order.max_runtime or 0) / 1000:g} s"
    return "it could not be renewed in time"


#: By the app's id, with the app, so that the id stays its own.
_keepers: dict[int, tuple[Any, Keeper]] = {}
_making = threading.Lock()


def keeper_here(app: Any) -> Keeper | None:
    """Return this process's keeper for an app, if a run ever came to it."""
    _, keeper = _keepers.get(id(app), (None, None))
    return keeper if keeper is not None and keeper.pid == os.getpid() else None


def keeper_of(app: Any, stopping: Callable[[], bool]) -> Keeper:
    """Return this process's keeper for an app, made at need; a child of a fork gets its own."""
    with _making:
        keeper = keeper_here(app)
        if keeper is None:
            keeper = Keeper(Config.of(app), stopping)
            _keepers[id(app)] = app, keeper
        return keeper

"""The keeper of a process: its connection to the store, and the heartbeat of all its leases.

One native thread per process renews every lease in one call, and tells each task what it learns:
that its lease is lost, or that the worker stops. A task that goes on after that is interrupted. The
store is opened after a fork, never inherited.

In a child of a prefork pool the parent renews (see :mod:`.parent`), which no C code can keep from it;
the child says on the board what it holds, hears there how that goes, and renews by itself where the
parent is late.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from celery.exceptions import SoftTimeLimitExceeded

from . import native, verdicts
from .board import Place
from .config import Config
from .errors import StoreError, in_one_line
from .events import (
    RunAskedToStop,
    RunCancelled,
    RunCrashed,
    RunFailed,
    RunFinished,
    RunHandedOver,
    RunInterrupted,
    RunLost,
    RunPutBack,
    RunUnrecorded,
    TickFailed,
    emit,
    log_runs,
)
from .headers import Order
from .lease import Cancelled, HandedOver, HeldLease, LeaseLost
from .outage import Outage
from .protocol import PUT_BACK, Release, Stale, Started
from .seat import Seat
from .stores import Store
from .trust import LOOK_EVERY

#: How long a stopping worker tries to give a run back before it leaves it to its deadline (seconds).
RELEASE_WITHIN = 3.0

#: How long the heartbeat's thread waits for the next run before it ends (seconds).
LINGER = 2.0

#: After a crash a run waits a moment: what killed one process may be about to kill the next (ms).
AFTER_CRASH = 250

Answer = TypeVar("Answer")


def back_after(config: Config, *, stopping: bool, crash: bool = False) -> int:
    """Return for how long a run that is given back waits (ms).

    Longer than a worker that stops is still sent messages: it would be sent that of the next dispatch, too.
    """
    return max(config.in_flight if stopping else 0, AFTER_CRASH if crash else 0)


class Keeper:
    """Starts, renews and ends the runs of one process."""

    def __init__(
        self, config: Config, stopping: Callable[[], bool], place: Place | None = None
    ) -> None:  # fmt: skip
        """Connect when the first run comes; ``stopping`` says whether the worker is, ``place`` is ours."""
        self.pid = os.getpid()
        self.config = config
        self.store: Store = config.open_store()
        # Greenlets wait for each other on a connection; the heartbeat waits for none of them.
        self._pulse: Store | None = config.open_store() if native.green() else None
        self._stopping = stopping
        self._seat = None if place is None else Seat(place)
        self._leases: dict[str, HeldLease] = {}  # renewed
        self._losing: dict[str, HeldLease] = {}  # lost, while the body goes on
        self._lock = native.new_lock()
        self._looks = False
        self._quiet_until = 0.0
        self._outage = Outage()
        log_runs(config.log_runs)

    def monotonic(self) -> float:
        """Return the seconds by which leases are trusted: the same that the store's answers are timed by."""
        return self.store.clock.monotonic()

    # the life of a lease ------------------------------------------------------------------------

    def start(
        self, order: Order, *, token: str, worker: str, task_id: str, retries: int = 0
    ) -> HeldLease | Stale:
        """Begin a run, and renew its lease from now on; ``retries`` are the message's own.

        Raises:
            StoreError: the store did not answer; asked again with the same token, it knows.
        """
        asked_at = self.monotonic()
        asked = order.start(token=token, worker=worker, task_id=task_id, retries=retries)
        if self._seat is not None:
            self._seat.take(order, asked)
        try:
            answer = self._persist(partial(self.store.start, asked), until=asked_at + 1.0, ends=False)
        except Exception:  # no answer, or a soft time limit
            self._undo_start(order, token)
            self._leave(token)
            raise
        except BaseException:  # its pool ends it in the midst of that
            if self._seat is None:
                self._undo_start(order, token)
            else:
                self._seat.exit(order, asked)
            raise
        if isinstance(answer, Stale):
            self._leave(token)
            return answer
        lease = self._held(order, answer, token, task_id, asked_at, owner=worker)
        lease.catch_up = partial(self._hear, lease)
        with self._lock:
            self._leases[token] = lease
            self._beat()
        self._say(lease, "held")
        return lease

    def _held(
        self, order: Order, started: Started, token: str, task_id: str, asked_at: float, *, owner: str
    ) -> HeldLease:
        return HeldLease(order, started, token, task_id, asked_at, owner=owner, clock=self.monotonic)

    def _undo_start(self, order: Order, token: str) -> None:
        """The answer was lost, perhaps not the start: nobody would hold what it began."""
        with suppress(StoreError):
            self.store.release([Release(key=order.key, token=token)])

    def holds(self, lease: HeldLease) -> bool:
        """Whether this lease is still renewed."""
        return lease.token in self._leases

    def held(self, token: str) -> HeldLease | None:
        """Return the lease of a delivery, as long as its body runs."""
        return self._leases.get(token)

    def let_go(self, lease: HeldLease) -> None:
        """Renew this lease no more."""
        with self._lock:
            self._leases.pop(lease.token, None)
            self._losing.pop(lease.token, None)

    def over(self, lease: HeldLease) -> None:
        """Nothing of the run goes on in this process any more."""
        self.let_go(lease)
        verdicts.forget(lease.token)
        if not lease.left_to_parent:
            self._leave(lease.token)

    def finish(self, lease: HeldLease, outcome: str, error: str | None = None) -> None:
        """Record the end of a run; where the store does not answer, as long as the lease is trusted."""
        self._end(lease)
        done = partial(self.store.finish, lease.key, lease.token, outcome, reason=error)
        try:
            recorded = self._persist(self._as_holder(lease, done), until=lambda: lease.trusted_until)
        except StoreError as reason:
            emit(RunUnrecorded(lease.key, outcome, str(reason), **lease.whose))
            return
        finally:
            self.let_go(lease)
        if not recorded:
            self.lose(lease, "it had ended or moved on before")
        elif error is None:
            emit(RunFinished(lease.key, lease.ms, **lease.whose))
        else:
            emit(RunFailed(lease.key, lease.ms, error, **lease.whose))

    def hand_over(self, lease: HeldLease) -> None:
        """Give a run up on purpose, so that another worker has it at once."""
        self._end(lease)
        self.let_go(lease)

        delay = back_after(self.config, stopping=self._stopping())

        def give_back() -> bool:
            return self.store.release([Release(key=lease.key, token=lease.token, delay=delay)])[0]

        try:
            until = self.monotonic() + RELEASE_WITHIN
            released = self._persist(self._as_holder(lease, give_back), until=until)
        except StoreError as reason:
            emit(RunUnrecorded(lease.key, "handed over", str(reason), **lease.whose))
            return
        if released:
            emit(RunHandedOver(lease.key, lease.ms, **lease.whose))
        else:
            emit(RunLost(lease.key, lease.ms, "taken over", **lease.whose))

    def requeue(self, lease: HeldLease, *, delay: int, retries: int) -> bool:
        """Let the run wait for a retry of Celery's, before that is published."""
        self._end(lease)
        requeue = partial(
            self.store.requeue, lease.key, lease.token, delay=delay, retries=retries,
            start_timeout=lease.order.start_timeout,
        )  # fmt: skip
        try:
            waiting = self._persist(self._as_holder(lease, requeue), until=lambda: lease.trusted_until)
        except StoreError:
            self._end(lease, False)
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
            emit(RunAskedToStop(lease.key, lease.ms, reason, **lease.whose))

    def revoke(self, lease: HeldLease, reason: str) -> None:
        """Ask a task to stop that its pool cannot end; the store knows nothing of it, so it is held on."""
        lease.revoked = True
        self.ask_to_stop(lease, reason)

    def end_cancelled(self, lease: HeldLease, why: str = "") -> None:
        """Record that a task stopped because it was asked to stop for good, or was ended for that."""
        self._end(lease)
        self.let_go(lease)
        reason = lease.reason or why
        done = partial(self.store.finish, lease.key, lease.token, "cancelled", reason=reason)
        try:
            recorded = self._persist(self._as_holder(lease, done), until=self.monotonic() + RELEASE_WITHIN)
        except StoreError as error:
            emit(RunUnrecorded(lease.key, "cancelled", str(error), **lease.whose))
            return
        if recorded:
            emit(RunCancelled(lease.key, reason, lease.ms, **lease.whose))
        else:
            emit(RunLost(lease.key, lease.ms, reason, **lease.whose))

    def lose(self, lease: HeldLease, reason: str) -> None:
        """Tell the task that its run is no longer its own, once."""
        if lease.tell(LeaseLost(reason)):
            emit(RunLost(lease.key, lease.ms, reason, **lease.whose))
            self._say(lease, "lost")
        with self._lock:
            if self._leases.pop(lease.token, None) is not None and lease.body is not None:
                self._losing[lease.token] = lease

    def confirm(self, lease: HeldLease) -> bool:
        """Ask the store whether a lease that ran out of trust is still held; tell it if not."""
        try:
            return self._renew([lease], lone=True) == ["ok"]
        except StoreError as reason:
            self.lose(lease, str(reason))
            return False

    def give_up(self, lease: HeldLease, reason: str) -> None:
        """The task stopped because it no longer trusts its lease: lose it, or give it back if it is ours."""
        # What the store says counts: the heartbeat may lose it for want of trust at the same moment.
        if not lease.lost and not self.confirm(lease) and (lease.lost or lease.cancelled):
            return
        if lease.too_long:  # the next attempt would run for as long
            self.finish(lease, "failed", lease.why_out_of_trust)
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
            emit(RunPutBack(lease.key, lease.ms, **lease.whose))
        return answer.answer == "ok"

    def _persist(
        self, ask: Callable[[], Answer], until: float | Callable[[], float], *, ends: bool = True
    ) -> Answer:  # fmt: skip
        """Ask until the store answers or the time is over; every call here knows itself again.

        What ``ends`` a run is asked again after a soft time limit too, which was for the body; there is
        one for each message.
        """
        wait = 0.05
        while True:
            try:
                try:
                    return ask()
                except StoreError:
                    if self.monotonic() + wait >= (until() if callable(until) else until):
                        raise
                    time.sleep(wait)  # in the task's own thread or greenlet
                    wait = min(2 * wait, 1.0)
            except SoftTimeLimitExceeded:
                if not ends:
                    raise
                ends = False

    # the body is ended by others ----------------------------------------------------------------

    def interrupted(self, lease: HeldLease, reason: BaseException) -> None:
        """The pool ends the body, or what follows it: what its parent decided counts, else that it stops."""
        lease.ended_by_pool = True
        if self._seat is not None:  # the parent decides, and sees to it: it has more time
            lease.left_to_parent = True
            self._say(lease, "exiting")
            return
        verdict = verdicts.on(lease.token)
        if lease.lost or (verdict is not None and verdict.outcome == "lost"):
            return
        if lease.cancelled or (verdict is not None and verdict.outcome == "cancelled"):
            self.ask_to_stop(lease, verdict.reason if verdict else "")
            self.end_cancelled(lease, verdict.reason if verdict else "")
        elif verdict is not None and verdict.outcome == "failed":
            self.finish(lease, "failed", verdict.reason)
        elif _is_time_limit(reason):
            self.finish(lease, "failed", f"TimeLimitExceeded: {in_one_line(reason)}")
        elif verdict is not None or self._stopping():
            self.hand_over(lease)
        else:
            self.crash(lease, in_one_line(reason))

    def end_body(self, lease: HeldLease) -> None:
        """Interrupt a body whose worker stops at once; called inside a signal handler."""
        lease.tell(HandedOver("the worker stops at once"), wake=False)
        if lease.body is not None:
            lease.body.interrupt(HandedOver)

    def crash(self, lease: HeldLease, reason: str) -> None:
        """The body was ended and nobody said why: as if its process had died."""
        self._end(lease)
        self.let_go(lease)
        delay = back_after(self.config, stopping=self._stopping(), crash=True)
        release = Release(key=lease.key, token=lease.token, delay=delay, crash=True)
        with suppress(StoreError):
            if self.store.release([release])[0]:
                emit(RunCrashed(lease.key, lease.ms, reason, **lease.whose))

    def _end(self, lease: HeldLease, ending: bool = True) -> None:
        """Its end is being recorded: the parent must not put it back meanwhile."""
        lease.ending = ending
        self._say(lease, "ending" if ending else "held")

    def _leave(self, token: str) -> None:
        if self._seat is not None:
            self._seat.leave(token)

    def _say(self, lease: HeldLease, phase: str) -> None:
        if self._seat is not None:
            self._seat.say(lease, phase)

    def _hear(self, lease: HeldLease) -> None:
        """Learn what the parent did for this lease.

        Of one whose end is being recorded only for how long that may be tried: the store says the rest.
        """
        heard = self._seat.hear(lease) if self._seat is not None else None
        if heard is None:
            return
        if heard["renewed_at"] > lease.renewed_at:
            lease.renewed(heard["renewed_at"], heard["store"])
        if lease.ending:
            return
        if heard["stop"] is not None:
            self.ask_to_stop(lease, heard["stop"])
        if heard["lost"] is not None and not lease.lost:
            self.lose(lease, heard["lost"])

    # the heartbeat ------------------------------------------------------------------------------

    def _beat(self) -> None:
        if not self._looks:
            self._looks = True
            native.start_thread(self._run, "anarchon-heartbeat")

    def _run(self) -> None:
        """Renew what is held and pass on what is learnt; end when nothing was held for a while."""
        last_held = self.monotonic()
        while True:
            with self._lock:
                leases = [*self._leases.values(), *self._losing.values()]
                if leases:
                    last_held = self.monotonic()
                elif self.monotonic() - last_held > LINGER:
                    self._looks = False
                    return
            try:
                self._look(leases)
            except Exception as reason:  # the other leases need their heartbeat
                emit(TickFailed(in_one_line(reason)))
            native.sleep(LOOK_EVERY / 1000)

    def _look(self, leases: list[HeldLease]) -> None:
        if leases and not self._rest(leases):
            self._look_at(leases)

    def _rest(self, leases: list[HeldLease]) -> bool:
        """Whether there is nothing to do for any of them, as with most looks: a worker may hold hundreds."""
        if self._seat is not None or self._stopping():
            return False
        now = self.monotonic()
        return all(lease.rests_until > now for lease in leases)

    def _look_at(self, leases: list[HeldLease]) -> None:
        for lease in leases:
            self._hear(lease)
            if self._stopping() and lease.order.handover:
                lease.tell(HandedOver("the worker stops"))
            lease.wake()
        now = self.monotonic()
        renewable = [lease for lease in leases if not (lease.too_long or lease.is_renewed_no_more)]
        late = self._seat is not None  # a child renews by itself what its parent has not renewed in time
        if now >= self._quiet_until and any(lease.wants_renewal(late=late) for lease in renewable):
            self._heartbeat(renewable)
        for lease in leases:
            if lease.out_of_trust and self.holds(lease) and not (lease.ending or lease.cancelled):
                self.lose(lease, lease.why_out_of_trust)
            self._insist(lease, self.monotonic())

    def _insist(self, lease: HeldLease, now: float) -> None:
        """Interrupt a body that goes on though its run is somebody else's by now."""
        since = lease.lost_since
        if since is None or lease.body is None or lease.interrupted or lease.ended is None:
            return
        if now >= since + lease.order.stop_grace / 1000:
            lease.interrupted = True
            if lease.body.interrupt(type(lease.ended)):
                emit(RunInterrupted(lease.key, lease.ms, round(now - since, 1), **lease.whose))

    def _heartbeat(self, leases: list[HeldLease]) -> None:
        try:
            self._renew(leases)
        except StoreError as reason:  # trust runs on meanwhile; when it ends the task is told
            wait = min(1.0, leases[0].order.heartbeat / 4000)
            self._quiet_until = self.monotonic() + wait
            if self._seat is None:  # else its parent says so
                self._outage.begins(str(reason), wait)
        else:
            self._outage.is_over()

    def _renew(self, leases: list[HeldLease], *, lone: bool = False) -> list[str]:
        """Renew all of them in one call, a ``lone`` one for its own task; return what the store says."""
        asked_at = self.monotonic()
        store = self.store if lone or self._pulse is None else self._pulse
        answers = store.renew([lease.renewal for lease in leases])
        for lease, answer in zip(leases, answers, strict=True):
            if answer.answer == "ok":
                lease.renewed(asked_at, answer.store)
                if not lease.ending:
                    self._say(lease, "held")
                if answer.reason == PUT_BACK:
                    emit(RunPutBack(lease.key, lease.ms, **lease.whose))
            elif answer.answer == "stop":
                self.ask_to_stop(lease, answer.reason)
            elif self.holds(lease) and not lease.ending:
                self.lose(lease, answer.reason)
        return [answer.answer for answer in answers]


def _is_time_limit(reason: BaseException) -> bool:
    """Whether gevent's or eventlet's pool ended the body: their time limits are raised in it."""
    return type(reason).__name__ == "Timeout" and type(reason).__module__.split(".")[0] in (
        "gevent", "eventlet",
    )  # fmt: skip


#: By the app's id, with the app, so that the id stays its own.
_keepers: dict[int, tuple[Any, Keeper]] = {}
_making = threading.Lock()


def keeper_here(app: Any) -> Keeper | None:
    """Return this process's keeper for an app, if a run ever came to it."""
    _, keeper = _keepers.get(id(app), (None, None))
    return keeper if keeper is not None and keeper.pid == os.getpid() else None


def keeper_of(
    app: Any, stopping: Callable[[], bool], place: Callable[[], Place | None] = lambda: None
) -> Keeper:
    """Return this process's keeper for an app, made at need; a child of a fork gets its own."""
    with _making:
        keeper = keeper_here(app)
        if keeper is None:
            keeper = Keeper(Config.of(app), stopping, place())
            _keepers[id(app)] = app, keeper
        return keeper


@contextmanager
def instead(app: Any, other: Keeper) -> Iterator[None]:
    """Have that keeper for the app meanwhile, as if this were a process of its own."""
    before = _keepers.get(id(app))
    _keepers[id(app)] = app, other
    try:
        yield
    finally:
        _keepers.pop(id(app))
        if before is not None:
            _keepers[id(app)] = before

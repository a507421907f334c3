"""What a worker's parent does for its children: it renews their leases and sees to what they leave.

Python code of a child cannot renew anything while C code keeps its interpreter; its parent can, for
all children in one call. And a child that is killed cannot say so; its parent sees it die, and gives
the run back at once. Both look on the board.

Celery's event loop is not to wait for a store, and stands still itself while a broker is away: so all
this happens in a native thread, and what the loop learns is handed to that.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from . import native, verdicts
from .agenda import Agenda
from .board import Board
from .children import Child, Deaths, is_stopped
from .config import Config
from .errors import HeaderError, StoreError, in_one_line
from .events import (
    RunCancelled,
    RunCrashed,
    RunEvent,
    RunFailed,
    RunHandedOver,
    RunKilled,
    RunPutBack,
    StoreBack,
    StoreLost,
    TickFailed,
    emit,
)
from .headers import Order
from .keeper import RELEASE_WITHIN, back_after
from .lease import Cancelled, HeldLease, LeaseLost
from .logged import Whose
from .outage import Outage
from .patience import Patience
from .presence import Presence
from .protocol import PUT_BACK, Release, Renewal, Settle, Stale, Start
from .stores.clock import monotonic
from .trust import LOOK_EVERY
from .verdicts import Verdict

#: A child that exits was told to by somebody: so long it may take until this process knows why (seconds).
VERDICT_WITHIN = 0.5

#: One that has left its body and does not come to its end is waited for no longer than that (seconds).
EXITS_WITHIN = 3.0

#: How many deliveries are remembered whose end was seen to.
_REMEMBERED = 1000


class Parent:
    """The thread that looks after the children of one worker."""

    def __init__(self, config: Config, board: Board, stopping: Callable[[], bool]) -> None:
        """Look after those that write on ``board``; the store is opened by the thread."""
        self.pid = os.getpid()
        self._config, self._board, self._stopping = config, board, stopping
        self._children: dict[int, Child] = {}
        self._replaced: list[Child] = []  #: whose place the next one has taken before they were seen to
        self._deaths = Deaths()
        self._agenda = Agenda()
        self._over: deque[str] = deque(maxlen=_REMEMBERED)
        self._quiet_until = 0.0
        self._met = False  #: whether the store has answered
        self.presence: Presence | None = None  #: tells the store that this worker lives
        self._patience = Patience()
        self._outage = Outage()
        self._started = False
        self._closing = False
        self._closed = False
        self._forks = native.new_lock()  # held while the store is asked: a fork waits for that

    def follow(self) -> None:
        """Begin to look; where it began already, nothing."""
        if not self._started:
            self._started = True
            self.store = self._config.open_store()
            native.start_thread(self._run, "anarchon-parent")

    def close(self) -> None:
        """See to what is left, for a moment, and look no more."""
        if self._started and not self._closing and os.getpid() == self.pid:
            self._closing = True
            until = monotonic() + RELEASE_WITHIN
            while not self._closed and monotonic() < until:
                native.sleep(0.02)

    def before_fork(self) -> None:
        """Let no child be forked in the middle of a call to the store, which would leave it locked there."""
        self._forks.acquire(timeout=1.0)

    def after_fork(self) -> None:
        """Go on, in the parent."""
        with suppress(RuntimeError):  # the wait was over first
            self._forks.release()

    # what Celery's requests tell ------------------------------------------------------------------

    def settle(self, order: Order, outcome: str, reason: str) -> None:
        """A message was dropped before its run was started: the run ends so."""
        settled = Settle(key=order.key, outcome=outcome, reason=reason)

        def settle() -> None:
            if self.store.settle([settled])[0]:
                emit(RunCancelled(order.key, reason))

        self._later(order, outcome, settle)

    def lost(
        self, order: Order, token: str, worker: str, task_id: str, reason: str, *, retries: int = 0
    ) -> None:  # fmt: skip
        """A child died that had this message; perhaps before it could say that it starts the run."""
        asked = order.start(token=token, worker=worker, task_id=task_id, retries=retries)
        verdict = verdicts.on(token)

        def bury() -> None:
            if token not in self._over and all(child.token != token for child in self._known()):
                self._begin_and_bury(order, asked, verdict, reason)

        self._later(order, "given back", bury)

    def _later(self, order: Order, what: str, do: Callable[[], object]) -> None:
        self._agenda.put(order, what, do)
        self.follow()

    def _begin_and_bury(
        self, order: Order, asked: Start, verdict: Verdict | None, reason: str, *, exits: bool = False
    ) -> None:  # fmt: skip
        """See to a run of which nobody knows whether it was started: its message will not come again."""
        if verdict is not None and verdict.outcome == "cancelled":
            settled = Settle(key=order.key, outcome="cancelled", reason=verdict.reason)
            if self.store.settle([settled])[0]:
                emit(RunCancelled(order.key, verdict.reason))
                return
        started = self.store.start(asked)
        if not isinstance(started, Stale):
            whose = Whose(attempt=started.attempt, fence=started.fence, node=asked.worker)
            self._settle_death(order, asked.token, verdict, reason, whose, exits=exits)

    # the look -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            until: float | None = None
            while True:
                if self._closing and until is None:
                    until = monotonic() + RELEASE_WITHIN
                try:
                    with self._forks:
                        self._look()
                except Exception as reason:  # the other children need it
                    emit(TickFailed(in_one_line(reason)))
                if until is not None and (monotonic() > until or self._nothing_left()):
                    self._take_leave()
                    return
                native.sleep(LOOK_EVERY / 1000)
        finally:
            self._closed = True

    def _take_leave(self) -> None:
        if self._met and self.presence is not None:
            self.presence.take_leave(self.store)

    def _nothing_left(self) -> bool:
        return not self._agenda and all(child.seen_to for child in self._known())

    def _known(self) -> list[Child]:
        return [*self._children.values(), *self._replaced]

    def _look(self) -> None:
        self._meet_store()
        self._read()
        self._renew()
        now = monotonic()
        for child in self._known():
            self._kill(child, now)
            self._bury(child, now)
        for child in [child for child in self._replaced if child.seen_to]:
            self._replaced.remove(child)
            verdicts.forget(child.token)
        self._agenda.do_all()
        if self._met and self.presence is not None:
            self.presence.tell(self.store)

    def _meet_store(self) -> None:
        """Say whether the store answers, until it does; it is well known when a lease is to be renewed."""
        if self._met or self._stopping() or self._patience.lasts(monotonic()):
            return
        try:
            self.store.nodes()
        except StoreError as reason:
            wait = self._patience.begin(monotonic())
            if self._patience.worth_saying:
                emit(StoreLost(str(reason), wait))
        else:
            self._met = True
            if self._patience.end():
                emit(StoreBack())

    def _read(self) -> None:
        """Meet those who hold something, and forget those who hold nothing more."""
        places = {place.index: place for place in self._board.taken()}
        for index in [*self._children]:
            if index not in places:
                self._forget(index)
        for index, place in places.items():
            child, stamp = self._children.get(index), place.stamp
            if child is not None and child.stamp == stamp:
                continue
            said = place.read()
            if said is None:
                continue
            if child is not None and (child.token, child.pid) == (said["token"], said["pid"]):
                child.hear(said)
                child.stamp = stamp
                continue
            if child is not None:
                self._replace(index, by=int(said["pid"]))
            with suppress(HeaderError):
                self._children[index] = Child(place, said)
                self._deaths.watch(int(said["pid"]))
        dead = self._deaths.dead()
        for child in self._children.values():
            if child.pid in dead and child.died_at is None:
                child.died_at = monotonic()

    def _replace(self, index: int, *, by: int) -> None:
        """The place has another run: of another process, where this one is dead, and perhaps not seen to."""
        child = self._children[index]
        if child.pid == by or child.seen_to:
            self._forget(index)
            return
        child.died_at = child.died_at or monotonic()
        self._replaced.append(self._children.pop(index))
        self._deaths.forget(child.pid)

    def _forget(self, index: int) -> None:
        child = self._children.pop(index)
        self._over.append(child.token)
        verdicts.forget(child.token)
        self._deaths.forget(child.pid)

    # renewal --------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Renew the leases of all living children in one call."""
        now = monotonic()
        held = [
            (child, lease)
            for child in self._children.values()
            if (lease := child.lease) is not None and child.phase in ("held", "ending")
            if child.died_at is None and not (lease.too_long or lease.is_renewed_no_more)
            if not (lease.wants_renewal() and is_stopped(child.pid))  # it may never go on
        ]
        if now >= self._quiet_until and any(lease.wants_renewal() for _, lease in held):
            try:
                answers = self.store.renew([lease.renewal for _, lease in held])
            except StoreError as reason:  # trust runs on meanwhile; when it ends the child is told
                wait = min(1.0, held[0][1].order.heartbeat / 4000)
                self._quiet_until = monotonic() + wait
                self._outage.begins(str(reason), wait)
            else:
                self._outage.is_over()
                for (child, lease), said in zip(held, answers, strict=True):
                    self._learn(child, lease, said, now)

    def _learn(self, child: Child, lease: HeldLease, said: Renewal, asked_at: float) -> None:
        if said.answer == "ok":
            lease.renewed(asked_at, said.store)
            if said.reason == PUT_BACK:
                emit(RunPutBack(lease.key, lease.ms, **lease.whose))
        elif said.answer == "stop":
            lease.tell(Cancelled(said.reason))
        elif not lease.ending:
            lease.tell(LeaseLost(said.reason))
        child.tell()

    # what goes on after its lease was lost --------------------------------------------------------

    def _kill(self, child: Child, now: float) -> None:
        """End a body that neither looked nor could be interrupted: by killing its process."""
        lease = child.lease
        if lease is None or lease.lost_since is None or child.died_at is not None:
            child.lost_since = None
            return
        # Since this was seen: when all of the worker was asleep, nobody could tell the task.
        child.lost_since = child.lost_since or now
        late = now - child.lost_since
        if child.killed or late < 2 * child.order.stop_grace / 1000:
            return
        if not child.is_at_it():
            return
        child.killed = True
        verdicts.pass_on(child.token, Verdict("lost", "its lease was lost"))
        emit(RunKilled(child.order.key, child.pid, round(late, 1), **lease.whose))
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)

    # what a child leaves --------------------------------------------------------------------------

    def _bury(self, child: Child, now: float) -> None:
        """See to the run of a child that is dead, or whose body the pool has ended."""
        if child.died_at is None and child.exits_since is None:
            return
        if not child.seen_to and not self._waits_for_verdict(child, now):
            child.seen_to = True
            self._over.append(child.token)
            self._see_to(child)
        if child.seen_to and child.died_at is not None and child not in self._replaced:
            child.wipe()

    def _see_to(self, child: Child) -> None:
        verdict, exits = verdicts.on(child.token), child.exits_since is not None
        reason = f"process {child.pid}: {'it was ended by a signal' if exits else 'it was killed'}"
        if child.lease is not None:
            whose = child.lease.whose
            self._settle_death(child.order, child.token, verdict, reason, whose, ms=child.ms, exits=exits)
            return
        begin = partial(self._begin_and_bury, child.order, child.asked, verdict, reason, exits=exits)
        self._agenda.ask(child.order, "given back", begin)

    def _waits_for_verdict(self, child: Child, now: float) -> bool:
        """Whether it exits because somebody told it to, and who that was may still be heard."""
        if child.exits_since is None or verdicts.on(child.token) is not None or self._stopping():
            return False
        gone_at = child.exits_since + EXITS_WITHIN if child.died_at is None else child.died_at
        return now < gone_at + VERDICT_WITHIN

    def _settle_death(
        self, order: Order, token: str, verdict: Verdict | None, reason: str, whose: Whose, *, ms: int = 0,
        exits: bool,
    ) -> None:  # fmt: skip
        if verdict is not None and verdict.outcome == "lost":
            return
        if verdict is not None and verdict.outcome != "released":
            done = partial(self.store.finish, order.key, token, verdict.outcome, reason=verdict.reason)
            is_cancelled = verdict.outcome == "cancelled"
            failed = RunFailed(order.key, ms, verdict.reason, **whose)
            event = RunCancelled(order.key, verdict.reason, ms, **whose) if is_cancelled else failed
            self._persist(order, verdict.outcome, done, event)
            return
        crash = verdict is None and not (exits and self._stopping())
        delay = back_after(self._config, stopping=self._stopping(), crash=crash)
        release = Release(key=order.key, token=token, delay=delay, crash=crash)
        handed_over = RunHandedOver(order.key, ms, **whose)
        given_back = RunCrashed(order.key, ms, reason, **whose) if crash else handed_over
        self._persist(order, "given back", lambda: self.store.release([release])[0], given_back)

    def _persist(self, order: Order, what: str, ask: Callable[[], bool], event: RunEvent) -> None:
        def do() -> None:
            if ask():
                emit(event)

        self._agenda.ask(order, what, do)

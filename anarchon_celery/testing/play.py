"""What goes on on a stage as its clock moves: the beat's looks, the heartbeats, the messages.

All of it is what runs in production: the scheduler, the messages, Celery's requests and tracer, the leases,
and the store's transitions. Only time is moved and not waited for, and so there is no thread and no sleep:
all of it happens in order as the clock moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.exceptions import NotRegistered
from celery.utils.time import maybe_iso8601, maybe_make_aware

from ..errors import SettingError
from ..scheduler import REGISTER_EVERY, Scheduler
from ..stores import Store, memory
from .backstage import Post
from .clock import Clock, instant, milliseconds
from .firing import jobs_of
from .hands import Hand, StageKeeper
from .played import Attempt


class _Beat(Scheduler):
    """The scheduler, that is told how long it was to sleep; and all that ran stays to be looked at."""

    def _prune(self) -> None:
        """Forget nothing."""

    def slept_until(self, at: float) -> None:
        """It was to sleep until then (monotonic seconds): a test may have let more time pass."""
        self._wake_at = at

    def look_at_once(self) -> None:
        """Look for what was left at the next tick."""
        self._poll_at = 0


class Play:
    """A beat and workers, and a clock that moves only while they do what there is to do."""

    def __init__(self, app: Celery, clock: Clock, post: Post, store: Store, room: memory.Room) -> None:
        """Put a beat on it."""
        self.app, self.clock, self.store = app, clock, store
        self.attempts: list[Attempt] = []
        self._post, self._room = post, room
        self._jobs, self._refused = jobs_of(app)
        self._beat = _made_beat(app)
        self._beat_at = self._at_least_at = self._now
        self._offset = 0  # of the count and the wall clock, when beat looked
        self._held_back: list[tuple[int, int, Any]] = []  # messages with an ETA
        self._hands: list[Hand] = []  # at work, the innermost last
        self._plans: dict[str, list[tuple[int, Callable[[], object]]]] = {}
        self._count = 0
        store.nodes()  # what time it is in the store

    # time ---------------------------------------------------------------------------------------

    def advance(self, duration: float | timedelta | str) -> None:
        """Let time pass, while beat and workers do what there is to do.

        Called by a task's body, or by what stands in for something in it, it is time that the body takes.

        Args:
            duration: seconds, a ``timedelta``, or text such as ``'90s'``, ``'1h30m'``, ``'2d'``.

        Raises:
            TestingError: it is no duration.
        """
        self._play(self._now + milliseconds(duration))

    def _wait(self, seconds: float, done: Callable[[], bool]) -> None:
        """Let so much time pass, or less if it is done before."""
        self._play(self._now + milliseconds(seconds), done)

    @property
    def _now(self) -> int:
        """What the clock counted (ms), however its wall clock was set."""
        return round(self.clock.monotonic() * 1000)

    def _play(self, until: int, done: Callable[[], bool] = lambda: False) -> None:
        self._act()
        while not done() and (wake := max(self._next(), self._now + 1)) <= until:
            self.clock.move((wake - self._now) / 1000)
            self._act()
        if not done() and self._now < until:
            self.clock.move((until - self._now) / 1000)

    def _act(self) -> None:
        """Do what is due at this moment."""
        for hand in list(self._hands):
            hand.keeper.look()
        if self._now >= self._next_look():
            self._beat.slept_until(self._next_look() / 1000)
            self._beat_at = self._now + round(self._beat.tick() * 1000)
            self._at_least_at, self._offset = self._now + REGISTER_EVERY, self._now - self.clock.wall()
        while (message := self._next_message()) is not None:
            self._deliver(message)

    def _next(self) -> int:
        """When there is something to do (ms, as the clock counts)."""
        renewals = [at for hand in self._hands if (at := hand.keeper.renews_at) is not None]
        etas = [at for at, _, _ in self._held_back]
        return min([self._next_look(), *(round(at * 1000) for at in renewals), *etas])

    def _next_look(self) -> int:
        """When beat has something to do: it looks more often than that, and would find nothing."""
        offset = self._now - self.clock.wall()
        if offset != self._offset:  # somebody set the wall clock, which it finds out by looking
            return self._beat_at
        deadlines = [
            run.deadline for of_job in self._room.recorded().active.values() for run in of_job.values()
            if run.deadline is not None
        ]  # fmt: skip
        due = self._beat.plan.next_due()
        coming = deadlines if due is None else [*deadlines, due]
        return max(self._beat_at, min([self._at_least_at, *(at + offset for at in coming)]))

    # messages -----------------------------------------------------------------------------------

    def _next_message(self) -> Any:
        for message in self._post.take():
            self._count += 1
            eta = maybe_iso8601(message.headers.get("eta"))
            wait = eta and instant(maybe_make_aware(eta, self.app.timezone)) - self.clock.wall()
            self._held_back.append((self._now + max(0, wait or 0), self._count, message))
        self._held_back.sort(key=lambda one: one[:2])
        if self._held_back and self._held_back[0][0] <= self._now:
            return self._held_back.pop(0)[2]
        return None

    def _deliver(self, message: Any) -> None:
        name = message.headers["task"]
        if name not in self.app.tasks:
            raise NotRegistered(name)
        its_keeper = StageKeeper(self._beat.config, self._wait, self._plans)
        self._count += 1
        hand = Hand(self.app, message, f"stage@worker-{self._count}", its_keeper, self.clock)
        self._hands.append(hand)
        try:
            attempt = hand.work()
        finally:
            self._hands.remove(hand)
        if attempt is not None:
            self.attempts.append(attempt)
        if its_keeper.lease is not None and not its_keeper.lease.killed:
            its_keeper.lease.refuse_vain_plans(attempt.exception if attempt else None)

    def _ended(self, task_id: Any = None, state: Any = None, retval: Any = None, **_: Any) -> None:
        """Celery tells of the end of a task."""
        if self._hands and self._hands[-1].message.headers["id"] == task_id:
            self._hands[-1].ended(state, retval)

    def close(self) -> None:
        """Stop beat."""
        self._beat.close()
        self.store.close()


def _made_beat(app: Celery) -> _Beat:
    try:
        beat = _Beat(app=app)
    except SystemExit as reason:
        raise SettingError(str(reason).removeprefix("anarchon: ")) from None
    beat.node = replace(beat.node, id="00000000" + beat.node.id[8:])  # it polls on the full second
    return beat

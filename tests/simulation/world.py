"""Time, and who acts in it: greenlets of one thread, each of a process, each of a host with its own clocks.

Nothing waits: who would sleep says until when, and the next one in time goes on. All of it follows from a
seed, so that a run can be had again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

from anarchon_celery import lease as leases
from anarchon_celery.stores.clock import HostClock

#: A full hour, when each simulation begins.
T = 1_790_002_800_000

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


class Killed(BaseException):
    """The process of whoever this is raised in is gone."""


class Host(HostClock):
    """A machine's clocks, which may run wrong; the one on its wall can be set."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since, self._counted = 0.0, 0.0
        self.rate = 1.0
        self.stepped = 0

    def counted(self) -> float:
        return self._counted + (self._world.now - self._since) * self.rate

    def monotonic(self) -> float:  # asked more than all else: no call of counted()
        return 1000 + (self._counted + (self._world.now - self._since) * self.rate) / 1000

    def wall(self) -> int:
        return T + int(self.counted() + 0.001) + self.stepped

    def run_at(self, rate: float) -> None:
        self._counted, self._since, self.rate = self.counted(), self._world.now, rate

    def set_right(self) -> None:
        """Set the clock on the wall by the world's."""
        self.stepped = round(self._world.now - self.counted())

    def step(self, ms: int) -> None:
        self.stepped += ms


class Process:
    """A process of a host: a beat, a worker, or a person at a terminal."""

    def __init__(self, world: World, name: str, kind: str, host: Host) -> None:
        self.world, self.name, self.kind, self.host = world, name, kind, host
        self.actors: set[Actor] = set()
        self.paused_until = 0.0
        self.dead = False
        self.stopping = False
        self.keeper: Any = None
        self.knows_since: float | None = None  #: when the store carried out the first call that it heard of
        self.heard_at = 0.0  #: when it carried out the latest one
        self.polled_at = 0.0  #: when the store last told it what is past its deadline

    def __repr__(self) -> str:
        return self.name

    @property
    def paused(self) -> bool:
        return self.paused_until > self.world.now

    def kill(self) -> None:
        """End it where it stands; what it has sent is on its way."""
        self.dead = True
        for actor in [one for one in self.actors if not one.sends]:
            self.world.throw(actor, Killed())


class Actor:
    """A thread of a process."""

    def __init__(self, process: Process, do: Callable[[], object]) -> None:
        self.process, self.do = process, do
        self.greenlet: Any = None
        self.serial = 0  #: of its latest alarm: all others count no more
        self.wakes_at = 0.0
        self.sends = False  #: what it waits for goes on without its process
        self.interruption: Callable[[], object] | None = None  #: what it does first when it goes on
        self.task: Any = None  #: Celery's, if it runs one


class World:
    """The clock, and what comes next."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(f'world {seed}')
        self.seed = seed
        self.current: Actor | None = None
        self.failures: list[str] = []  #: what escaped from an actor
        self._hub = getcurrent()
        self._alarms: list[tuple[float, int, Any, int]] = []
        self._count = 0

    # who acts

    def spawn(self, process: Process, do: Callable[[], object], after: float = 0.0) -> Actor:
        """Let something act as a thread of that process."""
        actor = Actor(process, do)
        actor.greenlet = greenlet(lambda: self._live(actor), self._hub)
        process.actors.add(actor)
        self.alarm(actor, self.now + after)
        return actor

    def _live(self, actor: Actor) -> None:
        leases._current.lease = leases._ENDLESS
        try:
            actor.do()
        except (Killed, SystemExit):
            pass
        finally:
            actor.process.actors.discard(actor)

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Have something done at that time, by nobody."""
        self._count += 1
        heapq.heappush(self._alarms, (max(when, self.now), self._count, do, 0))

    def alarm(self, actor: Actor, at: float) -> None:
        """Let an actor go on at that time, and not when it said before."""
        self._count += 1
        actor.serial, actor.wakes_at = self._count, at
        heapq.heappush(self._alarms, (at, self._count, actor, actor.serial))

    def wake(self, actor: Actor, interruption: Callable[[], object] | None = None) -> None:
        """Let an actor go on now; with something that it does first."""
        if interruption is not None:
            actor.interruption = interruption
        self.alarm(actor, self.now)

    # time

    def sleep(self, ms: float, *, sends: bool = False) -> None:
        """Let the others act for so long. What is ``sends`` goes on, whatever becomes of the process."""
        me = self.current
        assert me is not None
        if me.process.dead and not sends:
            raise Killed
        me.sends = sends
        current = leases._current  # of a thread, of which there is only one
        lease = current.lease
        self.alarm(me, self.now + max(0.0, ms))
        try:
            self._hub.switch()
        finally:
            self.current, me.sends = me, False
            current.lease = lease
        if me.process.dead and not sends:
            raise Killed
        interruption, me.interruption = me.interruption, None
        if interruption is not None:
            interruption()

    def run(self, until: float, done: Callable[[], bool] | None = None) -> None:
        """Let everybody act up to that time."""
        alarms = self._alarms
        while alarms and alarms[0][0] <= until and not (done is not None and done()):
            at, _, what, serial = heapq.heappop(alarms)
            if not isinstance(what, Actor):
                self.now = max(self.now, at)
                what()
            elif what.serial == serial and not what.greenlet.dead:
                if what.process.paused_until > at and not what.sends:
                    self.alarm(what, what.process.paused_until)
                    continue
                self.now = max(self.now, at)
                self._resume(what)
        if done is None or not done():
            self.now = max(self.now, until)

    def throw(self, actor: Actor, reason: BaseException) -> None:
        """Raise something where an actor waits, at once."""
        if actor.greenlet:
            self._resume(actor, reason)
        else:  # it has not begun
            actor.serial = -1
            actor.process.actors.discard(actor)

    def _resume(self, actor: Actor, reason: BaseException | None = None) -> None:
        before, self.current = self.current, actor
        try:
            if reason is None:
                actor.greenlet.switch()
            else:
                actor.greenlet.throw(reason)
        except Exception as failure:
            self.failures.append(f'{actor.process}: {type(failure).__name__}: {failure}')
        finally:
            self.current = before

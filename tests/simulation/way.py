"""The way of one process to the store: the real memory store, and a network before it that has its faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anarchon_celery.errors import StoreReplaced, StoreUnreachable
from anarchon_celery.stores.clock import StoreClock
from anarchon_celery.stores.memory import MemoryStore

from .weather import PATIENCE, Weather
from .world import Killed, Process

#: Nobody carries these out again: a person looks first.
OF_PEOPLE = ('pause', 'resume', 'trigger', 'backfill', 'cancel')


class Way(MemoryStore):
    """The store as one process meets it: what it knows is named when it asks, and learnt when it hears."""

    def __init__(self, room: Any, process: Process, weather: Weather, observe: Callable[..., Any]) -> None:
        super().__init__('memory://simulation', room)
        self.clock = StoreClock(process.host.monotonic)
        self.process, self.weather, self.observe = process, weather, observe
        self._heard: Any = None

    def _step(self, verb: str, now: int | None, transition: Callable[..., Any]) -> Any:
        world, weather, process = self.process.world, self.weather, self.process
        if process.dead or (world.current is not None and world.current.process.dead):
            raise Killed
        before, knows = self.clock.monotonic(), self._known()
        if not weather.on:
            world.sleep(world.random.uniform(0.2, 3.0), sends=True)
            answer = self._done(verb, transition, knows)
            world.sleep(world.random.uniform(0.2, 3.0))
            return self._hear(before, *answer)
        goes, comes = weather.delay('store slow', process, 3.0), weather.delay('store slow', process, 3.0)
        if weather.is_on('store away', process):
            world.sleep(5)
            raise StoreUnreachable('it is down')
        if weather.strikes('requests lost', process):
            return self._gives_up('the request was lost')
        if goes > PATIENCE or (verb not in OF_PEOPLE and weather.strikes('requests late', process)):
            late = max(goes, PATIENCE) + world.random.random() * 10_000
            world.at(world.now + late, lambda: self._late(verb, transition, knows))
            return self._gives_up('it did not answer in time')
        world.sleep(goes, sends=True)
        answer = self._done(verb, transition, knows)
        if weather.strikes('calls twice', process) and verb not in OF_PEOPLE:
            answer = self._done(verb, transition, knows)
        if weather.strikes('answers lost', process) or goes + comes > PATIENCE:
            return self._gives_up('the answer was lost', goes)
        world.sleep(comes)
        return self._hear(before, *answer)

    def _gives_up(self, why: str, after: float = 0.0) -> Any:
        self.process.world.sleep(PATIENCE - after)
        raise StoreUnreachable(why)

    def _known(self) -> tuple[Any, ...]:
        return self.identity, self._at, self._node, self._noted

    def _know(self, knows: tuple[Any, ...]) -> None:
        self.identity, self._at, self._node, self._noted = knows

    def _done(self, verb: str, transition: Callable[..., Any], knows: tuple[Any, ...]) -> Any:
        """The store carries it out, for somebody who knew that when he asked."""
        meanwhile, self._heard = self._known(), None
        self._know(knows)
        try:
            answer = super()._step(verb, None, self.observe(self.process, verb, transition))
        except StoreReplaced as refused:
            answer = refused
        finally:
            self._know(meanwhile)
        return answer, self._heard

    def _late(self, verb: str, transition: Callable[..., Any], knows: tuple[Any, ...]) -> None:
        """It arrives when nobody waits for it any more."""
        if not self.weather.is_on('store away', self.process):
            self._done(verb, transition, knows)

    def _answered(self, before: float, *args: Any, **kwargs: Any) -> None:
        self._heard = self.process.world.now, args, kwargs

    def _hear(self, before: float, answer: Any, heard: Any) -> Any:
        if heard is not None:
            at, args, kwargs = heard
            self.process.heard_at = at
            if self.process.knows_since is None:
                self.process.knows_since = at
            super()._answered(before, *args, **kwargs)
        if isinstance(answer, StoreReplaced):
            raise answer
        return answer

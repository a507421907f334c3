"""The broker: kombu's in memory up to its queue, which loses, doubles, delays and reorders."""

from __future__ import annotations

import copy
import heapq
from collections import defaultdict
from typing import Any

from kombu.connection import Connection
from kombu.transport import memory, virtual

from .weather import BROKER_PATIENCE, Weather
from .world import World


class Broker:
    """One queue, and whoever takes from it."""

    def __init__(self, world: World, weather: Weather, watch: Any) -> None:
        self.world, self.weather, self.watch = world, weather, watch
        self.queue: list[tuple[float, int, Any]] = []
        self.workers: list[Any] = []
        self._count = 0
        of_ours = {
            'queues': {}, 'events': defaultdict(set),
            '_put': lambda _, queue, message, **__: self.put(message),
        }  # fmt: skip
        channel = type('Channel', (memory.Channel,), of_ours)
        state = {'Channel': channel, 'global_state': virtual.BrokerState()}
        self._transport = type('Transport', (memory.Transport,), state)
        self._reader = self._connection().channel()

    def _connection(self) -> Connection:
        return Connection('simulation', transport=self._transport)

    def connection(self, *args: Any, **kwargs: Any) -> Connection:
        """A new connection, of whoever acts."""
        actor = self.world.current
        if actor is not None and self.weather.is_on('broker refuses', actor.process):
            raise ConnectionRefusedError('nobody listens there')
        return self._connection()

    def put(self, message: Any) -> None:
        """Somebody publishes."""
        actor = self.world.current
        assert actor is not None
        process, weather = actor.process, self.weather
        if weather.is_on('broker refuses', process):
            raise ConnectionRefusedError('nobody listens there')
        self.world.sleep(weather.delay('broker slow', process, 3.0), sends=True)
        if weather.is_on('broker hangs', process):
            arrives = weather.strikes('broker hangs', process)
            self.watch.published(process, message, arrives=arrives, told=False)
            if arrives:
                self.accept(message)
            self.world.sleep(BROKER_PATIENCE)
            raise TimeoutError('timed out')
        self.watch.published(process, message, arrives=True, told=True)
        self.accept(message)

    def accept(self, message: Any) -> None:
        """It is in the queue: once, as a rule."""
        for kind, copies in (('messages lost', 0), ('messages doubled', 2)):
            for one in self.weather.on:
                if one.kind == kind and self.world.random.random() < one.value:
                    return self._enqueue(message, copies)
        return self._enqueue(message, 1)

    def _enqueue(self, message: Any, copies: int) -> None:
        longest = max((one.value for one in self.weather.on if one.kind == 'messages delayed'), default=0.0)
        for _ in range(copies):
            own = copy.deepcopy(message) if copies > 1 else message
            self.put_back(own, self.world.random.random() * longest)

    def put_back(self, message: Any, delay: float = 0.0) -> None:
        self._count += 1
        heapq.heappush(self.queue, (self.world.now + delay, self._count, message))
        self.world.at(self.world.now + delay + self.world.random.uniform(0.2, 3.0), self.deliver)

    def deliver(self) -> None:
        """Give out what there is, as long as there is somebody to take it."""
        if any(one.kind == 'queue stands still' for one in self.weather.on):
            return
        while self.queue and self.queue[0][0] <= self.world.now:
            ready = [worker for worker in self.workers if worker.takes_messages]
            if not ready:
                return
            _, _, message = heapq.heappop(self.queue)
            self.world.random.choice(ready).take(message)

    def read(self, message: Any) -> virtual.Message:
        return virtual.Message(copy.copy(message), channel=self._reader)

"""What is wrong at the moment, for whom: asked by the ways to the store and to the broker."""

from __future__ import annotations

from collections.abc import Iterator

from .faults import Fault
from .world import Process, World

#: The longest that a call of the store takes before its caller gives up (ms): half the claim timeout.
PATIENCE = 5_000

#: How long a broker that hangs is waited for (ms).
BROKER_PATIENCE = 2_000


class Weather:
    """The faults that are on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on: list[Fault] = []

    def of(self, kind: str, process: Process) -> Iterator[Fault]:
        return (one for one in self.on if one.kind == kind and one.who in (None, process.name))

    def is_on(self, kind: str, process: Process) -> bool:
        return any(self.of(kind, process))

    def strikes(self, kind: str, process: Process) -> bool:
        """Whether a fault that comes with some probability comes now."""
        return any(self.world.random.random() < one.value for one in self.of(kind, process))

    def delay(self, kind: str, process: Process, usual: float) -> float:
        """How long something is on its way (ms)."""
        slow = max((one.value for one in self.of(kind, process)), default=0.0)
        return self.world.random.uniform(0.2, usual) + self.world.random.random() ** 2 * slow

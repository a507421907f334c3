"""One seed played, and a seed that fails made smaller."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .cluster import Cluster
from .faults import Fault, chosen
from .laws import broken


@dataclass(frozen=True)
class Played:
    """What became of a seed. ``only`` are the numbers of the faults that were let happen."""

    seed: int
    only: tuple[int, ...]
    wrong: list[str]
    counts: Counter[str]
    seconds: float
    digest: int = 0  #: of all that changed in the store

    @property
    def law(self) -> str:
        """The law that was broken first."""
        return self.wrong[0].partition(':')[0] if self.wrong else ''


def numbered(seed: int) -> dict[int, Fault]:
    """The faults of a seed, by the numbers that ``--only`` takes."""
    return dict(enumerate(chosen(seed), 1))


def play(seed: int, only: Sequence[int] | None = None) -> Played:
    """Play a seed; with these of its faults only, if there are any given."""
    faults = numbered(seed)
    numbers = tuple(faults if only is None else (one for one in only if one in faults))
    begun = time.perf_counter()
    cluster = Cluster(seed, [faults[number] for number in numbers])
    gc.disable()  # greenlets and records go round in circles: they are cleared away afterwards, at once
    try:
        cluster.play()
    finally:
        gc.enable()
    counts = cluster.watch.counts + Counter(
        {
            'seeds': 1, 'faults': len(numbers), 'runs': len(cluster.watch.history),
            'bodies': len(cluster.watch.bodies),
        }
    )  # fmt: skip
    return Played(seed, numbers, broken(cluster), counts, time.perf_counter() - begun, cluster.watch.digest)


def smaller(failed: Played, play: Callable[[int, Sequence[int]], Played] = play) -> Played:
    """Leave out faults for as long as the same law is broken: first halves, at last one by one."""
    step = max(1, len(failed.only) // 2)
    while True:
        without = (
            play(failed.seed, failed.only[:begin] + failed.only[begin + step :])
            for begin in range(0, len(failed.only), step)
        )
        found = next((one for one in without if one.law == failed.law), None)
        if found is not None:
            failed = found
            step = min(step, max(1, len(failed.only) // 2))
        elif step == 1:
            return failed
        else:
            step //= 2

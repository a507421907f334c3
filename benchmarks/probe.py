"""One contestant in a process of its own: it goes from step to step as it is told, and says what each took.

``python -m benchmarks.probe '{…}'``; each line of its input is a step, each line of its output the answer.
"""

from __future__ import annotations

import json
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .contestants import CONTESTANTS, Contestant

#: How long an emission is measured (s): a contestant that needs longer for all is measured over what it did.
LONGEST = 20.0

#: The same for one whose single tick emits all of them (s): it is interrupted in the midst of that.
AT_MOST = 120.0


class TakesTooLong(BaseException):
    """The time is over; no scheduler catches this."""


class Probe:
    """The steps; each returns what is to be told."""

    def __init__(self, order: dict[str, Any]) -> None:
        kind, self.count, self.due = order.pop("kind"), order["jobs"], 0.0
        self.contestant: Contestant = CONTESTANTS[kind](**order | {"folder": Path(order["folder"])})

    def start(self) -> dict[str, Any]:
        """Start it: seconds, and the memory of the process afterwards."""
        with measured() as took:
            self.contestant.start()
        return {**took, "megabytes": _resident()}

    def idle(self) -> dict[str, Any]:
        """Go round the loop while nothing is due: seconds for each time."""
        ticks, until = 0, time.monotonic() + 0.4
        with measured() as took:
            while ticks < 20 or (ticks < 2000 and time.monotonic() < until):
                self.contestant.tick()
                ticks += 1
        return {name: value / ticks for name, value in took.items()} | {"ticks": ticks}

    def come_due(self, at: str) -> dict[str, Any]:
        """Have all come due at an instant; false if that was over before they could."""
        self.due = float(at)
        self.contestant.come_due(self.due)
        return {"in_time": time.time() < self.due}

    def emit(self) -> dict[str, Any]:
        """Emit all that came due, from that instant on: seconds for each emission."""
        contestant, before = self.contestant, self.contestant.emitted
        wanted = before + self.count
        time.sleep(max(0.0, self.due - time.time()))
        until = time.monotonic() + LONGEST
        with measured() as took, interrupted_after(AT_MOST):
            while contestant.emitted < wanted and time.monotonic() < until:
                if (wait := contestant.tick()) > 0 and contestant.emitted < wanted:
                    time.sleep(min(wait, 1.0))
        emitted = contestant.emitted - before
        each = {name: value / max(1, emitted) for name, value in took.items()}
        last = max(contestant.published_at, default=self.due) - self.due
        return {**each, "emitted": emitted, "last": last, "megabytes": _resident()}

    def attend(self) -> dict[str, Any]:
        """Go round the loop until another line comes in, and tell when each emission was."""
        contestant = self.contestant
        while True:
            wait = contestant.tick()
            if select.select([sys.stdin], [], [], min(max(wait, 0.0), 1.0))[0]:
                sys.stdin.readline()
                return {"published": contestant.published_at}


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Measure the time on the wall and that of this process on a core."""
    took: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield took
    took["seconds"], took["cpu"] = time.perf_counter() - wall, time.process_time() - cpu


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Leave the block after so long, wherever it is."""

    def over(*_: object) -> None:
        raise TakesTooLong

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except TakesTooLong:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _resident() -> float:
    """How much memory the process has, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    """Take steps until the input ends."""
    probe = Probe(json.loads(sys.argv[1]))
    print(json.dumps({"made": True}), flush=True)
    for line in sys.stdin:
        step, *given = line.split()
        print(json.dumps(getattr(probe, step)(*given)), flush=True)


if __name__ == "__main__":
    main()

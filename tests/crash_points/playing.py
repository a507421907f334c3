"""Cases, played by several clusters side by side."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.crash_points.breaks import BREAKS
from tests.crash_points.outcome import Outcome
from tests.crash_points.places import Places
from tests.crash_points.points import Case, cases
from tests.crash_points.scene import Pace, Scene

#: On a machine with nothing else to do.
PACE = Pace()


class Share(NamedTuple):
    """What one cluster plays: the next of a line of cases, which may be others' line too."""

    store: str
    broker: str
    line: queue.SimpleQueue[Case]


def line_of(some: Sequence[Case]) -> queue.SimpleQueue[Case]:
    line: queue.SimpleQueue[Case] = queue.SimpleQueue()
    for case in some:
        line.put(case)
    return line


def play(
    shares: Sequence[Share], folder: Path, places: Places, *, pace: Pace = PACE
) -> Iterator[Outcome]:  # fmt: skip
    """Play all cases, on one cluster for each share; print what comes of each, and how to play it again."""
    done: queue.SimpleQueue[Outcome | BaseException | None] = queue.SimpleQueue()
    for number, share in enumerate(shares, 1):
        # Not two at a time: the servers start when they are first asked for.
        one = Scene(folder / f'cluster-{number}', places, share.store, share.broker, pace=pace)
        threading.Thread(target=_play, args=(one, share.line, done), daemon=True).start()
    going = len(shares)
    while going:
        outcome = done.get()
        if outcome is None:
            going -= 1
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            print(outcome, flush=True)
            if outcome.wrong:
                print(f'    again: {outcome.command}', flush=True)
            yield outcome


def _play(one: Scene, line: queue.SimpleQueue, done: queue.SimpleQueue) -> None:
    try:
        one.start()
        while True:
            done.put(one.play(line.get_nowait()))
    except queue.Empty:
        pass
    except BaseException as reason:
        done.put(reason)
    finally:
        one.close()
        done.put(None)


def find_breaks(folder: Path, places: Places, store: str, broker: str, say: Callable[[str], None]) -> int:
    """Break a rule and play the case that has to find that, one after the other; return how many live."""
    lives = 0
    for number, (name, (_, at, fault)) in enumerate(BREAKS.items()):
        one = Scene(folder / f'break-{number}', places, store, broker, pace=PACE, broken=name)
        try:
            (outcome,) = map(one.start().play, cases([at], [fault]))
        finally:
            one.close()
        lives += not outcome.wrong
        found = f'found: {outcome.wrong[0]}' if outcome.wrong else 'LIVES'
        say(f'{name}  [{outcome.case}]  {found}')
    return lives

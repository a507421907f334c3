"""What goes wrong, chosen before anything begins: so that a seed's faults can be left out one by one."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .world import HOUR, MINUTE, SECOND

BEATS = ('beat-1', 'beat-2', 'beat-3')
WORKERS = ('worker-1', 'worker-2')
NODES = BEATS + WORKERS


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, from then until then (ms), for one node or job, or for all."""

    at: float
    until: float
    kind: str
    who: str | None = None
    value: float = 0.0

    def __str__(self) -> str:
        who = f' ({self.who})' if self.who else ''
        value = f' {self.value:g}' if self.value else ''
        return f'{self.at / 1000:7.1f} s to {self.until / 1000:7.1f} s: {self.kind}{value}{who}'


#: By kind: how often, for whom, how long (s), and how much of it.
KINDS: dict[str, tuple[int, tuple[str | None, ...], tuple[float, float], tuple[float, float]]] = {
    # the way to the store, and the store
    'store away': (3, (None, *NODES), (1, 90), (0, 0)),
    'requests lost': (4, (None, *NODES), (5, 90), (0.3, 1)),
    'answers lost': (6, (None, *NODES), (5, 90), (0.2, 1)),
    'requests late': (4, (None, *NODES), (5, 60), (0.1, 0.7)),
    'store slow': (8, (None, *NODES), (20, 300), (300, 4900)),
    'calls twice': (3, (None, *NODES), (30, 300), (0.2, 1)),
    'store rolled back': (3, (None,), (0, 0), (100, 20_000)),
    'store wiped': (2, (None,), (0, 0), (0, 0)),
    'store clock set': (6, (None,), (0, 0), (-1, 1)),
    'store clock runs': (2, (None,), (60, 900), (0.95, 1.05)),
    # nodes
    'node paused': (8, NODES, (5, 150), (0, 0)),
    'node killed': (8, NODES, (0.2, 90), (0, 0)),
    'node stopped': (5, NODES, (0.2, 60), (0, 0)),
    'all beats down': (2, (None,), (15, 600), (0, 0)),
    'clock set': (2, NODES, (30, 900), (-1, 1)),
    'clock runs': (6, NODES, (200, 2400), (0.9, 1.1)),
    # the broker
    'broker refuses': (8, (None, *NODES), (5, 90), (0, 0)),
    'broker hangs': (4, (None, *NODES), (2, 60), (0, 1)),
    'broker slow': (2, (None, *NODES), (5, 60), (500, 15_000)),
    'messages lost': (4, (None,), (10, 120), (0.2, 1)),
    'messages doubled': (4, (None,), (30, 300), (0.3, 1)),
    'messages delayed': (4, (None,), (10, 200), (1_000, 90_000)),
    'queue stands still': (3, (None,), (10, 180), (0, 0)),
    # people
    'job paused': (3, ('skip', 'queue', 'cancel', 'allow', 'retry'), (10, 400), (0, 0)),
    'somebody triggers': (4, ('skip', 'queue', 'cancel', 'allow'), (0, 0), (0, 0)),
    'somebody cancels': (3, ('queue', 'cancel', 'allow'), (0, 0), (0, 0)),
    'somebody backfills': (2, ('skip', 'allow'), (0, 0), (0, 0)),
}

#: Faults that are not on for a while, but happen.
FIRST, LAST = 1 * MINUTE, HOUR


def chosen(seed: int) -> list[Fault]:
    """The faults of a seed, in time."""
    dice = random.Random(f'faults {seed}')
    kinds, weights = list(KINDS), [KINDS[kind][0] for kind in KINDS]
    faults = [_one(dice, kind) for kind in dice.choices(kinds, weights, k=dice.randint(4, 18))]
    return sorted(_possible(faults), key=lambda fault: (fault.at, fault.kind))


def _one(dice: random.Random, kind: str) -> Fault:
    _, whose, (shortest, longest), (least, most) = KINDS[kind]
    at = dice.uniform(FIRST, LAST)
    if dice.random() < 0.5:  # where slots come due there is more to be spoilt
        at = dice.randint(1, 14) * 4 * MINUTE + dice.uniform(-8, 4) * SECOND
    # Short ones are as likely as long ones.
    lasts = shortest * (longest / shortest) ** dice.random() * SECOND if longest else 0.0
    value = dice.uniform(least, most)
    if kind.endswith('clock set'):  # by an hour, or by a little
        value = round(dice.choice([value, 1, -1, value / 100, value / 400]) * HOUR)
    elif kind.endswith('clock runs') and dice.random() < 0.5:
        value = dice.choice((least, most))
    who = dice.choice(whose) if dice.random() < 0.7 else whose[0]
    return Fault(round(at), min(round(at + lasts), HOUR), kind, who, value)


def _possible(faults: list[Fault]) -> list[Fault]:
    """Only one clock runs wrong at a time: a margin of a tenth is for that much, and not for two."""
    rates = [fault for fault in faults if fault.kind in ('clock runs', 'store clock runs')]
    return [fault for fault in faults if fault not in rates[1:]]

"""The jobs of the cluster: their names say what they promise, so that a history explains itself."""

from __future__ import annotations

import random
from typing import NamedTuple

#: Seconds, for all jobs and nodes. What trusts its lease gives it up ``MARGIN`` before its end.
LEASE, HEARTBEAT, POLL, START_TIMEOUT, CLAIM_TIMEOUT, MARGIN = 2.0, 0.5, 0.5, 4.0, 5.0, 0.5
MAX_CRASHES = 3
SPACING = 1  #: seconds between the slots of a job


class Kind(NamedTuple):
    """What a job does about its policies, how long it takes (seconds), and whether it looks at its lease."""

    overlap: str
    catch_up: str
    looks: bool
    seconds: tuple[float, float]


#: Ten, of which twenty jobs have two each. One that never looks may write when it should not.
KINDS = (
    Kind('skip', 'latest', False, (0.3, 0.9)),
    Kind('skip', 'latest', True, (0.3, 1.2)),
    Kind('allow', 'all', True, (0.1, 0.3)),
    Kind('queue', 'latest', False, (0.3, 0.8)),
    Kind('skip', 'none', True, (0.2, 0.5)),
    Kind('allow', 'none', False, (0.1, 0.3)),
    Kind('cancel', 'latest', True, (0.3, 1.2)),
    Kind('skip', 'latest', False, (0.2, 0.6)),
    Kind('queue', 'none', True, (0.2, 0.6)),
    Kind('allow', 'latest', False, (0.1, 0.4)),
)


def schedule(count: int, seed: int, *, scale: float = 1.0) -> dict[str, dict]:
    """So many entries; the seed says how long each body takes, within its kind, ``scale`` times that."""
    chance = random.Random(seed)
    made = {}
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        seconds = round(scale * chance.uniform(*kind.seconds), 2)
        looks = 'looks' if kind.looks else 'deaf'
        made[f'{kind.overlap}-{kind.catch_up}-{looks}-{number:02}'] = {
            'task': 'tests.chaos.app.work', 'schedule': SPACING, 'args': (seconds, kind.looks),
            'options': {'anarchon': {
                'overlap': kind.overlap, 'catch_up': kind.catch_up,
                'jitter': 0 if number else 0.1,  # without it all beats meet at the same moment, in one call
            }},
        }  # fmt: skip
    return made


def overlap_of(job: str) -> str:
    return job.split('-')[0]


def catch_up_of(job: str) -> str:
    return job.split('-')[1]


def is_deaf(job: str) -> bool:
    """Whether it never looks at its lease."""
    return job.split('-')[2] == 'deaf'


def resource_of(job: str, slot: int) -> str:
    """What a run writes to: where runs of a job may be side by side, each slot has its own."""
    return f'{job}@{slot}' if overlap_of(job) == 'allow' else job

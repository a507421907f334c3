"""The points at which a process is hit, the faults that hit it there, and the cases they make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

SIDES = ('before', 'within', 'after')

#: The stores whose verbs are transactions: a process may be hit within one, just before it is committed.
TRANSACTIONS = ('postgresql', 'mariadb', 'sqlite')
#: What is no verb of a store.
OUTSIDE = ('publish', 'write', 'resend')

#: What befalls a process, by what it is: ``kill`` and ``stop`` are for that one alone; ``lost`` is the answer
#: (before: the question too).
FAULTS = {
    'beat': ('kill', 'stop', 'error', 'lost'),
    'child': ('kill', 'kill worker', 'stop', 'stop worker', 'error', 'lost'),
    'parent': ('kill', 'kill worker', 'stop', 'stop worker', 'error', 'lost'),
}
ALL_FAULTS = list(dict.fromkeys(fault for faults in FAULTS.values() for fault in faults))


@dataclass(frozen=True, slots=True)
class Strike:
    """One blow: to whoever is first to come to this side of a verb, of this job if it says one."""

    role: str
    verb: str
    job: str | None
    side: str
    fault: str


@dataclass(frozen=True, slots=True)
class Point:
    """Where a process is hit; ``first`` are blows without which nobody would come there."""

    name: str
    role: str
    verb: str
    job: str | None = None
    first: tuple[Strike, ...] = ()
    fresh_beat: bool = field(default=False, kw_only=True)  #: only a beat that begins comes there
    leaving: bool = field(default=False, kw_only=True)  #: only a beat that stops


KILLED = Strike('child', 'write', 'plain', 'before', 'kill')
BROKER_DOWN = Strike('beat', 'publish', 'plain', 'before', 'down')
WORKER_STOPS = Strike('child', 'begins', 'long', 'before', 'sigterm')
DEAF_PARENT = Strike('child', 'begins', 'long', 'before', 'stop parent')

POINTS = {
    point.name: point
    for point in (
        Point('register', 'beat', 'register', fresh_beat=True),
        Point('claim', 'beat', 'claim', 'plain'),
        Point('publish', 'beat', 'publish', 'plain'),
        Point('mark', 'beat', 'sent', 'plain'),
        Point('give back', 'beat', 'release', 'plain', (BROKER_DOWN,)),
        Point('expired', 'beat', 'expired'),
        Point('redispatch', 'beat', 'redispatch', 'handing'),
        Point('prune', 'beat', 'prune'),
        Point('leave', 'beat', 'leave', leaving=True),
        Point('start', 'child', 'start', 'plain'),
        Point('write', 'child', 'write', 'plain'),
        Point('finish', 'child', 'finish', 'plain'),
        Point('release', 'child', 'release', 'handing'),
        Point('hand over', 'child', 'release', 'long', (WORKER_STOPS,)),
        Point('worker leaves', 'parent', 'leave', None, (WORKER_STOPS,)),
        Point('requeue', 'child', 'requeue', 'again'),
        Point('retry', 'child', 'resend', 'again'),
        Point('heartbeat', 'parent', 'renew', 'long'),
        Point('own heartbeat', 'child', 'renew', 'long', (DEAF_PARENT,)),
        Point('bury', 'parent', 'release', 'plain', (KILLED,)),
    )
}


@dataclass(frozen=True, slots=True)
class Case:
    """One fault at one side of a point."""

    point: Point
    side: str
    fault: str

    def __str__(self) -> str:
        return f'{self.at} {self.fault}'

    @property
    def at(self) -> str:
        return f'{self.point.name}:{self.side}'

    @property
    def strikes(self) -> tuple[Strike, ...]:
        last = Strike(self.point.role, self.point.verb, self.point.job, self.side, self.fault)
        return (*self.point.first, last)

    @property
    def end(self) -> str:
        """How the run ends that is hit: a body that raises has failed, and is not run again."""
        in_body = self.point.name == 'write' and self.fault in ('error', 'lost')
        return 'failed' if in_body or str(self) == 'requeue:before error' else 'succeeded'


def cases(
    points: list[str] | None = None, faults: list[str] | None = None, store: str = 'redis'
) -> Iterator[Case]:  # fmt: skip
    """All cases on a store, or those of some points (``claim`` or ``claim:before``) and faults."""
    for point in POINTS.values():
        for side in SIDES:
            if points and not {point.name, f'{point.name}:{side}'} & set(points):
                continue
            for fault in faults_at(point, side, store):
                if not faults or fault in faults:
                    yield Case(point, side, fault)


def faults_at(point: Point, side: str, store: str) -> list[str]:
    """What may befall a process there: within a transaction it dies or sleeps.

    On SQLite, whose only lock is that of the file, all others wait for one that sleeps within.
    """
    faults = FAULTS[point.role]
    if side != 'within':
        return list(faults)
    if store not in TRANSACTIONS or point.verb in OUTSIDE:
        return []
    return [it for it in faults if it.startswith('kill') or (it.startswith('stop') and store != 'sqlite')]

"""A history, read: what is known of each run, each node and each strike, from whoever wrote of it."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anarchon_celery.slots import Slot
from tests.chaos import jobs

#: So many seconds after a strike at the store, or at the broker, what it did may still be seen: claims are
#: given up, messages are sent again.
STORE_TAIL, BROKER_TAIL = jobs.LEASE + jobs.CLAIM_TIMEOUT, 3 * jobs.START_TIMEOUT
#: Strikes in which a node falls silent, and for how long a database then keeps what it had locked.
VANISHING = (
    'pause beat', 'pause worker', 'requests vanish', 'answers vanish', 'half-open', 'delay',
)  # fmt: skip
HELD = 2.0
FOREVER = float('inf')
LONGEST = 180.0  #: no strike takes longer than this, its tail included (seconds)


class Name(NamedTuple):
    """A job's slot."""

    job: str
    slot: int

    def __str__(self) -> str:
        return str(Slot(self.job, self.slot))


@dataclass
class Fault:
    """A strike: who, from when, until when it was put right."""

    number: int
    kind: str
    target: str
    nodes: list[str]
    mains: list[int]
    begin: float
    end: float = FOREVER
    notes: dict[str, Any] = field(default_factory=dict)

    def overlaps(self, begin: float, end: float, *, tail: float = 0.0) -> bool:
        return self.begin <= end and self.end + tail >= begin

    @property
    def tail(self) -> float:
        """For how long after its end it may still be seen."""
        tails = {'broker': BROKER_TAIL, 'store': STORE_TAIL}
        return tails.get(self.target, HELD if self.kind in VANISHING else 0.0)


@dataclass
class Attempt:
    """One start of a run, as its body told it."""

    name: Name
    number: int
    fence: int
    node: str
    main: int
    pid: int
    begin: float
    trigger: str
    last: float = 0.0  #: of all its lines
    trusted: float = 0.0  #: when it trusted its lease last
    events: set[str] = field(default_factory=set)
    handed_over: float | None = None


class Told:
    """All of it, by what it is of."""

    def __init__(self, lines: Iterable[dict]) -> None:
        self.play: dict[str, Any] = {}
        self.faults: dict[int, Fault] = {}
        self.attempts: dict[Name, dict[int, Attempt]] = defaultdict(dict)  #: by fence
        self.doubled: list[tuple[Name, int]] = []  #: fences under which a body began twice
        self.runs: dict[Name, dict] = {}
        self.ranges: dict[str, list[dict]] = defaultdict(list)  #: records of several slots
        self.said: dict[str, list[dict]] = defaultdict(list)
        self.dispatched: dict[Name, list[dict]] = defaultdict(list)
        self.stalls: list[dict] = []
        self.starved: dict[int, list[tuple[float, float]]] = defaultdict(list)  #: by process; 0: servers
        self.active: list[dict] = []
        self.floors: list[dict] = []
        self.used: list[dict] = []
        self.kept: list[dict] = []
        self.writes: list[dict] = []
        self.rests: list[tuple[float, float]] = []
        self.starts: dict[int, float] = {}  #: when a process was ready
        self.beats: set[int] = set()  #: the processes that are or were beats
        self.no_more_slots: float | None = None
        self.ended = False
        self.died: list[dict] = []
        self.stuck: list[dict] = []
        self._times: list[tuple[float, float]] = []
        for line in lines:
            getattr(self, f'_{line["what"].replace(" ", "_")}', self._nothing)(line)
        self._faults = sorted(self.faults.values(), key=lambda fault: fault.begin)
        self._begins = [fault.begin for fault in self._faults]
        for line in self.stalls:
            line['paused'] = self._is_of_a_pause(line)

    # one way for each kind of line

    def _nothing(self, line: dict) -> None:
        """What only people read."""

    def _play(self, line: dict) -> None:
        self.play = line

    def _fault(self, line: dict) -> None:
        number = line['number']
        self.faults[number] = Fault(
            number, line['kind'], line['target'], line['nodes'], line['mains'], line['at']
        )  # fmt: skip

    def _over(self, line: dict) -> None:
        fault = self.faults[line['number']]
        fault.end, fault.notes = line['at'], line['notes']

    def _body(self, line: dict) -> None:
        name, event, at = Name(line['job'], line['slot']), line['event'], line['at']
        of_run = self.attempts[name]
        if event == 'start' and line['fence'] in of_run:
            self.doubled.append((name, line['fence']))
        attempt = of_run.get(line['fence'])
        if attempt is None:
            attempt = of_run[line['fence']] = Attempt(
                name, line['attempt'], line['fence'], line['node'], line['main'], line['pid'], at,
                line['trigger'],
            )  # fmt: skip
        attempt.last = max(attempt.last, at)
        attempt.events.add(event)
        if line['trusts']:
            attempt.trusted = max(attempt.trusted, at)
        if event == 'HandedOver':
            attempt.handed_over = at

    def _run(self, line: dict) -> None:
        if line.get('until'):
            self.ranges[line['job']].append(line)
        if line['kind'] == 'scheduled':
            self.runs[Name(line['job'], line['slot'])] = line

    def _said(self, line: dict) -> None:
        self.said[line['event']].append(line)
        if line['event'] == 'run_dispatched':
            self.dispatched[Name(line['job'], line['slot'])].append(line)

    def _stalled(self, line: dict) -> None:
        self.stalls.append(line)

    def _starved(self, line: dict) -> None:
        self.starved[line['main']].append((line['at'], line['seconds']))

    def _active(self, line: dict) -> None:
        self.active.append(line)

    def _floors(self, line: dict) -> None:
        self.floors.append(line)

    def _used(self, line: dict) -> None:
        self.used.append(line)

    def _kept(self, line: dict) -> None:
        self.kept.append(line)

    def _write(self, line: dict) -> None:
        self.writes.append(line)

    def _rest(self, line: dict) -> None:
        self.rests.append((line['at'], FOREVER))

    def _rested(self, line: dict) -> None:
        self.rests[-1] = (self.rests[-1][0], line['at'])

    def _clock(self, line: dict) -> None:
        self._times.append((line['at'], line['wall']))

    def _ready(self, line: dict) -> None:
        self.starts.setdefault(line['main'], line['at'])
        if line['node'].startswith('beat'):
            self.beats.add(line['main'])

    def _no_more_slots(self, line: dict) -> None:
        self.no_more_slots = line['at']

    def _died(self, line: dict) -> None:
        self.died.append(line)

    def _stuck(self, line: dict) -> None:
        self.stuck.append(line)

    def _end(self, line: dict) -> None:
        self.ended = True

    # two clocks

    def ms(self, at: float) -> float:
        """The stores' time (ms) at a monotonic one."""
        place = max(0, bisect.bisect_right(self._times, (at, FOREVER)) - 1)
        mono, wall = self._times[place]
        return 1000 * (wall + at - mono)

    def at(self, ms: float) -> float:
        """The monotonic time at one of the stores'."""
        place = max(0, bisect.bisect_right(self._times, ms / 1000, key=lambda pair: pair[1]) - 1)
        mono, wall = self._times[place]
        return mono + ms / 1000 - wall

    # strikes

    def strikes(
        self, begin: float, end: float, *, mains: Iterable[int] = (), everybody: bool = True
    ) -> Iterator[Fault]:
        """Those at one of the processes, and those at what is everybody's, that may be seen in that time."""
        wanted = set(mains)
        last = bisect.bisect_right(self._begins, end)
        first = bisect.bisect_left(self._begins, begin - LONGEST)
        for fault in self._faults[first:last]:
            tail = fault.tail if everybody and self._is_everybodys(fault) else None
            if tail is None and wanted & {*fault.mains}:
                tail = 0.0
            if tail is not None and fault.overlaps(begin, end, tail=tail):
                yield fault

    def _is_everybodys(self, fault: Fault) -> bool:
        """In a database who vanishes holds what others wait for.

        "A node that vanishes in the middle of a step, so that the server does not learn of it, holds the jobs
        of that step for 2 s" (docs/stores.md); a file, until it goes on.
        """
        return fault.target in ('store', 'broker') or (
            self.play['store'] != 'redis' and fault.kind in VANISHING
        )

    def slack(self, begin: float, end: float, main: int | None = None) -> float:
        """What the machine took: of a process, or of any beat, and of the servers (seconds)."""
        mains = self.beats if main is None else [main]
        worst = max((self._waited(begin, end, one) for one in mains), default=0.0)
        return worst + self._waited(begin, end, 0) + self.stalled(begin, end, main)

    def _waited(self, begin: float, end: float, main: int) -> float:
        lines = self.starved.get(main, [])
        place, waited = bisect.bisect_left(lines, (begin, 0.0)), 0.0
        while place < len(lines) and lines[place][0] <= end + 1:
            waited += lines[place][1]
            place += 1
        return waited

    def stalled(self, begin: float, end: float, main: int | None = None) -> float:
        """The longest time for which a thread was not woken: of a process, or of any that was not paused."""
        found = (
            line['seconds'] for line in self.stalls
            if line['at'] - line['seconds'] <= end and line['at'] >= begin
            and (line['main'] == main if main else not line['paused'])
        )  # fmt: skip
        return max(found, default=0.0)

    def _is_of_a_pause(self, line: dict) -> bool:
        begin = line['at'] - line['seconds'] - 0.1
        faults = self.strikes(begin, line['at'], mains=[line['main']], everybody=False)
        return any(fault.kind.startswith('pause') for fault in faults)

    # runs

    def in_order(self, name: Name) -> list[Attempt]:
        return sorted(self.attempts.get(name, {}).values(), key=lambda attempt: attempt.fence)

    def forgotten(self) -> list[tuple[float, float]]:
        """When the store forgot what it had answered: from when what it answered is lost, until all know."""
        young = jobs.LEASE + jobs.CLAIM_TIMEOUT
        return [
            (fault.notes.get('frozen', fault.begin) - 0.2, fault.end + young)
            for fault in self._faults if fault.kind == 'replica promoted'
        ]  # fmt: skip


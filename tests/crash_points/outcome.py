"""What came of a case: everything that must hold is looked at, and some of it is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anarchon_celery.protocol import Run
from tests.crash_points import walls
from tests.crash_points.blows import Blow
from tests.crash_points.points import Case
from tests.crash_points.told import Key, Told


@dataclass(slots=True)
class Outcome:
    """A line of the table."""

    case: Case
    store: str
    broker: str
    wrong: list[str] = field(default_factory=list)
    attempts: int | None = None  #: of the run that was hit
    dispatches: int | None = None
    again: float | None = None  #: from the last blow to the next begin of that run's body
    rest: float | None = None  #: from then, or from when who was stopped went on, to the last run's end
    stale: int = 0  #: stale writes that what checks no fence took
    slots: int = 0

    @property
    def command(self) -> str:
        """What plays it again."""
        what = f"--point '{self.case.at}' --fault '{self.case.fault}'"
        return f'python -m tests.crash_points --store {self.store} --broker {self.broker} {what}'

    def __str__(self) -> str:
        cells = [
            f'{self.case.at:<20} {self.case.fault:<11} {self.store:<10} {self.broker:<8}',
            f'attempts {_cell(self.attempts, "d"):>1}  dispatches {_cell(self.dispatches, "d"):>1}',
            f'begun again {_cell(self.again, ".2f"):>5} s  at rest {_cell(self.rest, ".2f"):>5} s',
            'ok' if not self.wrong else f'VIOLATION: {"; ".join(self.wrong)}',
        ]
        return '  '.join(cells)


def _cell(value: float | None, form: str) -> str:
    return '-' if value is None else format(value, form)


@dataclass(slots=True)
class Known:
    """What is known of a cluster from case to case."""

    alone: frozenset[str]  #: the jobs under overlap skip
    poll: float
    grace: float
    claim_timeout: float
    ended: dict[Key, Run] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)  #: what was wrong before
    touched: set[Key] = field(default_factory=set)  #: runs that a blow was about, or whose holder it hit
    held: float = 0.0  #: in the case before: what came due at its end is dispatched again in this one

    def judge(
        self, outcome: Outcome, blows: Sequence[Blow], told: Told, runs: Mapping[Key, Run],
        slots: Sequence[Key], floors: dict[str, int], held: float,
    ) -> None:  # fmt: skip
        """Look at a case at rest: ``slots`` came due meanwhile, ``runs`` is what there is by now.

        ``held`` is for how long nobody got at the store, for who was stopped had it (seconds).
        """
        case = outcome.case
        hit = [key for key in blows[-1].keys if key.job == case.point.job]
        self.touched |= {key for blow in blows for key in _touched(blow, told)}
        due = slots
        if held >= self.claim_timeout:
            due = [*_beside(slots, blows[0].at, held)]
            self.touched |= set(walls.alive(told, blows[0].at, held))  # nobody renews
        meanwhile = {key: runs[key] for key in slots if key in runs}
        found = [
            *walls.ends(runs, due, dict.fromkeys(hit, case.end), self.alone),
            *walls.bodies_of_successes(meanwhile, told), *walls.final(self.ended, runs),
            *walls.winners(told), *walls.leases(told, self.alone), *walls.trust(told, self.alone),
            *walls.fences(told), *walls.checked_writes(told),
            *walls.deadlines(told, self.poll, self.grace + max(held, self.held)),
            *walls.starts(told, self.touched),
            *walls.counts(meanwhile, self.touched, len(blows)), *walls.floors(self.floors, floors),
        ]  # fmt: skip
        # What was written down is all looked at each time: what comes between the cases counts for the next.
        outcome.wrong += [one for one in found if one not in self.said]
        self.said.update(found)
        self.ended |= {key: run for key, run in runs.items() if run.ended}
        self.floors, self.held = floors, held
        outcome.slots = len(slots)
        if hit and hit[0] in runs:
            outcome.attempts, outcome.dispatches = runs[hit[0]].attempt, runs[hit[0]].dispatch
            outcome.again = walls.begun_again(told, hit[0], blows[-1].at)


def _beside(slots: Sequence[Key], begin: float, held: float) -> Iterator[Key]:
    """Those that did not come due while nobody got at the store, nor a moment before: these may be missed."""
    for key in slots:
        if not begin - 1 <= key.slot / 1000 <= begin + held + 1:
            yield key


def _touched(blow: Blow, told: Told) -> set[Key]:
    held = set()
    if (blow.kills or blow.stops) and blow.role != 'beat':
        held = walls.held_by(told, blow.node if blow.whole else blow.pid, whole=blow.whole, at=blow.at)
    return {*blow.keys, *held}

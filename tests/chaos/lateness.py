"""The rules that say how soon (5 and 9), with the slack that the machine itself needed meanwhile.

Where that took more than the whole bound, nothing can be said, and nothing is: the report counts those apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from tests.chaos import jobs
from tests.chaos.judging import HARMLESS
from tests.chaos.told import Attempt, Name, Told

#: Seconds from the end of a holder to the next dispatch of its run, by what ended it.
BOUNDS = {
    'killed': jobs.LEASE + jobs.POLL + 0.5,
    'child killed': jobs.POLL + 1.0,
    'handed over': jobs.POLL + 0.5,
}
#: At rest all is right again after so long: what was sent to a killed worker waits for its start timeout.
SETTLED_AFTER = 8.0
#: By a worker that stops, with Redis as broker, within a second more (docs/failures.md).
REDIS_READS = 1.1
KILLS = ('kill worker', 'kill worker group')


class Change(NamedTuple):
    """From one attempt to the next: what ended the first, when, when the next was sent, when it began."""

    one: Attempt
    other: Attempt
    how: str
    ended: float
    sent: float
    slack: float  #: what the machine took meanwhile
    disturbed: str | None  #: what else was going on that makes it take longer, or None

    @property
    def until_sent(self) -> float:
        return self.sent - self.ended

    @property
    def until_begun(self) -> float:
        return self.other.begin - self.ended


def changes(told: Told) -> Iterator[Change]:
    for name in told.attempts:
        for one, other in itertools.pairwise(told.in_order(name)):
            if other.number == one.number + 1 and (end := _end(told, one, other)):
                how, at = end
                dispatched = told.dispatched.get(name, ())
                sent = [line['at'] for line in dispatched if line['attempt'] == other.number]
                first = min((it for it in sent if it >= at), default=other.begin)
                slack = told.slack(at, first)
                disturbed = _disturbed(told, how, at) or ('the machine' if slack > BOUNDS[how] else None)
                yield Change(one, other, how, at, first, slack, disturbed)


def _end(told: Told, one: Attempt, other: Attempt) -> tuple[str, float] | None:
    """What ended an attempt, as far as that is known to the second; the kills by us, and what hands over."""
    if one.handed_over is not None:
        return 'handed over', one.handed_over
    for fault in told.strikes(one.begin, other.begin, mains=[one.main], everybody=False):
        if fault.kind == 'kill child' and fault.notes.get('pid') == one.pid:
            return 'child killed', fault.begin
        if fault.kind in KILLS:
            return 'killed', max(fault.begin, one.last)
    return None


def _disturbed(told: Told, how: str, ended: float) -> str | None:
    """What strikes the store, or a beat that may have won it, or makes beats hold off: nobody promised when.

    Nor is it promised in a young store, nor where a beat that claimed the run could not send it.
    """
    begin, end = ended + EARLIEST[how], ended + BOUNDS[how] + REDIS_READS
    struck = told.strikes(begin - 0.5, end, mains=told.beats)
    for fault in struck:
        if fault.target != 'broker' and fault.kind not in HARMLESS:
            return fault.kind
    held = [line for line in told.said['held_off'] if begin - jobs.LEASE <= line['at'] <= end]
    return 'held off' if held else None


#: When it can be sent at the earliest: before that it is nobody's.
EARLIEST = {'killed': jobs.LEASE - jobs.HEARTBEAT - 0.1, 'child killed': 0.0, 'handed over': 0.0}


def soon_enough(told: Told) -> Iterator[str]:
    """5. What lost its holder is sent again in time."""
    for change in changes(told):
        if change.disturbed:
            continue
        bound = BOUNDS[change.how]
        if change.how == 'handed over' and told.play['broker'] == 'redis':
            bound += REDIS_READS
        if change.until_sent > bound + change.slack:
            yield (
                f'{change.one.name} attempt {change.other.number} was sent {change.until_sent:.2f} s after '
                f'the one before was {change.how}: at most {bound:.1f} s, and {change.slack:.2f} s slack'
            )


def nothing_is_overdue(told: Told) -> Iterator[str]:
    """9. At rest nothing is active past its deadline."""
    allowed = 1000 * (jobs.POLL + 0.5)
    for begin, end in told.rests:
        for look in told.active:
            if begin + SETTLED_AFTER <= look['at'] <= end:
                slack = 1000 * told.slack(look['at'] - jobs.LEASE, look['at'])
                for job, slot, state, deadline in look['runs']:
                    if deadline is not None and look['now'] - deadline > allowed + slack:
                        late = (look['now'] - deadline) / 1000
                        yield f'{Name(job, slot)} is {state}, {late:.2f} s past its deadline, at rest'

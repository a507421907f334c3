"""What must hold, whatever was hit: each function returns what does not, in words.

The numbers are those of the test programme's invariants. Times are seconds of this machine's clock, by which
all stores here judge: an answer was decided between ``begun`` and ``done``.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from anarchon_celery.protocol import Run
from tests.crash_points.told import Key, Told

#: What a holder does: a yes means that the run was still its own.
HOLDS = ('renew', 'finish', 'requeue', 'release')

#: After so many seconds a start is answered, or never will be.
ANSWERED = 5.0


def ends(
    runs: Mapping[Key, Run], slots: Iterable[Key], ends_of: Mapping[Key, str], skips: frozenset[str]
) -> Iterator[str]:
    """1: each slot has one run, which ended as it should; those of the jobs ``skips`` may be skipped."""
    for key in slots:
        run = runs.get(key)
        if run is None:
            yield f'{key}: it came due, and there is no run'
            continue
        skipped = (run.state, run.reason) == ('skipped', 'overlap') and key.job in skips
        if run.state != ends_of.get(key, 'succeeded') and not skipped:
            yield f'{key}: {run.state} ({run.reason}), attempt {run.attempt}, dispatch {run.dispatch}'


def bodies_of_successes(runs: Mapping[Key, Run], told: Told) -> Iterator[str]:
    """1: what succeeded has a body that came to its end, under the fence of its last start."""
    ended = {(line['key'], line['fence']) for line in told.events('end')}
    for key, run in runs.items():
        if run.state == 'succeeded' and (key, run.fence) not in ended:
            yield f'{key}: succeeded, but no body came to its end under its fence'


def final(before: Mapping[Key, Run], runs: Mapping[Key, Run]) -> Iterator[str]:
    """1: an ended run changes no more."""
    for key, run in before.items():
        if runs.get(key, run) != run:
            yield f'{key}: ended as {run}, and is now {runs[key]}'


def winners(told: Told) -> Iterator[str]:
    """2 and 10: a slot is claimed once, each deadline leads to one dispatch, a win is published once."""
    wins: dict[tuple, set] = defaultdict(set)
    for one in told.of('claim', 'redispatch'):
        wins[one.key, one.seen].add(one.nonce)
    for (key, seen), nonces in wins.items():
        if len(nonces) > 1:
            yield f'{key}: {seen or "its slot"} was won {len(nonces)} times'
    won = Counter(key for key, _ in wins)
    for key, count in Counter(one.key for one in told.of('publish')).items():
        if count > won[key]:
            yield f'{key}: {count} messages for {won[key]} wins'


def leases(told: Told, alone: frozenset[str]) -> Iterator[str]:
    """3: nobody holds what another one was given later; of the jobs ``alone`` not two runs at once either."""
    starts, held = defaultdict(list), defaultdict(list)
    for one in told.of('start'):
        starts[_scope(one.key, alone)].append(one)
    over = set()
    for one in told.of(*HOLDS):
        if one.token not in over:  # else it is asked again: the answer was lost
            held[one.token].append(one)
        if one.verb != 'renew':
            over.add(one.token)
    for begun in starts.values():
        for number, start in enumerate(begun):
            later = next((one for one in begun[number + 1 :] if one.token != start.token), None)
            for one in held[start.token] if later else ():
                if one.begun > later.done:
                    yield f'{start.key}: attempt {start.attempt}: {one.verb} was answered yes after {later}'


def trust(told: Told, alone: frozenset[str]) -> Iterator[str]:
    """3: nobody trusts a lease when the next one has begun."""
    starts = defaultdict(list)
    for one in told.of('start'):
        starts[_scope(one.key, alone)].append((one.done, one.fence))
    highest = {scope: Highest(begun) for scope, begun in starts.items()}
    for line in told.bodies:
        fence, since = highest[_scope(line['key'], alone)].before(line['at'])
        if line['trusts'] and fence > line['fence']:
            late = line['at'] - since
            yield f'{line["key"]}: fence {line["fence"]} is trusted {late:.3f} s after {fence} began'


def fences(told: Told) -> Iterator[str]:
    """4: the fences of a job grow."""
    starts: dict[str, dict] = defaultdict(dict)
    for one in told.of('start'):
        starts[one.key.job].setdefault(one.token, one)  # a start that is asked for again is the same
    for job, by_token in starts.items():
        highest = Highest([(one.done, one.fence) for one in by_token.values()])
        for one in by_token.values():
            fence, _ = highest.before(one.begun)
            if fence >= one.fence:
                yield f'{job}: fence {one.fence} ({one.key}) after {fence}'
        if len({one.fence for one in by_token.values()}) < len(by_token):
            yield f'{job}: two starts under one fence'


def checked_writes(told: Told) -> Iterator[str]:
    """4: what checks the fence takes no stale write."""
    writes = defaultdict(list)
    for line in told.events('checked'):
        writes[line['scope']].append(line)
    for scope, lines in writes.items():
        highest = Highest([(line['at'], line['fence']) for line in lines])
        for line in lines:
            fence, _ = highest.before(line['begun'])
            if fence > line['fence']:
                yield f'{scope}: fence {line["fence"]} wrote over {fence}'


class Highest:
    """Of fences that came one after the other: which was the highest at a moment, and since when."""

    def __init__(self, came: Iterable[tuple[float, int]]) -> None:
        self._fences: list[tuple[int, float]] = []
        ordered = sorted(came)
        self._times = [at for at, _ in ordered]
        for at, fence in ordered:
            self._fences.append(max((fence, at), self._fences[-1] if self._fences else (0, 0.0)))

    def before(self, at: float) -> tuple[int, float]:
        place = bisect.bisect_left(self._times, at)
        return self._fences[place - 1] if place else (0, 0.0)


def stale_writes(fences: Iterable[int]) -> int:
    """4: how many writes went over later ones, where nothing checks."""
    return sum(after < before for before, after in itertools.pairwise(fences))


def deadlines(told: Told, poll: float, grace: float) -> Iterator[str]:
    """5 and 9: what is past its deadline is dispatched again within a poll and a moment."""
    met = set()
    for one in told.of('redispatch'):
        late = one.done - one.seen[2] / 1000
        if (one.key, one.seen) not in met and late > poll + grace:
            yield f'{one.key}: dispatched again {late:.2f} s after its deadline'
        met.add((one.key, one.seen))


def alive(told: Told, begin: float, length: float) -> Iterator[Key]:
    """Yield the runs of the bodies that did something in that time."""
    for line in told.bodies:
        if begin <= line['at'] <= begin + length:
            yield line['key']


def starts(told: Told, touched: AbstractSet[Key]) -> Iterator[str]:
    """6: what no fault touched is started once; and no attempt, and none of its tries, begins twice."""
    begun = defaultdict(list)
    for line in told.events('start'):
        begun[line['key']].append((line['attempt'], line['retries']))
    for key, tries in begun.items():
        twice = [one for one, count in Counter(tries).items() if count > 1]
        if twice:
            yield f'{key}: (attempt, try) {twice} began twice'
        if key not in touched and len(tries) > _tries(key.job):
            yield f'{key}: no fault touched it, and it was started {len(tries)} times: {tries}'


def counts(runs: Mapping[Key, Run], touched: AbstractSet[Key], strikes: int) -> Iterator[str]:
    """7: no more attempts, and no more crashes, than blows."""
    for key, run in runs.items():
        blows = strikes if key in touched else 0
        if run.crashes > blows or run.attempt > 1 + blows + (key.job == 'handing'):
            yield f'{key}: {run.attempt} attempts and {run.crashes} crashes of {blows} blows'


def floors(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[str]:
    """10: a floor does not fall."""
    for job, floor in before.items():
        if now.get(job, 0) < floor:
            yield f'{job}: its floor fell from {floor} to {now.get(job)}'


def held_by(told: Told, process: int, *, whole: bool, at: float) -> set[Key]:
    """The runs that a process, or the ``whole`` of a node, held or was about to hold at a moment."""
    over = {one.token for one in told.of('finish', 'requeue', 'release') if one.done <= at}
    mine = [one for one in told.of('asks', 'start') if process == (one.node if whole else one.pid)]
    starts = [one for one in mine if one.verb == 'start' and one.begun <= at]
    answered = {one.key for one in starts}
    asked = {one.key for one in mine if one.verb == 'asks' and at - ANSWERED < one.begun <= at}
    return {one.key for one in starts if one.token not in over} | (asked - answered)


def begun_again(told: Told, key: Key, at: float) -> float | None:
    """How long after a moment the run's body was begun again (seconds)."""
    later = (line['at'] - at for line in told.events('start') if line['key'] == key)
    return min((late for late in later if late > 0), default=None)


def _tries(job: str) -> int:
    """How often a body begins by itself: one is retried once, one gives its run back once."""
    return 2 if job in ('again', 'handing') else 1


def _scope(key: Key, alone: frozenset[str]) -> object:
    return key.job if key.job in alone else key



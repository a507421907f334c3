"""The report: what was done, what came of it, and each violation as a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.cluster import BEATS
from tests.chaos.journal import read
from tests.chaos.judging import reasons, stale_writes, violations
from tests.chaos.lateness import Change, changes, nothing_is_overdue, soon_enough
from tests.chaos.nemeses import KILLS, NEMESES, fitting
from tests.chaos.told import Told


def judged(path: Path) -> int:
    """Print the report of a history; return 1 if a promise was broken, or nothing was tested."""
    told = Told(read(path))
    found = violations(told)
    found += [f'{rule.__name__}: {line}' for rule in (soon_enough, nothing_is_overdue) for line in rule(told)]
    if not told.ended:
        found.append('the play did not come to its end')
    print('\n'.join([*lines(told), '', *found, f'{len(found)} violations']))
    return 1 if found else 0


def lines(told: Told) -> Iterable[str]:
    play, bodies = told.play, sum(map(len, told.attempts.values()))
    yield (
        f'{play["store"]} as store, {play["broker"]} as broker, seed {play["seed"]}: {play["jobs"]} jobs, '
        f'{_seconds(told):.0f} s'
    )
    yield from _of_strikes(told)
    states = Counter(run['state'] for run in told.runs.values())
    yield f'{_slots(told):,} slots: {_counted(states)}'
    again = Counter(reason or 'no reason' for _, _, reason in reasons(told))
    yield f'{bodies:,} starts, {sum(again.values()):,} of them doubled: {_counted(again)}'
    yield from _of_changes(list(changes(told)))
    fenced, control = stale_writes(told, 'checked'), stale_writes(told, 'unchecked')
    bit = '' if control else ' (the faults did not bite)'
    refused = sum('StaleRun' in one.events for of_run in told.attempts.values() for one in of_run.values())
    yield f'stale writes: {len(fenced)} fenced ({refused} refused), {len(control)} in the control{bit}'
    yield from _of_means(told)


def _seconds(told: Told) -> float:
    ats = [line['at'] for line in told.active]
    return max(ats) - min(ats)


def _slots(told: Told) -> int:
    missed = [line for lines in told.ranges.values() for line in lines if line['state'] == 'missed']
    return len(told.runs) + sum(line['count'] - 1 for line in missed)


def _of_strikes(told: Told) -> Iterable[str]:
    kinds = Counter(fault.kind for fault in told.faults.values())
    kills = sum(
        len(fault.nodes) for fault in told.faults.values() if fault.kind in KILLS
    )  # fmt: skip
    yield f'{len(told.faults):,} faults, {kills:,} kills: {_counted(kinds)}'
    promoted = [fault for fault in told.faults.values() if fault.kind == 'replica promoted']
    lost = [fault.notes['lost'] for fault in promoted if 'lost' in fault.notes]
    if lost:
        yield f'  writes that were answered and lost: {sum(lost):,} bytes, by {len(lost)} promoted replicas'
    not_here = [one for one in NEMESES if one not in fitting(told.play['store'])]
    for why in dict.fromkeys(one.why for one in not_here):
        names = ', '.join(one.name for one in not_here if one.why == why)
        yield f'  not here: {names} ({why})'


def _of_changes(found: list[Change]) -> Iterable[str]:
    for how in ('killed', 'child killed', 'handed over'):
        those = [change for change in found if change.how == how]
        quiet = [change for change in those if not change.disturbed]
        yield f'{how}: {len(those)}; to the next start {_spread(change.until_begun for change in those)}'
        yield (
            f'  undisturbed: {len(quiet)}; to the next dispatch {_spread(it.until_sent for it in quiet)}; '
            f'slack {_spread(it.slack for it in quiet)}'
        )


def _of_means(told: Told) -> Iterable[str]:
    stalls = [line['seconds'] for line in told.stalls if not line['paused']]
    yield f'the machine: {len(stalls)} threads woken late, {_spread(stalls)}'
    waited = sum(seconds for main in told.beats for _, seconds in told.starved.get(main, ()))
    served = sum(seconds for _, seconds in told.starved.get(0, ()))
    yield (
        f'  of a second a beat waited {waited / _seconds(told) / BEATS:.2f} s for the processor, all on the '
        f'way of a call {served / _seconds(told):.2f} s: as much is the slack of what has to be soon'
    )
    yield 'at most, in each quarter of the time:'
    for kind in ('beat', 'worker'):
        used = [line for line in told.used if line['node'].startswith(kind) and line['processes']]
        yield f'  a {kind}, its children included: {_quarters(used, "rss", 2**20)} MB'
        yield f'  open files of one of its processes: {_quarters(used, "most_files")}'
    fields = [name for name in told.kept[-1] if name not in ('what', 'at')] if told.kept else ()
    for name in fields:
        yield f'  kept by the store, {name.replace("_", " ")}: {_quarters(told.kept, name)}'


def _quarters(looks: list[dict], name: str, unit: int = 1) -> str:
    """The most in each quarter of what was looked at: what goes on growing shows."""
    quarters = [looks[n * len(looks) // 4 : (n + 1) * len(looks) // 4] for n in range(4)]
    most = [max((line.get(name, 0) for line in quarter), default=0) for quarter in quarters]
    return ', '.join(f'{round(value / unit):,}' for value in most)


def _counted(counts: Counter) -> str:
    return ', '.join(f'{count:,} {name}' for name, count in counts.most_common()) or 'none'


def _spread(values: Iterable[float]) -> str:
    ordered = sorted(values)
    if not ordered:
        return '–'
    at = {share: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99)}
    return f'p50 {at[0.5]:.2f} s, p99 {at[0.99]:.2f} s, at most {ordered[-1]:.2f} s'

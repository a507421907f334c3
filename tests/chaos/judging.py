"""The invariants of a cluster, each a function that yields a line for each violation: the slot, and the rule.

They are numbered as in docs/proof.md; those that say how soon are in :mod:`.lateness`. These have no slack.

One nemesis suspends rules, and only for what it touched: a replica that is promoted without the last writes.
"A store that loses acknowledged writes may let a slot run twice, never with the same fence, …: a slot that
ended in the time that was lost runs again, perhaps beside a later run of its job" (docs/failures.md, Not
promised).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

from tests.chaos import jobs
from tests.chaos.told import Attempt, Name, Told

#: Of the last slots before the end some are not decided yet (seconds).
LAST = 2.0
SLOT = 1000 * jobs.SPACING


def nodes_live(told: Told) -> Iterator[str]:
    """0. No node ends but by a strike, and each that is started gets ready."""
    for line in told.died:
        yield f'{line["node"]} ended by itself, with status {line["status"]}'
    for line in told.stuck:
        fault = told.faults[line['number']]
        whom = ', '.join(fault.nodes) or fault.target
        yield f'{fault.kind} of {whom}: waited in vain at step {line["step"]}'


def violations(told: Told) -> list[str]:
    return [f'{rule.__name__}: {line}' for rule in RULES for line in rule(told)]


class Forgotten:
    """What a store that lost its last writes may have touched."""

    def __init__(self, told: Told) -> None:
        self.told, self.windows = told, told.forgotten()

    def holds(self, begin: float, end: float) -> bool:
        return any(begin <= until and end >= since for since, until in self.windows)

    def touched(self, name: Name) -> bool:
        """Whether the run came due, was claimed, sent, started or ended in that time."""
        if not self.windows:
            return False
        told, due = self.told, self.told.at(name.slot)
        run, attempts = told.runs.get(name, {}), told.in_order(name)
        ats = [due, *(line['at'] for line in told.dispatched.get(name, ()))]
        ats += [at for one in attempts for at in (one.begin, one.last)]
        fields = ('claimed_at', 'started_at', 'finished_at')
        ats += [told.at(run[field]) for field in fields if run.get(field)]
        return self.holds(min(ats), max(ats))


# 1: none is lost ------------------------------------------------------------------------------------


def each_slot_ends(told: Told) -> Iterator[str]:
    """1. Every slot ends in one final state; what ended well was begun and came to its end."""
    no_more = told.no_more_slots or told.rests[-1][1]
    for job, slots in decided(told).items():
        first, last = min(slots), told.ms(no_more - LAST - told.slack(no_more - 2 * LAST, no_more))
        for slot in range(first, int(last), SLOT):
            if slot not in slots:
                yield f'{Name(job, slot)} has no record'
    for name, run in told.runs.items():
        yield from _has_a_right_end(told, name, run)
    for job, slot, state, _ in told.active[-1]['runs']:
        yield f'{Name(job, slot)} is still {state}'


def decided(told: Told) -> dict[str, set[int]]:
    """All slots of each job of which there is a record."""
    found: dict[str, set[int]] = defaultdict(set)
    for name in told.runs:
        found[name.job].add(name.slot)
    for job, lines in told.ranges.items():
        for line in lines:
            found[job].update(range(line['slot'], line['until'] + 1, SLOT))
    return found


def _has_a_right_end(told: Told, name: Name, run: dict) -> Iterator[str]:
    state, overlap = run['state'], jobs.overlap_of(name.job)
    body = told.attempts.get(name, {}).get(run.get('fence', 0))
    if state == 'succeeded' and (body is None or 'end' not in body.events):
        yield f'{name} succeeded, and no body of fence {run.get("fence")} came to its end'
    elif state == 'failed' and (body is None or not body.events & {'StaleRun', 'StaleFence'}):
        yield f'{name} failed ({run.get("reason")}), and no body says why'
    elif state == 'skipped' and overlap == 'allow':
        yield f'{name} was skipped, and its job allows overlap'
    elif state == 'cancelled' and overlap != 'cancel':
        yield f'{name} was cancelled, and nobody asked for that'
    elif state == 'published':
        yield f'{name} was only published, and its task has the base class'


# 2: one winner --------------------------------------------------------------------------------------


def one_winner(told: Told) -> Iterator[str]:
    """2. Of each slot and each dispatch one node is the one that sends it."""
    forgotten = Forgotten(told)
    won = defaultdict(list)
    for line in told.said['slot_claimed']:
        won[Name(line['job'], line['slot'])].append(line['node'])
    for name, nodes in won.items():
        if len(nodes) > 1 and not forgotten.touched(name):
            yield f'{name} was claimed anew: by {", ".join(nodes)}'
    for name, lines in told.dispatched.items():
        times = [line['dispatch'] for line in lines]
        if len(times) > len(set(times)) and not forgotten.touched(name):
            yield f'{name} was sent twice as one dispatch: {times} by {[line["node"] for line in lines]}'


# 3: leases ------------------------------------------------------------------------------------------


def leases_do_not_overlap(told: Told) -> Iterator[str]:
    """3. No holder trusts its lease once the next attempt has begun; nor, but under allow, one of its job.

    When a run began is in its fence: the store's time, in microseconds.
    """
    forgotten = Forgotten(told)
    of_job: dict[Name | str, list[Attempt]] = defaultdict(list)
    for name in told.attempts:
        of_job[name if jobs.overlap_of(name.job) == 'allow' else name.job] += told.in_order(name)
    for attempts in of_job.values():
        attempts.sort(key=lambda attempt: attempt.fence)
        for one, other in trusted_too_long(told, attempts):
            if not forgotten.touched(one.name) and not forgotten.touched(other.name):
                late = one.trusted - told.at(other.fence / 1000)
                yield f'{one.name} attempt {one.number} trusted its lease {late:.3f} s after {other.name} ' \
                    f'attempt {other.number} began'  # fmt: skip


def trusted_too_long(told: Told, attempts: list[Attempt]) -> Iterator[tuple[Attempt, Attempt]]:
    """Pairs of which the earlier one trusted its lease when the later one had begun; in order of fences."""
    holder: Attempt | None = None
    for attempt in attempts:
        if holder and holder.trusted > told.at(attempt.fence / 1000) + CLOCKS:
            yield holder, attempt
        if holder is None or attempt.trusted > holder.trusted:
            holder = attempt


#: How exactly two clocks are compared here (seconds); what trusts a lease gives it up half a second early.
CLOCKS = 0.005


# 4: fences ------------------------------------------------------------------------------------------


def fences_grow(told: Told) -> Iterator[str]:
    """4. Each start of a job has a fence of its own; later attempts have higher ones; a check of it holds."""
    forgotten = Forgotten(told)
    for name, fence in told.doubled:
        yield f'{name} began twice under fence {fence}'
    owners: dict[tuple[str, int], Name] = {}
    for name in told.attempts:
        attempts = told.in_order(name)
        for one in attempts:
            owner = owners.setdefault((name.job, one.fence), name)
            if owner != name:
                yield f'{name} has fence {one.fence} of {owner}'
        for one, other in itertools.pairwise(attempts):
            if other.number <= one.number and not forgotten.touched(name):
                yield f'{name}: attempt {one.number} has fence {one.fence}, {other.number} {other.fence}'
    for resource, fence, before in stale_writes(told, 'checked'):
        yield f'{resource}: the write of fence {fence} was taken after that of {before}'


def stale_writes(told: Told, which: str) -> list[tuple[str, int, int]]:
    """What a resource took from somebody whose place another one had: the fence, and the one before."""
    highest: dict[str, int] = {}
    found = []
    for line in told.writes:
        kind, _, resource = line['resource'].partition(' ')
        if kind == which:
            before = highest.get(resource, 0)
            if line['fence'] < before:
                found.append((resource, line['fence'], before))
            highest[resource] = max(before, line['fence'])
    return found


# 6: what nobody touched -----------------------------------------------------------------------------


def reasons(told: Told) -> Iterator[tuple[Attempt, Attempt, str | None]]:
    """Each attempt that was followed by another one, and why that was: a strike, or the machine."""
    for name in told.attempts:
        for one, other in itertools.pairwise(told.in_order(name)):
            yield one, other, _reason(told, one, other)


def _reason(told: Told, one: Attempt, other: Attempt) -> str | None:
    struck = [*told.strikes(one.begin - 0.5, other.begin, mains=[one.main])]
    struck = [fault for fault in struck if fault.target != 'broker' and fault.kind not in HARMLESS]
    # Where it has no number of its own the store forgot one; else it is what struck its worker, the latest.
    forgot = other.number <= one.number
    struck.sort(key=lambda fault: ((fault.target == 'store') != forgot, -fault.begin))
    if struck:
        return struck[0].kind
    if other.number > one.number + 1:  # a body between them was killed before it wrote a line
        between = told.strikes(one.begin, other.begin, mains=told.starts, everybody=False)
        return next((fault.kind for fault in between if fault.target == 'worker'), None)
    if told.slack(one.begin, other.begin, one.main) > jobs.LEASE - jobs.HEARTBEAT - jobs.MARGIN:
        return 'the machine'
    return None


#: What costs no lease; nor does what happens to the broker.
HARMLESS = ('wall clock', 'reset')


def untouched_once(told: Told) -> Iterator[str]:
    """6. A run whose worker nobody struck, nor the store, is started once; and no slot is passed over so."""
    for one, other, reason in reasons(told):
        if reason is None:
            yield f'{one.name}: attempt {other.number} began, and nothing had happened to {one.node}'
    for job, lines in told.ranges.items():
        for line in lines:
            if line['state'] == 'missed' and not _was_nobody_there(told, line):
                yield f'{Name(job, line["slot"])} was missed, and store and beats were there'


def _was_nobody_there(told: Told, line: dict) -> bool:
    """Whether the store or all beats were away while a slot was to be claimed."""
    begin, end = told.at(line['slot']), told.at(line['until']) + jobs.CLAIM_TIMEOUT
    if begin < min(told.starts.values()):
        return True  # the latest slot before the job was first seen is late
    away = any(fault.target == 'store' for fault in told.strikes(begin, end))
    nobody = [fault for fault in told.faults.values() if fault.target in ('beats', 'all')]
    return away or any(fault.overlaps(begin, end) for fault in nobody) or told.slack(begin, end) > 1


# 7: crashes -----------------------------------------------------------------------------------------


def crashes_are_counted(told: Told) -> Iterator[str]:
    """7. No more holders die on a run than may; what is given up is given up for that, and said."""
    said = {Name(line['job'], line['slot']) for line in told.said['run_abandoned']}
    for name, run in told.runs.items():
        crashes = run.get('crashes', 0)
        if crashes > jobs.MAX_CRASHES:
            yield f'{name}: {crashes} holders died on it'
        if run['state'] != 'abandoned':
            continue
        if crashes < jobs.MAX_CRASHES and run.get('unstarted', 0) < 5:
            yield f'{name} was abandoned after {crashes} crashes: {run.get("reason")}'
        at = told.at(run['finished_at'])
        if name not in said and not any(told.strikes(at - 1, at + 1, mains=told.beats)):
            yield f'{name} was abandoned, and nobody said so'


# 8: catch-up ----------------------------------------------------------------------------------------


def catch_up_is_as_asked(told: Told) -> Iterator[str]:
    """8. Of what came due while there was no beat, exactly what the job's catch-up policy says is run."""
    for fault in told.faults.values():
        if fault.kind == 'no beat':
            back = [line['at'] for line in told.said['slot_claimed'] if line['at'] > fault.begin + 1]
            # It is late if it is as old when it is offered; a claim is asked again for as long at most.
            late = told.ms(min(back, default=0)) - 2 * 1000 * jobs.CLAIM_TIMEOUT
            yield from _caught_up(told, told.ms(fault.begin) + 1000, late)


#: How a run ends that somebody was to run: rule 7 says when it may be abandoned.
TRIED = ('succeeded', 'abandoned')


def _caught_up(told: Told, begin: float, late: float) -> Iterator[str]:
    for job in decided(told):
        slots = range(-(-int(begin) // SLOT) * SLOT, int(late), SLOT)
        names = [Name(job, slot) for slot in slots]
        run = [name for name in names if told.attempts.get(name)]
        policy = jobs.catch_up_of(job)
        if policy == 'none' and run:
            yield f'{run[0]} was late, and is run under catch-up none'
        elif policy == 'latest' and len(run) > 1:
            yield f'{run[0]} and {len(run) - 1} more were late, and are run under catch-up latest'
        elif policy == 'all':
            left = [name for name in names if told.runs.get(name, {}).get('state') not in TRIED]
            if left:
                yield f'{left[0]} and {len(left) - 1} more were late, and are not run under catch-up all'


# 10: the floor --------------------------------------------------------------------------------------


def floors_hold(told: Told) -> Iterator[str]:
    """10. What is at or below the floor is not claimed; a floor does not sink."""
    forgotten = Forgotten(told)
    claims = sorted(told.said['slot_claimed'], key=lambda line: line['at'])
    looks = iter(sorted(told.floors, key=lambda line: line['at']))
    look, floors = next(looks, None), dict[str, int]()
    for line in claims:
        while look and look['at'] + SURE < line['at']:
            for job, floor in look['floors'].items():
                if (floor or 0) < floors.get(job, 0) and not forgotten.holds(look['at'] - 2, look['at']):
                    yield f'{job}: its floor sank from {floors[job]} to {floor}'
                floors[job] = floor or 0
            look = next(looks, None)
        name = Name(line['job'], line['slot'])
        if name.slot <= floors.get(name.job, 0) and not forgotten.touched(name):
            yield f'{name} was claimed by {line["node"]}, and its floor was {floors[name.job]}'


#: A claim may be told of so much later than it was won (seconds): the calls of a beat take as long at most.
SURE = jobs.CLAIM_TIMEOUT

RULES: list[Callable[[Told], Iterator[str]]] = [
    nodes_live, each_slot_ends, one_winner, leases_do_not_overlap, fences_grow, untouched_once,
    crashes_are_counted, catch_up_is_as_asked, floors_hold,
]  # fmt: skip

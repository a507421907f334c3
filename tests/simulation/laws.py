"""What must hold when the hour is over and all has come to rest: told from the records and the bodies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from anarchon_celery.protocol import RunKey

from .cluster import Cluster
from .jobs import GAPS, JOBS
from .watch import Body, Change
from .world import T

#: How a body can have ended whose run succeeded, or failed.
RETURNED, FAILED = 'returned', ('ValueError',)


def broken(cluster: Cluster) -> list[str]:
    """What was wrong in a seed's hour, first what was wrong first."""
    found = [*cluster.watch.wrong, *cluster.world.failures]
    for law in (_none_is_lost, _all_is_over, _ended_as_bodies_did, _once, _no_dispatch_too_many, _signalled):
        found += law(cluster)
    return found


def _none_is_lost(cluster: Cluster) -> Iterator[str]:
    """Each slot that came due by the store's clock was decided, and left a record."""
    watch = cluster.watch
    seen = {(key.job, key.slot) for key in watch.history if key.kind == 'scheduled'}
    for job, gap in GAPS.items():
        for slot in range((T // gap + 1) * gap, cluster.ended_at - gap, gap):
            spans = (*watch.ever_leapt, *watch.forgotten)
            if (job, slot) not in seen and not any(
                first <= slot <= last for one, first, last in spans if one == job
            ):
                yield f'1 none is lost: {RunKey(job, slot)} was never decided'


def _all_is_over(cluster: Cluster) -> Iterator[str]:
    """Nothing waits for ever: what came due in the hour has ended."""
    for run in cluster.room.recorded().runs.values():
        if not run.ended and run.slot <= cluster.ended_at:
            yield f'9 rest: {run.key} is {run.state} at the end'


def _ended_as_bodies_did(cluster: Cluster) -> Iterator[str]:
    """A run that succeeded had a body that returned, under its fence; one that was published is plain."""
    bodies: dict[tuple[RunKey, int], list[Body]] = defaultdict(list)
    for body in cluster.watch.bodies:
        bodies[body.key, body.fence].append(body)
    for run in cluster.room.recorded().runs.values():
        how = {body.how for body in bodies[run.key, run.fence]}
        if run.state == 'published' and run.job != 'plain':
            yield f'1 one end: {run.key} is published'
        elif run.state == 'succeeded' and RETURNED not in how:
            yield f'1 one end: {run.key} succeeded, and its body {how or "never began"}'
        elif run.state == 'failed' and not how.intersection(FAILED):
            yield f'1 one end: {run.key} failed ({run.reason}), and its body {how or "never began"}'


def _once(cluster: Cluster) -> Iterator[str]:
    """A slot that no fault touched was dispatched once and started once."""
    began: Counter[RunKey] = Counter(body.key for body in cluster.watch.bodies if not body.retries)
    for key, changes in cluster.watch.history.items():
        run = changes[-1].run
        if key.kind != 'scheduled' or not _was_calm(cluster, changes):
            continue
        if run.state in ('succeeded', 'failed', 'published') and (began[key], run.dispatch) != (1, 1):
            times = f'dispatched {run.dispatch} times and began {began[key]} times'
            yield f'6 once: {key} was {times}, in calm weather'


def _was_calm(cluster: Cluster, changes: list[Change]) -> bool:
    since = changes[0].at - (changes[0].now - changes[0].run.slot)
    longest = JOBS[changes[0].run.job][1][1] * 1000 if changes[-1].run.job == 'plain' else 0
    return cluster.is_calm(since - 1000, changes[-1].at + longest)


def _no_dispatch_too_many(cluster: Cluster) -> Iterator[str]:
    """A publication that failed for certain is no dispatch."""
    watch = cluster.watch
    for run in watch.runs.values():
        sent = sum(watch.sent[run.key, number] > 0 for number in range(1, run.dispatch + 1))
        is_under_way = run.state == 'claimed'  # of a slot after the hour, when all was over
        if run.dispatch > sent + watch.maybe_sent[run.key] + is_under_way and not watch.losses:
            yield f'dispatches: {run.key} counts {run.dispatch}, of which {sent} were sent'


def _signalled(cluster: Cluster) -> Iterator[str]:
    """Whoever gave a run up has said so, unless he was killed before he heard that he did."""
    for key, times in cluster.watch.abandoned.items():
        if not cluster.watch.told_abandoned[key] and not _may_be_unheard(cluster, key):
            yield f'7 crashes: {key} was abandoned {times} times, and nobody said so'


def _may_be_unheard(cluster: Cluster, key: RunKey) -> bool:
    who = [one.who for one in cluster.watch.history[key] if one.run.state == 'abandoned']
    return any(process is not None and process.dead for process in who)


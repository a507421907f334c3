"""Is it so? The story, compared with what the store recorded and what the nodes wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anarchon_celery.protocol import Run, RunKey
from anarchon_celery.slots import iso

from .stage import Line
from .story import HEARTBEAT, LEASE, SYNC_EVERY, Interruption, Told

#: The default of ``anarchon_poll``, in milliseconds.
POLL = 1_000


def differences(told: Told, runs: Sequence[Run], lines: Sequence[Line]) -> Iterator[str]:
    """Compare the story with what the store recorded and what the nodes wrote; say what differs."""
    yield from _sync_differs(told, runs, lines)
    yield from _stopped_differs(told.stopped, runs)
    yield from _killed_differs(told.killed, runs)
    began = [(run.started_at or 0, run.fence) for run in runs if run.job == 'report' and run.fence]
    fences = [fence for _, fence in sorted(began)]
    if fences != sorted(set(fences)):
        yield f'the fences of report do not grow: {fences}'
    for run in runs:
        if run.state in ('failed', 'abandoned'):
            yield f'{run.key} is {run.state}: {run.reason}'


def _sync_differs(told: Told, runs: Sequence[Run], lines: Sequence[Line]) -> Iterator[str]:
    """Every slot that came due since all nodes were up: one run, one winner, one start."""
    for slot in range(told.all_up, told.last + 1, SYNC_EVERY):
        key = RunKey('sync', slot)
        found = [
            (run.state, run.attempt, run.dispatch, run.crashes)
            for run in runs if run.job == 'sync' and run.slot <= slot <= (run.until or run.slot)
        ]  # fmt: skip
        if found != [('succeeded', 1, 1, 0)]:
            wanted = 'one run, succeeded at attempt 1'
            yield f'{key} should have {wanted}: (state, attempt, dispatch, crashes) = {found}'
        for what in ('dispatched by', 'started on'):
            said = [line for line in lines if (line.job, line.slot) == ('sync', slot)]
            nodes = [line.node for line in said if line.what.startswith(what)]
            if len(nodes) != 1:
                yield f'{key} should be {what} one node, not {nodes}'


def _stopped_differs(stopped: Interruption, runs: Sequence[Run]) -> Iterator[str]:
    for run in _second_attempts(stopped, 0, runs):
        if not 0 <= (took := (run.started_at or 0) - stopped.at) <= 2_000:
            yield f'{run.key} was started again {took / 1000:.2f} s after the stop, not within 2 s'
            return
    yield from _not_taken_over(stopped, 0, runs)


def _killed_differs(killed: Interruption, runs: Sequence[Run]) -> Iterator[str]:
    earliest, latest = LEASE - HEARTBEAT, LEASE + POLL + 2_000
    for run in _second_attempts(killed, 1, runs):
        if not earliest <= (took := (run.started_at or 0) - killed.at) <= latest:
            bounds = f'{earliest / 1000:g} to {latest / 1000:g} s'
            yield f'{run.key} was started again {took / 1000:.2f} s after the kill, not {bounds}'
            return
    yield from _not_taken_over(killed, 1, runs)


def _second_attempts(what: Interruption, crashes: int, runs: Sequence[Run]) -> list[Run]:
    wanted = ('succeeded', 'takeover', 2, crashes)
    return [
        run for run in runs
        if run.key == what.key and (run.state, run.trigger, run.attempt, run.crashes) == wanted
        and run.fence > what.fence and not str(run.owner).startswith(f'{what.node}@')
    ]  # fmt: skip


def _not_taken_over(what: Interruption, crashes: int, runs: Sequence[Run]) -> Iterator[str]:
    if not _second_attempts(what, crashes, runs):
        found = [run for run in runs if run.key == what.key]
        wanted = f'as attempt 2 with {crashes} crashes and a fence above {what.fence}'
        yield f'{what.key} should have succeeded elsewhere, {wanted}: {found}'


def table(runs: Sequence[Run]) -> Iterator[str]:
    """The runs, oldest first, for people."""
    heads = ('job', 'slot', 'state', 'attempt', 'crashes', 'fence', 'on', 'took', 'why')
    rows: list[tuple[str, ...]] = [heads]
    for run in sorted(runs, key=lambda run: (run.slot, run.job)):
        took = f'{run.finished_at - run.started_at} ms' if run.started_at and run.finished_at else ''
        attempt = f'{run.attempt} ({run.trigger})' if run.attempt else ''
        cells = (iso(run.slot), run.state, attempt, run.crashes, run.fence or '', run.owner, took, run.reason)
        rows.append((run.job, *('' if cell is None else str(cell) for cell in cells)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for row in rows:
        yield '    ' + '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

"""What people ask for: the end of a run, a pause, runs for now and of slots that were, forgetting."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from .cluster import JOB, LEASE, NOW, SLOTS, Scene, State
from .shown import Act, left, shown
from .store import Wrong, record
from .world import Moment


def may_do(scene: Scene, state: State) -> Iterator[tuple[str, Act]]:
    job = record(state.job)
    if left(state, 'cancel'):
        for run in map(record, state.runs):
            yield f'somebody cancels {shown(run)}', partial(cancel, run=run)
    if left(state, 'pause') and job and job.paused is None:
        yield 'somebody pauses the job', pause
    if job and job.paused is not None:
        yield 'somebody resumes the job', resume
    if left(state, 'trigger'):
        yield 'somebody triggers the job', trigger
    if state.due and left(state, 'backfill'):
        yield 'somebody asks for slot 1 again', backfill
    if left(state, 'forget'):
        yield 'somebody has the job forgotten', forget


def cancel(it: Moment, run: Any) -> None:
    it.spend('cancel')
    it.call('cancel', run.key, 'somebody said so', now=it.now())
    is_now = it.run(run.key)
    if run.state == 'running' and (is_now.state != 'running' or is_now.stop is None):
        raise Wrong('who holds a run is not asked to stop')
    if run.state in ('claimed', 'queued', 'released', 'buffered') and is_now.state != 'cancelled':
        raise Wrong(f'a run that somebody cancelled is {is_now.state}')


def pause(it: Moment) -> None:
    it.spend('pause')
    it.call('pause', JOB, 'a reason', 'somebody')
    if record(it.job).paused is None:
        raise Wrong('a job that was paused is not')


def resume(it: Moment) -> None:
    it.call('resume', JOB)
    if record(it.job).paused is not None:
        raise Wrong('a job that was resumed is paused')


def _request(it: Moment) -> Any:
    return it.protocol.Request(job=JOB, by='somebody', overlap=it.scene.overlap, lease=LEASE)


def trigger(it: Moment) -> Any:
    it.spend('trigger')
    before = set(it.runs)
    answer = it.call('trigger', f'request {it.left["trigger"]}', _request(it), now=it.now())
    return _hold_entry(it, before, answer)


def backfill(it: Moment) -> Any:
    it.spend('backfill')
    before = set(it.runs)
    (answer,) = it.call('backfill', 'request', _request(it), SLOTS[:1], now=it.now())
    return _hold_entry(it, before, answer)


def _hold_entry(it: Moment, before: set, answer: Any) -> bool:
    """A run that somebody asks for is a new one, and waits only for what runs, and for others of its kind."""
    if answer.answer in ('wait', 'unknown'):
        if before != set(it.runs):
            raise Wrong('a run enters a store that says wait')
        return False
    if it.was.origin.follows and it.was.origin.born == NOW:
        raise Wrong('a young store lets a run enter')
    (key,) = set(it.runs) - before
    in_the_way = [
        other for other in map(it.run, before)
        if other.state == 'running' or (other.kind != 'scheduled' and other.state in _GOES_ON)
    ]  # fmt: skip
    has_to_wait = it.scene.overlap != 'allow' and bool(in_the_way)
    if (it.run(key).state == 'buffered', answer.answer) != (
        has_to_wait, 'buffered' if has_to_wait else 'released',
    ):  # fmt: skip
        raise Wrong(f'a run that somebody asks for is {it.run(key).state} beside {in_the_way}')
    return True


_GOES_ON = {'claimed', 'queued', 'running', 'released', 'buffered'}


def forget(it: Moment) -> None:
    it.spend('forget')
    over = tuple(sorted(key for key in it.runs if it.run(key).state not in _GOES_ON))
    it.gone |= frozenset(over) | {it.protocol.RunKey(JOB, slot) for slot in SLOTS}
    it.call('forget_job', JOB, tuple(sorted(it.runs)))
    if set(over) & set(it.runs):
        raise Wrong('what was to be forgotten is still there')

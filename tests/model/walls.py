"""What has to hold in each state, and what has to be within reach from each; in words of its own."""

from __future__ import annotations

from typing import Any

from .beats import slots_of
from .cluster import HASHES, NOW, SLOTS, Scene, State
from .store import Wrong, record

_ACTIVE = {'claimed', 'queued', 'running', 'released'}
_GOES_ON = {*_ACTIVE, 'buffered'}


def hold(scene: Scene, state: State) -> None:
    """Raise :class:`Wrong` where an invariant of the protocol does not hold."""
    job, runs = record(state.job), [record(run) for run in state.runs]
    for run in runs:
        _one(scene, job, run)
    if job is not None:
        _floors(scene, state, job, runs)
    if not scene.may('rollback') or dict(state.left)['rollback']:
        # What is lost of what was answered may run twice, under a higher fence.
        _leases(scene, state)
        _turns(scene, job, runs)


def _one(scene: Scene, job: Any, run: Any) -> None:
    if (run.deadline is not None) != (run.state in _ACTIVE):
        raise Wrong(f'a run that is {run.state} has the deadline {run.deadline}')
    if run.crashes > scene.max_crashes:
        raise Wrong(f'a run has crashed {run.crashes} times')
    if run.unstarted > scene.max_dispatches:
        raise Wrong(f'a run was dispatched {run.unstarted} times and never started')
    if run.stop is not None and run.state != 'running' and run.state in _GOES_ON:
        raise Wrong(f'a run that is to stop is {run.state}')
    waits = run.state in ('buffered', 'running') or run.state not in _GOES_ON
    if job and job.paused is not None and run.kind == 'scheduled' and not waits:
        raise Wrong(f'a run of a paused job is {run.state}')


def _floors(scene: Scene, state: State, job: Any, runs: list[Any]) -> None:
    covered = [(run.slot, run.until or run.slot) for run in runs if run.kind in ('scheduled', 'leapt')]
    covered += [(key.slot, key.slot) for key in state.gone if key.kind == 'scheduled']
    floors = [known.floor for known in job.hashes if known.floor is not None]
    if job.floor != max(floors, default=job.floor) or (job.floor is not None and job.floor > NOW):
        raise Wrong(f'a job is decided up to {job.floor}, its schedules up to {floors}')
    for known in job.hashes:
        schedule = HASHES.index(known.hash)
        for slot in slots_of(scene, schedule, len(SLOTS)):
            is_below = known.floor is not None and slot <= known.floor
            if is_below and not any(first <= slot <= last for first, last in covered):
                raise Wrong('a slot below the floor was never decided')


def _leases(scene: Scene, state: State) -> None:
    trusting = [held for held in state.workers if held and held.trusts]
    if len({held.key for held in trusting}) < len(trusting):
        raise Wrong('two trust a lease of one run')
    if scene.overlap != 'allow' and len(trusting) > 1:
        raise Wrong('two trust a lease of one job')


def _turns(scene: Scene, job: Any, runs: list[Any]) -> None:
    active = [run for run in runs if run.state in _ACTIVE]
    waiting = [run for run in runs if run.state == 'buffered']
    may_go_on = [run for run in waiting if run.kind != 'scheduled' or not job or job.paused is None]
    if may_go_on and not active:
        raise Wrong('a run waits, and for nothing')
    if scene.overlap == 'allow':
        return
    for kind in ({'scheduled'}, {'manual', 'backfill'}):
        if len([run for run in active if run.kind in kind]) > 1:
            raise Wrong('two runs of one job are active')
    if len([run for run in active if run.state == 'running']) > 1:
        raise Wrong('two runs of one job run')
    waiting = [run for run in waiting if run.kind == 'scheduled']
    if not scene.may('pause', 'trigger', 'backfill') and len(waiting) > (scene.overlap != 'skip'):
        raise Wrong(f'{len(waiting)} runs of one job wait')


def is_rest(scene: Scene, state: State) -> bool:
    """Whether all is decided and over: this has to be within reach, from wherever the cluster is."""
    job, runs = record(state.job), [record(run) for run in state.runs]
    if job is None or job.paused is not None or any(run.state in _GOES_ON for run in runs):
        return False
    decided = {run.slot for run in runs if run.kind == 'scheduled'}
    decided |= {slot for slot in SLOTS if job.floor is not None and slot <= job.floor}
    if not scene.remember:
        return decided >= set(SLOTS[: scene.slots])
    # Each schedule is decided as far as it goes: for who knows the job as it is now.
    ends = {HASHES[number]: slots_of(scene, number, scene.slots)[-1:] for number in range(len(HASHES))}
    return all((known.floor or 0,) >= ends[known.hash] for known in job.hashes)

"""All that may happen next, whoever does it; and what befalls the store and what lies in its queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from . import beats, people, workers
from .cluster import LEASE, NOW, SINCE, SLOTS, Message, Scene, State
from .shown import Act, left, shown
from .store import Wrong, numbered, record
from .world import Moment


def steps(scene: Scene, state: State) -> Iterator[tuple[str, State]]:
    """Yield all that may happen next, each with a word for it and what comes of it."""
    for name, act in (
        *beats.may_do(scene, state),
        *_may_befall(state),
        *workers.may_do(state),
        *people.may_do(scene, state),
    ):
        moment = Moment(scene, state)
        try:
            if act(moment) is not False:
                yield name, moment.state()
        except Wrong as wrong:
            raise Wrong(wrong.args[0], name) from None
        except Exception as reason:
            raise Wrong(f'{type(reason).__name__}: {reason}', name) from reason


def _may_befall(state: State) -> Iterator[tuple[str, Act]]:
    for message in sorted(set(state.queue)):
        if left(state, 'loss'):
            yield f'the broker loses {shown(message)}', partial(lose, message=message)
        if left(state, 'double'):
            yield f'the broker doubles {shown(message)}', partial(double, message=message)
    if state.origin.follows and state.origin.born == NOW:
        yield 'the store is young no more', grow_up
    if state.before is not None and left(state, 'rollback'):
        yield 'the store loses its last write', roll_back
    if state.due and left(state, 'wipe'):
        yield 'the store is wiped', wipe
    if left(state, 'prune') and any(record(run).state not in _GO_ON for run in state.runs):
        yield 'what has ended goes with history', prune


_GO_ON = {'claimed', 'queued', 'running', 'released', 'buffered'}


def lose(it: Moment, message: Message) -> None:
    it.spend('loss')
    it.queue.remove(message)


def double(it: Moment, message: Message) -> None:
    it.spend('double')
    it.queue.append(message)


def grow_up(it: Moment) -> bool:
    """A lease has passed: nobody trusts one that the store has not renewed since."""
    if any(held and held.trusts and held.store != it.origin.identity for held in it.workers):
        return False
    born = NOW - 2 * LEASE
    created = born if it.origin.created == it.origin.born else it.origin.created
    it.origin = replace(it.origin, born=born, created=created)
    return True


def roll_back(it: Moment) -> None:
    it.spend('rollback')
    assert it.before is not None
    it.job, runs = it.before
    it.runs, it.before = {record(run).key: run for run in runs}, None


def wipe(it: Moment) -> None:
    """All is forgotten; somebody who knew the store before calls it at once."""
    it.spend('wipe')
    floor = record(it.job).floor if record(it.job) else None
    it.gone |= {run for run in it.runs if run.kind == 'scheduled'} | {
        it.protocol.RunKey('job', slot) for slot in SLOTS if slot <= (floor or SINCE)
    }
    it.job, it.runs = numbered(None), {}
    it.origin = replace(
        it.origin, identity=chr(ord(it.origin.identity) + 1), created=NOW, born=NOW, follows=True
    )
    it.age()


def prune(it: Moment) -> None:
    it.spend('prune')
    over = sorted(key for key, run in it.runs.items() if record(run).state not in _GO_ON)
    it.gone |= frozenset(over)
    it.call('forget', tuple(over))

"""What workers do: they take messages, start runs or settle them, hold them, and die."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from .cluster import LEASE, NOW, START_TIMEOUT, Held, Message, State
from .shown import Act, left, shown
from .store import Wrong, record
from .world import Moment


def may_do(state: State) -> Iterator[tuple[str, Act]]:
    for message in sorted(set(state.queue)):
        if None in state.workers:
            at = state.workers.index(None)
            yield f'worker {at} takes {shown(message)}', partial(take, at=at, message=message)
            yield (
                f'worker {at} takes {shown(message)}, before its time',
                partial(take_early, at=at, message=message),
            )
        for fault, outcome in (('expired', 'cancelled'), ('plain', 'published')):
            if left(state, fault):
                yield (
                    f'{shown(message)} is met by who settles it as {outcome}',
                    partial(settle, message=message, fault=fault, outcome=outcome),
                )
    for at, held in enumerate(state.workers):
        if held is not None:
            yield from _holds(state, at, held)


def _holds(state: State, at: int, held: Held) -> Iterator[tuple[str, Act]]:
    if left(state, 'worker'):
        yield f'worker {at} is killed', partial(kill, at=at)
    if held.requeued:
        yield f'worker {at} publishes its retry', partial(publish_retry, at=at)
        return
    yield f'worker {at} renews', partial(renew, at=at)
    yield f'worker {at} finishes', partial(finish, at=at)
    if held.told:
        yield f'worker {at} stops, as it was told', partial(hand_over, at=at, fault=None)
    if left(state, 'handover'):
        yield f'worker {at} hands over', partial(hand_over, at=at, fault='handover')
    if left(state, 'retry'):
        yield f'worker {at} asks for a retry', partial(requeue, at=at)
    if held.trusts and left(state, 'late'):
        yield f'worker {at} trusts no more', partial(doubt, at=at)
    if left(state, 'worker'):
        yield f'a child of worker {at} is killed', partial(hand_over, at=at, fault='worker', crash=True)


def _asked(it: Moment, at: int, message: Message) -> Any:
    return it.protocol.Start(
        key=message.key, token=f't{at}', worker=f'worker{at}', dispatch=message.dispatch,
        claimed_at=it.origin.born - 1 if message.old else NOW, lease=LEASE, overlap=it.scene.overlap,
        retries=message.retries,
    )  # fmt: skip


def take(it: Moment, at: int, message: Message) -> bool:
    was = it.run(message.key)
    waits = was is not None and was.not_before is not None
    # After a failover some time has passed, as it always has.
    now = it.now() + 2 * waits + 5 * it.scene.may('rollback', 'wipe')
    answer = it.call('start', _asked(it, at, message), now=now)
    if isinstance(answer, it.protocol.Stale):
        if answer.wait:
            return False  # it goes round
        if answer.why == 'unknown' and message.old:
            raise Wrong('a message of before the loss is of a run that the store does not know')
        it.queue.remove(message)
        return True
    it.queue.remove(message)
    _hold_start(it, was, answer, message)
    it.top = max(it.top, answer.fence)
    it.workers[at] = Held(
        message.key, answer.fence, answer.attempt, message.dispatch, message.retries, store=it.origin.identity
    )
    return True


def _hold_start(it: Moment, was: Any, answer: Any, message: Message) -> None:
    if answer.fence <= it.top:
        raise Wrong('a fence is not higher than all before it')
    job = record(it.job)
    if message.key.kind == 'scheduled' and job.paused is not None:
        raise Wrong('a run of a paused job is started')
    if not job.supervised:
        raise Wrong('a job that was started is not known as supervised')
    if was is None:
        if message.key in it.gone and not it.scene.may('wipe'):
            raise Wrong('a run that ended and was forgotten is started')
        return
    if was.state == 'released' and was.crashes and not it.scene.may('rollback'):
        raise Wrong('a message starts what a crash gave back')
    if was.retries is not None and message.retries < was.retries:
        raise Wrong(f'a run that waits for try {was.retries} is started by try {message.retries}')
    if answer.attempt != was.attempt + (was.retries is None):
        raise Wrong(f'attempt {answer.attempt} follows attempt {was.attempt}')


def take_early(it: Moment, at: int, message: Message) -> bool:
    """The message of a retry comes before its time."""
    was = it.run(message.key)
    if was is None or was.not_before is None:
        return False
    answer = it.call('start', _asked(it, at, message), now=NOW)
    if isinstance(answer, it.protocol.Started):
        raise Wrong('a retry is started before its time')
    if answer.wait:
        return False
    it.queue.remove(message)
    return True


def settle(it: Moment, message: Message, fault: str, outcome: str) -> None:
    """An expired message is settled for its own dispatch; who ran it without the base class, for any."""
    it.spend(fault)
    dispatch = message.dispatch if outcome == 'cancelled' else None
    asked = it.protocol.Settle(key=message.key, outcome=outcome, reason='so it is', dispatch=dispatch)
    was = it.run(message.key)
    (answer,) = it.call('settle', (asked,), now=it.now())
    run = it.run(message.key)
    if was != run and (was.state == 'running' or dispatch not in (None, was.dispatch)):
        raise Wrong(f'a run that is {was.state}, dispatch {was.dispatch}, is settled by dispatch {dispatch}')
    can_be = was is not None and was.state in ('claimed', 'queued', 'released')
    if can_be and dispatch in (None, was.dispatch) and not (answer and run.state == outcome):
        raise Wrong(f'a run that nobody will start is {run.state}')
    it.queue.remove(message)


# What a holder does -----------------------------------------------------------------------------


def renew(it: Moment, at: int) -> None:
    held = it.workers[at]
    assert held is not None
    holding = it.protocol.Holding(
        key=held.key, token=f't{at}', fence=held.fence, attempt=held.attempt, lease=LEASE,
        dispatch=held.dispatch, claimed_at=NOW - 1, overlap=it.scene.overlap, store=held.store,
        trusted=held.trusts,
    )  # fmt: skip
    was = it.run(held.key)
    (answer,) = it.call('renew', (holding,), now=it.now())
    if answer.answer == 'lost':
        if was is not None and was.state == 'running' and was.fence == held.fence:
            raise Wrong('a lease is lost that nobody took')
        if was is None and held.trusts and not it.runs:
            raise Wrong('a lease that its holder trusts is lost in a store that forgot it')
        it.workers[at] = None
        return
    if answer.answer == 'stop' and was.deadline != it.run(held.key).deadline:
        raise Wrong('a lease of what is to stop is renewed')
    if answer.answer == 'ok' and was is not None and was.stop is not None and was.fence == held.fence:
        raise Wrong('who holds what is to stop does not hear it')
    trusts = answer.answer == 'ok' or held.trusts
    it.workers[at] = held._replace(trusts=trusts, told=answer.answer == 'stop', store=it.origin.identity)


def finish(it: Moment, at: int) -> None:
    held = it.workers[at]
    assert held is not None
    was = it.run(held.key)
    answer = it.call('finish', held.key, f't{at}', 'succeeded', None, now=it.now())
    _hold_end(it, held, was, answer, 'finished')
    if _is_its_own(held, was) and it.run(held.key).state != 'succeeded':
        raise Wrong(f'a run whose holder finished it is {it.run(held.key).state}')
    it.workers[at] = None


def _is_its_own(held: Held, was: Any) -> bool:
    return was is not None and was.state == 'running' and was.fence == held.fence


def _hold_end(it: Moment, held: Held, was: Any, answer: bool, how: str) -> None:
    """Who holds a run ends it, and nobody else; and each is told so."""
    is_its_own = _is_its_own(held, was)
    if was != it.run(held.key) and not is_its_own:
        raise Wrong(f'a run is {how} by who does not hold it')
    if answer and not is_its_own:
        raise Wrong(f'who does not hold a run is told that it is {how}')
    if is_its_own and not answer and was.stop is None:
        raise Wrong(f'who holds a run is told that it is not {how}')


def hand_over(it: Moment, at: int, fault: str | None, *, crash: bool = False) -> None:
    if fault:
        it.spend(fault)
    held = it.workers[at]
    assert held is not None
    was = it.run(held.key)
    release = it.protocol.Release(key=held.key, token=f't{at}', crash=crash)
    (answer,) = it.call('release', (release,), now=it.now())
    _hold_end(it, held, was, answer, 'released')
    run = it.run(held.key)
    if _is_its_own(held, was) and (run.crashes, run.dispatch) != (was.crashes + crash, was.dispatch):
        raise Wrong(f'a run that was given back has {run.crashes} crashes, {run.dispatch} dispatches')
    it.workers[at] = None


def requeue(it: Moment, at: int) -> None:
    it.spend('retry')
    held = it.workers[at]
    assert held is not None
    was = it.run(held.key)
    answer = it.call(
        'requeue', held.key, f't{at}', now=it.now(), delay=1, retries=held.retries + 1,
        start_timeout=START_TIMEOUT,
    )  # fmt: skip
    _hold_end(it, held, was, answer, 'requeued')
    if answer and was.stop is not None:
        raise Wrong('a run that is to stop waits for a retry')
    it.workers[at] = held._replace(requeued=True, trusts=False) if answer else None


def publish_retry(it: Moment, at: int) -> None:
    held = it.workers[at]
    assert held is not None
    old = held.store != it.origin.identity
    it.queue.append(Message(held.key, held.dispatch, held.retries + 1, old))
    it.workers[at] = None


def doubt(it: Moment, at: int) -> None:
    it.spend('late')
    held = it.workers[at]
    assert held is not None
    it.workers[at] = held._replace(trusts=False)


def kill(it: Moment, at: int) -> None:
    it.spend('worker')
    it.workers[at] = None

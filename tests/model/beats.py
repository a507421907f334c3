"""What beats do: they claim, publish, mark, dispatch again what is past its deadline, and register."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from .cluster import (
    CLAIM_TIMEOUT,
    HASHES,
    JOB,
    LEASE,
    NOW,
    SINCE,
    SLOTS,
    START_TIMEOUT,
    Beat,
    Message,
    Out,
    Scene,
    Seen,
    State,
    Won,
)
from .loading import rules
from .shown import Act, left, shown
from .store import Wrong, record
from .world import Moment, in_order

_ACTIVE = {'claimed', 'queued', 'running', 'released'}


def may_do(scene: Scene, state: State) -> Iterator[tuple[str, Act]]:
    if state.due < scene.slots:
        yield 'a slot comes due', come_due
    for at, beat in enumerate(state.beats):
        yield from _claims(scene, state, at)
        for _, item in in_order(beat.items):
            yield from _with(item, at, state)
        if not any(isinstance(item, Seen) for item in beat.items):
            for run in map(record, state.runs):
                if run.state in _ACTIVE:
                    yield f'beat {at} sees {shown(run)} expired', partial(see, at=at, run=run)
        if (beat.items or scene.remember) and left(state, 'beat'):
            yield f'beat {at} is killed, and begins anew', partial(kill, at=at)
        if scene.remember and scene.may('wipe', 'rollback'):
            yield f'beat {at} registers', partial(register, at=at)


def _claims(scene: Scene, state: State, at: int) -> Iterator[tuple[str, Act]]:
    if not state.due:
        return
    for late in range(state.due + 1) if scene.catch_up == 'all' else (0,):
        yield f'beat {at} claims' + f', {late} late' * bool(late), partial(claim, at=at, late=late)
    if scene.passes:
        yield f'beat {at} claims the latest, passing over the others', partial(claim, at=at, passes=True)


def _with(item: Any, at: int, state: State) -> Iterator[tuple[str, Act]]:
    """What a beat may do with what it has to do."""
    if isinstance(item, Won):
        yield f'beat {at} publishes {shown(item)}', partial(publish, at=at, item=item)
        if left(state, 'refused'):
            yield f'the broker refuses {shown(item)}', partial(refuse, at=at, item=item)
        if left(state, 'late'):
            yield f'beat {at} trusts no more {shown(item)}', partial(give_up, at=at, item=item)
    elif isinstance(item, Out):
        yield f'beat {at} marks {shown(item)}', partial(mark, at=at, item=item)
    else:
        yield f'beat {at} redispatches {shown(item)}', partial(again, at=at, item=item)


def come_due(it: Moment) -> None:
    it.due += 1


def _is_stranger(it: Moment, at: int) -> bool:
    """Whether it has to register first: the store is not the one that it knew."""
    return it.scene.remember and it.beats[at].store != it.origin.identity


def _offer(it: Moment, beat: Beat, late: int, *, passes: bool) -> Any:
    slots = slots_of(it.scene, beat.schedule, it.due)
    if it.scene.remember:
        slots = tuple(slot for slot in slots if slot > (beat.floor or SINCE))
    leap = None
    if passes and len(slots) > 1:
        leap = rules().slots.Leap(first=slots[0], last=slots[-2], count=len(slots) - 1)
        slots, late = slots[-1:], 1
    elif passes:
        return None
    return slots and it.protocol.Offer(
        job=JOB, slots=slots, hash=HASHES[beat.schedule], late=late, leap=leap, overlap=it.scene.overlap,
        catch_up=it.scene.catch_up, claim_timeout=CLAIM_TIMEOUT, lease=LEASE,
        chained=it.scene.chained, after=beat.floor, floor=beat.floor,
    )  # fmt: skip


def slots_of(scene: Scene, schedule: int, due: int) -> tuple[int, ...]:
    """The slots of a schedule that have come due."""
    which = scene.schedules[schedule] if scene.schedules else range(due)
    return tuple(SLOTS[number] for number in which if number < due)


def claim(it: Moment, at: int, late: int = 0, *, passes: bool = False) -> bool:
    beat = it.beats[at]
    offer = _offer(it, beat, late, passes=passes)
    if not offer or _is_stranger(it, at):
        return False
    known, job = set(it.runs), record(it.job)
    floor = None if job is None else next(had.floor for had in job.hashes if had.hash == offer.hash)
    (answer,) = it.call('claim', f'beat{at}', 'this call', (offer,), now=it.now(), by=beat.store)
    _hold_floor(offer, floor, answer, changed=known != set(it.runs))
    _hold_claim(it, offer, floor, answer)
    for one in answer.claims:
        if one.answer == 'won':
            gone = one.key in it.gone and not it.scene.may('wipe')
            if one.key in known or gone or (floor is not None and one.key.slot <= floor):
                raise Wrong('a slot that is decided is claimed anew')
            it.has(at, Won(one.key, one.run.dispatch, 0))
    if it.scene.remember and answer.floor is not None:
        it.beats[at] = it.beats[at]._replace(floor=answer.floor)
    return True


def _hold_floor(offer: Any, floor: int | None, answer: Any, *, changed: bool) -> None:
    """What was computed from a floor is decided from that floor only."""
    if offer.chained and changed and floor != offer.after:
        raise Wrong('a slot of a chain is decided from another floor')
    is_within = offer.leap is not None and offer.leap.first <= (floor or SINCE) < offer.leap.last
    if is_within and answer.missed is not None:
        raise Wrong('slots are passed over from another floor')


def _hold_claim(it: Moment, offer: Any, floor: int | None, answer: Any) -> None:
    was = it.was.origin
    is_decided = any(one.answer not in ('wait', 'unknown', 'taken', 'early') for one in answer.claims)
    if is_decided and was.follows and was.born == NOW:
        raise Wrong('a young store decides a slot')
    is_young = was.follows and was.born == NOW
    has_lost = offer.floor is not None and (floor or 0) < offer.floor and record(it.was.job) is not None
    if has_lost and not is_young and it.origin == was:
        raise Wrong('a store that lost what it decided does not notice')
    for run in map(record, it.was.runs):
        is_now = it.run(run.key).state
        if (
            run.kind != 'scheduled'
            and run.state in (*_ACTIVE, 'buffered')
            and is_now in ('skipped', 'cancelled')
        ):
            raise Wrong('a slot ends a run that somebody asked for')
    _hold_order(it)
    waits = any(
        one.run is not None and one.run.state == 'buffered'
        for one in answer.claims
        if one.answer == 'overlap'
    )
    runs = [run for run in map(record, it.runs.values()) if run.state == 'running']
    if it.scene.overlap == 'cancel' and waits and any(run.stop is None for run in runs):
        raise Wrong('a slot waits, and what it waits for is not asked to stop')


def _hold_order(it: Moment) -> None:
    """A slot gives way to a newer one only."""
    slots = [run.slot for run in map(record, it.runs.values()) if run.kind == 'scheduled' and goes_on(run)]
    for was in map(record, it.was.runs):
        run = it.run(was.key)
        gives_way = goes_on(was) and (not goes_on(run) or run.stop != was.stop)
        if run.kind == 'scheduled' and gives_way and max(slots, default=0) <= run.slot:
            raise Wrong('a slot gives way to an older one')


def goes_on(run: Any) -> bool:
    return run.state in (*_ACTIVE, 'buffered')


def publish(it: Moment, at: int, item: Won) -> None:
    if any(item in beat.items for other, beat in enumerate(it.beats) if other != at):
        raise Wrong(f'{shown(item)} was won twice')
    it.queue.append(Message(*item))
    it.drop(at, item)
    it.has(at, Out(item.key, item.dispatch))


def refuse(it: Moment, at: int, item: Won) -> None:
    """The broker certainly did not take it: the claim is given back."""
    it.spend('refused')
    was = it.run(item.key)
    it.call('release', (it.protocol.Release(key=item.key, nonce=f'won {item.dispatch}'),), now=it.now())
    run = it.run(item.key)
    if was != run and was.dispatch != item.dispatch:
        raise Wrong(f'dispatch {was.dispatch} is given back by who claimed dispatch {item.dispatch}')
    if was != run and (run.unstarted, run.dispatch) != (was.unstarted, was.dispatch - 1):
        raise Wrong('a publish that failed counts as a dispatch')
    it.drop(at, item)


def give_up(it: Moment, at: int, item: Won) -> None:
    it.spend('late')
    it.drop(at, item)


def mark(it: Moment, at: int, item: Out) -> bool:
    if _is_stranger(it, at):
        return False
    sent = it.protocol.Sent(
        key=item.key, dispatch=item.dispatch, task_id='id', supervised=it.scene.told,
        start_timeout=START_TIMEOUT,
    )  # fmt: skip
    was = it.run(item.key)
    it.call('sent', (sent,), now=it.now())
    if was is not None and was.dispatch != item.dispatch and was != it.run(item.key):
        raise Wrong(f'a run is marked as sent for dispatch {was.dispatch} by who sent {item.dispatch}')
    it.drop(at, item)
    return True


def see(it: Moment, at: int, run: Any) -> bool:
    """Its deadline passes: nobody trusts it any more."""
    has_won = any(item[:2] == (run.key, run.dispatch) for item in it.items(Won))
    if it.trusted(run.key) or (run.state == 'claimed' and has_won) or _is_stranger(it, at):
        return False
    is_marked_late = run.state == 'claimed' and Out(run.key, run.dispatch) in it.items(Out)
    if is_marked_late or (run.state == 'queued' and any(message.key == run.key for message in it.queue)):
        if not it.left.get('late'):
            return False
        it.spend('late')
    it.has(at, Seen(run.key, run.state, run.dispatch, run.deadline))
    return True


def again(it: Moment, at: int, item: Seen) -> bool:
    asked = it.protocol.Redispatch(
        key=item.key, state=item.state, dispatch=item.dispatch, deadline=item.deadline,
        max_crashes=it.scene.max_crashes, claim_timeout=CLAIM_TIMEOUT, lease=LEASE,
    )  # fmt: skip
    was = it.run(item.key)
    if (was is not None and was.deadline == item.deadline and it.trusted(item.key)) or _is_stranger(it, at):
        return False
    it.drop(at, item)
    # An instant at which its deadline has passed; other nodes may have done the same before.
    (answer,) = it.call('redispatch', f'beat{at}', 'this call', (asked,), now=item.deadline)
    if answer.answer not in ('taken', 'wait'):
        _hold_redispatch(it, was, answer)
    if answer.answer == 'won':
        run = answer.run
        it.put(replace(run, deadline=it.now() + CLAIM_TIMEOUT))
        it.has(at, Won(item.key, run.dispatch, run.retries or 0))
    return True


def _hold_redispatch(it: Moment, was: Any, answer: Any) -> None:
    run = answer.run
    if it.trusted(run.key):
        raise Wrong('a run is taken over whose holder trusts its lease')
    if run.crashes != was.crashes + (was.state == 'running'):
        raise Wrong(f'a run that was {was.state} has crashed {run.crashes} times after {was.crashes}')
    if answer.answer == 'won' and was.stop is not None:
        raise Wrong('a run that is to stop is dispatched again')
    is_worn_out = run.crashes >= it.scene.max_crashes or run.unstarted >= it.scene.max_dispatches
    if run.state == 'abandoned' and run.crashes < it.scene.max_crashes and not is_worn_out:
        raise Wrong(f'a run is abandoned after {run.crashes} crashes and {run.unstarted} dispatches')


def kill(it: Moment, at: int) -> None:
    """Whoever takes its place knows nothing, and registers."""
    it.spend('beat')
    it.beats[at] = Beat(schedule=it.beats[at].schedule)
    if it.scene.remember:
        asked = it.protocol.Registration(job=JOB, hash=HASHES[it.beats[at].schedule])
        _registered(it, at, asked, by='none')


def register(it: Moment, at: int) -> None:
    beat = it.beats[at]
    asked = it.protocol.Registration(
        job=JOB, hash=HASHES[beat.schedule], cursor=max(beat.floor or SINCE, SINCE), floor=beat.floor,
        effective=SINCE, first_seen=SINCE,
    )  # fmt: skip
    _registered(it, at, asked, by=beat.store)


def _registered(it: Moment, at: int, asked: Any, *, by: str) -> None:
    was = record(it.job)
    (answer,) = it.call('register', (asked,), now=it.now(), by=by)
    if was is None and asked.floor is not None and (answer.floor or 0) < asked.floor:
        raise Wrong('a wiped store does not learn what was decided')
    it.beats[at] = it.beats[at]._replace(floor=answer.floor, store=it.origin.identity)

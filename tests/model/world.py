"""The cluster that is walked: what it is at one moment, and how what differs in name only becomes one.

Time is not a number here. All calls are made at one instant, :data:`NOW`, and any deadline may pass at any
moment, but for what the protocol itself takes for granted: a deadline that somebody trusts has not passed.
So a run's record holds how long its deadline is, not when it is, and a state says all that may come of it.
What tells one deadline from an older one of the same length is a small number of milliseconds, and only
while a beat has seen one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from .cluster import NOW, SINCE, SPANS, Beat, Held, Scene, Seen, State, Won
from .loading import rules
from .store import carried_out, numbered, record


class Moment:
    """One moment, unpacked, while something happens; :meth:`state` packs what came of it."""

    def __init__(self, scene: Scene, state: State):
        self.protocol, self.scene, self.was = rules().protocol, scene, state
        self.due, self.top, self.origin, self.gone = state.due, state.top, state.origin, state.gone
        self.job, self.runs = state.job, {record(number).key: number for number in state.runs}
        self.beats, self.workers, self.queue = list(state.beats), list(state.workers), list(state.queue)
        self.left, self.before = dict(state.left), state.before

    def run(self, key: Any) -> Any:
        """The store's record of a run, if there is one."""
        number = self.runs.get(key)
        return None if number is None else record(number)

    def put(self, run: Any) -> None:
        self.runs[run.key] = numbered(run)

    def call(self, verb: str, *arguments: Any, now: int = NOW, by: str | None = None, **named: Any) -> Any:
        """Have the store do one atomic step; ``by`` is the identity that who calls knows."""
        if self.left.get('rollback'):
            self.before = (self.was.job, self.was.runs)
        known_as = by or self.origin.identity
        step = (
            self.scene, verb, self.job, tuple(self.runs.values()), self.origin, known_as, now, arguments,
            tuple(named.items()),
        )  # fmt: skip
        answer, self.job, runs, origin = carried_out(step)
        self.runs = {record(number).key: number for number in runs}
        if origin.identity != self.origin.identity:
            self.age()
        self.origin = origin
        return answer

    def age(self) -> None:
        """The store is another one from now on: all that was claimed was claimed before."""
        self.queue = [message._replace(old=True) for message in self.queue]
        for at, beat in enumerate(self.beats):
            items = (item._replace(old=True) if isinstance(item, Won) else item for item in beat.items)
            self.beats[at] = beat._replace(items=frozenset(items))

    def spend(self, fault: str) -> None:
        self.left[fault] -= 1

    def has(self, at: int, item: Any) -> None:
        """A beat has something to do."""
        self.beats[at] = self.beats[at]._replace(items=self.beats[at].items | {item})

    def drop(self, at: int, item: Any) -> None:
        """A beat has that to do no more."""
        self.beats[at] = self.beats[at]._replace(items=self.beats[at].items - {item})

    def items(self, kind: type) -> list[Any]:
        """What all beats have to do of one kind."""
        return [item for beat in self.beats for item in beat.items if isinstance(item, kind)]

    def trusted(self, key: Any) -> bool:
        """Whether somebody still may act on this deadline: then it has not passed."""
        return any(held and held.key == key and held.trusts for held in self.workers)

    def now(self) -> int:
        """An instant at which no deadline is set that a beat has seen and that is another one."""
        if not (seen := {item.deadline for item in self.items(Seen)}):
            return NOW
        return next(NOW + later for later in range(9) if not {NOW + later + span for span in SPANS} & seen)

    # packing --------------------------------------------------------------------------------------

    def state(self) -> State:
        """Pack it: what differs in name only is the same."""
        named = (
            self.job, tuple(self.runs.values()), tuple(self.beats), tuple(self.workers), self.top, self.before
        )  # fmt: skip
        if (plain := _plain.get(named)) is None:
            plain = _plain[named] = self._plain()
        job, runs, beats, workers, top, before = plain
        return State(
            job=job, runs=runs, origin=self.origin, due=self.due, beats=beats, workers=workers,
            queue=tuple(sorted(self.queue)) if len(self.queue) > 1 else tuple(self.queue),
            left=tuple(self.left.items()), top=top, gone=self.gone, before=before,
        )  # fmt: skip

    def _plain(self) -> tuple:
        before = self.before or (numbered(None), ())
        fences = {record(number).fence for number in (*self.runs.values(), *before[1])}
        fences |= {known.fence for number in (self.job, before[0]) if (known := record(number))}
        fences |= {held.fence for held in self.workers if held} | {self.top, 0}
        # In their order, and all of this instant: a clock may stand still from one start to the next.
        rank = {fence: number and NOW * 1000 + number for number, fence in enumerate(sorted(fences))}
        order = sorted(range(len(self.workers)), key=lambda at: _ordered(self.workers[at], rank))
        names = _Names(
            rank=rank,
            tokens={f't{at}': f't{place}' for place, at in enumerate(order) if self.workers[at]},
            seen={(item.key, item.deadline) for item in self.items(Seen)},
            won={(item.key, item.dispatch) for item in self.items(Won)},
        )
        return (
            _plain_job(self.job, rank),
            names.of(self.runs[key] for key in sorted(self.runs)),
            tuple(sorted(self.beats, key=_beats_in_order)),
            tuple(
                held and held._replace(fence=rank[held.fence])
                for held in map(self.workers.__getitem__, order)
            ),
            rank[self.top],
            self.before and (_plain_job(before[0], rank), names.of(before[1])),
        )


_plain: dict[tuple, tuple] = {}  # what was packed once: most comes many times


def in_order(items: frozenset) -> list:
    return sorted((type(item).__name__, item) for item in items)


def _beats_in_order(beat: Beat) -> tuple:
    return beat.schedule, beat.floor or 0, beat.store, in_order(beat.items)


def _ordered(held: Held | None, rank: dict[int, int]) -> tuple:
    return () if held is None else (held.key, rank[held.fence], held)


@dataclass(frozen=True, kw_only=True)
class _Names:
    """What names are worth: the order of fences, who holds a token, what a beat has seen or won."""

    rank: dict[int, int]
    tokens: dict[str, str]
    seen: set
    won: set

    def of(self, runs: Iterable[int]) -> tuple[int, ...]:
        """Records without instants, which tell nothing here, and without the names of who is gone."""
        return tuple(map(self._plain, runs))

    def _plain(self, number: int) -> int:
        run = record(number)
        deadline = run.deadline
        if deadline is not None and (run.key, deadline) not in self.seen:
            deadline = NOW + run.span
            while (run.key, deadline) in self.seen:  # it is another one than a beat has seen
                deadline += 1
        nonce = f'won {run.dispatch}' if (run.key, run.dispatch) in self.won else None
        named = (number, deadline, self.rank[run.fence], self.tokens.get(run.token), nonce)
        if (packed := _packed.get(named)) is None:
            packed = _packed[named] = _packed_anew(*named)
        return packed


_packed: dict[tuple, int] = {}


def _packed_anew(number: int, deadline: int | None, fence: int, token: str | None, nonce: str | None) -> int:
    run = record(number)
    packed = replace(
        run, deadline=deadline, fence=fence, token=token, nonce=nonce, request=None, claimed_at=None,
        queued_at=None, started_at=None, finished_at=None, task_id=None, owner=None, node=None,
        not_before=None if run.not_before is None else NOW + 1,
    )  # fmt: skip
    return numbered(packed)


def _plain_job(number: int, rank: dict[int, int]) -> int:
    if (job := record(number)) is None:
        return number
    named = ('job', number, rank[job.fence])
    if (packed := _packed.get(named)) is None:
        plain = replace(
            job, fence=rank[job.fence], seen=NOW, first_seen=SINCE, paused_at=job.paused_at and NOW,
            hashes=tuple(known._replace(since=SINCE, seen=NOW) for known in job.hashes),
        )  # fmt: skip
        packed = _packed[named] = numbered(plain)
    return packed

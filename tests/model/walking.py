"""The walk: breadth first, so that the first way found to what must not be is a shortest one.

With a rule broken most of it is as it was: what happens next is looked up, unless the store does something
else than before in one of the steps there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from . import store, walls
from .cluster import Scene, State, started
from .happenings import steps
from .mutants import Mutant
from .store import Wrong


@dataclass(frozen=True)
class Walked:
    """How many states there are, and where one is wrong: what, and the way to it."""

    states: int
    wrong: str | None = None
    way: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f'{self.wrong}: {"; ".join(self.way)}' if self.wrong else 'nothing is wrong'


class TooMany(Exception):
    """A scene has more states than it should: a rule that is broken may let them grow for ever."""


Nexts = list[tuple[str, int]]


@dataclass
class Walk:
    """A scene, walked by the rules as they are, and then with one broken after the other.

    States have numbers, in the order in which they were met.
    """

    scene: Scene
    to_the_end: bool = True
    states: list[State] = field(default_factory=list)
    numbers: dict[State, int] = field(default_factory=dict)
    nexts: dict[int, Nexts] = field(default_factory=dict)  #: what happens next in a state
    rest: dict[int, bool] = field(default_factory=dict)  #: whether a state is one of rest
    where: dict[int, list[int]] = field(default_factory=dict)  #: the states in which the store has that step

    @cached_property
    def walked(self) -> Walked:
        """Walk all states: from each the cluster has to be able to come to rest, too."""
        self._number(started(self.scene))
        return self._walk(1_000_000)

    def walk_broken(self, mutant: Mutant) -> Walked | None:
        """Walk with a rule broken; None if that makes no difference here."""
        assert self.walked.wrong is None
        known = len(self.states)
        with store.with_broken(mutant):
            others = {state for step in self.where if store.differs(step) for state in self.where[step]}
            if not others:
                return None
            try:
                return self._walk(2 * known + 300, others, known)
            finally:
                for number, state in enumerate(self.states[known:], known):
                    del self.numbers[state]
                    self.rest.pop(number, None)
                del self.states[known:]

    def _number(self, state: State) -> int:
        if (number := self.numbers.get(state)) is None:
            number = self.numbers[state] = len(self.states)
            self.states.append(state)
        return number

    def _walk(self, most: int, others: Container[int] = (), known: int = 0) -> Walked:
        came: dict[int, tuple[int, str] | None] = {0: None}
        follows: dict[int, Nexts] = {}
        todo = deque([0])
        while todo:
            state, name = todo.popleft(), None
            is_known = state < known and state not in others
            follows[state] = nexts = []
            try:
                for name, after in self.nexts[state] if is_known else self._steps(state, known):
                    nexts.append((name, after))
                    if after in came:
                        continue
                    came[after] = (state, name)
                    if after >= known:
                        walls.hold(self.scene, self.states[after])
                    todo.append(after)
            except Wrong as wrong:
                return Walked(len(came), str(wrong.args[0]), _way(came, state, wrong.args[1:] or (name,)))
            if len(came) > most:
                raise TooMany(f'more than {most} states: {self.scene}')
        if not known:
            self.nexts = follows
        if self.to_the_end and (stuck := self._stuck(follows)):
            return Walked(len(came), 'it never comes to rest', min((_way(came, at) for at in stuck), key=len))
        return Walked(len(came))

    def _steps(self, state: int, known: int) -> Iterator[tuple[str, int]]:
        store.used.clear()
        for name, after in steps(self.scene, self.states[state]):
            yield name, self._number(after)
        if not known:
            for step in set(store.used):
                self.where.setdefault(step, []).append(state)

    def _stuck(self, follows: dict[int, Nexts]) -> list[int]:
        """The states from which no way leads to rest."""
        before: dict[int, list[int]] = {}
        for state, nexts in follows.items():
            for _, after in nexts:
                before.setdefault(after, []).append(state)
        todo = [state for state in follows if self._is_rest(state)]
        fine = set(todo)
        while todo:
            for state in before.get(todo.pop(), ()):
                if state not in fine:
                    fine.add(state)
                    todo.append(state)
        return [state for state in follows if state not in fine]

    def _is_rest(self, state: int) -> bool:
        if state not in self.rest:
            self.rest[state] = walls.is_rest(self.scene, self.states[state])
        return self.rest[state]


def _way(came: dict, state: int, last: tuple[str, ...] = ()) -> tuple[str, ...]:
    names = []
    while (step := came[state]) is not None:
        state, name = step
        names.append(name)
    return (*reversed(names), *last)

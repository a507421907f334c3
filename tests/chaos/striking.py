"""The strikes: a deck of nemeses is shuffled and dealt, one every few seconds, several at work at a time."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from tests.chaos.cluster import Cluster, Node
from tests.chaos.nemeses import Nemesis, Steps, Strike, Wait, fitting
from tests.chaos.seen import Seen

#: So many of a kind are struck at a time, at most: the others are to go on.
AT_ONCE = {'beat': 3, 'worker': 2}
EVERYTHING = ('all', 'beats')  #: what needs all nodes of a kind for itself
ORDER = {'worker': 0, 'broker': 2, 'all': 2, 'beats': 2}  #: at the beginning
LONGEST = 60.0  #: seconds that a strike waits for what it waits for


@dataclass
class Struck:
    """A strike at work."""

    number: int
    nemesis: Nemesis
    strike: Strike
    steps: Steps
    wait: Wait = 0.0
    step: int = 0
    since: float = field(default_factory=time.monotonic)

    def may_go_on(self) -> bool:
        if callable(self.wait):
            if time.monotonic() < self.since + LONGEST:
                return bool(self.wait())
            self.strike.cluster.journal.write('stuck', number=self.number, step=self.step)
            return True
        return time.monotonic() >= self.since + self.wait

    def go_on(self) -> bool:
        """Take the next step; false when it is over."""
        try:
            self.wait, self.since = next(self.steps), time.monotonic()
            self.step += 1
        except StopIteration:
            return False
        return True


class Strikes:
    """Deals, and sees to what is at work, whenever it is looked after."""

    def __init__(
        self, cluster: Cluster, seen: Seen, store: str, *, seed: int, pace: tuple[float, float]
    ) -> None:
        self.cluster, self.seen, self.pace = cluster, seen, pace
        self.chance = random.Random(seed)
        self.fitting = fitting(store)
        self.deck = self._opening()
        self.at_work: list[Struck] = []
        self.count = 0
        self._next_at = time.monotonic()

    def _opening(self) -> list[Nemesis]:
        """What is sure to bite comes first, then one of each: workers, others, what takes long, or all."""
        bite = [nemesis for nemesis in self.fitting if nemesis.name == 'pause worker']
        each = [one for one in self.fitting if one not in bite]
        self.chance.shuffle(each)
        each.sort(key=lambda one: ORDER.get(one.target, 1))
        return [*bite, *bite, *each]

    def look_after(self, *, deal: bool = True) -> None:
        self.seen.look()
        for struck in list(self.at_work):
            if struck.may_go_on() and not struck.go_on():
                self._over(struck)
        for node in self.cluster.nodes:
            if not node.is_struck and not node.process.alive:
                self.cluster.journal.write('died', node=node.name, status=node.process.status)
                self.cluster.start(node)
        if deal and time.monotonic() >= self._next_at:
            self._deal()

    def _deal(self) -> None:
        if not self.deck:
            self.deck = [one for one in self.fitting for _ in range(one.cards)]
            self.chance.shuffle(self.deck)
        for nemesis in self.deck:
            if (nodes := self._victims(nemesis)) is not None:
                self.deck.remove(nemesis)
                self._begin(nemesis, nodes)
                self._next_at = time.monotonic() + self.chance.uniform(*self.pace)
                return

    def _victims(self, nemesis: Nemesis) -> list[Node] | None:
        """Whom it strikes, if it can now."""
        targets = {struck.nemesis.target for struck in self.at_work}
        if targets & {*EVERYTHING}:
            return None
        if nemesis.target in EVERYTHING:
            nodes = self.cluster.nodes if nemesis.target == 'all' else self.cluster.of('beat')
            return None if self.at_work else nodes
        if nemesis.target in ('store', 'broker'):
            return None if targets & {'store', 'broker'} else []
        kinds = AT_ONCE if nemesis.target == 'any' else {nemesis.target: AT_ONCE[nemesis.target]}
        free = [node for kind in kinds for node in self._free(kind)]
        return [self.chance.choice(free)] if free else None

    def _free(self, kind: str) -> list[Node]:
        nodes = self.cluster.of(kind)
        struck = sum(node.is_struck for node in nodes)
        return [node for node in nodes if not node.is_struck] if struck < AT_ONCE[kind] else []

    def _begin(self, nemesis: Nemesis, nodes: list[Node]) -> None:
        self.count += 1
        strike = Strike(self.cluster, self.seen, nodes, self.chance, {})
        struck = Struck(self.count, nemesis, strike, nemesis.steps(strike))
        for node in nodes:
            node.is_struck = True
        self.cluster.journal.write(
            'fault', number=self.count, kind=nemesis.name, target=nemesis.target,
            nodes=[node.name for node in nodes], mains=[node.process.pid for node in nodes],
        )  # fmt: skip
        self.at_work.append(struck)
        if not struck.go_on():
            self._over(struck)

    def _over(self, struck: Struck) -> None:
        self.at_work.remove(struck)
        for node in struck.strike.nodes:
            node.is_struck = False
        self.cluster.journal.write('over', number=struck.number, notes=struck.strike.notes)

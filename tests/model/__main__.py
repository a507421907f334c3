"""``python -m tests.model``: walks all scenes, then finds each mutant; exit status 1 if either fails."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.arguments import at_least_1

from .mutants import Mutant, by_hand
from .same import SAME
from .scenes import SCENES, SMALL
from .suite import found_by_tests
from .turned import turned
from .walking import TooMany, Walk, Walked

_found: set[str] = set()  # what this process has found in the scenes before


@dataclass
class Seen:
    """What came of a scene: its walk, and what was found there."""

    walked: Walked
    took: float
    found: dict[str, Walked] = field(default_factory=dict)


def look(name: str, mutants: Sequence[Mutant]) -> Seen:
    """Walk a scene, and then again with each rule broken that this process has not found broken before."""
    begun = time.process_time()
    walk = Walk(SCENES[name])
    seen = Seen(walk.walked, time.process_time() - begun)
    if not seen.walked.wrong:
        for mutant in mutants:
            if mutant.name not in _found and (walked := _found_in(walk, mutant)):
                seen.found[mutant.name] = walked
    _found.update(seen.found)
    return seen


def _found_in(walk: Walk, mutant: Mutant) -> Walked | None:
    try:
        walked = walk.walk_broken(mutant)
    except TooMany:
        return None
    return walked if walked is not None and walked.wrong else None


class Explorer:
    """Walks scenes in several processes, and knows where each mutant was found."""

    def __init__(self, processes: int):
        self.pools = [ProcessPoolExecutor(1) for _ in range(processes)]  # each knows what it has found
        self.ways: dict[str, tuple[str, Walked]] = {}  #: the shortest to each, and its scene
        self.tests: dict[str, str] = {}  #: by which test the others are found

    def walk(self, scenes: Sequence[str], mutants: Sequence[Mutant], *, aloud: bool = True) -> bool:
        """Walk the scenes, and seek these mutants there; whether the rules as they are hold everywhere."""
        asked = [
            self.pools[number % len(self.pools)].submit(look, name, mutants)
            for number, name in enumerate(scenes)
        ]
        states, holds = 0, True
        for name, future in zip(scenes, asked, strict=True):
            seen = future.result()
            it = seen.walked
            states, holds = states + it.states, holds and not it.wrong
            if aloud or it.wrong:
                print(f'{it.states:8,} states  {seen.took:6.1f} s  {name}: {it}', flush=True)
            for found, walked in seen.found.items():
                if found not in self.ways or len(walked.way) < len(self.ways[found][1].way):
                    self.ways[found] = name, walked
        if aloud:
            print(f'{states:8,} states in {len(scenes)} scenes')
        return holds

    def test(self, mutants: Sequence[Mutant]) -> None:
        """Have the tests of the store seek these."""
        self.tests |= found_by_tests(mutants) if mutants else {}

    def left(self, mutants: Iterable[Mutant]) -> list[Mutant]:
        """What of these nobody has found."""
        return [one for one in mutants if one.name not in self.ways and one.name not in self.tests]

    def close(self) -> None:
        for pool in self.pools:
            pool.shutdown()


def scene(text: str) -> str:
    """The name of a scene: they have commas."""
    if text not in SCENES:
        there = '\n  '.join(SCENES)
        raise argparse.ArgumentTypeError(f'{text!r} is none of the scenes:\n  {there}')
    return text


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.model', description=__doc__)
    parser.add_argument('--no-mutants', action='store_true', help='only the rules as they are')
    parser.add_argument('--turned', action='store_true', help='also turn each comparison around: minutes')
    parser.add_argument(
        '--scene', action='append', type=scene, metavar='SCENE',
        help='only this one, by its name; may be given again; a wrong one: all there are',
    )  # fmt: skip
    parser.add_argument('-j', type=at_least_1, default=2, help='processes (2)')
    given = parser.parse_args(arguments)
    scenes = given.scene or list(SCENES)
    sought = [] if given.no_mutants else [*by_hand(), *(turned() if given.turned else ())]
    begun, explorer = time.monotonic(), Explorer(given.j)
    if given.turned:
        # Most are found in the small scenes or by the tests: what neither finds is sought everywhere.
        explorer.walk([name for name in scenes if name in SMALL], sought, aloud=False)
        explorer.test(explorer.left(sought))
    else:
        explorer.test([one for one in sought if one.left_to_tests])
    holds = explorer.walk(scenes, explorer.left(sought))
    explorer.close()
    all_found = _tell(explorer, sought)
    print(f'{_cpu():.0f} s of CPU, {time.monotonic() - begun:.0f} s in all')
    return 0 if holds and all_found else 1


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(it.ru_utime + it.ru_stime for it in used)


def _tell(explorer: Explorer, sought: list[Mutant]) -> bool:
    """Print what finds each mutant; whether none lives unexplained, and no reason is wrong."""
    same = [one for one in explorer.left(sought) if one.name in SAME]
    alive = [one for one in explorer.left(sought) if one.name not in SAME]
    for name, (scene, walked) in explorer.ways.items():
        print(f'found  {name}  [{scene}]  {walked}')
    for name, test in explorer.tests.items():
        print(f'found  {name}  [{test}]')
    for one in same:
        print(f'the same  {one.name}: {SAME[one.name]}')
    for one in alive:
        print(f'LIVES  {one.name}')
    wrong = [one.name for one in sought if one.name in SAME and one not in same]
    for name in wrong:
        print(f'said to be the same, and found  {name}')
    print(
        f'{len(sought) - len(same)} mutants: {len(explorer.ways)} are found by a walk, {len(explorer.tests)} '
        f'by tests, {len(alive)} live; {len(same)} more are the same as the rule'
    )
    return not alive and not wrong


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

"""``python -m tests.simulation``: plays seeds; of each that fails, a small command that plays it again."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.arguments import at_least_1, numbers

from .seeds import Played, numbered, play, smaller
from .watch import AFTER_A_JUMP


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.simulation', description=__doc__)
    parser.add_argument('--seeds', type=at_least_1, default=500, help='how many (500)')
    parser.add_argument('--first', type=int, default=1, help='from which one on (1)')
    parser.add_argument('--seed', type=int, help='this one, and what was wrong with it')
    parser.add_argument(
        '--only', type=numbers, metavar='NUMBERS',
        help='with --seed: these of its faults, such as 3,17; none: an empty text',
    )  # fmt: skip
    parser.add_argument('--stop', action='store_true', help='at the first seed that fails, as it is')
    parser.add_argument('--bugs', action='store_true', help='each bug of bugs/ has to be found')
    parser.add_argument('-j', type=at_least_1, default=2, help='processes (2)')
    given = parser.parse_args(arguments)
    if given.only is not None and given.seed is None:
        parser.error('--only goes with --seed: faults have their numbers in that seed')
    if given.bugs:
        from .hunt import hunt

        return hunt(given.j)
    if given.seed is not None:
        return _tell(play(given.seed, given.only), chosen=given.only is not None)
    return _play_all(range(given.first, given.first + given.seeds), given.j, stop=given.stop)


def _play_all(seeds: range, processes: int, *, stop: bool) -> int:
    begun, counts, failed = time.monotonic(), Counter[str](), 0
    for played in _played(seeds, processes):
        counts += played.counts
        if played.wrong:
            failed += 1
            print(f'seed {played.seed}: {played.wrong[0]}', flush=True)
            if stop:
                break
            print(f'    {_command(smaller(played))}', flush=True)
    for name, number in sorted({AFTER_A_JUMP: 0, **counts}.items()):
        print(f'{number:12,}  {name}')
    print(f'{counts["seeds"]} seeds, {failed} failed, {time.monotonic() - begun:.1f} s')
    return 1 if failed else 0


def _played(seeds: Iterable[int], processes: int) -> Iterator[Played]:
    if processes == 1:
        yield from map(play, seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        try:
            yield from pool.map(play, seeds, chunksize=5)
        finally:
            pool.shutdown(cancel_futures=True)


def _command(played: Played) -> str:
    return f'python -m tests.simulation --seed {played.seed} --only {",".join(map(str, played.only))!r}'


def _tell(played: Played, *, chosen: bool) -> int:
    for number, fault in numbered(played.seed).items():
        print(f'{number:3} {"" if number in played.only else "(left out) "}{fault}')
    for wrong in played.wrong:
        print(f'!!  {wrong}')
    if played.wrong and not chosen:
        print(f'    {_command(smaller(played))}')
    print(f'{len(played.wrong)} wrong, {played.seconds:.2f} s, digest {played.digest:08x}')
    return 1 if played.wrong else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

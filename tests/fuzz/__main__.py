"""``python -m tests.fuzz``: one part after the other until the time is over; exit status 1 if one fails."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import hypothesis
from hypothesis import strategies as st

from tests.arguments import seconds
from tests.fuzz.configs import policies_at_random, settings_at_random
from tests.fuzz.crons import schedules_at_random
from tests.fuzz.messages import messages_at_random
from tests.fuzz.rows import rows_at_random
from tests.fuzz.stores import KINDS, Stores

Part = Callable[[Any], None]

#: By what it is about, and how many examples make a round: then the clock is looked at.
PLAIN: dict[str, tuple[Part, int]] = {
    'settings': (settings_at_random, 200),
    'policies': (policies_at_random, 200),
    'crons': (schedules_at_random, 200),
}
ON_STORES = {'rows': (rows_at_random, 10), 'headers': (messages_at_random, 30)}


def play(part: Part, seed: int, many: int, *, small: bool = False) -> None:
    """Draw so many examples by a seed; what fails is made small, if asked: that takes minutes."""
    phases = [hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if small else [])]

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=many,
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
    )
    @hypothesis.given(st.data())
    def example(data: Any) -> None:
        part(data)

    example()


def rounds(name: str, part: Part, many: int, given: argparse.Namespace) -> bool:
    """Play until the time is over, or something is found; return whether nothing was."""
    first: int = given.seed
    begun, seed, found = time.monotonic(), first, False
    while not found and (seed == first or time.monotonic() - begun < given.seconds):
        try:
            play(part, seed, many, small=given.small)
        except Exception:
            traceback.print_exc()
            found = True
        seed += 1
    took, last = time.monotonic() - begun, seed - 1
    print(f'{name}: {(seed - first) * many:,} examples, seeds {first} to {last}, {took:.0f} s', flush=True)
    if found:
        print(f'FAILED: python -m tests.fuzz --what {name} --seed {last} --seconds 0 --small')
    return not found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.fuzz', description=__doc__)
    parser.add_argument('--seconds', type=seconds, default=60, help='for how long each part goes on (60)')
    parser.add_argument('--seed', type=int, default=1, help='of the first round (1); the next has one more')
    parser.add_argument(
        '--what', action='append', choices=[*PLAIN, *ON_STORES], help='only this part; or again'
    )
    parser.add_argument('--store', action='append', choices=KINDS, help='only this store; may be given again')
    parser.add_argument('--small', action='store_true', help='make what fails small: minutes')
    given = parser.parse_args(arguments)
    what, stores, passed = given.what or [*PLAIN, *ON_STORES], Stores(), True
    try:
        for name in what:
            if name in PLAIN:
                passed &= rounds(name, *PLAIN[name], given)
                continue
            part, many = ON_STORES[name]
            for kind in given.store or KINDS:
                url, empty = stores[kind]
                on_it = partial(part, url=url, empty=empty)
                passed &= rounds(f'{name} --store {kind}', on_it, many, given)
    finally:
        stores.close()
    return 0 if passed else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

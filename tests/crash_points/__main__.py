"""Hit processes at named points: ``python -m tests.crash_points --help``; exit status 1 if a wall fell."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.arguments import at_least_1
from tests.crash_points.places import BROKERS, STORES, Places, places
from tests.crash_points.playing import PACE, Share, find_breaks, line_of, play
from tests.crash_points.points import ALL_FAULTS, POINTS, SIDES, Case, cases
from tests.crash_points.scene import Pace
from tests.crash_points.summary import summary

ALL_POINTS = [*POINTS, *(f'{name}:{side}' for name in POINTS for side in SIDES)]


def main(arguments: list[str]) -> int:
    given = read(arguments)
    chosen = list(cases(given.point, given.fault, given.store))
    if given.sample:
        say_at_once(f'--seed {given.seed}')
        chosen = random.Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    if given.list:
        say_at_once('\n'.join(map(str, chosen)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else servers and files would be left
    with tempfile.TemporaryDirectory(prefix='crash-points-') as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        with places(folder) as there:
            if given.breaks:
                return 1 if find_breaks(folder, there, given.store, given.broker, say_at_once) else 0
            return play_all(given, chosen, folder, there)


def read(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m tests.crash_points', description=__doc__)
    parser.add_argument('--store', choices=STORES, default='redis')
    parser.add_argument('--broker', choices=BROKERS, default='redis')
    parser.add_argument(
        '--point', action='append', choices=ALL_POINTS, metavar='POINT',
        help=f'one of {", ".join(POINTS)}, with :before, :within or :after or without; may be given again',
    )  # fmt: skip
    parser.add_argument('--fault', action='append', choices=ALL_FAULTS, help='may be given again')
    parser.add_argument('--all', action='store_true', help='all points and faults')
    parser.add_argument('--sample', type=at_least_1, help='so many of them, chosen by the seed')
    parser.add_argument('--seed', type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument('--breaks', action='store_true', help='break rules, each of which a case has to find')
    parser.add_argument('--list', action='store_true', help='only name the cases')
    parser.add_argument('-j', type=at_least_1, default=2, help='clusters side by side (%(default)s)')
    parser.add_argument('--folder', type=Path, help='where all logs go, and stay; else nowhere')
    # For a machine with other things to do:
    parser.add_argument('--lease', type=float, default=PACE.lease, help='how long leases are (%(default)s s)')
    parser.add_argument('--grace', type=float, default=PACE.grace, help='how late takeovers may be')
    given = parser.parse_args(arguments)
    if not (given.all or given.point or given.fault or given.breaks):
        parser.error('which ones? --point, --fault, --all or --breaks')
    return given


def play_all(given: argparse.Namespace, chosen: list[Case], folder: Path, there: Places) -> int:
    begun = time.monotonic()
    shares = [Share(given.store, given.broker, line_of(chosen))] * max(1, min(given.j, len(chosen)))
    outcomes = [*play(shares, folder, there, pace=Pace(given.lease, given.grace))]
    say_at_once('\n'.join(summary(outcomes, time.monotonic() - begun)))
    return 1 if not outcomes or any(outcome.wrong for outcome in outcomes) else 0


def say_at_once(line: str) -> None:
    print(line, flush=True)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

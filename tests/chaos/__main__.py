"""``python -m tests.chaos``: strikes a cluster, or reads a history of one; exit status 1 on violations."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.arguments import at_least_1, file, seconds
from tests.chaos.places import PLACES
from tests.chaos.playing import Play
from tests.chaos.report import judged


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    if given.read:
        return judged(given.read)
    for number in (signal.SIGINT, signal.SIGQUIT):  # in the background they are ignored, and inherited so
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix='chaos-', ignore_cleanup_errors=True) as place:
        history = given.history or Path(place) / 'history'
        history.unlink(missing_ok=True)
        Play(Path(place), history, **{name: getattr(given, name) for name in PLAYED}).play()
        found = judged(history)
        if found and given.history:
            keep_logs(Path(place), history.with_name(f'{history.name}.logs'))
        return found


def keep_logs(place: Path, logs: Path) -> None:
    """What the nodes printed explains what they did."""
    logs.mkdir(exist_ok=True)
    for log in place.glob('*/*.log'):
        shutil.copy(log, logs)


PLAYED = ('store', 'broker', 'seconds', 'slots', 'faults', 'seed', 'jobs', 'scale', 'pace')


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='python -m tests.chaos', description=__doc__)
    parser.add_argument('--store', choices=PLACES, default='redis')
    parser.add_argument('--broker', choices=('redis', 'rabbitmq'), default='redis')
    parser.add_argument('--seconds', type=seconds, default=60, help='for how long strikes are dealt (60)')
    parser.add_argument('--slots', type=int, default=0, help='go on until there were so many')
    parser.add_argument('--faults', type=int, default=0, help='nor end before so many strikes')
    parser.add_argument('--seed', type=int, default=1, help='chooses the jobs and the strikes (1)')
    parser.add_argument('--jobs', type=at_least_1, default=20, help='so many, with a slot a second each (20)')
    parser.add_argument('--scale', type=float, default=1, help='how long bodies take, times what they do (1)')
    parser.add_argument(
        '--pace', type=float, nargs=2, default=(2, 5), metavar=('FROM', 'TO'),
        help='seconds from strike to strike (2 5)',
    )  # fmt: skip
    parser.add_argument('--history', type=Path, help='where to leave the history, and logs')
    parser.add_argument('--read', type=file, metavar='FILE', help='only judge a history')
    return parser


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

"""Play endings with real workers, and show the tables: ``python -m tests.cluster.endings --help``."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.cluster.endings.page import row, write
from tests.cluster.endings.play import missing, parts_of, play
from tests.cluster.endings.ways import POOLS
from tests.processes import Processes


def main() -> None:
    """Take the pools one after the other, since each has workers enough for two cores."""
    parser = argparse.ArgumentParser(prog='python -m tests.cluster.endings', description=__doc__)
    parser.add_argument('pools', nargs='*', metavar='pool', help=f'{", ".join(POOLS)}; else all of them')
    parser.add_argument('--write', action='store_true', help='write what was seen to docs/endings.md')
    parser.add_argument('--only', action='append', default=[], metavar='WORD', help='in the titles of ways')
    asked = parser.parse_args()
    for pool in asked.pools or POOLS:
        print(f'\n{pool}\n')
        if why := missing(pool):
            print(why)
            continue
        seen = see(pool, asked.only)
        print(''.join(map(row, seen)), flush=True)
        if asked.write:
            write(seen)


def see(pool: str, words: list[str]):
    """Play a pool's endings."""
    parts = [part for part in parts_of((pool,)) if not words or any(word in part.way.title for word in words)]
    with tempfile.TemporaryDirectory(prefix='endings-') as folder:
        processes = Processes(Path(folder))
        try:
            return play(parts, Path(folder), processes)
        finally:
            processes.close()


if __name__ == '__main__':
    main()

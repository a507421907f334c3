"""Bugs that once could have been: each is put into a copy of the package, and has to be found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATCHES = sorted(Path(__file__).with_name('bugs').glob('*.patch'))

#: Within how many seeds each has to be found.
SEEDS = 200


@dataclass(frozen=True)
class Found:
    """What a hunt came to: the seed that found the bug, and what it said; or all that was said instead."""

    seed: int | None
    said: str


def known_seed(patch: Path) -> int:
    """The seed that is known to find it: in the patch's second line."""
    return int(patch.read_text().splitlines()[1].removeprefix('Seed: '))


def find(patch: Path, *, first: int = 1, seeds: int = SEEDS) -> Found:
    """Play seeds, one after the other, with that bug in the package, until one fails."""
    with tempfile.TemporaryDirectory() as folder:
        _put_in(patch, Path(folder))
        command = [sys.executable, '-m', 'tests.simulation', '-j', '1', '--stop']
        played = subprocess.run(
            [*command, '--first', str(first), '--seeds', str(seeds)],
            cwd=folder, capture_output=True, text=True,
            env={**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONDONTWRITEBYTECODE': '1'},
        )  # fmt: skip
    said = re.search(r'^seed (\d+): (.*)', played.stdout, re.MULTILINE)
    if said is None:
        return Found(None, (played.stdout + played.stderr)[-2000:])
    return Found(int(said[1]), said[2])


def _put_in(patch: Path, folder: Path) -> None:
    """A copy of the package in that folder, with the bug."""
    shutil.copytree(
        ROOT / 'anarchon_celery', folder / 'anarchon_celery', ignore=shutil.ignore_patterns('__pycache__')
    )
    apart = {**os.environ, 'GIT_CEILING_DIRECTORIES': str(folder.parent)}
    subprocess.run(['git', 'apply', '-p1', str(patch)], cwd=folder, check=True, env=apart)


def hunt(processes: int) -> int:
    """Look for each bug from the first seed on; return 1 if one is not found."""
    with ThreadPoolExecutor(processes) as pool:
        hunts = dict(zip(PATCHES, pool.map(find, PATCHES), strict=True))
    for patch, found in hunts.items():
        what = patch.read_text().partition('\n')[0]
        which = 'LIVES' if found.seed is None else f'seed {found.seed}'
        print(f'{which:9} {patch.stem}: {what}\n          {found.said}')
    alive = [patch for patch, found in hunts.items() if found.seed is None]
    print(f'{len(hunts) - len(alive)} of {len(hunts)} bugs are found, each within {SEEDS} seeds')
    return 1 if alive else 0

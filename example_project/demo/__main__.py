"""The command: a place for the demo, the story in it, and nothing left behind."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from anarchon_celery import AnarchonError
from anarchon_celery.protocol import Run
from anarchon_celery.stores import open_store

from .stage import Failed, Interrupted, Node, Stage
from .story import SYNC_EVERY, Story, Told
from .verdict import differences, table

ROOT = Path(__file__).parents[2]


@dataclass
class Place:
    """Where one demo happens: a folder of its own and, on Redis, keys of its own."""

    folder: Path
    redis: str | None
    prefix: str

    @property
    def store_url(self) -> str:
        """The URL of the store that the nodes share."""
        return self.redis or f'sqlite:///{self.folder / "jobs.db"}'

    def environment(self) -> dict[str, str]:
        """What the nodes find: nothing of Celery's or Django's that happens to be set here."""
        own = {
            'PYTHONPATH': os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH')))),
            'PYTHONUNBUFFERED': '1',
            'TMPDIR': str(self.folder),
            **({'REDIS_URL': self.redis, 'DEMO_PREFIX': self.prefix} if self.redis else {}),
        }
        foreign = ('CELERY', 'DJANGO', 'REDIS_URL', 'DEMO_PREFIX')
        return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | own

    def clear(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.redis:
            with (
                contextlib.suppress(redis.RedisError),  # one that is not there keeps nothing
                contextlib.closing(redis.Redis.from_url(self.redis)) as client,
            ):
                for key in client.scan_iter(f'*{self.prefix}*', count=1000):
                    client.delete(key)


@contextlib.contextmanager
def heeding(stage: Stage) -> Iterator[None]:
    """Let Ctrl-C and the like end the demo at its next look, in good order."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stage.interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def run(stage: Stage, place: Place, *, keep: bool) -> int:
    """Play the story in this place, and clean up whatever happens; return the exit status."""
    store = open_store(place.store_url, prefix=place.prefix)
    nodes = [Node(name, stage, place.folder, place.environment()) for name in 'abc']
    stage.nodes = nodes
    try:
        told = Story(stage, nodes, store).play()
        runs = store.runs(limit=1000)
    except Interrupted as reason:
        stage.tell(f'{reason}: the demo ends here.')
        return reason.status
    except (Failed, AnarchonError) as reason:
        stage.tell(f'The story cannot go on: {reason}')
        return 1
    finally:
        for node in nodes:
            node.kill_what_is_left()
        with contextlib.suppress(AnarchonError):
            store.close()
        if not keep:
            place.clear()
    return verdict(stage, told, runs)


def verdict(stage: Stage, told: Told, runs: Sequence[Run]) -> int:
    """Show the runs, and whether they are what the story tells; return the exit status."""
    stage.tell('What the store recorded:')
    for line in table(runs):
        stage.show(line)
    differing = list(differences(told, runs, stage.about_runs()))
    if differing:
        stage.tell('The store recorded something else than the story tells:')
        for difference in differing:
            stage.show(f'    {difference}')
        return 1
    slots = (told.last - told.all_up) // SYNC_EVERY + 1
    stage.tell(
        f'As told: each of {slots} slots of sync was won and run once; the stopped run and the killed one\n'
        '    were each started once more, by another node, under a higher fence.'
    )
    return 0


def main() -> int:
    """Read the command line, and play."""
    parser = argparse.ArgumentParser('python -m example_project.demo', description='Play the quick start.')
    parser.add_argument('--redis', metavar='URL', help='meet on this Redis, instead of in a folder')
    parser.add_argument('--keep', action='store_true', help='keep the store and all that the nodes say')
    parser.add_argument('--no-color', action='store_true', help='print without colours')
    asked = parser.parse_args()
    colours = sys.stdout.isatty() and not asked.no_color and not os.environ.get('NO_COLOR')
    stage = Stage(colours=colours)
    with heeding(stage):
        name = f'anarchon-demo-{uuid.uuid4().hex[:8]}'
        folder = Path(tempfile.mkdtemp(prefix=f'{name}-'))
        place = Place(folder, asked.redis, name if asked.redis else 'anarchon')
        began = time.monotonic()
        status = run(stage, place, keep=asked.keep)
        kept = f' All of it is kept in {place.folder}.' if asked.keep else ''
        stage.show(f'\n    {time.monotonic() - began:.0f} s, exit status {status}.{kept}')
    return status


if __name__ == '__main__':
    sys.exit(main())

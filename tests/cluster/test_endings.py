"""What becomes of a task and its run, however it ends: as docs/endings.md has it.

CI plays all endings of prefork, and a few of each other pool. All of them: ``ANARCHON_TEST_ENDINGS=all``.
"""

import os
import re

import celery
import pytest

from tests.cluster.endings.page import outcome, subject, written
from tests.cluster.endings.play import missing, parts_of, play
from tests.cluster.endings.ways import POOLS

OTHERS = [pool for pool in POOLS if pool != 'prefork']
#: What CI plays in the other pools: a stop that asks, one that does not, and a lease that is lost.
SAMPLE = {'SIGTERM', 'SIGQUIT', 'cut off from the store'}


COLD = {'SIGQUIT', 'SIGQUIT, soft', 'SIGTERM, soft by `REMAP_SIGTERM`', 'Ctrl-C twice'}


def stays(part):
    """Whether the worker may not end: before 5.7 Celery's signal handler fails, and it goes on idly."""
    return celery.VERSION[:2] < (5, 7) and part.pool in ('solo', 'eventlet') and part.way.title in COLD


def check(parts, folder, processes):
    """Play the parts; what comes of each is what the page says."""
    parts = [part for part in parts if not stays(part)]
    seen = {(ending.part, outcome(ending)) for ending in play(parts, folder, processes)}
    told = {(part, row) for part in parts for row in written(part.pool) if row[:2] == subject(part)}
    wrong = [f'{part.pool}: {" | ".join(row)}' for part, row in sorted(seen - told, key=str)]
    assert [] == wrong, f'the page has it otherwise: {sorted(row for _, row in told - seen)}'


@pytest.mark.cluster
@pytest.mark.timed  # forty workers at once: when runs go on is told by what else the machine has to do
@pytest.mark.timeout(300)
def test_endings_are_as_the_page_says(processes, tmp_path):
    others = [pool for pool in OTHERS if missing(pool) is None]
    sample = [part for part in parts_of(others) if part.way.title in SAMPLE and part.body == 'cooperative']
    check([*parts_of(['prefork']), *sample], tmp_path, processes)


@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize('pool', OTHERS)
def test_all_endings_of_a_pool(pool, processes, tmp_path):
    if os.environ.get('ANARCHON_TEST_ENDINGS') != 'all':
        pytest.skip('ANARCHON_TEST_ENDINGS=all plays them')
    if why := missing(pool):
        pytest.skip(why)
    check(parts_of([pool]), tmp_path, processes)


@pytest.mark.parametrize('pool', POOLS)
def test_the_page_tells_of_every_ending(pool):
    rows = written(pool)
    assert [subject(part) for part in parts_of([pool])] == [row[:2] for row in rows]
    assert [] == [row for row in rows for cell in row[2:] if not cell or re.search('STUCK|unknown', cell)]

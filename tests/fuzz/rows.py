"""Rows, hashes and indexes at random, while a beat and a worker go on: other jobs are on time."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from hypothesis import strategies as st

from anarchon_celery.errors import StoreError
from anarchon_celery.stores import open_store
from tests.fuzz.configs import one_line
from tests.fuzz.edits import Edited, edits_of
from tests.stage import SECOND, Clock, Stage, T, Worker
from tests.test_cli import Desk, check_schema

#: Nobody touches what is of the first job alone.
SCHEDULE = {
    'good': {'task': 't', 'schedule': 1},
    'bad': {'task': 't', 'schedule': 1},
    'queues': {'task': 't', 'schedule': 1, 'options': {'anarchon': {'overlap': 'queue'}}},
    'cancels': {'task': 't', 'schedule': 1, 'options': {'anarchon': {'overlap': 'cancel', 'lease': 3}}},
    'fresh': {'task': 't', 'schedule': 2, 'options': {'anarchon': {'overlap': 'allow', 'start_timeout': 2}}},
}

#: How long is played before the edits and after them (ms): a lease longer where the store itself was edited.
BEFORE, AFTER, LEASE = 2 * SECOND, 4 * SECOND, 3 * SECOND

#: The commands that look at all there is.
LOOKS = ('status', 'runs', 'jobs', 'doctor')


class Patient(Worker):
    """A worker that waits for a store that somebody made unusable, as real ones do."""

    def tick(self) -> float:
        try:
            return super().tick()
        except StoreError as reason:
            one_line(reason)
            return self.every / 1000


def rows_at_random(data: st.DataObject, url: str, empty: Callable[[], None]) -> None:
    """Some edits while all goes on: the good job is on time, each line is one, and commands work."""
    empty()
    stage = Stage(Clock(), url)
    try:
        beat = stage.beat(SCHEDULE, anarchon_lease=LEASE / 1000)
        worker = Patient(stage, takes=700)
        with told('anarchon_celery') as said:
            stage.play(BEFORE, beat, worker)
            edited = edits_of(data, url)
            begun = stage.clock.ms
            stage.play(begun + AFTER, beat, worker)
            if edited.shared:
                edited.mend()
                stage.play(stage.clock.ms + AFTER + 2 * LEASE, beat, worker)
            good_is_on_time(stage, worker, edited, begun)
            commands_work(url)
        for record in said:
            assert 'this look failed' not in one_line(record.getMessage()), f'{record} after {edited}'
    finally:
        stage.close()


def good_is_on_time(stage: Stage, worker: Worker, edited: Edited, begun: int) -> None:
    """Each slot of the good job since the edits was begun within its second, and has ended or runs."""
    since = stage.clock.ms - 2 * SECOND if edited.shared else begun
    with closing(open_store(stage.url)) as store:
        found = {run.slot: run for run in store.runs(job='good', limit=100)}
    for slot in range(T - -(-since // SECOND) * -SECOND, T + stage.clock.ms - SECOND, SECOND):
        run = found.get(slot)
        assert run is not None, f'no run at +{slot - T} ms after {edited}'
        assert run.state in ('succeeded', 'running'), f'{run} after {edited}'
        assert (run.started_at or 0) - slot < SECOND, f'{run} after {edited}'


def commands_work(url: str) -> None:
    """Each prints its JSON, as the docs have it; the doctor may find something to say."""
    desk = Desk(beat_schedule=SCHEDULE, anarchon_store=url)
    try:
        for name in LOOKS:
            result = desk.run(name, '--json')
            assert result.exit_code in (0, 1), (name, result.output)
            assert result.exit_code == 0 or name == 'doctor', (name, result.output)
            check_schema(name, json.loads(result.stdout))
    finally:
        desk.close()


@contextmanager
def told(*names: str, level: int = logging.WARNING) -> Iterator[list[logging.LogRecord]]:
    """Collect what is said to these loggers, from that level on, and nobody else hears it."""
    said: list[logging.LogRecord] = []

    class Collects(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record)

    before = []
    for logger, handler in ((logging.getLogger(name), Collects(level)) for name in names):
        before.append((logger, handler, logger.level, logger.propagate))
        logger.setLevel(level)
        logger.propagate = False
        logger.addHandler(handler)
    try:
        yield said
    finally:
        for logger, handler, old, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(old)
            logger.propagate = propagate

"""One story on every store: the nodes tell the same of it, and the stores record the same.

Three nodes and a worker live through lost answers, a pause and a time when nobody looks. Chances are drawn
alike on each store, so that whatever differs is the store's own.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from anarchon_celery.protocol import Run
from tests.stage import Faults, Stage, T, Worker, clock, log, put_in_front
from tests.test_scheduler_policies import sync, three, told

__all__ = ["clock", "log"]  # fixtures

pytestmark = pytest.mark.slow

#: What a store records of its own: who asked, with what random numbers.
OWN = {"nonce", "token", "task_id", "fence"}


def recorded(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in Run.__dataclass_fields__ if name not in OWN}


def story(stage: Stage, schedule, chance: Callable[[], float], *, heeds: bool) -> dict[str, Any]:
    """Play it; return what the worker met and what the store has."""
    beats = three(stage, schedule)
    for beat in beats:
        put_in_front(beat, Faults(beat.store)).loses = lambda verb: chance() < 0.08
    worker = Worker(stage, takes=4_100, every=250, heeds=heeds)
    stage.play(15_000, *beats, worker)
    stage.store.pause("sync", reason="migration", by="alice")
    stage.play(20_000, *beats, worker)
    stage.store.resume("sync")
    stage.play(30_000, *beats, worker)
    stage.clock.advance(25_000)
    stage.play(70_000, *beats, worker)
    runs = [recorded(run) for run in stage.store.runs(limit=1_000)]
    floors = [(job.name, job.floor) for job in stage.store.jobs()]
    return {
        "runs": runs, "floors": floors, "began": worker.began, "ended": worker.ended, "stale": worker.stale,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("catch_up", "supervised"), [("latest", True), ("all", True), ("latest", False)],
    ids=["latest, supervised", "all, supervised", "latest, plain"],
)  # fmt: skip
@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel", "allow"])
def test_what_happens_does_not_depend_on_the_store(
    clock, log, redis_url, tmp_path, overlap, catch_up, supervised
):
    policy = {"overlap": overlap, "catch_up": catch_up, "start_timeout": 20, "lease": 6}
    found = []
    for url in (f"memory://{secrets.token_hex(4)}", f"sqlite:///{tmp_path}/jobs.db", redis_url):
        clock.ms = 0
        log.clear()
        stage = Stage(clock, url)
        try:
            chance = random.Random(f"{overlap} {catch_up}").random
            heeds = catch_up == "latest"
            happened = story(stage, sync(3, **policy, supervised=supervised), chance, heeds=heeds)
        finally:
            stage.close()
        found.append({"told": told(log)} | happened)
    memory, sqlite, redis = found
    assert 10 <= len(memory["runs"])
    assert T < memory["floors"][0][1]
    for part in memory:
        assert memory[part] == sqlite[part] == redis[part], part

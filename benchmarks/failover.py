"""Rows about what happens when somebody dies or is stopped: real beats and workers, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.processes import Process, Processes, wait_until

from . import peers
from .arena import Arena
from .figures import Line, Row

#: Of the runs that are taken over (s); the default is 30.
LEASE = 3.0


@contextlib.contextmanager
def _cluster(arena: Arena, schedule: dict[str, Any], **conf: Any) -> Iterator[Cluster]:
    folder = Path(arena.folder, f"cluster-{time.time_ns()}")
    folder.mkdir()
    processes = Processes(folder)
    arena.clear_broker()
    with contextlib.closing(processes):
        cluster = Cluster(
            processes, folder, schedule, store=arena.store("redis"),
            broker={"broker_url": arena.broker.url()}, **conf,
        )  # fmt: skip
        with contextlib.closing(cluster):
            yield cluster


# a beat is killed -------------------------------------------------------------------------------


def of_beat(arena: Arena, rounds: int, *, everybody: bool) -> Row:
    """One of two beats is killed; the time without any emission, of a job each second."""
    ours = [_beat_of_ours(arena) for _ in range(rounds)]
    lines = [Line("anarchon-celery", "s", ours)]
    if arena.with_peers and everybody:
        tuned = [_redbeat(arena, lock=10, loop=2)["gap"] for _ in range(rounds)]
        lines.append(Line("celery-redbeat, lock 10 s, loop 2 s", "s", tuned))
        left = _redbeat(arena, lock=None, loop=None)["left"]
        note = "read from its lock, which was to last so much longer; then up to its loop of 300 s"
        lines.append(Line("celery-redbeat, by default", "s", [left], note=note))
    return Row(
        "failover of beat",
        "two beats, one job each second; kill -9 one that emits; how late the latest slot of the next five "
        "seconds was published (a peer's: the pause)", "no slot later than jitter and one claim", lines,
    )  # fmt: skip


def _beat_of_ours(arena: Arena) -> float:
    job = {"tick": {"task": "tests.cluster.app.quick", "schedule": 1}}
    with _cluster(arena, job, anarchon_overlap="allow") as cluster:  # no worker ends a run
        beats = [cluster.beat(name) for name in ("beat-1", "beat-2")]
        for beat in beats:
            beat.wait_for(r"\[anarchon\] started as", 60)
        run = cluster.run_where(lambda run: run.queued_at, 30, "tick")
        killed_at = cluster.now()
        (dead,) = [beat for beat in beats if run.node.endswith(f":{beat.pid}")]
        dead.kill()
        slots = [int(killed_at // 1000 + ahead) * 1000 for ahead in range(1, 6)]
        cluster.run_where(lambda run: run.slot == slots[-1] and run.queued_at, 60, "tick")
        late = {run.slot: run.queued_at - run.slot for run in cluster.runs("tick") if run.queued_at}
        return max(late[slot] for slot in slots) / 1000


def _redbeat(arena: Arena, *, lock: int | None, loop: int | None) -> dict[str, float]:
    conf = {
        "broker_url": arena.broker.url(), "redbeat_redis_url": arena.store("redis"),
        "redbeat_redis_options": {}, "task_default_queue": "bench",
        "beat_schedule": {"tick": {"task": "bench.task", "schedule": 1}},
    } | ({} if lock is None else {"redbeat_lock_timeout": lock, "beat_max_loop_interval": loop})  # fmt: skip
    arena.clear_broker()
    folder = Path(arena.folder, f"redbeat-{time.time_ns()}")
    folder.mkdir()
    processes = Processes(folder)
    words = ["-m", "celery", "-A", "benchmarks.app", "beat", "-S", "redbeat.RedBeatScheduler", "-l", "info"]
    env = {"BENCH_CONF": json.dumps(conf), "PYTHONPATH": str(peers.ROOT)}
    with contextlib.closing(processes), arena.broker.client() as broker, arena.redis.client() as store:
        first = processes.start(str(arena.python[True]), *words, name="redbeat-1", env=env)
        first.wait_for("Sending due task", 60)
        processes.start(str(arena.python[True]), *words, name="redbeat-2", env=env).wait_for("Starting", 60)
        last = _growth(broker, 10)
        first.kill()
        left = store.pttl("redbeat::lock") / 1000
        return {"left": left, "gap": 0.0 if lock is None else _growth(broker, 60) - last}


def _growth(broker: Any, deadline: float) -> float:
    """Wait until the queue has one more, and return when that was."""
    before = broker.llen("bench")
    wait_until(lambda: broker.llen("bench") > before, deadline)
    return time.time()


# a holder is killed or stopped ------------------------------------------------------------------


def of_holder(arena: Arena, rounds: int) -> list[Row]:
    """The worker that runs a job is killed with its host, or loses a child, or is stopped."""
    cases: tuple[tuple[str, str, str, Callable[[Cluster, Process], None]], ...] = (
        ("takeover of a running job", f"kill -9 of a worker and its children, lease {LEASE:g} s",
         "at most lease + poll + 0.5 s", _kill),
        ("killed child", "kill -9 of the child that runs the job", "at most poll + 0.5 s", _kill_child),
        ("handover", "SIGTERM to the worker, whose task looks at its lease", "at most poll + 0.5 s",
         lambda cluster, holder: holder.signal(signal.SIGTERM)),
    )  # fmt: skip
    rows = []
    for name, work, goal, end in cases:
        values = [_second_start(arena, end) for _ in range(rounds)]
        work += "; until the next attempt has begun elsewhere (poll 1 s)"
        rows.append(Row(name, work, goal, [Line("anarchon-celery", "s", values)]))
    return rows


def _second_start(arena: Arena, end: Callable[[Cluster, Process], None]) -> float:
    job = {"report": {"task": "tests.cluster.app.slow", "schedule": "1h", "args": (60,)}}
    conf = {"anarchon_lease": LEASE, "anarchon_first_catch_up": "1d", "task_acks_late": False}
    with _cluster(arena, job, **conf) as cluster:
        workers = [cluster.worker(name) for name in ("w1", "w2")]
        for worker in workers:
            worker.wait_for(r"ready\.", 60)
        cluster.beat("beat-1").wait_for(r"\[anarchon\] started as", 60)
        run = cluster.run_where(lambda run: run.state == "running", 30, "report")
        wait_until(lambda: cluster.history("start"))
        (holder,) = [worker for worker in workers if run.owner.startswith(worker.name)]
        begun = time.time()
        end(cluster, holder)
        wait_until(lambda: len(cluster.history("start")) == 2, 60)
        return cluster.history("start")[1]["at"] - begun


def _kill(cluster: Cluster, holder: Process) -> None:
    holder.kill(group=True)


def _kill_child(cluster: Cluster, holder: Process) -> None:
    os.kill(cluster.history("start")[0]["pid"], signal.SIGKILL)

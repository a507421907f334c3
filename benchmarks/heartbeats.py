"""The row about many tasks that run in one worker: what it costs to keep their leases."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.processes import wait_until

from .arena import Arena
from .failover import _cluster
from .figures import Line, Row


def heartbeats(arena: Arena, rounds: int, running: tuple[int, ...], seconds: int) -> Row:
    """So many tasks in the threads of one worker, which do nothing but wait."""
    lines = []
    for count in sorted(running, reverse=True):
        seen = [_once(arena, count, seconds) for _ in range(rounds)]
        values = [cpu for cpu, _calls in seen]
        lines.append(Line("", f"{count} running", "% of a core", values, calls=seen[-1][1]))
    return Row(
        "heartbeats",
        "tasks that wait in the threads of one worker, heartbeat 10 s; the process's CPU time less what it "
        "needs with none; store calls for each heartbeat",
        "one store call per process and heartbeat; 200 tasks under 1 % of a core", lines,
    )  # fmt: skip


def _once(arena: Arena, count: int, seconds: int) -> tuple[float, float]:
    """Return the CPU time in percent, and the store calls per heartbeat."""
    jobs = {
        f"hold-{number}": {"task": "benchmarks.held", "schedule": "1d", "args": (600,)}
        for number in range(count)
    }
    conf = {"anarchon_first_catch_up": "2d"}
    with _cluster(arena, jobs, **conf) as cluster:
        worker = cluster.celery(
            "benchmarks.held", "worker", "-P", "threads", "-c", str(count), "-n", "w@%h", name="w"
        )
        worker.wait_for(r"ready\.", 60)
        idle = _percent(worker.pid, seconds)
        beat = cluster.celery("benchmarks.held", "beat", "-S", "anarchon_celery.Scheduler", name="beat")
        wait_until(lambda: len(cluster.history("start")) == count, 120)
        beat.stop()
        with arena.counted("redis") as calls:
            busy = _percent(worker.pid, seconds)
        return max(0.0, busy - idle), calls.total() / (seconds / 10)


def _percent(pid: int, seconds: int) -> float:
    """Return how much of a core a process uses, in percent."""
    before = _cpu(pid)
    time.sleep(seconds)
    return 100 * (_cpu(pid) - before) / seconds


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

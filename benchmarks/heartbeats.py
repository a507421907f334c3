"""The row about many tasks that run in one worker: what it costs to keep their leases."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.processes import wait_until

from .arena import Arena
from .counting import by_verb
from .failover import _cluster
from .figures import Line, Row

#: By default (s).
HEARTBEAT = 10

#: What else such a worker asks of the store, in words.
_SAID = {
    "register": "the worker's own sign of life (one each 15 s, whatever it runs)",
    "EVAL": "a script that the server did not have yet",
}


def heartbeats(arena: Arena, rounds: int, running: tuple[int, ...], seconds: int) -> Row:
    """So many tasks in the threads of one worker, which do nothing but wait."""
    lines = []
    for count in sorted(running, reverse=True):
        seen = [_once(arena, count, seconds) for _ in range(rounds)]
        calls = seen[-1][1]
        renewals = calls.pop("renew", 0) / (seconds / HEARTBEAT)
        others = ", ".join(f"{number} × {_SAID.get(verb, verb)}" for verb, number in sorted(calls.items()))
        note = f"beside them in {seconds} s: {others or 'nothing'}"
        lines.append(
            Line(f"{count} running", "% of a core", [cpu for cpu, _ in seen], calls=renewals, note=note)
        )
    return Row(
        "heartbeats",
        f"tasks that wait in the threads of one worker, heartbeat {HEARTBEAT} s; the process's CPU time less "
        "what it needs with none; calls for each heartbeat, by which all leases are renewed",
        "one store call per process and heartbeat; 200 tasks under 1 % of a core", lines,
    )  # fmt: skip


def _once(arena: Arena, count: int, seconds: int) -> tuple[float, dict[str, int]]:
    """Return the CPU time in percent, and the store calls by verb."""
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
        return max(0.0, busy - idle), by_verb(calls)


def _percent(pid: int, seconds: int) -> float:
    """Return how much of a core a process uses, in percent."""
    before = _cpu(pid)
    time.sleep(seconds)
    return 100 * (_cpu(pid) - before) / seconds


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

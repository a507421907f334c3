"""What ``status`` shows: the cluster as it is now, once or again and again."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from .desk import Desk
from .printing import console, plain
from .protocol import ACTIVE, BUFFERED, Job, Node, Run
from .show import node_as_json, nodes_table, pause_as_json, paused_table, run_as_json, runs_table
from .slots import HOUR

#: The most runs of each state that are shown.
MOST = 1000

#: How long a node that is gone is shown to people (ms); the store remembers it for a day.
GONE_FOR = HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The store and its time, its nodes, each with whether it is alive, its jobs, and the runs that go on."""

    store: str
    now: int
    nodes: Sequence[tuple[Node, bool]]
    jobs: Sequence[Job]
    active: Sequence[Run]
    buffered: Sequence[Run]

    @classmethod
    def of(cls, desk: Desk) -> Status:
        """Look.

        Raises:
            StoreError: the store does not answer.
        """
        nodes = desk.store.nodes()
        active = [run for state in sorted(ACTIVE) for run in desk.store.runs(state=state, limit=MOST)]
        return cls(
            store=desk.store.shown, jobs=desk.store.jobs(), active=active,
            buffered=desk.store.runs(state=BUFFERED, limit=MOST), now=desk.store.clock.now(),
            nodes=[(node, desk.is_alive(node)) for node in nodes],
        )  # fmt: skip

    @property
    def paused(self) -> list[Job]:
        """The jobs that are paused."""
        return [job for job in self.jobs if job.paused is not None]


def odd_schedules(nodes: Sequence[Node]) -> set[str]:
    """Return the ids of beats that have another schedule than most; of all, where there is no most."""
    told = Counter(node.schedule for node in nodes if node.kind == "beat" and node.schedule is not None)
    if len(told) < 2:
        return set()
    (most, number), (_, next_number) = told.most_common(2)
    usual = most if number > next_number else None
    return {node.id for node in nodes if node.kind == "beat" and node.schedule not in (None, usual)}


def status_as_json(now: Status) -> dict[str, Any]:
    """Return it as JSON."""
    odd = odd_schedules([node for node, alive in now.nodes if alive])
    return {
        "store": now.store, "jobs": len(now.jobs),
        "nodes": [node_as_json(node, alive, odd=node.id in odd) for node, alive in now.nodes],
        "paused": [{"job": job.name} | (pause_as_json(job) or {}) for job in now.paused],
        "active": [run_as_json(run) for run in now.active],
        "buffered": [run_as_json(run) for run in now.buffered],
    }  # fmt: skip


def status_tables(now: Status) -> list[Any]:
    """Return it for people; nodes that are gone for long are only counted."""
    shown = [(node, alive) for node, alive in now.nodes if alive or node.seen >= now.now - GONE_FOR]
    odd = odd_schedules([node for node, alive in now.nodes if alive])
    tables: list[Any] = [f"store {now.store}, {len(now.jobs)} job{'s' * (len(now.jobs) != 1)}"]
    tables.append(nodes_table(shown, odd))
    if gone := len(now.nodes) - len(shown):
        tables.append(f"{gone} more that {'are' if gone > 1 else 'is'} gone for over an hour")
    if odd:
        tables.append("! another schedule than other beats: during a deploy that is so, else start it anew")
    if now.paused:
        tables.append(paused_table(now.paused))
    going_on = [*now.active, *now.buffered]
    tables.append(runs_table(going_on) if going_on else "no run is active")
    if any(count >= MOST for count in Counter(run.state for run in going_on).values()):
        tables.append(f"of each state the newest {MOST} are shown, no more; `runs --state S -n N` shows all")
    return tables


def watch(look: Callable[[], Sequence[Any]], every: float) -> None:
    """Show something again and again until somebody interrupts; in place on a terminal."""
    is_terminal = sys.stdout.isatty()
    screen = console()
    try:
        if not is_terminal:
            while True:
                screen.print(_all(look()), markup=False)
                time.sleep(every)
        with Live(console=screen, auto_refresh=False, screen=True) as live:
            while True:
                live.update(_all(look()), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        click.echo("", err=True)


def _all(shown: Sequence[Any]) -> Group:
    """One thing below the other; texts as they are, whatever brackets are in them."""
    return Group(*(Text(plain(one)) if isinstance(one, str) else one for one in shown))

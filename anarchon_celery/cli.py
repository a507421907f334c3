"""``celery -A proj anarchon …``: what the cluster does, for people and, with ``--json``, for machines.

Exit status: 0; 1 where the store cannot be reached or used; 2 where the command or a setting is wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from .config import Config
from .errors import SettingError, StoreError
from .protocol import ACTIVE, ENDED, Node, Run
from .slots import iso
from .stores import Store

#: The fields of a run in JSON, in the contract's order; instants are those that end in ``_at``.
RUN_FIELDS = (
    "job", "slot", "state", "trigger", "dispatch", "attempt", "crashes", "fence", "owner", "task_id",
    "claimed_at", "queued_at", "started_at", "finished_at", "reason",
)  # fmt: skip


class WrongSetting(click.ClickException):
    """One line, without the usage of a command that is right."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Desk:
    """What a command works with: the app's settings and its store."""

    config: Config
    store: Store

    def is_alive(self, node: Node) -> bool:
        """Whether the node was seen within the last polls; a store may note that a few seconds late."""
        return node.seen >= self.store.clock.now() - 10_000 - 3 * self.config.poll


@click.group()
@click.pass_context
def anarchon(context: click.Context, /, **_preload: Any) -> None:
    """See the runs of beat's jobs, and who holds them."""
    app = context.obj.app
    if app.main == "default":
        raise click.UsageError("name your project: celery -A proj anarchon …")
    try:
        config = Config.of(app)
    except SettingError as reason:
        raise WrongSetting(str(reason)) from reason
    with _store_errors():
        store = config.open_store()
    context.call_on_close(store.close)
    context.obj = Desk(config, store)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
pass_desk = click.make_pass_decorator(Desk)


@anarchon.command()
@as_json
@pass_desk
def status(desk: Desk, as_json: bool) -> None:
    """Show the store, the nodes, and the runs that are active."""
    with _store_errors():
        nodes = desk.store.nodes()
        active = [run for state in sorted(ACTIVE) for run in desk.store.runs(state=state, limit=1000)]
        jobs = desk.store.jobs()
    if as_json:
        _print_json({
            "store": desk.store.shown,
            "jobs": len(jobs),
            "nodes": [_node_as_json(node, desk) for node in nodes],
            "active": [run_as_json(run) for run in active],
        })
        return
    print_ = _printer()
    print_(f"store {desk.store.shown}, {len(jobs)} job{'s' * (len(jobs) != 1)}")
    rows = [(n.name, n.kind, "alive" if desk.is_alive(n) else "gone", _instant(n.seen)) for n in nodes]
    print_(_table(("node", "kind", "", "last seen"), rows))
    print_(_runs_table(active) if active else "no run is active")


@anarchon.command()
@click.option("--job", help="Only the runs of this job.")
@click.option("--state", type=click.Choice(sorted(ACTIVE | ENDED)), help="Only runs in this state.")
@click.option("-n", "limit", type=click.IntRange(1), default=50, show_default=True, help="How many.")
@as_json
@pass_desk
def runs(desk: Desk, job: str | None, state: str | None, limit: int, as_json: bool) -> None:
    """Show what ran when, newest first."""
    with _store_errors():
        found = desk.store.runs(job=job, state=state, limit=limit)
    if as_json:
        _print_json([run_as_json(run) for run in found])
    else:
        _printer()(_runs_table(found) if found else "no runs")


def run_as_json(run: Run) -> dict[str, Any]:
    """Return a run as the contract's JSON."""
    values = asdict(run)
    instants = {name for name in RUN_FIELDS if name.endswith("_at")} | {"slot"}
    values["reason"] = _why(run)
    return {name: _instant(values[name]) if name in instants else values[name] for name in RUN_FIELDS}


def _node_as_json(node: Node, desk: Desk) -> dict[str, Any]:
    return {
        "id": node.id, "node": node.name, "kind": node.kind, "alive": desk.is_alive(node),
        "seen_at": _instant(node.seen),
    }  # fmt: skip


def _instant(ms: int | None) -> str | None:
    return None if ms is None else iso(ms)


def _runs_table(found: Sequence[Run]) -> Table:
    rows = [
        (
            run.job, iso(run.slot), run.state, _attempt(run), run.owner or "",
            _took(run), _why(run) or "",
        )
        for run in found
    ]  # fmt: skip
    return _table(("job", "slot", "state", "attempt", "on", "took", "why"), rows)


def _attempt(run: Run) -> str:
    return f"{run.attempt} ({run.trigger})" if run.attempt else ""


def _took(run: Run) -> str:
    if run.started_at is None or run.finished_at is None:
        return ""
    return f"{(run.finished_at - run.started_at) / 1000:.1f} s"


def _why(run: Run) -> str | None:
    """The reason, and for how many slots it holds."""
    if run.count > 1 and run.until is not None:
        return f"{run.reason}: {run.count} slots until {iso(run.until)}"
    return run.reason


def _table(heads: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(cell or "" for cell in row))
    return table


def _printer() -> Callable[..., None]:
    """Print for people; plain, and as wide as it has to be, where nobody reads a terminal."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    return partial(console.print, markup=False)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def _store_errors() -> Iterator[None]:
    """A store that does not answer ends the command with one line."""
    try:
        yield
    except StoreError as reason:
        raise click.ClickException(str(reason)) from reason

"""What the commands print: tables for people, JSON for machines.

Where nobody reads a terminal a table is plain, and as wide as it has to be: one line for each row.
On a terminal that is too narrow for it each row becomes a card.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .desk import AppJob, JobView
from .forecast import FireTime, change_text, local_text, offset_text
from .protocol import Job, Node, Run
from .slots import COUNTED, iso
from .stores import Upgrade

#: The fields of a run in JSON, in the contract's order; instants are those that end in ``_at``.
RUN_FIELDS = (
    "job", "slot", "state", "trigger", "dispatch", "attempt", "crashes", "fence", "owner", "task_id",
    "claimed_at", "queued_at", "started_at", "finished_at", "reason",
)  # fmt: skip

WIDEST = 1000


def printer() -> Callable[..., None]:
    """Return what prints for people."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDEST)
    return partial(console.print, markup=False)


def print_json(value: Any) -> None:
    """Print for machines."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def instant(ms: int | None) -> str | None:
    """Return an instant as the contract has it, if there is one."""
    return None if ms is None else iso(ms)


def table(heads: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Table:
    """Return a plain table."""
    made = Table(box=None, pad_edge=False)
    for head in heads:
        made.add_column(head, overflow="fold")
    for row in rows:
        made.add_row(*(cell or "" for cell in row))
    return made


class TableOrCards:
    """A table where it fits; else a card for each row: its first cell, and below it all that is not empty."""

    def __init__(self, heads: Sequence[str], rows: Sequence[Sequence[str | None]]) -> None:
        self.heads, self.rows = heads, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = table(self.heads, self.rows)
        if Measurement.get(console, options.update(width=WIDEST), whole).maximum <= options.max_width:
            yield whole
            return
        for row in self.rows:
            yield Text(row[0] or "")
            yield self._card(row)

    def _card(self, row: Sequence[str | None]) -> Table:
        card = Table.grid(padding=(0, 2))
        card.add_column(min_width=2 + max(map(len, self.heads)))
        card.add_column(overflow="fold")
        for head, cell in list(zip(self.heads, row, strict=True))[1:]:
            if cell:
                card.add_row(f"  {head}", cell)
        return card


# runs and nodes ---------------------------------------------------------------------------------


def run_as_json(run: Run) -> dict[str, Any]:
    """Return a run as the contract's JSON."""
    values = asdict(run)
    instants = {name for name in RUN_FIELDS if name.endswith("_at")} | {"slot"}
    values["reason"] = _why(run)
    return {name: instant(values[name]) if name in instants else values[name] for name in RUN_FIELDS}


def node_as_json(node: Node, alive: bool) -> dict[str, Any]:
    """Return a node as JSON."""
    return {
        "id": node.id, "node": node.name, "app": node.app, "kind": node.kind, "alive": alive,
        "seen_at": instant(node.seen),
    }  # fmt: skip


def nodes_table(nodes: Sequence[tuple[Node, bool]]) -> Table:
    """Return nodes as a table, each with whether it is alive."""
    rows = [(node.name, node.kind, "alive" if alive else "gone", iso(node.seen)) for node, alive in nodes]
    return table(("node", "kind", "", "last seen"), rows)


def runs_table(found: Sequence[Run]) -> Table:
    """Return runs as a table."""
    rows = [
        (
            run.job, iso(run.slot), run.state, _attempt(run), run.owner or "",
            _took(run), _why(run) or "",
        )
        for run in found
    ]  # fmt: skip
    return table(("job", "slot", "state", "attempt", "on", "took", "why"), rows)


def _attempt(run: Run) -> str:
    return f"{run.attempt} ({run.trigger})" if run.attempt else ""


def _took(run: Run) -> str:
    if run.started_at is None or run.finished_at is None:
        return ""
    return f"{(run.finished_at - run.started_at) / 1000:.1f} s"


def _why(run: Run) -> str | None:
    """The reason, and for how many slots it holds."""
    if run.count > 1 and run.until is not None:
        least = "at least " if run.state == "missed" and run.count >= COUNTED else ""
        return f"{run.reason}: {least}{run.count} slots until {iso(run.until)}"
    return run.reason


# jobs -------------------------------------------------------------------------------------------


def pause_as_json(job: Job | None) -> dict[str, Any] | None:
    """Return why a job is paused, by whom and since when; None if it is not."""
    if job is None or job.paused is None:
        return None
    return {"reason": job.paused, "by": job.paused_by, "at": instant(job.paused_at)}


def pause_text(job: Job | None) -> str:
    """Return why a job is paused, by whom and since when; nothing if it is not."""
    if job is None or job.paused is None:
        return ""
    return f"{job.paused} (by {job.paused_by or 'somebody'}, {instant(job.paused_at) or 'some time ago'})"


def paused_table(jobs: Sequence[Job]) -> Table:
    """Return jobs that are paused as a table."""
    return table(("paused", "why"), [(job.name, pause_text(job)) for job in jobs])


def job_as_json(view: JobView) -> dict[str, Any]:
    """Return a job as JSON; ``schedule`` of one that only the store knows is as the store keeps it."""
    job = view.stored
    return {
        "job": view.name, "schedule": view.schedule, "zone": view.zone,
        "next_at": instant(view.next_at), "last_slot": instant(view.last_slot),
        "floor": instant(job.floor if job else None),
        "first_seen_at": instant(job.first_seen if job else None), "paused": pause_as_json(job),
        "supervised": view.supervised, "here": view.mine is not None,
    }  # fmt: skip


def jobs_table(views: Sequence[JobView]) -> TableOrCards:
    """Return jobs as a table."""
    heads = ("job", "schedule", "zone", "next", "local", "last slot", "decided up to", "supervised", "note")
    return TableOrCards(heads, [_job_row(view) for view in views])


def _job_row(view: JobView) -> tuple[str | None, ...]:
    floor = instant(view.stored.floor) if view.stored else None
    return (
        view.name, view.schedule, view.zone, *_coming(view), instant(view.last_slot), floor,
        "yes" if view.supervised else "no", _note(view),
    )  # fmt: skip


def _coming(view: JobView) -> tuple[str | None, str | None]:
    """The next time in UTC and at the job's place."""
    if view.mine is None:
        return None, None
    if view.next_at is None:
        return "never" if view.not_before is None else f"not before {iso(view.not_before)}", None
    return iso(view.next_at), local_text(view.next_at, view.mine.zone)


def _note(view: JobView) -> str:
    paused = pause_text(view.stored)
    notes = (
        view.mine is None and "not in this app",
        view.stored is None and "not in the store yet",
        paused and f"paused: {paused}",
    )
    return "; ".join(note for note in notes if note)


# the store --------------------------------------------------------------------------------------


def upgrade_as_json(store: str, done: Upgrade, dry: bool) -> dict[str, Any]:
    """Return what was done to a store's layout, or would be: ``to`` is None where nothing is there yet."""
    return {
        "store": store, "from": done.found, "to": max(done.ways, default=done.found), "dry_run": dry,
        "new": [{"version": version, "what": what} for version, what in done.ways.items()],
    }  # fmt: skip


def upgrade_text(store: str, done: Upgrade, dry: bool) -> str:
    """Return what was done to a store's layout, or would be."""
    if done.found is None:
        return f"nothing to do: {store} has nothing to upgrade yet"
    if not done.ways:
        return f"nothing to do: {store} is of version {done.found} already"
    was = "would be" if dry else "was"
    heads = f"{store} {was} upgraded from version {done.found} to {max(done.ways)}; what is new:"
    return "\n".join([heads, *(f"  {version}: {what}" for version, what in done.ways.items())])


# fire times -------------------------------------------------------------------------------------


def fire_time_as_json(time: FireTime, zone: str) -> dict[str, Any]:
    """Return a fire time as JSON; of several clock changes since the one before each is named."""
    changes = " ".join(offset_text(change.by) for change in time.changes)
    return {
        "slot": iso(time.at), "local": time.local, "zone": zone, "clock_change": changes or None,
        "note": time.note,
    }  # fmt: skip


def fire_times_table(job: AppJob, found: Sequence[FireTime]) -> Table:
    """Return fire times as a table, in UTC and in the job's zone."""
    rows = [(iso(time.at), local_text(time.at, job.zone), _remarks(time)) for time in found]
    made = table(("UTC", job.zone.name, ""), rows)
    for column in made.columns[:2]:
        column.no_wrap = True  # what is said of a time is folded, the time is not
    return made


def _remarks(time: FireTime) -> str:
    return "; ".join([*map(change_text, time.changes), *([time.note] if time.note else [])])

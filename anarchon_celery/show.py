"""What the commands print of runs, nodes, jobs and fire times: rows for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from .desk import AppJob, JobView
from .forecast import FireTime, change_text, local_text, offset_text
from .printing import ODD, Row, TableOrCards, table
from .protocol import BACKFILL, Job, Node, Run
from .slots import COUNTED, iso
from .stores import Upgrade

#: The fields of a run in JSON, the contract's first; instants are those that end in ``_at``.
RUN_FIELDS = (
    "job", "slot", "state", "trigger", "dispatch", "attempt", "crashes", "fence", "owner", "task_id",
    "claimed_at", "queued_at", "started_at", "finished_at", "reason", "kind", "asked_by",
)  # fmt: skip


def instant(ms: int | None) -> str | None:
    """Return an instant as the contract has it, if there is one."""
    return None if ms is None else iso(ms)


# runs and nodes ---------------------------------------------------------------------------------


def run_as_json(run: Run) -> dict[str, Any]:
    """Return a run as the contract's JSON."""
    values = asdict(run)
    instants = {name for name in RUN_FIELDS if name.endswith("_at")} | {"slot"}
    values["reason"] = _why(run)
    shown = {name: instant(values[name]) if name in instants else values[name] for name in RUN_FIELDS}
    return shown | {"late_ms": late(run), "waited_ms": waited(run), "took_ms": took(run)}


def late(run: Run) -> int | None:
    """How long after its slot the run was begun (ms), the last time; of a backfill that says nothing."""
    return None if run.started_at is None or run.kind == BACKFILL else max(0, run.started_at - run.slot)


def waited(run: Run) -> int | None:
    """How long its message waited in the queue (ms), if it was noted before the worker was there."""
    if run.started_at is None or run.queued_at is None or run.started_at < run.queued_at:
        return None
    return run.started_at - run.queued_at


def took(run: Run) -> int | None:
    """How long it ran (ms), once it has ended."""
    return None if run.started_at is None or run.finished_at is None else run.finished_at - run.started_at


#: What each column of a table of runs is called.
RUN_HEADS = ("job", "slot", "state", "attempt", "on", "late", "waited", "took", "why")


def runs_table(found: Sequence[Run]) -> TableOrCards:
    """Return runs as a table."""
    return TableOrCards(RUN_HEADS, [run_cells(run) for run in found])


def run_cells(run: Run) -> Row:
    """Return a run as texts for people, one below each of :data:`RUN_HEADS`."""
    reason, asked_by = _why(run), run.asked_by and f"asked for by {run.asked_by}"
    return (
        run.job, iso(run.slot), run.state, _attempt(run), run.owner, *map(_seconds, (late(run), waited(run))),
        _seconds(took(run)), "; ".join(filter(None, (asked_by, reason))),
    )  # fmt: skip


def _seconds(ms: int | None) -> str | None:
    return None if ms is None else f"{ms / 1000:.1f} s"


def _attempt(run: Run) -> str:
    if run.attempt:
        return f"{run.attempt} ({run.trigger})"
    return "" if run.kind == "scheduled" else f"({run.trigger})"


def _why(run: Run) -> str | None:
    """The reason, and for how many slots it holds."""
    if run.count > 1 and run.until is not None:
        least = "at least " if run.state == "missed" and run.count >= COUNTED else ""
        return f"{run.reason}: {least}{run.count} slots until {iso(run.until)}"
    return run.reason


def node_as_json(node: Node, alive: bool, *, odd: bool = False) -> dict[str, Any]:
    """Return a node as JSON; ``odd`` is a beat with another schedule than most."""
    return {
        "id": node.id, "node": node.name, "app": node.app, "kind": node.kind, "alive": alive,
        "seen_at": instant(node.seen), "version": node.version, "celery": node.celery, "python": node.python,
        "clock_offset_ms": node.clock_offset, "schedule": node.schedule, "other_schedule": odd,
    }  # fmt: skip


def nodes_table(nodes: Sequence[tuple[Node, bool]], odd: Container[str] = ()) -> TableOrCards:
    """Return nodes as a table, each with whether it is alive; those ids are odd by their schedule."""
    heads = ("node", "kind", "", "last seen", "clock", "versions", "schedule")
    return TableOrCards(heads, [node_cells(node, alive, node.id in odd) for node, alive in nodes])


def node_cells(node: Node, alive: bool, odd: bool) -> Row:
    """Return a node as texts for people."""
    clock = None if node.clock_offset is None else f"{node.clock_offset / 1000:+.1f} s"
    versions = "/".join(filter(None, (node.version, node.celery, node.python)))
    schedule = node.schedule and f"{node.schedule}{ODD * odd}"
    return node.name, node.kind, "alive" if alive else "gone", iso(node.seen), clock, versions, schedule


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
    """Return a job as JSON; ``schedule`` of one that only the store knows is as the store was told of it."""
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


def _job_row(view: JobView) -> Row:
    floor = instant(view.stored.floor) if view.stored else None
    return (
        view.name, view.schedule, view.zone, *_coming(view), instant(view.last_slot), floor,
        "yes" if view.supervised else "no", job_note(view),
    )  # fmt: skip


def _coming(view: JobView) -> tuple[str | None, str | None]:
    """The next time in UTC and at the job's place."""
    if view.mine is None or view.fails:
        return None, None
    if view.next_at is None:
        return "never" if view.not_before is None else f"not before {iso(view.not_before)}", None
    return iso(view.next_at), local_text(view.next_at, view.mine.zone)


def job_note(view: JobView) -> str:
    """Return what is to be noted of a job: that it is paused, and who does not know it."""
    paused = pause_text(view.stored)
    notes = (
        view.mine is None and "not in this app",
        view.stored is None and "not in the store yet",
        view.fails and "its schedule fails",
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
    """Return fire times as a table, in UTC and in the job's zone, where that is another one."""
    zones = ("UTC",) if job.zone.name == "UTC" else ("UTC", job.zone.name)
    rows = [
        (*(iso(time.at), local_text(time.at, job.zone))[: len(zones)], _remarks(time)) for time in found
    ]
    made = table((*zones, ""), rows)
    for column in made.columns[: len(zones)]:
        column.no_wrap = True  # what is said of a time is folded, the time is not
    return made


def _remarks(time: FireTime) -> str:
    return "; ".join([*map(change_text, time.changes), *([time.note] if time.note else [])])

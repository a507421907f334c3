"""``celery -A proj anarchon …``: what the cluster does, for people and, with ``--json``, for machines.

Exit status: 0; 1 where the store cannot be reached or used, or where ``doctor`` found something; 2 where
the command, a job's name or a setting is wrong. An entry that beat would refuse is said on standard
error and changes no status: what was asked for is the rest, and that is right.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import click

from .config import Config, shown
from .desk import AppJob, Desk, Refused, begun, store_errors
from .doctor import findings
from .errors import SettingError, StoreError, in_one_line
from .forecast import FireTime, forecast, read_moment
from .protocol import ACTIVE, BUFFERED, ENDED, Job
from .show import (
    fire_time_as_json,
    fire_times_table,
    job_as_json,
    jobs_table,
    node_as_json,
    nodes_table,
    pause_as_json,
    pause_text,
    paused_table,
    print_json,
    printer,
    run_as_json,
    runs_table,
    upgrade_as_json,
    upgrade_text,
)
from .slots import FireTimes, iso

STATES = sorted(ACTIVE | ENDED | {BUFFERED})

#: Why a job is paused where nobody said.
NO_REASON = "no reason given"

#: Of a pause, in characters.
LONGEST_REASON = 200


@click.group()
@click.pass_context
def anarchon(context: click.Context, /, **_preload: Any) -> None:
    """See the jobs of beat and their runs, and who holds them."""
    app = context.obj.app
    if app.main == "default":
        raise click.UsageError("name your project: celery -A proj anarchon …")
    try:
        config = Config.of(app)
    except SettingError as reason:
        raise Refused(str(reason)) from reason
    context.obj = Desk(app, config)
    context.call_on_close(context.obj.close)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
pass_desk = click.make_pass_decorator(Desk)


# what there is ----------------------------------------------------------------------------------


@anarchon.command()
@as_json
@pass_desk
def status(desk: Desk, as_json: bool) -> None:
    """Show the store, the nodes, the jobs that are paused, and the runs that are active or wait."""
    with store_errors():
        nodes = desk.store.nodes()
        active = [run for state in sorted(ACTIVE) for run in desk.store.runs(state=state, limit=1000)]
        waiting = desk.store.runs(state=BUFFERED, limit=1000)
        jobs = desk.store.jobs()
    paused = [job for job in jobs if job.paused is not None]
    if as_json:
        print_json({
            "store": desk.store.shown, "jobs": len(jobs),
            "nodes": [node_as_json(node, desk.is_alive(node)) for node in nodes],
            "paused": [{"job": job.name} | (pause_as_json(job) or {}) for job in paused],
            "active": [run_as_json(run) for run in active],
            "buffered": [run_as_json(run) for run in waiting],
        })  # fmt: skip
        return
    print_ = printer()
    print_(f"store {desk.store.shown}, {len(jobs)} job{'s' * (len(jobs) != 1)}")
    print_(nodes_table([(node, desk.is_alive(node)) for node in nodes]))
    if paused:
        print_(paused_table(paused))
    print_(runs_table([*active, *waiting]) if active or waiting else "no run is active")


@anarchon.command()
@click.option("--job", help="Only the runs of this job.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("-n", "limit", type=click.IntRange(1), default=50, show_default=True, help="How many.")
@as_json
@pass_desk
def runs(desk: Desk, job: str | None, state: str | None, limit: int, as_json: bool) -> None:
    """Show what ran when, newest first."""
    with store_errors():
        found = desk.store.runs(job=job, state=state, limit=limit)
    if as_json:
        print_json([run_as_json(run) for run in found])
    else:
        printer()(runs_table(found) if found else "no runs")


@anarchon.command()
@as_json
@pass_desk
def jobs(desk: Desk, as_json: bool) -> None:
    """Show the jobs of this app and of the store: when each fires next, what was decided, what is paused."""
    with store_errors():
        views = desk.views()
    for line in desk.refusal_lines():
        click.echo(line, err=True)
    if as_json:
        print_json([job_as_json(view) for view in views])
    else:
        printer()(jobs_table(views) if views else "no jobs")


# when a job fires -------------------------------------------------------------------------------


@anarchon.command("next")
@click.argument("name", metavar="JOB")
@click.option("-n", "count", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many.")
@click.option(
    "--from", "moment", metavar="T",
    help="Begin at T, not now: 2026-03-29, '2026-03-29 02:30' (in the job's zone) or 2026-03-29T01:00Z.",
)  # fmt: skip
@as_json
@pass_desk
def next_(desk: Desk, name: str, count: int, moment: str | None, as_json: bool) -> None:
    """Show when a job fires next, in UTC and in its zone, and what the clock does in between."""
    job = desk.job(name)
    begin = _now() if moment is None else _moment(moment, job)
    try:
        times, begin = begun(job.times, _stored(desk, job), begin)
        found = forecast(times, job.zone, begin=begin, count=count)
    except Exception as reason:  # somebody's own schedule
        raise Refused(f"entry {name!r}: {in_one_line(reason)}") from reason
    if as_json:
        print_json([fire_time_as_json(time, job.zone.name) for time in found])
        return
    print_ = printer()
    if found:
        print_(fire_times_table(job, found))
    if len(found) < count:
        print_(_end(name, times, found, begin))


def _now() -> int:
    return time.time_ns() // 1_000_000


def _moment(text: str, job: AppJob) -> int:
    try:
        return read_moment(text, job.zone)
    except ValueError as reason:
        raise Refused(f"--from: {reason}") from reason


def _stored(desk: Desk, job: AppJob) -> Job | None:
    """Return what the store knows of the job, where its fire times depend on that."""
    if not job.times.chained:
        return None
    try:
        return next((one for one in desk.store.jobs() if one.name == job.name), None)
    except StoreError as reason:
        why = "each time of this schedule follows from the last decided slot, which only the store knows"
        click.echo(f"{reason}; {why}: counted from where you ask instead", err=True)
        return None


def _end(name: str, times: FireTimes, found: Sequence[FireTime], begin: int) -> str:
    """Say why there are no more times."""
    last = found[-1].at if found else begin - 1
    looked = times.looked_until(last)
    if looked is not None:
        return f"{name} does not fire before {iso(looked)}; its schedule is not asked about more at once"
    return f"{name} does not fire again" if found else f"{name} does not fire any more after {iso(begin)}"


# pausing ----------------------------------------------------------------------------------------


@anarchon.command()
@click.argument("name", metavar="JOB")
@click.option("--reason", help="Why, for whoever wonders; of a job that is paused already the new reason.")
@as_json
@pass_desk
def pause(desk: Desk, name: str, reason: str | None, as_json: bool) -> None:
    """Pause a job: its slots are skipped, what waits to be started goes on waiting, what runs goes on."""
    why = NO_REASON if reason is None else _reason(reason)
    with store_errors():
        before = now = desk.stored(name)
        if reason is not None or before.paused is None:
            if not desk.store.pause(name, reason=why, by=_somebody()):
                raise desk.unknown(name, desk.jobs)
            now = desk.stored(name)
    if as_json:
        print_json({"job": name, "paused": pause_as_json(now), "was_paused": pause_as_json(before)})
        return
    if before is now:
        printer()(f"{name} is paused already: {pause_text(now)}")
        return
    if before.paused is not None:
        printer()(f"{name} was paused already: {pause_text(before)}")
    printer()(f"{name} is paused: {pause_text(now)}")


@anarchon.command()
@click.argument("name", metavar="JOB")
@as_json
@pass_desk
def resume(desk: Desk, name: str, as_json: bool) -> None:
    """Let a paused job go on, with what waited and with its next slot."""
    with store_errors():
        before = desk.stored(name)
        was_paused = desk.store.resume(name)
    if as_json:
        print_json({"job": name, "paused": None, "was_paused": pause_as_json(before) if was_paused else None})
    elif was_paused:
        printer()(f"{name} goes on; it was paused: {pause_text(before)}")
    else:
        printer()(f"{name} is not paused")


# the store -------------------------------------------------------------------------------------


@anarchon.command()
@click.option("--dry-run", "dry", is_flag=True, help="Only say what would be done.")
@as_json
@pass_desk
def upgrade(desk: Desk, dry: bool, as_json: bool) -> None:
    """Bring a store of an older release to the layout of this one; nodes that wait for it go on then."""
    with store_errors():
        done = desk.store.upgrade(dry=dry)
    if as_json:
        print_json(upgrade_as_json(desk.store.shown, done, dry))
    else:
        printer()(upgrade_text(desk.store.shown, done, dry))


@anarchon.command()
@as_json
@pass_desk
def doctor(desk: Desk, as_json: bool) -> None:
    """Look for what is not right with the settings, the store and the nodes, and say what to do."""
    found = list(findings(desk))
    if as_json:
        print_json([{"check": one.check, "finding": one.line} for one in found])
    else:
        printer()("\n".join(one.line for one in found) or "nothing is wrong")
    if found:
        raise click.exceptions.Exit(1)


def _reason(text: str) -> str:
    """Return a reason as one line that any store keeps."""
    line = " ".join(text.split())
    if not line.isprintable() or not 0 < len(line) <= LONGEST_REASON:
        raise Refused(f"--reason={shown(text)}: 1 to {LONGEST_REASON} printable characters are right")
    return line


def _somebody() -> str:
    """Return who asks, as ``user@host``; in a container a user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"

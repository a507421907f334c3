"""``celery -A proj anarchon …``: what the cluster does, for people and, with ``--json``, for machines.

Exit status: 0; 1 where the store cannot be reached or used, or where ``doctor`` found something; 2 where
the command, a job's name or a setting is wrong. An entry that beat would refuse is said on standard
error and changes no status: what was asked for is the rest, and that is right.
"""

from __future__ import annotations

import time
from typing import Any

import click

from .asking import backfill, trigger
from .completing import job_argument, job_names
from .desk import AppJob, Desk, Refused, as_json_option, begun, pass_desk, store_errors
from .doctor import findings
from .errors import StoreError, in_one_line
from .forecast import end_of, forecast, read_moment
from .health import health
from .printing import print_json, printer
from .protocol import ACTIVE, BUFFERED, ENDED, Job
from .show import (
    fire_time_as_json,
    fire_times_table,
    job_as_json,
    jobs_table,
    run_as_json,
    runs_table,
    upgrade_as_json,
    upgrade_text,
)
from .status import Status, status_as_json, status_tables, watch
from .steering import COMMANDS

STATES = sorted(ACTIVE | ENDED | {BUFFERED})


@click.group()
def anarchon(**_preload: Any) -> None:
    """See the jobs of beat and their runs, and who holds them."""


# what there is ----------------------------------------------------------------------------------


@anarchon.command()
@click.option(
    "--watch", "every", is_flag=False, flag_value=2.0, type=click.FloatRange(min=0.2), metavar="[SECONDS]",
    help="Show it again and again, every two seconds if nothing else is said; Ctrl-C ends it.",
)  # fmt: skip
@as_json_option
@pass_desk
def status(desk: Desk, every: float | None, as_json: bool) -> None:
    """Show the store, the nodes, the jobs that are paused, and the runs that are active or wait."""
    if every is not None and as_json:
        raise Refused("--watch is for people: --json shows it once")
    if every is not None:
        watch(lambda: _status_tables(desk), every)
        return
    with store_errors():
        now = Status.of(desk)
    if as_json:
        print_json(status_as_json(now))
    else:
        print_ = printer()
        for one in status_tables(now):
            print_(one)


def _status_tables(desk: Desk) -> list[Any]:
    """What is shown now; where the store does not answer, that."""
    try:
        return status_tables(Status.of(desk))
    except StoreError as reason:
        return [str(reason)]


@anarchon.command()
@click.option("--job", shell_complete=job_names, help="Only the runs of this job.")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option(
    "-n", "limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="How many."
)
@as_json_option
@pass_desk
def runs(desk: Desk, job: str | None, state: str | None, limit: int, as_json: bool) -> None:
    """Show what ran when, newest first."""
    with store_errors():
        found = desk.store.runs(job=job, state=state, limit=limit)
        if job is not None and not found and job not in desk.jobs:
            desk.stored(job)  # else it is a slip
    if as_json:
        print_json([run_as_json(run) for run in found])
    else:
        printer()(runs_table(found) if found else "no runs")


@anarchon.command()
@as_json_option
@pass_desk
def jobs(desk: Desk, as_json: bool) -> None:
    """Show the jobs of this app and of the store: when each fires next, what was decided, what is paused."""
    with store_errors():
        views = desk.views()
    for line in [*desk.refusal_lines(), *desk.notes()]:
        click.echo(line, err=True)
    if as_json:
        print_json([job_as_json(view) for view in views])
    else:
        printer()(jobs_table(views) if views else "no jobs")


# when a job fires -------------------------------------------------------------------------------


@anarchon.command("next")
@job_argument
@click.option("-n", "count", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many.")
@click.option(
    "--from", "moment", metavar="T",
    help="Begin at T, not now: 2026-03-29, '2026-03-29 02:30' (in the job's zone) or 2026-03-29T01:00Z.",
)  # fmt: skip
@as_json_option
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
        print_(f"{name} {end_of(times, found, begin)}")


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


# the store -------------------------------------------------------------------------------------


@anarchon.command()
@click.option("--dry-run", "dry", is_flag=True, help="Only say what would be done.")
@as_json_option
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
@as_json_option
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


for command in (*COMMANDS, trigger, backfill, health):
    anarchon.add_command(command)

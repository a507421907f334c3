"""The commands that steer: pause, resume, cancel, forget, prune. Those that ask for runs: :mod:`.asking`.

What cannot be undone asks first; ``--yes`` answers.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable

import click

from . import durations
from .completing import job_argument
from .config import LONGEST, shown
from .desk import Desk, Refused, as_json_option, pass_desk, store_errors
from .events import RunCancelled, attempt_of, emit, log_runs
from .forecast import read_moment
from .printing import print_json, printer
from .protocol import BACKFILL, MANUAL, Job, Run, RunKey
from .scheduler import HISTORY_PER_JOB, PRUNE_AT_ONCE
from .show import pause_as_json, pause_text, run_as_json, runs_table
from .wallclock import Zone
from .zones import UTC

#: Why a job is paused, or a run is cancelled, where nobody said.
NO_REASON = "no reason given"

#: Of a reason, in characters.
LONGEST_REASON = 200

#: How many runs of a forgotten job are named that stay, because they go on.
STAYS_SHOWN = 100

KINDS = ("scheduled", MANUAL, BACKFILL)

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


# pausing ----------------------------------------------------------------------------------------


@click.command()
@job_argument
@click.option("--reason", help="Why, for whoever wonders; of a job that is paused already the new reason.")
@as_json_option
@pass_desk
def pause(desk: Desk, name: str, reason: str | None, as_json: bool) -> None:
    """Pause a job: its slots are skipped, what waits to be started goes on waiting, what runs goes on."""
    before, now = paused(desk, name, None if reason is None else one_line(reason), by=somebody())
    if as_json:
        print_json({"job": name, "paused": pause_as_json(now), "was_paused": pause_as_json(before)})
    else:
        printer()("\n".join(pause_lines(before, now)))


def paused(desk: Desk, name: str, reason: str | None, *, by: str) -> tuple[Job, Job]:
    """Pause a job; return it as it was and as it is. One that is paused already only gets a new reason."""
    with store_errors():
        before = desk.stored(name)
        if reason is None and before.paused is not None:
            return before, before
        desk.store.pause(name, reason=NO_REASON if reason is None else reason, by=by)
        return before, desk.stored(name)  # or it is gone meanwhile


def pause_lines(before: Job, now: Job) -> list[str]:
    """Say what became of a job that somebody paused."""
    if before is now:
        return [f"{now.name} is paused already: {pause_text(now)}"]
    was = [f"{now.name} was paused already: {pause_text(before)}"] if before.paused is not None else []
    if now.paused is None:
        return [*was, f"{now.name} goes on: somebody resumed it meanwhile"]
    return [*was, f"{now.name} is paused: {pause_text(now)}"]


@click.command()
@job_argument
@as_json_option
@pass_desk
def resume(desk: Desk, name: str, as_json: bool) -> None:
    """Let a paused job go on, with what waited and with its next slot."""
    before = resumed(desk, name)
    if as_json:
        print_json({"job": name, "paused": None, "was_paused": pause_as_json(before)})
    else:
        printer()(resume_line(name, before))


def resumed(desk: Desk, name: str) -> Job | None:
    """Let a paused job go on, and return it as it was; None if it was not paused."""
    with store_errors():
        before = desk.stored(name)
        return before if desk.store.resume(name) else None


def resume_line(name: str, before: Job | None) -> str:
    """Say what became of a job that somebody resumed."""
    if before is None:
        return f"{name} is not paused"
    return f"{name} goes on; it was paused: {pause_text(before)}"


# the end of runs --------------------------------------------------------------------------------


@click.command()
@job_argument
@click.argument("slot", metavar="SLOT")
@click.option("--kind", type=click.Choice(KINDS), help="Which, where there are several of that slot.")
@click.option("--reason", help="Why, for whoever wonders.")
@as_json_option
@pass_desk
def cancel(
    desk: Desk, name: str, slot: str, kind: str | None, reason: str | None, as_json: bool
) -> None:
    """End a run: one that runs is asked to stop, any other ends at once. SLOT is as `runs` shows it."""
    why = None if reason is None else one_line(reason)
    with store_errors():
        before = _found(desk, name, slot, kind)
    run = cancelled(desk, before, why, by=somebody())
    if as_json:
        answer = "asked to stop" if run.state == "running" else run.state
        print_json({"answer": answer, "run": run_as_json(run)})
    else:
        printer()(cancel_line(run))
    if run.state not in ("running", "cancelled"):
        raise click.exceptions.Exit(1)


def cancelled(desk: Desk, before: Run, reason: str | None, *, by: str) -> Run:
    """Have a run stop, and return it as it is then."""
    why = f"cancelled by {by}: {NO_REASON if reason is None else reason}"
    with store_errors():
        run = desk.store.cancel(before.key, reason=why)
    if run is None:  # it went with old history meanwhile
        raise Refused(f"there is no run {before.key}")
    if run.state == "cancelled" != before.state:  # held by nobody, who else would say it?
        log_runs(desk.config.log_runs)
        emit(RunCancelled(run.key, why, **attempt_of(run)))
    return run


def cancel_line(run: Run) -> str:
    """Say what became of a run that somebody cancelled."""
    if run.state == "running":
        return f"{run.key} is asked to stop: {run.owner} hears it at its next heartbeat"
    return f"{run.key} is {'cancelled' if run.state == 'cancelled' else f'over already: {run.state}'}"


def _found(desk: Desk, name: str, slot: str, kind: str | None) -> Run:
    """Return the run that somebody means, or end the command with one line."""
    job = desk.jobs.get(name)
    at = moment_of(slot, UTC if job is None else job.zone, "SLOT")
    keys = [RunKey(name, at, one) for one in (KINDS if kind is None else (kind,))]
    runs = [run for key in keys if (run := desk.store.run(key)) is not None]
    if not runs:
        desk.stored(name)
        raise Refused(f"there is no run {RunKey(name, at)}; `runs --job {name}` lists all there are")
    if len(runs) > 1:
        kinds = " and ".join(run.kind for run in runs)
        raise Refused(f"there are runs {RunKey(name, at)} of several kinds: name one by --kind, {kinds}")
    return runs[0]


@click.command()
@job_argument
@yes_option
@as_json_option
@pass_desk
def forget(desk: Desk, name: str, yes: bool, as_json: bool) -> None:
    """Forget what ran of a job, for good. What is active stays, and no old slot is run anew."""
    with store_errors():
        desk.stored(name)
        ask_first(f"Forget all that ran of {name}?", yes=yes, as_json=as_json)
        gone = _until_none(lambda: desk.store.forget(name, limit=PRUNE_AT_ONCE))
        left = [run for run in desk.store.runs(job=name, limit=STAYS_SHOWN) if not run.ended]
    if as_json:
        print_json({"job": name, "forgotten": gone, "left": [run_as_json(run) for run in left]})
        return
    printer()(f"{gone} run{'s' * (gone != 1)} of {name} forgotten")
    if left:
        printer()(runs_table(left))
        printer()("this goes on: `cancel` ends it")


@click.command()
@click.option("--history", metavar="DURATION", help="Keep what ended within it; the setting's, if not given.")
@as_json_option
@pass_desk
def prune(desk: Desk, history: str | None, as_json: bool) -> None:
    """Clear old history away now, as every beat does by itself once a minute."""
    kept = desk.config.history if history is None else _duration(history)
    with store_errors():
        gone = _until_none(
            lambda: desk.store.prune(history=kept, most=HISTORY_PER_JOB, limit=PRUNE_AT_ONCE)
        )
    if as_json:
        print_json({"forgotten": gone, "history": durations.text(kept)})
    else:
        printer()(f"{gone} run{'s' * (gone != 1)} forgotten or folded; kept is {durations.text(kept)}")


def _until_none(step: Callable[[], int]) -> int:
    """Do something in steps until nothing is left of it; return how much it was."""
    total = 0
    while count := step():
        total += count
    return total


# what somebody says -----------------------------------------------------------------------------


def ask_first(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask first; a program that reads JSON has to have said so."""
    if yes:
        return
    if as_json:
        raise Refused("--json does not ask: --yes is right, or first --dry-run where there is one")
    click.confirm(question, abort=True, err=True)


def moment_of(text: str, zone: Zone, name: str) -> int:
    """Return the moment that somebody means, in this zone if they name none; ``name`` is the option's."""
    try:
        return read_moment(text, zone)
    except ValueError as reason:
        raise Refused(f"{name}: {reason}") from reason


def _duration(text: str) -> int:
    try:
        found = durations.written(text)
    except ValueError as reason:
        raise Refused(f"--history: {reason}") from reason
    if found > LONGEST:
        raise Refused(f"--history={shown(text)}: up to {durations.text(LONGEST)} is right")
    return found


def one_line(text: str, name: str = "--reason") -> str:
    """Return a reason as one line that any store keeps; ``name`` is what it was given as."""
    line = " ".join(text.split())
    if not line.isprintable() or not 0 < len(line) <= LONGEST_REASON:
        raise Refused(f"{name}={shown(text)}: 1 to {LONGEST_REASON} printable characters are right")
    return line


def somebody() -> str:
    """Return who asks, as ``user@host``; in a container a user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


COMMANDS = (pause, resume, cancel, forget, prune)

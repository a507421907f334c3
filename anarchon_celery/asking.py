"""The commands that ask for runs: trigger, for now; backfill, of slots that were."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import click

from .arguments import written
from .completing import job_argument
from .config import shown
from .desk import AppJob, Desk, Refused, as_json_option, pass_desk, store_errors
from .entries import refuse_arguments
from .errors import ArgumentsError, ScheduleError, StoreUnreachable
from .forecast import local_text
from .printing import TableOrCards, print_json, printer
from .protocol import Request, Requested
from .show import run_as_json
from .slots import iso
from .steering import ask_first, moment_of, somebody, yes_option
from .stores import CHUNK, new_nonce

#: How many runs one backfill enters, unless somebody says more.
MOST_AT_ONCE = 100

Answer = TypeVar("Answer")

json_list = click.option("--args", metavar="JSON", help="Positional arguments, in place of the entry's.")
json_dict = click.option("--kwargs", metavar="JSON", help="Named arguments, in place of the entry's.")


@click.command()
@job_argument
@json_list
@json_dict
@as_json_option
@pass_desk
def trigger(desk: Desk, name: str, args: str | None, kwargs: str | None, as_json: bool) -> None:
    """Run a job now, whether it is paused or not, beside its schedule."""
    answer, note = triggered(desk, _request(desk, name, args, kwargs, by=somebody()))
    _say(note)
    if as_json:
        print_json(_answer_as_json(answer))
    else:
        printer()(trigger_line(name, answer))
    if answer.run is None:
        raise click.exceptions.Exit(1)


def triggered(desk: Desk, asked: Request) -> tuple[Requested, str | None]:
    """Ask for a run for now; return what became of it, and what is to be said beside that."""
    with store_errors():
        desk.stored(asked.job)
        answer = _persist(partial(desk.store.trigger, asked, nonce=new_nonce()))
        return answer, _if_nobody_dispatches(desk)


def request_for(desk: Desk, name: str, *, by: str) -> Request:
    """Return the request for a run of a job with its own arguments, as its policy has it."""
    return _request(desk, name, None, None, by=by)


@click.command()
@job_argument
@click.option(
    "--from", "begin", metavar="T", required=True,
    help="The first slot is at T or later: 2026-03-29, '2026-03-29 02:30' (in the job's zone), …Z.",
)  # fmt: skip
@click.option("--to", "end", metavar="T", required=True, help="All slots are before T.")
@click.option(
    "--most", type=click.IntRange(1, 10_000), default=MOST_AT_ONCE, show_default=True,
    help="Refuse to enter more.",
)  # fmt: skip
@click.option("--dry-run", "dry", is_flag=True, help="Only say which slots these are.")
@json_list
@json_dict
@yes_option
@as_json_option
@pass_desk
def backfill(
    desk: Desk, name: str, begin: str, end: str, most: int, dry: bool, args: str | None, kwargs: str | None,
    yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run the slots of a job that were between two moments, each as a run of its own, one after the other."""
    asked, job = _request(desk, name, args, kwargs, by=somebody()), desk.job(name)
    slots = _slots(desk, job, begin, end, most)
    with store_errors():
        desk.stored(name)
    answers: list[Requested] = []
    if not dry and slots:
        number, span = len(slots), f"from {iso(slots[0])} to {iso(slots[-1])}"
        ask_first(f"Run {number} slot{'s' * (number > 1)} of {name}, {span}?", yes=yes, as_json=as_json)
        with store_errors():
            answers = _entered(desk, asked, slots)
            _say(_if_nobody_dispatches(desk))
    if as_json:
        said = [{"slot": iso(slot)} | _as_json(answers, place) for place, slot in enumerate(slots)]
        print_json({"job": name, "dry_run": dry, "slots": said})
    elif slots:
        printer()(_table(job, slots, answers))
    else:
        printer()(f"{name} did not fire in that time")
    if any(answer.answer not in ("released", "buffered", "taken") for answer in answers):
        raise click.exceptions.Exit(1)


def _as_json(answers: Sequence[Requested], place: int) -> dict[str, Any]:
    return _answer_as_json(answers[place]) if answers else {"answer": None, "wait_ms": None, "run": None}


def _slots(desk: Desk, job: AppJob, begin: str, end: str, most: int) -> list[int]:
    """Return the slots between two moments, as far as they are due."""
    if job.times.chained:
        raise Refused(f"{job.name}: each time of its schedule follows from the one before: none can be told")
    first, until = moment_of(begin, job.zone, "--from"), moment_of(end, job.zone, "--to")
    if until <= first:
        raise Refused(f"--to: {iso(until)} is not after {iso(first)}, the moment of --from")
    with store_errors():
        desk.store.nodes()  # what time it is in the store
    found = job.times.between(first - 1, min(until - 1, desk.store.clock.now()))
    slots = list(islice(found, most + 1))
    if len(slots) > most:
        raise Refused(f"{job.name} fired more than {most} times in that time: --most allows more")
    return slots


def _entered(desk: Desk, asked: Request, slots: Sequence[int]) -> list[Requested]:
    """Enter runs of slots, each batch under one nonce."""
    answers: list[Requested] = []
    for start in range(0, len(slots), CHUNK):
        some, nonce = slots[start : start + CHUNK], new_nonce()
        answers += _persist(partial(desk.store.backfill, asked, some, nonce=nonce))
    return answers


def _persist(ask: Callable[[], Answer]) -> Answer:
    """Ask, and once more if no answer came: it may have been carried out, and is known again."""
    try:
        return ask()
    except StoreUnreachable:
        return ask()


def _request(desk: Desk, name: str, args: str | None, kwargs: str | None, *, by: str) -> Request:
    """Return what is asked for, as the job's policy has it."""
    job = desk.jobs.get(name)
    given_args, given_kwargs = _json("--args", args, list), _json("--kwargs", kwargs, dict)
    policy = desk.config.policy if job is None else job.policy
    try:
        if job is not None and (given_args is not None or given_kwargs is not None):
            refuse_arguments(desk.app, job.entry, given_args, given_kwargs)
        text = written(given_args, given_kwargs)
    except (ArgumentsError, ScheduleError) as reason:
        raise Refused(str(reason)) from reason
    return Request(job=name, by=by, arguments=text, overlap=policy.overlap, lease=policy.lease)


def _json(option: str, text: str | None, kind: type[Any]) -> Any:
    if text is None:
        return None
    right = """'["eu", 3]'""" if kind is list else """'{"full": true}'"""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as reason:
        raise Refused(f"{option}={shown(text)}: JSON is right, such as {right}: {reason}") from reason
    if not isinstance(value, kind):
        what = "array" if kind is list else "object"
        raise Refused(f"{option}={shown(text)}: a JSON {what} is right, such as {right}")
    return value


def _no_constant(name: str) -> Any:
    """Python reads numbers that JSON does not have."""
    raise ValueError(f"{name} is no JSON")


def _if_nobody_dispatches(desk: Desk) -> str | None:
    if any(node.kind == "beat" and desk.is_alive(node) for node in desk.store.nodes()):
        return None
    return "no beat is alive: it waits until one is started"


def _say(note: str | None) -> None:
    if note is not None:
        click.echo(note, err=True)


# what became of it -------------------------------------------------------------------------------


def _answer_as_json(answer: Requested) -> dict[str, Any]:
    """Return what became of a run that somebody asked for as JSON."""
    run = None if answer.run is None else run_as_json(answer.run)
    return {"answer": answer.answer, "wait_ms": answer.wait or None, "run": run}


def trigger_line(name: str, answer: Requested) -> str:
    """Say what became of a run that somebody asked for."""
    if answer.run is None:
        return f"{name} is not run: {_answer_text(answer)}"
    return f"{answer.run.key} ({answer.run.kind}): {_answer_text(answer)}"


def _answer_text(answer: Requested) -> str:
    wait = f"{answer.wait / 1000:.0f} s"
    return {
        "released": "dispatched at the next poll of a beat",
        "buffered": "waits for the runs of its job that are before it",
        "taken": f"there is such a run already ({answer.run.state if answer.run else ''})",
        "early": f"not due for {wait}",
        "wait": f"the store has forgotten something and is young: ask again in {wait}",
        "unknown": "no node has told the store of it",
    }[answer.answer]


def _table(job: AppJob, slots: Sequence[int], answers: Sequence[Requested]) -> TableOrCards:
    """Return the slots of a backfill, and what became of each; without answers nothing did."""
    said = [_answer_text(answer) for answer in answers] or [""] * len(slots)
    rows = [(iso(slot), local_text(slot, job.zone), one) for slot, one in zip(slots, said, strict=True)]
    return TableOrCards(("slot", job.zone.name, ""), rows)

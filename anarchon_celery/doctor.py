"""What is not right with an app and its store, each in one line that says what to do.

A check is a function that yields such lines, and stands in one of the two lists below: those of the app
look at nothing but its settings and entries; those of the store end at the first call it does not
answer, or refuses, because what it says then is what is to be done first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import click

from .desk import AppJob, Desk
from .dispatch import BrokerDown, Publisher
from .errors import StoreError, in_one_line
from .protocol import ACTIVE, BUFFERED, Job, Node, Run
from .slots import iso
from .status import MOST, odd_schedules

#: How long ago a node may have been seen that counts as alive (ms): a beat says so every few seconds.
ALIVE_FOR = 60_000

#: How far a node's wall clock may be off (ms): Celery's countdowns and expiries go by it.
CLOCK_OFF = 2_000

#: How long after its time something has to have been done, beyond what the settings allow (ms).
OVERDUE = 60_000

#: How often a message may have been sent that no worker started.
UNSTARTED = 2

#: How long a broker is waited for, and workers that are asked what they know (seconds).
BROKER_WITHIN, WORKERS_WITHIN = 5.0, 1.0

#: How many of a kind are named; the rest is counted.
NAMED = 5

Check = Callable[[Desk], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is not right, where it was looked for, and what to do."""

    check: str
    line: str


def settings(desk: Desk) -> Iterator[str]:
    """Settings that a node would warn of."""
    yield from desk.config.warnings


def entries(desk: Desk) -> Iterator[str]:
    """Entries that a beat would refuse."""
    if desk.jobs or desk.refusals:  # in this order: the one is where the other comes from
        yield from desk.refusals


def server(desk: Desk) -> Iterator[str]:
    """A server that does not keep what it is given."""
    yield from desk.store.complaints()


def apps(desk: Desk) -> Iterator[str]:
    """Two apps that are alive at once on one prefix: each knows the other's jobs as its own."""
    found: dict[str, list[str]] = {}
    for node in desk.store.nodes():
        if node.app and node.seen >= desk.store.clock.now() - ALIVE_FOR:
            found.setdefault(node.app, []).append(node.name)
    if len(found) > 1:
        named = "; ".join(f"{app} on {', '.join(nodes)}" for app, nodes in sorted(found.items()))
        yield (
            f"{len(found)} apps use the anarchon_prefix {desk.config.prefix!r} of {desk.store.shown} at once "
            f"({named}): give each app an anarchon_prefix of its own"
        )


def broker(desk: Desk) -> Iterator[str]:
    """A broker that does not answer: nothing could be dispatched."""
    with closing(Publisher(desk.app, patience=BROKER_WITHIN)) as publisher:
        try:
            publisher.connected()
        except BrokerDown as reason:
            yield f"broker_url: {reason}; until it does, beats give their claims back and nothing is run"


# nodes ------------------------------------------------------------------------------------------


def clocks(desk: Desk) -> Iterator[str]:
    """Wall clocks that are off: slots come due by the store's clock, but not what Celery delays."""
    for node in _alive(desk):
        if abs(offset := node.clock_offset or 0) > CLOCK_OFF:
            off = f"{abs(offset) / 1000:.1f} s {'ahead of' if offset > 0 else 'behind'} the store's"
            yield (
                f"the clock of {node.kind} {node.name} is {off}: set it, by NTP; slots come due in time all "
                f"the same, but Celery's countdowns, retries and expiries do not"
            )


def schedules(desk: Desk) -> Iterator[str]:
    """Beats with different schedules: right during a deploy, and only then."""
    alive = _alive(desk)
    if odd := odd_schedules(alive):
        names = ", ".join(node.name for node in alive if node.id in odd)
        yield (
            f"beats that are alive have different schedules ({names}, unlike others): if no deploy is going "
            f"on, start those anew that have the old code or other settings"
        )


def tasks(desk: Desk) -> Iterator[str]:
    """Jobs whose task none of the workers knows that answer; or no worker at all."""
    jobs = _jobs(desk)
    if not any(node.kind == "worker" for node in _alive(desk)):
        if any(job.supervised for job in jobs.values()):  # their workers tell of themselves
            yield "no worker is alive: start one, celery -A proj worker"
        return
    try:
        known = desk.app.control.inspect(timeout=WORKERS_WITHIN).registered() or {}
    except Exception as reason:  # the broker's, whichever it is: workers may read from another
        yield f"the workers cannot be asked which tasks they know: {in_one_line(reason)}"
        return
    names = {task.partition(" [")[0] for told in known.values() for task in told}
    for job in jobs.values() if names else ():
        if job.entry.task not in names and not job.entry.task.startswith("celery."):  # those are not told
            yield (
                f"entry {job.name!r}: none of the {len(known)} workers that answer knows the task "
                f"{job.entry.task!r}: start one with the code that has it, or correct the entry"
            )


def _jobs(desk: Desk) -> dict[str, AppJob]:
    """The app's jobs; none where a setting hurts them all, which is told already."""
    try:
        return desk.jobs
    except click.ClickException:
        return {}


def _alive(desk: Desk) -> list[Node]:
    nodes = desk.store.nodes()
    return [node for node in nodes if node.seen >= desk.store.clock.now() - ALIVE_FOR]


# jobs and runs ----------------------------------------------------------------------------------


def overdue(desk: Desk) -> Iterator[str]:
    """Jobs that came due some time ago, and nobody decided that."""
    stored = {job.name: job for job in desk.store.jobs()}
    mine = [job for name, job in _jobs(desk).items() if name in stored]
    if _jobs(desk) and not any(node.kind == "beat" for node in _alive(desk)):
        yield "no beat is alive: start one, celery -A proj beat -S anarchon_celery.Scheduler"
        return
    yield from _each(
        sorted(_jobs(desk).keys() - stored.keys()),
        "is known to no beat: start those anew that have the old code or other settings",
    )
    late = {job.name: at for job in mine if (at := _overdue_since(desk, job, stored[job.name])) is not None}
    yield from _each(
        [f"{name} (due at {iso(at)})" for name, at in sorted(late.items(), key=lambda one: one[1])],
        "came due and nobody has decided about it: is a beat alive that has its entry, and is its log clean?",
    )


def _overdue_since(desk: Desk, job: AppJob, stored: Job) -> int | None:
    """Since when a slot of the job should have been decided, if it should."""
    known = stored.known(job.times.key)
    if known is None or (job.policy.catch_up == "all" and desk.store.runs(job=job.name, limit=1)):
        return None  # its late slots may wait for each other
    cursor = max(known.since, known.floor or known.since)
    at = job.times.since(cursor).next(cursor)
    allowed = desk.config.claim_timeout + job.policy.lease + OVERDUE
    return at if at is not None and at < desk.store.clock.now() - allowed else None


def runs(desk: Desk) -> Iterator[str]:
    """Runs that nobody goes on with, and messages that nobody starts."""
    active = [run for state in sorted(ACTIVE) for run in desk.store.runs(state=state, limit=MOST)]
    active.sort(key=lambda run: run.key)
    latest = desk.store.clock.now() - desk.config.poll - OVERDUE
    stuck = [run for run in active if run.deadline is not None and run.deadline < latest]
    yield from _each(
        map(_named, stuck), "should have gone on and did not: is a beat alive that has its job's entry?"
    )
    paused = {job.name for job in desk.store.jobs() if job.paused is not None}
    waited_for = {run.job for run in active} | paused
    waiting = [run for run in desk.store.runs(state=BUFFERED, limit=MOST) if run.job not in waited_for]
    yield from _each(map(_named, waiting), "waits for nothing: `cancel` it, or `trigger` its job")
    unheard = [run for run in active if run.unstarted >= UNSTARTED]
    yield from _each(
        (f"{_named(run)}, sent {run.unstarted} times" for run in unheard),
        "was not started by any worker: does one listen to its queue, and know its task?",
    )


def _named(run: Run) -> str:
    return f"{run.key} ({run.state})"


def _each(what: Iterable[str], then: str) -> Iterator[str]:
    """Yield one line each, and one for all that are too many."""
    found = list(what)
    yield from (f"{one} {then}" for one in found[:NAMED])
    if len(found) > NAMED:
        yield f"and {len(found) - NAMED} more {then}"


OF_THE_APP: Sequence[Check] = (settings, entries, broker)
OF_THE_STORE: Sequence[Check] = (apps, server, clocks, schedules, tasks, overdue, runs)


def findings(desk: Desk) -> Iterator[Finding]:
    """Look at everything."""
    checks = [*OF_THE_STORE]
    for check in OF_THE_APP:
        try:
            found = [Finding(check.__name__, line) for line in check(desk)]
        except click.ClickException as reason:
            found = [Finding(check.__name__, reason.message)]
        yield from found
        if check is broker and found:
            checks.remove(tasks)  # nobody could be asked, and that is said
    try:
        for check in checks:
            yield from (Finding(check.__name__, line) for line in check(desk))
    except StoreError as reason:
        yield Finding("store", str(reason))
    except click.ClickException as reason:  # it cannot even be opened
        yield Finding("store", reason.message)

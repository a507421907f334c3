"""Every happening, by name: its line word for word, its logger, its level."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from anarchon_celery import events
from anarchon_celery.protocol import RunKey
from anarchon_celery.slots import from_iso

KEY = RunKey("report", from_iso("2026-10-10T12:00:30.000Z"))
SLOT = "[anarchon] report @ 2026-10-10T12:00:30.000Z: "

#: The lines of the contract, then those that it leaves to us.
RUN_LINES = [
    (
        events.SlotClaimed(KEY, "scheduled", node="my-laptop:41822"),
        "DEBUG",
        "claimed by my-laptop:41822 (scheduled)",
    ),
    (
        events.RunTakenOver(KEY, "running", 30_500, node="my-laptop:41822", attempt=1),
        "DEBUG",
        "taken over by my-laptop:41822, 30500 ms after its last heartbeat",
    ),
    (
        events.RunTakenOver(KEY, "released", 12, node="my-laptop:41822", attempt=1),
        "DEBUG",
        "taken over by my-laptop:41822, 12 ms after it was to start again",
    ),
    (
        events.RunDispatched(KEY, "scheduled", node="my-laptop:41822", attempt=1),
        "INFO",
        "dispatched by my-laptop:41822 (attempt 1, scheduled)",
    ),
    (
        events.RunStarted(KEY, "takeover", node="celery@my-laptop:41907", attempt=2),
        "INFO",
        "started on celery@my-laptop:41907 (attempt 2, takeover)",
    ),
    (events.RunFinished(KEY, 203), "INFO", "finished in 203 ms"),
    (events.RunHandedOver(KEY, 5005), "INFO", "interrupted after 5005 ms, handed over to another instance"),
    (events.SlotSkipped(KEY, "taken"), "INFO", "skipped (taken)"),
    (events.SlotSkipped(KEY, "overlap"), "INFO", "skipped (overlap)"),
    (events.SlotSkipped(KEY, "paused"), "INFO", "skipped (paused)"),
    (events.SlotSkipped(KEY, "stale"), "INFO", "skipped (stale)"),
    (events.SlotMissed(KEY), "INFO", "skipped (missed)"),
    (events.RunFailed(KEY, 12, "ValueError: …"), "INFO", "failed after 12 ms: ValueError: …"),
    (
        events.RunWasPlain(KEY),
        "WARNING",
        "not dispatched again: run by a task without the base class, as its result shows",
    ),
    (
        events.RunNotSettled(KEY, "redis://h does not answer"),
        "WARNING",
        "runs without the base class, which the store does not know: redis://h does not answer",
    ),
    (
        events.RunPutBack(KEY, 12004),
        "WARNING",
        "put back after 12004 ms into a store that had forgotten it",
    ),
    (
        events.RunLost(KEY, 31002, "taken over as attempt 2"),
        "WARNING",
        "lease lost after 31002 ms: taken over as attempt 2",
    ),
    (
        events.RunAbandoned(KEY, "3 workers died running it"),
        "ERROR",
        "abandoned: 3 workers died running it",
    ),
    (
        events.RunAskedToStop(KEY, 5005, "overlap: the next slot came due"),
        "INFO",
        "asked to stop after 5005 ms: overlap: the next slot came due",
    ),
    (
        events.RunCancelled(KEY, "overlap: the next slot came due", 5005),
        "INFO",
        "cancelled after 5005 ms: overlap: the next slot came due",
    ),
    (events.RunCancelled(KEY, "by alice", 0), "INFO", "cancelled after 0 ms: by alice"),
    (
        events.RunCancelled(KEY, "overlap: the next slot came due"),
        "INFO",
        "cancelled: overlap: the next slot came due",
    ),
    (
        events.RunBuffered(KEY, "the run before it ends"),
        "INFO",
        "buffered until the run before it ends",
    ),
    (events.RunBuffered(KEY, "its job is resumed"), "INFO", "buffered until its job is resumed"),
    (events.RunRetried(KEY, 40, 2), "INFO", "retry 2 requested after 40 ms"),
    (
        events.MessageGivenBack(KEY, "the store does not answer", 5.0),
        "WARNING",
        "given back for 5 s: the store does not answer",
    ),
    (
        events.RunNotPublished(KEY, "TypeError: x", certain=True),
        "ERROR",
        "not published, given back: TypeError: x",
    ),
    (
        events.RunNotPublished(KEY, "ConnectionError: x", certain=False),
        "ERROR",
        "not published, perhaps out, so its deadline decides: ConnectionError: x",
    ),
    (
        events.RunUnrecorded(KEY, "succeeded", "no answer"),
        "ERROR",
        "succeeded, but that could not be recorded: no answer",
    ),
    (
        events.RunCrashed(KEY, 3173, "process 4711: it was killed"),
        "WARNING",
        "its worker died after 3173 ms, the run is given back: process 4711: it was killed",
    ),
    (
        events.RunInterrupted(KEY, 4354, 1.0),
        "WARNING",
        "interrupted after 4354 ms: it went on for 1 s after its lease was lost",
    ),
    (
        events.RunKilled(KEY, 4711, 2.5),
        "ERROR",
        "process 4711 is killed: its task went on for 2.5 s after its lease was lost",
    ),
]

NODE_LINES = [
    (
        events.BeatStarted("redis://localhost:6379/1", 12, "30 s", node="my-laptop:41822"),
        "INFO",
        "started as my-laptop:41822 (store redis://localhost:6379/1, 12 jobs, lease 30 s)",
    ),
    (
        events.BeatStarted("memory://", 1, "2.5 s", node="a:1"),
        "INFO",
        "started as a:1 (store memory://, 1 job, lease 2.5 s)",
    ),
    (
        events.BeatStarted("memory://", 0, "30 s", node="a:1"),
        "INFO",
        "started as a:1 (store memory://, 0 jobs, lease 30 s)",
    ),
    (events.Noted("a note"), "WARNING", "a note"),
    (
        events.JobRefused("entry 'x': a number is right"),
        "ERROR",
        "entry 'x': a number is right; this job stays out, the others go on",
    ),
    (
        events.JobNotDue("holidays", "2026-10-10T12:00:30.000Z"),
        "WARNING",
        "entry 'holidays': its schedule has no fire time after 2026-10-10T12:00:30.000Z",
    ),
    (
        events.JobNotDue("holidays", "2026-10-09T00:00:00.000Z", "2026-10-10T12:00:30.000Z"),
        "WARNING",
        "entry 'holidays': its schedule is not due before 2026-10-10T12:00:30.000Z, as far as it was asked; "
        "it is asked again then",
    ),
    (
        events.StoreForgot("redis://h is another store than before", 30), "WARNING",
        "redis://h is another store than before; for one lease (30 s) nothing starts, and runs are put back",
    ),
    (events.StoreLost("refused", 0.5), "WARNING", "waiting for the store: refused; trying again in 0.5 s"),
    (events.StoreBack(), "INFO", "the store answers again"),
    (events.BrokerLost("refused", 5.0), "WARNING", "waiting for the broker: refused; trying again in 5 s"),
    (events.BrokerBack(), "INFO", "the broker takes messages again"),
    (
        events.WorkerGone(41907),
        "WARNING",
        "stops: process 41907, the worker whose beat this is, is gone",
    ),
    (events.TickFailed("KeyError: 'x'"), "ERROR", "this look failed, the next one follows: KeyError: 'x'"),
    (
        events.MessageDropped("proj.job[id-1]", "the 'anarchon' header is str, not a mapping"),
        "ERROR",
        "proj.job[id-1]: dropped: the 'anarchon' header is str, not a mapping",
    ),
    (
        events.MetricsServed("http://127.0.0.1:9808/metrics"),
        "INFO",
        "metrics are served at http://127.0.0.1:9808/metrics",
    ),
    (
        events.MetricsNotServed("127.0.0.1:9808 is taken"),
        "ERROR",
        "metrics are not served: 127.0.0.1:9808 is taken",
    ),
    (
        events.HeldOff("stalled for 12.0 s", 10.0),
        "WARNING",
        "stalled for 12.0 s: takes over no running run for 10 s",
    ),
]


@pytest.fixture(autouse=True)
def everything_said(caplog):
    """Let all levels through; afterwards the lines of runs are wanted again."""
    caplog.set_level(logging.DEBUG, "anarchon_celery")
    caplog.set_level(logging.DEBUG, "celery")  # Celery makes its own logger the parent of nested ones
    yield
    events.log_runs(True)


@pytest.mark.parametrize(("event", "level", "line"), RUN_LINES, ids=[line for _, _, line in RUN_LINES])
def test_the_line_of_a_run(caplog, event, level, line):
    events.emit(event)
    assert [("anarchon_celery.runs", level, SLOT + line)] == said(caplog)


@pytest.mark.parametrize(("event", "level", "line"), NODE_LINES, ids=[line for _, _, line in NODE_LINES])
def test_the_line_of_a_node(caplog, event, level, line):
    events.emit(event)
    assert [(event.logger.name, level, "[anarchon] " + line)] == said(caplog)


FIELDS = ("job", "slot", "attempt", "fence", "node", "event")


@pytest.mark.parametrize("event", [event for event, _, _ in RUN_LINES + NODE_LINES], ids=str)
def test_each_record_has_all_fields(caplog, event):
    events.emit(event)
    (record,) = caplog.records
    told = {name: getattr(record, name) for name in FIELDS}
    assert told == dict(events.fields(event))
    assert event.signal.name == told["event"]
    if isinstance(event.of, RunKey):
        assert ("report", "2026-10-10T12:00:30.000Z") == (told["job"], told["slot"])


def test_the_fields_of_a_run(caplog):
    events.emit(events.RunFailed(KEY, 12, "ValueError: x", attempt=2, fence=7, node="celery@a:1"))
    (record,) = caplog.records
    expected = ["report", "2026-10-10T12:00:30.000Z", 2, 7, "celery@a:1", "run_failed"]
    assert expected == [getattr(record, name) for name in FIELDS]


def test_all_that_the_package_logs_has_all_fields():
    """Also where no happening is said: there is no other way into the log."""
    package = Path(events.__file__).parent
    calls = [
        line.strip()
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"logg(er|ing)\.(debug|info|warning|error|exception|critical|log)\(", line)
    ]
    assert len(calls) == 4 and all("extra={**fields(" in call for call in calls), calls


def test_no_happening_is_left_out_above():
    told = {type(event) for event, _, _ in RUN_LINES + NODE_LINES}
    assert told == concrete(events.Event) - {events.RunEvent}


def test_without_log_runs_only_the_warnings_about_runs_are_said(caplog):
    events.log_runs(False)
    for event, _, _ in RUN_LINES:
        events.emit(event)
    quiet = [SLOT + line for _, level, line in RUN_LINES if level not in ("INFO", "DEBUG")]
    assert quiet == [line for _, _, line in said(caplog)]


def test_without_log_runs_all_lines_of_nodes_are_said(caplog):
    events.log_runs(False)
    for event, _, _ in NODE_LINES:
        events.emit(event)
    assert ["[anarchon] " + line for _, _, line in NODE_LINES] == [line for _, _, line in said(caplog)]


def test_log_runs_again_brings_the_lines_back(caplog):
    events.log_runs(False)
    events.log_runs(True)
    events.emit(events.RunFinished(KEY, 1))
    assert [SLOT + "finished in 1 ms"] == [line for _, _, line in said(caplog)]


def test_all_lines_that_the_package_logs_begin_with_its_name():
    """But those of receivers of signals, which Celery's own logger says."""
    package = Path(events.__file__).parent
    level = r"\blogger\.(?:debug|info|warning|error|exception|critical|log)"
    begins = {
        (path.name, begin)
        for path in package.rglob("*.py")
        for begin in re.findall(level + r"\((?:event\.level, )?(\S+ ?)", path.read_text())
    }
    modules = ("events.py", "records.py", "redis.py")
    assert {(module, '"[anarchon] ') for module in modules} == begins


def test_a_happening_is_a_value():
    assert events.RunFinished(KEY, 1) == events.RunFinished(KEY, 1)
    with pytest.raises(AttributeError):
        events.RunFinished(KEY, 1).ms = 2


def said(caplog):
    return [(record.name, record.levelname, record.getMessage()) for record in caplog.records]


def concrete(kind):
    return {kind for kind in subclasses(kind) if kind.__module__ == events.__name__}


def subclasses(kind):
    # A slotted dataclass is made twice; only the second one can be found in its module.
    below = [getattr(events, each.__name__) for each in kind.__subclasses__()]
    return set(below).union(*(subclasses(each) for each in below))


def test_a_line_has_a_length_that_is_read_whatever_it_names(caplog):
    key = RunKey("job" + 20_000 * "[", from_iso("2026-10-10T12:00:30.000Z"))
    with caplog.at_level("INFO"):
        events.emit(events.SlotSkipped(key, "stale"))
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith("[anarchon] job[[[[")
    assert line.endswith("[[[ @ 2026-10-10T12:00:30.000Z: skipped (stale)")
    assert len(line) < 200
    assert caplog.records[0].job == key.job, "whole, for machines"

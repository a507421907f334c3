"""docs/signals.md, docs/log.md and docs/metrics.md, held to their word: whole tables, code that runs."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import re
from pathlib import Path

import pytest
import yaml
from celery import Celery
from celery.signals import after_setup_logger, beat_init, worker_process_init
from opentelemetry.instrumentation.celery import CeleryInstrumentor

from anarchon_celery import events, signals
from anarchon_celery.config import Config
from anarchon_celery.measures import METRICS
from anarchon_celery.protocol import RunKey
from anarchon_celery.slots import from_iso
from tests.test_events import NODE_LINES, RUN_LINES, concrete, everything_said

__all__ = ["everything_said"]  # a fixture

DOCS = Path(__file__).parents[1] / "docs"
SIGNALS, LOG, METRICS_PAGE = ((DOCS / f"{name}.md").read_text() for name in ("signals", "log", "metrics"))
KEY = RunKey("report", from_iso("2026-10-10T12:00:30.000Z"))
EVENTS = {event.signal.name: event for event in concrete(events.Event) - {events.RunEvent}}


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def rows(page, *, columns):
    """The rows of the page's tables that begin with a name in code, by it."""
    found = re.findall(r"^\| `([\w]+)` \| (.*) \|$", page, re.MULTILINE)
    cells = {name: rest.split(" | ") for name, rest in found}
    return {name: rest for name, rest in cells.items() if len(rest) == columns - 1}


# docs/signals.md --------------------------------------------------------------------------------


def test_each_signal_is_on_the_page_with_what_its_event_has():
    told = {name: re.findall(r"`(\w+)`", has) for name, (_, has) in rows(SIGNALS, columns=3).items()}
    known = {"node", "key", "attempt", "fence", "job"}  # what the arguments tell
    has = {
        name: [field.name for field in dataclasses.fields(event) if field.name not in known]
        for name, event in EVENTS.items()
    }
    assert has == told


def test_what_a_receiver_is_given_is_on_the_page():
    (table,) = re.findall(r"\| argument \| \|\n\|---\|---\|\n(.*?)\n\n", SIGNALS, re.DOTALL)
    first = " ".join(row.split("|")[1] for row in table.splitlines())
    assert {"sender", "signal", *signals.GIVEN} == {*re.findall(r"`(\w+)`", first)}


def test_the_receivers_of_the_page():
    said = []
    space = {"mail": said.append, "page": said.append}
    (block,) = blocks(SIGNALS, "python")
    exec(compile(block, "docs/signals.md", "exec"), space)
    events.emit(events.RunFailed(KEY, 12, "ValueError: x", attempt=2))
    events.emit(events.RunFailed(RunKey("other", KEY.slot), 12, "ValueError: y", attempt=1))
    events.emit(events.RunAbandoned(KEY, "3 workers died running it"))
    assert [
        "report of 12:00 failed at attempt 2: ValueError: x", "report: 3 workers died running it"
    ] == said  # fmt: skip
    signals.run_failed.disconnect(space["tell_the_team"], sender="report")
    signals.run_abandoned.disconnect(space["page_somebody"])


# docs/log.md ------------------------------------------------------------------------------------


def test_each_line_is_on_the_page_with_its_level():
    told = {name: (level, line.strip("`")) for name, (level, line) in rows(LOG, columns=3).items()}
    lines: dict[str, set] = {"noted": {("WARNING", "what it is")}}
    for event, level, line in RUN_LINES + NODE_LINES:
        lines.setdefault(event.name, set()).add((level, line))
    others = {"record_unreadable"}  # said by stores
    assert EVENTS.keys() | others == told.keys()
    assert all(told[name] in lines[name] for name in EVENTS)


def test_the_fields_of_the_page():
    (table,) = re.findall(r"\| field \| \|\n\|---\|---\|\n(.*?)\n\n", LOG, re.DOTALL)
    assert list(events.fields(events.StoreBack())) == re.findall(r"^\| `(\w+)`", table, re.MULTILINE)


@pytest.fixture
def written():
    """What a handler of ours and of others' writes, whatever formats it."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    loggers = [logging.getLogger(name) for name in ("anarchon_celery.runs", "kombu")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler, out
    for logger in loggers:
        logger.removeHandler(handler)


def say():
    node = "celery@my-laptop:41907"
    events.emit(events.RunFinished(KEY, 203, attempt=1, fence=1791633630017000, node=node))
    logging.getLogger("kombu").warning("of %s", "others")


def test_the_json_of_the_page(written):
    handler, out = written
    block, _ = blocks(LOG, "python")
    space: dict = {}
    exec(compile(block, "docs/log.md", "exec"), space)
    logger = logging.Logger("root")
    logger.addHandler(handler)
    after_setup_logger.send(sender=None, logger=logger)
    after_setup_logger.disconnect(space["in_json"])
    say()
    (shown,) = blocks(LOG, "json")
    first, second = out.getvalue().splitlines()
    assert shown.strip() == first
    others = {"level": "WARNING", "logger": "kombu", "message": "of others"}
    assert others | dict.fromkeys(space["FIELDS"]) == json.loads(second)


def test_the_text_of_the_page(written):
    handler, out = written
    space: dict = {}
    exec(compile(blocks(LOG, "python")[1], "docs/log.md", "exec"), space)
    handler.setFormatter(space["text"])
    say()
    first, second = (line.split(" ", 2)[2] for line in out.getvalue().splitlines())
    line = "[anarchon] report @ 2026-10-10T12:00:30.000Z: finished in 203 ms"
    assert f"INFO run_finished job=report attempt=1 {line}" == first
    assert "WARNING None job=None attempt=None of others" == second


# docs/metrics.md --------------------------------------------------------------------------------


def test_each_metric_is_on_the_page_with_its_labels():
    told = {
        name: (tuple(re.findall(r"`(\w+)`", labels)), said)
        for name, (labels, said) in rows(METRICS_PAGE, columns=3).items()
    }
    expected = {name: (metric.labels, f"{metric.kind}. {metric.help}") for name, metric in METRICS.items()}
    assert expected == told


def test_the_settings_of_the_page():
    app = Celery(broker="redis://", set_as_current=False)
    exec(compile(blocks(METRICS_PAGE, "python")[0], "docs/metrics.md", "exec"), {"app": app})
    assert {"beat": 9808, "worker": 9809} == {
        kind: endpoint.port for kind, endpoint in Config.of(app).metrics.items()
    }
    (table,) = re.findall(r"\| setting \| \|\n\|---\|---\|\n(.*?)\n\n", METRICS_PAGE, re.DOTALL)
    given = [text for row in table.splitlines() for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert 6 == len(given)
    for text in given:
        app.conf.anarchon_metrics = eval(text)
        assert Config.of(app).metrics


def test_the_alerts_of_the_page_name_metrics_and_labels_that_there_are():
    shown = {
        f"{name}{suffix}": metric.labels
        for name, metric in METRICS.items()
        for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
    }
    alerts, scrape = map(yaml.safe_load, blocks(METRICS_PAGE, "yaml"))
    rules = alerts["groups"][0]["rules"]
    assert "JobDidNotSucceed" == rules[0]["alert"]
    for rule in rules:
        assert {"expr", "labels", "annotations"} <= rule.keys()
        named = re.findall(r"anarchon_\w+", rule["expr"])
        assert named and {*named} <= shown.keys(), rule
        labels = {label for name in named for label in shown[name]} | {"le", "instance"}
        used = re.findall(r"(?:by|on) \((\w+)\)|\{(\w+)=|\$labels\.(\w+)", json.dumps(rule))
        assert {label for each in used for label in each if label} <= labels, rule
    assert scrape["scrape_configs"][0]["honor_labels"]


def test_the_tracing_of_the_page():
    space: dict = {}
    exec(compile(blocks(METRICS_PAGE, "python")[1], "docs/metrics.md", "exec"), space)
    space["trace"]()
    assert CeleryInstrumentor().is_instrumented_by_opentelemetry
    CeleryInstrumentor().uninstrument()
    for signal in (beat_init, worker_process_init):
        signal.disconnect(space["trace"])


def test_there_are_no_other_blocks():
    pages = (SIGNALS, LOG, METRICS_PAGE)
    assert [(1, 0, 0), (2, 1, 0), (2, 0, 2)] == [
        tuple(len(blocks(page, language)) for language in ("python", "json", "yaml")) for page in pages
    ]

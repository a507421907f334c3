"""The commands: tables for people, JSON for machines, one line and a status where something is wrong."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import secrets
import shlex
import socket
import struct
import subprocess
import sys
import termios
import textwrap
import time
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path

import click
import jsonschema
import pytest
from celery import Celery
from celery.bin.base import CLIContext
from celery.bin.celery import celery as celery_command
from celery.schedules import BaseSchedule, crontab, schedule
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from rich.console import Console

from anarchon_celery import cli, printing, show
from anarchon_celery.chain import Chain
from anarchon_celery.config import Config
from anarchon_celery.desk import Desk as Table
from anarchon_celery.folding import FOLD_AFTER
from anarchon_celery.protocol import Node, Offer, Registration, Request, Run, RunKey, Sent, Start
from anarchon_celery.schedules import as_schedule, cron, every, fire_times, once
from anarchon_celery.slots import HOUR, MINUTE, SECOND, Leap, from_iso, iso
from anarchon_celery.stores import memory, new_nonce, open_store
from anarchon_celery.zones import UTC
from tests.servers import free_port

T = from_iso("2026-10-10T12:00:30.000Z")

#: The contract's, and what is more.
RUN_FIELDS = [
    "job", "slot", "state", "trigger", "dispatch", "attempt", "crashes", "fence", "owner", "task_id",
    "claimed_at", "queued_at", "started_at", "finished_at", "reason",
    "kind", "asked_by", "late_ms", "waited_ms", "took_ms",
]  # fmt: skip

#: What JSON has to look like, by the command that prints it.
SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "commands.schema.json").read_text())


def check_schema(command: str, said) -> None:
    """Hold what a command prints as JSON against what the docs say."""
    jsonschema.validate(said, SCHEMA | {"$ref": f"#/$defs/commands/{command}"})


class Checked(BaseSchedule):
    """Somebody's own: ten minutes after the last time, looked at every five seconds."""

    def is_due(self, last_run_at):
        return self.now() >= last_run_at + timedelta(minutes=10), 5.0

    def __repr__(self):
        return "<Checked>"


class Never(Checked):
    def is_due(self, last_run_at):
        return False, 3600.0

    def __repr__(self):
        return "<Never>"


class Raising(Checked):
    def is_due(self, last_run_at):
        raise ZeroDivisionError("no such luck")


def nothing() -> None:
    """What a task may do."""


class Desk:
    """A project's app, and its command line."""

    def __init__(self, **conf) -> None:
        self.app = Celery("proj", broker="memory://", set_as_current=False)
        own = {"anarchon_store": f"memory://{secrets.token_hex(4)}", "result_expires": None}
        self.app.conf.update(own | conf)  # with result_expires Celery adds a job of its own

    @property
    def store(self):
        return open_store(self.app.conf.anarchon_store)

    def run(self, *words: str):
        context = CLIContext(app=self.app, no_color=True, workdir=None)
        result = CliRunner().invoke(cli.anarchon, list(words), obj=context, prog_name="anarchon")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *words: str):
        result = self.run(*words, "--json")
        assert 0 == result.exit_code, result.output
        return self.read(words[0], result)

    def read(self, command: str, result):
        """What a command printed as JSON, whatever its status."""
        said = json.loads(result.stdout)
        check_schema(command, said)
        return said

    def story(self) -> int:
        """Two jobs on two nodes: a run that ended, one that is held, one that was skipped, some missed."""
        store = self.store
        for n, name in enumerate(("b:2", "a:1")):
            jobs = [Registration(job=job, hash="h") for job in ("report", "sync")]
            store.register(Node(id=f"id-{n}", name=name, app="proj"), jobs, now=T + n)
        leap = Leap(T - 60_000, T - 1_000, 60)
        store.claim("a:1", [Offer(job="sync", slots=(T,), leap=leap)], nonce=new_nonce(), now=T + 5)
        store.claim("a:1", [Offer(job="report", slots=(T,))], nonce=new_nonce(), now=T + 5)
        for job in ("sync", "report"):
            sent = Sent(key=RunKey(job, T), dispatch=1, task_id=f"id-{job}", supervised=True)
            store.sent([sent], now=T + 10)
        for job in ("sync", "report"):
            order = Start(key=RunKey(job, T), token=job, worker="celery@c:3", task_id=f"id-{job}")
            started = store.start(order, now=T + 20)
        why = "ValueError: no [bold]markup[/bold]"
        store.finish(RunKey("sync", T), "sync", "failed", reason=why, now=T + 1_520)
        store.claim("a:1", [Offer(job="report", slots=(T + 1_000,))], nonce=new_nonce(), now=T + 1_000)
        return started.fence

    def close(self) -> None:
        self.app.close()
        if isinstance(url := self.app.conf.anarchon_store, str):
            memory._ROOMS.pop((url, "anarchon"), None)


@pytest.fixture
def desk_with(monkeypatch):
    desks = []
    monkeypatch.setattr(memory, "_wall_clock", lambda: T + 2_000)

    def make(**conf) -> Desk:
        desks.append(Desk(**conf))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


@pytest.fixture
def desk(desk_with):
    return desk_with()


def cells(output: str) -> list[list[str]]:
    """The table in an output, by rows, split where two spaces are."""
    rows = (map(str.strip, line.split("  ")) for line in output.splitlines() if line.strip())
    return [[cell for cell in row if cell] for row in rows]


# runs -------------------------------------------------------------------------------------------


def test_runs_as_json_newest_first(desk):
    fence = desk.story()
    found = desk.json("runs")
    assert [
        ("report", "2026-10-10T12:00:31.000Z", "skipped"),
        ("report", "2026-10-10T12:00:30.000Z", "running"),
        ("sync", "2026-10-10T12:00:30.000Z", "failed"),
        ("sync", "2026-10-10T11:59:30.000Z", "missed"),
    ] == [(run["job"], run["slot"], run["state"]) for run in found]
    expected = {
        "job": "report", "slot": "2026-10-10T12:00:30.000Z", "state": "running", "trigger": "scheduled",
        "dispatch": 1, "attempt": 1, "crashes": 0, "fence": fence, "owner": "celery@c:3",
        "task_id": "id-report", "claimed_at": "2026-10-10T12:00:30.005Z",
        "queued_at": "2026-10-10T12:00:30.010Z", "started_at": "2026-10-10T12:00:30.020Z",
        "finished_at": None, "reason": None, "kind": "scheduled", "asked_by": None, "late_ms": 20,
        "waited_ms": 10, "took_ms": None,
    }  # fmt: skip
    assert expected == found[1]


def test_the_fields_of_a_run_are_the_contracts_in_its_order(desk):
    desk.story()
    assert RUN_FIELDS == list(desk.json("runs", "--job", "sync")[0])


RUNS_HEADS = ["job", "slot", "state", "attempt", "on", "late", "waited", "took", "why"]
SEVERAL = "came due while no node was looking: 60 slots until 2026-10-10T12:00:29.000Z"


def test_a_record_that_stands_for_several_slots_says_so(desk):
    desk.story()
    (missed,) = desk.json("runs", "--state", "missed")
    assert RUN_FIELDS == list(missed)
    assert SEVERAL == missed["reason"]


def test_runs_by_job_by_state_and_by_number(desk):
    desk.story()
    assert ["failed", "missed"] == [run["state"] for run in desk.json("runs", "--job", "sync")]
    assert ["report"] == [run["job"] for run in desk.json("runs", "--state", "running")]
    assert ["skipped"] == [run["state"] for run in desk.json("runs", "-n", "1")]
    desk.store.register(Node(id="i", name="c:3"), [Registration(job="fresh", hash="h")], now=T)
    assert [] == desk.json("runs", "--job", "fresh")


def test_runs_as_a_table(desk):
    desk.story()
    result = desk.run("runs")
    assert 0 == result.exit_code
    assert [
        RUNS_HEADS,
        ["report", "2026-10-10T12:00:31.000Z", "skipped", "overlap"],
        ["report", "2026-10-10T12:00:30.000Z", "running", "1 (scheduled)", "celery@c:3", "0.0 s", "0.0 s"],
        [
            "sync", "2026-10-10T12:00:30.000Z", "failed", "1 (scheduled)", "celery@c:3", "0.0 s", "0.0 s",
            "1.5 s", "ValueError: no [bold]markup[/bold]",
        ],
        ["sync", "2026-10-10T11:59:30.000Z", "missed", SEVERAL],
    ] == cells(result.output)  # fmt: skip


def test_without_runs_it_says_so(desk):
    assert ("no runs\n", []) == (desk.run("runs").output, desk.json("runs"))


@pytest.mark.parametrize("words", [("--state", "sleeping"), ("-n", "0"), ("-n", "many"), ("--jobs", "x")])
def test_what_runs_does_not_know_is_status_2(desk, words):
    assert 2 == desk.run("runs", *words).exit_code


# status -----------------------------------------------------------------------------------------


def test_status_as_json(desk):
    desk.story()
    found = desk.json("status")
    assert ["store", "jobs", "nodes", "paused", "active", "buffered"] == list(found)
    assert (desk.app.conf.anarchon_store, 2) == (found["store"], found["jobs"])
    seen = ["2026-10-10T12:00:30.000Z", "2026-10-10T12:00:31.000Z"]
    more = dict.fromkeys(("version", "celery", "python", "clock_offset_ms", "schedule"))
    more |= {"app": "proj", "kind": "beat", "alive": True, "other_schedule": False}
    assert [
        {"id": "id-1", "node": "a:1", "seen_at": seen[1]} | more,
        {"id": "id-0", "node": "b:2", "seen_at": seen[0]} | more,
    ] == found["nodes"]
    assert ([], []) == (found["paused"], found["buffered"])
    assert [("report", "running")] == [(run["job"], run["state"]) for run in found["active"]]
    assert RUN_FIELDS == list(found["active"][0])


def test_status_as_a_table(desk):
    desk.story()
    assert [
        [f"store {desk.app.conf.anarchon_store}, 2 jobs"],
        ["node", "kind", "last seen", "clock", "versions", "schedule"],
        ["a:1", "beat", "alive", "2026-10-10T12:00:31.000Z"],
        ["b:2", "beat", "alive", "2026-10-10T12:00:30.000Z"],
        RUNS_HEADS,
        ["report", "2026-10-10T12:00:30.000Z", "running", "1 (scheduled)", "celery@c:3", "0.0 s", "0.0 s"],
    ] == cells(desk.run("status").output)


def test_status_of_an_empty_store(desk):
    result = desk.run("status")
    assert 0 == result.exit_code
    assert "no run is active" == result.output.splitlines()[-1]
    nothing = {"nodes": [], "paused": [], "active": [], "buffered": []}
    assert {"store": desk.app.conf.anarchon_store, "jobs": 0} | nothing == desk.json("status")


def test_a_password_is_not_shown(desk_with):
    port = free_port()
    desk = desk_with(anarchon_store=f"redis://user:hush@127.0.0.1:{port}/1")
    result = desk.run("status")
    assert 1 == result.exit_code
    assert "hush" not in result.output
    assert f"127.0.0.1:{port}" in result.output


def test_status_shows_what_is_paused_and_what_waits(desk):
    desk.story()
    desk.store.pause("report", reason="no [bold] deploys", by="ann@host", now=T + 1_100)
    desk.store.pause("sync", reason="moved", by="bob@host", now=T + 1_200)
    slot = T + 60_000
    offer = Offer(job="nightly", slots=(slot,), overlap="queue")
    desk.store.register(Node(id="id-1", name="a:1"), [Registration(job="nightly", hash="h")], now=T)
    desk.store.claim("a:1", [replace(offer, slots=(T,))], nonce=new_nonce(), now=T + 2)
    desk.store.claim("a:1", [offer], nonce=new_nonce(), now=slot + 2)
    found = desk.json("status")
    assert [
        {"job": "report", "reason": "no [bold] deploys", "by": "ann@host", "at": "2026-10-10T12:00:31.100Z"},
        {"job": "sync", "reason": "moved", "by": "bob@host", "at": "2026-10-10T12:00:31.200Z"},
    ] == found["paused"]
    assert ["claimed", "running"] == [run["state"] for run in found["active"]]
    assert [("nightly", iso(slot))] == [(run["job"], run["slot"]) for run in found["buffered"]]
    assert found["buffered"] == desk.json("runs", "--state", "buffered")
    table = cells(desk.run("status").output)
    assert [
        ["paused", "why"],
        ["report", "no [bold] deploys (by ann@host, 2026-10-10T12:00:31.100Z)"],
        ["sync", "moved (by bob@host, 2026-10-10T12:00:31.200Z)"],
        RUNS_HEADS,
        ["nightly", "2026-10-10T12:00:30.000Z", "claimed"],
        ["report", "2026-10-10T12:00:30.000Z", "running", "1 (scheduled)", "celery@c:3", "0.0 s", "0.0 s"],
        ["nightly", "2026-10-10T12:01:30.000Z", "buffered"],
    ] == table[4:]


# jobs -------------------------------------------------------------------------------------------

#: As ``jobs --json`` has them.
JOB_FIELDS = [
    "job", "schedule", "zone", "next_at", "last_slot", "floor", "first_seen_at", "paused", "supervised",
    "here",
]  # fmt: skip

ENTRIES = {
    "report": {"task": "t", "schedule": cron("30 2 * * *", timezone="America/New_York")},
    "sync": {
        "task": "t", "schedule": crontab(minute="0", hour="6"),
        "options": {"anarchon": {"supervised": False}},
    },
}  # fmt: skip


def test_jobs_of_the_app_and_of_the_store_as_json(desk_with):
    entries = ENTRIES | {"new": {"task": "t", "schedule": "1d"}}
    desk = desk_with(beat_schedule=entries, timezone="Europe/Berlin")
    desk.story()
    keys = [("every 10000 ms", T), ("every 60000 ms", T + 9)]
    for key, at in keys:
        desk.store.register(Node(id="i", name="c:3"), [Registration(job="old", hash=key)], now=at)
    desk.store.pause("report", reason="deploy", by="ann@host", now=T + 1_100)
    found = desk.json("jobs")
    expected = {
        "new": {
            "schedule": "every 1d", "zone": "Europe/Berlin", "next_at": "2026-10-11T00:00:00.000Z",
            "last_slot": None, "floor": None, "first_seen_at": None, "paused": None, "supervised": False,
            "here": True,
        },
        "old": {
            "schedule": "every 1m", "zone": None, "next_at": None, "last_slot": None, "floor": None,
            "first_seen_at": "2026-10-10T12:00:30.000Z", "paused": None, "supervised": False, "here": False,
        },
        "report": {
            "schedule": "cron 30 2 * * *", "zone": "America/New_York", "next_at": "2026-10-11T06:30:00.000Z",
            "last_slot": "2026-10-10T12:00:31.000Z", "floor": "2026-10-10T12:00:31.000Z",
            "first_seen_at": "2026-10-10T12:00:30.000Z",
            "paused": {"reason": "deploy", "by": "ann@host", "at": "2026-10-10T12:00:31.100Z"},
            "supervised": True, "here": True,
        },
        "sync": {
            "schedule": "crontab 0 6 * * *", "zone": "Europe/Berlin", "next_at": "2026-10-11T04:00:00.000Z",
            "last_slot": "2026-10-10T12:00:30.000Z", "floor": "2026-10-10T12:00:30.000Z",
            "first_seen_at": "2026-10-10T12:00:30.000Z", "paused": None, "supervised": False, "here": True,
        },
    }  # fmt: skip
    assert expected == {job.pop("job"): job for job in found}


def test_the_interval_of_celerys_own_kind_is_shown_as_ours_is(desk_with):
    desk = desk_with(beat_schedule={"sync": {"task": "t", "schedule": schedule(90.5)}})
    assert ["every 1m30s500ms"] == [job["schedule"] for job in desk.json("jobs")]


def test_of_a_job_that_was_only_asked_for_no_slot_was_the_last(desk_with):
    """However many runs there are that somebody asked for."""
    desk = desk_with()
    desk.story()
    for number in range(1_001):
        asked = Request(job="sync", by="anna", overlap="allow")
        desk.store.trigger(asked, nonce=str(number))
    assert {"report": iso(T + 1_000), "sync": None} == {
        job["job"]: job["last_slot"] for job in desk.json("jobs")
    }


def test_the_fields_of_a_job_in_their_order(desk_with):
    (job,) = desk_with(beat_schedule={"sync": ENTRIES["sync"]}).json("jobs")
    assert JOB_FIELDS == list(job)


def test_jobs_as_a_table(desk_with):
    past = once("2026-10-01T09:00Z")
    more = {name: {"task": "t", "schedule": given} for name, given in (("never", Never()), ("past", past))}
    desk = desk_with(beat_schedule=ENTRIES | more)
    desk.story()
    desk.store.register(Node(id="i", name="c:3"), [Registration(job="old", hash="every 10000 ms")], now=T)
    desk.store.pause("report", reason="[i]deploy[/i]", by="ann@host", now=T + 1_100)
    found = cells(desk.run("jobs").output)
    assert re.fullmatch(r"not before 2026-11-\S+Z", found[1].pop(3))
    assert [
        ["job", "schedule", "zone", "next", "local", "last slot", "decided up to", "supervised", "note"],
        ["never", "<Never>", "UTC", "no", "not in the store yet"],
        ["old", "every 10s", "no", "not in this app"],
        ["past", "once 2026-10-01T09:00:00.000Z", "UTC", "never", "no", "not in the store yet"],
        [
            "report", "cron 30 2 * * *", "America/New_York", "2026-10-11T06:30:00.000Z",
            "Sun 2026-10-11 02:30:00 -04:00", "2026-10-10T12:00:31.000Z", "2026-10-10T12:00:31.000Z", "yes",
            "paused: [i]deploy[/i] (by ann@host, 2026-10-10T12:00:31.100Z)",
        ],
        [
            "sync", "crontab 0 6 * * *", "UTC", "2026-10-11T06:00:00.000Z", "Sun 2026-10-11 06:00:00 +00:00",
            "2026-10-10T12:00:30.000Z", "2026-10-10T12:00:30.000Z", "no",
        ],
    ] == found  # fmt: skip


def test_without_jobs_it_says_so(desk):
    assert ("no jobs\n", []) == (desk.run("jobs").output, desk.json("jobs"))


def test_the_last_slot_of_a_job_that_fires_seldom_is_found_behind_a_thousand_of_others(desk):
    store = desk.store
    jobs = [Registration(job=job, hash="h") for job in ("often", "seldom")]
    store.register(Node(id="i", name="a:1"), jobs, now=T)
    slots = tuple(range(T, T + 1_100_000, 1_000))
    store.claim("a:1", [Offer(job="seldom", slots=(T,))], nonce=new_nonce(), now=slots[-1])
    store.claim("a:1", [Offer(job="often", slots=slots)], nonce=new_nonce(), now=slots[-1])
    last = {job["job"]: job["last_slot"] for job in desk.json("jobs")}
    assert {"often": iso(slots[-1]), "seldom": iso(T)} == last


def test_what_somebody_wrote_and_will_not_run_is_said(desk_with):
    desk = desk_with(beat_schedule={"sync": ENTRIES["sync"]})
    desk.app.add_periodic_task(60.0, desk.app.task(name="lost", shared=False)(nothing).s(), name="lost")
    desk.app.conf.beat_schedule = {"sync": ENTRIES["sync"]}
    result = desk.run("jobs")
    assert (0, ["sync"]) == (result.exit_code, [row[0] for row in cells(result.stdout)[1:]])
    assert "beat_schedule was set after add_periodic_task: 1 entry of that left out; set it before\n" == (
        result.stderr
    )


class Unshown(Checked):
    """Somebody's own, which cannot say what it is."""

    def __repr__(self):
        raise ZeroDivisionError("no such luck")


@pytest.mark.parametrize("schedule", ["61 * * * *", Raising(), Unshown()])
def test_a_refused_entry_is_said_and_the_others_are_shown(desk_with, schedule):
    desk = desk_with(beat_schedule={"sync": ENTRIES["sync"], "bad": {"task": "t", "schedule": schedule}})
    result = desk.run("jobs")
    assert 0 == result.exit_code
    (line,) = [line for line in result.output.splitlines() if line.startswith("entry 'bad': ")]
    assert line.endswith("; this job stays out, the others go on")
    shown = [row for row in cells(result.stdout) if row[0] == "bad"]
    assert [] == [row for row in shown if "never" in row or not row[-1].endswith("its schedule fails")]
    assert ["sync"] == [row[0] for row in cells(result.output) if row[0] == "sync"]


# On a terminal ----------------------------------------------------------------------------------


def on_a_terminal(width: int, shown) -> str:
    """What rich prints of something on a terminal of this width."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(shown, markup=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def test_a_table_that_is_too_wide_becomes_cards():
    rows = [("report", "every 1d at 02:30", None, "paused: [i]deploy[/i] by somebody who says why at length"),
            ("sync", "every 10s", "yes", "")]  # fmt: skip
    shown = printing.TableOrCards(("job", "schedule", "supervised", "note"), rows)
    assert textwrap.dedent("""\
        report
          schedule    every 1d at 02:30
          note        paused: [i]deploy[/i] by
                      somebody who says why at
                      length
        sync
          schedule    every 10s
          supervised  yes""") == on_a_terminal(40, shown)
    assert textwrap.dedent("""\
        job     schedule           supervised  note
        report  every 1d at 02:30              paused: [i]deploy[/i] by somebody who says why at length
        sync    every 10s          yes""") == on_a_terminal(100, shown)


ODD = "bad\x1b[31mname\n[b]2[/b]\x9bJ"


def test_what_somebody_wrote_does_nothing_to_a_terminal(desk, monkeypatch):
    store = desk.store
    store.register(Node(id="i", name=ODD), [Registration(job=ODD, hash="h")], now=T)
    store.claim("a", [Offer(job=ODD, slots=(T,))], nonce="n", now=T)
    store.pause(ODD, reason=ODD, by=ODD, now=T)
    store.cancel(RunKey(ODD, T), reason=ODD, now=T)
    seen = [["status"], ["runs"], ["jobs"], ["runs", "--job", ODD + "?"]]
    steered = [["resume", ODD], ["pause", ODD], ["trigger", ODD], ["cancel", ODD, iso(T)]]
    for command in [*seen, *steered, ["forget", ODD, "--yes"]]:
        for as_json in ([], ["--json"]):
            output = desk.run(*command, *as_json).output
            assert ("\x1b" in output, "\x9b" in output) == (False, False), command
    assert on_a_terminal(12, printing.TableOrCards(("job", "why"), [(ODD, ODD)])).isascii()


def test_ten_thousand_runs_are_shown_at_once(monkeypatch):
    runs = [Run(job="report", slot=T + n, state="failed", reason="ValueError") for n in range(10_000)]
    began = time.process_time()
    lines = on_a_terminal(100, show.runs_table(runs)).splitlines()
    assert (10_001, True) == (len(lines), time.process_time() - began < 5)
    assert all(line == line.rstrip() for line in lines)


def test_runs_and_nodes_are_readable_in_80_columns():
    run = Run(
        job="report", slot=T, kind="manual", state="failed", trigger="manual", attempt=2,
        owner="celery@host-a:41907", claimed_at=T, queued_at=T, started_at=T + 1_500, finished_at=T + 2_000,
        asked_by="anna@desk",
        reason="ValueError: " + "no such region " * 5,
    )  # fmt: skip
    shown = on_a_terminal(80, show.runs_table([run])).splitlines()
    assert all(len(line) <= 80 for line in shown)
    assert ["report", "  slot     2026-10-10T12:00:30.000Z", "  state    failed"] == shown[:3]
    assert ["  late     1.5 s", "  waited   1.5 s", "  took     0.5 s"] == shown[5:8]
    node = Node(
        id="i", name="celery@host-a:41907", kind="worker", seen=T, version="0.1.0", celery="5.6.0",
        python="3.12.1", clock_offset=-1_500,
    )  # fmt: skip
    shown = on_a_terminal(80, show.nodes_table([(node, True)])).splitlines()
    assert all(len(line) <= 80 for line in shown)
    assert ["  clock      -1.5 s", "  versions   0.1.0/5.6.0/3.12.1"] == shown[-2:]


def printed_on_a_terminal(width: int, command: list[str], folder) -> list[str]:
    """What a real command prints on a terminal of this width, its colours aside."""
    out = screen(width, command, folder)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.splitlines()]


def screen(width: int, command: list[str], folder) -> str:
    """All that a real command sends to a terminal of this width."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        command, cwd=folder, env=environment | {"TERM": "xterm"}, stdout=theirs, stderr=theirs
    ) as running:
        os.close(theirs)
        with open(ours, "rb", buffering=0) as screen:
            out = b"".join(iter(lambda: read_or_end(screen), b""))
    assert 0 == running.returncode, out.decode()
    return out.decode()


def read_or_end(screen) -> bytes:
    try:
        return screen.read(65_536)
    except OSError:  # what Linux says where nobody holds the other end any more
        return b""


def test_who_wants_no_colours_gets_none(desk, monkeypatch):
    """By Celery's option; NO_COLOR is rich's own affair."""
    for no_color in (True, False):
        with click.Context(cli.anarchon, obj=Table(desk.app, Config.of(desk.app), no_color=no_color)):
            assert no_color == printing.console().no_color
    monkeypatch.setenv("NO_COLOR", "1")
    assert printing.console().no_color


def test_80_columns_are_enough(tmp_path):
    (tmp_path / "proj.py").write_text(
        textwrap.dedent(f"""
            from celery import Celery
            from anarchon_celery import cron

            app = Celery("proj", broker="memory://")
            app.conf.anarchon_store = "sqlite:///{tmp_path}/jobs.db"
            app.conf.result_expires = None  # else Celery adds a job of its own
            app.conf.beat_schedule = {{
                "report": {{"task": "t", "schedule": cron("30 2 * * *", timezone="America/New_York")}},
            }}
            """)
    )
    command = [sys.executable, "-m", "celery", "-A", "proj", "anarchon"]
    words = ["next", "report", "-n", "2", "--from", "2026-03-07"]
    assert [
        "UTC                       America/New_York",
        "2026-03-07T07:30:00.000Z  Sat 2026-03-07 02:30:00 -05:00",
        "2026-03-08T07:00:00.000Z  Sun 2026-03-08 03:00:00 -04:00  clock +1 h; 02:30 does",
        "                                                          not exist, first",
        "                                                          instant after",
    ] == printed_on_a_terminal(80, [*command, *words], tmp_path)
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    now = time.time_ns() // 1_000_000
    store.register(Node(id="i", name="gone:1"), [], now=now - HOUR // 2)
    store.close()
    assert "\x1b[31mgone" in screen(80, [*command, "status"], tmp_path)
    lines = printed_on_a_terminal(80, [*command, "jobs"], tmp_path)
    assert ["report", "schedule", "zone", "next", "local", "supervised", "note"] == [
        line.split()[0] for line in lines
    ]
    assert "  zone           America/New_York" == lines[2]
    assert all(len(line) <= 80 for line in lines)


# next -------------------------------------------------------------------------------------------


def test_next_as_json(desk_with):
    desk = desk_with(beat_schedule=ENTRIES)
    assert [
        {
            "slot": "2026-03-07T07:30:00.000Z", "local": "2026-03-07T02:30:00.000-05:00",
            "zone": "America/New_York", "clock_change": None, "note": None,
        },
        {
            "slot": "2026-03-08T07:00:00.000Z", "local": "2026-03-08T03:00:00.000-04:00",
            "zone": "America/New_York", "clock_change": "+01:00",
            "note": "02:30 does not exist, first instant after",
        },
    ] == desk.json("next", "report", "-n", "2", "--from", "2026-03-07")  # fmt: skip


def test_next_as_a_table(desk_with):
    desk = desk_with(beat_schedule=ENTRIES)
    assert [
        ["UTC", "America/New_York"],
        ["2026-10-31T06:30:00.000Z", "Sat 2026-10-31 02:30:00 -04:00"],
        ["2026-11-01T07:30:00.000Z", "Sun 2026-11-01 02:30:00 -05:00", "clock -1 h"],
    ] == cells(desk.run("next", "report", "-n", "2", "--from", "2026-10-31").output)


def test_next_in_utc_is_one_column(desk_with):
    desk = desk_with(beat_schedule=ENTRIES)
    assert [
        ["UTC"],
        ["2026-10-31T06:00:00.000Z"],
        ["2026-11-01T06:00:00.000Z"],
    ] == cells(desk.run("next", "sync", "-n", "2", "--from", "2026-10-31").output)


@pytest.mark.parametrize("here", ["10s", 3600, "1h30m", 0.25, "2d"])
def test_an_interval_has_the_same_words_whether_it_is_of_this_app_or_not(desk_with, here):
    desk = desk_with(beat_schedule={"mine": {"task": "t", "schedule": here}})
    key = fire_times(as_schedule(here), timezone=timezone.utc).key
    desk.store.register(Node(id="i", name="c:3"), [Registration(job="theirs", hash=key)], now=T)
    mine, theirs = desk.json("jobs")
    assert ("mine", "theirs") == (mine["job"], theirs["job"])
    assert mine["schedule"] == theirs["schedule"]


@pytest.mark.parametrize(
    ("moment", "first"),
    [
        ("2026-10-25", "2026-10-25T00:30:00.000Z"),
        ("2026-10-25T02:30", "2026-10-25T00:30:00.000Z"),
        ("2026-10-25 02:30:00.001", "2026-10-26T01:30:00.000Z"),
        ("2026-10-25T00:30Z", "2026-10-25T00:30:00.000Z"),
        ("2026-10-25T02:30:00+01:00", "2026-10-26T01:30:00.000Z"),
    ],
)
def test_next_begins_at_a_moment_of_the_jobs_zone_or_of_any(desk_with, moment, first):
    """The zone is the schedule's; the app's is another one."""
    nightly = {"task": "t", "schedule": cron("30 2 * * *", timezone="Europe/Berlin")}
    desk = desk_with(beat_schedule={"nightly": nightly}, timezone="Asia/Kolkata")
    assert [first] == [time["slot"] for time in desk.json("next", "nightly", "-n", "1", "--from", moment)]


def test_next_begins_now_and_shows_ten(desk_with):
    desk = desk_with(beat_schedule={"sync": {"task": "t", "schedule": "1h"}})
    before = int(time.time() * 1000)
    slots = [from_iso(time["slot"]) for time in desk.json("next", "sync")]
    assert before <= slots[0] <= time.time() * 1000 + HOUR
    assert [slots[0] + n * HOUR for n in range(10)] == slots


@pytest.mark.parametrize(
    ("schedule", "zone"),
    [
        (every("1d"), "Asia/Kolkata"),
        (crontab(hour=0, minute=0), "Asia/Kolkata"),
        (cron("@daily", timezone="Europe/Berlin"), "Europe/Berlin"),
        (every("1d", at=["02:30", "14:00"], timezone="Europe/Berlin"), "Europe/Berlin"),
        (once("2999-01-01 09:00", timezone="Europe/Berlin"), "Europe/Berlin"),
        (once("2999-01-01T09:00:00+01:00"), "Asia/Kolkata"),
        (Checked(), "Asia/Kolkata"),
    ],
)
def test_the_zone_is_the_schedules_else_the_apps(desk_with, schedule, zone):
    desk = desk_with(beat_schedule={"job": {"task": "t", "schedule": schedule}}, timezone="Asia/Kolkata")
    assert {zone} == {time["zone"] for time in desk.json("next", "job", "-n", "2")}
    assert [zone] == [job["zone"] for job in desk.json("jobs")]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("next", "repot"), "there is no job 'repot'; did you mean 'report'?"),
        (("next", "wholly-else"), "there is no job 'wholly-else'; `jobs` lists all there are"),
        (("next", "report", "--from", "29.3.2026"), "--from: '29.3.2026' is no moment: write it as 20"),
        (("runs", "--job", "repot"), "there is no job 'repot'; did you mean 'report'?"),
        (("pause", "repot"), "there is no job 'repot'; did you mean 'report'?"),
        (("pause", "old1"), "there is no job 'old1'; did you mean 'old'?"),
        (("resume", "repot"), "there is no job 'repot'; did you mean 'report'?"),
        (("pause", "new"), "no node has told the store of 'new' yet: start a beat first"),
        (("pause", "report", "--reason", " "), "--reason=' ': 1 to 200 printable characters are right"),
        (("pause", "report", "--reason", "a" * 201), "--reason='aaa"),
        (("next", "twice"), "entry 'twice': given by beat_schedule ('1d') and by @every on twice (every("),
        (("next", "declared"), "entry 'declared' (@every on declared): overlap='stop': one of 'skip', "),
        (("next", "bad"), "entry 'bad': cron '61 * * * *': cannot read minute '61'"),
        (("next", "raising"), "entry 'raising': ZeroDivisionError: no such luck"),
    ],
)
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_what_cannot_be_asked_is_one_line_and_status_2(desk_with, words, line, as_json):
    more = {"new": "1d", "twice": "1d", "bad": "61 * * * *", "raising": Raising()}
    entries = ENTRIES | {name: {"task": "t", "schedule": given} for name, given in more.items()}
    desk = desk_with(beat_schedule=entries)
    every("2d")(desk.app.task(name="twice", shared=False)(nothing))
    every("2d", overlap="stop")(desk.app.task(name="declared", shared=False)(nothing))
    desk.story()
    desk.store.register(Node(id="i", name="c:3"), [Registration(job="old", hash="h")], now=T)
    result = desk.run(*words, *as_json)
    assert 2 == result.exit_code
    (said,) = result.output.splitlines()
    assert said.startswith(f"Error: {line}")
    assert [] == desk.json("status")["paused"]


@pytest.mark.parametrize("words", [("-n", "0"), ("-n", "1001"), ("--until", "2026-01-01")])
def test_what_next_does_not_know_is_status_2(desk_with, words):
    assert 2 == desk_with(beat_schedule=ENTRIES).run("next", "report", *words).exit_code


def test_a_job_that_fires_no_more_says_so(desk_with):
    schedules = {"last": once("2026-12-01T09:00Z"), "never": Never()}
    entries = {name: {"task": "t", "schedule": given} for name, given in schedules.items()}
    desk = desk_with(beat_schedule=entries)
    output = desk.run("next", "last", "--from", "2026-12-01").output.splitlines()
    assert (3, "last does not fire again") == (len(output), output[-1])
    output = desk.run("next", "last", "--from", "2026-12-02").output
    assert output == "last does not fire any more after 2026-12-02T00:00:00.000Z\n"
    assert [] == desk.json("next", "last", "--from", "2026-12-02")
    output = desk.run("next", "never").output
    assert re.fullmatch(
        r"never does not fire before 20\S+Z; its schedule is not asked about more at once\n", output
    )


def test_next_of_a_chained_schedule_counts_from_what_was_decided_last(desk_with):
    desk = desk_with(beat_schedule={"chained": {"task": "t", "schedule": Checked()}})
    decide_slot_of_chained(desk, T)
    (job,) = desk.json("jobs")
    assert (iso(T), iso(T + 10 * MINUTE)) == (job["last_slot"], job["next_at"])
    assert [T + n * 10 * MINUTE for n in (1, 2, 3)] == [
        from_iso(time["slot"]) for time in desk.json("next", "chained", "-n", "3", "--from", iso(T))
    ]
    (later,) = desk.json("next", "chained", "-n", "1", "--from", iso(T + 20 * MINUTE + 1))
    assert iso(T + 30 * MINUTE) == later["slot"]


def test_next_of_a_changed_chained_schedule_counts_from_when_it_was_first_seen(desk_with):
    desk = desk_with(beat_schedule={"chained": {"task": "t", "schedule": Checked()}})
    desk.store.register(Node(id="i", name="a:1"), [Registration(job="chained", hash="before")], now=T - 5)
    desk.store.claim("a:1", [Offer(job="chained", slots=(T,))], nonce=new_nonce(), now=T)
    changed = Registration(job="chained", hash=Chain(Checked(), UTC).key)
    desk.store.register(Node(id="i", name="a:1"), [changed], now=T + 25 * MINUTE)
    (first,) = desk.json("next", "chained", "-n", "1", "--from", iso(T))
    assert iso(T + 35 * MINUTE) == first["slot"]


def decide_slot_of_chained(desk: Desk, slot: int) -> None:
    key = Chain(Checked(), UTC).key
    desk.store.register(Node(id="i", name="a:1"), [Registration(job="chained", hash=key)], now=slot - 5)
    offer = Offer(job="chained", slots=(slot,), chained=True)
    desk.store.claim("a:1", [offer], nonce=new_nonce(), now=slot)


def test_next_needs_no_store(desk_with):
    desk = desk_with(beat_schedule=ENTRIES, anarchon_store=f"redis://127.0.0.1:{free_port()}/1")
    assert 10 == len(desk.json("next", "report"))


def test_next_of_a_chained_schedule_without_its_store_says_from_where_it_counts(desk_with):
    port = free_port()
    desk = desk_with(
        beat_schedule={"chained": {"task": "t", "schedule": Checked()}},
        anarchon_store=f"redis://127.0.0.1:{port}/1",
    )
    before = int(time.time() * 1000)
    result = desk.run("next", "chained", "-n", "1")
    assert 0 == result.exit_code
    said, _, first = result.output.splitlines()
    assert said.startswith(f"redis://127.0.0.1:{port}/1 does not answer: ")
    assert said.endswith("which only the store knows: counted from where you ask instead")
    slot = from_iso(first.split()[0])
    assert before + 10 * MINUTE <= slot <= time.time() * 1000 + 10 * MINUTE + 5 * SECOND


# pause and resume -------------------------------------------------------------------------------


def test_pause_and_resume(desk, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ann")
    desk.story()
    who = f"ann@{socket.gethostname()}"
    result = desk.run("pause", "report", "--reason", " a  [deploy]\n")
    (job,) = [job for job in desk.store.jobs() if job.name == "report"]
    assert ("a [deploy]", who) == (job.paused, job.paused_by)
    why = f"a [deploy] (by {who}, {iso(job.paused_at)})"
    assert (0, f"report is paused: {why}\n") == (result.exit_code, result.output)
    result = desk.run("resume", "report")
    assert (0, f"report goes on; it was paused: {why}\n") == (result.exit_code, result.output)
    assert [None, None] == [job.paused for job in desk.store.jobs()]


def test_pause_again_says_so_and_replaces_the_reason(desk):
    desk.story()
    desk.store.pause("report", reason="deploy", by="ann@host", now=T + 1_100)
    first, second = desk.run("pause", "report", "--reason", "the disk").output.splitlines()
    assert first == "report was paused already: deploy (by ann@host, 2026-10-10T12:00:31.100Z)"
    assert second.startswith("report is paused: the disk (by ")
    (paused,) = desk.json("status")["paused"]
    assert ("report", "the disk") == (paused["job"], paused["reason"])


def test_pause_again_without_a_reason_changes_nothing(desk):
    desk.story()
    desk.store.pause("report", reason="deploy", by="ann@host", now=T + 1_100)
    before = desk.store.jobs()
    said = "report is paused already: deploy (by ann@host, 2026-10-10T12:00:31.100Z)\n"
    assert (0, said) == ((result := desk.run("pause", "report")).exit_code, result.output)
    assert before == desk.store.jobs()


def test_pause_without_a_reason_says_that_there_is_none(desk):
    desk.story()
    assert desk.run("pause", "report").output.startswith("report is paused: no reason given (by ")


def test_a_count_that_stopped_is_not_shown_as_if_it_were_exact():
    run = Run(job="report", slot=T, state="missed", reason="nobody looked", until=T + HOUR, count=10_000)
    assert f"nobody looked: at least 10000 slots until {iso(T + HOUR)}" == show.run_as_json(run)["reason"]
    exact = replace(run, count=9_999)
    assert f"nobody looked: 9999 slots until {iso(T + HOUR)}" == show.run_as_json(exact)["reason"]
    folded = replace(run, state="skipped", reason="overlap")
    assert f"overlap: 10000 slots until {iso(T + HOUR)}" == show.run_as_json(folded)["reason"]


def test_skips_that_were_folded_show_how_many_they_are_and_the_last_of_them(desk):
    desk.store.register(Node(id="i", name="a:1"), [Registration(job="often", hash="h")], now=T)
    slots = tuple(range(T, T + 5))
    desk.store.claim("a:1", [Offer(job="often", slots=slots)], nonce=new_nonce(), now=T + 5)
    assert 3 == desk.store.prune(history=HOUR, most=9, now=T + 5 + FOLD_AFTER)
    why = f"overlap: 4 slots until {iso(T + 4)}"
    assert [why, None] == [run["reason"] for run in desk.json("runs", "--job", "often")]
    assert ["often", iso(T + 1), "skipped", *why.split()] in [
        line.split() for line in desk.run("runs", "--job", "often").output.splitlines()
    ]
    (last,) = [job["last_slot"] for job in desk.json("jobs") if job["job"] == "often"]
    assert iso(T + 4) == last


def test_resume_of_a_job_that_is_not_paused_says_so(desk):
    desk.story()
    result = desk.run("resume", "report")
    assert (0, "report is not paused\n") == (result.exit_code, result.output)
    assert {"job": "report", "paused": None, "was_paused": None} == desk.json("resume", "report")


def test_pause_and_resume_as_json(desk):
    desk.story()
    paused = desk.json("pause", "report", "--reason", "deploy")
    assert ["job", "paused", "was_paused"] == list(paused)
    assert ("report", "deploy", None) == (paused["job"], paused["paused"]["reason"], paused["was_paused"])
    again = desk.json("pause", "report", "--reason", "still")
    assert ("still", paused["paused"]) == (again["paused"]["reason"], again["was_paused"])
    assert {"job": "report", "paused": None, "was_paused": again["paused"]} == desk.json("resume", "report")


# What is wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [
    "status", "runs", "jobs", "pause report", "resume report", "trigger report", "forget report --yes",
    "prune", "backfill report --from 2026-10-09 --to 2026-10-11 --yes", "cancel report 2026-10-10",
])  # fmt: skip
@pytest.mark.parametrize("as_json", [False, True])
def test_a_store_that_is_not_there_is_one_line_and_status_1(desk_with, command, as_json):
    port = free_port()
    desk = desk_with(anarchon_store=f"redis://127.0.0.1:{port}/1", beat_schedule=ENTRIES)
    result = desk.run(*command.split(), *(["--json"] if as_json else []))
    assert 1 == result.exit_code
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: redis://127.0.0.1:{port}/1 does not answer: ")


@pytest.mark.parametrize("command", ["status", "prune --json", "health", "health --live"])
@pytest.mark.parametrize(
    ("url", "options", "line"),
    [
        ("redis://localhost:99999/0", {}, "the redis URL of the store cannot be read: the port is no number"),
        ("postgresql://h:abc/jobs", {}, "the postgresql URL of the store cannot be read: the port is no "),
        (
            "redis://localhost", {"colour": "blue"},
            "redis://localhost:6379/0: the query of its URL, or anarchon_store_options, cannot be meant: "
            "the Redis client has no option 'colour'",
        ),
    ],
)  # fmt: skip
def test_a_store_that_is_set_wrong_is_one_line_and_status_2(desk_with, command, url, options, line):
    result = desk_with(anarchon_store=url, anarchon_store_options=options).run(*command.split())
    assert 2 == result.exit_code
    (said,) = result.output.splitlines()
    assert said.startswith(f"Error: {line}")


def test_a_store_whose_driver_is_not_installed_is_one_line_and_status_1(desk_with, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    result = desk_with(anarchon_store="postgresql://h/jobs").run("status")
    assert 1 == result.exit_code
    (said,) = result.output.splitlines()
    assert "anarchon-celery[postgresql]" in said


@pytest.mark.parametrize(
    ("conf", "line"),
    [
        ({"anarchon_leese": 5}, "Error: anarchon_leese=5: no such setting; did you mean anarchon_lease?"),
        ({"anarchon_store": "mongodb://x"}, "Error: anarchon_store='mongodb://x': "),
    ],
)
def test_an_impossible_setting_is_status_2_and_a_line_that_says_what_is_right(desk_with, conf, line):
    result = desk_with(**conf).run("status")
    assert 2 == result.exit_code
    assert 1 == sum(each.startswith("Error: ") for each in result.output.splitlines())
    assert result.output.splitlines()[-1].startswith(line)


@pytest.mark.parametrize("command", ["jobs", "next report"])
@pytest.mark.parametrize(
    ("conf", "line"),
    [
        ({"timezone": "Europe/Berlim"}, "Error: timezone='Europe/Berlim': no such time zone (ZoneInfoNot"),
        ({"beat_schedule": []}, "Error: beat_schedule is of type list: a dict of entries by name is right"),
    ],
)
def test_a_setting_of_celerys_that_hurts_all_jobs_is_status_2(desk_with, command, conf, line):
    result = desk_with(**{"beat_schedule": ENTRIES} | conf).run(*command.split())
    assert 2 == result.exit_code
    (said,) = result.output.splitlines()
    assert said.startswith(line)


# By celery itself -------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, redis_url):
    """A folder with a project whose store is a Redis, and Celery's own command in it."""
    (tmp_path / "proj.py").write_text(
        textwrap.dedent(f"""
            from celery import Celery

            app = Celery("proj", broker="memory://")
            app.conf.anarchon_store = {redis_url!r}
            app.conf.beat_schedule = {{
                "sync": {{"task": "t", "schedule": "1h"}},
                "bad": {{"task": "t", "schedule": "61 * * * *"}},
            }}
            """)
    )

    def celery(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "celery", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    return celery


def test_celery_has_the_command(project, redis_url):
    store = open_store(redis_url)
    store.register(Node(id="i", name="a:1"), [Registration(job="sync", hash="h")])
    store.claim("a:1", [Offer(job="sync", slots=(T - 10**10,))], nonce=new_nonce())
    store.close()
    ended = project("-A", "proj", "anarchon", "runs", "--json")
    assert (0, "") == (ended.returncode, ended.stderr)
    (run,) = json.loads(ended.stdout)
    assert ("sync", "claimed", RUN_FIELDS) == (run["job"], run["state"], list(run))


def test_a_job_is_paused_and_shown_from_the_shell(project, redis_url):
    store = open_store(redis_url)
    store.register(Node(id="i", name="a:1"), [Registration(job="sync", hash="h")])
    store.close()
    ended = project("-A", "proj", "anarchon", "pause", "sync", "--reason", "deploy", "--json")
    assert (0, "") == (ended.returncode, ended.stderr)
    pause = json.loads(ended.stdout)["paused"]
    ended = project("-A", "proj", "anarchon", "jobs", "--json")
    assert 0 == ended.returncode
    assert ended.stderr.startswith("entry 'bad': cron '61 * * * *': ")
    assert pause == {job["job"]: job["paused"] for job in json.loads(ended.stdout)}["sync"]


def test_a_decorated_task_is_a_job(tmp_path):
    """Its module is imported as beat imports it."""
    (tmp_path / "proj.py").write_text("from celery import Celery\napp = Celery('proj', include=['work'])\n")
    (tmp_path / "work.py").write_text(
        "import anarchon_celery\nfrom proj import app\n"
        "@anarchon_celery.every('1h')\n@app.task\ndef tidy(): ...\n"
    )
    words = ["-A", "proj", "anarchon", "next", "work.tidy", "-n", "1", "--json"]
    found = subprocess.run(
        [sys.executable, "-m", "celery", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (0, "") == (found.returncode, found.stderr)
    (slot,) = [time["slot"] for time in json.loads(found.stdout)]
    assert 0 == from_iso(slot) % HOUR


def test_without_a_project_it_is_one_line_and_status_2(project):
    ended = project("anarchon", "status")
    expected = (2, "", "Error: name your project: celery -A proj anarchon …\n")
    assert expected == (ended.returncode, ended.stdout, ended.stderr)


def test_the_help_of_a_command_needs_no_project():
    app = Celery("default", set_as_current=False)
    context = CLIContext(app=app, no_color=True, workdir=None)
    result = CliRunner().invoke(cli.anarchon, ["pause", "--help"], obj=context, prog_name="celery anarchon")
    assert (0, True) == (result.exit_code, "Usage: celery anarchon pause" in result.output)
    app.close()


def test_who_reads_no_further_is_no_error(project, tmp_path):
    words = f"{shlex.quote(sys.executable)} -m celery -A proj anarchon next sync -n 1000"
    shell = ["bash", "-c", f"{words} | head -n 1"]
    ended = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (1, "") == (ended.stdout.count("\n"), ended.stderr)


def test_a_shell_completes_commands_jobs_and_states(tmp_path, monkeypatch):
    """As click does it for bash, zsh and fish."""
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    store.register(Node(id="i", name="a:1"), [Registration(job="sweep", hash="h")])
    store.close()
    (tmp_path / "completed.py").write_text(
        textwrap.dedent(f"""
            from celery import Celery

            print("this is no name")
            app = Celery("completed", broker="memory://", set_as_current=False)
            app.conf.anarchon_store = "sqlite:///{tmp_path}/jobs.db"
            app.conf.beat_schedule = {{"sync": {{"task": "t", "schedule": "1h"}}}}
            """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing.py").write_text("raise ZeroDivisionError")

    def completed(typed: str, project: str = "completed") -> list[str]:
        words = ["-A", project, "anarchon", *typed.split(" ")]
        shell = ShellComplete(celery_command, {}, "celery", "_CELERY_COMPLETE")
        return [one.value for one in shell.get_completions(words[:-1], words[-1])]

    assert ["pause"] == completed("pa")
    assert ["sweep", "sync"] == completed("pause s") == completed("runs --job s")
    assert ["cancelled", "claimed"] == completed("runs --state c")
    assert [] == completed("pause s", "failing") == completed("pause s", "nosuch")
    monkeypatch.delitem(sys.modules, "completed")
    (tmp_path / "jobs.db").unlink()
    (tmp_path / "jobs.db").mkdir()
    assert ["sync"] == completed("cancel s")

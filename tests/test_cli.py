"""The commands: tables for people, JSON for machines, one line and a status where something is wrong."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import textwrap

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from anarchon_celery import cli
from anarchon_celery.protocol import Node, Offer, Registration, RunKey, Sent, Start
from anarchon_celery.slots import Leap, from_iso
from anarchon_celery.stores import memory, new_nonce, open_store
from tests.servers import free_port

T = from_iso("2026-10-10T12:00:30.000Z")

#: The contract's.
RUN_FIELDS = [
    "job", "slot", "state", "trigger", "dispatch", "attempt", "crashes", "fence", "owner", "task_id",
    "claimed_at", "queued_at", "started_at", "finished_at", "reason",
]  # fmt: skip


class Desk:
    """A project's app, and its command line."""

    def __init__(self, **conf) -> None:
        self.app = Celery("proj", broker="memory://", set_as_current=False)
        self.app.conf.update({"anarchon_store": f"memory://{secrets.token_hex(4)}"} | conf)

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
        return json.loads(result.output)

    def story(self) -> int:
        """Two jobs on two nodes: a run that ended, one that is held, one that was skipped, some missed."""
        store = self.store
        for n, name in enumerate(("b:2", "a:1")):
            jobs = [Registration(job=job, hash="h") for job in ("report", "sync")]
            store.register(Node(id=f"id-{n}", name=name), jobs, now=T + n)
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
        memory._STORES.pop((self.app.conf.anarchon_store, "anarchon"), None)


@pytest.fixture
def desk_with():
    desks = []

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
        "finished_at": None, "reason": None,
    }  # fmt: skip
    assert expected == found[1]


def test_the_fields_of_a_run_are_the_contracts_in_its_order(desk):
    desk.story()
    assert RUN_FIELDS == list(desk.json("runs", "--job", "sync")[0])


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
    assert [] == desk.json("runs", "--job", "nobody")


def test_runs_as_a_table(desk):
    desk.story()
    result = desk.run("runs")
    assert 0 == result.exit_code
    assert [
        ["job", "slot", "state", "attempt", "on", "took", "why"],
        ["report", "2026-10-10T12:00:31.000Z", "skipped", "overlap"],
        ["report", "2026-10-10T12:00:30.000Z", "running", "1 (scheduled)", "celery@c:3"],
        [
            "sync", "2026-10-10T12:00:30.000Z", "failed", "1 (scheduled)", "celery@c:3", "1.5 s",
            "ValueError: no [bold]markup[/bold]",
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
    assert ["store", "jobs", "nodes", "active"] == list(found)
    assert (desk.app.conf.anarchon_store, 2) == (found["store"], found["jobs"])
    assert [
        {"id": "id-1", "node": "a:1", "kind": "beat", "alive": True, "seen_at": "2026-10-10T12:00:30.001Z"},
        {"id": "id-0", "node": "b:2", "kind": "beat", "alive": True, "seen_at": "2026-10-10T12:00:30.000Z"},
    ] == found["nodes"]
    assert [("report", "running")] == [(run["job"], run["state"]) for run in found["active"]]
    assert RUN_FIELDS == list(found["active"][0])


def test_status_as_a_table(desk):
    desk.story()
    assert [
        [f"store {desk.app.conf.anarchon_store}, 2 jobs"],
        ["node", "kind", "last seen"],
        ["a:1", "beat", "alive", "2026-10-10T12:00:30.001Z"],
        ["b:2", "beat", "alive", "2026-10-10T12:00:30.000Z"],
        ["job", "slot", "state", "attempt", "on", "took", "why"],
        ["report", "2026-10-10T12:00:30.000Z", "running", "1 (scheduled)", "celery@c:3"],
    ] == cells(desk.run("status").output)


def test_status_of_an_empty_store(desk):
    result = desk.run("status")
    assert 0 == result.exit_code
    assert "no run is active" == result.output.splitlines()[-1]
    nothing = {"store": desk.app.conf.anarchon_store, "jobs": 0, "nodes": [], "active": []}
    assert nothing == desk.json("status")


def test_a_password_is_not_shown(desk_with):
    port = free_port()
    desk = desk_with(anarchon_store=f"redis://user:hush@127.0.0.1:{port}/1")
    result = desk.run("status")
    assert 1 == result.exit_code
    assert "hush" not in result.output
    assert f"127.0.0.1:{port}" in result.output


# What is wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "runs"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_store_that_is_not_there_is_one_line_and_status_1(desk_with, command, as_json):
    port = free_port()
    desk = desk_with(anarchon_store=f"redis://127.0.0.1:{port}/1")
    result = desk.run(command, *(["--json"] if as_json else []))
    assert 1 == result.exit_code
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: redis://127.0.0.1:{port}/1 does not answer: ")


def test_a_store_that_does_not_take_its_options_is_one_line_and_status_1(desk_with):
    desk = desk_with(anarchon_store="redis://localhost", anarchon_store_options={"colour": "blue"})
    result = desk.run("status")
    assert 1 == result.exit_code
    (line,) = result.output.splitlines()
    assert line.startswith("Error: redis://localhost:6379/0: the Redis client does not take these options: ")


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


# By celery itself -------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, redis_url):
    """A folder with a project whose store is a Redis, and Celery's own command in it."""
    (tmp_path / "proj.py").write_text(
        textwrap.dedent(f"""
            from celery import Celery

            app = Celery("proj", broker="memory://")
            app.conf.anarchon_store = {redis_url!r}
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
    ended = project("-A", "proj", "anarchon", "status")
    assert 0 == ended.returncode
    assert ended.stdout.startswith(f"store {redis_url}, 1 job")


def test_without_a_project_it_is_one_line_and_status_2(project):
    ended = project("anarchon", "status")
    assert (2, "") == (ended.returncode, ended.stdout)
    assert "Error: name your project: celery -A proj anarchon …" == ended.stderr.splitlines()[-1]
    assert 1 == sum(line.startswith("Error") for line in ended.stderr.splitlines())

"""The commands that steer: what they do to the store, what they ask first, what they say, their status."""

from __future__ import annotations

import json
import re
import socket

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from anarchon_celery import cli
from anarchon_celery.arguments import MOST
from anarchon_celery.errors import StoreUnreachable
from anarchon_celery.protocol import Node, Offer, Registration, RunKey
from anarchon_celery.schedules import cron
from anarchon_celery.signals import run_cancelled
from anarchon_celery.slots import HOUR, MINUTE, SECOND, from_iso, iso
from anarchon_celery.stores import memory
from tests.fire_times import test_tables
from tests.test_cli import Checked, Desk, T, cells
from tests.test_signals import heard

ENTRIES = {
    "report": {
        "task": "proj.report", "schedule": cron("30 * * * *", timezone="Europe/Berlin"), "args": ("eu",),
    },
    "sync": {"task": "t", "schedule": "10s", "options": {"anarchon": {"overlap": "allow", "lease": "5s"}}},
    "chain": {"task": "t", "schedule": Checked()},
}  # fmt: skip


@pytest.fixture
def desk(monkeypatch):
    """Two jobs of which the store has heard, a beat that lives, and a task whose arguments are known here."""
    made = Desk(beat_schedule={**ENTRIES}, timezone="UTC")
    monkeypatch.setattr(memory, "_wall_clock", lambda: T + 2_000)
    made.app.task(name="proj.report", shared=False)(report)
    jobs = [Registration(job=job, hash="h") for job in ENTRIES]
    made.store.register(Node(id="i", name="a:1", app="proj"), jobs, now=T)
    yield made
    made.close()


def report(region, full=False):
    """What takes these arguments."""


def refused(desk, *words: str) -> str:
    """The one line of what cannot be asked."""
    result = desk.run(*words)
    assert 2 == result.exit_code, result.output
    (line,) = result.output.splitlines()
    return line.removeprefix("Error: ")


# trigger ----------------------------------------------------------------------------------------


def test_a_job_is_triggered_with_its_own_arguments(desk):
    said = desk.json("trigger", "report")
    (run,) = desk.store.runs()
    assert ("released", None, iso(T + 2_000), "manual") == (
        said["answer"], said["wait_ms"], said["run"]["slot"], said["run"]["kind"],
    )  # fmt: skip
    assert (None, said["run"]["asked_by"]) == (run.arguments, run.asked_by)
    assert re.fullmatch(r".+@.+", run.asked_by)
    assert [said["run"]] == desk.json("runs")


def test_one_that_has_to_wait_says_so(desk):
    desk.run("trigger", "report")
    result = desk.run("trigger", "report")
    waits = "waits for the runs of its job that are before it"
    assert (0, f"report @ {iso(T + 2_001)} (manual): {waits}\n") == (result.exit_code, result.output)


def test_the_policy_of_the_job_counts(desk):
    assert ["released"] * 2 == [desk.json("trigger", "sync")["answer"] for _ in range(2)]


def test_arguments_are_given_as_json(desk):
    desk.json("trigger", "report", "--args", '["us"]', "--kwargs", '{"full": true}')
    desk.json("trigger", "report", "--kwargs", "{}")
    assert ['[null, {}]', '[["us"], {"full": true}]'] == [run.arguments for run in desk.store.runs()]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--args", "us"], "--args='us': JSON is right, such as '[\"eu\", 3]': Expecting value"),
        (["--args", "[NaN]"], "--args='[NaN]': JSON is right, such as '[\"eu\", 3]': NaN is no JSON"),
        (["--args", "{}"], "--args='{}': a JSON array is right, such as '[\"eu\", 3]'"),
        (["--kwargs", "[]"], "--kwargs='[]': a JSON object is right, such as '{\"full\": true}'"),
        (["--args", "[]"], "these arguments do not fit task 'proj.report': "),
        (["--kwargs", '{"fast": 1}'], "these arguments do not fit task 'proj.report': "),
        (["--args", json.dumps(["x" * MOST])], f"the arguments are {MOST + 12} bytes of JSON: 4096 at most"),
    ],
)
def test_arguments_that_cannot_be_meant_are_one_line(desk, words, line):
    assert refused(desk, "trigger", "report", *words).startswith(line)
    assert [] == desk.store.runs()


def test_a_job_that_nobody_has(desk):
    assert "there is no job 'repot'; did you mean 'report'?" == refused(desk, "trigger", "repot")
    desk.app.conf.beat_schedule["new"] = ENTRIES["sync"]
    assert "no node has told the store of 'new' yet: start a beat first" == refused(desk, "trigger", "new")


def test_without_a_beat_it_says_that_it_waits(desk, monkeypatch):
    monkeypatch.setattr(memory, "_wall_clock", lambda: T + HOUR)
    result = desk.run("trigger", "report")
    assert (0, "no beat is alive: it waits until one is started\n") == (result.exit_code, result.stderr)


def test_in_a_young_store_it_waits_and_the_status_is_1(desk):
    origin = desk.store.room.ledger.origin
    desk.store.room.ledger.origin = origin.reborn(T + 1_000, "another")
    result = desk.run("trigger", "report", "--json")
    said = desk.read("trigger", result)
    assert (1, "wait", 29_000, None) == (result.exit_code, said["answer"], said["wait_ms"], said["run"])
    result = desk.run("trigger", "report")
    assert "the store has forgotten something and is young: ask again in 29 s" in result.output


def test_an_answer_that_was_lost_enters_no_second_run(desk, monkeypatch):
    whole, lost = memory.MemoryStore.trigger, []

    def trigger(store, *args, **how):
        answer = whole(store, *args, **how)
        if not lost:
            lost.append(answer)
            raise StoreUnreachable("the answer was lost")
        return answer

    monkeypatch.setattr(memory.MemoryStore, "trigger", trigger)
    assert "released" == desk.json("trigger", "report")["answer"]
    assert 1 == len(desk.store.runs())


def test_what_somebody_asked_for_is_no_slot_of_the_job(desk):
    desk.json("trigger", "chain")
    desk.story()
    desk.json("trigger", "report")
    last = {job["job"]: job["last_slot"] for job in desk.json("jobs")}
    assert {"chain": None, "report": iso(T + 1_000), "sync": iso(T)} == last


# pause and resume -------------------------------------------------------------------------------


def meanwhile(monkeypatch, verb: str, do) -> None:
    """Have something happen after the store was looked at, and before this verb of it is carried out."""
    whole = getattr(memory.MemoryStore, verb)

    def late(store, *args, **how):
        monkeypatch.setattr(memory.MemoryStore, verb, whole)
        do(store)
        return whole(store, *args, **how)

    monkeypatch.setattr(memory.MemoryStore, verb, late)


def test_a_job_that_the_store_forgets_before_it_is_paused(desk, monkeypatch):
    meanwhile(monkeypatch, "pause", lambda store: store.room.ledger.jobs.clear())
    line = "no node has told the store of 'report' yet: start a beat first"
    assert line == refused(desk, "pause", "report", "--reason", "deploy")


def test_one_that_somebody_resumes_at_once_is_not_said_to_be_paused(desk, monkeypatch):
    desk.run("pause", "report", "--reason", "deploy")
    whole = memory.MemoryStore.pause
    both = lambda store, *args, **how: (whole(store, *args, **how), store.resume("report"))  # noqa: E731
    monkeypatch.setattr(memory.MemoryStore, "pause", both)
    was, now = desk.run("pause", "report", "--reason", "moved").output.splitlines()
    assert was.startswith("report was paused already: deploy (by ")
    assert "report goes on: somebody resumed it meanwhile" == now
    assert desk.json("pause", "report")["paused"] is None


def test_who_asks_in_a_container_may_have_no_name(desk, monkeypatch):
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 3_999_999)
    assert f"uid 3999999@{socket.gethostname()}" == desk.json("pause", "report")["paused"]["by"]


@pytest.mark.parametrize("words", [["pause", "report", "--reason", "\udcff"], ["trigger", "\udce4"]])
def test_what_is_no_text_is_one_line(desk, words):
    """As Python has a word of the command line whose bytes are no UTF-8."""
    assert f"{words[-1]!r}: text in UTF-8 is right" == refused(desk, *words)
    assert None is desk.store.jobs()[0].paused


# backfill ---------------------------------------------------------------------------------------

AUTUMN = ("--from", "2025-10-26 01:00", "--to", "2025-10-26 04:00")


def test_the_slots_around_a_clock_change(desk):
    """From 01:00 to 04:00 there are four hours in that night in Berlin."""
    slots = [f"2025-10-{at}.000Z" for at in ("25T23:30:00", "26T00:30:00", "26T01:30:00", "26T02:30:00")]
    dry = desk.json("backfill", "report", *AUTUMN, "--dry-run")
    assert ({"job": "report", "dry_run": True}, slots) == (
        {name: dry[name] for name in ("job", "dry_run")}, [one["slot"] for one in dry["slots"]],
    )  # fmt: skip
    assert [] == desk.store.runs()
    said = desk.json("backfill", "report", *AUTUMN, "--yes", "--args", '["us"]')
    assert [(slots[0], "released"), *((slot, "buffered") for slot in slots[1:])] == [
        (one["slot"], one["answer"]) for one in said["slots"]
    ]
    assert {("backfill", '[["us"], null]')} == {(run.kind, run.arguments) for run in desk.store.runs()}
    again = desk.json("backfill", "report", *AUTUMN, "--yes")
    assert ["taken"] * 4 == [one["answer"] for one in again["slots"]]


#: A schedule, from when on and until when, and the table of its fire times in between.
BERLIN = [
    case
    for test in (test_tables.test_berlin_in_spring, test_tables.test_berlin_in_autumn)
    for case in test.pytestmark[0].args[1]
]


@pytest.mark.parametrize(("schedule", "start", "end", "table"), BERLIN)
def test_the_slots_are_those_of_the_fire_time_tables(desk, monkeypatch, schedule, start, end, table):
    """A day or more around each change of Berlin's clocks."""
    monkeypatch.setattr(memory, "_wall_clock", lambda: from_iso("2027-01-01T00:00Z"))
    desk.app.conf.update(
        timezone="Europe/Berlin", beat_schedule={"night": {"task": "t", "schedule": schedule}}
    )
    desk.store.register(Node(id="i", name="a:1"), [Registration(job="night", hash="h")])
    slots = [iso(at) for at in test_tables.instants("Europe/Berlin", start, table)]
    said = desk.json("backfill", "night", "--from", start, "--to", end, "--yes")
    assert slots == [one["slot"] for one in said["slots"]]
    assert slots == sorted(iso(run.slot) for run in desk.store.runs(job="night"))


def test_it_asks_first(desk):
    ask = ["backfill", "report", *AUTUMN]
    for answer, status, runs in (("n\n", 1, 0), ("y\n", 0, 4)):
        result = answered(desk, answer, *ask)
        assert (status, runs) == (result.exit_code, len(desk.store.runs()))
        question = "Run 4 slots of report, from 2025-10-25T23:30:00.000Z to 2025-10-26T02:30:00.000Z?"
        assert question in result.stderr
    assert ["2025-10-26T00:30:00.000Z", "Sun 2025-10-26 02:30:00 +02:00"] == cells(result.stdout)[2][:2]
    assert "--json does not ask: --yes is right" in refused(desk, *ask, "--json")


def answered(desk, text: str, *words: str):
    """What a command says to somebody who answers its question."""
    context = CLIContext(app=desk.app, no_color=True, workdir=None)
    return CliRunner().invoke(cli.anarchon, list(words), obj=context, input=text, prog_name="anarchon")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["report", "--from", "2025-10-01", "--to", "2025-11-01"], "report fired more than 100 times in "),
        (["chain", *AUTUMN], "chain: each time of its schedule follows from the one before"),
        (["report", "--from", "soon", "--to", "2025-11-01"], "--from: 'soon' is no moment"),
        (["report", "--from", "2025-10-02", "--to", "2025-10-01"], "--to: 2025-09-30T22:00:00.000Z is not "),
        (["repot", *AUTUMN], "there is no job 'repot'; did you mean 'report'?"),
    ],
)
def test_what_cannot_be_backfilled_is_one_line(desk, words, line):
    assert refused(desk, "backfill", *words).startswith(line)
    assert [] == desk.store.runs()


def test_in_a_young_store_a_backfill_waits_and_the_status_is_1(desk):
    origin = desk.store.room.ledger.origin
    desk.store.room.ledger.origin = origin.reborn(T + 1_000, "another")
    result = desk.run("backfill", "report", *AUTUMN, "--yes", "--json")
    said = [(one["answer"], one["wait_ms"], one["run"]) for one in desk.read("backfill", result)["slots"]]
    assert (1, [("wait", 29_000, None)] * 4) == (result.exit_code, said)
    result = desk.run("backfill", "report", *AUTUMN, "--yes")
    assert (1, 4) == (result.exit_code, result.output.count("is young: ask again in 29 s"))
    assert [] == desk.store.runs()


def test_more_than_usual_has_to_be_said(desk):
    words = ["--from", "2025-10-01", "--to", "2025-10-11", "--yes", "--most", "240"]
    assert 240 == len(desk.json("backfill", "report", *words)["slots"])
    assert 240 == len(desk.store.runs(limit=1000))


def test_what_is_not_due_yet_is_left_out(desk):
    words = ["--from", iso(T - MINUTE), "--to", "2026-12-01"]
    assert ["dry_run", "job", "slots"] == sorted(desk.json("backfill", "sync", *words, "--dry-run"))
    slots = [one["slot"] for one in desk.json("backfill", "sync", *words, "--dry-run")["slots"]]
    assert [iso(at) for at in range(T - MINUTE, T + 1, 10 * SECOND)] == slots


def test_where_there_was_none_it_says_so(desk):
    assert "report did not fire in that time\n" == desk.run(
        "backfill", "report", "--from", "2025-10-01 00:31", "--to", "2025-10-01 00:40"
    ).output


# cancel -----------------------------------------------------------------------------------------


def test_one_that_runs_is_asked_to_stop(desk):
    desk.story()
    said = desk.json("cancel", "report", iso(T), "--reason", "wrong region")
    assert ("asked to stop", "running") == (said["answer"], said["run"]["state"])
    stop = desk.store.run(RunKey("report", T)).stop
    assert re.fullmatch(r"cancelled by \S+@\S+: wrong region", stop)
    output = desk.run("cancel", "report", iso(T)).output
    assert f"report @ {iso(T)} is asked to stop: celery@c:3 hears it at its next heartbeat\n" == output


def test_the_end_of_one_that_nobody_holds_is_told_by_the_command_once(desk):
    key = desk.json("trigger", "report")["run"]["slot"]
    with heard(run_cancelled) as calls:
        desk.run("cancel", "report", key, "--reason", "wrong region")
        desk.run("cancel", "report", key, "--reason", "wrong region")
    (call,) = calls
    assert ("report", "manual", None) == (call["sender"], call["kind"], call["attempt"])
    assert call["event"].reason.endswith(": wrong region")


def test_one_that_waits_is_cancelled_and_one_that_is_over_is_status_1(desk, caplog):
    key = desk.json("trigger", "report")["run"]["slot"]
    with caplog.at_level("INFO"), caplog.at_level("INFO", "celery"):
        result = desk.run("cancel", "report", key)
        assert (0, f"report @ {key} is cancelled\n") == (result.exit_code, result.stdout)
        assert 0 == desk.run("cancel", "report", key).exit_code
    (line,) = [record.getMessage() for record in caplog.records]  # nobody holds it: the command tells of it
    assert line.startswith(f"[anarchon] report @ {key}: cancelled: cancelled by ")
    desk.story()
    result = desk.run("cancel", "sync", iso(T))
    assert (1, f"sync @ {iso(T)} is over already: failed\n") == (result.exit_code, result.output)
    said = desk.read("cancel", desk.run("cancel", "sync", iso(T), "--json"))
    assert "failed" == said["answer"]


def test_which_one_is_meant(desk):
    desk.story()
    asked = ["backfill", "report", "--from", iso(T - HOUR), "--to", iso(T), "--yes"]
    (slot,) = [one["slot"] for one in desk.json(*asked)["slots"]]
    assert "backfill" == desk.json("cancel", "report", slot)["run"]["kind"]
    line = refused(desk, "cancel", "report", iso(T + 7))
    assert line.startswith(f"there is no run report @ {iso(T + 7)}; ")
    assert refused(desk, "cancel", "report", "soon").startswith("SLOT: 'soon' is no moment")
    assert "there is no job 'repot'; did you mean 'report'?" == refused(desk, "cancel", "repot", iso(T))


def test_one_that_is_forgotten_before_it_is_cancelled(desk, monkeypatch):
    desk.story()
    meanwhile(monkeypatch, "cancel", lambda store: store.forget("sync", limit=10))
    assert f"there is no run sync @ {iso(T)}" == refused(desk, "cancel", "sync", iso(T))


def test_of_several_kinds_of_one_slot_one_has_to_be_named(desk):
    desk.json("backfill", "sync", "--from", iso(T - 10_000), "--to", iso(T), "--yes")
    desk.store.claim("a:1", [Offer(job="sync", slots=(T - 10_000,), overlap="allow")], nonce="n", now=T)
    line = refused(desk, "cancel", "sync", iso(T - 10_000))
    assert line.endswith("of several kinds: name one by --kind, scheduled and backfill")
    assert "backfill" == desk.json("cancel", "sync", iso(T - 10_000), "--kind", "backfill")["run"]["kind"]


# forget and prune -------------------------------------------------------------------------------


def test_a_job_is_forgotten_after_a_question(desk):
    desk.story()
    assert 1 == answered(desk, "n\n", "forget", "sync").exit_code
    assert 2 == len(desk.store.runs(job="sync"))
    assert {"job": "sync", "forgotten": 2, "left": []} == desk.json("forget", "sync", "--yes")
    assert [] == desk.store.runs(job="sync")
    result = answered(desk, "y\n", "forget", "report")
    said = result.stdout.splitlines()
    assert (0, "1 run of report forgotten") == (result.exit_code, said[0])
    assert ("running", "this goes on: `cancel` ends it") == (said[2].split()[2], said[3])
    assert ["running"] == [run["state"] for run in desk.json("forget", "report", "--yes")["left"]]
    assert ["running"] == [run.state for run in desk.store.runs()]
    assert refused(desk, "forget", "repot").startswith("there is no job 'repot'")


def test_old_history_is_cleared_away(desk, monkeypatch):
    desk.story()
    assert {"forgotten": 0, "history": "7d"} == desk.json("prune")
    monkeypatch.setattr(memory, "_wall_clock", lambda: T + HOUR)
    said = desk.run("prune", "--history", "59m58s500ms").output
    assert "2 runs forgotten or folded; kept is 59m58s500ms\n" == said
    assert {"forgotten": 1, "history": "30m"} == desk.json("prune", "--history", "30m")
    assert "--history: 'long' is no duration: give seconds" in refused(desk, "prune", "--history", "long")


@pytest.mark.parametrize(
    ("typed", "kept"),
    [("3600", "1h"), ("1.5", "1s500ms"), ("0", "0s"), ("90m", "1h30m"), ("36500d", "36500d")],
)
def test_a_duration_that_is_typed_may_be_a_number_of_seconds(desk, typed, kept):
    assert {"forgotten": 0, "history": kept} == desk.json("prune", "--history", typed)


def test_a_history_without_end_is_none(desk):
    line = "--history='99999999999999d': up to 36500d is right"
    assert line == refused(desk, "prune", "--history", "99999999999999d")

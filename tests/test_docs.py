"""docs/, held to its word: the code of schedules.md and fencing.md runs; stores.md's commands are there."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import redis
from sqlalchemy import select

import anarchon_celery
from anarchon_celery.cli import anarchon
from anarchon_celery.config import Config
from anarchon_celery.doctor import OF_THE_APP, OF_THE_STORE
from anarchon_celery.entries import planned_jobs
from anarchon_celery.schedules import as_schedule, fire_times
from anarchon_celery.slots import from_iso, iso
from anarchon_celery.stores.filesystems import SHARED
from anarchon_celery.stores.versions import COMMAND, NEW, OLDEST
from tests import pages

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "schedules.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def project(monkeypatch):
    return pages.project(monkeypatch)


def jobs_after(project, block: str) -> dict[str, object]:
    exec(compile(block, "docs/schedules.md", "exec"), vars(project))
    found, refused = planned_jobs(project.app, Config.of(project.app))
    assert [] == refused
    return {name: entry.schedule for name, (entry, _) in found.items()}


def test_the_entries_of_the_page(project):
    assert ["sync", "report", "cleanup", "move"] == list(jobs_after(project, BLOCKS[0]))


def test_the_decorators_of_the_page(project):
    assert {"morning", "proj.tasks.report: every 30s"} == set(jobs_after(project, BLOCKS[1]))


def test_the_methods_of_the_page(project):
    assert ["proj.tasks.Reports.daily"] == list(jobs_after(project, BLOCKS[2].replace("...", "pass", 1)))


def test_there_are_no_other_blocks():
    assert 3 == len(BLOCKS)


def test_the_schedules_in_the_table_are_accepted(project):
    (table,) = re.findall(r"\| schedule \| fires \|\n(.*?)\n\n", PAGE, re.DOTALL)
    written = [text for row in table.splitlines()[1:] for text in re.findall(r"`([^`]+)`", row.split("|")[1])]
    names = {**vars(anarchon_celery), "timedelta": timedelta}
    schedules = [text for text in written if text[0] in "'0123456789" or "(" in text]
    assert 13 == len(schedules)
    for text in schedules:
        times = fire_times(as_schedule(eval(text, names)), timezone=BERLIN, job="job")
        assert times.next(from_iso("2026-11-01T00:00Z")) is not None, text


@pytest.mark.parametrize(
    ("schedule", "after", "until", "expected"),
    [
        ("30 2 * * *", "2026-03-29T00:00Z", "2026-03-29T12:00Z", ["01:00"]),
        ("30 2 * * *", "2026-10-25T00:00Z", "2026-10-25T12:00Z", ["00:30"]),
        ("30 * * * *", "2026-03-29T00:00Z", "2026-03-29T02:00Z", ["00:30", "01:30"]),
        ("30 * * * *", "2026-10-25T00:00Z", "2026-10-25T02:00Z", ["00:30", "01:30"]),
    ],
)
def test_the_times_of_the_page(schedule, after, until, expected):
    times = fire_times(as_schedule(schedule), timezone=BERLIN)
    assert expected == [iso(time)[11:16] for time in times.between(from_iso(after), from_iso(until))]


# docs/stores.md ---------------------------------------------------------------------------------

STORES = (DOCS / "stores.md").read_text()


def test_the_commands_of_the_page_are_there():
    words = re.findall(r"^\$ celery -A proj anarchon (\w+)( --[\w-]+)?", STORES, re.MULTILINE)
    assert ["upgrade", "upgrade", "doctor"] == [name for name, _ in words]
    for name, option in words:
        options = [one for parameter in anarchon.commands[name].params for one in parameter.opts]
        assert not option or option.strip() in options
    assert f"$ {COMMAND}\n" in STORES


def test_the_versions_of_the_page():
    (table,) = re.findall(r"\| version \| what is new \|\n\|---\|---\|\n(.*?)\n\n", STORES, re.DOTALL)
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    told = [[str(version), what] for version, what in sorted(NEW.items(), reverse=True)]
    assert [*told, [str(OLDEST), "the oldest one that can be upgraded"]] == rows


def test_the_file_systems_of_the_page_are_refused():
    (named,) = re.findall(r"file system that machines share \(([^)]*)\)", STORES)
    assert "NFS, SMB, 9p, sshfs and other such of FUSE" == named
    assert {"nfs", "nfs4", "smb3", "cifs", "9p", "sshfs"} <= SHARED


# docs/commands.md -------------------------------------------------------------------------------

COMMANDS = (DOCS / "commands.md").read_text()


def test_each_command_is_on_the_page_with_its_options_and_has_a_schema():
    tables = "\n".join(line for line in COMMANDS.splitlines() if line.startswith("|"))
    rows = {row.split("`")[1].split()[0]: row for row in tables.splitlines() if row.startswith("| `")}
    assert set(anarchon.commands) <= set(rows)
    for name, command in anarchon.commands.items():
        told = "".join(row for row in tables.splitlines() if f"`{name} " in row or f"`{name}`" in row)
        for parameter in command.params:
            said = [option for option in parameter.opts if option in told or option in ("--json", "name")]
            assert parameter.name == "slot" or said or parameter.opts[0] in COMMANDS, (name, parameter.opts)
    schema = json.loads((DOCS / "commands.schema.json").read_text())
    assert set(anarchon.commands) == set(schema["$defs"]["commands"])


def test_the_checks_of_the_doctor_on_the_page():
    (table,) = re.findall(r"\| it finds \| \|\n\|---\|---\|\n(.*)", COMMANDS, re.DOTALL)
    told = [name for row in table.splitlines() for name in row.split("|")[1].strip().split(", ")]
    assert sorted([*(check.__name__ for check in (*OF_THE_APP, *OF_THE_STORE)), "store"]) == sorted(told)


def test_the_probes_of_the_page_are_commands():
    for words in re.findall(r"command: \[celery, -A, proj, anarchon, (.*?)\]", COMMANDS):
        name, *options = words.split(", ")
        assert set(options) <= {one for parameter in anarchon.commands[name].params for one in parameter.opts}


# docs/fencing.md --------------------------------------------------------------------------------

FENCING = (DOCS / "fencing.md").read_text()
TABLE, REFUSED, DJANGO, REDIS, OTHER = re.findall(r"```python\n(.*?)```", FENCING, re.DOTALL)
SAID_BY_TABLE, SAID_BY_REDIS = re.findall(r"```\n([^`]+)```\n\n##", FENCING)


@pytest.fixture
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(project, block: str) -> None:
    exec(compile(block, "docs/fencing.md", "exec"), vars(project))


def test_the_stale_writer_of_a_table(project, in_a_folder, capsys):
    run(project, TABLE)
    project.sync_rates()
    with project.engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(select(project.rates))]
    assert [("USD", Decimal("1.08"), 0)] == rows
    run(project, REFUSED)
    assert SAID_BY_TABLE == capsys.readouterr().out
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        project.cursor = connection.cursor()
        run(project, OTHER)
        assert [("USD", 1.12, 9)] == connection.execute("SELECT * FROM rates").fetchall()
    project.engine.dispose()


def test_the_stale_writer_of_a_hash(project, redis_url, capsys):
    with redis.Redis.from_url(redis_url, decode_responses=True) as project.client:
        run(project, REDIS)
        assert SAID_BY_REDIS == capsys.readouterr().out
        assert {"rate": "1.11", "fence": "8"} == project.client.hgetall("rate:USD")


def test_the_job_of_the_example_project():
    assert DJANGO in (DOCS.parent / "example_project" / "billing" / "tasks.py").read_text()

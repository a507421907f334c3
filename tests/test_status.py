"""``status --watch`` and ``health``: what is seen again and again, and what probes of containers get."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import textwrap
from contextlib import closing
from dataclasses import replace

import pytest

from anarchon_celery.protocol import Node, Registration, Request
from anarchon_celery.stores import open_store
from tests.processes import wait_until
from tests.servers import free_port
from tests.test_cli import Desk, read_or_end


@pytest.fixture
def desk_with():
    desks = []

    def make(**conf) -> Desk:
        desks.append(Desk(**conf))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


# health -----------------------------------------------------------------------------------------

HOST = socket.gethostname()
NEITHER = f"no beat on {HOST} is alive; no worker on {HOST} is alive"


def health(desk: Desk, *words: str) -> tuple[int, str]:
    """The status and the line for people, the same as for machines."""
    as_json, as_text = desk.run("health", *words, "--json"), desk.run("health", *words)
    said = desk.read("health", as_json)
    assert as_json.exit_code == as_text.exit_code == (not said["well"])
    assert as_text.output == ("; ".join(said["wrong"]) or "well") + "\n"
    return as_text.exit_code, as_text.output.rstrip()


def test_ready_is_who_reaches_the_store(desk_with):
    assert (0, "well") == health(desk_with())
    port = free_port()
    away = desk_with(anarchon_store=f"redis://:secret@127.0.0.1:{port}/0")
    status, line = health(away)
    assert (1, True, False) == (status, f"127.0.0.1:{port}" in line, "secret" in line)


def test_a_node_of_this_host_has_to_be_alive(desk_with):
    desk = desk_with()
    assert (1, NEITHER) == health(desk, "--beat", "--worker")
    desk.store.register(Node(id="a", name="another-host:1"), [])
    desk.store.register(Node(id="b", name="celery@another-host:1", kind="worker"), [])
    assert 1 == health(desk, "--beat")[0] == health(desk, "--worker")[0]
    desk.store.register(Node(id="c", name=f"{HOST}:1"), [])
    assert (0, "well") == health(desk, "--beat")
    desk.store.register(Node(id="d", name=f"mine@{HOST}:1", kind="worker"), [])
    assert (0, "well") == health(desk, "--beat", "--worker")


def test_a_node_may_be_named(desk_with):
    desk = desk_with(anarchon_node="host-a")
    desk.store.register(Node(id="a", name="host-a"), [])
    desk.store.register(Node(id="b", name="mine@elsewhere:17", kind="worker"), [])
    assert (0, "well") == health(desk, "--beat")
    assert (0, "well") == health(desk, "--node", "mine@elsewhere", "--worker")
    assert (0, "well") == health(desk, "--node", "host-a")
    assert (1, "no worker named host-a is alive") == health(desk, "--node", "host-a", "--worker")
    assert (1, "no node named host-b is alive") == health(desk, "--node", "host-b")


def test_one_that_was_not_seen_for_long_is_not_alive(desk_with):
    desk = desk_with()
    now = desk.store.clock.now()
    desk.store.register(Node(id="a", name=f"{HOST}:1"), [], now=now - 14_000)
    desk.store.register(Node(id="b", name=f"w@{HOST}:1", kind="worker"), [], now=now - 46_000)
    assert (1, NEITHER) == health(desk, "--beat", "--worker")


def test_for_liveness_a_store_that_is_away_is_no_reason_to_restart(desk_with):
    away = desk_with(anarchon_store=f"redis://127.0.0.1:{free_port()}/0")
    result = away.run("health", "--live", "--beat", "--json")
    said = away.read("health", result)
    assert (0, True, 1) == (result.exit_code, said["well"], len(said["wrong"]))
    assert 0 == away.run("health", "--live").exit_code
    assert 1 == health(desk_with(), "--live", "--beat")[0]


# status -----------------------------------------------------------------------------------------


def test_nodes_that_are_gone_for_long_are_only_counted(desk_with):
    desk = desk_with()
    now = desk.store.clock.now()
    for number, ago in enumerate((3_700_000, 3_600_001, 600_000, 0)):
        desk.store.register(Node(id=f"i{number}", name=f"a:{number}", version="1"), [], now=now - ago)
    output = desk.run("status").output
    assert [("a:2", "gone"), ("a:3", "alive")] == [
        (line.split()[0], line.split()[2]) for line in output.splitlines() if line.startswith("a:")
    ]
    assert "2 more that are gone for over an hour" in output
    assert 4 == len(desk.json("status")["nodes"])


def test_of_very_many_runs_it_says_that_not_all_are_shown(desk_with):
    desk = desk_with()
    desk.store.register(Node(id="i", name="a:1"), [Registration(job="sync", hash="h")])
    said = "of each state the newest 1000 are shown, no more; `runs --state S -n N` shows all"
    for number in range(1_001):
        asked = Request(job="sync", by="anna", overlap="queue" if number == 1_000 else "allow")
        desk.store.trigger(asked, nonce=str(number))
        if number == 998:
            desk.store.trigger(replace(asked, overlap="queue"), nonce="waits")
            assert said not in desk.run("status").output, "1,000 in all, and none of them left out"
    assert said == desk.run("status").output.splitlines()[-1]


def test_watch_is_for_people(desk_with):
    result = desk_with().run("status", "--watch", "--json")
    assert (2, "Error: --watch is for people: --json shows it once\n") == (result.exit_code, result.output)


def write_project(folder, path) -> None:
    (folder / "proj.py").write_text(
        textwrap.dedent(f"""
            from celery import Celery

            app = Celery("proj", broker="memory://")
            app.conf.anarchon_store = "sqlite:///{path}"
            """)
    )


@pytest.mark.slow
def test_status_is_watched_until_somebody_interrupts(processes, tmp_path):
    """It goes on while the store is away, and shows what changes."""
    path = tmp_path / "jobs.db"
    write_project(tmp_path, path)
    watching = processes.celery("-A", "proj", "anarchon", "status", "--watch", "0.2", name="watch")
    watching.wait_for("no run is active", 30)
    store = open_store(f"sqlite:///{path}")
    store.register(Node(id="i", name="a:1"), [])
    watching.wait_for(r"a:1 +beat +alive", 10)
    store.close()
    for file in tmp_path.glob("jobs.db*"):
        file.unlink()
    path.mkdir()
    watching.wait_for("unable to open database file", 10)
    watching.signal(signal.SIGINT)
    assert 0 == watching.wait(10)
    assert "Traceback" not in watching.output


@pytest.mark.slow
def test_on_a_terminal_it_is_watched_in_place(tmp_path):
    """On a screen of its own, which is gone in the end, as if nothing had been shown."""
    path, seen = tmp_path / "jobs.db", b""
    write_project(tmp_path, path)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    command = [sys.executable, "-m", "celery", "-A", "proj", "anarchon", "status", "--watch", "0.2"]

    def look() -> bytes:
        nonlocal seen
        if select.select([screen], [], [], 0.02)[0]:
            seen += read_or_end(screen)
        return re.sub(rb"\x1b\[[0-9;]*m", b"", seen)

    with (
        open(ours, "rb", buffering=0) as screen,
        subprocess.Popen(
            command, cwd=tmp_path, env=environment | {"TERM": "xterm"}, stdout=theirs, stderr=theirs
        ) as watching,
    ):  # fmt: skip
        os.close(theirs)
        try:
            wait_until(lambda: b"no run is active" in look(), 30)
            with closing(open_store(f"sqlite:///{path}")) as store:
                store.register(Node(id="i", name="a:1"), [])
            wait_until(lambda: re.search(rb"a:1 +beat +alive", look()), 10)
            watching.send_signal(signal.SIGINT)
            wait_until(lambda: (look(), watching.poll() is not None)[1], 10)
        finally:
            watching.kill()
    assert 0 == watching.returncode, seen.decode()
    before, shown, after = re.split(rb"\x1b\[\?1049[hl]", seen)
    assert (b"", True) == (before, b"no run is active" in shown)
    assert not re.sub(rb"\x1b\[[?0-9;]*[a-zA-Z]", b"", after).strip(), "and nothing is said after it"
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l"), "the cursor is back"

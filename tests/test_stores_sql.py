"""What only the SQL store does: its file, its tables, its statements. The contract is in test_stores.py."""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import os
import re
import sqlite3
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.synchronize import Barrier as BarrierOfProcesses
from threading import Barrier

import pytest
from sqlalchemy import event

from anarchon_celery.errors import StoreUnreachable, StoreUnusable
from anarchon_celery.protocol import (
    LATEST,
    Holding,
    Node,
    Offer,
    Redispatch,
    Registration,
    Release,
    RunKey,
    Sent,
    Start,
    Started,
)
from anarchon_celery.stores import open_store, records
from anarchon_celery.stores.dialects import SQLITE
from anarchon_celery.stores.sql import SqlStore
from anarchon_celery.stores.tables import VERSION, Tables

SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
T = 1_790_000_000_000
BEAT = Node(id="incarnation-1", name="one:1")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "jobs.db"


@pytest.fixture
def store(file):
    with closing(SqlStore(f"sqlite:///{file}")) as opened:
        yield opened


def register(store: SqlStore, *names: str, now: int | None = T - HOUR) -> None:
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=now)


def claim(store: SqlStore, *names: str, slot: int = T, nonce: str = "n", now: int = T, **how) -> list[str]:
    offers = [Offer(job=name, slots=(slot,), **how) for name in names]
    answers = store.claim("one:1", offers, nonce=nonce, now=now)
    return [one.answer for answer in answers for one in answer.claims]


def begin(store: SqlStore, *names: str) -> list[Holding]:
    """Register, claim, publish and start; return the leases."""
    register(store, *names)
    assert {"won"} == set(claim(store, *names))
    keys = [RunKey(name, T) for name in names]
    store.sent([Sent(key=key, dispatch=1, task_id="i", supervised=True) for key in keys], now=T)
    started = [store.start(Start(key=key, token="t", worker="w"), now=T) for key in keys]
    return [
        Holding(key=key, token="t", fence=answer.fence)
        for key, answer in zip(keys, started, strict=True) if isinstance(answer, Started)
    ]  # fmt: skip


def edit(file, statement: str, *values) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        assert connection.execute(statement, values).rowcount == 1


# Where it is ------------------------------------------------------------------------------------


def test_a_relative_url_stays_the_file_where_the_process_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(open_store("sqlite:///jobs.db")) as store:
        monkeypatch.chdir("/")
        store.register(BEAT, [])
    assert (tmp_path / "jobs.db").exists()
    assert store.shown == f"sqlite:///{tmp_path}/jobs.db"


def test_nothing_is_made_before_the_first_verb(file, store):
    assert not file.exists()
    store.jobs()
    assert file.exists()


@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite+pysqlite:///{}", "sqlite:///file:{}?uri=true"])
def test_forms_of_the_url_that_mean_one_file(form, file, store):
    register(store, "report")
    with closing(open_store(form.format(file))) as other:
        assert store.jobs() == other.jobs()
        assert [job.name for job in other.jobs()] == ["report"]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"])
def test_threads_take_turns_with_a_store_in_memory(url):
    with closing(open_store(url)) as store, ThreadPoolExecutor(8) as pool:
        register(store, *(str(number) for number in range(8)))
        assert list(pool.map(lambda number: claim(store, str(number)), range(8))) == [["won"]] * 8


def test_more_threads_than_a_pool_keeps_have_a_connection_each(store):
    register(store, "report")
    together = Barrier(20)

    def look(connection):
        together.wait(10)  # all 20 have one
        return connection.exec_driver_sql("SELECT count(*) FROM anarchon_jobs").scalar_one()

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(lambda _: store._look(look), range(20))) == [1] * 20


def test_options_are_those_of_create_engine(file):
    with closing(open_store(f"sqlite:///{file}", options={"connect_args": {"timeout": 0.25}})) as store:
        assert asked(store, "PRAGMA busy_timeout") == 250
    with closing(open_store(f"sqlite:///{file}?timeout=0.5")) as store:
        assert asked(store, "PRAGMA busy_timeout") == 500


def test_what_is_written_is_on_the_disk_and_waits_less_than_a_claim_lasts(store):
    assert asked(store, "PRAGMA journal_mode") == "wal"
    assert asked(store, "PRAGMA synchronous") == 2  # FULL
    assert asked(store, "PRAGMA busy_timeout") == 3000


def asked(store, pragma: str):
    return store._look(lambda connection: connection.exec_driver_sql(pragma).scalar_one())


def test_a_file_that_was_removed_is_another_store(file, store):
    register(store, "report")
    first = store.identity
    for path in file.parent.glob("jobs.db*"):
        path.unlink()
    assert store.jobs() == []
    register(store, "report")
    assert store.identity != first
    with closing(open_store(f"sqlite:///{file}")) as other:
        assert other.jobs() == store.jobs()


# What is refused, in one line ---------------------------------------------------------------------


@contextmanager
def refused(kind, *words: str):
    with pytest.raises(kind) as caught:
        yield
    said = str(caught.value)
    assert [word for word in words if word not in said] == [], said
    assert "\n" not in said
    assert "secret" not in said


def test_the_tables_of_a_newer_version(file, store):
    register(store, "report")
    edit(file, "UPDATE anarchon_meta SET value = ? WHERE name = 'version'", str(VERSION + 1))
    for call in (store.jobs, lambda: register(store, "report"), lambda: store.expired(BEAT, 9)):
        with refused(StoreUnusable, str(file), f"of version {VERSION + 1}", f"with version {VERSION}"):
            call()


def test_the_tables_of_an_older_version(file, store):
    register(store, "report")
    store.close()
    edit(file, "UPDATE anarchon_meta SET value = ? WHERE name = 'version'", "1")
    for column in ("paused", "paused_by", "paused_at"):
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(f"ALTER TABLE anarchon_jobs DROP COLUMN {column}")
    before = file.read_bytes()
    for call in (store.jobs, lambda: register(store, "report"), lambda: store.expired(BEAT, 9)):
        with refused(StoreUnusable, str(file), "of version 1", "with version 4", "another anarchon_prefix"):
            call()
    assert before == file.read_bytes()


def test_a_file_that_is_no_database(file, store):
    file.write_text("dear diary, " * 1000)
    with refused(StoreUnusable, str(file), "file is not a database"):
        store.jobs()
    assert file.read_text().startswith("dear diary")


def test_a_read_only_store_can_be_looked_at_but_not_used(file, store):
    register(store, "report")
    with closing(open_store(f"sqlite:///file:{file}?mode=ro&uri=true")) as other:
        assert other.jobs() == store.jobs()
        with refused(StoreUnusable, str(file), "readonly"):
            claim(other, "report")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write what it likes")
def test_a_file_that_may_not_be_written(file, store):
    register(store, "report")
    store.close()
    file.chmod(0o400)
    with refused(StoreUnusable, str(file), "readonly"):
        claim(store, "report")


def test_a_folder_that_is_not_there(tmp_path):
    with (
        closing(open_store(f"sqlite:///{tmp_path}/nowhere/jobs.db")) as store,
        refused(StoreUnreachable, "nowhere/jobs.db", "unable to open"),
    ):
        store.jobs()


def test_a_turn_that_does_not_come(file, store):
    register(store, "report")
    with (
        closing(open_store(f"sqlite:///{file}?timeout=0.05")) as other,
        closing(sqlite3.connect(file, isolation_level=None)) as busy,
    ):
        busy.execute("BEGIN IMMEDIATE")
        with refused(StoreUnreachable, str(file), "database is locked"):
            claim(other, "report")
        assert [job.name for job in other.jobs()] == ["report"]  # who only looks waits for nobody
        busy.execute("ROLLBACK")
        assert claim(other, "report") == ["won"]


def test_a_new_file_that_somebody_else_writes_to_is_waited_for(file):
    """Its journal's mode is changed first, and for that SQLite itself does not wait."""
    with (
        closing(open_store(f"sqlite:///{file}?timeout=0.2")) as other,
        closing(sqlite3.connect(file, isolation_level=None)) as busy,
    ):
        busy.execute("CREATE TABLE theirs (a INT)")
        busy.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with refused(StoreUnreachable, str(file), "database is locked"):
            register(other, "report")
        assert 0.2 < time.monotonic() - began < 2
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(register, other, "report")
            time.sleep(0.05)
            busy.execute("ROLLBACK")
            done.result(10)
        assert "wal" == asked(other, "PRAGMA journal_mode")
        assert ["report"] == [job.name for job in other.jobs()]


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("sqlite:///j.db", {"pool_siez": 3}, ["j.db", "pool_siez"]),
        ("sqlite+nonsense:///j.db", {}, ["nonsense"]),
        ("sqlite:/:secret@j.db", {}, ["sqlite:", "cannot be read"]),
        ("oracle://scott:secret@tiger/db", {}, ["oracle", "sqlite"]),
    ],
)
def test_a_url_or_an_option_that_cannot_be_meant(url, options, words):
    with refused(StoreUnusable, *words):
        SqlStore(url, options=options)


USER = "user:password@"
NO_PORT = "the port is no number up to 65535; "
PG, MY = "postgresql+psycopg://{}host:5432/database is right", "mysql+pymysql://{}host:3306/database is right"
ESCAPED = ", with %40, %2F, … for what is special in the password"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://h:99999/d", NO_PORT + PG.format("")),
        ("postgresql://h:abc/d", NO_PORT + PG.format("")),
        ("postgres://me:secret", NO_PORT + PG.format("")),
        ("postgresql+psycopg://me:s@cret@h:0/d", NO_PORT + PG.format(USER)),
        ("postgresql://[::1]:99999/d", NO_PORT + PG.format("")),
        ("postgresql://[::1/d", PG.format("")),
        ("mysql://me:secret@h:99999/d", NO_PORT + MY.format(USER)),
        ("mysql://me:sec/r?et@h:x/d", MY.format(USER) + ESCAPED),
        ("mariadb://h:x/d", NO_PORT + "mariadb+pymysql://host:3306/database is right"),
        ("sqlite:/:secret@j.db", "sqlite:///jobs.db is right" + ESCAPED),
        ("sqlite:///j.db?timeout=abc", "timeout='abc': seconds are right, such as 1.5"),
        ("mysql+pymysql://h/d?connect_timeout=abc", "connect_timeout='abc': seconds are right, such as 1.5"),
        ("mysql+pymysql://h/d?read_timeout=-1", "read_timeout='-1': seconds are right, such as 1.5"),
    ],
)
def test_a_url_that_cannot_be_read_says_what_is_wrong_and_nothing_of_a_password(url, why):
    with pytest.raises(StoreUnusable) as caught:
        SqlStore(url)
    assert str(caught.value) == f"the {url.partition(':')[0]} URL of the store cannot be read: {why}"


# Tables -------------------------------------------------------------------------------------------


def interrupted(call, place: int) -> bool:
    """Raise a SystemExit where so many functions of SQLAlchemy's engine have returned; false if fewer did."""
    returned, came = itertools.count(1), False

    def traced(frame, happens, _):
        nonlocal came
        if happens == "return" and next(returned) == place:
            came = True
            raise SystemExit
        return traced

    def begun(frame, *_):
        return traced if "/sqlalchemy/engine/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(begun)
    try:
        call()
    except (SystemExit, AttributeError):  # as half an object may have it
        pass
    finally:
        sys.settrace(before)
    return came


def test_a_call_that_a_signal_interrupts_leaves_no_lock(file, store):
    """Wherever it comes: a beat that ends gives its claims back, and would wait for itself."""
    register(store, "report")
    with closing(SqlStore(f"sqlite:///{file}")) as other:
        register(other, "report")
        gc.disable()  # what it left would be found by chance
        try:
            for place in itertools.count(1):
                slot, nonce = T + place * SECOND, f"n-{place}"
                call = partial(claim, store, "report", slot=slot, nonce=nonce, overlap="allow")
                if not interrupted(call, place):
                    break
                began = time.monotonic()
                other.release([Release(key=RunKey("report", slot), nonce=nonce)])
                assert time.monotonic() - began < 1, f"after {place} returns"
        finally:
            gc.enable()
    assert place > 100


def test_the_columns_of_this_version():
    """A change here is a new version, and needs a way from the old one."""
    tables = Tables("anarchon", SQLITE)
    assert VERSION == 4
    assert {table.name: " ".join(table.c.keys()) for table in tables.metadata.sorted_tables} == {
        "anarchon_meta": "name value",
        "anarchon_jobs": "name hashes first_seen seen floor fence supervised paused paused_by paused_at",
        "anarchon_runs": "job slot kind state trigger dispatch unstarted attempt crashes fence node owner "
        "task_id token nonce deadline span lease not_before retries stop claimed_at queued_at started_at "
        "finished_at reason until count arguments asked_by request",
        "anarchon_nodes": "id name kind seen app version celery python clock_offset schedule",
    }


def test_tables_that_were_dropped_are_made_again_and_it_is_another_store(file, store):
    register(store, "report")
    first = store.identity
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DROP TABLE anarchon_nodes")
    register(store, "report")
    assert store.identity != first
    assert [node.name for node in store.nodes()] == ["one:1"]


CREATORS = 20


_barrier: BarrierOfProcesses | None = None


def get_ready(barrier) -> None:
    global _barrier
    _barrier = barrier
    warnings.simplefilter("error")


def create(url: str, name: str) -> str | None:
    with closing(SqlStore(url)) as store:
        assert _barrier is not None
        _barrier.wait(60)
        register(store, name)
        return store.identity


@pytest.mark.slow
def test_many_processes_make_one_store_at_once(file, store):
    server = multiprocessing.get_context("forkserver")  # forks of a process without threads, all imports made
    server.set_forkserver_preload([__name__])
    with server.Pool(CREATORS, get_ready, (server.Barrier(CREATORS),)) as pool:
        asked = [(f"sqlite:///{file}", f"job {number:02}") for number in range(CREATORS)]
        identities = pool.starmap_async(create, asked, chunksize=1).get(120)
        pool.close()
        pool.join()
    assert [job.name for job in store.jobs()] == [name for _, name in asked]
    register(store)
    assert {store.identity} == set(identities)


# Rows that somebody edited ------------------------------------------------------------------------

EDITS = [
    ("runs", "state", "runing"), ("runs", "fence", -1), ("runs", "deadline", "soon"),
    ("runs", "deadline", None), ("runs", "attempt", 1.5), ("runs", "token", b"\xff"),
    ("jobs", "hashes", '{"h": '), ("jobs", "hashes", '[["h", "soon", null, 1]]'), ("jobs", "hashes", "null"),
    ("jobs", "hashes", '[["h", 1]]'), ("jobs", "hashes", '[["h", 1, "high", 1]]'), ("jobs", "hashes", "[5]"),
    ("jobs", "hashes", '[[1, 1, null, 1]]'), ("jobs", "hashes", '[["h", 1, 1.5, 1]]'),
    ("jobs", "fence", -1), ("jobs", "supervised", 7), ("jobs", "floor", "high"), ("runs", "trigger", "x"),
    ("runs", "started_at", LATEST + 1), ("runs", "claimed_at", -1), ("jobs", "floor", LATEST + 1),
    ("jobs", "paused_at", -1), ("jobs", "hashes", '[["h", 1, 1e15, 1]]'),
    ("jobs", "hashes", '[["h", 1, 100000000000000, 1]]'), ("jobs", "hashes", '[["h", -1, null, 1]]'),
]  # fmt: skip


@pytest.mark.parametrize(("table", "column", "value"), EDITS)
def test_an_edited_row_is_said_once_and_stops_no_other(table, column, value, file, store, caplog):
    good, bad = begin(store, "good", "bad")
    key = "job" if table == "runs" else "name"
    edit(file, f"UPDATE anarchon_{table} SET {column} = ? WHERE {key} = 'bad'", value)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            expected = "lost" if table == "runs" else "ok"
            assert [answer.answer for answer in store.renew([good, bad], now=T + 1)] == ["ok", expected]
            claims = claim(store, "good", "bad", slot=T + SECOND, now=T + SECOND, nonce="same")
            assert claims[0] == "overlap"
            assert claims[1] == ("won" if table == "runs" else "unknown")
            looked = {run.job: run.state for run in store.runs()}
            assert looked["good"] == "skipped" or looked["good"] == "running"
            store.expired(BEAT, 10, now=T + MINUTE)
            store.jobs()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert re.match(rf"\[anarchon\] \w+_{table}: the row of bad{' @ 2026' * (table == 'runs')}", said)
    assert column in said or "no deadline" in said
    assert store.finish(good.key, "t", "succeeded", now=T + 2)


def test_a_run_of_a_kind_that_is_none_is_left_out(file, store, caplog):
    begin(store, "good", "bad")
    edit(file, "UPDATE anarchon_runs SET kind = ? WHERE job = 'bad'", "x")
    assert ["good"] == [run.job for run in store.runs()]
    assert ["good"] == [run.job for run in store.expired(BEAT, 10, now=T + HOUR).runs]
    assert "bad @ 2026" in caplog.text
    assert "kind is 'x'" in caplog.text


def test_what_can_be_no_node_is_left_out(file, store, caplog):
    begin(store, "good")
    edit(file, "UPDATE anarchon_nodes SET kind = ?", "x")
    assert [] == store.nodes()
    assert "kind is 'x'" in caplog.text


def test_nodes_teach_an_edited_job_to_the_store_again(file, store):
    begin(store, "report")
    edit(file, "UPDATE anarchon_jobs SET hashes = 'null'")
    asked = Registration(job="report", hash="h", cursor=T, first_seen=T - HOUR, supervised=True)
    store.register(BEAT, [asked], now=T + MINUTE)
    (job,) = store.jobs()
    assert (job.hashes, job.floor, job.supervised) == ((("h", T - HOUR, T, T + MINUTE),), T, True)
    assert claim(store, "report", slot=T + MINUTE, now=T + MINUTE) == ["overlap"]


@pytest.mark.parametrize("state", ["cancelled", "runing"])
def test_a_run_that_waits_for_one_that_somebody_edited_goes_on(file, store, state):
    begin(store, "report")
    assert claim(store, "report", slot=T + 1, now=T + 1, overlap="queue") == ["overlap"]
    edit(file, "UPDATE anarchon_runs SET state = ? WHERE state = 'running'", state)
    assert claim(store, "report", slot=T + 2, now=T + 2, overlap="queue") == ["overlap"]
    assert [run.slot - T for run in store.expired(BEAT, 9, now=T + 2).runs] == [1]


def test_rows_that_cannot_be_read_do_not_fill_a_page(file, store):
    begin(store, *(f"job {number}" for number in range(4)))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE anarchon_runs SET state = 'runing' WHERE job < 'job 3'")
    assert [run.job for run in store.expired(BEAT, 2, now=T + HOUR).runs] == ["job 3"]


# Cost ---------------------------------------------------------------------------------------------


@contextmanager
def statements(store):
    """Collect what is executed: (statement, parameters, whether for many rows)."""
    seen: list[tuple[str, object, bool]] = []

    def note(_connection, _cursor, statement, parameters, _context, many):
        seen.append((statement, parameters, many))

    event.listen(store._engine, "before_cursor_execute", note)
    yield seen
    event.remove(store._engine, "before_cursor_execute", note)


def test_an_idle_poll_is_one_transaction_that_only_reads(store):
    begin(store, "report")
    store.expired(BEAT, 100, now=T + SECOND)
    with statements(store) as seen:
        store.expired(BEAT, 100, now=T + SECOND + 999)
    assert seen[0][0] == "BEGIN"
    assert [statement.split()[0] for statement, _, _ in seen[1:]] == ["SELECT"] * 4


def test_what_a_verb_costs(store):
    """Statements with the BEGIN and the reading of the time; one more where another run is promoted.

    A claim has one more too: it notes that its node lives.
    """
    (lease,) = begin(store, "report")
    key, later = lease.key, T + SECOND
    waiting = RunKey("report", later)
    retry = Start(key=waiting, token="v", worker="w", retries=1)

    def cost(call) -> int:
        with statements(store) as seen:
            assert call() is not False
        return len(seen)

    costs = {
        "renew": cost(lambda: store.renew([lease], now=later)),
        "claim": cost(lambda: claim(store, "report", slot=later, now=later, overlap="queue")),
        "finish and promote": cost(lambda: store.finish(key, "t", "succeeded", now=later)),
        "pause": cost(lambda: store.pause("report", reason="r", by="anna", now=later)),
        "resume": cost(lambda: store.resume("report", now=later)),
        "start": cost(lambda: store.start(Start(key=waiting, token="u", worker="w"), now=later)),
        "requeue": cost(lambda: store.requeue(waiting, "u", delay=0, retries=1, start_timeout=0, now=later)),
        "start again": cost(lambda: store.start(retry, now=later)),
        "finish": cost(lambda: store.finish(waiting, "v", "succeeded", now=later)),
    }
    assert costs == {
        "renew": 4, "claim": 7, "finish and promote": 6, "pause": 6, "resume": 6, "start": 6, "requeue": 5,
        "start again": 6, "finish": 5,
    }  # fmt: skip


def test_a_batch_takes_as_many_statements_as_one(store):
    names = [f"job {number}" for number in range(200)]

    def story(*names: str) -> dict[str, int]:
        counts = {}
        for verb in ("register", "claim", "renew"):
            with statements(store) as seen:
                if verb == "register":
                    register(store, *names)
                elif verb == "claim":
                    assert {"won"} == set(claim(store, *names))
                else:
                    store.renew(begun(*names), now=T + SECOND)
            counts[verb] = len(seen)
        return counts

    def begun(*names: str) -> list[Holding]:
        return [Holding(key=RunKey(name, T), token="t", fence=1) for name in names]

    register(store)
    assert story("alone") == story(*names)


def test_no_step_reads_history(file, store):
    """The plans of the verbs that are used all day: whole keys, and the indexes of the live runs."""
    leases = begin(store, "report", "other")
    with statements(store) as seen:
        store.renew(leases, now=T + SECOND)
        claim(store, "report", slot=T + SECOND, now=T + SECOND)
        store.expired(BEAT, 100, now=T + DAY)
        store.expired(BEAT, 100, now=T)  # the clock went back
        store.start(Start(key=RunKey("report", T), token="u", worker="w"), now=T + SECOND)
        later, key = T + 2 * SECOND, leases[0].key
        claim(store, "report", slot=later, now=later, overlap="queue")
        store.pause("report", reason="r", by="anna", now=later)
        store.resume("report", now=later)
        assert store.requeue(key, "t", delay=0, retries=1, start_timeout=0, now=later)
        seen_due = Redispatch(key=key, state="queued", dispatch=1, deadline=later)
        assert store.redispatch("one:1", [seen_due], nonce="m", now=later)[0].won
        store.sent([Sent(key=key, dispatch=2, task_id="i", supervised=True)], now=later)
        store.start(Start(key=key, token="u", worker="w", retries=1), now=later)
        assert store.finish(key, "u", "succeeded", now=later)
        assert store.release([Release(key=leases[1].key, token="t")], now=later) == [True]
        store.runs(state="running")
        store.runs(state="buffered")
        store.run(key)
    used = plans(file, seen)
    whole_key = "(job=? AND slot=? AND kind=?)"
    assert len(used) > 30
    quick = (whole_key, "anarchon_runs_live", "anarchon_runs_deadline")
    assert [line for line in used if not any(way in line for way in quick)] == []


def plans(file, seen) -> list[str]:
    """How the statements find their runs."""
    with closing(sqlite3.connect(file)) as connection:
        explained = [
            connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters[0] if many else parameters)
            for statement, parameters, many in seen if not statement.startswith(("BEGIN", "INSERT"))
        ]  # fmt: skip
        return [line[3] for plan in explained for line in plan if "anarchon_runs" in line[3]]


def test_the_newest_runs_are_found_in_order(file, store):
    begin(store, "report")
    with statements(store) as seen:
        store.runs()
        store.runs(state="failed")
        store.runs(job="report")
    slots = "SCAN anarchon_runs USING INDEX anarchon_runs_slot"
    assert plans(file, seen)[:2] == [slots, slots]
    assert "(job=?)" in plans(file, seen)[2]


def test_history_is_found_from_its_old_end(file, store):
    begin(store, "report")
    store.finish(RunKey("report", T), "t", "succeeded", now=T)
    with statements(store) as seen:
        assert store.prune(history=HOUR, most=0, now=T) == 1
    used = plans(file, seen[: [statement for statement, _, _ in seen].index("BEGIN IMMEDIATE")])
    whole_key = "COVERING INDEX sqlite_autoindex_anarchon_runs_1 (job=?)"
    ways = ["runs_finished", "autoindex_anarchon_runs_1 (job>?)", whole_key, "runs_live", "(job=?)"]
    assert [way in line for way, line in zip(ways, used, strict=True)] == [True] * 5, used


def test_the_histories_of_many_jobs_are_counted_by_several_calls(store, monkeypatch):
    monkeypatch.setattr(records, "JOBS_AT_ONCE", 3)
    monkeypatch.setattr(records, "LOOK_FOR", 0)
    names = [f"job {number}" for number in range(8)]
    with closing(SqlStore(store._engine.url.render_as_string())) as store:
        begin(store, *names)
        assert all(store.finish(RunKey(name, T), "t", "succeeded", now=T) for name in names)
        assert [store.prune(history=HOUR, most=0, now=T) for _ in range(4)] == [3, 3, 2, 0]
        assert store.runs() == []


def test_a_page_that_has_more_than_one_call_forgets_is_looked_at_again(store):
    names = [f"job {number}" for number in range(8)]
    begin(store, *names)
    assert all(store.finish(RunKey(name, T), "t", "succeeded", now=T) for name in names)
    assert [store.prune(history=HOUR, most=0, limit=5, now=T) for _ in range(3)] == [5, 3, 0]


# Time ---------------------------------------------------------------------------------------------


def test_the_database_says_what_time_it_is(store, monkeypatch):
    right = time.time()
    monkeypatch.setattr(time, "time", lambda: right - DAY)
    register(store, "report", now=None)
    (job,) = store.jobs()
    assert abs(job.seen - right * 1000) < MINUTE
    assert abs(store.clock.now() - right * 1000) < MINUTE


def test_time_is_read_when_the_turn_has_come(file, store):
    register(store, "report")
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as busy:
        busy.execute("BEGIN IMMEDIATE")
        waiting = Barrier(2)

        def wait_for_it():
            waiting.wait(10)
            register(store, "report", now=None)

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(wait_for_it)
            waiting.wait(10)
            until = time.time() + 0.1
            while time.time() < until:
                assert not done.done()
            busy.execute("ROLLBACK")
            done.result(10)
    assert store.jobs()[0].seen >= int(until * 1000)

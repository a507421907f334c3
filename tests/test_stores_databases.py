"""What only stores in a database server do: addresses, locks, plans, outages.

The contract is in test_stores.py.
"""

from __future__ import annotations

import logging
import multiprocessing
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import insert

from anarchon_celery.errors import StoreUnreachable, StoreUnusable
from anarchon_celery.protocol import (
    Holding,
    Job,
    KnownSchedule,
    Redispatch,
    Release,
    Run,
    RunKey,
    Sent,
    Start,
)
from anarchon_celery.stores import open_store
from anarchon_celery.stores.dialects import LONGEST_CALL
from anarchon_celery.stores.sql import SqlStore
from anarchon_celery.stores.tables import JOB, RUN, VERSION
from tests.databases import DATABASES, Database, PgBouncer, PostgreSQL
from tests.processes import wait_until
from tests.proxy import Proxy
from tests.servers import free_port
from tests.test_stores_sql import (
    BEAT,
    DAY,
    EDITS,
    HOUR,
    MINUTE,
    SECOND,
    T,
    begin,
    claim,
    refused,
    register,
    statements,
)

KINDS = ("postgresql", "mariadb")

#: Drivers, and what a URL may begin with.
SCHEMES = {
    "postgresql": ["postgresql+psycopg", "postgresql", "postgres"],
    "mariadb": ["mysql+pymysql", "mysql", "mariadb", "mariadb+pymysql"],
}


@pytest.fixture(params=KINDS)
def server(request) -> Database:
    running: Database = request.getfixturevalue(f"{request.param}_server")
    return running


@pytest.fixture
def url(server) -> str:
    """An address with nothing in its tables."""
    server.empty("anarchon")
    return server.url()


@pytest.fixture
def store(url) -> Iterator[SqlStore]:
    with closing(SqlStore(url)) as opened:
        yield opened


def is_postgresql(server: Database) -> bool:
    return server.kind == "postgresql"


def credentials(url: str, server: Database, password: str = "secret") -> str:
    return re.sub("//[^@]*@", f"//nobody:{password}@", url)


# Where it is ------------------------------------------------------------------------------------


def test_forms_of_the_url_that_mean_one_store(url, server, store):
    register(store, "report")
    for scheme in SCHEMES[server.kind]:
        with closing(open_store(f"{scheme}:{url.partition(':')[2]}")) as other:
            assert [job.name for job in other.jobs()] == ["report"]
            assert other.shown == url


def test_of_another_driver(server):
    wrong = "postgresql+psycopg2" if is_postgresql(server) else "mysql+mysqldb"
    with refused(StoreUnusable, f"{wrong}://", f"{SCHEMES[server.kind][0]}:// is right"):
        SqlStore(f"{wrong}://me:secret@h/d")


def test_a_driver_that_is_not_installed(server, monkeypatch):
    module, extra = ("psycopg", "postgresql") if is_postgresql(server) else ("pymysql", "mysql")
    monkeypatch.setitem(sys.modules, module, None)
    with refused(StoreUnusable, f"anarchon-celery[{extra}]"):
        open_store(f"{SCHEMES[server.kind][0]}://me:secret@h/d")


def test_a_server_that_is_not_there(url):
    away = re.sub(r":\d+/", f":{free_port()}/", url.replace("@", ":secret@"))
    with closing(open_store(away)) as store:
        assert store.shown == away.replace("secret", "***")
        with refused(StoreUnreachable, store.shown):
            store.jobs()


def test_a_password_anywhere_in_the_url_is_not_shown(server):
    words = (
        "password=secret&sslpassword=secret"
        if is_postgresql(server)
        else "passwd=secret&ssl_key_password=secret"
    )
    store = SqlStore(f"{SCHEMES[server.kind][0]}://me:secret@127.0.0.1:{free_port()}/d?{words}")
    assert "secret" not in store.shown
    assert store.shown.count("***") == 3
    with refused((StoreUnreachable, StoreUnusable), store.shown):
        store.jobs()


def test_a_user_or_a_database_that_is_not_there(url, server):
    for wrong in (credentials(url, server), url.replace("/test", "/nowhere")):
        with closing(open_store(wrong)) as store, refused(StoreUnusable, store.shown):
            store.jobs()


def test_an_option_that_the_driver_does_not_know(url):
    with closing(open_store(f"{url}?nonsense=1")) as store, refused(StoreUnusable, "nonsense"):
        store.jobs()
    with refused(StoreUnusable, "pool_siez"):
        open_store(url, options={"pool_siez": 3})


def test_a_prefix_that_makes_names_too_long(url):
    with refused(StoreUnusable, "too long", "by 1 letters"):
        SqlStore(url, prefix="p" * (50 if "postgres" in url else 51))
    with closing(SqlStore(url, prefix="p" * 49)) as store:
        register(store, "report")
        assert [job.name for job in store.jobs()] == ["report"]


def test_options_are_those_of_create_engine(url):
    with closing(SqlStore(url, options={"pool_size": 2, "connect_args": {"connect_timeout": 7}})) as store:
        assert store._engine.pool.size() == 2
        assert store.jobs() == []


# Transactions -------------------------------------------------------------------------------------


def asked(store: SqlStore, question: str) -> Any:
    return store._look(lambda connection: connection.exec_driver_sql(question).scalar_one())


def test_transactions_are_read_committed_and_wait_less_than_a_claim_lasts(server, store):
    if is_postgresql(server):
        settings = {
            "transaction_isolation": "read committed", "statement_timeout": "3s", "lock_timeout": "3s",
            "idle_in_transaction_session_timeout": "2s", "synchronous_commit": "on",
        }  # fmt: skip
        for name, value in settings.items():
            assert (name, asked(store, f"SELECT current_setting('{name}')")) == (name, value)
        with store._engine.connect() as connection, connection.connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            assert cursor.fetchone() == ("0",)  # it ended with its transaction
            assert cursor.connection.prepare_threshold is None
    else:
        settings = {
            "tx_isolation": "READ-COMMITTED", "innodb_lock_wait_timeout": 3, "lock_wait_timeout": 3,
            "max_statement_time": 3, "idle_transaction_timeout": 2, "time_zone": "+00:00",
        }  # fmt: skip
        for name, value in settings.items():
            assert (name, asked(store, f"SELECT @@{name}")) == (name, value)


@contextmanager
def held(server: Database, statement: str, *values: Any) -> Iterator[Any]:
    """Do something in a transaction of somebody else's, which ends after the block."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(statement, values)
        yield cursor
        cursor.execute("ROLLBACK")


def waiting(server: Database) -> int:
    """How many connections wait for a lock."""
    if is_postgresql(server):
        return len(server.run("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
    # Not information_schema.innodb_trx: read more often than each 0.1 s it tells what it told first.
    ((_, many),) = server.run("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return int(many)


def test_a_turn_that_does_not_come(server, store):
    register(store, "report", "other")
    with held(server, "SELECT 1 FROM anarchon_jobs WHERE name = 'report' FOR UPDATE"):
        began = time.monotonic()
        with refused(StoreUnreachable, store.shown):
            claim(store, "report")
        assert time.monotonic() - began < LONGEST_CALL
        assert claim(store, "other") == ["won"]
        assert len(store.jobs()) == 2  # who only looks waits for nobody
    assert claim(store, "report") == ["won"]


def test_time_is_read_when_the_turn_has_come(server, store):
    register(store, "report", now=None)
    with ThreadPoolExecutor(1) as pool:
        with held(server, "SELECT 1 FROM anarchon_jobs WHERE name = 'report' FOR UPDATE"):
            done = pool.submit(register, store, "report", now=None)
            wait_until(lambda: waiting(server))
            before = int(time.time() * 1000)
        done.result(10)
    assert store.jobs()[0].seen >= before


def test_a_deadlock_is_not_told_but_the_step_done_again(server, store):
    register(store, "a", "b")
    before = server.deadlocks()
    with ThreadPoolExecutor(1) as pool:
        with held(server, "UPDATE anarchon_jobs SET supervised = 0 WHERE name = 'b'") as cursor:
            lighter = "INSERT INTO anarchon_nodes (id, name, kind, seen) VALUES ('i', 'n', 'k', 0)"
            cursor.execute(lighter)  # it gives way
            answer = pool.submit(claim, store, "a", "b")
            wait_until(lambda: waiting(server))
            cursor.execute("UPDATE anarchon_jobs SET supervised = 0 WHERE name = 'a'")
        assert answer.result(10) == ["won", "won"]
    wait_until(lambda: server.deadlocks() == before + 1)  # what is counted comes in a little later


class Interrupted(BaseException):
    """As a signal handler may raise it."""


@pytest.mark.parametrize("by", [Interrupted, SoftTimeLimitExceeded, SystemExit])
def test_an_interrupted_call_leaves_no_answer_to_the_next_one(server, store, by):
    register(store, "report")

    def interrupt(*_: Any) -> None:
        raise by

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with held(server, "SELECT 1 FROM anarchon_jobs WHERE name = 'report' FOR UPDATE"):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(by):
                claim(store, "report")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert [job.name for job in store.jobs()] == ["report"]
    assert [node.name for node in store.nodes()] == [BEAT.name]
    assert claim(store, "report") == ["won"]


def test_two_nodes_record_one_job_at_once(url, server, store):
    with closing(SqlStore(url)) as other, ThreadPoolExecutor(1) as pool:
        register(store)
        hashes = (KnownSchedule("h", T - DAY),)
        row = JOB.written(Job(name="report", first_seen=T - DAY, seen=T - DAY, hashes=hashes))
        with other._writing.begin() as connection:
            connection.execute(insert(other._tables.jobs), row)
            done = pool.submit(register, store, "another", "report")
            wait_until(lambda: waiting(server))
        done.result(10)
        assert [(job.name, job.first_seen) for job in store.jobs()] == [
            ("another", T - HOUR), ("report", T - DAY),
        ]  # fmt: skip


def test_heartbeats_wait_for_no_job(server, store):
    leases = begin(store, "report")
    with held(server, "SELECT 1 FROM anarchon_jobs FOR UPDATE"):
        assert [answer.answer for answer in store.renew(leases, now=T + 1)] == ["ok"]


def test_rows_are_locked_in_the_order_of_their_keys(server, store):
    """Who waits for the first of a call's rows holds none of the others, however the call names them."""
    names = [f"job {number}" for number in range(5)]
    leases = begin(store, *names)
    table, column = ("anarchon_runs", "job")
    with ThreadPoolExecutor(1) as pool:
        for first, rest in ((names[0], names[1:]), (names[2], names[3:])):
            with held(server, f"SELECT 1 FROM {table} WHERE {column} = %s FOR UPDATE", first) as cursor:
                done = pool.submit(store.renew, leases[::-1], now=T + 1)
                wait_until(lambda: waiting(server))
                for name in rest:
                    cursor.execute(f"SELECT 1 FROM {table} WHERE {column} = %s FOR UPDATE NOWAIT", (name,))
            assert {answer.answer for answer in done.result(10)} == {"ok"}


def test_steps_lock_live_runs_in_the_order_of_their_keys_too(server, store):
    """Those that a step names, and those that it finds: a run of an earlier slot is locked first."""
    begin(store, "report")
    key = RunKey("report", T + 9)
    assert claim(store, "report", slot=T + 9, now=T + 9, overlap="allow") == ["won"]
    with ThreadPoolExecutor(1) as pool:
        with held(server, "SELECT 1 FROM anarchon_runs WHERE slot = %s FOR UPDATE", T) as cursor:
            done = pool.submit(claim, store, "report", slot=T + 9, now=T + 9, nonce="m", overlap="queue")
            wait_until(lambda: waiting(server))
            cursor.execute("SELECT 1 FROM anarchon_runs WHERE slot = %s FOR UPDATE NOWAIT", (key.slot,))
        assert done.result(10) == ["taken"]


# What is refused, in one line ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "words"), [(VERSION + 1, "install the release"), (1, "another anarchon_prefix")]
)
def test_the_tables_of_another_version(version, words, server, store):
    register(store, "report")
    server.run("UPDATE anarchon_meta SET value = %s WHERE name = 'version'", str(version))
    for call in (store.jobs, lambda: register(store, "report"), lambda: store.expired(BEAT, 9)):
        with refused(StoreUnusable, store.shown, f"of version {version}", words):
            call()


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
@pytest.mark.parametrize(("told", "line"), [("10.3.9", "MariaDB 10.3.9"), ("5.7", "MySQL 5.7")])
def test_a_server_that_is_too_old(server, told, line):
    ((version,),) = server.run("SELECT VERSION()")
    name = "MariaDB" if "MariaDB" in line else "Classic"
    spoken = f"{told}-{name}".ljust(len(version), "x")
    with Proxy(server.port) as proxy:
        proxy.rewrites[version.encode()] = spoken.encode()
        url = re.sub(r":\d+/", f":{proxy.port}/", server.store_url())
        oldest = "10.4" if name == "MariaDB" else "8.0"
        with closing(SqlStore(url)) as store, refused(
            StoreUnusable, store.shown, f"the server is {line}", f"{oldest} or newer is right"
        ):
            store.jobs()


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_who_finds_somebody_else_making_the_tables_says_so_and_makes_them_later(url, server):
    with closing(SqlStore(url, prefix="late")) as store:
        with held(server, "SELECT GET_LOCK('anarchon test late', 0)"):
            began = time.monotonic()
            said = "somebody else makes or upgrades the tables late_* for now"
            with refused(StoreUnreachable, store.shown, said):
                register(store, "report")
            assert time.monotonic() - began < LONGEST_CALL
        register(store, "report")
        assert [job.name for job in store.jobs()] == ["report"]
    for name in ("meta", "jobs", "runs", "nodes"):
        server.run(f"DROP TABLE late_{name}")


def test_where_all_connections_are_in_use_the_line_says_so(url):
    """By a pool that somebody made too small."""
    small = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.2}
    with closing(SqlStore(url, options=small)) as store:
        register(store, "report")
        with store._reading.begin(), refused(StoreUnreachable, store.shown, "QueuePool limit of size 1"):
            store.jobs()
        assert [job.name for job in store.jobs()] == ["report"]


def test_columns_of_another_version_are_told_by_its_number(url, server):
    with closing(SqlStore(url, prefix="older")) as store:
        register(store, "report")
        server.run("UPDATE older_meta SET value = '1' WHERE name = 'version'")
        server.run("ALTER TABLE older_jobs DROP COLUMN paused")
        with refused(StoreUnusable, "of version 1"):
            register(store, "report")
    for name in ("meta", "jobs", "runs", "nodes"):
        server.run(f"DROP TABLE older_{name}")


def test_names_of_255_characters_have_their_place_and_longer_ones_a_line(store):
    names = ["🕰" * 255, "🕰" * 254 + "é", "x" * 255]
    register(store, *names)
    assert sorted(names) == [job.name for job in store.jobs()]
    assert claim(store, *names) == ["won"] * 3
    assert {run.job for run in store.runs()} == set(names)
    with refused(StoreUnusable, "too long"):
        register(store, "x" * 256)


def test_a_server_that_became_read_only_is_left(url, server, store):
    register(store, "report")
    if is_postgresql(server):
        server.run("ALTER DATABASE test SET default_transaction_read_only = on")
        server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        on, off = (), ("ALTER DATABASE test RESET default_transaction_read_only",)
    else:
        on, off = ("SET GLOBAL read_only = 1",), ("SET GLOBAL read_only = 0",)
    try:
        for statement in on:
            server.run(statement)
        store.close()
        for call in (store.jobs, lambda: claim(store, "report"), lambda: store.expired(BEAT, 9)):
            with refused(StoreUnusable, f"127.0.0.1:{server.port} is read-only", "the primary is right"):
                call()
    finally:
        for statement in off:
            with closing(server.connect("test" if not is_postgresql(server) else "postgres")) as connection:
                connection.cursor().execute(statement)
    assert claim(store, "report") == ["won"]


def test_a_connection_that_is_there_as_its_server_becomes_read_only_is_left_too(url, server):
    """As where a primary is demoted, or what is between leads to a replica from now on."""
    user = url
    on, off = "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0"
    if is_postgresql(server):
        on, off = (f"ALTER SYSTEM SET default_transaction_read_only = {word}" for word in ("on", "off"))
    else:
        server.run("CREATE OR REPLACE USER nobody IDENTIFIED BY 'secret'")
        server.run("GRANT ALL ON test.* TO nobody")  # but not to write to what is read-only
        user = credentials(url, server)

    def switch(statement: str) -> None:
        server.run(statement)
        if is_postgresql(server):
            server.run("SELECT pg_reload_conf()")
            said = (statement.split()[-1],)
            wait_until(lambda: server.run("SHOW default_transaction_read_only") == [said])

    with closing(SqlStore(user)) as store:
        register(store, "report")
        try:
            switch(on)
            with refused(StoreUnusable, store.shown, "read-only"):
                claim(store, "report")
            with refused(StoreUnusable, f"127.0.0.1:{server.port} is read-only", "the primary is right"):
                store.jobs()
        finally:
            switch(off)
        assert claim(store, "report") == ["won"]


# Tables -------------------------------------------------------------------------------------------


_barrier: Any = None


def get_ready(barrier) -> None:
    global _barrier
    _barrier = barrier
    warnings.simplefilter("error")


def create(url: str, prefix: str, name: str) -> str | None:
    with closing(SqlStore(url, prefix=prefix)) as store:
        _barrier.wait(60)
        until = time.monotonic() + 60
        while True:
            try:
                register(store, name)
                return store.identity
            except StoreUnreachable:  # connecting takes long where all do so at once: nodes ask again too
                assert time.monotonic() < until


CREATORS = 20


@pytest.mark.slow
def test_many_processes_make_one_store_at_once(url, server):
    names = [f"job {number:02}" for number in range(CREATORS)]
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload([__name__])
    with forkserver.Pool(CREATORS, get_ready, (forkserver.Barrier(CREATORS),)) as pool:
        identities = pool.starmap_async(create, [(url, "fresh", name) for name in names], chunksize=1).get(
            120
        )
        pool.close()
        pool.join()
    with closing(SqlStore(url, prefix="fresh")) as store:
        assert [job.name for job in store.jobs()] == names
        register(store)
        assert {store.identity} == set(identities)
    for name in ("meta", "jobs", "runs", "nodes"):
        server.run(f"DROP TABLE fresh_{name}")


def test_tables_that_were_dropped_are_made_again_and_it_is_another_store(server, store):
    register(store, "report")
    first = store.identity
    server.run("DROP TABLE anarchon_nodes")
    register(store, "report")
    assert store.identity != first
    assert [node.name for node in store.nodes()] == ["one:1"]


# Rows that somebody edited ------------------------------------------------------------------------

#: What a server itself refuses, by the type of the column.
TYPED = {
    ("runs", "deadline", "soon"),
    ("runs", "attempt", 1.5),
    ("runs", "token", b"\xff"),
    ("jobs", "floor", "high"),
}


@pytest.mark.parametrize(("table", "column", "value"), [edit for edit in EDITS if edit not in TYPED])
def test_an_edited_row_is_said_once_and_stops_no_other(table, column, value, server, store, caplog):
    good, bad = begin(store, "good", "bad")
    key = "job" if table == "runs" else "name"
    quoted = store._engine.dialect.identifier_preparer.quote(column)
    server.run(f"UPDATE anarchon_{table} SET {quoted} = %s WHERE {key} = 'bad'", value)
    with caplog.at_level(logging.WARNING, "anarchon_celery"):
        for _ in range(2):
            expected = "lost" if table == "runs" else "ok"
            assert [answer.answer for answer in store.renew([good, bad], now=T + 1)] == ["ok", expected]
            claims = claim(store, "good", "bad", slot=T + SECOND, now=T + SECOND, nonce="same")
            assert claims[0] == "overlap"
            assert claims[1] == ("won" if table == "runs" else "unknown")
            looked = {run.job: run.state for run in store.runs()}
            assert looked["good"] in ("skipped", "running")
            store.expired(BEAT, 10, now=T + MINUTE)
            store.jobs()
    ours = [record for record in caplog.records if record.name.startswith("anarchon")]
    (said,) = [record.getMessage() for record in ours if record.levelno == logging.WARNING]
    assert re.match(rf"\[anarchon\] \w+_{table}: the row of bad{' @ 2026' * (table == 'runs')}", said)
    assert column in said or "no deadline" in said
    assert store.finish(good.key, "t", "succeeded", now=T + 2)


# Cost ---------------------------------------------------------------------------------------------

HISTORY = 20_000


def with_history(store: SqlStore, server: Database, jobs: int = 20) -> list[str]:
    """Fill in what a store has after a while, and let the server learn how much it is."""
    names = [f"job {number:02}" for number in range(jobs)]
    register(store, *names)
    rows = [
        RUN.written(
            Run(job=names[number % jobs], slot=T - HOUR - number, state="succeeded", finished_at=T - HOUR)
        )
        for number in range(HISTORY)
    ]
    for at in range(0, HISTORY, 1000):  # a statement has only so many seconds
        with store._writing.begin() as connection:
            connection.execute(insert(store._tables.runs), rows[at : at + 1000])
    server.run("ANALYZE anarchon_runs" if is_postgresql(server) else "ANALYZE TABLE anarchon_runs")
    return names


def slow_looks(server: Database, statement: str, parameters: Any) -> tuple[int, list[str]]:
    """How often the runs are looked at by a statement; and the looks that may read history."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement}", parameters)
        rows = [row for row in cursor.fetchall() if "anarchon_runs" in str(row)]
    if is_postgresql(server):
        looks = [row[0] for row in rows if "Scan" in row[0]]
        # The index by slot has the whole key too.
        quick = re.compile("using anarchon_runs_(pkey|live|waiting|slot) ")
        return len(looks), [look for look in looks if not quick.search(look)]
    # Of a MariaDB's row: the type, the index, and how many rows are to be read: the keys, or the live runs.
    return len(rows), [str(row) for row in rows if row[3] == "ALL" or not row[5] or int(row[8]) > 200]


def test_no_step_reads_history(server, store):
    """The plans of the verbs that are used all day: whole keys, and the index of the live runs."""
    names = with_history(store, server)
    begin(store, *names[:10])
    leases = [Holding(key=RunKey(name, T), token="t", fence=1) for name in names[:10]]
    with statements(store) as seen:
        store.renew(leases, now=T + SECOND)
        claim(store, *names, slot=T + SECOND, now=T + SECOND)
        claim(store, *names, slot=T + SECOND + 1, now=T + SECOND + 1, overlap="allow")
        store.expired(BEAT, 100, now=T + DAY)
        store.expired(BEAT, 100, now=T)  # the clock went back
        store.start(Start(key=RunKey(names[0], T), token="u", worker="w"), now=T + SECOND)
        later, key = T + 2 * SECOND, leases[0].key
        claim(store, names[0], slot=later, now=later, overlap="queue")
        store.pause(names[0], reason="r", by="anna", now=later)
        store.resume(names[0], now=later)
        assert store.requeue(key, "t", delay=0, retries=1, start_timeout=0, now=later)
        seen_due = Redispatch(key=key, state="queued", dispatch=1, deadline=later)
        assert store.redispatch("one:1", [seen_due], nonce="m", now=later)[0].won
        store.sent([Sent(key=key, dispatch=2, task_id="i", supervised=True)], now=later)
        store.start(Start(key=key, token="u", worker="w", retries=1), now=later)
        assert store.finish(key, "u", "succeeded", now=later)
        assert store.release([Release(key=leases[1].key, token="t")], now=later) == [True]
        store.runs()
        store.runs(state="running")
        store.run(key)
    looks, slow = zip(
        *(
            slow_looks(server, statement, parameters[0] if many else parameters)
            for statement, parameters, many in seen
            if statement.startswith(("SELECT", "UPDATE"))
        ),
        strict=True,
    )
    assert sum(looks) > 30
    assert [look for of_statement in slow for look in of_statement] == []


def test_a_look_for_what_is_to_be_folded_reads_a_page_in_order(server, store):
    with_history(store, server)
    with statements(store) as seen:
        assert store.prune(history=DAY, most=HISTORY, now=T) == 0
    looks = [(statement, given) for statement, given, _ in seen if "ORDER BY anarchon_runs.job" in statement]
    assert looks
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {looks[0][0]}", looks[0][1])
        plan = str(cursor.fetchall())
    assert ("Index Scan using anarchon_runs_pkey" if is_postgresql(server) else "'range', 'PRIMARY'") in plan
    assert "sort" not in plan.lower()


@pytest.mark.parametrize("server", ["postgresql"], indirect=True)
def test_heartbeats_write_no_index(server, store):
    names = [f"job {number:03}" for number in range(100)]
    leases = begin(store, *names)

    def updates() -> tuple[int, int]:
        found = server.run(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'anarchon_runs'"
        )[0]
        return int(found[0]), int(found[1])

    now = iter(range(T + 1, T + 100))

    def beat(times: int) -> tuple[int, int]:
        counted = updates()[0]
        for _ in range(times):
            store.renew(leases, now=next(now))
        store.close()  # what a connection did is counted when it ends
        wait_until(lambda: updates()[0] - counted >= 100 * times)
        return updates()

    begun = beat(10)  # at first rows move to pages with some room
    written, in_place = (after - before for before, after in zip(begun, beat(10), strict=True))
    assert in_place >= 0.9 * written


def test_all_leases_of_a_worker_are_renewed_by_one_statement(server, store):
    leases = begin(store, *(f"job {number:03}" for number in range(100)))
    with statements(store) as seen:
        assert {answer.answer for answer in store.renew(leases, now=T + 1)} == {"ok"}
    writes = [(statement, many) for statement, _, many in seen if statement.startswith("UPDATE")]
    assert [many for _, many in writes] == [False]
    assert {run.deadline for run in store.runs(limit=1000)} == {T + 1 + 30_000}


def test_leases_of_two_lengths_are_renewed_each_by_its_own(server, store):
    leases = begin(store, "a", "b")
    register(store, "c", "d")
    claim(store, "c", "d")
    for name in "cd":
        asked = Start(key=RunKey(name, T), token=f"t{name}", worker="w", lease=MINUTE)
        leases.append(Holding(key=asked.key, token=asked.token, fence=store.start(asked, now=T).fence))
    assert {answer.answer for answer in store.renew(leases[1:], now=T + 1)} == {"ok"}
    deadlines = {run.job: run.deadline - T for run in store.runs()}
    assert deadlines == {"a": 30_000, "b": 30_001, "c": 60_001, "d": 60_001}


def test_an_idle_poll_only_reads(server, store):
    begin(store, "report")
    store.expired(BEAT, 100, now=T + SECOND)
    with statements(store) as seen:
        store.expired(BEAT, 100, now=T + SECOND + 999)
    words = [statement.split()[0] for statement, _, _ in seen]
    assert words == ["BEGIN"] * is_postgresql(server) + ["SELECT"] * 4


def test_what_a_verb_costs(server, store):
    """Statements; PostgreSQL's have the BEGIN in them, and wake beats; MariaDB's look for keys first."""
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
        "start": cost(lambda: store.start(Start(key=waiting, token="u", worker="w"), now=later)),
        "requeue": cost(lambda: store.requeue(waiting, "u", delay=0, retries=1, start_timeout=0, now=later)),
        "start again": cost(lambda: store.start(retry, now=later)),
        "finish": cost(lambda: store.finish(waiting, "v", "succeeded", now=later)),
    }
    renew, promote = (4, 7) if is_postgresql(server) else (3, 7)
    assert costs == {
        "renew": renew, "claim": 7, "finish and promote": promote, "start": 6, "requeue": 5,
        "start again": 6, "finish": 5,
    }  # fmt: skip


def test_a_step_reads_no_backlog(server, store):
    """With overlap ``allow`` many runs of a job may be live: a step looks at others where one waits."""
    register(store, "report")
    slots = range(T, T + 200)
    assert {"won"} == {
        answer
        for slot in slots
        for answer in claim(store, "report", slot=slot, now=slot, overlap="allow", nonce=str(slot))
    }
    loaded: list[int] = []
    load = store._records._loaded

    def counted(moment, jobs, runs):
        rows = list(runs)
        loaded.append(len(rows))
        return load(moment, jobs, rows)

    store._records._loaded = counted
    key, now = RunKey("report", T), T + 200
    store.sent([Sent(key=key, dispatch=1, task_id="i", supervised=True)], now=now)
    store.start(Start(key=key, token="t", worker="w", overlap="allow"), now=now)
    assert store.finish(key, "t", "succeeded", now=now)
    assert claim(store, "report", slot=now, now=now, overlap="allow") == ["won"]
    assert loaded == [1, 1, 1, 0]


# TLS ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tls_as_the_url_asks_for_it(kind, postgresql_server, mariadb_server):
    server = DATABASES[kind](tls=True)
    others = PostgreSQL(tls=True)  # of which only the certificate is used
    try:
        server.start()
        if kind == "postgresql":
            asks, checks, cipher = (
                "sslmode=require",
                "sslmode=verify-full&sslrootcert=",
                "SELECT cipher FROM pg_stat_ssl",
            )
            cipher += " WHERE pid = pg_backend_pid()"
        else:
            asks, checks = "ssl-mode=REQUIRED", "ssl_ca="
            cipher = "SELECT variable_value FROM information_schema.session_status"
            cipher += " WHERE variable_name = 'Ssl_cipher'"
        for words in (asks, f"{checks}{server.certificate}"):
            with closing(SqlStore(f"{server.url()}?{words}")) as store:
                assert "TLS" in asked(store, cipher)
        wrong = f"{server.url()}?{checks}{others.certificate}"
        with closing(SqlStore(wrong)) as store, refused(StoreUnreachable, "certificate verify failed"):
            store.jobs()
        without = {"postgresql": postgresql_server, "mariadb": mariadb_server}[kind]
        with closing(SqlStore(f"{without.url()}?{asks}")) as store, refused(StoreUnreachable, "SSL"):
            store.jobs()
    finally:
        server.close()
        others.close()


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)
def test_a_mode_of_tls_that_there_is_not(url):
    with refused(StoreUnusable, "ssl-mode=NONSENSE", "DISABLED, PREFERRED, REQUIRED"):
        SqlStore(f"{url}?ssl-mode=nonsense")
    with closing(SqlStore(f"{url}?ssl_mode=disabled")) as store:
        assert store.jobs() == []


# Poolers ------------------------------------------------------------------------------------------


def test_connections_that_are_handed_out_by_transaction_will_do(postgresql_server):
    postgresql_server.empty("anarchon")
    pooler = PgBouncer(postgresql_server)
    try:
        pooler.start()
        stores = [SqlStore(pooler.url) for _ in range(6)]
        names = [f"job {number}" for number in range(20)]
        register(stores[0], *names)
        with ThreadPoolExecutor(len(stores)) as pool:
            answers = pool.map(
                lambda store: [claim(store, name, nonce=str(id(store)))[0] for name in names], stores
            )
            won = [answer for of_store in answers for answer in of_store if answer == "won"]
        assert len(won) == len(names)
        with (
            held(postgresql_server, "SELECT 1 FROM anarchon_jobs FOR UPDATE"),
            refused(StoreUnreachable, "timeout"),
        ):
            claim(stores[0], names[0])
        for store in stores:
            store.close()
    finally:
        pooler.close()


# Outages ------------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def own_server(request) -> Iterator[Database]:
    """A server of this test's own, to kill and to stop, which loses nothing that it answered."""
    server = DATABASES[request.param](durable=True)
    try:
        yield server.start()
    finally:
        server.close()


class Racer:
    """Somebody who claims slot after slot, each again until there is an answer; and what came of it."""

    def __init__(self, url: str, name: str) -> None:
        self.store, self.name = SqlStore(url), name
        self.won: list[int] = []
        self.said: set[str] = set()
        self.done = 0
        self.longest = 0.0

    def claim_all(self, slots: range) -> None:
        for slot in slots:
            while (answer := self.claim(slot)) is None:
                time.sleep(0.05)
            self.won += [slot] if answer == "won" else []
            self.done += 1
        self.store.close()

    def claim(self, slot: int) -> str | None:
        began = time.monotonic()
        try:
            return claim(
                self.store, "report", slot=slot, now=slot, overlap="allow", nonce=f"{self.name} {slot}"
            )[0]
        except StoreUnreachable as error:
            self.said.add(str(error))
            return None
        finally:
            self.longest = max(self.longest, time.monotonic() - began)


@pytest.mark.slow
def test_a_server_that_dies_and_stops_under_load_loses_no_slot_and_gives_none_twice(own_server):
    racers = [Racer(own_server.url(), f"racer {number}") for number in range(3)]
    slots = range(T, T + 900)
    register(racers[0].store, "report")
    with ThreadPoolExecutor(len(racers)) as pool:
        running = [pool.submit(racer.claim_all, slots) for racer in racers]
        for number, outage in enumerate((died, died, stopped), start=1):
            wait_until(lambda goal=number * 150: min(racer.done for racer in racers) > goal, 60)
            outage(own_server)
        for one in running:
            one.result(120)
    assert sorted(slot for racer in racers for slot in racer.won) == list(slots)
    said = {line for racer in racers for line in racer.said}
    assert said
    assert {line for line in said if "\n" in line or racers[0].store.shown not in line} == set()
    assert max(racer.longest for racer in racers) < 10


def died(server: Database) -> None:
    server.kill()
    server.start()


def stopped(server: Database) -> None:
    server.suspend()
    time.sleep(5)  # longer than anybody waits for an answer
    server.start()


@pytest.mark.slow
def test_a_server_that_was_restarted_is_used_again_at_once(own_server):
    with closing(SqlStore(own_server.url())) as store:
        (lease,) = begin(store, "report")
        died(own_server)
        assert [answer.answer for answer in store.renew([lease], now=T + 1)] == ["ok"]


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_not_waited_for_long(own_server):
    with closing(SqlStore(own_server.url())) as store:
        (lease,) = begin(store, "report")
        own_server.suspend()
        for _ in range(2):  # on a connection there is, and on a new one
            began = time.monotonic()
            with refused(StoreUnreachable, store.shown):
                store.renew([lease], now=T + 1)
            assert time.monotonic() - began < LONGEST_CALL
        own_server.resume()
        assert [answer.answer for answer in store.renew([lease], now=T + 1)] == ["ok"]


@pytest.mark.slow
def test_a_standby_is_refused_until_it_is_promoted():
    primary = PostgreSQL(durable=True)
    try:
        primary.start()
        with closing(SqlStore(primary.url())) as store:
            begin(store, "report")
        standby = PostgreSQL(durable=True, copy_of=primary)
        try:
            standby.start()
            with closing(SqlStore(standby.url())) as store:
                for call in (store.jobs, lambda: register(store, "report")):
                    with refused(
                        StoreUnusable, f"127.0.0.1:{standby.port} is read-only", "the primary is right"
                    ):
                        call()
                standby.run("SELECT pg_promote()")
                assert [run.state for run in store.runs()] == ["running"]
                register(store, "report")
        finally:
            standby.close()
    finally:
        primary.close()

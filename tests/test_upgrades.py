"""The upgrade of what an earlier release made, on each kind of store: nothing is lost, all verbs work."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import textwrap
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import pytest
import redis
from sqlalchemy import Connection, create_engine, event, inspect, text

from anarchon_celery.errors import StoreUnreachable, StoreUnusable
from anarchon_celery.protocol import (
    Holding,
    Job,
    KnownSchedule,
    Node,
    Offer,
    Redispatch,
    Registration,
    Release,
    Run,
    RunKey,
    Sent,
    Start,
    Started,
)
from anarchon_celery.stores import Upgrade, open_store
from anarchon_celery.stores.redis import VERSION as VERSION_OF_KEYS
from anarchon_celery.stores.sql import SqlStore
from anarchon_celery.stores.tables import VERSION
from anarchon_celery.stores.upgrades import WAYS, go
from anarchon_celery.stores.versions import NEW
from tests.layouts import ROWS as ROWS_OF
from tests.layouts import VERSIONS, T, make_keys, make_tables
from tests.test_cli import Desk
from tests.test_stores_sql import refused

RUN_IT = "run `celery -A proj anarchon upgrade` once"
TABLES = ("meta", "jobs", "runs", "nodes")
ROWS = ROWS_OF[2]
SQL = ("sqlite", "postgresql", "mariadb")

BEAT = Node(id="incarnation-1", name="one:1", app="proj")


@dataclass
class Old:
    """A store of version 2, or another, with the story of :mod:`tests.layouts`."""

    kind: str
    url: str
    version: int = 2

    def make(self) -> None:
        """Make it, in place of what is there."""
        self.clear()
        if self.kind == "redis":
            with self.client() as client:
                make_keys(client, self.version)
        else:
            with self.transaction() as connection:
                make_tables(connection, self.kind, self.version)

    def clear(self) -> None:
        if self.kind == "redis":
            with self.client() as client:
                client.flushdb()
            return
        with self.transaction() as connection:
            for name in (f"{prefix}_{name}" for prefix in ("anarchon", "fresh") for name in TABLES):
                connection.execute(text(f"DROP TABLE IF EXISTS {name}"))

    def transaction(self) -> Any:
        return Transaction(self.url)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def said(self) -> dict[str, str]:
        """What the store says of itself."""
        if self.kind == "redis":
            with self.client() as client:
                return client.hgetall("{anarchon}:meta")
        with self.transaction() as connection:
            return {name: value for name, value in connection.execute(text("SELECT * FROM anarchon_meta"))}

    def say(self, name: str, value: str) -> None:
        if self.kind == "redis":
            with self.client() as client:
                client.hset("{anarchon}:meta", name, value)
            return
        with self.transaction() as connection:
            written = "UPDATE anarchon_meta SET value = :value WHERE name = :name"
            connection.execute(text(written), {"name": name, "value": value})

    def everything(self) -> Any:
        """All that is there, and how it is laid out."""
        if self.kind == "redis":
            with self.client() as client:
                return {key: client.dump(key) for key in client.scan_iter()}
        with self.transaction() as connection:
            rows = {
                name: sorted(map(repr, connection.execute(text(f"SELECT * FROM anarchon_{name}"))))
                for name in TABLES
            }
            return rows, layout(connection, "anarchon")


class Transaction:
    """One transaction on an engine of its own."""

    def __init__(self, url: str) -> None:
        self.engine = create_engine(url)

    def __enter__(self) -> Connection:
        self.begun = self.engine.begin()
        return self.begun.__enter__()

    def __exit__(self, *how: Any) -> None:
        self.begun.__exit__(*how)
        self.engine.dispose()


def layout(connection: Connection, prefix: str) -> Any:
    """What a database says of the tables of a prefix, without the prefix."""
    looked = inspect(connection)

    def plain(value: Any) -> str:
        if isinstance(value, dict):
            return str(sorted((key, plain(one)) for key, one in value.items() if key != "comment"))
        return str(value).replace(f"{prefix}_", "")

    found = {}
    for name in TABLES:
        table = f"{prefix}_{name}"
        primary = looked.get_pk_constraint(table)["constrained_columns"]
        columns, indexes = map(plain, looked.get_columns(table)), map(plain, looked.get_indexes(table))
        found[name] = list(columns), sorted(indexes), primary, plain(looked.get_table_options(table))
    return found


@pytest.fixture(params=[*SQL, "redis"])
def old(request, tmp_path) -> Iterator[Old]:
    kind = request.param
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/jobs.db"
    elif kind == "redis":
        url = request.getfixturevalue("redis_url")
    else:
        url = request.getfixturevalue(f"{kind}_server").url()
    made = Old(kind, url)
    made.make()
    yield made
    made.clear()


of_tables = pytest.mark.parametrize("old", SQL, indirect=True)


def run_of(row: dict[str, Any]) -> Run:
    return Run(**row)


def job_of(row: dict[str, Any]) -> Job:
    hashes = tuple(KnownSchedule(*known) for known in json.loads(row["hashes"]))
    return Job(**(row | {"hashes": hashes, "supervised": bool(row["supervised"])}))


# Nothing is lost ----------------------------------------------------------------------------------


def test_each_version_has_its_ways():
    assert VERSION == VERSION_OF_KEYS == max(NEW)
    assert list(NEW) == list(WAYS) == list(range(min(NEW), max(NEW) + 1))


@pytest.mark.parametrize("version", VERSIONS)
def test_all_that_was_there_is_there(old, version):
    rows, old.version = ROWS_OF[version], version
    old.make()
    before = old.said()
    with closing(open_store(old.url)) as store:
        ways = {to: what for to, what in NEW.items() if to > version}
        assert Upgrade(version, ways) == store.upgrade()
        assert sorted(map(run_of, rows["runs"]), key=lambda run: run.key) == sorted(
            store.runs(limit=1000), key=lambda run: run.key
        )
        assert sorted(map(job_of, rows["jobs"]), key=lambda job: job.name) == store.jobs()
        assert [Node(**row) for row in rows["nodes"]] == store.nodes()
        assert Upgrade(VERSION, {}) == store.upgrade()
    assert before | {"version": f"{VERSION}", "born": before["created"], "young": "0"} == old.said()


def key(job: str, slot: int = T) -> RunKey:
    return RunKey(job, slot)


def test_all_verbs_go_on_from_there(old):
    with closing(open_store(old.url)) as store:
        store.upgrade()
        now = T + 3_000
        store.register(BEAT, [Registration(job="report", hash="every 1s", cursor=T + 1_000)], now=now)
        assert "proj" in [node.app for node in store.nodes()]
        fence = next(run.fence for run in store.runs(job="report", state="running"))
        held = Holding(key=key("report"), token=f"token of report {T}", fence=fence)
        assert ["ok"] == [one.answer for one in store.renew([held], now=now)]
        due = store.expired(BEAT, 10, now=T + 12_000).runs
        assert {"released", "claimed", "allow"} == {run.job for run in due}
        seen = [
            Redispatch(key=run.key, state=run.state, dispatch=run.dispatch, deadline=run.deadline or 0)
            for run in due
        ]
        again = store.redispatch("one:1", seen, nonce="again", now=T + 12_001)
        assert {"won"} == {claim.answer for claim in again}
        sent = Sent(key=key("released"), dispatch=2, task_id="task 2", supervised=True)
        store.sent([sent], now=T + 12_002)
        asked = Start(key=key("released"), token="mine", worker="celery@two:9", task_id="task 2")
        started = store.start(asked, now=T + 12_003)
        assert isinstance(started, Started) and (2, "takeover") == (started.attempt, started.trigger)
        assert [True] == store.release([Release(key=key("released"), token="mine")], now=T + 12_004)
        assert store.finish(key("report"), f"token of report {T}", "succeeded", now=T + 12_005)
        assert store.requeue(
            key("cancel"), f"token of cancel {T}", delay=0, retries=1, start_timeout=9, now=T + 12_006
        ) is False  # it was asked to stop, and ended
        offer = Offer(job="report", slots=(T + 12_000,))
        (claimed,) = store.claim("one:1", [offer], nonce="new", now=T + 12_007)
        assert "won" == claimed.claims[0].answer
        assert store.resume("queue", now=T + 12_008)
        assert store.pause("queue", reason="r", by="b", now=T + 12_009)
        was = len(store.runs(limit=1000))
        assert 8 == store.prune(history=1, most=1000, now=T + 12_010)
        assert was - 8 == len(store.runs(limit=1000))


@of_tables
def test_the_tables_are_those_of_a_new_store(old):
    with closing(SqlStore(old.url)) as store, closing(SqlStore(old.url, prefix="fresh")) as fresh:
        store.upgrade()
        fresh.jobs()
        with old.transaction() as connection:
            assert layout(connection, "fresh") == layout(connection, "anarchon")
            names = "SELECT name FROM {}_meta ORDER BY name"
            assert [
                connection.execute(text(names.format(prefix))).all() for prefix in ("anarchon", "fresh")
            ] == 2 * [[(name,) for name in ("born", "created", "identity", "latest", "version", "young")]]


@pytest.mark.parametrize("old", ["redis"], indirect=True)
def test_the_keys_are_those_of_a_new_store(old):
    with closing(open_store(old.url)) as store, closing(open_store(old.url, prefix="fresh")) as fresh:
        store.upgrade()
        fresh.expired(BEAT, 1)
        with old.client() as client:
            assert sorted(client.hkeys("{anarchon}:meta")) == sorted(client.hkeys("{fresh}:meta"))
            assert f"{VERSION}" == client.hget("{fresh}:meta", "version")


# Nodes wait for it ------------------------------------------------------------------------------


def test_who_meets_it_says_what_to_run_changes_nothing_and_goes_on_after_it(old):
    before = old.everything()
    with closing(open_store(old.url)) as node, closing(open_store(old.url)) as command:
        verbs = [
            node.jobs, lambda: node.expired(BEAT, 10, now=T),
            lambda: node.register(BEAT, [Registration(job="new", hash="h")], now=T),
            lambda: node.renew([Holding(key=key("report"), token="t", fence=1)], now=T),
        ]  # fmt: skip
        for verb in verbs:
            with refused(StoreUnusable, node.shown, "of version 2", f"with version {VERSION}", RUN_IT):
                verb()
        assert before == old.everything()
        command.upgrade()
        for verb in verbs:
            verb()


@of_tables
def test_a_table_that_is_gone_is_not_made_again_beside_older_ones(old):
    with old.transaction() as connection:
        connection.execute(text("DROP TABLE anarchon_jobs"))
    with closing(open_store(old.url)) as store, refused(StoreUnusable, "of version 2", RUN_IT):
        store.register(BEAT, [Registration(job="new", hash="h")], now=T)
    with old.transaction() as connection:
        assert not inspect(connection).has_table("anarchon_jobs")


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("old", ["sqlite"], indirect=True)
def test_a_beat_waits_for_it_and_goes_on_by_itself(old, processes, tmp_path):
    (tmp_path / "proj.py").write_text(
        textwrap.dedent(f"""
            from celery import Celery

            app = Celery("proj", broker="memory://")
            app.conf.anarchon_store = {old.url!r}
            app.conf.beat_schedule = {{"sync": {{"task": "t", "schedule": "1s"}}}}
            """)
    )
    beat = processes.celery("-A", "proj", "beat", "-S", "anarchon_celery.Scheduler", "-l", "info")
    beat.wait_for(f"of version 2, .*{RUN_IT}", 30)
    mark = beat.mark()
    done = processes.celery("-A", "proj", "anarchon", "upgrade", "--json")
    assert 0 == done.wait(30)
    assert (2, VERSION) == (json.loads(done.output)["from"], json.loads(done.output)["to"])
    beat.wait_for(r"\[anarchon\] started as ", 30, after=mark)
    beat.wait_for(r"\[anarchon\] sync @ \S+: dispatched by ", 30, after=mark)
    with closing(open_store(old.url)) as store:
        assert "proj" in [node.app for node in store.nodes()]
    assert "Traceback" not in beat.output
    beat.stop()


# Only once, all of it -----------------------------------------------------------------------------


def test_a_dry_run_says_all_and_changes_nothing(old):
    before = old.everything()
    with closing(open_store(old.url)) as store:
        assert Upgrade(2, NEW) == store.upgrade(dry=True)
    assert before == old.everything()


def test_where_nothing_is_there_is_nothing_to_do(old):
    old.clear()
    with closing(open_store(old.url)) as store:
        assert Upgrade(None, {}) == store.upgrade()
    if old.kind == "redis":
        with old.client() as client:
            assert [] == client.keys()
    else:
        with old.transaction() as connection:
            assert not inspect(connection).has_table("anarchon_meta")


def test_several_at_once_do_no_harm(old):
    stores = [open_store(old.url) for _ in range(4)]
    both = Barrier(len(stores))
    for store in stores:
        if isinstance(store, SqlStore):
            meet_before_the_second(store, both)
        else:
            meet_before_the_second_script(store, both)
    with ThreadPoolExecutor(len(stores)) as pool:
        assert [Upgrade(2, NEW)] * 4 == list(pool.map(lambda store: store.upgrade(), stores))
    for store in stores:
        store.close()
    with closing(open_store(old.url)) as store:
        assert len(ROWS["jobs"]) == len(store.jobs())
    assert f"{VERSION}" == old.said()["version"]
    assert 6 == len(old.said())


@of_tables
def test_one_that_somebody_is_in_the_way_of_waits_and_says_at_last_what_for(old):
    """Nothing is half done, and who asks again has it done."""
    with old.transaction() as other, closing(open_store(old.url, within=1.0)) as store:
        for name in TABLES:
            other.execute(text(f"DELETE FROM anarchon_{name} WHERE 1 = 0"))
        with pytest.raises(StoreUnreachable) as told:
            store.upgrade()
        assert re.search("locked|timeout|max_statement_time", str(told.value), re.IGNORECASE)
        assert str(told.value).startswith(store.shown)
    with closing(open_store(old.url)) as store:
        assert Upgrade(2, NEW) == store.upgrade()


@of_tables
def test_who_comes_late_to_a_way_does_not_go_back(old):
    old.say("version", "5")
    before = old.everything()
    with old.transaction() as connection:
        for version in WAYS:
            go(connection, "anarchon", version)
    assert before == old.everything()


def meet_before_the_second(store: SqlStore, all_of_them: Barrier) -> None:
    """Have the transaction that changes something begin when all have seen that it is needed."""
    taken = []

    def checkout(connection, *_rest):
        taken.append(connection)
        if len(taken) == 2:
            all_of_them.wait(20)

    event.listen(store._engine, "checkout", checkout)


def meet_before_the_second_script(store: Any, all_of_them: Barrier) -> None:
    run, begun = store._link.run, []

    def meet(call):
        begun.append(call)
        if len(begun) == 2:
            all_of_them.wait(20)
        return run(call)

    store._link.run = meet


def die_at(url: str, words: str, after: bool) -> None:
    """Upgrade, and be killed before or after the first statement with these words."""
    warnings.simplefilter("error")
    store = SqlStore(url)

    def die(_connection, _cursor, statement, *_rest):
        if words in statement:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(store._engine, "after_cursor_execute" if after else "before_cursor_execute", die)
    store.upgrade()


@pytest.mark.slow
@of_tables
def test_one_that_was_killed_half_way_is_done_by_the_next(old):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    for words, after in (("ALTER TABLE", True), ("INSERT INTO", True), ("UPDATE anarchon_meta", False)):
        old.make()
        child = context.Process(target=die_at, args=(old.url, words, after))
        child.start()
        child.join(60)
        assert -signal.SIGKILL == child.exitcode
        with closing(SqlStore(old.url)) as store, closing(SqlStore(old.url, prefix="fresh")) as fresh:
            with refused(StoreUnusable, "of version 2", RUN_IT):
                store.jobs()
            assert Upgrade(2, NEW) == store.upgrade()
            assert len(ROWS["runs"]) == len(store.runs(limit=1000))
            fresh.jobs()
            with old.transaction() as connection:
                assert layout(connection, "fresh") == layout(connection, "anarchon")
        assert 6 == len(old.said())


# Versions there is no way from --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("5", ["of version 5", "with version 4", "install the release that made them"]),
        ("1", ["of version 1", "cannot upgrade them", "another anarchon_prefix"]),
        ("abc", ["have the version 'abc', which is none", "somebody edited it"]),
        ("", ["have the version '', which is none"]),
        ("2.5", ["have the version '2.5', which is none"]),
    ],
)
def test_a_version_that_there_is_no_way_from(old, version, words):
    old.say("version", version)
    before = old.everything()
    with closing(open_store(old.url)) as store:
        for call in (store.upgrade, lambda: store.upgrade(dry=True), store.jobs):
            with refused(StoreUnusable, store.shown, *words):
                call()
    assert before == old.everything()


# The command --------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", ["sqlite"], indirect=True)
def test_the_command(old):
    desk = Desk(anarchon_store=old.url)
    new = [{"version": version, "what": what} for version, what in NEW.items()]
    found = {"store": old.url, "from": 2, "to": VERSION, "dry_run": True, "new": new}
    assert found == desk.json("upgrade", "--dry-run")
    told = [f"  {version}: {what}" for version, what in NEW.items()]
    result = desk.run("upgrade", "--dry-run")
    assert (0, [f"{old.url} would be upgraded from version 2 to {VERSION}; what is new:", *told]) == (
        result.exit_code, result.output.splitlines(),
    )  # fmt: skip
    result = desk.run("status")
    assert (1, True) == (result.exit_code, RUN_IT in result.output)
    result = desk.run("upgrade")
    assert (0, [f"{old.url} was upgraded from version 2 to {VERSION}; what is new:", *told]) == (
        result.exit_code, result.output.splitlines(),
    )  # fmt: skip
    found = {"store": old.url, "from": VERSION, "to": VERSION, "dry_run": False, "new": []}
    assert found == desk.json("upgrade")
    assert f"nothing to do: {old.url} is of version {VERSION} already\n" == desk.run("upgrade").output
    old.say("version", "9")
    result = desk.run("upgrade")
    assert (1, 1) == (result.exit_code, len(result.output.splitlines()))
    assert "install the release that made them" in result.output
    old.clear()
    assert f"nothing to do: {old.url} has nothing to upgrade yet\n" == desk.run("upgrade").output
    desk.close()


def test_a_store_that_keeps_no_layout_has_nothing_to_do():
    desk = Desk()
    assert "nothing to do: " in desk.run("upgrade").output
    desk.close()

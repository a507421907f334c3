"""Options, tables and rights that cannot be: one clear line that names them, on each kind of store."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing

import pytest

from anarchon_celery.errors import StoreUnreachable, StoreUnusable
from anarchon_celery.protocol import Offer
from anarchon_celery.stores import open_store
from anarchon_celery.stores.options import SECONDS, WHOLE, refuse_wrong
from tests.databases import Database
from tests.test_cli import Desk
from tests.test_stores import KINDS, new_site
from tests.test_stores_sql import BEAT, refused, register

KINDS_WITH_OPTIONS = [kind for kind in KINDS if kind != "memory"]


@pytest.fixture(params=KINDS_WITH_OPTIONS)
def site(request):
    return new_site(request.param, request)


# Options ------------------------------------------------------------------------------------------


def test_what_is_right_is_said_with_the_name_and_the_value():
    rights = {"wait": SECONDS, "number": WHOLE}
    refuse_wrong({"wait": 0, "number": -1, "other": object()}, rights)
    refuse_wrong({"wait": None, "number": None}, rights)
    for options, line in (
        ({"wait": "abc"}, "anarchon_store_options: wait='abc': seconds are right, such as 1.5"),
        ({"wait": -1}, "anarchon_store_options: wait=-1: seconds are right, such as 1.5"),
        ({"wait": True}, "anarchon_store_options: wait=True: seconds are right, such as 1.5"),
        ({"number": 1.5}, "anarchon_store_options: number=1.5: a whole number is right, such as 5"),
        ({"number": ["secret"]}, "anarchon_store_options: number=<list>: a whole number is right, such as 5"),
        ({5: 5}, "anarchon_store_options: 5 is no name: a text is right"),
    ):
        with pytest.raises(StoreUnusable) as caught:
            refuse_wrong(options, rights)
        assert line == str(caught.value)


OF_ENGINES = [
    {"nonsense": 1}, {"pool_size": "x"}, {"pool_timeout": "abc"}, {"max_overflow": "x"},
    {"pool_recycle": "x"}, {"poolclass": "x"}, {"echo": "loud"}, {"isolation_level": "nonsense"},
    {"connect_args": "abc"}, {"connect_args": {"nonsense": 1}}, {1: 2},
]  # fmt: skip
OF_EACH = {
    "redis": [
        {"nonsense": 1}, {"socket_timeout": "abc"}, {"socket_connect_timeout": "abc"}, {"db": "x"},
        {"socket_timeout": -1}, {"max_connections": "x"}, {"ssl_ca_certs": 5}, {"ssl_cert_reqs": "x"},
        {"socket_keepalive_options": "x"}, {"socket_keepalive": True, "socket_keepalive_options": {99: "x"}},
        {"credential_provider": 5}, {"sentinel_kwargs": {"socket_timeout": "x"}}, {1: 2},
    ],
    "sqlite": [*OF_ENGINES, {"connect_args": {"timeout": "abc"}}],
    "postgresql": [
        *OF_ENGINES, {"connect_args": {"connect_timeout": "abc"}}, {"connect_args": {"port": "abc"}},
        {"connect_args": {"sslmode": "abc"}}, {"connect_args": {"options": "-c abc=1"}},
    ],
    "mariadb": [
        *OF_ENGINES, {"connect_args": {"connect_timeout": "abc"}}, {"connect_args": {"port": "abc"}},
        {"connect_args": {"read_timeout": "abc"}}, {"connect_args": {"charset": "abc"}},
    ],
}  # fmt: skip


def test_an_option_that_cannot_be_meant_is_one_line(site):
    for options in OF_EACH[site.kind]:
        with pytest.raises(StoreUnusable) as caught:
            look(site, options)
        said = str(caught.value)
        assert "\n" not in said
        names = re.findall(r"\w+", str(options))
        assert [name for name in names if name in said] or "option" in said, (options, said)


def look(site, options) -> None:
    with closing(open_store(site.url, prefix=site.prefix, options=options)) as store:
        store.jobs()


def test_by_a_command_it_is_one_line_and_status_2(tmp_path):
    desk = Desk(anarchon_store=f"sqlite:///{tmp_path}/j.db", anarchon_store_options={"pool_size": "x"})
    result = desk.run("status")
    desk.close()
    line = "Error: anarchon_store_options: pool_size='x': a whole number is right, such as 5\n"
    assert (2, line) == (result.exit_code, result.output)


# Tables and keys of somebody else ---------------------------------------------------------------


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request) -> Database:
    running: Database = request.getfixturevalue(f"{request.param}_server")
    return running


THEIRS = [
    ("meta", "a INT", "'name'"),
    ("meta", "name INT, value INT", "'name' is INT"),
    ("meta", "name VARCHAR(9), value DATE", "'value' is DATE"),
    ("meta", "name VARCHAR(9), value BIT(1)", "'value' is "),
    ("runs", "a INT", "'job'"),
    ("jobs", "name VARCHAR(9), x INT NOT NULL", "'hashes'"),
    (
        "nodes",
        "id VARCHAR(9), name TEXT, kind TEXT, seen TEXT, app TEXT, version TEXT, celery TEXT, python TEXT,"
        " clock_offset BIGINT, schedule TEXT",
        "'seen' is TEXT",
    ),
]


CALLS = {
    "jobs": lambda store: store.jobs(),
    "register": lambda store: register(store, "report", now=None),
    "expired": lambda store: store.expired(BEAT, 9),
    "claim": lambda store: store.claim("n", [Offer(job="report", slots=(1,))], nonce="n"),
}


def assert_named(url: str, prefix: str, name: str, strange: str) -> None:
    words = f"the table {prefix}_{name} is somebody else's", strange, "set another anarchon_prefix"
    with closing(open_store(url, prefix=prefix)) as store:
        calls = list(CALLS.values()) + ([lambda store: store.upgrade()] if name == "meta" else [])
        for call in calls:
            with refused(StoreUnusable, store.shown, *words):
                call(store)


@pytest.mark.parametrize(("name", "columns", "strange"), THEIRS)
def test_a_table_of_somebody_else_is_named_and_none_of_ours_made_beside_it(name, columns, strange, server):
    prefix = f"of_{secrets.token_hex(4)}"
    server.run(f"CREATE TABLE {prefix}_{name} ({columns})")
    try:
        assert_named(server.url(), prefix, name, strange)
        there = "SELECT table_name FROM information_schema.tables WHERE left(table_name, 11) = %s"
        assert [(f"{prefix}_{name}",)] == server.run(there, prefix)
    finally:
        server.run(f"DROP TABLE {prefix}_{name}")


@pytest.mark.parametrize(("name", "columns", "strange"), THEIRS)
def test_a_table_of_somebody_else_in_a_file(name, columns, strange, tmp_path):
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as file:
        file.execute(f"CREATE TABLE anarchon_{name} ({columns})")
        assert_named(f"sqlite:///{tmp_path}/jobs.db", "anarchon", name, strange)
        assert [(f"anarchon_{name}",)] == file.execute("SELECT name FROM sqlite_master").fetchall()


@pytest.mark.parametrize("key", ["meta", "jobs"])
def test_a_key_of_another_type_is_named(key, redis_url, redis_server):
    with redis_server.client() as client, closing(open_store(redis_url)) as store:
        client.set(f"{{anarchon}}:{key}", "theirs")
        words = f"{{anarchon}}:{key} holds something else", "another anarchon_prefix"
        with refused(StoreUnusable, store.shown, *words):
            register(store, "report", now=None)
        with pytest.raises(StoreUnusable) as told:
            store.jobs()
        assert "script" not in str(told.value)


def test_a_key_of_another_type_stops_the_upgrade_in_one_line(redis_url, redis_server):
    with redis_server.client() as client, closing(open_store(redis_url)) as store:
        client.set("{anarchon}:meta", "theirs")
        with refused(StoreUnusable, store.shown, "a key of the store was made something else"):
            store.upgrade()


# Rights, databases, folders -----------------------------------------------------------------------


@pytest.fixture
def poor(server) -> Iterator[str]:
    """The URL of a database whose user may not make tables there."""
    name = f"poor_{secrets.token_hex(4)}"
    server.run(f"CREATE DATABASE {name}")
    at = "" if server.kind == "postgresql" else "@'%%'".replace("%%", "%")
    if server.kind == "postgresql":
        server.run(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        with closing(server.connect(name)) as connection:
            connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    else:
        server.run(f"CREATE USER {name}{at} IDENTIFIED BY 'secret'")
        server.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {name}{at}")
    yield re.sub("//[^@]*@", f"//{name}:secret@", server.url(name))
    server.run(f"DROP DATABASE {name}")
    server.run(f"DROP {'ROLE' if server.kind == 'postgresql' else 'USER'} {name}{at}")


def test_a_user_who_may_not_make_tables(poor):
    with closing(open_store(poor)) as store:
        for call in (store.jobs, lambda: register(store, "report", now=None)):
            with refused(StoreUnusable, "***", "denied", "the right to make tables once"):
                call()


def test_a_database_that_is_not_there(server):
    words = "nowhere", "create it, or name another one in anarchon_store"
    with closing(open_store(server.url("nowhere"))) as store, refused(StoreUnusable, *words):
        store.jobs()


CANNOT_OPEN = "unable to open database file: a file is right whose folder is there"


@pytest.mark.parametrize("place", ["{}/nowhere", "/proc"])
def test_a_folder_that_is_not_there_or_takes_no_files(place, tmp_path):
    url = f"sqlite:///{place.format(tmp_path)}/jobs.db"
    with closing(open_store(url)) as store, refused(StoreUnreachable, store.shown, CANNOT_OPEN):
        store.jobs()


@pytest.fixture
def their_folder():
    """A folder in which this user may not write; root is somebody else meanwhile, who may not either."""
    with closing(open_store("sqlite://")) as store:
        store.jobs()  # all that is imported is there
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        was_root = os.geteuid() == 0
        if was_root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if was_root:
                os.seteuid(0)
            os.chmod(folder, 0o755)


def test_a_folder_that_this_user_may_not_write_to(their_folder):
    with closing(open_store(f"sqlite:///{their_folder}/jobs.db")) as store:
        words = f"{their_folder}/jobs.db", CANNOT_OPEN, "in which this user may write"
        with refused(StoreUnreachable, *words):
            store.jobs()

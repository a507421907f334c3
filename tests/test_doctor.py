"""The doctor: each finding is one line that says what to do, and makes the exit status 1."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest
from kombu.utils import functional

import anarchon_celery
from anarchon_celery.doctor import OF_THE_APP, OF_THE_STORE
from anarchon_celery.protocol import Node, Redispatch, Registration, Request, Sent
from anarchon_celery.slots import iso
from anarchon_celery.stores import filesystems, open_store
from tests.servers import RedisServer, free_port
from tests.test_cli import Desk
from tests.test_stores import KINDS, new_site

MINUTE, HOUR = 60_000, 3_600_000
PERSISTENT = "it keeps nothing on its disk"


@pytest.fixture
def desk_with():
    desks = []

    def make(**conf) -> Desk:
        desks.append(Desk(**conf))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


#: The servers of the tests do not wait for their disks, which is told of them each time.
LAX = "so that a power loss may take back what was answered: set it to "


def told(desk: Desk, *, lax: bool = False) -> list[tuple[str, str]]:
    """What it finds; the same for people and for machines, with the right status."""
    as_json = desk.run("doctor", "--json")
    found = [(one["check"], one["finding"]) for one in desk.read("doctor", as_json)]
    as_text = desk.run("doctor")
    assert as_text.output == ("\n".join(line for _, line in found) or "nothing is wrong") + "\n"
    assert as_text.exit_code == as_json.exit_code == bool(found)
    return [(check, line) for check, line in found if lax or LAX not in line]


# Each fault, and what is said of it ---------------------------------------------------------------

Make = Callable[[pytest.FixtureRequest, Callable[..., Desk]], Desk]


def nodes(*told: Node) -> Make:
    """A cluster of these nodes."""

    def make(_request, desk_with) -> Desk:
        desk = desk_with()
        for node in told:
            desk.store.register(node, [])
        return desk

    return make


def app(**conf) -> Make:
    """An app with these settings, and whatever store it has."""
    return lambda _, desk_with: desk_with(**conf)


def redis_set(**options: str) -> Make:
    def make(request, desk_with) -> Desk:
        url, server = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_server")
        for name, value in options.items():
            name = name.replace("_", "-")
            with server.client() as client:
                before = client.config_get(name)[name]
                client.config_set(name, value)
            request.addfinalizer(partial(set_back, server, name, before))
        return desk_with(anarchon_store=url)

    return make


def set_back(server: RedisServer, name: str, value: str) -> None:
    with server.client() as client:
        client.config_set(name, value)


def database(
    kind: str, query: str = "", *, made: Sequence[str] = (), undone: Sequence[str] = (), **options
) -> Make:
    """A database of a kind, with a query in its URL; or to which something was done."""

    def make(request, desk_with) -> Desk:
        server = request.getfixturevalue(f"{kind}_server")
        for statement in undone:
            request.addfinalizer(partial(server.run, statement))
        for statement in made:
            server.run(statement)
        return desk_with(anarchon_store=server.url() + query, anarchon_store_options=options)

    return make


def replica(request, desk_with) -> Desk:
    """A Redis that is one, of itself: it stays up, and read-only."""
    server = request.getfixturevalue("own_redis_server")
    with server.client() as client:
        client.replicaof("127.0.0.1", server.port)
    return desk_with(anarchon_store=server.url())


def on_a_network(request, desk_with) -> Desk:
    folder, table = request.getfixturevalue("tmp_path"), request.getfixturevalue("tmp_path") / "mountinfo"
    device = os.stat(folder).st_dev
    table.write_text(f"28 27 {os.major(device)}:{os.minor(device)} / {folder} rw - nfs4 there rw\n")
    request.getfixturevalue("monkeypatch").setattr(filesystems, "MOUNTS", table)
    return desk_with(anarchon_store=f"sqlite:///{folder}/jobs.db")


def left_alone(request, desk_with) -> Desk:
    """A job came due three hours ago, a run was asked for two minutes ago; a beat lives."""
    desk = desk_with(beat_schedule=HOURLY)
    now = known(desk, ago=3 * HOUR)
    desk.store.trigger(Request(job="sync", by="anna"), nonce="n", now=now - 2 * MINUTE)
    return desk


def no_beat(request, desk_with) -> Desk:
    desk = desk_with(beat_schedule=HOURLY)
    known(desk, ago=MINUTE, beat=False)
    return desk


def another_beat(request, desk_with) -> Desk:
    """The beat that lives has not this app's entry: it runs the code of before, or in another place."""
    desk = desk_with(beat_schedule=HOURLY)
    desk.store.register(Node(id="i", name="a:1"), [Registration(job="other", hash="h")])
    return desk


def does_nothing() -> None:
    """The body of a task."""


def no_worker(request, desk_with) -> Desk:
    desk = desk_with(beat_schedule=HOURLY)
    desk.app.task(base=anarchon_celery.Task, name="t", shared=False)(does_nothing)
    known(desk, ago=MINUTE)
    return desk


def no_broker(request, desk_with) -> Desk:
    request.getfixturevalue("monkeypatch").setattr(functional, "sleep", lambda seconds: None)  # kombu's
    return desk_with(broker_url=f"redis://:secret@127.0.0.1:{free_port()}/0")


HOURLY = {"sync": {"task": "t", "schedule": "1h"}}
READ_ONLY = "read-only, as a replica is: the primary is right"
APART = "transactions are SERIALIZABLE, where READ COMMITTED is right: leave isolation_level out of "

#: What goes wrong in practice: how it is made, which checks find it, and the words that say what to do.
FAULTS: dict[str, tuple[Make, dict[str, str]]] = {
    "a wrong setting": (app(enable_utc=False), {"settings": "timezone is not set"}),
    "a wrong entry": (
        app(beat_schedule={"bad": {"task": "t", "schedule": "61 * * * *"}}),
        {"entries": "cannot read minute '61'"},
    ),
    "no broker": (no_broker, {"broker": "does not answer: "}),
    "no store": (
        lambda _, desk_with: desk_with(anarchon_store=f"redis://127.0.0.1:{free_port()}/0"),
        {"store": "does not answer: "},
    ),
    "a Redis that throws keys away": (
        redis_set(maxmemory="100mb", maxmemory_policy="allkeys-lru"),
        {"server": "set noeviction or a volatile-… policy, or use another server"},
    ),
    "a Redis without persistence": (
        redis_set(appendonly="no"), {"server": "loses all it has: set appendonly yes"},
    ),
    "a replica of Redis": (replica, {"store": "read only replica"}),
    "a replica of PostgreSQL": (
        database("postgresql", "?options=-c%20default_transaction_read_only%3Don"), {"store": READ_ONLY},
    ),
    "a replica of MariaDB": (
        database("mariadb", made=["SET GLOBAL read_only = 1"], undone=["SET GLOBAL read_only = 0"]),
        {"store": READ_ONLY},
    ),
    "isolation": (database("mariadb", isolation_level="SERIALIZABLE"), {"server": APART}),
    "a PostgreSQL that does not wait for its disk": (
        database("postgresql", "?options=-c%20synchronous_commit%3Doff"),
        {"server": f"synchronous_commit is off, {LAX}on, or be ready for runs that are lost"},
    ),
    "a MariaDB that does not wait for its disk": (
        database("mariadb"), {"server": f"innodb_flush_log_at_trx_commit is 0, {LAX}1, or be ready"},
    ),
    "SQLite on a network": (on_a_network, {"store": "is on nfs4, a file system that machines share"}),
    "two apps on one prefix": (
        nodes(Node(id="i", name="a:1", app="proj"), Node(id="j", name="a:2", app="shop")),
        {"apps": "(proj on a:1; shop on a:2): give each app an anarchon_prefix of its own"},
    ),
    "a clock that is off": (
        nodes(Node(id="i", name="a:1", kind="worker", clock_offset=-90_000)),
        {"clocks": "the clock of worker a:1 is 90.0 s behind the store's: set it, by NTP"},
    ),
    "two schedules": (
        nodes(*(Node(id=f"i{n}", name=f"a:{n}", schedule=str(n // 2)) for n in range(3))),
        {"schedules": "(a:2, unlike others): if no deploy is going on, start those anew"},
    ),
    "no beat": (no_beat, {"overdue": "no beat is alive: start one, celery -A proj beat -S "}),
    "no node ever": (app(beat_schedule=HOURLY), {"overdue": "no beat is alive: start one, celery -A proj "}),
    "a beat without the entry": (another_beat, {"overdue": "sync is known to no beat: start those anew "}),
    "no worker": (no_worker, {"tasks": "no worker is alive: start one, celery -A proj worker"}),
    "what is overdue, and stuck": (
        left_alone,
        {"overdue": "nobody has decided about it: is a beat alive that has its entry",
         "runs": "(released) should have gone on and did not: is a beat alive that has its job's entry?"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_line_that_says_what_to_do(fault, request, desk_with):
    make, expected = FAULTS[fault]
    desk = make(request, desk_with)
    found = told(desk, lax=any(LAX in words for words in expected.values()))
    found = [(check, line) for check, line in found if "fsync is off" not in line]
    assert list(expected) == [check for check, _ in found]
    for (check, line), words in zip(found, expected.values(), strict=True):
        assert words in line, check
        assert "secret" not in line


def test_each_check_has_a_fault_that_it_finds():
    """Tasks that no worker knows take a worker: see tests/cluster/test_steering.py."""
    by_check = {check for _, expected in FAULTS.values() for check in expected}
    assert {check.__name__ for check in (*OF_THE_APP, *OF_THE_STORE)} | {"store"} == by_check


def test_a_server_that_waits_for_its_disk_is_well(mariadb_server, postgresql_server, desk_with):
    mariadb_server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    try:
        assert [] == told(desk_with(anarchon_store=mariadb_server.url()), lax=True)
    finally:
        mariadb_server.run("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
    ((check, line),) = told(desk_with(anarchon_store=postgresql_server.url()), lax=True)
    assert ("server", True) == (check, f"fsync is off, {LAX}on, " in line)  # and nothing else of that kind


# Two apps ---------------------------------------------------------------------------------------


def see(store, *apps: str | None, first: int = 1, ago: int = 0) -> None:
    now = time.time_ns() // 1_000_000 - ago if ago else None
    for number, app in enumerate(apps, first):
        node = Node(id=f"incarnation-{number}", name=f"host:{number}", app=app)
        job = Registration(job="sync", hash="h")
        store.register(node, [job], now=now)


@pytest.fixture(params=KINDS)
def site(request):
    return new_site(request.param, request)


def test_two_apps_that_are_alive_at_once_on_one_prefix_are_named_with_their_nodes(site, desk_with):
    desk = desk_with(anarchon_store=site.url, anarchon_prefix=site.prefix)
    with closing(site.open()) as store:
        see(store, "proj", "proj")
        assert [] == told(desk)
        see(store, "shop", first=3)
        ((check, line),) = told(desk)
        assert "apps" == check
        named = "(proj on host:1, host:2; shop on host:3): give each app an anarchon_prefix of its own"
        assert line.startswith(f"2 apps use the anarchon_prefix {site.prefix!r} of {store.shown} at once ")
        assert line.endswith(named)


def test_apps_that_are_gone_or_told_no_name_are_not_counted(site, desk_with):
    desk = desk_with(anarchon_store=site.url, anarchon_prefix=site.prefix)
    with closing(site.open()) as store:
        for ago, expected in ((61_000, []), (50_000, ["apps"])):
            see(store, "shop", ago=ago, first=4)
            see(store, "proj", None, "")
            assert expected == [check for check, _ in told(desk)]


def test_two_apps_with_prefixes_of_their_own_are_well(redis_url, desk_with):
    desk = desk_with(anarchon_store=redis_url)
    for prefix, app in (("anarchon", "proj"), ("shop", "shop")):
        with closing(open_store(redis_url, prefix=prefix)) as store:
            see(store, app)
    assert [] == told(desk)


# The store ----------------------------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_the_one_finding(desk_with):
    ((check, line),) = told(desk_with(anarchon_store=f"redis://me:secret@127.0.0.1:{free_port()}/0"))
    assert ("store", True, False) == (check, "does not answer" in line, "secret" in line)


def test_a_store_that_cannot_even_be_opened_is_a_finding(desk_with):
    desk = desk_with(anarchon_store="redis://localhost", anarchon_store_options={"socket_timeout": "abc"})
    assert [("store", "anarchon_store_options: socket_timeout='abc': seconds are right, such as 1.5")] == (
        told(desk)
    )


def test_a_store_of_another_version(redis_url, redis_server, desk_with):
    desk = desk_with(anarchon_store=redis_url)
    assert [] == told(desk)
    with redis_server.client() as client:
        client.hset("{anarchon}:meta", "version", "2")
    ((check, line),) = told(desk)
    assert ("store", True) == (check, "run `celery -A proj anarchon upgrade` once" in line)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"appendonly": "yes", "save": ""}, []),
        ({"appendonly": "no", "save": "3600 1"}, ["nothing but snapshots (appendonly no, save 3600 1)"]),
        ({"appendonly": "no", "save": ""}, [PERSISTENT]),
        (
            {"appendonly": "yes", "maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"},
            ["it throws keys away when it is full"],
        ),
        ({"appendonly": "yes", "maxmemory": "100mb", "maxmemory-policy": "noeviction"}, []),
    ],
)
def test_a_redis_that_does_not_keep_what_it_is_given_is_a_finding(
    redis_url, redis_server, desk_with, options, expected
):
    with redis_server.client() as client:
        before = {name: client.config_get(name)[name] for name in options}
        for name, value in options.items():
            client.config_set(name, value)
        try:
            found = told(desk_with(anarchon_store=redis_url))
        finally:
            for name, value in before.items():
                client.config_set(name, value)
    assert len(expected) == len(found)
    for words, (check, line) in zip(expected, found, strict=True):
        assert ("server", True) == (check, words in line)
        assert line.startswith(f"{redis_url} cannot be used: " if "throws" in line else f"{redis_url}: ")


def test_of_a_redis_that_does_not_tell_nothing_is_assumed(tmp_path, desk_with):
    """As with a user who may not ask, or a service that has no CONFIG."""
    rights = ["--rename-command", "CONFIG", "", "--appendonly", "no"]
    server = RedisServer(tmp_path / "redis", options=rights)
    try:
        assert [] == told(desk_with(anarchon_store=server.start().url()))
    finally:
        server.close()


# Nodes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(None, None), (-2_000, None), (2_001, "2.0 s ahead of"), (-90_000, "90.0 s behind")],
)
def test_a_clock_that_is_off_is_named_with_its_node(desk_with, offset, expected):
    desk = desk_with()
    desk.store.register(Node(id="i", name="a:1", kind="worker", clock_offset=offset), [])
    found = [(check, line.partition(": set it")[0]) for check, line in told(desk)]
    line = f"the clock of worker a:1 is {expected} the store's"
    assert ([("clocks", line)] if expected else []) == found


def test_beats_with_different_schedules_are_named(desk_with):
    desk = desk_with()
    for number, schedule in enumerate(("new", "new", "old", None)):
        desk.store.register(Node(id=f"i{number}", name=f"a:{number}", schedule=schedule), [])
    ((check, line),) = told(desk)
    assert ("schedules", True) == (check, "different schedules (a:2, unlike others)" in line)
    nodes = {node["node"]: node["other_schedule"] for node in desk.json("status")["nodes"]}
    assert {"a:0": False, "a:1": False, "a:2": True, "a:3": False} == nodes
    assert "old !" in desk.run("status").output
    desk.store.register(Node(id="i2", name="a:2", schedule="new"), [])
    assert [] == told(desk)


def test_where_there_is_no_majority_all_are_named(desk_with):
    desk = desk_with()
    for number, schedule in enumerate(("new", "old")):
        desk.store.register(Node(id=f"i{number}", name=f"a:{number}", schedule=schedule), [])
    assert "(a:0, a:1, unlike others)" in told(desk)[0][1]


# Jobs and runs ----------------------------------------------------------------------------------


def known(desk, *, ago: int, beat: bool = True) -> int:
    """A job that a node told of so long ago, by the hash that its schedule has here; returns the time now."""
    now = time.time_ns() // 1_000_000
    job = Registration(job="sync", hash=f"every {HOUR} ms")
    desk.store.register(Node(id="i", name="a:1"), [job], now=now - ago)
    desk.store.register(Node(id="j", name="a:2", kind="beat" if beat else "worker"), [])
    return now


def test_a_job_that_came_due_and_was_not_decided_is_a_finding(desk_with):
    desk = desk_with(beat_schedule=HOURLY)
    now = known(desk, ago=3 * HOUR)
    due = iso((now - 3 * HOUR) // HOUR * HOUR + HOUR)
    ((check, line),) = told(desk)
    assert ("overdue", True) == (check, line.startswith(f"sync (due at {due}) came due and nobody has "))
    desk.store.forget("sync")
    assert [] == told(desk)


def test_a_run_that_nobody_goes_on_with_is_a_finding(desk_with):
    desk = desk_with(beat_schedule=HOURLY)
    now = known(desk, ago=MINUTE)
    asked = Request(job="sync", by="anna")
    for number in range(7):
        at = now - 2 * MINUTE - number
        desk.store.trigger(replace(asked, overlap="allow"), nonce=f"n{number}", now=at)
    found = told(desk)
    assert ["runs"] * 6 == [check for check, _ in found]
    assert f"sync @ {iso(now - 2 * MINUTE - 6)} (released) should have gone on and did not: " in found[0][1]
    assert found[-1][1].startswith("and 2 more should have gone on and did not: ")


def test_a_message_that_no_worker_starts_is_a_finding(desk_with):
    desk = desk_with(beat_schedule=HOURLY)
    known(desk, ago=MINUTE)
    run = desk.store.trigger(Request(job="sync", by="anna"), nonce="n").run
    for dispatch in (1, 2):
        assert [] == told(desk)
        now = (run.deadline or 0) + 1
        seen = Redispatch(key=run.key, state=run.state, dispatch=run.dispatch, deadline=run.deadline or 0)
        desk.store.redispatch("a:1", [seen], nonce=f"m{dispatch}", now=now)
        sent = Sent(key=run.key, dispatch=dispatch, task_id="i", supervised=True)
        desk.store.sent([sent], now=now)
        run = desk.store.run(run.key)
    ((check, line),) = told(desk)
    assert ("runs", True) == (check, "(queued), sent 2 times was not started by any worker" in line)


# The app ----------------------------------------------------------------------------------------


def test_what_a_node_would_warn_of_and_what_a_beat_would_refuse(desk_with):
    schedule = {"bad": {"task": "t", "schedule": "61 * * * *"}, "good": {"task": "t", "schedule": "1h"}}
    found = told(desk_with(enable_utc=False, beat_schedule=schedule))
    assert ["settings", "entries", "overdue"] == [check for check, _ in found]  # no beat is alive
    assert "timezone is not set" in found[0][1]
    assert found[1][1].startswith("entry 'bad': cron '61 * * * *': ")


def test_settings_of_celerys_that_hurt_all_entries(desk_with):
    ((check, line),) = told(desk_with(beat_schedule=[]))
    assert ("entries", "beat_schedule is of type list: a dict of entries by name is right") == (check, line)


def test_a_broker_whose_user_may_not_ask_the_workers(redis_server, redis_url, desk_with):
    """Who may send tasks may send nothing to all workers at once; all other checks go on."""
    rights = ["on", ">secret", "~*", "&*", "+@all", "-publish"]
    with redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "sender", *rights)
    try:
        url = f"redis://sender:secret@127.0.0.1:{redis_server.port}/1"
        desk = desk_with(broker_url=url, beat_schedule=HOURLY)
        now = known(desk, ago=3 * HOUR)
        desk.store.register(Node(id="w", name="celery@c:1", kind="worker"), [])
        asked, overdue = told(desk)
    finally:
        with redis_server.client() as client:
            client.execute_command("ACL", "DELUSER", "sender")
    assert "tasks" == asked[0]
    assert asked[1].startswith("the workers cannot be asked which tasks they know: ")
    assert ("publish" in asked[1], "secret" in asked[1]) == (True, False)
    assert "overdue" == overdue[0]
    assert f"sync (due at {iso((now - 3 * HOUR) // HOUR * HOUR + HOUR)})" in overdue[1]

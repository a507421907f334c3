"""The doctor: each finding is one line that says what to do, and makes the exit status 1."""

from __future__ import annotations

import json
import textwrap
import time
from contextlib import closing

import pytest

from anarchon_celery.protocol import Node, Registration
from anarchon_celery.stores import open_store
from tests.servers import RedisServer, free_port
from tests.test_cli import Desk
from tests.test_stores import KINDS, new_site

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


def told(desk: Desk) -> list[tuple[str, str]]:
    """What it finds; the same for people and for machines, with the right status."""
    as_json = desk.run("doctor", "--json")
    found = [(one["check"], one["finding"]) for one in json.loads(as_json.output)]
    as_text = desk.run("doctor")
    assert as_text.output == ("\n".join(line for _, line in found) or "nothing is wrong") + "\n"
    assert as_text.exit_code == as_json.exit_code == bool(found)
    return found


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


@pytest.mark.cluster
@pytest.mark.slow
def test_two_beats_of_two_apps_on_one_file(processes, tmp_path):
    for name in ("proj", "shop"):
        (tmp_path / f"{name}.py").write_text(
            textwrap.dedent(f"""
                from celery import Celery

                app = Celery({name!r}, broker="memory://")
                app.conf.anarchon_store = "sqlite:///{tmp_path}/jobs.db"
                app.conf.result_expires = None
                """)
        )
        words = ["-A", name, "beat", "-S", "anarchon_celery.Scheduler", "-l", "info"]
        beat = processes.celery(*words, name=name)
        beat.wait_for(r"\[anarchon\] started as ", 30)
    doctor = processes.celery("-A", "proj", "anarchon", "doctor")
    assert 1 == doctor.wait(30)
    assert "2 apps use the anarchon_prefix 'anarchon'" in doctor.output


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


def test_a_postgresql_that_is_read_only_is_a_finding(postgresql_server, desk_with):
    url = f"{postgresql_server.url()}?options=-c%20default_transaction_read_only%3Don"
    ((check, line),) = told(desk_with(anarchon_store=url))
    assert ("store", True) == (check, "read-only, as a replica is: the primary is right" in line)


def test_a_mariadb_that_is_read_only_is_a_finding(mariadb_server, desk_with):
    desk = desk_with(anarchon_store=mariadb_server.url())
    assert [] == told(desk)
    mariadb_server.run("SET GLOBAL read_only = 1")
    try:
        found = told(desk_with(anarchon_store=mariadb_server.url()))
    finally:
        mariadb_server.run("SET GLOBAL read_only = 0")
    ((check, line),) = found
    assert ("store", True) == (check, "read-only, as a replica is: the primary is right" in line)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"appendonly": "yes", "save": ""}, []),
        ({"appendonly": "no", "save": "3600 1"}, []),
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
        assert line.startswith(f"{redis_url} cannot be used: ")


def test_of_a_redis_that_does_not_tell_nothing_is_assumed(tmp_path, desk_with):
    """As with a user who may not ask, or a service that has no CONFIG."""
    rights = ["--rename-command", "CONFIG", "", "--appendonly", "no"]
    server = RedisServer(tmp_path / "redis", options=rights)
    try:
        assert [] == told(desk_with(anarchon_store=server.start().url()))
    finally:
        server.close()


# The app ----------------------------------------------------------------------------------------


def test_what_a_node_would_warn_of_and_what_a_beat_would_refuse(desk_with):
    schedule = {"bad": {"task": "t", "schedule": "61 * * * *"}, "good": {"task": "t", "schedule": "1h"}}
    found = told(desk_with(enable_utc=False, beat_schedule=schedule))
    assert ["settings", "entries"] == [check for check, _ in found]
    assert "timezone is not set" in found[0][1]
    assert found[1][1].startswith("entry 'bad': cron '61 * * * *': ")


def test_settings_of_celerys_that_hurt_all_entries(desk_with):
    ((check, line),) = told(desk_with(beat_schedule=[]))
    assert ("entries", "beat_schedule is of type list: a dict of entries by name is right") == (check, line)

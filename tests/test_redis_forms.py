"""Redis in all its forms: sentinels, clusters, TLS, sockets, users, and servers that refuse."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from pathlib import Path

import pytest
import redis

from anarchon_celery.config import redacted
from anarchon_celery.errors import StoreUnreachable, StoreUnusable
from anarchon_celery.protocol import Holding, Node, Offer, Registration, Request, RunKey, Start
from anarchon_celery.stores import open_store
from anarchon_celery.stores.addresses import address_of
from anarchon_celery.stores.routes import MOST_LEARNT, Cluster
from tests.processes import wait_until
from tests.proxy import Proxy
from tests.servers import RedisCluster, RedisServer, SecureRedisServer, WatchedRedis, free_port

T = 1_790_000_000_000
PREFIX = "{anarchon}"
BEAT = Node(id="incarnation-1", name="one:1")


@contextlib.contextmanager
def opened(url, **options):
    """A store, closed at the end of the block."""
    store = open_store(url, options=options)
    try:
        yield store
    finally:
        store.close()


def refused(kind, line, url, ask=lambda store: store.runs(), **options):
    """Have a call refused with this in its line; return the line."""
    with opened(url, **options) as store, pytest.raises(kind, match=line) as told:
        ask(store)
    assert "\n" not in str(told.value)
    return str(told.value)


def begin(store, job="report", now=T):
    """Make a job known, and claim one slot of it; return the claim."""
    store.register(BEAT, [Registration(job=job, hash="h")], now=now)
    return claim(store, job, now)


def claim(store, job="report", slot=T, nonce="n1"):
    offer = Offer(job=job, slots=(slot,))
    return store.claim("one:1", [offer], nonce=nonce, now=slot)[0].claims[0]


def start(store, key, token="t", now=T):
    return store.start(Start(key=key, token=token, worker="w"), now=now)


def until_it_answers(ask, seconds=20):
    """Ask as a node does, again and again while the store is unreachable; return the answer."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except StoreUnreachable:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


# URLs -------------------------------------------------------------------------------------------

SHOWN = {
    "unix:///tmp/redis.sock?db=4": "unix:///tmp/redis.sock?db=4",
    "unix://me:secret@/tmp/redis.sock": "unix:///tmp/redis.sock?db=0",
    "redis+socket:///tmp/redis.sock?password=secret": "redis+socket:///tmp/redis.sock?virtual_host=0",
    "sentinel://h?master_name=m": "sentinel://h:26379/0?master_name=m",
    "sentinel://:secret@a:1;sentinel://b:2/3?master_name=m": "sentinel://a:1;sentinel://b:2/3?master_name=m",
    "sentinel://me:secret@a,b/3?sentinel_password=secret&master_name=m%26m": (
        "sentinel://a:26379;sentinel://b:26379/3?master_name=m%26m"
    ),
    "redis+cluster://me:secret@a:7000,b": "redis+cluster://a:7000,b:6379",
    "rediss+cluster://:secret@a/0;rediss+cluster://:secret@b": "rediss+cluster://a:6379,b:6379",
}


@pytest.mark.parametrize(("url", "shown"), SHOWN.items())
def test_a_url_is_shown_without_its_secrets(url, shown):
    with opened(url) as store:
        assert shown == store.shown
        assert "secret" not in repr(address_of(url)) + repr(store)
    assert "secret" not in redacted(url)


SETTINGS = {
    "unix://me:s%40@/r.sock?db=4": ([], 4, {"username": "me", "password": "s@"}),
    "redis+socket:///r.sock?virtual_host=2&password=pw": ([], 2, {"password": "pw"}),
    "sentinel://me:pw@a/1;sentinel://:other@b/2?master_name=m": (
        [("a", 26379), ("b", 26379)], 1, {"username": "me", "password": "pw", "master_name": "m"},
    ),
    "sentinel://a;sentinel://b:1/2?master_name=m&sentinel_username=s&sentinel_password=pw": (
        [("a", 26379), ("b", 1)], 2,
        {"master_name": "m", "sentinel_kwargs": {"username": "s", "password": "pw"}},
    ),
    "sentinel://a?master_name=m&ssl=true&sentinel_ssl=true&sentinel_ssl_ca_certs=/c": (
        [("a", 26379)], 0,
        {"master_name": "m", "ssl": True, "sentinel_kwargs": {"ssl": True, "ssl_ca_certs": "/c"}},
    ),
    "rediss+cluster://:pw@[::1]:7000,b?ssl_ca_certs=/c": (
        [("::1", 7000), ("b", 6379)], 0, {"password": "pw", "ssl": True, "ssl_ca_certs": "/c"},
    ),
    "redis://h/1?visibility_timeout=60&max_connections=2&health_check_interval=25&fanout_prefix=true": (
        [("h", 6379)], 1, {},
    ),
    "redis://h?db=5": ([("h", 6379)], 5, {}),
}  # fmt: skip


@pytest.mark.parametrize(("url", "found"), SETTINGS.items())
def test_a_url_says_where_and_how(url, found):
    address = address_of(url)
    assert found == (list(address.hosts), address.db, address.settings)


def test_options_count_before_the_url():
    url = "sentinel://:one@h?master_name=m&sentinel_password=one&sentinel_username=me"
    address = address_of(url, {"password": "two", "sentinel_kwargs": {"password": "two"}, "master_name": "n"})
    assert address.settings == {
        "password": "two", "master_name": "n", "sentinel_kwargs": {"username": "me", "password": "two"},
    }  # fmt: skip
    assert address.shown == "sentinel://h:26379/0?master_name=n"


SERVER = "redis://host:6379/0 is right"
WITH_LOGIN = "redis://:password@host:6379/0 is right, with %40, %2F, … for what is special in the password"
NODES = "redis+cluster://host:7000,host2:7000 is right"
SENTINELS = "sentinel://host:26379;sentinel://host2:26379/0?master_name=mymaster is right"
WRONG = {
    "redis://h:99999/0": f"the port is no number up to 65535; {SERVER}",
    "redis://h:abc/0": f"the port is no number up to 65535; {SERVER}",
    "redis://me:secret": f"the port is no number up to 65535; {SERVER}",
    "redis://:secret@h:x": "the port is no number up to 65535; redis://:password@host:6379/0 is right",
    "redis://:secret/x@h:1": WITH_LOGIN,
    "redis://:99999/x@h:1": WITH_LOGIN,
    "redis://h/0?socket_timeout=abc": "socket_timeout='abc': seconds are right, such as 1.5",
    "redis://h/0?socket_timeout=-1": "socket_timeout='-1': seconds are right, such as 1.5",
    "redis://h/0?socket_timeout=nan": "socket_timeout='nan': seconds are right, such as 1.5",
    "redis://h?socket_connect_timeout=1e10": "socket_connect_timeout='1e10': seconds are right, such as 1.5",
    "redis://:se?socket_timeout=cret@h": WITH_LOGIN,
    "redis://h?secret": f"what stands behind the ? is name=value, with & between several; {SERVER}",
    "redis://h/secret": f"the database is no number from 0 on; {SERVER}",
    "redis://h/-1": f"the database is no number from 0 on; {SERVER}",
    "redis://h/0#secret": f"a # has no meaning there; {SERVER}",
    "redis://h,h2/0": f"several servers are for redis+cluster:// and sentinel://; {SERVER}",
    "redis+cluster://h/1": f"a cluster has no database but 0; {NODES}",
    "redis+cluster://h:1,h2:99999": f"the port is no number up to 65535; {NODES}",
    "redis+cluster://:sec/ret@h": "redis+cluster://:password@host:7000,host2:7000 is right, with %40, %2F, … "
    "for what is special in the password",
    "sentinel://a;sentinel://b:port?master_name=m": f"the port is no number up to 65535; {SENTINELS}",
    "sentinel://a;redis://b": f"each of several begins with sentinel://; {SENTINELS}",
    "sentinel://a?sentinel_socket_timeout=x": "sentinel_socket_timeout='x': seconds are right, such as 1.5",
    "unix://": "unix:///path?virtual_host=0 is right",
    "unix://r.sock": "unix:///path?virtual_host=0 is right",
    "redis+socket://h/r.sock": "redis+socket:///path?virtual_host=0 is right",
}


@pytest.mark.parametrize(("url", "why"), WRONG.items())
def test_a_url_that_cannot_be_read_is_told_in_one_line(url, why):
    with pytest.raises(StoreUnusable) as refused:
        open_store(url)
    assert str(refused.value) == f"the {url.partition(':')[0]} URL of the store cannot be read: {why}"


IMPOSSIBLE = {
    "sentinel://h": "sentinel://h:26379/0: whom the sentinels are to be asked for is not said: ?master_name=",
    "redis+what://:secret@h": "no store for 'redis+what': redis:// is right, redis+socket:// or redis+cluster://",
    "sentinel+what://h": "no store for 'sentinel+what': sentinel:// is right",
}


@pytest.mark.parametrize(("url", "line"), IMPOSSIBLE.items())
def test_a_url_that_cannot_be_meant_is_told_in_one_line(url, line):
    with pytest.raises(StoreUnusable) as refused:
        open_store(url)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"min_replicas_ack": "1"}, "min_replicas_ack='1': a whole number of replicas is right"),
        ({"min_replicas_ack": -1}, "min_replicas_ack=-1: a whole number of replicas is right"),
        ({"min_replicas_timeout": "soon"}, "min_replicas_timeout='soon': a duration up to 1s is right"),
        ({"min_replicas_timeout": 5}, "min_replicas_timeout=5: a duration up to 1s is right"),
        (
            {"sokcet_timeout": 5},
            "redis://h:6379/0: the query of its URL, or anarchon_store_options, cannot be meant: "
            "the Redis client has no option 'sokcet_timeout'",
        ),
        ({"sentinel_kwargs": {"pasword": "secret"}}, "the Redis client has no option 'pasword'"),
    ],
)
def test_an_option_that_cannot_be_meant_is_told_in_one_line(options, line):
    with pytest.raises(StoreUnusable, match=line) as refused:
        open_store("redis://h", options=options)
    assert "secret" not in str(refused.value)


# TLS --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    server = SecureRedisServer(tmp_path_factory.mktemp("tls"))
    try:
        yield server.start()
    finally:
        server.close()


def test_tls_with_an_authority_of_ones_own(secure):
    ca = str(secure.certificates / "ca.pem")
    with opened(f"{secure.url(1)}?ssl_ca_certs={ca}") as store:
        assert begin(store).won
    for scheme, options in (("valkeys", {"ssl_ca_certs": ca}), ("redis", {"ssl_ca_certs": ca})):
        with opened(secure.url(1).replace("rediss", scheme), **options) as store:
            assert claim(store, nonce="n2").answer == "taken"
    with opened(secure.url(1), ssl_cert_reqs="none", ssl_check_hostname=False) as store:
        assert claim(store, nonce="n2").answer == "taken"


def test_a_certificate_that_is_not_to_be_trusted_is_told(secure):
    with opened(secure.url()) as store, pytest.raises(StoreUnusable) as refused:
        store.runs()
    assert str(refused.value).startswith(
        f"{secure.url()} cannot be used: its certificate is not to be trusted ("
    )
    assert "set ssl_ca_certs" in str(refused.value)


def test_a_certificate_file_that_is_not_there_is_told(secure):
    bad = secure.certificates / "names"
    refused(StoreUnusable, "cannot be used: TLS with it fails .*ssl_", secure.url(), ssl_ca_certs=str(bad))
    refused(
        StoreUnusable,
        "ssl_ca_certs='/no/such.pem': there is no such file",
        secure.url(),
        ssl_ca_certs="/no/such.pem",
    )


def test_tls_that_only_one_side_speaks_is_told(secure, redis_url):
    # Redis waits for the rest of what it takes for a command, or answers as it would that.
    refused(
        (StoreUnreachable, StoreUnusable),
        ".* TLS.*: .*redis:// is right",
        redis_url.replace("redis:", "rediss:"),
    )
    refused(StoreUnreachable, "does not answer", secure.url().replace("rediss:", "redis:"))


def test_a_server_that_greets_without_tls_is_told(mariadb_server):
    """Any server that speaks first, and not TLS."""
    line = "cannot be used: it does not speak TLS: redis:// is right instead of rediss://"
    refused(StoreUnusable, line, f"rediss://127.0.0.1:{mariadb_server.port}")


def test_a_client_certificate_is_shown_to_who_asks_for_one(tmp_path):
    server = SecureRedisServer(tmp_path / "r", options=["--tls-auth-clients", "yes"]).start()
    try:
        own = {name: str(server.certificates / file) for name, file in (
            ("ssl_ca_certs", "ca.pem"), ("ssl_certfile", "client.pem"), ("ssl_keyfile", "client.key"),
        )}  # fmt: skip
        with opened(server.url(), **own) as store:
            assert begin(store).won
        refused(
            StoreUnusable, "it refuses our TLS .*ssl_certfile", server.url(), ssl_ca_certs=own["ssl_ca_certs"]
        )
    finally:
        server.close()


# A socket, and users ----------------------------------------------------------------------------

#: What docs/redis.md says an ACL user needs.
RIGHTS = (
    "~{anarchon}* resetchannels &{anarchon}* +@hash +@sortedset +@set +del +exists +time +eval +evalsha "
    "+publish +subscribe +ping +info +select +client|setname +wait"
)


def test_the_docs_name_these_rights():
    assert RIGHTS in Path(__file__).parents[1].joinpath("docs", "redis.md").read_text()


def test_a_socket_under_both_names(tmp_path):
    folder = tmp_path / "r"
    server = RedisServer(folder, options=["--unixsocket", str(folder / "s"), "--requirepass", "p@ss"]).start()
    try:
        with opened(f"redis+socket://:p%40ss@{folder}/s?virtual_host=1") as store:
            assert begin(store).won
        with opened(f"unix://{folder}/s?db=1&password=p%40ss") as store:
            assert claim(store, nonce="n2").answer == "taken"
        refused(StoreUnreachable, "does not answer: .*No such file", f"unix://{folder}/no?db=1")
    finally:
        server.close()


@pytest.fixture
def plain(redis_server, redis_url):
    """A client of the run's Redis, which is empty; what a test sets there is set back."""
    with redis_server.client() as client:
        before = client.config_get("maxmemory*")
        yield client
        client.config_set("maxmemory", before["maxmemory"])
        client.config_set("maxmemory-policy", before["maxmemory-policy"])
        for user in client.acl_users():
            if user != "default":
                client.acl_deluser(user)


def make_user(client, name, password, rights):
    client.execute_command("ACL", "SETUSER", name, "on", f">{password}", *rights.split())


def test_a_user_with_the_rights_of_the_docs_may_do_everything(plain, redis_server):
    make_user(plain, "anarchon", "p@ss/word", RIGHTS)
    url = redis_server.url(3).replace("//", "//anarchon:p%40ss%2Fword@")
    with redis_server.client(3) as plain_there, opened(url, client_name="beat") as store:
        key = begin(store).key
        store.expired(BEAT, 10, now=T + 60_000)
        assert start(store, key).attempt == 1
        assert claim(store, slot=T + 1).answer == "overlap"
        assert store.renew([Holding(key=key, token="t", fence=1)], now=T)[0].answer == "ok"
        assert store.pause("report", reason="r", by="b", now=T)
        assert store.resume("report", now=T)
        assert store.finish(key, "t", "succeeded", now=T)
        assert store.prune(history=0, most=0, now=T + 2) == 2
        assert (store.runs(), len(store.jobs()), len(store.nodes())) == ([], 1, 1)
        plain_there.set(f"{PREFIX}:deadlines", "what is this?")
        assert store.expired(BEAT, 10, now=T + 60_000).runs == ()
        wake_ups = store.wake_ups()
        assert wake_ups.wait(10)
        assert store.trigger(Request(job="report", by="anna"), nonce="a1").answer == "released"
        assert wake_ups.wait(10)
        wake_ups._ask()
        wake_ups.close()


def test_without_the_right_to_ask_what_the_server_is_nothing_is_assumed(plain, redis_server):
    make_user(plain, "anarchon", "pw", RIGHTS + " -info")
    plain.config_set("maxmemory-policy", "allkeys-lru")
    plain.config_set("maxmemory", 10**9)
    with opened(redis_server.url().replace("//", "//anarchon:pw@")) as store:
        assert begin(store).won


@pytest.mark.parametrize(
    ("login", "rights", "line"),
    [
        ("anarchon:hush@", RIGHTS + " -evalsha", "its user lacks rights: docs/redis.md lists those it needs"),
        ("anarchon:hush@", RIGHTS + " -zadd", "its user lacks rights"),
        ("anarchon:hush@", RIGHTS + " resetkeys ~other:*", "its user lacks rights"),
        ("anarchon:hash@", RIGHTS, "it does not know this user with this password"),
        ("stranger:hush@", RIGHTS, "it does not know this user with this password"),
    ],
)
def test_what_a_user_may_not_is_told(plain, redis_server, login, rights, line):
    make_user(plain, "anarchon", "hush", rights)
    url = redis_server.url().replace("//", f"//{login}")
    told = refused(StoreUnusable, "cannot be used: ", url, ask=begin)
    assert told.startswith(f"{redis_server.url()} cannot be used: {line}")
    assert "hush" not in told


def test_a_password_that_is_missing_or_too_many_is_told(plain, redis_server):
    refused(
        StoreUnusable,
        "it does not know this user|it has no password, and was given one",
        redis_server.url().replace("//", "//:hush@"),
    )
    plain.config_set("requirepass", "hush")
    try:
        refused(
            StoreUnusable, "it asks for a password: redis://user:password@host is right", redis_server.url()
        )
    finally:
        plain.config_set("requirepass", "")


class Provider(redis.CredentialProvider):
    """Credentials that are made when they are asked for."""

    def get_credentials(self):
        return "anarchon", "made on the spot"


def test_credentials_may_be_provided_for_each_connection(plain, redis_server):
    plain.execute_command("ACL", "SETUSER", "anarchon", "on", ">made on the spot", *RIGHTS.split())
    with opened(redis_server.url(1), credential_provider=Provider()) as store:
        assert begin(store).won


# Servers that should not be used ----------------------------------------------------------------


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_throws_keys_away_is_refused(plain, redis_url, policy):
    plain.config_set("maxmemory-policy", policy)
    plain.config_set("maxmemory", 10**9)
    with opened(redis_url) as store:
        for _ in range(2):
            with pytest.raises(
                StoreUnusable, match=f"it throws keys away when it is full .*{policy}.*: set noev"
            ):
                begin(store)
        plain.config_set("maxmemory-policy", "volatile-lru")
        assert begin(store).won  # at once


def test_what_was_begun_goes_on_where_a_server_begins_to_throw_keys_away(plain, redis_url, monkeypatch):
    from anarchon_celery.stores import link

    monkeypatch.setattr(link, "INSPECT_EVERY", 0)
    with opened(redis_url) as store:
        key = begin(store).key
        start(store, key)
        plain.config_set("maxmemory-policy", "allkeys-lfu")
        plain.config_set("maxmemory", 10**9)
        with pytest.raises(StoreUnusable, match="throws keys away"):
            claim(store, slot=T + 1)
        assert store.renew([Holding(key=key, token="t", fence=1)], now=T)[0].answer == "ok"
        assert store.finish(key, "t", "succeeded", now=T)


@pytest.mark.parametrize(
    ("policy", "most"), [("allkeys-lru", 0), ("noeviction", 10**9), ("volatile-ttl", 10**9)]
)
def test_a_server_that_keeps_our_keys_will_do(plain, redis_url, policy, most):
    plain.config_set("maxmemory-policy", policy)
    plain.config_set("maxmemory", most)
    with opened(redis_url) as store:
        assert begin(store).won


def test_a_server_is_asked_seldom_what_it_is(plain, redis_url):
    with opened(redis_url) as store:
        plain.config_resetstat()
        begin(store)
        store.runs(), store.jobs(), store.nodes()
        assert plain.info("commandstats")["cmdstat_info"]["calls"] == 1


def test_a_full_server_is_told_and_can_be_looked_at(plain, redis_url):
    with opened(redis_url) as store:
        key = begin(store).key
        plain.config_set("maxmemory", 1)
        with pytest.raises(StoreUnusable, match="its memory is full .maxmemory.: give it more"):
            claim(store, slot=T + 1)
        assert [run.key for run in store.runs()] == [key]


def test_a_server_that_has_not_all_commands_is_told_in_its_own_words(tmp_path):
    server = RedisServer(tmp_path / "r", options=["--rename-command", "HSET", ""])
    try:
        told = refused(StoreUnusable, "cannot be used: Unknown Redis command", server.start().url(), begin)
        assert "user_script" not in told
    finally:
        server.close()


def test_a_database_that_is_not_there_is_told(redis_server):
    refused(StoreUnusable, "/99 cannot be used: it has no such database", redis_server.url(99))


def test_a_server_that_cannot_save_is_told(own_redis_server, tmp_path):
    with own_redis_server.client() as client, opened(own_redis_server.url()) as store:
        begin(store)
        client.config_set("appendonly", "no")
        client.config_set("save", "3600 1")
        (own_redis_server.folder / "dump.rdb").mkdir()
        client.bgsave()
        wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        with pytest.raises(StoreUnusable, match="it takes no writes because it cannot save to its disk"):
            claim(store, slot=T + 1)


def test_a_server_that_misses_its_replicas_is_away(own_redis_server):
    with own_redis_server.client() as client, opened(own_redis_server.url()) as store:
        begin(store)
        client.config_set("min-replicas-to-write", 1)
        for ask in (store.runs, lambda: claim(store, slot=T + 1)):
            with pytest.raises(StoreUnreachable, match="does not answer for now: .*replicas"):
                ask()
        client.config_set("min-replicas-to-write", 0)
        assert claim(store, slot=T + 1).answer == "overlap"


def test_a_server_that_loads_its_data_is_away(own_redis_server):
    with own_redis_server.client() as client:
        client.config_set("appendonly", "no")
        for number in range(30):  # it looks up from loading every two megabytes
            client.set(f"k{number}", random.randbytes(200_000))
        client.save()
    own_redis_server.stop()
    own_redis_server.close()
    own_redis_server.options = ["--appendonly", "no", "--key-load-delay", "100000"]
    own_redis_server._settle()
    own_redis_server.process.start()
    with opened(own_redis_server.url()) as store:
        assert "does not answer for now: " in wait_until(lambda: is_loading(said(store)))
        until_it_answers(store.runs)


def is_loading(said):
    return said if "loading" in said.lower() else None


def said(store):
    """What a store that is away says."""
    try:
        store.runs()
    except StoreUnreachable as away:
        return str(away)
    return ""


def replica_of(master, folder):
    """Start a replica that has what its master has."""
    with master.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)
    replica = RedisServer(folder / "replica", options=["--replicaof", "127.0.0.1", str(master.port)]).start()
    wait_until(lambda: linked(replica))
    return replica


def linked(replica):
    with replica.client() as client:
        return client.info("replication")["master_link_status"] == "up"


def test_a_replica_is_refused_even_to_who_only_looks(own_redis_server, tmp_path):
    replica = replica_of(own_redis_server, tmp_path)
    try:
        with opened(own_redis_server.url()) as store, opened(replica.url()) as wrong:
            begin(store)
            with own_redis_server.client() as client:
                assert client.wait(1, 10_000) == 1
            for ask in (wrong.runs, wrong.jobs, lambda: claim(wrong)):
                with pytest.raises(
                    StoreUnusable, match="it is a read-only replica: anarchon_store must name the"
                ):
                    ask()
            with replica.client() as client:
                client.replicaof("NO", "ONE")
            assert claim(wrong).answer == "won"  # it has the claim, and knows it by its nonce
    finally:
        replica.close()


# Sentinels --------------------------------------------------------------------------------------


@pytest.fixture
def watched(tmp_path):
    servers = WatchedRedis(tmp_path / "watched")
    try:
        yield servers.start()
    finally:
        servers.close()


@pytest.mark.slow
def test_a_failover_is_followed_and_nothing_is_forgotten(watched):
    with opened(watched.url(2)) as store, opened(watched.url(2)) as idle:
        key = begin(store).key
        fence = start(store, key, now=T).fence
        assert len(idle.runs()) == 1
        identity = store.identity
        with watched.master.client() as client:
            client.wait(1, 10_000)
        watched.master.kill()
        with pytest.raises(StoreUnreachable) as away:
            store.runs()
        assert str(away.value).startswith(f"{watched.url(2)}")
        until_it_answers(lambda: claim(store, slot=T + 1))
        assert watched.wait_for_failover()
        assert (identity, identity) == (
            until_it_answers(lambda: idle.renew([]) == [] and idle.identity),
            store.identity,
        )
        assert store.renew([Holding(key=key, token="t", fence=fence)], now=T)[0].answer == "ok"
        # A sentinel that is down is passed by, in time.
        watched.sentinels[0].kill()
        watched.sentinels[1].suspend()
        with opened(watched.url(2)) as other:
            assert len(until_it_answers(other.runs)) == 2


@pytest.mark.slow
def test_two_starts_of_one_run_have_not_one_fence_where_a_failover_loses_the_first(watched):
    (replica,) = watched.replicas
    with opened(watched.url()) as store:
        key = begin(store, now=int(time.time() * 1000)).key
        with watched.master.client() as client:
            client.wait(1, 10_000)
            replica.suspend()
            client.execute_command(
                "CLIENT", "KILL", "TYPE", "slave"
            )  # what comes now does not even reach its socket
        first = store.start(Start(key=key, token="t1", worker="w1"))
        watched.master.kill()
        replica.resume()
        watched.wait_for_failover()
        assert until_it_answers(lambda: store.run(key)).state == "claimed"
        second = store.start(Start(key=key, token="t2", worker="w2"))
        assert (first.attempt, second.attempt) == (1, 1)
        assert first.fence < second.fence
        # Whoever began first learns that it is not his any more.
        assert store.renew([Holding(key=key, token="t1", fence=first.fence)])[0].answer == "lost"
        assert not store.finish(key, "t1", "succeeded")


@pytest.mark.slow
def test_an_old_master_that_lives_on_as_a_replica_is_left(watched):
    (replica,) = watched.replicas
    with opened(watched.url()) as store:
        begin(store)
        with watched.sentinels[0].client() as client:
            client.sentinel_failover(WatchedRedis.MASTER)
        wait_until(lambda: role(watched.master) == "slave", 30)
        assert until_it_answers(lambda: claim(store, slot=T + 1)).answer == "overlap"
        with replica.client() as client:
            assert client.exists(f"{PREFIX}:run:scheduled:{T + 1}:report")


def role(server):
    with server.client() as client, contextlib.suppress(redis.ConnectionError):
        return client.info("replication")["role"]


def test_who_the_sentinels_name_still_and_is_a_replica_already_is_away_for_now(watched):
    with opened(watched.url()) as store:
        begin(store)
        with watched.master.client() as client:
            client.replicaof("127.0.0.1", watched.replicas[0].port)
        with pytest.raises(StoreUnreachable, match="another server is about to become the primary"):
            claim(store, slot=T + 1)


def test_sentinels_that_know_no_such_master_or_ask_for_a_password_are_told(watched):
    refused(
        StoreUnusable,
        "the sentinels know no master 'other': set another master_name",
        watched.url().replace("mymaster", "other"),
    )
    for sentinel in watched.sentinels:
        with sentinel.client() as client:
            client.execute_command("ACL", "SETUSER", "watcher", "on", ">hush", "allchannels", "+@all")
            client.execute_command("ACL", "SETUSER", "default", "off")
    told = refused(
        StoreUnusable,
        "the sentinel 127.0.0.1:.*: it does not know this user",
        watched.url(),
        sentinel_kwargs={"username": "watcher", "password": "wrong"},
    )
    assert "wrong" not in told
    with opened(watched.url(), sentinel_kwargs={"username": "watcher", "password": "hush"}) as store:
        assert begin(store).won


def test_what_is_no_sentinel_is_told(redis_url):
    refused(
        StoreUnusable,
        "the sentinel 127.0.0.1:.* cannot be used",
        redis_url.replace("redis:", "sentinel:") + "?master_name=m",
    )


def test_when_no_sentinel_answers_each_is_named():
    ports = free_port(), free_port()
    hosts = ";".join(f"sentinel://127.0.0.1:{port}" for port in ports)
    away = refused(StoreUnreachable, "no sentinel names a master that is up", f"{hosts}/0?master_name=m")
    assert all(f"127.0.0.1:{port}: " in away for port in ports)


# Clusters ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"), replicas=1)
    try:
        yield cluster.start()
    finally:
        cluster.close()


@pytest.fixture
def cluster(shared_cluster):
    """An empty cluster, all well."""
    for node in shared_cluster.nodes:
        node.start()
    wait_until(lambda: all(shared_cluster.is_well(node) for node in shared_cluster.nodes), 30)
    for node in shared_cluster.nodes:
        with node.client() as client:
            if client.info("replication")["role"] == "master":
                client.flushall()
                client.script_flush()
    return shared_cluster


def keys_of(node):
    with node.client() as client:
        return {key for key in client.scan_iter() if not key.startswith("k")}


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_cluster_has_all_keys_on_one_node_whoever_is_asked_first(cluster, first):
    hosts = [f"127.0.0.1:{cluster.masters[(first + n) % 3].port}" for n in range(3)]
    with opened("redis+cluster://" + ",".join(hosts)) as store:
        for job in ("report", "a{b}c", "}{"):
            key = begin(store, job).key
            start(store, key)
            store.finish(key, "t", "succeeded", now=T)
        assert len(store.runs()) == 3
    owner = cluster.owner("anarchon")
    assert len(keys_of(owner)) > 10
    assert all(key.startswith(f"{PREFIX}:") for key in keys_of(owner))
    assert [] == [node for node in cluster.masters if node is not owner and keys_of(node)]


def test_a_seed_that_is_down_is_passed_by(cluster):
    owner = cluster.owner("anarchon")
    alive = next(node for node in cluster.masters if node is not owner)
    with opened(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{alive.port}") as store:
        assert begin(store).won
    refused(
        StoreUnreachable,
        "does not answer: .*refused",
        f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}",
    )


def test_a_node_of_a_cluster_is_not_taken_for_a_server(cluster):
    owner = cluster.owner("anarchon")
    other = next(node for node in cluster.masters if node is not owner)
    line = "it is a node of a Redis Cluster: redis.cluster://host:port is right"
    # Valkey's clusters may have several databases.
    for url, said in ((other.url(), line), (owner.url(3), f"{line}|it has no such database")):
        with opened(url) as store, pytest.raises(StoreUnusable, match=said):
            store.runs()


def test_a_server_that_is_no_cluster_will_do_as_one(redis_server, redis_url):
    with opened(redis_url.replace("redis:", "redis+cluster:")) as store:
        assert begin(store).won


@pytest.fixture
def own_cluster(tmp_path):
    """A cluster of the test's own, without replicas."""
    cluster = RedisCluster(tmp_path / "cluster")
    try:
        yield cluster.start()
    finally:
        cluster.close()


def test_while_our_keys_move_to_another_node_nothing_is_done_on_either(own_cluster):
    cluster = own_cluster
    owner = cluster.owner("anarchon")
    target = next(node for node in cluster.masters if node is not owner)
    with opened(cluster.url()) as store, owner.client() as source, target.client() as other:
        begin(store)
        identity, slot = store.identity, source.execute_command("CLUSTER", "KEYSLOT", PREFIX)
        ids = cluster.id_of(owner), cluster.id_of(target)
        other.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        moving = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100)
        source.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *moving[:2])
        with pytest.raises(StoreUnreachable, match="for now: its keys are on their way to another node"):
            claim(store, slot=T + 1)
        with target.client() as client:
            assert client.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) == 2
        source.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *moving[2:])
        for node in (other, source):
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        assert until_it_answers(lambda: claim(store, slot=T + 1)).answer == "overlap"
        assert identity == store.identity
        assert {f"{PREFIX}:meta", f"{PREFIX}:run:scheduled:{T}:report"} <= keys_of(target)


def test_a_node_that_was_learnt_is_asked_where_all_of_the_url_are_gone(own_cluster):
    owner = own_cluster.owner("anarchon")
    other = next(node for node in own_cluster.masters if node is not owner)
    with Proxy(other.port) as seed, opened(f"redis+cluster://127.0.0.1:{seed.port}") as store:
        begin(store)
        seed.refuse()
        owner.kill()
        with pytest.raises(StoreUnreachable, match="refused"):
            store.jobs()
        owner.start()
        wait_until(lambda: own_cluster.is_well(owner), 30)
        assert [job.name for job in store.jobs()] == ["report"]


def test_a_few_nodes_are_learnt_and_those_of_the_url_stay():
    route = Cluster([("a", 1), ("b", 2)])
    for port in range(10, 20):
        route.moved(("", port))
    route.moved(("b", 2))
    assert route.tries == 2 + MOST_LEARNT + 1
    asked = []
    for _ in range(route.tries - 1):
        asked.append(route.where())
        route.lost()
    assert asked == [("b", 2), ("a", 1), *(("a", port) for port in range(15, 20))]
    assert route.where() == ("b", 2)


@pytest.mark.slow
def test_a_failover_in_a_cluster_is_followed(cluster):
    owner = cluster.owner("anarchon")
    with opened(cluster.url()) as store:
        begin(store)
        identity = store.identity
        with owner.client() as client:
            client.wait(1, 10_000)
        owner.kill()
        answer = until_it_answers(lambda: claim(store, slot=T + 1), 30)
        assert ("overlap", identity) == (answer.answer, store.identity)
        owner.start()


# Replicas that are waited for -------------------------------------------------------------------


def test_what_no_replica_acknowledged_is_unknown_until_it_is_asked_again(own_redis_server, tmp_path):
    replica = replica_of(own_redis_server, tmp_path)
    try:
        with opened(own_redis_server.url(), min_replicas_ack=1, min_replicas_timeout="1s") as store:
            assert begin(store).won
            replica.suspend()
            line = "of 1 replicas that are to have each write only 0 acknowledged this one within 1s"
            for _ in range(2):
                with pytest.raises(StoreUnreachable, match=line):
                    claim(store, "report", T + 1)
            assert len(store.runs()) == 2  # it was carried out, and who only looks waits for nobody
            replica.resume()
            answer = until_it_answers(lambda: claim(store, "report", T + 1))
            assert answer.answer == "overlap"
            assert claim(store, "report", T + 1, nonce="n2").answer == "taken"
        # Without the option nobody is waited for.
        replica.suspend()
        with opened(own_redis_server.url()) as store:
            assert claim(store, "report", T + 2).answer == "overlap"
    finally:
        replica.close()


def test_a_call_that_is_repeated_on_a_new_connection_waits_for_its_write_too(own_redis_server, tmp_path):
    replica = replica_of(own_redis_server, tmp_path)
    options = {"min_replicas_ack": 1, "min_replicas_timeout": "1s"}
    try:
        with opened(own_redis_server.url(), **options) as store:
            begin(store)
            replica.suspend()
            with pytest.raises(StoreUnreachable, match="acknowledged"):
                claim(store, slot=T + 1)
        # The replica is connected still, and has not the write.
        ask = lambda store: claim(store, slot=T + 1)  # noqa: E731
        refused(StoreUnreachable, "acknowledged", own_redis_server.url(), ask=ask, **options)
    finally:
        replica.close()


def test_waiting_for_replicas_is_no_round_trip_more(own_redis_server, tmp_path):
    replica = replica_of(own_redis_server, tmp_path)
    try:
        waits = {"min_replicas_ack": 1, "min_replicas_timeout": "1s"}  # for as long as a busy machine needs
        with Proxy(own_redis_server.port) as proxy, opened(url_of(proxy), **waits) as store:
            begin(store)
            before = proxy.requests
            claim(store, slot=T + 1)
            assert proxy.requests == before + 1
    finally:
        replica.close()


# Networks ---------------------------------------------------------------------------------------


def url_of(proxy, db=0):
    return f"redis://127.0.0.1:{proxy.port}/{db}"


@pytest.fixture
def proxy(redis_server, redis_url):
    with Proxy(redis_server.port) as proxy:
        yield proxy


def known(store):
    """Have each verb's script known to the server."""
    key = begin(store, "other").key
    start(store, key)
    store.renew([Holding(key=key, token="t", fence=1)], now=T)
    store.finish(key, "t", "succeeded", now=T)


def test_after_the_server_forgot_the_scripts_each_costs_one_round_trip_more_and_then_none(proxy, plain):
    with opened(url_of(proxy)) as store:
        begin(store)
        plain.script_flush()
        for expected in (2, 1, 1):
            before = proxy.answers
            claim(store)
            assert proxy.answers - before == expected
        assert proxy.accepted == 1


def test_a_call_whose_answer_was_dropped_is_answered_the_same_when_it_is_repeated(proxy):
    with opened(url_of(proxy)) as store:
        known(store)
        begin(store)
        key = RunKey("report", T)

        def twice(ask):
            proxy.drops, dropped = 1, proxy.dropped
            with pytest.raises(StoreUnreachable, match="does not answer"):
                ask()
            proxy.wait_for_drop(dropped + 1)
            return ask(), proxy.dropped - dropped

        store.finish(key, "no", "failed", now=T)
        won, drops = twice(lambda: claim(store, "other", T + 1, nonce="mine"))
        assert (won.answer, drops) == ("won", 1)
        assert claim(store, "other", T + 1, nonce="theirs").answer == "taken"
        started, _ = twice(lambda: start(store, key))
        assert started.attempt == 1
        assert started == start(store, key)
        assert twice(lambda: store.renew([Holding(key=key, token="t", fence=1)], now=T))[0][0].answer == "ok"
        assert twice(lambda: store.finish(key, "t", "succeeded", now=T))[0]
        assert store.run(key).attempt == 1


@pytest.mark.parametrize("way", ["requests_vanish", "answers_vanish"])
def test_a_black_hole_is_given_up_in_time_and_leaves_no_wrong_answer(proxy, way):
    with opened(url_of(proxy)) as store:
        begin(store)
        setattr(proxy, way, True)
        before = time.monotonic()
        with pytest.raises(StoreUnreachable, match="does not answer: Timeout"):
            claim(store, slot=T + 1)
        assert 2.5 < time.monotonic() - before < 3.5
        proxy.heal()
        assert claim(store, slot=T + 1).answer == "overlap"
        assert [job.name for job in store.jobs()] == ["report"]


def test_a_reset_costs_one_call_at_most(proxy):
    with opened(url_of(proxy)) as store:
        begin(store)
        proxy.reset()
        assert until_it_answers(lambda: claim(store, slot=T + 1), 1).answer == "overlap"


def test_a_server_that_is_gone_for_a_while_is_asked_once_per_call(proxy):
    with opened(url_of(proxy)) as store:
        begin(store)
        proxy.refuse()
        for _ in range(3):
            with pytest.raises(StoreUnreachable, match="refused|reset"):
                store.runs()
        proxy.accept()
        before = proxy.accepted
        assert len(store.runs()) == 1
        assert proxy.accepted == before + 1


@pytest.mark.slow
@pytest.mark.parametrize("delay", [1.4, 2.0])
def test_a_server_that_needs_seconds_for_each_answer_is_slow_but_there(proxy, plain, delay):
    """With a login and a database to choose, unknown scripts, and a question what server it is."""
    make_user(plain, "anarchon", "pw", RIGHTS)
    url = url_of(proxy, 2).replace("//", "//anarchon:pw@")
    with opened(url) as store:
        proxy.delay = delay
        calls = []

        def ask():
            before = time.monotonic()
            try:
                return begin_slowly()
            finally:
                calls.append(time.monotonic() - before)

        def begin_slowly():
            return store.register(BEAT, [Registration(job="report", hash="h")])

        assert until_it_answers(ask, 30)
        assert len(calls) <= 4
        assert max(calls) < 3.3
        before = time.monotonic()
        begin_slowly()
        assert time.monotonic() - before < delay + 0.5
        assert proxy.accepted == 1


def resolved(monkeypatch, *ports):
    """Have a name mean these ports of 127.0.0.1, the first one first."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
    others = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *how, **more: found if host == "cache.example" else
        others(host, *how, **more),
    )  # fmt: skip


def test_of_several_addresses_of_a_name_the_next_is_tried(proxy, monkeypatch):
    """As where localhost is ::1 too, and the server listens to 127.0.0.1 alone."""
    resolved(monkeypatch, free_port(), proxy.port)
    with opened("redis://cache.example:6379") as store:
        assert begin(store).won
    assert 1 == proxy.accepted


def test_where_no_address_of_a_name_lets_anybody_in_the_call_keeps_its_time(monkeypatch):
    with full_listener() as one, full_listener() as other, opened("redis://cache.example") as store:
        resolved(monkeypatch, one.getsockname()[1], other.getsockname()[1])
        before = time.monotonic()
        with pytest.raises(StoreUnreachable, match="connecting takes too long"):
            store.runs()
        assert 2.5 < time.monotonic() - before < 3.5


def test_a_name_without_an_address_is_away(monkeypatch):
    resolved(monkeypatch)
    refused(StoreUnreachable, "does not answer: .*cache.example has no address", "redis://cache.example")


def test_a_port_that_lets_nobody_in_is_given_up_in_time():
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(full_listener())
        store = stack.enter_context(opened(f"redis://127.0.0.1:{listener.getsockname()[1]}"))
        before = time.monotonic()
        with pytest.raises(StoreUnreachable, match="connecting takes too long"):
            store.runs()
        assert 2.5 < time.monotonic() - before < 3.5


@contextlib.contextmanager
def full_listener():
    """A port whose queue of connections is full: the next one waits for ever."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        try:
            for _ in range(4):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
                waiting.append(one)
            yield listener
        finally:
            for one in waiting:
                one.close()


def test_a_name_whose_look_up_hangs_is_given_up_in_time(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [over.wait(30)][1:])
    try:
        with opened("redis://cache.example:6379") as store:
            before = time.monotonic()
            with pytest.raises(StoreUnreachable, match="looking cache.example up takes too long"):
                store.runs()
            assert time.monotonic() - before < 3.5
    finally:
        over.set()


def test_a_name_that_nobody_has_is_away():
    for host in ("no-such-host.invalid", "a" * 64):
        refused(StoreUnreachable, f"does not answer: .*{host}", f"redis://{host}")


@pytest.mark.parametrize("version", ["5.0.14", "6.0.16", "6.1.99"])
def test_a_server_that_is_too_old_is_told(proxy, plain, version):
    mine = plain.info("server")["redis_version"]
    if len(mine) != len(version):
        version = version[: len(mine)]
    proxy.rewrites = {
        f"redis_version:{mine}".encode(): f"redis_version:{version}".encode().ljust(14 + len(mine))
    }
    refused(
        StoreUnusable, f"it is Redis {version}: 6.2 or newer is right, or Valkey", url_of(proxy), ask=begin
    )

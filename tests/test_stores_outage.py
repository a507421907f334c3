"""What a network, or a slow server, does to the calls of a store in a database: lost answers, cuts, holes.

The same for Redis is in test_redis_forms.py; whole nodes meet it in cluster/test_store_outages.py.
"""

from __future__ import annotations

import logging
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import product
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import event

from anarchon_celery.config import Config
from anarchon_celery.errors import StoreUnreachable
from anarchon_celery.protocol import (
    Holding,
    Offer,
    Redispatch,
    Registration,
    Release,
    Request,
    RunKey,
    Sent,
    Settle,
    Start,
    Started,
)
from anarchon_celery.stores import Store, open_store
from anarchon_celery.stores.dialects import LONGEST_CALL
from anarchon_celery.stores.sql import SqlStore
from anarchon_celery.stores.transactions import REPEATS
from tests.processes import wait_until
from tests.proxy import Proxy
from tests.servers import free_port
from tests.test_stores_sql import BEAT, HOUR, MINUTE, SECOND, T, begin, claim, refused, register, statements

KINDS = ("postgresql", "mariadb")

#: What ends a transaction, as it is sent: PostgreSQL's begins with ``READ COMMITTED``.
COMMIT = {"postgresql": b"COMMIT\0", "mariadb": b"\x03COMMIT"}


class Site:
    """A server with nothing in its tables, and a proxy before it."""

    def __init__(self, kind: str, request: pytest.FixtureRequest) -> None:
        self.kind = kind
        self.server = request.getfixturevalue(f"{kind}_server")
        for prefix in ("anarchon", "undisturbed"):
            self.server.empty(prefix)
        self.proxy = Proxy(self.server.port)

    @property
    def url(self) -> str:
        """The way by the proxy."""
        return re.sub(r":\d+/", f":{self.proxy.port}/", self.server.url())

    def open(self, **how: Any) -> SqlStore:
        """A store by the proxy."""
        return SqlStore(self.url, **how)

    def aside(self, **how: Any) -> SqlStore:
        """A store that does not meet the proxy."""
        return SqlStore(self.server.url(), **how)


@pytest.fixture(params=KINDS)
def site(request) -> Iterator[Site]:
    found = Site(request.param, request)
    with found.proxy:
        yield found


@pytest.fixture
def sites(request) -> Iterator[list[Site]]:
    """All of them, for what takes long: side by side."""
    found = [Site(kind, request) for kind in KINDS]
    yield found
    for one in found:
        one.proxy.close()


@pytest.fixture(autouse=True)
def one_line_each(caplog) -> Iterator[None]:
    """Whatever happens, it is told by an exception of one line: nobody logs a traceback beside it."""
    yield
    logged = [record for phase in ("setup", "call") for record in caplog.get_records(phase)]
    assert [record.getMessage() for record in logged if record.levelno >= logging.ERROR] == []


@pytest.fixture
def proxy(site) -> Proxy:
    return site.proxy


@pytest.fixture
def store(site) -> Iterator[SqlStore]:
    """Connected, by the proxy; it knows the job."""
    with closing(site.open()) as opened:
        register(opened, "report")
        yield opened


def side_by_side(do: Callable[..., Any], *asked: list[Any]) -> list[Any]:
    """Do something for all combinations at once, and return what came of each."""
    some = list(product(*asked))
    with ThreadPoolExecutor(len(some)) as pool:
        return list(pool.map(lambda one: do(*one), some))


def took(ask: Callable[[], Any]) -> tuple[float, Any]:
    """How long a call takes, and its answer, or what was raised instead."""
    began = time.monotonic()
    try:
        answer = ask()
    except StoreUnreachable as error:
        answer = error
    return time.monotonic() - began, answer


# Answers that are dropped after the server carried the call out ---------------------------------

KEY, NEXT = RunKey("report", T), RunKey("report", T + MINUTE)
LATER = T + HOUR


def sent(dispatch: int, now: int) -> Callable[[Store], Any]:
    one = Sent(key=KEY, dispatch=dispatch, task_id="i", supervised=True, start_timeout=MINUTE)
    return lambda store: store.sent([one], now=now)


def start(token: str, now: int, retries: int = 0) -> Callable[[Store], Any]:
    return lambda store: store.start(Start(key=KEY, token=token, worker="w", retries=retries), now=now)


def claimed(slot: int, nonce: str, **how: Any) -> Callable[[Store], Any]:
    offer = Offer(job="report", slots=(slot,), **how)
    return lambda store: store.claim(nonce, [offer], nonce=nonce, now=max(slot, LATER))


SEEN = Redispatch(key=KEY, state="queued", dispatch=1, deadline=LATER + MINUTE + SECOND)

ASKED = Request(job="report", by="anna", arguments="[[1], null]")

#: The life of a run, with all that somebody may call on the way; more than one ask for the same thing.
LIFE: dict[str, Callable[[Store], Any]] = {
    "register": lambda store: store.register(BEAT, [Registration(job="report", hash="h")], now=T - HOUR),
    "claim": claimed(T, "mine"),
    "claim, another": claimed(T, "theirs"),
    "sent": sent(1, LATER + SECOND),
    "redispatch": lambda store: store.redispatch("mine", [SEEN], nonce="m", now=SEEN.deadline),
    "redispatch, another": lambda store: store.redispatch("theirs", [SEEN], nonce="o", now=SEEN.deadline),
    "sent again": sent(2, SEEN.deadline + 1),
    "start": start("t", SEEN.deadline + 2),
    "start, a doubled message": start("u", SEEN.deadline + 3),
    "renew": lambda store: store.renew([Holding(key=KEY, token="t", fence=1)], now=SEEN.deadline + 4),
    "requeue": lambda store: store.requeue(
        KEY, "t", delay=0, retries=1, start_timeout=MINUTE, now=SEEN.deadline + 5
    ),
    "start the retry": start("v", SEEN.deadline + 6, retries=1),
    "claim the next": claimed(NEXT.slot, "next", overlap="queue"),
    "finish": lambda store: store.finish(KEY, "v", "succeeded", now=SEEN.deadline + 7),
    "pause": lambda store: store.pause("report", reason="r", by="anna", now=SEEN.deadline + 8),
    "resume": lambda store: store.resume("report", now=SEEN.deadline + 9),
    "claim a third": claimed(LATER + HOUR, "third", overlap="allow"),
    "release": lambda store: store.release(
        [Release(key=RunKey("report", LATER + HOUR), nonce="third", delay=9)], now=LATER + HOUR
    ),
    "settle": lambda store: store.settle(
        [Settle(key=RunKey("report", LATER + HOUR), outcome="published", reason="r")], now=LATER + HOUR + 9
    ),
    "trigger": lambda store: store.trigger(ASKED, nonce="a", now=LATER + 2 * HOUR),
    "trigger, another": lambda store: store.trigger(ASKED, nonce="o", now=LATER + 2 * HOUR),
    "backfill": lambda store: store.backfill(ASKED, [T, NEXT.slot], nonce="b", now=LATER + 2 * HOUR),
    "cancel": lambda store: store.cancel(
        RunKey("report", LATER + 2 * HOUR, "manual"), reason="r", now=LATER + 2 * HOUR + 1
    ),
}


def what_is_there(store: Store) -> Any:
    return store.runs(limit=1000), store.jobs()


def undisturbed(site: Site) -> tuple[dict[str, Any], Any]:
    """What the calls answer where nothing is lost, and what is there in the end."""
    with closing(site.aside(prefix="undisturbed")) as store:
        return {name: call(store) for name, call in LIFE.items()}, what_is_there(store)


def test_a_call_whose_answer_was_dropped_is_answered_all_the_same(site):
    """Each is asked again at once, by the store itself: the call was carried out, and knows itself.

    But for ``resume``, which has no nonce: the job is not paused any more.
    """
    expected, in_the_end = undisturbed(site)
    with closing(site.aside()) as other, closing(site.open()) as store:
        register(other)
        store.jobs()
        for name, call in LIFE.items():
            before, trap = site.proxy.accepted, site.proxy.trap(COMMIT[site.kind])
            answer = call(store)
            assert (name, trap.sprung, site.proxy.accepted - before) == (name, 1, 1)
            assert (name, answer) == (name, expected[name] if name != "resume" else False)
        assert what_is_there(store) == in_the_end


def test_a_call_whose_answers_are_all_dropped_is_answered_the_same_when_the_caller_asks_again(site):
    expected, in_the_end = undisturbed(site)
    with closing(site.aside()) as other, closing(site.open()) as store:
        register(other)
        store.jobs()
        for name, call in LIFE.items():
            before, trap = site.proxy.accepted, site.proxy.trap(COMMIT[site.kind], times=REPEATS + 1)
            with refused(StoreUnreachable, store.shown):
                call(store)
            assert (name, trap.sprung) == (name, REPEATS + 1)
            assert site.proxy.accepted - before <= REPEATS + 1
            assert (name, call(store)) == (name, expected[name] if name != "resume" else False)
        assert what_is_there(store) == in_the_end


@pytest.mark.parametrize("loses", ["request", "answer"])
def test_a_call_may_be_cut_off_at_each_of_its_messages(site, loses):
    """On the way there or back: it is asked again on a new connection, and what was half done is gone."""
    verbs = ("claim", "start", "renew", "finish")
    with closing(site.aside()) as other, closing(site.open()) as store:
        register(other, "report")
        store.jobs()
        hit = 0
        for at, (verb, message) in enumerate(product(verbs, range(1, 9))):
            slot, key = T + at, RunKey("report", T + at)
            begun = Start(key=key, token="t", worker="w", overlap="allow")
            calls: dict[str, Callable[[], Any]] = {
                "claim": partial(claim, store, "report", slot=slot, now=slot, overlap="allow"),
                "start": partial(store.start, begun, now=LATER),
                "renew": partial(store.renew, [Holding(key=key, token="t", fence=1)], now=LATER),
                "finish": partial(store.finish, key, "t", "succeeded", now=LATER),
            }
            answers = {}
            for name in verbs:
                trap = site.proxy.trap(every=message, loses=loses) if name == verb else None
                answers[name] = calls[name]()
                hit += 0 if trap is None else int(trap.sprung)
                site.proxy.traps = []
            assert (answers["claim"], answers["renew"][0].answer, answers["finish"]) == (["won"], "ok", True)
            assert isinstance(answers["start"], Started) and answers["start"].attempt == 1
        assert hit >= 4 * len(verbs)
        assert {(run.state, run.attempt) for run in other.runs(limit=100)} == {("succeeded", 1)}


# Who does not answer ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_black_hole_is_given_up_in_time_and_leaves_no_wrong_answer(sites):
    """Within a call's five seconds, on a connection that there is, and while one is made."""

    def fall_in(site: Site, way: str, is_connected: bool) -> None:
        with Proxy(site.server.port) as proxy, closing(SqlStore(url_by(proxy, site))) as store:
            if is_connected:
                store.jobs()
            setattr(proxy, way, True)
            seconds, error = took(partial(claim, store, "report", nonce=f"{way} {is_connected}"))
            assert isinstance(error, StoreUnreachable)
            assert seconds < LONGEST_CALL + 0.5
            assert proxy.accepted <= 2  # one more where the server ends a transaction that fell silent
            proxy.heal()
            until_it_answers(store.jobs, 9)  # the next call may wait for a connection begun in the hole
            assert [job.name for job in store.jobs()] == ["report"]

    for site in sites:
        with closing(site.aside()) as store:
            register(store, "report")
    side_by_side(fall_in, sites, ["requests_vanish", "answers_vanish"], [False, True])
    for site in sites:
        with closing(site.aside()) as store:
            assert store.runs() == []


def url_by(proxy: Proxy, site: Site) -> str:
    return re.sub(r":\d+/", f":{proxy.port}/", site.server.url())


def in_the_middle_of_a_step(store: SqlStore, act: Callable[[], None]) -> None:
    """Act whenever it comes to its runs: the job is locked by then."""

    def look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "anarchon_runs" in statement:
            act()

    event.listen(store._engine, "before_cursor_execute", look)


@pytest.mark.slow
def test_a_node_that_vanishes_in_the_middle_of_a_step_holds_its_job_for_some_seconds(sites):
    """Nothing tells the server that it is gone: no end of the connection, no reset."""

    def vanish(site: Site) -> None:
        with closing(site.aside()) as other, closing(site.open()) as store:
            register(other, "report")
            store.jobs()

            def fall_silent() -> None:
                site.proxy.requests_vanish = site.proxy.answers_vanish = True

            in_the_middle_of_a_step(store, fall_silent)
            with ThreadPoolExecutor(1) as pool:
                gone = pool.submit(took, lambda: claim(store, "report", nonce="gone"))
                wait_until(lambda: site.proxy.requests_vanish)
                # Who waits for the job outlives the server's patience with who has it.
                seconds, answer = took(lambda: claim(other, "report", nonce="here"))
                assert (answer, isinstance(gone.result(10)[1], StoreUnreachable)) == (["won"], True)
            assert seconds > 1, "the job was not locked"

    side_by_side(vanish, sites)


@pytest.mark.slow
def test_a_node_that_stands_still_in_the_middle_of_a_step_does_it_again(sites):
    """The server has ended the transaction meanwhile, and closed the connection."""

    def stand_still(site: Site) -> None:
        with closing(site.aside()) as other, closing(site.open()) as store:
            register(other, "report")
            store.jobs()
            stood: list[float] = []

            def stand() -> None:
                if not stood:
                    stood.append(2.2)  # and of the 5 s of a call more than half is left
                    time.sleep(stood[0])

            in_the_middle_of_a_step(store, stand)
            assert took(lambda: claim(store, "report"))[1] == ["won"]
            assert stood

    side_by_side(stand_still, sites)


def test_a_look_up_that_hangs_is_given_up_in_time(site, monkeypatch):
    over = threading.Event()
    look_up = socket.getaddrinfo

    def hang(host: Any, *how: Any, **more: Any) -> Any:
        if host == "db.example":
            over.wait(30)
            raise socket.gaierror("no such name")
        return look_up(host, *how, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    threads = threading.active_count()
    with closing(SqlStore(site.url.replace("127.0.0.1", "db.example"), within=0.5)) as store:
        try:
            for _ in range(3):
                seconds, error = took(store.jobs)
                assert "connecting takes too long" in str(error)
                assert 0.4 < seconds < 0.8
                assert threading.active_count() == threads + 1  # the same one is waited for
        finally:
            over.set()


# Servers that are slow --------------------------------------------------------------------------


def until_it_answers(ask: Callable[[], Any], most: int) -> list[float]:
    """Ask until there is an answer; return how long each call took."""
    calls = []
    while True:
        seconds, answer = took(ask)
        calls.append(seconds)
        if not isinstance(answer, StoreUnreachable):
            return calls
        assert len(calls) < most, answer


@pytest.mark.slow
def test_a_server_that_needs_a_third_of_a_second_for_each_statement_is_slow_but_there(sites):
    def ask_slowly(site: Site) -> None:
        with closing(site.aside()) as other:
            register(other, "report")
        site.proxy.delay = 0.3
        with closing(site.open()) as store:
            calls = until_it_answers(lambda: claim(store, "report"), 4)
            calls.append(took(partial(claim, store, "report", slot=T + 1, now=T + 1))[0])
            assert max(calls) < LONGEST_CALL + 0.5
            assert calls[-1] < 3
            assert site.proxy.accepted == 1
        with closing(site.aside()) as other:
            assert len(other.runs()) == 2

    side_by_side(ask_slowly, sites)


@pytest.mark.slow
def test_a_server_that_needs_two_seconds_for_each_statement_is_refused_with_nothing_half_done(sites):
    def ask_in_vain(site: Site, is_connected: bool) -> None:
        with Proxy(site.server.port) as proxy, closing(SqlStore(url_by(proxy, site))) as store:
            if is_connected:
                store.jobs()
            proxy.delay = 2.0
            seconds, error = took(partial(claim, store, "report"))
            assert isinstance(error, StoreUnreachable)
            assert re.search("too slowly|connection timeout|idle-in-transaction timeout|Lost", str(error))
            assert seconds < LONGEST_CALL + 0.5

    for site in sites:
        with closing(site.aside()) as store:
            register(store, "report")
    side_by_side(ask_in_vain, sites, [False, True])
    for site in sites:
        with closing(site.aside()) as store:
            assert store.runs() == []
            assert claim(store, "report") == ["won"]


def test_a_verb_of_two_transactions_is_one_call(site):
    with closing(site.aside()) as other, closing(site.open(within=1.0)) as store:
        (lease,) = begin(other, "report")
        other.finish(lease.key, "t", "succeeded", now=T)
        until_it_answers(store.jobs, 9)
        site.proxy.delay = 0.13
        for call in (
            partial(store.expired, BEAT, 9, now=T + HOUR),
            partial(store.prune, history=1, most=1, now=T + HOUR),
        ):
            seconds, error = took(call)
            # Said between two statements, or of the one that was under way.
            assert re.search("too slowly|no answer within|timed out", str(error))
            assert isinstance(error, StoreUnreachable)
            assert seconds < 1.7, "nearly two calls"


def test_what_would_be_committed_too_late_is_not_committed(site):
    """Else a slow server would win slots that nobody hears of."""
    with closing(site.aside()) as other, closing(site.open(within=1.0)) as store:
        register(other, "report")
        until_it_answers(store.jobs, 9)
        with statements(store) as seen:
            assert claim(store, "report", slot=T - 1, overlap="allow") == ["won"]
        last = iter(range(len(seen)))

        def slow_down(*_: Any) -> None:
            if next(last) == len(seen) - 1:
                site.proxy.delay = 0.85

        event.listen(store._engine, "before_cursor_execute", slow_down)
        with refused(StoreUnreachable, "too slowly", "1 s"):
            claim(store, "report", overlap="allow")
        site.proxy.heal()
        assert [run.slot for run in other.runs()] == [T - 1]
        assert claim(other, "report", nonce="o", overlap="allow") == ["won"]


def test_a_call_sends_its_statements_and_one_commit(site, store):
    store.jobs()
    before = site.proxy.requests
    with statements(store) as seen:
        claim(store, "report")
    assert site.proxy.requests - before == len(seen) + 1


def test_the_tables_are_made_on_a_slow_server_too(site):
    """That may take longer than a call. The delay is to the call as 0.3 s to five seconds."""
    for name in ("meta", "jobs", "runs", "nodes"):
        with suppress(Exception):
            site.server.run(f"DROP TABLE slow_{name}")
    site.proxy.delay = 0.06
    with closing(site.open(prefix="slow", within=1.0)) as store:
        until_it_answers(lambda: register(store, "report"), 4)
        assert [job.name for job in store.jobs()] == ["report"]


# No storm ---------------------------------------------------------------------------------------


def test_a_server_that_is_gone_is_asked_a_few_times_per_call(site, store):
    site.proxy.server = ("127.0.0.1", free_port())
    site.proxy.reset()
    before, calls = site.proxy.accepted, 20
    for _ in range(calls):
        with refused(StoreUnreachable, store.shown):
            store.expired(BEAT, 9)
    assert site.proxy.accepted - before <= calls * (REPEATS + 1)
    site.proxy.server = ("127.0.0.1", site.server.port)
    before = site.proxy.accepted
    assert claim(store, "report") == ["won"]
    assert site.proxy.accepted == before + 1


def test_connections_that_died_while_nobody_looked_cost_no_call(site, store):
    with ThreadPoolExecutor(5) as pool:
        together = threading.Barrier(5)

        def look(_: int) -> Any:
            with store._reading.begin():
                together.wait(10)

        list(pool.map(look, range(5)))
    before = site.proxy.accepted
    site.proxy.reset()
    assert claim(store, "report") == ["won"]
    assert site.proxy.accepted == before + 1


@pytest.mark.parametrize("port", [25006, 28000, 40001])
def test_a_port_is_not_taken_for_a_code_of_an_error(port, site):
    """25006 is PostgreSQL's code for a server that is read-only, 28000 for a wrong login."""
    away = re.sub(r":\d+/", f":{port}/", site.url)
    with closing(SqlStore(away)) as store, refused(StoreUnreachable, str(port)):
        store.jobs()


# The rule: half the claim timeout, and no more than the store's own bound -------------------------


def store_of(url: str, **settings: Any) -> Store:
    app = Celery("proj", set_as_current=False)
    app.conf.update({"anarchon_store": url} | settings)
    try:
        return Config.of(app).open_store()
    finally:
        app.close()


def test_a_call_ends_within_half_the_claim_timeout_on_each_store(sites, redis_server, redis_url):
    """Also where that is shorter than a call may take otherwise: 3 s with Redis, 5 s with the others."""

    def fall_in(url: str, port: int) -> None:
        with Proxy(port) as proxy:
            by_proxy = url.replace(f":{port}/", f":{proxy.port}/")
            with closing(store_of(by_proxy, anarchon_claim_timeout=2)) as store:
                until_it_answers(partial(register, store, "report"), 9)  # type: ignore[arg-type]
                proxy.requests_vanish = True
                seconds, error = took(lambda: store.renew([Holding(key=KEY, token="t", fence=1)]))
                assert isinstance(error, StoreUnreachable)
                assert 0.8 < seconds < 1.6

    asked = [(redis_url, redis_server.port)] + [(site.server.url(), site.server.port) for site in sites]
    side_by_side(lambda one: fall_in(*one), asked)


@pytest.mark.parametrize(("timeout", "longest"), [("2s", 0.6), ("10s", 3.0)])
def test_a_file_that_somebody_else_has_is_given_up_in_time(tmp_path, timeout, longest):
    url = f"sqlite:///{tmp_path}/jobs.db"
    with closing(open_store(url)) as store:
        register(store, "report")
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as busy:
        busy.execute("BEGIN EXCLUSIVE")
        with closing(store_of(url, anarchon_claim_timeout=timeout)) as store:
            seconds, error = took(lambda: claim(store, "report"))
            assert "locked" in str(error)
            assert longest - 0.1 < seconds < longest + 0.5
        if timeout == "2s":  # somebody's own patience is not longer than the call
            with closing(open_store(f"{url}?timeout=30", within=1.0)) as store:
                assert 0.9 < took(lambda: claim(store, "report"))[0] < 1.5

"""THE contract on every store there is, and what is asked of one kind of store, or of many processes at once.

The contract's tests are the package's: ``anarchon_celery/testing/contract``.
"""

from __future__ import annotations

import multiprocessing
import re
import secrets
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import pytest

from anarchon_celery.errors import StoreError, StoreUnreachable, StoreUnusable
from anarchon_celery.folding import FOLD_AFTER
from anarchon_celery.protocol import (
    Holding,
    Offer,
    Registration,
    RunKey,
    Sent,
    Start,
    Started,
)
from anarchon_celery.stores import Store, memory, open_store
from anarchon_celery.testing.contract import StoreContract
from anarchon_celery.testing.contract.scenes import (
    KEEP,
    housekeeping,
    told,
)
from anarchon_celery.testing.contract.story import (
    BEAT,
    DAY,
    HOUR,
    MINUTE,
    OTHER,
    SECOND,
    Story,
    T,
    answers,
)
from tests.servers import free_port

KINDS = ("memory", "sqlite", "postgresql", "mariadb", "redis")


#: Tables of databases that run already are used again and again: so many stores at once.
PREFIXES = cycle([f"site-{number}" for number in range(6)])

# The stage ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A place for a store; who opens it twice has two handles on one store."""

    kind: str
    url: str
    prefix: str

    def open(self) -> Store:
        return open_store(self.url, prefix=self.prefix)


def new_site(kind: str, request: pytest.FixtureRequest) -> Site:
    """A place that nobody has used."""
    name = secrets.token_hex(4)
    if kind == "redis":
        return Site(kind, request.getfixturevalue("redis_server").url(), f"test-{name}")
    if kind in ("postgresql", "mariadb"):
        server, prefix = request.getfixturevalue(f"{kind}_server"), next(PREFIXES)
        server.empty(prefix, f"{prefix}-other")
        return Site(kind, server.store_url(), prefix)
    if kind == "sqlite":
        return Site(kind, f"sqlite:///{request.getfixturevalue('tmp_path')}/{name}.db", "anarchon")
    return Site(kind, f"memory://{name}", "anarchon")


@pytest.fixture(params=KINDS)
def site(request):
    """Where the test's store is; a test of one kind names it by ``parametrize(..., indirect=True)``."""
    return new_site(request.param, request)


@pytest.fixture
def store(site):
    opened = site.open()
    yield opened
    opened.close()


@pytest.fixture
def story(store):
    """A job that was registered an hour before its slot T; it is T now."""
    told = Story(store)
    told.register(now=T - HOUR)
    return told


# the contract -------------------------------------------------------------------------------------


class TestStores(StoreContract):
    @pytest.fixture
    def make_store(self, site):
        def make(prefix: str = "") -> Store:
            return (replace(site, prefix=f"{site.prefix}-other") if prefix else site).open()

        return make

    @pytest.fixture
    def wipe_store(self, site, request):
        return lambda: wipe(site, request)


def wipe(site: Site, request: pytest.FixtureRequest) -> None:
    if site.kind == "redis":
        request.getfixturevalue("redis_server").flush()
    elif site.kind in ("postgresql", "mariadb"):
        request.getfixturevalue(f"{site.kind}_server").empty(site.prefix)
    elif site.kind == "sqlite":
        for path in request.getfixturevalue("tmp_path").glob("*.db*"):
            path.unlink()
    else:
        memory._ROOMS[site.url, site.prefix].wipe()


# folding ------------------------------------------------------------------------------------------


def a_months_slots() -> list[tuple[int, ...]]:
    """What came due in each minute: for a quarter of an hour a slot each second, then one every hour."""
    minutes = range(T + MINUTE, T + HOUR // 4, MINUTE)
    seconds = [tuple(range(minute - MINUTE + SECOND, minute + 1, SECOND)) for minute in minutes]
    return seconds + [(at,) for at in range(T + HOUR, T + 30 * DAY, HOUR)]


@pytest.fixture
def busy(story):
    """Its run of slot T goes on, so that slots are skipped."""
    story.begin()
    return story


@pytest.mark.slow
@pytest.mark.parametrize("site", ["memory", "sqlite"], indirect=True)
def test_a_job_that_is_skipped_for_a_month_leaves_a_handful_of_rows(busy):
    slots, most = a_months_slots(), 0
    for some in slots:
        busy.now = some[-1]
        assert {"overlap"} == set(answers(busy.offer(*some, nonce=str(some[0]))))
        busy.store.prune(**KEEP, now=busy.now)
        if busy.now < T + HOUR:
            most = max(most, len(told(busy)))
    assert housekeeping(busy) > 0
    count = sum(map(len, slots))
    assert [("running", 1), ("skipped", count)] == [row[1:3] for row in told(busy)]
    assert most <= 2 + (FOLD_AFTER + MINUTE) // SECOND, "no more than what is too young"


def live_a_month(store: Store, jobs: int = 50) -> Iterator[list[int]]:
    """Of each job a run a day, and three that are skipped meanwhile; yield what each prune took that day."""
    names = [f"job {number:03}" for number in range(jobs)]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T - DAY)
    for day in range(T, T + 30 * DAY, DAY):
        slots = tuple(range(day, day + 4 * MINUTE, MINUTE))
        offers = [Offer(job=name, slots=slots) for name in names]
        store.claim("one:1", offers, nonce=f"n{day}", now=slots[-1])
        published = [Sent(key=RunKey(name, day), dispatch=1, task_id="i", supervised=False) for name in names]
        store.sent(published, now=slots[-1])
        gone = [1]
        while gone[-1]:
            gone.append(store.prune(history=7 * DAY, most=12, limit=100, now=day + HOUR))
        yield gone[1:]


@pytest.fixture
def patient(monkeypatch):
    """However slow the machine, a housekeeping looks at all runs before it is over."""
    monkeypatch.setattr("anarchon_celery.stores.redis._LOOK_FOR", 60)
    monkeypatch.setattr("anarchon_celery.stores.records.LOOK_FOR", 60)


@pytest.mark.slow
def test_a_store_that_is_used_for_a_month_stays_small(store, patient):
    """Twelve rows of each job: of six days, else it would be seven."""
    for day, gone in enumerate(live_a_month(store)):
        assert max(gone) <= 100
        assert sum(gone) == 50 * (2 if day < 6 else 4)
        assert len(store.runs(limit=1_000_000)) == 50 * 2 * min(day + 1, 6)
    assert len(store.jobs()) == 50


# a store that cannot be used ----------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_unreachable():
    store = open_store(f"redis://:secret@127.0.0.1:{free_port()}/0")
    with pytest.raises(StoreUnreachable, match=re.escape(store.shown)) as error:
        store.register(BEAT, [], now=T)
    assert "secret" not in store.shown + str(error.value)
    store.close()


def test_a_file_that_cannot_be_opened_is_told(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/nobody/made/this.db")
    with pytest.raises(StoreError, match=re.escape("this.db")):
        store.register(BEAT, [], now=T)
    store.close()


def test_an_unknown_scheme_is_told_with_the_known_ones():
    with pytest.raises(StoreUnusable, match="'mongodb': known are memory, sqlite, postgresql"):
        open_store("mongodb://localhost/0")


# whose clock --------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["postgresql", "mariadb", "redis"], indirect=True)
def test_the_clock_of_a_server_judges_not_the_clients(store, monkeypatch):
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() - 86_400)
    store.register(BEAT, [Registration(job="report", hash="h")])
    assert abs(store.jobs()[0].seen - right() * 1000) < HOUR


# many at once -------------------------------------------------------------------------------------


RACERS, RACED = 8, 50


#: Where the processes of one race wait for each other.
_barrier: Any = None


def forkserver() -> Any:
    """Where processes come from: forks of one without threads or connections, all imports made."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    return server


def get_ready(barrier) -> None:
    global _barrier
    _barrier = barrier
    warnings.simplefilter("error")


def race(site: Site, racer: int) -> tuple[list[str], list[str], list[int]]:
    """Claim 50 slots of one job and a slot of 50 jobs, start them all; return both, and the job's fences."""
    store, nonce, now = site.open(), f"racer-{racer}", T + RACED
    store.expired(BEAT, 10, now=T)
    won, slots, jobs = [], range(T, T + RACED), [f"job {number}" for number in range(RACED)]
    _barrier.wait(60)
    for slot in slots:
        offer = Offer(job="report", slots=(slot,), overlap="allow")
        won += store.claim(nonce, [offer], nonce=nonce, now=now)
    won += store.claim(nonce, [Offer(job=name, slots=(T,)) for name in jobs], nonce=nonce, now=now)
    _barrier.wait(60)
    keys = [*(RunKey("report", slot) for slot in slots), *(RunKey(name, T) for name in jobs)]
    begun = [store.start(Start(key=key, token=nonce, worker=nonce), now=now) for key in keys]
    store.close()
    return (
        [str(claim.key) for answer in won for claim in answer.claims if claim.won],
        [str(key) for key, answer in zip(keys, begun, strict=True) if isinstance(answer, Started)],
        [answer.fence for answer in begun[:RACED] if isinstance(answer, Started)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_of_many_processes_at_one_instant_exactly_one_wins_each_slot(kind, request):
    site = new_site(kind, request)
    store = site.open()
    names = ["report", *(f"job {number}" for number in range(RACED))]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T - HOUR)
    server = forkserver()
    with server.Pool(RACERS, get_ready, (server.Barrier(RACERS),)) as pool:
        raced = pool.starmap_async(race, [(site, racer) for racer in range(RACERS)], chunksize=1).get(120)
        pool.close()
        pool.join()
    won, begun, fences = (sorted(one for racer in raced for one in racer[part]) for part in range(3))
    everyone = sorted(str(run.key) for run in store.runs(limit=1000))
    assert len(everyone) == 2 * RACED
    assert everyone == won
    assert everyone == begun
    assert list(range((T + RACED) * 1000, (T + RACED) * 1000 + RACED)) == fences
    store.close()


ROUNDS = 20


def rounds(site: Site, racer: int) -> tuple[list[list[str]], float]:
    """Claim 50 jobs' slots of one instant, in one call, 20 times; live the life of what was won meanwhile.

    Return what was won in each round, and the seconds that claims took.
    """
    store, name, names = site.open(), f"racer-{racer}", [f"job {number}" for number in range(RACED)]
    store.expired(BEAT, 10, now=T)
    won, spent = [], 0.0
    for slot in range(T, T + ROUNDS):
        _barrier.wait(60)
        began = time.perf_counter()
        offers = [Offer(job=job, slots=(slot,), overlap="allow") for job in names]
        claimed = store.claim(name, offers, nonce=f"{name}-{slot}", now=slot)
        spent += time.perf_counter() - began
        keys = [claim.key for answer in claimed for claim in answer.claims if claim.won]
        won.append([str(key) for key in keys])
        store.sent([Sent(key=key, dispatch=1, task_id=name, supervised=True) for key in keys], now=slot)
        asked = [Start(key=key, token=name, worker=name, overlap="allow") for key in keys[:3]]
        starts = [store.start(one, now=slot) for one in asked]
        held = [Holding(key=key, token=name, fence=one.fence) for key, one in zip(keys, starts, strict=False)]
        assert {"ok"} >= {one.answer for one in store.renew(held, now=slot)}
        assert all(store.finish(one.key, name, "succeeded", now=slot) for one in held)
        store.register(OTHER, [Registration(job=job, hash="h") for job in names], now=slot)
        store.prune(history=HOUR, most=5, limit=20, now=slot)
    store.close()
    return won, spent


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_twenty_rounds_of_many_processes_have_one_winner_each(kind, request):
    site = new_site(kind, request)
    store, names = site.open(), [f"job {number}" for number in range(RACED)]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T - HOUR)
    deadlocks = deadlocks_of(kind, request)
    server = forkserver()
    with server.Pool(RACERS, get_ready, (server.Barrier(RACERS),)) as pool:
        raced = pool.starmap_async(rounds, [(site, racer) for racer in range(RACERS)], chunksize=1).get(170)
        pool.close()
        pool.join()
    expected = [sorted(str(RunKey(name, slot)) for name in names) for slot in range(T, T + ROUNDS)]
    assert expected == [sorted(key for won, _ in raced for key in won[round]) for round in range(ROUNDS)]
    spent = sum(spent for _, spent in raced) / RACERS / ROUNDS / RACED
    with request.getfixturevalue("capsys").disabled():
        print(f"\n{kind}: {spent * 1000:.2f} ms a slot, {RACERS} processes claim {RACED} at one instant")
    assert deadlocks_of(kind, request) == deadlocks
    store.close()


def deadlocks_of(kind: str, request: pytest.FixtureRequest) -> int:
    """How many deadlocks a database has met so far."""
    if kind not in ("postgresql", "mariadb"):
        return 0
    return request.getfixturevalue(f"{kind}_server").deadlocks()


def end_or_claim(site: Site, racer: int) -> None:
    """End the run of each of 50 jobs, or claim their next slots meanwhile: each job at one instant."""
    store, names = site.open(), [f"job {number}" for number in range(RACED)]
    store.expired(BEAT, 10, now=T)
    for name in names:
        _barrier.wait(60)
        if racer == 0:
            assert store.finish(RunKey(name, T), "t", "succeeded", now=T + 1)
        else:
            offer = Offer(job=name, slots=(T + 1,), overlap="queue")
            store.claim(f"racer-{racer}", [offer], nonce=f"racer-{racer}", now=T + 1)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_a_run_that_comes_to_wait_as_the_other_ends_goes_on(kind, request):
    site = new_site(kind, request)
    store, names = site.open(), [f"job {number}" for number in range(RACED)]
    store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T - HOUR)
    store.claim("one:1", [Offer(job=name, slots=(T,)) for name in names], nonce="n1", now=T)
    for name in names:
        store.start(Start(key=RunKey(name, T), token="t", worker="w"), now=T)
    server, racers = forkserver(), 3
    with server.Pool(racers, get_ready, (server.Barrier(racers),)) as pool:
        pool.starmap_async(end_or_claim, [(site, racer) for racer in range(racers)], chunksize=1).get(120)
        pool.close()
        pool.join()
    states = [run.state for run in store.runs(limit=1000) if run.slot == T + 1]
    assert (len(states), {*states} - {"claimed", "released"}) == (RACED, set())
    store.close()

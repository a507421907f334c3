"""Two apps with two prefixes in one store do not meet, on each kind of store."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from anarchon_celery.protocol import Holding, Node, Offer, Registration, RunKey, Sent, Start, Started
from anarchon_celery.stores import Store, open_store
from tests.test_stores import KINDS, new_site

T = 1_790_000_000_000

PAIRS = [("a", "a_b"), ("a_runs", "a"), ("a", "a.b"), ("a-b", "a_b")]
OF_REDIS = [("{x}:a", "{x}:b"), ("{x}:a", "{x}"), ("{x}:a", "{x}:a:b")]
CASES = [(kind, pair) for kind in KINDS for pair in PAIRS] + [("redis", pair) for pair in OF_REDIS]

KEY = RunKey("sync", T)


@pytest.fixture(params=CASES, ids=[f"{kind} {pair[0]} {pair[1]}" for kind, pair in CASES])
def both(request):
    """Two stores at one place, whose nodes have jobs of the same names."""
    kind, pair = request.param
    site = new_site(kind, request)
    prefixes = [f"{site.prefix}{one}" if kind in ("postgresql", "mariadb") else one for one in pair]
    if kind in ("postgresql", "mariadb"):
        for prefix in prefixes:
            request.getfixturevalue(f"{kind}_server").empty(prefix)
    if kind == "redis":
        request.getfixturevalue("redis_url")  # with nothing in it
    stores = [open_store(site.url, prefix=prefix) for prefix in prefixes]
    with closing(stores[0]), closing(stores[1]):
        yield stores


def seen(store: Store) -> Any:
    return store.runs(limit=1000), store.jobs(), store.nodes()


def begin(store: Store, name: str) -> Holding:
    jobs = [Registration(job=job, hash="h") for job in ("sync", "report")]
    store.register(Node(id=name, name=name, app=name), jobs, now=T - 60_000)
    (claimed,) = store.claim(name, [Offer(job="sync", slots=(T,))], nonce=name, now=T)
    assert "won" == claimed.claims[0].answer
    store.sent([Sent(key=KEY, dispatch=1, task_id=name, supervised=True)], now=T + 1)
    started = store.start(Start(key=KEY, token=name, worker=name, task_id=name), now=T + 2)
    assert isinstance(started, Started)
    return Holding(key=KEY, token=name, fence=started.fence)


def test_what_one_does_the_other_does_not_see(both):
    first, second = both
    assert ([], [], []) == seen(second)
    begin(first, "first")
    assert ([], [], []) == seen(second)
    held = begin(second, "second")  # the same slot of a job of the same name is won again
    of_second = seen(second)
    assert first.identity != second.identity
    assert (["first"], ["second"]) == ([one.app for one in first.nodes()], [one.app for one in of_second[2]])
    assert first.pause("report", reason="r", by="b", now=T + 3)
    assert not first.finish(KEY, "second", "succeeded", now=T + 3)
    assert first.finish(KEY, "first", "succeeded", now=T + 3)
    assert 1 == first.prune(history=1, most=1000, now=T + 100)
    assert () == first.expired(Node(id="first", name="first", app="first"), 10, now=T + 60_000).runs
    assert of_second == seen(second)
    assert ["ok"] == [one.answer for one in second.renew([held], now=T + 4)]
    (run,) = second.expired(Node(id="second", name="second", app="second"), 10, now=T + 60_000).runs
    assert "second" == run.owner
    assert [] == first.runs()

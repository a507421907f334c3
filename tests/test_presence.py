"""What nodes tell of themselves: again and again while they live, and at the end that it is over."""

from __future__ import annotations

import platform
import time
from dataclasses import replace

import celery
import pytest

import anarchon_celery
from anarchon_celery import presence
from anarchon_celery.presence import EVERY, Presence, by_the_clock, schedule_hash, this_node
from anarchon_celery.stores import new_nonce, open_store
from tests.stage import Faults


@pytest.fixture
def store():
    opened = open_store(f"memory://{new_nonce()}")
    yield Faults(opened)
    opened.close()


@pytest.fixture
def clock(monkeypatch):
    """Seconds, moved by the test."""
    now = [1_000.0]
    monkeypatch.setattr(presence, "monotonic", lambda: now[0])
    return now


def test_a_process_is_a_node_with_its_versions_and_an_id_of_its_own():
    one, two = (this_node("worker", "celery@a:1", "proj") for _ in range(2))
    assert one.id != two.id
    versions = (anarchon_celery.__version__, celery.__version__, platform.python_version())
    assert versions == (one.version, one.celery, one.python)
    assert ("worker", "celery@a:1", "proj") == (one.kind, one.name, one.app)


def test_a_worker_tells_that_it_lives_every_few_seconds(store, clock):
    node = this_node("worker", "celery@a:1", "proj")
    here = Presence(node)
    for moved, calls in ((0, 1), (EVERY - 1, 1), (1, 2), (EVERY, 3)):
        clock[0] += moved
        here.tell(store)
        assert calls == store.calls["register"]
    (known,) = store.nodes()
    assert node == replace(known, seen=0, clock_offset=None)
    assert abs(known.clock_offset) < 1_000


def test_a_store_that_is_away_hears_it_later(store, clock):
    here = Presence(this_node("worker", "celery@a:1", "proj"))
    store.down = True
    here.tell(store)
    store.down = False
    assert [] == store.nodes()
    clock[0] += EVERY
    here.tell(store)
    assert 1 == len(store.nodes())


def test_one_that_stops_is_no_node_any_more_and_asks_nothing_if_it_never_was(store, clock):
    here = Presence(this_node("worker", "celery@a:1", "proj"))
    here.take_leave(store)
    assert 0 == store.calls["leave"]
    here.tell(store)
    here.take_leave(store)
    assert [] == store.nodes()
    store.down = True
    here.take_leave(store)  # nobody hears it, and that is no error


def test_the_offset_of_a_clock_is_known_once_the_store_has_answered(store, monkeypatch):
    node = this_node("beat", "a:1", "proj")
    assert None is by_the_clock(node, store.store).clock_offset
    store.register(node, [])
    now = store.store.clock.now()
    monkeypatch.setattr(time, "time_ns", lambda: (now + 90_000) * 1_000_000)
    assert 89_000 < (by_the_clock(node, store.store).clock_offset or 0) <= 90_000


def test_the_hash_of_a_schedule_is_that_of_its_jobs_in_any_order():
    jobs = [("report", "cron 30 2 * * *", "t"), ("sync", "every 10000 ms", "t")]
    assert schedule_hash(jobs) == schedule_hash(reversed(jobs))
    assert schedule_hash(jobs) != schedule_hash(jobs[:1])
    assert 12 == len(schedule_hash([]))

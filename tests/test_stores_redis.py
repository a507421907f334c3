"""What only the Redis store does; what all stores do is in test_stores.py."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
import redis

from anarchon_celery.errors import StoreUnreachable, StoreUnusable
from anarchon_celery.folding import FOLD_AFTER
from anarchon_celery.protocol import (
    ACTIVE,
    BUFFERED,
    ENDED,
    KINDS,
    LATEST,
    TRIGGERS,
    Holding,
    Node,
    Offer,
    Redispatch,
    Registration,
    Release,
    Run,
    RunKey,
    Start,
    Started,
)
from anarchon_celery.stores import open_store
from anarchon_celery.stores import redis as module
from anarchon_celery.testing.contract.story import DAY, SECOND, Story
from anarchon_celery.testing.contract.story import T as TOLD_AT
from tests.test_stores import live_a_month

T = 1_790_000_000_000
BEAT = Node(id="incarnation-1", name="one:1")
JOBS = ("first", "second", "third")
PREFIX = "{anarchon}"


@pytest.fixture
def url(redis_url):
    return redis_url


@pytest.fixture
def client(url):
    with redis.Redis.from_url(url, decode_responses=True) as client:
        yield client


@pytest.fixture
def store(url):
    store = open_store(url)
    yield store
    store.close()


def claim(store, *jobs, slot=T, nonce="n1", **how):
    offers = [Offer(job=job, slots=(slot,), **how) for job in jobs or JOBS]
    return [one.claims[0] for one in store.claim("one:1", offers, nonce=nonce, now=slot)]


def begin(store, *jobs, now=T):
    store.register(BEAT, [Registration(job=job, hash="h") for job in jobs or JOBS], now=now)
    return claim(store, *jobs, slot=now)


def name_of(key):
    return f"{PREFIX}:run:{key.kind}:{key.slot}:{key.job}"


# The scripts on the server ----------------------------------------------------------------------


def test_scripts_the_server_forgot_are_sent_again(store, client):
    begin(store)
    client.script_flush()
    assert [claim.answer for claim in claim(store, nonce="n2")] == ["taken"] * 3
    client.script_flush()
    assert len(store.runs()) == 3


def test_a_call_is_one_command_whatever_its_size(store, client):
    begin(store)
    client.config_resetstat()
    claim(store, slot=T + 1000)
    calls = {name: stat["calls"] for name, stat in client.info("commandstats").items()}
    assert calls["cmdstat_evalsha"] == 1
    assert "cmdstat_eval" not in calls


def test_all_keys_carry_one_hash_tag(store, client):
    begin(store, "a{b}c", "}{", "plain")
    assert all(key.startswith(f"{PREFIX}:") for key in client.scan_iter())
    assert client.exists(f"{PREFIX}:run:scheduled:{T}:a{{b}}c")


def test_a_prefix_with_a_hash_tag_is_taken_as_it_is(url, client):
    store = open_store(url, prefix="shop:{beat}")
    begin(store)
    store.close()
    assert all(key.startswith("shop:{beat}:") for key in client.scan_iter())


def test_lua_and_python_know_the_same_fields_and_states():
    script = module._script("runs")[0]
    quoted = {name for name in script.replace('"', "'").split("'") if name.isidentifier()}
    assert {field.name for field in fields(Run) if str(field.type).startswith("int")} <= quoted
    assert quoted >= ACTIVE | ENDED | {BUFFERED}


# Numbers and names ------------------------------------------------------------------------------


def test_a_fence_keeps_all_its_digits(store, client):
    key = begin(store, "first")[0].key
    client.hset(f"{PREFIX}:job:first", "fence", "9007199254740123")
    started = store.start(Start(key=key, token="t", worker="w"), now=T)
    assert started == Started(attempt=1, fence=9_007_199_254_740_124, trigger="scheduled")
    assert client.hget(name_of(key), "fence") == "9007199254740124"
    assert client.hget(f"{PREFIX}:job:first", "fence") == "9007199254740124"
    assert store.run(key).fence == store.jobs()[0].fence == 9_007_199_254_740_124
    assert store.start(Start(key=key, token="t", worker="w"), now=T) == started
    (expired,) = store.expired(BEAT, 10, now=T + 60_000).runs
    assert expired.fence == 9_007_199_254_740_124


def test_a_name_may_hold_what_separates_the_parts_of_a_key(store):
    jobs = ["a", "a:b", "a\0b", "scheduled:1:a", "\0", "a\0"]
    begin(store, *jobs)
    page = store.expired(BEAT, 4, now=T + 60_000).runs
    rest = store.expired(BEAT, 4, after=(page[-1].deadline, page[-1].key), now=T + 60_000).runs
    assert sorted(jobs) == sorted(run.job for run in (*page, *rest))


def test_a_page_goes_on_where_the_last_run_is_there_no_more(store):
    claims = begin(store, *"abcde")
    page = store.expired(BEAT, 2, now=T + 60_000).runs
    last = page[-1]
    again = Redispatch(key=last.key, state=last.state, dispatch=last.dispatch, deadline=last.deadline)
    assert store.redispatch("one:1", [again], nonce="m", now=T + 60_000)[0].won
    rest = store.expired(BEAT, 9, after=(last.deadline, last.key), now=T + 60_000).runs
    assert [claim.key for claim in claims[2:]] == [run.key for run in rest]


@pytest.mark.parametrize("page", [1, 2, 1000])
def test_lists_are_read_in_pages(store, monkeypatch, page):
    monkeypatch.setattr(module, "_PAGE", page)
    begin(store)
    claim(store, slot=T + 1)
    newest_first = [(slot, job) for slot in (T + 1, T) for job in JOBS]
    assert newest_first == [(run.slot, run.job) for run in store.runs()]
    assert newest_first[:4] == [(run.slot, run.job) for run in store.runs(limit=4)]
    assert newest_first[3:] == [(run.slot, run.job) for run in store.runs(state="claimed")]
    assert newest_first[:3] == [(run.slot, run.job) for run in store.runs(state="skipped")]
    assert newest_first[:2] == [(run.slot, run.job) for run in store.runs(state="skipped", limit=2)]
    assert [run.slot for run in store.runs(job="second")] == [T + 1, T]


# Versions and identities ------------------------------------------------------------------------


def test_the_first_call_writes_what_the_store_is(store, client):
    begin(store, "first")
    meta = client.hgetall(f"{PREFIX}:meta")
    since = {"created": str(T), "born": str(T), "young": "0"}
    assert meta == {"version": "4", "identity": store.identity} | since


def test_a_store_of_a_later_version_is_refused_by_both_names(store, client):
    begin(store)
    client.hset(f"{PREFIX}:meta", "version", "12")
    with pytest.raises(StoreUnusable, match="version 12, .* works with version 4: install") as refused:
        claim(store, slot=T + 1000)
    assert store.shown in str(refused.value)
    client.hset(f"{PREFIX}:meta", "version", "4")
    assert len(store.runs()) == 3


@pytest.mark.parametrize("version", ["1", "two", ""])
def test_a_store_of_an_older_version_or_of_none_is_refused_and_nothing_written(store, client, version):
    begin(store, "first")
    client.hset(f"{PREFIX}:meta", "version", version)
    before = {name: client.dump(name) for name in client.scan_iter()}
    with pytest.raises(StoreUnusable) as refused:
        begin(store, "second")
    what = f"{store.shown}: the keys {PREFIX}:* "
    if version == "1":
        told = f"{what}are of version 1, this anarchon_celery works with version 4 and cannot upgrade them: "
        assert str(refused.value).startswith(f"{told}use another anarchon_prefix")
    else:
        assert str(refused.value).startswith(f"{what}have the version {version!r}, which is none: ")
    assert before == {name: client.dump(name) for name in client.scan_iter()}


# What somebody edited ---------------------------------------------------------------------------


EDITS = [
    {"state": "runing"}, {"dispatch": "one"}, {"deadline": "soon"}, {"lease": "1.5"}, {"slot": "inf"},
    {"job": "x"}, {"trigger": "x"}, {"kind": "x"}, {"started_at": str(LATEST + 1)}, {"claimed_at": "-1"},
]  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_an_unreadable_run_is_passed_over_and_named(store, client, caplog, edit):
    claims = begin(store)
    bad = claims[1].key
    client.hset(name_of(bad), mapping=edit)
    page = store.expired(BEAT, 2, now=T + 60_000)
    assert [run.job for run in page.runs] == ["first", "third"]
    assert [claim.answer for claim in claim(store, nonce="n2")] == ["taken"] * 3
    assert store.run(bad) is None
    assert [run.job for run in store.runs()] == ["first", "third"]
    (line,) = caplog.messages  # once, however often it is met
    assert f"[anarchon] {store.shown}: passed over {name_of(bad)}, edited by hand and unreadable" == line


def test_each_word_of_the_protocol_is_one_and_the_last_instant_is_whole(store, client):
    key = begin(store)[1].key
    for trigger in TRIGGERS:
        client.hset(name_of(key), mapping={"trigger": trigger, "started_at": LATEST})
        assert (trigger, LATEST) == (store.run(key).trigger, store.run(key).started_at)
    for kind in KINDS:
        other = RunKey(key.job, key.slot, kind)
        client.hset(name_of(other), mapping=client.hgetall(name_of(key)) | {"kind": kind})
        assert other == store.run(other).key


def test_no_verb_touches_an_unreadable_run(store, client):
    first, bad, _ = [claim.key for claim in begin(store)]
    for key in (first, bad):
        store.start(Start(key=key, token="t", worker="w"), now=T)
    client.hset(name_of(bad), mapping={"lease": "long", "crashes": "many"})
    before = client.hgetall(name_of(bad))
    holdings = [Holding(key=key, token="t", fence=1) for key in (bad, first)]
    assert [one.answer for one in store.renew(holdings, now=T)] == ["lost", "ok"]
    assert store.start(Start(key=bad, token="t2", worker="w"), now=T).why == "unreadable"
    assert not store.finish(bad, "t", "succeeded", now=T)
    asked = [Redispatch(key=key, state="running", dispatch=1, deadline=T + 30_000) for key in (bad, first)]
    assert [one.answer for one in store.redispatch("n", asked, nonce="m", now=T + 30_000)] == ["taken", "won"]
    assert before == client.hgetall(name_of(bad))


def test_an_unreadable_job_is_learnt_back(store, client, caplog):
    begin(store)
    client.hset(f"{PREFIX}:job:second", "floor", "high")
    answers = [claim.answer for claim in claim(store, nonce="n2", slot=T + 1)]
    assert answers == ["overlap", "unknown", "overlap"]
    (known,) = store.register(BEAT, [Registration(job="second", hash="h", cursor=T, first_seen=1)], now=T + 1)
    assert (known.floor, known.first_seen) == (T, 1)
    assert claim(store, "second", nonce="n3")[0].answer == "taken"
    assert [f"{PREFIX}:job:second" in line for line in caplog.messages] == [True]


@pytest.mark.parametrize(
    "hashes",
    [
        '[["h"', "5", "null", "{}", "[5]", '["h"]', '[["h", 1]]', '[["h", "soon", null, 1]]',
        '[["h", 1.5, null, 1]]', '[["h", 1, "high", 1]]', '[["h", 1, 1.5, 1]]', '[["h", 1, false, 1]]',
        "[[1, 1, null, 1]]",
        '[["h", 1, null, 1], null]', '[["g", 1, null, 1], ["h", 1]]', '[["h", 1, null]]',
        '[["h", 1, null, null]]', '[["h", 1, null, 1.5]]',
    ],
)  # fmt: skip
def test_schedules_that_cannot_be_read_are_learnt_back(hashes, store, client):
    begin(store)
    client.hset(f"{PREFIX}:job:second", "hashes", hashes)
    answers = [claim.answer for claim in claim(store, nonce="n2", slot=T + 1)]
    assert answers == ["overlap", "unknown", "overlap"]
    assert [job.hashes for job in store.jobs() if job.name == "second"] == [()]
    store.expired(BEAT, 1, now=T + 10_000)
    store.expired(BEAT, 1, now=T)
    store.prune(history=0, most=0, now=T)
    (known,) = store.register(BEAT, [Registration(job="second", hash="h", cursor=T - 1)], now=T + 1)
    assert (known.floor, known.effective) == (T, T)
    assert [job.hashes for job in store.jobs() if job.name == "second"] == [(("h", T, T, T + 1),)]


def test_keys_of_another_type_break_nobody_else(store, client):
    bad = begin(store)[1].key
    for name in (name_of(bad), f"{PREFIX}:job:third"):
        client.delete(name)
        client.set(name, "what is this?")
    assert [run.job for run in store.expired(BEAT, 9, now=T + 60_000).runs] == ["first", "third"]
    assert store.renew([Holding(key=bad, token="t", fence=1)], now=T)[0].answer == "lost"
    answers = [claim.answer for claim in claim(store, slot=T + 1, nonce="n2")]
    assert answers == ["overlap", "overlap", "unknown"]
    assert [job.name for job in store.jobs()] == ["first", "second"]
    store.register(BEAT, [Registration(job="third", hash="h", cursor=T)], now=T + 1)
    assert [job.floor for job in store.jobs()] == [T + 1, T + 1, T]


def test_bytes_that_are_no_text_spoil_no_answer(store, client):
    bad = begin(store)[1].key
    client.hset(name_of(bad), "reason", b"\xff\xfe")
    assert [run.job for run in store.runs()] == list(JOBS)


def test_what_somebody_removed_is_forgotten_and_holds_nothing(store, client):
    gone = begin(store)[1].key
    client.delete(name_of(gone))
    assert [run.job for run in store.expired(BEAT, 9, now=T + 60_000).runs] == ["first", "third"]
    assert client.zcard(f"{PREFIX}:active:second") == 0
    assert [claim.answer for claim in claim(store, slot=T + 1, nonce="n2")] == ["overlap", "won", "overlap"]


def test_an_edit_of_state_or_deadline_counts_at_the_next_look(store, client):
    first, second, third = [claim.key for claim in begin(store)]
    client.hset(name_of(first), mapping={"state": "cancelled", "finished_at": T})
    client.hset(name_of(second), "deadline", T + 90_000)
    page = store.expired(BEAT, 9, now=T + 60_000)
    assert ([run.key for run in page.runs], page.next_deadline) == ([third], T + 90_000)
    assert claim(store, "first", slot=T + 1, nonce="n2")[0].won
    assert store.prune(history=0, most=0, now=T + 1) == 1


def wait_behind(store, *jobs):
    """Let a slot of each job wait behind one that is running; return the keys of both."""
    running = [claim.key for claim in begin(store, *jobs)]
    for key in running:
        store.start(Start(key=key, token="t", worker="w"), now=T)
    return running, [one.key for one in claim(store, *jobs, slot=T + 1, nonce="n2", overlap="queue")]


def indexes_with(client, key):
    """The indexes that a run is in, by the end of their names."""
    member = f"{key.job}\0{key.slot:015}\0{key.kind}"
    names = [name for name in client.scan_iter(_type="zset") if client.zscore(name, member) is not None]
    return sorted(name.removeprefix(f"{PREFIX}:") for name in names)


def test_a_run_is_in_the_indexes_of_its_state(store, client):
    (running,), (waiting,) = wait_behind(store, "first")
    assert ["buffered", "buffered:first", "runs"] == indexes_with(client, waiting)
    store.finish(running, "t", "succeeded", now=T + 2)
    assert ["active:first", "deadlines", "runs"] == indexes_with(client, waiting)
    store.pause("first", reason="r", by="anna", now=T + 2)
    assert ["buffered", "buffered:first", "runs"] == indexes_with(client, waiting)
    store.resume("first", now=T + 2)
    assert claim(store, "first", slot=T + 3, nonce="n3", overlap="cancel")[0].won
    assert ["ended:first", "finished", "runs"] == indexes_with(client, waiting)


def test_what_waits_beyond_reading_is_passed_over_and_the_next_goes_on(store, client):
    store.register(BEAT, [Registration(job="first", hash="h")], now=T)
    offer = Offer(job="first", slots=(T, T + 1, T + 2), overlap="allow")
    (claimed,) = store.claim("one:1", [offer], nonce="n1", now=T + 2)
    store.pause("first", reason="r", by="anna", now=T + 2)
    bad, good = (one.key for one in claimed.claims[:2])
    client.hset(name_of(bad), "dispatch", "one")
    before = client.hgetall(name_of(bad))
    assert store.resume("first", now=T + 3)
    assert store.run(good).state == "released"
    assert before == client.hgetall(name_of(bad))


def test_what_somebody_removed_while_it_waited_is_forgotten_and_holds_nothing(store, client):
    (running,), (waiting,) = wait_behind(store, "first")
    client.delete(name_of(waiting))
    assert store.finish(running, "t", "succeeded", now=T + 2)
    assert indexes_with(client, waiting) == []
    assert claim(store, "first", slot=T + 3, nonce="n3", overlap="queue")[0].won


def test_what_somebody_ended_while_it_waited_holds_nothing(store, client):
    (running,), (waiting,) = wait_behind(store, "first")
    client.hset(name_of(waiting), mapping={"state": "cancelled", "finished_at": T})
    assert store.finish(running, "t", "succeeded", now=T + 2)
    assert ["ended:first", "finished", "runs"] == indexes_with(client, waiting)
    assert claim(store, "first", slot=T + 3, nonce="n3", overlap="queue")[0].won


def test_a_run_that_waits_for_one_that_somebody_removed_goes_on(store, client):
    (running,), (waiting,) = wait_behind(store, "first")
    client.delete(name_of(running))
    store.expired(BEAT, 9, now=T + 60_000)
    assert claim(store, "first", slot=T + 3, nonce="n3")[0].answer == "overlap"
    assert store.run(waiting).state == "released"


def test_a_job_that_somebody_paused_by_hand_is_paused(store, client):
    first, second, third = [claim.key for claim in begin(store)]
    for job in JOBS:
        client.hset(f"{PREFIX}:job:{job}", "paused", "by hand")
    assert store.start(Start(key=first, token="t", worker="w"), now=T).why == "paused"
    assert store.release([Release(key=second, nonce="n1")], now=T) == [True]
    asked = [Redispatch(key=third, state="claimed", dispatch=1, deadline=T + 10_000)]
    assert store.redispatch("n", asked, nonce="m", now=T + 10_000)[0].answer == "paused"
    assert [store.run(key).state for key in (first, second, third)] == ["claimed", "buffered", "buffered"]
    assert store.resume("third", now=T + 10_000)
    assert [job.paused for job in store.jobs()] == ["by hand", "by hand", None]


def test_a_run_that_is_to_stop_already_keeps_its_reason(store, client):
    (running,), _ = wait_behind(store, "first")
    client.hset(name_of(running), "stop", "cancelled by anna")
    assert claim(store, "first", slot=T + 2, nonce="n3", overlap="cancel")[0].answer == "overlap"
    assert store.run(running).stop == "cancelled by anna"


INDEXES = ("active:first", "buffered:first", "ended:first", "deadlines", "buffered", "finished", "runs")


def all_indexes(client):
    return {name: client.zrange(name, 0, -1, withscores=True) for name in client.scan_iter(_type="zset")}


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_that_somebody_made_something_else_is_set_anew_and_named(store, client, caplog, index):
    running, _ = wait_behind(store, *JOBS)
    store.finish(running[2], "t", "succeeded", now=T + 1)
    client.set(f"{PREFIX}:{index}", "what is this?")
    answers = [one.answer for one in claim(store, slot=T + 2, nonce="n3")]
    assert answers == ["overlap"] * 3
    assert store.finish(running[0], "t", "failed", now=T + 3)
    page = store.expired(BEAT, 9, now=T + 60_000)
    assert sorted(run.job for run in page.runs) == sorted(JOBS)
    assert len(store.runs()) == 9
    assert store.prune(history=0, most=0, now=T + 90_000) == 5
    (line,) = caplog.messages
    assert f"{PREFIX}:{index}" in line


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_is_set_anew_as_it_was(store, client, index):
    running, _ = wait_behind(store, *JOBS)
    store.finish(running[2], "t", "succeeded", now=T + 1)
    before = all_indexes(client)
    client.set(f"{PREFIX}:{index}", "what is this?")
    store.claim("one:1", [Offer(job=job, slots=(T,)) for job in JOBS], nonce="no", now=T)
    begin(store, "fourth", now=T + 5)
    for job in JOBS:
        store.runs(job=job)
    store.expired(BEAT, 9, now=T + 5), store.runs(state="buffered")
    store.prune(history=10**9, most=1000, now=T + 5)
    after = all_indexes(client)
    for name, members in before.items():
        assert [one for one in after.get(name, []) if "fourth" not in one[0]] == members, name


def test_nodes_that_somebody_made_something_else_come_back_by_themselves(store, client, caplog):
    begin(store, "first")
    client.set(f"{PREFIX}:nodes", "what is this?")
    store.expired(BEAT, 9, now=T + 1)
    assert [node.name for node in store.nodes()] == ["one:1"]
    assert f"{PREFIX}:nodes" in caplog.messages[0]


@pytest.mark.parametrize("name", ["meta", "jobs"])
def test_what_cannot_be_set_anew_is_named(store, client, name):
    begin(store)
    client.set(f"{PREFIX}:{name}", "what is this?")
    with pytest.raises(StoreUnusable, match=f"a key of the store was made something else: .*{PREFIX}:{name}"):
        store.register(BEAT, [Registration(job="new", hash="h")], now=T)


@pytest.mark.parametrize("what", ["active", "buffered", "ended"])
@pytest.mark.parametrize(
    "member", ["garbage", "", "a\0b\0c", f"second\0{T:015}\0scheduled", f"first\0{1:015}\0scheduled"]
)
def test_what_somebody_put_into_an_index_holds_nothing_and_harms_nobody(store, client, what, member):
    begin(store)
    store.start(Start(key=RunKey("first", T), token="t", worker="w"), now=T)
    client.zadd(f"{PREFIX}:{what}:first", {member: -1})
    second = indexes_with(client, RunKey("second", T))
    assert store.finish(RunKey("first", T), "t", "succeeded", now=T + 1)
    assert claim(store, "first", slot=T + 2, nonce="n2", overlap="queue")[0].won
    assert claim(store, "second", slot=T + 2, nonce="n2")[0].answer == "overlap"
    store.prune(history=0, most=0, now=T + 10)
    assert store.run(RunKey("second", T)).state == "claimed"
    assert set(indexes_with(client, RunKey("second", T))) >= {*second} - {f"{what}:first"}
    assert store.prune(history=0, most=0, now=T + 10) == 0
    assert [run.slot for run in store.runs(job="first")] == [T + 2]


NUMBERS = [{"fence": "-5"}, {"attempt": "-1"}, {"fence": "1e300"}, {"fence": "nan"}, {"deadline": "-1"}]


@pytest.mark.parametrize("edit", NUMBERS, ids=str)
def test_a_number_that_is_none_of_ours_makes_a_run_unreadable(store, client, caplog, edit):
    bad = begin(store)[1].key
    client.hset(name_of(bad), mapping=edit)
    assert [run.job for run in store.expired(BEAT, 9, now=T + 60_000).runs] == ["first", "third"]
    assert store.start(Start(key=bad, token="t", worker="w"), now=T).why == "unreadable"
    assert name_of(bad) in caplog.messages[0]


JOB_EDITS = [
    {"fence": "-5"}, {"fence": "1e300"}, {"paused": "by hand", "paused_at": "soon"}, {"floor": "-1"},
    {"hashes": "[[1]]"}, {"hashes": '["h"]'}, {"hashes": "{"}, {"hashes": '[["h", "x"]]'}, {"hashes": "7"},
]  # fmt: skip


@pytest.mark.parametrize("edit", JOB_EDITS, ids=str)
def test_a_job_edited_beyond_reading_stops_no_other_and_is_learnt_back(store, client, edit):
    begin(store)
    client.hset(f"{PREFIX}:job:second", mapping=edit)
    answers = [one.answer for one in claim(store, slot=T + 1, nonce="n2")]
    assert (answers[0], answers[2]) == ("overlap", "overlap")
    assert answers[1] in ("unknown", "overlap")
    store.expired(BEAT, 9, now=T - 5000)  # the clock went back: all jobs are looked at
    assert "first" in [job.name for job in store.jobs()]
    store.register(BEAT, [Registration(job="second", hash="h", cursor=T + 1)], now=T + 2)
    assert claim(store, "second", slot=T + 3, nonce="n3")[0].answer == "overlap"
    assert [job.name for job in store.jobs()] == sorted(JOBS)


def test_a_pause_with_odd_texts_is_shown_as_far_as_it_goes(store, client):
    begin(store, "first")
    client.hset(f"{PREFIX}:job:first", mapping={"paused": "", "paused_by": b"\xff", "paused_at": T})
    (job,) = store.jobs()
    assert (job.paused, job.paused_by, job.paused_at) == ("", "\ufffd", T)
    assert store.resume("first", now=T)


def test_a_node_with_fields_of_somebody_else_is_a_node(store, client):
    begin(store, "first")
    odd = '{"name": "n", "seen": 5, "kind": "worker", "more": [1], "app": 7, "clock_offset": 1e300}'
    client.hset(f"{PREFIX}:nodes", "x", odd)
    (node,) = [node for node in store.nodes() if node.id == "x"]
    assert Node(id="x", name="n", kind="worker", seen=5) == node


@pytest.mark.parametrize(
    "odd", ['"kind": 7, "seen": 5', '"kind": "beat", "seen": 1e300', '"kind": "beat", "seen": 0.5']
)
def test_what_can_be_no_node_is_passed_over_and_named(store, client, caplog, odd):
    begin(store, "first")
    client.hset(f"{PREFIX}:nodes", "x", '{"name": "n", ' + odd + "}")
    assert [BEAT.id] == [node.id for node in store.nodes()]
    assert "nodes x" in caplog.messages[0]


# URLs -------------------------------------------------------------------------------------------


SHOWN = {
    "redis://": "redis://localhost:6379/0",
    "redis://h": "redis://h:6379/0",
    "redis://:secret@h:7000/3?visibility_timeout=60&fanout_prefix=true": "redis://h:7000/3",
    "valkey://me:secret@h/1": "valkey://h:6379/1",
    "rediss://:secret@h:7000?ssl_cert_reqs=CERT_NONE": "rediss://h:7000/0",
    "valkeys://h": "valkeys://h:6379/0",
    "redis://:secret@[::1]:7000/2": "redis://[::1]:7000/2",
    "redis+socket://:secret@/tmp/redis.sock?virtual_host=4": "redis+socket:///tmp/redis.sock?virtual_host=4",
    "redis://:s%40%2Fcret@h/1": "redis://h:6379/1",
}


@pytest.mark.parametrize(("url", "shown"), SHOWN.items())
def test_a_url_is_shown_without_its_secrets(url, shown):
    store = open_store(url)
    assert shown == store.shown
    assert "cret" not in store.shown + repr(store)
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://:sec/ret@h:6379/0", "redis://:123/ret@h/0", "redis://:sec#ret@h:6379/0", "redis://:sec?ret@h/0",
        "redis://h:port/0", "redis://h/zero", "redis://h/-1", "redis://[::1/0", "redis://:secret@h,h2/0",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_read_is_refused_and_not_shown(url):
    with pytest.raises(StoreUnusable, match="URL of the store cannot be read: .* is right") as refused:
        open_store(url)
    assert "sec" not in str(refused.value).replace("//:password@", "")
    assert "123" not in str(refused.value)


def test_the_client_is_told_what_url_and_options_say():
    def told(url, **options):
        store = open_store(url, options=options)
        store.close()
        return store._link._settings

    plain = told("redis://me:s%40cret@h:7000/3?visibility_timeout=60&socket_timeout=1.5")
    assert plain == {"db": 3, "username": "me", "password": "s@cret", "socket_timeout": 1.5}
    assert told("redis://h", socket_timeout=9, client_name="beat") == {
        "socket_timeout": 9, "client_name": "beat",
    }  # fmt: skip
    secure = {"ssl": True, "ssl_cert_reqs": "none", "ssl_check_hostname": False}
    assert told("valkeys://h?ssl_cert_reqs=CERT_NONE&ssl_check_hostname=false") == secure
    assert told("redis://h?socket_timeout=9&client_name=a%2520b", socket_timeout=2) == {
        "socket_timeout": 2, "client_name": "a%20b",
    }  # fmt: skip
    unix = told("redis+socket://:s%40cret@/tmp/redis.sock?virtual_host=4")
    assert unix == {"db": 4, "password": "s@cret"}


def test_an_option_the_client_does_not_know_is_told():
    with pytest.raises(StoreUnusable, match=r"redis://h:6379/0: .*'socket_timeot'"):
        open_store("redis://:secret@h/0", options={"socket_timeot": 1})


def test_a_unix_socket_will_do(tmp_path, processes):
    server = redis_on_a_socket(tmp_path)
    try:
        store = open_store(f"redis+socket://{server.folder}/s?virtual_host=1")
        assert [claim.answer for claim in begin(store)] == ["won"] * 3
        store.close()
    finally:
        server.close()


# Servers that refuse ----------------------------------------------------------------------------


def test_a_wrong_password_is_told_without_it(url, client):
    client.config_set("requirepass", "right-secret")
    try:
        for login in ("", ":wrong-secret@", "stranger:wrong-secret@"):
            store = open_store(url.replace("//", f"//{login}"))
            with pytest.raises(StoreUnusable, match="cannot be used: ") as refused:
                store.runs()
            assert str(refused.value).startswith(url)
            assert "secret" not in str(refused.value)
            store.close()
        store = open_store(url.replace("//", "//:right-secret@"))
        assert store.runs() == []
        store.close()
    finally:
        client.config_set("requirepass", "")


def test_a_user_without_rights_is_told(url, client):
    client.execute_command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-@scripting")
    store = open_store(url.replace("//", "//reader:pw@"))
    with pytest.raises(StoreUnusable, match="cannot be used: .*no permissions"):
        store.runs()
    store.close()
    client.execute_command("ACL", "DELUSER", "reader")


def test_a_replica_is_told(own_redis_server):
    store = open_store(own_redis_server.url())
    begin(store)
    with own_redis_server.client() as client:
        client.replicaof("127.0.0.1", own_redis_server.port)  # of itself: it stays up, and read-only
        with pytest.raises(StoreUnusable, match="cannot be used: .*read only replica"):
            claim(store, slot=T + 1)
        client.replicaof("NO", "ONE")
    assert claim(store, slot=T + 1)[0].answer == "overlap"
    store.close()


def test_a_full_server_writes_nothing_by_halves(own_redis_server):
    store = open_store(own_redis_server.url())
    begin(store)
    before = store.runs(), store.jobs()
    with own_redis_server.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreUnusable, match="cannot be used: .*maxmemory"):
            claim(store, slot=T + 1)
        client.config_set("maxmemory", 0)
    assert before == (store.runs(), store.jobs())
    store.close()


# Servers that are away --------------------------------------------------------------------------


def test_a_killed_server_is_unreachable_and_serves_again_after_its_start(own_redis_server):
    store = open_store(own_redis_server.url())
    begin(store)
    identity = store.identity
    own_redis_server.kill()
    with pytest.raises(StoreUnreachable, match="does not answer: ") as away:
        store.runs()
    assert str(away.value).startswith(store.shown)
    assert "\n" not in str(away.value)
    own_redis_server.start()  # with its data, without its scripts
    assert [claim.answer for claim in claim(store, nonce="n2")] == ["taken"] * 3
    assert identity == store.identity
    store.close()


def test_a_late_answer_is_never_taken_for_that_of_another_call(own_redis_server):
    store = open_store(own_redis_server.url(), options={"socket_timeout": 1})
    begin(store)
    own_redis_server.suspend()
    before = time.monotonic()
    with pytest.raises(StoreUnreachable, match="does not answer: "):
        store.nodes()
    assert time.monotonic() - before < 3.9  # the client does not repeat it three times by itself
    own_redis_server.start()  # it wakes, and answers what was asked before
    assert [claim.answer for claim in claim(store, nonce="n2")] == ["taken"] * 3
    assert [job.name for job in store.jobs()] == list(JOBS)
    store.close()


class Interrupted(BaseException):
    """What a signal handler may raise anywhere."""


def test_nor_is_that_of_a_call_that_was_interrupted(own_redis_server, monkeypatch):
    store = open_store(own_redis_server.url())
    begin(store)
    assert len(store.jobs()) + len(store.nodes()) == 4  # the server has the scripts now
    client = store._link._client
    read, sent = client.parse_response, threading.Event()

    def interrupt(*args, **options):
        raise Interrupted

    def tell_and_read(*args, **options):
        sent.set()
        return read(*args, **options)

    own_redis_server.suspend()
    monkeypatch.setattr(client, "parse_response", interrupt)
    with pytest.raises(Interrupted):
        store.nodes()
    monkeypatch.setattr(client, "parse_response", tell_and_read)
    with ThreadPoolExecutor(1) as thread:
        jobs = thread.submit(store.jobs)
        sent.wait(0.3)  # on a new connection nothing can be sent yet; on the old one it would be
        own_redis_server.resume()
        assert [job.name for job in jobs.result(10)] == list(JOBS)
    store.close()


def test_a_server_busy_with_a_script_is_unreachable(own_redis_server):
    store = open_store(own_redis_server.url())
    begin(store)
    with own_redis_server.client() as client:
        client.config_set("lua-time-limit", 1)
        endless = threading.Thread(target=run_until_killed, args=(own_redis_server.url(),))
        endless.start()
        wait_until_busy(client)
        with pytest.raises(StoreUnreachable, match="does not answer for now: BUSY"):
            store.runs()
        client.script_kill()
        endless.join(10)
    assert len(store.runs()) == 3
    store.close()


def run_until_killed(url):
    with redis.Redis.from_url(url) as client, pytest.raises(redis.ResponseError, match="killed"):
        client.eval("while true do end", 0)


def wait_until_busy(client, deadline=10):
    until = time.monotonic() + deadline
    while time.monotonic() < until:
        try:
            client.ping()
        except redis.ResponseError as error:
            assert "BUSY" in str(error)
            return
    raise AssertionError("the server never became busy")


# One handle, several threads --------------------------------------------------------------------


def test_a_heartbeat_and_a_task_share_a_handle(store):
    keys = [claim.key for claim in begin(store)]
    for key in keys:
        store.start(Start(key=key, token=key.job, worker="w"))
    wrong, over = [], threading.Event()

    def beat():
        while not over.is_set():
            answers = store.renew([Holding(key=key, token=key.job, fence=1) for key in keys])
            wrong.extend(one for one in answers if one.answer != "ok")

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        for _ in range(200):
            assert [job.name for job in store.jobs()] == list(JOBS)
            assert store.run(RunKey("first", T)).token == "first"
    finally:
        over.set()
        heart.join(10)
    assert wrong == []


# Cost -------------------------------------------------------------------------------------------


def test_a_heartbeat_tells_all_of_a_lease_only_where_its_run_is_not_found(store, client):
    names = [f"job-{n:03}" for n in range(100)]
    long = {"owner": "w" * 50, "task_id": "i" * 36, "arguments": "a" * 200, "trusted": True}
    held = [Holding(key=claim.key, token="t" * 36, fence=1, **long) for claim in begin(store, *names)]
    for one in held:
        store.start(Start(key=one.key, token=one.token, worker="w"), now=T)
    store.renew([], now=T)  # the server has the script

    def renewed():
        client.config_resetstat()
        answers = [one.answer for one in store.renew(held, now=T)]
        said = client.info()
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        return answers, calls, said["total_net_input_bytes"]

    answers, calls, size = renewed()
    assert (["ok"] * 100, 1) == (answers, calls)
    assert size < 100 * 150
    client.delete(name_of(held[0].key))
    client.hset(name_of(held[1].key), "token", "of another")
    answers, calls, all_of_two = renewed()
    assert (["ok", "lost", *["ok"] * 98], 2) == (answers, calls)
    assert 500 < all_of_two - size < 2_000


def test_a_look_without_work_and_a_prune_do_not_walk_the_history(store, client):
    store.register(BEAT, [Registration(job="first", hash="h")], now=T)
    for slot in range(T, T + 300, 50):
        offer = Offer(job="first", slots=tuple(range(slot, slot + 50)))
        store.claim("one:1", [offer], nonce=str(slot), now=T + 1000)
    client.config_resetstat()
    store.expired(BEAT, 200, now=T + 1000)
    assert store.prune(history=10**9, most=1000, now=T + 1000) == 0
    stats = client.info("commandstats")
    assert sum(stat["calls"] for stat in stats.values()) < 40
    assert "cmdstat_hgetall" not in stats


def as_the_records_say(client):
    """What the indexes of runs have to hold: nothing but what the records say."""
    expected = {}
    what = dict.fromkeys(ACTIVE, "active") | dict.fromkeys(ENDED, "ended")
    scores = {"active": "deadline", "ended": "finished_at"}
    for name in client.scan_iter(f"{PREFIX}:run:*"):
        run = client.hgetall(name)
        member = f"{run['job']}\0{int(run['slot']):015}\0{run['kind']}"
        kind = what.get(run["state"], "buffered")
        of_all = {"active": "deadlines", "ended": "finished"}.get(kind, kind)
        score = run[scores[kind]] if kind in scores else -int(run["slot"])
        for index, at in (("runs", None), (of_all, score), (f"{kind}:{run['job']}", None)):
            at = -int(run["slot"]) if at is None else at
            expected.setdefault(f"{PREFIX}:{index}", []).append((member, float(at)))
    return {name: sorted(members, key=lambda one: (one[1], one[0])) for name, members in expected.items()}


@pytest.mark.slow
def test_a_month_leaves_nothing_behind(store, client, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_FOR", 60)
    for gone in live_a_month(store):
        assert gone[-1] == 0
    assert as_the_records_say(client) == all_indexes(client)
    left = Counter(key.removeprefix(f"{PREFIX}:").split(":")[0] for key in client.scan_iter())
    singles = dict.fromkeys(("meta", "nodes", "jobs", "runs", "finished"), 1)
    assert left == {"run": 600, "job": 50, "ended": 50} | singles


def test_one_script_looks_at_a_page_of_ended_runs_and_the_next_call_goes_on(store, client, monkeypatch):
    """Skips none of which can be folded, as every second one has another reason."""
    monkeypatch.setattr(module, "_LOOK_FOR", -1)
    begin(store, "first")
    for slot in range(T + 1, T + 1000, 200):
        store.claim("n", [Offer(job="first", slots=(*range(slot, slot + 200),))], nonce="n", now=T + 1000)
    for slot in range(T + 1, T + 1000, 2):
        client.hset(name_of(RunKey("first", slot)), "reason", "another")
    commands = []
    for _ in range(1000 // module._LOOK + 1):
        client.config_resetstat()
        assert store.prune(history=DAY, most=5_000, now=T + 1000 + FOLD_AFTER) == 0
        stats = client.info("commandstats")
        assert stats["cmdstat_evalsha"]["calls"] == 1
        commands.append(sum(stat["calls"] for stat in stats.values()))
    assert max(commands) < 7 * module._LOOK
    assert [count > 100 for count in commands] == [True] * 5 + [False]


def test_what_is_forgotten_leaves_no_key(store, client):
    for key in [claim.key for claim in begin(store)]:
        store.start(Start(key=key, token="t", worker="w"), now=T)
        store.finish(key, "t", "succeeded", now=T)
    assert store.prune(history=0, most=0, limit=2, now=T + 1) == 2
    assert store.prune(history=0, most=0, limit=2, now=T + 1) == 1
    left = {key.removeprefix(f"{PREFIX}:") for key in client.scan_iter()}
    assert {"meta", "nodes", "jobs", *(f"job:{job}" for job in JOBS)} == left
    assert json.loads(client.hget(f"{PREFIX}:nodes", BEAT.id)) == {"name": "one:1", "kind": "beat", "seen": T}


def test_reading_says_nothing(store, caplog):
    caplog.set_level(logging.DEBUG, logger="anarchon_celery")
    begin(store)
    store.runs(), store.jobs(), store.nodes()
    assert caplog.messages == []


def redis_on_a_socket(folder):
    from tests.servers import RedisServer

    folder = folder / "r"
    return RedisServer(folder, options=["--unixsocket", str(folder / "s")]).start()


# Successes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failed", "told"), [(3, 0), (8, 0), (14, 0), (15, 1), (40, 26)])
def test_of_a_job_that_only_fails_the_oldest_slot_looked_at_is_told(store, monkeypatch, failed, told):
    monkeypatch.setattr(module, "_LEAST", 5)
    monkeypatch.setattr(module, "_MORE", 10)
    report, never = Story(store, "report"), Story(store, "never")
    for story in (report, never):
        story.register()
        story.begin()
        assert story.finish(outcome="succeeded" if story is report else "failed")
    for _ in range(failed):
        report.now += SECOND
        report.begin(report.now)
        assert report.finish(report.now, "failed")
    assert {"report": (TOLD_AT + told * SECOND,) * 2} == store.successes()


# Places in an index that somebody edited ----------------------------------------------------------


@pytest.fixture
def own(own_redis_server):
    """A server of the test's own: a script that does not end would hold up all others."""
    store = open_store(own_redis_server.url())
    with redis.Redis.from_url(own_redis_server.url(), decode_responses=True) as client:
        yield store, client
    store.close()


@pytest.mark.parametrize("score", ["+inf", "1e300", T + 100_000.5])
def test_a_deadline_that_is_none_is_no_next_deadline(own, score):
    store, client = own
    begin(store, "first")
    member = f"second\0{T:015}\0scheduled"
    client.delete(f"{PREFIX}:deadlines")
    client.zadd(f"{PREFIX}:deadlines", {member: score})
    found = store.expired(BEAT, 10, now=T)
    assert found.runs == ()
    assert found.next_deadline in (None, T + 100_001)


@pytest.mark.parametrize("score", [T - 0.5, T + 0.4, "-inf"])
@pytest.mark.parametrize("limit", [1, 2, 10])
def test_an_unreadable_run_at_an_odd_place_is_looked_at_once(own, score, limit):
    store, client = own
    bad = begin(store)[1].key
    client.hset(name_of(bad), "state", "runing")
    odd = f"{bad.job}\0{bad.slot}\0{bad.kind}"  # names the same run, and is not how we write it
    for member in (odd, f"{bad.job}\0{bad.slot:015}\0{bad.kind}"):
        client.zadd(f"{PREFIX}:deadlines", {member: score})
    found = store.expired(BEAT, limit, now=T + 60_000).runs
    assert [run.job for run in found] == ["first", "third"][:limit]


@pytest.mark.parametrize("score", ["-inf", -1e300, -T - 0.5, -float(T) - 1])
@pytest.mark.parametrize(
    "member", ["garbage", b"\xff", "second\0" + "9" * 400 + "\0x", f"second\0{T}\0scheduled"]
)
@pytest.mark.parametrize("state", [None, "claimed"])
def test_runs_are_listed_past_what_somebody_put_into_an_index(own, score, member, state):
    store, client = own
    begin(store)
    for name in ("runs", "deadlines", "active:first"):
        client.zadd(f"{PREFIX}:{name}", {member: score})
    assert store.runs(limit=3, state=state)[0].job == "first"
    assert [run.job for run in store.runs(limit=1, job="first", state=state)] == ["first"]


def test_folding_goes_on_past_what_somebody_put_among_the_ended(own):
    store, client = own
    begin(store, "first")
    for number in range(2 * module._LOOK):
        client.zadd(f"{PREFIX}:finished", {f"garbage {number}": 0.4})
    store.prune(history=2 * T, most=1_000, now=T + DAY)
    assert {} == store._folded_to

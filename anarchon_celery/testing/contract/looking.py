"""What people and machines look at, and handles that meet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ...errors import StoreReplaced
from ...protocol import (
    KnownSchedule,
    Node,
    Offer,
    Registration,
    Renewal,
    RunKey,
    Start,
    Started,
)
from ...stores import CHUNK
from .story import (
    BEAT,
    HOUR,
    MINUTE,
    ODD_NAMES,
    Story,
    T,
    answers,
    everything,
)


class Looking:
    """What people and machines look at, and handles that meet."""

    def test_runs_are_listed_newest_slot_first_and_by_job_and_state(self, store):
        names = ["b", "a", "é"]
        store.register(BEAT, [Registration(job=name, hash="h") for name in names], now=T)
        offers = [Offer(job=name, slots=(T - 1, T)) for name in names]
        store.claim("one:1", offers, nonce="n1", now=T)
        listed = [RunKey(name, slot) for slot in (T, T - 1) for name in ("a", "b", "é")]
        assert listed == [run.key for run in store.runs()]
        assert listed[:4] == [run.key for run in store.runs(limit=4)]
        assert [RunKey("b", T), RunKey("b", T - 1)] == [run.key for run in store.runs(job="b")]
        assert listed[3:] == [run.key for run in store.runs(state="claimed")]
        assert [RunKey("a", T - 1)] == [run.key for run in store.runs(job="a", state="claimed", limit=1)]
        assert store.runs(job="nobody") == []
        assert store.runs(state="running") == []

    def test_of_each_job_the_newest_success_is_told(self, store):
        assert {} == store.successes()
        report, plain, failing = (Story(store, job) for job in ("report", "plain", "failing"))
        for told in (report, plain, failing):
            told.register(now=T - HOUR)
            told.begin(T, token=told.job)
            assert told.finish(T, "failed" if told is failing else "succeeded", token=told.job)
        assert ["plain", "report"] == sorted(store.successes())
        for told in (report, plain):
            told.now += 2 * MINUTE
        report.begin(T + MINUTE)
        assert report.finish(T + MINUTE, "failed")
        assert plain.claim(T + MINUTE, nonce="n2").won
        plain.sent(T + MINUTE, supervised=False)
        assert {"report": (T, T), "plain": (T + MINUTE, plain.now)} == store.successes()

    def test_fifty_runs_are_listed_unless_more_are_asked_for(self, story):
        story.now = T + 60
        story.offer(*range(T, T + 60), overlap="allow")
        assert list(range(T + 59, T + 9, -1)) == [run.slot for run in story.store.runs()]
        assert len(story.store.runs(limit=100)) == 60

    def test_a_chunk_of_slots_is_decided_in_one_call(self, story):
        story.now = T + CHUNK
        claimed = story.offer(*range(T, T + CHUNK), overlap="allow")
        assert (answers(claimed), claimed.floor) == (["won"] * CHUNK, T + CHUNK - 1)

    @pytest.mark.parametrize("names", [ODD_NAMES[0::3], ODD_NAMES[1::3], ODD_NAMES[2::3]], ids="abc")
    def test_a_job_may_have_any_name(self, store, names):
        for name in names:
            story = Story(store, job=name)
            story.register()
            story.begin()
            assert [(T, name)] == [(run.slot, run.job) for run in story.store.runs(job=name)]
            assert story.renew().answer == "ok", name
            assert story.begin_again().attempt == 2, name
            assert story.requeue(token="t2", delay=0), name
            assert isinstance(story.start(token="t3", retries=1), Started), name
            assert story.finish(token="t3"), name
            assert name == story.record().name
            assert store.prune(history=0, most=0, now=story.now + 1) == 1, name
            assert story.claim(nonce="n2").answer == "taken", name

    def test_jobs_whose_names_look_alike_are_apart(self, store):
        store.register(BEAT, [Registration(job=name, hash=f"hash of {name}") for name in ODD_NAMES], now=T)
        offers = [Offer(job=name, slots=(T,)) for name in ODD_NAMES]
        claimed = store.claim("one:1", offers, nonce="n1", now=T)
        assert [(name, "won") for name in ODD_NAMES] == [
            (claim.key.job, claim.answer) for answer in claimed for claim in answer.claims
        ]
        assert sorted(ODD_NAMES) == [job.name for job in store.jobs()]
        assert sorted(ODD_NAMES) == [run.job for run in store.runs()]
        assert sorted(ODD_NAMES) == [run.job for run in store.expired(BEAT, 99, now=T + HOUR).runs]
        assert {f"hash of {name}" for name in ODD_NAMES} == {job.hashes[0][0] for job in store.jobs()}

    def test_words_are_kept_as_they_are(self, store):
        node = Node(id="i:1", name="höst {1}:\t'2'", kind="beat")
        store.register(node, [Registration(job="report", hash='{"every": "5s", "é": [1, null]}')], now=T)
        offer = Offer(job="report", slots=(T,))
        store.claim(node.name, [offer], nonce="n 'ö'", now=T)
        store.start(Start(key=RunKey("report", T), token='t:"é"', worker="wörker 1", task_id=None), now=T)
        store.finish(RunKey("report", T), 't:"é"', "failed", reason="a\nb: é 100 %\x1b[0m", now=T)
        run, (job,) = store.runs()[0], store.jobs()
        assert (node.name, "n 'ö'", 't:"é"', "wörker 1", None, "a\nb: é 100 %\x1b[0m") == (
            run.node, run.nonce, run.token, run.owner, run.task_id, run.reason,
        )  # fmt: skip
        known = KnownSchedule('{"every": "5s", "é": [1, null]}', since=T, floor=T, seen=T)
        assert ([replace(node, seen=T)], (known,)) == (store.nodes(), job.hashes)

    def test_an_empty_call_is_answered_with_nothing(self, store):
        assert store.register(BEAT, [], now=T) == []
        assert store.claim("one:1", [], nonce="n1", now=T) == []
        assert store.redispatch("one:1", [], nonce="m1", now=T) == []
        assert store.renew([], now=T) == []
        assert store.release([], now=T) == []
        assert store.settle([], now=T) == []
        store.sent([], now=T)
        assert everything(store) == ([], [])

    def test_two_handles_on_one_store_meet(self, make_store, story):
        second = Story(make_store())
        assert story.claim(nonce="n1").won
        assert second.claim(nonce="n2").answer == "taken"
        assert isinstance(second.start(), Started)
        assert everything(story.store) == everything(second.store)
        second.store.close()

    def test_two_prefixes_on_one_store_do_not_meet(self, make_store, story):
        story.begin()
        stranger = Story(make_store("another"))
        assert (*everything(stranger.store), stranger.store.nodes()) == ([], [], [])
        stranger.register()
        assert stranger.claim(nonce="n2").won
        assert 1 == len(story.store.runs()) == len(stranger.store.runs())
        stranger.store.close()

    def test_a_store_that_was_closed_may_be_used_again(self, story):
        story.begin()
        story.store.close()
        assert story.renew().answer == "ok"
        story.store.close()
        story.store.close()
        assert story.run().state == "running"

    def test_an_answer_names_the_store(self, make_store, store):
        second = make_store()
        stranger = make_store("another")
        for handle in (store, second, stranger):
            handle.register(BEAT, [])
        assert store.identity
        assert store.identity == second.identity
        assert store.identity != stranger.identity
        second.close()
        stranger.close()

    def test_a_wiped_store_is_another_and_learns_its_jobs_back(self, wipe_store, story):
        story.begin()
        before = story.store.identity
        wipe_store()
        story.now += MINUTE
        with pytest.raises(StoreReplaced):
            story.claim(T + MINUTE, nonce="n2")
        assert everything(story.store) == ([], [])
        assert story.register(cursor=T, first_seen=T - HOUR, supervised=True).floor == T
        assert before != story.store.identity
        story.now += MINUTE
        assert answers(story.offer(T, T + MINUTE, nonce="n3")) == ["taken", "won"]
        assert story.renew(fence=1) == Renewal(answer="lost", reason="the store does not know the run")

    def test_a_handle_may_be_used_by_several_threads(self, story):
        slots = range(T, T + 20)
        story.now = T + 20

        def claim_all(racer: int) -> list[int]:
            claims = [story.claim(slot, nonce=f"racer-{racer}", overlap="allow") for slot in slots]
            return [claim.key.slot for claim in claims if claim.won]

        with ThreadPoolExecutor(8) as threads:
            won = [slot for slots_won in threads.map(claim_all, range(8)) for slot in slots_won]
        assert list(slots) == sorted(won)

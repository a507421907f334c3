"""A store that was wiped, restored or failed over is another one, and young: the contract's part about it.

Each sentence of the protocol about it is a test, on every store; what is forgotten is forgotten by the
server itself (``tests/rollback.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from anarchon_celery.errors import StoreReplaced
from anarchon_celery.protocol import (
    PUT_BACK,
    YOUNG,
    Claim,
    Holding,
    Redispatch,
    Registration,
    Renewal,
    Run,
    Sent,
    Stale,
    Started,
)
from anarchon_celery.slots import Leap
from anarchon_celery.stores import new_nonce
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
    everything,
    nothing_written,
)
from tests.rollback import snapshot, wipe
from tests.test_stores import site, store, story

__all__ = ["site", "store", "story"]  # fixtures

LEASE = 30 * SECOND


@dataclass
class Told(Story):
    """A story whose worker has a handle of its own, and holds what it began as a keeper does."""

    worker: Story | None = None

    def start(self, *args, **how) -> Started | Stale:
        return self.working().start(*args, **how)

    def finish(self, *args, **how) -> bool:
        return self.working().finish(*args, **how)

    def working(self) -> Story:
        assert self.worker is not None
        self.worker.now, self.worker.job = self.now, self.job
        return self.worker

    def held(self, started: Started, slot: int = T, *, token: str = "t1", **how) -> Holding:
        run = self.run(slot)
        what: dict[str, Any] = {
            "attempt": started.attempt, "owner": "celery@one:3", "task_id": f"task-of-{token}",
            "lease": LEASE, "trigger": started.trigger, "dispatch": run.dispatch,
            "claimed_at": run.claimed_at, "store": started.store, "trusted": True,
        }  # fmt: skip
        return Holding(key=self.key(slot), token=token, fence=started.fence, **(what | how))

    def put_back(self, held: Holding) -> Renewal:
        return self.working().store.renew([held], now=self.now)[0]


@pytest.fixture
def told(story, site):
    worker = Story(site.open())
    yield Told(story.store, worker=worker)
    worker.store.close()


@pytest.fixture
def wiped(told):
    """A run was begun at T, and a second later the store forgets everything; the nodes do not."""
    held = told.held(told.begin())
    told.now += SECOND
    wipe(told.store)
    return told, held


@pytest.fixture
def rolled_back(told):
    """The claim, the sending and the start of the run are forgotten; everything before is there."""
    restore = snapshot(told.store)
    held = told.held(told.begin())
    told.now += SECOND
    restore()
    return told, held


def is_refused(told: Story, ask) -> bool:
    """Whether the store has nothing to do with a node of another one."""
    before = everything(told.store)
    try:
        ask()
    except StoreReplaced as reason:
        assert str(reason).startswith(f"{told.store.shown} is another store than before")
        assert before == everything(told.store)
        return True
    return False


def lose_a_hair(told: Story) -> None:
    """The store has forgotten no more than that some node lived, and is told so."""
    told.store._node, told.store._noted = "gone", told.now
    told.store.renew([], now=told.now)
    assert told.now == told.store.young_since
    come_back(told, cursor=None)


def come_back(told: Story, **memory) -> None:
    """The node registers with what it remembers."""
    told.register(**({"cursor": T, "first_seen": T - HOUR, "effective": T - HOUR} | memory))


# A store is another one -------------------------------------------------------------------------


def test_a_store_that_comes_to_be_where_none_was_known_is_not_young(story):
    assert story.begin()
    assert story.store.young_since is None


def test_a_node_of_a_wiped_store_is_refused_until_it_has_registered(wiped):
    told, _ = wiped
    before = told.store.identity
    assert is_refused(told, lambda: told.claim(T + SECOND, nonce="n2"))
    assert is_refused(told, lambda: told.expired())
    assert before == told.store.identity
    assert ([], []) == everything(told.store)
    come_back(told)
    assert before != told.store.identity
    assert not is_refused(told, lambda: told.expired())


@pytest.mark.parametrize("verb", ["claim", "sent", "expired", "redispatch", "prune"])
def test_each_verb_of_a_beat_is_refused_that_knows_another_store(wiped, verb):
    told, _ = wiped
    asks = {
        "claim": lambda: told.claim(nonce="n2"),
        "sent": lambda: told.store.sent([Sent(key=told.key(), dispatch=1, task_id="t")], now=told.now),
        "expired": lambda: told.expired(),
        "redispatch": lambda: told.redispatch(
            seen=Redispatch(key=told.key(), state="running", dispatch=1, deadline=T)
        ),
        "prune": lambda: told.store.prune(history=0, most=1, now=told.now),
    }
    assert is_refused(told, asks[verb])


def test_each_node_has_to_register_itself(wiped, site):
    told, _ = wiped
    other = Story(site.open(), now=told.now)
    other.store.identity, other.store._node = told.store.identity, BEAT.id  # it knew the store, too
    come_back(told)
    assert is_refused(other, lambda: other.claim(T + SECOND, nonce="n2"))
    come_back(other)
    assert "wait" == other.claim(T + SECOND, nonce="n2").answer
    other.store.close()


def test_a_node_that_knew_no_store_is_not_refused(wiped, site):
    told, _ = wiped
    come_back(told)
    fresh = Story(site.open(), now=told.now)
    assert not is_refused(fresh, lambda: fresh.expired(node=OTHER))
    fresh.store.close()


def test_a_wiped_store_is_young_as_soon_as_somebody_knew_another(wiped, site):
    """A node that has just started was the first one there, and nobody is young for it."""
    told, held = wiped
    fresh = Story(site.open(), now=told.now)
    fresh.register()
    assert fresh.store.young_since is None
    told.now += SECOND
    assert PUT_BACK == told.put_back(held).reason
    assert fresh.claim(T + SECOND, nonce="n2").answer == "wait"
    assert T + SECOND == fresh.store.young_since
    fresh.store.close()


def test_a_store_that_lost_a_claim_it_had_answered_is_another_one(rolled_back):
    told, _ = rolled_back
    before = told.store.identity
    assert is_refused(told, lambda: told.expired())
    come_back(told)
    assert before != told.store.identity
    assert T + SECOND == told.store.young_since


def test_who_comes_second_finds_the_store_changed_already(rolled_back, site):
    told, _ = rolled_back
    second = Story(site.open(), now=told.now)
    second.store.identity, second.store._node = told.store.identity, OTHER.id
    assert is_refused(told, lambda: told.expired())
    come_back(told)
    assert is_refused(second, lambda: second.expired(node=OTHER))
    come_back(second)
    assert (told.store.identity, told.store.young_since) == (second.store.identity, second.store.young_since)
    second.store.close()


def test_a_store_whose_older_state_comes_back_again_is_young_again(told):
    """Its identity is an old one then, of which nobody knows any more."""
    restore = snapshot(told.store)
    for _ in range(3):
        told.begin(told.now, token=new_nonce(), overlap="allow")
        told.now += HOUR
        restore()
        assert is_refused(told, lambda: told.expired())
        come_back(told, cursor=None)
        assert told.now == told.store.young_since
        told.now += HOUR


def test_a_worker_lets_a_store_know_that_an_older_state_came_back(told):
    restore = snapshot(told.store)
    lose_a_hair(told)
    told.now += LEASE
    held = told.held(told.begin(told.now), told.now)
    told.now += SECOND
    restore()
    assert PUT_BACK == told.put_back(held).reason
    assert told.now == told.worker.store.young_since


def test_who_comes_late_does_not_make_an_old_store_young(wiped, site):
    told, _ = wiped
    late = Story(site.open(), now=told.now + DAY)
    late.store.identity, late.store._at, late.store._node = told.store.identity, T, BEAT.id
    come_back(told)
    young_since = told.store.young_since
    assert is_refused(late, lambda: late.expired())
    late.register()
    assert (young_since, told.store.identity) == (late.store.young_since, late.store.identity)
    assert late.claim(T + DAY, nonce="n9").won
    late.store.close()


def test_a_store_that_lost_nothing_that_was_answered_is_the_same(story):
    story.begin()
    restore = snapshot(story.store)
    before = story.store.identity
    story.now += SECOND
    restore()
    assert not is_refused(story, lambda: story.expired())
    assert before == story.store.identity


def test_a_lost_answer_is_no_lost_write(story):
    """What stands there is newer than what the node was answered."""
    story.claim()
    before = story.store.identity, story.store._noted
    story.now += SECOND
    story.claim(T + SECOND, nonce="n2", overlap="allow")
    story.store._noted = before[1]  # the answer did not come
    story.now += SECOND
    assert not is_refused(story, lambda: story.claim(T + 2 * SECOND, nonce="n3", overlap="allow"))
    assert before[0] == story.store.identity


def test_a_clock_that_went_back_is_no_lost_write(story):
    story.claim()
    before = story.store.identity, story.store._noted
    story.now -= HOUR
    assert not is_refused(story, lambda: story.expired())
    story.store._noted = before[1]  # the answer did not come
    story.now += SECOND
    assert not is_refused(story, lambda: story.expired())
    story.register(now=story.now)
    assert before[0] == story.store.identity


def test_a_node_that_was_forgotten_after_a_day_of_silence_has_lost_nothing(story):
    story.claim()
    before = story.store.identity
    story.now += DAY + HOUR
    story.store._node, noted = None, (story.store._node, story.store._noted)
    story.store.register(OTHER, [], now=story.now)  # which forgets who is gone
    story.store._node, story.store._noted = noted
    assert not is_refused(story, lambda: story.expired())
    assert before == story.store.identity


# While it is young ------------------------------------------------------------------------------


def test_a_claim_waits_for_one_lease_and_writes_nothing(wiped):
    told, _ = wiped
    come_back(told)
    leap = Leap(first=T + 1, last=T + 500, count=3)
    with nothing_written(told.store):
        claimed = told.offer(T + SECOND, nonce="n2", leap=leap, late=1)
    waits = Claim(key=told.key(T + SECOND), answer="wait", wait=LEASE)
    assert ((waits,), None, T) == (claimed.claims, claimed.missed, claimed.floor)
    told.now += LEASE - 1
    assert 1 == told.claim(T + SECOND, nonce="n3").wait
    told.now += 1
    assert told.claim(T + SECOND, nonce="n4").won


def test_it_is_young_for_each_job_as_long_as_its_own_lease(wiped):
    told, _ = wiped
    come_back(told)
    told.now += 10 * SECOND
    assert "wait" == told.claim(T + SECOND, nonce="n2").answer
    assert told.claim(T + SECOND, nonce="n3", lease=10 * SECOND).won


def test_a_start_waits_for_one_lease(wiped):
    told, _ = wiped
    come_back(told)
    with nothing_written(told.store):
        assert Stale(why=YOUNG, wait=LEASE) == told.start(token="t2", claimed_at=T)
        assert told.start(token="t2", claimed_at=T, lease=LEASE + SECOND).wait == LEASE + SECOND
    told.now += LEASE
    assert isinstance(told.start(token="t2", claimed_at=T), Started), "what is known of it is in the message"


def test_a_start_whose_answer_was_lost_is_told_again(told):
    started = told.begin()
    lose_a_hair(told)
    assert started == told.start()


def test_nothing_that_runs_is_dispatched_again_and_all_else_is(told):
    told.begin()
    told.now += SECOND
    told.claim(T + SECOND, nonce="n2", overlap="allow")
    told.wait_for_deadline()
    lose_a_hair(told)
    seen = {run.state: told.as_seen(run.slot) for run in told.store.runs()}
    with nothing_written(told.store):
        answer = told.redispatch(seen=seen["running"])
    assert ("wait", LEASE, "running") == (answer.answer, answer.wait, answer.run.state)
    assert told.redispatch(T + SECOND, seen=seen["claimed"], nonce="m2").won
    told.sent(T + SECOND, start_timeout=1)
    told.now += 1
    with nothing_written(told.store):
        queued = told.redispatch(T + SECOND, nonce="m4")
    assert ("wait", LEASE - 1) == (queued.answer, queued.wait), "it could not start"
    told.now += LEASE - 1
    assert told.redispatch(seen=seen["running"], nonce="m3").won


def test_while_its_clock_goes_back_a_little_it_stays_young(rolled_back):
    told, _ = rolled_back
    come_back(told, cursor=None)
    told.now -= 500
    assert LEASE == told.claim(T, nonce="n2").wait


def test_where_its_clock_went_back_by_more_than_a_lease_it_is_not_young(rolled_back):
    told, _ = rolled_back
    come_back(told, cursor=None)
    told.now -= MINUTE
    assert told.claim(T - MINUTE + SECOND, nonce="n2").won


# Holders put their runs back --------------------------------------------------------------------


def test_a_holder_that_trusts_its_lease_puts_its_run_back_into_a_wiped_store(wiped):
    is_put_back(*wiped)


def test_a_holder_that_trusts_its_lease_puts_its_run_back_where_the_last_writes_were_lost(rolled_back):
    is_put_back(*rolled_back)


def is_put_back(told: Told, held: Holding) -> None:
    assert Renewal(answer="ok", reason=PUT_BACK) == told.put_back(held)
    assert told.run() == Run(
        job="report", slot=T, state="running", attempt=1, fence=held.fence, owner="celery@one:3", token="t1",
        task_id="task-of-t1", deadline=told.now + LEASE, span=LEASE, lease=LEASE, claimed_at=T, started_at=T,
    )  # fmt: skip
    assert (held.fence, True) == (told.record().fence, told.record().supervised)
    told.now += SECOND
    assert Renewal(answer="ok") == told.put_back(held)
    assert told.finish()
    assert "succeeded" == told.run().state


def test_what_was_put_back_is_taken_and_meets_the_overlap_policy(rolled_back):
    told, held = rolled_back
    told.put_back(held)
    come_back(told)
    told.now += LEASE
    claimed = told.offer(T, T + SECOND, nonce="n2")
    assert (["taken", "overlap"], T + SECOND) == (answers(claimed), claimed.floor)


def test_a_lease_that_its_holder_does_not_trust_is_lost(rolled_back):
    told, held = rolled_back
    with nothing_written(told.store):
        answer = told.put_back(replace(held, trusted=False))
    assert Renewal(answer="lost", reason="the store does not know the run") == answer


def test_a_holder_alone_lets_the_store_know_that_it_lost_writes(rolled_back):
    told, held = rolled_back
    told.store._noted = None
    told.put_back(held)
    assert held.store != told.worker.store.identity
    assert is_refused(told, lambda: told.claim(T + SECOND, nonce="n2"))
    told.put_back(replace(held, store=told.worker.store.identity))
    assert T + SECOND == told.worker.store.young_since, "it is known by now"


@pytest.mark.parametrize(
    "state", ["claimed", "queued", "released", "buffered", "running", "published", "never started"]
)
def test_a_run_is_put_back_over_an_older_record(told, state):
    told.claim()
    if state == "running":
        told.sent()
        told.start(token="t0")
    elif state == "published":
        told.sent(supervised=False)
    elif state == "released":
        told.release(nonce="n1")
    elif state == "buffered":
        told.sent()
        told.store.pause("report", reason="r", by="anna", now=told.now)
    elif state in ("queued", "never started"):
        told.sent()
    for dispatch in range(4 if state == "never started" else 0):
        told.wait_for_deadline()
        told.redispatch(nonce=f"m{dispatch}")
        told.sent()
    if state == "never started":
        told.wait_for_deadline()
        told.redispatch(nonce="last")
    stored = told.run()
    assert stored.state == ("abandoned" if state == "never started" else state)
    restore = snapshot(told.store)
    if state == "buffered":
        told.store.resume("report", now=told.now)
    if state == "running":
        told.wait_for_deadline()
        told.redispatch(nonce="m1")
        told.sent()
    started = told.start()
    assert isinstance(started, Started)
    held = told.held(started)
    restore()
    told.now += SECOND
    assert PUT_BACK == told.put_back(held).reason
    run = told.run()
    assert ("running", held.fence, "t1", started.attempt, stored.dispatch) == (
        run.state, run.fence, run.token, run.attempt, run.dispatch,
    )  # fmt: skip
    assert told.now + LEASE == run.deadline
    assert [run.key] == [other.key for other in told.store.runs(state="running")]


def test_a_run_is_not_put_back_over_one_that_ended_or_was_started_later(told):
    first = told.held(told.begin(), store="")
    told.begin_again()
    come_back(told, cursor=None)
    for _ in ("it runs", "it ended"):
        with nothing_written(told.store):
            assert "lost" == told.put_back(first).answer
            assert "lost" == told.put_back(replace(first, fence=told.run().fence)).answer
        told.finish(token="t2")
    lose_a_hair(told)
    with nothing_written(told.store):
        assert "lost" == told.put_back(replace(first, fence=told.run().fence + 1)).answer


def test_a_store_old_enough_puts_a_run_back_only_if_its_job_has_no_other_active_one(wiped):
    told, held = wiped
    come_back(told)
    told.now += LEASE
    assert told.claim(T + SECOND, nonce="n2").won
    with nothing_written(told.store):
        assert "lost" == told.put_back(held).answer
    told.sent(T + SECOND)
    told.start(T + SECOND, token="t2")
    told.finish(T + SECOND, token="t2")
    assert PUT_BACK == told.put_back(held).reason


def test_a_store_old_enough_puts_no_run_back_over_a_recorded_one(rolled_back):
    told, held = rolled_back
    come_back(told, cursor=None)
    told.now += LEASE
    assert told.claim(T, nonce="n2").won
    with nothing_written(told.store):
        assert "lost" == told.put_back(held).answer
    told.sent()
    assert isinstance(told.start(token="t2", claimed_at=T), Started)
    with nothing_written(told.store):
        assert "lost" == told.put_back(held).answer


def test_the_next_start_has_a_higher_fence_though_the_stores_clock_went_back(rolled_back):
    told, held = rolled_back
    told.put_back(held)
    come_back(told, cursor=None)
    told.now -= HOUR
    told.finish()
    assert told.begin(T - HOUR, token="t2").fence == held.fence + 1


def test_a_lease_that_its_holder_does_not_trust_is_not_put_back_over_an_older_record(told):
    told.claim()
    told.sent()
    restore = snapshot(told.store)
    held = told.held(told.start())
    restore()
    with nothing_written(told.store):
        assert "lost" == told.put_back(replace(held, trusted=False)).answer


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_what_was_claimed_before_anybody_told_the_store_waits_if_overlap_forbids_it(told, overlap):
    restore = snapshot(told.store)
    held = told.held(told.begin(), overlap=overlap)
    told.store._noted = None  # it is another beat that claims
    told.now += SECOND
    restore()
    assert told.claim(T + SECOND, nonce="n2").won
    assert PUT_BACK == told.put_back(held).reason
    states = {run.slot - T: run.state for run in told.store.runs()}
    assert {0: "running", SECOND: "claimed" if overlap == "allow" else "buffered"} == states
    told.finish()
    assert ("claimed" if overlap == "allow" else "released") == told.run(T + SECOND).state


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_what_was_started_before_anybody_told_the_store_stays_if_overlap_forbids_both(told, overlap):
    restore = snapshot(told.store)
    held = told.held(told.begin(), overlap=overlap)
    told.store._noted = None  # it is another beat that claims
    told.now += SECOND
    restore()
    told.begin(T + SECOND, token="t2")
    answer = told.put_back(held).answer
    running = [run.slot - T for run in told.store.runs(state="running")]
    assert (("lost", [SECOND]) if overlap == "skip" else ("ok", [SECOND, 0])) == (answer, running)


def test_a_run_is_put_back_beside_an_earlier_one_whose_end_was_lost(told):
    earlier = told.begin()
    restore = snapshot(told.store)
    told.finish()
    told.now += SECOND
    held = told.held(told.begin(T + SECOND, token="t2"), T + SECOND, token="t2")
    restore()
    assert PUT_BACK == told.put_back(held).reason
    fences = {run.slot - T: run.fence for run in told.store.runs(state="running")}
    assert {0: earlier.fence, SECOND: held.fence} == fences


def test_runs_of_several_jobs_are_put_back_in_one_call(told):
    other = Told(told.store, job="other", worker=told.worker)
    other.register(now=T - HOUR)
    restore = snapshot(told.store)
    held = [one.held(one.begin()) for one in (told, other)]
    restore()
    told.now += SECOND
    store = told.worker.store
    assert ["ok", "ok"] == [said.answer for said in store.renew(held, now=told.now)]
    assert [1, 1] == [run.attempt for run in store.runs(state="running")]
    assert {store.identity} == {said.store for said in store.renew(held, now=told.now)}


# Messages of lost claims ------------------------------------------------------------------------


def test_the_message_of_a_lost_claim_starts_its_run_once_the_store_is_old_enough(rolled_back):
    told, _ = rolled_back
    come_back(told, cursor=None)
    told.now += LEASE
    assert isinstance(told.start(token="t2", claimed_at=T), Started)
    assert ("running", 1) == (told.run().state, told.run().attempt)
    assert "taken" == told.claim(T, nonce="n2").answer


def test_the_message_of_a_run_that_ended_and_was_forgotten_with_old_history_starts_nothing(told):
    told.begin()
    told.finish()
    told.now += 2 * DAY
    told.store.prune(history=MINUTE, most=1, now=told.now)
    lose_a_hair(told)
    told.now += LEASE
    with nothing_written(told.store):
        assert Stale(why="unknown") == told.start(token="t2", claimed_at=T)


def test_the_message_of_a_claim_that_was_lost_with_its_job_starts_its_run(story, site):
    """The floor was learnt back from the node: it says nothing of a record."""
    restore = snapshot(story.store)
    new = Story(story.store, job="new")
    new.register()
    new.claim()
    restore()
    new.now += SECOND
    assert is_refused(new, lambda: new.expired())
    new.register(cursor=T, floor=T, first_seen=T)
    new.now += LEASE
    assert isinstance(new.start(claimed_at=T), Started)
    assert "taken" == new.claim(nonce="n2").answer


# What nodes were told ---------------------------------------------------------------------------


@pytest.fixture
def lost_race(story, site):
    """Another node won the slot T; this one was told so, and then the store forgot it."""
    restore = snapshot(story.store)
    winner = Story(site.open())
    winner.store.register(OTHER, [Registration(job="report", hash="h1")], now=T)
    assert winner.claim(nonce="n2").won
    assert ("taken", T) == (story.claim().answer, story.record().floor)
    winner.store.close()
    restore()
    story.now += SECOND
    return story


def test_a_node_that_was_told_of_a_claim_lets_the_store_know_that_it_is_lost(lost_race):
    story, before = lost_race, lost_race.store.identity
    with nothing_written(story.store):
        assert ["wait"] == answers(story.offer(T + MINUTE, hash="h1", nonce="n3", floor=T))
    assert story.now == story.store.young_since
    assert is_refused(story, lambda: story.expired())
    assert story.register(cursor=T, floor=T).floor is None, "and it goes back to the slot"
    assert before != story.store.identity
    story.now += LEASE
    assert ["won"] == answers(story.offer(T, hash="h1", nonce="n4"))


def test_so_does_one_that_registers_again(lost_race):
    before = lost_race.store.identity
    assert lost_race.register(cursor=T, floor=T).floor is None
    assert before != lost_race.store.identity
    assert lost_race.now == lost_race.store.young_since


def test_a_floor_that_the_store_has_is_no_lost_write(story):
    story.claim(hash="h1")
    before = story.store.identity
    story.now += MINUTE
    story.register(cursor=T, floor=T)
    assert ["overlap"] == answers(story.offer(T + MINUTE, hash="h1", nonce="n2", floor=T))
    story.expired()
    story.now -= HOUR  # its clock went back, and all that lies ahead is cut
    story.expired()
    story.now += SECOND
    assert ["won"] == answers(story.offer(story.now, hash="h1", nonce="n3", floor=T, overlap="allow"))
    assert (before, None) == (story.store.identity, story.store.young_since)


def test_a_wiped_store_is_told_by_each_node_what_was_decided(wiped, site):
    """Whoever registers first may know less."""
    told, _ = wiped
    other = Story(site.open(), now=told.now)
    other.store.identity = told.store.identity  # it knew the store before, too
    come_back(told, cursor=T - MINUTE, floor=T - MINUTE)
    assert other.register(cursor=T, floor=T).floor == T
    assert other.store.identity == told.store.identity
    other.store.close()
    told.now += LEASE
    assert "taken" == told.claim(T, hash="h1", nonce="n2").answer


def test_no_two_starts_have_one_fence_whatever_was_lost(told):
    fences = []
    restore = snapshot(told.store)
    for second in range(3):
        told.now = T + second * (LEASE + SECOND)
        fences.append(told.begin(token=f"t{second}").fence)
        restore()
        told.now += 1
        come_back(told, cursor=None)
        restore = snapshot(told.store)
    assert sorted(set(fences)) == fences

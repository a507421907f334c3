"""A node tells the store of its jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...protocol import (
    Job,
    KnownSchedule,
    Node,
    Registered,
    Registration,
    Release,
    Started,
)
from .story import (
    BEAT,
    DAY,
    HOUR,
    MINUTE,
    OLD,
    OTHER,
    SEEN_EVERY,
    Story,
    T,
    answers,
)


class Registering:
    """A node tells the store of its jobs."""

    def test_a_job_is_remembered_with_the_time_it_was_first_seen(self, store):
        answer = Story(store).register("h1", now=T)
        assert answer == Registered(job="report", floor=None, first_seen=T, effective=T, supervised=False)
        known = KnownSchedule("h1", T, seen=T)
        assert [Job(name="report", hashes=(known,), first_seen=T, seen=T)] == store.jobs()

    def test_registering_again_says_only_that_the_job_is_still_had(self, story):
        before = story.record()
        assert story.register("h1", now=T).first_seen == T - HOUR
        (known,) = before.hashes
        assert replace(before, seen=T, hashes=(known._replace(seen=T),)) == story.record()

    def test_a_new_hash_takes_effect_from_the_time_it_was_first_seen(self, story):
        assert story.register("h2", now=T).effective == T
        assert story.register("h2", now=T + HOUR).first_seen == T - HOUR
        assert story.record().hashes == (("h1", T - HOUR, None, T - HOUR), ("h2", T, None, T + HOUR))

    def test_old_and_new_hash_side_by_side_keep_their_times(self, story):
        """A node that goes on has a cursor."""
        story.register("h2", now=T)
        assert story.register("h1", now=T + 1, cursor=T - MINUTE).effective == T - HOUR
        assert story.register("h2", now=T + 2).effective == T
        assert story.record().seen == T + 2

    def test_a_store_that_does_not_know_a_job_learns_it_back_from_a_nodes_memory(self, store):
        answer = Story(store).register(cursor=T - MINUTE, first_seen=T - DAY, supervised=True)
        assert answer == Registered(
            job="report", floor=T - MINUTE, first_seen=T - DAY, effective=T - DAY, supervised=True
        )
        assert tuple(answers(Story(store).offer(T - MINUTE, T))) == ("taken", "won")

    def test_what_a_node_remembers_from_the_future_is_cut_to_now(self, store):
        answer = Story(store).register(cursor=T + HOUR, first_seen=T + HOUR)
        assert (answer.floor, answer.first_seen) == (T, T)

    @pytest.mark.parametrize("cursor", [T - DAY, T + 1 * MINUTE])
    def test_of_a_job_that_the_store_knows_the_store_is_right(self, story, cursor):
        story.begin()
        story.now += HOUR
        answer = story.register(cursor=cursor, first_seen=T - 9 * DAY, supervised=False)
        assert answer == Registered(
            job="report", floor=T, first_seen=T - HOUR, effective=T - HOUR, supervised=True
        )

    def test_a_job_without_a_floor_is_known_too(self, story):
        assert story.register(cursor=T - MINUTE).floor is None

    def test_a_job_that_only_a_late_message_brought_back_is_still_learnt_from_memory(self, store):
        story = Story(store)
        assert isinstance(story.start(claimed_at=OLD), Started)
        assert story.claim(T + MINUTE).answer == "unknown"
        fence = story.record().fence
        answer = story.register(cursor=T - MINUTE, first_seen=T - DAY)
        assert answer == Registered(
            job="report", floor=T - MINUTE, first_seen=T - DAY, effective=T - DAY, supervised=True
        )
        assert fence == story.record().fence

    def test_a_node_changes_no_job_but_its_own(self, story):
        before = story.record()
        story.store.register(OTHER, [Registration(job="other", hash="x")], now=T)
        story.store.register(OTHER, [], now=T + 1)
        assert [job.name for job in story.store.jobs()] == ["other", "report"]
        assert before == story.record()

    def test_jobs_are_answered_in_the_order_asked(self, store):
        asked = [Registration(job=name, hash="h") for name in ("b", "c", "a")]
        assert [answer.job for answer in store.register(BEAT, asked, now=T)] == ["b", "c", "a"]
        assert [job.name for job in store.jobs()] == ["a", "b", "c"]

    def test_nodes_are_listed_by_name_and_known_by_incarnation(self, store):
        third = Node(id="incarnation-3", name="one:1", kind="worker")
        for node in (OTHER, third, BEAT):
            store.register(node, [], now=T)
        assert [replace(node, seen=T) for node in (BEAT, third, OTHER)] == store.nodes()

    def test_a_node_lives_that_registers_or_looks_for_expired_runs(self, store):
        """To within a few seconds: a store need not write at each idle poll."""
        store.register(BEAT, [], now=T)
        store.expired(OTHER, 10, now=T + 1)
        assert {node.name: node.seen for node in store.nodes()} == {"one:1": T, "two:2": T + 1}
        store.expired(BEAT, 10, now=T + SEEN_EVERY)
        store.register(OTHER, [], now=T + 2)
        assert {node.name: node.seen for node in store.nodes()} == {"one:1": T + SEEN_EVERY, "two:2": T + 2}

    def test_a_node_that_is_shown_by_another_name_is_seen_so_at_once(self, store):
        store.register(BEAT, [], now=T)
        store.expired(replace(BEAT, name="new:1"), 10, now=T + 1)
        assert store.nodes() == [replace(BEAT, name="new:1", seen=T + 1)]

    def test_a_node_that_leaves_is_forgotten_and_nothing_looks_as_if_it_had_been_lost(self, story):
        """What it asks after that is nobody's; its jobs stay, and so does the store's identity."""
        story.store.register(OTHER, [], now=T)
        identity = story.store.identity
        for _ in range(2):  # its answer may be lost
            story.store.leave(OTHER, now=T + 1)
        assert [BEAT.id] == [node.id for node in story.store.nodes()]
        assert [False] == story.store.release([Release(key=story.key(), nonce="n")], now=T + 2)
        assert (identity, None) == (story.store.identity, story.store.young_since)
        assert ["report"] == [job.name for job in story.store.jobs()]
        story.store.register(OTHER, [], now=T + 3)
        assert {BEAT.id, OTHER.id} == {node.id for node in story.store.nodes()}

    def test_a_node_that_was_not_seen_for_a_day_is_forgotten_when_another_registers(self, store):
        store.register(BEAT, [], now=T)
        store.register(OTHER, [], now=T + DAY)
        assert [node.name for node in store.nodes()] == ["one:1", "two:2"]
        store.register(OTHER, [], now=T + DAY + 1)
        assert [node.name for node in store.nodes()] == ["two:2"]

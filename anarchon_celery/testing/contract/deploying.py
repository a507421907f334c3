"""A job has several schedules at once."""

from __future__ import annotations

import pytest

from ...protocol import (
    REMEMBERED_HASHES,
    Claim,
    RunKey,
    Start,
    Started,
)
from ...slots import Leap
from .scenes import (
    begins,
    floors,
    nothing_new,
    pause,
)
from .story import (
    DAY,
    HOUR,
    MINUTE,
    OLD,
    SECOND,
    Story,
    T,
    answers,
    nothing_written,
)


class Deploying:
    """A job has several schedules at once."""

    @pytest.fixture
    def deploy(self, story):
        """Nodes with h1 and, since a minute before T, nodes with h2; it is a minute past T."""
        story.register("h2", now=T - MINUTE)
        story.now = T + MINUTE
        return story

    def test_a_slot_before_what_another_schedule_decided_is_decided_too(self, deploy):
        assert deploy.claim(T + 10 * SECOND, hash="h1").won
        claimed = deploy.offer(T, T + 5 * SECOND, hash="h2", overlap="allow", nonce="n2")
        assert (["won", "won"], T + 5 * SECOND) == (answers(claimed), claimed.floor)
        assert len(deploy.store.runs()) == 3

    def test_what_a_claim_decides_raises_the_floor_of_its_schedule_and_the_jobs(self, deploy):
        assert deploy.offer(T + SECOND, hash="h1").floor == T + SECOND
        assert ({"h1": T + SECOND, "h2": None}, T + SECOND) == (floors(deploy), deploy.record().floor)
        assert deploy.offer(T, hash="h2", overlap="allow", nonce="n2").floor == T
        assert ({"h1": T + SECOND, "h2": T}, T + SECOND) == (floors(deploy), deploy.record().floor)

    @pytest.mark.parametrize("overlap", ["skip", "queue", "cancel"])
    def test_a_slot_that_meets_a_run_of_another_schedule_leaves_a_record(self, deploy, overlap):
        deploy.begin(T + 10 * SECOND, hash="h1")
        assert deploy.claim(T, hash="h2", overlap=overlap, nonce="n2").answer == "overlap"
        assert ("buffered" if overlap == "queue" else "skipped") == deploy.run(T).state
        assert {"h1": T + 10 * SECOND, "h2": T} == floors(deploy)

    @pytest.mark.parametrize("overlap", ["queue", "cancel"])
    def test_a_slot_displaces_no_later_one(self, deploy, overlap):
        deploy.begin(T - SECOND, hash="h1")
        assert deploy.claim(T + SECOND, hash="h1", overlap="queue", nonce="n1").run.state == "buffered"
        before = deploy.run(T - SECOND), deploy.run(T + SECOND)
        claimed = deploy.offer(T, hash="h2", overlap=overlap, nonce="n2")
        assert (["overlap"], "skipped") == (answers(claimed), deploy.run(T).state)
        assert before == (deploy.run(T - SECOND), deploy.run(T + SECOND))
        with nothing_written(deploy.store):
            assert claimed == deploy.offer(T, hash="h2", overlap=overlap, nonce="n2")

    @pytest.mark.parametrize("state", ["claimed", "queued", "running", "released"])
    def test_a_slot_stops_no_run_of_a_later_one(self, deploy, state):
        deploy.claim(T + SECOND, hash="h1", nonce="n1")
        if state in ("queued", "running"):
            deploy.sent(T + SECOND)
        if state == "running":
            deploy.start(T + SECOND)
        if state == "released":
            deploy.release(T + SECOND, nonce="n1")
        before = deploy.run(T + SECOND)
        claimed = deploy.offer(T, hash="h2", overlap="cancel", nonce="n2")
        assert (state, before) == (before.state, deploy.run(T + SECOND))
        assert (["overlap"], "skipped", ()) == (answers(claimed), deploy.run(T).state, claimed.ended)

    def test_a_slot_may_wait_for_a_later_one_to_end(self, deploy):
        deploy.begin(T + SECOND, hash="h1")
        deploy.offer(T, hash="h2", overlap="queue", nonce="n2")
        deploy.finish(T + SECOND)
        assert deploy.run(T).state == "released"

    def test_a_run_of_a_kind_of_its_own_overtakes_no_slot(self, deploy):
        later = Start(
            key=RunKey("report", T + SECOND, "manual"), token="t", worker="w", claimed_at=OLD, overlap="allow"
        )
        deploy.store.start(later, now=deploy.now)
        assert deploy.claim(T, hash="h2", overlap="cancel", nonce="n2").run.state == "buffered"

    def test_a_skip_while_the_job_is_paused_raises_the_floor_of_its_schedule(self, deploy):
        pause(deploy)
        deploy.offer(T + SECOND, hash="h1")
        claimed = deploy.offer(T, hash="h2", nonce="n2")
        assert (["paused"], T) == (answers(claimed), claimed.floor)
        assert {"h1": T + SECOND, "h2": T} == floors(deploy)

    def test_no_slot_at_or_below_the_floor_of_its_schedule_is_claimed_anew(self, deploy):
        deploy.claim(T, hash="h2")
        with nothing_written(deploy.store):
            assert Claim(key=deploy.key(T - 1), answer="taken") == deploy.claim(T - 1, hash="h2", nonce="n2")

    def test_a_slot_that_ran_for_another_schedule_is_taken_and_raises_the_floor(self, deploy):
        won = deploy.claim(T, hash="h1")
        claimed = deploy.offer(T, hash="h2", nonce="n2")
        assert (Claim(key=deploy.key(), answer="taken", run=won.run),) == claimed.claims
        assert (T, {"h1": T, "h2": T}, T) == (claimed.floor, floors(deploy), deploy.record().floor)
        with nothing_written(deploy.store):
            assert claimed == deploy.offer(T, hash="h2", nonce="n2")

    def test_a_slot_that_is_taken_raises_no_floor_over_one_that_waits(self, deploy):
        deploy.begin(T + SECOND, hash="h1")
        with nothing_written(deploy.store):
            claimed = deploy.offer(T, T + SECOND, late=1, catch_up="all", hash="h2", nonce="n2")
        assert (["wait", "taken"], None) == (answers(claimed), claimed.floor)

    def test_a_slot_that_is_taken_and_not_due_raises_no_floor(self, deploy):
        """Its run exists because the store's clock went back."""
        deploy.claim(T + SECOND, hash="h1")
        deploy.now = T
        with nothing_written(deploy.store):
            assert deploy.claim(T + SECOND, hash="h2", nonce="n2").answer == "taken"

    def test_a_claim_whose_answer_was_lost_is_told_again_whatever_another_schedule_decided(self, deploy):
        first = deploy.offer(T, hash="h2", overlap="allow", nonce="n1")
        deploy.claim(T + SECOND, hash="h1", overlap="allow", nonce="n2")
        with nothing_written(deploy.store):
            assert first == deploy.offer(T, hash="h2", overlap="allow", nonce="n1")

    def test_an_offer_that_names_no_schedule_goes_by_the_jobs_floor_and_raises_all(self, deploy):
        deploy.claim(T, hash="h1")
        assert deploy.claim(T - 1, nonce="n2").answer == "taken"
        assert deploy.offer(T + SECOND, overlap="allow", nonce="n3").floor == T + SECOND
        assert {"h1": T + SECOND, "h2": T + SECOND} == floors(deploy)

    def test_the_only_schedule_of_a_job_and_the_job_have_one_floor(self, story):
        story.claim(T, hash="h1", overlap="allow")
        story.now += SECOND
        story.claim(T + SECOND, overlap="allow", nonce="n2")
        assert (T + SECOND, {"h1": T + SECOND}) == (story.record().floor, floors(story))

    def test_a_schedule_that_the_store_does_not_know_is_unknown(self, deploy):
        """In a wiped store the nodes of another schedule may have registered first."""
        with nothing_written(deploy.store):
            claimed = deploy.offer(T, T + 1, hash="h3")
        assert (["unknown", "unknown"], None) == (answers(claimed), claimed.floor)

    def test_a_schedule_that_may_have_been_forgotten_goes_by_the_jobs_floor_and_raises_all(self, story):
        for number in range(REMEMBERED_HASHES):
            story.register(f"h{number + 2}", now=T - MINUTE)
        story.claim(T - SECOND, hash="h2")
        claimed = story.offer(T - 2 * SECOND, T, hash="h1", overlap="allow", nonce="n2")
        assert (["taken", "won"], T) == (answers(claimed), claimed.floor)
        assert {f"h{number + 2}": T for number in range(REMEMBERED_HASHES)} == floors(story)

    def test_a_schedule_is_registered_with_its_own_floor(self, deploy):
        deploy.claim(T, hash="h1")
        assert (T, None) == (deploy.register("h1", cursor=T).floor, deploy.register("h2").floor)

    def test_a_chained_slot_follows_from_the_floor_of_its_schedule(self, deploy):
        deploy.claim(T, hash="h1")
        with nothing_written(deploy.store):
            claimed = deploy.offer(T + SECOND, hash="h2", chained=True, after=T, overlap="allow", nonce="n2")
        assert (["wait"], None) == (answers(claimed), claimed.floor)
        claimed = deploy.offer(T + SECOND, hash="h2", chained=True, after=None, overlap="allow", nonce="n2")
        assert (["won"], T + SECOND) == (answers(claimed), claimed.floor)

    def test_a_leap_is_out_of_date_by_the_floor_of_its_schedule(self, deploy):
        leap = Leap(first=T - 2 * SECOND, last=T, count=3)
        deploy.claim(T - SECOND, hash="h1")
        claimed = deploy.offer(leap=leap, hash="h2", nonce="n2")
        assert (T, 3) == (claimed.floor, claimed.missed.count)
        assert {"h1": T - SECOND, "h2": T} == floors(deploy)
        with nothing_written(deploy.store):
            claimed = deploy.offer(T + SECOND, leap=leap, hash="h1", nonce="n3")
        assert (["wait"], T - SECOND) == (answers(claimed), claimed.floor)

    def test_a_leap_whose_first_slot_ran_for_another_schedule_is_recorded_beside_it(self, deploy):
        deploy.claim(T, hash="h1")
        leap = Leap(first=T, last=T + 2 * SECOND, count=3)
        claimed = deploy.offer(T + 3 * SECOND, leap=leap, hash="h2", overlap="allow", nonce="n2")
        assert ("missed", T, "leapt", T + 2 * SECOND, 3) == (
            claimed.missed.state, claimed.missed.slot, claimed.missed.kind, claimed.missed.until,
            claimed.missed.count,
        )  # fmt: skip
        assert (["won"], "claimed") == (answers(claimed), deploy.run().state)
        assert claimed.missed == deploy.store.run(RunKey("report", T, "leapt"))
        with nothing_written(deploy.store):
            assert claimed == deploy.offer(T + 3 * SECOND, leap=leap, hash="h2", overlap="allow", nonce="n2")
            assert deploy.offer(leap=leap, hash="h2", nonce="n3").missed is None

    def test_two_schedules_that_pass_over_the_same_slot_leave_a_record_each(self, deploy):
        leap = Leap(first=T, last=T + 2 * SECOND, count=3)
        kinds = [deploy.offer(leap=leap, hash=hash, nonce=hash).missed.kind for hash in ("h1", "h2")]
        assert ["scheduled", "leapt"] == kinds
        deploy.register("h3")
        assert deploy.offer(leap=leap, hash="h3", nonce="n3").missed is None, "no third one"

    @pytest.mark.parametrize("known", [True, False])
    def test_forgetting_a_run_raises_the_floor_of_each_schedule(self, deploy, known):
        deploy.begin(T, hash="h1")
        deploy.finish(T)
        if known:
            deploy.claim(T - 1, hash="h2", nonce="n2")
        assert deploy.store.prune(history=0, most=0, now=T + HOUR) == 1
        assert {"h1": T, "h2": T} == floors(deploy)
        assert deploy.claim(T, hash="h2", nonce="n3").answer == "taken"

    def test_forgetting_a_run_lowers_no_floor_of_a_schedule(self, deploy):
        deploy.begin(T, hash="h1")
        deploy.finish(T)
        deploy.claim(T + SECOND, hash="h2", nonce="n2")
        assert deploy.store.prune(history=0, most=0, now=T + HOUR) == 1
        assert ({"h1": T, "h2": T + SECOND}, T + SECOND) == (floors(deploy), deploy.record().floor)

    def test_forgetting_what_did_not_come_due_raises_no_floor(self, deploy):
        """A record of another kind says nothing of the slots of a schedule."""
        deploy.claim(T, hash="h1")
        deploy.offer(leap=Leap(first=T, last=T + SECOND, count=2), hash="h2", nonce="n2")
        assert deploy.store.prune(history=0, most=0, now=T + HOUR) == 1
        assert {"h1": T, "h2": T + SECOND} == floors(deploy)

    def test_where_the_clock_went_back_all_floors_and_beginnings_are_cut(self, deploy):
        deploy.claim(T, hash="h1")
        deploy.claim(T + SECOND, hash="h2", overlap="allow", nonce="n2")
        deploy.register("h3")
        deploy.expired()
        deploy.now = T
        deploy.expired()
        assert ({"h1": T, "h2": T, "h3": None}, T) == (floors(deploy), deploy.record().floor)
        assert [("h1", T - HOUR), ("h2", T - MINUTE), ("h3", T)] == begins(deploy)

    def test_the_floor_that_a_node_remembers_is_that_of_its_schedule(self, store):
        story = Story(store)
        assert story.register("h1", cursor=T - SECOND, first_seen=T - DAY).floor == T - SECOND
        assert story.register("h2", cursor=T - MINUTE, first_seen=T - DAY).floor == T - MINUTE
        assert ({"h1": T - SECOND, "h2": T - MINUTE}, T - SECOND) == (floors(story), story.record().floor)
        assert story.register("h3", cursor=T + MINUTE).floor == T, "nothing is decided that is not due"
        assert ({"h1": T - SECOND, "h2": T - MINUTE, "h3": T}, T) == (floors(story), story.record().floor)

    def test_from_when_on_a_schedule_counts_is_learnt_back_too(self, store):
        """So that what is undecided between its cursor and now is not lost."""
        story = Story(store)
        story.register("h2", cursor=T - MINUTE, effective=T - HOUR, first_seen=T - DAY)
        answer = story.register("h1", cursor=T - SECOND, effective=T - DAY, first_seen=T - DAY)
        assert (T - DAY, T - DAY, T - SECOND) == (answer.effective, answer.first_seen, answer.floor)
        assert [("h2", T - HOUR), ("h1", T - DAY)] == begins(story), "the last seen is the last"
        assert story.register("h2").effective == T - HOUR, "so who starts with it catches up"

    def test_a_beginning_from_the_future_is_cut_to_now(self, store):
        answer = Story(store).register("h1", cursor=T - SECOND, effective=T + HOUR, first_seen=T - DAY)
        assert (T, T - DAY) == (answer.effective, answer.first_seen)

    def test_who_starts_remembers_no_beginning(self, story):
        assert story.register("h2", effective=T - MINUTE).effective == T

    def test_a_floor_from_before_any_schedule_is_that_of_the_first(self, store):
        story = Story(store)
        assert isinstance(story.start(claimed_at=OLD), Started)
        story.finish()
        assert store.prune(history=0, most=0, now=T + 1) == 1
        story.now = T + SECOND
        assert story.register("h1").floor == T
        assert (story.register("h2").floor, floors(story)) == (None, {"h1": T, "h2": None})

    def test_a_floor_from_before_any_schedule_is_lowered_by_no_nodes_memory(self, store):
        story = Story(store)
        story.start(claimed_at=OLD)
        story.finish()
        store.prune(history=0, most=0, now=T + 1)
        story.now = T + SECOND
        assert (story.register("h1", cursor=T - MINUTE).floor, floors(story)) == (T, {"h1": T})

    def test_a_schedule_that_nobody_had_for_long_while_there_was_another_begins_anew(self, deploy):
        deploy.claim(T - 2 * MINUTE, hash="h1")
        deploy.claim(T, hash="h2", overlap="allow", nonce="n2")
        deploy.now = T - MINUTE + 2 * HOUR + 1
        deploy.register("h2", cursor=T)
        deploy.now += MINUTE
        answer = deploy.register("h1")
        assert (deploy.now, T - HOUR, T - 2 * MINUTE) == (answer.effective, answer.first_seen, answer.floor)
        assert [("h2", T - MINUTE), ("h1", deploy.now)] == begins(deploy)
        assert {"h1": T - 2 * MINUTE, "h2": T} == floors(deploy)

    def test_it_does_not_while_the_other_one_was_seen_no_more_than_two_hours_later(self, deploy):
        """Nodes register every hour: in a deploy both are seen, and who is restarted in it loses nothing."""
        deploy.now = T - HOUR + 2 * HOUR
        deploy.register("h2", cursor=T)
        deploy.now += DAY
        assert T - HOUR == deploy.register("h1").effective

    def test_after_an_outage_the_schedule_that_went_on_catches_up_whoever_started_last(self, deploy):
        """A node with another schedule came and went: that makes this one no newcomer."""
        for hour in range(10):
            deploy.now = T + hour * HOUR
            deploy.register("h1", cursor=T, effective=T - HOUR)
        deploy.now += 3 * DAY
        assert T - HOUR == deploy.register("h1").effective

    def test_who_starts_last_has_the_newest_schedule_though_the_clock_went_back_a_little(self, deploy):
        deploy.register("h3")
        deploy.now -= SECOND
        deploy.register("h1")
        assert ["h2", "h3", "h1"] == [hash for hash, _ in begins(deploy)]

    def test_a_node_that_starts_with_the_newest_schedule_catches_up(self, deploy):
        deploy.now += DAY
        with nothing_new(deploy):
            assert deploy.register("h2").effective == T - MINUTE

    def test_a_node_that_goes_on_begins_nothing_anew(self, deploy):
        with nothing_new(deploy):
            assert deploy.register("h1", cursor=T).effective == T - HOUR

    def test_to_a_node_that_goes_on_its_schedule_counts_as_before(self, deploy):
        """Else what it has not decided yet would be lost when another node begins that schedule anew."""
        deploy.now = T + DAY
        deploy.register("h2", cursor=T)
        began = deploy.register("h1").effective
        assert deploy.now == began
        with nothing_new(deploy):
            answer = deploy.register("h1", cursor=T - SECOND, effective=T - HOUR)
            assert (T - HOUR, None) == (answer.effective, answer.floor)
            assert deploy.register("h1", cursor=T, effective=T + 2 * DAY).effective == began

    def test_a_schedule_that_was_forgotten_begins_anew(self, story):
        for number in range(REMEMBERED_HASHES):
            story.register(f"h{number + 2}", now=T - MINUTE)
        assert story.register("h1").effective == T
        assert (REMEMBERED_HASHES, "h3", "h1") == (
            len(begins(story)), begins(story)[0][0], begins(story)[-1][0],
        )  # fmt: skip

    def test_a_schedule_that_a_node_goes_on_with_is_not_forgotten_for_being_old(self, story):
        for number in range(REMEMBERED_HASHES):
            story.register(f"h{number + 2}", now=T - MINUTE)
        assert story.register("h1", cursor=T - SECOND, effective=T - HOUR).effective == T - HOUR
        assert (REMEMBERED_HASHES, "h3", "h1") == (
            len(begins(story)), begins(story)[0][0], begins(story)[-1][0],
        )  # fmt: skip

    def test_what_the_job_did_under_another_schedule_stays_taken(self, deploy):
        deploy.claim(T, hash="h1")
        deploy.claim(T + SECOND, hash="h2", overlap="allow", nonce="n2")
        deploy.register("h1")
        claimed = deploy.offer(T, T + SECOND, hash="h1", nonce="n3")
        assert (["taken", "taken"], T + SECOND) == (answers(claimed), claimed.floor)

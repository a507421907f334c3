"""What a beat node plans: from where on each job is undecided, and what it offers when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anarchon_celery.config import Policy
from anarchon_celery.plan import Delay, Plan, PlannedJob
from anarchon_celery.protocol import Claim, Claimed, Offer, Registered, Registration, Run, RunKey
from anarchon_celery.slots import FireTimes, Interval, Leap, Once

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000

#: A full minute, when most tests begin.
T = 1_790_000_040_000

QUIET = Policy(jitter=0)


class Asked(FireTimes):
    """Fire times that count how often they are asked."""

    def __init__(self, times: FireTimes) -> None:
        self.times, self.asked = times, 0

    @property
    def key(self) -> str:
        return self.times.key

    def next(self, after: int) -> int | None:
        self.asked += 1
        return self.times.next(after)

    def previous(self, until: int) -> int | None:
        self.asked += 1
        return self.times.previous(until)


class Times(FireTimes):
    """A few instants, and then no more."""

    def __init__(self, *times: int) -> None:
        self.times = times

    @property
    def key(self) -> str:
        return f"times {self.times}"

    def next(self, after: int) -> int | None:
        return next((time for time in self.times if time > after), None)

    def previous(self, until: int) -> int | None:
        return next((time for time in reversed(self.times) if time <= until), None)


def plan_of(*jobs: PlannedJob, node: str = "node", claim_timeout: int = 10_000) -> Plan:
    return Plan(
        node=node, claim_timeout=claim_timeout, first_catch_up=MINUTE, jobs={job.name: job for job in jobs}
    )


def job(name: str = "report", every: int = MINUTE, policy: Policy = QUIET, **how) -> PlannedJob:
    return PlannedJob(name=name, times=Interval(every), policy=policy, **how)


def told(
    name: str = "report", *, floor: int | None = None, first: int = T, effective: int | None = None, **how
) -> Registered:
    """What the store says of a job when a node registers it."""
    return Registered(
        job=name, floor=floor, first_seen=first, effective=first if effective is None else effective,
        supervised=how.pop("supervised", False), **how,
    )  # fmt: skip


def known(*, floor: int, **how) -> Plan:
    """A plan with one job that was decided up to a floor, and first seen long ago."""
    plan = plan_of(job(**how))
    plan.learn([told(floor=floor, first=T - 30 * 24 * HOUR)])
    return plan


def offered(plan: Plan, now: int) -> Offer:
    """What the one job offers; the floor that it was told goes with every offer."""
    (offer,) = plan.due(now)
    assert offer.floor == plan.jobs[offer.job].floor
    return replace(offer, floor=None)


def answer(*claims: tuple[int, Any], floor: int | None, wait: int = 0) -> Claimed:
    decided = tuple(Claim(key=RunKey("report", slot), answer=said, wait=wait) for slot, said in claims)
    return Claimed(job="report", floor=floor, claims=decided)


# Registering ------------------------------------------------------------------------------------


def test_a_new_node_tells_the_schedules_and_what_it_knows_of_supervision():
    plan = plan_of(job("a", MINUTE), job("b", HOUR, supervised=True))
    expected = [
        Registration(job="a", hash=Interval(MINUTE).key),
        Registration(job="b", hash=Interval(HOUR).key, supervised=True),
    ]
    assert expected == plan.registrations()


def test_an_old_node_tells_what_it_remembers_too():
    plan = known(floor=T)
    plan.learn([told(floor=T + MINUTE, first=T - HOUR, supervised=True)])
    expected = Registration(
        job="report", hash=Interval(MINUTE).key, cursor=T + MINUTE, floor=T + MINUTE, effective=T - HOUR,
        first_seen=T - HOUR, supervised=True,
    )  # fmt: skip
    assert [expected] == plan.registrations()


def test_what_the_node_knows_as_supervised_stays_so():
    plan = plan_of(job(supervised=True))
    plan.learn([told(supervised=False)])
    assert plan.jobs["report"].supervised


def test_what_the_node_knows_as_plain_stays_so():
    plan = plan_of(job(supervised=False))
    plan.learn([told(supervised=True)])
    assert [False] == [known.supervised for known in plan.registrations()]


def test_what_the_store_says_of_a_job_that_is_gone_meanwhile_is_nothing_to_this_node():
    """Its schedule raised, say, while the store was asked."""
    plan = plan_of(job("other"))
    plan.learn([told(floor=T), told("other", floor=T)])
    plan.decided(answer((T + MINUTE, "won"), floor=T + MINUTE), T + MINUTE)
    assert (["other"], T + MINUTE) == ([*plan.jobs], plan.next_due())


def test_of_what_the_node_does_not_know_it_tells_what_the_store_said_last():
    plan = plan_of(job())
    assert [False] == [known.supervised for known in plan.registrations()]
    for said in (True, False, True):
        plan.learn([told(supervised=said)])
        assert [said] == [known.supervised for known in plan.registrations()]
        assert plan.jobs["report"].supervised is None, "it is only a memory"


# The cursor -------------------------------------------------------------------------------------


def test_before_the_store_has_told_of_it_a_job_is_not_due():
    plan = plan_of(job())
    assert (None, []) == (plan.next_due(), plan.due(T + HOUR))


@pytest.mark.parametrize(("age", "found"), [(0, True), (1, True), (MINUTE - 1, True), (MINUTE, False)])
def test_of_a_job_nobody_ever_saw_the_latest_slot_counts_if_it_is_young(age, found):
    plan = plan_of(job(every=HOUR))
    slot = T // HOUR * HOUR
    plan.learn([told(first=slot + age)])
    offers = plan.due(slot + age)
    assert found is bool(offers)
    if found:
        assert Offer(job="report", slots=(slot,), late=1) == offers[0], "and it counts as late"


def test_a_first_slot_is_late_however_short_that_was_ago_and_so_catch_up_none_leaps_it():
    plan = plan_of(job(every=HOUR, policy=Policy(jitter=0, catch_up="none")))
    slot = T // HOUR * HOUR
    plan.learn([told(first=slot + 5)])
    expected = Offer(job="report", slots=(), leap=Leap(slot, slot, 1), catch_up="none")
    assert expected == offered(plan, slot + 5)


def test_all_slots_before_the_latest_are_no_concern_of_a_new_job():
    plan = plan_of(job(every=SECOND))
    plan.learn([told(first=T)])
    assert Offer(job="report", slots=(T,), late=1) == offered(plan, T)


def test_a_job_first_seen_by_others_counts_from_then_and_not_from_now():
    plan = plan_of(job(every=10 * MINUTE))
    slot = T // (10 * MINUTE) * 10 * MINUTE
    plan.learn([told(first=slot - MINUTE - 1)])
    assert (slot - MINUTE - 1, slot) == (plan.jobs["report"].cursor, plan.next_due())


def test_decided_slots_are_not_offered():
    plan = known(floor=T)
    assert [] == plan.due(T + MINUTE - 1)
    assert Offer(job="report", slots=(T + MINUTE,)) == offered(plan, T + MINUTE)


def test_a_changed_schedule_counts_from_when_it_was_first_seen():
    plan = plan_of(job(every=SECOND))
    plan.learn([told(floor=T - HOUR, first=T - 24 * HOUR, effective=T + 500)])
    assert T + SECOND == plan.next_due()
    assert Offer(job="report", slots=(T + SECOND,)) == offered(plan, T + SECOND)


def test_a_changed_schedule_of_a_job_without_a_decided_slot_counts_from_then_too():
    plan = plan_of(job(every=SECOND))
    plan.learn([told(first=T - 24 * HOUR, effective=T + 500)])
    assert T + SECOND == plan.next_due()


def test_the_floor_counts_where_it_is_later_than_the_schedule():
    plan = plan_of(job(every=MINUTE))
    plan.learn([told(floor=T, first=T - HOUR, effective=T - MINUTE)])
    assert T + MINUTE == plan.next_due()


def test_a_cursor_ahead_of_the_store_goes_back():
    plan = known(floor=T + HOUR)
    plan.learn([told(floor=T, first=T - HOUR)])
    assert (T, T + MINUTE) == (plan.jobs["report"].cursor, plan.next_due())


def test_a_schedule_that_ends_is_due_no_more_and_that_is_said_once(caplog):
    plan = plan_of(PlannedJob(name="few", times=Times(T), policy=QUIET))
    for _ in range(2):
        plan.learn([told("few", floor=T, first=T - HOUR)])
        assert (None, []) == (plan.next_due(), plan.due(T + HOUR))
    said = "[anarchon] entry 'few': its schedule has no fire time after 2026-09-21T14:14:00.000Z"
    assert [said] == [record.getMessage() for record in caplog.records]


# What is due ------------------------------------------------------------------------------------


def test_offers_come_by_job_and_only_from_those_that_are_due():
    plan = plan_of(job("b"), job("a"), job("c", HOUR))
    plan.learn([told(name, floor=T, first=T - HOUR) for name in "bac"])
    assert ["a", "b"] == [offer.job for offer in plan.due(T + MINUTE)]


def test_nothing_is_asked_of_the_schedule_of_a_job_that_is_not_due():
    jobs = [
        PlannedJob(name=f"job-{n}", times=Asked(Interval(HOUR if n else SECOND)), policy=QUIET)
        for n in range(100)
    ]
    plan = plan_of(*jobs)
    hour = T // HOUR * HOUR
    plan.learn([told(each.name, floor=hour, first=T - HOUR) for each in jobs])
    for each in jobs:
        each.times.asked = 0
    assert ["job-0"] == [offer.job for offer in plan.due(hour + SECOND)]
    assert [True] + 99 * [False] == [each.times.asked > 0 for each in jobs]


def test_an_offered_job_is_offered_once_until_it_is_answered():
    plan = known(floor=T)
    offered(plan, T + MINUTE)
    assert (None, []) == (plan.next_due(), plan.due(T + 2 * MINUTE))


def test_an_unanswered_offer_that_was_given_up_is_made_afresh():
    plan = known(floor=T)
    given_up = plan.due(T + MINUTE)
    plan.offer_again(given_up)
    assert Offer(job="report", slots=(T + MINUTE,)) == offered(plan, T + MINUTE)


def test_giving_up_does_not_disturb_what_was_answered_meanwhile():
    plan = known(floor=T)
    given_up = plan.due(T + MINUTE)
    plan.learn([told(floor=T + MINUTE, first=T - HOUR)])
    plan.offer_again(given_up)
    assert T + 2 * MINUTE == plan.next_due()


def test_the_policy_of_the_job_goes_with_the_offer():
    plan = known(floor=T, policy=Policy(jitter=0, overlap="allow"))
    plan.claim_timeout = 7_000
    assert Offer(job="report", slots=(T + MINUTE,), overlap="allow", claim_timeout=7_000) == offered(
        plan, T + MINUTE
    )


def test_whether_a_job_is_paused_is_remembered_from_the_answers():
    plan = known(floor=T)
    plan.due(T + MINUTE)
    plan.decided(answer((T + MINUTE, "paused"), floor=T + MINUTE), T + MINUTE)
    assert ["paused"] == [asked.paused for asked in plan.registrations()]
    plan.due(T + 2 * MINUTE)
    plan.decided(answer((T + 2 * MINUTE, "won"), floor=T + 2 * MINUTE), T + 2 * MINUTE)
    assert [None] == [asked.paused for asked in plan.registrations()]


# On time and late -------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "late"), [(0, 0), (9_999, 0), (10_000, 1), (10_001, 1)])
def test_a_slot_is_late_once_it_is_as_old_as_the_claim_timeout(age, late):
    plan = known(floor=T)
    assert Offer(job="report", slots=(T + MINUTE,), late=late) == offered(plan, T + MINUTE + age)


def test_jitter_is_no_part_of_lateness():
    plan = known(floor=T, policy=Policy(jitter=5_000))
    delay = Delay(plan.jobs["report"], "node")(T + MINUTE)
    assert delay > 0
    assert 0 == offered(plan, T + MINUTE + delay + 9_999).late


def test_all_slots_that_are_on_time_are_offered_in_order():
    plan = known(floor=T, every=SECOND)
    slots = tuple(range(T + SECOND, T + 6 * SECOND, SECOND))
    assert Offer(job="report", slots=slots) == offered(plan, T + 5_500)


def test_of_late_slots_the_latest_is_offered_and_the_others_are_leapt():
    plan = known(floor=T, every=SECOND)
    now = T + 60 * SECOND
    expected = Offer(
        job="report", late=1, leap=Leap(T + SECOND, T + 49 * SECOND, 49),
        slots=tuple(range(T + 50 * SECOND, now + 1, SECOND)),
    )  # fmt: skip
    assert expected == offered(plan, now)


def test_catch_up_none_leaps_all_that_is_late():
    plan = known(floor=T, policy=Policy(jitter=0, catch_up="none"))
    expected = Offer(
        job="report", slots=(T + 2 * MINUTE,), leap=Leap(T + MINUTE, T + MINUTE, 1), catch_up="none"
    )
    assert expected == offered(plan, T + 2 * MINUTE)


def test_catch_up_all_offers_each_late_slot_before_those_on_time():
    plan = known(floor=T, every=SECOND, policy=Policy(jitter=0, catch_up="all"))
    slots = tuple(range(T + SECOND, T + 61 * SECOND, SECOND))
    assert Offer(job="report", slots=slots, late=50, catch_up="all") == offered(plan, T + 60 * SECOND)


def test_of_a_long_backlog_the_thousand_newest_late_slots_are_caught_up_and_the_others_leapt():
    plan = known(floor=T, every=SECOND, policy=Policy(jitter=0, catch_up="all"))
    now = T + 5_000 * SECOND
    offer = offered(plan, now)
    last_late = T + 4_990 * SECOND
    assert Leap(T + SECOND, last_late - 1_000 * SECOND, 3_990) == offer.leap
    assert (last_late - 999 * SECOND, 200, 200) == (offer.slots[0], len(offer.slots), offer.late)


def test_what_is_older_than_the_window_is_leapt():
    plan = known(floor=T, policy=Policy(jitter=0, catch_up_window=30_000))
    expected = Offer(job="report", slots=(), leap=Leap(T + MINUTE, T + MINUTE, 1))
    assert expected == offered(plan, T + MINUTE + 30_001)


def test_what_is_as_old_as_the_window_is_offered():
    plan = known(floor=T, policy=Policy(jitter=0, catch_up_window=30_000))
    assert Offer(job="report", slots=(T + MINUTE,), late=1) == offered(plan, T + MINUTE + 30_000)


def test_a_schedule_with_an_end_is_leapt_to_its_end():
    plan = plan_of(PlannedJob(name="once", times=Times(T, T + 1), policy=Policy(jitter=0, catch_up="none")))
    plan.learn([told("once", floor=T - 1, first=T - HOUR)])
    expected = Offer(job="once", slots=(), leap=Leap(T, T + 1, 2), catch_up="none")
    assert expected == offered(plan, T + HOUR)


# A job with one time ----------------------------------------------------------------------------


def once(policy: Policy = QUIET) -> Plan:
    return plan_of(PlannedJob(name="once", times=Once(T), policy=policy))


def test_a_job_with_one_time_is_due_then_and_no_more(caplog):
    plan = once()
    plan.learn([told("once", first=T - HOUR)])
    assert T == plan.next_due()
    assert Offer(job="once", slots=(T,)) == offered(plan, T)
    run = Claim(key=RunKey("once", T), answer="won")
    plan.decided(Claimed(job="once", floor=T, claims=(run,)), T)
    assert (None, []) == (plan.next_due(), plan.due(T + 365 * 24 * HOUR))
    assert [] == caplog.records, "that is what was asked for"


def test_nor_is_it_due_again_for_a_node_that_starts_later():
    plan = once()
    plan.learn([told("once", floor=T, first=T - HOUR)])
    assert (None, []) == (plan.next_due(), plan.due(T + HOUR))


def test_one_time_that_nobody_was_there_for_is_caught_up_however_late():
    plan = once()
    plan.learn([told("once", first=T - HOUR)])
    assert Offer(job="once", slots=(T,), late=1) == offered(plan, T + 30 * 24 * HOUR)


@pytest.mark.parametrize(("age", "runs"), [(0, True), (MINUTE - 1, True), (MINUTE, False), (9 * HOUR, False)])
def test_one_time_that_was_past_at_first_sight_is_run_if_it_is_young_and_recorded_as_missed_else(age, runs):
    plan = once()
    plan.learn([told("once", first=T + age)])
    expected = (
        Offer(job="once", slots=(T,), late=1) if runs
        else Offer(job="once", slots=(), leap=Leap(T, T, 1))
    )  # fmt: skip
    assert expected == offered(plan, T + age + 5 * SECOND), "however late this node looks"


def test_one_time_that_was_set_to_the_past_is_recorded_as_missed():
    plan = once()
    plan.learn([told("once", floor=T - HOUR, first=T - 24 * HOUR, effective=T + 1)])
    assert Offer(job="once", slots=(), leap=Leap(T, T, 1)) == offered(plan, T + 2)


def test_one_time_before_what_was_decided_under_another_schedule_is_no_concern():
    plan = once()
    plan.learn([told("once", floor=T + HOUR, first=T - 24 * HOUR, effective=T + 2 * HOUR)])
    assert (None, []) == (plan.next_due(), plan.due(T + 3 * HOUR))


# A schedule whose times depend on one another ---------------------------------------------------


class Walk(FireTimes):
    """Each time is a minute after the one before; until a while after the cursor it is not due."""

    chained = True

    def __init__(self, *, blind: bool = False) -> None:
        self.blind = blind

    @property
    def key(self) -> str:
        return "walk"

    def next(self, after: int) -> int | None:
        return None if self.blind else after + MINUTE

    def previous(self, until: int) -> int | None:
        return None

    def looked_until(self, after: int) -> int | None:
        return after + HOUR if self.blind else None

    def since(self, cursor: int) -> FireTimes:
        times = Times(*(() if self.blind else range(cursor + MINUTE, cursor + 100 * MINUTE, MINUTE)))
        times.chained = True
        return times


def walking(**how) -> Plan:
    plan = plan_of(PlannedJob(name="report", times=Walk(**how), policy=QUIET))
    plan.learn([told(floor=T + 7, first=T - HOUR)])
    return plan


def test_the_slots_of_a_chain_follow_from_the_floor_and_say_so():
    expected = Offer(job="report", slots=(T + 7 + MINUTE,), chained=True, after=T + 7)
    assert expected == offered(walking(), T + 7 + MINUTE)


def test_a_chain_that_others_moved_on_is_looked_at_afresh_at_once():
    plan = walking()
    offered(plan, T + 7 + MINUTE)
    plan.decided(answer((T + 7 + MINUTE, "wait"), floor=T + 40), T + 7 + MINUTE)
    assert T + 40 + MINUTE == plan.next_due()
    assert T + 40 == offered(plan, T + 40 + MINUTE).after


def test_a_chain_begins_where_no_slot_was_decided_and_says_so():
    plan = plan_of(PlannedJob(name="report", times=Walk(), policy=QUIET))
    plan.learn([told(first=T, effective=T + 1)])
    assert Offer(job="report", slots=(T + 1 + MINUTE,), chained=True) == offered(plan, T + 1 + MINUTE)


def test_a_schedule_that_is_not_due_as_far_as_it_was_asked_is_asked_again_then_and_told_of_once(caplog):
    plan = walking(blind=True)
    assert T + 7 + HOUR == plan.next_due()
    assert [] == plan.due(T + 7 + HOUR)
    assert T + 7 + HOUR == plan.next_due()
    until = "2026-09-21T15:14:00.007Z"
    said = f"its schedule is not due before {until}, as far as it was asked; it is asked again then"
    (record,) = caplog.records
    assert f"[anarchon] entry 'report': {said}" == record.getMessage()


def test_it_is_not_asked_again_before_the_store_would_answer():
    plan = walking(blind=True)
    plan.decided(answer((T + 8, "early"), floor=T + 7, wait=2 * HOUR), T)
    assert T + 2 * HOUR == plan.next_due()


# What was decided -------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["won", "taken", "overlap", "paused", "cancelled"])
def test_after_the_answer_the_next_slot_is_planned(said):
    plan = known(floor=T)
    offered(plan, T + MINUTE)
    plan.decided(answer((T + MINUTE, said), floor=T + MINUTE), T + MINUTE)
    assert (T + MINUTE, T + 2 * MINUTE) == (plan.jobs["report"].cursor, plan.next_due())


def test_a_floor_that_others_moved_further_is_taken_over():
    plan = known(floor=T)
    offered(plan, T + MINUTE)
    plan.decided(answer((T + MINUTE, "taken"), floor=T + 3 * MINUTE), T + MINUTE)
    assert T + 4 * MINUTE == plan.next_due()


def test_a_slot_that_was_early_is_offered_again_when_it_is_time():
    plan = known(floor=T)
    offered(plan, T + MINUTE)
    plan.decided(answer((T + MINUTE, "early"), floor=T, wait=250), T + MINUTE)
    assert ([], T + MINUTE + 250) == (plan.due(T + MINUTE + 249), plan.next_due())
    assert Offer(job="report", slots=(T + MINUTE,)) == offered(plan, T + MINUTE + 250)


def test_a_wait_does_not_outlast_what_the_store_says_later():
    # It was an hour, by a clock that went back by one; then the store cut the floor.
    plan = known(floor=T)
    offered(plan, T + MINUTE)
    plan.decided(answer((T + MINUTE, "early"), floor=T, wait=HOUR), T + MINUTE - HOUR)
    plan.learn([told(floor=T + MINUTE - HOUR, first=T - 24 * HOUR)])
    assert T + 2 * MINUTE - HOUR == plan.next_due()


def test_of_several_slots_the_longest_wait_counts():
    plan = known(floor=T, every=SECOND)
    offered(plan, T + 2 * SECOND)
    both = tuple(
        Claim(key=RunKey("report", T + n * SECOND), answer="early", wait=n * SECOND) for n in (1, 2)
    )
    plan.decided(Claimed(job="report", floor=T, claims=both), T)
    assert T + 2 * SECOND == plan.next_due()


def test_a_slot_that_has_to_wait_is_looked_at_afresh_from_the_stores_floor():
    plan = known(floor=T, every=SECOND)
    offered(plan, T + HOUR)
    plan.decided(answer((T + HOUR, "wait"), floor=T + HOUR - SECOND), T + HOUR)
    assert Offer(job="report", slots=(T + HOUR,)) == offered(plan, T + HOUR)


def test_a_late_slot_that_waits_is_offered_again_the_later_the_longer_it_waits_but_after_each_poll():
    plan = known(floor=T, every=MINUTE, policy=Policy(jitter=0, catch_up="all"))
    now, waits = T + MINUTE + 30 * SECOND, []
    for _ in range(7):
        assert (T + MINUTE,) == offered(plan, now).slots
        plan.decided(answer((T + MINUTE, "wait"), floor=T), now)
        waits.append((plan.next_due() or 0) - now)
        now += waits[-1]
    assert [62, 124, 248, 496, 992, 1_000, 1_000] == waits


def test_a_slot_behind_one_that_was_won_is_offered_again_soon():
    plan = known(floor=T, every=SECOND, policy=Policy(jitter=0, catch_up="all"))
    now = T + 2 * SECOND
    offered(plan, now)
    said = answer((T + SECOND, "won"), (T + 2 * SECOND, "wait"), floor=T + SECOND)
    plan.decided(said, now)
    assert now + 62 == plan.next_due()
    assert (T + 2 * SECOND,) == offered(plan, now + 62).slots


def test_after_a_slot_that_did_not_wait_a_job_is_as_impatient_as_at_first():
    plan = known(floor=T, every=SECOND, policy=Policy(jitter=0, catch_up="all"))
    now = T + 20 * SECOND
    for _ in range(4):
        offered(plan, now)
        plan.decided(answer((T + SECOND, "wait"), floor=T), now)
        now = plan.next_due() or 0
    offered(plan, now)
    plan.decided(answer((T + SECOND, "won"), floor=T + SECOND), now)
    offered(plan, now)
    plan.decided(answer((T + 2 * SECOND, "wait"), floor=T + SECOND), now)
    assert now + 62 == plan.next_due()


def test_after_its_turn_has_come_a_job_waits_as_briefly_as_at_first():
    plan = known(floor=T, every=SECOND, policy=Policy(jitter=0, catch_up="all"))
    now = T + 2 * SECOND
    for said in ("wait", "wait", "wait"):
        offered(plan, now)
        plan.decided(answer((T + SECOND, said), floor=T), now)
        now = plan.next_due() or 0
    offered(plan, now)
    plan.decided(answer((T + SECOND, "won"), (T + 2 * SECOND, "wait"), floor=T + SECOND), now)
    assert now + 62 == plan.next_due()


@pytest.mark.parametrize("said", ["won", "taken", "overlap", "paused", "cancelled"])
def test_a_run_that_exists_above_the_floor_is_moved_on_from(said):
    plan = known(floor=T)
    offered(plan, T + MINUTE)
    plan.decided(answer((T + MINUTE, said), floor=T - HOUR), T + MINUTE)
    assert T + 2 * MINUTE == plan.next_due()


def test_a_job_the_store_does_not_know_stays_where_it_was():
    plan = known(floor=T)
    offered(plan, T + MINUTE)
    plan.decided(answer((T + MINUTE, "unknown"), floor=None), T + MINUTE)
    assert (T, T + MINUTE) == (plan.jobs["report"].cursor, plan.next_due())


def test_what_was_leapt_is_decided():
    plan = known(floor=T, every=SECOND, policy=Policy(jitter=0, catch_up="none"))
    leapt = offered(plan, T + HOUR).leap
    missed = Run(job="report", slot=leapt.first, state="missed", until=leapt.last, count=leapt.count)
    plan.decided(Claimed(job="report", floor=leapt.last, claims=(), missed=missed), T + HOUR)
    assert tuple(range(T + HOUR - 9_000, T + HOUR + 1, SECOND)) == offered(plan, T + HOUR).slots


def test_an_earlier_floor_does_not_lead_back_before_a_changed_schedule():
    plan = plan_of(job())
    plan.learn([told(floor=T - HOUR, first=T - 24 * HOUR, effective=T)])
    offered(plan, T + MINUTE)
    plan.decided(answer((T + MINUTE, "early"), floor=T - HOUR, wait=0), T + MINUTE)
    assert T + MINUTE == plan.next_due()


# Jitter -----------------------------------------------------------------------------------------


def test_a_job_is_due_when_its_jitter_is_over():
    plan = known(floor=T, policy=Policy(jitter=20_000))
    delay = Delay(plan.jobs["report"], "node")(T + MINUTE)
    assert T + MINUTE + delay == plan.next_due()
    assert [] == plan.due(T + MINUTE + delay - 1)
    assert Offer(job="report", slots=(T + MINUTE,)) == offered(plan, T + MINUTE + delay)


def test_jitter_is_at_most_half_the_gap_and_covers_it():
    delay = Delay(job(every=SECOND, policy=Policy(jitter=HOUR)), "node")
    delays = [delay(T + n * SECOND) for n in range(1000)]
    assert (True, True) == (min(delays) >= 0, max(delays) <= 500)
    assert max(delays) - min(delays) > 450, "spread over all of it"


def test_jitter_differs_between_nodes_and_not_between_looks():
    planned = job(policy=Policy(jitter=10_000))
    slots = range(T, T + 100 * MINUTE, MINUTE)
    one, other = ([Delay(planned, node)(slot) for slot in slots] for node in ("one", "other"))
    assert one == [Delay(planned, "one")(slot) for slot in slots]
    earlier = sum(a < b for a, b in zip(one, other, strict=True))
    assert 25 < earlier < 75, "neither of them is always the first"


def test_jitter_of_the_last_slot_is_bounded_by_the_setting_alone():
    delay = Delay(PlannedJob(name="once", times=Times(T), policy=Policy(jitter=100)), "node")
    assert 0 <= delay(T) <= 100


def test_without_jitter_there_is_no_delay():
    assert 0 == Delay(job(), "node")(T)


class Failing(Asked):
    """Fire times that raise once they were asked so often."""

    def __init__(self, times: FireTimes, after: int) -> None:
        super().__init__(times)
        self.fails_after = after

    def next(self, after: int) -> int | None:
        if self.asked >= self.fails_after:
            raise ArithmeticError("no such moon")
        return super().next(after)


@pytest.mark.parametrize("asked", range(4))
def test_a_schedule_that_raises_costs_its_own_job_and_no_other(caplog, asked):
    """Whenever it does: while the job is learnt, offered, or decided."""
    bad = PlannedJob(name="bad", times=Failing(Interval(MINUTE), asked), policy=QUIET)
    plan = plan_of(job("good"), bad)
    plan.learn([told(name, floor=T - MINUTE, first=T - HOUR) for name in ("bad", "good")])
    for n in range(5):
        now = T + n * MINUTE
        offers = plan.due(now)
        assert "good" in {offer.job for offer in offers}
        for offer in offers:
            (slot,) = offer.slots
            claim = Claim(key=RunKey(offer.job, slot), answer="taken")
            plan.decided(Claimed(job=offer.job, floor=slot, claims=(claim,)), now)
    assert ["good"] == list(plan.jobs)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "[anarchon] entry 'bad': ArithmeticError: no such moon; this job stays out, the others go on"
    ]


def test_an_offer_says_of_which_schedule_its_slots_are():
    plan = known(floor=T)
    (registered,) = plan.registrations()
    assert Interval(MINUTE).key == registered.hash == offered(plan, T + MINUTE).hash


def test_what_lies_behind_a_slot_that_waits_is_come_back_to():
    """It may be taken: it ran for another schedule of the job. The one that waits would never be offered."""
    plan = known(floor=T, every=SECOND, policy=Policy(jitter=0, catch_up="all"))
    now = T + 4 * SECOND
    offered(plan, now)
    slots = range(T + SECOND, now + 1, SECOND)
    plan.decided(answer(*zip(slots, ("won", "wait", "taken", "wait"), strict=True), floor=T + SECOND), now)
    assert (T + 2 * SECOND, T + 3 * SECOND, T + 4 * SECOND) == offered(plan, plan.next_due()).slots

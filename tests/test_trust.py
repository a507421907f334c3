"""How long a node believes what it knows: trust, hold-off, patience, and the store's time from afar."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_celery.patience import WAITS, Patience
from anarchon_celery.stores.clock import StoreClock, monotonic
from anarchon_celery.trust import HoldOff, Jumps, margin, trusted_until

T = 1_790_000_000_000


# Trust ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, 500),
        (1_000, 500),
        (4_999, 500),
        (5_000, 500),
        (5_010, 501),
        (10_000, 1_000),
        (30_000, 3_000),
        (3_600_000, 360_000),
    ],
)
def test_the_margin_is_the_larger_of_half_a_second_and_a_tenth(length, expected):
    assert expected == margin(length)


@pytest.mark.parametrize(
    ("length", "trusted"), [(0, 0.0), (400, 0.0), (500, 0.0), (501, 0.001), (1_000, 0.5), (30_000, 27.0)]
)
def test_trust_counts_from_before_the_question_and_is_never_negative(length, trusted):
    assert 100.0 + trusted == trusted_until(100.0, length)


# Hold-off ---------------------------------------------------------------------------------------


def test_without_a_cause_nothing_is_held_off():
    assert not HoldOff().on(0.0)


def test_a_hold_off_ends_after_its_length():
    hold_off = HoldOff()
    assert hold_off.begin(10.0, 3_000)
    assert [True, True, False] == [hold_off.on(now) for now in (10.0, 12.999, 13.0)]


def test_a_new_cause_does_not_extend_a_hold_off():
    hold_off = HoldOff()
    hold_off.begin(10.0, 3_000)
    assert not hold_off.begin(12.0, 3_000)
    assert not hold_off.on(13.0)


def test_after_a_hold_off_there_may_be_another():
    hold_off = HoldOff()
    hold_off.begin(10.0, 3_000)
    assert hold_off.begin(13.0, 3_000)
    assert hold_off.on(15.9)


# Jumps of the store's clock ---------------------------------------------------------------------

SECOND, LEASE = 1_000, 30_000  # whose margin is 3 s


def spared(jumps, renewed, *times, lease=LEASE):
    """Whether a run that was renewed at that second of the store's clock is spared then, and then."""
    return [jumps.spares(T + renewed * SECOND, lease, now) for now in times]


def jumped(*some):
    """Jumps as (now, seconds, what the store's clock read then)."""
    jumps = Jumps()
    for now, size, reads in some:
        jumps.note(now, size * SECOND, T + reads * SECOND)
    return jumps


def test_a_jump_spares_who_was_renewed_before_it_for_one_lease():
    jumps = jumped((100.0, 60, 60))
    assert [True, True, False] == spared(jumps, 0, 100.0, 129.9, 130.0)
    assert [False] == spared(jumps, 60, 100.0), "renewed since"


def test_a_lease_bears_a_jump_of_its_margin():
    assert [False] == spared(jumped((100.0, 3, 3)), 0, 101.0)


def test_jumps_add_up():
    assert [True] == spared(jumped((100.0, 2, 2), (105.0, 2, 9)), 0, 106.0)
    assert [False] == spared(jumped((100.0, 2, 2), (105.0, 2, 9)), 3, 106.0), "renewed between them"


def test_a_small_jump_hides_no_great_one():
    jumps = jumped((100.0, 7, 7), (110.0, 3600, 3617))
    assert [True, False] == spared(jumps, 8, 139.9, 140.0)
    assert [True, False] == spared(jumps, 8, 169.9, 170.0, lease=60_000)


def test_a_later_jump_does_not_extend_it():
    jumps = jumped((100.0, 60, 60), (120.0, 60, 140))
    assert [True, False] == spared(jumps, 0, 129.9, 130.0)
    assert [True, False] == spared(jumps, 61, 149.9, 150.0), "it may have been renewed just before the second"


def test_where_the_clock_went_back_what_it_read_before_counts_no_more():
    jumps = jumped((100.0, 3600, 3600))
    jumps.begin(200.0, T + 100 * SECOND)
    assert [True, False] == spared(jumps, 99, 229.9, 230.0), "before it went back, or long before"
    assert [False] == spared(jumps, 101, 201.0)
    jumps.note(300.0, 20 * SECOND, T + 220 * SECOND)
    assert [True, False] == spared(jumps, 190, 329.9, 330.0)


# Patience ---------------------------------------------------------------------------------------


def test_who_did_not_fail_need_not_be_waited_for():
    patience = Patience()
    assert (False, False, False) == (patience.on, patience.lasts(0.0), patience.end())


def test_waits_grow_and_the_last_one_goes_on():
    patience = Patience()
    assert [*WAITS, WAITS[-1], WAITS[-1]] == [patience.begin(float(n)) for n in range(len(WAITS) + 2)]
    assert sorted(WAITS) == list(WAITS)


def test_it_is_too_early_until_the_wait_is_over():
    patience = Patience()
    patience.begin(10.0)
    assert [True, True, False] == [patience.lasts(now) for now in (10.0, 10.499, 10.5)]
    assert patience.on, "it failed, and nobody has asked again"


def test_a_success_ends_it_once_and_the_waits_begin_anew():
    patience = Patience()
    for now in (1.0, 2.0, 3.0):
        patience.begin(now)
    assert [True, False] == [patience.end(), patience.end()]
    assert (False, False) == (patience.on, patience.lasts(3.1))
    assert WAITS[0] == patience.begin(4.0)


def test_a_person_is_told_of_the_first_failures_and_of_every_tenth():
    patience = Patience()
    said = []
    for n in range(1, 31):
        patience.begin(0.0)
        said += [n] if patience.worth_saying else []
    assert [1, 2, 3, 10, 20, 30] == said


# The store's clock ------------------------------------------------------------------------------


class Watch:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
def clock(watch):
    return StoreClock(watch)


def test_before_the_store_has_answered_it_is_the_time_here(clock):
    before = int(time.time() * 1000)
    assert before <= clock.now() <= int(time.time() * 1000)
    assert not clock.known


def test_an_answer_at_once_gives_the_time(clock, watch):
    clock.observe(100.0, 100.0, T)
    assert (True, T) == (clock.known, clock.now())
    watch.at += 2.5
    assert T + 2_500 == clock.now()


def test_a_slow_answer_is_taken_for_as_old_as_it_may_be(clock, watch):
    watch.at = 103.0
    clock.observe(100.0, 103.0, T)
    assert T == clock.now(), "the store may have read its clock just now, and must not be run ahead of"


def test_a_quicker_answer_brings_it_nearer_and_is_no_jump(clock, watch):
    clock.observe(100.0, 103.0, T)
    watch.at = 104.0
    clock.observe(104.0, 104.0, T + 3_900)
    assert T + 3_900 == clock.now()
    assert (0.0, 0.0) == clock.take_jumps()


def test_an_answer_that_agrees_changes_nothing(clock, watch):
    clock.observe(100.0, 100.0, T)
    watch.at = 110.0
    clock.observe(105.0, 110.0, T + 7_000)
    assert T + 10_000 == clock.now()
    assert (0.0, 0.0) == clock.take_jumps()


@pytest.mark.parametrize(("jump", "expected"), [(20_000, (20_000.0, 0.0)), (-20_000, (0.0, 20_000.0))])
def test_a_jump_is_followed_and_reported_once(clock, watch, jump, expected):
    clock.observe(100.0, 100.0, T)
    watch.at = 101.0
    clock.observe(101.0, 101.0, T + 1_000 + jump)
    assert T + 1_000 + jump == clock.now()
    assert [expected, (0.0, 0.0)] == [clock.take_jumps(), clock.take_jumps()]


def test_the_furthest_jump_since_it_was_asked_is_reported(clock, watch):
    clock.observe(100.0, 100.0, T)
    for jump in (5_000, 4_000, 25_000, 20_000):
        clock.observe(100.0, 100.0, T + jump)
    assert (21_000.0, 5_000.0) == clock.take_jumps()


@given(
    st.lists(
        st.tuples(*[st.floats(0.001, 30) for _ in range(4)]),
        min_size=1, max_size=20,
    ),
    st.floats(-1e6, 1e6),
)  # fmt: skip
def test_it_is_never_ahead_of_the_store_nor_behind_by_more_than_the_quickest_answer(answers, skew):
    watch = Watch()
    clock = StoreClock(watch)
    best = float("inf")
    for pause, there, back, later in answers:
        before = watch.at + pause
        true = T + (before + there) * 1000 + skew
        watch.at = before + there + back
        clock.observe(before, watch.at, int(true))
        best = min(best, back * 1000)
        watch.at += later
        true += (back + later) * 1000
        assert clock.now() <= true
        assert true - best - 2.1 <= clock.now(), "2.1: two times cut to whole milliseconds"


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="CLOCK_BOOTTIME: Linux has it")
def test_the_clock_underneath_counts_the_time_a_machine_is_suspended():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)

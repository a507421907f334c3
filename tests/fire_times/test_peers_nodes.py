"""What users of other schedulers complained of, played by nodes on a store: restarts, holes, clocks set back.

As in test_peers.py a test is named after project and issue. The beats, the memory store and kombu's memory
broker are the real ones; time passes as the test says. What is asserted is what was published and what the
store has recorded, not what was computed on the way.

Elsewhere: that of two nodes one publishes a slot (celery#2856, django-celery-beat#337) and that each skip has
a record and a line (apscheduler#112) is in tests/test_scheduler.py; nodes that are killed for real are in
tests/cluster.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest
from celery.schedules import crontab

from anarchon_celery.schedules import once
from anarchon_celery.slots import COUNTED, from_iso, iso
from anarchon_celery.stores import open_store

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


# Clocks set back -------------------------------------------------------------------------------------------


def test_celery_6742_a_clock_set_back_by_years_stops_no_interval(play):
    """The store's clock is the host's here, as with SQLite. In the thread nothing was sent for four years."""
    play.begin("2016-12-14T10:00:05Z")
    beat = play.beat(sync=20)
    play.until("2016-12-14T10:01:05Z", beat)
    assert ["2016-12-14T10:00:20Z", "2016-12-14T10:00:40Z", "2016-12-14T10:01:00Z"] == play.times()[-3:]
    play.begin("2012-12-12T12:23:11Z")
    play.until("2012-12-12T12:23:31Z", beat)
    assert ["2012-12-12T12:23:20Z"] == play.times(), "within one interval"
    play.until("2012-12-12T12:24:31Z", beat)
    assert ["2012-12-12T12:23:40Z", "2012-12-12T12:24:00Z", "2012-12-12T12:24:20Z"] == play.times()


@pytest.mark.parametrize("back", [HOUR, 365 * DAY], ids=["an hour", "a year"])
def test_celery_3685_a_clock_set_back_delays_the_next_slot_by_one_interval_at_most(play, back):
    play.begin("2026-10-10T12:00:30Z")
    beat = play.beat(sync=60)
    play.until("2026-10-10T12:03:30Z", beat)
    play.published()
    play.stage.clock.step(-back)
    first = iso(play.stage.clock.wall() // MINUTE * MINUTE + MINUTE)
    play.until(iso(play.stage.clock.wall() + 3 * MINUTE), beat)
    assert [iso(from_iso(first) + n * MINUTE)[:19] + "Z" for n in range(3)] == play.times()


def test_celery_4920_one_step_of_ntp_by_eight_hours_stops_nothing(play):
    play.begin("2026-10-10T12:00:05Z")
    beat = play.beat(sync=10)
    play.until("2026-10-10T12:00:35Z", beat)
    play.published()
    play.begin("2026-10-10T04:00:35Z")
    play.until("2026-10-10T04:01:05Z", beat)
    assert ["2026-10-10T04:00:40Z", "2026-10-10T04:00:50Z", "2026-10-10T04:01:00Z"] == play.times()


@pytest.mark.parametrize("ahead", [HOUR, 365 * DAY], ids=["an hour", "a year"])
def test_a_clock_set_ahead_brings_one_slot_and_a_record_of_the_others_but_no_storm(play, ahead):
    play.begin("2026-10-10T12:00:30Z")
    beat = play.beat(sync=60)
    play.until("2026-10-10T12:02:30Z", beat)
    play.published()
    play.stage.clock.step(ahead)
    latest = play.stage.clock.wall() // MINUTE * MINUTE
    play.until(iso(latest + 2 * MINUTE), beat)
    assert [f"{iso(latest + n * MINUTE)[:19]}Z" for n in range(3)] == play.times()
    missed = min(ahead // MINUTE - 1, COUNTED)
    assert f"missed {missed}" == play.records()["2026-10-10T12:03"]


@pytest.mark.parametrize("off", [-365 * DAY, -HOUR, HOUR, 365 * DAY])
def test_a_node_whose_own_clock_is_wrong_fires_by_that_of_the_store(play, monkeypatch, off):
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + off / 1000)
    play.begin("2026-10-10T12:00:05Z")
    beat = play.beat(sync=10, report="* * * * *")
    play.until("2026-10-10T12:01:05Z", beat)
    first = ["report @ 2026-10-10T12:00:00Z", "sync @ 2026-10-10T12:00:00Z"]
    then = [f"sync @ 2026-10-10T12:00:{second}Z" for second in (10, 20, 30, 40, 50)]
    last = ["report @ 2026-10-10T12:01:00Z", "sync @ 2026-10-10T12:01:00Z"]
    assert [*first, *then, *last] == play.published()


# Restarts and missed slots ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "published", "record"),
    [
        ({"catch_up_window": "5m"}, ["2026-10-10T11:00:00Z"], "published"),
        ({}, ["2026-10-10T11:00:00Z"], "published"),
        ({"catch_up_window": "1m"}, [], "missed"),
        ({"catch_up": "none"}, [], "missed"),
    ],
)
def test_celery_7002_a_slot_that_fell_into_an_upgrade(play, policy, published, record):
    play.begin("2026-10-10T09:30:00Z")
    before = play.beat(report=("0 * * * *", policy), poll="1m")
    play.until("2026-10-10T10:59:00Z", before)
    before.close()
    assert ["2026-10-10T10:00:00Z"] == play.times()
    play.until("2026-10-10T11:05:00Z")
    after = play.beat("one:2", report=("0 * * * *", policy), poll="1m")
    play.until("2026-10-10T11:05:00Z", after)
    assert published == play.times(), "at once"
    play.until("2026-10-10T12:00:00Z", after)
    assert ["2026-10-10T12:00:00Z"] == play.times()
    assert {
        "2026-10-10T10:00": "published", "2026-10-10T11:00": record, "2026-10-10T12:00": "published",
    } == play.records()  # fmt: skip


def test_dramatiq_crontab_97_a_slot_within_a_restart_of_seventeen_seconds(play):
    play.begin("2026-10-10T15:30:00Z")
    before = play.beat(report="0 * * * *")
    play.until("2026-10-10T15:59:59Z", before)
    before.close()
    play.until("2026-10-10T16:00:16Z")
    after = play.beat("one:2", report="0 * * * *")
    play.until("2026-10-10T16:10:00Z", after)
    assert ["2026-10-10T16:00:00Z"] == play.times()
    run = open_store(play.stage.url).runs()[0]
    assert "2026-10-10T16:00:16.000Z" == iso(run.claimed_at)


def test_celery_9074_after_a_restart_beat_goes_on_with_the_next_slot(play):
    play.begin("2026-10-10T10:01:00Z")
    before = play.beat(sync=crontab("*/5"))
    play.until("2026-10-10T10:10:00Z", before)
    before.close()
    assert ["2026-10-10T10:05:00Z", "2026-10-10T10:10:00Z"] == play.times()
    after = play.beat("one:2", sync=crontab("*/5"))
    play.until("2026-10-10T10:20:00Z", after)
    assert ["2026-10-10T10:15:00Z", "2026-10-10T10:20:00Z"] == play.times()


def test_redbeat_151_an_interval_does_not_begin_anew_with_a_restart(play):
    play.begin("2026-10-10T09:50:00Z")
    before = play.beat(sync=3600, poll="1m")
    play.until("2026-10-10T10:30:00Z", before)
    before.close()
    assert ["2026-10-10T10:00:00Z"] == play.times()
    play.until("2026-10-10T10:45:00Z")
    after = play.beat("one:2", sync=3600, poll="1m")
    play.until("2026-10-10T11:30:00Z", after)
    assert ["2026-10-10T11:00:00Z"] == play.times(), "not at 11:45"


def test_redbeat_233_a_slot_while_beat_was_away_for_two_minutes(play):
    play.begin("2026-10-10T13:10:00Z")
    before = play.beat(report="0 * * * *", poll="1m")
    play.until("2026-10-10T13:59:00Z", before)
    before.close()
    play.until("2026-10-10T14:01:00Z")
    after = play.beat("one:2", report="0 * * * *", poll="1m")
    play.until("2026-10-10T14:01:00Z", after)
    assert ["2026-10-10T14:00:00Z"] == play.times()
    play.until("2026-10-10T14:30:00Z", after)
    assert [] == play.times()


@pytest.mark.parametrize(("catch_up", "first"), [("all", 1), ("latest", 30)])
def test_procrastinate_292_half_an_hour_without_a_look(play, catch_up, first):
    play.begin("2026-10-10T12:00:30Z")
    beat = play.beat(sync=("* * * * *", {"catch_up": catch_up}))
    play.until("2026-10-10T12:00:45Z", beat)
    play.published()
    play.until("2026-10-10T12:30:45Z")  # nobody ticks
    play.until("2026-10-10T12:32:30Z", beat)
    assert [f"2026-10-10T12:{minute:02}:00Z" for minute in range(first, 33)] == play.times()
    if catch_up == "latest":
        assert "missed 29" == play.records()["2026-10-10T12:01"]


@pytest.mark.parametrize(("back_at", "expected"), [("10:34:00", ["10:30"]), ("10:36:00", [])])
def test_django_celery_beat_809_the_starting_deadline_of_crontabs(play, back_at, expected):
    conf = {"beat_cron_starting_deadline": 300}
    play.begin("2026-10-10T10:00:00Z")
    play.until("2026-10-10T10:01:00Z", play.beat(report=crontab(30, "*"), conf=conf))
    play.published()
    play.until(f"2026-10-10T{back_at}Z")
    play.until("2026-10-10T11:00:00Z", play.beat("one:2", report=crontab(30, "*"), conf=conf, poll="1m"))
    assert expected == [time[11:16] for time in play.times()]


def test_django_celery_beat_600_a_policy_to_let_go_of_what_was_missed(play):
    job = ("30 10 * * *", {"catch_up": "none"})
    play.begin("2026-10-10T10:00:00Z")
    play.until("2026-10-10T10:01:00Z", play.beat(report=job), play.beat("two:1", report=job))
    play.until("2026-10-10T11:00:00Z")
    both = play.beat("one:2", report=job, poll="1h"), play.beat("two:2", report=job, poll="1h")
    play.until("2026-10-11T10:29:59Z", *both)
    assert [] == play.times()
    play.until("2026-10-11T10:31:00Z", *both)
    assert ["2026-10-11T10:30:00Z"] == play.times()


def test_django_celery_beat_d6_a_nightly_job_is_caught_up_and_not_at_a_wrong_hour(play):
    """Reproduced with 2.9.0: nothing at 09:00, then at 03:00 and at 05:00."""
    play.begin("2026-10-10T04:00:00Z")
    before = play.beat(report=crontab(0, 5), poll="1h")
    play.until("2026-10-11T04:50:00Z", before)
    before.close()
    play.published()
    play.until("2026-10-11T09:00:00Z")
    after = play.beat("one:2", report=crontab(0, 5), poll="1h")
    play.until("2026-10-11T09:00:01Z", after)
    assert ["2026-10-11T05:00:00Z"] == play.times()
    play.until("2026-10-12T04:59:59Z", after)
    assert [] == play.times()
    play.until("2026-10-12T05:00:00Z", after)
    assert ["2026-10-12T05:00:00Z"] == play.times()


# Too early, and never --------------------------------------------------------------------------------------


def test_redbeat_154_a_midnight_job_does_not_run_on_the_evening_it_was_saved(play):
    play.begin("2020-03-20T23:50:00Z")
    beat = play.beat(report=crontab(0, 0))
    play.until("2020-03-20T23:59:59Z", beat)
    assert [] == play.times()
    play.until("2020-03-21T00:00:00Z", beat)
    assert ["2020-03-21T00:00:00Z"] == play.times()


def test_celery_4743_a_start_five_minutes_before_it_is_due_in_moscow(play):
    play.begin("2018-05-26T06:40:34Z")
    beat = play.beat(report=crontab(hour=9, minute=45), conf={"timezone": "Europe/Moscow"})
    play.until("2018-05-26T06:44:59Z", beat)
    assert [] == play.times()
    play.until("2018-05-26T06:45:00Z", beat)
    assert ["2018-05-26T06:45:00Z"] == play.times()


@pytest.mark.parametrize("enable_utc", [True, False])
def test_celery_4169_a_job_of_every_five_minutes_in_brisbane(play, enable_utc):
    play.begin("2017-07-26T00:02:00Z")
    conf = {"timezone": "Australia/Brisbane", "enable_utc": enable_utc}
    play.until("2017-07-26T00:11:00Z", play.beat(sync=crontab("*/5"), conf=conf))
    assert ["2017-07-26T00:05:00Z", "2017-07-26T00:10:00Z"] == play.times()


def test_django_celery_beat_843_a_job_of_tomorrow_blocks_none_of_now(play):
    play.begin("2026-10-10T12:00:05Z")
    beat = play.beat(afar=once("2026-10-11T12:00:05Z"), soon=10)
    play.until("2026-10-10T12:00:20Z", beat)
    assert ["soon @ 2026-10-10T12:00:10Z", "soon @ 2026-10-10T12:00:20Z"] == play.published()[-2:]


def test_django_celery_beat_150_a_one_off_stops_no_other_job(play):
    play.begin("2026-10-10T12:00:05Z")
    beat = play.beat(gift=once("2026-10-10T12:00:15Z"), sync=10)
    play.until("2026-10-10T12:00:30Z", beat)
    found = play.published()
    assert ["gift @ 2026-10-10T12:00:15Z"] == [slot for slot in found if slot.startswith("gift")]
    assert ["sync @ 2026-10-10T12:00:20Z", "sync @ 2026-10-10T12:00:30Z"] == found[-2:]


def test_django_celery_beat_828_a_one_off_runs_once_although_beat_is_restarted(play):
    play.begin("2026-10-10T12:00:05Z")
    before = play.beat(gift=once("2026-10-10T12:00:15Z"))
    play.until("2026-10-10T12:00:18Z", before)
    before.close()
    assert ["2026-10-10T12:00:15Z"] == play.times()
    for name in ("one:2", "one:3"):
        after = play.beat(name, gift=once("2026-10-10T12:00:15Z"))
        play.until(iso(play.stage.clock.wall() + 20 * SECOND), after)
        after.close()
    assert [] == play.times()


def test_django_celery_beat_604_beat_lives_through_the_end_of_summer_time(play):
    play.begin("2022-11-06T04:30:00Z")
    beat = play.beat(sync=crontab("*/30"), conf={"timezone": "America/New_York"}, poll="1m")
    play.until("2022-11-06T07:30:00Z", beat)
    expected = [f"2022-11-06T0{hour}:{minute}:00Z" for hour in (5, 6, 7) for minute in ("00", "30")]
    assert expected == play.times()[-6:]


def test_celery_6438_nodes_in_the_night_of_the_change_miss_no_minute(play):
    """One of them began inside the repeated hour: that of Celery 5.7 sends thousands of messages."""
    play.begin("2020-10-24T23:59:30Z")
    conf = {"timezone": "Europe/Paris", "anarchon_jitter": 0.1}
    first = play.beat("one:1", sync="* * * * *", conf=conf, poll="1m")
    play.until("2020-10-25T01:20:30Z", first)
    second = play.beat("two:2", sync="* * * * *", conf=conf, poll="1m")
    play.until("2020-10-25T01:59:59Z", first, second)
    expected = [f"2020-10-25T0{hour}:{minute:02}:00Z" for hour in (0, 1) for minute in range(60)]
    assert ["2020-10-24T23:59:00Z", *expected] == sorted(play.times())


def test_django_celery_beat_748_one_impossible_row_stops_no_other(play):
    play.begin("2026-10-10T12:00:05Z")
    beat = play.beat(never="* * 31 4 *", sync=10)
    play.until("2026-10-10T12:00:20Z", beat)
    assert {"sync"} == set(beat.plan.jobs)
    assert ["2026-10-10T12:00:10Z", "2026-10-10T12:00:20Z"] == play.times()[-2:]


# Several nodes ---------------------------------------------------------------------------------------------


def test_celery_pr_2414_a_node_that_is_left_alone_repeats_nothing(play):
    """Standby nodes elsewhere send again whatever came due since *they* began."""
    play.begin("2026-10-10T08:30:00Z")
    leader, standby = play.beat("one:1", sync=3600, poll="1m"), play.beat("two:2", sync=3600, poll="1m")
    play.until("2026-10-10T11:30:00Z", leader, standby)
    assert [f"2026-10-10T{hour}:00:00Z" for hour in ("09", "10", "11")] == play.times()
    play.until("2026-10-10T11:59:59Z", standby)  # the other one ticks no more, nor does it say goodbye
    assert [] == play.times()
    play.until("2026-10-10T12:00:00Z", standby)
    assert ["2026-10-10T12:00:00Z"] == play.times()


@pytest.mark.parametrize("leader_first", [True, False])
def test_redbeat_271_a_node_that_is_killed_a_second_before_the_slot(play, leader_first):
    play.begin("2026-10-10T12:01:00Z")
    one, two = play.beat("one:1", report="*/15 * * * *"), play.beat("two:2", report="*/15 * * * *")
    both = (one, two) if leader_first else (two, one)
    play.until("2026-10-10T12:14:59Z", *both)
    play.until("2026-10-10T12:20:00Z", both[1])
    assert ["2026-10-10T12:15:00Z"] == play.times()


def test_leased_beat_d7_after_a_kill_the_interval_keeps_its_times(play):
    play.begin("2026-10-10T12:00:07Z")
    one, two = play.beat("one:1", sync=20), play.beat("two:2", sync=20)
    play.until("2026-10-10T12:01:03Z", one, two)
    assert ["2026-10-10T12:00:20Z", "2026-10-10T12:00:40Z", "2026-10-10T12:01:00Z"] == play.times()[-3:]
    play.until("2026-10-10T12:01:45Z", two)
    assert ["2026-10-10T12:01:20Z", "2026-10-10T12:01:40Z"] == play.times()


def test_procrastinate_d4_a_node_that_was_paused_finds_its_slots_taken(play):
    play.begin("2026-10-10T12:00:30Z")
    policy = {"catch_up": "all"}
    one, two = play.beat("one:1", sync=("* * * * *", policy)), play.beat("two:2", sync=("* * * * *", policy))
    play.until("2026-10-10T12:02:30Z", one, two)
    play.until("2026-10-10T12:05:30Z", two)
    play.until("2026-10-10T12:07:30Z", one, two)
    counts = Counter(play.times())
    assert {f"2026-10-10T12:0{minute}:00Z": 1 for minute in range(8)} == counts


# Edited, moved, removed ------------------------------------------------------------------------------------


def test_redbeat_289_a_crontab_that_was_changed_in_the_code_is_followed_after_a_restart(play):
    play.begin("2026-10-10T11:50:00Z")
    before = play.beat(report=crontab(0, "*"), poll="1m")
    play.until("2026-10-10T12:40:00Z", before)
    before.close()
    assert ["2026-10-10T12:00:00Z"] == play.times()
    after = play.beat("one:2", report=crontab(30, "*"), poll="1m")
    play.until("2026-10-10T13:40:00Z", after)
    assert ["2026-10-10T13:30:00Z"] == play.times(), "12:30 was before the change, and 13:00 is no more"


def test_django_celery_beat_37_an_edited_interval_counts_from_now(play):
    play.begin("2026-10-10T12:10:00Z")
    before = play.beat(sync=("1h", {"catch_up": "all"}), poll="1m")
    play.until("2026-10-10T12:20:05Z", before)
    before.close()
    after = play.beat("one:2", sync=("10s", {"catch_up": "all"}))
    play.until("2026-10-10T12:20:30Z", after)
    assert ["2026-10-10T12:20:10Z", "2026-10-10T12:20:20Z", "2026-10-10T12:20:30Z"] == play.times()


def test_redbeat_290_old_and_new_times_side_by_side_run_each_slot_once(play):
    play.begin("2026-10-10T12:01:00Z")
    old = play.beat("one:1", report="*/10 * * * *", poll="10s")
    play.until("2026-10-10T12:12:00Z", old)
    new = play.beat("two:2", report="*/15 * * * *", poll="10s")
    play.until("2026-10-10T13:01:00Z", old, new)
    old.close()
    play.until("2026-10-10T13:46:00Z", new)
    minutes = [10, 15, 20, 30, 40, 45, 50, 60, 75, 90, 105]
    expected = [f"2026-10-10T{12 + minute // 60}:{minute % 60:02}:00Z" for minute in minutes]
    assert expected == play.times()


def test_a_job_that_moves_to_another_zone_has_the_times_of_that_from_now_on(play):
    play.begin("2026-10-10T05:00:00Z")
    before = play.beat(report="0 8 * * *", poll="1h", conf={"timezone": "Europe/Berlin"})
    play.until("2026-10-10T10:00:00Z", before)
    before.close()
    assert ["2026-10-10T06:00:00Z"] == play.times()
    after = play.beat("one:2", report="0 8 * * *", poll="1h", conf={"timezone": "America/New_York"})
    play.until("2026-10-11T11:59:59Z", after)
    assert ["2026-10-10T12:00:00Z"] == play.times(), "nothing of what the new zone would have had before"


def test_django_celery_beat_248_a_job_that_was_removed_stops_where_it_is_no_more(play):
    play.begin("2026-10-10T12:00:05Z")
    before = play.beat(sync=10, gone=10)
    play.until("2026-10-10T12:00:10Z", before)
    before.close()
    play.published()
    after = play.beat("one:2", sync=10)
    play.until("2026-10-10T12:00:30Z", after)
    assert ["sync @ 2026-10-10T12:00:20Z", "sync @ 2026-10-10T12:00:30Z"] == play.published()
    old = play.beat("two:1", sync=10, gone=10)  # one that is not deployed yet has it still
    play.until("2026-10-10T12:00:40Z", after, old)
    found = Counter(play.published())
    assert 1 == found["gone @ 2026-10-10T12:00:40Z"]
    assert {1} == set(found.values())


# Many jobs -------------------------------------------------------------------------------------------------


def test_celery_824_two_thousand_jobs_without_a_hole(play):
    play.begin("2026-10-10T05:00:30Z")
    jobs = {f"job{n}": f"{5 + n % 56}m" for n in range(2_000)}
    beat = play.beat(poll="1m", **jobs)
    play.until("2026-10-10T05:00:31Z", beat)
    play.published()
    play.until("2026-10-10T05:15:31Z", beat)
    begin, end = from_iso("2026-10-10T05:00:31Z"), from_iso("2026-10-10T05:15:31Z")
    expected = {
        f"{job} @ {iso(slot)[:19]}Z"
        for job, times in ((job, beat.plan.jobs[job].times) for job in jobs)
        for slot in times.between(begin, end)
    }
    assert 1_000 < len(expected)
    assert dict.fromkeys(expected, 1) == Counter(play.published())
    runs = open_store(play.stage.url).runs(limit=10_000)
    assert {0} == {run.claimed_at - run.slot for run in runs if run.slot > begin}


def test_procrastinate_1464_the_one_of_eighty_jobs_that_is_due_at_one(play):
    play.begin("2026-10-10T00:59:30Z")
    jobs = {f"job{n}": f"{n % 60} {2 + n % 22} * * *" for n in range(79)}
    beat = play.beat(**jobs, at_one="0 1 * * *")
    play.until("2026-10-10T01:01:00Z", beat)
    assert ["at_one @ 2026-10-10T01:00:00Z"] == play.published()


def test_apscheduler_803_a_hundred_short_jobs_are_all_there_in_the_end(play):
    play.begin("2026-10-10T12:00:05Z")
    beat = play.beat(poll="10s", **{f"job{n}": 30 for n in range(100)})
    play.until("2026-10-10T12:00:06Z", beat)
    play.published()
    play.until("2026-10-10T12:08:06Z", beat)
    counts = Counter(slot.partition(" @ ")[0] for slot in play.published())
    assert {f"job{n}": 16 for n in range(100)} == counts

"""What is counted, where that goes, and what a node answers Prometheus."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from urllib.request import urlopen

import pytest
from celery.signals import beat_init
from prometheus_client.parser import text_string_to_metric_families

from anarchon_celery import events, gauges, measures, metrics
from anarchon_celery.config import Config
from anarchon_celery.errors import StoreUnreachable
from anarchon_celery.gauges import Gauges
from anarchon_celery.measures import METRICS, Sample, samples_of
from anarchon_celery.protocol import Renewal, RunKey, Start, Started
from anarchon_celery.relay import Relay
from anarchon_celery.schedules import once
from anarchon_celery.slots import DAY, HOUR, from_iso, iso
from anarchon_celery.stores import Store, open_store
from anarchon_celery.stores.timing import VERBS, timed
from anarchon_celery.tally import Tally
from tests.processes import wait_until
from tests.stage import T, clock, lines, log, stage
from tests.test_events import KEY, NODE_LINES, RUN_LINES

__all__ = ["clock", "log", "stage"]  # fixtures


def added(event):
    """What a happening adds, beside its own count."""
    first, *others = samples_of(event)
    assert Sample("anarchon_events_total", (event.name,)) == first
    return others


# What is counted --------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [event for event, _, _ in RUN_LINES + NODE_LINES], ids=str)
def test_each_sample_is_of_a_metric_and_has_its_labels(event):
    for name, labels, value in samples_of(event):
        assert len(METRICS[name].labels) == len(labels) and value >= 0
        assert not any("2026" in label for label in labels), "a slot is no label"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (events.SlotClaimed(KEY, "scheduled"), [("slot_claims_total", "report", "won", 1)]),
        (events.SlotSkipped(KEY, "overlap"), [("slot_claims_total", "report", "overlap", 1)]),
        (
            events.SlotSkipped(KEY, "overtaken by the slot of 12:01"),
            [("slot_claims_total", "report", "skipped", 1)],
        ),
        (events.SlotSkipped(KEY, "stale"), [("run_start_rejected_total", "report", 1)]),
        (events.SlotMissed(KEY, 7), [("slot_claims_total", "report", "missed", 1)]),
        (
            events.RunDispatched(KEY, "scheduled", 1, 250),
            [("dispatches_total", "report", "first", 1), ("slot_lateness_seconds", "report", 0.25)],
        ),
        (events.RunDispatched(KEY, "scheduled", 2), [("dispatches_total", "report", "redispatch", 1)]),
        (events.RunDispatched(KEY, "takeover", 2), [("dispatches_total", "report", "takeover", 1)]),
        (events.RunTakenOver(KEY, "running", 30_500), [("takeover_seconds", "report", 30.5)]),
        (events.RunTakenOver(KEY, "released", 500), [("handover_seconds", "report", 0.5)]),
        (
            events.RunStarted(KEY, "manual", 40),
            [("run_starts_total", "report", "manual", 1), ("run_queue_wait_seconds", "report", 0.04)],
        ),
        (events.RunStarted(KEY, "scheduled"), [("run_starts_total", "report", "scheduled", 1)]),
        (events.RunFinished(KEY, 203), [("run_duration_seconds", "report", "succeeded", 0.203)]),
        (events.RunCancelled(KEY, "by alice", 5), [("run_duration_seconds", "report", "cancelled", 0.005)]),
        (events.RunCancelled(KEY, "by alice"), []),
        (
            events.RunLost(KEY, 31_000, "taken over"),
            [("lease_lost_total", "report", 1), ("run_duration_seconds", "report", "lost", 31)],
        ),
        (events.RunAbandoned(KEY, "3 workers died"), [("runs_dead_total", "report", 1)]),
        (events.RunNotPublished(KEY, "x", certain=True), [("publish_failures_total", "report", 1)]),
        (events.StoreBack(), []),
    ],
    ids=str,
)
def test_what_a_happening_adds(event, expected):
    assert expected == [
        (name.removeprefix("anarchon_"), *labels, value) for name, labels, value in added(event)
    ]


def test_calls_of_the_store_are_counted_and_what_they_answer(monkeypatch):
    told = []
    monkeypatch.setattr(measures, "_sink", told.extend)

    class Store:
        def __getattr__(self, name):
            return lambda *args, **kwargs: answers[name](*args)

    def down():
        raise StoreUnreachable("down")

    answers = {"renew": lambda _: [Renewal(answer="ok"), Renewal(answer="lost")], "finish": down}
    store = timed(Store(), measures.store_called)
    assert 2 == len(store.renew([]))
    with pytest.raises(StoreUnreachable):
        store.finish()
    assert [("renew", "ok"), ("ok",), ("lost",), ("finish", "failed")] == [
        labels for name, labels, _ in told if name != "anarchon_store_call_seconds"
    ]


def test_all_verbs_are_timed():
    assert sorted({*VERBS, "close"} - {"successes"}) == sorted(Store.__abstractmethods__)


def test_a_store_is_as_it_is_without_metrics(stage):
    assert "renew" not in vars(Config.of(stage.app({})).open_store())
    assert "renew" in vars(Config.of(stage.app({}, anarchon_metrics=0)).open_store())


def test_a_tally_adds_up_and_passes_over_what_is_no_metric():
    tally = Tally()
    runs = "anarchon_run_duration_seconds"
    tally.add([Sample(runs, ("a", "failed"), value) for value in (0.1, 0.10001, 1e6)])
    tally.add([Sample("anarchon_lease_lost_total", ("a",)), Sample("anarchon_lease_lost_total", ("a",))])
    tally.add([Sample("made_up"), Sample(runs, ("a",), 1)])
    sums, buckets = tally.read()
    assert {(runs, ("a", "failed")): 1_000_000.20001, ("anarchon_lease_lost_total", ("a",)): 2} == sums
    assert [0, 1, 1, *[0] * 11, 1] == buckets[runs, ("a", "failed")]


# From the children to the worker ----------------------------------------------------------------


def of_job(number):
    return Sample("anarchon_lease_lost_total", (f"job-{number}-é",))


def test_what_a_child_counts_comes_to_its_parent():
    relay, got = Relay(), []
    child = os.fork()
    if not child:
        relay.send([of_job(1), of_job(2)])
        relay.send([of_job(3)])
        os._exit(0)
    relay.follow(got.extend)
    assert (child, 0) == os.waitpid(child, 0)
    wait_until(lambda: len(got) == 3)
    assert [of_job(1), of_job(2), of_job(3)] == got
    relay.close()


def test_nobody_waits_for_a_parent_that_does_not_read_and_what_is_dropped_is_counted():
    relay, got = Relay(), []
    for number in range(3_000):
        relay.send([of_job(number)])
    dropped = relay._dropped
    assert 1_000 < dropped < 2_500
    relay.follow(got.extend)
    wait_until(lambda: len(got) == 3_000 - dropped)
    relay.send([of_job(3_000)])
    wait_until(lambda: len(got) == 3_002 - dropped)
    assert [of_job(3_000), Sample("anarchon_samples_dropped_total", (), dropped)] == got[-2:]
    relay.send([Sample("anarchon_lease_lost_total", ("x" * 5_000,))])
    assert 1 == relay._dropped, "longer than what is written in one piece"
    relay.close()


def test_a_child_whose_files_were_closed_writes_to_no_file_of_somebody_elses(tmp_path):
    # As Celery does to an embedded beat.
    relay, got = Relay(), []
    child = os.fork()
    if not child:
        os.dup2(os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY), relay._found_at)
        relay.send([of_job(1)])
        os._exit(0)
    relay.follow(got.extend)
    assert (child, 0) == os.waitpid(child, 0)
    if os.path.isdir("/proc/self/fd"):
        wait_until(lambda: got == [of_job(1)])
    assert b"" == (tmp_path / "other").read_bytes()
    relay.close()


@pytest.mark.parametrize("parent", ["has closed it, too", "has another file there"])
def test_what_a_child_cannot_pass_on_any_more_is_dropped(tmp_path, parent):
    relay = Relay()
    relay.send([of_job(0)])
    os.close(relay._writer)
    if parent == "has another file there":
        os.dup2(os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY), relay._found_at)
    files = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        relay.send([of_job(number)])
    assert 3 == relay._dropped
    assert files == len(os.listdir("/proc/self/fd"))
    if parent == "has another file there":
        assert b"" == (tmp_path / "other").read_bytes()
        relay.close()
    os.close(relay._reader)


# What the store tells ---------------------------------------------------------------------------


def shown(found):
    """Gauges of jobs, by name and job, as they are."""
    return {(name.removeprefix("anarchon_"), *labels): value for name, labels, value in found}


@pytest.fixture
def of_jobs(stage):
    """A beat's gauges, looked at anew each time, and its store."""

    def look(schedule, **conf):
        app = stage.app(schedule, **conf)
        found = Gauges(app, Config.of(app), of_jobs=True)
        return lambda: (setattr(found, "_asked_at", None), shown(found.read()))[1]

    return look


def job(schedule):
    return {"task": "proj.job", "schedule": schedule, "options": {"anarchon": {"supervised": True}}}


def run_well(stage, name, slot):
    started = stage.store.start(Start(key=RunKey(name, slot), token="t", worker="w:1"))
    assert isinstance(started, Started)
    assert stage.store.finish(RunKey(name, slot), "t", "succeeded")


def test_of_each_job_its_last_success_its_period_and_what_comes_next(stage, of_jobs):
    jobs = {"sync": job(60), "slow": job(HOUR / 1000)}
    look = of_jobs(jobs)
    assert {("job_next_fire_timestamp_seconds", name): (T + ms) / 1000 for name, ms in (
        ("sync", 60_000), ("slow", HOUR)
    )} == {key: value for key, value in look().items() if key[0].startswith("job_")}  # fmt: skip
    beat = stage.beat(jobs)
    beat.tick()
    stage.clock.advance(2_000)
    run_well(stage, "sync", T)
    stage.clock.advance(1_000)
    stage.store.pause("slow", reason="deploy", by="alice")
    told = look()
    assert (T + 2_000, 60_000) == (
        1000 * told["job_last_success_timestamp_seconds", "sync"], 1000 * told["job_period_seconds", "sync"]
    )  # fmt: skip
    assert T == 1000 * told["job_last_success_timestamp_seconds", "slow"], "none since it was first seen"
    assert (0, 1) == (told["job_paused", "sync"], told["job_paused", "slow"])
    assert (1, 1, 0) == (told["store_up",], told["nodes", "beat"], told["nodes", "worker"])


def test_a_job_that_fires_no_more_has_no_next_time_and_one_that_does_not_twice_no_period(stage, of_jobs):
    jobs = {"last": job(once(iso(T + HOUR)))}
    stage.beat(jobs).tick()
    look = of_jobs(jobs)
    first = {key[0]: value for key, value in look().items() if key[1:] == ("last",)}
    assert (T + HOUR, 0) == (1000 * first.pop("job_next_fire_timestamp_seconds"), first["job_paused"])
    assert {"job_paused", "job_last_success_timestamp_seconds"} == first.keys()
    stage.clock.advance(2 * HOUR)
    assert first.keys() == {key[0] for key in look() if key[1:] == ("last",)}


def test_of_a_job_without_a_success_it_is_as_far_back_as_the_store_remembers(stage, of_jobs):
    jobs = {"sync": job(60)}
    stage.beat(jobs).tick()
    look = of_jobs(jobs, anarchon_history="1d")
    stage.clock.advance(3 * DAY)
    assert T + 2 * DAY == 1000 * look()["job_last_success_timestamp_seconds", "sync"]


def test_a_success_that_the_store_forgot_meanwhile_is_still_known(stage, of_jobs):
    jobs = {"sync": job(60)}
    stage.beat(jobs).tick()
    run_well(stage, "sync", T)
    look = of_jobs(jobs)
    before = look()
    assert 1 == stage.store.forget("sync")
    stage.clock.advance(1_000)
    assert before == look() | {("clock_offset_seconds",): before["clock_offset_seconds",]}


@pytest.mark.parametrize(
    ("cron", "after", "days"),
    [
        ("0 9 * * *", "2026-10-07T09:00:00.000Z", 1),
        ("0 9 * * mon-fri", "2026-10-08T09:00:00.000Z", 2),  # from Thursday: Friday, then Monday
        ("0 9 * * mon-fri", "2026-10-09T09:00:00.000Z", 2),  # from Friday: Monday, then Tuesday
        ("0 9 * * mon-fri", "2026-10-07T09:00:00.000Z", 1),  # from Wednesday: Thursday, then Friday
        ("0 9 * * mon-fri", "2026-10-09T15:00:00.000Z", 1.875),  # by hand
    ],
)
def test_the_period_is_that_of_what_follows(stage, cron, after, days):
    from anarchon_celery.desk import Desk

    app = stage.app({"report": job(cron)})
    times = Desk(app, Config.of(app)).jobs["report"].times
    assert days * DAY == gauges._period(times, from_iso(after) + 1)


def test_the_store_is_asked_by_three_calls_for_any_number_of_jobs_and_not_again_at_once(stage, monkeypatch):
    jobs = {f"job-{number}": job(60) for number in range(30)}
    stage.beat(jobs).tick()
    asked, now = [], [100.0]
    monkeypatch.setattr(measures, "_sink", lambda samples: asked.extend(s.labels[0] for s in samples[1:2]))
    monkeypatch.setattr(gauges, "monotonic", lambda: now[0])
    app = stage.app(jobs, anarchon_metrics=0)
    found = Gauges(app, Config.of(app), of_jobs=True)
    assert [] == asked, "nobody looked"
    first = found.read()
    now[0] += 14.9
    assert first is found.read()
    assert ["nodes", "jobs", "successes"] == asked
    now[0] += 0.1
    found.read()
    assert 6 == len(asked)


def test_while_the_store_is_away_what_is_known_of_jobs_is_told(stage, of_jobs, monkeypatch):
    jobs = {"sync": job(60)}
    stage.beat(jobs).tick()
    look = of_jobs(jobs)
    before = look()

    def away(self):
        raise StoreUnreachable("down")

    monkeypatch.setattr(type(open_store(stage.url)), "nodes", away)
    assert before | {("store_up",): 0} == look()


def test_a_store_that_does_not_answer_is_told_before_prometheus_gives_up(stage, monkeypatch):
    monkeypatch.setattr(gauges, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        app = stage.app({}, anarchon_store=url, anarchon_claim_timeout="1h")
        asked_at = time.monotonic()
        assert [("anarchon_store_up", (), 0)] == Gauges(app, Config.of(app), of_jobs=True).read()
    assert time.monotonic() - asked_at < 5


@pytest.mark.parametrize("wrong", [{"beat_schedule": [1]}, {"timezone": "Mars/Base"}])
def test_a_worker_whose_beat_cannot_begin_tells_the_rest(stage, wrong):
    app = stage.app({})
    app.conf.update(wrong)
    assert {"anarchon_store_up": 1, "anarchon_nodes": 0}.items() <= {
        name: value for name, _, value in Gauges(app, Config.of(app), of_jobs=True).read()
    }.items()


def test_a_schedule_that_raises_costs_its_own_job(stage, of_jobs, monkeypatch):
    jobs = {"bad": job("*/5 * * * *"), "sync": job(60)}
    stage.beat(jobs).tick()
    look = of_jobs(jobs)
    look()
    monkeypatch.setattr("anarchon_celery.wallclock.Cron.next", lambda self, after: 1 / 0)
    assert {"sync"} == {key[1] for key in look() if key[0].startswith("job_")}


# A beat answers ---------------------------------------------------------------------------------


class Service:
    """Celery's, as far as it is looked at."""

    def __init__(self, app):
        self.app = app


@pytest.fixture
def begin(stage, monkeypatch):
    """Let a beat of these settings begin, as Celery's service does."""
    monkeypatch.setattr(metrics, "_exporter", None)
    monkeypatch.setattr(measures, "_sink", None)

    def a_beat(schedule=None, **conf):
        beat = stage.beat(schedule or {"sync": job(60)}, **conf)
        beat_init.send(sender=Service(beat.app))
        return beat

    yield a_beat
    if metrics._exporter is not None:
        metrics._exporter.close()


def served(log):
    return wait_until(lambda: lines(log, "metrics are"), 5)[0]


def test_a_beat_answers_at_its_endpoint(stage, begin, log):
    beat = begin(anarchon_metrics=0)
    beat.tick()
    with urlopen(served(log).removeprefix("metrics are served at "), timeout=5) as answer:
        text = answer.read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    expected = {name.removesuffix("_total"): metric.help for name, metric in METRICS.items()}
    assert expected == {name: family.documentation for name, family in families.items()}
    assert {name: METRICS.get(name, METRICS.get(f"{name}_total")).kind for name in families} == {
        name: family.type for name, family in families.items()
    }
    (dispatched,) = families["anarchon_dispatches"].samples
    assert ({"job": "sync", "kind": "first"}, 1) == (dispatched.labels, dispatched.value)
    assert 'anarchon_store_calls_total{op="claim",result="ok"} 1.0' in text


def test_without_the_setting_nothing_is_counted(begin, monkeypatch):
    begin()
    assert (None, None) == (metrics._exporter, measures._sink)
    begin(anarchon_metrics={"worker": 0})
    assert (None, None) == (metrics._exporter, measures._sink)


def test_a_port_that_somebody_has_is_one_line_and_beat_goes_on(stage, begin, log):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        beat = begin(anarchon_metrics=port)
        said = served(log)
    assert said.startswith(f"metrics are not served: 127.0.0.1:{port} cannot be had (")
    assert said.endswith("each node needs one of its own")
    beat.tick()
    assert 1 == len(stage.slots())


def test_without_prometheus_client_it_is_one_line_and_beat_goes_on(stage, begin, log, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    beat = begin(anarchon_metrics=0)
    missing = "prometheus-client is not installed: pip install 'anarchon-celery[metrics]'"
    assert f"metrics are not served: {missing}" == served(log)
    beat.tick()
    assert 1 == len(stage.slots())


def test_a_child_keeps_no_port(stage, begin, log):
    begin(anarchon_metrics=0)
    served(log)
    exporter = metrics._exporter
    child = os.fork()
    if not child:
        os._exit(0 if exporter._server.socket.fileno() == -1 else 1)
    assert (child, 0) == os.waitpid(child, 0)
    assert exporter._server.socket.fileno() > 0
    assert any(thread.name == "anarchon-metrics" for thread in threading.enumerate()) or exporter._server

"""What is measured: the metrics there are, and what a happening, or a call of the store, adds to them.

Nothing of this is counted unless somebody listens (:mod:`anarchon_celery.metrics`). Labels are few: never a
slot, never a text that a program makes up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from . import events
from .errors import StoreError
from .events import Event

#: The upper bounds of the histograms' buckets, in seconds.
WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)
RUNS = (0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 1800, 3600, 10_800, 43_200)
CALLS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, as Prometheus knows it."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


class Sample(NamedTuple):
    """Something to be counted, observed or shown: by how much, or what."""

    name: str
    labels: tuple[str, ...] = ()
    value: float = 1.0


def _counter(name: str, labels: str, help: str) -> Metric:
    return Metric(f"anarchon_{name}_total", "counter", tuple(labels.split()), help)


def _histogram(name: str, labels: str, help: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(f"anarchon_{name}_seconds", "histogram", tuple(labels.split()), help, buckets)


def _gauge(name: str, labels: str, help: str) -> Metric:
    return Metric(f"anarchon_{name}", "gauge", tuple(labels.split()), help)


METRICS = {
    metric.name: metric
    for metric in (
        _counter("events", "event", "Happenings, by the name of their signal."),
        _counter("slot_claims", "job result", "What this beat was answered when it offered a slot."),
        _histogram("slot_lateness", "job", "From the slot to its first publication.", WAITS),
        _counter("dispatches", "job kind", "Messages of runs published."),
        _counter("publish_failures", "job", "Messages of runs that could not be published, or perhaps not."),
        _histogram("takeover", "job", "From the last heartbeat of a dead holder to the claim anew.", WAITS),
        _histogram("handover", "job", "From when a given back run may start to the claim anew.", WAITS),
        _counter("runs_dead", "job", "Runs that were abandoned."),
        _counter("run_starts", "job trigger", "Attempts that were begun."),
        _counter("run_start_rejected", "job", "Messages that might not start their run."),
        _histogram("run_queue_wait", "job", "From the claim for a message to the start by it.", WAITS),
        _histogram("run_duration", "job outcome", "How long an attempt was held, and how it ended.", RUNS),
        _counter("heartbeats", "result", "Renewals of leases."),
        _counter("lease_lost", "job", "Leases that were lost while the task ran."),
        _histogram("store_call", "op", "Calls of the store.", CALLS),
        _counter("store_calls", "op result", "Calls of the store."),
        _counter("samples_dropped", "", "What children counted that did not come through to their worker."),
        _gauge("store_up", "", "Whether the store answered the last look for these metrics."),
        _gauge("clock_offset_seconds", "", "How far this host's clock is ahead of the store's."),
        _gauge("nodes", "kind", "Nodes that are alive, as the store knows them."),
        _gauge("job_last_success_timestamp_seconds", "job", "When the job's last success ended."),
        _gauge("job_period_seconds", "job", "The mean of the two periods that follow its last success."),
        _gauge("job_next_fire_timestamp_seconds", "job", "When the job fires next."),
        _gauge("job_paused", "job", "Whether the job is paused."),
    )
}


def samples_of(event: Event) -> Iterator[Sample]:
    """Yield what a happening adds."""
    yield Sample("anarchon_events_total", (event.name,))
    told = _OF.get(type(event))
    if told is not None:
        yield from told(event)


def _claim(result: str) -> Callable[[Any], Iterator[Sample]]:
    def of(event: events.RunEvent) -> Iterator[Sample]:
        yield Sample("anarchon_slot_claims_total", (event.key.job, result))

    return of


def _skipped(event: events.SlotSkipped) -> Iterator[Sample]:
    if event.why == "stale":
        yield Sample("anarchon_run_start_rejected_total", (event.key.job,))
    else:
        why = event.why if event.why in ("taken", "overlap", "paused") else "skipped"
        yield from _claim(why)(event)


def _dispatched(event: events.RunDispatched) -> Iterator[Sample]:
    job = event.key.job
    kind = "takeover" if event.trigger == "takeover" else "first" if event.dispatch == 1 else "redispatch"
    yield Sample("anarchon_dispatches_total", (job, kind))
    if event.late_ms is not None:
        yield Sample("anarchon_slot_lateness_seconds", (job,), event.late_ms / 1000)


def _taken_over(event: events.RunTakenOver) -> Iterator[Sample]:
    how = "takeover" if event.was == "running" else "handover"
    yield Sample(f"anarchon_{how}_seconds", (event.key.job,), event.ms / 1000)


def _started(event: events.RunStarted) -> Iterator[Sample]:
    yield Sample("anarchon_run_starts_total", (event.key.job, event.trigger))
    if event.waited_ms is not None:
        yield Sample("anarchon_run_queue_wait_seconds", (event.key.job,), event.waited_ms / 1000)


def _ended(outcome: str) -> Callable[[Any], Iterator[Sample]]:
    def of(event: Any) -> Iterator[Sample]:
        if event.ms is not None:  # else it was not started
            yield Sample("anarchon_run_duration_seconds", (event.key.job, outcome), event.ms / 1000)

    return of


def _lost(event: events.RunLost) -> Iterator[Sample]:
    yield Sample("anarchon_lease_lost_total", (event.key.job,))
    yield from _ended("lost")(event)


def _of_job(name: str) -> Callable[[Any], Iterator[Sample]]:
    def of(event: events.RunEvent) -> Iterator[Sample]:
        yield Sample(f"anarchon_{name}_total", (event.key.job,))

    return of


_OF: dict[type[Event], Callable[[Any], Iterator[Sample]]] = {
    events.SlotClaimed: _claim("won"),
    events.SlotSkipped: _skipped,
    events.SlotMissed: _claim("missed"),
    events.RunBuffered: _claim("buffered"),
    events.RunDispatched: _dispatched,
    events.RunNotPublished: _of_job("publish_failures"),
    events.RunTakenOver: _taken_over,
    events.RunAbandoned: _of_job("runs_dead"),
    events.RunStarted: _started,
    events.RunFinished: _ended("succeeded"),
    events.RunFailed: _ended("failed"),
    events.RunRetried: _ended("retry"),
    events.RunHandedOver: _ended("handed_over"),
    events.RunCancelled: _ended("cancelled"),
    events.RunCrashed: _ended("crashed"),
    events.RunLost: _lost,
}

#: Who counts; nobody, unless this process is a node with metrics, or a child of one.
_sink: Callable[[Sequence[Sample]], None] | None = None


def count_with(sink: Callable[[Sequence[Sample]], None] | None) -> None:
    """Let samples go there from now on."""
    global _sink
    _sink = sink


def count(samples: Sequence[Sample]) -> None:
    """Let samples be counted, if somebody does."""
    if _sink is not None:
        _sink(samples)


def store_called(op: str, seconds: float, answer: Any) -> None:
    """A call of the store is over, with an answer or an error."""
    result = "failed" if isinstance(answer, StoreError) else "ok"
    samples = [
        Sample("anarchon_store_call_seconds", (op,), seconds),
        Sample("anarchon_store_calls_total", (op, result)),
    ]
    if op == "renew":
        answers = ["failed"] if result == "failed" else [one.answer for one in answer]
        samples += [Sample("anarchon_heartbeats_total", (one,)) for one in answers]
    count(samples)

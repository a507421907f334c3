"""Metrics for Prometheus, by one setting: ``anarchon_metrics = 9808``.

A beat and a worker each answer at their own endpoint, a worker for all of its children, an embedded beat
included. What is counted is what the signals tell, and the calls of the store. Importing this is all it
takes; without the setting nothing is counted, and prometheus-client is not imported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

from celery.bootsteps import StartStopStep
from celery.signals import beat_init, worker_init

from . import measures, native, signals
from .config import Config
from .endpoints import Endpoint
from .errors import SettingError, in_one_line
from .events import Event, MetricsNotServed, MetricsServed, emit
from .logged import speaker, speaking_as
from .measures import METRICS, Metric, Sample
from .relay import Relay
from .tally import Tally

MISSING = "prometheus-client is not installed: pip install 'anarchon-celery[metrics]'"


class Exporter:
    """Counts for one node, in its process and in the children of that, and answers whoever asks."""

    def __init__(self, app: Any, config: Config, kind: str) -> None:
        """Count from now on; :meth:`serve` answers."""
        self.pid = os.getpid()
        self.endpoint = config.metrics[kind]
        self._app, self._config = app, config
        self._tally = Tally()
        self._relay = Relay() if kind == "worker" else None
        self._server: Any = None

    def begin(self) -> None:
        """Hear of what happens from now on, in the children that are forked later, too."""
        measures.count_with(self.take)
        for signal in signals.ALL.values():
            signal.connect(_count, weak=False)

    def take(self, samples: Sequence[Sample]) -> None:
        """Add samples up, or pass them on to the process that does."""
        if os.getpid() == self.pid:
            self._tally.add(samples)
        elif self._relay is not None:
            self._relay.send(samples)

    def serve(self, *, of_jobs: bool) -> None:
        """Answer, from threads of their own, also ``of_jobs``; where that cannot be, say so, and go on."""
        if self._relay is not None and native.green() is None:  # a green pool has no children
            self._relay.follow(self._tally.add)
        of_node = [speaker(), of_jobs]
        threading.Thread(target=self._serve, args=of_node, name="anarchon-metrics", daemon=True).start()

    def _serve(self, node: str | None, of_jobs: bool) -> None:
        with speaking_as(node):
            try:
                self._server = self._listen(of_jobs)
            except ImportError:
                emit(MetricsNotServed(MISSING))
            except OSError as reason:
                why = f"{self.endpoint} cannot be had ({in_one_line(reason)}): each node needs one of its own"
                emit(MetricsNotServed(why))
            else:
                host, port = self.endpoint.host, self._server.server_port
                emit(MetricsServed(f"http://{Endpoint(host, port)}/metrics"))

    def _listen(self, of_jobs: bool) -> Any:
        from prometheus_client import CollectorRegistry, start_http_server

        from .gauges import Gauges

        registry = CollectorRegistry()
        registry.register(Families(self._tally, Gauges(self._app, self._config, of_jobs=of_jobs)))
        server, _ = start_http_server(self.endpoint.port, self.endpoint.host, registry)
        return server

    def after_fork(self) -> None:
        """Leave the port to the parent: a child that outlives it would keep it."""
        if self._server is not None:
            with suppress(OSError):
                self._server.socket.close()

    def close(self) -> None:
        """Answer and count no more; for tests."""
        measures.count_with(None)
        for signal in signals.ALL.values():
            signal.disconnect(_count)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        if self._relay is not None:
            self._relay.close()


class Families:
    """A collector as prometheus-client wants it: all metrics of one node, made when somebody asks."""

    def __init__(self, tally: Tally, gauges: Any) -> None:
        """Tell what was added up, and what the store says."""
        self._tally, self._gauges = tally, gauges

    def describe(self) -> list[Any]:
        """Nothing is asked of the store at the registration."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield a family for each metric."""
        sums, buckets = self._tally.read()
        told = {(name, labels): value for name, labels, value in self._gauges.read()}
        of_metric: dict[str, list[tuple[tuple[str, ...], float]]] = {}  # of 2,000 jobs they are many
        for (name, labels), value in {**sums, **told}.items():
            of_metric.setdefault(name, []).append((labels, value))
        for metric in METRICS.values():
            family = _family(metric)
            for labels, value in of_metric.get(metric.name, ()):
                if metric.kind == "histogram":
                    family.add_metric(labels, _bounded(metric, buckets[metric.name, labels]), value)
                else:
                    family.add_metric(labels, value)
            yield family


def _family(metric: Metric) -> Any:
    from prometheus_client import core

    kinds = {
        "counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }  # fmt: skip
    return kinds[metric.kind](metric.name, metric.help, labels=metric.labels)


def _bounded(metric: Metric, counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each with all that is below its bound."""
    bounds = [*(str(float(bound)) for bound in metric.buckets), "+Inf"]
    return [*zip(bounds, accumulate(counts), strict=True)]


#: What counts here, or, in a child, where that goes.
_exporter: Exporter | None = None


def _count(event: Event, **_: Any) -> None:
    measures.count([*measures.samples_of(event)])


def _begin(app: Any, kind: str) -> Exporter | None:
    """Count, if the settings say so and nobody does."""
    global _exporter
    try:
        config = Config.of(app)
    except SettingError:  # of which the node says more
        return None
    if _exporter is None and kind in config.metrics:
        _exporter = Exporter(app, config, kind)
        _exporter.begin()
        return _exporter
    return None


@beat_init.connect
def _of_beat(sender: Any = None, **_: Any) -> None:
    """A beat answers; an embedded one passes on what it counts, if its worker does."""
    if (exporter := _begin(sender.app, "beat")) is not None:
        with speaking_as(Config.of(sender.app).node):
            exporter.serve(of_jobs=True)


@worker_init.connect
def _of_worker(sender: Any = None, **_: Any) -> None:
    """A worker counts from before its children are made."""
    if _begin(sender.app, "worker") is not None:
        sender.app.steps["worker"].add(Metrics)


class Metrics(StartStopStep):  # type: ignore[misc]
    """Answers once the first children are there: they are forked while there are no other threads."""

    requires = ("celery.worker.components:Pool",)

    def start(self, worker: Any) -> None:
        """Answer from now on."""
        if _exporter is not None:
            _exporter.serve(of_jobs=bool(getattr(worker, "beat", False)))


def _after_fork() -> None:
    if _exporter is not None:
        _exporter.after_fork()


os.register_at_fork(after_in_child=_after_fork)

"""Where a process adds up what is measured, until somebody asks.

A lock of the system, held for a moment: any thread may count, also beside gevent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from . import native
from .measures import METRICS, Sample

Key = tuple[str, tuple[str, ...]]


class Tally:
    """Sums of counters, and buckets of histograms, by name and labels."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._lock = native.new_lock()
        self._sums: dict[Key, float] = {}
        self._buckets: dict[Key, list[int]] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        """Count them; what is no metric of ours is passed over."""
        with self._lock:
            for name, labels, value in samples:
                metric = METRICS.get(name)
                if metric is None or len(labels) != len(metric.labels):
                    continue
                key = name, labels
                self._sums[key] = self._sums.get(key, 0.0) + value
                if metric.buckets:
                    counts = self._buckets.setdefault(key, [0] * (len(metric.buckets) + 1))
                    counts[bisect_left(metric.buckets, value)] += 1

    def read(self) -> tuple[dict[Key, float], dict[Key, list[int]]]:
        """Return the sums, and how many fell into each bucket, the last one being what is above all."""
        with self._lock:
            return dict(self._sums), {key: list(counts) for key, counts in self._buckets.items()}

"""What the store tells for metrics, when somebody asks: each job's last success and next slot, the nodes.

It is the store that is asked, so that a node that has just started knows it too: three calls, whatever the
number of jobs, at most every 15 seconds, and none while nobody looks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

from celery import Celery

from .config import Config
from .desk import AppJob, Desk, Refused, begun
from .endpoints import KINDS
from .errors import StoreError
from .measures import Sample
from .protocol import Job, Success
from .slots import FireTimes
from .stores import Store
from .stores.clock import monotonic

#: How long what was found is good (seconds).
EVERY = 15.0

#: How long a call may take (seconds): Prometheus waits for the answer for 10 s, and hears nothing later.
PATIENCE = 3.0


class Gauges:
    """What one node tells of its cluster; of the jobs, if it is a beat or has one."""

    def __init__(self, app: Celery, config: Config, *, of_jobs: bool) -> None:
        """Look with a store of its own, opened for each look."""
        self._desk, self._config, self._of_jobs = Desk(app, config), config, of_jobs
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._found: list[Sample] = []
        self._successes: dict[str, Success] = {}  # also what the store has forgotten meanwhile

    def read(self) -> list[Sample]:
        """Return what was found within the last while, or what is found now."""
        with self._lock:
            if self._asked_at is None or monotonic() - self._asked_at >= EVERY:
                self._asked_at = monotonic()
                self._look()
            return self._found

    def _look(self) -> None:
        store = self._config.open_store(at_most=PATIENCE)
        try:
            found = [*self._of_nodes(store)]
            if self._of_jobs:
                found += self._of_all_jobs(store)
        except StoreError:  # what was known of the jobs is still so
            found = [sample for sample in self._found if sample.name != "anarchon_store_up"]
            self._found = [Sample("anarchon_store_up", (), 0), *found]
        else:
            self._found = [Sample("anarchon_store_up", (), 1), *found]
        finally:
            store.close()

    def _of_nodes(self, store: Store) -> Iterator[Sample]:
        nodes, now = store.nodes(), store.clock.now()
        alive = Counter(node.kind for node in nodes if self._desk.is_alive(node, now))
        yield Sample("anarchon_clock_offset_seconds", (), time.time() - now / 1000)
        for kind in KINDS:
            yield Sample("anarchon_nodes", (kind,), alive[kind])

    def _of_all_jobs(self, store: Store) -> Iterator[Sample]:
        stored = {job.name: job for job in store.jobs()}
        for name, success in store.successes().items():
            self._successes[name] = max(success, self._successes.get(name, success))
        now = store.clock.now()
        for name, job in self._jobs().items():
            try:
                yield from [*self._of_job(job, stored.get(name), now)]
            except Exception:  # somebody's own schedule; it costs its own job
                continue

    def _jobs(self) -> dict[str, AppJob]:
        try:
            return self._desk.jobs
        except Refused:  # by a wrong setting of Celery's, as the beat of this worker said when it ended
            return {}

    def _of_job(self, job: AppJob, stored: Job | None, now: int) -> Iterator[Sample]:
        times, begin = begun(job.times, stored, now + 1)
        if (next_at := times.next(begin - 1)) is not None:
            yield Sample("anarchon_job_next_fire_timestamp_seconds", (job.name,), next_at / 1000)
        if stored is None:
            return
        yield Sample("anarchon_job_paused", (job.name,), stored.paused is not None)
        # Nothing went well since the job was first seen, or since the store remembers.
        since = max(stored.first_seen, now - self._config.history)
        last = self._successes.get(job.name, Success(since, since))
        yield Sample("anarchon_job_last_success_timestamp_seconds", (job.name,), last.finished_at / 1000)
        if (period := _period(*begun(job.times, stored, last.slot + 1))) is not None:
            yield Sample("anarchon_job_period_seconds", (job.name,), period / 1000)


def _period(times: FireTimes, begin: int) -> float | None:
    """Return half of what the two periods take that follow a slot, the one before ``begin``; or None.

    If that is no slot of the schedule, but of a run that somebody asked for, the first one is cut short; so
    the longer counts, of these two and of the two that follow the next slot.
    """
    first = times.next(begin - 1)
    second = None if first is None else times.next(first)
    if first is None or second is None:
        return None
    two = second - (begin - 1)
    if times.next(begin - 2) != begin - 1 and (third := times.next(second)) is not None:
        two = max(two, third - first)
    return two / 2

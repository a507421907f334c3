"""One cluster, kept alive: two beats and two workers, hit again and again, one case at a time."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from anarchon_celery.protocol import Run
from tests.cluster.cluster import Cluster, interval_slots
from tests.crash_points import walls
from tests.crash_points.blows import Blow, Orders
from tests.crash_points.outcome import Known, Outcome
from tests.crash_points.places import Places
from tests.crash_points.points import Case
from tests.crash_points.told import Key, Told
from tests.processes import Process, Processes, wait_until

APP = 'tests.crash_points.app'
POLL = 0.5
#: How long until somebody comes to the point, until those who were replaced are ready, until all is at rest.
#: A worker that stops may take 30 s more: so long billiard's children wait for a parent that waits for them.
REACHED, READY, REST = 45.0, 60.0, 40.0
#: For how long a server keeps what a stopped process had locked, with the claim timeout that is set here.
HELD = 1.0
#: For how long after the last blow slots are looked at as well.
PEACE = 1.0

#: Each job: how often it runs (seconds), its task, and its overlap policy.
JOBS = {
    'plain': (1, 'plain', 'skip'),
    'long': (2, 'long', 'skip'),
    'again': (3, 'again', 'skip'),
    'handing': (3, 'handing', 'skip'),
    'one': (1, 'plain', 'allow'),
    'other': (1, 'plain', 'allow'),
}
SCHEDULE = {
    job: {'task': f'{APP}.{task}', 'schedule': every, 'options': {'anarchon': {'overlap': overlap}}}
    for job, (every, task, overlap) in JOBS.items()
}
ALONE = frozenset(job for job, (_, _, overlap) in JOBS.items() if overlap == 'skip')


@dataclass(frozen=True, slots=True)
class Pace:
    """How long leases are, claims and messages accordingly, and how late a takeover may be (seconds)."""

    lease: float = 2.0
    grace: float = 0.5


class Scene:
    """The cluster, and what is known of it from case to case."""

    def __init__(
        self, folder: Path, places: Places, store: str, broker: str, *, pace: Pace, broken: str = ''
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True)
        number = places.number()
        self.store, self.broker = store, broker
        self.data = places.data(number)
        self.processes = Processes(folder)
        self.cluster = Cluster(
            self.processes, folder, SCHEDULE, store=places.store(store, number),
            broker={'broker_url': places.broker(broker, number)}, task_ignore_result=True,
            worker_prefetch_multiplier=1, anarchon_lease=pace.lease, anarchon_heartbeat=0.5,
            anarchon_poll=POLL, anarchon_claim_timeout=pace.lease, anarchon_start_timeout=1.5 * pace.lease,
            anarchon_jitter=0, anarchon_history=120,
        )  # fmt: skip
        self.env = {
            'CRASH_POINTS': str(folder), 'CRASH_POINTS_DATA': self.data, 'CRASH_POINTS_BREAK': broken,
            'TMPDIR': str(folder),  # a worker that is killed leaves something there
        }  # fmt: skip
        self.orders = Orders(folder)
        self.told = Told(self.cluster.history_file)
        self.known = Known(alone=ALONE, poll=POLL, grace=pace.grace, claim_timeout=pace.lease)
        self.lease = pace.lease

    # the processes ------------------------------------------------------------------------------

    def start(self) -> Scene:
        """Start all, and wait until each job ran."""
        words = ('worker', '-c', '3', '--without-mingle', '--without-gossip')
        self.workers = [self._celery(name, *words, '-n', f'{name}@%h') for name in ('w1', 'w2')]
        for worker in self.workers:
            self._is_ready(worker)
        self.beats = [self._celery(name, 'beat', '-S', 'anarchon') for name in ('b1', 'b2')]
        for beat in self.beats:
            self._is_ready(beat)
        wait_until(lambda: set(JOBS) <= {key.job for key, run in self._runs().items() if run.ended}, REST)
        return self

    def _celery(self, name: str, *words: str) -> Process:
        return self.cluster.celery(APP, *words, name=name, env=self.env)

    def _is_ready(self, one: Process, after: int = 0) -> None:
        ready = r' ready\.' if one in self.workers else r'\[anarchon\] started as'
        one.wait_for(ready, READY, after=after)

    @property
    def nodes(self) -> list[Process]:
        return [*self.workers, *self.beats]

    def heal(self) -> None:
        """Replace who was killed, and wait until all are there."""
        marks = {one: one.mark() for one in self.nodes if not one.alive}
        for one in marks:
            one.start()
        for one, mark in marks.items():
            self._is_ready(one, mark)

    def close(self) -> None:
        self.processes.close()
        self.cluster.close()

    # one case -----------------------------------------------------------------------------------

    def play(self, case: Case) -> Outcome:
        """Play a case, and look at all that came of it."""
        outcome = Outcome(case, self.store, self.broker)
        try:
            self.heal()
            self._play(case, outcome)
        except AssertionError as failed:  # a deadline passed
            outcome.wrong.append(str(failed).partition('\n')[0])
            for one in self.nodes:
                one.signal(signal.SIGUSR2, group=True)  # its log has by that where each thread is
        finally:
            self.orders.withdraw()
        return outcome

    def _play(self, case: Case, outcome: Outcome) -> None:
        begun = time.time()
        marks = {beat: beat.mark() for beat in self.beats}
        self.orders.give(case)
        self._bring_a_beat(case)
        blows = self._wait_for_blows(case)
        over = time.time()
        outcome.wrong += self._dead_for_no_reason(case, blows)
        self.heal()
        runs = self._wait_for_rest(over)
        outcome.rest = max(0.0, max(run.finished_at or 0 for run in runs.values()) / 1000 - over)
        slots = [
            Key(job, slot)
            for job, (every, *_) in JOBS.items()
            for slot in interval_slots(every, 1000 * begun, 1000 * (over + PEACE))
        ]
        held = self._held(blows, marks)
        self.known.judge(outcome, blows, self.told.read(), runs, slots, self._floors(), held)
        outcome.stale = self._stale_writes()

    def _held(self, blows: list[Blow], marks: dict[Process, int]) -> float:
        """For how long a stopped process may have kept what others waited for (seconds).

        "A node that vanishes in the middle of a step, so that the server does not learn of it, holds the jobs
        of that step", a file until it goes on: docs/stores.md. Beats tell of that, if not of a short wait.
        """
        if self.store == 'redis' or not any(blow.stops for blow in blows):
            return 0.0
        if self.store != 'sqlite':
            return HELD
        waited = any('waiting for the store' in beat.output[mark:] for beat, mark in marks.items())
        return 3 * self.lease if waited else 0.0

    def _bring_a_beat(self, case: Case) -> None:
        """Some points are on no beat's way but that of one which begins, or stops."""
        if case.point.fresh_beat or case.point.leaving:
            self.beats[0].signal(signal.SIGTERM)
        if case.point.fresh_beat:
            self.beats[0].wait()
            self.beats[0].start()

    def _wait_for_blows(self, case: Case) -> list[Blow]:
        """Wait until each blow has fallen, and let those go on that were stopped, after three leases."""
        blows: list[Blow] = []
        asleep: list[Blow] = []
        until = time.monotonic() + REACHED
        while len(blows) < len(case.strikes) or asleep:
            blow = self.orders.blow(len(blows)) if len(blows) < len(case.strikes) else None
            if blow is not None:
                blows.append(blow)
                asleep += [blow] if blow.stops else []
            for one in [one for one in asleep if time.time() >= one.at + 3 * self.lease]:
                one.go_on()
                asleep.remove(one)
            late = time.monotonic() > until and not asleep
            assert not late, f'nobody came to blow {len(blows) + 1} in {REACHED:g} s'
            time.sleep(0.02)
        return blows

    def _dead_for_no_reason(self, case: Case, blows: list[Blow]) -> list[str]:
        """A process outlives all but its kill; one that was told to stop does so."""
        ends = {blow.node for blow in blows if blow.ends}
        ends |= {self.beats[0].pid} if case.point.leaving else set()
        for one in self.nodes:
            if one.pid in ends:
                one.wait(REACHED)
        dead = [one for one in self.nodes if not one.alive and one.pid not in ends]
        return [f'{one.name} died with status {one.status}' for one in dead]

    def _wait_for_rest(self, over: float) -> dict[Key, Run]:
        """Wait until each slot up to a moment after it is decided, and no run of them is active."""
        last = round(1000 * (over + PEACE))
        due = {job: last // (1000 * every) * 1000 * every for job, (every, *_) in JOBS.items()}

        def look() -> dict[Key, Run] | None:
            floors = self._floors()  # before the runs: else another slot may be decided between
            if any(floors[job] < slot for job, slot in due.items()):
                return None
            runs = {key: run for key, run in self._runs().items() if key.slot <= last}
            return runs if all(run.ended for run in runs.values()) else None

        def left() -> str:
            active = [run for run in self._runs().values() if run.slot <= last and not run.ended]
            return f'not at rest: floors {self._floors()}, active {active}'

        return wait_until(look, REST, why=left)

    def _runs(self) -> dict[Key, Run]:
        return {Key(run.job, run.slot): run for run in self.cluster.runs()}

    def _floors(self) -> dict[str, int]:
        return {job.name: job.floor or 0 for job in self.cluster.store.jobs()}

    def _stale_writes(self) -> int:
        """How many there were since the last look, in what checks no fence."""
        with redis.Redis.from_url(self.data) as data:
            names = data.keys('unchecked *')
            written = [[int(fence) for fence in data.lrange(name, 0, -1)] for name in names]
            data.delete(*names)
        return sum(map(walls.stale_writes, written))

"""One play: all nodes start, are struck, are left alone, and then what is left comes to its end."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from pathlib import Path

from tests.chaos import jobs
from tests.chaos.cluster import Cluster
from tests.chaos.journal import Follower
from tests.chaos.nemeses import SUPERVISOR
from tests.chaos.recording import Recorder, writes
from tests.chaos.seen import Seen
from tests.chaos.striking import Strikes
from tests.processes import wait_until

#: Seconds in which nothing is done to anybody: then all is as it should be. In a long play also now and then.
REST, REST_EVERY = 12.0, 300.0
SAY_EVERY = 30.0


class Play:
    """What is played, with all that the history has to say of that at its beginning."""

    def __init__(
        self, folder: Path, history: Path, *, store: str, broker: str = 'redis', seconds: float = 60,
        slots: int = 0, faults: int = 0, seed: int = 1, jobs: int = 20, scale: float = 1,
        pace: tuple[float, float] = (2, 5),
    ) -> None:  # fmt: skip
        self.folder, self.history = folder, history
        self.store, self.broker, self.seed, self.pace = store, broker, seed, pace
        self.seconds, self.slots, self.faults, self.jobs, self.scale = seconds, slots, faults, jobs, scale

    def play(self) -> None:
        entries = jobs.schedule(self.jobs, self.seed, scale=self.scale)
        cluster = Cluster(self.folder, self.history, store=self.store, broker=self.broker, entries=entries)
        with contextlib.closing(cluster), contextlib.closing(Follower(self.history)) as follower:
            cluster.journal.write(
                'play', store=self.store, broker=self.broker, seconds=self.seconds, slots=self.slots,
                faults=self.faults, seed=self.seed, jobs=self.jobs, scale=self.scale, pace=self.pace,
            )  # fmt: skip
            self.cluster, self.seen = cluster, Seen(follower)
            self.strikes = Strikes(cluster, self.seen, self.store, seed=self.seed, pace=self.pace)
            self.recorder = Recorder(cluster)
            try:
                self._play()
            except BaseException:
                for node in cluster.nodes:
                    print(node.process.tail(15), file=sys.stderr)
                raise
            for resource, fence in writes(cluster.resources.folder):
                cluster.journal.write('write', resource=resource, fence=fence)
            cluster.journal.write('end')

    def _play(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.start(node)
        wait_until(lambda: all(map(self.seen.is_ready, self.cluster.nodes)), 90)
        self.recorder.start()
        self._strike()
        self._rest()
        self._come_to_an_end()

    def _strike(self) -> None:
        begin = said = rested = time.monotonic()
        while self._goes_on(begin):
            now = time.monotonic()
            self.strikes.look_after()
            time.sleep(0.02)
            if now > said + SAY_EVERY:
                said = now
                self._say(now - begin)
            if now > rested + REST_EVERY:
                self._rest()
                rested = time.monotonic()

    def _goes_on(self, begin: float) -> bool:
        if self.slots:
            return self.recorder.slots < self.slots or self.strikes.count < self.faults
        return time.monotonic() < begin + self.seconds

    def _say(self, after: float) -> None:
        line = f'{after:.0f} s: {self.recorder.slots:,} slots, {self.strikes.count} strikes'
        print(line, file=sys.stderr, flush=True)

    def _rest(self) -> None:
        """Let all strikes come to their end, and all nodes be there."""
        while self.strikes.at_work:
            self.strikes.look_after(deal=False)
            time.sleep(0.02)
        begin = time.monotonic()
        self.cluster.journal.write('rest')
        while time.monotonic() < begin + REST:
            self.seen.look()
            time.sleep(0.1)
        self.cluster.journal.write('rested')

    def _come_to_an_end(self) -> None:
        """No slot comes due any more; what has begun ends."""
        beats = self.cluster.of('beat')
        self.cluster.journal.write('no more slots')
        for beat in beats:
            beat.process.signal(signal.SIGTERM)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not any(beat.process.alive for beat in beats), SUPERVISOR)
        for beat in beats:
            if beat.process.alive:
                self.cluster.journal.write('died', node=beat.name, status='none, told to stop')
                beat.process.signal(signal.SIGABRT)
        closing = self.cluster.closing_beat()
        self.cluster.start(closing)
        with contextlib.suppress(AssertionError):  # the judge says what did not end
            wait_until(lambda: not self.recorder.active(), 60)
        self.recorder.stop()
        self.recorder.look_at_active()
        self.recorder.look_at_all()

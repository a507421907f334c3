"""Nodes at play: real beats on the memory store, while a clock goes as a test says."""

from __future__ import annotations

from anarchon_celery import Scheduler
from anarchon_celery.slots import from_iso, iso
from anarchon_celery.stores import open_store


class Play:
    """Nodes that tick when they want to, while a clock goes from one moment to another."""

    def __init__(self, stage) -> None:
        self.stage = stage

    def begin(self, moment: str) -> None:
        self.stage.clock.step(from_iso(moment) - self.stage.clock.wall())

    @property
    def now(self) -> str:
        return iso(self.stage.clock.wall())

    def beat(self, name: str = "one:1", /, *, poll="1s", conf: dict | None = None, **jobs) -> Scheduler:
        """Start a node; a job is its schedule, or a pair of it and its policy."""
        entries = {}
        for job, schedule in jobs.items():
            schedule, policy = schedule if isinstance(schedule, tuple) else (schedule, {})
            entries[job] = {"task": "t", "schedule": schedule, "options": {"anarchon": policy}}
        return self.stage.beat(entries, anarchon_node=name, anarchon_poll=poll, **(conf or {}))

    def until(self, moment: str, *beats: Scheduler) -> None:
        """Let the nodes tick up to a moment, which is included, by the clock on the wall."""
        clock = self.stage.clock
        end = clock.ms + from_iso(moment) - clock.wall()
        awake = [clock.ms] * len(beats)
        while clock.ms <= end:
            for n, beat in enumerate(beats):
                if awake[n] <= clock.ms:
                    awake[n] = clock.ms + max(1, round(beat.tick() * 1000))
            clock.ms = min(awake, default=end + 1)
        clock.ms = end

    def published(self) -> list[str]:
        """The slots published since the last look, as ``sync @ 2026-10-10T12:00:00Z``."""
        headers = [message.headers["anarchon"] for message in self.stage.messages()]
        return [f"{header['job']} @ {header['slot'][:19]}Z" for header in headers]

    def times(self) -> list[str]:
        """The same, for one job."""
        return [slot.partition(" @ ")[2] for slot in self.published()]

    def records(self) -> dict[str, str]:
        """What the store has of each slot, with the number where one record stands for several."""
        return {
            iso(run.slot)[:16]: run.state + (f" {run.count}" if run.count > 1 else "")
            for run in reversed(open_store(self.stage.url).runs(limit=10_000))
        }

"""The schedulers that are compared, each made as its own page says, with so many jobs of one task.

This runs in each contestant's own interpreter, so each imports what it needs where it needs it. The
jobs fire once a day, if nothing else is said. They are not due when a contestant starts;
:meth:`Contestant.come_due` makes them so, all at one instant.
"""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from celery import Celery, beat
from celery.schedules import schedule
from celery.signals import after_task_publish

DAY = 86_400


class Contestant:
    """One scheduler; what differs is in the subclasses."""

    scheduler_class: Any = None

    def __init__(
        self, *, broker: str, store: str, jobs: int, folder: Path, conf: Any, period: float = DAY
    ) -> None:
        """Make the app with its jobs; each fires once in ``period`` seconds."""
        self.store, self.jobs, self.folder, self.period = store, jobs, folder, period
        self.app = Celery("bench", broker=broker, set_as_current=True)
        self.app.conf.update(
            task_default_queue="bench", timezone="UTC", result_expires=None,
            beat_schedule={f"job-{number:06}": self.entry() for number in range(jobs)}, **conf,
        )  # fmt: skip
        self.task = self.app.task(name="bench.task", **self.task_options())(_nothing)
        self.app.finalize()
        self.emitted = 0
        self.published_at: list[float] = []
        after_task_publish.connect(self._count, weak=False)
        self.scheduler: Any = None

    def _count(self, **told: Any) -> None:
        self.emitted += 1
        self.published_at.append(time.time())

    def entry(self) -> dict[str, Any]:
        """Return what ``beat_schedule`` has of one job."""
        return {"task": "bench.task", "schedule": schedule(self.period)}

    def task_options(self) -> dict[str, Any]:
        """Return how its task is made."""
        return {}

    def start(self) -> None:
        """Do what beat does before it could emit anything: this is measured."""
        self.scheduler = self.scheduler_class(self.app)
        self.scheduler.tick()

    def come_due(self, at: float) -> None:
        """Have all jobs come due at a whole second that is near."""
        raise NotImplementedError

    def tick(self) -> float:
        """Go once round the loop of Celery's beat, but for the sleep."""
        wait = self.scheduler.tick() or 0.0
        if wait > 0 and self.scheduler.should_sync():
            self.scheduler._do_sync()
        return float(wait)


class Bare(Contestant):
    """No scheduler: ``apply_async`` on one producer, which is what publishing costs anybody."""

    def start(self) -> None:
        """Connect."""
        self.connection = self.app.connection_for_write()
        self.producer = self.app.amqp.Producer(self.connection, auto_declare=False)

    def come_due(self, at: float) -> None:
        """There is nothing to come due."""

    def tick(self) -> float:
        """Publish one."""
        self.task.apply_async((), {}, producer=self.producer, retry=False)
        return 0.0


class OnTheSecond(Bare):
    """No scheduler: one ``apply_async`` each full second, which is what waking up and publishing cost."""

    def tick(self) -> float:
        """Sleep until the next full second, and publish one."""
        time.sleep(1 - time.time() % 1)
        return super().tick()


class Ours(Contestant):
    """anarchon-celery: a task with the base class, all else as by default, but no jitter."""

    def __init__(self, **how: Any) -> None:
        """See Contestant; its jobs fire in half a day."""
        self.times = _daily(time.time() + how.get("period", DAY) / 2)
        how["conf"] = {"anarchon_jitter": 0, **how["conf"], "anarchon_store": how["store"]}
        super().__init__(**how)

    def entry(self) -> dict[str, Any]:
        """See Contestant."""
        from anarchon_celery import every

        times = every(self.period) if self.period < DAY else self.times
        return {"task": "bench.task", "schedule": times}

    def task_options(self) -> dict[str, Any]:
        """See Contestant."""
        from anarchon_celery import Task

        return {"base": Task}

    def start(self) -> None:
        """See Contestant; its first tick tells the store of all jobs."""
        from anarchon_celery import Scheduler

        self.scheduler_class = Scheduler
        super().start()

    def come_due(self, at: float) -> None:
        """See Contestant: as by a deploy, all get another schedule, and the store is told.

        No whole tick: where that is not done in time, nothing may be published before another try.
        """
        times = _daily(at).fire_times(timezone.utc)
        for job in self.scheduler.plan.jobs.values():
            job.times = times
        self.scheduler._registered_at = None
        self.scheduler._register()


class Persistent(Contestant):
    """Celery's own: a file."""

    def start(self) -> None:
        """See Contestant."""
        file = str(self.folder / "celerybeat-schedule")
        self.scheduler = beat.PersistentScheduler(self.app, schedule_filename=file)
        self.scheduler.tick()

    def come_due(self, at: float) -> None:
        """See Contestant."""
        before = datetime.fromtimestamp(at, timezone.utc) - timedelta(seconds=self.period)
        for entry in self.scheduler.schedule.values():
            entry.last_run_at = before
        self.scheduler._heap = None
        self.scheduler.populate_heap()


class RedBeat(Contestant):
    """celery-redbeat: one lock and all entries in Redis."""

    def __init__(self, **how: Any) -> None:
        """See Contestant."""
        how["conf"] = {"redbeat_redis_url": how["store"], "redbeat_redis_options": {}, **how["conf"]}
        super().__init__(**how)

    def start(self) -> None:
        """See Contestant; the lock is taken by what listens to ``beat_init``."""
        from redbeat import RedBeatScheduler
        from redbeat.schedulers import acquire_distributed_beat_lock

        self.scheduler = RedBeatScheduler(self.app)
        acquire_distributed_beat_lock(self)
        self.scheduler.tick()

    def come_due(self, at: float) -> None:
        """See Contestant."""
        from redbeat.decoder import RedBeatJSONEncoder
        from redbeat.schedulers import get_redis

        before = datetime.fromtimestamp(at, timezone.utc) - timedelta(seconds=self.period)
        meta = json.dumps({"last_run_at": before, "total_run_count": 0}, cls=RedBeatJSONEncoder)
        conf = self.app.redbeat_conf
        with get_redis(self.app).pipeline(transaction=False) as pipe:
            for name in self.app.conf.beat_schedule:
                pipe.hset(conf.key_prefix + name, "meta", meta)
                pipe.zadd(conf.schedule_key, {conf.key_prefix + name: at})
            pipe.execute()


class Django(Contestant):
    """django-celery-beat: rows in PostgreSQL."""

    def __init__(self, **how: Any) -> None:
        """See Contestant; the tables are made here."""
        import django
        from django.conf import settings
        from django.core.management import call_command

        settings.configure(
            INSTALLED_APPS=["django_celery_beat"], USE_TZ=True, TIME_ZONE="UTC",
            DATABASES={"default": _database(how["store"])}, DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        )  # fmt: skip
        django.setup()
        call_command("migrate", verbosity=0)
        super().__init__(**how)

    def start(self) -> None:
        """See Contestant."""
        from django_celery_beat.schedulers import DatabaseScheduler

        self.scheduler_class = DatabaseScheduler
        super().start()

    def come_due(self, at: float) -> None:
        """See Contestant."""
        before = datetime.fromtimestamp(at, timezone.utc) - timedelta(seconds=self.period)
        for entry in self.scheduler.schedule.values():
            entry.last_run_at = entry.model.last_run_at = before
        self.scheduler._heap = None
        self.scheduler.populate_heap()


def _daily(at: float) -> Any:
    from anarchon_celery import every

    return every("1d", at=f"{datetime.fromtimestamp(at, timezone.utc):%H:%M:%S}", timezone="UTC")


def _database(url: str) -> dict[str, Any]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "USER": parts.username,
        "HOST": parts.hostname, "PORT": parts.port,
    }  # fmt: skip


def _nothing() -> None:
    """Do nothing, as the task of all jobs."""


CONTESTANTS: dict[str, type[Contestant]] = {
    "bare": Bare, "second": OnTheSecond, "ours": Ours, "celery": Persistent, "redbeat": RedBeat,
    "django": Django,
}  # fmt: skip

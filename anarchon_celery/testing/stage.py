"""A beat, a store, a broker and workers in the test's own thread, and one clock that they all go by."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.signals import task_postrun

from ..arguments import written
from ..config import Policy
from ..protocol import Request, RunKey
from ..stores import memory, new_nonce
from .backstage import Post, on_stage
from .clock import Clock, TestingError, milliseconds
from .firing import no_such_job
from .hands import Hand, Killed, StagedLease
from .play import Play
from .played import PlayedRun, played

#: For how long after its lease a lost run may wait to be taken over (ms): the store's pause, then the beat's.
TAKEN_OVER_WITHIN = 60_000


class Stage(Play):
    """Nodes at play, on a clock that the test moves. Made by :func:`stage`.

    Attributes:
        app: the Celery app.
        clock: what all go by. To let time pass while everything goes on, use ``advance``; moving the
            clock itself is time in which nobody could do anything, as if all machines had been suspended.
        store: the store, as ``anarchon_celery.stores.Store`` has it.
        attempts: each time the body of a task was begun, also of tasks that no beat sent, in the order in
            which they ended.
    """

    # runs ---------------------------------------------------------------------------------------

    def run(
        self, job: str, *, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
        within: float | timedelta | str = "1h",
    ) -> PlayedRun:  # fmt: skip
        """Run a job now, as ``celery anarchon trigger`` does, and let time pass until that run is over.

        It begins at once, or as soon as the job's other runs let it. Meanwhile all else goes on.

        Args:
            job: the job's name.
            args: positional arguments, in place of the entry's.
            kwargs: named arguments, in place of the entry's.
            within: for how long to go on at most; then the run is returned as it is.

        Returns:
            The run. What its task raised is in it, and not raised.

        Raises:
            ScheduleError: there is no such job, or beat refuses its entry: then its line.
            ArgumentsError: the arguments cannot be kept.
        """
        policy = self._job(job)
        asked = Request(
            job=job, by="a test", arguments=written(args, kwargs), overlap=policy.overlap, lease=policy.lease
        )
        self._act()  # beat has registered then
        entered = self.store.trigger(asked, nonce=new_nonce()).run
        if entered is None:
            raise TestingError(f"{job}: the store did not take the run")
        self._beat.look_at_once()
        self._beat_at = min(self._beat_at, self._now)
        self._play(self._now + milliseconds(within), lambda: self._is_over(entered.key))
        return self._played(entered.key)

    def runs(self, job: str | None = None) -> list[PlayedRun]:
        """Return the runs of a job, or of all jobs, oldest slot first.

        Args:
            job: the job's name.

        Raises:
            ScheduleError: there is no such job, or beat refuses its entry: then its line.
        """
        if job is not None:
            self._job(job)
        found = self.store.runs(job=job, limit=1_000_000)
        return played(reversed(found), self.attempts)

    def _job(self, name: str) -> Policy:
        """Return the policy of a job."""
        if name not in self._jobs:
            raise no_such_job(name, self._jobs, self._refused)
        return self._jobs[name][1].policy

    def _played(self, key: RunKey) -> PlayedRun:
        run = self.store.run(key)
        if run is None:
            raise TestingError(f"{key}: the store does not know this run")
        return played([run], self.attempts)[0]

    def _is_over(self, key: RunKey) -> bool:
        run = self.store.run(key)
        return run is None or run.ended

    # what happens to a run ----------------------------------------------------------------------

    def at_look(self, job: str, number: int, do: Callable[[], object]) -> None:
        """Do something when the next attempt at a run of a job looks at its lease.

        A look is each ``self.lease.check()``, each ``self.lease.wait()``, and each time the task reads
        ``self.lease.aborted``.

        Args:
            job: the job's name.
            number: which look, counted from 1.
            do: called without arguments: such as :meth:`lose`, :meth:`crash` or :meth:`stop_worker`.

        Raises:
            ScheduleError: there is no such job, or beat refuses its entry: then its line.
            TestingError: the number is none.
        """
        self._job(job)
        if type(number) is not int or number < 1:
            raise TestingError(f"{number!r} is no look: a whole number of at least 1 is right")
        self._plans.setdefault(job, []).append((number, do))

    def _refuse_vain_plans(self) -> None:
        """See that each job that something was to happen to was begun.

        Raises:
            TestingError: one was not.
        """
        if self._plans:
            names = " and ".join(sorted(self._plans))
            raise TestingError(f"{names}: no attempt began, so that nothing happened at its looks")

    def lose(self) -> None:
        """Cut the worker of the task that runs off, until its run was taken over.

        The lease runs out, a beat dispatches the run again, and the next attempt runs to its end; then the
        first one goes on: at its next look it is told, and what it writes with its fence is stale.

        Raises:
            TestingError: no task runs under a lease.
        """
        hand, lease = self._at_work()
        hand.keeper.silent = True
        longest = lease.order.lease + TAKEN_OVER_WITHIN
        self._play(self._now + longest, lambda: self._went_on(lease))
        hand.keeper.silent = False
        hand.keeper.look()

    def _went_on(self, lease: StagedLease) -> bool:
        """Whether the run is past what somebody holds who lost it."""
        run = self.store.run(lease.key)
        return run is None or run.ended or run.attempt > lease.attempt

    def crash(self) -> None:
        """End the worker of the task that runs, as by SIGKILL: nobody is told.

        The run is taken over when its lease has run out. What the body has in ``finally`` runs here, though.

        Raises:
            TestingError: no task runs under a lease.
        """
        _, lease = self._at_work()
        lease.killed = True
        raise Killed

    def stop_worker(self) -> None:
        """Tell the worker of the task that runs to stop, as by SIGTERM; the run is handed over at a look.

        Raises:
            TestingError: no task runs under a lease.
        """
        hand, _ = self._at_work()
        hand.keeper.told_to_stop = True
        hand.keeper.look()

    def cancel(self, reason: str = "cancelled") -> None:
        """Have the run of the task that runs stop for good, as ``celery anarchon cancel`` does.

        Args:
            reason: what the task reads as ``self.lease.reason``.

        Raises:
            TestingError: no task runs under a lease.
        """
        hand, lease = self._at_work()
        self.store.cancel(lease.key, reason=reason)
        hand.keeper.renew()

    def _at_work(self) -> tuple[Hand, StagedLease]:
        lease = self._hands[-1].keeper.lease if self._hands else None
        if lease is None:
            raise TestingError(
                "no task runs under a lease now: call this in a task's body, or have it called by at_look()"
            )
        return self._hands[-1], lease


@contextmanager
def stage(
    app: Celery, at: datetime | str = "2026-01-01T00:00:00Z", *, settings: Mapping[str, Any] | None = None
) -> Iterator[Stage]:
    """Play an app's jobs in this thread, from a moment on, without broker, threads or sleeping.

    ::

        with stage(app, at="2026-10-24T12:00:00Z") as on:
            on.advance("1d")
            assert ["succeeded"] == [run.state for run in on.runs("report")]

    Beat registers the jobs at that moment, and runs what comes due after it; no history is pruned. Meanwhile
    the app has the stage's broker, store, result backend and time (``app.now()``); what it had is put back.
    Nothing else is moved: ``time.time()`` and ``datetime.now()`` are the machine's, ``time.sleep()`` sleeps.

    Args:
        app: the Celery app; its tasks' modules are imported, as at a beat's start.
        at: an aware ``datetime``, or a text with its zone.
        settings: settings of Celery and ``anarchon_*`` ones that differ from the app's meanwhile.

    Raises:
        SettingError: an ``anarchon_*`` setting is wrong.
        TestingError: the moment is none, or leaves its zone open; the app is on a stage already; or something
            was to happen at a look that no task took.
    """
    clock, post, url = Clock(at), Post(), f"memory://stage-{secrets.token_hex(4)}"
    room = memory.Room(clock)
    of_test = {**(settings or {}), "anarchon_store": url}
    with memory.furnished(url, room), on_stage(app, clock, post, of_test):
        on = Stage(app, clock, post, memory.MemoryStore(url, room), room)
        app._backend_cache.pass_time = on._wait
        task_postrun.connect(on._ended, weak=False)
        try:
            on.advance(0)
            yield on
            on._refuse_vain_plans()
        finally:
            task_postrun.disconnect(on._ended)
            on.close()

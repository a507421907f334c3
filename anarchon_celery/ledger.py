"""The ledger: the records that one step of the protocol looks at, and which of them it changed."""

from __future__ import annotations

from collections.abc import Iterable

from .protocol import BUFFERED, Job, Run, RunKey
from .youth import Origin, young_for


class Ledger:
    """The records one step works on, and which of them it changed."""

    def __init__(
        self, jobs: Iterable[Job] = (), runs: Iterable[Run] = (), *, origin: Origin | None = None,
        next_identity: str = "",
    ) -> None:  # fmt: skip
        """Hold these records of the store of that origin; its next identity, if it needs one."""
        self.origin = origin or Origin()
        self.next_identity = next_identity
        self.known_as: str | None = None  #: the identity that who calls knows
        self.jobs = {job.name: job for job in jobs}
        self.runs: dict[RunKey, Run] = {}
        self.active: dict[str, dict[RunKey, Run]] = {}
        self.buffered: dict[str, dict[RunKey, Run]] = {}
        for run in runs:
            self._index(run)
        self.changed_jobs: dict[str, Job] = {}
        self.changed_runs: dict[RunKey, Run] = {}

    def young_for(self, lease: int, now: int) -> int:
        """For how long (ms) runs with this lease are still to be put back."""
        return young_for(self.origin.young_since, lease, now)

    def lose_writes(self, now: int) -> None:
        """It has turned out that the store lost some: it gets its next identity, and is young."""
        self.origin = self.origin.reborn(now, self.next_identity)

    def put_job(self, job: Job) -> None:
        """Record a job."""
        self.jobs[job.name] = self.changed_jobs[job.name] = job

    def put_run(self, run: Run) -> Run:
        """Record a run, and return it."""
        self._index(run)
        self.changed_runs[run.key] = run
        return run

    def drop_run(self, key: RunKey) -> None:
        """Forget an ended run."""
        self.runs.pop(key, None)

    def active_of(self, job: str) -> list[Run]:
        """Return the active runs of a job, oldest first."""
        return _oldest_first(self.active.get(job, {}))

    def buffered_of(self, job: str) -> list[Run]:
        """Return the buffered runs of a job, oldest first."""
        return _oldest_first(self.buffered.get(job, {}))

    def others_active(self, key: RunKey) -> bool:
        """Whether the job of this run has another run that is active."""
        return any(other != key for other in self.active.get(key.job, ()))

    def _index(self, run: Run) -> None:
        self.runs[run.key] = run
        for index, belongs in ((self.active, run.active), (self.buffered, run.state == BUFFERED)):
            of_job = index.setdefault(run.job, {})
            if belongs:
                of_job[run.key] = run
            else:
                of_job.pop(run.key, None)


def _oldest_first(runs: dict[RunKey, Run]) -> list[Run]:
    """In the order of their slots; of one instant the scheduled run comes first."""
    return sorted(runs.values(), key=lambda run: (-run.slot, run.kind), reverse=True)

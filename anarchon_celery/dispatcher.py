"""What becomes of a won claim: published while it is trusted, then recorded; or given back.

What was published and what is to be given back is kept until the store has answered, so that a
store that is away for a moment, or a stop in the middle of a tick, loses neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .config import Config
from .dispatch import BrokerDown, NotSent, Publisher, is_of_connection
from .errors import in_one_line
from .events import BrokerBack, BrokerLost, RunDispatched, RunNotPublished, emit
from .patience import Patience
from .plan import Plan
from .protocol import Claim, Node, Release, Run, RunKey, Sent
from .stores import Store
from .trust import trusted_until

#: For how long a run is given back (ms): one whose message cannot be made, one whose job we do not have.
NOT_PUBLISHABLE, NOT_OURS = 10_000, 1_000


class Dispatcher:
    """Publishes the runs that one node won."""

    def __init__(
        self, *, node: Node, store: Store, publisher: Publisher, plan: Plan, entries: Mapping[str, Any],
        config: Config,
    ) -> None:  # fmt: skip
        """Publish for ``node``; ``entries`` are Celery's, by job."""
        self.node, self.store, self.publisher = node, store, publisher
        self.plan, self.entries, self.config = plan, entries, config
        self._patience = Patience()
        self._claims: dict[RunKey, Run] = {}  # won and not yet published
        self._marks: list[Sent] = []  # published and not yet recorded
        self._releases: list[Release] = []  # not published and not yet given back

    @property
    def waits_for_broker(self) -> bool:
        """Whether it is too early to try the broker again."""
        return self._patience.lasts(self.store.clock.monotonic())

    def publish(self, claims: Iterable[Claim], asked_at: float) -> None:
        """Send each run we won while we may still trust the claim; then record them in one call."""
        trusted = trusted_until(asked_at, self.config.claim_timeout)
        self._claims.update((claim.key, claim.run) for claim in claims if claim.won and claim.run is not None)
        for run in list(self._claims.values()):
            delay = self._send(run) if self.store.clock.monotonic() < trusted else 0
            if delay is not None:
                self._releases.append(Release(key=run.key, nonce=run.nonce, delay=delay))
            self._claims.pop(run.key, None)
        self.record()

    def record(self) -> None:
        """Record what was published, and give back what was not.

        Raises:
            StoreError: not everything was; the next call goes on.
        """
        if self._marks:
            self.store.sent(self._marks)
            self._marks = []
        if self._releases:
            self.store.release(self._releases)
            self._releases = []

    def close(self, unheard: Iterable[Release] = ()) -> None:
        """Give back what was won and not published, and what may have been won unheard.

        Raises:
            StoreError: the deadlines of the claims will do it.
        """
        self._releases += [Release(key=key, nonce=run.nonce) for key, run in self._claims.items()]
        self._releases += unheard
        self._claims.clear()
        self.record()

    def _send(self, run: Run) -> int | None:
        """Publish one run; if its message is certainly not out, return for how long to give it back (ms)."""
        if run.job not in self.plan.jobs:
            return NOT_OURS
        if self.waits_for_broker:
            return 0  # at once: another node may have a broker
        self._claims.pop(run.key)  # from here on the message may be out
        try:
            task_id = self.publisher.publish(self.entries[run.job], run, self.plan.jobs[run.job].policy)
        except BrokerDown as reason:
            emit(BrokerLost(str(reason), self._patience.begin(self.store.clock.monotonic())))
            return 0
        except NotSent as reason:
            emit(RunNotPublished(run.key, str(reason), certain=True))
            return NOT_PUBLISHABLE
        except Exception as reason:
            emit(RunNotPublished(run.key, in_one_line(reason), certain=False))
            if is_of_connection(reason):  # the others would wait as long, and their claims run out
                self._patience.begin(self.store.clock.monotonic())
            return None
        if self._patience.end():
            emit(BrokerBack())
        self._marks.append(self._sent(run, task_id))
        emit(RunDispatched(run.key, self.node.name, run.attempt + (run.retries is None), run.trigger))
        return None

    def _sent(self, run: Run, task_id: str) -> Sent:
        job = self.plan.jobs[run.job]
        return Sent(
            key=run.key, dispatch=run.dispatch, task_id=task_id, supervised=job.supervised,
            countdown=round(1000 * float(self.entries[run.job].options.get("countdown") or 0)),
            start_timeout=job.policy.start_timeout,
        )  # fmt: skip

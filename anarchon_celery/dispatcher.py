"""What becomes of a won claim: published while it is trusted, then recorded; or given back.

What was published and what is to be given back is kept until the store has answered, so that a
store that is away for a moment, or a stop in the middle of a tick, loses neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .config import Config
from .dispatch import BrokerDown, Letter, NotSent, Publisher, is_of_connection
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

    def take(self, claims: Iterable[Claim]) -> None:
        """Keep what was won: it is published, or given back."""
        self._claims.update((claim.key, claim.run) for claim in claims if claim.won and claim.run is not None)

    def publish(self, asked_at: float) -> None:
        """Send each run we won while we may still trust the claim; then record them in one call."""
        trusted = trusted_until(asked_at, self.config.claim_timeout)
        together: list[Letter] = []
        for run in list(self._claims.values()):
            letter = self._letter(run, trusted)
            if letter is not None and self.publisher.may_post(letter.entry):
                together.append(letter)
            elif letter is not None:
                self._publish(letter)
            if len(together) == self.publisher.AT_ONCE:
                self._post(together, trusted)
                together = []
        if len(together) == 1:
            self._publish(together[0])
        else:
            self._post(together, trusted)
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

    def _letter(self, run: Run, trusted: float) -> Letter | None:
        """Return what is to be published, if it is this node's to publish now; else it is given back."""
        job = self.plan.jobs.get(run.job)
        if job is None or self.waits_for_broker or self.store.clock.monotonic() >= trusted:
            # At once, if it is not for want of the job: another node may have a broker.
            self._give_back(run, NOT_OURS if job is None else 0)
            return None
        is_supervised = True if run.attempt else job.supervised
        return Letter(self.entries[run.job], run, job.policy, is_supervised)

    def _give_back(self, run: Run, delay: int = 0) -> None:
        self._releases.append(Release(key=run.key, nonce=run.nonce, delay=delay))
        self._claims.pop(run.key, None)  # last, or a stop in between would lose it

    def _publish(self, letter: Letter) -> None:
        def going() -> None:
            self._claims.pop(letter.run.key, None)  # from here on the message may be out

        try:
            task_id = self.publisher.publish(
                letter.entry, letter.run, letter.policy, letter.supervised, going
            )
        except Exception as reason:
            going()  # for all that is known
            self._failed(letter.run, reason)
        else:
            self._is_out(letter.run, task_id)

    def _post(self, letters: Sequence[Letter], trusted: float) -> None:
        """Publish several together, or give them back, if the claims are trusted no more by then."""
        keys = [letter.run.key for letter in letters]

        def may_go() -> bool:
            if self.store.clock.monotonic() >= trusted:
                return False
            for key in keys:
                self._claims.pop(key)  # from here on the messages may be out
            return True

        if not letters:
            return
        posted = self.publisher.post(letters, may_go)
        for letter, one in zip(letters, posted, strict=True) if posted else ():
            if one.problem is not None:
                self._failed(letter.run, one.problem)
            else:
                self._is_out(letter.run, one.task_id)
        for one in posted:
            one.announce()
        for letter in letters if not posted else ():
            self._give_back(letter.run)

    def _failed(self, run: Run, reason: Exception) -> None:
        """Give back what is certainly not out, and leave the other to its deadline."""
        if isinstance(reason, BrokerDown):
            if not self.waits_for_broker:  # else it was told of another message of this very request
                emit(BrokerLost(str(reason), self._patience.begin(self.store.clock.monotonic())))
            self._give_back(run)
        elif isinstance(reason, NotSent):
            emit(RunNotPublished(run.key, str(reason), certain=True, attempt=_attempt(run)))
            self._give_back(run, NOT_PUBLISHABLE)
        else:
            emit(RunNotPublished(run.key, in_one_line(reason), certain=False, attempt=_attempt(run)))
            if is_of_connection(reason) and not self.waits_for_broker:
                self._patience.begin(self.store.clock.monotonic())  # the others would wait as long

    def _is_out(self, run: Run, task_id: str) -> None:
        if self._patience.end():
            emit(BrokerBack())
        self._marks.append(self._sent(run, task_id))
        self._tell(run)

    def _tell(self, run: Run) -> None:
        is_new = run.dispatch == 1 and run.kind == "scheduled"
        late = max(0, self.store.clock.now() - run.slot) if is_new else None
        told = RunDispatched(
            run.key, run.trigger, run.dispatch, late, node=self.node.name, attempt=_attempt(run)
        )  # fmt: skip
        emit(told)

    def _sent(self, run: Run, task_id: str) -> Sent:
        job = self.plan.jobs[run.job]
        return Sent(
            key=run.key, dispatch=run.dispatch, task_id=task_id, supervised=job.supervised,
            countdown=round(1000 * float(self.entries[run.job].options.get("countdown") or 0)),
            start_timeout=job.policy.start_timeout,
        )  # fmt: skip


def _attempt(run: Run) -> int:
    """Which attempt the message of a run is to begin, or, of a retry, to go on with."""
    return run.attempt + (run.retries is None)

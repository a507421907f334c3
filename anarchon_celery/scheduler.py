"""The beat of every node: due → claim → publish → mark; expired → redispatch.

``celery beat -S anarchon_celery.Scheduler`` on as many nodes as there are; none of them leads. Of
Celery's scheduler only the entries and the loop around :meth:`Scheduler.tick` are used: its own
tick blocks for minutes while the broker is down, and its fire times depend on the last run.

What Celery demands of a scheduler and is easy to miss: ``close()`` is called inside the signal
handler, in the middle of a tick, and again afterwards, so the first call may only look away, and
what the handler raises then may be lost to whatever code it interrupts; an exception out of ``tick``
ends beat, so none comes out, but where beat is to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celery import beat
from celery.signals import beat_init

from .alarm import Alarm
from .config import Config, check_celerys, redacted
from .dispatch import Publisher
from .dispatcher import Dispatcher
from .embedded import worker_that_is_gone
from .entries import Entry, read_jobs
from .errors import SettingError, StoreError, StoreReplaced, in_one_line
from .events import (
    BeatStarted,
    Event,
    HeldOff,
    JobRefused,
    Noted,
    RunAbandoned,
    RunBuffered,
    RunCancelled,
    RunTakenOver,
    SlotClaimed,
    SlotMissed,
    SlotSkipped,
    StoreBack,
    StoreForgot,
    StoreLost,
    TickFailed,
    WorkerGone,
    attempt_of,
    emit,
    log_runs,
)
from .logged import speaking_as
from .origins import GivenEntry, entries_of, notes_on
from .patience import Patience
from .plan import Plan
from .portions import portions
from .presence import by_the_clock, schedule_hash, take_leave, this_node
from .protocol import Claim, Claimed, Node, Offer, Redispatch, Release, Run, RunKey
from .results import Results
from .stopping import end_once
from .stores import CHUNK, Store, new_nonce
from .trust import HoldOff, Jumps, margin, trusted_until
from .youth import young_for

#: How often a node tells the store of its jobs again (ms): a job that no node has had for a day is given up.
REGISTER_EVERY = 3_600_000

#: How often a node clears old history away (ms).
PRUNE_EVERY = 60_000

#: How many ended runs are cleared away in one step; where there were as many, the next look goes on.
PRUNE_AT_ONCE = 500

#: The most ended runs kept of one job.
HISTORY_PER_JOB = 1_000


class Scheduler(beat.Scheduler):  # type: ignore[misc]
    """A Celery beat scheduler that may run on every node.

    Settings are Celery's ``anarchon_*`` settings; an impossible one stops the start with one line.
    """

    Entry = Entry
    max_interval = 1
    store: Store

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what Celery's loop gives a scheduler."""
        self.config = _config(kwargs.get("app") or args[0])
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Read all entries, each on its own, and open the store; nothing is connected yet."""
        self._told_to_stop = self._is_set_up = False
        end_once(self._be_told_to_stop)
        self.node = this_node("beat", self.config.node, self.app.main)
        with speaking_as(self.node.name):
            self._set_up()
        self._is_set_up = True

    def listen(self) -> None:
        """Have the store tell of runs that are given back, if it can; called where a real beat begins."""
        self._alarm.set()

    def _be_told_to_stop(self) -> None:
        self._told_to_stop = True
        if not self._is_set_up:
            raise SystemExit  # nothing is to be given back, and Celery would make another one to close it

    def _set_up(self) -> None:
        config = self.config
        log_runs(config.log_runs)
        for warning in config.warnings:
            emit(Noted(warning))
        self.store = _store(config)
        self.results = Results(self.app)
        self.publisher = Publisher(self.app, patience=config.claim_timeout / 5000)
        self.plan = Plan(
            node=self.node.id, claim_timeout=config.claim_timeout, first_catch_up=config.first_catch_up,
            poll=config.poll,
        )  # fmt: skip
        self.dispatcher = Dispatcher(
            node=self.node, store=self.store, publisher=self.publisher, plan=self.plan,
            entries=self.schedule, config=config,
        )  # fmt: skip
        self._alarm = Alarm(self.store, self.node.name)
        self._begin()
        self.install_default_entries(self.data)
        self._take_jobs(entries_of(self.app))
        for note in notes_on(self.app):
            emit(Noted(note))

    def _begin(self) -> None:
        self._ticking = False
        self._started = self._may_be_known = False
        self._registered_at: int | None = None
        self._poll_at = self._prune_at = 0
        self._wake_at: float | None = None
        self._hold_off, self._jumps = HoldOff(), Jumps()
        # Else what comes due while the store is back already would be late when this node looks.
        self._store_patience = Patience(most=self.config.claim_timeout / 3000)
        self._questions: list[Question] = []  # not yet answered

    def update_from_dict(self, entries: Any) -> None:
        """Take entries; a wrong one is reported in one line and stays out."""
        self._take_jobs(GivenEntry(name, fields) for name, fields in entries.items())

    def _take_jobs(self, given: Iterable[GivenEntry]) -> None:
        jobs, refused = read_jobs(self.app, self.config, given)
        for reason in refused:
            emit(JobRefused(reason))
        for name, (entry, job) in jobs.items():
            self.schedule[name], self.plan.jobs[name] = entry, job

    @property
    def info(self) -> str:
        """The line of Celery's banner."""
        return f"       . store -> {redacted(self.config.store)}"

    # one tick -----------------------------------------------------------------------------------

    def tick(self, *unused: Any, **ignored: Any) -> float:
        """Publish what is due, take over what was left; return the seconds until the next look."""
        with speaking_as(self.node.name):
            seconds = self._tick()
        self._stop_if_told()
        return self._doze(seconds) if self._alarm.is_set else seconds

    def _doze(self, seconds: float) -> float:
        """Sleep here instead of in Celery's loop, so as to be woken when somebody gives a run back."""
        if self._alarm.sleep(seconds):
            self._poll_at = 0
        return 0.0

    def _tick(self) -> float:
        self._stop_if_told()
        self._go_with_the_worker()
        self._ticking = True
        try:
            self._notice_stall()
            self._register()
            self._publish_due()
            self._take_over()
            self._prune()
            self._store_answered()
            return self._sleep_until_next()
        except StoreReplaced as reason:
            return self._begin_again(reason)
        except StoreError as reason:
            return self._wait_for_store(reason)
        except Exception as reason:  # beat must outlive whatever comes
            emit(TickFailed(in_one_line(reason)))
            return self._sleep(self.config.poll)
        finally:
            self._ticking = False

    def _stop_if_told(self) -> None:
        """End, if the ``SystemExit`` of the signal's handler went nowhere.

        It is raised wherever this thread is. What calls back to Python from C may lose it, or make another
        error of it: so does, up to CPython 3.11, a ``__set_name__`` in a module that is only just imported.
        """
        if self._told_to_stop:
            raise SystemExit

    def _go_with_the_worker(self) -> None:
        """End, as on a stop, if this beat is embedded in a worker that was killed."""
        if (worker := worker_that_is_gone()) is not None:
            emit(WorkerGone(worker))
            raise SystemExit

    def _register(self) -> None:
        """Tell the store of our jobs at the start, every hour, and when its clock went back."""
        now = self.store.clock.now()
        if self._registered_at is not None and now - self._registered_at < REGISTER_EVERY:
            return
        stores, registrations = set(), self.plan.registrations()
        self.node = self._as_it_is()
        self._may_be_known = True  # from here on, whatever is heard of it
        for some in [*_chunks(registrations)] or [[]]:  # a node without jobs registers, too
            self.plan.learn(self.store.register(self.node, some))
            stores.add(self.store.identity)
        self._notice_jump()
        if len(stores) > 1:
            return  # it was replaced meanwhile: all jobs at the next look
        self._registered_at = self.store.clock.now()  # a clock that went back has been registered with now
        if not self._started:
            self._started = True
            lease = f"{self.config.policy.lease / 1000:g} s"
            emit(BeatStarted(self.store.shown, len(self.plan.jobs), lease, node=self.node.name))

    def _as_it_is(self) -> Node:
        """This node, with what others compare: its clock, and all that makes its jobs differ from theirs."""
        jobs = [
            (name, job.hash, self.schedule[name].task, job.policy) for name, job in self.plan.jobs.items()
        ]
        return by_the_clock(replace(self.node, schedule=schedule_hash(jobs)), self.store)

    def _publish_due(self) -> None:
        """Claim what came due, portion by portion, and publish what was won."""
        self.dispatcher.record()
        self.plan.young_since = self.store.young_since
        offers = self.plan.due(self.store.clock.now())
        some = portions(offers, most=CHUNK, node=self.node.id)
        self._questions += [Question(new_nonce(), offers=portion) for portion in some]
        self._ask_all()

    def _ask_all(self) -> None:
        """Put the questions, oldest first; one whose answer is lost stays, and is put again."""
        while self._questions:
            question = self._questions[0]
            too_old = self._too_old(question)
            claims = [] if too_old else self._ask(question)
            self.dispatcher.take(claims)  # first, or a stop in between would lose them
            self._questions.pop(0)  # answered: what is published from here on is not asked again
            if too_old:
                self.plan.offer_again(question.offers)
            self.dispatcher.publish(question.asked_at)

    def _ask(self, question: Question) -> list[Claim]:
        """Put the question, under the nonce it had before if its answer was lost."""
        if not question.asked_at:
            question.asked_at = self.store.clock.monotonic()
        if question.seen:
            return self._retake(question)
        answers = self.store.claim(self.node.name, question.offers, nonce=question.nonce)
        return [claim for answer in answers for claim in self._learn(answer)]

    def _too_old(self, question: Question) -> bool:
        """Whether a win could not be trusted any more."""
        until = trusted_until(question.asked_at, self.config.claim_timeout)
        return question.asked_at > 0 and self.store.clock.monotonic() >= until

    def _learn(self, answer: Claimed) -> tuple[Claim, ...]:
        """Move on to where the store says, and tell of what was lost."""
        self.plan.decided(answer, self.store.clock.now())
        if answer.missed is not None:
            emit(SlotMissed(answer.missed.key, answer.missed.count))
        for run in answer.ended:
            emit(_end_of(run))
        for claim in answer.claims:
            if claim.answer != "taken" and claim.run is not None and _ended_later(claim.run):
                continue  # the answer was lost meanwhile; whose call it was has told of it
            if claim.answer in ("taken", "overlap", "paused"):
                emit(_loss(claim))
            elif claim.answer == "cancelled" and claim.run is not None:
                emit(_end_of(claim.run))  # by a later slot of this very call
            elif claim.won and claim.run is not None:
                emit(SlotClaimed(claim.key, claim.run.trigger, node=self.node.name))
            elif claim.answer == "unknown":
                self._registered_at = None
        return answer.claims

    def _take_over(self) -> None:
        """Dispatch again what is past its deadline, at most every poll or at the next deadline."""
        now = self.store.clock.now()
        if self._poll_at - self.config.poll <= now < self._poll_at:  # further off: the clock went back
            return
        if self.dispatcher.waits_for_broker:
            self._poll_at = self._next_poll(now)
            return
        after, self.node = None, by_the_clock(self.node, self.store)
        while True:
            page = self.store.expired(self.node, CHUNK, after=after)
            self._notice_jump()
            left = [run for run in page.runs if self._may_take(run, page.orphaned)]
            self._redispatch(self.results.settle(self.store, left))
            if len(page.runs) < CHUNK:
                break
            after = (page.runs[-1].deadline or 0, page.runs[-1].key)
        now = self.store.clock.now()
        self._poll_at = min(self._next_poll(now), max(page.next_deadline or now + self.config.poll, now))

    def _next_poll(self, now: int) -> int:
        """Poll at a beat of this node's own, so that several nodes see what was left the sooner."""
        phase = int(self.node.id[:8], 16)
        return now + self.config.poll - (now - phase) % self.config.poll

    def _may_take(self, run: Run, orphaned: frozenset[str]) -> bool:
        if run.job not in self.plan.jobs:
            return run.job in orphaned
        if run.state not in ("running", "queued"):
            return True
        lease = max(run.lease or 0, self.plan.jobs[run.job].policy.lease)
        if young_for(self.store.young_since, lease, self.store.clock.now()):
            return False
        if run.state == "queued":
            return True
        now, renewed = self.store.clock.monotonic(), (run.deadline or 0) - (run.lease or lease)
        return not (self._hold_off.on(now) or self._jumps.spares(renewed, lease, now))

    def _redispatch(self, runs: Sequence[Run]) -> None:
        if runs:
            seen = [self._as_seen(run) for run in runs]
            self._questions.append(Question(new_nonce(), seen=seen))
            self._ask_all()

    def _retake(self, question: Question) -> list[Claim]:
        claims = self.store.redispatch(self.node.name, question.seen, nonce=question.nonce)
        for claim in claims:
            if claim.answer in ("abandoned", "cancelled") and claim.run is not None:
                emit(_end_of(claim.run))
            elif claim.answer == "paused":
                emit(_loss(claim))
            elif claim.won and claim.run is not None and claim.run.trigger == "takeover":
                self._tell_of_takeover(claim.run, question)
        return claims

    def _tell_of_takeover(self, run: Run, question: Question) -> None:
        (seen,) = (one for one in question.seen if one.key == run.key)
        if seen.state in ("running", "released"):  # else only a message of the next attempt was lost
            since = seen.deadline - (seen.lease if seen.state == "running" else 0)
            silent = max(0, self.store.clock.now() - since)
            emit(RunTakenOver(run.key, seen.state, silent, node=self.node.name, attempt=run.attempt))

    def _as_seen(self, run: Run) -> Redispatch:
        job = self.plan.jobs.get(run.job)
        policy = job.policy if job is not None else self.config.policy
        return Redispatch(
            key=run.key, state=run.state, dispatch=run.dispatch, deadline=run.deadline or 0,
            max_crashes=policy.max_crashes, claim_timeout=self.config.claim_timeout, lease=policy.lease,
        )  # fmt: skip

    # when things go wrong -----------------------------------------------------------------------

    def _notice_stall(self) -> None:
        if self._wake_at is None:
            return
        late = 1000 * (self.store.clock.monotonic() - self._wake_at)
        if late > self.config.policy.lease / 3:
            self._hold(f"stalled for {late / 1000:.1f} s", self.config.policy.heartbeat)

    def _notice_jump(self) -> None:
        forward, backward = self.store.clock.take_jumps()
        if forward > margin(0):  # else no lease is so short that it matters
            self._spare_runs(forward)
        if backward > 1000:
            self._jumps.begin(self.store.clock.monotonic(), self.store.clock.now())
            self._registered_at = None

    def _spare_runs(self, forward: float) -> None:
        leases = [job.policy.lease for job in self.plan.jobs.values()] or [self.config.policy.lease]
        clock = self.store.clock
        self._jumps.note(clock.monotonic(), forward, clock.now())
        if spared := [lease for lease in leases if forward > margin(lease)]:
            emit(HeldOff(f"the store's clock jumped {forward / 1000:.1f} s forward", max(spared) / 1000))

    def _hold(self, why: str, length: int) -> None:
        if self._hold_off.begin(self.store.clock.monotonic(), length):
            emit(HeldOff(why, length / 1000))

    def _begin_again(self, reason: StoreReplaced) -> float:
        """Register with a store that has forgotten what this node goes by."""
        emit(StoreForgot(str(reason), self.config.policy.lease / 1000))
        self._look_afresh()
        self._registered_at = None
        return self._sleep(0)

    def _look_afresh(self) -> None:
        """Look again at what was not asked yet: it may be late by then."""
        for question in self._questions:
            if not question.asked_at:
                self.plan.offer_again(question.offers)
        self._questions = [question for question in self._questions if question.asked_at]

    def _wait_for_store(self, reason: StoreError) -> float:
        """Say so, and try again after a while."""
        self._look_afresh()
        delay = self._store_patience.begin(self.store.clock.monotonic())
        if self._store_patience.worth_saying:
            emit(StoreLost(str(reason), delay))
        return self._sleep(round(delay * 1000))

    def _store_answered(self) -> None:
        if self._store_patience.end():
            emit(StoreBack())

    def _prune(self) -> None:
        now = self.store.clock.now()
        if now >= self._prune_at:
            history = self.config.history
            forgotten = self.store.prune(history=history, most=HISTORY_PER_JOB, limit=PRUNE_AT_ONCE)
            self._prune_at = now if forgotten == PRUNE_AT_ONCE else now + PRUNE_EVERY

    # sleeping and stopping ----------------------------------------------------------------------

    def _sleep_until_next(self) -> float:
        now = self.store.clock.now()
        coming = [now + round(self.max_interval * 1000), max(self._poll_at, now)]
        if (next_due := self.plan.next_due()) is not None:
            coming.append(next_due)
        return self._sleep(max(0, min(coming) - now))

    def _sleep(self, ms: int) -> float:
        self._wake_at = self.store.clock.monotonic() + ms / 1000
        return ms / 1000

    def close(self) -> None:
        """Give back what was claimed and not published; called in the middle of a tick and again after it."""
        self._told_to_stop = True
        if hasattr(self, "dispatcher") and not self._ticking:
            with speaking_as(self.node.name):
                self._give_back()

    def _give_back(self) -> None:
        # Whose answer did not come may have been won: what was not, the store does not give back.
        asked = [question for question in self._questions if question.asked_at]
        unheard = [Release(key=key, nonce=question.nonce) for question in asked for key in question.keys]
        self._questions.clear()
        try:
            self.dispatcher.close(unheard)
        except StoreError as reason:
            emit(Noted(f"the store did not answer while this node stopped: {reason}"))
        if self._may_be_known:
            self._may_be_known = False
            take_leave(self.node, self.store)
        self._alarm.close()
        self.publisher.close()
        self.store.close()


@dataclass(slots=True)
class Question:
    """Slots to claim, or runs to dispatch again: put under one nonce while a win could be trusted.

    ``asked_at`` are monotonic seconds, 0 until it was first put.
    """

    nonce: str
    offers: Sequence[Offer] = ()
    seen: Sequence[Redispatch] = ()
    asked_at: float = 0.0

    @property
    def keys(self) -> list[RunKey]:
        """The runs it may have won."""
        slots = [RunKey(offer.job, slot) for offer in self.offers for slot in offer.slots]
        return slots + [one.key for one in self.seen]


@beat_init.connect  # type: ignore[misc,unused-ignore]
def _listen(sender: Any = None, **_: Any) -> None:
    """Celery's loop is about to begin: from then on it is woken."""
    if isinstance(scheduler := getattr(sender, "scheduler", None), Scheduler):
        scheduler.listen()


def _ended_later(run: Run) -> bool:
    """Whether a run was ended by another call than the one that decided its slot."""
    return run.ended and run.finished_at != run.claimed_at


def _loss(claim: Claim) -> Event:
    """Why a slot is not this node's to publish now."""
    if claim.answer != "taken" and claim.run is not None and not claim.run.ended:
        paused = claim.answer == "paused"
        return RunBuffered(claim.key, "its job is resumed" if paused else "the run before it ends")
    return SlotSkipped(claim.key, claim.answer)


def _end_of(run: Run) -> Event:
    """How a run ended that no worker holds."""
    if run.state == "abandoned":
        return RunAbandoned(run.key, run.reason or "", **attempt_of(run))
    if run.state == "cancelled":
        return RunCancelled(run.key, run.reason or "", **attempt_of(run))
    return SlotSkipped(run.key, run.reason or run.state)


def _config(app: Any) -> Config:
    try:
        config = Config.of(app)
        check_celerys(app)
    except SettingError as reason:
        raise SystemExit(f"anarchon: {reason}") from reason
    if app.conf.task_always_eager:
        raise SystemExit("anarchon: task_always_eager=True: beat would run each task itself; False is right")
    return config


def _store(config: Config) -> Store:
    try:
        return config.open_store()
    except StoreError as reason:
        raise SystemExit(f"anarchon: {reason}") from reason


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))

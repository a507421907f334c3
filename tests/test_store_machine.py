"""Random stories, told to the memory store and to another one: all answers and records must be the same.

The stories are the same ones in each run. To tell so many new ones: ``ANARCHON_TEST_EXAMPLES=2000``, with
``-o timeout=0``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from anarchon_celery.floors import floor_of
from anarchon_celery.folding import FOLD_AFTER
from anarchon_celery.protocol import (
    ACTIVE,
    BUFFERED,
    PUT_BACK,
    REMEMBERED_HASHES,
    Claimed,
    Holding,
    Node,
    Offer,
    Redispatch,
    Registration,
    Release,
    Request,
    Run,
    RunKey,
    Sent,
    Settle,
    Start,
    Started,
)
from anarchon_celery.slots import Leap
from anarchon_celery.stores import Store
from anarchon_celery.stores.memory import MemoryStore
from anarchon_celery.testing.contract.story import (
    DAY,
    HOUR,
    MINUTE,
    OLD,
    SECOND,
    SEEN_EVERY,
    YOUNG,
    T,
    everything,
)
from tests.rollback import snapshot
from tests.test_stores import KINDS, new_site

NODES = [Node(id="i1", name="one:1"), Node(id="i2", name="two:2"), Node(id="i3", name="two:2", kind="worker")]
JOBS = ["report", "a:b 'ü'", "Ärger", "nobody's"]

#: All slots are multiples of this, so that nodes meet at them.
GRID = 10 * SECOND

EXAMPLES = int(os.environ.get("ANARCHON_TEST_EXAMPLES", "0"))
STORIES = settings(
    max_examples=EXAMPLES or 18,
    stateful_step_count=50,
    derandomize=not EXAMPLES,
    print_blob=True,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    database=None,
    suppress_health_check=list(HealthCheck),
)

jobs = st.sampled_from(JOBS[:3])
nodes = st.sampled_from(NODES)
picks = st.integers(0, 9)
mostly = st.sampled_from([True, True, True, False])
seldom = st.sampled_from([False, False, False, True])
hashes = st.sampled_from(["h1", "h1", "h2", "h2", "h3", "h4", None])
overlaps = st.sampled_from(["skip", "queue", "queue", "cancel", "allow"])
catch_ups = st.sampled_from(["latest", "latest", "all"])
timeouts = st.sampled_from([SECOND, 10 * SECOND, 5 * MINUTE, 2 * HOUR])
delays = st.sampled_from([0, 1, 5 * SECOND, 10 * MINUTE])
tries = st.sampled_from([0, 0, 1, 3])


class TwoStores(RuleBasedStateMachine):
    """Beat nodes and workers that do anything, in any order, at any time."""

    def __init__(self, other: Store) -> None:
        super().__init__()
        self.model, self.other = MemoryStore(), other
        self.now = T
        self.names = 0
        self.tokens: dict[RunKey, list[str]] = {}
        self.nonces: defaultdict[RunKey, list[str]] = defaultdict(lambda: ["nobody's"])
        self.fences: dict[str, int] = {}
        self.held: list[Holding] = []
        self.backups: list[Callable[[], None]] = []

    def teardown(self):
        self.other.close()

    # How it is told

    def tell(self, verb: str, *args, again: bool = False, **how):
        """Tell both stores, perhaps once more as after a lost answer; the answers must be the same."""
        answer = self._tell_both(verb, *args, **how)
        if again:
            before = everything(self.model)
            second = self._tell_both(verb, *args, **how)
            if verb == "claim":
                assert [told_again(*both) for both in zip(args[1], answer, strict=True)] == second
            else:
                assert answer == second or (verb == "start" and not isinstance(answer, Started))
            assert before == everything(self.model)
        return answer

    def _tell_both(self, verb: str, *args, **how):
        expected = getattr(self.model, verb)(*args, now=self.now, **how)
        assert expected == getattr(self.other, verb)(*args, now=self.now, **how)
        return expected

    def new(self, what: str) -> str:
        self.names += 1
        return f"{what}{self.names}"

    def runs(self) -> list[Run]:
        """All runs, the active ones first, then those that wait."""
        return sorted(self.model.runs(limit=1_000_000), key=lambda run: (not run.active, run.ended))

    def pick(self, number: int, *states: str) -> Run:
        runs = self.runs()
        runs = [run for run in runs if run.state in states] or runs
        return runs[number % len(runs)]

    def pick_begun(self, number: int) -> Run:
        """A run that is running, or else one that somebody may believe to hold."""
        runs = [run for run in self.runs() if run.key in self.tokens]
        runs = [run for run in runs if run.state == "running"] or runs
        return runs[number % len(runs)]

    def any_run(self, *states: str) -> bool:
        return any(not states or run.state in states for run in self.model.runs(limit=1_000_000))

    def any_active(self) -> bool:
        return self.any_run(*ACTIVE)

    def any_begun(self) -> bool:
        return any(run.key in self.tokens for run in self.model.runs(limit=1_000_000))

    # Time

    @rule(by=st.sampled_from([1, 500, SECOND, 4 * SECOND, GRID, GRID, MINUTE, HOUR]))
    def time_passes(self, by):
        self.now += by

    @precondition(any_active)
    @rule(off=st.sampled_from([0, 0, 0, 1, -1]))
    def a_deadline_comes(self, off):
        deadlines = sorted(run.deadline for run in self.runs() if run.deadline is not None)
        self.now = next((at for at in deadlines if at > self.now), self.now) + off

    @rule(by=st.sampled_from([1, 10, SECOND, SECOND + 1, 3 * SECOND]))
    def the_clock_goes_back(self, by):
        self.now -= by

    @precondition(lambda self: self.names > 5)
    @rule(by=st.sampled_from([-2 * HOUR, DAY + 1]))
    def the_clock_leaps(self, by):
        self.now += by

    # Beat

    @initialize(supervised=st.booleans())
    def the_first_node_comes(self, supervised):
        asked = [Registration(job=job, hash="h1", supervised=supervised) for job in JOBS[:2]]
        self.tell("register", NODES[0], asked)

    @rule(
        node=nodes,
        of=st.lists(st.sampled_from(JOBS[:3]), min_size=1, max_size=3, unique=True),
        hash=st.sampled_from(["h1", "h1", "h2", "h2", "h3"]),
        cursor=st.sampled_from([None, None, -GRID, HOUR]),
        effective=st.sampled_from([None, -MINUTE, -DAY, HOUR]),
        first_seen=st.sampled_from([None, -DAY, HOUR]),
        supervised=seldom,
        paused=st.sampled_from([None, None, None, "an upgrade"]),
        again=seldom,
    )
    def register(self, node, of, hash, cursor, effective, first_seen, supervised, paused, again):
        asked = [
            Registration(
                job=job, hash=hash, supervised=supervised, paused=paused,
                cursor=None if cursor is None else self.now + cursor,
                effective=None if effective is None else self.now + effective,
                first_seen=None if first_seen is None else self.now + first_seen,
            )
            for job in of
        ]  # fmt: skip
        self.tell("register", node, asked, again=again)

    @rule(node=nodes, job=jobs, hash=st.sampled_from(["h1", "h2", "h3"]), again=seldom)
    def a_node_goes_on(self, node, job, hash, again):
        """It remembers what the store told it last, which may be more than the store itself does."""
        known = next((known.known(hash) for known in self.model.jobs() if known.name == job), None)
        cursor, since = (self.now, self.now) if known is None else (known.floor or known.since, known.since)
        asked = Registration(job=job, hash=hash, cursor=cursor, effective=since, first_seen=self.now - HOUR)
        self.tell("register", node, [asked], again=again)

    @precondition(lambda self: self.names > 8)
    @rule(node=nodes, job=jobs, number=st.integers(2, 9), really=seldom)
    def the_schedule_changes_again_and_again(self, node, job, number, really):
        for step in range(number if really else 0):
            self.tell("register", node, [Registration(job=job, hash=f"h{step + 4}")])

    @rule(
        node=nodes,
        offered=st.lists(
            st.tuples(
                jobs,
                hashes,
                st.lists(st.sampled_from([0, -1, -2, 1]), max_size=3, unique=True),
                st.sampled_from([0, 0, 1, 2]),
                st.sampled_from([0, 0, 0, 2, 5]),
                overlaps,
                catch_ups,
                st.sampled_from([None] * 6 + ["floor", "floor", "other"]),
                timeouts,
            ),
            min_size=1,
            max_size=3,
            unique_by=lambda offer: offer[0],
        ),
        again=seldom,
    )
    def claim(self, node, offered, again):
        nonce, offers = self.new("n"), [self.offer(*offer) for offer in offered]
        for answer in self.tell("claim", node.name, offers, nonce=nonce, again=again):
            for claim in answer.claims:
                self.nonces[claim.key].append(nonce)

    def offer(self, job, hash, steps, late, leapt, overlap, catch_up, chain, timeout) -> Offer:
        here = self.now // GRID * GRID
        slots = tuple(sorted(here + step * GRID for step in steps))
        before = slots[0] if slots else here
        leap = Leap(first=before - leapt * GRID, last=before - GRID, count=leapt) if leapt else None
        floor = next((floor_of(known, hash) for known in self.model.jobs() if known.name == job), None)
        return Offer(
            job=job, hash=hash, slots=slots, late=min(late, len(slots)), leap=leap,
            overlap=overlap, catch_up=catch_up,
            chained=chain is not None, after=floor if chain == "floor" else before - GRID if chain else None,
            claim_timeout=timeout,
        )  # fmt: skip

    @precondition(lambda self: self.any_run("claimed"))
    @rule(
        pick=picks, is_right=mostly, supervised=st.sampled_from([True, True, None, False]),
        countdown=delays, timeout=timeouts, again=seldom,
    )  # fmt: skip
    def sent(self, pick, is_right, supervised, countdown, timeout, again):
        run = self.pick(pick, "claimed")
        one = Sent(
            key=run.key, dispatch=run.dispatch - (not is_right), task_id=self.new("task-"),
            supervised=supervised, countdown=countdown, start_timeout=timeout,
        )  # fmt: skip
        self.tell("sent", [one], again=again)

    @rule(node=nodes, limit=st.integers(1, 5), again=seldom)
    def look(self, node, limit, again):
        after = None
        while page := self.tell("expired", node, limit, after=after, again=again).runs:
            assert [run for run in page if not run.active] == []
            after = (page[-1].deadline, page[-1].key)

    @precondition(any_active)
    @rule(
        node=nodes,
        patient=mostly,
        several=st.lists(picks, min_size=1, max_size=3, unique=True),
        wrong=st.sampled_from([None] * 6 + ["state", "dispatch", "deadline"]),
        max_crashes=st.sampled_from([1, 2, 3, 3]),
        timeout=timeouts,
        again=seldom,
    )
    def redispatch(self, node, patient, several, wrong, max_crashes, timeout, again):
        active = [run for run in self.runs() if run.active]
        if patient:
            self.now = max(self.now, min(run.deadline for run in active))
        runs = [run for run in active if run.deadline <= self.now] or active
        asked = {
            run.key: Redispatch(
                key=run.key,
                state="claimed" if wrong == "state" else run.state,
                dispatch=run.dispatch + (wrong == "dispatch"),
                deadline=run.deadline - (wrong == "deadline"),
                max_crashes=max_crashes,
                claim_timeout=timeout,
            )
            for run in (runs[pick % len(runs)] for pick in several)
        }
        nonce = self.new("m")
        self.tell("redispatch", node.name, list(asked.values()), nonce=nonce, again=again)
        for key in asked:
            self.nonces[key].append(nonce)

    @rule(
        job=jobs,
        hash=hashes,
        overlap=overlaps,
        supervised=mostly,
        goes=st.sampled_from(["claimed", "queued", "running", "running"]),
        lease=timeouts,
    )
    def a_slot_comes_due(self, job, hash, overlap, supervised, goes, lease):
        self.now = (self.now // GRID + 1) * GRID
        key, nonce = RunKey(job, self.now), self.new("n")
        offer = Offer(job=job, hash=hash, slots=(key.slot,), overlap=overlap)
        self.nonces[key].append(nonce)
        if not self.tell("claim", "one:1", [offer], nonce=nonce)[0].claims[0].won or goes == "claimed":
            return
        self.tell("sent", [Sent(key=key, dispatch=1, task_id="i", supervised=supervised)])
        if goes == "running":
            self.begin(key, self.new("t"), overlap, lease, YOUNG, False)

    @precondition(any_active)
    @rule(
        pick=picks, hash=hashes, number=st.integers(2, 3), apart=st.sampled_from([1, 1, 40]),
        later=st.sampled_from([0, FOLD_AFTER - 1, FOLD_AFTER, FOLD_AFTER]),
    )  # fmt: skip
    def slots_are_skipped(self, pick, hash, number, apart, later):
        """One after the other, since a run of their job goes on; and some time passes."""
        job = self.pick(pick, *ACTIVE).job
        for _ in range(number):
            self.now = (self.now // GRID + apart) * GRID
            nonce = self.new("n")
            self.nonces[RunKey(job, self.now)].append(nonce)
            self.tell("claim", "one:1", [Offer(job=job, hash=hash, slots=(self.now,))], nonce=nonce)
        self.now += later

    @precondition(lambda self: self.any_run("claimed"))
    @rule(pick=picks, times=st.sampled_from([1, 4, 5]), max_crashes=st.sampled_from([1, 3]))
    def nobody_starts_it(self, pick, times, max_crashes):
        key = self.pick(pick, "claimed").key
        for _ in range(times):
            if (run := self.model.run(key)).state != "claimed":
                return
            self.tell("sent", [Sent(key=key, dispatch=run.dispatch, task_id="i", supervised=True)])
            run = self.model.run(key)
            self.now = max(self.now, run.deadline)
            seen = Redispatch(
                key=key, state=run.state, dispatch=run.dispatch, deadline=run.deadline,
                max_crashes=max_crashes,
            )  # fmt: skip
            self.nonces[key].append(self.new("m"))
            self.tell("redispatch", "one:1", [seen], nonce=self.nonces[key][-1])

    # Workers

    @precondition(any_run)
    @rule(
        pick=picks,
        known=seldom,
        overlap=overlaps,
        lease=timeouts,
        claimed_at=st.sampled_from([OLD, YOUNG]),
        retries=tries,
        again=seldom,
    )
    def start(self, pick, known, overlap, lease, claimed_at, retries, again):
        run = self.pick(pick, "claimed", "queued", "released", BUFFERED, "published", "abandoned")
        token = self.tokens[run.key][-1] if known and run.key in self.tokens else self.new("t")
        self.begin(run.key, token, overlap, lease, claimed_at, again, retries)

    @precondition(any_run)
    @rule(
        several=st.lists(picks, min_size=1, max_size=3), outcome=st.sampled_from(["cancelled", "published"]),
        reason=st.sampled_from(["expired", "ü"]), wrong=st.sampled_from([None, None, 0, 0, 1]), really=seldom,
        again=seldom,
    )  # fmt: skip
    def settle(self, several, outcome, reason, wrong, really, again):
        """Of one dispatch, or of any."""
        runs = [self.pick(pick, "claimed", "queued", "released") for pick in several if really]
        dispatches = [None if wrong is None else run.dispatch + wrong for run in runs]
        asked = [
            Settle(key=run.key, outcome=outcome, reason=reason, dispatch=dispatch)
            for run, dispatch in zip(runs, dispatches, strict=True)
        ]
        self.tell("settle", asked, again=again)

    @precondition(lambda self: self.any_run("published", "abandoned"))
    @rule(pick=picks, overlap=overlaps, again=seldom)
    def a_late_message_comes(self, pick, overlap, again):
        key = self.pick(pick, "published", "abandoned").key
        self.begin(key, self.new("t"), overlap, MINUTE, YOUNG, again)

    @rule(
        job=st.sampled_from(JOBS),
        step=st.sampled_from([1, 0, -1, -2]),
        kind=st.sampled_from(["scheduled", "scheduled", "manual"]),
        overlap=overlaps,
        lease=timeouts,
        claimed_at=st.sampled_from([OLD, YOUNG]),
        again=seldom,
    )
    def start_what_the_store_may_not_know(self, job, step, kind, overlap, lease, claimed_at, again):
        key = RunKey(job, (self.now // GRID + step) * GRID, kind)
        self.begin(key, self.new("t"), overlap, lease, claimed_at, again)

    def begin(self, key, token, overlap, lease, claimed_at, again, retries=3):
        before = self.model.run(key)
        asked = Start(
            key=key, token=token, worker=f"worker of {token}", task_id=f"task of {token}", dispatch=7,
            trigger="catch-up", claimed_at=claimed_at, lease=lease, overlap=overlap,
            retries=retries,
        )  # fmt: skip
        answer = self.tell("start", asked, again=again)
        if not isinstance(answer, Started) or (before and before.state == "running"):
            return
        self.tokens.setdefault(key, ["nobody's"]).append(token)
        assert answer.fence == max(self.fences.get(key.job, 0) + 1, self.now * 1000)
        self.fences[key.job] = answer.fence
        held = Holding(
            key=key, token=token, fence=answer.fence, attempt=answer.attempt, lease=lease, owner="w",
            task_id=f"task of {token}", trigger=answer.trigger, dispatch=7, claimed_at=claimed_at,
            overlap=overlap, trusted=True,
        )  # fmt: skip
        self.held.append(held)

    # A store that forgets

    @precondition(lambda self: self.names > 2)
    @rule(really=seldom)
    def a_backup_is_made(self, really):
        if really:
            self.backups = [snapshot(store) for store in (self.model, self.other)]

    @precondition(lambda self: self.backups != [] and self.held != [])
    @rule(really=seldom)
    def the_backup_comes_back(self, really):
        """And somebody knows it: a node that the store answered just now, and that it does not know."""
        for store, restore in zip((self.model, self.other), self.backups, strict=True) if really else ():
            restore()
            store._node, store._noted = "gone", self.now
            store.renew([], now=self.now)
            store._node, store._noted = None, None
            store.renew([], now=self.now)
            assert self.now == store.young_since
        self.fences = {job.name: job.fence for job in self.model.jobs()}

    @precondition(lambda self: self.held != [])
    @rule(several=st.lists(picks, min_size=1, max_size=3, unique=True), trusted=mostly, again=seldom)
    def holders_put_back(self, several, trusted, again):
        latest = self.held[::-1]
        held = {latest[pick % len(latest)].token: latest[pick % len(latest)] for pick in several}
        asked = [replace(one, trusted=trusted) for one in held.values()]
        for one, said in zip(asked, self.tell("renew", asked), strict=True):
            if said.reason == PUT_BACK:
                self.tokens.setdefault(one.key, ["nobody's"]).append(one.token)
        if again:
            self.tell("renew", asked)
        self.fences = {job.name: job.fence for job in self.model.jobs()}

    @precondition(any_begun)
    @rule(several=st.lists(picks, min_size=1, max_size=3), is_latest=mostly, again=seldom)
    def renew(self, several, is_latest, again):
        runs = [self.pick_begun(pick) for pick in several]
        holdings = [
            Holding(key=run.key, token=self.tokens[run.key][-1 if is_latest else 0], fence=run.fence)
            for run in runs
        ]
        self.tell("renew", holdings, again=again)

    @precondition(any_begun)
    @rule(
        pick=picks,
        is_latest=mostly,
        outcome=st.sampled_from(["succeeded", "failed", "cancelled"]),
        reason=st.sampled_from([None, "ValueError: 'ü'"]),
        again=seldom,
    )
    def finish(self, pick, is_latest, outcome, reason, again):
        run = self.pick_begun(pick)
        token = self.tokens[run.key][-1 if is_latest else 0]
        self.tell("finish", run.key, token, outcome, reason=reason, again=again)

    @precondition(any_begun)
    @rule(
        pick=picks, is_latest=mostly, delay=delays, retries=st.integers(0, 3), timeout=timeouts, again=seldom
    )
    def requeue(self, pick, is_latest, delay, retries, timeout, again):
        run = self.pick_begun(pick)
        token = self.tokens[run.key][-1 if is_latest else 0]
        self.tell("requeue", run.key, token, delay=delay, retries=retries, start_timeout=timeout, again=again)

    @precondition(any_begun)
    @rule(pick=picks, is_latest=mostly, delay=delays, crash=seldom, again=seldom)
    def hand_over(self, pick, is_latest, delay, crash, again):
        run = self.pick_begun(pick)
        token = self.tokens[run.key][-1 if is_latest else 0]
        self.tell("release", [Release(key=run.key, token=token, delay=delay, crash=crash)], again=again)

    @precondition(any_run)
    @rule(pick=picks, is_latest=mostly, delay=delays, again=seldom)
    def fail_to_publish(self, pick, is_latest, delay, again):
        run = self.pick(pick, "claimed", BUFFERED)
        nonce = self.nonces[run.key][-1 if is_latest else 0]
        self.tell("release", [Release(key=run.key, nonce=nonce, delay=delay)], again=again)

    # Whoever

    @precondition(lambda self: self.names > 3)
    @rule(
        job=st.sampled_from(JOBS), really=seldom, reason=st.sampled_from(["an upgrade", "ü"]), by=nodes,
        again=seldom,
    )  # fmt: skip
    def pause(self, job, really, reason, by, again):
        if really:
            self.tell("pause", job, reason=reason, by=by.name, again=again)

    @precondition(lambda self: self.names > 2)
    @rule(
        job=st.sampled_from(JOBS), overlap=overlaps, number=st.integers(1, 2), lease=timeouts,
        arguments=st.sampled_from([None, '[["ü"], null]']), goes=st.sampled_from([None, "queued", "running"]),
        again=seldom,
    )  # fmt: skip
    def somebody_triggers(self, job, overlap, number, lease, arguments, goes, again):
        asked = Request(job=job, by="anna", arguments=arguments, overlap=overlap, lease=lease)
        for _ in range(number):
            answer = self.tell("trigger", asked, nonce=self.new("r"), again=again)
            if goes is not None and answer.answer == "released":
                self.dispatch(answer.run, goes, overlap, lease)

    def dispatch(self, run, goes, overlap, lease):
        seen = Redispatch(key=run.key, state=run.state, dispatch=run.dispatch, deadline=run.deadline)
        nonce = self.new("m")
        self.nonces[run.key].append(nonce)
        if not self.tell("redispatch", "one:1", [seen], nonce=nonce)[0].won:
            return
        self.tell("sent", [Sent(key=run.key, dispatch=run.dispatch + 1, task_id="i", supervised=True)])
        if goes == "running":
            self.begin(run.key, self.new("t"), overlap, lease, YOUNG, False)

    @precondition(lambda self: self.names > 2)
    @rule(
        job=jobs, overlap=overlaps, steps=st.lists(st.integers(-3, 1), max_size=3, unique=True), again=seldom
    )  # fmt: skip
    def somebody_backfills(self, job, overlap, steps, again):
        here = self.now // GRID * GRID
        asked = Request(job=job, by="anna", overlap=overlap)
        slots = [here + step * GRID for step in sorted(steps)]
        self.tell("backfill", asked, slots, nonce=self.new("r"), again=again)

    @precondition(lambda self: self.any_run() and self.names > 5)
    @rule(pick=picks, wrong=seldom, again=seldom)
    def somebody_cancels(self, pick, wrong, again):
        key = self.pick(pick, "running", BUFFERED, "queued", "released", "published").key
        self.tell("cancel", key._replace(kind="none") if wrong else key, reason="ü", again=again)

    @precondition(lambda self: self.names > 5)
    @rule(node=nodes, really=seldom, again=seldom)
    def a_node_leaves(self, node, really, again):
        """And may come again: which nodes there are is the same, and that it was forgotten tells nothing."""
        if really:
            self.tell("leave", node, again=again)
            both = [{one.id for one in store.nodes()} for store in (self.model, self.other)]
            assert both[0] == both[1] and node.id not in both[0]

    @precondition(lambda self: self.names > 8)
    @rule(job=st.sampled_from(JOBS), really=seldom)
    def somebody_forgets_a_job(self, job, really):
        if really:
            self.tell("forget", job, limit=1000)

    @precondition(lambda self: self.any_run("running") and self.any_begun())
    @rule(
        pick=picks, then=st.sampled_from(["goes on", "ends", "is retried", "is given back", "dies"]),
        delay=delays, node=nodes, again=seldom,
    )  # fmt: skip
    def pause_what_runs(self, pick, then, delay, node, again):
        run = self.pick_begun(pick)
        token = self.tokens[run.key][-1]
        self.tell("pause", run.job, reason="an upgrade", by="anna")
        if then == "ends":
            self.tell("finish", run.key, token, "succeeded", again=again)
        elif then == "is retried":
            self.tell("requeue", run.key, token, delay=delay, retries=1, start_timeout=SECOND, again=again)
        elif then == "is given back":
            self.tell("release", [Release(key=run.key, token=token, delay=delay)], again=again)
        elif then == "dies" and run.deadline is not None:
            self.now = max(self.now, run.deadline)
            seen = Redispatch(key=run.key, state=run.state, dispatch=run.dispatch, deadline=run.deadline)
            self.tell("redispatch", node.name, [seen], nonce=self.new("m"), again=again)

    def paused(self) -> list[str]:
        return [job.name for job in self.model.jobs() if job.paused is not None]

    @precondition(lambda self: self.paused() != [])
    @rule(pick=picks)
    def resume(self, pick):
        assert self.tell("resume", self.paused()[pick % len(self.paused())])

    @precondition(lambda self: self.names > 8)
    @rule(
        history=st.sampled_from([0, MINUTE, HOUR, DAY, DAY]), most=st.sampled_from([0, 2, 99, 99]),
        limit=st.integers(1, 4),
    )  # fmt: skip
    def prune(self, history, most, limit):
        """Which ones go first is the store's own affair, so all go."""
        asked = {"history": history, "most": most, "limit": limit, "now": self.now}
        going_on = [run for run in self.runs() if not run.ended]
        total = []
        for store in (self.model, self.other):
            counts = [0]
            while count := store.prune(**asked):
                assert count <= limit
                counts.append(count)
            total.append(sum(counts))
        assert total[0] == total[1]
        assert going_on == [run for run in self.runs() if not run.ended]

    # What is always so

    @invariant()
    def both_know_the_same(self):
        assert everything(self.model) == everything(self.other)
        for expected, actual in zip(self.model.nodes(), self.other.nodes(), strict=True):
            assert expected == replace(actual, seen=expected.seen)
            assert abs(actual.seen - expected.seen) < SEEN_EVERY

    @invariant()
    def no_schedule_is_decided_further_than_its_job(self):
        for job in self.model.jobs():
            floors = [known.floor for known in job.hashes if known.floor is not None]
            assert floors == [] or max(floors) <= job.floor
            assert len({known.hash for known in job.hashes}) == len(job.hashes) <= REMEMBERED_HASHES

    @invariant()
    def every_active_run_has_one_deadline_and_no_other_has(self):
        for run in self.runs():
            assert run.active == (run.deadline is not None) == (run.span is not None)

    @invariant()
    def what_waits_is_waited_for_by_something(self):
        paused = {job.name for job in self.model.jobs() if job.paused is not None}
        going_on = [run for run in self.runs() if not run.ended]
        for run in going_on:
            held_back = run.job in paused and run.kind == "scheduled"
            if held_back:
                assert run.state in ("running", BUFFERED)
            elif run.state == BUFFERED:
                assert [other for other in going_on if other.active and other.job == run.job] != []


def told_again(offer: Offer, answer: Claimed) -> Claimed:
    """What the same call is answered after a lost answer: what it did to other runs is not told again."""
    if not offer.chained or answer.floor == offer.after:
        return replace(answer, ended=())
    # Of a chain only what was decided is told again.
    undecided = ("wait", "early", "taken")
    claims = [
        replace(claim, answer="wait", run=None, wait=0) if claim.answer in undecided else claim
        for claim in answer.claims
    ]
    return replace(answer, ended=(), claims=tuple(claims))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "memory"])
def test_a_store_tells_every_story_as_the_memory_store_does(kind, request):
    run_state_machine_as_test(lambda: TwoStores(new_site(kind, request).open()), settings=STORIES)

"""Who looks at everything: each change of the store's records, each lease, each message, each body.

What must hold at each moment is checked at each moment. What can be told only afterwards is in :mod:`.laws`.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from anarchon_celery.durations import milliseconds
from anarchon_celery.protocol import Run, RunKey
from anarchon_celery.slots import from_iso
from anarchon_celery.trust import margin

from .jobs import GAPS, JOBS
from .world import Process, T, World

#: How late a look may be in calm weather: a poll and half a second (ms).
PROMPT = 1_500

#: From when on a slot is late (ms): the claim timeout, while which a question is put again, and may be late.
UNTIL_LATE = 40_000

#: How a case of docs/failures.md, "Not promised", is counted: see :meth:`Watch._taken_over`.
AFTER_A_JUMP = 'overlaps after a jump of the store\'s clock, not promised'

#: For how long after a store has forgotten something two runs of a job may be side by side (ms).
BESIDE = 300_000


@dataclass(slots=True)
class Change:
    """A record as it was left at a moment."""

    at: float
    now: int
    verb: str
    who: Process | None
    run: Run


@dataclass(slots=True)
class Body:
    """One time that a body of a task was begun."""

    key: RunKey
    attempt: int
    fence: int
    began: float
    retries: int
    ended: float | None = None
    how: str | None = None


@dataclass
class Watch:
    """What was seen, and what was wrong with it."""

    world: World
    cluster: Any
    wrong: list[str] = field(default_factory=list)
    digest: int = 0  #: of all changes, by which two hours are known to be the same
    runs: dict[RunKey, Run] = field(default_factory=dict)
    history: dict[RunKey, list[Change]] = field(default_factory=lambda: defaultdict(list))
    bodies: list[Body] = field(default_factory=list)
    leases: list[Any] = field(default_factory=list)
    sent: Counter[tuple[RunKey, int]] = field(default_factory=Counter)
    maybe_sent: Counter[RunKey] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    leaps: list[tuple[str, int, int]] = field(default_factory=list)
    ever_leapt: list[tuple[str, int, int]] = field(default_factory=list)
    fences: dict[str, int] = field(default_factory=dict)
    abandoned: Counter[RunKey] = field(default_factory=Counter)
    told_abandoned: Counter[RunKey] = field(default_factory=Counter)
    written: dict[object, tuple[int, float]] = field(default_factory=dict)
    minted: dict[tuple[str, int], float] = field(default_factory=dict)  #: when each fence was
    decided: set[RunKey] = field(default_factory=set)
    losses: list[float] = field(default_factory=list)  #: when the store lost what it had answered
    set_back: list[float] = field(default_factory=list)  #: when its clock was
    set_forward: list[tuple[float, int]] = field(default_factory=list)  #: and by how much (ms)
    #: Leases taken over by a beat that could not know of a jump: until when their holders may trust them.
    taken_unknowingly: dict[tuple[RunKey, int], float] = field(default_factory=dict)
    not_promised: set[frozenset[tuple[RunKey, int]]] = field(default_factory=set)
    identity: str | None = None  #: of the store as it was when it had lost something
    knew: list[Process] | None = None  #: the beats that were up when it was wiped, until one has registered
    forgotten: list[tuple[str, int, int]] = field(default_factory=list)  #: slots that nobody could know of
    revived: set[RunKey] = field(default_factory=set)  #: had ended in the time that was lost

    def say(self, law: str, what: str) -> None:
        self.wrong.append(f'{law}: {what}, at {self.world.now / 1000:.3f} s')

    # the store's records

    def observe(self, process: Process, verb: str, transition: Callable[..., Any]) -> Callable[..., Any]:
        """Return the transition, looked at."""

        def observed(ledger: Any, now: int) -> Any:
            answer = transition(ledger, now)
            self.counts[verb] += 1
            if verb == 'expired':
                process.polled_at = self.world.now
            if verb == 'register' and self.knew is not None:
                self._jobs_are_known(process, ledger)
            if verb == 'prune' and answer:  # a skip that went into another's row has no record any more
                self.runs = {key: run for key, run in self.runs.items() if key in ledger.runs}
            if ledger.changed_runs:
                self._have_changed(process, verb, now, ledger)
            return answer

        return observed

    def _have_changed(self, process: Process, verb: str, now: int, ledger: Any) -> None:
        for key, run in list(ledger.changed_runs.items()):
            self._changed(process, verb, now, ledger, key, run)
        for job in {key.job for key in ledger.changed_runs}:
            self._waits_for_something(verb, ledger, job)
        self.cluster.deadlines_moved(ledger.changed_runs.values(), now)

    def _changed(self, process: Process, verb: str, now: int, ledger: Any, key: RunKey, run: Run) -> None:
        before = self.runs.get(key)
        self.runs[key] = run
        self.digest = zlib.crc32(f'{now} {verb} {process} {_named(key)} {run.state}'.encode(), self.digest)
        self.history[key].append(Change(self.world.now, now, verb, process, run))
        if before is None and run.kind in ('scheduled', 'leapt'):
            self._decided(process, verb, now, run)
        self._is_in_order(verb, before, ledger, run)
        if self._is_taken_from_its_claimer(verb, before, run):
            self.maybe_sent[key] += not self.sent[key, run.dispatch]
        if verb == 'start' and run.state == 'running' and (before is None or before.token != run.token):
            self._started(ledger, run)
        if verb == 'redispatch' and before is not None:
            self._dispatched_again(now, before, run)
            if before.state == 'running':
                self._taken_over(process, before)

    def _is_taken_from_its_claimer(self, verb: str, before: Run | None, run: Run) -> bool:
        """Whether a claim is over before it was told that it was sent, or that it was not.

        By an earlier message that started it, say, or since a slot "may lose its place", also "within the
        call that decides it" (the rules): its claimer may never send it, and has not to say so.
        """
        if before is None:
            return verb == 'claim' and run.state == 'cancelled'
        is_over = before.state == 'claimed' != run.state
        return is_over and verb not in ('sent', 'release', 'redispatch')

    def _decided(self, process: Process, verb: str, now: int, run: Run) -> None:
        if run.until is not None:
            self.leaps.append((run.job, run.slot, run.until))
            self.ever_leapt.append((run.job, run.slot, run.until))
            if JOBS[run.job][2].get('catch_up') == 'all':
                self.say('8 catch-up', f'{run.key} and what follows were passed over')
        if verb != 'claim':
            return
        if run.key in self.decided or (run.until is None and self._is_leapt(run)):
            self.say('10 floor', f'{run.key} is claimed anew')
        self.decided.add(run.key)
        if run.slot > now:
            self.say('early', f'{run.key} was claimed {run.slot - now} ms too early')
        if run.until is None:
            self._is_caught_up(process, now, run)

    def _is_leapt(self, run: Run) -> bool:
        leaps = self.leaps[:-1] if run.until is not None else self.leaps
        return any(job == run.job and first <= run.slot <= last for job, first, last in leaps)

    def _is_caught_up(self, process: Process, now: int, run: Run) -> None:
        """A slot that is late is run if its policy says so; and one is late when it is too old."""
        policy, late = JOBS[run.job][2], now - run.slot
        if run.trigger == 'catch-up' and policy.get('catch_up') == 'none' and run.state == 'claimed':
            self.say('8 catch-up', f'{run.key} is caught up')
        if run.trigger == 'catch-up' and policy.get('catch_up') == 'all':
            return  # each waits for the one before it
        gap = GAPS[run.job]
        too_late, has_jumped = gap // 2 + UNTIL_LATE, self._has_jumped_unheard(process)
        if run.trigger == 'catch-up' and late - gap > too_late and not has_jumped:
            self.say('8 catch-up', f'{run.key} is caught up, and it was not the latest')
        may_be_on_time = self.losses or has_jumped  # nothing ages while a store is young
        if run.trigger == 'scheduled' and late > too_late and not may_be_on_time:
            self.say('8 catch-up', f'{run.key} was claimed {late} ms late as if it were not')
        longest = gap // 2 if 'jitter' in policy else 100
        since = max(self.world.now - late - PROMPT, 0)
        is_late = min(late - longest, self._since_young(now, run.job)) > PROMPT
        is_late = is_late and self.cluster.is_calm(since, self.world.now)
        if is_late and not self._was_behind_a_late_one(run, self.world.now - late):
            self.say('prompt', f'{run.key} was claimed {late} ms after it came due')

    def _was_behind_a_late_one(self, run: Run, since: float) -> bool:
        """Under ``all`` a late slot waits, "and every slot behind it waits too" (the protocol)."""
        earlier = [key for key in self.history if key.job == run.job and key.slot < run.slot]
        won = (one for key in earlier for one in self.history[key] if one.verb == 'claim' and one.at >= since)
        return JOBS[run.job][2].get('catch_up') == 'all' and any(one.run.trigger == 'catch-up' for one in won)

    def _since_young(self, now: int, job: str) -> float:
        """How long ago (ms) what waited while the store was young could go on.

        docs/failures.md, of a store that forgets: "it is *young* for one lease of each job". That begins only
        when somebody tells it what it lost, which may be long after.
        """
        began = self.cluster.room.recorded().origin.young_since
        if began is None or began > now:
            return math.inf
        return max(0, now - began - milliseconds(JOBS[job][2].get('lease', '30s')))

    def _has_jumped_unheard(self, process: Process) -> bool:
        """Whether the store's clock jumped since who claims last heard from it, or while he asked."""
        return any(at > process.heard_at - UNTIL_LATE for at, _ in self.set_forward)

    def _is_in_order(self, verb: str, before: Run | None, ledger: Any, run: Run) -> None:
        if (run.deadline is not None) != run.active:
            self.say('one deadline', f'{run.key} is {run.state} with the deadline {run.deadline}')
        if run.crashes > JOBS[run.job][2].get('max_crashes', 3):
            self.say('7 crashes', f'{run.key} has crashed {run.crashes} times')
        if run.state == 'abandoned':
            self.abandoned[run.key] += 1
        if before is not None and before.ended and not before.may_start_late and verb != 'prune':
            self.say('1 one end', f'{run.key} was {before.state} and became {run.state} by {verb}')
        job = ledger.jobs.get(run.job)
        held_back = job is not None and job.paused is not None and run.kind == 'scheduled'
        if held_back and run.state in ('claimed', 'queued', 'released'):
            self.say('pause', f'{run.key} became {run.state} by {verb} while its job was paused')

    def _waits_for_something(self, verb: str, ledger: Any, name: str) -> None:
        job = ledger.jobs.get(name)
        is_paused = job is not None and job.paused is not None
        if not ledger.active.get(name):
            for run in ledger.buffered_of(name):
                if not (is_paused and run.kind == 'scheduled'):
                    self.say('1 none is lost', f'{run.key} waits for nothing after {verb}')

    def _started(self, ledger: Any, run: Run) -> None:
        highest = self.fences.get(run.job, 0)
        if run.fence <= highest and not (self.losses and self.set_back):
            self.say('4 fence', f'{run.key} was started with {run.fence} after {highest}')
        self.fences[run.job] = max(highest, run.fence)
        self.minted[run.job, run.fence] = self.world.now
        others = [other for other in ledger.active_of(run.job) if other.state == 'running']
        if JOBS[run.job][2].get('overlap') != 'allow' and len(others) > 1 and not self._has_just_lost():
            self.say('3 overlap', f'{run.key} was started beside {[str(one.key) for one in others]}')

    def _dispatched_again(self, now: int, before: Run, run: Run) -> None:
        if before.state == 'claimed':
            self.maybe_sent[run.key] += 1  # its claimer may have died before it was sent
        late = now - (before.deadline or now)
        is_late = min(late, self._since_young(now, run.job)) > PROMPT
        if is_late and self.cluster.is_calm(self.world.now - late - PROMPT, self.world.now):
            self.say('5 takeover', f'{run.key} was {before.state} {late} ms past its deadline')

    # the store forgets

    def lost(self, is_loss: bool) -> None:
        """The store has not what it had."""
        ledger = self.cluster.room.recorded()
        had_ended = {key for key, run in self.runs.items() if run.ended}
        self.revived |= {key for key, run in ledger.runs.items() if not run.ended and key in had_ended}
        self.runs = dict(ledger.runs)
        self.decided = {run.key for run in self.runs.values() if run.kind == 'scheduled'}
        self.leaps = [(one.job, one.slot, one.until) for one in self.runs.values() if one.until is not None]
        if is_loss:
            self.losses.append(self.world.now)
            self.identity = ledger.origin.identity

    def wiped(self) -> None:
        """The store has nothing of what it had."""
        self.lost(is_loss=True)
        beats = [node.process for node in self.cluster.nodes.values() if node.process is not None]
        self.knew = [process for process in beats if process.kind == 'beat' and not process.dead]

    def _jobs_are_known(self, process: Process, ledger: Any) -> None:
        """A first beat has registered with a wiped store. Its jobs are new if none is left that knew them.

        Then "of what came due before a beat is up again only the latest slot counts" (not promised), and here
        not even that. What lies before a slot that was decided is none of it.
        """
        knew, self.knew = self.knew or [], None
        if process in knew or not all(one.dead for one in knew):
            return
        for name in JOBS:
            first_seen = ledger.jobs[name].first_seen
            slots = [key.slot for key in self.history if (key.job, key.kind) == (name, 'scheduled')]
            slots += [last for job, _, last in self.ever_leapt if job == name]
            decided = max((slot for slot in slots if slot <= first_seen), default=0)
            self.forgotten.append((name, decided + 1, first_seen))

    def clock_was_set(self, ms: int) -> None:
        if ms > 0:
            self.set_forward.append((self.world.now, ms))
        else:  # floors are cut, and only "a slot that has a record of its own does not run again"
            self.set_back.append(self.world.now)
            self.decided &= {*self.runs}
            self.leaps = []

    @property
    def loss_is_unknown(self) -> bool:
        """Whether nobody has told the store yet that it has forgotten something."""
        origin = self.cluster.room.recorded().origin
        return bool(self.losses) and not (origin.follows and origin.identity != self.identity)

    def _has_just_lost(self) -> bool:
        return any(at > self.world.now - BESIDE for at in self.losses)

    # leases

    def leased(self, lease: Any) -> None:
        self.leases = [one for one in self.leases if self._is_held(one)]
        lease.began_unknown = self.loss_is_unknown
        self.trusts(lease)
        self.leases.append(lease)

    def trusts(self, lease: Any) -> None:
        """A lease is trusted from now on, until some time: nobody else's may be."""
        self._is_within_its_deadline(lease)
        allowed = JOBS[lease.job][2].get('overlap') == 'allow'
        for other in self.leases:
            same = other.key == lease.key if allowed else other.job == lease.job
            if other is lease or not same or not (self._is_trusted(other) and self._is_trusted(lease)):
                continue
            # docs/failures.md, "Not promised": "a slot that ended in the time that was lost runs again,
            # perhaps beside a later run of its job". Never beside itself.
            runs_again = other.key != lease.key and {other.key, lease.key} & self.revived
            if other.began_unknown or lease.began_unknown or runs_again:
                continue
            if not self._is_not_promised(other, lease):
                self.say('trust', f'{_shown(other)} and {_shown(lease)} are both trusted')

    def _taken_over(self, process: Process, before: Run) -> None:
        """Note a lease that is taken over by a beat that does not know of the jump that ended it.

        docs/failures.md, "Not promised": "Where the store's clock jumps forward and a beat begins within a
        lease of that, it cannot know of the jump". Only if the lease was last renewed before that jump, and
        the jump was more than the lease's margin.
        """
        length, began = before.lease or 0, process.knows_since
        grants = [one.at for one in self.history[before.key] if one.verb in ('start', 'renew')]
        renewed = max(grants, default=math.inf)
        for at, ms in self.set_forward:
            if began is not None and ms > margin(length) and renewed <= at <= began < at + length:
                self.taken_unknowingly[before.key, before.fence] = at + length

    def _is_not_promised(self, one: Any, other: Any) -> bool:
        """Whether it is the lease of one of them that was taken over so: "for that lease at most"."""
        pair = frozenset((lease.key, lease.fence) for lease in (one, other))
        is_so = any(self.world.now < self.taken_unknowingly.get(lease, 0) for lease in pair)
        self.counts[AFTER_A_JUMP] += is_so and pair not in self.not_promised
        if is_so:
            self.not_promised.add(pair)
        return is_so

    def _is_held(self, lease: Any) -> bool:
        return not lease.process.dead and lease.process.keeper.holds(lease)

    def _is_trusted(self, lease: Any) -> bool:
        is_over = lease.lost or lease.ending or lease.process.dead
        is_known = self._is_held(lease) or lease not in self.leases
        return is_known and not is_over and lease.monotonic() < lease.trusted_until

    def _is_within_its_deadline(self, lease: Any) -> None:
        run = self.cluster.room.recorded().runs.get(lease.key)
        if run is None or run.state != 'running' or run.token != lease.token:
            return
        jumped = [at for at, _ in self.set_forward]
        if any(at >= self.world.now - (run.lease or 0) for at in (*jumped, *self.losses)):
            return
        store = self.cluster.store_host
        ends = (lease.trusted_until - lease.monotonic()) * 1000 / lease.process.host.rate
        allowed = ((run.deadline or 0) - store.wall()) / store.rate
        if ends > allowed + 2:
            longer = f'{ends - allowed:.0f} ms longer than the store holds it'
            self.say('trust', f'{_shown(lease)} is trusted {longer}')

    # messages and bodies

    def published(self, process: Process, message: Any, *, arrives: bool, told: bool) -> None:
        header = message['headers'].get('anarchon')
        if process.kind != 'beat':
            self.counts['messages of workers'] += 1
            return
        key = RunKey(header['job'], from_iso(header['slot']), header['kind'])
        self.counts['messages of beats'] += 1
        self.sent[key, header['dispatch']] += arrives
        self.maybe_sent[key] += not told
        if self.sent[key, header['dispatch']] > 1 and not self.losses:
            self.say('2 one winner', f'{key} was published twice as dispatch {header["dispatch"]}')

    def began(self, key: RunKey, attempt: int, fence: int, retries: int) -> Body:
        body = Body(key, attempt, fence, self.world.now, retries)
        self.bodies.append(body)
        return body

    def write(self, body: Body) -> None:
        """Write to two resources: one that refuses lower fences, and one that does not look.

        With overlap ``allow`` each slot has its own: the fence orders the starts of one run there.
        """
        job = body.key.job
        what = body.key if JOBS[job][2].get('overlap') == 'allow' else job
        minted = self.minted.get((job, body.fence), 0.0)
        highest, latest = self.written.get(what, (0, 0.0))
        self.counts['writes'] += 1
        if body.fence < highest:
            self.counts['stale writes refused'] += 1
        elif minted < latest:
            self.say('4 fence', f'{body.key} wrote with {body.fence}, after one that was started later')
        self.counts['stale writes let in by the control'] += minted < latest
        self.written[what] = max(highest, body.fence), max(latest, minted)


@cache
def _named(key: RunKey) -> str:
    return str(key)


def _shown(lease: Any) -> str:
    return f'{lease.job} @ {(lease.key.slot - T) / 1000:g} s attempt {lease.attempt} of {lease.process}'


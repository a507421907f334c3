"""The Redis store: each verb is one script in ``lua/``, which Redis runs alone, by its own clock.

All keys begin with the prefix and carry its hash tag, so that a cluster keeps them on one node:

================================  ======  ===========================================================
key                               type    content
================================  ======  ===========================================================
{anarchon}:run:<kind>:<slot>:<j>  hash    a run: the fields of :class:`~anarchon_celery.protocol.Run`;
                                          one that is absent has its default
{anarchon}:job:<job>              hash    a job: first_seen, seen, floor, fence, supervised (``1``),
                                          hashes (JSON: ``[[hash, since, floor or null, seen], …]``, the
                                          newest last); while it is paused: paused (the reason),
                                          paused_by, paused_at
{anarchon}:jobs                   set     the names of all jobs
{anarchon}:nodes                  hash    incarnation → JSON: name, kind, seen; if told app (of Celery),
                                          version, celery, python, clock_offset, schedule
{anarchon}:meta                   hash    version of what is described here; identity, created, born and
                                          young (``1`` if it follows another store), see
                                          :class:`~anarchon_celery.youth.Origin`; latest (the time of
                                          the last ``expired``), asked (by one that waits for replicas)
{anarchon}:runs                   zset    all runs, by slot, newest first (the score is negative)
{anarchon}:deadlines              zset    active runs, by deadline
{anarchon}:buffered               zset    buffered runs, by slot, newest first
{anarchon}:finished               zset    ended runs, by the time they ended
{anarchon}:active:<job>           zset    active runs of a job, by slot, newest first
{anarchon}:buffered:<job>         zset    buffered runs of a job, by slot, newest first
{anarchon}:ended:<job>            zset    ended runs of a job, by slot, newest first
{anarchon}:wake                   channel a message whenever runs came to be ``released``
================================  ======  ===========================================================

In the zsets a run is ``job, slot, kind`` with a NUL between them, and the slot with 15 digits, so
that equal scores are ordered as the protocol orders keys. All times are milliseconds.

A record that somebody edited beyond reading is passed over, with a warning that names its key: its
slot counts as taken, nothing starts or ends it, and all others go on. An index that somebody made
something else is set anew from the others, with the same warning.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any

from .. import protocol
from ..errors import StoreReplaced, shortened
from ..folding import FOLD_AFTER
from ..holding import HISTORY_AT_LEAST
from ..logged import fields
from ..protocol import (
    ACTIVE,
    BUFFERED,
    Claim,
    Claimed,
    Expired,
    Holding,
    Job,
    Node,
    Offer,
    Redispatch,
    Registered,
    Registration,
    Release,
    Renewal,
    Request,
    Requested,
    Run,
    RunKey,
    Sent,
    Settle,
    Stale,
    Start,
    Started,
    Success,
)
from . import ANOTHER, LOOKS, REFUSED_TO_STRANGERS, WELL, Store, Upgrade, new_identity
from .addresses import address_of
from .clock import monotonic
from .link import Call, Link, link_to, refuse_wrong_options
from .subscription import Subscription
from .versions import of_another_version, read_version, ways_from
from .waking import WakeUps
from .wire import claim_of, claimed, given, held, items, job_of, named, offered, requested, restorable, run_of

logger = logging.getLogger(__name__)

#: The version of the keys described above; ``lua/prelude.lua`` refuses another one.
VERSION = 4

#: What the scripts are told by the protocol's module.
_WORDS = {
    "VERSION": VERSION,
    "LATEST": protocol.LATEST,
    "MAX_DISPATCHES": protocol.MAX_DISPATCHES,
    "LONGEST_START_TIMEOUT": protocol.LONGEST_START_TIMEOUT,
    "ORPHANED_AFTER": protocol.ORPHANED_AFTER,
    "GONE_AFTER": protocol.GONE_AFTER,
    "REMEMBERED_HASHES": protocol.REMEMBERED_HASHES,
    "COMEBACK_AFTER": protocol.COMEBACK_AFTER,
    "BUFFERED": protocol.BUFFERED,
    "LEAPT": protocol.LEAPT,
    "OVERTAKEN": protocol.OVERTAKEN,
    "EARLIER_TRY": protocol.EARLIER_TRY,
    "FOLD_AFTER": FOLD_AFTER,
    "HISTORY_AT_LEAST": HISTORY_AT_LEAST,
    "YOUNG": protocol.YOUNG,
    "PUT_BACK": protocol.PUT_BACK,
    "MANUAL": protocol.MANUAL,
    "BACKFILL": protocol.BACKFILL,
    "ASKED_AGAIN_WITHIN": protocol.ASKED_AGAIN_WITHIN,
}

#: The verbs that only look, and those that let go on or end what was begun.
_GOES_ON = LOOKS | {"renew", "finish", "requeue", "release", "settle", "sent", "cancel", "forget", "leave"}

#: How many index entries one script looks at when it lists runs: others wait meanwhile.
_PAGE = 1000

#: How many ended runs of each job one script looks at to find one that went well, and how many more of all
#: jobs together that have none among these.
_LEAST, _MORE = 5, 2_000

#: How many ended runs one script looks at to fold them, and for how many seconds one call goes on with that.
_LOOK, _LOOK_FOR = 200, 0.1


def open_store(
    url: str, *, prefix: str, options: Mapping[str, Any], within: float = float("inf")
) -> RedisStore:
    """Return the store at ``url``, not yet connected; ``options`` are for the client's connections."""
    refuse_wrong_options(options)
    address = address_of(url, options)
    return RedisStore(link_to(address, address.settings, within=within), prefix=prefix)


class RedisStore(Store):
    """The protocol's verbs as scripts of a Redis, or of a server that speaks like it."""

    def __init__(
        self,
        link: Link,
        *,
        prefix: str = "anarchon",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Use ``link``, which several threads may share, and the keys under ``prefix``."""
        super().__init__(clock=clock)
        self.shown = link.shown
        self.prefix = prefix if re.search(r"\{[^}]+\}", prefix) else f"{{{prefix}}}"
        self._link = link
        self._answering = threading.Lock()
        self._warned: set[str] = set()
        self._folded_to: dict[str, Any] = {}

    # beat ---------------------------------------------------------------------------------------

    def register(
        self, node: Node, registrations: Sequence[Registration], *, now: int | None = None
    ) -> list[Registered]:
        """See :meth:`Store.register`."""
        remembered = ("cursor", "floor", "effective", "first_seen", "supervised", "paused")
        jobs = [given(one, "job", "hash", *remembered) for one in registrations]
        self._calls_as(node)
        answers = self._call("register", now, node=_told(node), jobs=jobs)
        return [
            Registered(
                job=asked.job, floor=answer.get("floor"), first_seen=answer["first_seen"],
                effective=answer["effective"], supervised=answer["supervised"], paused=answer.get("paused"),
            )
            for asked, answer in zip(registrations, items(answers), strict=True)
        ]  # fmt: skip

    def claim(
        self, node: str, offers: Sequence[Offer], *, nonce: str, now: int | None = None
    ) -> list[Claimed]:
        """See :meth:`Store.claim`."""
        answers = self._call("claim", now, node=node, nonce=nonce, offers=[offered(one) for one in offers])
        return [claimed(*both) for both in zip(offers, items(answers), strict=True)]

    def sent(self, published: Sequence[Sent], *, now: int | None = None) -> None:
        """See :meth:`Store.sent`."""
        runs = [
            named(one.key) | given(one, "dispatch", "task_id", "supervised", "countdown", "start_timeout")
            for one in published
        ]
        self._call("sent", now, runs=runs)

    def expired(
        self, node: Node, limit: int, *, after: tuple[int, RunKey] | None = None, now: int | None = None
    ) -> Expired:
        """See :meth:`Store.expired`; ``orphaned`` is about the jobs of this page."""
        self._calls_as(node)
        last = {} if after is None else {"after": {"score": after[0], **named(after[1])}}
        answer = self._call("expired", now, node=_told(node), limit=limit, **last)
        return Expired(
            runs=tuple(run_of(record) for record in items(answer["runs"])),
            next_deadline=answer.get("next_deadline"),
            orphaned=frozenset(items(answer["orphaned"])),
        )

    def redispatch(
        self, node: str, asked: Sequence[Redispatch], *, nonce: str, now: int | None = None
    ) -> list[Claim]:
        """See :meth:`Store.redispatch`."""
        seen = ("state", "dispatch", "deadline", "max_crashes", "claim_timeout", "lease")
        runs = [named(one.key) | given(one, *seen) for one in asked]
        answers = self._call("redispatch", now, node=node, nonce=nonce, runs=runs)
        return [claim_of(one.key, answer) for one, answer in zip(asked, items(answers), strict=True)]

    def leave(self, node: Node, *, now: int | None = None) -> None:
        """See :meth:`Store.leave`."""
        self._calls_as_nobody()
        self._call("leave", now, id=node.id)

    # workers ------------------------------------------------------------------------------------

    def start(self, asked: Start, *, now: int | None = None) -> Started | Stale:
        """See :meth:`Store.start`."""
        message = given(
            asked, "token", "worker", "task_id", "dispatch", "trigger", "claimed_at", "lease", "overlap",
            "retries", "arguments",
        )  # fmt: skip
        answer = self._call("start", now, **named(asked.key), **message)
        if "why" in answer:
            return Stale(**answer)
        return Started(**(answer | {"fence": int(answer["fence"])}))

    def renew(self, holdings: Sequence[Holding], *, now: int | None = None) -> list[Renewal]:
        """See :meth:`Store.renew`; what it takes to put a run back is told of those not found."""
        answers = self._renewed([held(one) for one in holdings], now)
        lost = [
            place for place, (one, said) in enumerate(zip(holdings, answers, strict=True))
            if one.trusted and said.answer == "lost"
        ]  # fmt: skip
        if lost:
            again = self._renewed([restorable(holdings[place]) for place in lost], now)
            for place, said in zip(lost, again, strict=True):
                answers[place] = said
        return answers

    def _renewed(self, leases: Sequence[dict[str, Any]], now: int | None) -> list[Renewal]:
        answer = self._call("renew", now, leases=leases)
        return [Renewal(**one, store=answer["store"]) for one in items(answer["leases"])]

    def finish(
        self, key: RunKey, token: str, outcome: str, *, reason: str | None = None, now: int | None = None
    ) -> bool:
        """See :meth:`Store.finish`."""
        why = {} if reason is None else {"reason": reason}
        return bool(self._call("finish", now, **named(key), token=token, outcome=outcome, **why))

    def requeue(
        self, key: RunKey, token: str, *, delay: int, retries: int, start_timeout: int, now: int | None = None
    ) -> bool:
        """See :meth:`Store.requeue`."""
        wait = {"delay": delay, "retries": retries, "start_timeout": start_timeout}
        return bool(self._call("requeue", now, **named(key), token=token, **wait))

    def release(self, releases: Sequence[Release], *, now: int | None = None) -> list[bool]:
        """See :meth:`Store.release`."""
        runs = [named(one.key) | given(one, "token", "nonce", "delay", "crash") for one in releases]
        return items(self._call("release", now, runs=runs))

    # whoever ------------------------------------------------------------------------------------

    def settle(self, settled: Sequence[Settle], *, now: int | None = None) -> list[bool]:
        """See :meth:`Store.settle`."""
        runs = [named(one.key) | given(one, "outcome", "reason", "dispatch") for one in settled]
        return items(self._call("settle", now, runs=runs))

    def pause(self, job: str, *, reason: str, by: str, now: int | None = None) -> bool:
        """See :meth:`Store.pause`."""
        return bool(self._call("pause", now, job=job, reason=reason, by=by))

    def resume(self, job: str, *, now: int | None = None) -> bool:
        """See :meth:`Store.resume`."""
        return bool(self._call("resume", now, job=job))

    def trigger(self, asked: Request, *, nonce: str, now: int | None = None) -> Requested:
        """See :meth:`Store.trigger`."""
        (answer,) = self._request(asked, nonce, now)
        return answer

    def backfill(
        self, asked: Request, slots: Sequence[int], *, nonce: str, now: int | None = None
    ) -> list[Requested]:
        """See :meth:`Store.backfill`."""
        return self._request(asked, nonce, now, slots=list(slots)) if slots else []

    def _request(self, asked: Request, nonce: str, now: int | None, **of: Any) -> list[Requested]:
        what = given(asked, "job", "by", "arguments", "overlap", "lease")
        return [requested(one) for one in items(self._call("request", now, nonce=nonce, **what, **of))]

    def cancel(self, key: RunKey, *, reason: str, now: int | None = None) -> Run | None:
        """See :meth:`Store.cancel`."""
        record = self._call("cancel", now, **named(key), reason=reason)
        return None if record is None else run_of(record)

    def forget(self, job: str, *, limit: int = 500, now: int | None = None) -> int:
        """See :meth:`Store.forget`."""
        return int(self._call("forget", now, job=job, limit=limit))

    def prune(self, *, history: int, most: int, limit: int = 500, now: int | None = None) -> int:
        """See :meth:`Store.prune`; ended runs are looked at page by page, for a while."""
        asked = {"history": history, "most": most, "look": _LOOK}
        left, until = limit, time.monotonic() + _LOOK_FOR
        while left > 0:
            is_last = time.monotonic() > until
            answer = self._call("prune", now, **asked, **self._folded_to, limit=left, is_last=is_last)
            left -= answer["gone"]
            self._folded_to = {"after": answer["after"]} if "after" in answer else {}
            if is_last or not self._folded_to:
                break
        return limit - left

    def runs(self, *, job: str | None = None, state: str | None = None, limit: int = 50) -> list[Run]:
        """See :meth:`Store.runs`; more than a page of them is not read in one step."""
        if job is not None:
            indexes = ("active", "buffered", "ended") if state is None else (_index_of(state),)
            found = [
                run for index in indexes
                for run in self._listed(f"{index}:{job}", state=state, limit=limit, job=job)
            ]  # fmt: skip
        elif state == BUFFERED:
            found = list(self._listed("buffered", state=state, limit=limit))
        elif state in ACTIVE:
            found = list(self._listed("deadlines", state=state))  # few, but in another order: all of them
        else:
            found = list(self._listed("runs", state=state, limit=limit))
        found.sort(key=lambda run: (-run.slot, run.job, run.kind))
        return found[:limit]

    def run(self, key: RunKey) -> Run | None:
        """See :meth:`Store.run`."""
        return next(map(run_of, items(self._call("runs", run=named(key))["runs"])), None)

    def jobs(self) -> list[Job]:
        """See :meth:`Store.jobs`."""
        return sorted(map(job_of, items(self._call("jobs"))), key=lambda job: job.name)

    def nodes(self) -> list[Node]:
        """See :meth:`Store.nodes`."""
        nodes = [Node(**node) for node in items(self._call("nodes"))]
        return sorted(nodes, key=lambda node: (node.name, node.id))

    def successes(self) -> dict[str, Success]:
        """See :meth:`Store.successes`; of many jobs not as many runs of each are looked at."""
        found = items(self._call("successes", states=WELL, least=_LEAST, more=_MORE))
        return {job: Success(int(slot), int(finished_at)) for job, slot, finished_at in found}

    def upgrade(self, *, dry: bool = False) -> Upgrade:
        """See :meth:`Store.upgrade`."""
        said = json.loads(self._plainly("version", writes=False))
        found = read_version(dict(said).get("version"), VERSION, f"{self.shown}: {self._layout}")
        ways = ways_from(found)
        for version in () if dry else ways:
            self._plainly(f"to_{version}", writes=True)
        return Upgrade(found, ways)

    def _plainly(self, name: str, *, writes: bool) -> str:
        """Run a script that works on any version of the layout."""
        return self._link.run(Call(*_hashed(_lua(name)), self.prefix, "", begins=False, writes=writes))

    @property
    def _layout(self) -> str:
        """What the keys are called together."""
        return f"the keys {self.prefix}:*"

    def wake_ups(self) -> WakeUps:
        """See :meth:`Store.wake_ups`."""
        return Subscription(self._link, f"{self.prefix}:wake")

    def complaints(self) -> list[str]:
        """See :meth:`Store.complaints`."""
        return self._link.complaints()

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self._link.close()

    # the call -----------------------------------------------------------------------------------

    def _listed(
        self, index: str, *, state: str | None, limit: int | None = None, job: str | None = None
    ) -> Iterator[Run]:  # fmt: skip
        """Return the runs of an index in its order, page by page."""
        asked: dict[str, Any] = {"index": index}
        asked |= {name: said for name, said in (("state", state), ("job", job)) if said is not None}
        left = limit if limit is not None else sys.maxsize
        while left > 0:
            # Without a state every entry counts, and no more need be looked at than are wanted.
            look = min(left, _PAGE) if state is None else _PAGE
            answer = self._call("runs", **asked, look=look, limit=min(left, _PAGE))
            yield from map(run_of, items(answer["runs"]))
            if "after" not in answer:
                return
            asked["after"] = answer["after"]
            left -= len(items(answer["runs"]))

    def _call(self, verb: str, now: int | None = None, /, **asked: Any) -> Any:
        """Carry a verb out; return its answer, learn the time and the identity that come with it."""
        asked["identity"] = new_identity()  # for the case that this call begins the store
        if now is not None:
            asked["now"] = now
        begins, writes = verb not in _GOES_ON, verb not in LOOKS
        asked |= self._named(verb) if writes else {"looks": True}
        if writes and self._link.replicas:
            asked["acknowledged"] = True
        words = (*_script(verb), self.prefix, json.dumps(asked, ensure_ascii=False))
        before = self.clock.monotonic()
        envelope = json.loads(self._link.run(Call(*words, begins=begins, writes=writes)))
        if "version" in envelope:
            refusal = of_another_version(envelope["version"], VERSION, self._layout)
            raise type(refusal)(f"{self.shown}: {refusal}")
        if "refused" in envelope:
            self.young_since = envelope["young_since"]
            raise StoreReplaced(f"{self.shown} {ANOTHER}")
        with self._answering:
            self._answered(
                before, envelope["now"], envelope["identity"], envelope.get("young_since"),
                noted="noted" in envelope, verb=verb,
            )  # fmt: skip
        self._warn(items(envelope["unreadable"]))
        return envelope.get("answer")

    def _named(self, verb: str) -> dict[str, Any]:
        """What this caller knows of the store, and whether the verb is for those who know it as it is."""
        known = {name: value for name, value in self._caller._asdict().items() if value is not None}
        return {"caller": known, "refuses": verb in REFUSED_TO_STRANGERS}

    def _warn(self, unreadable: Sequence[str]) -> None:
        """Name each record that was passed over, once."""
        for key in unreadable:
            if key not in self._warned:
                self._warned.add(key)
                said = f"{self.shown}: passed over {key}, edited by hand and unreadable"
                logger.warning("[anarchon] %s", shortened(said), extra={**fields("record_unreadable")})


def _index_of(state: str) -> str:
    """Which of a job's indexes has its runs of that state."""
    return "active" if state in ACTIVE else "buffered" if state == BUFFERED else "ended"


def _told(node: Node) -> dict[str, Any]:
    told = ("id", "name", "kind", "app", "version", "celery", "python", "clock_offset", "schedule")
    return given(node, *told)


@cache
def _script(verb: str) -> tuple[str, str]:
    """Return the script of a verb, and its hash."""
    words = f"local {', '.join(_WORDS)} = {', '.join(map(json.dumps, _WORDS.values()))}"
    return _hashed("\n".join([words, _lua("prelude"), _lua(verb)]))


def _hashed(script: str) -> tuple[str, str]:
    return script, sha1(script.encode(), usedforsecurity=False).hexdigest()


def _lua(name: str) -> str:
    return Path(__file__).with_name("lua").joinpath(f"{name}.lua").read_text("utf-8")

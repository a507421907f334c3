"""What goes to the scripts of the Redis store, and what comes back: the protocol's values as JSON."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..protocol import Claim, Claimed, Holding, Job, KnownSchedule, Offer, Requested, Run, RunKey

#: The fields of a run, and which are numbers: a fence comes as text, having too many digits for Lua's JSON.
_FIELDS = tuple((field.name, str(field.type).startswith("int")) for field in fields(Run))


def given(value: object, *names: str) -> dict[str, Any]:
    """Return these fields of a value, but for those that are None: Lua has no word for it."""
    return {name: item for name in names if (item := getattr(value, name)) is not None}


def named(key: RunKey) -> dict[str, Any]:
    """Return what names a run."""
    return {"job": key.job, "slot": key.slot, "kind": key.kind}


def offered(offer: Offer) -> dict[str, Any]:
    """Return an offer."""
    asked = given(
        offer, "job", "slots", "hash", "late", "overlap", "catch_up", "chained", "after", "claim_timeout",
        "lease", "floor",
    )  # fmt: skip
    if offer.leap is not None:
        asked["leap"] = given(offer.leap, "first", "last", "count")
    return asked


def held(lease: Holding) -> dict[str, Any]:
    """Return a lease as a heartbeat names it: there are many of them."""
    return named(lease.key) | {"token": lease.token}


def restorable(lease: Holding) -> dict[str, Any]:
    """Return a lease that its holder trusts, with what it takes to put its run back."""
    return held(lease) | given(
        lease, "fence", "attempt", "lease", "owner", "task_id", "trigger", "dispatch", "claimed_at",
        "arguments", "overlap", "store",
    )  # fmt: skip


def items(answer: Any) -> list[Any]:
    """Return a list that comes from Lua, where an empty one looks like an empty object."""
    return answer or []


def claimed(offer: Offer, answer: dict[str, Any]) -> Claimed:
    """Read the answers to an offer."""
    return Claimed(
        job=offer.job,
        floor=answer.get("floor"),
        claims=tuple(
            claim_of(RunKey(offer.job, slot), claim)
            for slot, claim in zip(offer.slots, items(answer["claims"]), strict=True)
        ),
        missed=run_of(answer["missed"]) if "missed" in answer else None,
        ended=tuple(run_of(record) for record in items(answer.get("ended"))),
    )


def claim_of(key: RunKey, answer: dict[str, Any]) -> Claim:
    """Read the answer for one slot."""
    run = run_of(answer["run"]) if "run" in answer else None
    return Claim(key=key, answer=answer["answer"], run=run, wait=answer.get("wait", 0))


def requested(answer: dict[str, Any]) -> Requested:
    """Read the answer for a run that somebody asked for."""
    run = run_of(answer["run"]) if "run" in answer else None
    return Requested(answer=answer["answer"], run=run, wait=answer.get("wait", 0))


def run_of(record: dict[str, Any]) -> Run:
    """Read a run."""
    values: dict[str, Any] = {
        name: int(record[name]) if is_number else record[name]
        for name, is_number in _FIELDS if name in record
    }  # fmt: skip
    return Run(**values)


def job_of(record: dict[str, Any]) -> Job:
    """Read a job."""
    hashes = tuple(KnownSchedule(*known) for known in items(record.pop("hashes")))
    return Job(**(record | {"fence": int(record["fence"]), "hashes": hashes}))

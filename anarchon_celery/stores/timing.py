"""How long calls of a store take, for whoever wants to know; else the store is as it is, at no cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import perf_counter
from typing import Any

from ..errors import StoreError
from . import Store

#: What is measured.
VERBS = (
    "register", "claim", "sent", "expired", "redispatch", "start", "renew", "finish", "requeue", "release",
    "settle", "pause", "resume", "trigger", "backfill", "cancel", "forget", "prune", "runs", "jobs", "nodes",
    "successes", "leave",
)  # fmt: skip

#: Is told the verb, the seconds it took, and its answer or the error.
Tell = Callable[[str, float, Any], None]


def timed(store: Store, tell: Tell) -> Store:
    """Let ``tell`` hear of each call from now on, in the thread that made it."""
    for verb in VERBS:
        setattr(store, verb, _timed(verb, getattr(store, verb), tell))
    return store


def _timed(verb: str, call: Callable[..., Any], tell: Tell) -> Callable[..., Any]:
    @wraps(call)
    def measured(*args: Any, **kwargs: Any) -> Any:
        begin = perf_counter()
        try:
            answer = call(*args, **kwargs)
        except StoreError as reason:
            tell(verb, perf_counter() - begin, reason)
            raise
        tell(verb, perf_counter() - begin, answer)
        return answer

    return measured

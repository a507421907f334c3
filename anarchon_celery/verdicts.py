"""What the worker's parent decided about a delivery before it ends its body.

A ``SystemExit`` in a child, or a greenlet's end, looks the same each time: a stop, a revoke, a time
limit. The parent knows which, and says so here before it acts; who sees the body end, looks here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

#: Deliveries whose end nobody ever saw are forgotten when there are so many.
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a run ends, or that it is given up: ``released``, or ``lost`` where nothing is written."""

    outcome: Literal["cancelled", "failed", "released", "lost"]
    reason: str


#: Changed in single steps only: a signal handler, or a fork, may come between any two.
_verdicts: OrderedDict[str, Verdict] = OrderedDict()


def pass_on(token: str, verdict: Verdict) -> None:
    """Say how a delivery ends; what was said first counts."""
    _verdicts.setdefault(token, verdict)
    if len(_verdicts) > _MOST:
        _verdicts.popitem(last=False)


def on(token: str) -> Verdict | None:
    """Return what was decided about a delivery."""
    return _verdicts.get(token)


def forget(token: str) -> None:
    """The delivery is over."""
    _verdicts.pop(token, None)

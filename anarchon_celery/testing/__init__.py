"""For tests of people's own jobs, and of other people's stores.

- :func:`fires`: when a job fires; :func:`refusals`: what beat would refuse.
- :func:`leased`: a task called under a lease that the test has a hand in.
- :func:`stage`: an app's jobs played, without broker, threads or sleeping, on a clock that the test moves.
- :class:`Clock`: that clock.
- ``StoreContract``: what a store has to do, as a class of tests for pytest, which has to be installed for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .clock import Clock, TestingError
from .firing import fires, refusals
from .leases import LentLease, leased
from .played import Attempt, PlayedRun
from .stage import Stage, stage

if TYPE_CHECKING:
    from .contract import StoreContract

__all__ = [
    "fires", "refusals", "leased", "LentLease", "stage", "Stage", "PlayedRun", "Attempt", "Clock",
    "TestingError", "StoreContract",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import pytest only for who asks for the contract."""
    if name == "StoreContract":
        from .contract import StoreContract

        return StoreContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Which store this is, whether it is the one that nodes knew, and how long it is young. Pure.

A store that was wiped, restored from a backup, or failed over to a replica without the last writes has
forgotten what nodes and workers still go by. It gets another *identity*, and then is *young*: for one
lease of each job its runs are not claimed, started or taken over, while nodes register again with
what they remember, and holders put their runs back. Since nobody trusts a lease for longer than
that, no two ever trust one.

Nobody tells a store what it has lost. So each caller names what it knows:

- The identity that answered it last, and when. Where that is another one, this store follows that: a wiped
  one, or a server that something else was in front of. It is young from when it came to be. If the other
  one has answered since, this is an older state that came back, and gets another identity now.
- Up to where a schedule is decided, as it was told. Where the store says less, the same holds as in the next.
- When the store last noted that this node lives, as it was answered. Where its own record is older, or is
  gone, a write that was answered is lost, and so may be all that came after: the store gets another
  identity now.
- A lease, which its holder renews. Where the store knows nothing of its start, the same holds.

A store that comes to be where none was known is not young: there is nothing to put back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from .protocol import GONE_AFTER


class Caller(NamedTuple):
    """What a caller knows of the store: its identity, when it answered last, when it noted the node (ms)."""

    identity: str | None = None
    at: int | None = None
    node: str | None = None
    noted: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which store this is.

    ``created`` is when its records begin (ms), ``born`` when it got this identity: later, where it lost
    some of them. ``follows`` tells that there was another identity before, which somebody still knew.
    """

    identity: str = ""
    created: int = 0
    born: int = 0
    follows: bool = False

    @property
    def is_wiped(self) -> bool:
        """Whether nothing of before is here: then what nodes remember is all that is known."""
        return self.follows and self.born == self.created

    @property
    def young_since(self) -> int | None:
        """When the store began to be young (ms); None for one that follows no other."""
        return self.born if self.follows else None

    def reborn(self, now: int, identity: str) -> Origin:
        """Return the origin of a store that is known to have lost writes, with its new identity."""
        return replace(self, identity=identity, born=now, follows=True)


def met(origin: Origin, now: int, caller: Caller, noted: int | None, identity: str) -> Origin:
    """Return which store it is once this caller has named what it knows.

    ``noted`` is what stands here of the caller's node; ``identity`` is a new one, if one is needed.
    """
    if caller.identity is None:
        return origin
    if caller.identity != origin.identity:
        came_back = caller.at is not None and caller.at > origin.born
        return origin.reborn(now, identity) if came_back else replace(origin, follows=True)
    return origin.reborn(now, identity) if _has_forgotten(now, caller.noted, noted) else origin


def _has_forgotten(now: int, answered: int | None, noted: int | None) -> bool:
    """Whether a note that was answered is lost. A clock that went back tells nothing, nor a day's silence."""
    if answered is None or not now - GONE_AFTER < answered <= now:
        return False
    return noted is None or noted < answered


def young_for(young_since: int | None, lease: int, now: int) -> int:
    """Return for how long (ms) runs with this lease are still to be put back; 0 if not.

    Where the store's clock went back meanwhile it is one lease; by more than a lease, and nothing is known.
    """
    if young_since is None or now < young_since - lease:
        return 0
    return min(lease, max(0, young_since + lease - now))

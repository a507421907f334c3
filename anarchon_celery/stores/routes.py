"""Which server of a Redis store is to be asked: the only one, the sentinels' master, a cluster's node.

All keys of a store carry one hash tag, so that a cluster has them on one node, like any other
Redis. What is particular is only how that one is found, and what its absence means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import redis

from ..errors import StoreUnreachable, StoreUnusable
from .addresses import Address, Host
from .budget import at_most, whole
from .connections import client_at, left
from .refusals import told

#: How much of a call's time may go by until a sentinel has answered: less than half.
FOR_SENTINELS = 0.45

#: How many nodes of a cluster are remembered beside those of the URL: the last that had the store.
MOST_LEARNT = 5


class Route(Protocol):
    """The way to the server that has the store."""

    tries: int  #: how many servers one call may try before it gives up
    moves: bool  #: whether a server that must not be written to is replaced by itself

    def where(self) -> Host | str:
        """Return the server to ask."""

    def lost(self) -> None:
        """Learn that this server does not answer, or is not the one that is written to."""

    def moved(self, to: Host) -> None:
        """Learn from this server which one has the store."""


class Direct:
    """One server; whom its name means is looked up for each connection."""

    tries, moves = 1, False

    def __init__(self, place: Host | str) -> None:
        """Always go there."""
        self._place = place

    def where(self) -> Host | str:
        """See :meth:`Route.where`."""
        return self._place

    def lost(self) -> None:
        """See :meth:`Route.lost`; there is no other one."""

    def moved(self, to: Host) -> None:
        """See :meth:`Route.moved`; not here."""


class Cluster:
    """A Redis Cluster: any node tells which one has the store, of the URL or learnt from another one."""

    tries, moves = 1, True

    def __init__(self, seeds: Sequence[Host]) -> None:
        """Begin at the first of these; ask the others where it does not answer."""
        self._nodes = list(seeds)
        self._learnt: list[Host] = []  # a cluster may replace all that the URL names
        self._at = self._nodes[0]
        self.tries = len(self._nodes) + 1

    def where(self) -> Host | str:
        """See :meth:`Route.where`."""
        return self._at

    def lost(self) -> None:
        """Go to the next node; this one is asked last."""
        # In one step, as several threads may come here.
        self._nodes = [*(node for node in self._nodes if node != self._at), self._at]
        self._at = self._nodes[0]

    def moved(self, to: Host) -> None:
        """Go where the slot of all our keys is; an empty name means the same host."""
        self._at = (to[0] or self._at[0], to[1])
        if self._at in self._nodes:
            return
        self._learnt = [*self._learnt, self._at]
        gone, self._learnt = self._learnt[:-MOST_LEARNT], self._learnt[-MOST_LEARNT:]
        self._nodes = [*(node for node in self._nodes if node not in gone), self._at]
        self.tries = len(self._nodes) + 1


class Sentinels:
    """A master that sentinels watch over; they are asked whenever it does not answer."""

    tries, moves = 2, True

    def __init__(
        self, sentinels: Sequence[Host], master: str, settings: Mapping[str, Any], *, least_others: int = 0
    ) -> None:
        """Ask ``sentinels`` for ``master``; one counts only if it sees so many other ones."""
        self._sentinels = list(sentinels)
        self._master = master
        self._least_others = least_others
        self._settings = dict(settings)
        self._known: Host | None = None

    def where(self) -> Host | str:
        """See :meth:`Route.where`."""
        if self._known is None:
            with at_most(whole() * FOR_SENTINELS):
                self._known = self._ask_all()
        return self._known

    def lost(self) -> None:
        """Ask again next time."""
        self._known = None

    def moved(self, to: Host) -> None:
        """See :meth:`Route.moved`; not here."""

    def _ask_all(self) -> Host:
        answers, unknown = [], 0
        for at, sentinel in enumerate(list(self._sentinels)):
            try:
                with at_most(left() / (len(self._sentinels) - at)):
                    found = self._ask(sentinel)
            except redis.RedisError as error:
                refusal = told(error, f"the sentinel {sentinel[0]}:{sentinel[1]}")
                if isinstance(refusal, StoreUnusable):
                    raise refusal from error
                found = " ".join(str(error).split())
            if not isinstance(found, str):
                self._sentinels.insert(0, self._sentinels.pop(at))  # it is asked first next time
                return found
            answers.append(f"{sentinel[0]}:{sentinel[1]}: {found}")
            unknown += found == _UNKNOWN
        if unknown == len(answers):
            raise StoreUnusable(f"the sentinels know no master {self._master!r}: set another master_name")
        raise StoreUnreachable(f"no sentinel names a master that is up ({'; '.join(answers)})")

    def _ask(self, sentinel: Host) -> Host | str:
        """Return the master, or why there is none."""
        client = client_at(sentinel, self._settings)
        try:
            masters = cast("dict[str, dict[str, Any]]", client.sentinel_masters())
        finally:
            client.connection_pool.disconnect()
        state = masters.get(self._master)
        if state is None:
            return _UNKNOWN
        if not state["is_master"] or state["is_sdown"] or state["is_odown"]:
            return "the master is down"
        if state["num-other-sentinels"] < self._least_others:
            return "it sees too few other sentinels"
        return str(state["ip"]), int(state["port"])


_UNKNOWN = "no such master"


def route_to(address: Address, settings: Mapping[str, Any]) -> Route:
    """Return the way to an address.

    Raises:
        StoreUnusable: something is missing that finding the server needs.
    """
    if address.form == "cluster":
        return Cluster(address.hosts)
    if address.form != "sentinel":
        return Direct(address.path or address.hosts[0])
    master = settings.get("master_name")
    if not master:
        raise StoreUnusable(
            f"{address.shown}: whom the sentinels are to be asked for is not said: ?master_name=mymaster "
            "at its end is right, or 'master_name' in anarchon_store_options"
        )
    least_others = int(settings.get("min_other_sentinels", 0))
    return Sentinels(
        address.hosts, str(master), settings.get("sentinel_kwargs") or {}, least_others=least_others
    )

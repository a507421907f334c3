"""How long a node may believe what the store once told it.

A holder trusts a claim or a lease from *before it asked*, less a margin: it gives up before the
store lets anyone else in, whatever the answer took and also when the store cannot be reached any
more (River's ``trustedUntil``). A node that slept through something first lets the others speak.
"""

from __future__ import annotations

#: The smallest margin, in milliseconds.
LEAST_MARGIN = 500

#: How often a holder looks whether a heartbeat is due or its worker stops (ms).
LOOK_EVERY = 100

#: For how long a jump of the store's clock is remembered (s): a day, longer than leases are.
_KEPT = 86_400


def margin(length: int) -> int:
    """Return the milliseconds by which a holder gives up earlier than the store does."""
    return max(LEAST_MARGIN, length // 10)


def trusted_until(asked_at: float, length: int) -> float:
    """Return until when (seconds, monotonic) a right of ``length`` ms may be trusted."""
    return asked_at + max(0, length - margin(length)) / 1000


class Jumps:
    """Where the store's clock jumped forward: deadlines passed by it, and their holders know nothing.

    Up to its margin a lease bears it, of however many jumps it is the sum. Beyond, a run is left alone for
    its own lease from the first jump after its latest renewal: by then its holder has renewed it, or trusts
    it no more. Later jumps do not extend that: a clock that goes on jumping keeps no run for ever.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._noted: list[tuple[float, float, int]] = []

    def note(self, now: float, size: float, reads: int) -> None:
        """Note a jump of ``size`` ms at ``now`` (seconds, monotonic); what the store's clock reads since."""
        self._noted = [one for one in self._noted if now < one[0] + _KEPT]
        self._noted.append((now, size, reads))

    def begin(self, now: float, reads: int) -> None:
        """Note that what the store's clock read before ``now`` tells nothing: it went back."""
        self._noted = [(now, float("inf"), reads)]

    def spares(self, renewed: int, lease: int, now: float) -> bool:
        """Whether the holder of a run with that lease, ``renewed`` then (store time), may trust it still."""
        since = [(at, size) for at, size, reads in self._noted if renewed < reads]
        return sum(size for _, size in since) > margin(lease) and now < since[0][0] + lease / 1000


class HoldOff:
    """A time in which a node takes no running run over, because its own view may be stale.

    One at a time, and a new cause does not extend it: a node that stalls again and again must
    not be kept from taking over for ever.
    """

    def __init__(self) -> None:
        """Begin without one."""
        self._until = float("-inf")

    def begin(self, now: float, length: int) -> bool:
        """Hold off for ``length`` ms from ``now`` (seconds, monotonic), unless one is on already."""
        if self.on(now):
            return False
        self._until = now + length / 1000
        return True

    def on(self, now: float) -> bool:
        """Whether the node still holds off."""
        return now < self._until

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


def margin(length: int) -> int:
    """Return the milliseconds by which a holder gives up earlier than the store does."""
    return max(LEAST_MARGIN, length // 10)


def trusted_until(asked_at: float, length: int) -> float:
    """Return until when (seconds, monotonic) a right of ``length`` ms may be trusted."""
    return asked_at + max(0, length - margin(length)) / 1000


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

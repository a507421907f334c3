"""How a beat portions what came due: no call is too long, and the other nodes find something to do, too.

All nodes ask for the same slots. One that took all of them with its first call would publish them alone,
however many others are there; so it takes a part, publishes that, and takes the next part, of which the
others may have taken some by then. Each begins at a place of its own, so that they seldom ask for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .protocol import Offer

#: What comes due together is taken with so many calls, as long as each has as many slots as the second says.
SHARES, LEAST = 4, 50


def portions(offers: Sequence[Offer], *, most: int, node: str) -> list[list[Offer]]:
    """Group offers by so many slots for each call; those of one job stay together.

    Args:
        offers: what came due; each group keeps their order, as stores want it.
        most: the most slots of one call.
        node: the id of the node, a hexadecimal number of any kind.
    """
    slots = sum(len(offer.slots) for offer in offers)
    size = min(most, max(LEAST, -(-slots // SHARES)))
    groups = [*_groups(offers, size)]
    first = int(node[:8], 16) * len(groups) >> 32
    return groups[first:] + groups[:first]


def _groups(offers: Sequence[Offer], size: int) -> Iterator[list[Offer]]:
    some: list[Offer] = []
    slots = 0
    for offer in offers:
        if some and slots + len(offer.slots) > size:
            yield some
            some, slots = [], 0
        some.append(offer)
        slots += len(offer.slots)
    if some:
        yield some

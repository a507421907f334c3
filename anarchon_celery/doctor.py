"""What is not right with an app and its store, each in one line that says what to do.

A check is a function that yields such lines, and stands in one of the two lists below: those of the app
look at nothing but its settings and entries; those of the store end at the first call it does not
answer, or refuses, because what it says then is what is to be done first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import click

from .desk import Desk
from .errors import StoreError

#: How long ago a node may have been seen that counts as alive (ms): a beat says so every few seconds.
ALIVE_FOR = 60_000

Check = Callable[[Desk], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is not right, where it was looked for, and what to do."""

    check: str
    line: str


def settings(desk: Desk) -> Iterator[str]:
    """Settings that a node would warn of."""
    yield from desk.config.warnings


def entries(desk: Desk) -> Iterator[str]:
    """Entries that a beat would refuse."""
    if desk.jobs or desk.refusals:  # in this order: the one is where the other comes from
        yield from desk.refusals


def server(desk: Desk) -> Iterator[str]:
    """A server that does not keep what it is given."""
    yield from desk.store.complaints()


def apps(desk: Desk) -> Iterator[str]:
    """Two apps that are alive at once on one prefix: each knows the other's jobs as its own."""
    found: dict[str, list[str]] = {}
    for node in desk.store.nodes():
        if node.app and node.seen >= desk.store.clock.now() - ALIVE_FOR:
            found.setdefault(node.app, []).append(node.name)
    if len(found) > 1:
        named = "; ".join(f"{app} on {', '.join(nodes)}" for app, nodes in sorted(found.items()))
        yield (
            f"{len(found)} apps use the anarchon_prefix {desk.config.prefix!r} of {desk.store.shown} at once "
            f"({named}): give each app an anarchon_prefix of its own"
        )


OF_THE_APP: Sequence[Check] = (settings, entries)
OF_THE_STORE: Sequence[Check] = (apps, server)


def findings(desk: Desk) -> Iterator[Finding]:
    """Look at everything."""
    for check in OF_THE_APP:
        try:
            yield from (Finding(check.__name__, line) for line in check(desk))
        except click.ClickException as reason:
            yield Finding(check.__name__, reason.message)
    try:
        for check in OF_THE_STORE:
            yield from (Finding(check.__name__, line) for line in check(desk))
    except StoreError as reason:
        yield Finding("store", str(reason))
    except click.ClickException as reason:  # it cannot even be opened
        yield Finding("store", reason.message)

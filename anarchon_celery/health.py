"""``celery -A proj anarchon health``: one line and a status, for the probes of containers and supervisors.

Ready is who reaches a store that can be used; with ``--beat`` or ``--worker`` also that node of this host has
been seen there. Alive is the same, but for a store that is away: to start a node anew would not help.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import click

from .config import redacted
from .desk import Desk, Refused, as_json_option, pass_desk
from .errors import StoreError
from .printing import print_json, printer
from .protocol import Node
from .show import node_as_json


@click.command()
@click.option("--beat", is_flag=True, help="A beat of this host has to be alive.")
@click.option("--worker", is_flag=True, help="A worker of this host has to be alive.")
@click.option("--node", "named", metavar="NAME", help="Not any of this host, but the one of that name.")
@click.option("--live", is_flag=True, help="For liveness: a store that is away is no reason to restart.")
@as_json_option
@pass_desk
def health(desk: Desk, beat: bool, worker: bool, named: str | None, live: bool, as_json: bool) -> None:
    """Say by the exit status whether the store answers, and the nodes of this host are alive."""
    away: str | None = None
    nodes: list[Node] = []
    try:
        nodes = [node for node in desk.store.nodes() if _is_meant(desk, node, named) and desk.is_alive(node)]
    except Refused:  # a store that was set wrong does not come back
        raise
    except (StoreError, click.ClickException) as reason:
        away = reason.message if isinstance(reason, click.ClickException) else str(reason)
    wrong = [away] if away is not None else [*_missing(nodes, [*_kinds(beat, worker, named)], named)]
    is_well = not wrong or (live and away is not None)
    if as_json:
        print_json(_as_json(desk, nodes, well=is_well, wrong=wrong))
    else:
        printer()("; ".join(wrong) or "well")
    if not is_well:
        raise click.exceptions.Exit(1)


def _is_meant(desk: Desk, node: Node, named: str | None) -> bool:
    """Whether a node is of this host, or the one that was named; the pid behind its name does not count."""
    name = re.sub(r":\d+$", "", node.name)
    if named is not None:
        return named in (name, node.name)
    hosts = {socket.gethostname()}
    return name in hosts | {desk.config.node} or name.rpartition("@")[2] in hosts


def _kinds(beat: bool, worker: bool, named: str | None) -> Iterator[str]:
    """What has to be there: of each kind one, or anything of a name."""
    if beat:
        yield "beat"
    if worker:
        yield "worker"
    if named is not None and not (beat or worker):
        yield "node"


def _missing(nodes: list[Node], kinds: list[str], named: str | None) -> Iterator[str]:
    where = f"on {socket.gethostname()}" if named is None else f"named {named}"
    for kind in kinds:
        if not any(kind in (node.kind, "node") for node in nodes):
            yield f"no {kind} {where} is alive"


def _as_json(desk: Desk, nodes: list[Node], *, well: bool, wrong: list[str]) -> dict[str, Any]:
    return {
        "well": well, "store": redacted(desk.config.store), "wrong": wrong,
        "nodes": [node_as_json(node, True) for node in nodes],
    }  # fmt: skip

"""Where a node answers: a port, ``'host:port'``, or one of these for each kind of node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: A port without a host is for this machine alone: what is told there is meant for few.
LOCAL = "127.0.0.1"

KINDS = ("beat", "worker")

_ENDPOINT = re.compile(r"(?:(\[[0-9a-fA-F:.]+\]|[\w.-]+):)?([0-9]{1,5})")

RIGHT = (
    "a port is right (of 127.0.0.1), such as 9808, or 'host:port', such as '0.0.0.0:9808', or one of these "
    "for each kind of node: {'beat': 9808, 'worker': 9809}"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port; port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def endpoints(value: Any) -> dict[str, Endpoint]:
    """Return where each kind of node answers.

    Raises:
        ValueError: it cannot be meant.
    """
    if not isinstance(value, Mapping):
        return dict.fromkeys(KINDS, endpoint(value))
    if not {*value} <= {*KINDS}:
        raise ValueError(RIGHT)
    return {kind: endpoint(one) for kind, one in value.items() if one is not None}


def endpoint(value: Any) -> Endpoint:
    """Return a host and a port.

    Raises:
        ValueError: it is neither a port nor ``'host:port'``, or no host can have such a name.
    """
    if type(value) is int:
        value = str(value)
    found = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[2]) > 65535:
        raise ValueError(RIGHT)
    host = (found[1] or LOCAL).strip("[]")
    try:
        host.encode("idna")  # as whoever looks for its address does
    except UnicodeError:
        raise ValueError(RIGHT) from None
    return Endpoint(host, int(found[2]))

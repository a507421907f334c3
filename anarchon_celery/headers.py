"""What a message tells its worker: the ``anarchon`` header, written by beat and read once.

Durations in it are seconds and instants ISO texts, since people read messages. It is built afresh
for each dispatch. The version grows when an older worker would run a message wrong; a worker that
does not know it gives the message back, so that another one can have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config import Policy
from .errors import HeaderError, UnknownVersion, in_one_line
from .protocol import Run, RunKey, Start
from .slots import from_iso, iso

#: The header's name.
HEADER = "anarchon"

#: The version this package writes, and the only one it reads.
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A run as its message tells of it. Durations are milliseconds, ``claimed_at`` store time."""

    key: RunKey
    task: str
    dispatch: int
    trigger: str
    claimed_at: int
    lease: int
    heartbeat: int
    start_timeout: int
    overlap: str
    handover: bool
    stop_grace: int
    max_runtime: int | None
    token: str | None
    header: dict[str, Any]  #: as it was read, less the token: a retry carries it on

    def start(self, *, token: str, worker: str, task_id: str) -> Start:
        """Return what to ask the store before the body may run."""
        return Start(
            key=self.key, token=token, worker=worker, task_id=task_id, dispatch=self.dispatch,
            trigger=self.trigger, claimed_at=self.claimed_at, lease=self.lease, overlap=self.overlap,
        )  # fmt: skip


def write(run: Run, task: str, policy: Policy) -> dict[str, Any]:
    """Return the header for one dispatch of a claimed run."""
    return {
        "v": VERSION,
        "job": run.job,
        "slot": iso(run.slot),
        "kind": run.kind,
        "dispatch": run.dispatch,
        "trigger": run.trigger,
        "task": task,
        "claimed": iso(run.claimed_at or 0),
        "lease": _seconds(policy.lease),
        "heartbeat": _seconds(policy.heartbeat),
        "start_timeout": _seconds(policy.start_timeout),
        "stop_grace": _seconds(policy.stop_grace),
        "max_runtime": None if policy.max_runtime is None else _seconds(policy.max_runtime),
        "overlap": policy.overlap,
        "handover": policy.handover,
    }


def read(header: object) -> Order:
    """Return what a header says.

    Raises:
        UnknownVersion: it is of a version this package does not know.
        HeaderError: it says what cannot be meant.
    """
    if not isinstance(header, Mapping):
        raise HeaderError(f"the {HEADER!r} header is {type(header).__name__}, not a mapping")
    if header.get("v") != VERSION:
        given = f"header version {header.get('v')!r}"
        raise UnknownVersion(f"{given} is unknown to this worker, which reads {VERSION}")
    try:
        return _order(header)
    except (KeyError, TypeError, ValueError, OverflowError) as reason:
        raise HeaderError(f"the {HEADER!r} header cannot be read: {in_one_line(reason)}") from reason


def _order(header: Mapping[str, Any]) -> Order:
    longest = header.get("max_runtime")
    token = header.get("token")
    return Order(
        key=RunKey(_text(header["job"]), from_iso(header["slot"]), _text(header["kind"])),
        task=str(header["task"]),
        dispatch=int(header["dispatch"]),
        trigger=str(header["trigger"]),
        claimed_at=from_iso(header["claimed"]),
        lease=_ms(header["lease"]),
        heartbeat=_ms(header["heartbeat"]),
        start_timeout=_ms(header["start_timeout"]),
        overlap=str(header["overlap"]),
        handover=bool(header["handover"]),
        stop_grace=_ms(header["stop_grace"]),
        max_runtime=None if longest is None else _ms(longest),
        token=None if token is None else str(token),
        header={name: value for name, value in header.items() if name != "token"},
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{value!r} is no text")
    return value


def _seconds(ms: int) -> float:
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def _ms(seconds: float) -> int:
    return round(float(seconds) * 1000)

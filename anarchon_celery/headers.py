"""What a message tells its worker: the ``anarchon`` header, written by beat and read once.

Durations in it are seconds and instants ISO texts, since people read messages. It is built afresh
for each dispatch. The version grows when an older worker would run a message wrong; a worker that
does not know it gives the message back, so that another one can have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .config import LONGEST, MOST, POLICIES, Policy, cut, shown
from .errors import HeaderError, UnknownVersion
from .protocol import KINDS, TRIGGERS, Run, RunKey, Start
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
    arguments: str | None
    token: str | None
    header: dict[str, Any]  #: as it was read, less the token: a retry carries it on

    def start(self, *, token: str, worker: str, task_id: str, retries: int = 0) -> Start:
        """Return what to ask the store before the body may run; ``retries`` are the message's own."""
        return Start(
            key=self.key, token=token, worker=worker, task_id=task_id, dispatch=self.dispatch,
            trigger=self.trigger, claimed_at=self.claimed_at, lease=self.lease, overlap=self.overlap,
            retries=retries, arguments=self.arguments,
        )  # fmt: skip


def write(
    run: Run, task: str, policy: Policy, *, task_id: str, supervised: bool | None = None
) -> dict[str, Any]:
    """Return the header for one dispatch of a claimed run, in the message of that task and id.

    ``supervised`` says whether a worker is to start it, None where beat does not know.
    """
    given = {} if run.arguments is None else {"arguments": run.arguments}
    return {
        "v": VERSION,
        "id": task_id,
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
        "supervised": supervised,
        **given,  # so that a store that forgot the run can be told of them
    }


def carried_on(header: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return the header for a message that goes on with this run: a retry of it, or itself given back.

    Celery names a task as it was registered first, also where beat's message had another name of it.
    The token was the delivery's.
    """
    return {**{name: value for name, value in header.items() if name != "token"}, "task": task}


def is_own(header: object, *, task_id: str, task: str, replaced: int = 0) -> bool:
    """Whether a message's header was written for it: groups and chords copy headers to all their members.

    Args:
        header: what stands under :data:`HEADER`.
        task_id: the message's.
        task: the message's name of its task, which may be one of several names that the worker has for it.
        replaced: how often the task of this id was replaced by another (``Task.replace`` keeps the id).
    """
    if not isinstance(header, Mapping):
        return header is not None  # nobody could read it, and that is said
    return not replaced and header.get("task", task) == task and header.get("id", task_id) == task_id


def named(header: Any) -> RunKey | None:
    """The run that a header seems to be about, whatever its version, for the log."""
    try:
        return RunKey(str(header["job"]), from_iso(header["slot"]))
    except (KeyError, TypeError, ValueError):
        return None


def read(header: object) -> Order:
    """Return what a header says.

    Raises:
        UnknownVersion: it is of a version this package does not know.
        HeaderError: it says what cannot be meant.
    """
    if not isinstance(header, Mapping):
        raise HeaderError(f"the {HEADER!r} header is {type(header).__name__}, not a mapping")
    if header.get("v") != VERSION:
        given = f"header version {_written(header.get('v'))}"
        raise UnknownVersion(f"{given} is unknown to this worker, which reads {VERSION}")
    try:
        return _order(header)
    except ValueError as reason:
        raise HeaderError(f"the {HEADER!r} header cannot be read: {reason}") from reason


def _order(header: Mapping[str, Any]) -> Order:
    token = header.get("token")
    return Order(
        key=RunKey(_text(header, "job"), _instant(header, "slot"), _word(header, "kind", KINDS)),
        task=str(_field(header, "task")),
        dispatch=_number(header, "dispatch"),
        trigger=_word(header, "trigger", TRIGGERS),
        claimed_at=_instant(header, "claimed"),
        lease=_ms(header, "lease", 1),
        heartbeat=_ms(header, "heartbeat", 1),
        start_timeout=_ms(header, "start_timeout", 1),
        overlap=_word(header, "overlap", POLICIES["overlap"]),
        handover=bool(_field(header, "handover")),
        stop_grace=_ms(header, "stop_grace", 0),
        max_runtime=None if header.get("max_runtime") is None else _ms(header, "max_runtime", 1),
        arguments=None if header.get("arguments") is None else str(header["arguments"]),
        token=None if token is None else str(token),
        header={name: value for name, value in header.items() if name != "token"},
    )


def _written(value: object) -> str:
    """What is no number of ours may be anything: as long as a file, or such that it cannot be written."""
    try:
        return cut(repr(value))
    except Exception:
        return f"<{type(value).__name__}>"


# each field is read, or said by its name, its value, and what would be right ---------------------


def _field(header: Mapping[str, Any], name: str) -> Any:
    if name not in header:
        raise ValueError(f"{name} is missing")
    return header[name]


def _wrong(header: Mapping[str, Any], name: str, right: str) -> ValueError:
    value = header[name]
    return ValueError(f"{name}={shown(value[:200] if isinstance(value, str) else value)}: {right}")


def _text(header: Mapping[str, Any], name: str) -> str:
    value = _field(header, name)
    if not isinstance(value, str) or not value:
        raise _wrong(header, name, "a text is right")
    return value


def _word(header: Mapping[str, Any], name: str, words: Collection[str]) -> str:
    """A word that the store keeps, or goes by: what is none there could be read by nobody."""
    word = _field(header, name)
    if not isinstance(word, str) or word not in words:
        raise _wrong(header, name, f"one of {', '.join(sorted(words))} is right")
    return word


def _instant(header: Mapping[str, Any], name: str) -> int:
    try:
        return from_iso(_field(header, name))
    except (TypeError, ValueError):
        if name not in header:
            raise
        raise _wrong(header, name, "an instant is right, such as 2026-10-10T12:00:30.000Z") from None


def _number(header: Mapping[str, Any], name: str) -> int:
    value = _field(header, name)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number <= MOST:
        raise _wrong(header, name, f"a whole number from 0 to {MOST} is right")
    return number


def _ms(header: Mapping[str, Any], name: str, least: int) -> int:
    value = _field(header, name)
    try:
        found = round(float(value) * 1000)
    except (TypeError, ValueError, OverflowError):
        found = -1
    if not least <= found <= LONGEST:
        above = "above" if least else "from"
        raise _wrong(header, name, f"seconds {above} 0 to {LONGEST // 1000} are right, such as 30")
    return found


def _seconds(ms: int) -> float:
    return ms // 1000 if ms % 1000 == 0 else ms / 1000

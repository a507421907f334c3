"""The worker's parent: it hears of a stop, and its children read that from shared memory.

A prefork child learns nothing of a warm stop, so the parent relays it: one byte in a mapping that
the children inherit. The signal handler only sets that byte (Celery calls it inside a Unix signal
handler: no locks, no network).
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from typing import Any

from celery.signals import worker_init, worker_ready, worker_shutting_down
from celery.utils import uuid
from celery.worker.request import Request as CeleryRequest

from . import headers
from .config import Config
from .errors import SettingError, StoreError
from .events import Noted, StoreBack, StoreLost, emit
from .patience import Patience

#: Shared by the parent and the children it forks: 0 works, 1 stops.
_stop_byte: mmap.mmap | None = None

#: The process that the worker's name in the log stands for: the one to signal.
_parent_pid: int | None = None


def stopping() -> bool:
    """Whether this worker was told to stop."""
    return _stop_byte is not None and _stop_byte[0] != 0


def shown(hostname: str) -> str:
    """Return how this worker is shown: ``celery@my-laptop:41907``, with the pid to signal."""
    return f"{hostname}:{_parent_pid or os.getpid()}"


@worker_init.connect
def _prepare(sender: Any = None, **_: Any) -> None:
    """Check the settings before any message comes, and make the byte before any child is forked."""
    global _stop_byte, _parent_pid
    try:
        config = Config.of(sender.app)
        # Not connected here, before the fork: only the URL and the options are read.
        config.open_store().close()
    except (SettingError, StoreError) as reason:
        raise SystemExit(f"anarchon: {reason}") from reason
    for warning in config.warnings:
        emit(Noted(warning))
    _stop_byte, _parent_pid = mmap.mmap(-1, 1), os.getpid()


@worker_ready.connect
def _look_for_store(sender: Any = None, **_: Any) -> None:
    """Say at the start whether the store answers; the children open it for themselves."""
    config = Config.of(sender.app)
    threading.Thread(target=_wait_for_store, args=[config], name="anarchon-store", daemon=True).start()


def _wait_for_store(config: Config) -> None:
    store = config.open_store()
    patience = Patience()
    while not stopping():
        try:
            store.nodes()
        except StoreError as reason:
            wait = patience.begin(time.monotonic())
            if patience.worth_saying:
                emit(StoreLost(str(reason), wait))
            time.sleep(wait)
        else:
            if patience.end():
                emit(StoreBack())
            break
    store.close()


@worker_shutting_down.connect
def _relay(**_: Any) -> None:
    """Tell the children; called inside a signal handler."""
    if _stop_byte is not None:
        _stop_byte[0] = 1


class Request(CeleryRequest):  # type: ignore[misc]
    """A delivery in the worker's parent, which gives it a token and hands that to the child."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take Celery's arguments; mark the message's header with a token of this delivery."""
        super().__init__(*args, **kwargs)
        header = self._request_dict.get(headers.HEADER)
        if isinstance(header, dict):
            self._request_dict[headers.HEADER] = {**header, "token": uuid()}

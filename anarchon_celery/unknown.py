"""Messages of tasks that this worker does not know: another worker may, during a deploy for example.

Celery drops such a message when it arrives, in the worker's parent. It is held there for a while
and published again as it came, from a thread of its own, never from the event loop. A worker that
stops holds none of them back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from celery.signals import task_unknown, worker_shutdown

from . import headers, worker
from .errors import in_one_line
from .events import MessageDropped, MessageGivenBack, emit
from .protocol import RunKey
from .returning import GIVEN_BACK_FOR, PATIENCE, Letter, bounded_producer, counted_once_more

#: How often to look whether a message's time has come, or the worker stops (seconds).
LOOK_EVERY = 0.2

REASON = "this worker does not know its task {!r}"


@dataclass(frozen=True, slots=True)
class Held:
    """A message, the run that it is of, and until when it is held (monotonic seconds)."""

    letter: Letter
    what: RunKey | str
    task: str
    until: float

    @property
    def reason(self) -> str:
        """Why it is given back."""
        return REASON.format(self.task)


class WaitingRoom:
    """What one worker holds, each until its time."""

    def __init__(self, app: Any) -> None:
        """Publish with the connection settings of ``app``."""
        self.app = app
        self._held: list[Held] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def take(self, letter: Letter, what: RunKey | str, task: str) -> None:
        """Hold a message; called from the event loop, so nothing here waits."""
        with self._lock:
            self._held.append(Held(letter, what, task, time.monotonic() + GIVEN_BACK_FOR))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="anarchon-unknown", daemon=True)
                self._thread.start()

    def empty(self) -> None:
        """Give everything back now, before the process ends."""
        self._give_back(self._leaving(until=float("inf")))
        thread = self._thread
        if thread is not None:  # it may be at it
            thread.join(PATIENCE)

    def _run(self) -> None:
        """Look until nothing is held any more."""
        while True:
            time.sleep(LOOK_EVERY)
            self._give_back(self._leaving(until=float("inf") if worker.stopping() else time.monotonic()))
            with self._lock:
                if not self._held:
                    self._thread = None
                    return

    def _leaving(self, until: float) -> list[Held]:
        with self._lock:
            leaving = [held for held in self._held if held.until <= until]
            self._held = [held for held in self._held if held.until > until]
        return leaving

    def _give_back(self, leaving: list[Held]) -> None:
        """Publish them over one connection; what cannot be published is dropped with a line."""
        if not leaving:
            return
        waiting = deque(leaving)
        try:
            with bounded_producer(self.app) as producer:
                while waiting:
                    waiting[0].letter.send(producer)
                    held = waiting.popleft()
                    emit(MessageGivenBack(held.what, held.reason, GIVEN_BACK_FOR))
        except Exception as error:
            for held in waiting:
                emit(MessageDropped(held.what, f"{held.reason}; {in_one_line(error)}"))


#: By the app's id; the room keeps the app, so that the id stays its own.
_rooms: dict[int, WaitingRoom] = {}


def _room_of(app: Any) -> WaitingRoom:
    return _rooms.setdefault(id(app), WaitingRoom(app))


@task_unknown.connect
def _hold(sender: Any = None, message: Any = None, name: str = "", id: str = "", **_: Any) -> None:
    header = (message.headers or {}).get(headers.HEADER)
    if header is None or not headers.is_own(header, task_id=id, task=name):
        return
    what = headers.named(header) or f"{name}[{id}]"
    carried = counted_once_more(message.headers)
    if carried is None:
        emit(MessageDropped(what, f"{REASON.format(name)}; nobody took it"))
        return
    _room_of(sender.app).take(Letter.of(message, carried), what, name)


@worker_shutdown.connect
def _leave(sender: Any = None, **_: Any) -> None:
    _room_of(sender.app).empty()

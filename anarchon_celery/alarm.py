"""The alarm of a beat: it ends the sleep before the next poll when the store tells that a run was given back.

A wake-up is a hint (:mod:`.stores.waking`): without one, or without any, everything happens at the next poll.
"""

from __future__ import annotations

import random
import threading
from functools import partial

from . import native
from .errors import StoreError, StoreUnusable, in_one_line
from .events import Noted, TickFailed, emit
from .logged import speaking_as
from .patience import Patience
from .stores import Store
from .stores.clock import monotonic
from .stores.waking import WakeUps

#: Beats that hear of the same run look within so long (seconds): the first one has it, and few ask beside it.
SPREAD = 0.01

#: The least time between two wake-ups (seconds): what many runs cause is bounded.
REST = 0.05

#: How long one call waits for a wake-up (seconds): so long the thread goes on after its beat has stopped.
AT_ONCE = 1.0

#: How long one that may not listen leaves it at that (seconds): rights change, and a replica is promoted.
AGAIN_AFTER = 60.0


class Alarm:
    """Waits for wake-ups in a thread of its own, once it is set."""

    def __init__(self, store: Store, node: str) -> None:
        """Listen to ``store`` when :meth:`set` is called, if it has wake-ups; ``node`` is who speaks."""
        self._store, self._node = store, node
        self._rings = threading.Event()
        self._patience = Patience()
        self._closed = False
        self._refused = False  #: and said so
        self.is_set = False

    def set(self) -> None:
        """Begin to listen; not under eventlet, where no other thread may wake a greenlet."""
        wake_ups = None if self.is_set or native.green() == "eventlet" else self._store.wake_ups()
        if wake_ups is not None:
            self.is_set = True
            native.start_thread(partial(self._listen, wake_ups), "anarchon-alarm")

    def sleep(self, seconds: float) -> bool:
        """Sleep, and return whether it was ended by a wake-up."""
        if self._rings.wait(seconds):
            self._rings.clear()
            return True
        return False

    def close(self) -> None:
        """Listen no more.

        No lock is taken: the handler of a signal calls this, in the middle of a sleep that may have it.
        """
        self._closed = True

    def _listen(self, wake_ups: WakeUps) -> None:
        try:
            with speaking_as(self._node):
                self._listen_on(wake_ups)
        finally:
            wake_ups.close()

    def _listen_on(self, wake_ups: WakeUps) -> None:
        while not self._closed:
            try:
                self._wait_once(wake_ups)
            except StoreUnusable as reason:
                self._say(reason)
                self._rest(AGAIN_AFTER)
            except StoreError:  # the beat's own calls tell of that
                self._rest(self._patience.begin(monotonic()))
            except Exception as reason:  # a beat without wake-ups polls
                emit(TickFailed(in_one_line(reason)))
                self._rest(AGAIN_AFTER)

    def _say(self, reason: StoreUnusable) -> None:
        """Say it once, until it is not so any more."""
        if not self._refused:
            self._refused = True
            emit(Noted(f"no wake-ups, so runs that are given back wait for the next poll: {reason}"))

    def _rest(self, seconds: float) -> None:
        until = monotonic() + seconds
        while not self._closed and (left := until - monotonic()) > 0:
            native.sleep(min(left, AT_ONCE))

    def _wait_once(self, wake_ups: WakeUps) -> None:
        if wake_ups.wait(AT_ONCE):
            self._patience.end()
            self._refused = False
            native.sleep(random.uniform(0, SPREAD))
            self._rings.set()
            native.sleep(REST)

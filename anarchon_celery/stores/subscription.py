"""Wake-ups by Redis: a subscription to the channel on which the scripts tell of runs given back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import redis

from ..errors import StoreUnreachable
from .link import Link
from .waking import ANSWER_WITHIN, WakeUps

#: How many messages are one wake-up at most: whoever may publish shall not keep a beat reading.
MOST_AT_ONCE = 1_000


class Subscription(WakeUps):
    """A client of its own, so that no connection of the calls is taken up."""

    def __init__(self, link: Link, channel: str) -> None:
        """Subscribe when the first wake-up is waited for, where the link's server is then."""
        self._link = link
        self._channel = channel
        self._pubsub: Any = None
        self._server: object = None  #: which of the link's servers it is at
        self._heard = False  #: something, while the answer to a question was waited for

    def _has_moved(self) -> bool:
        return self._server is not self._link.server

    def _connect(self) -> None:
        self._server = self._link.server
        self._pubsub, self._heard = self._link.subscribe(self._channel), False

    def _hears(self, seconds: float) -> bool:
        heard, self._heard = self._heard, False
        if not heard and not self._is_message(self._next(seconds)):
            return False
        for _ in range(MOST_AT_ONCE - 1):
            if self._next(0.0) is None:
                break
        return True

    def _ask(self) -> None:
        with self._link.told():
            self._pubsub.ping()
        said = self._next(ANSWER_WITHIN)
        if said is None:
            raise StoreUnreachable(f"{self._link.shown} did not answer within {ANSWER_WITHIN:g} s")
        self._heard = self._is_message(said)  # it came before the answer, which is read later then

    @staticmethod
    def _is_message(said: dict[str, Any] | None) -> bool:
        return said is not None and said["type"] == "message"

    def _next(self, seconds: float) -> dict[str, Any] | None:
        with self._link.told():
            said: dict[str, Any] | None = self._pubsub.get_message(timeout=seconds)
        return said

    def _disconnect(self) -> None:
        with suppress(redis.RedisError):  # it was gone already
            self._pubsub.close()

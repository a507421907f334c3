"""The link to the Redis that has the store: it finds the server, and has one script run there.

A call is one script, and one round trip; a second one where the server does not know the script
(yet), or has been replaced by another. All of it together takes :data:`.connections.MOST` seconds
at most, or what the store was given. What may have been carried out is not repeated, but where
there is another server to ask: the callers' nonces make it the same call.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from .. import durations
from ..errors import StoreError, StoreUnreachable, StoreUnusable
from .addresses import RIGHTS, Address, Host
from .budget import at_most
from .connections import MOST, TooLate, client_at, left
from .options import TAKEN, refuse_wrong
from .refusals import complaint, forgets, told, word_of
from .routes import Route, route_to

#: How often a server is asked whether it still keeps what it is given (seconds).
INSPECT_EVERY = 600.0

#: How often one call goes where another server sends it.
_MOST_MOVES = 5


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas have to have a write before it counts, and how long that is waited for (ms)."""

    least: int
    timeout: int


@dataclass(frozen=True, slots=True)
class Call:
    """One script to run, and what it may do."""

    script: str
    sha: str  #: its hash
    prefix: str  #: what it gets as its only key
    asked: str  #: what it gets as its only argument
    begins: bool  #: whether it may begin something: then only on a server that keeps what it is given
    writes: bool  #: whether what it does has to reach replicas, if any are waited for


class Link:
    """A way to run scripts on the server that has the store; several threads may share it."""

    def __init__(
        self, route: Route, settings: Mapping[str, Any], *, shown: str, replicas: Replicas | None = None,
        within: float = MOST,
    ) -> None:  # fmt: skip
        """Go by ``route``, with connections of ``settings``. A call takes ``within`` seconds at most."""
        self.shown = shown
        self.replicas = replicas
        self.within = within
        self._route = route
        self._settings = dict(settings)
        self._lock = threading.Lock()
        self._client: redis.Redis | None = None
        self._where: Host | str | None = None
        self._inspect_at = float("-inf")
        self._complaint: str | None = None
        self._unknown: set[str] = set()  # scripts that this server did not know when it was asked last

    def run(self, call: Call) -> str:
        """Have a script run; return its answer.

        Raises:
            StoreUnreachable: no answer: it may have been carried out; or too few replicas have it.
            StoreUnusable: the server cannot be used as it is.
        """
        with self._in_time():
            answer = self._run(call)
        # Bytes that are no text can only come from somebody's edit: they must not spoil the others.
        return answer.decode(errors="replace") if isinstance(answer, bytes) else str(answer)

    def complaints(self) -> list[str]:
        """Return all that is wrong with the server by what it tells of itself.

        Raises:
            StoreUnreachable: no answer.
            StoreUnusable: the server cannot be used as it is.
        """
        with self._in_time():
            client = self._client_there()
            info, snapshots = self._told(client.info), self._told(lambda: client.config_get("save"))
        refused, lost = complaint(info), forgets(info, snapshots.get("save"))
        found = [refused and f"{self.shown} cannot be used: {refused}", lost and f"{self.shown}: {lost}"]
        return [line for line in found if line]

    def _told(self, ask: Callable[[], Any]) -> dict[str, Any]:
        """Return what a server tells; nothing where this user may not ask, or nobody may."""
        try:
            return dict(ask())
        except redis.ResponseError as error:
            if word_of(error) not in ("NOPERM", "", "NOEVAL"):
                raise
            return {}

    @property
    def server(self) -> object:
        """What is another one after the store has moved to another server."""
        return self._client

    def subscribe(self, channel: str) -> Any:
        """Return a subscription to a channel of the server, with a client of its own.

        Raises:
            StoreUnreachable: no answer.
            StoreUnusable: this user may not subscribe to it.
        """
        with self._in_time():
            heard = client_at(self._route.where(), self._settings).pubsub()
            try:
                heard.subscribe(channel)
                if heard.get_message(timeout=left()) is None:
                    raise redis.TimeoutError("no answer to SUBSCRIBE")
            except BaseException:
                heard.close()
                raise
            return heard

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Give a call its time, and say in one line what went wrong."""
        with self.told(), at_most(self.within):
            yield

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say in one line what went wrong."""
        try:
            yield
        except StoreError as error:
            if str(error).startswith(self.shown):
                raise
            raise type(error)(f"{self.shown}: {error}") from error
        except TooLate as error:
            raise StoreUnreachable(f"{self.shown} does not answer: {error}") from error
        except redis.RedisError as error:
            raise told(error, self.shown) from error
        except BaseException:
            # Interrupted from outside, a task's time limit perhaps: an answer may be on its way still.
            self._drop()
            raise

    def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            self._client.connection_pool.disconnect()

    # one call -----------------------------------------------------------------------------------

    def _run(self, call: Call) -> Any:
        met: Counter[str] = Counter()
        while True:
            client = self._client_there()
            try:
                self._inspect(client, begins=call.begins)
                return self._evaluate(client, call)
            except redis.RedisError as error:
                word = word_of(error)
                if not word and isinstance(error, redis.ConnectionError | redis.TimeoutError):
                    word = "LOST"
                met[word] += 1
                if not self._goes_on(word, met[word], error):
                    raise

    def _goes_on(self, word: str, times: int, error: redis.RedisError) -> bool:
        """Learn from an error where the server is; return whether the call is worth another try there."""
        if word == "MOVED" and self._route.moves:
            self._route.moved(_named_in(error))
            return times <= _MOST_MOVES
        if word in ("LOST", "READONLY", "CLUSTERDOWN"):
            self._route.lost()
            self._drop()
        if word == "READONLY" and times > 1 and self._route.moves:
            raise StoreUnreachable("another server is about to become the primary") from error
        # A server that became a replica: there is a new primary, or its name means another one by now.
        return (word == "READONLY" and times == 1) or (word == "LOST" and times < self._route.tries)

    def _evaluate(self, client: redis.Redis, call: Call) -> Any:
        """Run it by its hash; or whole, where the server does not know it (yet)."""
        if call.sha not in self._unknown:
            try:
                return self._sent(client, "EVALSHA", call.sha, call)
            except redis.exceptions.NoScriptError:
                self._unknown.add(call.sha)  # if there is no time left now, the next call begins here
        answer = self._sent(client, "EVAL", call.script, call)
        self._unknown.discard(call.sha)
        return answer

    def _sent(self, client: redis.Redis, how: str, what: str, call: Call) -> Any:
        if not (call.writes and self.replicas):
            return client.execute_command(how, what, 1, call.prefix, call.asked)
        pipe = client.pipeline(transaction=False)
        pipe.execute_command(how, what, 1, call.prefix, call.asked)
        pipe.execute_command("WAIT", self.replicas.least, self.replicas.timeout)
        answer, count = pipe.execute(raise_on_error=False)
        for one in (answer, count):
            if isinstance(one, Exception):
                raise one
        if count < self.replicas.least:
            within = durations.text(self.replicas.timeout)
            raise StoreUnreachable(
                f"{self.shown} answered, but of {self.replicas.least} replicas that are to have each write "
                f"only {count} acknowledged this one within {within} (min_replicas_ack)"
            )
        return answer

    def _inspect(self, client: redis.Redis, *, begins: bool) -> None:
        """Refuse a server that may throw away what it is given; what was begun there may go on and end."""
        if time.monotonic() >= self._inspect_at:
            self._complaint = complaint(self._told(client.info))
            self._inspect_at = time.monotonic() + (0 if self._complaint else INSPECT_EVERY)
        if self._complaint and begins:
            raise StoreUnusable(f"{self.shown} cannot be used: {self._complaint}")

    # the server ---------------------------------------------------------------------------------

    def _client_there(self) -> redis.Redis:
        where = self._route.where()
        with self._lock:
            if self._client is None or where != self._where:
                self._close_idle()
                self._client, self._where = client_at(where, self._settings), where
                self._inspect_at, self._unknown = float("-inf"), set()
            return self._client

    def _drop(self) -> None:
        with self._lock:
            self._close_idle()

    def _close_idle(self) -> None:
        if self._client is not None:
            self._client.connection_pool.disconnect(inuse_connections=False)


def _named_in(moved: redis.RedisError) -> Host:
    """Return the node that a node of a cluster sends us to.

    There is no such thing for ASK: while our keys are on their way from one node to another, a
    script would find half of them on either.
    """
    host, _, port = str(moved).split()[-1].rpartition(":")
    return host, int(port)


def link_to(address: Address, settings: Mapping[str, Any], *, within: float = MOST) -> Link:
    """Return the link to an address, not yet connected; a call takes ``within`` seconds at most.

    Raises:
        StoreUnusable: the settings cannot be meant.
    """
    own, within = dict(settings), min(MOST, within)
    route = route_to(address, own)
    replicas = _replicas(own)
    for name in ("master_name", "min_other_sentinels", "sentinel_kwargs", *_NOT_OURS):
        own.pop(name, None)
    if address.db:
        own["db"] = address.db
    if address.form == "cluster":
        own.setdefault("socket_connect_timeout", within / (len(address.hosts) + 1))
    try:  # what the client makes of them shows without a connection
        client_at(address.path or address.hosts[0], own)
        client_at(("localhost", 0), settings.get("sentinel_kwargs") or {})
    except (TypeError, ValueError, redis.RedisError) as error:
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        why = f"the Redis client has no option {unknown[1]!r}" if unknown else error
        raise StoreUnusable(f"{address.shown}: {TAKEN} {why}") from None
    return Link(route, own, shown=address.shown, replicas=replicas, within=within)


#: Options of the client that would break a rule here, or mean nothing.
_NOT_OURS = (
    "retry",
    "retry_on_timeout",
    "retry_on_error",
    "protocol",
    "decode_responses",
    "health_check_interval",
    "encoding",
    "encoding_errors",
)


def refuse_wrong_options(options: Mapping[Any, Any]) -> None:
    """Refuse options that cannot be meant; all else is the client's to judge."""
    refuse_wrong(options, RIGHTS)
    refuse_wrong(options.get("sentinel_kwargs") or {}, RIGHTS, "sentinel_kwargs: ")


def _replicas(settings: dict[str, Any]) -> Replicas | None:
    least = settings.pop("min_replicas_ack", 0)
    given = settings.pop("min_replicas_timeout", "100ms")
    if type(least) is not int or least < 0:
        raise StoreUnusable(f"min_replicas_ack={least!r}: a whole number of replicas is right, such as 1")
    try:
        timeout = durations.milliseconds(given)
    except (ValueError, OverflowError):
        timeout = 0
    if not 1 <= timeout <= 1000:
        raise StoreUnusable(f"min_replicas_timeout={given!r}: a duration up to 1s is right, such as '100ms'")
    return Replicas(least, timeout) if least else None

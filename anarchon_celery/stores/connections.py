"""Connections of the Redis client that keep within the time that is left (:mod:`.budget`).

They differ from the client's own in three things: no step takes longer than what is left of the
call; the login and the choice of a database go in one round trip, so that a slow server does not
use up the time of a call; and where connecting took too long the call is not sent any more, but the
connection stays, so that the next call has one.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from ..errors import StoreUnusable
from . import budget
from .addresses import Host
from .budget import is_late

#: Seconds that a call may take, connecting included.
MOST = 3.0


def left() -> float:
    """Return the seconds that are left, more than none.

    Raises:
        redis.TimeoutError: none is left.
    """
    seconds = min(MOST, budget.left())
    if seconds <= 0:
        raise redis.TimeoutError("no time is left")
    return seconds


class TooLate(redis.RedisError):
    """Connected, but too much of the call's time is over: nothing was sent."""


class _InTime(AbstractConnection):
    """What all connections have in common, by whatever way they come to be."""

    _is_greeting = False

    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[no-untyped-call]
        except (TypeError, ValueError, AttributeError, LookupError) as reason:
            taken = "the Redis client cannot connect with these anarchon_store_options"
            raise StoreUnusable(f"{taken}: {type(reason).__name__}: {reason}") from reason

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if not self._is_greeting and is_late():
            raise TooLate("getting through to it took too long")
        self._hurry()
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **how: Any) -> Any:
        self._hurry()
        return super().read_response(*args, **how)

    def _hurry(self) -> None:
        if self._sock is None:
            return
        try:
            self._sock.settimeout(min(left(), self.socket_timeout or MOST))
        except redis.TimeoutError:
            self.disconnect()  # an answer may be on its way still
            raise

    def greet(self) -> None:
        """Say who we are and which database we mean, all at once."""
        self._parser.on_connect(self)
        said = [words for words in (self._login(), self._name(), self._choice()) if words]
        if not said:
            return
        self._is_greeting = True
        try:
            packed = self.pack_commands(said)  # type: ignore[no-untyped-call]
            self.send_packed_command(packed, check_health=False)
            answers = [self._answer() for _ in said]
        finally:
            self._is_greeting = False
        for answer in answers:
            if isinstance(answer, redis.RedisError):
                raise answer

    def _login(self) -> tuple[Any, ...]:
        if self.credential_provider:
            return ("AUTH", *self.credential_provider.get_credentials())
        if self.username:
            return ("AUTH", self.username, self.password or "")
        return ("AUTH", self.password) if self.password else ()

    def _name(self) -> tuple[Any, ...]:
        return ("CLIENT", "SETNAME", self.client_name) if self.client_name else ()

    def _choice(self) -> tuple[Any, ...]:
        return ("SELECT", self.db) if self.db else ()

    def _answer(self) -> Any:
        try:
            return self.read_response()
        except (redis.ResponseError, redis.AuthenticationError) as refused:
            return refused


class Plain(_InTime, redis.Connection):
    """One over TCP."""

    def _connect(self) -> socket.socket:
        found = addresses_of(self.host, self.port)
        for at, (family, kind, protocol, _, address) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            try:
                self._set_up(sock)
                share = left() / (len(found) - at)  # one that swallows everything leaves time for the next
                sock.settimeout(min(share, self.socket_connect_timeout or MOST))
                sock.connect(address)
                sock.settimeout(left())
                return sock
            except (OSError, redis.TimeoutError) as error:
                sock.close()
                if at < len(found) - 1:
                    continue
                if isinstance(error, TimeoutError):
                    raise redis.TimeoutError("connecting takes too long") from None
                raise
            except BaseException:  # an option that the socket does not take, or somebody interrupts
                sock.close()
                raise
        raise OSError(f"{self.host} has no address")

    def _set_up(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.socket_keepalive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (self.socket_keepalive_options or {}).items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Secure(redis.SSLConnection, Plain):
    """One over TLS: the client wraps what ``Plain`` connects."""

    def _connect(self) -> Any:
        files = {"ssl_ca_certs": self.ca_certs, "ssl_certfile": self.certfile, "ssl_keyfile": self.keyfile}
        for name, path in files.items():
            if path and not os.access(path, os.R_OK):
                raise StoreUnusable(f"{name}={path!r}: there is no such file, or it must not be read")
        try:
            return super()._connect()  # type: ignore[no-untyped-call]
        except TimeoutError:  # Plain says it otherwise
            raise redis.TimeoutError("no answer in TLS: if it speaks none, redis:// is right") from None


class Socket(_InTime, redis.UnixDomainSocketConnection):
    """One over a Unix socket."""

    def _connect(self) -> Any:
        self.socket_connect_timeout = left()
        return super()._connect()  # type: ignore[no-untyped-call]


def client_at(where: Host | str, settings: Mapping[str, Any]) -> redis.Redis:
    """Return a client of the server there, not yet connected; it tries everything once.

    Raises:
        TypeError, ValueError, redis.RedisError: the settings cannot be meant.
    """
    settings = dict(settings)
    is_secure = settings.pop("ssl", any(name.startswith("ssl_") for name in settings))
    kind: type[_InTime] = Socket if isinstance(where, str) else Secure if is_secure else Plain
    settings |= {"path": where} if isinstance(where, str) else {"host": where[0], "port": where[1]}
    settings |= {
        # Plain answers: under version 3 the client no longer looks for unread data on a connection.
        "protocol": 2,
        "decode_responses": False,
        "redis_connect_func": _InTime.greet,
        # The callers repeat what had no answer, and know their own calls again.
        "retry": Retry(NoBackoff(), 0),
    }
    pool = redis.ConnectionPool(connection_class=kind, **settings)
    kind(**pool.connection_kwargs)
    return redis.Redis(connection_pool=pool)


Found = list[tuple[Any, Any, Any, Any, Any]]


def addresses_of(host: str, port: int) -> Found:
    """Look a host up, in a thread of its own: nothing else ends a look-up that hangs."""
    try:
        ip_address(host)
    except ValueError:
        pass
    else:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    answer: queue.Queue[Found | OSError] = queue.Queue()  # one that green threads may wait for too

    def look_up() -> None:
        try:
            answer.put(list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except OSError as error:
            answer.put(error)
        except UnicodeError as error:  # it can be no name at all
            answer.put(OSError(f"{host!r} is no name of a host: {error}"))

    threading.Thread(target=look_up, daemon=True, name="anarchon look-up").start()
    try:
        found = answer.get(timeout=left())
    except queue.Empty:
        raise redis.TimeoutError(f"looking {host} up takes too long") from None
    if isinstance(found, OSError):
        raise found
    return found

"""A TCP proxy for tests, before any server: it delays, swallows, cuts, drops an answer that was given.

It knows nothing of what goes through: a chunk is what was read at once, which for small messages is
one message. What a test sets counts from the next chunk on, for all connections. An answer is the
first chunk that comes back after a request; a ``Trap`` may wait for requests with certain bytes in
them, since SQL stands in the messages of PostgreSQL and MariaDB as it is.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass

from tests.processes import wait_until

RESET = struct.pack('ii', 1, 0)  # SO_LINGER: closing sends a reset


@dataclass
class Trap:
    """What becomes of requests that have ``word`` in them: of every ``every``-th one, ``times`` times."""

    word: bytes = b''
    every: int = 1
    times: float = 1
    loses: str = 'answer'  #: or 'request'; the connection is reset either way
    seen: int = 0  #: requests so far
    sprung: int = 0  #: of which so many were hit

    def springs(self, chunk: bytes) -> bool:
        """Look at a request."""
        if self.word not in chunk or self.sprung >= self.times:
            return False
        self.seen += 1
        hit = self.seen % self.every == 0
        self.sprung += hit
        return hit


class Proxy:
    """One port of 127.0.0.1 before one server; close it at the end of a test."""

    def __init__(self, port: int, host: str = '127.0.0.1') -> None:
        """Listen, on a port of its own that stays the same, and pass everything on to ``host:port``."""
        self.server = (host, port)
        self.delay = 0.0  #: seconds that each chunk of an answer comes later
        self.requests_vanish = False  #: a black hole on the way there: connections stay, nothing arrives
        self.answers_vanish = False  #: a black hole on the way back
        self.drops = 0  #: so many answers that come now are swallowed, and their connections reset
        self.traps: list[Trap] = []
        self.rewrites: dict[bytes, bytes] = {}  #: what is said instead in answers, of equal length
        self.accepted = 0  #: connections so far
        self.requests = 0  #: chunks that went to the server
        self.answers = 0  #: chunks that came from the server
        self.dropped = 0  #: answers that were dropped
        self._doomed: set[tuple[socket.socket, socket.socket]] = set()  #: whose next answer is dropped
        self._holes: set[tuple[socket.socket, socket.socket]] = set()  #: open, and nothing goes through
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.port: int = self._listener.getsockname()[1]
        self._listen()

    def refuse(self) -> None:
        """Cut all connections and accept no more, as if the server was down."""
        # A close alone does not wake who waits in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(10)
        self._listener.close()
        self.reset()

    def accept(self) -> None:
        """Accept connections again after ``refuse``."""
        self._listener = socket.create_server(('127.0.0.1', self.port))
        self._listen()

    def reset(self) -> None:
        """Reset all connections, of both sides; new ones are accepted."""
        with self._lock:
            pairs, self._pairs, self._holes = self._pairs, set(), set()
        for pair in pairs:
            self._cut(pair, reset=True)

    def half_open(self) -> None:
        """Let nothing go through the connections there are, as if a firewall had forgotten them.

        Either side goes on to think that they are open, until they are reset; new ones are good.
        """
        with self._lock:
            self._holes |= self._pairs

    def heal(self) -> None:
        """Be a good proxy again; what was swallowed stays lost."""
        self.delay, self.drops, self.rewrites, self.traps = 0.0, 0, {}, []
        self.requests_vanish = self.answers_vanish = False

    def trap(self, word: bytes = b'', **how: float | str) -> Trap:
        """Set a trap, until ``heal``."""
        self.traps.append(Trap(word, **how))  # type: ignore[arg-type]
        return self.traps[-1]

    def wait_for_drop(self, count: int = 1) -> None:
        """Wait until so many answers were dropped in all: the server has carried those calls out."""
        wait_until(lambda: self.dropped >= count, why=lambda: f'{self.dropped} answers were dropped')

    def close(self) -> None:
        """End it, and all its connections."""
        self._over.set()
        self.refuse()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # inside

    def _listen(self) -> None:
        self._acceptor = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._acceptor.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                server = socket.create_connection(self.server, timeout=10)
            except OSError:
                self._cut((client, client), reset=True)
                continue
            server.settimeout(None)
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            for pump in (self._pass_requests, self._pass_answers):
                threading.Thread(target=pump, args=(pair,), daemon=True).start()

    def _pass_requests(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while chunk := pair[0].recv(65536):
                if self.requests_vanish or pair in self._holes:
                    continue
                self.requests += 1
                if self._is_lost(pair, chunk):
                    self._end(pair, reset=True)
                    return
                pair[1].sendall(chunk)
        while (self.requests_vanish or pair in self._holes) and not self._over.wait(0.02):
            pass  # nor does the server learn that the connection was closed
        self._end(pair)

    def _is_lost(self, pair: tuple[socket.socket, socket.socket], chunk: bytes) -> bool:
        """Whether a request is; if its answer is, that is noted before it can come."""
        with self._lock:
            lost = {trap.loses for trap in self.traps if trap.springs(chunk)}
            if 'answer' in lost:
                self._doomed.add(pair)
        return 'request' in lost

    def _pass_answers(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while chunk := pair[1].recv(65536):
                self.answers += 1
                if self._is_dropped(pair):
                    self.dropped += 1
                    self._end(pair, reset=True)
                    return
                if self.delay:
                    self._over.wait(self.delay)
                for said, instead in self.rewrites.items():
                    chunk = chunk.replace(said, instead)
                if not (self.answers_vanish or pair in self._holes):
                    pair[0].sendall(chunk)
        self._end(pair)

    def _is_dropped(self, pair: tuple[socket.socket, socket.socket]) -> bool:
        with self._lock:
            drops = self.drops > 0
            self.drops -= drops
            doomed = pair in self._doomed
            self._doomed.discard(pair)
        return drops or doomed

    def _end(self, pair: tuple[socket.socket, socket.socket], *, reset: bool = False) -> None:
        with self._lock:
            was_open = pair in self._pairs
            self._pairs.discard(pair)
        if was_open:
            self._cut(pair, reset=reset)

    def _cut(self, pair: tuple[socket.socket, socket.socket], *, reset: bool) -> None:
        for one in pair:
            with contextlib.suppress(OSError):
                if reset:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                one.shutdown(socket.SHUT_RD)  # who waits for it in the other thread wakes up
            one.close()

"""Connections to servers, made by a guarded backend: the innermost layer. httpcore's errors become ours here."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpcore

from dlpipe.core.errors import Permanent, Retryable
from dlpipe.net import failures, retry
from dlpipe.net.direct import direct
from dlpipe.net.layer import Ask
from dlpipe.net.policy import NetPolicy
from dlpipe.net.pool import Pool, PooledConnection, Use
from dlpipe.net.reuse import ReuseMarks
from dlpipe.net.wire import DoubtfulAnswer, StaleConnection, WatchedStream

# Only these are believed on a reused connection (row 50). A refusal for now decides nothing, and what follows it
# goes over a fresh connection anyway.
_ONLY_WHEN_ASKED = {206: (b"range",), 304: (b"if-none-match", b"if-modified-since"), 416: (b"range",)}
_KEEPS = frozenset({200, 206, 304})
"""After another answer a connection is closed, so that a server which redirects each time is not asked twice."""


class Connections:
    """Asks servers, over the pooled connections of a process."""

    def __init__(
        self, policy: NetPolicy, backend: httpcore.NetworkBackend, trust: ssl.SSLContext, marks: ReuseMarks
    ) -> None:
        self._policy, self._backend, self._trust = policy, backend, trust
        self._pool = Pool(marks, max_idle=policy.max_idle_connections, keepalive_s=policy.keepalive_s)

    def send(
        self, ask: Ask, port: int | None, headers: Sequence[tuple[bytes, bytes]], extensions: Mapping[str, Any]
    ) -> tuple[httpcore.Response, Body]:
        """Ask a server for what the extensions say; the head of the answer, and its body."""
        host, scheme = ask.host, ask.origin.partition(":")[0]
        url = httpcore.URL(scheme=scheme, host=host, port=port, target=b"/")
        asked = httpcore.Request(ask.method, url, headers=headers, extensions=dict(extensions))

        def connect() -> httpcore.HTTPConnection:
            return httpcore.HTTPConnection(
                url.origin, ssl_context=self._trust, http1=True, http2=False, network_backend=self._backend
            )

        use = Use(ask.tenant, ask.origin, host, ask.method == "HEAD")
        # What may not be asked twice is asked where nothing is to be doubted.
        afresh = ask.afresh or ask.method not in ("GET", "HEAD")
        connection = self._pool.take(use, connect, afresh=afresh)
        reused = connection.wire is not None
        try:
            answer = self._ask(connection, asked, host)
        except BaseException as error:
            self._pool.give_back(connection, keep=False)
            wire = connection.wire
            broken = isinstance(error, Retryable) and wire is not None and wire.is_within_head
            if reused and (broken or isinstance(error, Permanent)):
                self._pool.mark(connection, "what it sent on a reused connection was no answer")
                raise DoubtfulAnswer from error
            raise
        body = Body(answer, host, self._policy.read_s, Lent(connection, self._pool, reused))
        if reused and (doubt := self._doubt(answer.status, asked, connection)) is not None:
            body.close()
            raise doubt
        if reused and self._pool.surplus(connection):  # it has ended with its head, and there is more
            body.close()
            raise DoubtfulAnswer
        return answer, body

    def _doubt(self, status: int, asked: httpcore.Request, connection: PooledConnection) -> DoubtfulAnswer | None:
        """Why this status is not believed on a reused connection (row 50)."""
        if status == 200 or status in retry.STATUSES:
            return None
        wanted = _ONLY_WHEN_ASKED.get(status)
        if wanted is None and status >= 200:
            return DoubtfulAnswer(status, lambda why: self._pool.mark(connection, why))
        if wanted is not None and any(name.lower() in wanted for name, _ in asked.headers):
            return None
        self._pool.mark(connection, f"status {status} on a reused connection answers nothing that was asked")
        return DoubtfulAnswer()

    def _ask(self, connection: PooledConnection, asked: httpcore.Request, host: str) -> httpcore.Response:
        try:
            answer = connection.http.handle_request(asked)
        except StaleConnection:
            raise
        except httpcore.ConnectTimeout as error:
            raise failures.connect_timeout(host) from error
        except httpcore.ConnectError as error:
            raise failures.connect_failed(host) from error
        except httpcore.TimeoutException as error:
            raise failures.read_timeout(host) from error
        except httpcore.NetworkError as error:
            raise failures.connection_lost(host) from error
        except httpcore.ProtocolError as error:
            raise failures.protocol_error(host, "the head of the answer is malformed") from error
        wire = answer.extensions.get("network_stream")
        connection.wire = wire if isinstance(wire, WatchedStream) else None
        return answer

    def close(self) -> None:
        self._pool.close()


@dataclass(frozen=True, slots=True)
class Lent:
    """The connection that an answer is read from."""

    connection: PooledConnection
    pool: Pool
    reused: bool

    def has_surplus(self) -> bool:
        return self.pool.surplus(self.connection)

    def give_back(self, *, keep: bool) -> None:
        self.pool.give_back(self.connection, keep=keep)

    def mark(self, why: str) -> None:
        self.pool.mark(self.connection, why)


class Body:
    """The raw body of an answer, in the pieces in which it arrives."""

    def __init__(self, answer: httpcore.Response, host: str, read_s: float, lent: Lent) -> None:
        self._answer, self._host, self._read_s, self._lent = answer, host, read_s, lent
        self.is_reused = lent.reused
        """Had the connection carried an answer before this one?"""
        self._wire = answer.extensions.get("network_stream")
        self._pieces = filter(None, answer.iter_stream())
        self._direct = direct(answer)
        self._over = False
        self._left = memoryview(b"")
        """Of a piece that was larger than the reader's buffer."""
        self._is_closed = False
        self._at_close: list[Callable[[], None]] = []

    def on_close(self, action: Callable[[], None]) -> None:
        """Have `action` done once the body is over, read or not."""
        self._at_close.append(action)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._next, b"")

    def read_into(self, buffer: memoryview) -> int:
        """Put what comes next into the buffer, straight from the socket where that can be; 0 at the body's end."""
        if not self._left:
            way, wire = self._direct, self._wire
            if way is not None and (left := way.left) and isinstance(wire, WatchedStream):
                size = self._receive(wire, buffer if left >= len(buffer) else buffer[:left])
                way.took(size)
                return size
            self._left = memoryview(self._next())
        size = min(len(self._left), len(buffer))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def _receive(self, wire: WatchedStream, buffer: memoryview) -> int:
        try:
            size = wire.read_into(buffer, self._read_s)
        except httpcore.TimeoutException as error:
            raise failures.read_timeout(self._host) from error
        except httpcore.NetworkError as error:
            raise failures.body_cut(self._host) from error
        if not size:
            raise failures.body_cut(self._host)
        return size

    def _next(self) -> bytes:
        """The next piece as the parser gives it; empty at the end."""
        wire = self._wire
        if self._over:
            return b""  # its connection may be at somebody else's answer by now
        if isinstance(wire, WatchedStream):
            # For the whole piece, not for each read: chunk headers can be dripped for ever.
            wire.expect_within(self._read_s)
        try:
            piece = next(self._pieces, b"")
        except httpcore.TimeoutException as error:
            raise failures.read_timeout(self._host) from error
        except httpcore.NetworkError as error:
            raise failures.body_cut(self._host) from error
        except httpcore.ProtocolError as error:
            if isinstance(wire, WatchedStream) and wire.ended:
                raise failures.body_cut(self._host) from error
            raise failures.protocol_error(self._host, "the body is malformed") from error
        self._over = not piece
        if self._over and self.is_reused and self._lent.has_surplus():
            # One of the two is not the answer to this request, and the first one was taken for it.
            raise failures.protocol_error(self._host, "a reused connection brought more than one answer")
        return piece

    def disown(self) -> None:
        self._lent.mark("a fresh connection brought another answer than a reused one")

    def close(self) -> None:
        """Let go of the connection; a second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._answer.close()
        finally:
            try:
                self._lent.give_back(keep=self._answer.status in _KEEPS)
            finally:
                for action in self._at_close:
                    action()

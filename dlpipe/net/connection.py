"""Connections to servers, made by a guarded backend: the innermost layer. httpcore's errors become ours here."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpcore

from dlpipe.net import failures
from dlpipe.net.direct import direct
from dlpipe.net.policy import NetPolicy
from dlpipe.net.wire import StaleConnection, WatchedStream


class Connections:
    """The pooled connections of a process."""

    def __init__(self, policy: NetPolicy, backend: httpcore.NetworkBackend, trust: ssl.SSLContext) -> None:
        self._policy = policy

        def pool(idle: int) -> httpcore.ConnectionPool:
            return httpcore.ConnectionPool(
                ssl_context=trust,
                # How many are open at once is for the caller to bound, not for a queue in here.
                max_connections=None,
                max_keepalive_connections=idle,
                keepalive_expiry=policy.keepalive_s,
                http1=True,
                http2=False,
                network_backend=backend,
            )

        self._pool = pool(policy.max_idle_connections)
        self._new_ones = pool(0)

    def send(
        self,
        method: str,
        to: tuple[bytes, bytes, int | None],
        headers: Sequence[tuple[bytes, bytes]],
        extensions: Mapping[str, Any],
        *,
        afresh: bool,
    ) -> tuple[httpcore.Response, Body]:
        """Ask `to` (scheme, host, port) for what the extensions say; the head of the answer, and its body."""
        scheme, raw_host, port = to
        host = raw_host.decode("ascii")
        url = httpcore.URL(scheme=scheme, host=raw_host, port=port, target=b"/")
        asked = httpcore.Request(method, url, headers=headers, extensions=dict(extensions))
        pool = self._new_ones if afresh else self._pool
        try:
            answer = pool.handle_request(asked)
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
        return answer, Body(answer, host, self._policy.read_s)

    def close(self) -> None:
        self._pool.close()
        self._new_ones.close()


class Body:
    """The raw body of an answer, in the pieces in which it arrives."""

    def __init__(self, answer: httpcore.Response, host: str, read_s: float) -> None:
        self._answer, self._host, self._read_s = answer, host, read_s
        self._wire = answer.extensions.get("network_stream")
        self._pieces = filter(None, answer.iter_stream())
        self._direct = direct(answer)
        self._over = False
        self._left = memoryview(b"")
        """Of a piece that was larger than the reader's buffer."""
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
        return piece

    def close(self) -> None:
        actions, self._at_close = self._at_close, []
        try:
            self._answer.close()
        finally:
            for action in actions:
                action()

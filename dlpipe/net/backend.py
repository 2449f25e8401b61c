"""Makes connections whose bytes are watched: the backend that the connection layer is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import httpcore

from dlpipe.net.policy import NetPolicy
from dlpipe.net.wire import WatchedStream
from dlpipe.net.wires import Wires


class WatchedBackend(httpcore.NetworkBackend):
    """Gives every connection that `inner` makes a watcher."""

    def __init__(
        self,
        inner: httpcore.NetworkBackend,
        policy: NetPolicy,
        *,
        wires: Wires | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner, self._policy, self._clock = inner, policy, clock
        self._wires = wires or Wires()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        self._wires.check()
        inner = self._inner.connect_tcp(host, port, timeout, local_address, socket_options)
        return WatchedStream(inner, host, self._policy, self._clock, self._wires)

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        return self._inner.connect_unix_socket(path, timeout, socket_options)

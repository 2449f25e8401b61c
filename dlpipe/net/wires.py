"""The open connections of a process, which can all be cut at once when it is to end.

A server that has fallen silent can be waited for longer than an ending process has. Cut, its connection wakes whoever
waits at it.
"""

from __future__ import annotations

import socket
import threading
import weakref
from contextlib import suppress

import httpcore

from dlpipe.core.errors import WorkerEnding


class Wires:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[httpcore.NetworkStream] = weakref.WeakSet()
        self._cut = threading.Event()

    def add(self, stream: httpcore.NetworkStream) -> None:
        with self._lock:
            self._open.add(stream)
        if self._cut.is_set():
            _cut(stream)

    def cut(self) -> None:
        """End all of them, now and for good; from another thread than those that wait."""
        self._cut.set()
        with self._lock:
            found = list(self._open)
        for stream in found:
            _cut(stream)

    def check(self) -> None:
        """WorkerEnding when they are cut: the work under way is given back, and nothing is held against the server."""
        if self._cut.is_set():
            raise WorkerEnding("this process is ending and waits for no server")

    def pause(self, seconds: float) -> None:
        """Sleep, unless they are cut."""
        self._cut.wait(seconds)
        self.check()


def _cut(stream: httpcore.NetworkStream) -> None:
    sock = stream.get_extra_info("socket")
    if isinstance(sock, socket.socket):
        with suppress(OSError):  # it is closed already
            # Not as a TLS socket does it: that one would forget its keys under the feet of who reads from it.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

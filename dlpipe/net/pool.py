"""Idle connections, and which request may use one again (HTTP.md rows 48 to 50).

A connection is used again for the same tenant, origin and kind of request only: what a server sends behind the answer
to one tenant's request can then not become the answer to another's, and nothing behind a HEAD answer becomes a file.
httpcore's own pool shares its connections among all callers, and closes one with surplus bytes without saying so.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import httpcore

from dlpipe.net.reuse import ReuseMarks
from dlpipe.net.wire import WatchedStream

SURPLUS = "it sent bytes behind the end of an answer"


@dataclass(frozen=True, slots=True)
class Use:
    """What a connection is for."""

    tenant: str
    origin: str
    host: str
    """As it is spelled: a connection to `a.example.` is none to `a.example`, though their origin is the same."""
    head: bool


@dataclass(eq=False, slots=True)
class PooledConnection:
    """One connection, and the bytes that are watched on it."""

    use: Use
    http: httpcore.HTTPConnection
    wire: WatchedStream | None = None
    """Once it is connected."""
    idle_since: float = 0.0


class Pool:
    def __init__(
        self, marks: ReuseMarks, *, max_idle: int, keepalive_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._marks = marks
        self._max_idle, self._keepalive_s, self._clock = max_idle, keepalive_s, clock
        self._lock = threading.Lock()
        self._idle: OrderedDict[PooledConnection, None] = OrderedDict()
        """The one that was used longest ago first."""

    def take(self, use: Use, connect: Callable[[], httpcore.HTTPConnection], *, afresh: bool) -> PooledConnection:
        """An idle connection of this use that is certainly still good, else a new one."""
        while not afresh and (found := self._newest(use)) is not None:
            if self._is_good(found):
                return found
            found.http.close()
        return PooledConnection(use, connect())

    def give_back(self, connection: PooledConnection, *, keep: bool) -> None:
        """The answer was read, or given up. `keep`: it may be used again if nothing speaks against it."""
        if self._is_good(connection) and keep and connection.http.is_idle():
            connection.idle_since = self._clock()
            with self._lock:
                self._idle[connection] = None
        else:
            connection.http.close()
        self._let_go(self._keepalive_s, self._max_idle)

    def surplus(self, connection: PooledConnection) -> bool:
        """Has more come than the answer? Then its origin is marked."""
        if connection.wire is None or not connection.wire.has_surplus():
            return False
        self.mark(connection, SURPLUS)
        return True

    def mark(self, connection: PooledConnection, why: str) -> None:
        origin = connection.use.origin
        self._marks.mark(origin, why)
        with self._lock:
            others = [one for one in self._idle if one.use.origin == origin]
            for one in others:
                del self._idle[one]
        for one in others:
            one.http.close()

    def close(self) -> None:
        self._let_go(0.0, 0)

    def _newest(self, use: Use) -> PooledConnection | None:
        with self._lock:
            for connection in reversed(self._idle):
                if connection.use == use:
                    del self._idle[connection]
                    return connection
        return None

    def _is_good(self, connection: PooledConnection) -> bool:
        wire = connection.wire
        if wire is None or self.surplus(connection) or not wire.is_over():
            return False
        return not self._marks.is_marked(connection.use.origin)

    def _let_go(self, keepalive_s: float, max_idle: int) -> None:
        """Close those that were idle for too long, or are too many; surplus that came meanwhile is noticed."""
        while True:
            with self._lock:
                oldest = next(iter(self._idle), None)
                if oldest is None:
                    return
                if len(self._idle) <= max_idle and self._clock() - oldest.idle_since <= keepalive_s:
                    return
                del self._idle[oldest]
            self.surplus(oldest)
            oldest.http.close()

"""Origins of which no connection is used twice, as bytes came there that belong to no answer (HTTP.md rows 49 and 50).

Such bytes can be on their way while a connection looks idle, and the next request would take them for its answer. So an
origin that sent any is marked for a day, by every worker that sees it, in Redis for all and in each process for itself.
A mark that vanishes is made again when such bytes are seen again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from dlpipe.net.line import Away, Line

log = logging.getLogger(__name__)

MAX_ORIGINS = 4_096
_BELIEVED_S = 1.0
"""For so long an origin that is not marked in Redis is believed not to be."""

_MARK = "redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])"
_LEFT_MS = "return redis.call('PTTL', KEYS[1])"


class ReuseMarks:
    """Which origins are marked: what any worker saw, or only this one while Redis is away."""

    def __init__(self, line: Line | None, kept_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._line, self._kept_s, self._clock = line, kept_s, clock
        self._lock = threading.Lock()
        self._marked: OrderedDict[str, float] = OrderedDict()
        """Until when, by this process's clock; the origin marked longest ago is forgotten first."""
        self._unshared: OrderedDict[str, float] = OrderedDict()
        """Marks that Redis was not there to hear of."""
        self._clean: OrderedDict[str, float] = OrderedDict()
        """Until when an origin is believed to have no mark."""

    def mark(self, origin: str, why: str) -> None:
        """No connection to it is used again, by any worker, for as long as marks are kept."""
        if self._is_known(origin):
            return
        self._remember(origin, self._kept_s)
        self._share(origin)
        log.warning("no connection to %s is used twice for %.0f s: %s", origin, self._kept_s, why)

    def is_marked(self, origin: str) -> bool:
        now = self._clock()
        with self._lock:
            known, unshared = self._marked.get(origin, now) > now, origin in self._unshared
        if known:
            if unshared:
                self._share(origin)
            return True
        with self._lock:
            if self._line is None or self._clean.get(origin, now) > now:
                return False
        try:
            left_ms = int(self._line.run(_LEFT_MS, (_key(origin),), ()))
        except Away:
            return False
        if left_ms > 0:
            self._remember(origin, left_ms / 1000)
            return True
        with self._lock:
            _put(self._clean, origin, now + _BELIEVED_S)
        return False

    def _share(self, origin: str) -> None:
        """Tell Redis; while it is away, that is done when the origin is next asked about."""
        if self._line is None:
            return
        try:
            self._line.run(_MARK, (_key(origin),), (round(self._kept_s * 1000),))
        except Away:
            with self._lock:
                _put(self._unshared, origin, self._clock())
        else:
            with self._lock:
                self._unshared.pop(origin, None)

    def _is_known(self, origin: str) -> bool:
        now = self._clock()
        with self._lock:
            return self._marked.get(origin, now) > now

    def _remember(self, origin: str, seconds: float) -> None:
        with self._lock:
            self._clean.pop(origin, None)
            _put(self._marked, origin, self._clock() + seconds)


def _put(among: OrderedDict[str, float], origin: str, until: float) -> None:
    among.pop(origin, None)
    among[origin] = until
    while len(among) > MAX_ORIGINS:
        among.popitem(last=False)


def _key(origin: str) -> str:
    return f"dlpipe:noreuse:{{{origin}}}"

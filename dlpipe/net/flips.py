"""Hosts whose validators change from answer to answer, where asking for a range can only fail (HTTP.md, row 36).

Kept by each process for itself and in Redis for all. What is kept may vanish: then it is learnt again, which costs
some requests and never a wrong byte.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dlpipe.core.ports import Flips
from dlpipe.net.limits import plain
from dlpipe.net.line import Away, Line

FLIPS = 3
"""So many within OFF_S: a file may well change once, and then the next range is good again."""
OFF_S = 3_600.0
MAX_HOSTS = 1_024

# One list per host: when its last flips were, the newest first.
_NOTE = """
redis.call('LPUSH', KEYS[1], string.format('%.0f', now))
redis.call('LTRIM', KEYS[1], 0, tonumber(ARGV[2]) - 1)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
"""
_OFF = """
local first = tonumber(redis.call('LINDEX', KEYS[1], tonumber(ARGV[2]) - 1))
return first and now - first < tonumber(ARGV[3]) and 1 or 0
"""
_ARGS = (FLIPS, round(OFF_S * 1000))


class SharedFlips:
    """The port `Flips` in Redis; both methods may raise Away."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def note(self, host: str) -> None:
        self._line.run(_NOTE, (_key(host),), _ARGS)

    def off(self, host: str) -> bool:
        return bool(self._line.run(_OFF, (_key(host),), _ARGS))


def _key(host: str) -> str:
    return f"dlpipe:flips:{{{plain(host)}}}"


class LocalFlips:
    """The port `Flips` in this process. Bounded: of many hosts the one that flipped longest ago is forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, tuple[float, ...]] = OrderedDict()

    def note(self, host: str) -> None:
        host = plain(host)
        with self._lock:
            self._seen[host] = (*self._seen.pop(host, ()), self._clock())[-FLIPS:]
            while len(self._seen) > MAX_HOSTS:
                self._seen.popitem(last=False)

    def off(self, host: str) -> bool:
        with self._lock:
            seen = self._seen.get(plain(host), ())
        return len(seen) == FLIPS and self._clock() - seen[0] < OFF_S


@dataclass(frozen=True, slots=True)
class HostFlips:
    """The port `Flips` as workers use it: what any of them saw, or only this one while Redis is away."""

    shared: Flips
    local: Flips

    def note(self, host: str) -> None:
        self.local.note(host)
        with suppress(Away):
            self.shared.note(host)

    def off(self, host: str) -> bool:
        try:
            return self.local.off(host) or self.shared.off(host)
        except Away:
            return False

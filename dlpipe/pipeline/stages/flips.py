"""Hosts whose validators change from answer to answer, where asking for a range can only fail (row 36)."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict

from dlpipe.core.ports import Source

FLIPS = 3
"""So many within OFF_S: a file may well change once, and then the next range is good again."""
OFF_S = 3_600.0
MAX_HOSTS = 1_024


class Flips:
    """Bounded: of many hosts the one that flipped longest ago is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, tuple[float, ...]] = OrderedDict()

    def note(self, host: str, now: float) -> None:
        with self._lock:
            self._seen[host] = (*self._seen.pop(host, ()), now)[-FLIPS:]
            while len(self._seen) > MAX_HOSTS:
                self._seen.popitem(last=False)

    def off(self, host: str, now: float) -> bool:
        """Is resume turned off there? Until the first of its last flips is old enough."""
        with self._lock:
            seen = self._seen.get(host, ())
        return len(seen) == FLIPS and now - seen[0] < OFF_S


_lock = threading.Lock()
_by_source: dict[int, Flips] = {}
"""By identity, for as long as the source lives."""


def flips_of(source: Source) -> Flips:
    """What this process has seen by this way to the network.

    Not in the ledger: a new process learns it again, which costs some requests and never a wrong byte.
    """
    with _lock:
        found = _by_source.get(id(source))
        if found is None:
            found = _by_source[id(source)] = Flips()
            weakref.finalize(source, _by_source.pop, id(source), None)
        return found

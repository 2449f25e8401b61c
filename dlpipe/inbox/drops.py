"""One place that counts malformed messages and logs them: a line per kind at most every ten minutes.

Nothing of the message is in the line. It may hold an address with a secret, and control characters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from dlpipe import wiring
from dlpipe.core.events import MessageDropped
from dlpipe.core.messages import Fault

log = logging.getLogger(__name__)

LINE_EVERY_S = 600.0


class Drops:
    """What one process has dropped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._unsaid: Counter[Fault] = Counter()
        self._said_at: dict[Fault, float] = {}

    def add(self, fault: Fault) -> None:
        wiring.telemetry().tell(MessageDropped("", fault.value))
        with self._lock:
            self._unsaid[fault] += 1
            now = self._clock()
            if fault in self._said_at and now < self._said_at[fault] + LINE_EVERY_S:
                return
            self._said_at[fault] = now
            count = self._unsaid.pop(fault)
        log.warning("dropped: %s: %d since the last such line; what is sent here is not all ours", fault.value, count)


_here = Drops()


def dropped(fault: Fault) -> None:
    """A message was removed from its queue, or from an exchange, and nothing was done for it."""
    _here.add(fault)

"""How slowly, for how long and in how many answers one server may bring a file (STREAM-5, HTTP.md row 47).

One pace is kept over all answers of a server within one claim, on one connection or several: a server that ends each
answer after a byte gains nothing by it. A mirror has a pace of its own, as it must not pay for the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dlpipe.core.errors import Retryable
from dlpipe.pipeline.deps import StreamPolicy

FREE_REQUESTS = 32
"""So many a server may be asked whatever they bring: restarts, comparisons, and the first on each connection."""
_MIB = 1 << 20


class Pace:
    def __init__(self, policy: StreamPolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._began = self._window_began = math.inf
        self._in_window = 0
        self._asked = 0
        self._gained = 0
        self._furthest = 0

    def ask(self, held: int = 0) -> None:
        """Note a request, when so many bytes are held; Retryable when there were too many for what was gained."""
        self._furthest = max(self._furthest, held)
        self._asked += 1
        allowed = FREE_REQUESTS + self._policy.requests_per_mib * self._gained / _MIB
        if self._asked > allowed:
            raise Retryable(
                f"the server's answers are so small that {self._policy.requests_per_mib} do not bring 1 MiB",
                code="answers_too_small",
                hint="It goes on from here with its next run; raise stream.requests_per_mib, or use another source.",
            )

    def begin(self) -> None:
        """The first body begins to come: from here on time counts, also between two answers."""
        if self._began == math.inf:
            self._began = self._clock()
            self.skip()

    def skip(self) -> None:
        """Begin a new window: the time since the last byte was ours, as when a whole file was hashed again."""
        self._window_began, self._in_window = self._clock(), 0

    def count(self, size: int) -> None:
        """Note that so many bytes came since `begin`; Retryable when it takes too long."""
        now = self._clock()
        self._in_window += size
        if now - self._began > self._policy.deadline_s:
            raise Retryable(
                f"the download did not end within {self._policy.deadline_s:.0f} s",
                code="deadline",
                hint="It goes on from here with its next run; raise stream.deadline_s for very large files.",
            )
        passed = now - self._window_began
        if passed >= self._policy.min_rate_window_s:
            if self._in_window < self._policy.min_rate_bytes_s * passed:
                raise Retryable(
                    f"the server sent less than {self._policy.min_rate_bytes_s:.0f} bytes a second",
                    code="too_slow",
                    hint="It goes on from here with its next run; lower stream.min_rate_bytes_s to be patient.",
                )
            self.skip()

    def gain(self, size: int) -> None:
        """Note so many bytes of the file that were not held before."""
        self._gained += size

    def reach(self, offset: int) -> None:
        """Note how far the file has come; what was held once, and comes again, is no gain."""
        self.gain(max(0, offset - self._furthest))
        self._furthest = max(self._furthest, offset)

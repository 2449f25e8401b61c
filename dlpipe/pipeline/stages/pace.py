"""The time a body may take: a total deadline and a least rate over a window (STREAM-5, HTTP.md row 47)."""

from __future__ import annotations

from collections.abc import Callable

from dlpipe.core.errors import Retryable
from dlpipe.pipeline.deps import StreamPolicy


class Pace:
    def __init__(self, policy: StreamPolicy, clock: Callable[[], float], began: float | None = None) -> None:
        """`began`: when the first of several bodies did, if it was not this one."""
        self._policy = policy
        self._clock = clock
        self._window_began = clock()
        self._began = self._window_began if began is None else began
        self._in_window = 0

    def count(self, size: int) -> None:
        """Note that so many bytes came; Retryable when it takes too long."""
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
            self._window_began, self._in_window = now, 0

"""Writes a growing file out behind its end, so that the last fsync is short; a large one leaves memory as it grows.

What would be read last of a large file has gone from memory when the first of it is wanted, and has pushed everything
else out meanwhile. Besides, memory that is used again costs less than memory that is used for the first time.
"""

from __future__ import annotations

import os
from collections import deque

from dlpipe.store.preallocate import write_out, written_out

WINDOW_BYTES = 32 << 20
LAG = 2
"""Windows that the disk may be behind before it is waited for."""


class Early:
    def __init__(self) -> None:
        self.drop = False
        """Let memory go once its bytes are on the disk."""
        self._from = 0
        self._under_way: deque[tuple[int, int]] = deque()

    def stand_at(self, offset: int) -> None:
        self._from = offset
        self._under_way.clear()

    def came_to(self, fd: int, offset: int) -> None:
        """The file is written up to there. OSError: what the disk said of earlier bytes, of which fsync would not."""
        size = offset - self._from
        if size < WINDOW_BYTES:
            return
        write_out(fd, self._from, size)
        self._under_way.append((self._from, size))
        self._from = offset
        if len(self._under_way) > LAG:
            begin, length = self._under_way.popleft()
            if self.drop and written_out(fd, begin, length):
                os.posix_fadvise(fd, begin, length, os.POSIX_FADV_DONTNEED)

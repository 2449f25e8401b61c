"""Writes a growing file out behind its end, so that the last fsync is short; a large one leaves memory as it grows.

What would be read last of a large file has gone from memory when the first of it is wanted, and has pushed everything
else out meanwhile. Besides, memory that is used again costs less than memory that is used for the first time.

All of it is done by a thread of its own: to hand pages to the disk, and to take them back, is work for a processor.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque

from dlpipe.store.preallocate import write_out, written_out

WINDOW_BYTES = 32 << 20
LAG = 2
"""Windows that the disk may be behind before it is waited for, and as many again before the file waits for it."""
LOOK_S = 5.0

_Window = tuple[int, int, int, bool]
"""Descriptor, offset, size; and whether its memory may go once the bytes are on the disk."""


class Early:
    def __init__(self) -> None:
        self.stands_at = 0
        """Before it everything is on its way to the disk."""
        self._given: queue.Queue[_Window | threading.Event | None] = queue.Queue(LAG)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._ends = False

    def stand_at(self, offset: int) -> None:
        """What is written next begins there; called when all is settled."""
        self.stands_at = offset

    def came_to(self, fd: int, offset: int, *, drop: bool) -> None:
        """The file is written up to there, a window further; `drop`: let memory go once its bytes are on the disk.

        OSError: what the disk said of earlier bytes, of which an fsync would not.
        """
        self._raise()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dlpipe-disk", daemon=True)
            self._thread.start()
        self._given.put((fd, self.stands_at, offset - self.stands_at, drop))
        self.stands_at = offset

    def settle(self) -> None:
        """Wait until nothing is done to the file any more. OSError as above: it must be heard before an fsync."""
        if self._thread is not None:
            turn = threading.Event()
            self._given.put(turn)
            while not turn.wait(LOOK_S) and self._thread.is_alive():
                pass
        self._raise()

    def close(self) -> None:
        if self._thread is not None:
            self._ends = True
            self._given.put(None)
            self._thread.join()
            self._thread = None

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        under_way: deque[_Window] = deque()
        while (given := self._given.get()) is not None:
            if isinstance(given, threading.Event):
                under_way.clear()  # what follows is another file, or an fsync, which waits for these as well
                given.set()
                continue
            if self._ends or self._error is not None:
                continue
            try:
                fd, begin, size, _ = given
                write_out(fd, begin, size)
                under_way.append(given)
                if len(under_way) > LAG:
                    _let_go(*under_way.popleft())
            except BaseException as error:
                self._error = error


def _let_go(fd: int, begin: int, size: int, drop: bool) -> None:
    if drop and written_out(fd, begin, size):
        os.posix_fadvise(fd, begin, size, os.POSIX_FADV_DONTNEED)

"""Work on blocks of bytes behind the back of who fills them: a few buffers go round between two threads.

hashlib lets go of the interpreter's lock, so that hashing one block and receiving the next take their time together.
Nothing is counted on the filling side: an exception may come there between any two steps (Ctrl-C), and a count that
missed one would be waited for until the end of days.
"""

from __future__ import annotations

import mmap
import queue
import threading
from collections.abc import Callable

BLOCK_BYTES = 256 << 10
BLOCKS = 3
LOOK_S = 5.0
QUIET_S = 0.05


class Behind:
    """`work` is called with each block in its order, on another thread; what it raises comes up at the next call."""

    def __init__(
        self,
        work: Callable[[memoryview], None],
        quiet: Callable[[], None] = lambda: None,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """`quiet` is called on that thread as well, when it has worked and nothing has come for a moment, not even
        somebody who settles."""
        self._work, self._quiet, self.block_bytes = work, quiet, block_bytes
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        self._given: queue.SimpleQueue[tuple[memoryview, memoryview] | threading.Event | None] = queue.SimpleQueue()
        self._lent: memoryview | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dlpipe-hash", daemon=True)
        for _ in range(BLOCKS):
            self._free.put(self._block())
        self._thread.start()

    def buffer(self) -> memoryview:
        """A block to be filled; the same one again as long as it was not handed over."""
        if self._lent is None:
            self._lent = self._take()
        self._raise()
        return self._lent

    def hand_over(self, data: memoryview) -> bool:
        """Have it worked on, if it lies in the block that was lent; it must not be touched any more."""
        if self._lent is None or data.obj is not self._lent.obj:
            return False
        # Not lent any more before it is given: a block that nobody has is lost, one that two have holds wrong bytes.
        block, self._lent = self._lent, None
        self._given.put((block, data))
        return True

    def settle(self) -> None:
        """Wait until everything that was handed over is done."""
        self._drain()
        self._raise()

    def close(self) -> None:
        """End the thread, after what was handed over."""
        self._given.put(None)
        self._thread.join()

    def _take(self) -> memoryview:
        while True:
            try:
                return self._free.get(timeout=LOOK_S)
            except queue.Empty:
                self._drain()
                if self._free.empty():  # all is done, and none is back: an exception came while one was passed on
                    self._free.put(self._block())

    def _drain(self) -> None:
        """What comes to its turn comes after all that was given before."""
        turn = threading.Event()
        self._given.put(turn)
        while not turn.wait(LOOK_S):
            if not self._thread.is_alive():
                return

    def _raise(self) -> None:
        if self._error is not None:
            self._drain()  # what came behind it must not be worked on either, once the error is forgotten
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        is_quiet = True
        while True:
            try:
                given = self._given.get(timeout=None if is_quiet else QUIET_S)
            except queue.Empty:
                is_quiet = True
                self._do(self._quiet)
                continue
            if given is None:
                return
            if isinstance(given, threading.Event):
                is_quiet = True  # who has settled may count on being alone
                given.set()
                continue
            block, data = given
            is_quiet = False
            self._do(self._work, data)
            del given, data
            self._free.put(block)

    def _do(self, what: Callable[..., None], *given: memoryview) -> None:
        if self._error is None:  # nothing counts after what failed
            try:
                what(*given)
            except BaseException as error:
                self._error = error

    def _block(self) -> memoryview:
        # Mapped, not from the heap: pages that were never touched cost nothing.
        return memoryview(mmap.mmap(-1, self.block_bytes))


_spare_blocks: list[memoryview] = []
"""Blocks that small files have come in: to get a new one for each costs more than the file."""


def spare_block() -> memoryview:
    try:
        return _spare_blocks.pop()
    except IndexError:
        # From the heap, as mapped memory would be one with that of a process which is forked from here.
        return memoryview(bytearray(BLOCK_BYTES))


def give_back(block: memoryview) -> None:
    _spare_blocks.append(block)

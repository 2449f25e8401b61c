"""Ctrl-C between two steps rather than in the middle of one, so that what was said afterwards is true."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """While it is entered, Ctrl-C takes hold at `look`, and at once while `waiting` or when pressed a second time."""

    def __init__(self) -> None:
        self.waiting = False
        self._wanted = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        # Elsewhere than in the main thread, or where nohup has it ignored, there is nothing to put off.
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGINT) not in (None, signal.SIG_IGN):
            self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def look(self) -> None:
        if self._wanted:
            raise KeyboardInterrupt

    def _pressed(self, _number: int, _frame: FrameType | None) -> None:
        if self.waiting or self._wanted:
            raise KeyboardInterrupt
        self._wanted = True

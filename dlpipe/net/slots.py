"""Keeps the slots of this process: a thread renews them as long as answers are on their way.

A slot is a lease, so that a killed worker's comes back; a body may stream for hours, and its reader has other
things to do than to say so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

Renew = Callable[[Sequence[tuple[str, str]]], None]

log = logging.getLogger(__name__)


class Renewals:
    """The thread lives only while something is held."""

    def __init__(self, every_s: float, renew: Renew) -> None:
        self._every_s, self._renew = every_s, renew
        self._held: set[tuple[str, str]] = set()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def add(self, host: str, token: str) -> None:
        with self._changed:
            self._held.add((host, token))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dlpipe-slots", daemon=True)
                self._thread.start()

    def remove(self, host: str, token: str) -> None:
        """After this it is not renewed any more, also not by a renewal that is under way: that is waited for."""
        with self._changed:
            self._held.discard((host, token))

    def close(self) -> None:
        with self._changed:
            self._held.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        with self._changed:
            while True:
                self._changed.wait(self._every_s)
                if not self._held:
                    self._thread = None
                    return
                try:
                    self._renew(sorted(self._held))
                except Exception:
                    log.exception("slots were not renewed")

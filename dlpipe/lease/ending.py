"""The word that a worker is to end, from its main process to the children it forked.

Celery lets children finish what they are in the middle of, without a limit. They give it up instead, and it goes on
elsewhere from the bytes that it has.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


class Ending:
    """Made before the fork. A pipe into which one byte is put that nobody takes out: so all children see it."""

    def __init__(self) -> None:
        self._seen, self._said = os.pipe()

    def say(self) -> None:
        os.write(self._said, b".")

    def hear(self, then: Callable[[], object]) -> None:
        """Call `then` once, in a thread of this process, when the word is said; also when it was said before."""

        def listen() -> None:
            waiting = select.poll()
            waiting.register(self._seen, select.POLLIN)
            waiting.poll()
            then()

        threading.Thread(target=listen, name="dlpipe-ending", daemon=True).start()

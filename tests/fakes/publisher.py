"""A broker that is a list: what was published, and what of it waits to be taken."""

from __future__ import annotations

from collections.abc import Sequence

from dlpipe.core.ports import Hint


class FakePublisher:
    """The port `Publisher`."""

    def __init__(self) -> None:
        self.sent: list[Hint] = []
        self.queue: list[Hint] = []
        self.error: Exception | None = None
        self.tells = True

    def publish(self, hints: Sequence[Hint]) -> None:
        if self.error is not None:
            raise self.error
        wanted = [hint for hint in hints if hint.stages]
        self.sent += wanted
        self.queue += wanted

    def waiting(self) -> int | None:
        return len(self.queue) if self.tells else None

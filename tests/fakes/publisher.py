"""A broker that is a list: what was published, and what of it waits to be taken."""

from __future__ import annotations

from collections.abc import Sequence

from dlpipe.core import flow
from dlpipe.core.flow import Queue
from dlpipe.core.ports import Hint, Queued


class FakePublisher:
    """The port `Publisher`."""

    def __init__(self) -> None:
        self.sent: list[Hint] = []
        self.queue: list[Hint] = []
        self.error: Exception | None = None
        self.tells = True
        self.junk: dict[Queue, int] = {}
        """Messages of other kinds, by the queue in which they lie."""

    def publish(self, hints: Sequence[Hint]) -> None:
        if self.error is not None:
            raise self.error
        wanted = [hint for hint in hints if hint.stages]
        self.sent += wanted
        self.queue += wanted

    def waiting(self) -> list[Queued] | None:
        """A message goes to the queue of the first of its stages."""
        if not self.tells:
            return None
        return [
            Queued(
                frozenset(row.name for row in flow.STAGES if row.queue is queue),
                self.junk.get(queue, 0) + sum(hint.stages[0].queue is queue for hint in self.queue),
            )
            for queue in (Queue.NET, Queue.DISK)
        ]

"""A broker that is a list: what was published, and what of it waits to be taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

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

    def waiting(self, nodes: Collection[str] = ()) -> list[Queued] | None:
        """A message goes to the queue of the first of its stages; a node has queues of its own for staged ones."""
        if not self.tells:
            return None
        lie = Counter((hint.stages[0].queue, (hint.node or "") if hint.stages[0].staged else "") for hint in self.queue)
        return [
            Queued(
                frozenset(row.name for row in flow.STAGES if row.queue is queue and (row.staged or not node)),
                self.junk.get(queue, 0) + lie[queue, node],
                node,
            )
            for node in ("", *nodes)
            for queue in (Queue.NET, Queue.DISK)
        ]

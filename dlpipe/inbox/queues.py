"""Which queues a worker takes from: `-Q net` and `-X net` mean what is called so, whatever its name at the broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.app import amqp
from celery.utils.functional import maybe_list

from dlpipe.defaults import called


class Queues(amqp.Queues):
    """A queue is chosen, or left out, together with the one of the release before that it replaces."""

    def select(self, include: str | Iterable[str]) -> None:
        names = maybe_list(include)
        if names:
            self._consume_from = {queue.name: queue for name in list(names) for queue in called(self, name)}

    def deselect(self, exclude: str | Iterable[str]) -> None:
        if exclude:
            known: dict[str, Any] = dict(self)
            gone = {queue.name for name in maybe_list(exclude) for queue in called(self, name)}
            taken = known if self._consume_from is None else self._consume_from
            self._consume_from = {name: queue for name, queue in taken.items() if queue.name not in gone}

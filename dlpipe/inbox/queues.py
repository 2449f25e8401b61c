"""Which queues a worker takes from: `-Q net` and `-X net` mean what is called so, whatever its name at the broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from celery.app import amqp
from celery.utils.functional import maybe_list
from kombu.transport import virtual

from dlpipe.defaults import called, replaced

log = logging.getLogger(__name__)


class Queues(amqp.Queues):
    """A queue is chosen, or left out, together with the one of the release before that it replaces."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._told: set[str] = set()

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

    def can_take(self, name: str, connection: Any) -> bool:
        """Tries those of the release before, whose names may be another project's, on a channel that can be lost."""
        queue: Any = replaced(self).get(name)
        if queue is None:
            return True
        try:
            with connection.channel() as channel:
                queue(channel).declare()
                if not isinstance(channel, virtual.Channel):
                    channel.basic_get(name)  # a right of its own; what comes goes back with the channel
        except connection.channel_errors as error:
            if name not in self._told:
                self._told.add(name)
                log.warning(
                    "passed over: the queue %s of the release before cannot be taken from (%s); where it is another "
                    "project's, set broker.old_queues=false", name, type(error).__name__,
                )  # fmt: skip
            return False
        return True

"""What a worker does where staging folders are not shared: it takes from its node's queues, and says that it does.

A sign of life is given as long as messages are taken, and by nobody else: with it, a silent queue and a dead machine
are the same thing (ADR 36).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery, bootsteps

from dlpipe.core.errors import DlpipeError
from dlpipe.core.flow import NODE_QUEUES, Queue, node_queue
from dlpipe.defaults import called

log = logging.getLogger(__name__)

Beat = Callable[[Sequence[Queue]], bool]
"""Gives a sign of life for these queues; answers whether the node is to take no new jobs."""


def take_own(app: Celery, node: str) -> bool:
    """Who takes from a queue for all nodes also takes from this node's of the same kind, whatever `-Q` says.

    Answers whether it takes from any of this node's.
    """
    queues = app.amqp.queues
    taken = _taken(queues)
    theirs = [(queues[kind.value].name, queues[node_queue(kind, node)].name) for kind in NODE_QUEUES]
    own = {mine for shared, mine in theirs if shared in taken or mine in taken}
    # Written out: else it would take from every queue that it comes to know of, those of other nodes among them.
    queues.select(sorted(taken | own))
    return bool(own)


def _taken(queues: Any) -> set[str]:
    """By their names at the broker; `-Q` may have called them by others."""
    return {queue.name for queue in queues.consume_from.values()}


def install(app: Celery, node: str, every_s: float, beat: Beat) -> None:
    """Let the workers of this process be present, from the moment they take messages until they stop."""
    takes_new = app.amqp.queues[Queue.NET.value].name in _taken(app.amqp.queues)

    class Presence(bootsteps.StartStopStep):
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def __init__(self, consumer: Any, **_: Any) -> None:
            self._present: _Present | None = None

        def start(self, parent: Any) -> None:
            self._present = _Present(parent, node, every_s, beat, takes_new=takes_new)
            self._present.start()

        def stop(self, parent: Any) -> None:
            if self._present is not None:
                self._present.end()
                self._present = None

        def terminate(self, parent: Any) -> None:
            self.stop(parent)

        def shutdown(self, parent: Any) -> None:
            self.stop(parent)

    app.steps["consumer"].add(Presence)


class _Present(threading.Thread):
    def __init__(self, consumer: Any, node: str, every_s: float, beat: Beat, *, takes_new: bool) -> None:
        super().__init__(name="dlpipe-presence", daemon=True)
        self._consumer, self._every_s, self._beat = consumer, every_s, beat
        queues = consumer.app.amqp.queues
        taken = _taken(queues)
        self._kinds = [kind for kind in NODE_QUEUES if queues[node_queue(kind, node)].name in taken]
        self._shared = queues[Queue.NET.value]
        self._takes_new = takes_new
        # It may have been left before the connection to the broker was lost, and made anew.
        self._left = takes_new and self._shared.name not in taken
        self._over = threading.Event()

    def run(self) -> None:
        while self._kinds and not self._over.is_set():
            self._say()
            self._over.wait(self._every_s)

    def end(self) -> None:
        self._over.set()

    def _say(self) -> None:
        try:
            drains = self._beat(self._kinds)
        except DlpipeError as error:
            log.warning("no sign of life was given: %s", error)
            return
        except Exception:
            log.exception("no sign of life was given")
            return
        if self._takes_new and drains is not self._left and not self._over.is_set():
            self._left = drains
            self._consumer.call_soon(self._leave if drains else self._take)

    def _leave(self) -> None:
        """New jobs come from the queue for all nodes; the node's own brings what is here already."""
        log.warning("this node is drained: it takes no new jobs")
        self._consumer.app.amqp.queues.deselect([self._shared.name])
        for queue in self._all_shared():
            self._consumer.task_consumer.cancel_by_queue(queue.name)

    def _take(self) -> None:
        log.warning("this node takes new jobs again")
        for queue in self._all_shared():
            self._consumer.app.amqp.queues.select_add(queue)
            self._consumer.task_consumer.add_queue(queue)
        self._consumer.task_consumer.consume()

    def _all_shared(self) -> list[Any]:
        """With that of the release before."""
        return called(self._consumer.app.amqp.queues, Queue.NET.value)

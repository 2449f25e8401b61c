"""From which queues a worker takes where staging folders are not shared (OPS-4)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from celery import Celery

from dlpipe import defaults, presence
from dlpipe.core.errors import LedgerUnavailable
from dlpipe.core.flow import Queue
from dlpipe.inbox.transport import Amqp
from dlpipe.settings import Settings, load
from tests.servers import wait_until

OWN = {"node.net.a", "node.disk.a"}
EVERY_S = 0.01


def worker(*only: str, without: Sequence[str] = (), broker: str = "redis://redis.example") -> Celery:
    """An app as a worker has it, once `-Q` and `-X` were applied."""
    settings = Settings.model_validate(
        {"node": "a", "store": {"staging": "node"}, "broker_url": broker, "redis_url": "redis://redis.example"}
    )
    app = Celery("nodes", amqp=Amqp, set_as_current=False)
    app.config_from_object(defaults.config(settings))
    app.amqp.queues.select(list(only))
    app.amqp.queues.deselect(list(without))
    presence.take_own(app, "a")
    return app


def taken(app: Celery) -> set[str]:
    """By short names, each of which means two queues: that of today, and that of the release before."""
    found = [defaults.short_name(queue) for queue in app.amqp.queues.consume_from.values()]
    assert {found.count(name) for name in found} == {2}
    return set(found)


@pytest.mark.parametrize("broker", ["redis://redis.example", "amqp://rabbit.example"])
@pytest.mark.parametrize(
    ("only", "own"),
    [
        (["net"], {"node.net.a"}),
        (["disk"], {"node.disk.a"}),
        (["net", "disk", "beat"], OWN),
        (["beat"], set()),
        (["beat", "node.disk.a"], {"node.disk.a"}),
    ],
)
def test_who_takes_for_all_nodes_also_takes_for_its_own(broker: str, only: list[str], own: set[str]) -> None:
    assert taken(worker(*only, broker=broker)) == {*only, *own}


def test_without_a_choice_it_takes_from_all_but_never_from_other_nodes() -> None:
    app = worker()
    assert taken(app) == {"plan", "net", "disk", "beat", *OWN}
    for queue in defaults.node_queues(Queue.NET, "b", load({}).settings):
        app.amqp.queues.add(queue)  # it sends there, and may connect anew
    assert taken(app) == {"plan", "net", "disk", "beat", *OWN}


def test_who_leaves_out_a_queue_keeps_the_others() -> None:
    assert taken(worker(without=["net"])) == {"plan", "disk", "beat", *OWN}


class Consumer:
    """What a worker's consumer has to do with it."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.task_consumer = self
        self.canceled: list[str] = []
        self.added: list[str] = []

    def call_soon(self, what: Callable[[], None]) -> None:
        what()

    def cancel_by_queue(self, name: str) -> None:
        self.canceled.append(name)

    def add_queue(self, queue: Any) -> None:
        self.added.append(queue.name)

    def consume(self) -> None:
        pass


class Node:
    """What the ledger says of it."""

    def __init__(self) -> None:
        self.drains = False
        self.fails = False
        self.heard: list[tuple[Queue, ...]] = []

    def beat(self, kinds: Sequence[Queue]) -> bool:
        self.heard.append(tuple(kinds))
        if self.fails:
            raise LedgerUnavailable("away")
        return self.drains


def present() -> bool:
    return any(thread.name == "dlpipe-presence" for thread in threading.enumerate())


def steps(app: Celery, node: Node) -> Any:
    presence.install(app, "a", EVERY_S, node.beat)
    (step,) = app.steps["consumer"]
    return step


def test_it_gives_signs_for_the_queues_it_takes_from_from_start_to_stop() -> None:
    app, node = worker("disk"), Node()
    consumer = Consumer(app)
    step = steps(app, node)(consumer)
    step.start(consumer)
    wait_until(lambda: len(node.heard) > 2, "signs of life")
    assert set(node.heard) == {(Queue.DISK,)}
    step.stop(consumer)
    wait_until(lambda: not present(), "the thread to end")
    count = len(node.heard)
    step.start(consumer)  # the connection is there again
    wait_until(lambda: len(node.heard) > count, "signs again")
    step.shutdown(consumer)


def test_who_takes_from_no_such_queue_gives_none() -> None:
    app, node = worker("beat"), Node()
    consumer = Consumer(app)
    step = steps(app, node)(consumer)
    step.start(consumer)
    wait_until(lambda: not present(), "the thread to end")
    assert node.heard == []


def test_a_drained_node_leaves_the_queue_for_new_jobs_and_comes_back_to_it() -> None:
    app, node = worker("net", "disk"), Node()
    consumer = Consumer(app)
    step = steps(app, node)(consumer)
    step.start(consumer)
    node.drains = True
    wait_until(lambda: len(consumer.canceled) > 1, "the queue to be left")
    assert (consumer.canceled, taken(app)) == (["dlpipe.net", "net"], {"disk", *OWN})
    node.fails = True  # nobody knows, so nothing changes
    count = len(node.heard)
    wait_until(lambda: len(node.heard) > count + 2, "further signs")
    assert consumer.added == []
    node.fails, node.drains = False, False
    wait_until(lambda: len(consumer.added) > 1, "the queue to be taken from again")
    assert (consumer.added, taken(app)) == (["dlpipe.net", "net"], {"net", "disk", *OWN})
    step.stop(consumer)


def test_what_was_undone_while_the_broker_was_away_is_seen_when_it_is_back() -> None:
    app, node = worker("net", "disk"), Node()
    consumer = Consumer(app)
    step = steps(app, node)(consumer)
    step.start(consumer)
    node.drains = True
    wait_until(lambda: len(consumer.canceled) > 1, "the queue to be left")
    step.stop(consumer)
    node.drains = False
    step.start(consumer)
    wait_until(lambda: len(consumer.added) > 1, "the queue to be taken from again")
    step.stop(consumer)
    assert (consumer.added, taken(app)) == (["dlpipe.net", "net"], {"net", "disk", *OWN})


def test_who_never_took_new_jobs_does_not_begin_to() -> None:
    app, node = worker("disk"), Node()
    node.drains = True
    consumer = Consumer(app)
    step = steps(app, node)(consumer)
    step.start(consumer)
    wait_until(lambda: len(node.heard) > 1, "signs of life")
    node.drains = False
    count = len(node.heard)
    wait_until(lambda: len(node.heard) > count + 2, "further signs")
    step.stop(consumer)
    assert (consumer.canceled, consumer.added, taken(app)) == ([], [], {"disk", "node.disk.a"})

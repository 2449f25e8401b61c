"""How messages find the node where the part is: the queues' names and kinds, and the steps of a chain (OPS-4)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from celery import Celery

from dlpipe import defaults, wiring
from dlpipe.celery import CeleryPublisher
from dlpipe.core.flow import STAGES, Queue
from dlpipe.inbox.transport import Amqp
from dlpipe.settings import Settings, load


def publisher(monkeypatch: pytest.MonkeyPatch, broker: str) -> tuple[Celery, CeleryPublisher]:
    settings = Settings.model_validate(
        {"node": "a", "store": {"staging": "node"}, "broker_url": broker, "redis_url": "redis://redis.example"}
    )
    monkeypatch.setattr(wiring, "settings", lambda: settings)
    app = Celery("queues", amqp=Amqp, set_as_current=False)
    app.config_from_object(defaults.config(settings))
    return app, CeleryPublisher(app)


def queue_of(app: Celery, step: dict[str, Any]) -> str:
    routed = app.amqp.router.route(dict(step["options"]), step["task"])["queue"]
    return str(routed.name)


def chain(app: Celery) -> list[dict[str, Any]]:
    return [dict(app.signature(f"dlpipe.{row.name}", args=("job", 1), immutable=True)) for row in STAGES]


@pytest.mark.parametrize(("broker", "end"), [("redis://redis.example", ""), ("amqp://rabbit.example", ".quorum")])
def test_what_works_on_the_part_goes_to_its_node_and_the_rest_to_any(
    monkeypatch: pytest.MonkeyPatch, broker: str, end: str
) -> None:
    app, sends = publisher(monkeypatch, broker)
    steps = chain(app)
    sends.steer(steps, "b")
    assert [queue_of(app, step) for step in steps] == [
        f"dlpipe.{name}{end}" for name in ("net", "node.net.b", "node.net.b", "node.disk.b", "disk", "disk")
    ]
    sends.steer(steps, None)
    assert [queue_of(app, step) for step in steps] == [f"dlpipe.{row.queue.value}{end}" for row in STAGES]


def test_queues_of_other_nodes_are_of_the_kind_that_they_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    app, sends = publisher(monkeypatch, "amqp://rabbit.example")
    theirs = app.amqp.queues[sends.node_queue(Queue.NET, "b")]
    own = app.amqp.queues["node.net.a"]
    assert theirs.queue_arguments == own.queue_arguments == app.amqp.queues["net"].queue_arguments
    assert (theirs.name, own.name) == ("dlpipe.node.net.b.quorum", "dlpipe.node.net.a.quorum")


def test_where_staging_is_shared_no_node_has_a_queue() -> None:
    names = {defaults.short_name(queue) for queue in defaults.config(load({}).settings)["task_queues"]}
    assert names == {"plan", "net", "disk", "beat"}


@pytest.mark.parametrize("name", ["b", "b.c", "net", "quorum", "b-quorum", "node.net.a"])
def test_messages_for_a_node_go_to_its_queue_whatever_other_nodes_are_called(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """RabbitMQ's names end in .quorum, and must be nobody's name in routes: so no node may be called like that."""
    app, sends = publisher(monkeypatch, "amqp://rabbit.example")
    for other in (name, f"{name}.quorum", name):
        with suppress(ValueError):
            Settings.model_validate({"node": other, "store": {"staging": "node"}})
            sends.node_queue(Queue.NET, other)
    step = dict(app.signature("dlpipe.stream", args=("job", 1), immutable=True))
    sends.steer([step], name)
    assert queue_of(app, step) == f"dlpipe.node.net.{name}.quorum"


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "ä", "a" * 64, "a.quorum"])
def test_a_node_has_a_name_that_a_queue_and_a_folder_can_have(name: str) -> None:
    with pytest.raises(ValueError, match=r"node|at least 1"):
        Settings.model_validate({"node": name, "store": {"staging": "node"}})
    if name:
        assert Settings.model_validate({"node": name}).own_node is None


def test_a_node_is_not_given_up_for_a_few_missed_signs() -> None:
    with pytest.raises(ValueError, match="3 times"):
        Settings.model_validate({"nodes": {"beat_s": 10, "gone_after_s": 30}})

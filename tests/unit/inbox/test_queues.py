"""From which queues a worker takes: prefix, kind, and those of the release before (OPS-3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from celery import Celery
from kombu import Queue as Binding
from kombu.exceptions import ChannelError
from kombu.transport import memory

from dlpipe import defaults
from dlpipe.celery import CeleryPublisher
from dlpipe.inbox.consumer import Consumer
from dlpipe.inbox.transport import Amqp, Connection
from dlpipe.settings import Settings

REDIS, RABBIT = "redis://redis.example", "amqp://rabbit.example"


def worker(*only: str, without: Sequence[str] = (), url: str = REDIS, **broker: Any) -> Celery:
    """An app as a worker has it, once `-Q` and `-X` were applied, with a queue of the deployment's own."""
    settings = Settings.model_validate({"broker_url": url, "redis_url": REDIS, "broker": broker})
    app = Celery("queues", amqp=Amqp, set_as_current=False)
    app.config_from_object(defaults.config(settings))
    app.conf.task_queues = [*app.conf.task_queues, Binding("ours", routing_key="ours")]
    app.amqp.queues.select(list(only))
    app.amqp.queues.deselect(list(without))
    return app


def taken(app: Celery) -> set[str]:
    return {queue.name for queue in app.amqp.queues.consume_from.values()}


ALL = {"dlpipe.plan", "dlpipe.net", "dlpipe.disk", "dlpipe.beat", "plan", "net", "disk", "beat", "ours"}


@pytest.mark.parametrize("name", ["net", "dlpipe.net"])
def test_queue_is_chosen_or_left_out_by_its_short_name_and_by_its_whole_one(name: str) -> None:
    assert taken(worker()) == ALL
    assert taken(worker(name)) == {"dlpipe.net", "net"}
    assert taken(worker(without=[name])) == ALL - {"dlpipe.net", "net"}
    assert taken(worker("net", "disk", without=[name])) == {"dlpipe.disk", "disk"}


@pytest.mark.parametrize("name", ["net", "net.quorum", "dlpipe.net", "dlpipe.net.quorum"])
def test_queue_of_rabbitmq_has_further_names(name: str) -> None:
    pair = {"dlpipe.net.quorum", "net.quorum"}
    assert taken(worker(name, url=RABBIT)) == pair
    left = taken(worker(url=RABBIT)) - taken(worker(without=[name], url=RABBIT))
    assert left == pair
    assert taken(worker("net", url=RABBIT, quorum=False)) == {"dlpipe.net", "net"}


def test_queue_of_the_deployments_own_is_what_it_says() -> None:
    assert taken(worker("ours")) == {"ours"}
    assert taken(worker("theirs", "net")) == {"theirs", "dlpipe.net", "net"}


def test_prefix_is_a_setting_and_none_is_the_names_of_before() -> None:
    assert taken(worker("net", queue_prefix="prod-")) == {"prod-net", "net"}
    assert taken(worker("net", queue_prefix="")) == {"net"}
    assert taken(worker(queue_prefix="")) == {"plan", "net", "disk", "beat", "ours"}
    for bad in ("a b", "a/b", "*", "a:", "x" * 65):
        with pytest.raises(ValueError, match="queue_prefix"):
            worker(queue_prefix=bad)


def test_queues_of_the_release_before_can_be_left_to_others() -> None:
    assert taken(worker("net", old_queues=False)) == {"dlpipe.net"}
    assert taken(worker(old_queues=False)) == {name for name in ALL if "." in name} | {"ours"}


@pytest.fixture
def anothers(monkeypatch: pytest.MonkeyPatch) -> str:
    """A queue that the broker refuses to declare."""
    put = memory.Channel._new_queue

    def refuse(self: Any, queue: str, **options: Any) -> Any:
        if queue == "beat":
            raise ChannelError("another's")
        return put(self, queue, **options)

    monkeypatch.setattr(memory.Channel, "_new_queue", refuse)
    return "beat"


def consumer(app: Any, connection: Connection) -> Any:
    return app.amqp.TaskConsumer(connection)


def consumed(app: Celery, connection: Connection) -> set[str]:
    return {queue.name for queue in consumer(app, connection).queues}


def test_queue_of_the_release_before_that_is_anothers_is_passed_over_with_one_warning(
    anothers: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = worker(url="memory://")
    with Connection("memory://") as connection:
        assert [consumed(app, connection) for _ in range(2)] == [ALL - {anothers}] * 2
    said = [line.getMessage().partition(" of the ")[0] for line in caplog.records]
    assert said == ["passed over: the queue beat"]


@pytest.mark.parametrize("old_queues", [True, False])
def test_queue_of_this_release_that_is_anothers_is_not_passed_over(anothers: str, old_queues: bool) -> None:
    app = worker(anothers, url="memory://", queue_prefix="", old_queues=old_queues)
    with Connection("memory://") as connection, pytest.raises(ChannelError):
        consumed(app, connection)


def listening(connection: Connection, app: Celery, *queue: str) -> set[str]:
    """Where a worker of `ours` takes from after `celery control add_consumer`."""
    made: Any = object.__new__(Consumer)
    made.app, made.connection, made.task_consumer = app, connection, consumer(app, connection)
    made.add_task_queue(*queue)
    return {one.name for one in made.task_consumer.queues}


@pytest.mark.parametrize("name", ["net", "dlpipe.net"])
def test_command_to_take_from_a_queue_means_what_is_called_so(name: str) -> None:
    with Connection("memory://") as connection:
        assert listening(connection, worker("ours", url="memory://", old_queues=False), name) == {"ours", "dlpipe.net"}
        assert listening(connection, worker("ours", url="memory://"), name) == {"ours", "dlpipe.net", "net"}


def test_command_to_take_from_a_queue_passes_over_what_is_anothers(anothers: str) -> None:
    with Connection("memory://") as connection:
        assert listening(connection, worker("ours", url="memory://"), anothers) == {"ours", "dlpipe.beat"}


def test_command_to_take_from_a_queue_that_is_not_known_makes_it_as_it_says() -> None:
    app = worker("ours", url="memory://")
    with Connection("memory://") as connection:
        assert listening(connection, app, "theirs", "way", "topic", "a.#") == {"ours", "theirs"}
    theirs: Any = app.amqp.queues["theirs"]
    assert (theirs.exchange.name, theirs.exchange.type, theirs.routing_key) == ("way", "topic", "a.#")


@pytest.mark.parametrize("url", [REDIS, RABBIT])
def test_nothing_is_sent_to_the_queues_of_the_release_before(url: str) -> None:
    app = worker(url=url)
    for task in ("dlpipe.head", "dlpipe.finalize", "dlpipe.plan", "dlpipe.reconcile", "somebodys.task"):
        assert app.amqp.router.route({}, task)["queue"].name.startswith("dlpipe."), task


def test_commands_to_the_workers_of_another_project_are_not_for_ours() -> None:
    ours: Any = worker().control
    theirs: Any = worker(queue_prefix="prod.").control
    assert (ours.mailbox.namespace, theirs.mailbox.namespace) == ("dlpipe.control", "prod.control")


def test_messages_in_either_queue_are_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lie = {"dlpipe.net": 2, "net": 3, "dlpipe.disk": 0, "disk": 1, "ours": 4}
    monkeypatch.setattr("dlpipe.celery._lengths", lambda _, queues, __: {name: lie.get(name, 0) for name in queues})
    app = worker(url="memory://")
    found = {min(one.stages): one.messages for one in CeleryPublisher(app).waiting() or ()}
    assert found == {"head": 5, "dedupe": 1}
    assert CeleryPublisher(app).depths() == {"plan": 0, "net": 5, "disk": 1, "beat": 0, "ours": 4}

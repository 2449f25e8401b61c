"""Hints on their way to a real broker: many in one push, and each still a chain that goes on by itself (HEAL-1)."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain

from dlpipe import celery, defaults
from dlpipe.celery import CeleryPublisher
from dlpipe.core import flow
from dlpipe.core.errors import BrokerUnavailable
from dlpipe.core.ports import Hint
from dlpipe.settings import Settings
from tests.rabbitmq import RabbitMQ
from tests.servers import Valkey, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("publisher"),
    pytest.mark.own_engines("it is about each of them", "broker"),
    pytest.mark.no_engines("ledger", "store"),
]

JOBS = 50
HINTS = [Hint(str(n), 1, flow.STAGES) for n in range(10)]


@pytest.fixture
def broker() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    with RabbitMQ(tmp_path_factory.mktemp("rabbit")) as server:
        yield server


@pytest.fixture
def by_rabbit(rabbit: RabbitMQ) -> Iterator[Celery]:
    app = Celery("by_rabbit", set_as_current=False)
    app.config_from_object(defaults.config(Settings(broker_url=rabbit.url, redis_url="redis://127.0.0.1:1/0")))
    yield app
    app.close()


@pytest.fixture
def sender(broker: Valkey) -> Iterator[Celery]:
    app = Celery("sender", set_as_current=False)
    app.config_from_object(
        {**defaults.config(Settings()), "broker_url": f"redis+socket://{broker.socket}?virtual_host=0"}
    )
    yield app
    app.close()


def messages(broker: Valkey, queue: str) -> list[Any]:
    """What lies there, the oldest first: (task, args, tasks that follow, with theirs)."""
    with broker.client() as client:
        found = [json.loads(one) for one in reversed(client.lrange(queue, 0, -1))]
    told = []
    for one in found:
        args, _, more = json.loads(base64.b64decode(one["body"]))
        told.append((one["headers"]["task"], args, [(step["task"], step["args"]) for step in more["chain"] or ()]))
    return told


def test_each_hint_is_the_chain_that_celery_would_send(broker: Valkey, sender: Celery) -> None:
    hints = [Hint(f"job{n}", n + 1, flow.STAGES[n % len(flow.STAGES) :]) for n in range(JOBS)]
    for hint in hints:
        steps = [
            sender.signature(f"dlpipe.{row.name}", args=(hint.job_id, hint.run), immutable=True) for row in hint.stages
        ]
        chain(*steps, app=sender).apply_async()
    expected = [messages(broker, queue) for queue in ("dlpipe.net", "dlpipe.disk")]
    with broker.client() as client:
        client.flushall()
    CeleryPublisher(sender).publish(hints)
    assert [messages(broker, queue) for queue in ("dlpipe.net", "dlpipe.disk")] == expected
    assert sum(map(len, expected)) == JOBS


def test_a_broker_that_dies_before_the_push_is_told_as_unavailable(broker: Valkey, sender: Celery) -> None:
    """Only the end of the batch meets it, when all has been said."""

    class Cut(CeleryPublisher):
        def _send_first(self, hint: Hint, producer: Any) -> None:
            super()._send_first(hint, producer)
            if hint.job_id == "last":
                broker.kill()

    with pytest.raises(BrokerUnavailable):
        Cut(sender).publish([Hint(name, 1, flow.STAGES) for name in ("first", "last")])


def test_a_broker_that_dies_between_two_messages_is_told_as_unavailable(broker: Valkey, sender: Celery) -> None:
    class Cut(CeleryPublisher):
        def _answers(self) -> None:
            super()._answers()
            broker.kill()

    with pytest.raises(BrokerUnavailable):
        Cut(sender).send("dlpipe.enqueue_download", ["a"])


# ── RabbitMQ ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_queues_of_rabbitmq_are_counted_by_the_names_that_alerts_and_workers_use(by_rabbit: Celery) -> None:
    publisher = CeleryPublisher(by_rabbit)
    publisher.publish([Hint("a", 1, flow.STAGES), Hint("b", 1, flow.STAGES[3:]), Hint("c", 1, flow.STAGES[4:])])
    expected = {"plan": 0, "net": 1, "disk": 2, "beat": 0}
    wait_until(lambda: publisher.depths() == expected, "the messages to be counted")
    assert sum(one.messages for one in publisher.waiting() or ()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stopped", "cut off"])
def test_a_rabbitmq_that_goes_between_two_messages_is_told_as_unavailable_and_used_again(
    fault: str, rabbit: RabbitMQ, by_rabbit: Celery
) -> None:
    class Cut(CeleryPublisher):
        def _send_first(self, hint: Hint, producer: Any) -> None:
            super()._send_first(hint, producer)
            if hint.job_id == "5":
                if fault == "stopped":
                    rabbit.stop()
                else:
                    rabbit.ctl("close_all_connections", "a test")

    with pytest.raises(BrokerUnavailable):
        Cut(by_rabbit).publish(HINTS)
    if fault == "stopped":
        rabbit.start()
    CeleryPublisher(by_rabbit).publish(HINTS)


@pytest.mark.slow
def test_a_rabbitmq_that_has_no_room_keeps_nobody_waiting(
    rabbit: RabbitMQ, by_rabbit: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery, "CONFIRM_S", 1.0)
    CeleryPublisher(by_rabbit).publish(HINTS)
    rabbit.ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        wait_until(lambda: "memory" in rabbit.ctl("eval", "rabbit_alarm:get_alarms()."), "the alarm")
        with pytest.raises(BrokerUnavailable):
            CeleryPublisher(by_rabbit).publish(HINTS)
        with pytest.raises(BrokerUnavailable):
            CeleryPublisher(by_rabbit).send("dlpipe.enqueue_download", ["a"])
    finally:
        rabbit.ctl("set_vm_memory_high_watermark", "0.9")
    CeleryPublisher(by_rabbit).publish(HINTS)

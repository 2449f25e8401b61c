"""Hints on their way to a real broker: many in one push, and each still a chain that goes on by itself (HEAL-1)."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain

from dlpipe import defaults
from dlpipe.celery import CeleryPublisher
from dlpipe.core import flow
from dlpipe.core.errors import BrokerUnavailable
from dlpipe.core.ports import Hint
from dlpipe.settings import Settings
from tests.servers import Valkey

pytestmark = [
    pytest.mark.integration,
    pytest.mark.own_engines("what lies in Redis is read", "broker"),
    pytest.mark.no_engines("ledger", "store"),
]

JOBS = 50


@pytest.fixture
def broker() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


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
    expected = [messages(broker, queue) for queue in ("net", "disk")]
    with broker.client() as client:
        client.flushall()
    CeleryPublisher(sender).publish(hints)
    assert [messages(broker, queue) for queue in ("net", "disk")] == expected
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

"""What a worker's consumer lets through to Celery, and what it takes off the queue; the fuzzer sends it far more."""

from __future__ import annotations

import base64
import json
from typing import Any

import kombu
import pytest
from celery import Celery, chain
from celery.worker.consumer import Consumer as CelerysConsumer

from dlpipe.celery import app
from dlpipe.core import messages
from dlpipe.core.messages import Fault
from dlpipe.inbox.consumer import Consumer
from tests.fuzz.forgery import CALLS, good


class Message:
    """As kombu gives it, with a body that is decoded when it is asked for."""

    def __init__(self, payload: Any = None, **changed: Any) -> None:
        task, call = CALLS[0]
        frame = good(task, call if payload is None else payload, "an-id")
        self.content_type, self.content_encoding = "application/json", "utf-8"
        self.headers, self.properties = frame["headers"], frame["properties"]
        self.body = base64.b64decode(frame["body"])
        self.acknowledged = False
        vars(self).update(changed)

    def decode(self) -> Any:
        return json.loads(self.body)

    def ack_log_error(self, *_: Any) -> None:
        self.acknowledged = True


@pytest.fixture
def drops(monkeypatch: pytest.MonkeyPatch) -> list[Fault]:
    found: list[Fault] = []
    monkeypatch.setattr("dlpipe.inbox.consumer.dropped", found.append)
    return found


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What comes to Celery."""
    found: list[Any] = []
    monkeypatch.setattr(CelerysConsumer, "create_task_handler", lambda *_, **__: found.append)
    return found


def consumer() -> Any:
    """With all that looking at messages needs, and no broker."""
    made: Any = object.__new__(Consumer)
    made.app, made.connection_errors = app, ()
    app.loader.import_default_modules()
    return made


def test_message_of_a_task_comes_to_celery(drops: list[Fault], handled: list[Any]) -> None:
    consumer().create_task_handler()(message := Message())
    assert (handled, drops, message.acknowledged) == ([message], [], False)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (Message(content_type="application/x-yaml"), Fault.CONTENT),
        (Message(headers=[1]), Fault.HEADERS),
        (Message(body=b"{"), Fault.BODY),
        (Message(body=b"["), Fault.BODY),
        (Message([[], {}]), Fault.BODY),
        (Message([["a"], {}, {}]), Fault.ARGUMENTS),
        (Message([["a", "1"], {}, {}]), Fault.ARGUMENTS),
        (Message(headers={"task": "no.such", "id": "x"}), Fault.TASK),
        (Message({"task": "no.such", "id": "x"}, headers={}), Fault.TASK),
    ],
)
def test_malformed_message_is_off_its_queue_and_counted(
    message: Message, fault: Fault, drops: list[Fault], handled: list[Any]
) -> None:
    consumer().create_task_handler()(message)
    assert (handled, drops, message.acknowledged) == ([], [fault], True)


def test_what_celery_finds_wrong_is_dropped_the_same_way(drops: list[Fault], caplog: pytest.LogCaptureFixture) -> None:
    """Its own answers log the whole message."""
    made, error = consumer(), ValueError("a secret")
    told = [Message() for _ in range(4)]
    made.on_decode_error(told[0], error)
    made.on_unknown_message(None, told[1])
    made.on_unknown_task(None, told[2], error)
    made.on_invalid_task(None, told[3], error)
    assert drops == [Fault.BODY, Fault.BODY, Fault.TASK, Fault.HEADERS]
    assert all(message.acknowledged for message in told)
    assert caplog.text == ""


@pytest.mark.parametrize("protocol", [1, 2])
def test_what_celery_sends_is_right(protocol: int) -> None:
    """With all that a caller can ask for."""
    sender = Celery("sender", broker="memory://", set_as_current=False)
    sender.conf.task_protocol = protocol
    seen: list[tuple[Any, dict[str, Any]]] = []

    class Producer(kombu.Producer):
        def publish(self, body: Any, *_: Any, **options: Any) -> None:
            seen.append((json.loads(json.dumps(body)), json.loads(json.dumps(options["headers"] or {}))))

    steps = [sender.signature(f"dlpipe.{name}", args=("job", 1), immutable=True) for name in ("stream", "finalize")]
    options: dict[str, Any] = {
        "countdown": 5, "expires": 60, "time_limit": 30, "soft_time_limit": 10.5, "priority": 3, "retries": 2,
        "shadow": "other", "headers": {"traceparent": "00-a-b-01"}, "link": steps[0], "link_error": steps[1],
    }  # fmt: skip
    with sender.connection_for_write() as connection:
        producer = Producer(connection)
        for more in ({}, options, {"chain": list(chain(*steps).tasks)}):
            sender.send_task("dlpipe.head", args=["job", 1], producer=producer, **more)
    for body, headers in seen:
        assert messages.of_frame("application/json", "utf-8", {}, headers, b"") is None
        assert messages.of_body(body, headers) is None
    assert len(seen) == 3

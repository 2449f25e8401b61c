"""Every connection of the app outlives what it is sent, whatever its address; see also the fuzzer of messages."""

from __future__ import annotations

import base64
import uuid
import zlib
from typing import Any

import amqp
import kombu
import pytest

from dlpipe.celery import make_app
from dlpipe.core.messages import Fault
from dlpipe.inbox import transport
from dlpipe.inbox.clock import Clock
from dlpipe.inbox.transport import Connection, guarded
from tests.fuzz.forgery import CALLS, good


@pytest.mark.parametrize(
    "url",
    ["redis://h", "rediss://h", "redis+socket:///s", "sentinel://h", "amqp://h", "amqps://h", "memory://"],
)
def test_connection_to_any_broker_has_the_layers_once(url: str) -> None:
    plain: Any = kombu.Connection(url).get_transport_cls()
    ours: Any = Connection(url).get_transport_cls()
    assert issubclass(ours, plain)
    assert ours is guarded(plain)
    assert type(Connection(url).clone()) is Connection
    if "amqp" in url:
        assert issubclass(ours.Connection.Channel, transport._AmqpChannel)
    else:
        assert issubclass(ours, transport._VirtualTransport)
        assert issubclass(ours.Channel, transport._RedisChannel) is ("redis" in plain.__module__)


def test_the_apps_connections_are_of_this_kind() -> None:
    app = make_app()
    assert isinstance(app.connection_for_read("memory://"), Connection)
    assert isinstance(app.connection_for_write("memory://"), Connection)


def test_callback_that_fails_on_data_is_outlived_and_others_are_not() -> None:
    def fails(error: BaseException) -> Any:
        def callback(_: Any) -> None:
            raise error

        return transport._surviving(callback)

    for error in (TypeError(), KeyError(), AttributeError(), RecursionError(), OverflowError()):
        fails(error)(None)
    for other in (OSError(), ConnectionError(), MemoryError(), SystemExit(), RuntimeError()):
        with pytest.raises(type(other)):
            fails(other)(None)


# ── what comes in; in memory, where kombu frames messages as on Redis ──


def delivered(*raw: Any) -> list[Any]:
    """What a consumer is given of messages that lie in a queue like this."""
    seen: list[Any] = []
    with Connection("memory://") as connection:
        channel: Any = connection.channel()
        queue = kombu.Queue(uuid.uuid4().hex, channel=channel)
        queue.declare()
        for one in raw:
            channel._put(queue.name, one)
        with kombu.Consumer(channel, [queue], on_message=seen.append, accept=["json"]):
            for _ in raw:
                connection.drain_events(timeout=1)
    return seen


def of_rabbitmq() -> Any:
    """A channel without a connection."""
    transport: Any = Connection("amqp://h").get_transport_cls()
    return object.__new__(transport.Connection.Channel)


def frame(**changed: Any) -> dict[str, Any]:
    return {**good(*CALLS[0], "an-id"), **changed}


def test_frame_that_is_none_is_dropped_and_the_next_one_comes() -> None:
    seen = delivered([], None, {}, frame(properties=None), frame(body=None), frame(body="abc"), frame())
    assert [one.payload for one in seen] == [CALLS[0][1]]


def test_callbacks_for_messages_of_rabbitmq_outlive_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks: list[Any] = []
    monkeypatch.setattr(amqp.Channel, "basic_consume", lambda *_, callback, **__: callbacks.append(callback))
    channel = of_rabbitmq()
    channel.basic_consume("queue", callback=lambda message: message["task"])
    assert callbacks[0](5) is None
    assert callbacks[0]({"task": "x"}) == "x"


def test_packed_message_is_not_unpacked() -> None:
    """A few bytes may become more than the machine has."""
    packed = zlib.compress(b"[" + b" " * 10_000_000)
    (one,) = delivered(frame(body=base64.b64encode(packed).decode(), headers={"compression": "zlib"}))
    assert one.body == packed
    channel = of_rabbitmq()
    raw = amqp.Message(packed, application_headers={"compression": "zlib"}, content_type="application/json")
    raw.delivery_info = {"delivery_tag": 1}
    assert channel.message_to_python(raw).body == packed


def test_control_command_that_fails_on_its_data_leaves_the_worker_its_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drops: list[Fault] = []
    monkeypatch.setattr("dlpipe.inbox.control.dropped", drops.append)
    app: Any = make_app()
    node = app.control.mailbox.Node("w1@h", state={}, handlers={})
    bodies: tuple[Any, ...] = (None, [], {"method": "ping", "pattern": 5, "matcher": 5}, {"method": 5, "reply_to": 5})
    for body in bodies:
        node.handle_message(body)
    assert drops == [Fault.HANDLING] * 4
    assert isinstance(app.clock, Clock)


@pytest.mark.parametrize("value", ["x", None, [], -1, 2**62, 10**4299, 1.5])
def test_clock_is_set_by_small_numbers_only(value: Any) -> None:
    clock = Clock(7)
    assert clock.adjust(value) == 8
    assert clock.adjust(20) == 21

"""Every connection of the app outlives what it is sent, whatever its address; see also the fuzzer of messages."""

from __future__ import annotations

from typing import Any

import kombu
import pytest

from dlpipe.celery import make_app
from dlpipe.inbox import transport
from dlpipe.inbox.clock import Clock
from dlpipe.inbox.transport import Connection, guarded


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
    channel: Any = ours.Channel if hasattr(ours, "Channel") else ours.Connection.Channel
    assert issubclass(channel, transport._Channel)
    assert issubclass(channel, transport._RedisChannel) is ("redis" in plain.__module__)


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


@pytest.mark.parametrize("value", ["x", None, [], -1, 2**62, 10**4299, 1.5])
def test_clock_is_set_by_small_numbers_only(value: Any) -> None:
    clock = Clock(7)
    assert clock.adjust(value) == 8
    assert clock.adjust(20) == 21

"""A connection to the broker that outlives what it is sent, whatever kombu makes of it.

On Redis kombu parses, frames and decodes a message itself, and raises in the middle of the worker's event loop where
that fails. Here such a message is dropped at that place; it is off its queue already. `Connection` puts these layers
on the transport of any broker address.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import kombu
from celery.app.amqp import AMQP
from kombu.exceptions import SerializationError, SerializerNotInstalled
from kombu.transport import virtual
from kombu.utils.json import loads

from dlpipe.core.messages import Fault, of_envelope
from dlpipe.inbox.drops import dropped
from dlpipe.inbox.queues import Queues

BAD_DATA = (
    *(TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError),
    *(SerializationError, SerializerNotInstalled),
)
"""How code fails on data of a kind that it does not expect. Others tell of the broker, the pool or the machine."""
_Callback = Callable[..., Any]


def _surviving(callback: _Callback) -> _Callback:
    """Commands and events of other workers are handled in the callback; `Consumer` looks at messages for tasks."""

    def deliver(*message: Any) -> Any:
        try:
            return callback(*message)
        except BAD_DATA:
            dropped(Fault.HANDLING)
            return None

    return deliver


class _RedisChannel:
    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except BAD_DATA:  # it is no JSON, or no UTF-8, or a decoder of kombu's cannot read a value
            dropped(Fault.TEXT)
            return True

    def _handle_message(self, client: Any, response: Any) -> Any:
        """What is published to all: kombu passes over a message without data."""
        found: dict[str, Any] = super()._handle_message(client, response)  # type: ignore[misc]
        if isinstance(found["data"], bytes | str):
            try:
                loads(found["data"])
            except BAD_DATA:
                dropped(Fault.TEXT)
                found["data"] = None
        return found


class _VirtualTransport:
    def _deliver(self, message: Any, queue: str) -> None:
        fault = of_envelope(message)
        if fault is not None:
            dropped(fault)
            return
        # A few bytes may unpack to more than the machine has. dlpipe packs nothing, so it is not unpacked: not JSON.
        (message.get("headers") or {}).pop("compression", None)
        _surviving(super()._deliver)(message, queue)  # type: ignore[misc]


class _AmqpChannel:
    def basic_consume(self, *args: Any, callback: _Callback, **kwargs: Any) -> Any:
        return super().basic_consume(*args, callback=_surviving(callback), **kwargs)  # type: ignore[misc]

    def message_to_python(self, raw: Any) -> Any:
        headers = raw.properties.get("application_headers") or {}
        headers.pop("compression", None)  # as above
        return super().message_to_python(raw)  # type: ignore[misc]


@cache
def guarded(transport: Any) -> Any:
    """The transport with these layers on it."""
    if issubclass(transport, virtual.Transport):
        layers = (_RedisChannel,) if hasattr(transport.Channel, "_brpop_read") else ()
        channel = type("Channel", (*layers, transport.Channel), {})
        return type("Transport", (_VirtualTransport, transport), {"Channel": channel})
    if hasattr(transport, "Connection"):
        channel = type("Channel", (_AmqpChannel, transport.Connection.Channel), {})
        connection = type("Connection", (transport.Connection,), {"Channel": channel})
        return type("Transport", (transport,), {"Connection": connection})
    return transport


class Connection(kombu.Connection):
    def get_transport_cls(self) -> Any:
        transport: Any = super().get_transport_cls()
        return guarded(transport)


class Amqp(AMQP):
    """The app's: its connections and its queues are of these kinds."""

    Connection = Connection
    queues_cls = Queues

    def TaskConsumer(self, channel: Any, queues: Any = None, accept: Any = None, **kw: Any) -> Any:  # noqa: N802
        """A worker's, of its connection."""
        taken: Any = self.queues
        found = queues or [one for name, one in taken.consume_from.items() if taken.can_take(name, channel)]
        return super().TaskConsumer(channel, found, accept, **kw)

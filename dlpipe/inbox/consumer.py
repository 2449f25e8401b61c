"""A worker's consumer that looks at each message for a task before Celery handles it (Celery's `worker_consumer`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Signature, signature
from typing import Any

from celery.utils.log import get_logger
from celery.worker.consumer import Consumer as CelerysConsumer

from dlpipe.core import messages
from dlpipe.core.messages import Fault
from dlpipe.defaults import called, known
from dlpipe.inbox.drops import dropped
from dlpipe.inbox.transport import BAD_DATA

log = get_logger(__name__)


class Consumer(CelerysConsumer):
    """It takes what is malformed off its queue, and goes on. What Celery finds wrong by itself goes the same way."""

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        handle = super().create_task_handler(*args, **kwargs)
        tasks = self.app.tasks

        @cache
        def takes(name: str) -> Signature:
            return signature(tasks[name].run)

        def on_message(message: Any) -> None:
            try:
                fault = _fault(message, takes)
                if fault is None:
                    handle(message)
                    return
            except BAD_DATA:
                fault = Fault.HANDLING
            self._drop(message, fault)

        return on_message

    def add_task_queue(
        self, queue: Any, exchange: Any = None, exchange_type: Any = None, routing_key: Any = None, **options: Any
    ) -> Any:
        """As `-Q`: together with the queue of the release before, which Celery could not tell from the new one."""
        consumer: Any = self
        queues: Any = self.app.amqp.queues
        found = known(queues, queue)
        if not found:
            return super().add_task_queue(queue, exchange, exchange_type, routing_key, **options)
        for one in found:
            if not consumer.task_consumer.consuming_from(one.name) and queues.can_take(one.name, consumer.connection):
                consumer.task_consumer.add_queue(one)
                consumer.task_consumer.consume()
                log.info("Started consuming from %s", one.name)
        return None

    def cancel_task_queue(self, queue: Any) -> None:
        """As `-X`: together with the queue of the release before."""
        for one in called(self.app.amqp.queues, queue):
            super().cancel_task_queue(one.name)

    def _drop(self, message: Any, fault: Fault) -> None:
        dropped(fault)
        if not message.acknowledged:
            consumer: Any = self
            message.ack_log_error(log, consumer.connection_errors)

    # Celery's own answers log the whole message.

    def on_decode_error(self, message: Any, exc: BaseException) -> None:
        self._drop(message, Fault.BODY)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        self._drop(message, Fault.BODY)

    def on_unknown_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self._drop(message, Fault.TASK)

    def on_invalid_task(self, body: Any, message: Any, exc: BaseException) -> None:
        self._drop(message, Fault.HEADERS)


def _fault(message: Any, takes: Callable[[str], Signature]) -> Fault | None:
    headers = message.headers
    found = messages.of_frame(message.content_type, message.content_encoding, message.properties, headers, message.body)
    if found is not None:
        return found
    try:
        payload = message.decode()
    except Exception:  # whatever kombu's decoders make of it
        return Fault.BODY
    found = messages.of_body(payload, headers)
    if found is not None:
        return found
    named, (args, kwargs) = _call(payload, headers)
    try:
        expected = takes(named)
    except KeyError:
        return Fault.TASK
    return messages.of_arguments(expected, args, kwargs)


def _call(payload: Any, headers: dict[str, Any]) -> tuple[str, tuple[list[Any], dict[str, Any]]]:
    if "task" in headers:
        return headers["task"], (payload[0], payload[1])
    return payload["task"], (payload.get("args", []), payload.get("kwargs", {}))

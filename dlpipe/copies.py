"""Messages that differ from one before them by job, run and id only: copied, as to make one takes far longer.

Celery makes the first of each kind, with all that the configuration says of it. Where what is sent could depend on
the job, or somebody is told of each message as it is made, it makes every one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from celery import Celery, signals
from celery.app.routes import MapRoute
from celery.utils import uuid
from kombu.serialization import dumps

Args = tuple[str, int]
"""A job and its run: the arguments of the first task of a chain, and of those that follow it."""

_TOLD = ("before_task_publish", "after_task_publish", "task_sent")


class Copies:
    """What one push is sent through."""

    def __init__(self, app: Celery, producer: Any) -> None:
        self._app, self._producer = app, producer
        self._first: dict[Hashable, _Listener] = {}

    def send(self, kind: Hashable, args: Args, make: Callable[[Any], object]) -> None:
        """A message of this kind, which `make` sends through the producer that it is given."""
        first = self._first.get(kind)
        if first is None:
            self._first[kind] = first = _Listener(self._producer, args)
            make(first)
        elif self._are_alike and (copied := first.copied) is not None:
            self._copy(copied, args)
        else:
            make(self._producer)

    def _copy(self, copied: _Copied, args: Args) -> None:
        """With all that Celery does beside, once it knows what to send."""
        task_id = uuid()
        with self._producer.connection._reraise_as_library_errors():
            if not copied.headers["ignore_result"]:
                self._app.backend.on_task_call(self._producer, task_id)
            body, options = copied.of(args, task_id)
            self._producer.publish(body, **options)

    @cached_property
    def _are_alike(self) -> bool:
        told = any(getattr(signals, name).receivers for name in _TOLD)
        return not told and all(isinstance(route, MapRoute) for route in self._app.amqp.routes)


class _Listener:
    """A producer, and what it was given to send."""

    def __init__(self, producer: Any, args: Args) -> None:
        self._producer, self._args = producer, args
        self._said: list[tuple[Any, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        self._said.append((body, dict(options)))
        return self._producer.publish(body, **options)

    @cached_property
    def copied(self) -> _Copied | None:
        """Read when a second one is wanted. An event beside the message is not copied, nor what it is about."""
        return _read(self._args, *self._said[0]) if len(self._said) == 1 else None


@dataclass(frozen=True, slots=True)
class _Copied:
    task_id: str
    pieces: list[str]
    """The body around the arguments of each of its steps."""
    headers: Mapping[str, Any]
    options: Mapping[str, Any]

    def of(self, args: Args, task_id: str) -> tuple[str, dict[str, Any]]:
        headers = {name: task_id if value == self.task_id else value for name, value in self.headers.items()}
        headers["argsrepr"] = repr(args)
        options = {name: task_id if value == self.task_id else value for name, value in self.options.items()}
        return json.dumps(args).join(self.pieces), {**options, "headers": headers}


def _read(args: Args, body: Any, options: Mapping[str, Any]) -> _Copied | None:
    """None of a message in which something else may depend on the job than what copies change."""
    headers = options["headers"]
    kind, encoding, text = dumps(body, options["serializer"])
    if kind != "application/json" or headers.get("argsrepr") != repr(args):
        return None
    pieces = text.split(json.dumps(args))
    if len(pieces) != len(body[2]["chain"] or ()) + 2 or args[0] in "".join(pieces):
        return None
    kept = {name: value for name, value in options.items() if name not in _DONE_BY_FIRST}
    return _Copied(headers["id"], pieces, headers, {**kept, "content_type": kind, "content_encoding": encoding})


_DONE_BY_FIRST = ("declare", "headers", "serializer")
"""A channel declares what it sends to once."""

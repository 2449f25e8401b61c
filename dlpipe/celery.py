"""The Celery app, and the publisher that sends hints through it."""

from __future__ import annotations

import importlib
import os
import re
import ssl
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from amqp.exceptions import AccessRefused, MessageNacked, PreconditionFailed
from celery import Celery
from celery.app.defaults import DEFAULTS
from kombu.exceptions import BatchPublishError, ChannelError, OperationalError  # type: ignore[attr-defined]

from dlpipe import defaults, wiring
from dlpipe.copies import Copies
from dlpipe.core import flow
from dlpipe.core.errors import BrokerUnavailable, DlpipeError, Misconfigured
from dlpipe.core.ports import Hint, Queued
from dlpipe.inbox.clock import Clock

OVERLAY_ENV = "CELERY_CONFIG_MODULE"
OVERLAY = "celeryconfig"
_REFUSALS = (OperationalError, BatchPublishError, OSError, MessageNacked, AccessRefused, PreconditionFailed)
_ANOTHERS = re.compile(r"for (queue|exchange) '([^']*)'")
CONFIRM_S = 10.0
"""RabbitMQ confirms each message, and in an alarm says nothing until it is over: nobody who plans waits for that."""


def _overlay() -> dict[str, Any]:
    """What the deployment changes: the module CELERY_CONFIG_MODULE names, else a `celeryconfig` on the path."""
    name = os.environ.get(OVERLAY_ENV, OVERLAY)
    try:
        with _celerys_path():
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name and OVERLAY_ENV not in os.environ:
            return {}
        raise Misconfigured(
            f"the Celery configuration {name!r} cannot be imported",
            code="celeryconfig_missing",
            hint=f"Correct {OVERLAY_ENV}, or unset it.",
        ) from error
    return {key: value for key, value in vars(module).items() if key in DEFAULTS}


@contextmanager
def _celerys_path() -> Iterator[None]:
    """The `celery` command looks for modules in the current folder first, as its users know it.

    `dlpipe` does not: it is run anywhere, also where a file of that name is somebody else's.
    """
    before = list(sys.path)
    if _is_celerys_command():
        sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def make_app() -> Celery:
    # Flower listens on all interfaces unless told; here it is told, before it reads its environment.
    os.environ.setdefault("FLOWER_ADDRESS", "127.0.0.1")
    made = Celery(
        "dlpipe",
        amqp="dlpipe.inbox.transport:Amqp",
        control="dlpipe.inbox.control:Control",
        include=["dlpipe.tasks"],
        set_as_current=False,
    )
    vars(made)["clock"] = Clock()
    made.config_from_object({**defaults.config(wiring.settings()), **_overlay()})
    return made


def _is_celerys_command() -> bool:
    return "celery" in Path(sys.argv[0]).parts[-2:]


def _app() -> Celery:
    try:
        return make_app()
    except DlpipeError as error:
        if not _is_celerys_command():
            raise
        # Left to itself the `celery` command would show where in the code it was found.
        sys.stderr.write(f"error: {error.message} [{error.code}]\n  {error.hint}\n")
        raise SystemExit(2) from None


app = _app()


class CeleryPublisher:
    """Sends each hint as a chain of the stages that remain; a message carries ids only (SAFE-1)."""

    def __init__(self, celery: Celery) -> None:
        self._app = celery

    def publish(self, hints: Sequence[Hint]) -> None:
        # One push of what Redis is sent; other brokers get each at once.
        with self._producer() as producer, producer.batch():
            copies = Copies(self._app, producer)
            for hint in hints:
                self._send_first(hint, copies)

    def _send_first(self, hint: Hint, copies: Copies) -> None:
        if hint.stages:
            kind = (hint.node, *[row.name for row in hint.stages])
            copies.send(kind, (hint.job_id, hint.run), partial(self._make_first, hint))

    def _make_first(self, hint: Hint, producer: Any) -> None:
        """As a chain sends its first step, only together with others; the last of `chain` is the next."""
        args = (hint.job_id, hint.run)
        steps = [
            self._app.signature(f"dlpipe.{row.name}", args=args, immutable=True, **self._way(row, hint.node))
            for row in hint.stages
        ]
        steps[0].apply_async(producer=producer, chain=steps[:0:-1], retry=False, confirm_timeout=CONFIRM_S)

    def steer(self, steps: Sequence[dict[str, Any]], node: str | None) -> None:
        """Let those of a chain's further steps that work on the part go to the node where it is."""
        for step in steps:
            row = flow.stage(str(step["task"]).removeprefix("dlpipe."))
            if row.staged:
                step["options"].pop("queue", None)
                step["options"].update(self._way(row, node))

    def _way(self, row: flow.StageRow, node: str | None) -> dict[str, Any]:
        """To be given to a signature; without a node it goes by its route."""
        return {"queue": self.node_queue(row.queue, node)} if node and row.staged else {}

    def node_queue(self, kind: flow.Queue, node: str) -> str:
        """Its name at the broker, once it is known how to declare it: Celery would make up another kind of queue."""
        bindings, queues = defaults.node_queues(kind, node, wiring.settings()), self._app.amqp.queues
        for binding in bindings:
            if binding.name not in queues:
                queues.add(binding)
        return str(bindings[0].name)

    def send(self, task: str, job_ids: Sequence[str]) -> None:
        """One message per job; the queue is that of the task's route."""
        self._send([self._app.signature(task, args=(job_id,), immutable=True) for job_id in job_ids])

    def ask_nodes(self, task: str, nodes: Sequence[str]) -> None:
        """One message for each of these nodes, which nobody else gets."""
        queues = [self.node_queue(flow.Queue.DISK, node) for node in nodes]
        if queues:
            self._send([self._app.signature(task, immutable=True, queue=queue) for queue in queues])

    def _send(self, tasks: Sequence[Any]) -> None:
        with self._producer() as producer:
            for one in tasks:
                one.apply_async(producer=producer, retry=False, confirm_timeout=CONFIRM_S)

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        """Somebody to send with; BrokerUnavailable, whatever fails meanwhile."""
        try:
            self._answers()
            with self._app.producer_pool.acquire(block=True, timeout=10) as acquired:
                producer: Any = acquired
                try:
                    yield producer
                except Exception:
                    # Its connection has ended, or an answer that is late would count for the next message.
                    producer.connection.collect()
                    raise
        except _REFUSALS as error:
            raise _unavailable(error) from error

    def _answers(self) -> None:
        """Ask first: left to itself, sending to a broker that is away tries for many seconds."""
        with self._app.pool.acquire(block=True, timeout=10) as connection:
            _connected(connection)

    def _queues(self) -> dict[str, frozenset[str]]:
        """Where messages of which stages wait, also when the deployment has given them other queues."""
        found: dict[str, frozenset[str]] = {}
        for row in flow.STAGES:
            name = defaults.short_name(self._app.amqp.router.route({}, f"dlpipe.{row.name}")["queue"])
            found[name] = found.get(name, frozenset()) | {row.name}
        return found

    def waiting(self, nodes: Collection[str] = ()) -> list[Queued] | None:
        queues = {name: (stages, "") for name, stages in self._queues().items()}
        for node in nodes:
            for kind in flow.NODE_QUEUES:
                staged = frozenset(row.name for row in flow.STAGES if row.staged and row.queue is kind)
                self.node_queue(kind, node)
                queues[flow.node_queue(kind, node)] = (staged, node)
        found = self._depths(queues)
        if found is None:
            return None
        return [Queued(stages, found[queue], node) for queue, (stages, node) in queues.items()]

    def depths(self) -> Mapping[str, int]:
        """How many messages wait in each queue that stages, or this app's configuration, know of.

        By the short names, those of `-Q` and of the alerts, whatever the broker calls them.
        """
        try:
            self._answers()
        except _REFUSALS as error:
            raise _unavailable(error) from error
        queues: Mapping[str, Any] = self._app.amqp.queues
        found = self._depths({*self._queues(), *map(defaults.short_name, queues.values())})
        if found is None:
            raise BrokerUnavailable("the broker did not answer")
        return found

    def _depths(self, short_names: Collection[str]) -> dict[str, int] | None:
        """Of each, together with its queue of the release before: a message in either is one that is not lost."""
        queues: Any = self._app.amqp.queues
        names = {short: [queue.name for queue in defaults.called(queues, short)] for short in short_names}
        old = defaults.replaced(queues)
        gone: tuple[type[BaseException], ...] = (OperationalError, OSError)
        try:
            with self._app.pool.acquire(block=True, timeout=10) as acquired:
                connection: Any = acquired
                gone = (*gone, *connection.connection_errors, *connection.channel_errors)
                found = _lengths(connection, [name for several in names.values() for name in several], old)
                return {short: sum(found[name] for name in several) for short, several in names.items()}
        except gone:
            return None


def _unavailable(error: BaseException) -> BrokerUnavailable:
    """With the kind of what was at the bottom of it. Its text can hold an address with a password."""
    while error.__cause__ is not None:  # kombu's own name for it says less
        error = error.__cause__
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerUnavailable(
            f"the broker's certificate is not trusted: {error.verify_message}",
            hint="Name the authority that signed it in DLPIPE_BROKER_CA_FILE, and the broker as its certificate does.",
        )
    if isinstance(error, PreconditionFailed):
        found = _ANOTHERS.search(str(error))
        return BrokerUnavailable(
            f"the broker has {' '.join(found.groups()) if found else 'something'} of that name and of another kind",
            hint="Delete it there, or give dlpipe a virtual host of its own; the jobs go out by themselves then.",
        )
    said = "refused a message" if isinstance(error, MessageNacked) else "did not answer"
    return BrokerUnavailable(f"the broker {said} ({type(error).__name__})")


def _connected(connection: Any) -> Any:
    """The connection's channel, once the broker has answered."""
    connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=5)
    return connection.default_channel


def _lengths(connection: Any, queues: Collection[str], old: Collection[str]) -> dict[str, int]:
    """Where one of the release before cannot be asked for, it is another project's, and nothing of ours is in it."""
    found, channel = {}, _connected(connection)
    for queue in queues:
        try:
            found[queue] = int(channel.queue_declare(queue=queue, passive=True).message_count)
        except connection.channel_errors as error:
            if not isinstance(error, ChannelError) and queue not in old:
                raise
            found[queue] = 0  # Redis forgets an empty queue
            if not getattr(channel, "is_open", True):  # RabbitMQ closes it when it has no such queue
                channel = connection.channel()
    return found

"""The Celery app, and the publisher that sends hints through it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from celery import Celery, chain
from kombu.exceptions import ChannelError, OperationalError

from dlpipe import defaults, wiring
from dlpipe.core.errors import DlpipeError, Misconfigured
from dlpipe.core.flow import Queue
from dlpipe.core.ports import Hint

OVERLAY_ENV = "CELERY_CONFIG_MODULE"
OVERLAY = "celeryconfig"


class BrokerUnavailable(DlpipeError):
    """The broker did not answer. The jobs are on record and are sent when it is back."""

    code = "broker_unavailable"
    hint = "Check that the broker is running and that DLPIPE_BROKER_URL names it; the jobs go out by themselves."


def _overlay() -> dict[str, Any]:
    """What the deployment changes: the module CELERY_CONFIG_MODULE names, else a `celeryconfig` on the path."""
    name = os.environ.get(OVERLAY_ENV, OVERLAY)
    try:
        module: ModuleType = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name and OVERLAY_ENV not in os.environ:
            return {}
        raise Misconfigured(
            f"the Celery configuration {name!r} cannot be imported",
            code="celeryconfig_missing",
            hint=f"Correct {OVERLAY_ENV}, or unset it.",
        ) from error
    return {
        key: value
        for key, value in vars(module).items()
        if key.islower() and not key.startswith("_") and not isinstance(value, ModuleType) and not callable(value)
    }


def make_app() -> Celery:
    # Flower listens on all interfaces unless told; here it is told, before it reads its environment.
    os.environ.setdefault("FLOWER_ADDRESS", "127.0.0.1")
    made = Celery("dlpipe", include=["dlpipe.tasks"], set_as_current=False)
    made.config_from_object({**defaults.config(wiring.settings()), **_overlay()})
    return made


app = make_app()


class CeleryPublisher:
    """Sends each hint as a chain of the stages that remain; a message carries ids only (SAFE-1)."""

    def __init__(self, celery: Celery) -> None:
        self._app = celery

    def publish(self, hints: Sequence[Hint]) -> None:
        try:
            self._answers()
            for hint in hints:
                stages = [
                    self._app.signature(f"dlpipe.{row.name}", args=(hint.job_id, hint.run), immutable=True)
                    for row in hint.stages
                ]
                if stages:
                    chain(*stages, app=self._app).apply_async(retry=False)
        except (OperationalError, OSError) as error:
            raise BrokerUnavailable(f"the broker did not answer ({type(error).__name__})") from error

    def send(self, task: str, job_ids: Sequence[str]) -> None:
        """One message per job; the queue is that of the task's route."""
        try:
            self._answers()
            for job_id in job_ids:
                self._app.signature(task, args=(job_id,), immutable=True).apply_async(retry=False)
        except (OperationalError, OSError) as error:
            raise BrokerUnavailable(f"the broker did not answer ({type(error).__name__})") from error

    def _answers(self) -> None:
        """Ask first: left to itself, sending to a broker that is away tries for many seconds."""
        with self._app.pool.acquire(block=True, timeout=10) as connection:
            _connected(connection)

    def waiting(self) -> int | None:
        try:
            with self._app.pool.acquire(block=True, timeout=10) as connection:
                channel = _connected(connection)
                return sum(_depth(channel, queue) for queue in (Queue.NET, Queue.DISK))
        except (OperationalError, OSError):
            return None


def _connected(connection: Any) -> Any:
    """The connection's channel, once the broker has answered."""
    connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=5)
    return connection.default_channel


def _depth(channel: Any, queue: Queue) -> int:
    try:
        return int(channel.queue_declare(queue=queue.value, passive=True).message_count)
    except ChannelError:
        return 0  # Redis forgets an empty queue

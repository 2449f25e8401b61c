"""Which further steps of a chain a worker does in the same hand, and what is told of them (ADR 42).

A stage that the worker would take from its queues anyway needs no message of its own: the chain is shortened by it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import uuid4

from celery import Celery, signals

from dlpipe import wiring
from dlpipe.core.flow import STAGES

log = logging.getLogger(__name__)

Step = dict[str, Any]
"""One further step of a chain, as a message carries it; of a list of them the last one is next."""

_LIMITS = ("rate_limit", "time_limit", "soft_time_limit")
_STAGES = frozenset(f"dlpipe.{row.name}" for row in STAGES)
_PLAIN = frozenset({"queue", "task_id", "reply_to"})
"""Options that say where a step goes, and not when, or how often."""


def further(app: Celery, steps: Sequence[Step] | None, job_id: str, run: int) -> list[str]:
    """The names of the stages that may be done at once, in their order."""
    if not wiring.settings().worker.in_hand or wiring.settings().own_node:
        return []  # a part that is one node's is found by messages that are steered there
    found: list[str] = []
    for step in reversed(steps or ()):
        # A later release's message may say more than this one knows: it is for somebody who understands it.
        if list(step["args"]) != [job_id, run] or step["kwargs"] or not _PLAIN.issuperset(step["options"]):
            break
        if not _is_taken_here(app, str(step["task"]), step["options"].get("queue")):
            break
        found.append(str(step["task"]).removeprefix("dlpipe."))
    return found


def _is_taken_here(app: Celery, task: str, queue: str | None) -> bool:
    """Does this worker take from the queue that the step would go to, and nothing but that decides when?"""
    if task not in _STAGES:
        return False  # no stage of this release: a later one's, or somebody's own task
    if any(getattr(app.tasks.get(task), limit, None) is not None for limit in _LIMITS) or _limits_all(app):
        return False  # a limit of this stage is Celery's to keep, which has to be given it
    queues: Any = app.amqp.queues
    name = queue or _route(app, task)
    # On RabbitMQ one queue has two names, and `-Q` may have said either. Asked each time: a running worker can be told
    # to take from more queues, or from fewer.
    known = getattr(queues.aliases.get(name), "name", name)
    return known in {taken.name for taken in queues.consume_from.values()}


def _limits_all(app: Celery) -> bool:
    """Has every task a time of its own, by the configuration or by how the worker was started?"""
    said = (app.conf.task_time_limit, app.conf.task_soft_time_limit)
    return any(said) or any(getattr(one, limit, None) for one in _worker for limit in _LIMITS)


@cache
def _route(app: Celery, task: str) -> str:
    queue = app.amqp.router.route({}, task)["queue"]
    return str(getattr(queue, "name", queue))


def tell(task: Any, names: Sequence[str], args: Sequence[Any]) -> None:
    """Events of the stages that were done without a message, for who watches the worker (`-E`). Never fails."""
    if not names or not _watched():
        return
    try:
        _send(task, names, args)
    except Exception as error:  # whatever a broker that is away makes of it: the stages are on record
        log.info("nobody is told of %d stages that are done: %s", len(names), type(error).__name__)


def _send(task: Any, names: Sequence[str], args: Sequence[Any]) -> None:
    request = task.request
    with task.app.events.default_dispatcher(hostname=request.hostname) as dispatcher:
        for name in names:
            its = {"uuid": str(uuid4()), "name": f"dlpipe.{name}", "root_id": request.root_id, "parent_id": request.id}
            dispatcher.send("task-received", args=repr(tuple(args)), kwargs="{}", retries=0, eta=None, **its)
            dispatcher.send("task-started", uuid=its["uuid"])
            dispatcher.send("task-succeeded", uuid=its["uuid"], result="'in hand'", runtime=0.0)


_worker: list[Any] = []
"""The main process's, also in the children that it forked."""


@signals.worker_init.connect(weak=False)
def _note(sender: Any = None, **_: Any) -> None:
    _worker[:] = [sender]


def _watched() -> bool:
    """Is anybody told of tasks? What children were started with is all that they know; threads hear of a change."""
    if not _worker:
        return False
    dispatcher = getattr(getattr(_worker[0], "consumer", None), "event_dispatcher", None)
    if dispatcher is None:
        return bool(_worker[0].task_events)
    return bool(dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups))

"""Send hints for jobs that are due, never more than the window holds (HEAL-1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dlpipe.core.crash import crash_point
from dlpipe.core.events import HintsSent
from dlpipe.core.ports import Hint, Queued, Unit
from dlpipe.pipeline import nodes
from dlpipe.pipeline.deps import Deps, Policy
from dlpipe.pipeline.round import Round
from dlpipe.pipeline.settling import settle


def dispatch(deps: Deps) -> int:
    """Publish due jobs, highest priority first; answer how many."""
    policy = deps.policy

    def take(unit: Unit) -> list[Hint]:
        hints = unit.backlog.take_due(policy.batch, policy.window, policy.window_per_host)
        hints = nodes.at_home(unit, hints, policy.nodes)
        crash_point("dispatch.marking")
        return hints

    sent = 0
    while True:
        hints = settle(deps.database, take)
        _send(deps, hints)
        sent += len(hints)
        if len(hints) < policy.batch:
            return sent


def dispatch_lost(deps: Deps) -> int:
    """Publish again the hints that must have been lost; answer how many.

    As long as a queue holds a message for every job that waits for one of its stages, none is lost, however long it
    is; so the messages can never grow beyond the jobs. Each queue for itself: what lies in one says nothing about
    another, whose messages are gone.
    """
    sent, policy = 0, deps.policy
    for queue, missing in _missing(deps):
        with deps.database.write() as unit:
            hints = _take_lost(unit, policy, queue, missing)
            crash_point("dispatch.marking_lost")
        _send(deps, hints)
        sent += len(hints)
    return sent


def _take_lost(unit: Unit, policy: Policy, queue: Queued, missing: int) -> list[Hint]:
    on = None if policy.nodes is None else (queue.node,)
    hints = unit.backlog.take_lost(min(missing, policy.batch), policy.lost_after_s, queue.stages, on)
    # Not to be sent elsewhere: who is gone is gone for all its jobs, and for reconcile to say.
    return hints if on else [replace(hint, node=None) for hint in hints]


def _missing(deps: Deps) -> list[tuple[Queued, int]]:
    """For which queues more jobs wait for a message than there are messages, and how many more."""
    with deps.database.read() as unit:
        if deps.policy.nodes is None:
            waiting = {(stage, ""): count for stage, count in unit.backlog.waiting().items()}
        else:
            waiting = dict(unit.nodes.waiting())
    queues = deps.publisher.waiting(sorted({node for _, node in waiting if node})) if waiting else None
    found = [(one, sum(waiting.get((name, one.node), 0) for name in one.stages) - one.messages) for one in queues or ()]
    return [(queue, missing) for queue, missing in found if missing > 0]


def rehearse(this: Round) -> None:
    """Count what would be sent."""
    policy, missing = this.deps.policy, _missing(this.deps)
    with this.unit() as unit:
        for queue, count in missing:
            this.count("lost_messages", len(_take_lost(unit, policy, queue, count)))
        this.count("dispatched", len(unit.backlog.take_due(policy.window, policy.window, policy.window_per_host)))


def _send(deps: Deps, hints: Sequence[Hint]) -> None:
    """A crash before this sends anything is healed by dispatch_lost; an error puts the jobs back at once."""
    if not hints:
        return
    crash_point("dispatch.marked")
    try:
        deps.publisher.publish(hints)
    except Exception:
        settle(deps.database, lambda unit: unit.backlog.unpublish([hint.job_id for hint in hints]))
        raise
    deps.telemetry.tell(HintsSent(len(hints)))
    crash_point("dispatch.sent")

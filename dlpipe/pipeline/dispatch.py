"""Send hints for jobs that are due, never more than the window holds (HEAL-1)."""

from __future__ import annotations

from collections.abc import Sequence

from dlpipe.core.crash import crash_point
from dlpipe.core.events import HintsSent
from dlpipe.core.ports import Hint, Unit
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.round import Round
from dlpipe.pipeline.settling import settle


def dispatch(deps: Deps) -> int:
    """Publish due jobs, highest priority first; answer how many."""
    policy = deps.policy

    def take(unit: Unit) -> list[Hint]:
        hints = unit.backlog.take_due(policy.batch, policy.window, policy.window_per_host)
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
    sent = 0
    for stages, missing in _missing(deps):
        with deps.database.write() as unit:
            hints = unit.backlog.take_lost(min(missing, deps.policy.batch), deps.policy.lost_after_s, stages)
            crash_point("dispatch.marking_lost")
        _send(deps, hints)
        sent += len(hints)
    return sent


def _missing(deps: Deps) -> list[tuple[frozenset[str], int]]:
    """Of which stages more jobs wait for a message than there are messages, and how many more."""
    with deps.database.read() as unit:
        waiting = unit.backlog.waiting()
    queues = deps.publisher.waiting() if waiting else None
    found = [(one.stages, sum(waiting.get(name, 0) for name in one.stages) - one.messages) for one in queues or ()]
    return [(stages, missing) for stages, missing in found if missing > 0]


def rehearse(this: Round) -> None:
    """Count what would be sent."""
    policy, missing = this.deps.policy, _missing(this.deps)
    with this.unit() as unit:
        for stages, count in missing:
            lost = unit.backlog.take_lost(min(count, policy.batch), policy.lost_after_s, stages)
            this.count("lost_messages", len(lost))
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

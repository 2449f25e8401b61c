"""Send hints for jobs that are due, never more than the window holds (HEAL-1)."""

from __future__ import annotations

from collections.abc import Sequence

from dlpipe.core.crash import crash_point
from dlpipe.core.events import HintsSent
from dlpipe.core.ports import Hint
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.round import Round


def dispatch(deps: Deps) -> int:
    """Publish due jobs, highest priority first; answer how many."""
    policy = deps.policy
    sent = 0
    while True:
        with deps.database.write() as unit:
            hints = unit.backlog.take_due(policy.batch, policy.window, policy.window_per_host)
            crash_point("dispatch.marking")
        _send(deps, hints)
        sent += len(hints)
        if len(hints) < policy.batch:
            return sent


def dispatch_lost(deps: Deps) -> int:
    """Publish again the hints that must have been lost; answer how many.

    As long as the broker holds a message for every waiting job, none is lost, however long the queue is;
    so the messages can never grow beyond the jobs.
    """
    with deps.database.read() as unit:
        waiting = unit.backlog.waiting()
    held = deps.publisher.waiting()
    if held is None or waiting <= held:
        return 0
    missing = waiting - held
    with deps.database.write() as unit:
        hints = unit.backlog.take_lost(min(missing, deps.policy.batch), deps.policy.lost_after_s)
        crash_point("dispatch.marking_lost")
    _send(deps, hints)
    return len(hints)


def rehearse(this: Round) -> None:
    """Count what would be sent."""
    policy, held = this.deps.policy, this.deps.publisher.waiting()
    with this.unit() as unit:
        missing = 0 if held is None else unit.backlog.waiting() - held
        if missing > 0:
            lost = unit.backlog.take_lost(min(missing, policy.batch), policy.lost_after_s)
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
        with deps.database.write() as unit:
            unit.backlog.unpublish([hint.job_id for hint in hints])
        raise
    deps.telemetry.tell(HintsSent(len(hints)))
    crash_point("dispatch.sent")

"""Heal: whatever a crash, a lost broker or a dead worker left behind becomes work that is due again.

Runs on a beat, at worker start and by hand; two at once do no harm, as every change is a guarded write.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import BrokerUnavailable
from dlpipe.core.ports import Held
from dlpipe.core.recovery import after_crash
from dlpipe.pipeline import dispatch
from dlpipe.pipeline.deps import Deps

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """What one round found and did, by kind."""

    orphans_requeued: int = 0
    orphans_exhausted: int = 0
    dead_owners: int = 0
    lost_messages: int = 0
    dispatched: int = 0
    ops_abandoned: int = 0

    def __str__(self) -> str:
        return " ".join(f"{name}={count}" for name, count in asdict(self).items())


def reconcile(deps: Deps) -> Report:
    """One bounded round."""
    dead = _release_dead(deps)
    requeued, exhausted = _orphans(deps, dead)
    with deps.database.write() as unit:
        abandoned = unit.ledger.mark_abandoned(deps.policy.batch)
        crash_point("reconcile.marking")
    lost = sent = 0
    try:
        lost = dispatch.dispatch_lost(deps)
        sent = dispatch.dispatch(deps)
    except BrokerUnavailable as error:
        log.warning("healed, and not sent: %s", error)  # the next round sends it
    report = Report(requeued, exhausted, len(dead), lost, sent, abandoned)
    if any(asdict(report).values()):
        log.info("reconcile %s", report)
    return report


def _release_dead(deps: Deps) -> list[Held]:
    """Leases of processes on this machine that are certainly gone need not be waited for."""
    with deps.database.read() as unit:
        held = unit.backlog.held(deps.policy.batch)
    dead = [one for one in held if deps.leases.owner_is_dead(one.token)]
    for one in dead:
        deps.leases.release_dead(one.job.job_id, one.token)
        crash_point("reconcile.released")
    return dead


def _orphans(deps: Deps, dead: list[Held]) -> tuple[int, int]:
    """Jobs whose holder is gone by the row's clock and by Redis alike: a new run, or the end."""
    with deps.database.read() as unit:
        expired = unit.backlog.expired(deps.policy.batch)
    live = deps.leases.live([one.job.job_id for one in expired]) if expired else set()
    requeued = exhausted = 0
    for one in [*dead, *(e for e in expired if e.job.job_id not in live)]:
        write = after_crash(one.job.attempts, deps.debug_id(), deps.policy.retry)
        with deps.database.write() as unit:
            freed = unit.backlog.orphan(one, write)
            crash_point("reconcile.freeing")
        crash_point("reconcile.freed")
        if freed and write is None:
            requeued += 1
        elif freed:
            exhausted += 1
    return requeued, exhausted

"""Heal: whatever a crash, a lost broker, a dead worker or a lost file left behind becomes work that is due again.

Runs on a beat, at worker start and by hand; two at once do no harm, as every change is a guarded write. One round is
bounded in rows and in time, and the walks over all rows and files go on where the round before stopped (ADR 21).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import BrokerUnavailable, LeaseUnavailable, StageFailure
from dlpipe.core.events import RoundEnded
from dlpipe.pipeline import blobs, dispatch, holders, nodes, parts, stores
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.round import Report, Round

__all__ = ["Report", "reconcile"]

log = logging.getLogger(__name__)

WALKS: tuple[Callable[[Round], None], ...] = (blobs.registered, blobs.rehashed, blobs.stored, parts.leftover)


def reconcile(deps: Deps, *, dry_run: bool = False) -> Report:
    """One bounded round. A dry run says what there is to do, and changes nothing."""
    this = Round(deps, dry_run=dry_run)
    try:
        _go_round(this)
    finally:
        if not dry_run:
            deps.telemetry.tell(RoundEnded(this.report().counts()))
    report = this.report()
    if any(report.counts().values()):
        log.info("reconcile%s %s", " (dry run)" if dry_run else "", report)
    return report


def sweep(deps: Deps) -> Report:
    """Only the staging folder of this node, which nobody else can see (HEAL-4)."""
    this = Round(deps)
    if _tried(this, store):
        _tried(this, parts.leftover)
    return this.report()


def _go_round(this: Round) -> None:
    _tried(this, holders.silent)
    nodes.gone(this)
    with this.unit() as unit:
        this.count("ops_abandoned", unit.ledger.mark_abandoned(this.deps.policy.batch))
        crash_point("reconcile.marking")
    _send(this)
    if _tried(this, store):
        for walk in WALKS:
            _tried(this, walk)


def store(this: Round) -> None:
    """What is missing in a store that is not there is not lost, and what lies in another one is not ours."""
    stores.recognise(this.deps, dry_run=this.dry_run)
    stores.recognise_others(this.deps)


def _tried(this: Round, step: Callable[[Round], None]) -> bool:
    """Redis or a disk that does not answer must not stop the rest of the round."""
    try:
        step(this)
    except (LeaseUnavailable, StageFailure) as error:
        log.warning("reconcile: %s left for the next round: %s", step.__name__, error)
        this.found("unfinished", step.__name__, f"{error.code}: {error.message}. {error.hint}".rstrip())
        return False
    return True


def _send(this: Round) -> None:
    if this.dry_run:
        dispatch.rehearse(this)
        return
    try:
        this.count("lost_messages", dispatch.dispatch_lost(this.deps))
        this.count("dispatched", dispatch.dispatch(this.deps))
    except BrokerUnavailable as error:
        log.warning("healed, and not sent: %s", error)  # the next round sends it

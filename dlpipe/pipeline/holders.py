"""Leases in the rows whose holder is gone: a new run, the end, or only a mirror to clear (HEAL-2, HEAL-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dlpipe.core.crash import crash_point
from dlpipe.core.ports import Held, Unit
from dlpipe.core.recovery import ClearMirror, GiveUp, HolderFacts, Requeue, after_silence
from dlpipe.pipeline.round import Round


def silent(this: Round) -> None:
    """Leases of processes on this machine that are certainly gone need not be waited for; then all that ran out."""
    leases = this.deps.leases
    dead = []
    for page in _pages(this, lambda unit, after: unit.backlog.held(this.deps.policy.batch, after)):
        dead += [one for one in page if leases.owner_is_dead(one.token)]
    for one in dead:
        this.count("dead_owners")
        if not this.dry_run:
            leases.release_dead(one.job.job_id, one.token)
            crash_point("reconcile.released")
        _heal(this, one, owner_dead=True, live=False)
    # Page by page to the end: leases that Redis keeps alive must not stand in the way of those behind them.
    for page in _pages(this, lambda unit, after: unit.backlog.expired(this.deps.policy.batch, after)):
        live = leases.live([one.job.job_id for one in page])
        for one in page:
            _heal(this, one, owner_dead=False, live=one.job.job_id in live)


def _pages(this: Round, read: Callable[[Unit, Held | None], list[Held]]) -> Iterator[list[Held]]:
    last: Held | None = None
    while True:
        with this.deps.database.read() as unit:
            page = read(unit, last)
        yield page
        if len(page) < this.deps.policy.batch or this.over:
            return
        last = page[-1]


def _heal(this: Round, held: Held, *, owner_dead: bool, live: bool) -> None:
    job = held.job
    facts = HolderFacts(job.state, job.due_at is not None, job.attempts, owner_dead, not owner_dead, live)
    verdict = after_silence(facts, this.deps.debug_id(), this.deps.policy.retry)
    with this.unit() as unit:
        match verdict:
            case ClearMirror():
                if unit.backlog.clear_mirror(held):
                    this.found("mirrors_cleared", job.job_id, "cleared")
            case Requeue():
                if unit.backlog.orphan(held, None):
                    this.found("orphans_requeued", job.job_id, "due again")
            case GiveUp(write=write):
                if unit.backlog.orphan(held, write):
                    this.found("orphans_exhausted", job.job_id, "failed for good")
            case _:
                pass
        crash_point("reconcile.freeing")
    crash_point("reconcile.freed")

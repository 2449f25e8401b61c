"""Staging: parts that nobody wants any more, and temporary files of processes that were killed (HEAL-4)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

from dlpipe.core.crash import crash_point
from dlpipe.core.ports import Staged
from dlpipe.core.recovery import Remove, StagedFacts, judge_staged
from dlpipe.pipeline.round import PAGE, Round

log = logging.getLogger(__name__)

CURSOR = "reconcile.staging"


def leftover(this: Round) -> None:
    """A page at a time; what is removed is removed under its own lock, after it was looked at again."""
    node = this.deps.policy.node
    cursor = CURSOR if node is None else f"{CURSOR}.{hashlib.sha256(node.encode()).hexdigest()[:32]}"
    before = after = this.cursor(cursor)
    looked = 0
    while looked < this.heal.items:
        if this.over:
            this.found("unfinished", "staging", "goes on in the next round")
            break
        page = this.deps.staging.walk(after, PAGE)
        for one in page:
            if one.trouble:
                log.warning("reconcile: %s in the staging folder passed over: %s", one.path, one.trouble)
                this.found("unfinished", one.path, one.trouble)
        _judge(this, [one for one in page if one.age_s >= this.heal.part_age_s])
        looked += len(page)
        after = page[-1].path if len(page) == PAGE else ""
        if not after:
            break
    this.go_on_at(cursor, before, after)


def _judge(this: Round, old: Sequence[Staged]) -> None:
    if not old:
        return
    names = [one.part for one in old if one.part]
    holders = sorted({one.job_id for one in old if one.job_id})
    live = this.deps.leases.live(holders) if holders else set()
    with this.deps.database.read() as unit:
        wanted, known = unit.backlog.wanted_parts(names, this.deps.policy.node), unit.backlog.known(holders)
    for one in old:
        facts = StagedFacts(
            part=one.part is not None,
            temporary=one.temporary,
            age_s=one.age_s,
            vouched=one.job_id is not None,
            job_known=one.job_id in known,
            wanted=one.part in wanted,
            leased=one.job_id in live,
        )
        verdict = judge_staged(facts, this.heal.part_age_s)
        if isinstance(verdict, Remove):
            crash_point("heal.removing")
            with this.passing_over(one.path):
                if this.dry_run or this.deps.staging.discard(one, this.heal.part_age_s):
                    this.found("parts_removed", one.path, f"removed ({verdict.reason})")
        elif verdict.reason == "unknown job":
            this.found("parts_unknown", one.path, "kept: the database does not know its job")

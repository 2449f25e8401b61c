"""Gather what bears on a job, and explain it to its owner."""

from __future__ import annotations

from dlpipe.core.model import Scope
from dlpipe.core.urls import origin_of
from dlpipe.core.why import Surroundings, Why, explain
from dlpipe.pipeline import nodes
from dlpipe.pipeline.deps import Deps


def why(deps: Deps, scope: Scope, job_id: str, *, idle: bool = False) -> Why | None:
    """Why the job is where it is; None for an unknown or foreign id. `idle`: it is known that nobody is at work."""
    policy = deps.policy
    with deps.database.read() as unit:
        standing = unit.owned(scope).standing(job_id)
        in_flight = unit.backlog.in_flight()
        job = unit.backlog.get(job_id) if standing is not None else None
    if standing is None:
        return None
    done, total = deps.progress.get([job_id]).get(job_id, (None, None))
    around = Surroundings(
        max_attempts=policy.retry.max_attempts,
        lost_after_s=policy.lost_after_s,
        host_full=in_flight.get(standing.view.host or "", 0) >= policy.window_per_host,
        window_full=sum(in_flight.values()) >= policy.window,
        done_bytes=done,
        total_bytes=total,
        origin="" if job is None else origin_of(job.canonical_url),
        node=nodes.standing(deps).get(job.node) if job is not None and job.node else None,
        idle=idle,
    )
    return explain(standing, around)

"""Jobs that were done before the ledger was there: written down as finished, without ops (PLAN-7)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa

from dlpipe.core.layout import part_slug
from dlpipe.core.model import JOB_TYPE_ARTIFACT, JobSpec
from dlpipe.core.states import State, status_of
from dlpipe.db.clock import now
from dlpipe.db.inserts import insert_ignoring
from dlpipe.db.planning import earlier_fences
from dlpipe.db.schema import artifact_jobs, jobs


def add_finished(connection: sa.Connection, finished: Sequence[tuple[JobSpec, datetime | None]]) -> set[str]:
    """Those that are new; a job that is there already stays as it is."""
    at = connection.scalar(sa.select(now()))
    # In one order, as the planners insert theirs.
    unique = dict(sorted({spec.job_id: (spec, when) for spec, when in finished}.items()))
    if not unique:
        return set()
    rows = [
        {
            "job_id": spec.job_id,
            "tenant_id": spec.scope.tenant_id,
            "project_id": spec.scope.project_id,
            "job_type": JOB_TYPE_ARTIFACT,
            "status": status_of(State.DEDUPED, retry_due=False).value,
            "progress": 100,
            "idempotency_key": spec.job_key,
            "created_at": at,
            "updated_at": at,
            "completed_at": when or at,
        }
        for spec, when in unique.values()
    ]
    made = set(connection.scalars(insert_ignoring(connection, jobs).values(rows).returning(jobs.c.job_id)))
    fences = earlier_fences(connection, sorted(made))
    details = [
        {
            "job_id": spec.job_id,
            "tenant_id": spec.scope.tenant_id,
            "work_id": spec.work_id,
            "artifact_id": spec.artifact_id,
            "canonical_url": spec.url.canonical,
            "request_url": spec.url.request,
            "host": spec.url.host[:255],
            "state": State.DEDUPED.value,
            "fence": fences.get(spec.job_id, 0),
            "part": part_slug(spec.scope.tenant_id, spec.url.canonical),
        }
        for spec, _ in unique.values()
        if spec.job_id in made
    ]
    if details:
        connection.execute(sa.insert(artifact_jobs), details)
    return made

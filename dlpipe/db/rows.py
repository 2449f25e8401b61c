"""From rows to records."""

from __future__ import annotations

from typing import Any

from dlpipe.core.model import ArtifactJob, ArtifactRecord, Fault, Scope
from dlpipe.core.states import Purpose, State
from dlpipe.db.schema import artifact_jobs, jobs

JOB_COLUMNS = (
    *(c for c in artifact_jobs.c if c.name != "tenant_id"),
    jobs.c.tenant_id,
    jobs.c.project_id,
    jobs.c.request_id,
)


def job_from(row: Any, scope: Scope, *, request_id: str | None = None, lease_live: bool = False) -> ArtifactJob:
    return ArtifactJob(
        job_id=row.job_id,
        scope=scope,
        work_id=row.work_id,
        artifact_id=row.artifact_id,
        canonical_url=row.canonical_url,
        request_url=row.request_url,
        host=row.host,
        state=State(row.state),
        run=row.run,
        fence=row.fence,
        attempts=row.attempts,
        ext=row.ext,
        expected_sha256=row.expected_sha256,
        expected_media_type=row.expected_media_type,
        max_bytes=row.max_bytes,
        mirrors=tuple(row.mirrors or ()),
        lease_owner=row.lease_owner,
        lease_live=lease_live,
        due_at=row.due_at,
        published_at=row.published_at,
        purpose=Purpose(row.purpose) if row.purpose else None,
        replay_from=row.replay_from,
        request_id=request_id,
        node=row.node,
    )


def record_from(row: Any) -> ArtifactRecord:
    """From a row of `artifacts`, with its open fault, if any."""
    return ArtifactRecord(
        artifact_uuid=row.artifact_uuid,
        scope=Scope(row.tenant_id, row.project_id),
        artifact_type=row.artifact_type,
        storage_backend=row.storage_backend,
        storage_pointer=row.storage_pointer,
        content_type=row.content_type,
        byte_size=row.byte_size,
        sha256=row.sha256,
        schema_version=row.schema_version,
        created_by_job_id=row.created_by_job_id,
        created_at=row.created_at,
        fault=Fault(row.fault) if row.fault else None,
        fault_found_at=row.found_at,
        retired_at=row.retired_at,
    )


def is_uuid(text: str) -> bool:
    """PostgreSQL would raise on anything else; an id that cannot be is simply not there."""
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(
        c in "0123456789abcdef" for part in parts for c in part
    )

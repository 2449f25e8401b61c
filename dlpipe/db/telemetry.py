"""Registered results page by page, with their jobs and what was measured; what an export is made of (OPS-7)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dlpipe.core.downloads import shown_source
from dlpipe.core.model import Scope
from dlpipe.core.telemetry import Told
from dlpipe.core.urls import redact
from dlpipe.db.download_schema import download_jobs
from dlpipe.db.rows import is_uuid
from dlpipe.db.schema import artifact_jobs, artifacts, job_artifacts, jobs, manifest
from dlpipe.db.wishes import owned_by

_J, _T, _D, _A, _M, _R = jobs.c, artifact_jobs.c, download_jobs.c, artifacts.c, manifest.c, job_artifacts.c
_MEASURED = (
    "shard_prefix run resume_decision resume_reason bytes_written resumed_from_bytes elapsed_ms fsync_ms "
    "avg_write_mibps dedupe_action"
).split()


def results(
    connection: sa.Connection, scope: Scope, limit: int, after: str | None, newest_first: bool, job_id: str | None
) -> list[Told]:
    if job_id is not None and not is_uuid(job_id):
        return []
    # In the order of the jobs' own index, so that a page costs what it holds, however many there are.
    order = (_J.created_at, _J.job_id, _R.position)
    wanted = _query(scope).order_by(*(column.desc() if newest_first else column.asc() for column in order)).limit(limit)
    if job_id is not None:
        wanted = wanted.where(_J.job_id == job_id)
    if after is not None:
        last = _place(connection, scope, after)
        if last is None:
            return []
        here = sa.tuple_(*order)
        there = sa.tuple_(*(sa.literal(part, column.type) for part, column in zip(last, order, strict=True)))
        wanted = wanted.where(here < there if newest_first else here > there)
    return [_told(row) for row in connection.execute(wanted)]


def _place(connection: sa.Connection, scope: Scope, artifact_uuid: str) -> tuple[Any, ...] | None:
    """Where the last artifact of the page before stands in the order."""
    if not is_uuid(artifact_uuid):
        return None
    row = connection.execute(
        sa.select(_J.created_at, _J.job_id, _R.position)
        .select_from(artifacts)
        .join(jobs, _J.job_id == _A.created_by_job_id)
        .join(job_artifacts, (_R.job_id == _J.job_id) & (_R.artifact_uuid == _A.artifact_uuid) & (_R.role == "result"))
        .where(_A.artifact_uuid == artifact_uuid, owned_by(scope))
    ).first()
    return tuple(row) if row else None


def _query(scope: Scope) -> sa.Select[Any]:
    joined = (
        jobs.join(job_artifacts, (_R.job_id == _J.job_id) & (_R.role == "result"))
        .join(artifacts, _A.artifact_uuid == _R.artifact_uuid)
        .outerjoin(artifact_jobs, _T.job_id == _J.job_id)
        .outerjoin(download_jobs, _D.job_id == _J.job_id)
        .outerjoin(manifest, _M.artifact_uuid == _A.artifact_uuid)
    )
    return (
        sa.select(
            _A.artifact_uuid, _A.tenant_id, _A.project_id, _A.artifact_type, _A.content_type, _A.byte_size, _A.sha256,
            _A.created_at, _J.job_id, _J.job_type, _J.request_id, _T.work_id, _T.artifact_id, _T.request_url,
            _D.book_id, _D.media_type, _D.source_url, _M.quota_json, *(_M[name] for name in _MEASURED),
        )
        .select_from(joined)
        .where(owned_by(scope), _A.tenant_id == scope.tenant_id, _A.project_id == scope.project_id)
    )  # fmt: skip


def _told(row: Any) -> Told:
    of_download = row.request_url is None
    return Told(
        artifact_uuid=row.artifact_uuid,
        job_id=row.job_id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        job_type=row.job_type,
        work_id=row.book_id if of_download else row.work_id,
        artifact_id=row.media_type if of_download else row.artifact_id,
        url=shown_source(row.source_url or "") if of_download else redact(row.request_url),
        request_id=row.request_id,
        artifact_type=row.artifact_type,
        content_type=row.content_type,
        byte_size=row.byte_size,
        sha256=row.sha256,
        created_at=row.created_at,
        quota=row.quota_json,
        **{name: getattr(row, name) for name in _MEASURED},
    )

"""Downloads as their owners see them; every statement is bound to a tenant and a project (JOB-5)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dlpipe.core.downloads import DownloadView, FileRow, shown_source
from dlpipe.core.model import Scope
from dlpipe.core.states import Status
from dlpipe.core.torrents import DownloadStatus
from dlpipe.db.download_rows import LIGHT
from dlpipe.db.download_schema import download_files, download_jobs
from dlpipe.db.rows import is_uuid
from dlpipe.db.schema import jobs

_D, _J, _F = download_jobs.c, jobs.c, download_files.c


def get(connection: sa.Connection, scope: Scope, job_id: str) -> DownloadView | None:
    if not is_uuid(job_id):
        return None
    row = connection.execute(_query(scope).where(_D.job_id == job_id)).first()
    if row is None:
        return None
    files = connection.execute(sa.select(download_files).where(_F.job_id == job_id).order_by(_F.position))
    return _view(row, tuple(FileRow(f.path, f.byte_size, f.sha256, f.artifact_uuid) for f in files))


def list_(
    connection: sa.Connection, scope: Scope, state: DownloadStatus | None, limit: int, after: str | None
) -> list[DownloadView]:
    query = _query(scope).order_by(_J.created_at.desc(), _J.job_id.desc()).limit(limit)
    if state is not None:
        query = query.where(_D.status == state.value)
    if after is not None:
        if not is_uuid(after):
            return []
        last = sa.select(_J.created_at, _J.job_id).where(
            _J.job_id == after, _J.tenant_id == scope.tenant_id, _J.project_id == scope.project_id
        )
        query = query.where(sa.tuple_(_J.created_at, _J.job_id) < last.scalar_subquery())
    return [_view(row, ()) for row in connection.execute(query)]


def _query(scope: Scope) -> sa.Select[Any]:
    return (
        sa.select(
            *LIGHT,
            _J.status.label("job_status"),
            _J.progress,
            _J.error_code,
            _J.error_message_safe,
            _J.error_debug_id,
            _J.request_id,
        )
        .join(jobs, _J.job_id == _D.job_id)
        .where(_J.tenant_id == scope.tenant_id, _J.project_id == scope.project_id)
    )


def _view(row: Any, files: tuple[FileRow, ...]) -> DownloadView:
    return DownloadView(
        job_id=row.job_id,
        scope=Scope(row.tenant_id, row.project_id),
        user_id=row.user_id,
        book_id=row.book_id,
        media_type=row.media_type,
        state=DownloadStatus(row.status),
        status=Status(row.job_status),
        progress=row.progress,
        source=row.source,
        source_shown=shown_source(row.source_url),
        external_job_id=row.external_job_id,
        created_at=row.created_at_utc,
        updated_at=row.updated_at_utc,
        completed_at=row.completed_at_utc,
        first_not_found_at=row.first_not_found_at_utc,
        checked_at=row.checked_at_utc,
        size_bytes=row.size_bytes,
        done_bytes=row.done_bytes,
        moved_at=row.moved_at_utc,
        failure_reason=row.failure_reason,
        error_code=row.error_code,
        error_message_safe=row.error_message_safe,
        error_debug_id=row.error_debug_id,
        request_id=row.request_id,
        files=files,
    )

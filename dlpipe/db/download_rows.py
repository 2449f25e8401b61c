"""From rows to downloads, and from a download to its row in `jobs`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from dlpipe.core.downloads import STATUS, Followed, Trouble
from dlpipe.core.torrents import DownloadJob, DownloadStatus, Movement
from dlpipe.db.download_schema import download_jobs
from dlpipe.db.schema import jobs

LIGHT = tuple(column for column in download_jobs.c if column.name != "source_bytes")
"""All but the bytes of a .torrent, which only one kind of work needs."""


def followed(row: Any, source_bytes: bytes | None = None) -> Followed:
    job = DownloadJob(
        job_id=row.job_id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        user_id=row.user_id,
        book_id=row.book_id,
        media_type=row.media_type,
        status=DownloadStatus(row.status),
        source=row.source,
        source_url=row.source_url,
        external_job_id=row.external_job_id,
        row_version=row.row_version,
        created_at_utc=row.created_at_utc,
        updated_at_utc=row.updated_at_utc,
        completed_at_utc=row.completed_at_utc,
        first_not_found_at_utc=row.first_not_found_at_utc,
        checked_at_utc=row.checked_at_utc,
        failure_reason=row.failure_reason,
    )
    moved = row.done_bytes is not None and row.moved_at_utc is not None
    movement = Movement(row.done_bytes, row.moved_at_utc) if moved else None
    return Followed(job, row.due_at_utc, row.attempts, movement, source_bytes)


def derive_job(
    connection: sa.Connection, job_id: str, state: DownloadStatus, now: datetime, trouble: Trouble | None
) -> None:
    """Let the canonical row follow a change of state (JOB-2)."""
    values: dict[str, Any] = {"status": STATUS[state].value, "updated_at": now}
    match state:
        case DownloadStatus.COMPLETED:
            values |= {"progress": 100, "completed_at": now, **error_values(None)}
        case DownloadStatus.FAILED:
            values |= {"failed_at": now, **(error_values(trouble) if trouble else {})}
        case _:
            pass
    connection.execute(sa.update(jobs).where(jobs.c.job_id == job_id).values(**values))


def error_values(trouble: Trouble | None) -> dict[str, Any]:
    return {
        "error_code": trouble.code[:64] if trouble else None,
        "error_message_safe": trouble.message[:1024] if trouble else None,
        "error_debug_id": trouble.debug_id if trouble else None,
    }

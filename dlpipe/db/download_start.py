"""Start a download unless the same one is active (TORRENT-3)."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from dlpipe.core import keys
from dlpipe.core.downloads import JOB_TYPE_TORRENT, QBITTORRENT, STATUS, DownloadSpec, StartAnswer
from dlpipe.core.errors import LedgerUnavailable
from dlpipe.core.states import Status
from dlpipe.core.torrents import DownloadStatus
from dlpipe.db.download_schema import DOWNLOAD_ACTIVE, download_jobs
from dlpipe.db.inserts import insert_ignoring
from dlpipe.db.schema import jobs

_D = download_jobs.c
_TRIES = 5


def start(connection: sa.Connection, spec: DownloadSpec, job_id: str, due_at: datetime, now: datetime) -> StartAnswer:
    for _ in range(_TRIES):
        if _insert(connection, spec, job_id, due_at, now):
            return StartAnswer(job_id, "created", DownloadStatus.QUEUED, Status.PENDING)
        if (known := _active(connection, spec)) is not None:
            return known
        # The active one came to its end between the two statements: the place is free again.
    raise LedgerUnavailable("the download was neither inserted nor found")


def _insert(connection: sa.Connection, spec: DownloadSpec, job_id: str, due_at: datetime, now: datetime) -> bool:
    """The unique index decides; who comes second takes his row in `jobs` back."""
    whose = {"job_id": job_id, "tenant_id": spec.scope.tenant_id, "project_id": spec.scope.project_id}
    connection.execute(
        sa.insert(jobs).values(
            **whose,
            job_type=JOB_TYPE_TORRENT,
            status=Status.PENDING.value,
            # A download may be asked for again once it has ended, so its key is that of this one job.
            idempotency_key=keys.op_key("DOWNLOAD", job_id),
            request_id=spec.request_id,
            created_at=now,
            updated_at=now,
        )
    )
    made = connection.scalar(
        insert_ignoring(connection, download_jobs)
        .values(
            **whose,
            user_id=spec.user_id,
            book_id=spec.book_id,
            media_type=spec.media_type,
            status=DownloadStatus.QUEUED.value,
            source=QBITTORRENT,
            source_url=spec.source_url,
            source_bytes=spec.source_bytes,
            created_at_utc=now,
            updated_at_utc=now,
            due_at_utc=due_at,
        )
        .returning(_D.job_id)
    )
    if made is None:
        connection.execute(sa.delete(jobs).where(jobs.c.job_id == job_id))
    return made is not None


def _active(connection: sa.Connection, spec: DownloadSpec) -> StartAnswer | None:
    row = connection.execute(
        sa.select(_D.job_id, _D.status).where(
            sa.text(DOWNLOAD_ACTIVE),
            _D.tenant_id == spec.scope.tenant_id,
            _D.project_id == spec.scope.project_id,
            _D.user_id == spec.user_id,
            _D.book_id == spec.book_id,
            _D.media_type == spec.media_type,
        )
    ).first()
    if row is None:
        return None
    state = DownloadStatus(row.status)
    return StartAnswer(row.job_id, "known", state, STATUS[state])

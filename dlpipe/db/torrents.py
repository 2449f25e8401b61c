"""The rows of downloads that follow a torrent: each change a compare-and-set, with the row in `jobs` behind it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from dlpipe.core.downloads import (
    DownloadSpec,
    DownloadView,
    FileRow,
    Followed,
    Look,
    Removal,
    RemovalWish,
    StartAnswer,
    Trouble,
)
from dlpipe.core.model import Scope
from dlpipe.core.torrents import ACTIVE, DownloadJob, DownloadStatus
from dlpipe.db import download_start, download_views, download_watch, library
from dlpipe.db.clock import now as db_now
from dlpipe.db.download_rows import LIGHT, derive_job, error_values, followed
from dlpipe.db.download_schema import DOWNLOAD_ACTIVE, DOWNLOAD_FOLLOWED, download_files, download_jobs
from dlpipe.db.rows import is_uuid
from dlpipe.db.schema import jobs

_D = download_jobs.c
_STILL_ACTIVE = sa.text(DOWNLOAD_ACTIVE)
"""In every change, whatever the caller believes: what has ended stays so (TORRENT-1)."""


class SqlTorrents:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def clock(self) -> datetime:
        found: datetime = self._connection.execute(sa.select(db_now())).scalar_one()
        return found

    def start(self, spec: DownloadSpec, job_id: str, due_at: datetime, now: datetime) -> StartAnswer:
        return download_start.start(self._connection, spec, job_id, due_at, now)

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    def to_check(self, limit: int) -> list[Followed]:
        rows = self._connection.execute(
            sa.select(*LIGHT)
            .where(sa.text(DOWNLOAD_FOLLOWED))
            .order_by(_D.checked_at_utc.asc().nulls_first(), _D.job_id)
            .limit(limit)
        )
        return [followed(row) for row in rows]

    def again(self, job_ids: Sequence[str]) -> list[Followed]:
        rows = self._connection.execute(sa.select(*LIGHT).where(_D.job_id.in_(job_ids)).order_by(_D.job_id))
        return [followed(row) for row in rows]

    def work(self, job_id: str) -> Followed | None:
        if not is_uuid(job_id):
            return None
        row = self._connection.execute(sa.select(download_jobs).where(_D.job_id == job_id)).first()
        return followed(row, row.source_bytes) if row is not None else None

    def mark_checked(self, looks: Sequence[Look], now: datetime) -> None:
        download_watch.mark_checked(self._connection, looks, now)

    def answered(self, source: str, now: datetime, gap_s: float) -> bool:
        return download_watch.answered(self._connection, source, now, gap_s)

    def outage(self, source: str, now: datetime) -> None:
        download_watch.outage(self._connection, source, now)

    # ── changes ───────────────────────────────────────────────────────────────────────────────────

    def change(self, before: DownloadJob, after: DownloadJob, trouble: Trouble | None = None) -> bool:
        values: dict[str, Any] = {
            "status": after.status.value,
            "first_not_found_at_utc": after.first_not_found_at_utc,
            "completed_at_utc": after.completed_at_utc,
            "failure_reason": after.failure_reason[:1024] if after.failure_reason else None,
            "updated_at_utc": after.updated_at_utc,
            "row_version": after.row_version,
        }
        if after.status not in ACTIVE:
            values["due_at_utc"] = None
        if not self._set(before, values):
            return False
        if after.status is not before.status:
            derive_job(self._connection, after.job_id, after.status, after.updated_at_utc, trouble)
        return True

    def _set(self, before: DownloadJob, values: dict[str, Any]) -> bool:
        changed = self._connection.execute(
            sa.update(download_jobs)
            .where(_D.job_id == before.job_id, _D.row_version == before.row_version, _STILL_ACTIVE)
            .values(**values)
        )
        return changed.rowcount == 1

    def complete(self, before: DownloadJob, after: DownloadJob, local_path: str) -> bool:
        if not self.change(before, after):
            return False
        library.make_available(self._connection, after, local_path)
        return True

    def add_file(self, job_id: str, position: int, row: FileRow) -> None:
        self._connection.execute(
            sa.insert(download_files).values(
                job_id=job_id,
                position=position,
                path=row.path,
                byte_size=row.byte_size,
                sha256=row.sha256,
                artifact_uuid=row.artifact_uuid,
            )
        )

    # ── work of ours ──────────────────────────────────────────────────────────────────────────────

    def hand_over(self, job_id: str, now: datetime) -> bool:
        changed = self._connection.execute(
            sa.update(download_jobs)
            .where(_D.job_id == job_id, _D.status == DownloadStatus.DOWNLOADING.value, _D.due_at_utc.is_(None))
            .values(due_at_utc=now, attempts=0)
        )
        return changed.rowcount == 1

    def put_back(self, job_id: str) -> None:
        self._connection.execute(
            sa.update(download_jobs)
            .where(_D.job_id == job_id, _D.status == DownloadStatus.DOWNLOADING.value)
            .values(due_at_utc=None, attempts=0)
        )

    def take_due(self, limit: int, now: datetime, again_at: datetime) -> list[Followed]:
        due = (
            sa.select(_D.job_id)
            .where(_D.due_at_utc.is_not(None), _D.due_at_utc <= now)
            .order_by(_D.due_at_utc)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        ids = list(self._connection.scalars(due))
        if not ids:
            return []
        rows = self._connection.execute(
            sa.update(download_jobs)
            .where(_D.job_id.in_(ids), _D.due_at_utc <= now)
            .values(due_at_utc=again_at)
            .returning(*LIGHT)
        ).all()
        return sorted((followed(row) for row in rows), key=lambda one: ids.index(one.job.job_id))

    def unsent(self, job_ids: Sequence[str], now: datetime) -> None:
        self._connection.execute(
            sa.update(download_jobs).where(_D.job_id.in_(job_ids), _D.due_at_utc > now).values(due_at_utc=now)
        )

    def later(self, job_id: str, due_at: datetime, trouble: Trouble) -> None:
        changed = self._connection.execute(
            sa.update(download_jobs)
            .where(_D.job_id == job_id, _D.due_at_utc.is_not(None))
            .values(due_at_utc=due_at, attempts=_D.attempts + 1)
        )
        if changed.rowcount:
            self._connection.execute(sa.update(jobs).where(jobs.c.job_id == job_id).values(**error_values(trouble)))

    def enqueued(self, before: DownloadJob, external_job_id: str, now: datetime) -> bool:
        taken = self._set(
            before,
            {
                "external_job_id": external_job_id,
                "due_at_utc": None,
                "attempts": 0,
                "updated_at_utc": now,
                "row_version": before.row_version + 1,
            },
        )
        if taken:
            self._connection.execute(
                sa.update(jobs).where(jobs.c.job_id == before.job_id).values(**error_values(None), updated_at=now)
            )
        return taken

    # ── the end that somebody asked for ───────────────────────────────────────────────────────────

    def cancel(self, scope: Scope, job_id: str, removal: Removal, now: datetime) -> DownloadStatus | None:
        if not is_uuid(job_id):
            return None
        owned = sa.and_(_D.job_id == job_id, _D.tenant_id == scope.tenant_id, _D.project_id == scope.project_id)
        changed = self._connection.execute(
            sa.update(download_jobs)
            .where(owned, _STILL_ACTIVE)
            .values(
                status=DownloadStatus.CANCELED.value,
                due_at_utc=None,
                removal=None if removal is Removal.KEEP else removal.value,
                updated_at_utc=now,
                row_version=_D.row_version + 1,
            )
        )
        if changed.rowcount:
            derive_job(self._connection, job_id, DownloadStatus.CANCELED, now, None)
        found = self._connection.scalar(sa.select(_D.status).where(owned))
        return DownloadStatus(found) if found else None

    def note_orphan(self, job_id: str, external_job_id: str) -> bool:
        changed = self._connection.execute(
            sa.update(download_jobs)
            .where(_D.job_id == job_id, _D.status == DownloadStatus.CANCELED.value, _D.external_job_id.is_(None))
            .values(external_job_id=external_job_id)
        )
        return changed.rowcount == 1

    def to_remove(self, limit: int) -> list[RemovalWish]:
        rows = self._connection.execute(
            sa.select(_D.job_id, _D.external_job_id, _D.removal)
            .where(_D.removal.is_not(None), _D.external_job_id.is_not(None))
            .order_by(_D.updated_at_utc)
            .limit(limit)
        )
        return [
            RemovalWish(row.job_id, row.external_job_id, row.removal == Removal.REMOVE_WITH_FILES.value) for row in rows
        ]

    def wanted_by_others(self, wish: RemovalWish) -> bool:
        wanted = [status.value for status in sorted({*ACTIVE, DownloadStatus.COMPLETED})]
        others = sa.select(_D.job_id).where(
            _D.external_job_id == wish.external_job_id, _D.job_id != wish.job_id, _D.status.in_(wanted)
        )
        return self._connection.scalar(others.limit(1)) is not None

    def removed(self, job_id: str) -> None:
        self._connection.execute(sa.update(download_jobs).where(_D.job_id == job_id).values(removal=None))

    # ── owners' questions ─────────────────────────────────────────────────────────────────────────

    def get(self, scope: Scope, job_id: str) -> DownloadView | None:
        return download_views.get(self._connection, scope, job_id)

    def list_(self, scope: Scope, state: DownloadStatus | None, limit: int, after: str | None) -> list[DownloadView]:
        return download_views.list_(self._connection, scope, state, limit, after)

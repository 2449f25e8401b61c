"""Jobs of every kind as one thing (JOB-1): the query, its filters, and the record that an owner is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core.downloads import shown_source
from dlpipe.core.model import JobView, Scope
from dlpipe.core.states import Purpose, State, Status
from dlpipe.core.torrents import DownloadStatus
from dlpipe.core.urls import redact
from dlpipe.core.wishes import JobFilter, Tally
from dlpipe.db.download_schema import download_jobs
from dlpipe.db.rows import is_uuid
from dlpipe.db.schema import artifact_jobs, job_artifacts, jobs
from dlpipe.db.wishes import owned_by

_J, _T, _D, _R = jobs.c, artifact_jobs.c, download_jobs.c, job_artifacts.c
_Artifacts = Mapping[tuple[str, str], tuple[str, ...]]


def query(scope: Scope) -> sa.Select[Any]:
    return _joined(
        scope,
        *_J,
        _T.state,
        _T.work_id,
        _T.artifact_id,
        _T.request_url,
        _T.host,
        _T.run,
        _T.attempts,
        _T.due_at,
        _T.paused_at,
        _T.purpose,
        _T.withdrawn_run,
        _T.fence,
        _D.status.label("download_state"),
        _D.book_id,
        _D.media_type,
        _D.source_url,
        _D.attempts.label("download_attempts"),
        _D.due_at_utc,
    )


def page(scope: Scope, only: JobFilter, limit: int, after: str | None) -> sa.Select[Any]:
    """The newest first."""
    wanted = filtered(query(scope), only).order_by(_J.created_at.desc(), _J.job_id.desc()).limit(_said(limit))
    if after is None:
        return wanted
    if not is_uuid(after):
        return wanted.where(sa.false())
    last = sa.select(_J.created_at, _J.job_id).where(_J.job_id == after, owned_by(scope)).scalar_subquery()
    return wanted.where(sa.tuple_(_J.created_at, _J.job_id) < last)


def filtered(wanted: sa.Select[Any], only: JobFilter) -> sa.Select[Any]:
    terms: list[sa.ColumnElement[bool]] = []
    if only.status is not None:
        terms.append(_J.status == _said(only.status.value))
    if only.code is not None:
        terms.append(_J.error_code == only.code)
    if only.job_type is not None:
        terms.append(_J.job_type == only.job_type)
    if only.host is not None:
        terms.append(_T.host == only.host)
    if only.work_id is not None:
        terms.append(sa.or_(_T.work_id == only.work_id, _D.book_id == only.work_id))
    if only.ended is not None:
        going = _J.status.in_([_said(Status.PENDING.value), _said(Status.PROCESSING.value)])
        terms.append(~going if only.ended else going)
    if only.paused is not None:
        terms.append(_T.paused_at.is_not(None) if only.paused else _T.paused_at.is_(None))
    return wanted.where(*terms)


def _said(value: str | int) -> sa.BindParameter[Any]:
    """In the text itself. A plan that holds for any status and any limit sorts all jobs, so PostgreSQL would make a new
    one for each execution, which with millions of jobs takes three times as long as the question does."""
    return sa.literal(value, literal_execute=True)


_BY = {"code": _J.error_code, "host": _T.host, "status": _J.status}


def tally(connection: sa.Connection, scope: Scope, by: str, only: JobFilter, limit: int) -> list[Tally]:
    value = _BY[by]
    newest = sa.func.row_number().over(partition_by=value, order_by=(_J.updated_at.desc(), _J.job_id.desc()))
    count = sa.func.count().over(partition_by=value)
    numbered = filtered(
        _joined(
            scope,
            value.label("value"),
            count.label("jobs"),
            newest.label("nth"),
            _J.job_id,
            _J.error_code,
            _J.error_message_safe,
            _J.error_debug_id,
        ),
        only,
    ).subquery()
    rows = connection.execute(
        sa.select(numbered).where(numbered.c.nth == 1).order_by(numbered.c.jobs.desc(), numbered.c.value).limit(limit)
    )
    return [
        Tally(row.value, row.jobs, row.job_id, row.error_code, row.error_message_safe, row.error_debug_id)
        for row in rows
    ]


def _joined(scope: Scope, *columns: Any) -> sa.Select[Any]:
    kinds = jobs.outerjoin(artifact_jobs, _T.job_id == _J.job_id).outerjoin(download_jobs, _D.job_id == _J.job_id)
    return sa.select(*columns).select_from(kinds).where(owned_by(scope))


def views(connection: sa.Connection, wanted: sa.Select[Any]) -> list[JobView]:
    rows = connection.execute(wanted).all()
    artifacts = _artifacts_of(connection, [row.job_id for row in rows])
    return [_view(row, artifacts) for row in rows]


def _artifacts_of(connection: sa.Connection, job_ids: Sequence[str]) -> _Artifacts:
    """By job and role, in their order."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    if job_ids:
        asked = sa.select(_R.job_id, _R.role, _R.artifact_uuid).where(_R.job_id.in_(job_ids))
        for job_id, role, artifact_uuid in connection.execute(asked.order_by(_R.job_id, _R.role, _R.position)):
            found[job_id, role] = (*found.get((job_id, role), ()), artifact_uuid)
    return found


def _view(row: Any, artifacts: _Artifacts) -> JobView:
    own = _of_download(row) if row.state is None else _of_artifact(row)
    return JobView(
        job_id=row.job_id,
        scope=Scope(row.tenant_id, row.project_id),
        job_type=row.job_type,
        status=Status(row.status),
        progress=row.progress,
        created_at=row.created_at,
        updated_at=row.updated_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        request_id=row.request_id,
        error_code=row.error_code,
        error_message_safe=row.error_message_safe,
        error_debug_id=row.error_debug_id,
        artifacts=artifacts.get((row.job_id, "result"), ()),
        inputs=artifacts.get((row.job_id, "input"), ()),
        **own,
    )


def _of_artifact(row: Any) -> dict[str, Any]:
    return {
        "state": State(row.state),
        "work_id": row.work_id,
        "artifact_id": row.artifact_id,
        "url": redact(row.request_url),
        "host": row.host,
        "run": row.run,
        "attempts": row.attempts,
        "due_at": row.due_at,
        "paused_at": row.paused_at,
        "fence": row.fence,
        "purpose": Purpose(row.purpose) if row.purpose else None,
        "withdrawn_run": row.withdrawn_run,
    }


def _of_download(row: Any) -> dict[str, Any]:
    return {
        "state": DownloadStatus(row.download_state),
        "work_id": row.book_id,
        "artifact_id": row.media_type,
        "url": shown_source(row.source_url),
        "run": 1,
        "attempts": row.download_attempts,
        "due_at": row.due_at_utc,
    }

"""Jobs, ops and artifacts as their owner sees them; every statement is bound to a tenant and a project (JOB-5)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core import states
from dlpipe.core.model import ArtifactRecord, JobView, OpView, Scope
from dlpipe.core.states import Moment, Purpose, State, Status
from dlpipe.core.urls import redact
from dlpipe.db.clock import now
from dlpipe.db.faults import with_faults
from dlpipe.db.guards import NO_ERROR, in_states, note
from dlpipe.db.planning import results_of
from dlpipe.db.rows import is_uuid, record_from
from dlpipe.db.schema import artifact_jobs, artifact_ops, artifacts, job_artifacts, jobs, manifest

_J, _T, _O, _A = jobs.c, artifact_jobs.c, artifact_ops.c, artifacts.c
_FAILED_FOR_GOOD = sa.and_(_T.state == State.FAILED.value, _T.due_at.is_(None))


def _owned(scope: Scope) -> sa.ColumnElement[bool]:
    return sa.and_(_J.tenant_id == scope.tenant_id, _J.project_id == scope.project_id)


def _owned_job(scope: Scope, job_id: str) -> sa.ColumnElement[bool]:
    return sa.exists().where(_J.job_id == _T.job_id, _owned(scope)).correlate(artifact_jobs) & (_T.job_id == job_id)


class SqlOwned:
    def __init__(self, connection: sa.Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope

    def get(self, job_id: str) -> JobView | None:
        if not is_uuid(job_id):
            return None
        found = _views(self._connection, _views_query(self._scope).where(_J.job_id == job_id))
        return found[0] if found else None

    def get_many(self, job_ids: Sequence[str]) -> list[JobView]:
        ids = [job_id for job_id in job_ids if is_uuid(job_id)]
        return _views(self._connection, _views_query(self._scope).where(_J.job_id.in_(ids))) if ids else []

    def list_(self, status: Status | None, limit: int, after: str | None) -> list[JobView]:
        query = _views_query(self._scope).order_by(_J.created_at.desc(), _J.job_id.desc()).limit(limit)
        if status is not None:
            query = query.where(_J.status == status.value)
        if after is not None:
            if not is_uuid(after):
                return []
            last = sa.select(_J.created_at, _J.job_id).where(_J.job_id == after, _owned(self._scope)).subquery()
            query = query.where(
                sa.tuple_(_J.created_at, _J.job_id) < sa.select(last.c.created_at, last.c.job_id).scalar_subquery()
            )
        return _views(self._connection, query)

    def counts(self) -> Mapping[Status, int]:
        query = sa.select(_J.status, sa.func.count().label("n")).where(_owned(self._scope)).group_by(_J.status)
        found = {Status(row.status): row.n for row in self._connection.execute(query)}
        return {status: found.get(status, 0) for status in Status}

    def cancel(self, job_id: str) -> Status | None:
        if not is_uuid(job_id):
            return None
        if self._withdraw(job_id):
            return self._status(job_id)
        allowed = sorted(state.value for state in states.sources(State.CANCELED, Moment.CANCEL))
        changed = self._connection.execute(
            sa.update(artifact_jobs)
            .where(_owned_job(self._scope, job_id), _T.state.in_(allowed), ~_FAILED_FOR_GOOD)
            .values(
                state=State.CANCELED.value,
                fence=_T.fence + 1,  # a worker in the middle of it can record nothing any more
                lease_owner=None,
                lease_until=None,
                due_at=None,
                published_at=None,
                purpose=None,
            )
        )
        if changed.rowcount:
            self._connection.execute(
                sa.update(jobs)
                .where(_J.job_id == job_id)
                .values(status=Status.CANCELED.value, updated_at=now(), completed_at=None)
            )
        return self._status(job_id)

    def _withdraw(self, job_id: str) -> bool:
        """Take back a further run that has not begun; the job is again what it was."""
        taken = self._connection.execute(
            sa.update(artifact_jobs)
            .where(_owned_job(self._scope, job_id), in_states(states.withdrawable()), _T.due_at.is_not(None))
            .values(due_at=None, published_at=None, purpose=None)
            .returning(_T.state)
        ).first()
        if taken is None:
            return False
        status = states.status_of(State(taken.state), retry_due=False)
        note(self._connection, job_id, status=status.value, progress=100, **NO_ERROR)
        return True

    def retry(self, job_id: str) -> Status | None:
        if not is_uuid(job_id):
            return None
        changed = self._connection.execute(
            sa.update(artifact_jobs)
            .where(_owned_job(self._scope, job_id), _FAILED_FOR_GOOD)
            .values(due_at=now(), attempts=0, published_at=None)
        )
        if changed.rowcount:
            self._connection.execute(
                sa.update(jobs)
                .where(_J.job_id == job_id)
                .values(status=Status.PENDING.value, failed_at=None, updated_at=now())
            )
        return self._status(job_id)

    def refresh(self, job_id: str) -> Status | None:
        if not is_uuid(job_id):
            return None
        at_an_end = in_states(states.refreshable()) & _T.due_at.is_(None)
        changed = self._connection.execute(
            sa.update(artifact_jobs)
            .where(_owned_job(self._scope, job_id), sa.or_(at_an_end, _FAILED_FOR_GOOD))
            .values(due_at=now(), attempts=0, published_at=None, purpose=Purpose.REFRESH.value)
        )
        if changed.rowcount:
            note(self._connection, job_id, status=Status.PENDING.value, progress=0, failed_at=None)
        return self._status(job_id)

    def _status(self, job_id: str) -> Status | None:
        found = self._connection.scalar(sa.select(_J.status).where(_J.job_id == job_id, _owned(self._scope)))
        return Status(found) if found else None

    def ops(self, job_id: str) -> list[OpView]:
        if not is_uuid(job_id):
            return []
        rows = self._connection.execute(
            sa.select(artifact_ops)
            .join(jobs, jobs.c.job_id == _O.job_id)
            .where(_O.job_id == job_id, _owned(self._scope))
            .order_by(_O.run, _O.fence, _O.started_at)
        )
        return [_op_view(row) for row in rows]

    def artifacts_of(self, job_id: str) -> list[ArtifactRecord]:
        if not is_uuid(job_id):
            return []
        rows = self._connection.execute(
            with_faults()
            .join(job_artifacts, job_artifacts.c.artifact_uuid == _A.artifact_uuid)
            .where(
                job_artifacts.c.job_id == job_id,
                job_artifacts.c.role == "result",
                _A.tenant_id == self._scope.tenant_id,
                _A.project_id == self._scope.project_id,
            )
            .order_by(job_artifacts.c.position)
        )
        return [record_from(row) for row in rows]

    def measures_of(self, job_id: str) -> Mapping[str, Any] | None:
        if not is_uuid(job_id):
            return None
        row = self._connection.execute(
            sa.select(manifest)
            .join(artifacts, _A.artifact_uuid == manifest.c.artifact_uuid)
            .where(
                manifest.c.job_id == job_id,
                _A.tenant_id == self._scope.tenant_id,
                _A.project_id == self._scope.project_id,
            )
            .order_by(manifest.c.run.desc(), manifest.c.created_at.desc())
            .limit(1)
        ).first()
        return dict(row._mapping) if row is not None else None


def _views_query(scope: Scope) -> sa.Select[Any]:
    return (
        sa.select(
            jobs,
            _T.state,
            _T.work_id,
            _T.artifact_id,
            _T.request_url,
            _T.run,
            _T.attempts,
            _T.due_at,
            _T.purpose,
            _T.fence,
        )
        .join(artifact_jobs, _T.job_id == _J.job_id)
        .where(_owned(scope))
    )


def _views(connection: sa.Connection, query: sa.Select[Any]) -> list[JobView]:
    rows = connection.execute(query).all()
    artifacts = results_of(connection, [row.job_id for row in rows])
    return [_view(row, artifacts.get(row.job_id, ())) for row in rows]


def _view(row: Any, artifacts: tuple[str, ...]) -> JobView:
    return JobView(
        job_id=row.job_id,
        scope=Scope(row.tenant_id, row.project_id),
        job_type=row.job_type,
        status=Status(row.status),
        progress=row.progress,
        state=State(row.state),
        work_id=row.work_id,
        artifact_id=row.artifact_id,
        url=redact(row.request_url),
        run=row.run,
        attempts=row.attempts,
        created_at=row.created_at,
        updated_at=row.updated_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        due_at=row.due_at,
        request_id=row.request_id,
        error_code=row.error_code,
        error_message_safe=row.error_message_safe,
        error_debug_id=row.error_debug_id,
        artifacts=artifacts,
        purpose=Purpose(row.purpose) if row.purpose else None,
        fence=row.fence,
    )


_HIDDEN = frozenset({"v", "pointer", "known_pointer"})
"""Pointers never leave through a public interface (JOB-4)."""


def _op_view(row: Any) -> OpView:
    result = None
    if row.result_json:
        result = {k: v for k, v in json.loads(row.result_json).items() if k not in _HIDDEN}
    return OpView(
        op_key=row.op_key,
        run=row.run,
        op_type=row.op_type,
        state=row.state,
        fence=row.fence,
        started_at=row.started_at,
        finished_at=row.finished_at,
        result_code=row.result_code,
        result=result,
    )

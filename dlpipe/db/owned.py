"""Jobs, ops and artifacts as their owner sees them; every statement is bound to a tenant and a project (JOB-5)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core.model import ArtifactRecord, JobView, OpView, Scope
from dlpipe.core.purging import ArchiveFile, Expired, PurgeFilter, Tombstone
from dlpipe.core.results import DedupeAction
from dlpipe.core.states import Status
from dlpipe.core.telemetry import Told
from dlpipe.core.top import Look
from dlpipe.core.why import Standing
from dlpipe.core.wishes import JobFilter, Tally, Wish
from dlpipe.db import overview, purge, telemetry, views, waiting, wishes
from dlpipe.db.clock import now
from dlpipe.db.faults import with_faults
from dlpipe.db.ledger import BY_STAGE
from dlpipe.db.rows import is_uuid, record_from
from dlpipe.db.schema import artifact_jobs, artifact_ops, artifacts, job_artifacts, jobs, manifest
from dlpipe.db.wishes import owned_by

_J, _T, _O, _A = jobs.c, artifact_jobs.c, artifact_ops.c, artifacts.c


class SqlOwned:
    def __init__(self, connection: sa.Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope

    def get(self, job_id: str) -> JobView | None:
        found = self.get_many([job_id])
        return found[0] if found else None

    def get_many(self, job_ids: Sequence[str]) -> list[JobView]:
        ids = [job_id for job_id in job_ids if is_uuid(job_id)]
        return views.views(self._connection, views.query(self._scope).where(_J.job_id.in_(ids))) if ids else []

    def list_(self, only: JobFilter | Status | None, limit: int, after: str | None) -> list[JobView]:
        return views.views(self._connection, views.page(self._scope, _filter(only), limit, after))

    def tally(self, by: str, only: JobFilter, limit: int) -> list[Tally]:
        return views.tally(self._connection, self._scope, by, only, limit)

    def counts(self) -> Mapping[Status, int]:
        query = sa.select(_J.status, sa.func.count().label("n")).where(owned_by(self._scope)).group_by(_J.status)
        found = {Status(row.status): row.n for row in self._connection.execute(query)}
        return {status: found.get(status, 0) for status in Status}

    def cancel(self, job_id: str) -> Status | None:
        self.grant(Wish.CANCEL, [job_id])
        return self._status(job_id)

    def retry(self, job_id: str) -> Status | None:
        self.grant(Wish.RETRY, [job_id])
        return self._status(job_id)

    def refresh(self, job_id: str) -> Status | None:
        self.grant(Wish.REFRESH, [job_id])
        return self._status(job_id)

    def replay(self, job_id: str, from_stage: str) -> Status | None:
        self.grant(Wish.REPLAY, [job_id], from_stage)
        return self._status(job_id)

    def pause(self, job_id: str) -> JobView | None:
        self.grant(Wish.PAUSE, [job_id])
        return self.get(job_id)

    def resume(self, job_id: str) -> JobView | None:
        self.grant(Wish.RESUME, [job_id])
        return self.get(job_id)

    def grant(self, wish: Wish, job_ids: Sequence[str], from_stage: str | None = None) -> list[str]:
        return wishes.grant(self._connection, self._scope, wish, job_ids, from_stage)

    def _status(self, job_id: str) -> Status | None:
        if not is_uuid(job_id):
            return None
        found = self._connection.scalar(sa.select(_J.status).where(_J.job_id == job_id, owned_by(self._scope)))
        return Status(found) if found else None

    def overview(self) -> Look:
        return overview.look(self._connection, self._scope)

    def standing(self, job_id: str) -> Standing | None:
        view = self.get(job_id)
        if view is None:
            return None
        # Of a download these are None: whose turn it is stands in its own row, and in the torrent client.
        row = self._connection.execute(
            sa.select(now().label("at"), _T.published_at, _T.lease_until, *waiting.CLOCKS)
            .select_from(jobs.outerjoin(artifact_jobs, _T.job_id == _J.job_id))
            .where(_J.job_id == job_id)
        ).one()
        return Standing(view, row.at, row.published_at, row.lease_until, waiting.waited(row))

    def expired(self, only: PurgeFilter, limit: int, after: Expired | None = None) -> list[Expired]:
        return purge.expired(self._connection, self._scope, only, limit, after)

    def count_expired(self, only: PurgeFilter) -> Mapping[Status, int]:
        return purge.count(self._connection, self._scope, only)

    def purge(self, archived: Sequence[Expired], file: ArchiveFile, *, retire: bool) -> list[str]:
        return purge.purge(self._connection, self._scope, archived, file.name, file.sha256, retire=retire)

    def retire_superseded(self, only: PurgeFilter, limit: int) -> list[str]:
        return purge.retire_superseded(self._connection, self._scope, only, limit)

    def tombstone(self, job_id: str) -> Tombstone | None:
        return purge.tombstone(self._connection, self._scope, job_id)

    def ops(self, job_id: str) -> list[OpView]:
        if not is_uuid(job_id):
            return []
        rows = self._connection.execute(
            sa.select(artifact_ops)
            .join(jobs, jobs.c.job_id == _O.job_id)
            .where(_O.job_id == job_id, owned_by(self._scope))
            .order_by(_O.run, _O.fence, _O.started_at, BY_STAGE)
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

    def artifact(self, artifact_uuid: str) -> ArtifactRecord | None:
        if not is_uuid(artifact_uuid):
            return None
        mine = (_A.tenant_id == self._scope.tenant_id) & (_A.project_id == self._scope.project_id)
        row = self._connection.execute(with_faults().where(_A.artifact_uuid == artifact_uuid, mine)).first()
        return record_from(row) if row else None

    def results(
        self, limit: int, after: str | None, *, newest_first: bool = False, job_id: str | None = None
    ) -> list[Told]:
        return telemetry.results(self._connection, self._scope, limit, after, newest_first, job_id)

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


def _filter(only: JobFilter | Status | None) -> JobFilter:
    return only if isinstance(only, JobFilter) else JobFilter(status=only)


_HIDDEN = frozenset({"v", "pointer", "known_pointer", "stored_pointer", "quiet"})
"""Pointers never leave through a public interface (JOB-4), nor whether other tenants have the same bytes (DEDUPE-2)."""
_OF_ITS_OWN = {"action": DedupeAction.DOWNLOAD.value, "saved_bytes": 0}


def _op_view(row: Any) -> OpView:
    result = None
    if row.result_json:
        found = json.loads(row.result_json)
        result = {k: v for k, v in found.items() if k not in _HIDDEN}
        if found.get("quiet"):
            result |= _OF_ITS_OWN
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

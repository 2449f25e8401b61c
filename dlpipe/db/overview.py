"""What `dlpipe top` asks each second: bounded questions through indexes, whatever the tables hold (JOB-5)."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dlpipe.core import flow, top
from dlpipe.core.model import Scope
from dlpipe.core.states import Status
from dlpipe.core.top import AtWork, Failure, Look, Waiter
from dlpipe.core.urls import origin_of, redact
from dlpipe.db.clock import after, now
from dlpipe.db.indexes import prefer_indexes, through
from dlpipe.db.schema import artifact_jobs, artifact_ops, jobs, manifest

_J, _T, _O, _M = jobs.c, artifact_jobs.c, artifact_ops.c, manifest.c
_STAGE_OF = {row.op.value: row.name for row in flow.STAGES}


def look(connection: sa.Connection, scope: Scope) -> Look:
    prefer_indexes(connection)
    at = connection.execute(sa.select(now().label("at"))).one().at
    finished, finished_bytes = _finished(connection, scope)
    return Look(
        at=at,
        counts={status: _count(connection, scope, status) for status in Status},
        at_work=tuple(_at_work(connection, scope, at)),
        waiters=tuple(_waiters(connection, scope)),
        failures=tuple(_failures(connection, scope)),
        finished=finished,
        finished_bytes=finished_bytes,
    )


def of_status(scope: Scope, status: Status, *columns: Any) -> sa.Select[Any]:
    """The one way in: the index over a scope's jobs of one status, by age."""
    found = sa.select(*columns).where(
        _J.tenant_id == scope.tenant_id, _J.project_id == scope.project_id, _J.status == status.value
    )
    return found.with_hint(jobs, "INDEXED BY ix_jobs_scope_status", "sqlite")


def _count(connection: sa.Connection, scope: Scope, status: Status) -> int:
    some = of_status(scope, status, sa.literal(1).label("one")).limit(top.COUNTED).subquery()
    return connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()


def _at_work(connection: sa.Connection, scope: Scope, at: Any) -> list[AtWork]:
    """As many rows are read as workers hold jobs, over all tenants."""
    leased = through(
        "ix_artifact_jobs_lease",
        sa.select(
            _T.job_id, _T.request_url, _T.canonical_url, _T.host, _T.run, _T.fence, _T.lease_owner, _T.lease_until
        )
        .where(_T.lease_until.is_not(None), _T.tenant_id == scope.tenant_id)
        .order_by(_T.lease_until.desc())
        .limit(10 * top.SHOWN),
    ).subquery()
    op = (
        sa.select(_O.op_type)
        .where(_O.job_id == leased.c.job_id, _O.fence == leased.c.fence, _O.state == "started")
        .limit(1)
        .scalar_subquery()
    )
    rows = connection.execute(
        sa.select(leased, op.label("op_type"))
        .select_from(leased.join(jobs, _J.job_id == leased.c.job_id))
        .where(_J.project_id == scope.project_id)
        .limit(top.SHOWN)
    ).all()
    found = [
        AtWork(
            job_id=row.job_id,
            url=redact(row.request_url),
            host=row.host,
            origin=origin_of(row.canonical_url),
            run=row.run,
            stage=_STAGE_OF.get(row.op_type, "-"),
            worker=_worker(row.lease_owner),
            lease_left_s=(row.lease_until - at).total_seconds(),
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.stage, one.host, one.job_id))


def _worker(token: str) -> str:
    """The process behind a lease, short: a machine is told by the first of its digits."""
    node, _, rest = token.partition(".")
    pid = rest.partition(".")[0]
    return f"{node.rpartition('-')[2][:6]}.{pid}" if pid else node[:12]


def _waiters(connection: sa.Connection, scope: Scope) -> list[Waiter]:
    """Those who wait longest."""
    some = of_status(scope, Status.PENDING, _J.job_id, _J.error_code, _J.created_at)
    oldest = some.order_by(_J.created_at).limit(top.SAMPLE).subquery()
    rows = connection.execute(
        sa.select(
            oldest.c.error_code, _T.job_id, _T.host, _T.canonical_url, _T.due_at, _T.paused_at, _T.published_at
        ).join(oldest, oldest.c.job_id == _T.job_id)
    )
    return [
        Waiter(
            row.job_id,
            row.host,
            origin_of(row.canonical_url),
            row.due_at,
            row.error_code,
            row.paused_at is not None,
            row.published_at is not None,
        )
        for row in rows
    ]


def _failures(connection: sa.Connection, scope: Scope) -> list[Failure]:
    some = of_status(scope, Status.FAILED, _J.error_code, _J.failed_at)
    newest = some.order_by(_J.created_at.desc()).limit(top.SAMPLE).subquery()
    count = sa.func.count()
    rows = connection.execute(
        sa.select(newest.c.error_code, count.label("jobs"), sa.func.max(newest.c.failed_at).label("last_at"))
        .group_by(newest.c.error_code)
        .order_by(count.desc(), newest.c.error_code)
    )
    return [Failure(row.error_code or "error", row.jobs, row.last_at) for row in rows]


def _finished(connection: sa.Connection, scope: Scope) -> tuple[int, int]:
    """Of the last minute, and their new bytes."""
    some = of_status(scope, Status.COMPLETED, _J.job_id, _J.completed_at)
    newest = some.order_by(_J.created_at.desc()).limit(top.FINISHED).subquery()
    recent = sa.select(newest.c.job_id).where(newest.c.completed_at > after(-top.MINUTE_S)).subquery()
    brought = sa.select(sa.func.sum(_M.bytes_written)).where(_M.job_id == recent.c.job_id).scalar_subquery()
    row = connection.execute(
        sa.select(sa.func.count().label("jobs"), sa.func.coalesce(sa.func.sum(brought), 0).label("bytes")).select_from(
            recent
        )
    ).one()
    return row.jobs, int(row.bytes)

"""Jobs at their end, read with all that goes with them, and deleted for a row that says where they are (OPS-8).

What they registered stays: artifacts, and the indexes of hashes and URLs.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dlpipe.core import states
from dlpipe.core.model import Scope
from dlpipe.core.purging import PLAIN, TIMES, Expired, PurgeFilter, Tombstone
from dlpipe.core.states import Status
from dlpipe.db.clock import after as from_now
from dlpipe.db.clock import now
from dlpipe.db.download_schema import download_files, download_jobs
from dlpipe.db.guards import in_states
from dlpipe.db.inserts import insert_ignoring
from dlpipe.db.ledger import BY_STAGE
from dlpipe.db.rows import is_uuid
from dlpipe.db.schema import (
    artifact_jobs,
    artifact_ops,
    artifact_retirements,
    artifacts,
    job_artifacts,
    jobs,
    manifest,
    purged_jobs,
)
from dlpipe.db.wishes import owned_by

_J, _T, _D, _P = jobs.c, artifact_jobs.c, download_jobs.c, purged_jobs.c
_KINDS = jobs.outerjoin(artifact_jobs, _T.job_id == _J.job_id).outerjoin(download_jobs, _D.job_id == _J.job_id)
_ACTIVE_DOWNLOADS = ("queued", "downloading")
_AT_REST = sa.and_(
    sa.or_(
        _T.job_id.is_(None),
        sa.and_(
            in_states(states.ENDS),
            # A further run is wanted, or somebody is about to do one.
            _T.due_at.is_(None),
            _T.published_at.is_(None),
            _T.lease_owner.is_(None),
        ),
    ),
    # The torrent client has yet to be told to let go of it.
    sa.or_(_D.job_id.is_(None), sa.and_(_D.status.not_in(_ACTIVE_DOWNLOADS), _D.removal.is_(None))),
)


def expired(
    connection: sa.Connection, scope: Scope, only: PurgeFilter, limit: int, after: Expired | None
) -> list[Expired]:
    """The oldest first, each with its rows."""
    wanted = (
        sa.select(*_J, _T.fence)
        .select_from(_KINDS)
        .where(_meant(scope, only))
        .order_by(_J.created_at, _J.job_id)
        .limit(limit)
    )
    if after is not None:
        last = sa.tuple_(sa.literal(after.created_at, _J.created_at.type), sa.literal(after.job_id, _J.job_id.type))
        wanted = wanted.where(sa.tuple_(_J.created_at, _J.job_id) > last)
    rows = connection.execute(wanted).all()
    ids = [row.job_id for row in rows]
    if not ids:
        return []
    details = _by_job(connection, artifact_jobs, ids) | _by_job(connection, download_jobs, ids)
    nested = {
        "ops": _by_job(connection, artifact_ops, ids, artifact_ops.c.fence, artifact_ops.c.started_at, BY_STAGE),
        "results": _by_job(connection, job_artifacts, ids, job_artifacts.c.role, job_artifacts.c.position),
        "manifest": _by_job(connection, manifest, ids, manifest.c.run, manifest.c.artifact_uuid),
        "files": _by_job(connection, download_files, ids, download_files.c.position),
    }
    return [
        Expired(
            row.job_id,
            row.created_at,
            row.updated_at,
            row.fence or 0,
            {
                **{name: getattr(row, name) for name in (*PLAIN, *TIMES)},
                "detail": next(iter(details.get(row.job_id, ())), None),
                **{name: found.get(row.job_id, []) for name, found in nested.items()},
            },
        )
        for row in rows
    ]


def count(connection: sa.Connection, scope: Scope, only: PurgeFilter) -> dict[Status, int]:
    query = sa.select(_J.status, sa.func.count().label("n")).select_from(_KINDS).where(_meant(scope, only))
    return {Status(row.status): row.n for row in connection.execute(query.group_by(_J.status))}


def purge(
    connection: sa.Connection, scope: Scope, archived: Sequence[Expired], file: str, sha256: str, *, retire: bool
) -> list[str]:
    """Delete those that still are as they were archived; a job that was taken up since stays."""
    rows = _still(connection, scope, archived)
    ids = [row.job_id for row in rows]
    if not ids:
        return []
    # The fence outlives the job: planned again, it must not meet a holder of its earlier life.
    connection.execute(sa.delete(purged_jobs).where(_P.job_id.in_(ids)))
    connection.execute(
        sa.insert(purged_jobs),
        [
            {
                "job_id": row.job_id,
                "tenant_id": scope.tenant_id,
                "project_id": scope.project_id,
                "status": row.status,
                "fence": row.fence or 0,
                "archive": file,
                "archive_sha256": sha256,
                "purged_at": row.at,
            }
            for row in rows
        ],
    )
    if retire:
        made = sa.select(artifacts.c.artifact_uuid, now()).where(artifacts.c.created_by_job_id.in_(ids))
        names = ["artifact_uuid", "retired_at"]
        connection.execute(insert_ignoring(connection, artifact_retirements).from_select(names, made))
    connection.execute(sa.delete(jobs).where(_J.job_id.in_(ids)))
    return ids


def retire_superseded(connection: sa.Connection, scope: Scope, only: PurgeFilter, limit: int) -> list[str]:
    """Give up results that a later run of their job has replaced by others; the newest stays, whichever it is."""
    newer, mine = manifest.alias("newer"), manifest.c
    retired = sa.exists().where(artifact_retirements.c.artifact_uuid == mine.artifact_uuid)
    replaced = sa.exists().where(newer.c.job_id == mine.job_id, newer.c.run > mine.run)
    query = (
        sa.select(mine.artifact_uuid, mine.job_id)
        .select_from(_KINDS.join(manifest, mine.job_id == _J.job_id))
        .where(_meant(scope, only), replaced, ~retired)
        .limit(limit)
    )
    ids = {row.job_id for row in connection.execute(query)}
    # A run that is about to record the earlier bytes as the newest again has its job's row until it is done.
    locked = sa.select(_T.job_id).where(_T.job_id.in_(sorted(ids))).order_by(_T.job_id)
    free = list(connection.scalars(locked.with_for_update(skip_locked=True))) if ids else []
    found = [row.artifact_uuid for row in connection.execute(query.where(_J.job_id.in_(free)))] if free else []
    at = connection.scalar(sa.select(now()))
    if found:
        rows = [{"artifact_uuid": uuid, "retired_at": at} for uuid in found]
        connection.execute(insert_ignoring(connection, artifact_retirements), rows)
    return found


def tombstone(connection: sa.Connection, scope: Scope, job_id: str) -> Tombstone | None:
    if not is_uuid(job_id):
        return None
    mine = sa.and_(_P.tenant_id == scope.tenant_id, _P.project_id == scope.project_id)
    row = connection.execute(sa.select(purged_jobs).where(_P.job_id == job_id, mine)).first()
    return Tombstone(row.job_id, Status(row.status), row.purged_at, row.archive, row.archive_sha256) if row else None


def _still(connection: sa.Connection, scope: Scope, archived: Sequence[Expired]) -> list[Any]:
    as_read = {one.job_id: one for one in archived}
    ids = sorted(as_read)
    # Whoever changes a job has its row of its kind first: who has one now is left alone, and nobody waits.
    free: set[str] = set()
    for table in (artifact_jobs, download_jobs):
        locked = sa.select(table.c.job_id).where(table.c.job_id.in_(ids)).order_by(table.c.job_id)
        free |= set(connection.scalars(locked.with_for_update(skip_locked=True)))
    rows = connection.execute(
        sa.select(_J.job_id, _J.status, _J.updated_at, _T.fence, now().label("at"))
        .select_from(_KINDS)
        .where(_J.job_id.in_(sorted(free)), owned_by(scope), _AT_REST)
        .order_by(_J.job_id)
    )
    return [
        row
        for row in rows
        if (row.updated_at, row.fence or 0) == (as_read[row.job_id].updated_at, as_read[row.job_id].fence)
    ]


def _meant(scope: Scope, only: PurgeFilter) -> sa.ColumnElement[bool]:
    before = from_now(-only.older_than_s)
    return sa.and_(
        owned_by(scope),
        _J.status.in_([status.value for status in only.statuses]),
        _J.created_at < before,  # what the index goes by
        _J.updated_at < before,
        _AT_REST,
    )


def _by_job(
    connection: sa.Connection, table: sa.Table, ids: Sequence[str], *order: sa.ColumnElement[Any]
) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in connection.execute(sa.select(table).where(table.c.job_id.in_(ids)).order_by(*order)):
        plain = {name: _plain(value) for name, value in row._mapping.items() if name != "job_id"}
        found.setdefault(row.job_id, []).append(plain)
    return found


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value

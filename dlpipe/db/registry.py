"""Artifacts, and the indexes that find bytes again: by hash, by URL. No update path to an artifact exists."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from dlpipe.core.model import ArtifactRecord, Fault
from dlpipe.core.ports import FirstCopy, KnownBlob
from dlpipe.db import faults
from dlpipe.db.clock import after, now
from dlpipe.db.faults import with_faults
from dlpipe.db.garbage import is_retired
from dlpipe.db.planning import insert_ignoring
from dlpipe.db.rows import record_from
from dlpipe.db.schema import artifact_retirements, artifacts, hash_index, job_artifacts, manifest, url_index

_H, _U, _A = hash_index.c, url_index.c, artifacts.c
_CHUNK = 500


class SqlRegistry:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def known_url(self, tenant_id: str, canonical_url: str, trust_s: float | None) -> KnownBlob | None:
        found = sa.select(url_index).where(
            _U.scope == tenant_id,
            _U.url_sha256 == _url_sha256(canonical_url),
            _U.canonical_url == canonical_url,
            ~faults.is_marked(_U.sha256, _U.pointer),
        )
        if trust_s is not None:
            found = found.where(_U.seen_at > after(-trust_s))
        row = self._connection.execute(found).first()
        if row is None:
            return None
        return KnownBlob(row.sha256, row.pointer, row.size, row.etag, row.last_modified, row.content_type)

    def first_copy(self, dedupe_scope: str, sha256: str) -> FirstCopy | None:
        row = self._connection.execute(
            sa.select(_H.pointer, _H.job_id).where(_H.scope == dedupe_scope, _H.sha256 == sha256)
        ).first()
        return FirstCopy(row.pointer, row.job_id) if row else None

    def add_copy(self, dedupe_scope: str, sha256: str, pointer: str, size: int, job_id: str) -> None:
        self._connection.execute(
            insert_ignoring(self._connection, hash_index).values(
                scope=dedupe_scope, sha256=sha256, pointer=pointer, size=size, job_id=job_id
            )
        )

    def repoint(self, dedupe_scope: str, sha256: str, old: str, new: str, job_id: str) -> None:
        self._connection.execute(
            sa.update(hash_index)
            .where(_H.scope == dedupe_scope, _H.sha256 == sha256, _H.pointer == old)
            .values(pointer=new, job_id=job_id)
        )

    def artifacts_after(self, artifact_uuid: str, limit: int) -> list[ArtifactRecord]:
        query = with_faults().where(~is_retired()).order_by(_A.artifact_uuid).limit(limit)
        if artifact_uuid:
            query = query.where(_A.artifact_uuid > artifact_uuid)
        return [record_from(row) for row in self._connection.execute(query)]

    def registered(self, blobs: Sequence[tuple[str, str]]) -> set[str]:
        found: set[str] = set()
        for begin in range(0, len(blobs), _CHUNK):
            some = dict(blobs[begin : begin + _CHUNK])
            pointers = self._connection.scalars(
                sa.select(_A.storage_pointer).where(_A.sha256.in_(sorted(set(some.values()))))
            )
            found |= some.keys() & set(pointers)
        return found

    def add_artifact(self, record: ArtifactRecord) -> None:
        insert = insert_ignoring(self._connection, artifacts)
        self._connection.execute(
            insert.values(
                artifact_uuid=record.artifact_uuid,
                tenant_id=record.scope.tenant_id,
                project_id=record.scope.project_id,
                artifact_type=record.artifact_type,
                storage_backend=record.storage_backend,
                storage_pointer=record.storage_pointer,
                content_type=record.content_type,
                byte_size=record.byte_size,
                sha256=record.sha256,
                schema_version=record.schema_version,
                created_at=now(),
                created_by_job_id=record.created_by_job_id,
            )
        )
        # What was given up with a purge is registered anew.
        self._connection.execute(
            sa.delete(artifact_retirements).where(artifact_retirements.c.artifact_uuid == record.artifact_uuid)
        )
        position = self._connection.scalar(
            sa.select(sa.func.coalesce(sa.func.max(job_artifacts.c.position) + 1, 0)).where(
                job_artifacts.c.job_id == record.created_by_job_id, job_artifacts.c.role == "result"
            )
        )
        self._connection.execute(
            insert_ignoring(self._connection, job_artifacts).values(
                job_id=record.created_by_job_id,
                role="result",
                position=position,
                artifact_uuid=record.artifact_uuid,
            )
        )

    def newest_result(self, job_id: str) -> ArtifactRecord | None:
        row = self._connection.execute(
            with_faults()
            .join(job_artifacts, job_artifacts.c.artifact_uuid == _A.artifact_uuid)
            .outerjoin(manifest, manifest.c.artifact_uuid == _A.artifact_uuid)
            .where(job_artifacts.c.job_id == job_id, job_artifacts.c.role == "result")
            .order_by(sa.func.coalesce(manifest.c.run, 0).desc(), job_artifacts.c.position.desc())
            .limit(1)
        ).first()
        return record_from(row) if row else None

    def result_of(self, job_id: str, sha256: str) -> ArtifactRecord | None:
        # By its maker: of an artifact that the job made before it was purged there is no other row.
        mine = sa.and_(job_artifacts.c.artifact_uuid == _A.artifact_uuid, job_artifacts.c.job_id == job_id)
        row = self._connection.execute(
            with_faults()
            .outerjoin(job_artifacts, mine)
            .where(_A.created_by_job_id == job_id, _A.sha256 == sha256)
            .order_by(sa.func.coalesce(job_artifacts.c.position, -1).desc(), _A.created_at.desc())
            .limit(1)
        ).first()
        return record_from(row) if row else None

    def add_fault(self, artifact_uuid: str, fault: Fault) -> bool:
        return faults.add(self._connection, artifact_uuid, fault)

    def faulty(self, limit: int, after: str | None = None) -> list[ArtifactRecord]:
        return faults.faulty(self._connection, limit, after)

    def mend(self, sha256: str, pointer: str) -> int:
        return faults.mend(self._connection, sha256, pointer)

    def see_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob) -> None:
        make = postgresql.insert if self._connection.dialect.name == "postgresql" else sqlite.insert
        facts = {**_facts(canonical_url, blob), "seen_at": now()}
        self._connection.execute(
            make(url_index)
            .values(scope=tenant_id, url_sha256=_url_sha256(canonical_url), **facts)
            .on_conflict_do_update(index_elements=[_U.scope, _U.url_sha256], set_=facts)
        )

    def recall_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob, artifact_uuid: str) -> None:
        made = sa.select(_A.created_at).where(_A.artifact_uuid == artifact_uuid).scalar_subquery()
        self._know_url(tenant_id, canonical_url, blob, made)

    def remember_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob, seen_at: datetime) -> None:
        self._know_url(tenant_id, canonical_url, blob, seen_at)

    def _know_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob, seen_at: Any) -> None:
        self._connection.execute(
            insert_ignoring(self._connection, url_index).values(
                scope=tenant_id, url_sha256=_url_sha256(canonical_url), **_facts(canonical_url, blob), seen_at=seen_at
            )
        )

    def see_again(self, tenant_id: str, canonical_url: str, sha256: str) -> None:
        self._connection.execute(
            sa.update(url_index)
            .where(
                _U.scope == tenant_id,
                _U.url_sha256 == _url_sha256(canonical_url),
                _U.canonical_url == canonical_url,
                _U.sha256 == sha256,
            )
            .values(seen_at=now())
        )

    def note(self, artifact_uuid: str, job_id: str, facts: Mapping[str, Any]) -> None:
        changed = self._connection.execute(
            sa.update(manifest).where(manifest.c.artifact_uuid == artifact_uuid).values(**facts)
        )
        if changed.rowcount == 0:
            self._connection.execute(
                sa.insert(manifest).values(artifact_uuid=artifact_uuid, job_id=job_id, created_at=now(), **facts)
            )


def _facts(canonical_url: str, blob: KnownBlob) -> dict[str, Any]:
    return {
        "canonical_url": canonical_url,
        "sha256": blob.sha256,
        "pointer": blob.pointer,
        "size": blob.size,
        "content_type": blob.content_type,
        "etag": blob.etag,
        "last_modified": blob.last_modified,
    }


def _url_sha256(canonical_url: str) -> str:
    """Long URLs do not fit into an index row; their digest does."""
    return hashlib.sha256(canonical_url.encode()).hexdigest()

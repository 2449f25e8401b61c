"""Artifacts, and the indexes that find bytes again: by hash, by URL. No update path to an artifact exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import sqlalchemy as sa

from dlpipe.core.model import ArtifactRecord, Fault
from dlpipe.core.ports import FirstCopy, KnownBlob, Registration
from dlpipe.db import faults
from dlpipe.db.clock import after, now
from dlpipe.db.faults import with_faults
from dlpipe.db.garbage import is_retired
from dlpipe.db.inserts import ignoring, upserting
from dlpipe.db.ready import Ready
from dlpipe.db.registering import (
    ITS_MANIFEST,
    UNRETIRE,
    columns_of,
    facts_of,
    linked_to_job,
    measures,
    noting,
    registered_values,
    registering,
    seeing,
    url_digest,
)
from dlpipe.db.rows import record_from
from dlpipe.db.schema import artifacts, hash_index, job_artifacts, manifest, url_index

_H, _U, _A, _R = hash_index.c, url_index.c, artifacts.c, job_artifacts.c
_CHUNK = 500

# What every job does is built once: to build a statement costs more than to execute it.
_FIRST_COPY = Ready(
    sa.select(_H.pointer, _H.job_id).where(
        _H.scope == sa.bindparam("its_scope"), _H.sha256 == sa.bindparam("its_sha256")
    )
)
_WHOLE = frozenset({"run", "sha256", "pointer", "byte_size"})
"""Without these there is no row of the manifest."""


@cache
def _add_artifact(dialect: str) -> Any:
    """Answers a row when the artifact is new."""
    return ignoring(dialect, artifacts).values(created_at=now()).returning(_A.artifact_uuid)


@cache
def _link(dialect: str, role: str = "result") -> Ready:
    return Ready(ignoring(dialect, job_artifacts).values(linked_to_job(role)))


@cache
def _known_url(recent: bool) -> Ready:
    found = sa.select(url_index).where(
        _U.scope == sa.bindparam("its_scope"),
        _U.url_sha256 == sa.bindparam("its_url_sha256"),
        _U.canonical_url == sa.bindparam("its_url"),
        ~faults.is_marked(_U.sha256, _U.pointer),
    )
    return Ready(found.where(_U.seen_at > after(sa.bindparam("since_s", type_=sa.Float()))) if recent else found)


@cache
def _see_url(dialect: str) -> Ready:
    return Ready(seeing(upserting(dialect, url_index)))


@cache
def _note_all(dialect: str, names: tuple[str, ...]) -> Ready:
    return Ready(noting(upserting(dialect, manifest), names))


@cache
def _registered(names: tuple[str, ...]) -> Ready:
    """Answers whether artifact and copy are new."""
    *asked, others = registering(names)
    is_new = [sa.exists().select_from(made).label(made.name) for made in asked]
    return Ready(sa.select(*is_new).add_cte(*others))


@cache
def _note_more(names: tuple[str, ...]) -> Ready:
    return Ready(sa.update(manifest).where(manifest.c.artifact_uuid == ITS_MANIFEST).values(**measures(names)))


class SqlRegistry:
    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._dialect = connection.dialect.name
        self._ours: dict[tuple[str, str], FirstCopy] = {}
        """Copies that became the first ones in this transaction."""

    def known_url(self, tenant_id: str, canonical_url: str, trust_s: float | None) -> KnownBlob | None:
        wanted: dict[str, Any] = {
            "its_scope": tenant_id,
            "its_url_sha256": url_digest(canonical_url),
            "its_url": canonical_url,
        }
        if trust_s is not None:
            wanted["since_s"] = -trust_s
        row = _known_url(trust_s is not None)(self._connection, wanted).first()
        if row is None:
            return None
        return KnownBlob(row.sha256, row.pointer, row.size, row.etag, row.last_modified, row.content_type)

    def first_copy(self, dedupe_scope: str, sha256: str) -> FirstCopy | None:
        if (ours := self._ours.get((dedupe_scope, sha256))) is not None:
            return ours
        row = _FIRST_COPY(self._connection, {"its_scope": dedupe_scope, "its_sha256": sha256}).first()
        return FirstCopy(row.pointer, row.job_id) if row else None

    def has_bytes(self, tenant_id: str, sha256: str, besides: str | None = None) -> bool:
        query = sa.select(_A.artifact_uuid).where(_A.sha256 == sha256, _A.tenant_id == tenant_id).limit(1)
        if besides is not None:
            query = query.where(_A.artifact_uuid != besides)
        return self._connection.execute(query).first() is not None

    def add_copy(self, dedupe_scope: str, sha256: str, pointer: str, size: int, job_id: str) -> None:
        copy = {"scope": dedupe_scope, "sha256": sha256, "pointer": pointer, "size": size, "job_id": job_id}
        self._connection.execute(ignoring(self._dialect, hash_index), copy)

    def repoint(self, dedupe_scope: str, sha256: str, old: str, new: str, job_id: str) -> None:
        self._ours.pop((dedupe_scope, sha256), None)
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

    def register(self, new: Registration) -> None:
        record, job_id = new.record, str(new.record.created_by_job_id)
        if self._dialect != "postgresql":
            self.add_artifact(record)
            self.add_copy(new.dedupe_scope, record.sha256, record.storage_pointer, record.byte_size, job_id)
            self.mend(record.sha256, record.storage_pointer)
            self.see_url(record.scope.tenant_id, new.canonical_url, new.blob)
            self.note(record.artifact_uuid, job_id, new.facts)
            return
        found = _registered(tuple(new.facts))(self._connection, registered_values(new)).first()
        if found.copied:
            self._ours[new.dedupe_scope, record.sha256] = FirstCopy(record.storage_pointer, job_id)

    def add_artifact(self, record: ArtifactRecord) -> None:
        made = self._connection.execute(_add_artifact(self._dialect), columns_of(record)).first()
        if made is None:  # what was given up with a purge is registered anew
            self._connection.execute(UNRETIRE, {"its_uuid": record.artifact_uuid})
        linked = {"its_job": record.created_by_job_id, "its_uuid": record.artifact_uuid}
        _link(self._dialect)(self._connection, linked)

    def add_input(self, job_id: str, artifact_uuid: str) -> None:
        _link(self._dialect, "input")(self._connection, {"its_job": job_id, "its_uuid": artifact_uuid})

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
        facts = {"scope": tenant_id, "url_sha256": url_digest(canonical_url), **facts_of(canonical_url, blob)}
        _see_url(self._dialect)(self._connection, {f"its_{name}": value for name, value in facts.items()})

    def recall_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob, artifact_uuid: str) -> None:
        made = sa.select(_A.created_at).where(_A.artifact_uuid == artifact_uuid).scalar_subquery()
        self._know_url(tenant_id, canonical_url, blob, made)

    def remember_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob, seen_at: datetime) -> None:
        self._know_url(tenant_id, canonical_url, blob, seen_at)

    def _know_url(self, tenant_id: str, canonical_url: str, blob: KnownBlob, seen_at: Any) -> None:
        self._connection.execute(
            ignoring(self._dialect, url_index).values(
                scope=tenant_id, url_sha256=url_digest(canonical_url), **facts_of(canonical_url, blob), seen_at=seen_at
            )
        )

    def see_again(self, tenant_id: str, canonical_url: str, sha256: str) -> None:
        self._connection.execute(
            sa.update(url_index)
            .where(
                _U.scope == tenant_id,
                _U.url_sha256 == url_digest(canonical_url),
                _U.canonical_url == canonical_url,
                _U.sha256 == sha256,
            )
            .values(seen_at=now())
        )

    def note(self, artifact_uuid: str, job_id: str, facts: Mapping[str, Any]) -> None:
        values = {"its_uuid": artifact_uuid, **{f"its_{name}": value for name, value in facts.items()}}
        if not set(facts) >= _WHOLE and _note_more(tuple(facts))(self._connection, values).rowcount:
            return
        # Half a row that is not there yet the database refuses.
        _note_all(self._dialect, tuple(facts))(self._connection, {**values, "its_job": job_id})

"""The rows that a new file leaves: each as a statement of its own, and all of them as parts of one (ADR 43)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from dlpipe.core.model import ArtifactRecord
from dlpipe.core.ports import KnownBlob, Registration
from dlpipe.db import faults
from dlpipe.db.clock import now
from dlpipe.db.inserts import ignoring, own_values, upserting
from dlpipe.db.schema import artifact_retirements, artifacts, hash_index, job_artifacts, manifest, url_index

_H, _U, _A, _R = hash_index.c, url_index.c, artifacts.c, job_artifacts.c

UNRETIRE = sa.delete(artifact_retirements).where(
    artifact_retirements.c.artifact_uuid == sa.bindparam("its_uuid", type_=_A.artifact_uuid.type)
)


def linked_to_job(role: str) -> dict[str, Any]:
    """The artifact becomes the last of its job's results (or inputs), unless it is one already."""
    its_job = sa.bindparam("its_job", type_=_R.job_id.type)
    last = sa.select(sa.func.max(_R.position)).where(_R.job_id == its_job, _R.role == role).scalar_subquery()
    position = sa.func.coalesce(last + 1, 0)
    its_uuid = sa.bindparam("its_uuid", type_=_R.artifact_uuid.type)
    return {"job_id": its_job, "role": sa.literal(role), "position": position, "artifact_uuid": its_uuid}


_Put = Callable[[Any, Mapping[str, Any]], Any]
"""Gives an insert its values."""


def _values(insert: Any, values: Mapping[str, Any]) -> Any:
    return insert.values(values)


def seeing(insert: Any, put: _Put = _values) -> Any:
    """All values are bound by the names of their columns."""
    bound = {name: sa.bindparam(f"its_{name}", type_=_U[name].type) for name in _BOUND_OF_URL}
    set_ = {name: insert.excluded[name] for name in (*_BOUND_OF_URL[2:], "seen_at")}
    seen = put(insert, {**bound, "seen_at": now()})
    return seen.on_conflict_do_update(index_elements=[_U.scope, _U.url_sha256], set_=set_)


_BOUND_OF_URL = "scope url_sha256 canonical_url sha256 pointer size content_type etag last_modified".split()


def measures(names: tuple[str, ...]) -> dict[str, sa.BindParameter[Any]]:
    return {name: sa.bindparam(f"its_{name}", type_=manifest.c[name].type) for name in names}


ITS_MANIFEST = sa.bindparam("its_uuid", type_=manifest.c.artifact_uuid.type)


def noting(insert: Any, names: tuple[str, ...], put: _Put = _values) -> Any:
    its_job = sa.bindparam("its_job", type_=manifest.c.job_id.type)
    values = {"artifact_uuid": ITS_MANIFEST, "job_id": its_job, "created_at": now(), **measures(names)}
    set_ = {name: insert.excluded[name] for name in names}
    return put(insert, values).on_conflict_do_update(index_elements=[manifest.c.artifact_uuid], set_=set_)


def registering(names: tuple[str, ...], moved: sa.CTE | None = None) -> tuple[sa.CTE, sa.CTE, sa.CTE, list[sa.CTE]]:
    """All that is written of a new file, as parts of one statement of PostgreSQL: artifact, link, copy, and the others.

    With `moved` only where that has a row. The parts that a question is about are made first, then the others, the
    last one first. So rows are locked in the order in which whoever writes some of it elsewhere does; else the two
    could block each other.
    """

    def put(insert: Any, values: Mapping[str, Any]) -> Any:
        told = own_values(insert.table) | dict(values)
        if moved is None:
            return insert.values(told)
        rows = sa.select(*told.values()).select_from(moved)
        return insert.from_select(list(told), rows, include_defaults=False)

    def ignored(table: sa.Table) -> Any:
        return ignoring("postgresql", table)

    def upserted(table: sa.Table) -> Any:
        return upserting("postgresql", table)

    its: dict[str, Any] = {one.name: sa.bindparam(f"artifact_{one.name}", type_=one.type) for one in artifacts.columns}
    copy = {one.name: sa.bindparam(f"copy_{one.name}", type_=one.type) for one in hash_index.columns}
    mended = faults.MEND if moved is None else faults.MEND.where(sa.exists().select_from(moved))
    added = put(ignored(artifacts), {**its, "created_at": now()}).returning(_A.artifact_uuid).cte("added")
    linked = put(ignored(job_artifacts), linked_to_job("result")).returning(_R.job_id).cte("linked")
    copied = put(ignored(hash_index), copy).returning(_H.pointer).cte("copied")
    others = [
        noting(upserted(manifest), names, put).cte("noted"),
        seeing(upserted(url_index), put).cte("seen"),
        mended.cte("mended"),
        # What was given up with a purge is registered anew.
        (UNRETIRE if moved is None else UNRETIRE.where(sa.exists().select_from(moved))).cte("unretired"),
    ]
    return added, linked, copied, others


def registered_values(new: Registration) -> dict[str, Any]:
    """What those parts are executed with."""
    record = new.record
    copy = {
        "scope": new.dedupe_scope,
        "sha256": record.sha256,
        "pointer": record.storage_pointer,
        "size": record.byte_size,
        "job_id": record.created_by_job_id,
    }
    seen = {"scope": record.scope.tenant_id, "url_sha256": url_digest(new.canonical_url)}
    its = {"job": record.created_by_job_id, "uuid": record.artifact_uuid, **seen}
    its |= {**facts_of(new.canonical_url, new.blob), **new.facts}
    return {
        **{f"artifact_{name}": value for name, value in columns_of(record).items()},
        **{f"copy_{name}": value for name, value in copy.items()},
        **{f"its_{name}": value for name, value in its.items()},
    }


def columns_of(record: ArtifactRecord) -> dict[str, Any]:
    return {
        "artifact_uuid": record.artifact_uuid,
        "tenant_id": record.scope.tenant_id,
        "project_id": record.scope.project_id,
        "artifact_type": record.artifact_type,
        "storage_backend": record.storage_backend,
        "storage_pointer": record.storage_pointer,
        "content_type": record.content_type,
        "byte_size": record.byte_size,
        "sha256": record.sha256,
        "schema_version": record.schema_version,
        "created_by_job_id": record.created_by_job_id,
    }


def facts_of(canonical_url: str, blob: KnownBlob) -> dict[str, Any]:
    return {
        "canonical_url": canonical_url,
        "sha256": blob.sha256,
        "pointer": blob.pointer,
        "size": blob.size,
        "content_type": blob.content_type,
        "etag": blob.etag,
        "last_modified": blob.last_modified,
    }


def url_digest(canonical_url: str) -> str:
    """Long URLs do not fit into an index row; their digest does."""
    return hashlib.sha256(canonical_url.encode()).hexdigest()

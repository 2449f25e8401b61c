"""Marks on artifacts whose file is missing or damaged (HEAL-3). The artifact rows themselves never change."""

from __future__ import annotations

import uuid
from typing import Any

import sqlalchemy as sa

from dlpipe.core.model import ArtifactRecord, Fault
from dlpipe.db.clock import now
from dlpipe.db.inserts import insert_ignoring
from dlpipe.db.rows import record_from
from dlpipe.db.schema import artifact_faults, artifact_retirements, artifacts

_F, _A = artifact_faults.c, artifacts.c
_OPEN = _F.mended_at.is_(None)


def with_faults() -> sa.Select[Any]:
    """Artifacts, each with its open fault, if any, and whether it was given up."""
    both = sa.outerjoin(artifacts, artifact_faults, sa.and_(_F.artifact_uuid == _A.artifact_uuid, _OPEN))
    retired = artifact_retirements.c
    both = both.outerjoin(artifact_retirements, retired.artifact_uuid == _A.artifact_uuid)
    return sa.select(artifacts, _F.fault, _F.found_at, retired.retired_at).select_from(both)


def is_marked(sha256: sa.ColumnElement[str], pointer: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Is any artifact of this very file marked?"""
    return sa.exists().where(
        _F.artifact_uuid == _A.artifact_uuid, _OPEN, _A.sha256 == sha256, _A.storage_pointer == pointer
    )


def add(connection: sa.Connection, artifact_uuid: str, fault: Fault) -> bool:
    added = connection.execute(
        insert_ignoring(connection, artifact_faults)
        .values(fault_id=str(uuid.uuid4()), artifact_uuid=artifact_uuid, fault=fault.value, found_at=now())
        .returning(_F.fault_id)
    )
    return added.first() is not None


def faulty(connection: sa.Connection, limit: int, after: str | None) -> list[ArtifactRecord]:
    query = with_faults().where(_F.artifact_uuid.is_not(None)).order_by(_F.artifact_uuid).limit(limit)
    if after is not None:
        query = query.where(_F.artifact_uuid > after)
    return [record_from(row) for row in connection.execute(query)]


_THIS_FILE = sa.select(_A.artifact_uuid).where(
    _A.sha256 == sa.bindparam("its_sha256"), _A.storage_pointer == sa.bindparam("its_pointer")
)
MEND = sa.update(artifact_faults).where(_F.artifact_uuid.in_(_THIS_FILE), _OPEN).values(mended_at=now())


def mend(connection: sa.Connection, sha256: str, pointer: str) -> int:
    return connection.execute(MEND, {"its_sha256": sha256, "its_pointer": pointer}).rowcount

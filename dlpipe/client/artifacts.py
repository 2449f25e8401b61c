"""Registered files: which there are, what was measured of them, and their bytes. None of it names a place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO

from dlpipe import tasks
from dlpipe.core.errors import InvalidInput, UnknownId
from dlpipe.core.model import DEFAULT_PROJECT, DEFAULT_TENANT, ArtifactRecord, Scope
from dlpipe.core.telemetry import Told

_PAGE = 500
MAX_LINK_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Artifact:
    """A registered file. Where it lies is the store's business; `open_artifact` reads it."""

    artifact_uuid: str
    tenant_id: str
    project_id: str
    job_id: str
    artifact_type: str
    content_type: str | None
    byte_size: int
    sha256: str
    created_at: datetime | None


def get_artifact(
    artifact_uuid: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT
) -> Artifact | None:
    """What is known of a registered file; None for an id that is not known in this tenant and project."""
    record = _record(artifact_uuid, Scope(tenant_id, project_id))
    if record is None:
        return None
    return Artifact(
        artifact_uuid=record.artifact_uuid,
        tenant_id=record.scope.tenant_id,
        project_id=record.scope.project_id,
        job_id=record.created_by_job_id,
        artifact_type=record.artifact_type,
        content_type=record.content_type,
        byte_size=record.byte_size,
        sha256=record.sha256,
        created_at=record.created_at,
    )


def open_artifact(
    artifact_uuid: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT
) -> BinaryIO:
    """The bytes of a registered file, to be read and closed. UnknownId when it is not known here."""
    record = _readable(artifact_uuid, Scope(tenant_id, project_id))
    return tasks.deps().store.open(record.storage_pointer, record.byte_size)


def link_artifact(
    artifact_uuid: str,
    *,
    expires_s: float = 600.0,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> str:
    """A signed address from which the file can be read for so long by whoever has it: a secret, never log it.

    UnknownId when the artifact is not known here; InvalidInput(`link_unsupported`) where files are on a disk.
    """
    record = _readable(artifact_uuid, Scope(tenant_id, project_id))
    if not 1 <= expires_s <= MAX_LINK_S:
        raise InvalidInput(
            "a link lasts from one second to seven days", code="expires_invalid", hint="Use another time."
        )
    store = tasks.deps().store
    link = store.link(record.storage_pointer, expires_s)
    store.open(record.storage_pointer, record.byte_size).close()  # what is not there is an error, not a dead link
    return link


def list_artifacts(
    *,
    job_id: str | None = None,
    limit: int | None = None,
    after: str | None = None,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> Iterator[Artifact]:
    """The registered files, those of the newest jobs first, or the files of one job, read page by page.

    Args:
        after: go on after this artifact of an earlier list.
    """
    for told in _results(Scope(tenant_id, project_id), limit, after, job_id, newest_first=True):
        yield Artifact(
            artifact_uuid=told.artifact_uuid,
            tenant_id=told.tenant_id,
            project_id=told.project_id,
            job_id=told.job_id,
            artifact_type=told.artifact_type,
            content_type=told.content_type,
            byte_size=told.byte_size,
            sha256=told.sha256,
            created_at=told.created_at,
        )


def export(*, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Iterator[Told]:
    """Every registered file with its job and what was measured on its way, as the jobs were planned (OPS-7)."""
    return _results(Scope(tenant_id, project_id), None, None, None, newest_first=False)


def _results(
    scope: Scope, limit: int | None, after: str | None, job_id: str | None, *, newest_first: bool
) -> Iterator[Told]:
    left = limit
    while left is None or left > 0:
        wanted = _PAGE if left is None else min(left, _PAGE)
        with tasks.deps().database.read() as unit:
            page = unit.owned(scope).results(wanted, after, newest_first=newest_first, job_id=job_id)
        yield from page
        if len(page) < wanted:
            return
        after, left = page[-1].artifact_uuid, None if left is None else left - len(page)


def _readable(artifact_uuid: str, scope: Scope) -> ArtifactRecord:
    record = _record(artifact_uuid, scope)
    if record is None:
        raise UnknownId(
            "no such artifact here", code="artifact_unknown", hint="Check the id, and the tenant and project it is of."
        )
    if record.retired_at is not None:
        raise UnknownId(
            "the artifact was given up when its job was purged",
            code="artifact_retired",
            hint="Plan its URL again to have it fetched once more.",
        )
    return record


def _record(artifact_uuid: str, scope: Scope) -> ArtifactRecord | None:
    with tasks.deps().database.read() as unit:
        return unit.owned(scope).artifact(artifact_uuid)

"""What other programs ask of dlpipe, beside `plan` and `plan_many`: jobs, artifacts and wishes by their ids.

It stands above the tasks, since a wish that was granted is sent to the workers at once, and below the command line,
which is one of its users. Nothing here names a place in the store; whoever may read an artifact opens it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

from dlpipe import tasks
from dlpipe.core.downloads import JOB_TYPE_TORRENT
from dlpipe.core.errors import InvalidInput, UnknownId
from dlpipe.core.model import DEFAULT_PROJECT, DEFAULT_TENANT, ArtifactRecord, Scope
from dlpipe.core.model import JobView as Job
from dlpipe.core.model import OpView as Op
from dlpipe.core.states import Status
from dlpipe.core.telemetry import Told
from dlpipe.core.why import Why
from dlpipe.core.wishes import JobFilter
from dlpipe.core.wishes import Tally as Count
from dlpipe.pipeline import torrents, wishes
from dlpipe.pipeline import why as explaining

__all__ = [
    "Artifact",
    "Count",
    "Job",
    "Op",
    "Told",
    "Why",
    "cancel_job",
    "count_jobs",
    "explain_job",
    "export",
    "get_artifact",
    "get_job",
    "job_id_for",
    "link_artifact",
    "list_artifacts",
    "list_jobs",
    "list_ops",
    "open_artifact",
    "pause_job",
    "refresh_job",
    "replay_job",
    "resume_job",
    "retry_job",
]

_PAGE = 500
_COUNTED_BY = ("code", "host", "status")
MAX_LINK_S = 7 * 86_400.0


def get_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Job | None:
    """How a job stands; None for an id that is not known in this tenant and project."""
    with tasks.deps().database.read() as unit:
        return unit.owned(Scope(tenant_id, project_id)).get(job_id)


def list_jobs(
    *,
    status: Status | str | None = None,
    code: str | None = None,
    host: str | None = None,
    work_id: str | None = None,
    paused: bool | None = None,
    limit: int | None = None,
    after: str | None = None,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> Iterator[Job]:
    """The jobs that all of this is true of, the newest first, read page by page as they are taken.

    Args:
        after: go on after this job of an earlier list.
    """
    scope = Scope(tenant_id, project_id)
    only = JobFilter(_status(status), code, host.lower() if host is not None else None, work_id, paused=paused)
    left = limit
    while left is None or left > 0:
        wanted = _PAGE if left is None else min(left, _PAGE)
        with tasks.deps().database.read() as unit:
            page = unit.owned(scope).list_(only, wanted, after)
        yield from page
        if len(page) < wanted:
            return
        after, left = page[-1].job_id, None if left is None else left - len(page)


def count_jobs(
    by: str,
    *,
    status: Status | str | None = None,
    code: str | None = None,
    host: str | None = None,
    work_id: str | None = None,
    paused: bool | None = None,
    limit: int = 50,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> list[Count]:
    """How many of these jobs have what in common, the most frequent first, each with a job for example.

    Args:
        by: what they have in common: `code`, `host` or `status`.
        limit: so many groups at most.
    """
    if by not in _COUNTED_BY:
        raise InvalidInput(
            "jobs are not counted by that", code="count_invalid", hint=f"Use one of {', '.join(_COUNTED_BY)}."
        )
    only = JobFilter(_status(status), code, host.lower() if host is not None else None, work_id, paused=paused)
    with tasks.deps().database.read() as unit:
        return unit.owned(Scope(tenant_id, project_id)).tally(by, only, limit)


def list_ops(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> list[Op]:
    """The ledger's record of a job, stage by stage, oldest first; empty when it is not known here."""
    with tasks.deps().database.read() as unit:
        return unit.owned(Scope(tenant_id, project_id)).ops(job_id)


def _status(status: Status | str | None) -> Status | None:
    try:
        return None if status is None else Status(status)
    except ValueError:
        known = ", ".join(one.value for one in Status)
        raise InvalidInput("there is no such status", code="status_invalid", hint=f"Use one of {known}.") from None


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


def explain_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Why | None:
    """Why a job is where it is, and what happens next; None when it is not known here."""
    return explaining.why(tasks.deps(), Scope(tenant_id, project_id), job_id)


def cancel_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Job | None:
    """Cancel a job that is not done yet; how it stands then, None when it is not known here."""
    job = get_job(job_id, tenant_id=tenant_id, project_id=project_id)
    if job is not None and job.job_type == JOB_TYPE_TORRENT:
        torrents.cancel(tasks.torrent_deps(), job.scope, job_id)
    else:
        wishes.cancel(tasks.deps(), Scope(tenant_id, project_id), job_id)
    return get_job(job_id, tenant_id=tenant_id, project_id=project_id)


def pause_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Job | None:
    """Let a job wait with the bytes it has until it is resumed; how it stands then, None when it is not known here."""
    return wishes.pause(tasks.deps(), Scope(tenant_id, project_id), job_id)


def resume_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Job | None:
    """Let a paused job go on; how it stands then, None when it is not known here."""
    return wishes.resume(tasks.deps(), Scope(tenant_id, project_id), job_id)


def retry_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Job | None:
    """Try a job again that failed for good; how it stands then, None when it is not known here."""
    return wishes.retry(tasks.deps(), Scope(tenant_id, project_id), job_id)


def refresh_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Job | None:
    """Ask the server again for a finished job's file; how the job stands then, None when it is not known here."""
    return wishes.refresh(tasks.deps(), Scope(tenant_id, project_id), job_id)


def replay_job(
    job_id: str,
    *,
    from_stage: str = "stream",
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> Job | None:
    """Do a job's stages again from its stored file, without the network; how it stands then, None when not known here.

    Args:
        from_stage: the first stage that is done again: stream (reads and hashes all bytes), finalize, index or dedupe.
    """
    return wishes.replay(tasks.deps(), Scope(tenant_id, project_id), job_id, from_stage)


def job_id_for(url: str, **fields: Any) -> str:
    """The id that planning this request gives its job, computed without a database (PLAN-2).

    Takes the fields of `plan`; those that only say how to fetch it change nothing.
    """
    from dlpipe.core.model import job_spec
    from dlpipe.net.urls import parse

    return job_spec(parse, url=url, **fields).job_id

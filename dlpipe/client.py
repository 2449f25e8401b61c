"""What other programs ask of dlpipe, beside `plan` and `plan_many`: jobs, artifacts and wishes by their ids.

It stands above the tasks, since a wish that was granted is sent to the workers at once, and below the command line,
which is one of its users. Nothing here names a place in the store; whoever may read an artifact opens it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlpipe import tasks
from dlpipe.core.errors import InvalidInput
from dlpipe.core.model import DEFAULT_PROJECT, DEFAULT_TENANT, Scope
from dlpipe.core.model import JobView as Job
from dlpipe.core.states import Status
from dlpipe.core.wishes import JobFilter
from dlpipe.pipeline import wishes

__all__ = [
    "Job",
    "cancel_job",
    "get_job",
    "job_id_for",
    "list_jobs",
    "pause_job",
    "resume_job",
    "retry_job",
]

_PAGE = 500


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
    only = JobFilter(_status(status), code, host.lower() if host else None, work_id, paused=paused)
    left = limit
    while left is None or left > 0:
        wanted = _PAGE if left is None else min(left, _PAGE)
        with tasks.deps().database.read() as unit:
            page = unit.owned(scope).list_(only, wanted, after)
        yield from page
        if len(page) < wanted:
            return
        after, left = page[-1].job_id, None if left is None else left - len(page)


def _status(status: Status | str | None) -> Status | None:
    try:
        return None if status is None else Status(status)
    except ValueError:
        known = ", ".join(one.value for one in Status)
        raise InvalidInput("there is no such status", code="status_invalid", hint=f"Use one of {known}.") from None


def cancel_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Job | None:
    """Cancel a job that is not done yet; how it stands then, None when it is not known here."""
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


def job_id_for(url: str, **fields: Any) -> str:
    """The id that planning this request gives its job, computed without a database (PLAN-2).

    Takes the fields of `plan`; those that only say how to fetch it change nothing.
    """
    from dlpipe.core.model import job_spec
    from dlpipe.net.urls import parse

    return job_spec(parse, url=url, **fields).job_id

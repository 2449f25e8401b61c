"""What is known of jobs: one, many, how many, why, and what is left of those that were purged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlpipe import tasks, wiring
from dlpipe.core.errors import InvalidInput
from dlpipe.core.model import DEFAULT_PROJECT, DEFAULT_TENANT, Scope
from dlpipe.core.model import JobView as Job
from dlpipe.core.model import OpView as Op
from dlpipe.core.purging import Tombstone as Purged
from dlpipe.core.states import Status
from dlpipe.core.why import Why
from dlpipe.core.wishes import JobFilter
from dlpipe.core.wishes import Tally as Count
from dlpipe.pipeline import why as explaining

_PAGE = 500
_COUNTED_BY = ("code", "host", "status")


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


def explain_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Why | None:
    """Why a job is where it is, and what happens next; None when it is not known here."""
    return explaining.why(tasks.deps(), Scope(tenant_id, project_id), job_id, idle=wiring.idle())


def get_purged_job(job_id: str, *, tenant_id: str = DEFAULT_TENANT, project_id: str = DEFAULT_PROJECT) -> Purged | None:
    """How a job ended that was purged, and which archive tells of it; None when it is there, or not known here."""
    with tasks.deps().database.read() as unit:
        owned = unit.owned(Scope(tenant_id, project_id))
        return owned.tombstone(job_id) if owned.get(job_id) is None else None


def job_id_for(url: str, **fields: Any) -> str:
    """The id that planning this request gives its job, computed without a database (PLAN-2).

    Takes the fields of `plan`; those that only say how to fetch it change nothing.
    """
    from dlpipe.core.model import job_spec
    from dlpipe.net.urls import parse

    return job_spec(parse, url=url, **fields).job_id

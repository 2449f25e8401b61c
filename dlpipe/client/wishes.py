"""What is wanted of jobs: of one by its id, and of all that a filter means."""

from __future__ import annotations

from collections.abc import Callable

from dlpipe import tasks
from dlpipe.client.jobs import get_job
from dlpipe.core.downloads import JOB_TYPE_TORRENT
from dlpipe.core.errors import InvalidInput
from dlpipe.core.model import DEFAULT_PROJECT, DEFAULT_TENANT, Scope
from dlpipe.core.model import JobView as Job
from dlpipe.core.wishes import JobFilter, Wish
from dlpipe.pipeline import torrents, wishes

Hear = Callable[[Job], None]


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


def cancel_jobs(
    *,
    code: str | None = None,
    host: str | None = None,
    work_id: str | None = None,
    everything: bool = False,
    dry_run: bool = False,
    told: Hear | None = None,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> int:
    """Cancel all of these jobs that are not done yet; how many it was done to.

    Those of one tenant and project are meant that all of this is true of, and downloads of torrents are not. Each
    batch of them is a transaction of its own, so an interruption leaves the rest as it was.

    Args:
        everything: they are meant all; without it, and without a filter, nothing is done (`filter_missing`).
        dry_run: only count them.
        told: called with each of them, as it was before.
    """
    only = _filter(code, host, work_id, everything)
    return _all(Wish.CANCEL, Scope(tenant_id, project_id), only, told, dry_run=dry_run)


def pause_jobs(
    *,
    code: str | None = None,
    host: str | None = None,
    work_id: str | None = None,
    everything: bool = False,
    dry_run: bool = False,
    told: Hear | None = None,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> int:
    """Let all of these jobs wait with the bytes they have; how many it was done to. See `cancel_jobs`."""
    only = _filter(code, host, work_id, everything)
    return _all(Wish.PAUSE, Scope(tenant_id, project_id), only, told, dry_run=dry_run)


def resume_jobs(
    *,
    code: str | None = None,
    host: str | None = None,
    work_id: str | None = None,
    everything: bool = False,
    dry_run: bool = False,
    told: Hear | None = None,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> int:
    """Let all of these jobs that are paused go on; how many it was done to. See `cancel_jobs`."""
    only = _filter(code, host, work_id, everything)
    return _all(Wish.RESUME, Scope(tenant_id, project_id), only, told, dry_run=dry_run)


def retry_jobs(
    *,
    code: str | None = None,
    host: str | None = None,
    work_id: str | None = None,
    everything: bool = False,
    dry_run: bool = False,
    told: Hear | None = None,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> int:
    """Try all of these jobs again that failed for good; how many it was done to. See `cancel_jobs`."""
    only = _filter(code, host, work_id, everything)
    return _all(Wish.RETRY, Scope(tenant_id, project_id), only, told, dry_run=dry_run)


def refresh_jobs(
    *,
    code: str | None = None,
    host: str | None = None,
    work_id: str | None = None,
    everything: bool = False,
    dry_run: bool = False,
    told: Hear | None = None,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> int:
    """Ask the servers again for the files of all of these jobs that ended; how many. See `cancel_jobs`."""
    only = _filter(code, host, work_id, everything)
    return _all(Wish.REFRESH, Scope(tenant_id, project_id), only, told, dry_run=dry_run)


def replay_jobs(
    *,
    from_stage: str = "stream",
    code: str | None = None,
    host: str | None = None,
    work_id: str | None = None,
    everything: bool = False,
    dry_run: bool = False,
    told: Hear | None = None,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
) -> int:
    """Do the stages of all of these jobs that ended again from their stored files; how many. See `cancel_jobs`."""
    only = _filter(code, host, work_id, everything)
    return _all(Wish.REPLAY, Scope(tenant_id, project_id), only, told, dry_run=dry_run, from_stage=from_stage)


def _filter(code: str | None, host: str | None, work_id: str | None, everything: bool) -> JobFilter:
    only = JobFilter(code=code, host=host.lower() if host is not None else None, work_id=work_id)
    if only == JobFilter() and not everything:
        raise InvalidInput(
            "nothing says which jobs are meant",
            code="filter_missing",
            hint="Name a code, a host or a work, or say that all of them are meant.",
        )
    return only


def _all(
    wish: Wish, scope: Scope, only: JobFilter, told: Hear | None, *, dry_run: bool, from_stage: str | None = None
) -> int:
    count = 0
    for batch in wishes.of_all(tasks.deps(), scope, wish, only, from_stage=from_stage, dry_run=dry_run):
        count += len(batch)
        if told is not None:
            for job in batch:
                told(job)
    return count

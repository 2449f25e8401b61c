"""What owners want of their jobs: while workers may be at them, and after their end (JOB-8, JOB-9)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dlpipe.core.errors import InvalidInput, LeaseUnavailable
from dlpipe.core.flow import REPLAYABLE
from dlpipe.core.model import JOB_TYPE_ARTIFACT, ArtifactRecord, Fault, JobView, Scope
from dlpipe.core.states import Status
from dlpipe.core.wishes import JobFilter, Wish
from dlpipe.pipeline import stores
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.planner import nudge

log = logging.getLogger(__name__)


def cancel(deps: Deps, scope: Scope, job_id: str) -> Status | None:
    """Cancel the job, if it is not too late; the status afterwards, None for an unknown or foreign id (JOB-9).

    With the commit nothing of a worker in the middle of it counts any more; that it also stops is a courtesy.
    A job that has its result, and is at a further run, is then again at the end that it had.
    """
    with deps.database.write() as unit:
        changed = unit.owned(scope).grant(Wish.CANCEL, [job_id])
        status = unit.owned(scope).cancel(job_id)
    if changed or status is Status.CANCELED:
        _stop(deps, [job_id])
    return status


def pause(deps: Deps, scope: Scope, job_id: str) -> JobView | None:
    """Let the job wait with the bytes that it has; how it stands afterwards, None for an unknown or foreign id.

    As with a cancel, the commit decides, and who works on it stops at the next chunk.
    """
    with deps.database.write() as unit:
        view = unit.owned(scope).pause(job_id)
    if view is not None and view.paused_at is not None:
        _stop(deps, [job_id])
    return _of_artifact(view)


def resume(deps: Deps, scope: Scope, job_id: str) -> JobView | None:
    """Let a paused job go on; how it stands afterwards, None for an unknown or foreign id."""
    with deps.database.write() as unit:
        view = unit.owned(scope).resume(job_id)
    if view is not None:
        nudge(deps)
    return _of_artifact(view)


def retry(deps: Deps, scope: Scope, job_id: str) -> JobView | None:
    """Try a job again that failed for good; how it stands afterwards, None for an unknown or foreign id."""
    with deps.database.write() as unit:
        unit.owned(scope).retry(job_id)
        view = unit.owned(scope).get(job_id)
    if view is not None:
        nudge(deps)
    return view


def refresh(deps: Deps, scope: Scope, job_id: str) -> JobView | None:
    """Ask the server whether it has something newer than a finished job brought; how the job stands afterwards."""
    with deps.database.write() as unit:
        unit.owned(scope).refresh(job_id)
        view = unit.owned(scope).get(job_id)
    if view is not None:
        nudge(deps)
    return view


def replay(deps: Deps, scope: Scope, job_id: str, from_stage: str) -> JobView | None:
    """Do a job's stages again from its stored file, without the network (JOB-7); how the job stands afterwards."""
    _can_begin(from_stage)
    with deps.database.write() as unit:
        unit.owned(scope).replay(job_id, from_stage)
        view = unit.owned(scope).get(job_id)
    if view is not None:
        nudge(deps)
    return view


def _can_begin(from_stage: str) -> None:
    if from_stage not in REPLAYABLE:
        raise InvalidInput(
            "a replay cannot begin there",
            code="replay_from_invalid",
            hint=f"Use one of {', '.join(REPLAYABLE)}; what comes before them asks the server: see dlpipe refresh.",
        )


def _of_artifact(view: JobView | None) -> JobView | None:
    if view is not None and view.job_type != JOB_TYPE_ARTIFACT:
        raise InvalidInput(
            f"job {view.job_id} follows a torrent, and cannot be paused from here",
            code="download_not_pausable",
            hint="Stop and start the torrent in qBittorrent, or cancel the download.",
        )
    return view


_MEANT = {
    Wish.CANCEL: JobFilter(ended=False),
    Wish.PAUSE: JobFilter(ended=False, paused=False),
    Wish.RESUME: JobFilter(ended=False, paused=True),
    Wish.RETRY: JobFilter(status=Status.FAILED),
    Wish.REFRESH: JobFilter(ended=True),
    Wish.REPLAY: JobFilter(ended=True),
}
"""Where each wish can have an effect at all."""


def of_all(
    deps: Deps, scope: Scope, wish: Wish, only: JobFilter, *, from_stage: str | None = None, dry_run: bool = False
) -> Iterator[list[JobView]]:
    """Do it to all jobs that the filter lets through, batch by batch; answer those that it was done to, as they were.

    Each batch is a transaction of its own. A job is met once, so one that fails again meanwhile is not tried for ever.
    """
    if from_stage is not None:
        _can_begin(from_stage)
    meant = _MEANT[wish]
    only = replace(only, status=meant.status, ended=meant.ended, paused=meant.paused, job_type=JOB_TYPE_ARTIFACT)
    after: str | None = None
    while True:
        with deps.database.read() if dry_run else deps.database.write() as unit:
            found = unit.owned(scope).list_(only, deps.policy.batch, after)
            ids = [view.job_id for view in found]
            done = set(ids if dry_run else unit.owned(scope).grant(wish, ids, from_stage))
        if not found:
            return
        after = ids[-1]
        if not dry_run:
            _carry(deps, wish, [job_id for job_id in ids if job_id in done])
        yield [view for view in found if view.job_id in done]


def _carry(deps: Deps, wish: Wish, job_ids: Sequence[str]) -> None:
    """Tell those whom it concerns: holders to stop, or workers that there is something to do."""
    if wish in (Wish.CANCEL, Wish.PAUSE):
        _stop(deps, job_ids)
    else:
        nudge(deps)


def _stop(deps: Deps, job_ids: Sequence[str]) -> None:
    try:
        for job_id in job_ids:
            deps.leases.stop(job_id)
    except LeaseUnavailable as error:
        log.info("%d jobs are stopped, and who works on them was not told: %s", len(job_ids), error.code)


def fault_of(deps: Deps, artifact: ArtifactRecord, *, thorough: bool) -> Fault | None:
    """What is wrong with the artifact's file: by its size, or (`thorough`) by all of its bytes."""
    stores.recognise(deps, dry_run=True)  # in a store that is not there, everything would be missing
    store, pointer = deps.store, artifact.storage_pointer
    if store.holds(pointer, artifact.byte_size):
        right = not thorough or store.is_right(pointer, artifact.sha256, artifact.byte_size)
        return None if right else Fault.DAMAGED
    return Fault.DAMAGED if store.exists(pointer) else Fault.MISSING


def bring_back(deps: Deps, view: JobView, artifact: ArtifactRecord, fault: Fault) -> bool:
    """The job's file is missing or damaged: mark it, and have it brought again (HEAL-3).

    False when that is not to be done now: somebody works on the job, or a run is due already.
    """
    stores.recognise(deps)
    with deps.database.write() as unit:
        unit.registry.add_fault(artifact.artifact_uuid, fault)
        return unit.backlog.reopen(view.job_id, view.fence, fault)

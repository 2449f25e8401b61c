"""What owners want of their jobs: while workers may be at them, and after their end."""

from __future__ import annotations

import logging

from dlpipe.core.errors import LeaseUnavailable
from dlpipe.core.model import ArtifactRecord, Fault, JobView, Scope
from dlpipe.core.states import Status
from dlpipe.pipeline.deps import Deps

log = logging.getLogger(__name__)


def cancel(deps: Deps, scope: Scope, job_id: str) -> Status | None:
    """Cancel the job, if it is not too late; the status afterwards, None for an unknown or foreign id (JOB-9).

    With the commit nothing of a worker in the middle of it counts any more; that it also stops is a courtesy.
    """
    with deps.database.write() as unit:
        status = unit.owned(scope).cancel(job_id)
    if status is Status.CANCELED:
        try:
            deps.leases.stop(job_id)
        except LeaseUnavailable as error:
            log.info("job %s is canceled, and who works on it was not told: %s", job_id, error.code)
    return status


def fault_of(deps: Deps, artifact: ArtifactRecord, *, thorough: bool) -> Fault | None:
    """What is wrong with the artifact's file: by its size, or (`thorough`) by all of its bytes."""
    store, pointer = deps.store, artifact.storage_pointer
    if store.holds(pointer, artifact.byte_size):
        right = not thorough or store.is_right(pointer, artifact.sha256, artifact.byte_size)
        return None if right else Fault.DAMAGED
    return Fault.DAMAGED if store.exists(pointer) else Fault.MISSING


def bring_back(deps: Deps, view: JobView, artifact: ArtifactRecord, fault: Fault) -> bool:
    """The job's file is missing or damaged: mark it, and have it brought again (HEAL-3).

    False when that is not to be done now: somebody works on the job, or a run is due already.
    """
    with deps.database.write() as unit:
        unit.registry.add_fault(artifact.artifact_uuid, fault)
        return unit.backlog.reopen(view.job_id, view.fence, fault)

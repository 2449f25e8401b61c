"""What owners want of their jobs while workers may be at them."""

from __future__ import annotations

import logging

from dlpipe.core.errors import LeaseUnavailable
from dlpipe.core.model import Scope
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

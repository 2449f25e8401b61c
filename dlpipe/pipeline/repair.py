"""Act on what a check of the whole has found: through reconcile, without waiting until its walks come by (OPS-6)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from dlpipe.core.errors import InvalidInput, StageFailure
from dlpipe.core.model import ArtifactRecord, Fault
from dlpipe.core.recovery import believable
from dlpipe.pipeline import blobs, parts, stores
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.reconcile import reconcile
from dlpipe.pipeline.round import Round

log = logging.getLogger(__name__)

MAX_ROUNDS = 10_000


@dataclass(frozen=True, slots=True)
class Accused:
    """A file that is said to be missing or wrong, and the job whose result it is."""

    job_id: str
    pointer: str


@dataclass(frozen=True, slots=True)
class Repair:
    """What came of it."""

    jobs_reopened: int = 0
    artifacts_marked: int = 0
    left_alone: int = 0
    """Files that are right after all, and those that no further run can bring."""
    refused: bool = False
    """So many were said to be missing that the store is not mounted rather than empty."""


def bring_again(deps: Deps, accused: Sequence[Accused], registered: int) -> Repair:
    """Look at each file again, mark those that are gone or damaged, and make their jobs due.

    Args:
        registered: how many artifacts there are in all.
    """
    stores.recognise(deps)
    if not believable(registered, len(accused), deps.policy.heal.max_missing):
        return Repair(left_alone=len(accused), refused=True)
    this = Round(deps)
    acted = 0
    for one in accused:
        before = _done(this)
        for record in _records(deps, one):
            fault = _fault(deps, record)
            if fault is not None:
                blobs.bring_again(this, record, fault)
        acted += _done(this) != before
    counts = this.report().counts()
    return Repair(counts["jobs_reopened"], counts["files_missing"] + counts["files_damaged"], len(accused) - acted)


def rounds(deps: Deps) -> int:
    """Reconcile until it has looked at every row, every file and every part once; answer in how many rounds."""
    for number in range(1, MAX_ROUNDS + 1):
        reconcile(deps)
        this = Round(deps)
        if not any(this.cursor(name) for name in (blobs.ROWS, blobs.FILES, parts.CURSOR)):
            return number
    return MAX_ROUNDS


def _done(this: Round) -> int:
    return sum(this.report().counts().values())


def _records(deps: Deps, accused: Accused) -> list[ArtifactRecord]:
    with deps.database.read() as unit:
        job = unit.backlog.get(accused.job_id)
        if job is None:
            return []
        found = unit.owned(job.scope).artifacts_of(accused.job_id)
    return [record for record in found if record.storage_pointer == accused.pointer]


def _fault(deps: Deps, record: ArtifactRecord) -> Fault | None:
    try:
        if deps.store.size(record.storage_pointer) is None:
            return Fault.MISSING
        right = deps.store.is_right(record.storage_pointer, record.sha256, record.byte_size)
    except (StageFailure, InvalidInput) as error:
        log.warning("repair: artifact %s left alone: %s", record.artifact_uuid, error)
        return None
    return None if right else Fault.DAMAGED

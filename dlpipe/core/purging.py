"""What a purge takes: jobs at their end, whole, with all rows that go with them (OPS-8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dlpipe.core.states import Status

ENDED = (Status.COMPLETED, Status.FAILED, Status.SKIPPED, Status.CANCELED)
"""The statuses of jobs that nothing happens to by itself."""

PLAIN = (
    "job_id tenant_id project_id job_type status idempotency_key request_id error_code error_message_safe "
    "error_debug_id"
).split()
TIMES = "created_at updated_at completed_at failed_at".split()
NESTED = "detail ops results manifest files".split()
"""The job's own row of its kind, and the rows of other tables; one JSON text each where a cell holds only text."""
COLUMNS = (*PLAIN, *TIMES, *NESTED)


@dataclass(frozen=True, slots=True)
class PurgeFilter:
    """Which jobs at their end: those that nothing has happened to for so long."""

    older_than_s: float
    statuses: tuple[Status, ...] = ENDED


@dataclass(frozen=True, slots=True)
class Expired:
    """A job that may go, as it stood when it was read."""

    job_id: str
    created_at: datetime
    updated_at: datetime
    fence: int
    record: Mapping[str, Any]
    """One row of the archive, by COLUMNS."""


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file that is whole, on disk for good, and was read back."""

    name: str
    sha256: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What stays of a purged job: that it was there, how it ended, and which archive tells of it (JOB-6)."""

    job_id: str
    status: Status
    purged_at: datetime
    archive: str
    archive_sha256: str

"""What is told of one registered file and of how it came here (OPS-7), without the place where it lies (JOB-4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Told:
    """One row of an export."""

    artifact_uuid: str
    job_id: str
    tenant_id: str
    project_id: str
    job_type: str
    work_id: str
    artifact_id: str
    url: str
    request_id: str | None
    artifact_type: str
    content_type: str | None
    byte_size: int
    sha256: str
    shard_prefix: str | None
    created_at: datetime
    run: int | None
    resume_decision: str | None
    resume_reason: str | None
    bytes_written: int | None
    resumed_from_bytes: int | None
    elapsed_ms: int | None
    fsync_ms: int | None
    avg_write_mibps: float | None
    dedupe_action: str | None
    quota: Mapping[str, Any] | None


COLUMNS = tuple(field.name for field in fields(Told))

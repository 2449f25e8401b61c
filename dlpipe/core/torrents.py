"""Download jobs that follow a torrent: their states, and what an observation makes of a job. Pure (TORRENT-1…6)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class DownloadStatus(StrEnum):
    QUEUED = "queued"
    DOWNLOADING = "downloading"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class DownloadJob:
    """One row of download_jobs."""

    job_id: str
    tenant_id: str
    project_id: str
    user_id: str
    book_id: str
    media_type: str
    status: DownloadStatus
    source: str
    source_url: str
    external_job_id: str | None
    row_version: int
    created_at_utc: datetime
    updated_at_utc: datetime
    completed_at_utc: datetime | None = None
    first_not_found_at_utc: datetime | None = None
    checked_at_utc: datetime | None = None
    failure_reason: str | None = None


@dataclass(frozen=True, slots=True)
class TorrentFile:
    """One file of a torrent, relative to its save path."""

    path: str
    size: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Torrent:
    """What the torrent client says of one torrent."""

    info_hash: str
    state: str
    """The client's own word, such as `stalledDL`."""
    progress: float
    size: int
    done_bytes: int
    save_path: str
    name: str

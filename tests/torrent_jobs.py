"""Download jobs and what a client says of them, for tests of decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dlpipe.core.seen import Seen, seen
from dlpipe.core.torrents import DownloadJob, DownloadStatus, Torrent

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NAME = "a" * 40


def job(
    status: DownloadStatus = DownloadStatus.DOWNLOADING,
    absent_since: datetime | None = None,
    external: str | None = NAME,
) -> DownloadJob:
    return DownloadJob(
        job_id="j1",
        tenant_id="default",
        project_id="default",
        user_id="u1",
        book_id="b1",
        media_type="ebook",
        status=status,
        source="qbittorrent",
        source_url="magnet:?xt=urn:btih:" + NAME,
        external_job_id=external,
        row_version=7,
        created_at_utc=NOON - timedelta(days=1),
        updated_at_utc=NOON - timedelta(hours=1),
        first_not_found_at_utc=absent_since,
    )


def torrent(state: str, done: int = 0, progress: float | None = None) -> Torrent:
    if progress is None:
        progress = 1.0 if seen(state) is Seen.COMPLETE else done / 100
    return Torrent(NAME, state, progress, 100, done, "/downloads", "book")

"""What is asked of a download that follows a torrent, what its owner sees, and the port of its rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from dlpipe.core import metainfo
from dlpipe.core.errors import InvalidInput, TorrentRefused
from dlpipe.core.model import Scope
from dlpipe.core.states import Status
from dlpipe.core.torrents import DownloadJob, DownloadStatus, Movement
from dlpipe.core.urls import ParseUrl, PlannedUrl, plan_url, redact

JOB_TYPE_TORRENT = "torrent_download"
QBITTORRENT = "qbittorrent"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SHOWN = re.compile(r"(xt(\.\d+)?|dn)=", re.IGNORECASE)


class Removal(StrEnum):
    """What becomes of the torrent when its download is canceled."""

    KEEP = "keep"
    REMOVE = "remove"
    REMOVE_WITH_FILES = "remove_with_files"


class Sharing(StrEnum):
    """How a finished file gets into the store while the torrent goes on seeding it (ADR 18)."""

    LINK = "link"
    """Reflink, else hardlink, else copy."""
    CLONE = "clone"
    """Reflink, else copy: nothing done to the seeded file can reach the store."""
    COPY = "copy"


STATUS = {
    DownloadStatus.QUEUED: Status.PENDING,
    DownloadStatus.DOWNLOADING: Status.PROCESSING,
    DownloadStatus.COMPLETED: Status.COMPLETED,
    DownloadStatus.FAILED: Status.FAILED,
    DownloadStatus.CANCELED: Status.CANCELED,
}
"""The canonical job status that belongs to a download's own (JOB-2)."""


@dataclass(frozen=True, slots=True)
class DownloadSpec:
    """One checked request."""

    scope: Scope
    user_id: str
    book_id: str
    media_type: str
    source_url: str
    source_bytes: bytes | None = None
    url: PlannedUrl | None = None
    """Where the .torrent is to be fetched from, when that is what was given."""
    request_id: str | None = None


def download_spec(
    parse: ParseUrl,
    *,
    user_id: str,
    book_id: str,
    media_type: str,
    source: str | bytes,
    tenant_id: str = "default",
    project_id: str = "default",
    request_id: str | None = None,
) -> DownloadSpec:
    """Check a request; InvalidInput says what is wrong, and nothing has changed.

    Args:
        source: a magnet link, the http(s) URL of a .torrent, or the bytes of one.
    """
    scope = Scope(_text("tenant", tenant_id, 64), _text("project", project_id, 64))
    named = {
        "user_id": _text("user_id", user_id, 128),
        "book_id": _text("book_id", book_id, 128),
        "media_type": _text("media_type", media_type, 64),
    }
    if request_id is not None:
        _text("request_id", request_id, 128)
    url: PlannedUrl | None = None
    data: bytes | None = None
    try:
        if isinstance(source, bytes):
            metainfo.of_file(source)
            data, source_url = source, f"torrent-file:{hashlib.sha256(source).hexdigest()}"
        elif isinstance(source, str) and source.lower().startswith("magnet:"):
            metainfo.of_magnet(source)
            source_url = source
        else:
            url = plan_url(_text("source", source, None), parse)
            source_url = url.request
    except TorrentRefused as error:
        raise InvalidInput(error.message, code=error.code, hint=error.hint) from None
    return DownloadSpec(scope, **named, source_url=source_url, source_bytes=data, url=url, request_id=request_id)


def _text(field: str, value: object, limit: int | None) -> str:
    if not isinstance(value, str) or not value or (limit and len(value) > limit) or _CONTROL.search(value):
        raise InvalidInput(
            f"{field} must be a text" + (f" of 1 to {limit} printable characters" if limit else ""),
            code=f"{field}_invalid",
            hint="Correct it and start again.",
        )
    return value


def shown_source(source_url: str) -> str:
    """A source as it may be shown: trackers and web seeds of a magnet link can hold a pass key."""
    if source_url.lower().startswith("magnet:"):
        fields = source_url.partition("?")[2].split("&")
        return "magnet:?" + "&".join(field for field in fields if _SHOWN.match(field))
    return redact(source_url)


@dataclass(frozen=True, slots=True)
class Followed:
    """A download as the workers see it: its row, and what is kept beside it for them."""

    job: DownloadJob
    due_at_utc: datetime | None = None
    attempts: int = 0
    movement: Movement | None = None
    source_bytes: bytes | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a torrent says of a job that it did not change."""

    job_id: str
    percent: int | None
    size_bytes: int | None
    movement: Movement | None


@dataclass(frozen=True, slots=True)
class FileRow:
    """One registered file of a torrent."""

    path: str
    byte_size: int
    sha256: str
    artifact_uuid: str


@dataclass(frozen=True, slots=True)
class RemovalWish:
    """A torrent of a canceled job that is still to be taken out of the client."""

    job_id: str
    external_job_id: str
    with_files: bool


@dataclass(frozen=True, slots=True)
class DownloadView:
    """A download as its owner sees it."""

    job_id: str
    scope: Scope
    user_id: str
    book_id: str
    media_type: str
    state: DownloadStatus
    status: Status
    progress: int
    source: str
    source_shown: str
    external_job_id: str | None
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    first_not_found_at: datetime | None
    checked_at: datetime | None
    size_bytes: int | None
    done_bytes: int | None
    moved_at: datetime | None
    failure_reason: str | None
    error_code: str | None
    error_message_safe: str | None
    error_debug_id: str | None
    request_id: str | None
    files: tuple[FileRow, ...] = ()


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """What a start came to: `created`, or `known` when such a download is active already (TORRENT-3)."""

    job_id: str
    outcome: str
    state: DownloadStatus
    status: Status


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something did not work, as people may see it."""

    code: str
    message: str
    debug_id: str


class Downloads(Protocol):
    """The rows of downloads. Every method is part of the unit's one transaction.

    Times are handed in, so that all that one round writes agrees; `clock` is where workers take them from.
    Each change of a row is a compare-and-set on its row_version, and answers whether it was made; the row in
    `jobs` follows in the same transaction.
    """

    def clock(self) -> datetime:
        """The database's time (LEASE-6)."""

    def start(self, spec: DownloadSpec, job_id: str, due_at: datetime, now: datetime) -> StartAnswer:
        """Insert the job, or answer the active one of the same user, book and medium."""

    def to_check(self, limit: int) -> list[Followed]:
        """The active jobs that the client knows, the longest unchecked first."""

    def again(self, job_ids: Sequence[str]) -> list[Followed]:
        """These rows as they are now, without the source's bytes."""

    def work(self, job_id: str) -> Followed | None:
        """One row as it is now, with all that a worker needs."""

    def change(self, before: DownloadJob, after: DownloadJob, trouble: Trouble | None = None) -> bool:
        """Write `after`, which is `applied` to `before`, if the row still is `before`."""

    def mark_checked(self, looks: Sequence[Look], now: datetime) -> None:
        """These were looked at; what another round marks at the same moment is left to it."""

    def answered(self, source: str, now: datetime, gap_s: float) -> bool:
        """The client answered. True when it had not for longer than the gap, or was known to be out:
        then the grace clocks of all jobs that follow it were cleared."""

    def outage(self, source: str, now: datetime) -> None:
        """The client did not answer. No job changes."""

    def hand_over(self, job_id: str, now: datetime) -> bool:
        """The torrent is complete: its files are due to be registered. False when they are already."""

    def put_back(self, job_id: str) -> None:
        """It is not complete after all: nothing is due."""

    def take_due(self, limit: int, now: datetime, again_at: datetime) -> list[Followed]:
        """Jobs with work of ours that is due. They are due again later, in case the message is lost."""

    def unsent(self, job_ids: Sequence[str], now: datetime) -> None:
        """No message went out: the work that they have is due at once."""

    def later(self, job_id: str, due_at: datetime, trouble: Trouble) -> None:
        """The work did not succeed; it is due again then, and one attempt more was made."""

    def enqueued(self, before: DownloadJob, external_job_id: str, now: datetime) -> bool:
        """The client has taken it."""

    def note_orphan(self, job_id: str, external_job_id: str) -> bool:
        """The client took it although the job was canceled meanwhile: now it can be removed. False: it was not."""

    def complete(self, before: DownloadJob, after: DownloadJob, local_path: str) -> bool:
        """`change` to completed, with the media asset and the book's state (TORRENT-7)."""

    def add_file(self, job_id: str, position: int, row: FileRow) -> None: ...

    def cancel(self, scope: Scope, job_id: str, removal: Removal, now: datetime) -> DownloadStatus | None:
        """Cancel if the table allows it; the state afterwards; None for an unknown or foreign id."""

    def to_remove(self, limit: int) -> list[RemovalWish]: ...

    def wanted_by_others(self, wish: RemovalWish) -> bool:
        """Does another job follow, or rest on, the same torrent?"""

    def removed(self, job_id: str) -> None: ...

    def get(self, scope: Scope, job_id: str) -> DownloadView | None: ...

    def list_(self, scope: Scope, state: DownloadStatus | None, limit: int, after: str | None) -> list[DownloadView]:
        """The newest first; `after` is the last job id of the page before."""

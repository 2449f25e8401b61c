"""Download jobs that follow a torrent: their states, and what an observation makes of a job. Pure (TORRENT-1…6).

`decide` reads a job, what the torrent client says of it, and the time, and answers named changes; it writes
nothing. `applied` says what the row looks like after a change. The table, not the code, says what may follow what.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from dlpipe.core.seen import Seen, seen


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


_S = DownloadStatus
TABLE: tuple[tuple[DownloadStatus, DownloadStatus], ...] = (
    (_S.QUEUED, _S.DOWNLOADING),
    (_S.QUEUED, _S.FAILED),
    (_S.QUEUED, _S.CANCELED),
    (_S.DOWNLOADING, _S.COMPLETED),
    (_S.DOWNLOADING, _S.FAILED),
    (_S.DOWNLOADING, _S.CANCELED),
)

ACTIVE = frozenset(source for source, _ in TABLE)
"""The states in which a job is followed, and of which there is one per user, book and medium (TORRENT-3)."""
TERMINAL = frozenset(DownloadStatus) - ACTIVE


def may_become(source: DownloadStatus, target: DownloadStatus) -> bool:
    return (source, target) in TABLE


def origins(target: DownloadStatus) -> frozenset[DownloadStatus]:
    """From which states may `target` be entered?"""
    return frozenset(s for s, t in TABLE if t is target)


MISSING_EXTERNAL_JOB = "missing_external_job"
MISSING_FILES = "missing_files"
TORRENT_ERROR = "torrent_error"
TORRENT_STALLED = "torrent_stalled"


@dataclass(frozen=True, slots=True)
class Begin:
    """queued → downloading."""


@dataclass(frozen=True, slots=True)
class Complete:
    """downloading → completed, together with all that completion means (TORRENT-7)."""


@dataclass(frozen=True, slots=True)
class Fail:
    """→ failed. `code` is what failure_reason holds, `message` is for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """→ canceled."""


@dataclass(frozen=True, slots=True)
class NotFoundSince:
    """The client does not have it: the grace clock starts."""

    at: datetime


@dataclass(frozen=True, slots=True)
class FoundAgain:
    """The client has it again: first_not_found_at_utc is cleared."""


@dataclass(frozen=True, slots=True)
class ClockStopped:
    """The client cannot be asked: first_not_found_at_utc is cleared, and the grace begins anew afterwards.

    Nobody knows how long an outage was for the jobs that were not looked at in it. So whoever sees an outage
    clears the clocks of *all* active jobs, not only of those it was about to look at.
    """


@dataclass(frozen=True, slots=True)
class UnknownState:
    """A name that we do not know: reported, and nothing is written."""

    name: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """For people: no byte came since then. Nothing is written."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Nothing:
    """As before."""


Change = Begin | Complete | Fail | Cancel | NotFoundSince | FoundAgain | ClockStopped | UnknownState | Stalled | Nothing


def target(change: Change) -> DownloadStatus | None:
    """The status that a change enters; None when it stays."""
    match change:
        case Begin():
            return DownloadStatus.DOWNLOADING
        case Complete():
            return DownloadStatus.COMPLETED
        case Fail():
            return DownloadStatus.FAILED
        case Cancel():
            return DownloadStatus.CANCELED
        case NotFoundSince() | FoundAgain() | ClockStopped() | UnknownState() | Stalled() | Nothing():
            return None


def applied(job: DownloadJob, change: Change, now: datetime) -> DownloadJob:
    """The row after the change, one version on; the same row when the change writes nothing.

    Raises:
        ValueError: the table has no such step. Changes that `decide` answers for this job never get here.
    """
    status = target(change)
    if status is not None and not may_become(job.status, status):
        raise ValueError(f"a {job.status} download cannot become {status}")
    match change:
        case UnknownState() | Stalled() | Nothing():
            return job
        case Fail(code=code):
            job = replace(job, failure_reason=code)
        case Complete():
            job = replace(job, completed_at_utc=now)
        case NotFoundSince(at=at):
            job = replace(job, first_not_found_at_utc=at)
        case FoundAgain() | ClockStopped():
            job = replace(job, first_not_found_at_utc=None)
        case Begin() | Cancel():
            pass
    return replace(job, status=status or job.status, row_version=job.row_version + 1, updated_at_utc=now)


@dataclass(frozen=True, slots=True)
class TorrentPolicy:
    grace_s: float = 60.0
    """How long a torrent may be absent from a client that answers."""
    stall_s: float = 600.0
    """After how long without a byte people are told."""
    stalled_max_s: float = 2_592_000.0
    """After how long without a byte the download has failed."""


@dataclass(frozen=True, slots=True)
class Movement:
    """The bytes a torrent had, and since when it has had no more. Kept where losing it does no harm."""

    done_bytes: int
    since: datetime


def watch(before: Movement | None, observed: Torrent | None, now: datetime) -> Movement | None:
    """Follow the bytes, as state names say `downloading` or `stalled` by the second. None: nothing to follow."""
    if observed is None or seen(observed.state) is not Seen.DOWNLOADING:
        return None
    if before is not None and before.done_bytes == observed.done_bytes:
        return before
    return Movement(observed.done_bytes, now)


def decide(
    job: DownloadJob,
    observed: Torrent | None,
    outage: bool,
    now: datetime,
    policy: TorrentPolicy,
    movement: Movement | None = None,
) -> tuple[Change, ...]:
    """What a look at the client makes of a job, in the order in which it is to be recorded; never empty.

    Args:
        observed: what the client says; None when it answered and does not have it.
        outage: the client could not be asked, so `observed` says nothing.
        movement: what `watch` made of this observation, if anybody watches.
    """
    if job.status in TERMINAL or job.external_job_id is None:
        return (Nothing(),)
    absent_since = job.first_not_found_at_utc
    if outage:
        return (Nothing(),) if absent_since is None else (ClockStopped(),)
    if observed is None:
        return (_absent(absent_since, now, policy),)
    changes = _present(job, observed, now, policy, movement)
    if absent_since is not None:
        changes = (FoundAgain(), *changes)
    return changes or (Nothing(),)


def cancel(job: DownloadJob) -> Change:
    """Somebody asked for the end: nothing happens when it has come already."""
    return Cancel() if job.status in ACTIVE else Nothing()


def give_up(job: DownloadJob, code: str, message: str) -> Change:
    """The client would not take it, and all retries are used up."""
    return Fail(code, message) if job.status in ACTIVE else Nothing()


def _absent(since: datetime | None, now: datetime, policy: TorrentPolicy) -> Change:
    if since is None:
        return NotFoundSince(now)
    if now - since < timedelta(seconds=policy.grace_s):
        return Nothing()
    return Fail(MISSING_EXTERNAL_JOB, f"the torrent client has not had it for {policy.grace_s:g} s")


def _present(
    job: DownloadJob, observed: Torrent, now: datetime, policy: TorrentPolicy, movement: Movement | None
) -> tuple[Change, ...]:
    queued = job.status is DownloadStatus.QUEUED
    match seen(observed.state):
        case Seen.ERROR:
            return (Fail(TORRENT_ERROR, "the torrent client reports an error"),)
        case Seen.MISSING_FILES:
            return (Fail(MISSING_FILES, "files of the torrent are missing from the download folder"),)
        case Seen.UNKNOWN:
            return (UnknownState(observed.state),)
        case Seen.STOPPED | Seen.BUSY:
            return ()
        case Seen.COMPLETE:
            # With every file deselected the client calls it finished, at 0 %.
            if observed.progress < 1:
                return ()
            return (Begin(), Complete()) if queued else (Complete(),)
        case Seen.DOWNLOADING | Seen.WAITING:
            begun: tuple[Change, ...] = (Begin(),) if queued else ()
            still = now - movement.since if movement is not None else timedelta()
            if movement is not None and still >= timedelta(seconds=policy.stalled_max_s):
                return (*begun, Fail(TORRENT_STALLED, f"no byte of the torrent has come for {still.days} days"))
            if movement is not None and still >= timedelta(seconds=policy.stall_s):
                return (*begun, Stalled(movement.since))
            return begun

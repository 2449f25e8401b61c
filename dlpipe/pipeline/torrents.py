"""Downloads that follow a torrent: started, handed to the client, followed, canceled (TORRENT-1…6).

The row in the ledger is the truth. The client's torrent is named by its info hash, so handing the same one over
twice is harmless; a message that is lost is sent again, because the row says that its work is due.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from dlpipe.core.crash import crash_point
from dlpipe.core.downloads import (
    DownloadSpec,
    Followed,
    Removal,
    RemovalWish,
    Sharing,
    StartAnswer,
    Trouble,
    download_spec,
)
from dlpipe.core.errors import (
    DlpipeError,
    InvalidInput,
    LeaseUnavailable,
    LedgerUnavailable,
    Permanent,
    StageFailure,
    TorrentOutage,
    TorrentRefused,
    WorkerEnding,
)
from dlpipe.core.model import Scope
from dlpipe.core.ports import TorrentClient
from dlpipe.core.retries import RetryPolicy, backoff_s
from dlpipe.core.torrents import DownloadStatus, TorrentPolicy, applied, give_up
from dlpipe.pipeline.deps import Deps

log = logging.getLogger(__name__)

TAG = "dlpipe"
ENQUEUE_FAILED = "enqueue_failed"


@dataclass(frozen=True, slots=True)
class DownloadPolicy:
    """What settings decide about torrents."""

    save_path: str
    """The download folder as the client sees it."""
    local_path: str
    """The same folder as this machine sees it."""
    watch: TorrentPolicy = TorrentPolicy()
    batch: int = 100
    every_s: float = 15.0
    retry: RetryPolicy = RetryPolicy(max_attempts=10, base_s=5.0, cap_s=600.0)
    removal: Removal = Removal.REMOVE
    sharing: Sharing = Sharing.LINK
    resend_s: float = 60.0
    """After how long work that is due is sent again: its message may be lost."""
    max_files: int = 10_000
    register_attempts: int = 1_500

    @property
    def gap_s(self) -> float:
        """Longer than this between two answers, and nobody knows what the client had in between."""
        return max(45.0, 3 * self.every_s)


class Messages(Protocol):
    """Tells workers that a download has work that is due. A message may be lost or doubled without harm."""

    def enqueue(self, job_ids: Sequence[str]) -> None: ...
    def register(self, job_ids: Sequence[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class TorrentDeps:
    base: Deps
    client: Callable[[], TorrentClient]
    """Made when first used: most processes never talk to it."""
    messages: Messages
    policy: DownloadPolicy
    new_id: Callable[[], str] = field(default=lambda: str(uuid.uuid4()))


# ── start and cancel ──────────────────────────────────────────────────────────────────────────────


def start_download(deps: TorrentDeps, fields: Mapping[str, Any]) -> StartAnswer:
    """Ask for a torrent; the job is on record when this returns, whatever becomes of the message."""
    spec = checked(deps, fields)
    with deps.base.database.write() as unit:
        now = unit.torrents.clock()
        # Due a little later: the message below is quicker, and this is for the case that it is lost.
        answer = unit.torrents.start(spec, deps.new_id(), now + timedelta(seconds=deps.policy.resend_s), now)
    if answer.outcome == "created":
        crash_point("torrents.started")
        _tell(deps, deps.messages.enqueue, [answer.job_id])
    return answer


def checked(deps: TorrentDeps, fields: Mapping[str, Any]) -> DownloadSpec:
    unknown = set(fields) - FIELDS
    missing = {"user_id", "book_id", "media_type", "source"} - set(fields)
    if unknown or missing:
        what = f"unknown field {min(unknown)!r}" if unknown else f"no {min(missing)}"
        raise InvalidInput(
            f"the request has {what}", code="fields_invalid", hint=f"Known fields: {', '.join(sorted(FIELDS))}."
        )
    spec = download_spec(deps.base.parse_url, **fields)
    if spec.url is not None and (reason := deps.base.forbidden(spec.url.host, spec.url.port)):
        raise InvalidInput(
            f"requests to {spec.url.host} are not allowed: {reason}",
            code="egress_forbidden",
            hint="Set DLPIPE_ALLOW_PRIVATE=1 if files on this machine or in this network are meant.",
        )
    return spec


FIELDS = frozenset("user_id book_id media_type source tenant_id project_id request_id".split())


def cancel(deps: TorrentDeps, scope: Scope, job_id: str, removal: Removal | None = None) -> DownloadStatus | None:
    """Cancel an active download; answer its state afterwards, None for an unknown or foreign id.

    The torrent is removed by the policy as soon as the client can be asked.
    """
    with deps.base.database.write() as unit:
        state = unit.torrents.cancel(scope, job_id, removal or deps.policy.removal, unit.torrents.clock())
    crash_point("torrents.canceled")
    if state is DownloadStatus.CANCELED:
        try:
            remove_canceled(deps)
        except TorrentOutage as error:
            log.info("job=%s canceled; its torrent is removed later: %s", job_id, error.code)
    return state


def remove_canceled(deps: TorrentDeps) -> int:
    """Take torrents of canceled downloads out of the client; answer how many."""
    with deps.base.database.read() as unit:
        wishes = unit.torrents.to_remove(deps.policy.batch)
    return sum(_remove(deps, wish) for wish in wishes)


def _remove(deps: TorrentDeps, wish: RemovalWish) -> bool:
    with deps.base.database.read() as unit:
        kept = unit.torrents.wanted_by_others(wish)
    if not kept:
        deps.client().delete(wish.external_job_id, with_files=wish.with_files)
        crash_point("torrents.removed")
    with deps.base.database.write() as unit:
        unit.torrents.removed(wish.job_id)
    log.info("job=%s torrent=%s %s", wish.job_id, wish.external_job_id, "kept for another job" if kept else "removed")
    return not kept


# ── handing over ──────────────────────────────────────────────────────────────────────────────────


def enqueue(deps: TorrentDeps, job_id: str) -> str:
    """Hand a queued download to the client; answer what came of it, for people."""
    with deps.base.database.read() as unit:
        found = unit.torrents.work(job_id)
    if found is None or found.job.status is not DownloadStatus.QUEUED or found.due_at_utc is None:
        return "dropped: nothing to enqueue"
    try:
        name = deps.client().add(found.source_bytes or found.job.source_url, save_path=deps.policy.save_path, tag=TAG)
    except (TorrentRefused, Permanent) as error:
        return fail(deps, found, error.code, error)
    except (TorrentOutage, StageFailure) as error:
        if found.attempts + 1 >= deps.policy.retry.max_attempts:
            return fail(deps, found, ENQUEUE_FAILED, error)
        return try_later(deps, found, error)
    except WorkerEnding:
        return "dropped: this process is ending"  # it stays due
    crash_point("torrents.added")
    with deps.base.database.write() as unit:
        if unit.torrents.enqueued(found.job, name, unit.torrents.clock()):
            return f"enqueued: {name}"
        orphan = unit.torrents.note_orphan(job_id, name)
    if orphan:  # canceled while we were at it
        remove_canceled(deps)
    return "dropped: the job moved on meanwhile"


def fail(deps: TorrentDeps, found: Followed, code: str, error: DlpipeError) -> str:
    """The end of a download that cannot go on, with the reason."""
    trouble = Trouble(code, _said(error, code), deps.base.debug_id())
    with deps.base.database.write() as unit:
        after = applied(found.job, give_up(found.job, code, error.message), unit.torrents.clock())
        changed = unit.torrents.change(found.job, after, trouble)
    log.warning("job=%s failed=%s code=%s cause=%s", found.job.job_id, changed, code, error.code)
    return f"failed: {code}" if changed else "dropped: the job moved on meanwhile"


def try_later(deps: TorrentDeps, found: Followed, error: DlpipeError) -> str:
    """Due again after a pause that grows; the reason is kept for people to see."""
    # Never at once: half of the pause is certain, the other half keeps many from coming at the same moment.
    wait_s = backoff_s(found.attempts, 0.5 + deps.base.chance() / 2, deps.policy.retry)
    trouble = Trouble(error.code, _said(error, error.code), deps.base.debug_id())
    with deps.base.database.write() as unit:
        unit.torrents.later(found.job.job_id, unit.torrents.clock() + timedelta(seconds=wait_s), trouble)
    log.info("job=%s postponed code=%s for_s=%.0f", found.job.job_id, error.code, wait_s)
    return f"postponed: {error.code}"


def _said(error: DlpipeError, code: str) -> str:
    return error.message if error.code == code else f"{error.message} [{error.code}]"


# ── work that is due ──────────────────────────────────────────────────────────────────────────────


def send_due(deps: TorrentDeps, now: datetime | None = None) -> int:
    """Send messages for work that is due and that nobody is at; answer how many."""
    found = take_due(deps, now)
    if not found:
        return 0
    try:
        held = deps.base.leases.live([one.job.job_id for one in found])
    except LeaseUnavailable:
        held = set()
    free = [one.job for one in found if one.job.job_id not in held]
    _tell(deps, deps.messages.enqueue, [job.job_id for job in free if job.status is DownloadStatus.QUEUED])
    _tell(deps, deps.messages.register, [job.job_id for job in free if job.status is DownloadStatus.DOWNLOADING])
    return len(free)


def take_due(deps: TorrentDeps, now: datetime | None = None, *, early: bool = False) -> list[Followed]:
    """Jobs whose work is due; it is due again in a while, should this taker come to nothing.

    `early`: also what a worker was told of a moment ago. Should he be at it as well, no harm is done.
    """
    pause = timedelta(seconds=deps.policy.resend_s)
    with deps.base.database.write() as unit:
        at = now or unit.torrents.clock()
        return unit.torrents.take_due(deps.policy.batch, at + pause if early else at, at + pause)


def _tell(deps: TorrentDeps, send: Callable[[Sequence[str]], None], job_ids: Sequence[str]) -> None:
    if not job_ids:
        return
    try:
        send(job_ids)
    except DlpipeError as error:
        log.info("not sent yet: %s; it is sent again by itself", error.code)
        with suppress(LedgerUnavailable), deps.base.database.write() as unit:
            unit.torrents.unsent(job_ids, unit.torrents.clock())

"""What completion means: the torrent's files in the store, and everything about them recorded at once (TORRENT-7).

Bringing the files in may be done again after a crash at any point, as blobs are named by their hash. What the
database learns of it is one transaction behind one compare-and-set, so it is written once.
"""

from __future__ import annotations

import logging
import mimetypes
from dataclasses import dataclass
from pathlib import PurePosixPath

from dlpipe.core import keys
from dlpipe.core.crash import crash_point
from dlpipe.core.downloads import FileRow, Followed
from dlpipe.core.errors import (
    DlpipeError,
    LeaseBusy,
    LeaseLost,
    LeaseUnavailable,
    Permanent,
    Retryable,
    StageFailure,
    TorrentOutage,
    TorrentRefused,
)
from dlpipe.core.layout import extension_for, space_of
from dlpipe.core.model import ArtifactRecord, Scope
from dlpipe.core.ports import Adopted, FirstCopy, Foreign, Lease, Unit
from dlpipe.core.results import DedupeAction
from dlpipe.core.seen import Seen, seen
from dlpipe.core.torrents import Complete, DownloadJob, DownloadStatus, FoundAgain, Torrent, TorrentFile, applied
from dlpipe.pipeline import stores
from dlpipe.pipeline.discretion import only_others
from dlpipe.pipeline.stages.head import ARTIFACT_SCHEMA
from dlpipe.pipeline.torrents import TorrentDeps, fail, try_later

log = logging.getLogger(__name__)

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Brought:
    """One file of a torrent that is in the store."""

    path: str
    adopted: Adopted
    action: DedupeAction
    replaces: FirstCopy | None = None
    """An earlier copy that turned out to be gone or damaged: from now on ours is the one to share."""


def register(deps: TorrentDeps, job_id: str) -> str:
    """Register the files of a complete torrent; answer what came of it, for people."""
    try:
        with deps.base.leases.hold(job_id) as lease:
            return _register(deps, job_id, lease)
    except (LeaseBusy, LeaseLost, LeaseUnavailable) as error:
        return f"dropped: {error.code}"  # it stays due, and is sent again


def _register(deps: TorrentDeps, job_id: str, lease: Lease) -> str:
    with deps.base.database.read() as unit:
        found = unit.torrents.work(job_id)
    if found is None or found.job.status is not DownloadStatus.DOWNLOADING or found.due_at_utc is None:
        return "dropped: nothing to register"
    try:
        torrent = _still_complete(deps, found.job)
        if torrent is None:
            return _put_back(deps, job_id)
        files = _files(deps, torrent)
        brought = _bring(deps, found.job, torrent, files, lease)
        crash_point("torrents.registered")
        # A re-check or a change of what is wanted may have begun while we were reading.
        if _still_complete(deps, found.job) is None:
            return _put_back(deps, job_id)
        lease.check()
        return _record(deps, found.job, _shown_path(deps, torrent, files), brought)
    except LeaseLost:
        raise
    except (TorrentRefused, Permanent) as error:
        return fail(deps, found, error.code, error)
    except TorrentOutage as error:
        return try_later(deps, found, error)
    except StageFailure as error:
        return _try_again(deps, found, error)
    except (LeaseUnavailable, DlpipeError):
        raise  # no ledger or no configuration: nothing could be noted either, and the work stays due
    except Exception as error:
        log.exception("job=%s an unexpected error while registering", job_id)
        return _try_again(deps, found, Retryable(f"an unexpected {type(error).__name__}", code="internal_error"))
    finally:
        deps.base.progress.clear(job_id)


def _try_again(deps: TorrentDeps, found: Followed, error: StageFailure) -> str:
    """Its bytes are safe where they are, so it is tried for days; but not for ever."""
    if found.attempts + 1 >= deps.policy.register_attempts:
        return fail(deps, found, error.code, error)
    return try_later(deps, found, error)


def _still_complete(deps: TorrentDeps, job: DownloadJob) -> Torrent | None:
    name = job.external_job_id or ""
    torrent = deps.client().torrents([name]).get(name)
    whole = torrent is not None and seen(torrent.state) is Seen.COMPLETE and torrent.progress >= 1
    return torrent if whole else None


def _put_back(deps: TorrentDeps, job_id: str) -> str:
    with deps.base.database.write() as unit:
        unit.torrents.put_back(job_id)
    return "dropped: not complete any more; it is followed on"


def _files(deps: TorrentDeps, torrent: Torrent) -> list[TorrentFile]:
    files = [file for file in deps.client().files(torrent.info_hash) if file.complete]
    if not files:
        raise Retryable("the torrent client names no finished file of it", code="no_files")
    if len(files) > deps.policy.max_files:
        raise Permanent(
            f"the torrent has more than {deps.policy.max_files} files",
            code="too_many_files",
            hint="Raise torrents.max_files if it is meant to.",
        )
    return sorted(files, key=lambda file: file.path)


# ── bringing the bytes in ─────────────────────────────────────────────────────────────────────────


def _bring(
    deps: TorrentDeps, job: DownloadJob, torrent: Torrent, files: list[TorrentFile], lease: Lease
) -> list[Brought]:
    total, done = sum(file.size for file in files), 0

    def heard(count: int) -> None:
        nonlocal done
        done += count
        lease.check()
        deps.base.progress.report(job.job_id, done, total)

    below = _below_save_path(deps, torrent)
    stores.recognise(deps.base)
    brought = []
    for file in files:
        adopted = deps.base.store.adopt(
            Foreign(deps.policy.local_path, (*below, *PurePosixPath(file.path).parts), file.size),
            job.tenant_id,
            job.project_id,
            extension_for(file.path, None),
            deps.policy.sharing,
            heard,
        )
        crash_point("torrents.adopted")
        lease.check()
        brought.append(_deduped(deps, job, file.path, adopted))
    return brought


def _below_save_path(deps: TorrentDeps, torrent: Torrent) -> tuple[str, ...]:
    """Where under the download folder the torrent lies; anywhere else is not ours to read (SAFE-3)."""
    try:
        return PurePosixPath(torrent.save_path).relative_to(PurePosixPath(deps.policy.save_path)).parts
    except ValueError:
        raise Permanent(
            "the torrent client keeps it outside the download folder",
            code="outside_save_path",
            hint="Move it back, or set torrents.save_path to a folder above both.",
        ) from None


def _deduped(deps: TorrentDeps, job: DownloadJob, path: str, adopted: Adopted) -> Brought:
    """One copy of the same bytes per dedupe scope, once the earlier one is proven right (DEDUPE-1)."""
    with deps.base.database.read() as unit:
        first = unit.registry.first_copy(_dedupe_scope(deps, job), adopted.sha256)
    if first is None or first.pointer == adopted.pointer:
        return Brought(path, adopted, adopted.action)
    store = deps.base.store
    if not store.owns(first.pointer) or not store.vouched(first.pointer, adopted.sha256, adopted.size):
        return Brought(path, adopted, adopted.action, replaces=first)
    action = store.unify(adopted.pointer, first.pointer)
    if action is DedupeAction.COPY or only_others(deps.base, job.tenant_id, first, adopted.sha256):
        action = adopted.action
    return Brought(path, adopted, action)


def _dedupe_scope(deps: TorrentDeps, job: DownloadJob) -> str:
    return deps.base.policy.scope_key(Scope(job.tenant_id, job.project_id))


def _shown_path(deps: TorrentDeps, torrent: Torrent, files: list[TorrentFile]) -> str:
    """Where people find it on this machine: the one file, or the folder that holds all."""
    tops = {PurePosixPath(file.path).parts[0] for file in files}
    name = (files[0].path,) if len(files) == 1 else tuple(tops) if len(tops) == 1 else ()
    return str(PurePosixPath(deps.policy.local_path).joinpath(*_below_save_path(deps, torrent), *name))


# ── the one transaction ───────────────────────────────────────────────────────────────────────────


def _record(deps: TorrentDeps, job: DownloadJob, local_path: str, brought: list[Brought]) -> str:
    for _ in range(_TRIES):
        with deps.base.database.write() as unit:
            now = unit.torrents.clock()
            found = unit.torrents.work(job.job_id)
            if found is None or found.job.status is not DownloadStatus.DOWNLOADING:
                return "dropped: the job moved on meanwhile"
            before = found.job
            seen_now = before
            if before.first_not_found_at_utc is not None:  # the client has just said that it has it
                seen_now = applied(before, FoundAgain(), now)
            if unit.torrents.complete(before, applied(seen_now, Complete(), now), local_path):
                for position, one in enumerate(brought):
                    _register_file(deps, unit, before, position, one)
                crash_point("torrents.recording")
                done = True
            else:
                unit.rollback()
                done = False
        if done:
            crash_point("torrents.recorded")
            log.info("job=%s completed files=%d", job.job_id, len(brought))
            return f"completed: {len(brought)} files"
    return "dropped: the job changes all the time; it is tried again"


def _register_file(deps: TorrentDeps, unit: Unit, job: DownloadJob, position: int, one: Brought) -> None:
    scope, adopted = Scope(job.tenant_id, job.project_id), one.adopted
    key = keys.op_key("FILE", job.job_id, path=one.path, sha256=adopted.sha256)
    artifact = ArtifactRecord(
        artifact_uuid=keys.artifact_uuid(key),
        scope=scope,
        artifact_type="file",
        storage_backend=space_of(adopted.pointer),
        storage_pointer=adopted.pointer,
        content_type=mimetypes.guess_type(one.path)[0],
        byte_size=adopted.size,
        sha256=adopted.sha256,
        schema_version=ARTIFACT_SCHEMA,
        created_by_job_id=job.job_id,
    )
    unit.registry.add_artifact(artifact)
    within = _dedupe_scope(deps, job)
    unit.registry.add_copy(within, adopted.sha256, adopted.pointer, adopted.size, job.job_id)
    if one.replaces is not None:
        unit.registry.repoint(within, adopted.sha256, one.replaces.pointer, adopted.pointer, job.job_id)
    unit.registry.note(
        artifact.artifact_uuid,
        job.job_id,
        {
            "run": 1,
            "sha256": adopted.sha256,
            "pointer": adopted.pointer,
            "shard_prefix": deps.base.store.shard(adopted.pointer),
            "byte_size": adopted.size,
            "dedupe_action": one.action.value,
        },
    )
    unit.torrents.add_file(
        job.job_id, position, FileRow(one.path, adopted.size, adopted.sha256, artifact.artifact_uuid)
    )

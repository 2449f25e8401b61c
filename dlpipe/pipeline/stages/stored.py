"""The stored file that a replay goes by, and the look at it: nothing here asks a server (JOB-7).

The stage that a replay begins with reads all of the file's bytes, those behind it look at its size, and those before it
look at nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from dlpipe.core import flow, media
from dlpipe.core.errors import Permanent
from dlpipe.core.flow import OpType
from dlpipe.core.model import ArtifactJob, Fault
from dlpipe.core.ports import Lease, Unit
from dlpipe.core.results import FinalizeResult, HeadResult, Results, StreamResult
from dlpipe.core.states import Purpose
from dlpipe.pipeline import stores
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.stages.sniff import expectation
from dlpipe.pipeline.stages.stage import OutOfOrder, latest

BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """The file of the job's newest result, or one that was put in its place and never registered."""

    artifact_uuid: str | None
    sha256: str
    pointer: str
    size: int
    content_type: str | None
    etag: str | None = None
    last_modified: str | None = None
    final_url_sha256: str = ""
    """The URL whose validators these are."""


def is_replay(job: ArtifactJob) -> bool:
    return job.purpose is Purpose.REPLAY


def does(job: ArtifactJob, stage: str) -> bool:
    """Is this stage one that the job's replay does again?"""
    return flow.is_replayed(stage, job.replay_from or flow.REPLAYABLE[0])


def choose(unit: Unit, job: ArtifactJob, results: Results) -> Stored:
    """What there is to replay; its validators are those of the run that brought these bytes."""
    record = unit.registry.newest_result(job.job_id)
    placed = results.latest(OpType.FINALIZE)
    streamed = results.latest(OpType.STREAM)
    if record is not None:
        uuid, sha256, pointer = record.artifact_uuid, record.sha256, record.storage_pointer
        size, content_type = record.byte_size, record.content_type
    elif isinstance(placed, FinalizeResult):
        uuid, sha256, pointer, size, content_type = None, placed.sha256, placed.pointer, placed.size, None
    else:
        raise Permanent(
            "nothing of this job is stored that could be replayed",
            code="nothing_stored",
            hint="dlpipe retry fetches it.",
        )
    if not isinstance(streamed, StreamResult) or streamed.sha256 != sha256:
        return Stored(uuid, sha256, pointer, size, content_type)
    return Stored(
        uuid,
        sha256,
        pointer,
        size,
        content_type or streamed.content_type,
        streamed.etag,
        streamed.last_modified,
        streamed.final_url_sha256,
    )


def head_of(stored: Stored) -> HeadResult:
    """What the replay's head leaves for the stages behind it."""
    return HeadResult(
        http_status=None,
        final_url_sha256=stored.final_url_sha256,
        etag=stored.etag,
        last_modified=stored.last_modified,
        content_length=stored.size,
        content_type=stored.content_type,
        stored_uuid=stored.artifact_uuid,
        stored_sha256=stored.sha256,
        stored_pointer=stored.pointer,
        stored_size=stored.size,
    )


def of(results: Results) -> Stored:
    """What this replay's head chose; a run that does only what remains builds on an earlier run's."""
    head = latest(results, OpType.HEAD, HeadResult)
    if head.stored_sha256 is None or head.stored_pointer is None or head.stored_size is None:
        raise OutOfOrder("the newest HEAD is of no replay")
    return Stored(
        head.stored_uuid,
        head.stored_sha256,
        head.stored_pointer,
        head.stored_size,
        head.content_type,
        head.etag,
        head.last_modified,
        head.final_url_sha256,
    )


def look(deps: Deps, job: ArtifactJob, stored: Stored, stage: str) -> None:
    """Permanent, and the artifact is marked, when the file is not what it was."""
    if not does(job, stage):
        return
    if stage == job.replay_from:
        if deps.store.is_right(stored.pointer, stored.sha256, stored.size):
            return
    elif deps.store.holds(stored.pointer, stored.size):
        return
    raise lost(deps, stored, Fault.DAMAGED if deps.store.exists(stored.pointer) else Fault.MISSING)


def read(deps: Deps, job: ArtifactJob, stored: Stored, lease: Lease) -> None:
    """Hash all bytes and look at the first ones, as the stream does with those that come from a server."""
    digest, done, first = hashlib.sha256(), 0, b""
    try:
        stream = deps.store.open(stored.pointer, stored.size)
    except Permanent as failure:
        raise lost(deps, stored, Fault.MISSING if failure.code == "file_missing" else Fault.DAMAGED) from None
    with stream:
        while block := stream.read(BLOCK):
            lease.check()
            first = first or block
            digest.update(block)
            done += len(block)
            deps.progress.report(job.job_id, done, stored.size)
    if digest.hexdigest() != stored.sha256:
        raise lost(deps, stored, Fault.DAMAGED)
    expected = expectation(deps, job, job.request_url, stored.content_type)
    if expected is not None and (wrong := media.wrong(expected, first)):
        raise Permanent(wrong, code="media_type_mismatch", hint="The file is stored as it came: see dlpipe open.")


def lost(deps: Deps, stored: Stored, fault: Fault) -> Permanent:
    """Mark the artifact, so that nobody is given the file as it is; its record stands."""
    stores.recognise(deps, dry_run=True)  # in a store that has just gone away, nothing is lost
    stores.recognise_others(deps)
    if stored.artifact_uuid is not None:
        with deps.database.write() as unit:
            unit.registry.add_fault(stored.artifact_uuid, fault)
    return Permanent(
        f"its stored file is {fault}, and a replay asks no server; dlpipe retry fetches it anew",
        code=f"file_{fault}",
        hint="dlpipe retry fetches it anew; dlpipe verify looks for others.",
    )

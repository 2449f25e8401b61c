"""How a job must have ended, whatever went wrong on the way: looked up row by row and file by file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dlpipe import verify
from dlpipe.core.flow import OpType
from dlpipe.core.states import State, status_of
from tests.crash.kinds import BODY, OTHER, Kind
from tests.world import World, sha256

_ONCE_PER_RUN = {OpType.HEAD, OpType.RESUME, OpType.STREAM}


def violations(world: World, kind: Kind, job_id: str) -> Iterator[str]:
    """What is not as it must be, in plain words; the independent checker is asked as well, and asked strictly."""
    row, view = world.row(job_id), world.view(job_id)
    if row.state != kind.ends:
        yield f"the job ended as {row.state} ({view.error_code}), not as {kind.ends}"
        return
    if view.status is not status_of(kind.ends, retry_due=False):
        yield f"the status is {view.status}"
    if (row.lease_owner, row.lease_until, row.due_at, row.published_at) != (None, None, None, None):
        yield "the row is not at rest"
    if kind.code is not None and view.error_code != kind.code:
        yield f"the error is {view.error_code}, not {kind.code}"
    if kind.code is None and kind.ends is State.DEDUPED and view.error_code is not None:
        yield f"completed, and still in error: {view.error_code}"
    yield from _ops(world, kind, job_id)
    yield from _records(world, kind, job_id)
    yield from _files(world, kind)
    yield from _checked(world)


def _ops(world: World, kind: Kind, job_id: str) -> Iterator[str]:
    ops, run = world.ops(job_id), world.row(job_id).run
    for op in OpType:
        done = [one for one in ops if one.op_type == op and one.state == "finished"]
        most = run if op in _ONCE_PER_RUN else 1
        if op in kind.ops and not done:
            yield f"{op} was never recorded"
        if len(done) > most or len({one.run for one in done}) < len(done):
            yield f"{op} was recorded {len(done)} times in {run} runs"
    if kind.action is not None and kind.ends is State.DEDUPED:
        (dedupe,) = [one for one in ops if one.op_type == OpType.DEDUPE and one.state == "finished"]
        action = dict(dedupe.result or {})["action"]
        if action != kind.action:
            yield f"the action of dedupe is {action}, not {kind.action}"
    left = world.sql("SELECT op_type FROM artifact_ops WHERE state = 'started'")
    if left:
        yield f"ops are still open: {left}"


def _records(world: World, kind: Kind, job_id: str) -> Iterator[str]:
    wanted = 0 if kind.code else 1
    results = "job_id = :job AND role = 'result'"  # a replay has an input as well
    owned = {"artifacts": "created_by_job_id = :job", "job_artifacts": results, "manifest": "job_id = :job"}
    for table, condition in owned.items():
        found = world.sql(f"SELECT * FROM {table} WHERE {condition}", job=job_id)
        if len(found) != wanted:
            yield f"{len(found)} rows in {table}"
    for artifact in world.artifacts(job_id):
        if (artifact.sha256, artifact.byte_size) != (sha256(BODY), len(BODY)):
            yield "the record is of other bytes"
        path = Path(world.deps.store.path(artifact.storage_pointer))
        if not path.is_file() or path.read_bytes() != BODY:
            yield "the file of the record is not there, or holds other bytes"


def _files(world: World, kind: Kind) -> Iterator[str]:
    try:
        found = world.blobs()
    except AssertionError as wrong:
        yield str(wrong)
        return
    aside = [data for name, data in found.items() if ".damaged-" in name]
    if aside != [OTHER] * kind.set_aside:
        yield f"{len(aside)} damaged files were set aside"
    shown = sum(1 for name in found if ".damaged-" not in name)
    known = {row.storage_pointer for row in world.sql("SELECT storage_pointer FROM artifacts")}
    if shown != len(known):
        yield f"{shown} files for {len(known)} pointers"


def _checked(world: World) -> Iterator[str]:
    url = world.database.url.render_as_string(hide_password=False)
    for finding in verify.check(url, world.root, verify.Options(strict=True)):
        if not finding.is_note:
            yield f"{finding.code}: {finding.subject} {finding.detail}"

"""Files that were downloaded before dlpipe was there become finished jobs without ops (PLAN-7).

Their files are hashed and taken into the store as a torrent's are (ADR 18): the originals stay where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dlpipe.core import keys
from dlpipe.core.backfill import LONG_AGO, Download, download
from dlpipe.core.crash import crash_point
from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import InvalidInput, StageFailure
from dlpipe.core.flow import OpType
from dlpipe.core.layout import extension_for, space_of
from dlpipe.core.model import ArtifactRecord, Scope
from dlpipe.core.ports import Adopted, FirstCopy, Foreign, KnownBlob, Unit
from dlpipe.core.results import DedupeAction
from dlpipe.core.states import Status
from dlpipe.pipeline import stores
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.discretion import only_others
from dlpipe.pipeline.stages.head import ARTIFACT_SCHEMA

log = logging.getLogger(__name__)

BATCH_ROWS = 50
BATCH_BYTES = 1 << 30
RUN = 0
"""No run brought it: so its manifest row says, and the checker goes by that."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row and where it stood."""

    number: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a row: `done`, `known` (its job is done already), or, rehearsed, `fit`."""

    number: int
    outcome: str
    job_id: str
    sha256: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    number: int
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class _Brought:
    number: int
    row: Download
    adopted: Adopted
    action: DedupeAction
    replaces: FirstCopy | None = None


_SAID = {
    "torrent_file_missing": ("path_missing", "no file is there", "Is --root right, and everything mounted?"),
    "file_refused": (
        "path_refused",
        "a symlink, or something that is no plain file, stands there",
        "Name the file itself.",
    ),
    "file_changed": ("path_changed", "the file changed while it was read", "Repeat when it is at rest."),
    "file_unreadable": ("path_unreadable", "the file may not be read", "Run this as a user who may read it."),
}


def backfill(
    deps: Deps,
    scope: Scope,
    root: str,
    lines: Iterable[Line],
    *,
    sharing: Sharing = Sharing.CLONE,
    dry_run: bool = False,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[Answered | Refused]:
    """Take the rows in, batch by batch; say of each what became of it.

    Repeated, it passes over what is done. Killed, it leaves no job without its file, and a file without its job at
    most, which the next time finds in its place.
    """
    stores.recognise(deps, dry_run=dry_run)
    batch = list[tuple[Line, Download]]()
    for line in lines:
        try:
            batch.append((line, download(deps.parse_url, scope, root, line.fields, clock())))
        except InvalidInput as error:
            yield Refused(line.number, error.code, error.message, error.hint)
        if len(batch) == BATCH_ROWS:
            yield from _batch(deps, scope, root, batch, sharing, dry_run)
            batch = []
    yield from _batch(deps, scope, root, batch, sharing, dry_run)


def _batch(
    deps: Deps, scope: Scope, root: str, batch: list[tuple[Line, Download]], sharing: Sharing, dry_run: bool
) -> Iterator[Answered | Refused]:
    with deps.database.read() as unit:
        views = unit.owned(scope).get_many([row.spec.job_id for _, row in batch])
    status = {view.job_id: view.status for view in views}
    taken: set[str] = set()
    brought: list[_Brought] = []
    for line, row in batch:
        job_id = row.spec.job_id
        if job_id in taken or status.get(job_id) in (Status.COMPLETED, Status.SKIPPED):
            yield Answered(line.number, "known", job_id)
        elif job_id in status:
            yield _is_there(line.number, job_id, status[job_id])
        elif dry_run:
            taken.add(job_id)
            yield Answered(line.number, "fit", job_id)
        else:
            try:
                brought.append(_bring(deps, scope, root, line.number, row, sharing))
                taken.add(job_id)
            except StageFailure as error:
                code, message, hint = _SAID.get(error.code, (error.code, error.message, error.hint))
                yield Refused(line.number, code, message, hint)
            if sum(one.adopted.size for one in brought) >= BATCH_BYTES:
                yield from _record(deps, scope, brought)
                brought = []
    yield from _record(deps, scope, brought)


def _is_there(number: int, job_id: str, status: Status) -> Refused:
    return Refused(
        number, "job_exists", f"job {job_id} is there, and {status}", "Let it end, or cancel and purge it, and repeat."
    )


def _bring(deps: Deps, scope: Scope, root: str, number: int, row: Download, sharing: Sharing) -> _Brought:
    """Hash the file and give it its place; nothing is on record yet."""
    adopted = deps.store.adopt(
        Foreign(root, row.parts, None),
        scope.tenant_id,
        scope.project_id,
        extension_for(row.spec.url.canonical.partition("?")[0], row.content_type),
        sharing,
        lambda _: None,
        expected=row.sha256,
    )
    crash_point("backfill.brought")
    with deps.database.read() as unit:
        first = unit.registry.first_copy(deps.policy.scope_key(scope), adopted.sha256)
    if first is None or first.pointer == adopted.pointer:
        return _Brought(number, row, adopted, _kept_apart(adopted.action))
    store = deps.store
    if not store.owns(first.pointer) or not store.vouched(first.pointer, adopted.sha256, adopted.size):
        return _Brought(number, row, adopted, _kept_apart(adopted.action), replaces=first)
    action = store.unify(adopted.pointer, first.pointer)
    if only_others(deps, scope.tenant_id, first, adopted.sha256):
        action = _kept_apart(adopted.action)
    return _Brought(number, row, adopted, action)


def _kept_apart(action: DedupeAction) -> DedupeAction:
    """A link to the original is none to another file of the store, and it may be cut at any time."""
    return DedupeAction.COPY if action is DedupeAction.HARDLINK else action


def _record(deps: Deps, scope: Scope, brought: list[_Brought]) -> Iterator[Answered | Refused]:
    """The jobs and all that they registered, in one transaction."""
    if not brought:
        return
    with deps.database.write() as unit:
        made = unit.jobs.add_finished([(one.row.spec, one.row.downloaded_at) for one in brought])
        for one in brought:
            if one.row.spec.job_id in made:
                _register(deps, unit, scope, one)
        crash_point("backfill.recording")
    crash_point("backfill.recorded")
    for one in brought:
        job_id = one.row.spec.job_id
        # Somebody planned it while its file was hashed: then it is his, and repeated this says how it stands.
        outcome = "done" if job_id in made else "known"
        yield Answered(one.number, outcome, job_id, one.adopted.sha256, one.adopted.size)


def _register(deps: Deps, unit: Unit, scope: Scope, one: _Brought) -> None:
    job_id, adopted, within = one.row.spec.job_id, one.adopted, deps.policy.scope_key(scope)
    made = keys.op_key(OpType.INDEX, job_id, sha256=adopted.sha256, pointer=adopted.pointer)
    record = ArtifactRecord(
        artifact_uuid=keys.artifact_uuid(made),
        scope=scope,
        artifact_type="file",
        storage_backend=space_of(adopted.pointer),
        storage_pointer=adopted.pointer,
        content_type=one.row.content_type,
        byte_size=adopted.size,
        sha256=adopted.sha256,
        schema_version=ARTIFACT_SCHEMA,
        created_by_job_id=job_id,
    )
    unit.registry.add_artifact(record)
    unit.registry.add_copy(within, adopted.sha256, adopted.pointer, adopted.size, job_id)
    if one.replaces is not None:
        unit.registry.repoint(within, adopted.sha256, one.replaces.pointer, adopted.pointer, job_id)
    unit.registry.mend(adopted.sha256, adopted.pointer)
    unit.registry.remember_url(
        scope.tenant_id,
        one.row.spec.url.canonical,
        KnownBlob(adopted.sha256, adopted.pointer, adopted.size, content_type=one.row.content_type),
        one.row.downloaded_at or LONG_AGO,
    )
    unit.registry.note(
        record.artifact_uuid,
        job_id,
        {
            "run": RUN,
            "sha256": adopted.sha256,
            "pointer": adopted.pointer,
            "shard_prefix": deps.store.shard(adopted.pointer),
            "byte_size": adopted.size,
            "dedupe_action": one.action.value,
        },
    )

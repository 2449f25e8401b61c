"""What came of a job, as `fetch` and `show` tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlpipe.cli.inputs import Entry
from dlpipe.core.errors import DlpipeError
from dlpipe.core.model import ArtifactRecord, Fault, JobView
from dlpipe.core.states import Status
from dlpipe.core.urls import redact
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.planner import Refusal
from dlpipe.pipeline.wishes import fault_of

DONE = frozenset({Status.COMPLETED, Status.SKIPPED})
ENDED = DONE | {Status.FAILED, Status.CANCELED}
_FIELDS = (
    "job_id", "state", "work_id", "artifact_id", "sha256", "byte_size", "content_type", "artifact_uuid", "path",
    "dedupe_action", "resumed_from_bytes", "bytes_written", "runs", "error_debug_id",
)  # fmt: skip
"""What is known of a job, and of nothing else that was asked for."""


def of_job(deps: Deps, view: JobView, url: str, *, held_before: bool = False) -> dict[str, Any]:
    """The record of an ended job. `held_before`: it was done when it was asked for."""
    artifact, measures = result(deps, view)
    done = view.status in DONE
    skipped = held_before and done
    return {
        "job_id": view.job_id,
        "url": url,
        "status": Status.SKIPPED.value if skipped else view.status.value,
        "state": view.state.value if view.state else None,
        "work_id": view.work_id,
        "artifact_id": view.artifact_id,
        "sha256": artifact.sha256 if artifact else None,
        "byte_size": artifact.byte_size if artifact else None,
        "content_type": artifact.content_type if artifact else None,
        "artifact_uuid": artifact.artifact_uuid if artifact else None,
        "path": deps.store.path(artifact.storage_pointer) if artifact else None,
        "dedupe_action": "skipped" if skipped else measures.get("dedupe_action"),
        "resumed_from_bytes": 0 if skipped else measures.get("resumed_from_bytes"),
        "bytes_written": 0 if skipped else measures.get("bytes_written"),
        "runs": view.run,
        "error_code": None if done else view.error_code,
        "error_message_safe": None if done else view.error_message_safe,
        "error_debug_id": None if done else view.error_debug_id,
    }


def lost(deps: Deps, view: JobView, sha256: str | None) -> dict[str, Any]:
    """What the record of a finished job says instead when its file is not there as it was registered.

    With an expected hash all its bytes are read, else its size is looked at.
    """
    artifact, _ = result(deps, view)
    if artifact is None or view.status not in DONE:
        return {}
    try:
        if sha256 is not None and sha256 != artifact.sha256:
            return _failed(view, "sha256_mismatch", f"what was fetched before has another sha256: {artifact.sha256}")
        match fault_of(deps, artifact, thorough=sha256 is not None):
            case Fault.DAMAGED:
                return _failed(view, "file_damaged", "it was fetched before, but its file in the store is damaged")
            case Fault.MISSING:
                return _failed(view, "file_missing", "it was fetched before, but its file is gone from the store")
            case None:
                return {}
    except DlpipeError as error:
        return _failed(view, error.code, f"it was fetched before, but its file cannot be read: {error.message}")


def _failed(view: JobView, code: str, what: str) -> dict[str, Any]:
    to_do = (
        f"To fetch it anew: dlpipe refresh {view.job_id}, or plan it under another artifact id (--artifact NAME) to "
        "keep both."
    )
    return {"status": Status.FAILED.value, "error_code": code, "error_message_safe": f"{what}. {to_do}"}


def as_given(refusal: Refusal, url: Any) -> Any:
    """A refused request's URL as it may be printed: as given, unless it carries a password. Else than text: nothing."""
    if not isinstance(url, str):
        return None
    return redact(url) if refusal.code == "url_userinfo" else url


def of_refusal(refusal: Refusal, entry: Entry) -> dict[str, Any]:
    """The record of a request that was never planned."""
    return {
        **dict.fromkeys(_FIELDS),
        "url": as_given(refusal, entry.url),
        "status": "refused",
        "position": refusal.position,
        "file": entry.file,
        "line": entry.line,
        "error_code": refusal.code,
        "error_message_safe": f"{refusal.message}. {refusal.hint}",
    }


def of_purged(job_id: str, url: str) -> dict[str, Any]:
    """The record of a job that is not in the ledger any more."""
    return {
        **dict.fromkeys(_FIELDS),
        "job_id": job_id,
        "url": url,
        "status": Status.FAILED.value,
        "error_code": "job_purged",
        "error_message_safe": "the job was purged while it was waited for. "
        f"`dlpipe show {job_id}` names its archive; the same fetch plans it again",
    }


def result(deps: Deps, view: JobView) -> tuple[ArtifactRecord | None, Mapping[str, Any]]:
    """The job's newest result (what its latest run brought, or found unchanged), and what was measured of it."""
    with deps.database.read() as unit:
        artifacts = unit.owned(view.scope).artifacts_of(view.job_id)
        measures = unit.owned(view.scope).measures_of(view.job_id) or {}
    newest = [one for one in artifacts if one.artifact_uuid == measures.get("artifact_uuid")] or artifacts
    return (newest[-1] if newest else None), measures


def all_results(deps: Deps, view: JobView) -> list[dict[str, Any]]:
    """Every result that the job has registered, the oldest first, and whether its file is marked as at fault."""
    with deps.database.read() as unit:
        artifacts = unit.owned(view.scope).artifacts_of(view.job_id)
    return [
        {
            "artifact_uuid": one.artifact_uuid,
            "sha256": one.sha256,
            "byte_size": one.byte_size,
            "content_type": one.content_type,
            "path": deps.store.path(one.storage_pointer),
            "created_at": one.created_at,
            "fault": one.fault,
            "fault_found_at": one.fault_found_at,
        }
        for one in artifacts
    ]

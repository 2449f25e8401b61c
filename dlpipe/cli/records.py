"""What came of a job, as `fetch` and `show` tell it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlpipe.core.errors import DlpipeError
from dlpipe.core.model import ArtifactRecord, JobView, Scope
from dlpipe.core.states import Status
from dlpipe.core.urls import redact
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.planner import Refusal

DONE = frozenset({Status.COMPLETED, Status.SKIPPED})
ENDED = DONE | {Status.FAILED, Status.CANCELED}


def of_job(deps: Deps, view: JobView, url: str, *, held_before: bool = False) -> dict[str, Any]:
    """The record of an ended job. `held_before`: it was done when it was asked for."""
    artifact, measures = _result(deps, view.scope, view.job_id)
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
    artifact, _ = _result(deps, view.scope, view.job_id)
    if artifact is None or view.status not in DONE:
        return {}
    pointer, size = artifact.storage_pointer, artifact.byte_size
    try:
        if sha256 is not None and sha256 != artifact.sha256:
            return _failed("sha256_mismatch", f"what was fetched before has another sha256: {artifact.sha256}")
        if deps.store.holds(pointer, size) and (sha256 is None or deps.store.is_right(pointer, sha256, size)):
            return {}
        there = Path(deps.store.path(pointer)).exists()
    except (DlpipeError, OSError) as error:
        code = error.code if isinstance(error, DlpipeError) else "file_damaged"
        return _failed(code, f"it was fetched before, but its file cannot be read: {error}")
    if there:
        return _failed("file_damaged", "it was fetched before, but its file in the store is damaged")
    return _failed("file_missing", "it was fetched before, but its file is gone from the store")


def _failed(code: str, what: str) -> dict[str, Any]:
    to_do = "Plan it under another artifact id (--artifact NAME) to fetch it again."
    return {"status": Status.FAILED.value, "error_code": code, "error_message_safe": f"{what}. {to_do}"}


def as_given(refusal: Refusal, url: Any) -> Any:
    """A refused request's URL as it may be printed: as given, unless it carries a password."""
    return redact(url) if refusal.code == "url_userinfo" and isinstance(url, str) else url


def of_refusal(refusal: Refusal, url: str | None) -> dict[str, Any]:
    """The record of a request that was never planned."""
    record: dict[str, Any] = dict.fromkeys(
        ("job_id", "state", "work_id", "artifact_id", "sha256", "byte_size", "content_type", "artifact_uuid",
         "path", "dedupe_action", "resumed_from_bytes", "bytes_written", "runs", "error_debug_id")
    )  # fmt: skip
    return {
        **record,
        "url": as_given(refusal, url),
        "status": "refused",
        "position": refusal.position,
        "error_code": refusal.code,
        "error_message_safe": f"{refusal.message}. {refusal.hint}",
    }


def _result(deps: Deps, scope: Scope, job_id: str) -> tuple[ArtifactRecord | None, Mapping[str, Any]]:
    with deps.database.read() as unit:
        artifacts = unit.owned(scope).artifacts_of(job_id)
        measures = unit.owned(scope).measures_of(job_id)
    return (artifacts[-1] if artifacts else None), measures or {}

"""Rows of a table of earlier downloads: what each says, checked, before a file is looked at (PLAN-7). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from dlpipe.core.errors import InvalidInput
from dlpipe.core.model import JobSpec, Scope, job_spec
from dlpipe.core.urls import ParseUrl

FIELDS = ("url", "path", "work_id", "artifact_id", "sha256", "content_type", "downloaded_at")
NEEDED = ("url", "path")
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TYPE = 255
_TEXTS = ("url", "work_id", "artifact_id", "sha256")


@dataclass(frozen=True, slots=True)
class Download:
    """One row, fit to become a job: its file is `parts` below the root that was named."""

    spec: JobSpec
    parts: tuple[str, ...]
    sha256: str | None
    content_type: str | None
    downloaded_at: datetime | None


def download(parse: ParseUrl, scope: Scope, root: str, fields: Mapping[str, Any], now: datetime) -> Download:
    """InvalidInput says what is wrong with the row."""
    for name in NEEDED:
        if not fields.get(name):
            raise InvalidInput(f"the row has no {name}", code="row_incomplete", hint="Each row needs a url and a path.")
    given = {name: fields[name] for name in _TEXTS if fields.get(name) not in (None, "")}
    spec = job_spec(parse, tenant_id=scope.tenant_id, project_id=scope.project_id, **given)
    return Download(
        # What was downloaded once is no demand on what a refresh may bring.
        replace(spec, expected_sha256=None),
        _below(root, fields["path"]),
        spec.expected_sha256,
        _content_type(fields.get("content_type")),
        _moment(fields.get("downloaded_at"), now),
    )


def _below(root: str, path: Any) -> tuple[str, ...]:
    try:
        named = PurePosixPath(path)
        parts = named.relative_to(root).parts if named.is_absolute() else named.parts
    except (TypeError, ValueError):
        parts = ()
    if not parts or ".." in parts or any("\0" in part for part in parts):
        raise InvalidInput(
            "the path leads out of the root",
            code="path_outside_root",
            hint="Name the folder that all files are below with --root.",
        )
    return parts


def _content_type(value: Any) -> str | None:
    if value in (None, ""):
        return None
    if not isinstance(value, str) or len(value) > MAX_TYPE or not value.isprintable():
        raise InvalidInput(
            "the content type is not one", code="content_type_invalid", hint="For example application/pdf."
        )
    return value


def _moment(value: Any, now: datetime) -> datetime | None:
    """Without a zone it is UTC; digits are seconds since 1970."""
    if value in (None, ""):
        return None
    try:
        if isinstance(value, datetime):
            found = value
        elif isinstance(value, int | float) or str(value).isdigit():
            found = datetime.fromtimestamp(float(value), UTC)
        else:
            found = datetime.fromisoformat(str(value))
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        found = None
    if found is None or not LONG_AGO <= found <= now:
        raise InvalidInput(
            "the time of the download is none, or lies ahead",
            code="downloaded_at_invalid",
            hint="Write ISO 8601, e.g. 2024-05-31T12:00:00Z, or seconds since 1970.",
        )
    return found

"""The records that travel between the layers: what was asked for, where it stands, what came of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from dlpipe.core import keys
from dlpipe.core.errors import InvalidInput
from dlpipe.core.layout import check_extension, check_id
from dlpipe.core.states import Purpose, State, Status
from dlpipe.core.torrents import DownloadStatus
from dlpipe.core.urls import ParseUrl, PlannedUrl, plan_url
from dlpipe.core.waits import Waited

NO_JOB = "00000000-0000-0000-0000-000000000000"
"""Who brought bytes that were found in the store, and that no row knew."""
JOB_TYPE_ARTIFACT = "artifact_download"
DEFAULT_TENANT = DEFAULT_PROJECT = "default"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}\Z")
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}\Z")
MAX_NAME = 512
MAX_MIRRORS = 16


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose rows a public call may see."""

    tenant_id: str = DEFAULT_TENANT
    project_id: str = DEFAULT_PROJECT

    def __post_init__(self) -> None:
        check_id("tenant", self.tenant_id)
        check_id("project", self.project_id)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One checked request for one file."""

    scope: Scope
    work_id: str
    artifact_id: str
    url: PlannedUrl
    job_key: str
    job_id: str
    ext: str | None = None
    expected_sha256: str | None = None
    expected_media_type: str | None = None
    max_bytes: int | None = None
    mirrors: tuple[str, ...] = ()
    priority: int = 0
    not_before: datetime | None = None
    request_id: str | None = None


def job_spec(
    parse: ParseUrl,
    *,
    url: str,
    work_id: str | None = None,
    artifact_id: str | None = None,
    tenant_id: str = DEFAULT_TENANT,
    project_id: str = DEFAULT_PROJECT,
    ext: str | None = None,
    sha256: str | None = None,
    media_type: str | None = None,
    max_bytes: int | None = None,
    mirrors: tuple[str, ...] | list[str] = (),
    priority: int = 0,
    not_before: datetime | str | None = None,
    request_id: str | None = None,
) -> JobSpec:
    """Check a request and give it its keys; InvalidInput says what is wrong, and nothing has changed.

    Without a work id the work is the URL itself; without an artifact id it is the only file of its work.
    """
    scope = _scope(_text("tenant", tenant_id), _text("project", project_id))
    planned = plan_url(_text("url", url, limit=None), parse)
    work = _name("work_id", work_id if work_id is not None else default_work_id(planned))
    artifact = _name("artifact_id", artifact_id if artifact_id is not None else "file")
    if sha256 is not None and not (isinstance(sha256, str) and _SHA256.match(sha256)):
        raise InvalidInput(
            "the expected sha256 is not 64 hexadecimal digits",
            code="sha256_invalid",
            hint="Copy the digest as sha256sum prints it.",
        )
    if media_type is not None and not (isinstance(media_type, str) and _MEDIA_TYPE.match(media_type)):
        raise InvalidInput(
            "the expected media type is not of the form type/subtype",
            code="media_type_invalid",
            hint="For example application/pdf.",
        )
    if max_bytes is not None and _whole("max_bytes", max_bytes) < 0:
        raise InvalidInput("the maximum size is negative", code="max_bytes_invalid", hint="Give a number of bytes.")
    if not -100 <= _whole("priority", priority) <= 100:
        raise InvalidInput(
            "the priority is out of range", code="priority_invalid", hint="Use a number from -100 to 100."
        )
    if not isinstance(mirrors, list | tuple) or len(mirrors) > MAX_MIRRORS:
        raise InvalidInput(
            f"mirrors must be a list of at most {MAX_MIRRORS} URLs",
            code="mirrors_invalid",
            hint="Leave out the slowest.",
        )
    key = keys.job_key(scope.tenant_id, scope.project_id, work, artifact, planned.canonical)
    return JobSpec(
        scope=scope,
        work_id=work,
        artifact_id=artifact,
        url=planned,
        job_key=key,
        job_id=keys.job_id(key),
        ext=None if ext is None else check_extension(_text("ext", ext)),
        expected_sha256=sha256.lower() if sha256 else None,
        expected_media_type=media_type.lower() if media_type else None,
        max_bytes=max_bytes,
        mirrors=tuple(plan_url(_text("mirror", mirror, limit=None), parse).request for mirror in mirrors),
        priority=priority,
        not_before=_moment(not_before),
        request_id=None if request_id is None else _name("request_id", request_id, limit=128),
    )


# Most requests are of one tenant.
_scope = lru_cache(maxsize=256)(Scope)


def default_work_id(url: PlannedUrl) -> str:
    """The work of a URL that nobody named: its digest, since the URL may hold a secret."""
    return "url-" + hashlib.sha256(url.canonical.encode()).hexdigest()[:32]


def _text(field: str, value: object, limit: int | None = MAX_NAME) -> str:
    if not isinstance(value, str) or (limit is not None and len(value) > limit):
        raise InvalidInput(
            f"{field} must be a text" + (f" of at most {limit} characters" if limit else ""),
            code=f"{field}_invalid",
            hint="Correct this field and plan again.",
        )
    return value


def _name(field: str, value: object, limit: int = MAX_NAME) -> str:
    text = _text(field, value, limit)
    if not text or _CONTROL.search(text):
        raise InvalidInput(
            f"{field} is empty or holds control characters",
            code=f"{field}_invalid",
            hint="Use printable characters.",
        )
    return text


def _whole(field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
        raise InvalidInput(f"{field} must be a whole number", code=f"{field}_invalid", hint="Use digits only.")
    return value


def _moment(value: object) -> datetime | None:
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(at, datetime):
            return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):  # no time, or one that leaves the calendar on its way to UTC
        pass
    raise InvalidInput(
        "not_before is not a time",
        code="not_before_invalid",
        hint="Use ISO 8601, for example 2026-12-31T06:00:00Z.",
    )


@dataclass(frozen=True, slots=True)
class ArtifactJob:
    """A job as the workers see it: the row behind a stage's work."""

    job_id: str
    scope: Scope
    work_id: str
    artifact_id: str
    canonical_url: str
    request_url: str
    host: str
    state: State
    run: int
    fence: int
    attempts: int
    ext: str | None = None
    expected_sha256: str | None = None
    expected_media_type: str | None = None
    max_bytes: int | None = None
    mirrors: tuple[str, ...] = ()
    lease_owner: str | None = None
    lease_live: bool = False
    due_at: datetime | None = None
    published_at: datetime | None = None
    purpose: Purpose | None = None
    """Why this run, or the next one, happens; None: the file is wanted."""
    replay_from: str | None = None
    """The stage from which a replay does it all again."""
    request_id: str | None = None
    node: str | None = None
    """On whose disk its part is, where nodes share none."""
    waited: Waited = Waited()
    """As of the claim."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job of any kind as its owner sees it (JOB-1).

    Of a download, the work is its book, the artifact its medium, and the URL its source as it may be shown.
    """

    job_id: str
    scope: Scope
    job_type: str
    status: Status
    progress: int
    state: State | DownloadStatus
    work_id: str
    artifact_id: str
    url: str
    run: int
    attempts: int
    created_at: datetime
    updated_at: datetime
    completed_at: datetime | None
    failed_at: datetime | None
    due_at: datetime | None
    request_id: str | None
    error_code: str | None
    error_message_safe: str | None
    error_debug_id: str | None
    artifacts: tuple[str, ...] = ()
    """What it has brought: its results, the oldest first."""
    inputs: tuple[str, ...] = ()
    """What it was made from: the registered files that its replays went by."""
    purpose: Purpose | None = None
    fence: int = 0
    host: str | None = None
    paused_at: datetime | None = None
    withdrawn_run: int | None = None
    """The last of its runs that was taken back after it had begun."""


class Fault(StrEnum):
    """What is wrong with the file of a registered artifact; the record itself never changes."""

    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """An immutable registered output, and whether its file is known to be at fault."""

    artifact_uuid: str
    scope: Scope
    artifact_type: str
    storage_backend: str
    storage_pointer: str
    content_type: str | None
    byte_size: int
    sha256: str
    schema_version: int
    created_by_job_id: str
    created_at: datetime | None = None
    fault: Fault | None = None
    fault_found_at: datetime | None = None
    retired_at: datetime | None = None
    """When it was given up with its job: its file may have been collected since."""


@dataclass(frozen=True, slots=True)
class OpView:
    """One row of the ledger, as it may be shown."""

    op_key: str
    run: int
    op_type: str
    state: str
    fence: int
    started_at: datetime
    finished_at: datetime | None
    result_code: str | None
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What planning a spec came to.

    `created`, `known` (on its way), `skipped` (done), `failed` (for good), `canceled`, or `refreshed` (it was done or
    had failed, and is due again).
    """

    job_id: str
    outcome: str
    status: Status
    state: State
    artifacts: tuple[str, ...] = ()
    hint: str = ""

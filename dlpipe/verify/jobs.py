"""What must hold of the rows of one job, and of the files that they say are there. It sees facts, and reads nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dlpipe.verify import effects, rules
from dlpipe.verify.facts import JobFacts
from dlpipe.verify.findings import Finding

GRACE = timedelta(seconds=300)
"""What healing needs some rounds for is no fault before this has passed."""


@dataclass(frozen=True, slots=True)
class View:
    """How a check looks at jobs: when, how strictly, and with which eyes on the files."""

    now: datetime
    strict: bool
    there: Callable[[str], bool]
    """Is there anything at this place of the store?"""


def judge(facts: JobFacts, view: View) -> Iterator[Finding]:
    """All that is wrong with one job."""
    if facts.job is None:
        yield from _ownerless(facts, view)
        return
    if facts.detail is None and facts.download is None:
        yield Finding("job_without_detail", facts.job_id, str(facts.job.job_type), facts.job_id)
        return
    for code, detail in _parts(facts, view):
        yield Finding(code, facts.job_id, detail, facts.job_id)
    for artifact in facts.made:
        yield from _file(facts, artifact, view)


def _parts(facts: JobFacts, view: View) -> Iterator[tuple[str, str]]:
    if facts.detail is not None:
        yield from _keys(facts)
        yield from _standing(facts, view)
        yield from effects.ops(facts, _should_be_marked(facts, view), view.there)
    else:
        yield from _download(facts, view)
    yield from _end(facts)
    yield from _registered(facts)


def under_way(facts: JobFacts) -> bool:
    """It is not at an end: what is missing may be on its way."""
    if facts.detail is not None:
        return not rules.ended(facts.detail.state, due=facts.detail.due_at is not None)
    return facts.download is not None and facts.download.status in rules.ACTIVE_DOWNLOADS


def _ownerless(facts: JobFacts, view: View) -> Iterator[Finding]:
    tables = {
        "artifact_jobs": facts.detail,
        "download_jobs": facts.download,
        "artifact_ops": facts.ops,
        "job_artifacts": facts.results,
        "manifest": facts.manifest,
        "download_files": facts.files,
    }
    for table, rows in tables.items():
        if rows:
            yield Finding("detail_without_job", facts.job_id, table)
    for artifact in facts.made:
        if facts.purged is None:
            yield Finding("artifact_without_job", str(artifact.artifact_uuid), "its job does not exist")
        else:
            yield from _of_purged(facts, artifact, view)


def _of_purged(facts: JobFacts, artifact: Any, view: View) -> Iterator[Finding]:
    """A job that was purged leaves its artifacts, and what holds of them without it."""
    owner, subject = (facts.purged.tenant_id, facts.purged.project_id), str(artifact.artifact_uuid)
    if (artifact.tenant_id, artifact.project_id) != owner:
        yield Finding("scope_differs", subject, "the artifact and its purged job")
    elif not rules.pointer_fits(artifact.storage_pointer, *owner, artifact.sha256):
        yield Finding("artifact_pointer", subject)
    path = rules.path_in(artifact.storage_pointer)
    if path is not None and artifact.retired_at is None and not view.there(path):
        yield Finding("file_missing", path, "its job was purged; planned again, it brings it", None, path)


def _keys(facts: JobFacts) -> Iterator[tuple[str, str]]:
    job, detail = facts.job, facts.detail
    key, job_id = rules.job_keys(
        job.tenant_id, job.project_id, detail.work_id, detail.artifact_id, detail.canonical_url
    )
    if job.idempotency_key != key:
        yield "job_key_wrong", "the idempotency key"
    elif facts.job_id != job_id:
        yield "job_key_wrong", "the job id"
    if detail.part not in (None, rules.slug(job.tenant_id, detail.canonical_url)):
        yield "job_key_wrong", "the name of its part"
    if detail.tenant_id != job.tenant_id:
        yield "scope_differs", "the job and its detail"


def _standing(facts: JobFacts, view: View) -> Iterator[tuple[str, str]]:
    """State, status, and who or what will go on with it."""
    job, detail = facts.job, facts.detail
    due = detail.due_at is not None
    held = detail.lease_until is not None
    ended = rules.ended(detail.state, due=due)
    right = rules.status_of(detail.state, due=due)
    aimless = due and detail.state in ("DEDUPED", "SKIPPED_DUPLICATE") and detail.purpose is None
    if aimless or (ended and (due or detail.published_at is not None)):
        yield "due_and_terminal", f"{detail.state}, {'due' if due else 'in flight'}"
    elif job.status != right:
        yield "state_status", f"{detail.state} with status {job.status}"
    if held and (ended or view.strict or detail.lease_until + GRACE < view.now):
        yield "lease_stale", f"held until {detail.lease_until:%Y-%m-%dT%H:%M:%SZ}"
    if not ended:
        if not (due or held or detail.published_at is not None):
            yield "job_lost", f"{detail.state}, neither due nor in flight nor held"
        elif view.strict:
            yield "job_unfinished", f"{detail.state} in run {detail.run}"


def _should_be_marked(facts: JobFacts, view: View) -> Callable[[Any], bool]:
    """Should this op, of a holder who was overtaken, have been marked by now?

    Not by when it began, which may be hours ago: by when its job came to the end that overtook it.
    """
    return lambda op: view.strict or max(op.started_at, facts.job.updated_at) + GRACE < view.now


def _end(facts: JobFacts) -> Iterator[tuple[str, str]]:
    job = facts.job
    if job.status in ("completed", "skipped"):
        if job.completed_at is None or job.progress != 100 or job.error_code is not None:
            yield "end_not_noted", f"progress {job.progress}, error {job.error_code or 'none'}"
    elif job.status == "failed":
        missing = [n for n in ("error_code", "error_message_safe", "failed_at") if getattr(job, n) is None]
        if missing:
            yield "dead_letter_without_error", f"without {' and '.join(missing)}"


# ── what it has registered ────────────────────────────────────────────────────────────────────────


def _registered(facts: JobFacts) -> Iterator[tuple[str, str]]:
    job = facts.job
    owner = (job.tenant_id, job.project_id)
    if job.status in ("completed", "skipped") and not facts.results:
        yield "result_missing", ""
    for row in facts.results:
        if row.sha256 is None:
            yield "result_pointer", "the result names an artifact that does not exist"
        elif row.created_by_job_id != facts.job_id:
            yield "result_pointer", f"artifact {row.artifact_uuid} was made by another job"
    listed = {row.artifact_uuid for row in facts.results}
    manifest = {row.artifact_uuid: row for row in facts.manifest}
    seen: set[str] = set()
    for row in facts.made:
        former = facts.is_former(row)
        if row.artifact_uuid not in listed and facts.results and not former:
            yield "artifact_without_job", f"artifact {row.artifact_uuid} is no result of the job that made it"
        if (row.tenant_id, row.project_id) != owner:
            yield "scope_differs", f"artifact {row.artifact_uuid}"
        elif not rules.pointer_fits(row.storage_pointer, *owner, row.sha256):
            yield "artifact_pointer", f"artifact {row.artifact_uuid}"
        if former:
            continue
        if facts.detail is not None and row.sha256 in seen:
            yield "published_twice", row.sha256
        seen.add(row.sha256)
        noted = manifest.get(row.artifact_uuid)
        if noted is None:
            yield "manifest_missing", f"artifact {row.artifact_uuid}"
        elif (noted.sha256, noted.pointer, noted.byte_size) != (row.sha256, row.storage_pointer, row.byte_size):
            yield "manifest_wrong", f"artifact {row.artifact_uuid}"
    if facts.detail is not None and facts.detail.state in ("INDEXED", "DEDUPED") and not facts.url_known:
        yield "url_index_wrong", "the URL of the job is not in it"


def _file(facts: JobFacts, artifact: Any, view: View) -> Iterator[Finding]:
    path = rules.path_in(artifact.storage_pointer)
    if artifact.retired_at is not None:
        return  # its file may be collected at any time
    if path is None or view.there(path) or (facts.detail is not None and rules.is_brought_again(facts.detail)):
        return
    newest = facts.newest_result()
    superseded = newest is not None and newest.storage_pointer != artifact.storage_pointer
    if artifact.fault is not None and facts.detail is not None and superseded:
        yield Finding("file_given_up", path, "", facts.job_id, path)
    else:
        yield Finding("file_missing", path, "" if artifact.fault is None else "marked", facts.job_id, path)


# ── downloads that follow a torrent ───────────────────────────────────────────────────────────────


def _download(facts: JobFacts, view: View) -> Iterator[tuple[str, str]]:
    job, row = facts.job, facts.download
    if (row.tenant_id, row.project_id) != (job.tenant_id, job.project_id):
        yield "scope_differs", "the download and its job"
    if job.status != rules.DOWNLOADS[row.status]:
        yield "state_status", f"{row.status} with status {job.status}"
    active = row.status in rules.ACTIVE_DOWNLOADS
    if active and row.due_at_utc is None and row.external_job_id is None:
        yield "job_lost", f"{row.status}, neither due nor followed"
    elif active and view.strict:
        yield "job_unfinished", row.status
    if row.status == "completed" and row.completed_at_utc is None:
        yield "end_not_noted", "no time of completion"
    if row.status == "failed" and not row.failure_reason:
        yield "dead_letter_without_error", "without failure_reason"
    if row.status == "completed" and not facts.files and not facts.made:
        yield "op_without_effect", "completed without a file"
    made = {artifact.artifact_uuid: artifact for artifact in facts.made}
    for file in facts.files:
        artifact = made.pop(file.artifact_uuid, None)
        if artifact is None:
            yield "result_pointer", f"the artifact of file {file.position} is not of this job"
        elif (artifact.sha256, artifact.byte_size) != (file.sha256, file.byte_size):
            yield "result_pointer", f"file {file.position} and its artifact differ"
    for uuid in sorted(made):
        yield "effect_without_op", f"artifact {uuid} is of none of the download's files"

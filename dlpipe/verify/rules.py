"""The rules that rows and files have to keep, written down a second time on purpose (ADR 22).

If these tables and those of the pipeline disagree, one of the two is wrong, and a check says so.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

ORDER = ("HEAD", "RESUME", "STREAM", "FINALIZE", "INDEX", "DEDUPE")

JOINED = frozenset({"RESUME", "INDEX", "DEDUPE"})
"""Those that may be recorded under the claim of the stage in front of them (ADR 42); all others have their own."""


@dataclass(frozen=True, slots=True)
class StateRule:
    status: str
    needs: int = 0
    """So many ops of ORDER must be finished."""
    may: int = 0
    """And so many may be, in the run that is on."""
    of_run: bool = True
    """In the run that is on; else, in whatever run."""
    ended: bool = False


STATES = {
    "PLANNED": StateRule("pending"),
    "LEASED": StateRule("processing"),
    "HEAD_DONE": StateRule("processing", 1, 1),
    "RESUME_OK": StateRule("processing", 2, 2),
    "STREAMING": StateRule("processing", 2, 3),
    "FINALIZED": StateRule("processing", 4, 4, of_run=False),
    "INDEXED": StateRule("processing", 5, 5, of_run=False),
    "DEDUPED": StateRule("completed", 6, 6, of_run=False, ended=True),
    "SKIPPED_DUPLICATE": StateRule("skipped", 1, 1, ended=True),
    "CANCELED": StateRule("canceled", 0, 6, ended=True),
    "FAILED": StateRule("failed", 0, 6, ended=True),
}
WITHDRAWN_MAY = 3
"""So many ops of ORDER may be recorded in a run that was taken back after it had begun."""
AGAIN = frozenset({"DEDUPED", "SKIPPED_DUPLICATE", "FAILED"})
"""Ends that a job leaves once a further run of it is due."""
PLACED = frozenset({"FINALIZED", "INDEXED", "DEDUPED"})
"""States in which the file of the newest FINALIZE has to be in its place."""

DOWNLOADS = {
    "queued": "pending",
    "downloading": "processing",
    "completed": "completed",
    "failed": "failed",
    "canceled": "canceled",
}
ACTIVE_DOWNLOADS = frozenset({"queued", "downloading"})

FIELDS: dict[str, dict[str, type]] = {
    "HEAD": {"final_url_sha256": str},
    "RESUME": {"decision": str, "reason": str, "range_start": int},
    "STREAM": {"sha256": str, "size": int, "bytes_written": int, "resumed_from_bytes": int},
    "FINALIZE": {"sha256": str, "size": int, "pointer": str},
    "INDEX": {"sha256": str, "pointer": str, "artifact_uuid": str},
    "DEDUPE": {"action": str, "saved_bytes": int},
}
"""What the result of each op has to hold, at least."""

DEDUPE_ACTIONS = frozenset({"download", "hardlink", "reflink", "copy", "skipped"})


def status_of(state: str, *, due: bool) -> str:
    return "pending" if due and state in AGAIN else STATES[state].status


def ended(state: str, *, due: bool) -> bool:
    return STATES[state].ended and not (due and state in AGAIN)


def is_brought_again(row: Any) -> bool:
    """Is the job on its way to bring its file, so that the place of an earlier one may be empty?"""
    due = row.due_at is not None
    if row.state is None or ended(row.state, due=due):
        return False
    return row.state not in PLACED or (due and row.purpose == "repair")


def result_of(op_type: str, text: str | None) -> dict[str, Any] | None:
    """The result, or None when it is not what it has to be."""
    try:
        body = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(body, dict) or body.get("v") != 1:
        return None
    for name, kind in FIELDS[op_type].items():
        if not isinstance(body.get(name), kind) or isinstance(body[name], bool):
            return None
    if op_type == "DEDUPE" and body["action"] not in DEDUPE_ACTIONS:
        return None
    return body


# ── names ─────────────────────────────────────────────────────────────────────────────────────────

_NAMES = uuid.UUID("6f1c8c0e-3d0b-5b7e-9a55-6d1b1f4b8f10")
_BLOB = re.compile(r"([0-9a-f]{64})((?:\.[a-z0-9]{1,8}){0,2})\Z")
_SET_ASIDE = re.compile(r"[0-9a-f]{64}(?:\.[a-z0-9]{1,8}){0,2}\.damaged-[0-9a-f]{8}\Z")


def job_keys(tenant: str, project: str, work: str, artifact: str, url: str) -> tuple[str, str]:
    """The idempotency key and the id of a job for one file."""
    asked = {
        "artifact_id": artifact,
        "canonical_url": url,
        "kind": "artifact_job",
        "project": project,
        "tenant": tenant,
        "v": 1,
        "work_id": work,
    }
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    key = hashlib.sha256(text.encode()).hexdigest()
    return key, str(uuid.uuid5(_NAMES, key))


def digest_in(name: str) -> str | None:
    """The hash that a file's name says its bytes have."""
    match = _BLOB.match(name)
    return match[1] if match else None


def is_set_aside(name: str) -> bool:
    return _SET_ASIDE.match(name) is not None


BUCKETS = frozenset({"s3", "gs", "az"})


def path_in(pointer: str) -> str | None:
    """Where below the root a pointer leads, of a bucket with its kind in front; None for what cannot be one."""
    kind, _, path = pointer.partition(":")
    parts = path.split("/")
    if len(parts) not in (3, 4) or not all(p.strip(".") for p in parts):
        return None
    return pointer if kind in BUCKETS else path if kind == "local" else None


def in_bucket(path: str) -> bool:
    return path.partition(":")[0] in BUCKETS


def pointer_to(path: str) -> str:
    return path if in_bucket(path) else f"local:{path}"


def pointer_fits(pointer: str, tenant: str, project: str, sha256: str) -> bool:
    """In a bucket, equal bytes of a tenant's projects may have one place."""
    path = path_in(pointer)
    if path is None:
        return False
    owner, within, *shard, name = path.partition(":")[2].split("/") if in_bucket(path) else path.split("/")
    if in_bucket(path):
        fits = (owner, digest_in(name)) == (tenant, sha256)
    else:
        fits = (owner, within, digest_in(name)) == (tenant, project, sha256)
    return fits and all(0 < len(s) <= 8 and sha256.startswith(s) for s in shard)


def slug(tenant: str, url: str) -> str:
    """Under which name the bytes of a URL are staged."""
    return hashlib.sha256(f"{tenant}\n{url}".encode()).hexdigest()[:16]


def url_digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()

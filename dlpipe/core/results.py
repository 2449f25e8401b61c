"""What each stage hands to the next, through the ledger: small typed records, checked both ways.

A record that does not fit its type is refused when it is written and when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from dlpipe.core.errors import ResultUnreadable
from dlpipe.core.flow import OpType

MAX_JSON_BYTES = 16_384
RESULT_VERSION = 1


class DedupeAction(StrEnum):
    DOWNLOAD = "download"
    HARDLINK = "hardlink"
    REFLINK = "reflink"
    COPY = "copy"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class HeadResult:
    """What is known of the remote file, or (when `known_sha256` is set) that we hold it already."""

    http_status: int | None
    final_url_sha256: str
    etag: str | None = None
    last_modified: str | None = None
    date: str | None = None
    accept_ranges: str | None = None
    content_length: int | None = None
    content_type: str | None = None
    known_sha256: str | None = None
    known_pointer: str | None = None
    known_size: int | None = None
    revalidated: bool = False
    """The server has said that what we hold is what it would send."""
    rehashed: bool = False
    """All bytes of what we hold were read and are right."""
    stored_uuid: str | None = None
    """Of a replay: the artifact that it is of; None when the file was never registered."""
    stored_sha256: str | None = None
    stored_pointer: str | None = None
    stored_size: int | None = None


@dataclass(frozen=True, slots=True)
class ResumeResult:
    decision: str
    reason: str
    range_start: int = 0


@dataclass(frozen=True, slots=True)
class StreamResult:
    sha256: str
    size: int
    resumed_from_bytes: int
    bytes_written: int
    elapsed_ms: int
    fsync_ms: int
    content_type: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    length_unproven: bool = False
    final_url_sha256: str = ""
    """The URL whose validators these are."""
    host: str | None = None
    """Which of the job's servers brought the last bytes; never the URL, which may hold a secret."""
    quota_decision: str | None = None
    quota_free: int | None = None
    quota_reserved: int | None = None
    quota_need: int | None = None
    quota_floor: int | None = None
    quota_margin_percent: int | None = None
    resume_decision: str | None = None
    resume_reason: str | None = None
    """What was decided instead of what RESUME says: an earlier worker began with that, and left bytes behind."""


@dataclass(frozen=True, slots=True)
class FinalizeResult:
    sha256: str
    size: int
    pointer: str
    already_there: bool


@dataclass(frozen=True, slots=True)
class IndexResult:
    sha256: str
    pointer: str
    artifact_uuid: str


@dataclass(frozen=True, slots=True)
class DedupeResult:
    action: DedupeAction
    saved_bytes: int
    quiet: bool = False
    """Only another tenant's file accounts for it, so the owner is told of a download of his own (DEDUPE-2)."""

    @property
    def told(self) -> DedupeAction:
        return DedupeAction.DOWNLOAD if self.quiet else self.action


Result = HeadResult | ResumeResult | StreamResult | FinalizeResult | IndexResult | DedupeResult

TYPES: Mapping[OpType, type[Result]] = {
    OpType.HEAD: HeadResult,
    OpType.RESUME: ResumeResult,
    OpType.STREAM: StreamResult,
    OpType.FINALIZE: FinalizeResult,
    OpType.INDEX: IndexResult,
    OpType.DEDUPE: DedupeResult,
}


def encode(op: OpType, result: Result) -> str:
    """Write a result as JSON; what would not read back the same is refused."""
    if type(result) is not TYPES[op]:
        raise ResultUnreadable(f"{op} cannot store a {type(result).__name__}")
    body = {name: getattr(result, name) for name in _shape(op)}
    _check(op, body)
    text = json.dumps({"v": RESULT_VERSION, **body}, sort_keys=True, separators=(",", ":"))
    if len(text.encode()) > MAX_JSON_BYTES:
        raise ResultUnreadable(f"the {op} result is larger than {MAX_JSON_BYTES} bytes")
    return text


def decode(op: OpType, text: str) -> Result:
    """Read a result; unknown fields (of a newer worker) are passed over, missing ones are an error."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ResultUnreadable(f"the stored {op} result is not JSON") from error
    if not isinstance(body, dict) or body.pop("v", None) != RESULT_VERSION:
        raise ResultUnreadable(f"the stored {op} result has an unknown version")
    known = _shape(op)
    body = {name: value for name, value in body.items() if name in known}
    _check(op, body)
    if op is OpType.DEDUPE:
        body["action"] = DedupeAction(body["action"])
    return TYPES[op](**body)


@dataclass(frozen=True, slots=True)
class _Field:
    hint: Any
    required: bool
    plain: frozenset[type]
    """Types whose every value fits, so that nearly all values are checked by one look."""


@cache
def _shape(op: OpType) -> Mapping[str, _Field]:
    """The fields of a result. Kept, since to evaluate the hints costs more than all the rest of a check."""
    kind = TYPES[op]
    hints = get_type_hints(kind)
    return {one.name: _Field(hints[one.name], one.default is MISSING, _plain(hints[one.name])) for one in fields(kind)}


def _plain(hint: Any) -> frozenset[type]:
    return frozenset({str, int, bool, NoneType} & set(get_args(hint) or (hint,)))


def _check(op: OpType, body: Mapping[str, Any]) -> None:
    for name, field in _shape(op).items():
        if name not in body:
            if field.required:
                raise ResultUnreadable(f"the {op} result has no {name}")
        elif type(body[name]) not in field.plain and not _fits(body[name], field.hint):
            raise ResultUnreadable(f"the {op} result's {name} is not a {field.hint}")


def _fits(value: object, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if hint is NoneType:
        return value is None
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return isinstance(value, str) and value in {str(member) for member in hint}
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished op's result and the run that recorded it last."""

    run: int
    result: Result


class Results:
    """The finished results of one job, as the stages of one run may see them."""

    def __init__(self, run: int, latest: Mapping[OpType, Recorded], keys: Collection[str] = ()) -> None:
        """`keys`: of all ops that the job has, finished or not."""
        self._run = run
        self._latest = latest
        self._keys = keys

    def knows(self, op_key: str) -> bool:
        """Has somebody started that op?"""
        return op_key in self._keys

    def with_(self, op: OpType, op_key: str, result: Result) -> Results:
        """These, and one that this run has just come to."""
        return Results(self._run, {**self._latest, op: Recorded(self._run, result)}, {*self._keys, op_key})

    def latest(self, op: OpType) -> Result | None:
        """The newest result of that kind, of whatever run."""
        found = self._latest.get(op)
        return found.result if found else None

    def of_run(self, op: OpType) -> Result | None:
        """The result of that kind, if this run recorded or replayed it."""
        found = self._latest.get(op)
        return found.result if found and found.run == self._run else None

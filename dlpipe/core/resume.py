"""Whether bytes that we hold may be gone on with. A pure decision; HTTP.md is its table (RESUME-1).

Parts are joined only under the same strong validator (RFC 9110 §8.8.1, §13.1.5). Everything that
cannot be proven here costs a fresh download, never a mixed file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from dlpipe.core.remote import PartFacts, RemoteFacts

# An empty opaque tag is well-formed but says nothing about the bytes; other than visible ASCII we
# could not send back exactly as it came.
_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]+"\Z')
_HTTP_DATE = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), ([0-9]{2}) "
    r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) GMT\Z"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


_NO_VALIDATOR = "no_strong_validator"


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    enabled: bool = True
    min_bytes: int = 1
    prefix_bytes: int = 0
    """Compare so many first bytes where there is no strong validator; 0: such bytes are never gone on with."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """There is nothing to go on with and nothing to throw away."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Ask for the bytes from `offset` on; `if_range` is the exact header value."""

    offset: int
    if_range: str
    reason: str = "same_validator"


@dataclass(frozen=True, slots=True)
class Discard:
    """Throw the part away and start at 0."""

    reason: str


@dataclass(frozen=True, slots=True)
class Complete:
    """Every byte is held. The caller hashes them, and compares their end unless more than the part vouches for them."""

    reason: str = "all_bytes_held"


@dataclass(frozen=True, slots=True)
class NeedPrefix:
    """Compare the first `size` bytes with the server's; only if they are the same, resume from `offset`."""

    size: int
    offset: int


SAME_PREFIX = "same_prefix"
"""The reason to resume after a NeedPrefix was answered well."""

Decision = Fresh | Resume | Discard | Complete | NeedPrefix


def decide(
    remote: RemoteFacts | None, part: PartFacts | None, policy: ResumePolicy, wanted: str | None = None
) -> Decision:
    """Decide before the request. `remote` is None when HEAD was of no use: then the answer must tell.

    `wanted` is the sha256 that was asked for, if one was.
    """
    if part is None:
        return Fresh("no_part")
    if part.good <= 0:
        return Fresh("nothing_held")
    if not policy.enabled:
        return Discard("resume_off")
    if part.promised is not None and part.promised != wanted:
        return Discard("joined_under_a_digest")
    if part.total is not None and part.good > part.total:
        return Discard("more_than_total")
    if_range = validator(part)
    if remote is not None:
        objection = _objection(remote, part)
        if objection == _NO_VALIDATOR and _may_compare(remote, part, policy):
            return NeedPrefix(min(policy.prefix_bytes, part.good), part.good)
        if objection is not None:
            return Discard(objection)
    if part.complete or part.good == part.total:
        # Without a word from the server the held bytes are still one whole representation of one
        # moment: nothing is joined to them, so no validator is needed to keep them.
        return Complete()
    if if_range is None:
        return Discard(_NO_VALIDATOR)
    if part.good < policy.min_bytes:
        return Discard("too_little_held")
    if remote is not None and refuses_ranges(remote):
        return Discard("ranges_refused")
    return Resume(part.good, if_range, "same_validator" if remote is not None else "own_validator")


def _may_compare(remote: RemoteFacts, part: PartFacts, policy: ResumePolicy) -> bool:
    """Row 38: nothing that the server says speaks against it being the same file, and its length speaks for it."""
    return (
        policy.prefix_bytes > 0
        and part.good >= policy.min_bytes
        and not part.complete
        and part.total is not None
        and part.good < part.total == remote.content_length
        and (part.etag, part.last_modified) == (remote.etag, remote.last_modified)
        and not refuses_ranges(remote)
    )


def _objection(remote: RemoteFacts, part: PartFacts) -> str | None:
    """Why the bytes that we hold are not surely of what the server has now; None when they are."""
    if remote.final_url_sha256 != part.final_url_sha256:
        return "final_url_changed"  # row 42: another server's validators mean nothing here
    if remote.content_length is not None:
        if part.total is not None and part.total != remote.content_length:
            return "total_changed"
        if part.good > remote.content_length:
            return "more_than_total"
    mine, theirs = validator(part), validator(remote)
    if mine is None or theirs is None:
        return _NO_VALIDATOR
    return None if mine == theirs else "validator_changed"


def validator(facts: PartFacts | RemoteFacts) -> str | None:
    """The strong validator as it may stand in If-Range: an ETag, or a date if there is no ETag at all."""
    if facts.etag is not None:
        return facts.etag if is_strong(facts.etag) else None
    changed, sent = instant(facts.last_modified), instant(facts.date)
    # A file can change twice within the second that the date can name (RFC 9110 §8.8.2.2).
    if changed is None or sent is None or sent - changed < 1:
        return None
    return facts.last_modified


def is_strong(etag: str | None) -> bool:
    return etag is not None and _STRONG_ETAG.match(etag) is not None


def instant(http_date: str | None) -> int | None:
    """Seconds since 1970 of an IMF-fixdate (RFC 9110 §5.6.7); the obsolete forms are as if absent."""
    match = _HTTP_DATE.match(http_date or "")
    if match is None:
        return None
    day, month, year, hour, minute, second = match.groups()
    try:
        at = datetime(int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC)
    except ValueError:
        return None
    return int(at.timestamp())


def refuses_ranges(remote: RemoteFacts) -> bool:
    return remote.accept_ranges is not None and remote.accept_ranges.strip().lower() == "none"

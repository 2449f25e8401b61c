"""What the head of a GET answer lets us do with its body, and its end with the file. Pure; STREAM-1.

HTTP.md is the table; the row numbers stand beside the rules. Codes of refusals are listed in `answers`.
Reasons to restart: `range_*`, `total_changed`, `validator_*`, `coded_range`, `status_*`, `body_too_long`,
`total_unknown`, `digest_mismatch`. A restart throws the part away and asks without Range; the caller caps it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dlpipe.core import answers, resume
from dlpipe.core.answers import Kind, Reject
from dlpipe.core.remote import Headers, RemoteFacts

_MAX_VALIDATOR = 1_024
_MAX_FIELD = 255
_RANGE = re.compile(r"bytes ([0-9]{1,30})-([0-9]{1,30})/([0-9]{1,30}|\*)\Z", re.IGNORECASE)
_UNSATISFIED = re.compile(r"bytes \*/([0-9]{1,30})\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Want:
    """What was asked: bytes from `start` on, of the file that `etag` (or the date in `if_range`) names."""

    start: int = 0
    if_range: str | None = None
    etag: str | None = None
    total: int | None = None
    max_bytes: int | None = None
    unproven: bool = False
    """No validator ties the bytes together: the total must be the same, and the caller compares bytes."""
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Use the body: its first byte belongs at `offset`, and `length` bytes are to be taken (None: all).

    An offset of 0 starts a new part; one below what was asked means to go back to there first.
    """

    offset: int
    length: int | None
    total: int | None


@dataclass(frozen=True, slots=True)
class Restart:
    reason: str


Judgement = Append | Restart | Reject


@dataclass(frozen=True, slots=True)
class ContentRange:
    first: int
    last: int
    total: int | None


def judge(status: int, headers: Headers, framing: str, want: Want) -> Judgement:
    """Decide on the head of an answer before a byte of its body is written."""
    broken = answers.bad_framing(headers)
    if broken is not None:
        return broken
    # Without If-Range no Range was sent, unless the bytes are to prove themselves.
    ranged = (want.start > 0 or want.end is not None) and (want.if_range is not None or want.unproven)
    if status == 200:
        return _whole(headers, framing, want)
    if status == 206:
        return _partial(headers, want) if ranged else _unasked_range()
    if ranged and status in (304, 412):
        return Restart(f"status_{status}")  # row 32
    if ranged and status == 416:
        # Row 30: even when the server's total is what we hold, that alone never makes a file done.
        held = unsatisfied_total(headers) == want.start
        return Restart("range_all_held_unproven" if held else "range_not_satisfiable")
    if status < 200:
        return answers.protocol_error(f"the server answered {status}, which was not asked for")
    return answers.refuse_status(status)


def _unasked_range() -> Reject:
    """Row 12: without a Range of ours nobody can say what this is a part of."""
    hint = "The server sends a part of a file where all of it was asked for; try another source."
    return Reject("range_not_asked", "the server sent a range that was not asked for", Kind.PERMANENT, hint)


def _multipart() -> Reject:
    hint = "The server answers one range with several; try another source for this file."
    return Reject("multipart", "the answer is multipart/byteranges", Kind.PERMANENT, hint)


def _whole(headers: Headers, framing: str, want: Want) -> Judgement:
    length = content_length(headers)
    full = content_range(headers)
    if headers.all("content-range") and (full is None or not _is_all(full, length)):
        return Restart("range_on_200")  # row 13
    if answers.is_multipart(headers):
        return _multipart()  # row 25
    if answers.is_coded(headers):
        return answers.content_coding()  # row 15
    if framing not in ("length", "chunked", "close") or (framing == "length") != (length is not None):
        return answers.protocol_error("the answer's framing and its headers disagree")
    length = full.total if full is not None else length  # row 54: then the body must have as many
    if length is not None and want.max_bytes is not None and length > want.max_bytes:
        return answers.too_large(want.max_bytes)  # row 10
    return Append(0, length, length)  # rows 1, 2, 3, 16, and 29 when a range was asked for


def _is_all(span: ContentRange, length: int | None) -> bool:
    """Row 54, ADR 47: is that range of a 200 all of the file?"""
    return span.first == 0 and span.total == span.last + 1 and length in (None, span.total)


def _partial(headers: Headers, want: Want) -> Judgement:
    if answers.is_multipart(headers):
        return _multipart()  # row 25
    if answers.is_coded(headers):
        return Restart("coded_range")  # row 28
    span = content_range(headers)
    if span is None:
        return Restart("range_malformed")  # row 24
    doubt = _other_representation(headers, want)
    if doubt is not None:
        return Restart(doubt)
    if span.first > want.start:
        return Restart("range_starts_later")  # row 20
    if span.last < want.start:
        return Restart("range_brings_nothing")  # row 19 without an end: we would go back for ever
    if want.total is not None and span.total is not None and span.total != want.total:
        return Restart("total_changed")  # row 22
    # Under the same strong validator the total that the part was begun with still holds (row 23).
    total = span.total if span.total is not None else want.total
    if total is not None and span.last >= total:
        return Restart("range_past_total")
    length = span.last - span.first + 1
    declared = content_length(headers)
    if declared is not None and declared > length:
        return Restart("body_too_long")  # row 26
    if want.max_bytes is not None and max(total or 0, span.last + 1) > want.max_bytes:
        return answers.too_large(want.max_bytes)
    return Append(span.first, length, total)


def _other_representation(headers: Headers, want: Want) -> str | None:
    """Row 27: a part may only grow by bytes that carry the same strong validator."""
    etags = headers.all("etag")
    if want.unproven:
        span = content_range(headers)
        if want.total is None or span is None or span.total != want.total:
            return "total_changed"
        return "validator_changed" if want.etag is not None and etags != (want.etag,) else None
    if want.etag is not None:
        same = len(etags) == 1 and resume.is_strong(want.etag) and etags[0] == want.etag
        return None if same else "validator_changed"
    if etags:
        return "validator_appeared"  # there was none, so nothing says that this is the same file
    # A 206 may leave Last-Modified out (RFC 9110 §15.3.7); if it is there it must be what we hold.
    dates = headers.all("last-modified")
    return "validator_changed" if any(date != want.if_range for date in dates) else None


# ── the end of the body ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Finished:
    """The file is whole. `length_unproven`: only the closing of the connection says so."""

    length_unproven: bool = False


@dataclass(frozen=True, slots=True)
class More:
    """The body was right, and the file goes on: ask for the rest from `offset` (row 21)."""

    offset: int


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Keep what is held and try again later with resume."""

    reason: str = "body_short"


Verdict = Finished | More | Incomplete | Restart | Reject


def verdict(
    append: Append,
    received: int,
    framing: str,
    *,
    digest_agreed: bool | None = None,
    known_total: int | None = None,
    accept_unproven: bool = True,
) -> Verdict:
    """Decide when a body has ended without an error.

    Args:
        received: bytes of this body, also those beyond `append.length` that were not written.
        digest_agreed: of the whole file as it would then be; None when nothing can be compared.
        known_total: a size known from elsewhere (HEAD), which can vouch for a body without a length.
    """
    end = append.offset + received
    if append.length is not None:
        if received > append.length:
            return Restart("body_too_long")  # row 26
        if received < append.length:
            return Incomplete()  # rows 4 and 26
        if append.total is not None and end < append.total:
            return More(end)  # row 21
        if append.total is None and digest_agreed is None:
            return Restart("total_unknown")  # row 23
    if digest_agreed is False:
        return _mismatch(append)
    if append.length is not None or framing == "chunked" or digest_agreed:
        return Finished()  # rows 1, 2, 16, 18, and 3 with a digest
    if known_total is not None and end <= known_total:
        return Finished() if end == known_total else Incomplete()  # row 3 with a length
    if accept_unproven:
        return Finished(length_unproven=True)
    hint = "Give the expected sha256, or allow files whose length nothing proves."
    return Reject("length_unproven", "nothing proves that the file is whole", Kind.PERMANENT, hint)


def _mismatch(append: Append) -> Verdict:
    if append.offset > 0:
        return Restart("digest_mismatch")  # row 37: the same validator, other bytes
    hint = "The bytes are not what the server declares; the download is tried again by itself."
    return Reject("digest_mismatch", "the bytes do not match the server's digest", Kind.RETRYABLE, hint)


# ── reading headers ───────────────────────────────────────────────────────────────────────────────


def content_length(headers: Headers) -> int | None:
    value = headers.one("content-length")
    return None if value is None else answers.number(value)


def content_range(headers: Headers) -> ContentRange | None:
    """The range of a 206 (RFC 9110 §14.4); None for what is missing, malformed or impossible (row 24)."""
    match = _RANGE.match(headers.one("content-range") or "")
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    total = None if match[3] == "*" else int(match[3])
    if last < first or (total is not None and total <= last):
        return None
    return ContentRange(first, last, total)


def unsatisfied_total(headers: Headers) -> int | None:
    match = _UNSATISFIED.match(headers.one("content-range") or "")
    return None if match is None else int(match[1])


def facts(status: int, headers: Headers, final_url_sha256: str) -> RemoteFacts:
    """What an answer's head says of the file. What is absent, doubled or absurd is None."""
    coded = answers.is_coded(headers) or answers.bad_framing(headers) is not None
    span = content_range(headers) if status == 206 else None
    total = span.total if span is not None else (content_length(headers) if status == 200 else None)
    etag = _bounded(headers, "etag", _MAX_VALIDATOR)
    # A date counts only where there is no ETag at all, so an unreadable ETag takes the date with it.
    undated = coded or (etag is None and bool(headers.all("etag")))
    return RemoteFacts(
        http_status=status,
        final_url_sha256=final_url_sha256,
        # Length and validators of a coded representation are not those of the file that we will ask for.
        etag=None if coded else etag,
        last_modified=None if undated else _bounded(headers, "last-modified", _MAX_FIELD),
        date=_bounded(headers, "date", _MAX_FIELD),
        accept_ranges=_bounded(headers, "accept-ranges", _MAX_FIELD),
        content_length=None if coded else total,
        content_type=_bounded(headers, "content-type", _MAX_FIELD),
    )


def _bounded(headers: Headers, name: str, limit: int) -> str | None:
    value = headers.one(name)
    return value if value is not None and len(value) <= limit else None

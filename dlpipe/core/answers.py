"""Which answers are refused by their status or their framing, with what code and what to do about it. Pure.

Codes: `http_401` `http_403` `http_404` `http_410` `http_451` `http_4xx` `unexpected_status` `too_large`
`content_coding` `multipart` `range_not_asked` `protocol_error` `length_unproven` (permanent);
`http_408` `http_425` `http_429` `http_5xx` `digest_mismatch` (retryable).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dlpipe.core.errors import Permanent, Retryable
from dlpipe.core.remote import Headers

GONE = frozenset({404, 410, 451})
_MAX_DIGITS = 30
_DIGITS = frozenset("0123456789")


class Kind(StrEnum):
    PERMANENT = "permanent"
    RETRYABLE = "retryable"


@dataclass(frozen=True, slots=True)
class Reject:
    """The run fails with this code; nothing of the body is used."""

    code: str
    message: str
    kind: Kind = Kind.PERMANENT
    hint: str = ""

    def failure(self, after_s: float | None = None) -> Permanent | Retryable:
        if self.kind is Kind.PERMANENT:
            return Permanent(self.message, code=self.code, hint=self.hint)
        return Retryable(self.message, code=self.code, hint=self.hint, after_s=after_s)


_PERMANENT_HINTS = {
    401: "The address needs a login, which dlpipe does not have; ask the provider for one that does not.",
    403: "The server refuses this address; check that the link is still valid and may be downloaded.",
    404: "The file is not there; check the address with the provider.",
    410: "The file was removed for good; look for another source.",
    451: "The file is withheld for legal reasons; look for another source.",
}
_RETRYABLE_HINTS = {
    408: "The server gave up waiting; the download is tried again by itself.",
    425: "The server asked to be tried later; that happens by itself.",
    429: "The server asked for fewer requests; the download is tried again later by itself.",
}


def refuse_status(status: int) -> Reject:
    """The refusal that belongs to a status which brings no usable body (rows 14, 33, 34, 35)."""
    if status in _PERMANENT_HINTS:
        hint = _PERMANENT_HINTS[status]
        return Reject(f"http_{status}", f"the server answered {status}", Kind.PERMANENT, hint)
    if status in _RETRYABLE_HINTS:
        hint = _RETRYABLE_HINTS[status]
        return Reject(f"http_{status}", f"the server answered {status}", Kind.RETRYABLE, hint)
    if 500 <= status <= 599:
        hint = "The server has a problem of its own; the download is tried again by itself."
        return Reject("http_5xx", f"the server answered {status}", Kind.RETRYABLE, hint)
    if 400 <= status <= 499:
        hint = "The server refuses the request as it is; open the address in a browser to see why."
        return Reject("http_4xx", f"the server answered {status}", Kind.PERMANENT, hint)
    hint = "Only 200 and 206 bring a file; open the address in a browser to see what it needs."
    return Reject("unexpected_status", f"the server answered {status}, which brings no file", Kind.PERMANENT, hint)


def too_large(max_bytes: int) -> Reject:
    """Rows 10 and 11: more than the caller allows, declared or sent."""
    hint = "Allow more with max_bytes if the file is wanted."
    return Reject("too_large", f"the file is larger than {max_bytes} bytes", Kind.PERMANENT, hint)


def protocol_error(what: str) -> Reject:
    hint = "The server breaks the HTTP protocol and is not trusted; try another source for this file."
    return Reject("protocol_error", what, Kind.PERMANENT, hint)


def content_coding() -> Reject:
    hint = "Ask the provider for an address that serves the file as it is, without compression in transfer."
    return Reject("content_coding", "the server coded the content although we asked for it as it is", hint=hint)


def bad_framing(headers: Headers) -> Reject | None:
    """What makes the end of the body ambiguous (RFC 9112 §6.3; rows 8 and 9)."""
    lengths, codings = headers.all("content-length"), headers.all("transfer-encoding")
    if lengths and codings:
        return protocol_error("the answer has both Transfer-Encoding and Content-Length")
    if len(lengths) > 1:
        return protocol_error("the answer has more than one Content-Length")
    if lengths and number(lengths[0]) is None:
        return protocol_error("the Content-Length is not a number")
    if codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
        return protocol_error("the Transfer-Encoding is not plain chunked")
    return None


def is_coded(headers: Headers) -> bool:
    """Row 15: anything but `identity`, also words that we do not know."""
    words = ",".join(headers.all("content-encoding")).split(",")
    return any(word.strip(" \t").lower() not in ("", "identity") for word in words)


def is_multipart(headers: Headers) -> bool:
    kinds = headers.all("content-type")
    return any(kind.split(";")[0].strip(" \t").lower() == "multipart/byteranges" for kind in kinds)


def number(text: str) -> int | None:
    """ASCII digits only: int() would also take a sign, underscores, blanks and other scripts' digits."""
    if not text or not set(text) <= _DIGITS or len(text.lstrip("0")) > _MAX_DIGITS:
        return None
    return int(text.lstrip("0") or "0")

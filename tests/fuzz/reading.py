"""What an answer's bytes mean, read by RFC 9110 and 9112 alone: the oracle shares no code with the client.

It reads strictly where the end or the place of a body is decided, and is as lenient as the RFC allows elsewhere: what
this cannot read may be refused or taken, but is taken only for what it is in truth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_BLANK = re.compile(rb"\n\r?\n")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: .*)?\Z", re.DOTALL)
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_RANGE = re.compile(rb"bytes ([0-9]{1,15})-([0-9]{1,15})/([0-9]{1,15}|\*)\Z", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n\0]*)?\r\n")


@dataclass(frozen=True)
class Reading:
    """These bytes belong at `first` of the file that the validators name; `whole`: and they are all of it."""

    first: int
    body: bytes
    whole: bool
    validators: tuple[tuple[bytes, ...], tuple[bytes, ...]]


def read(data: bytes, *, closed: bool) -> Reading | None:
    """What the answer to a GET brings; None for what brings nothing, or is malformed."""
    while True:
        found = _BLANK.search(data)
        if found is None:
            return None
        lines = [line.removesuffix(b"\r") for line in data[: found.start()].split(b"\n")]
        data = data[found.end() :]
        status = _STATUS.match(lines[0])
        if status is None:
            return None
        if not 100 <= int(status[2]) < 200 or int(status[2]) == 101:
            break
    fields = _fields(lines[1:])
    if fields is None or int(status[2]) not in (200, 206):
        return None
    if any(
        word.strip().lower() not in (b"", b"identity")
        for word in b",".join(_all(fields, "content-encoding")).split(b",")
    ):
        return None
    framed = _framed(data, fields, status[1] == b"1", closed)
    if framed is None:
        return None
    body, over = framed
    validators = (_all(fields, "etag"), _all(fields, "last-modified"))
    spans = _all(fields, "content-range")
    if int(status[2]) == 200:
        return None if spans else Reading(0, body, over, validators)
    span = _RANGE.match(spans[0]) if len(spans) == 1 else None
    if span is None or int(span[2]) < int(span[1]) or len(body) > int(span[2]) - int(span[1]) + 1:
        return None
    return Reading(int(span[1]), body, False, validators)


def justified(file: bytes, truth: Iterable[bytes], readings: Iterable[Reading]) -> str:
    """Why these bytes may stand as the file's: they are it, or the server itself said so; empty when neither."""
    if file in truth:
        return "right"
    said = list(readings)
    if any(one.whole and one.body == file for one in said):
        return "as declared"
    for validators in {one.validators for one in said}:
        mask = bytearray(len(file))
        for one in said:
            if one.validators == validators:
                for at, byte in enumerate(one.body, one.first):
                    if at < len(file) and file[at] == byte:
                        mask[at] = 1
        if all(mask):
            return "as declared"
    return ""


def _fields(lines: list[bytes]) -> list[tuple[str, bytes]] | None:
    found = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.match(name) or re.search(rb"[\r\0]", value):
            return None
        found.append((name.decode().lower(), value.strip(b" \t")))
    return found


def _all(fields: list[tuple[str, bytes]], name: str) -> tuple[bytes, ...]:
    return tuple(value for key, value in fields if key == name)


def _framed(data: bytes, fields: list[tuple[str, bytes]], is_1_1: bool, closed: bool) -> tuple[bytes, bool] | None:
    """The body, as far as it came, and whether that is all of it."""
    lengths, codings = _all(fields, "content-length"), _all(fields, "transfer-encoding")
    if lengths:
        if codings or len(lengths) > 1 or re.fullmatch(rb"[0-9]{1,30}", lengths[0]) is None:
            return None
        size = int(lengths[0])
        return data[:size], len(data) >= size
    if codings:
        return _unchunked(data) if is_1_1 and [one.lower() for one in codings] == [b"chunked"] else None
    return data, closed


def _unchunked(data: bytes) -> tuple[bytes, bool] | None:
    body = b""
    while True:
        line = _CHUNK.match(data)
        if line is None:
            # Cut within a size line, or not a size line at all: what came before it came rightly.
            return body, False
        size, data = int(line[1], 16), data[line.end() :]
        if size == 0:
            return body, _trailers_end(data)
        body += data[:size]
        if len(data) < size + 2:
            return body, False
        if data[size : size + 2] != b"\r\n":
            return body, False
        data = data[size + 2 :]


def _trailers_end(data: bytes) -> bool:
    if data.startswith(b"\r\n"):
        return True
    trailers, end, _ = data.partition(b"\r\n\r\n")
    return bool(end) and _fields(trailers.split(b"\r\n")) is not None

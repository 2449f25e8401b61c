"""Answers before they are bytes, and what goes wrong with them: a status line, fields, a framing, and a body in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random


@dataclass
class Draft:
    status: bytes
    fields: list[bytes]
    content: bytes
    framing: str = "length"
    before: bytes = b""
    """1xx answers in front of it."""
    eol: bytes = b"\r\n"
    body: bytes | None = None
    """Framed already."""
    extra: bytes = b""
    """Behind its end, in the same segment."""
    bodyless: bool = False
    own_framing: bool = field(default=False)
    """The fields say how it ends, and not `framing`."""

    def render(self, chance: Random) -> bytes:
        fields, body = list(self.fields), self.body
        if body is None:
            body = in_chunks(chance, self.content) if self.framing == "chunked" else self.content
        if not self.own_framing:
            if self.framing == "chunked":
                fields.insert(chance.randint(0, len(fields)), chance.choice(_CODED))
            elif self.framing == "length":
                fields.insert(chance.randint(0, len(fields)), b"Content-Length: %d" % len(self.content))
        head = self.eol.join([self.status, *fields, b"", b""])
        return self.before + head + (b"" if self.bodyless else body) + self.extra


_CODED = (b"Transfer-Encoding: chunked", b"transfer-encoding:chunked", b"Transfer-Encoding:  Chunked ")


def in_chunks(chance: Random, content: bytes, tail: bytes | None = None) -> bytes:
    """Well-formed, in pieces of any size."""
    framed, at = [], 0
    while at < len(content):
        size = chance.choice((1, 7, 64, 1_000, 5_000))
        piece = content[at : at + size]
        line = chance.choice((b"%x", b"%X", b"00%x", b"%x;name=value", b'%x; a="b"')) % len(piece)
        framed.append(line + b"\r\n" + piece + b"\r\n")
        at += size
    return b"".join(framed) + (chance.choice((b"0\r\n\r\n", b"0\r\nX-Trailer: 1\r\n\r\n")) if tail is None else tail)


def _length_line(draft: Draft, *values: object) -> None:
    draft.framing, draft.own_framing = "length", True
    draft.fields += [b"Content-Length: " + (v if isinstance(v, bytes) else str(v).encode()) for v in values]


def _wrong_length(draft: Draft, chance: Random) -> None:
    size = len(draft.content)
    _length_line(draft, max(0, size + chance.choice((-size, -100, -1, 1, 2, 100, 1 << 40, 10**30))))


def _odd_length(draft: Draft, chance: Random) -> None:
    size = len(draft.content)
    forms = (
        b"+%d", b"-%d", b"%d, %d", b"%d,%d", b"0x%x", b"%d.0", b"%d;", b"'%d'", b"1_%d", b"%d a", b" %d", b"00%d",
        b"%d\t",
        b"\xd9\xa3%d", b"", b"%d\x00", b"%d\r", b"\x0b%d",
    )  # fmt: skip
    form = chance.choice(forms)
    _length_line(draft, form % ((size,) * form.count(b"%")))


def _two_lengths(draft: Draft, chance: Random) -> None:
    size = len(draft.content)
    _length_line(draft, *chance.choice(((size, size), (size, size + 1), (0, size), (size, 0), (size, size, size))))


def _length_and_coding(draft: Draft, chance: Random) -> None:
    draft.own_framing = True
    draft.body = in_chunks(chance, draft.content) if chance.random() < 0.5 else draft.content
    lines = [b"Content-Length: %d" % len(draft.content), b"Transfer-Encoding: " + chance.choice(_CODINGS)]
    chance.shuffle(lines)
    draft.fields += lines


_CODINGS = (
    b"chunked", b"gzip, chunked", b"chunked, chunked", b"identity", b"xchunked", b"chunked;q=1", b"\x0bchunked",
    b"chunked,",
    b"", b"chunked, identity", b"chu nked", b"CHUNKED",
)  # fmt: skip


def _odd_coding(draft: Draft, chance: Random) -> None:
    draft.own_framing, draft.body = True, in_chunks(chance, draft.content)
    draft.fields += [b"Transfer-Encoding: " + chance.choice(_CODINGS) for _ in range(chance.choice((1, 1, 2)))]
    if chance.random() < 0.3:
        draft.status = draft.status.replace(b"HTTP/1.1", b"HTTP/1.0")


def _bad_chunks(draft: Draft, chance: Random) -> None:
    draft.own_framing = True
    draft.fields.append(b"Transfer-Encoding: chunked")
    good, size = in_chunks(chance, draft.content, b""), len(draft.content)

    def whole(line: bytes, end: bytes = b"\r\n") -> bytes:
        return line + draft.content + end + b"0\r\n\r\n"

    draft.body = chance.choice(
        (
            good + b"0\n\n", good + b"0\r\n\n", good + b"0\n\r\n", good + b"0", good + b"", good + b"0\r\n",
            good + b"-0\r\n\r\n",
            good + b"0\r\nX: 1\r\n folded\r\n\r\n", good + b"0\r\nno colon\r\n\r\n", good + b"0\r\n\x00: 1\r\n\r\n",
            good + b"0\r\nContent-Length: 3\r\n\r\n", good + b"0;\x00\r\n\r\n", good + b"0;a\rb\r\n\r\n",
            good + b"g\r\n\r\n",
            good + b"0" * 40 + b"\r\n\r\n", good + b"0\r\n" + b"X: 1\r\n" * 400 + b"\r\n", good + b"\r\n0\r\n\r\n",
            good + b"ffffffffffffffffffff\r\n", good + b"0x0\r\n\r\n", good + b"+0\r\n\r\n", good + b"0 \r\n\r\n",
            whole(b"%x\n" % size), whole(b"%x\r\n" % size, b"\n"), whole(b"%x\r\n" % size, b""),
            whole(b"0x%x\r\n" % size),
            whole(b"%x\r\n" % (size + 2)), whole(b"%x\r\n" % max(0, size - 1)), whole(b" %x\r\n" % size),
            whole(b"%x;\x00=1\r\n" % size), whole(b"%x;a=\rb\r\n" % size), whole(b"%x;a\n" % size),
            whole(b"-%x\r\n" % size),
            whole(b"%x%s\r\n" % (size, b";a" * 9_000)), whole(b"%x\r\n" % size, b"XX"), whole(b"\r\n%x\r\n" % size),
        )
    )  # fmt: skip


def _to_the_end(draft: Draft, chance: Random) -> None:
    draft.framing = "close"
    if chance.random() < 0.3:
        draft.status = draft.status.replace(b"HTTP/1.1", b"HTTP/1.0")


def _other_status(draft: Draft, chance: Random) -> None:
    number = chance.choice(
        (201, 203, 204, 205, 206, 300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 408, 410, 412, 416, 418, 425,
         429, 451, 500, 502, 503, 504, 599, 600, 999, 0, 100, 101, 102, 199)
    )  # fmt: skip
    draft.status = b"HTTP/1.1 %03d Other" % number
    if number in (301, 302, 303, 307, 308) and chance.random() < 0.8:
        to = (
            b"/0",
            b"/1",
            b"http://[",
            b"",
            b"//other.example/0",
            b"ftp://x/",
            b"/%zz",
            b"?q",
            b"\xff",
            b"/0\r\nLocation: /1",
        )
        draft.fields.append(b"Location: " + chance.choice(to))
    if number in (429, 503) and chance.random() < 0.5:
        draft.fields.append(b"Retry-After: " + chance.choice((b"1", b"0", b"-1", b"99999999999", b"x", b"Fri")))


def _odd_status_line(draft: Draft, chance: Random) -> None:
    draft.status = chance.choice(
        (
            b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/2 200 OK", b"HTTP/2.0 200 OK", b"HTTP/1.2 200 OK",
            b"HTTP/0.9 200 OK",
            b"ICY 200 OK", b"http/1.1 200 OK", b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1  200 OK",
            b"HTTP/1.1\t200 OK",
            b"HTTP/1.1 200 O\x00K", b"HTTP/1.1 200 \xff\xfe", b"\r\nHTTP/1.1 200 OK", b"\r\n\r\nHTTP/1.1 200 OK",
            b" HTTP/1.1 200 OK",
            b"HTTP/1.1 200\tOK", b"HTTP/11 200 OK", b"HTTP/1.10 200 OK", b"HTTP/1.1 +200 OK", b"HTTP/1,1 200 OK", b"",
            b"GET / HTTP/1.1", b"HTTP/1.1 200 O\rK", b"\nHTTP/1.1 200 OK", b"HTTP/1.1 \xd9\xa3\xd9\xa3\xd9\xa3 OK",
            b"HTTP/1.0 200 OK",
        )
    )  # fmt: skip


def _odd_fields(draft: Draft, chance: Random) -> None:
    odd = chance.choice(
        (
            b"X : 1", b": 1", b"X", b" folded", b"X: a\x00b", b"X: a\rb", b"X: \xff\x80", b"Content-Encoding: gzip",
            b"Content-Encoding: identity", b"Content-Encoding: br, identity", b"Content-Range: bytes 0-9/10",
            b"Content-Type: multipart/byteranges; boundary=x", b"Content-Type: text/html", b"Connection: close",
            b"Connection: keep-alive, close", b"Connection: upgrade", b"Upgrade: h2c", b"Content-length : 3",
            b"X: " + b"a" * 70_000,
            b"\r\n".join([b"X: 1"] * 140), b"Content-Length: 3", b"Content\x00-Length: 3", b"Set-Cookie: a=b",
            b"ETag: W/\"weak\"",
            b'ETag: "second"', b"Last-Modified: x", b"Repr-Digest: sha-256=:AAAA:", b"Content-Digest: sha-256=x",
            b"Trailer: X",
            b"Keep-Alive: timeout=0", b"Accept-Ranges: none", b"X:\r\n\tfolded",
        )
    )  # fmt: skip
    draft.fields.insert(chance.randint(0, len(draft.fields)), odd)


def _interim(draft: Draft, chance: Random) -> None:
    one = chance.choice(
        (
            b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
            b"HTTP/1.1 102 P\r\nX: a\r\n b\r\n\r\n",
            b"HTTP/1.1 100 C\n\n", b"HTTP/1.1 199\r\n\r\n", b"HTTP/1.0 100 Continue\r\n\r\n",
            b"HTTP/1.1 101 Upgrade\r\n\r\n",
            b"HTTP/1.1 100 C\r\nContent-Length: 3\r\n\r\n", b"HTTP/1.1 100 C\r\nContent-Length: 3\r\n\r\nabc",
        )
    )  # fmt: skip
    draft.before = one * chance.choice((1, 2, 3, 16, 17, 40))


def _other_range(draft: Draft, chance: Random) -> None:
    """Of a 206: what it says that it is."""
    spans = (re.fullmatch(rb"Content-Range: bytes ([0-9]+)-([0-9]+)/([0-9]+)", line) for line in draft.fields)
    at, span = next(((n, span) for n, span in enumerate(spans) if span), (0, None))
    if span is None:
        return
    start, end, size = map(int, span.groups())
    draft.fields[at] = b"Content-Range: " + chance.choice(
        (
            b"bytes %d-%d/*" % (start, end), b"bytes %d-%d/%d" % (start, end, size + 1), b"bytes %d-%d/%d" % (start,
            end, max(1, size - 1)),
            b"bytes %d-%d/%d" % (end, start, size), b"bytes */%d" % size, b"chars %d-%d/%d" % (start, end, size),
            b"bytes=%d-%d/%d" % (start, end, size), b"bytes +%d-%d/%d" % (start, end, size), b"",
            b"bytes 0-%d/%d" % (end, size),
            b"bytes %d-%d/%d" % (start + 1, end, size), b"bytes %d-%d/%d" % (start, max(start, end - 1), size),
            b"bytes %d-%d/%d" % (start, end + 1, size), b"bytes %d-%d/%d" % (start, start, size), b"bytes 0-0/1",
        )
    )  # fmt: skip
    if chance.random() < 0.2:
        del draft.fields[at]


def _longer_body(draft: Draft, chance: Random) -> None:
    """A body beside what the rest of the head says, where there is a range."""
    draft.content += chance.randbytes(chance.choice((1, 50)))


def _other_etag(draft: Draft, chance: Random) -> None:
    draft.fields = [line for line in draft.fields if not line.startswith(b"ETag")]
    odd = (None, b'W/"v1"', b'"other"', b'""', b"bare", b'"v1', b'"v 1"', b'"\xff"')
    etag = chance.choice(odd)
    if etag is not None:
        draft.fields.append(b"ETag: " + etag)


def _empty(draft: Draft, chance: Random) -> None:
    draft.content = b""


def _bare_newlines(draft: Draft, chance: Random) -> None:
    draft.eol = chance.choice((b"\n", b"\r", b"\n\r", b"\r\r\n", b"\r\n"))


Change = Callable[[Draft, Random], None]

CHANGES: tuple[Change, ...] = (
    _wrong_length, _wrong_length, _odd_length, _two_lengths, _length_and_coding, _odd_coding, _bad_chunks, _bad_chunks,
    _to_the_end, _other_status, _other_status, _odd_status_line, _odd_fields, _odd_fields, _interim, _other_range,
    _other_range,
    _other_etag, _empty, _bare_newlines, _longer_body,
)  # fmt: skip


def garbled(data: bytes, chance: Random) -> bytes:
    """Some bytes of the head, or around it, are others, lost, doubled or put elsewhere."""
    head = max(1, data.find(b"\r\n\r\n") + 4)
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(min(head, len(out)) or 1)
        match chance.randrange(7):
            case 0:
                out[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                out[at:at] = chance.choice((b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\r\n\r\n", b",", b"0", b"\t"))
            case 2:
                del out[at : at + chance.choice((1, 2, 10))]
            case 3:
                lines = bytes(out[:head]).split(b"\r\n")
                lines.insert(chance.randrange(len(lines)), chance.choice(lines))
                out[:head] = b"\r\n".join(lines)
            case 4:
                lines = bytes(out[:head]).split(b"\r\n")
                chance.shuffle(lines)
                out[:head] = b"\r\n".join(lines)
            case 5:
                del out[at:]
            case _:
                out[at:at] = data[: chance.randrange(head)]
        if not out:
            break
    return bytes(out)

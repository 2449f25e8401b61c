"""The table: what the server does, row by row of HTTP.md, and how the job ends."""

# ruff: noqa: E501 - one line is one row

from __future__ import annotations

import base64
import hashlib

from tests.hostile import (
    CUT,
    ETAG,
    FILE,
    NOW,
    OLD,
    OTHER,
    RANGES,
    Done,
    Refused,
    Row,
    Told,
    Waits,
    asked_from,
    chunked,
    head,
    in_chunks,
    part,
    say,
    status,
    to_a_range,
    to_the_end,
    whole,
)
from tests.origin import Asked, Say, Then, answer

SIZE = len(FILE)
LENGTH = f"Content-Length: {SIZE}"
FULL_RANGE = f"Content-Range: bytes 0-{SIZE - 1}/{SIZE}"
SHA256 = hashlib.sha256(FILE).hexdigest()
CUT_OFF = whole(sends=CUT, then=Then.CLOSE)
"""A first answer with a strong ETag that leaves a part."""
BLIND = head(status=405)
NEVER = say(answer(200, FILE, ETAG, RANGES, f"Content-Length: {1 << 62}", length=False), Then.HANG)
PDF = b"%PDF-1.7\n" + FILE
LOGIN = b"\xef\xbb\xbf<!-- x -->\n<!DOCTYPE html><title>Log in</title>"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def sha(name: str, data: bytes) -> str:
    return b64(hashlib.new(name, data, usedforsecurity=False).digest())


def by_turns(*told: Told) -> Told:
    """One of these after the other, for ranges and others alike."""
    count = 0

    def script(asked: Asked) -> Say:
        nonlocal count
        count += 1
        return told[(count - 1) % len(told)](asked)

    return script


def framing(*lines: str, body: bytes = b"hello") -> Told:
    return say(answer(200, body, ETAG, *lines, length=False))


RESTARTED = Done(resumed=False)

WHOLE = (
    Row(1, "length exact", (whole(),), Done()),
    Row(2, "chunked", (chunked(),), Done(), head=BLIND),
    Row(2, "chunked with a trailer", (chunked(tail=b"0;x=y\r\nX: y\r\n\r\n"),), Done()),
    Row(3, "closed, HEAD told the length", (to_the_end(),), Done()),
    Row(3, "closed, a digest agrees", (to_the_end(),), Done(), head=BLIND, plan={"sha256": SHA256}),
    Row(
        3, "closed, the server's digest agrees",
        (to_the_end(f"Repr-Digest: sha-256=:{sha('sha256', FILE)}:"),), Done(), head=BLIND,
    ),
    Row(3, "closed, nothing proves it", (to_the_end(),), Refused("length_unproven", part=True), head=BLIND),
    Row(
        3, "closed, policy takes it", (to_the_end(),), Done(unproven=True), head=BLIND,
        stream={"accept_unproven_length": True},
    ),
    Row(3, "closed too early", (to_the_end(body=FILE[:CUT]),), Waits("body_short", part=True)),
    Row(4, "shorter, closed", (CUT_OFF,), Waits("body_cut", part=True)),
    Row(4, "shorter, reset", (whole(sends=CUT, then=Then.RESET),), Waits("body_cut", part=True)),
    Row(
        4, "shorter, falls silent", (whole(sends=CUT, then=Then.HANG),), Waits("read_timeout", part=True),
        net={"read_s": 0.2},
    ),
    Row(5, "more than its length", (say(answer(200, FILE, ETAG) + b"evil" * 1000, Then.KEEP),), Done()),
    Row(5, "another answer behind it", (say(answer(200, FILE, ETAG) + answer(200, b"evil"), Then.KEEP),), Done()),
    Row(6, "chunks cut off", (say(in_chunks()[:CUT]),), Waits("body_cut", part=True)),
    Row(6, "no last chunk", (chunked(tail=b"", then=Then.CLOSE),), Waits("body_cut", part=True)),
    *(
        Row(7, f"bad chunks: {what}", (chunked(body=FILE[:CUT], tail=tail, then=Then.CLOSE),), Refused("protocol_error", part=True))
        for what, tail in (
            ("size", b"zz\r\nab\r\n0\r\n\r\n"), ("negative", b"-2\r\nab\r\n0\r\n\r\n"),
            ("line ending", b"2\r\n" + FILE[CUT : CUT + 2] + b"XX0\r\n\r\n"), ("trailer", b"0\r\nno colon\r\n\r\n"),
            ("absurd", b"f" * 40 + b"\r\nab"),
        )
    ),
    *(  # The server then sends nothing more: what is not refused at once ends as read_timeout.
        Row(7, f"{what}, and silence", (chunked(body=FILE[:CUT], tail=tail, then=Then.HANG),), Refused("protocol_error", part=True))
        for what, tail in (
            ("a bare LF behind a size", b"2\nab"), ("a bare LF behind a chunk", b"2\r\nab\n"),
            ("a NUL in an extension", b"2;a\x00"), ("a CR in an extension", b"2;a\rb"),
            ("a folded trailer", b"0\r\nA: b\r\n c"), ("a bare LF behind a trailer", b"0\r\nA: b\n"),
        )
    ),
    Row(7, "a folded field of an interim answer", (say(b"HTTP/1.1 103 Early\r\nA: b\r\n c\r\n\r\n", Then.HANG),), Refused("protocol_error")),
    Row(8, "both framings", (framing("Transfer-Encoding: chunked", "Content-Length: 5"),), Refused("protocol_error")),
    *(
        Row(9, line, (framing(*line.split(" / ")),), Refused("protocol_error"))
        for line in (
            "Content-Length: 5, 5", "Content-Length: 5 / Content-Length: 6", "Content-Length: -5",
            "Content-Length: +5", "Content-Length: 0x5", "Content-Length: 1_0", "Content-Length: 5 / Content-Length: 5",
        )
    ),
    Row(9, "digits of another script", (say("HTTP/1.1 200 OK\r\nContent-Length: \u0665\r\n\r\nhello".encode()),), Refused("protocol_error")),
    Row(10, "length over the limit", (whole(sends=0, then=Then.HANG),), Refused("too_large"), plan={"max_bytes": SIZE - 1}, now=FILE[:CUT]),
    Row(10, "limit of the settings", (whole(sends=0, then=Then.HANG),), Refused("too_large"), stream={"max_bytes": SIZE - 1}),
    Row(11, "no length, past the limit", (chunked(),), Refused("too_large"), head=BLIND, plan={"max_bytes": CUT}, now=FILE[:CUT]),
    Row(11, "closed, past the limit", (to_the_end(),), Refused("too_large"), head=BLIND, plan={"max_bytes": CUT}, now=FILE[:CUT]),
    Row(12, "206 unasked", (say(answer(206, FILE, ETAG, f"Content-Range: bytes 0-{SIZE - 1}/{SIZE}")),), Refused("range_not_asked")),
    Row(13, "200 with Content-Range, once", (say(answer(200, FILE[9:], ETAG, f"Content-Range: bytes 9-{SIZE - 1}/{SIZE}")), whole()), Done()),
    Row(13, "200 with the Content-Range of a first part", (say(answer(200, FILE[:CUT], ETAG, f"Content-Range: bytes 0-{CUT - 1}/{SIZE}")), whole()), Done()),
    Row(
        13, "200 with Content-Range, always", (say(answer(200, FILE[9:], ETAG, f"Content-Range: bytes 9-{SIZE - 1}/{SIZE}")),),
        Waits("restarts_exhausted"),
    ),
    *(Row(14, f"{n}", (status(n, ETAG),), Refused("unexpected_status")) for n in (204, 205, 304)),
    *(
        Row(15, word, (whole(ETAG, f"Content-Encoding: {word}"),), Refused("content_coding"))
        for word in ("gzip", "br", "zstd", "gzip, br", "identity, gzip", "x-whatever")
    ),
    Row(15, "identity", (whole(ETAG, "Content-Encoding: identity"),), Done()),
    Row(16, "an empty file", (whole(body=b""),), Done(b""), head=head(ETAG, "Content-Length: 0"), now=b""),
    *(
        Row(17, what, (say(flood, Then.HANG),), Refused("protocol_error"))
        for what, flood in (
            ("interim answers", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000),
            ("headers", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000),
            ("one header", b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000),
        )
    ),
)  # fmt: skip


def held(number: int, does: str, told: Told, ends: Done | Refused | Waits, **more: object) -> Row:
    """A row about going on from a part under a strong ETag."""
    return Row(number, does, (told,), ends, **{"held": CUT_OFF, **more})  # type: ignore[arg-type]


GOING_ON = (
    held(18, "from where asked", part(), Done(resumed=True), ranges=(True,)),
    held(19, "starting earlier", part(shift=-1000), Done(resumed=True), ranges=(True,)),
    held(20, "starting later", part(shift=1), RESTARTED, ranges=(True, False)),
    held(21, "ending early, again and again", part(at_most=100_000), Done(resumed=True)),
    held(21, "ending within what is asked for to compare", part(at_most=40_000), Done(resumed=True)),
    held(22, "another total", part(line=lambda a, z: f"Content-Range: bytes {a}-{z}/{SIZE + 1}"), RESTARTED),
    held(23, "total unknown, known from before", part(line=lambda a, z: f"Content-Range: bytes {a}-{z}/*"), Done(resumed=True)),
    held(
        23, "total unknown, no proof", part(line=lambda a, z: f"Content-Range: bytes {a}-{z}/*"), RESTARTED,
        held=say(in_chunks()[:CUT]), head=BLIND,
    ),
    held(
        23, "total unknown, a digest", part(line=lambda a, z: f"Content-Range: bytes {a}-{z}/*"), Done(resumed=True),
        held=say(in_chunks()[:CUT]), head=BLIND, plan={"sha256": SHA256},
    ),
    *(
        held(24, what, part(line=line), RESTARTED)
        for what, line in (
            ("last before first", lambda a, z: f"Content-Range: bytes {a}-{a - 1}/{SIZE}"),
            ("total before last", lambda a, z: f"Content-Range: bytes {a}-{z}/{z}"),
            ("unknown unit", lambda a, z: f"Content-Range: pages {a}-{z}/{SIZE}"),
            ("no Content-Range", lambda a, z: ""),
            ("malformed", lambda a, z: f"Content-Range: bytes={a}-{z}/{SIZE}"),
            ("two of them", lambda a, z: f"Content-Range: bytes {a}-{z}/{SIZE}\r\nContent-Range: bytes 0-1/{SIZE}"),
            ("signed", lambda a, z: f"Content-Range: bytes +{a}-{z}/{SIZE}"),
        )
    ),
    held(25, "several ranges", part(ETAG, "Content-Type: multipart/byteranges; boundary=x"), Refused("multipart", part=True)),
    Row(25, "several ranges on 200", (whole(ETAG, "Content-Type: multipart/byteranges; boundary=x"),), Refused("multipart")),
    held(26, "longer than its range", part(sends=lambda piece: piece + b"evil"), RESTARTED),
    held(
        26, "longer than its range, chunked",
        part(ETAG, "Transfer-Encoding: chunked", sends=lambda piece: b"%x\r\n%s\r\n0\r\n\r\n" % (len(piece) + 4, piece + b"evil"), length=False),
        RESTARTED,
    ),
    held(26, "shorter than its range", part(sends=lambda piece: piece[:-1000]), Waits("body_short", part=True)),
    held(27, "no ETag", part("Server: x"), RESTARTED),
    held(27, "a weak ETag", part('ETag: W/"v1"'), RESTARTED),
    held(27, "another ETag", part('ETag: "v2"'), RESTARTED),
    held(27, "two ETags", part(ETAG, 'ETag: "v2"'), RESTARTED),
    held(28, "206 with a coding", part(ETAG, "Content-Encoding: gzip"), RESTARTED),
    held(29, "200 to a range", whole(), RESTARTED, ranges=(True,)),
    held(29, "200 to a range, another file", whole('ETag: "v2"', body=OTHER), Done(OTHER, resumed=False), now=OTHER, ranges=(True,)),
    held(
        30, "416 with what is held, no digest", to_a_range(status(416, f"Content-Range: bytes */{SIZE}")), RESTARTED,
        held=chunked(tail=b"", then=Then.CLOSE), head=BLIND,
    ),
    held(
        30, "416 with what is held, a digest", to_a_range(status(416, f"Content-Range: bytes */{SIZE}")), Done(resumed=True),
        held=chunked(tail=b"", then=Then.CLOSE), head=BLIND, plan={"sha256": SHA256},
    ),
    *(
        held(31, f"416 {line or 'without a total'}", to_a_range(status(416, *([line] if line else []))), RESTARTED)
        for line in ("", f"Content-Range: bytes */{SIZE - 1}", "Content-Range: bytes */x", "Content-Range: */300000")
    ),
    *(held(32, f"{n} to a range", to_a_range(status(n, ETAG)), RESTARTED) for n in (304, 412)),
    *(held(33, f"{n}", status(n), Refused(f"http_{n}", part=True), head=status(n)) for n in (404, 410, 451)),
    *(held(34, f"{n}", status(n), Refused(f"http_{n}", part=True), head=status(n)) for n in (401, 403)),
)  # fmt: skip

# Rows 35 on: trouble that passes, validators that say little, ways around, digests, and time.
LATER = (
    *(held(35, f"{n}", status(n), Waits(code, part=True)) for n, code in ((408, "http_408"), (425, "http_425"), (500, "http_5xx"), (503, "http_5xx"))),
    held(35, "429 without a word", status(429), Waits("http_429", part=True)),
    held(35, "429 for a week", status(429, "Retry-After: 604800"), Waits("retry_after", part=True, attempt=False, within_s=3_601.0, not_before_s=3_500.0)),
    held(35, "503 for ten minutes", status(503, "Retry-After: 600"), Waits("retry_after", part=True, attempt=False, within_s=601.0, not_before_s=500.0)),
    held(35, "502", status(502), Waits("http_5xx", part=True)),
    held(35, "504", status(504), Waits("http_5xx", part=True)),
    held(35, "reset", say(b"", Then.RESET), Waits("connection_lost", part=True)),
    held(35, "silence", say(b"", Then.HANG), Waits("read_timeout", part=True), net={"head_s": 0.3, "read_s": 0.3}),
    held(
        36, "the ETag flips, If-Range is for dates", by_turns(whole('ETag: "b"'), whole('ETag: "a"')), RESTARTED, ranges=(True,),
    ),
    held(
        37, "same ETag, other bytes, a digest", part(body=OTHER), Done(OTHER, resumed=False), now=OTHER,
        plan={"sha256": hashlib.sha256(OTHER).hexdigest()},
    ),
    held(37, "same ETag, other bytes", part(body=OTHER), Done(OTHER, resumed=False), now=OTHER),
    held(
        38, "weak ETag", part('ETag: W/"v1"'), RESTARTED, held=whole('ETag: W/"v1"', sends=CUT, then=Then.CLOSE),
        head=head('ETag: W/"v1"', LENGTH), ranges=(False,),
    ),
    held(
        38, "a date in the same second", part(NOW.replace("Date", "Last-Modified")), RESTARTED,
        held=whole(NOW, NOW.replace("Date", "Last-Modified"), sends=CUT, then=Then.CLOSE),
        head=head(NOW, NOW.replace("Date", "Last-Modified"), LENGTH), ranges=(False,),
    ),
    held(
        38, "a date long ago", part(NOW, OLD), Done(resumed=True), held=whole(NOW, OLD, sends=CUT, then=Then.CLOSE),
        head=head(NOW, OLD, LENGTH), ranges=(True,),
    ),
    held(39, "no Accept-Ranges", part(), Done(resumed=True), head=head(ETAG, LENGTH), ranges=(True,)),
    held(39, "Accept-Ranges: none", part(), RESTARTED, head=head(ETAG, LENGTH, "Accept-Ranges: none"), ranges=(False,)),
    *(held(40, f"HEAD {n}", part(), Done(resumed=True), head=status(n)) for n in (403, 405, 501)),
    held(40, "HEAD hangs", part(), Done(resumed=True), head=say(b"", Then.HANG), net={"head_s": 0.3, "read_s": 0.3}),
    Row(40, "HEAD tells another length", (whole(),), Done(), head=head(ETAG, "Content-Length: 7")),
    Row(40, "HEAD tells 404", (whole(),), Done(), head=status(404)),
    Row(41, "no Location", (status(302),), Refused("redirect_refused")),
    Row(41, "two Locations", (status(302, "Location: /a", "Location: /b"),), Refused("redirect_refused")),
    Row(41, "in circles", (status(302, "Location: /f"),), Refused("too_many_redirects")),
    Row(41, "to a file", (status(302, "Location: file:///etc/passwd"),), Refused("redirect_refused")),
    Row(
        43, "a page for a PDF", (whole(ETAG, "Content-Type: text/html", body=b"<!DOCTYPE html><p>Please log in"),),
        Refused("media_type_mismatch"), plan={"media_type": "application/pdf"}, now=PDF,
    ),
    *(
        Row(43, f"a page for {what}", (told,), Refused("media_type_mismatch"), plan=plan, now=now, head=BLIND)
        for what, told, plan, now in (
            ("a .pdf, with a length", whole(ETAG, "Content-Type: text/html", body=LOGIN), {"ext": ".pdf"}, PDF),
            ("a .zip, in chunks", chunked(ETAG, "Content-Type: text/html", body=LOGIN), {"ext": ".zip"}, FILE),
            ("a .png, closed", to_the_end(ETAG, "Content-Type: text/html", body=LOGIN), {"ext": ".png"}, FILE),
            ("what it declares as video", whole(ETAG, "Content-Type: video/mp4", body=LOGIN), {}, FILE),
        )
    ),
    Row(43, "a page that was asked for", (whole(ETAG, "Content-Type: text/html", body=LOGIN),), Done(LOGIN), plan={"ext": ".html"}, head=BLIND),
    Row(44, "Content-Digest right", (whole(ETAG, f"Content-Digest: sha-256=:{sha('sha256', FILE)}:"),), Done()),
    Row(44, "Content-Digest wrong", (whole(ETAG, f"Content-Digest: sha-256=:{sha('sha256', OTHER)}:"),), Waits("digest_mismatch")),
    Row(44, "Content-Digest wrong, sha-512", (whole(ETAG, f"Content-Digest: sha-512=:{sha('sha512', OTHER)}:"),), Waits("digest_mismatch")),
    held(
        44, "Content-Digest of a range wrong",
        lambda asked: part(ETAG, f"Content-Digest: sha-256=:{sha('sha256', FILE[asked_from(asked) or 0:])}:", sends=lambda p: p[:-1] + b"!")(asked),
        RESTARTED,
    ),
    Row(45, "Repr-Digest right, sha-512", (whole(ETAG, f"Repr-Digest: sha-512=:{sha('sha512', FILE)}:"),), Done()),
    Row(45, "Repr-Digest wrong", (whole(ETAG, f"Repr-Digest: sha-256=:{sha('sha256', OTHER)}:"),), Waits("digest_mismatch")),
    Row(45, "Repr-Digest wrong, sha-512", (whole(ETAG, f"Repr-Digest: sha-512=:{sha('sha512', OTHER)}:"),), Waits("digest_mismatch")),
    held(45, "Repr-Digest wrong on a range", part(ETAG, f"Repr-Digest: sha-256=:{sha('sha256', OTHER)}:"), RESTARTED),
    Row(46, "x-goog-hash wrong", (whole(ETAG, f"x-goog-hash: md5={sha('md5', OTHER)}"),), Waits("digest_mismatch")),
    Row(46, "x-amz-checksum-sha256 wrong", (whole(ETAG, f"x-amz-checksum-sha256: {sha('sha256', OTHER)}"),), Waits("digest_mismatch")),
    Row(46, "Content-MD5 wrong", (whole(ETAG, f"Content-MD5: {sha('md5', OTHER)}"),), Waits("digest_mismatch")),
    Row(46, "x-goog-hash right", (whole(ETAG, f"x-goog-hash: crc32c=AAAAAA==,md5={sha('md5', FILE)}"),), Done()),
    Row(46, "a composite checksum is none", (whole(ETAG, f"x-amz-checksum-sha256: {sha('sha256', OTHER)}-3"),), Done()),
    Row(46, "an S3 ETag is no digest", (whole(f'ETag: "{hashlib.md5(OTHER).hexdigest()}"', RANGES),), Done()),
    Row(
        47, "drips", (say(answer(200, b"", ETAG, LENGTH, length=False), drip=b"x", every_s=0.005),), Waits("too_slow", part=True),
        stream={"min_rate_bytes_s": 1e6, "min_rate_window_s": 0.2}, now=b"x" * SIZE,
    ),
    Row(
        47, "drips for ever", (say(answer(200, b"", ETAG, LENGTH, length=False), drip=b"x", every_s=0.005),), Waits("deadline", part=True),
        stream={"deadline_s": 0.3}, now=b"x" * SIZE,
    ),
    held(47, "drips as 206 of a byte each", part(at_most=1), Waits("answers_too_small", part=True)),
    held(
        47, "drips as 206 of a byte each, slower than allowed", part(at_most=1), Waits("too_slow", part=True),
        stream={"min_rate_bytes_s": 1e6, "min_rate_window_s": 0.2, "requests_per_mib": 1 << 20},
    ),
    held(47, "206 of 64 KiB each", part(at_most=64 << 10), Done(resumed=True)),
    Row(47, "drips its head", (say(b"HTTP/1.1 200 OK\r\nX: ", drip=b"y", every_s=0.005),), Waits("read_timeout"), net={"head_s": 0.3}),
    *(
        Row(51, line.decode(), (say(line + b" 200 OK\r\nContent-Length: 1\r\n\r\n", Then.HANG),), Refused("protocol_error"))
        for line in (b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/11", b"HTTP", b"ICY", b"http/1.1")
    ),
    Row(53, "more than the volume could hold", (NEVER,), Refused("quota_exceeded"), head=BLIND),
    Row(53, "and HEAD says so too", (NEVER,), Refused("quota_exceeded"), head=head(ETAG, RANGES, f"Content-Length: {1 << 62}")),
    Row(53, "by the word of HEAD alone", (whole(),), Done(), head=head(ETAG, RANGES, f"Content-Length: {1 << 62}")),
    Row(54, "200 with the full Content-Range", (whole(ETAG, FULL_RANGE),), Done()),
    Row(54, "200 with the full Content-Range, chunked", (chunked(ETAG, FULL_RANGE),), Done(), head=BLIND),
    Row(54, "200 with the full Content-Range, closed too early", (to_the_end(ETAG, FULL_RANGE, body=FILE[:CUT]),), Waits("body_short", part=True), head=BLIND),
    held(54, "200 with the full Content-Range to a range", whole(ETAG, FULL_RANGE), RESTARTED, ranges=(True,)),
    held(54, "200 with the full Content-Range to a range, another file", whole('ETag: "v2"', FULL_RANGE, body=OTHER), Done(OTHER, resumed=False), now=OTHER, ranges=(True,)),
)  # fmt: skip

ROWS = (*WHOLE, *GOING_ON, *LATER)

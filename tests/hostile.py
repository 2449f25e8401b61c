"""HTTP.md's rows as servers play them: what each sends, and how the job that meets it has to end.

The table itself is in hostile_rows.py; here are the words it is written in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.origin import Asked, Say, Script, Then, answer

FILE = random.Random(3).randbytes(900_000)
CUT = 150_000
"""Where the first answer breaks off in rows that are about going on."""
OTHER = random.Random(4).randbytes(900_000)
ETAG = 'ETag: "v1"'
RANGES = "Accept-Ranges: bytes"
OLD, NOW = "Last-Modified: Mon, 01 Jun 2020 10:00:00 GMT", "Date: Mon, 01 Jun 2026 10:00:00 GMT"

Told = Callable[[Asked], Say]


# ── how it ends ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Done:
    """The job completes with these bytes; `resumed`: are the held ones among them?"""

    body: bytes = FILE
    resumed: bool | None = None
    unproven: bool = False


@dataclass(frozen=True)
class Refused:
    """The run fails for good. `part`: what is held stays for somebody who tries again by hand."""

    code: str
    part: bool = False


@dataclass(frozen=True)
class Waits:
    """The run fails and another is due. `part`: are bytes kept for it?"""

    code: str
    part: bool = False
    attempt: bool = True
    within_s: float = 3_700.0
    not_before_s: float = 0.0


End = Done | Refused | Waits


@dataclass(frozen=True)
class Row:
    number: int
    does: str
    get: tuple[Told, ...]
    """What GETs are told, one after another; the last from then on."""
    ends: End
    head: Told | None = None
    held: Told | None = None
    """What the GET of a first run was told, which left a part."""
    now: bytes = FILE
    """The file as an honest server would have it, to see that the job can go on."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    stream: Mapping[str, Any] = field(default_factory=dict)
    net: Mapping[str, Any] = field(default_factory=dict)
    ranges: tuple[bool, ...] | None = None
    """Of each GET of the run: did it ask for a range?"""

    @property
    def id(self) -> str:
        return f"{self.number:02d} {self.does}"


# ── what servers say ──────────────────────────────────────────────────────────────────────────────


def say(data: bytes, then: Then = Then.CLOSE, **more: Any) -> Told:
    return lambda _asked: Say(data, then, **more)


def head(*lines: str, status: int = 200) -> Told:
    """An answer to HEAD with exactly these lines."""
    return say(answer(status, b"", *lines, length=False), Then.KEEP)


def whole(*lines: str, body: bytes = FILE, sends: int | None = None, then: Then = Then.KEEP) -> Told:
    """200 with a length, and the first `sends` bytes of the body."""
    data = answer(200, body, *(lines or (ETAG, RANGES)))
    return say(data if sends is None else data[: len(data) - len(body) + sends], then)


def chunked(*lines: str, body: bytes = FILE, tail: bytes = b"0\r\n\r\n", then: Then = Then.KEEP) -> Told:
    return say(in_chunks(*lines, body=body, tail=tail), then)


def in_chunks(*lines: str, body: bytes = FILE, tail: bytes = b"0\r\n\r\n") -> bytes:
    start = answer(200, b"", *(lines or (ETAG, RANGES)), "Transfer-Encoding: chunked", length=False)
    pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)]
    return start + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + tail


def to_the_end(*lines: str, body: bytes = FILE) -> Told:
    """200 that ends by closing."""
    return say(answer(200, body, *(lines or (ETAG,)), length=False))


def status(number: int, *lines: str) -> Told:
    return say(answer(number, b"", *lines), Then.KEEP)


def asked_from(asked: Asked) -> int | None:
    """Where the range begins that was asked for."""
    value = asked.headers.get("range")
    return None if value is None else int(value.removeprefix("bytes=").partition("-")[0])


def asked_to(asked: Asked, body: bytes) -> int:
    value = asked.headers.get("range", "").partition("-")[2]
    return min(int(value), len(body) - 1) if value else len(body) - 1


def part(
    *lines: str,
    body: bytes = FILE,
    shift: int = 0,
    sends: Callable[[bytes], bytes] = lambda piece: piece,
    at_most: int | None = None,
    line: Callable[[int, int], str] | None = None,
    length: bool = True,
    then: Then = Then.KEEP,
) -> Told:
    """206 to a range, wrong where it is told to be; an honest 200 to anything else."""

    def script(asked: Asked) -> Say:
        first = asked_from(asked)
        if first is None:
            return whole(body=body)(asked)
        first += shift
        last = asked_to(asked, body)
        if at_most is not None:
            last = min(last, first + at_most - 1)
        named = line(first, last) if line else f"Content-Range: bytes {first}-{last}/{len(body)}"
        piece = body[first : last + 1]
        data = answer(206, sends(piece), *(lines or (ETAG,)), *([named] if named else []), length=length)
        return Say(data, then)

    return script


def to_a_range(told: Told, body: bytes = FILE) -> Told:
    """This to a range; an honest 200 to anything else."""
    return lambda asked: told(asked) if asked_from(asked) is not None else whole(body=body)(asked)


def honest(body: bytes = FILE, *lines: str) -> Script:
    """A server that does everything right."""
    lines = lines or (f'ETag: "{len(body)}-{body[:4].hex()}"', RANGES)
    get = part(*lines, body=body)

    def script(asked: Asked) -> Say:
        if asked.method == "HEAD":
            return Say(answer(200, b"", *lines, f"Content-Length: {len(body)}", length=False))
        holds = asked.headers.get("if-range") in (None, lines[0].partition(": ")[2])
        if asked_from(asked) is not None and holds:
            return get(asked)
        return Say(answer(200, body, *lines))

    return script


def play(row: Row, gets: tuple[Told, ...]) -> Script:
    """One script for a path: HEADs and GETs are told apart, and GETs are counted."""
    told = 0

    def script(asked: Asked) -> Say:
        nonlocal told
        if asked.method == "HEAD":
            return (row.head or head(ETAG, RANGES, f"Content-Length: {len(FILE)}"))(asked)
        told += 1
        return gets[min(told, len(gets)) - 1](asked)

    return script

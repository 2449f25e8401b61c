"""What is written beside a part: whose it is, what it is of, and which of its bytes are vouched for.

Its text is untrusted: whatever is not exactly what `dump` and `note` write vouches for nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

_VERSION = 1
_LISTS = ("checkpoints", "pieces")
_LAST_KEPT = 4
MAX_BYTES = 4 << 20
"""One of a file of 2 TiB has three quarters of that."""
MAX_FENCE = (1 << 63) - 1
_PER_LIST, _FEW = 64, 16
"""Each list of ours holds a digest. Millions of empty ones would take seconds to be read, and then be refused."""
_MAX_SIZE = 10**30
"""What a server may call the length of a file has no more digits."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_JOB = re.compile(r"[0-9A-Za-z_.-]{1,64}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_FIELD = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]{0,1024}\Z")
"""What may stand in a header and in the ledger."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The hash of everything before `offset`."""

    offset: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Piece:
    """The hash of the bytes from `start` to before `end`, which came ahead of those in front of them."""

    start: int
    end: int
    sha256: str


@dataclass(slots=True)
class Sidecar:
    """`inode` ties it to one file, so that a swapped part is noticed."""

    job_id: str
    fence: int
    inode: int
    final_url_sha256: str
    etag: str | None
    last_modified: str | None
    date: str | None
    total: int | None
    complete: bool
    checkpoints: list[Checkpoint]
    pieces: list[Piece] = field(default_factory=list)
    promised: str | None = None
    unproven: bool = False
    """When it was complete, nothing but the end of the connection said so; all of it is that, or nothing of it."""

    def forget_promise(self) -> None:
        """Where no front is left, nothing is that was joined to it; and pieces of whoever it was go as well."""
        if self.promised is not None and not self.checkpoints:
            self.promised, self.pieces = None, []

    def dump(self) -> bytes:
        body = {name: getattr(self, name) for name in self.__slots__ if name not in _LISTS}
        body["checkpoints"] = [[c.offset, c.sha256] for c in self.checkpoints]
        body["pieces"] = [[p.start, p.end, p.sha256] for p in self.pieces]
        text = json.dumps({"v": _VERSION, **body}, sort_keys=True)
        return json.dumps({"body": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode() + b"\n"

    def note(self, mark: Checkpoint) -> bytes:
        """A line that adds a checkpoint to what was dumped."""
        return f"{mark.offset} {mark.sha256} {_check(mark, self.inode)}\n".encode()

    @staticmethod
    def load(data: bytes) -> Sidecar | None:
        """None for anything that is not whole: a torn sidecar vouches for nothing."""
        try:
            whole, *notes = data.split(b"\n")
            if whole.count(b"[") + whole.count(b"{") > _FEW + len(whole) // _PER_LIST:
                return None
            outer = _json(whole)
            text: str = outer["body"]
            if hashlib.sha256(text.encode()).hexdigest() != outer["sha256"]:
                return None
            body = _json(text)
            if body.pop("v") != _VERSION:
                return None
            body.pop("imprint", None)  # of the release before
            body["checkpoints"] = [Checkpoint(at, digest) for at, digest in body["checkpoints"]]
            body["pieces"] = [Piece(at, end, digest) for at, end, digest in body.get("pieces", [])]
            side = Sidecar(**body)
            if not _is_sound(side):
                return None
            side.checkpoints += _noted(notes, side.inode, side.checkpoints[-1].offset if side.checkpoints else 0)
            return side
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def read(where: int, name: str) -> Sidecar | None:
    """That of a folder's handle; None for what is not there, is not to be read, is too long, or is no plain file."""
    try:
        if not stat.S_ISREG(os.stat(name, dir_fd=where, follow_symlinks=False).st_mode):
            return None
        fd = os.open(name, _READ, dir_fd=where)
    except OSError:
        return None
    try:
        # A file by now as well: what is no file may go on without an end.
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            return None
        return Sidecar.load(os.read(fd, MAX_BYTES))
    except OSError:
        return None
    finally:
        os.close(fd)


def _json(text: str | bytes) -> dict[str, Any]:
    found = json.loads(text, parse_float=_refused, parse_constant=_refused)
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found


def _refused(word: str) -> object:
    raise ValueError(f"no number of ours: {word[:20]}")


def _is_sound(side: Sidecar) -> bool:
    """Has each field a value that we could have written? What passes goes into the ledger, and into requests."""
    marks, pieces = side.checkpoints, side.pieces
    return (
        _is_text(_JOB, side.job_id)
        and _is_count(side.fence, MAX_FENCE)
        and _is_count(side.inode)
        and _is_text(_FIELD, side.final_url_sha256)
        and all(value is None or _is_text(_FIELD, value) for value in (side.etag, side.last_modified, side.date))
        and (side.total is None or _is_count(side.total))
        and (side.promised is None or _is_text(_SHA256, side.promised))
        and type(side.complete) is bool
        and type(side.unproven) is bool
        and all(_is_count(mark.offset) and _is_text(_SHA256, mark.sha256) for mark in marks)
        and all(before.offset < mark.offset for before, mark in pairwise(marks))
        and all(_is_count(one.start) and _is_count(one.end) and one.start < one.end for one in pieces)
        and all(_is_text(_SHA256, one.sha256) for one in pieces)
        # Each is read to be believed: of one that is there twice, or thousands of times, nothing is.
        and all(before.end <= one.start for before, one in pairwise(pieces))
    )


def _is_text(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None


def _is_count(value: object, most: int = _MAX_SIZE) -> bool:
    return type(value) is int and 0 <= value <= most


def _check(mark: Checkpoint, inode: int) -> str:
    return hashlib.sha256(f"{mark.offset} {mark.sha256} {inode}".encode()).hexdigest()[:16]


def _noted(lines: list[bytes], inode: int, last: int) -> list[Checkpoint]:
    """The checkpoints that were added, up to the first line that is not whole."""
    found: list[Checkpoint] = []
    for line in lines:
        words = line.decode("ascii").split(" ") if line.isascii() else []
        if len(words) != 3 or not words[0].isdecimal() or not _is_text(_SHA256, words[1]):
            break
        mark = Checkpoint(int(words[0]), words[1])
        if words[2] != _check(mark, inode) or not last < mark.offset <= _MAX_SIZE:
            break
        found.append(mark)
        last = mark.offset
    return found


def thinned(marks: list[Checkpoint], apart: int) -> list[Checkpoint]:
    """Keep one mark per so many bytes and the last few, so that a sidecar stays small."""
    old, last = [], -apart
    for mark in marks[:-_LAST_KEPT]:
        if mark.offset - last >= apart:
            old.append(mark)
            last = mark.offset
    return [*old, *marks[-_LAST_KEPT:]]


def add(marks: list[Checkpoint], mark: Checkpoint, apart: int) -> Checkpoint | None:
    """Append to thinned marks and keep them so; answer the one that went. Never looks at all of them."""
    marks.append(mark)
    at = len(marks) - _LAST_KEPT - 2
    if at > 0 and marks[at].offset - marks[at - 1].offset < apart:
        return marks.pop(at)
    return None

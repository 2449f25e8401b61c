"""What is written beside a part: whose it is, what it is of, and which of its bytes are vouched for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from dlpipe.store import imprint
from dlpipe.store.imprint import Imprint

_VERSION = 1
_LISTS = ("checkpoints", "pieces")
_LAST_KEPT = 4


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
    imprint: Imprint | None = None
    """How the kernel saw the whole file when it was durable."""

    def forget_promise(self) -> None:
        """Where no front is left, nothing is that was joined to it; and pieces of whoever it was go as well."""
        if self.promised is not None and not self.checkpoints:
            self.promised, self.pieces = None, []

    def dump(self) -> bytes:
        body = {name: getattr(self, name) for name in self.__slots__ if name not in _LISTS}
        body["checkpoints"] = [[c.offset, c.sha256] for c in self.checkpoints]
        body["pieces"] = [[p.start, p.end, p.sha256] for p in self.pieces]
        body["imprint"] = self.imprint.dump() if self.imprint else None
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
            outer = json.loads(whole)
            text: str = outer["body"]
            if hashlib.sha256(text.encode()).hexdigest() != outer["sha256"]:
                return None
            body: dict[str, Any] = json.loads(text)
            if body.pop("v") != _VERSION:
                return None
            body["checkpoints"] = [Checkpoint(int(at), str(digest)) for at, digest in body["checkpoints"]]
            body["pieces"] = [Piece(int(at), int(end), str(digest)) for at, end, digest in body.get("pieces", [])]
            body["imprint"] = imprint.load(body.get("imprint"))
            side = Sidecar(**body)
            side.checkpoints += _noted(notes, side.inode, side.checkpoints[-1].offset if side.checkpoints else 0)
            return side
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def _check(mark: Checkpoint, inode: int) -> str:
    return hashlib.sha256(f"{mark.offset} {mark.sha256} {inode}".encode()).hexdigest()[:16]


def _noted(lines: list[bytes], inode: int, last: int) -> list[Checkpoint]:
    """The checkpoints that were added, up to the first line that is not whole."""
    found: list[Checkpoint] = []
    for line in lines:
        words = line.decode("ascii").split(" ") if line.isascii() else []
        if len(words) != 3 or not words[0].isdecimal():
            break
        mark = Checkpoint(int(words[0]), words[1])
        if words[2] != _check(mark, inode) or mark.offset <= last:
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

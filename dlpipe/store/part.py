"""One part under its claim: the bytes that come, the hash that follows them, and what the sidecar vouches for.

A part is thrown away by unlinking it, never by cutting it: a writer that was stopped and wakes up then
writes into a file that nobody reads. The size of a part says nothing; what the sidecar lists counts, and
it counts only after the bytes have been hashed again.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import Retryable
from dlpipe.core.remote import PartFacts, RemoteFacts
from dlpipe.store import behind, early, imprint
from dlpipe.store.behind import BLOCK_BYTES, Behind
from dlpipe.store.early import Early
from dlpipe.store.folders import READ_BYTES, as_failure, disk_errors
from dlpipe.store.imprint import Imprint
from dlpipe.store.partfile import PartFile
from dlpipe.store.preallocate import preallocate
from dlpipe.store.sidecar import Checkpoint, Piece, add, thinned

VOUCH_BYTES = 256 << 10
"""Of what is hashed as it comes, so much is worth a line in the sidecar; of what comes in a ring of blocks, each block.
A kill costs the blocks that are on their way, hashed or not, and what is compared of earlier ones: less than 1 MiB."""
LARGE_BYTES = 512 << 20
LARGE_BLOCK_BYTES = 1 << 20
"""A file of that size comes in larger blocks, as each costs a processor the same whatever it holds. By a kill it may
lose four times as much, which is still less than a hundredth of it."""
SPARSE_BYTES = 64 << 20
DISK_BLOCK_BYTES = 512
"""What st_blocks counts, whatever the file system's own blocks are."""
SLACK_BYTES = 1 << 20
"""A file may take this much more room than it has bytes: file systems round up."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """From which size on a file is treated in which way; None: never."""

    preallocate: int | None
    uncached: int | None


class LocalPart(PartFile):
    def __init__(self, path: Path, where: int, slug: str, job_id: str, fence: int, sizes: Sizes) -> None:
        super().__init__(where, slug, job_id, fence)
        self._path = path
        self._sizes = sizes
        self._offset = 0
        self._hashed = 0
        """How far the hash has come; behind the offset only while a thread is at it."""
        self._early = Early()
        self._behind: Behind | None = None
        self._first: memoryview | None = None
        self._is_more = False
        """A whole block has come, and more may be behind it."""
        self._digest = hashlib.sha256()
        self._reached = 0, self._digest
        """How far the hash has come and how it stood there, put down by who hashes."""
        self._vouching = threading.Lock()
        self._states: dict[int, Any] = {}
        """The hash as it stood at checkpoints of this claim, by their offset, to rewind to."""
        self._imprint: Imprint | None = None
        """Of the whole file, taken by this claim. It is not on the disk, where others might write one."""

    # ── what is held ──────────────────────────────────────────────────────────────────────────────

    @property
    def facts(self) -> PartFacts | None:
        side = self._side
        if side is None or not side.checkpoints:
            return None
        return PartFacts(
            good=side.checkpoints[-1].offset,
            final_url_sha256=side.final_url_sha256,
            etag=side.etag,
            last_modified=side.last_modified,
            date=side.date,
            total=side.total,
            complete=side.complete,
            promised=side.promised,
            length_unproven=side.unproven,
        )

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def sha256(self) -> str:
        self._settle()
        return self._digest.hexdigest()

    @property
    def path(self) -> str:
        return str(self._path / self._name)

    def fileno(self) -> int:
        return self._fd

    def begin(self, remote: RemoteFacts) -> None:
        self._settle()
        with disk_errors():
            if not self._is_new:
                self._replace()
            self._stand_at(0, hashlib.sha256())
            self._states = {}
            self._side = self._new_side(remote, os.fstat(self._fd).st_ino)
            self._side_waits = True
            if self._behind is not None and self._behind.block_bytes != self._block_bytes():
                self._behind.close()  # another server has a file of another size
                self._behind = None
            self._preallocate(remote.content_length)

    def _preallocate(self, total: int | None) -> None:
        least = self._sizes.preallocate
        if total is not None and least is not None and total >= least:
            preallocate(self._fd, total)

    @property
    def begun(self) -> RemoteFacts | None:
        side = self._side
        if side is None or self._sealed or not (side.checkpoints or side.pieces):
            return None
        return RemoteFacts(
            200,
            side.final_url_sha256,
            etag=side.etag,
            last_modified=side.last_modified,
            date=side.date,
            content_length=side.total,
        )

    def verify(self, upto: int) -> int:
        self._settle()
        with disk_errors():
            side = self._side
            self._stand_at(0, hashlib.sha256())
            self._states = {}
            kept: list[Checkpoint] = []
            right, right_digest = 0, hashlib.sha256()
            for mark in side.checkpoints if side else []:
                if mark.offset > upto or not self._hash_to(mark.offset):
                    break
                if self._digest.hexdigest() != mark.sha256:
                    break
                right, right_digest = mark.offset, self._digest.copy()
                kept.append(mark)
                self._states[mark.offset] = right_digest.copy()
            if self._sealed and not (side is not None and right == upto == side.total):
                # Published bytes may be under this name too: they are taken whole, or not at all.
                right, right_digest, kept, self._states = 0, hashlib.sha256(), [], {}
            self._stand_at(right, right_digest)
            if side is not None:
                side.checkpoints, side.complete = thinned(kept, SPARSE_BYTES), False
                side.forget_promise()
                self._write_side()
            return right

    def _hash_to(self, offset: int) -> bool:
        while self._offset < offset:
            block = os.pread(self._fd, min(READ_BYTES, offset - self._offset), self._offset)
            if not block:
                return False
            self._digest.update(block)
            self._offset += len(block)
            self._hashed = self._offset
        return True

    def _stand_at(self, offset: int, digest: Any) -> None:
        self._offset = self._hashed = offset
        self._early.stand_at(offset)
        self._digest = digest
        self._reached = 0, digest

    def rewind(self, offset: int) -> int:
        self._settle()
        self._states = {at: state for at, state in self._states.items() if at <= offset}
        self._close_side()  # what is noted in it is no longer so: the next checkpoint writes it anew
        if self._side is not None:
            self._side.checkpoints = [c for c in self._side.checkpoints if c.offset <= offset]
            self._side.pieces = []
            self._side.forget_promise()
            with disk_errors():  # now, as the next answer may never come: the next run is not to go on from these bytes
                self._write_side()
        if self._states:
            furthest = max(self._states)
            self._stand_at(furthest, self._states[furthest].copy())
        else:
            self._stand_at(0, hashlib.sha256())
        with disk_errors():
            self._hash_to(offset)
        return self._offset

    def promise(self, sha256: str) -> None:
        self._settle()
        if self._side is not None and self._side.promised != sha256:
            self._side.promised = sha256
            with disk_errors():
                self._write_side()

    # ── pieces ahead of the offset ────────────────────────────────────────────────────────────────

    def verify_pieces(self) -> list[tuple[int, int]]:
        side = self._side
        if side is None:
            return []
        with disk_errors():
            side.pieces = [piece for piece in side.pieces if piece.start >= self._offset and self._is_right(piece)]
            self._write_side()
        return [(piece.start, piece.end) for piece in side.pieces]

    def _is_right(self, piece: Piece) -> bool:
        digest, at = hashlib.sha256(), piece.start
        while at < piece.end:
            block = os.pread(self._fd, min(READ_BYTES, piece.end - at), at)
            if not block:
                return False
            digest.update(block)
            at += len(block)
        return digest.hexdigest() == piece.sha256

    def put(self, offset: int, data: bytes | memoryview) -> None:
        if self._sealed:
            raise part_damaged("the part was published already, so nothing may be added to it")
        self._is_new = False
        with disk_errors():
            _write_all(self._fd, data, offset)

    def keep(self, start: int, end: int, sha256: str) -> None:
        self._settle()
        side = self._side
        if side is None:
            return
        with disk_errors():
            side.pieces = sorted([*side.pieces, Piece(start, end, sha256)], key=lambda piece: piece.start)
            before = self._offset
            for piece in side.pieces:
                if piece.start <= self._offset < piece.end and not self._hash_to(piece.end):
                    raise part_damaged("bytes that were written are not there")
            crash_point("part.keeping")
            if self._offset > before:
                self._checkpoint()
            else:
                self._write_side()

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def buffer(self) -> memoryview:
        if self._behind is None:
            size = self._block_bytes()
            if not self._is_more and size == BLOCK_BYTES:
                # What fits into one block is hashed here: a thread would take longer to start.
                self._first = self._first or behind.spare_block()
                return self._first
            self._behind = Behind(self._hash, self._vouch_for_hashed, size)
        block = self._behind.buffer()
        # Here, as whoever hashes has less time. What is lent again was hashed: no more than all blocks can be lost.
        self._vouch_for_hashed()
        return block

    def _block_bytes(self) -> int:
        total = self._side.total if self._side else None
        return LARGE_BLOCK_BYTES if total is not None and total >= LARGE_BYTES else BLOCK_BYTES

    def write(self, data: bytes | memoryview) -> None:
        if self._sealed and len(data):
            raise part_damaged("the part was published already, so nothing may be added to it")
        self._is_new, self._is_more = False, self._is_more or len(data) >= BLOCK_BYTES
        try:
            _write_all(self._fd, data, self._offset)
        except OSError as error:
            raise as_failure(error) from error
        self._offset += len(data)
        thread = self._behind
        if thread is None or not (isinstance(data, memoryview) and thread.hand_over(data)):
            if thread is not None:
                thread.settle()
            self._hash(data)
        if self._offset - self._early.stands_at >= early.WINDOW_BYTES:
            with disk_errors():
                self._early.came_to(self._fd, self._offset, drop=self._is_large())

    def _is_large(self) -> bool:
        least, total = self._sizes.uncached, self._side.total if self._side else None
        return least is not None and max(total or 0, self._offset) >= least

    def _hash(self, data: bytes | memoryview) -> None:
        """On one thread or the other, never on both at once."""
        self._digest.update(data)
        self._hashed += len(data)
        self._reached = self._hashed, self._digest.copy()
        if self._behind is None:
            self._vouch_for_hashed(VOUCH_BYTES)

    def _vouch_for_hashed(self, least: int = 1) -> None:
        """By who writes, each time round, or by who hashes, when nothing has come for a moment."""
        with self._vouching:
            marks = self._side.checkpoints if self._side else ()
            reached, digest = self._reached
            if reached - (marks[-1].offset if marks else 0) >= least:
                self._checkpoint(reached, digest)

    def _settle(self) -> None:
        """Wait until the hash has come as far as the offset, and nobody else is at the file."""
        if self._behind is not None:
            self._behind.settle()
        with disk_errors():
            self._early.settle()

    def flush(self) -> None:
        self._settle()
        if self._offset:  # of nothing there is nothing to vouch for
            self._checkpoint()

    def close(self) -> None:
        if self._behind is not None:
            self._behind.close()
            self._behind = None
            with suppress(Exception):  # what came is hashed; whoever goes on from here would fetch it again
                self._vouch_for_hashed()
        self._early.close()
        if self._first is not None:
            behind.give_back(self._first)
            self._first = None
        super().close()

    def _checkpoint(self, at: int | None = None, digest: Any = None) -> None:
        """Vouch for what is hashed by now; or for what was, while a thread goes on hashing."""
        side = self._side
        mark = self._vouch(at, digest)
        if side is None or mark is None:
            return
        try:
            if side.pieces:
                side.pieces = [piece for piece in side.pieces if piece.start >= mark.offset]
                self._write_side()
            else:
                self._note_mark(mark)
        except OSError as error:
            raise as_failure(error) from error

    def _vouch(self, at: int | None = None, digest: Any = None) -> Checkpoint | None:
        """In memory; None when the sidecar vouches for all of it already."""
        side, at = self._side, self._hashed if at is None else at
        if side is None or (side.checkpoints and side.checkpoints[-1].offset >= at):
            return None
        digest = digest or self._digest.copy()
        mark = Checkpoint(at, digest.hexdigest())
        if (gone := add(side.checkpoints, mark, SPARSE_BYTES)) is not None:
            self._states.pop(gone.offset, None)
        self._states[at] = digest
        return mark

    def finish(self, *, length_unproven: bool = False) -> tuple[str, int, int]:
        self._settle()
        if not self._side_waits:  # else it is written below, once the bytes last
            self._checkpoint()
        with disk_errors():
            self._check_ours()
            found = os.fstat(self._fd)
            spare = not self._sealed and found.st_blocks * DISK_BLOCK_BYTES > self._offset + SLACK_BYTES
            if spare or found.st_size != self._offset:
                # Left past the end: bytes of an attempt that got further, or blocks set aside for nothing.
                os.ftruncate(self._fd, self._offset)
            began = time.monotonic()
            os.fsync(self._fd)
            took = round((time.monotonic() - began) * 1000)
            crash_point("part.settled")
            if self._side is not None:
                self._vouch()
                self._side.complete, self._side.total = True, self._offset
                self._side.unproven = length_unproven
                self._write_side()
            self._imprint = imprint.take(self._fd, self._digest.hexdigest())
            return self._digest.hexdigest(), self._offset, took

    def is_as_hashed(self, sha256: str, size: int) -> bool:
        self._settle()
        found = self._imprint
        with disk_errors():
            return (
                found is not None and (found.sha256, found.size) == (sha256, size) and imprint.stands(found, self._fd)
            )

    def read(self, offset: int, size: int) -> bytes:
        with disk_errors():
            return os.pread(self._fd, max(0, min(size, self._offset - offset)), offset)

    def remove(self) -> None:
        with suppress(Exception):  # of what is thrown away it does not matter how far it came
            self._settle()
        with disk_errors():
            if self._is_at_name(self._fd):
                self._unlink()
            else:
                self._unlink_left_sidecar()


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    done = os.pwrite(fd, data, offset) if data else 0
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], offset + done)


def part_damaged(message: str) -> Retryable:
    return Retryable(message, code="part_damaged", hint="Nothing to do: it is fetched again.")

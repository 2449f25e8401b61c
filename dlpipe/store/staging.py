"""Bytes on their way: a part file, the sidecar that vouches for them, and the lock that guards both.

A part is thrown away by unlinking it, never by cutting it: a writer that was stopped and wakes up then
writes into a file that nobody reads. The size of a part says nothing; what the sidecar lists counts, and
it counts only after the bytes have been hashed again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlpipe.core.errors import LeaseLost, Postponed, Retryable
from dlpipe.core.layout import check_id, part_slug
from dlpipe.core.remote import PartFacts, RemoteFacts
from dlpipe.store.folders import READ_BYTES, disk_errors, folder

STAGING = ".staging"
CHECKPOINT_BYTES = 1 << 20
SPARSE_BYTES = 64 << 20
BUSY_AGAIN_S = 5.0
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    offset: int
    sha256: str


@dataclass(slots=True)
class _Sidecar:
    """What is written beside a part; `inode` ties it to one file, so that a swapped part is noticed."""

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

    def dump(self) -> bytes:
        body = {name: getattr(self, name) for name in self.__slots__ if name != "checkpoints"}
        body["checkpoints"] = [[c.offset, c.sha256] for c in self.checkpoints]
        text = json.dumps({"v": _VERSION, **body}, sort_keys=True)
        return json.dumps({"body": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()

    @staticmethod
    def load(data: bytes) -> _Sidecar | None:
        """None for anything that is not whole: a torn sidecar vouches for nothing."""
        try:
            outer = json.loads(data)
            text: str = outer["body"]
            if hashlib.sha256(text.encode()).hexdigest() != outer["sha256"]:
                return None
            body: dict[str, Any] = json.loads(text)
            if body.pop("v") != _VERSION:
                return None
            body["checkpoints"] = [Checkpoint(int(at), str(digest)) for at, digest in body["checkpoints"]]
            return _Sidecar(**body)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


class LocalStaging:
    """Parts under `<root>/.staging/<tenant>/`, on the file system of the final root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def claim(self, tenant: str, canonical_url: str, job_id: str, fence: int) -> Iterator[LocalPart]:
        slug = part_slug(tenant, canonical_url)
        with ExitStack() as stack:
            with disk_errors():  # not around the body: what goes wrong there need not be the disk's fault
                where = stack.enter_context(folder(self._root, (STAGING, check_id("tenant", tenant)), create=True))
                part = LocalPart(self._root / STAGING / tenant, where, slug, job_id, fence)
                stack.callback(part.close)
                part.lock()
            yield part


class LocalPart:
    def __init__(self, path: Path, where: int, slug: str, job_id: str, fence: int) -> None:
        self._path = path
        self._where = where
        self._name = f"{slug}.part"
        self._side_name = f"{slug}.json"
        self._job_id = job_id
        self._fence = fence
        self._fd = -1
        self._sealed = False
        """Its file has, or was about to get, its final name: it is not written to any more."""
        self._side: _Sidecar | None = None
        self._offset = 0
        self._digest = hashlib.sha256()
        self._marks: list[tuple[Checkpoint, Any]] = []
        """Checkpoints of this claim with the hash as it stood there, to rewind to."""

    # ── the lock ──────────────────────────────────────────────────────────────────────────────────

    def lock(self) -> None:
        while True:
            fd = self._open()
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                self._overtake_or_raise()
                continue
            if self._is_at_name(fd):
                self._fd = fd
                break
            os.close(fd)  # unlinked or replaced between our opening and locking it
        side = self._read_side()
        if side is not None and side.job_id == self._job_id and side.fence > self._fence:
            raise LeaseLost("a later holder of this job works on the part")
        found = os.fstat(self._fd)
        self._sealed = found.st_nlink > 1 or not found.st_mode & stat.S_IWUSR
        if side is None or side.inode != found.st_ino:
            side = self._new_side(None, found.st_ino)
        # On record from the first moment: who comes next must know whom it would overtake.
        side.job_id, side.fence = self._job_id, self._fence
        self._side = side
        self._write_side()

    def _overtake_or_raise(self) -> None:
        """Somebody holds the part. An overtaken holder of this very job may be stopped for ever: leave it its file."""
        side = self._read_side()
        if side is None or side.job_id != self._job_id:
            raise Postponed(
                "another job is fetching the same URL right now",
                code="part_busy",
                after_s=BUSY_AGAIN_S,
                hint="Nothing to do: this job goes on when the other one is done.",
            )
        if side.fence >= self._fence:
            raise LeaseLost("a later holder of this job works on the part")
        self._unlink()

    def _open(self) -> int:
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._name, flags | os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self._where)
        except PermissionError:
            # Sealed, by a publisher that died before it took this name away: to be read, and locked.
            return os.open(self._name, flags | os.O_RDONLY, dir_fd=self._where)

    def _is_at_name(self, fd: int) -> bool:
        try:
            there = os.stat(self._name, dir_fd=self._where, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return there.st_ino == os.fstat(fd).st_ino

    def _check_ours(self) -> None:
        if not self._is_at_name(self._fd):
            raise LeaseLost("the part was taken over by a later holder of the job")

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                self._remove_if_nothing_came()
            os.close(self._fd)  # closing lets go of the lock
            self._fd = -1

    def _remove_if_nothing_came(self) -> None:
        empty = self._side is not None and not self._side.checkpoints and not os.fstat(self._fd).st_size
        if empty and self._is_at_name(self._fd):
            self._unlink()

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
        )

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def path(self) -> str:
        return str(self._path / self._name)

    def fileno(self) -> int:
        return self._fd

    def begin(self, remote: RemoteFacts) -> None:
        with disk_errors():
            self._check_ours()
            # Locked before it has the name, so that nobody can slip in between.
            fresh = f"{self._name}.{uuid.uuid4().hex[:8]}.new"
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
            fd = os.open(fresh, flags, 0o600, dir_fd=self._where)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                self._rename(fresh, self._name)
            except OSError:
                os.close(fd)
                raise
            os.close(self._fd)
            self._fd, self._sealed = fd, False
            self._offset, self._digest, self._marks = 0, hashlib.sha256(), []
            self._side = self._new_side(remote, os.fstat(fd).st_ino)
            self._write_side()

    def _new_side(self, remote: RemoteFacts | None, inode: int) -> _Sidecar:
        return _Sidecar(
            job_id=self._job_id,
            fence=self._fence,
            inode=inode,
            final_url_sha256=remote.final_url_sha256 if remote else "",
            etag=remote.etag if remote else None,
            last_modified=remote.last_modified if remote else None,
            date=remote.date if remote else None,
            total=remote.content_length if remote else None,
            complete=False,
            checkpoints=[],
        )

    def verify(self, upto: int) -> int:
        with disk_errors():
            side = self._side
            self._offset, self._digest, self._marks = 0, hashlib.sha256(), []
            kept: list[Checkpoint] = []
            right, right_digest = 0, hashlib.sha256()
            for mark in side.checkpoints if side else []:
                if mark.offset > upto or not self._hash_to(mark.offset):
                    break
                if self._digest.hexdigest() != mark.sha256:
                    break
                right, right_digest = mark.offset, self._digest.copy()
                kept.append(mark)
                self._marks.append((mark, right_digest.copy()))
            if self._sealed and not (side is not None and right == upto == side.total):
                # Published bytes may be under this name too: they are taken whole, or not at all.
                right, right_digest, kept, self._marks = 0, hashlib.sha256(), [], []
            self._offset, self._digest = right, right_digest
            if side is not None:
                side.checkpoints, side.complete = kept, False
                self._write_side()
            return right

    def _hash_to(self, offset: int) -> bool:
        while self._offset < offset:
            block = os.pread(self._fd, min(READ_BYTES, offset - self._offset), self._offset)
            if not block:
                return False
            self._digest.update(block)
            self._offset += len(block)
        return True

    def rewind(self, offset: int) -> int:
        self._marks = [pair for pair in self._marks if pair[0].offset <= offset]
        if self._side is not None:
            self._side.checkpoints = [c for c in self._side.checkpoints if c.offset <= offset]
        if self._marks:
            mark, digest = self._marks[-1]
            self._offset, self._digest = mark.offset, digest.copy()
        else:
            self._offset, self._digest = 0, hashlib.sha256()
        with disk_errors():
            self._hash_to(offset)
        return self._offset

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def write(self, data: bytes | memoryview) -> None:
        if self._sealed:
            raise part_damaged("the part was published already, so nothing may be added to it")
        with disk_errors():
            view = memoryview(data)
            done = 0
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], self._offset + done)
            self._digest.update(view)
            before = self._offset // CHECKPOINT_BYTES
            self._offset += len(view)
            if self._offset // CHECKPOINT_BYTES > before:
                self.flush()

    def flush(self) -> None:
        if self._offset:  # of nothing there is nothing to vouch for
            self._checkpoint()

    def _checkpoint(self) -> None:
        side = self._side
        if side is None or (side.checkpoints and side.checkpoints[-1].offset >= self._offset):
            return
        with disk_errors():
            mark = Checkpoint(self._offset, self._digest.hexdigest())
            side.checkpoints = [*_thinned(side.checkpoints), mark]
            self._marks = [pair for pair in self._marks if pair[0] in side.checkpoints]
            self._marks.append((mark, self._digest.copy()))
            self._write_side()

    def finish(self) -> tuple[str, int, int]:
        self._checkpoint()
        with disk_errors():
            self._check_ours()
            if os.fstat(self._fd).st_size != self._offset:
                os.ftruncate(self._fd, self._offset)  # what is past the end is left of an attempt that got further
            began = time.monotonic()
            os.fsync(self._fd)
            took = round((time.monotonic() - began) * 1000)
            if self._side is not None:
                self._side.complete, self._side.total = True, self._offset
                self._write_side()
            return self._digest.hexdigest(), self._offset, took

    def head(self, size: int) -> bytes:
        with disk_errors():
            return os.pread(self._fd, min(size, self._offset), 0)

    def remove(self) -> None:
        with disk_errors():
            if self._is_at_name(self._fd):
                self._unlink()

    # ── the sidecar ───────────────────────────────────────────────────────────────────────────────

    def _unlink(self) -> None:
        for name in (self._side_name, self._name):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._where)
        self._side = None

    def _read_side(self) -> _Sidecar | None:
        try:
            fd = os.open(self._side_name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._where)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            return _Sidecar.load(file.read(1 << 20))

    def _write_side(self) -> None:
        """Replace the sidecar at once. It is not fsynced: after a power cut its hashes are checked anyway."""
        if self._side is None:
            return
        self._check_ours()
        temporary = f"{self._side_name}.{os.getpid()}.{self._fd}"
        fd = os.open(
            temporary,
            os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=self._where,
        )
        with os.fdopen(fd, "wb") as file:
            file.write(self._side.dump())
        self._rename(temporary, self._side_name)

    def _rename(self, temporary: str, name: str) -> None:
        try:
            os.rename(temporary, name, src_dir_fd=self._where, dst_dir_fd=self._where)
        except OSError:
            os.unlink(temporary, dir_fd=self._where)
            raise


def _thinned(marks: list[Checkpoint]) -> list[Checkpoint]:
    """Keep one mark per SPARSE_BYTES and the last few, so that a sidecar stays small."""
    recent = marks[-4:]
    old, last = [], -SPARSE_BYTES
    for mark in marks[:-4]:
        if mark.offset - last >= SPARSE_BYTES:
            old.append(mark)
            last = mark.offset
    return [*old, *recent]


def part_damaged(message: str) -> Retryable:
    return Retryable(message, code="part_damaged", hint="Nothing to do: it is fetched again.")

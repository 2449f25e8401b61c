"""Folders opened step by step, relative to a handle, never through a symlink (SAFE-3); durable names."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import Permanent, Postponed, Retryable, StageFailure

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_BYTES = 1 << 20


@contextmanager
def folder(root: Path, parts: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """A handle on root/parts…; FileNotFoundError when it is not there and `create` is off."""
    if create:
        _make(root)
    here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            there = _enter(here, part, create)
            os.close(here)
            here = there
        yield here
    finally:
        os.close(here)


def _make(path: Path) -> None:
    """Make a folder and those above it, each name durable before the next; the store's root may be a symlink."""
    if path.is_dir():
        return
    if path.parent != path:
        _make(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    crash_point("root.made")
    above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(above)
    finally:
        os.close(above)


def _enter(parent: int, name: str, create: bool) -> int:
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=parent)
    crash_point("folder.made")
    # The new folder's own name has to last as well; another worker that made it may not have come to this line.
    os.fsync(parent)
    return os.open(name, _OPEN_FOLDER, dir_fd=parent)


@contextmanager
def alone(where: int) -> Iterator[None]:
    """Only one at a time may take a file of this folder out of its place, or rely on one that stands there already."""
    with suppress(OSError):  # NFS locks no folders
        fcntl.flock(where, fcntl.LOCK_EX)
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(where, fcntl.LOCK_UN)


def kept(where: int, name: str) -> bool:
    """Let it be seen that somebody wants the file now; False when it is gone. Under `alone`, or it may go meanwhile.

    Setting the mode that it has moves the time of its last change, by which the collector goes, and nothing else.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=where)
    except FileNotFoundError:
        return False
    try:
        with suppress(PermissionError):  # another user's: the collector looks at the ledger once more
            os.fchmod(fd, 0o444)
        return True
    finally:
        os.close(fd)


def is_file_of(fd: int, size: int) -> bool:
    found = os.fstat(fd)
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def sha256_of(fd: int, size: int | None = None) -> tuple[str, int]:
    """Hash a file from its start (at most `size` bytes); answer digest and bytes read."""
    digest = hashlib.sha256()
    offset = 0
    while size is None or offset < size:
        want = READ_BYTES if size is None else min(READ_BYTES, size - offset)
        block = os.pread(fd, want, offset)
        if not block:
            break
        digest.update(block)
        offset += len(block)
    return digest.hexdigest(), offset


LOOK_AGAIN_S = 60.0

_CODES = {
    errno.ENOSPC: ("no_space", "the disk is full", "Free some space; the job goes on by itself."),
    errno.EDQUOT: ("no_space", "the disk quota is used up", "Free some space; the job goes on by itself."),
    errno.EFBIG: (
        "store_file_too_large",
        "no file may be that large here",
        "Raise the limit (ulimit -f), or move the store.",
    ),
    errno.EROFS: ("store_read_only", "the store is mounted read-only", "Remount it, or move the store."),
    errno.EACCES: ("store_forbidden", "the store may not be written", "Give the worker's user the right to."),
    errno.EPERM: ("store_forbidden", "the store may not be written", "Give the worker's user the right to."),
    errno.EXDEV: (
        "store_cross_device",
        "the staging folder is on another file system than the file's place",
        "Keep everything under the store's root, .staging too, on one file system.",
    ),
    errno.EIO: ("store_io_error", "the disk reported an error", "Check the disk and the system's log."),
    errno.ENAMETOOLONG: ("store_name_too_long", "the file system refuses the name", "Use shorter ids."),
    errno.ELOOP: ("store_symlink", "a symlink stands where a folder or file of the store belongs", "Remove it."),
    errno.ENOTDIR: ("store_symlink", "something else stands where a folder of the store belongs", "Remove it."),
}


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn what the operating system says into a failure with a code; paths stay out of the message."""
    try:
        yield
    except OSError as error:
        raise as_failure(error) from error


@contextmanager
def staging_errors() -> Iterator[None]:
    """The same of folders for parts: what stands in the place of one says nothing about a job, which waits for it."""
    try:
        with disk_errors():
            yield
    except Permanent as failure:
        if failure.code != "store_symlink":
            raise
        raise Postponed(
            "something else stands where a folder for parts belongs",
            code="staging_blocked",
            after_s=LOOK_AGAIN_S,
            hint="Remove it from .staging, in the store's root; the job goes on by itself.",
        ) from failure


def as_failure(error: OSError) -> StageFailure:
    code, what, hint = _CODES.get(error.errno or 0, ("store_error", "the disk refused", "See the worker's log."))
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    if code in ("store_symlink", "store_name_too_long"):
        return Permanent(f"{what} ({name})", code=code, hint=hint)
    if code == "no_space":
        # It says nothing about the job, and may last longer than a job has attempts.
        return Postponed(f"{what} ({name})", code=code, after_s=LOOK_AGAIN_S, hint=hint)
    return Retryable(f"{what} ({name})", code=code, hint=hint)

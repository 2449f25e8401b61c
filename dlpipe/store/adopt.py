"""Bytes that somebody else keeps: how they get into the store while he goes on reading them (ADR 18).

A hardlink is made before the bytes are hashed and after the file was made read-only, so that what was hashed
is what the store's name shows; a file that changed meanwhile is refused.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import Permanent, Retryable
from dlpipe.core.ports import Foreign
from dlpipe.core.results import DedupeAction
from dlpipe.store.folders import READ_BYTES, folder

_NO_LINK = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_CLONE = frozenset(
    {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY}
)
_FICLONE = 0x40049409
# Not waiting for the other end, should it be a pipe.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def opened(file: Foreign) -> Iterator[int]:
    """The foreign file, found step by step from its root; a plain file of the announced size, or a failure."""
    if not file.parts or any(_unusable(part) for part in file.parts):
        raise _refused("the name of a file leads out of its folder")
    try:
        with folder(Path(file.root), file.parts[:-1]) as where:
            fd = os.open(file.parts[-1], _READ, dir_fd=where)
    except FileNotFoundError:
        raise Retryable(
            "a file of the torrent is not where the client says",
            code="torrent_file_missing",
            hint="Check that the download folder is mounted here under torrents.local_path.",
        ) from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENAMETOOLONG):
            raise _refused("a symlink, or no plain file, stands where a file of the torrent belongs") from None
        raise Retryable(
            f"a file of the torrent cannot be read ({errno.errorcode.get(error.errno or 0, 'unknown error')})",
            code="file_unreadable",
            hint="Give the worker's user the right to read the download folder.",
        ) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _refused("a file of the torrent is not a plain file")
        if file.size not in (None, found.st_size):
            raise changed()
        yield fd
    finally:
        os.close(fd)


def _unusable(part: str) -> bool:
    try:
        return part in ("", ".", "..") or "/" in part or b"\0" in os.fsencode(part)
    except UnicodeEncodeError:
        return True


def _refused(what: str) -> Permanent:
    return Permanent(what, code="file_refused", hint="Look at the download folder: somebody put it there.")


def unexpected() -> Permanent:
    return Permanent(
        "the file does not hash to what was said of it",
        code="sha256_mismatch",
        hint="It is another file, or damaged: nothing of it was taken in.",
    )


def changed() -> Retryable:
    return Retryable(
        "a file of the torrent changed while it was read", code="file_changed", hint="It is tried again by itself."
    )


def bring(fd: int, where: int, name: str, sharing: Sharing) -> tuple[int, DedupeAction]:
    """Put the bytes behind `fd` under a temporary name of ours; answer a handle on that, and how it was done."""
    if sharing is not Sharing.COPY and (clone := _clone(fd, where, name)) is not None:
        return clone, DedupeAction.REFLINK
    if sharing is Sharing.LINK and _link(fd, where, name):
        return os.dup(fd), DedupeAction.HARDLINK
    made = os.open(name, _MAKE, 0o600, dir_fd=where)
    try:
        _copy(fd, made)
        os.fchmod(made, 0o444)
    except BaseException:
        os.close(made)
        raise
    return made, DedupeAction.COPY


def _clone(fd: int, where: int, name: str) -> int | None:
    made = os.open(name, _MAKE, 0o600, dir_fd=where)
    try:
        fcntl.ioctl(made, _FICLONE, fd)
        os.fchmod(made, 0o444)
    except OSError as error:
        os.close(made)
        os.unlink(name, dir_fd=where)
        if error.errno not in _NO_CLONE:
            raise
        return None
    return made


def _link(fd: int, where: int, name: str) -> bool:
    """By the handle, not by the name: nobody can slip another file in. Read-only from here on, or not at all."""
    try:
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=where, follow_symlinks=True)
    except FileNotFoundError:  # no /proc here, or the file was just removed
        return False
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    try:
        os.fchmod(fd, 0o444)
    except PermissionError:  # another user's: he could write to it for ever
        os.unlink(name, dir_fd=where)
        return False
    return True


def _copy(fd: int, made: int) -> None:
    offset = 0
    while block := os.pread(fd, READ_BYTES, offset):
        offset += len(block)
        view = memoryview(block)
        while view:
            view = view[os.write(made, view) :]


def hashed(fd: int, size: int, heard: Callable[[int], None]) -> str:
    """Hash the whole file, telling how far it is."""
    digest, offset = hashlib.sha256(), 0
    while block := os.pread(fd, READ_BYTES, offset):
        digest.update(block)
        offset += len(block)
        heard(len(block))
    if offset != size:
        raise changed()
    return digest.hexdigest()

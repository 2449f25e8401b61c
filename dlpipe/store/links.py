"""How a file gets a further name, or shares another's bytes, on file systems of every ability.

Nothing here overwrites: what is made is a new name, or a file under a temporary one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from dlpipe.core.errors import LeaseLost
from dlpipe.core.results import DedupeAction
from dlpipe.store.folders import READ_BYTES

_FICLONE = 0x40049409
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_TEMPORARY = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

_NO_LINK = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""What link says where it cannot be done here, however often one asks."""
_NO_CLONE = _NO_LINK | {errno.ENOTTY, errno.EINVAL, errno.EBADF}


class Linking(StrEnum):
    """How equal files come to share their bytes: the setting `dedupe.link`."""

    HARDLINK = "hardlink"
    """One file under several names; a clone where the file system has no further link to give."""
    REFLINK = "reflink"
    """Files of their own that share their blocks; never a second name for one file."""
    OFF = "off"
    """Every copy keeps its own bytes."""


def same_file(one: os.stat_result, other: os.stat_result) -> bool:
    """Inode numbers mean something only on one device."""
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def share(linking: Linking, name: str, there: int, temporary: str, where: int) -> DedupeAction | None:
    """Make `temporary` a file that shares the bytes of `name`; None when that cannot be done here."""
    if linking is Linking.HARDLINK and linked(name, there, temporary, where):
        return DedupeAction.HARDLINK
    if linking is not Linking.OFF and cloned(name, there, temporary, where):
        return DedupeAction.REFLINK
    return None


def linked(name: str, there: int, new: str, where: int) -> bool:
    """Make `new` a further name of the same file; False when that cannot be done here."""
    try:
        os.link(name, new, src_dir_fd=there, dst_dir_fd=where, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def cloned(name: str, there: int, new: str, where: int) -> bool:
    """Make `new` a durable file of its own that shares the blocks of `name`; False when that cannot be done here."""
    if sys.platform != "linux":
        return False  # the request below means something else there
    with _both(name, there, new, where) as (source, clone):
        try:
            fcntl.ioctl(clone, _FICLONE, source)
        except OSError as error:
            if error.errno not in _NO_CLONE:
                raise
        else:
            _settle(clone)
            return True
    os.unlink(new, dir_fd=where)
    return False


def copied(name: str, there: int, new: str, where: int) -> None:
    """Make `new` a durable file with the same bytes."""
    with _both(name, there, new, where) as (source, copy):
        while block := os.read(source, READ_BYTES):
            view = memoryview(block)
            while view:
                view = view[os.write(copy, view) :]
        _settle(copy)


@contextmanager
def _both(name: str, there: int, new: str, where: int) -> Iterator[tuple[int, int]]:
    source = os.open(name, _READ, dir_fd=there)
    try:
        fresh = os.open(new, _TEMPORARY, 0o600, dir_fd=where)
        try:
            yield source, fresh
        finally:
            os.close(fresh)
    finally:
        os.close(source)


def _settle(fd: int) -> None:
    """Read-only and durable: it is about to stand for a file that is both."""
    os.fchmod(fd, 0o444)
    os.fsync(fd)


def name_new(fd: int, path: str, name: str, where: int) -> bool:
    """Give the very file behind `fd`, which is at `path`, its final name; False when the name is taken.

    Going by the handle and not by the part's name: had a later holder replaced the part, its bytes would
    get our name. A part that was unlinked meanwhile cannot be linked any more, and that is right.
    """
    try:
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=where, follow_symlinks=True)
    except FileExistsError:
        return False
    except FileNotFoundError as error:
        if Path("/proc/self/fd").exists():
            raise _taken_over() from error
        return _name_by_path(fd, path, name, where)
    except OSError as error:
        # exFAT and some network file systems have no links at all; to another device there is no rename, either.
        if error.errno not in _NO_LINK or error.errno == errno.EXDEV or _renameat2 is None:
            raise
        return _move(fd, path, name, where)
    return True


def _name_by_path(fd: int, path: str, name: str, where: int) -> bool:
    """Without /proc: by name, then make sure that it was our file which got it."""
    try:
        os.link(path, name, dst_dir_fd=where)
    except FileExistsError:
        return False
    except FileNotFoundError as error:
        raise _taken_over() from error
    if not same_file(os.stat(name, dir_fd=where), os.fstat(fd)):
        os.unlink(name, dir_fd=where)
        raise _taken_over()
    return True


def _move(fd: int, path: str, name: str, where: int) -> bool:
    """Without links: by a rename that refuses to replace, made undone when it caught another file than ours."""
    try:
        rename_new(_AT_FDCWD, path, where, name)
    except FileExistsError:
        return False
    except FileNotFoundError as error:
        raise _taken_over() from error
    if not same_file(os.stat(name, dir_fd=where, follow_symlinks=False), os.fstat(fd)):
        rename_new(where, name, _AT_FDCWD, path)
        raise _taken_over()
    return True


def _taken_over() -> LeaseLost:
    return LeaseLost("the part was taken over by a later holder of the job")


def rename_new(from_dir: int, from_name: str, to_dir: int, to_name: str) -> None:
    """renameat2(2) with RENAME_NOREPLACE, which Python does not offer."""
    if _renameat2 is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    old, new = os.fsencode(from_name), os.fsencode(to_name)
    if _renameat2(from_dir, old, to_dir, new, ctypes.c_uint(_RENAME_NOREPLACE)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_renameat2: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)

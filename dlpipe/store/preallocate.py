"""Calls on a file's blocks that Python does not have: set them aside (STREAM-2) and write them out, both early."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import cache

_KEEP_SIZE = 0x01  # FALLOC_FL_KEEP_SIZE of <linux/falloc.h>
_CANNOT = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV, errno.EPERM})


def preallocate(fd: int, size: int) -> bool:
    """Have the blocks of the first `size` bytes set aside; False where that cannot be had. OSError: no room."""
    call = _fallocate()
    if call is None or size <= 0:
        return False
    while True:
        number = call(fd, size)
        if number == 0:
            return True
        if number in _CANNOT:
            return False  # it only saves time and fragments; the bytes will be written all the same
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@cache
def _fallocate() -> Callable[[int, int], int] | None:
    """os.posix_fallocate would grow the file, and where the kernel cannot, write zeros for gigabytes."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    # A 32-bit glibc takes 64-bit offsets by this name only; musl knows only the other.
    raw = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if raw is None:
        return None
    raw.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    raw.restype = ctypes.c_int

    def call(fd: int, size: int) -> int:
        return 0 if raw(fd, _KEEP_SIZE, 0, size) == 0 else ctypes.get_errno()

    return call


_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4  # SYNC_FILE_RANGE_… of <linux/fs.h>


def write_out(fd: int, offset: int, size: int) -> None:
    """Have the kernel begin to write these bytes to the disk, so that an fsync has little left to do; no promise."""
    if (call := _sync_file_range()) is not None:
        call(fd, offset, size, _WRITE)


def written_out(fd: int, offset: int, size: int) -> bool:
    """Wait until these bytes are written to the disk; False where that cannot be had. No promise that they last.

    OSError: the disk refused them. It must be heard: the kernel tells it once, so that an fsync would know of nothing.
    """
    call = _sync_file_range()
    if call is None:
        return False
    number = call(fd, offset, size, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)
    if number and number not in _CANNOT:
        raise OSError(number, os.strerror(number))
    return number == 0


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    raw = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if raw is None:
        return None
    raw.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    raw.restype = ctypes.c_int

    def call(fd: int, offset: int, size: int, flags: int) -> int:
        return 0 if raw(fd, offset, size, flags) == 0 else ctypes.get_errno()

    return call

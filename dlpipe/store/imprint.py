"""What the kernel says of a file that was hashed and made durable; while it says the same, nobody has written to it.

The proof holds within one boot, and only where the kernel itself keeps the file: a network file system's times are
another machine's, and may come late. Every doubt answers that the file has to be read again (ADR 39).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

LEAST_BYTES = 8 << 20
"""A smaller file is read again sooner than its clock has moved on."""
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay"})
_PROC = Path("/proc")
_REALTIME_COARSE = 5
"""CLOCK_REALTIME_COARSE of <linux/time.h>: the clock that gives files their times, in steps of some milliseconds."""
_STEP_S, _LOOKS = 0.001, 50


@dataclass(frozen=True, slots=True)
class Imprint:
    """`ctime_ns` is what tells: no call sets it, and every write, cut, link or change of mode moves it."""

    sha256: str
    size: int
    device: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    boot: str


def take(fd: int, sha256: str) -> Imprint | None:
    """Right after the fsync of bytes with this hash; None where it would prove nothing, or cost more than it saves."""
    found = os.fstat(fd)
    if found.st_size < LEAST_BYTES or not _has_passed(found.st_ctime_ns):
        return None
    imprint = _of(fd, sha256)
    return imprint if imprint is not None and imprint.ctime_ns == found.st_ctime_ns else None


def stands(imprint: Imprint, fd: int) -> bool:
    """Is it certain that the file holds what it held then?"""
    return is_local(fd) and imprint == _of(fd, imprint.sha256)


def _of(fd: int, sha256: str) -> Imprint | None:
    boot, found = _boot(), os.fstat(fd)
    if boot is None:
        return None
    return Imprint(sha256, found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, boot)


def _has_passed(ctime_ns: int) -> bool:
    """Wait until a further write would get another time: within one step of the clock, two writes may have the same."""
    for _ in range(_LOOKS):
        try:
            if time.clock_gettime_ns(_REALTIME_COARSE) > ctime_ns:
                return True
        except OSError:
            return False
        time.sleep(_STEP_S)
    return False


def _boot() -> str | None:
    """Another boot may have lost what a disk had only promised to keep; and another machine has another one."""
    try:
        return _read("sys/kernel/random/boot_id").strip() or None
    except OSError:
        return None


def is_local(fd: int) -> bool:
    """Is the file on a file system that this kernel alone writes to?"""
    try:
        about = _read(f"self/fdinfo/{fd}")
        mount = next(line.split()[1] for line in about.splitlines() if line.startswith("mnt_id:"))
        for line in _read("self/mountinfo").splitlines():
            if line.split(" ", 1)[0] == mount:
                return line.partition(" - ")[2].split(" ", 1)[0] in LOCAL
    except (OSError, IndexError, StopIteration):
        pass
    return False


def _read(name: str) -> str:
    return (_PROC / name).read_bytes().decode("utf-8", "replace")

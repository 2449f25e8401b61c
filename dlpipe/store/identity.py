"""The id that a node's staging folder bears, so that two machines of one name are noticed."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress

NAME = ".id"
_MAX_BYTES = 64
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def identity(where: int) -> str:
    """Of the folder with that handle; of several that give it one at once, the first one's counts."""
    with suppress(FileNotFoundError):
        return _read(where)
    temporary = f"{NAME}.{uuid.uuid4().hex[:8]}.tmp"
    fd = os.open(temporary, _MAKE, 0o444, dir_fd=where)
    try:
        os.write(fd, f"{uuid.uuid4().hex}\n".encode())
        os.fsync(fd)
        with suppress(FileExistsError):
            os.link(temporary, NAME, src_dir_fd=where, dst_dir_fd=where)
    finally:
        os.close(fd)
        os.unlink(temporary, dir_fd=where)
    os.fsync(where)
    return _read(where)


def _read(where: int) -> str:
    fd = os.open(NAME, _READ, dir_fd=where)
    try:
        return os.read(fd, _MAX_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(fd)

"""The id that a store bears: a file in its root, by which an empty mount point or another store is told from it."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from dlpipe.core.crash import crash_point
from dlpipe.core.model import DEFAULT_TENANT
from dlpipe.store.folders import disk_errors, folder, staging_errors
from dlpipe.store.links import name_new
from dlpipe.store.staging import STAGING

NAME = ".dlpipe-store"
_MAX_BYTES = 64
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read(root: Path) -> str | None:
    """None when there is none; what is not an id is the id of no store that anybody knows."""
    with disk_errors():
        try:
            fd = os.open(root / NAME, _READ)
        except FileNotFoundError:
            return None
        try:
            return os.read(fd, _MAX_BYTES).decode("ascii", "replace").strip()
        finally:
            os.close(fd)


def make(root: Path, store_id: str) -> str:
    """Written under another name, made to last, and only then named: there is never half a marker, nor a second."""
    with (
        staging_errors(),
        folder(root, (), create=True) as here,
        # Where reconcile looks for what killed processes leave behind.
        folder(root, (STAGING, DEFAULT_TENANT), create=True) as there,
    ):
        temporary = f"marker.{uuid.uuid4().hex[:8]}.tmp"
        fd = os.open(temporary, _MAKE, 0o444, dir_fd=there)
        try:
            os.write(fd, f"{store_id}\n".encode())
            os.fsync(fd)
            crash_point("marker.written")
            # Over nothing: of several, the first one's counts.
            name_new(fd, str(root / STAGING / DEFAULT_TENANT / temporary), NAME, here)
            crash_point("marker.named")
        finally:
            os.close(fd)
            with suppress(FileNotFoundError):  # where there are no links it was moved
                os.unlink(temporary, dir_fd=there)
        os.fsync(here)  # also when another has named it, who may not have come to this line
    return read(root) or ""

"""The content-addressed store on a local file system: `<root>/<tenant>/<project>/ab/<sha256><ext>`.

A name is given to bytes that were hashed under that very handle, never overwrites, and lasts before
anybody is told of it.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dlpipe.core.crash import crash_point
from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import LeaseLost, Retryable
from dlpipe.core.layout import Place, check_id, place_of
from dlpipe.core.ports import Adopted, Foreign, Part
from dlpipe.core.results import DedupeAction
from dlpipe.store import adopt as adopting
from dlpipe.store.folders import READ_BYTES, as_failure, disk_errors, folder, sha256_of
from dlpipe.store.staging import STAGING, part_damaged

_NO_LINK = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalBlobStore:
    backend = "local"

    def __init__(self, root: Path, *, shard_width: int = 2) -> None:
        self._root = root
        self._shard_width = shard_width

    def place(self, tenant: str, project: str, sha256: str, ext: str) -> Place:
        return Place(tenant, project, sha256, ext, self._shard_width)

    def shard(self, pointer: str) -> str:
        place = place_of(pointer)
        return place.sha256[: place.shard_width]

    def path(self, pointer: str) -> str:
        place = place_of(pointer)
        return str(self._root.joinpath(*place.folders, place.name))

    def publish(self, part: Part, place: Place, size: int) -> bool:
        fd = part.fileno()
        digest, found = _hash(fd, size)
        if (digest, found) != (place.sha256, size) or os.fstat(fd).st_size != size:
            raise part_damaged("the staged bytes do not hash to what was streamed")
        with disk_errors(), folder(self._root, place.folders, create=True) as where:
            os.fchmod(fd, 0o444)  # before the name: nobody may find it, or leave it, open to change
            os.fsync(fd)  # the bytes last before their name does
            crash_point("finalize.before_link")
            there_already = not _link_new(fd, part.path, place.name, where)
            if there_already and not self._right_at(where, place, size):
                self._set_aside(where, place)
                there_already = not _link_new(fd, part.path, place.name, where)
            crash_point("finalize.after_link")
            os.fsync(where)
            crash_point("finalize.after_fsync")
            part.remove()
            crash_point("finalize.after_unlink")
            return there_already

    def _right_at(self, where: int, place: Place, size: int) -> bool:
        try:
            fd = os.open(place.name, _OPEN, dir_fd=where)
        except FileNotFoundError:
            return False
        try:
            return os.fstat(fd).st_size == size and sha256_of(fd) == (place.sha256, size)
        finally:
            os.close(fd)

    def _set_aside(self, where: int, place: Place) -> None:
        """Bytes under a name that is not their hash are moved away, never written over."""
        with suppress(FileNotFoundError):
            os.rename(place.name, f"{place.name}.damaged-{uuid.uuid4().hex[:8]}", src_dir_fd=where, dst_dir_fd=where)

    def holds(self, pointer: str, size: int) -> bool:
        place = place_of(pointer)
        try:
            with folder(self._root, place.folders) as where:
                found = os.stat(place.name, dir_fd=where, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise as_failure(error) from error
        return stat.S_ISREG(found.st_mode) and found.st_size == size

    def is_right(self, pointer: str, sha256: str, size: int) -> bool:
        place = place_of(pointer)
        if place.sha256 != sha256:
            return False
        try:
            with folder(self._root, place.folders) as where:
                return self._right_at(where, place, size)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise as_failure(error) from error

    def copy(self, pointer: str, place: Place) -> DedupeAction:
        source = place_of(pointer)
        with (
            disk_errors(),
            folder(self._root, source.folders) as there,
            folder(self._root, place.folders, create=True) as here,
        ):
            try:
                os.link(source.name, place.name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
                action = DedupeAction.HARDLINK
            except FileExistsError:
                action = DedupeAction.SKIPPED
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                self._copy_bytes(there, source.name, here, place)
                action = DedupeAction.COPY
            os.fsync(here)
            return action

    def _copy_bytes(self, there: int, name: str, here: int, place: Place) -> None:
        with self._temporary(place.tenant, place.sha256) as (where, temporary):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd_in = os.open(name, _OPEN, dir_fd=there)
            fd_out = os.open(temporary, flags, 0o600, dir_fd=where)
            try:
                while block := os.read(fd_in, READ_BYTES):
                    view = memoryview(block)
                    while view:
                        view = view[os.write(fd_out, view) :]
                if sha256_of(fd_out)[0] != place.sha256:
                    raise Retryable("the copy does not hash to its name", code="store_io_error")
                os.fchmod(fd_out, 0o444)
                os.fsync(fd_out)
                with suppress(FileExistsError):
                    os.link(temporary, place.name, src_dir_fd=where, dst_dir_fd=here)
            finally:
                os.close(fd_in)
                os.close(fd_out)

    @contextmanager
    def _temporary(self, tenant: str, stem: str) -> Iterator[tuple[int, str]]:
        """A name to prepare a file under: in the staging folder, so that a crash leaves nothing in the store."""
        with folder(self._root, (STAGING, tenant), create=True) as where:
            name = f"{stem}.{uuid.uuid4().hex[:8]}.tmp"
            try:
                yield where, name
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=where)

    def unify(self, pointer: str, twin: str) -> DedupeAction:
        mine, other = place_of(pointer), place_of(twin)
        with (
            disk_errors(),
            folder(self._root, mine.folders) as here,
            folder(self._root, other.folders) as there,
        ):
            theirs = os.stat(other.name, dir_fd=there, follow_symlinks=False)
            if os.stat(mine.name, dir_fd=here, follow_symlinks=False).st_ino == theirs.st_ino:
                return DedupeAction.HARDLINK  # it was done before
            with self._temporary(mine.tenant, mine.sha256) as (where, temporary):
                try:
                    os.link(other.name, temporary, src_dir_fd=there, dst_dir_fd=where, follow_symlinks=False)
                except OSError as error:
                    if error.errno in _NO_LINK:
                        return DedupeAction.COPY
                    raise
                crash_point("dedupe.after_link")
                os.rename(temporary, mine.name, src_dir_fd=where, dst_dir_fd=here)
            crash_point("dedupe.after_rename")
            os.fsync(here)
            return DedupeAction.HARDLINK

    def adopt(
        self, file: Foreign, tenant: str, project: str, ext: str, sharing: Sharing, heard: Callable[[int], None]
    ) -> Adopted:
        with (
            adopting.opened(file) as theirs,
            disk_errors(),
            self._temporary(check_id("tenant", tenant), "adopted") as (where, temporary),
        ):
            before = os.fstat(theirs)
            ours, action = adopting.bring(theirs, where, temporary, sharing)
            kept = False
            try:
                crash_point("torrents.brought")
                sha256 = adopting.hashed(ours, file.size, heard)
                os.fsync(ours)  # the bytes last before their name does
                place = self.place(tenant, project, sha256, ext)
                crash_point("torrents.hashed")
                if os.fstat(theirs).st_mtime_ns != before.st_mtime_ns:
                    raise adopting.changed()
                with folder(self._root, place.folders, create=True) as here:
                    new = self._name(where, temporary, here, place, file.size)
                    kept = os.stat(place.name, dir_fd=here, follow_symlinks=False).st_ino == before.st_ino
                    os.fsync(here)
                crash_point("torrents.named")
            finally:
                os.close(ours)
                if action is DedupeAction.HARDLINK and not kept:  # nothing of it is ours: as if we had not been here
                    os.fchmod(theirs, stat.S_IMODE(before.st_mode))
        return Adopted(sha256, file.size, place.pointer, action if new or kept else DedupeAction.SKIPPED)

    def _name(self, where: int, temporary: str, here: int, place: Place, size: int) -> bool:
        """Give the prepared file its final name; False when the right bytes stand there already."""
        for _ in range(2):
            try:
                os.link(temporary, place.name, src_dir_fd=where, dst_dir_fd=here, follow_symlinks=False)
                return True
            except FileExistsError:
                if self._right_at(here, place, size):
                    return False
                self._set_aside(here, place)
        raise Retryable("the place of a blob is taken by other bytes again and again", code="store_error")


def _hash(fd: int, size: int) -> tuple[str, int]:
    with disk_errors():
        return sha256_of(fd, size)


def _link_new(fd: int, path: str, name: str, where: int) -> bool:
    """Give the very file behind `fd` its final name; False when the name is taken.

    Going by the handle and not by the part's name: had a later holder replaced the part, its bytes would
    get our name. A part that was unlinked meanwhile cannot be linked any more, and that is right.
    """
    try:
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=where, follow_symlinks=True)
    except FileExistsError:
        return False
    except FileNotFoundError:
        if Path("/proc/self/fd").exists():
            raise LeaseLost("the part was taken over by a later holder of the job") from None
        # Without /proc: by name, then make sure that it was our file which got it.
        try:
            os.link(path, name, dst_dir_fd=where)
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise LeaseLost("the part was taken over by a later holder of the job") from None
        if os.stat(name, dir_fd=where).st_ino != os.fstat(fd).st_ino:
            os.unlink(name, dir_fd=where)
            raise LeaseLost("the part was taken over by a later holder of the job") from None
    return True

"""The content-addressed store on a local file system: `<root>/<tenant>/<project>/ab/<sha256><ext>`.

A name is given to bytes that were hashed under that very handle, never overwrites, and lasts before
anybody is told of it.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

from dlpipe.core.crash import crash_point
from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import InvalidInput, Permanent, Retryable
from dlpipe.core.layout import LOCAL, Equal, Place, check_id, place_of, space_of
from dlpipe.core.ports import Adopted, BlobStore, Foreign, Part, StoredFile
from dlpipe.core.results import DedupeAction
from dlpipe.store import adopt as adopting
from dlpipe.store import marker, strays
from dlpipe.store.folders import alone, as_failure, disk_errors, folder, is_file_of, kept, sha256_of
from dlpipe.store.links import Linking, cloned, copied, linked, name_new, same_file, share
from dlpipe.store.part import part_damaged
from dlpipe.store.staging import STAGING

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in a file's place is not waited for


class Rehash(StrEnum):
    """Whether what is published is hashed once more from the disk: the setting `finalize.rehash`."""

    AUTO = "auto"
    """Unless the kernel says that nobody has touched it since it was hashed and made durable (ADR 39)."""
    ALWAYS = "always"


class LocalBlobStore:
    backend = LOCAL
    equal = Equal.LINK

    def __init__(
        self,
        root: Path,
        *,
        shard_width: int = 2,
        linking: Linking = Linking.HARDLINK,
        rehash: Rehash = Rehash.AUTO,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._clock = clock
        self._shard_width = shard_width
        self._linking = linking
        self._rehash = rehash

    def marker(self) -> str | None:
        return marker.read(self._root)

    def mark(self, store_id: str) -> str:
        return marker.make(self._root, store_id)

    def others(self) -> Sequence[BlobStore]:
        return ()

    def place(self, tenant: str, project: str, sha256: str, ext: str) -> Place:
        return Place(tenant, project, sha256, ext, self._shard_width)

    def place_at(self, pointer: str) -> Place:
        return place_of(pointer)

    def owns(self, pointer: str) -> bool:
        return space_of(pointer) == LOCAL

    def shard(self, pointer: str) -> str:
        place = place_of(pointer)
        return place.sha256[: place.shard_width]

    def path(self, pointer: str) -> str:
        place = place_of(pointer)
        return str(self._root.joinpath(*place.folders, place.name))

    def link(self, pointer: str, expires_s: float) -> str:
        raise InvalidInput(
            "files on a disk have no links that could be signed",
            code="link_unsupported",
            hint="Use the path or the bytes: dlpipe open ARTIFACT, dlpipe open ARTIFACT -",
        )

    def publish(self, part: Part, place: Place, size: int, *, doubted: bool = False) -> bool:
        fd = part.fileno()
        if self._rehash is Rehash.ALWAYS or not part.is_as_hashed(place.sha256, size):
            digest, found = _hash(fd, size)
            if (digest, found) != (place.sha256, size) or os.fstat(fd).st_size != size:
                raise part_damaged("the staged bytes do not hash to what was streamed")
        with disk_errors(), folder(self._root, place.folders, create=True) as where:
            os.fchmod(fd, 0o444)  # before the name: nobody may find it, or leave it, open to change
            os.fsync(fd)  # the bytes last before their name does
            crash_point("finalize.before_link")
            there_already = not name_new(fd, part.path, place.name, where)
            if there_already and not self._kept(where, place, size):
                with alone(where):
                    there_already = self._right_at(where, place, size) and kept(where, place.name)
                    if not there_already:
                        self._set_aside(where, place)
                        there_already = not name_new(fd, part.path, place.name, where)
            crash_point("finalize.after_link")
            os.fsync(where)
            crash_point("finalize.after_fsync")
            part.remove()
            crash_point("finalize.after_unlink")
            return there_already

    def _kept(self, where: int, place: Place, size: int) -> bool:
        """Is the right file there, and will it stay for whoever is about to register it?"""
        if not self._right_at(where, place, size):
            return False
        with alone(where):
            return kept(where, place.name)

    def _right_at(self, where: int, place: Place, size: int) -> bool:
        try:
            fd = os.open(place.name, _OPEN, dir_fd=where)
        except FileNotFoundError:
            return False
        try:
            return is_file_of(fd, size) and sha256_of(fd) == (place.sha256, size)
        finally:
            os.close(fd)

    def _set_aside(self, where: int, place: Place) -> None:
        """Bytes under a name that is not their hash are moved away, never written over."""
        with suppress(FileNotFoundError):
            os.rename(place.name, f"{place.name}.damaged-{uuid.uuid4().hex[:8]}", src_dir_fd=where, dst_dir_fd=where)
            crash_point("store.set_aside")

    def size(self, pointer: str) -> int | None:
        found = self._look(place_of(pointer))
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None

    def keep(self, pointer: str) -> bool:
        place = place_of(pointer)
        try:
            with folder(self._root, place.folders) as where, alone(where):
                return kept(where, place.name)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise as_failure(error) from error

    def holds(self, pointer: str, size: int) -> bool:
        return self.size(pointer) == size

    def exists(self, pointer: str) -> bool:
        return self._look(place_of(pointer)) is not None

    def _look(self, place: Place) -> os.stat_result | None:
        try:
            with folder(self._root, place.folders) as where:
                return os.stat(place.name, dir_fd=where, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise as_failure(error) from error

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

    def vouched(self, pointer: str, sha256: str, size: int) -> bool:
        return self.is_right(pointer, sha256, size)  # a disk vouches for nothing

    def open(self, pointer: str, size: int) -> BinaryIO:
        place = place_of(pointer)
        try:
            with folder(self._root, place.folders) as where:
                fd = os.open(place.name, _OPEN, dir_fd=where)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise _at_fault("file_missing", "is gone from the store") from None
            raise as_failure(error) from error
        if not is_file_of(fd, size):
            os.close(fd)
            raise _at_fault("file_damaged", "has not the size with which it was registered")
        return os.fdopen(fd, "rb")

    def walk(self, after: str, limit: int) -> Sequence[StoredFile]:
        return strays.walk(self._root, self._shard_width, self._clock(), after, limit)

    def quarantine(self, path: str) -> bool:
        with (
            disk_errors(),
            suppress(FileNotFoundError),
            folder(self._root, path.split("/")[:-1]) as where,
            alone(where),  # as those who put a right file in the place of a wrong one
        ):
            return strays.set_apart(self._root, path, where)
        return False

    def settle(self, pointer: str) -> None:
        place = place_of(pointer)
        with disk_errors(), folder(self._root, place.folders) as where:
            fd = os.open(place.name, _OPEN, dir_fd=where)
            try:
                with alone(where):
                    if not kept(where, place.name):
                        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.fsync(where)

    def copy(self, pointer: str, place: Place) -> DedupeAction:
        source = place_of(pointer)
        with (
            disk_errors(),
            folder(self._root, source.folders) as there,
            folder(self._root, place.folders, create=True) as here,
        ):
            action = self._name_copy(source.name, there, place, here)
            if action is None:
                theirs = os.stat(source.name, dir_fd=there, follow_symlinks=False)
                with alone(here):
                    if not self._stands(here, place, theirs):
                        self._set_aside(here, place)
                        action = self._name_copy(source.name, there, place, here)
            crash_point("copy.named")
            os.fsync(here)
            return action or DedupeAction.SKIPPED

    def _stands(self, where: int, place: Place, theirs: os.stat_result) -> bool:
        """Is it there already? As another name of the same file, or with bytes that are as right as its name."""
        try:
            found = os.stat(place.name, dir_fd=where, follow_symlinks=False)
        except FileNotFoundError:
            return False
        right = same_file(found, theirs) or self._right_at(where, place, theirs.st_size)
        return right and kept(where, place.name)

    def _name_copy(self, name: str, there: int, place: Place, here: int) -> DedupeAction | None:
        """Give the bytes of `name` a further name or a file of their own; None when the name is taken."""
        if self._linking is Linking.HARDLINK:
            try:
                if linked(name, there, place.name, here):
                    return DedupeAction.HARDLINK
            except FileExistsError:
                return None
        with self._temporary(place.tenant, place.sha256) as (where, temporary):
            action = DedupeAction.REFLINK
            if self._linking is Linking.OFF or not cloned(name, there, temporary, where):
                copied(name, there, temporary, where)
                action = DedupeAction.COPY
            fd = os.open(temporary, _OPEN, dir_fd=where)
            try:
                if sha256_of(fd)[0] != place.sha256:
                    raise Retryable("the copy does not hash to its name", code="store_io_error")
                path = str(self._root / STAGING / place.tenant / temporary)
                crash_point("copy.prepared")
                return action if name_new(fd, path, place.name, here) else None
            finally:
                os.close(fd)

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
            old = os.stat(mine.name, dir_fd=here, follow_symlinks=False)
            theirs = os.stat(other.name, dir_fd=there, follow_symlinks=False)
            if same_file(old, theirs):
                os.fsync(here)  # it was done before, by somebody who may not have come to this line
                return DedupeAction.HARDLINK
            if not stat.S_ISREG(theirs.st_mode) or theirs.st_size != old.st_size:
                return DedupeAction.COPY  # no twin any more
            with self._temporary(mine.tenant, mine.sha256) as (where, temporary):
                action = share(self._linking, other.name, there, temporary, where)
                if action is None:
                    return DedupeAction.COPY
                crash_point("dedupe.after_link")
                os.rename(temporary, mine.name, src_dir_fd=where, dst_dir_fd=here)
            crash_point("dedupe.after_rename")
            os.fsync(here)
            return action

    def adopt(
        self,
        file: Foreign,
        tenant: str,
        project: str,
        ext: str,
        sharing: Sharing,
        heard: Callable[[int], None],
        *,
        expected: str | None = None,
    ) -> Adopted:
        with (
            adopting.opened(file) as theirs,
            disk_errors(),
            self._temporary(check_id("tenant", tenant), "adopted") as (where, temporary),
        ):
            before = os.fstat(theirs)
            size = before.st_size if file.size is None else file.size
            ours, action = adopting.bring(theirs, where, temporary, sharing)
            kept = False
            try:
                crash_point("torrents.brought")
                sha256 = adopting.hashed(ours, size, heard)
                if expected not in (None, sha256):
                    raise adopting.unexpected()
                os.fsync(ours)  # the bytes last before their name does
                place = self.place(tenant, project, sha256, ext)
                crash_point("torrents.hashed")
                if os.fstat(theirs).st_mtime_ns != before.st_mtime_ns:
                    raise adopting.changed()
                with folder(self._root, place.folders, create=True) as here:
                    new = self._name(where, temporary, here, place, size)
                    kept = os.stat(place.name, dir_fd=here, follow_symlinks=False).st_ino == before.st_ino
                    os.fsync(here)
                crash_point("torrents.named")
            finally:
                os.close(ours)
                if action is DedupeAction.HARDLINK and not kept:  # nothing of it is ours: as if we had not been here
                    os.fchmod(theirs, stat.S_IMODE(before.st_mode))
        return Adopted(sha256, size, place.pointer, action if new or kept else DedupeAction.SKIPPED)

    def _name(self, where: int, temporary: str, here: int, place: Place, size: int) -> bool:
        """Give the prepared file its final name; False when the right bytes stand there already."""
        for _ in range(2):
            try:
                os.link(temporary, place.name, src_dir_fd=where, dst_dir_fd=here, follow_symlinks=False)
                return True
            except FileExistsError:
                if self._kept(here, place, size):
                    return False
                self._set_aside(here, place)
        raise Retryable("the place of a blob is taken by other bytes again and again", code="store_error")


def _at_fault(code: str, what: str) -> Permanent:
    return Permanent(f"the file {what}", code=code, hint="The next reconcile brings it again, or: dlpipe refresh JOB.")


def _hash(fd: int, size: int) -> tuple[str, int]:
    with disk_errors():
        return sha256_of(fd, size)

"""Where blobs wait that nobody wants any more, until they are removed, or come back (ADR 31).

A blob leaves its place by a rename under the lock of its folder, and only when nobody has touched it for the grace.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import InvalidInput
from dlpipe.core.layout import place_of
from dlpipe.core.ports.trash import TrashedFile
from dlpipe.store.folders import alone, disk_errors, folder, sha256_of
from dlpipe.store.links import same_file
from dlpipe.store.strays import move_new, renamed_new

TRASH = ".trash"
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NUMBERED = re.compile(r"\.[0-9]+\Z")
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class LocalTrash:
    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._root = root
        self._clock = clock

    def put(self, pointer: str, grace_s: float) -> bool:
        place = place_of(pointer)
        try:
            with folder(self._root, place.folders) as where, alone(where):
                fd = os.open(place.name, _OPEN, dir_fd=where)
                try:
                    return self._put(fd, place.folders, place.name, where, grace_s)
                finally:
                    os.close(fd)
        except OSError as error:
            if error.errno in _ABSENT:
                return False
            with disk_errors():
                raise

    def _put(self, fd: int, folders: Sequence[str], name: str, where: int, grace_s: float) -> bool:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or self._age(found) < grace_s:
            return False
        with folder(self._root, (TRASH, *folders), create=True) as there:
            # The trash's grace begins now, on file systems as well where a rename leaves no trace.
            with suppress(PermissionError):
                os.fchmod(fd, stat.S_IMODE(found.st_mode))
            new = move_new(where, name, there)
            if new is None:
                return False
            crash_point("gc.moved")
            os.fsync(there)
        os.fsync(where)
        return True

    def walk(self, after: str, limit: int) -> list[TrashedFile]:
        with disk_errors():
            behind = (path for path in self._paths(()) if path > tuple(after.split("/")))
            found: list[TrashedFile] = []
            for path in behind:
                if len(found) == limit:
                    break
                if (one := self._described(path)) is not None:
                    found.append(one)
            return found

    def _paths(self, parts: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        try:
            with folder(self._root, (TRASH, *parts)) as where:
                names = sorted(os.listdir(where))
                kinds = {}
                for name in names:
                    with suppress(FileNotFoundError):
                        kinds[name] = os.stat(name, dir_fd=where, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        for name, mode in kinds.items():
            if stat.S_ISDIR(mode):
                yield from self._paths((*parts, name))
            elif stat.S_ISREG(mode):
                yield (*parts, name)

    def _described(self, path: tuple[str, ...]) -> TrashedFile | None:
        *folders, name = path
        for stem in (name, _NUMBERED.sub("", name)):
            with suppress(InvalidInput, FileNotFoundError):
                pointer = place_of("local:" + "/".join((*folders, stem))).pointer
                with folder(self._root, (TRASH, *folders)) as where:
                    found = os.stat(name, dir_fd=where, follow_symlinks=False)
                return TrashedFile("/".join(path), pointer, found.st_size, self._age(found))
        return None  # nothing that we put there

    def restore(self, file: TrashedFile) -> bool:
        place = place_of(file.pointer)
        *folders, name = file.path.split("/")
        with (
            disk_errors(),
            suppress(FileNotFoundError),
            folder(self._root, (TRASH, *folders)) as there,
            folder(self._root, place.folders, create=True) as where,
        ):
            fd = os.open(name, _OPEN, dir_fd=there)
            try:
                if sha256_of(fd)[0] != place.sha256:
                    return False
                with alone(where), suppress(FileExistsError):
                    renamed_new(there, name, where, place.name)
                    os.fsync(where)
                    os.fsync(there)
                    return same_file(os.stat(place.name, dir_fd=where, follow_symlinks=False), os.fstat(fd))
            finally:
                os.close(fd)
        return False

    def remove(self, file: TrashedFile, grace_s: float) -> bool:
        *folders, name = file.path.split("/")
        with disk_errors(), suppress(FileNotFoundError), folder(self._root, (TRASH, *folders)) as there, alone(there):
            if self._age(os.stat(name, dir_fd=there, follow_symlinks=False)) < grace_s:
                return False
            os.unlink(name, dir_fd=there)
            os.fsync(there)
            return True
        return False

    def _age(self, found: os.stat_result) -> float:
        return self._clock() - max(found.st_mtime, found.st_ctime)

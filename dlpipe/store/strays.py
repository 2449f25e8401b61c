"""What lies in the store's folders, looked at in pages; and the way aside for what does not belong there.

Nothing is removed here. Hidden names, symlinks and whatever stands where no blob stands are somebody else's.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dlpipe.core.crash import crash_point
from dlpipe.core.errors import InvalidInput
from dlpipe.core.layout import place_of
from dlpipe.core.ports import StoredFile
from dlpipe.store.folders import disk_errors, folder, sha256_of
from dlpipe.store.links import rename_new, same_file

QUARANTINE = ".quarantine"
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_BLOB = re.compile(r"[0-9a-f]{64}(?![0-9a-f])")
_SHARD = re.compile(r"[0-9a-f]{1,8}\Z")
_TENANT, _PROJECT, _SHARDS = range(3)
_NO_RENAME = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})


def walk(root: Path, shard_width: int, now: float, after: str, limit: int) -> list[StoredFile]:
    """Files behind `after` in the order of their paths."""
    behind = tuple(after.split("/")) if after else ()
    with disk_errors():
        return list(itertools.islice(_below(root, (), behind, shard_width, now), limit))


def _below(root: Path, parts: tuple[str, ...], behind: tuple[str, ...], width: int, now: float) -> Iterator[StoredFile]:
    """In the order of names; `behind` is what is left of the path that the page before ended with."""
    level = len(parts)
    for name, found in _entries(root, parts):
        if behind and (name < behind[0] or (name == behind[0] and len(behind) == 1)):
            continue
        path = (*parts, name)
        enters = stat.S_ISDIR(found.st_mode) and (
            level in (_TENANT, _PROJECT) or (level == _SHARDS and _SHARD.match(name) is not None)
        )
        if enters and not name.startswith("."):
            yield from _below(root, path, behind[1:] if behind and name == behind[0] else (), width, now)
        elif level > 0 or not name.startswith("."):
            yield _described(path, found, width, now)


def _entries(root: Path, parts: tuple[str, ...]) -> list[tuple[str, os.stat_result]]:
    """Sorted, without what goes away while we look."""
    try:
        with folder(root, parts) as where:
            found = []
            for name in sorted(os.listdir(where)):
                with suppress(FileNotFoundError):
                    found.append((name, os.stat(name, dir_fd=where, follow_symlinks=False)))
            return found
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return []
        raise


def _described(path: tuple[str, ...], found: os.stat_result, width: int, now: float) -> StoredFile:
    name, joined = path[-1], "/".join(path)
    pointer = None
    with suppress(InvalidInput):
        pointer = place_of(f"local:{joined}").pointer
    ours = stat.S_ISREG(found.st_mode) and not name.startswith(".") and (pointer is not None or _among(path, width))
    # The later of both: a link, which gives a file its place, changes the second only.
    return StoredFile(joined, pointer if ours else None, found.st_size, now - max(found.st_mtime, found.st_ctime), ours)


def _among(path: tuple[str, ...], width: int) -> bool:
    """It has no name of a blob, but stands where nothing but blobs does, or is named like one."""
    in_shard = width > 0 and len(path) == 4 and len(path[2]) == width
    return len(path) > 2 and (in_shard or _BLOB.match(path[-1]) is not None)


def described_key(space: str, key: str, size: int, age_s: float, width: int) -> StoredFile:
    """The same of an object, by its key alone."""
    path, pointer = tuple(key.split("/")), None
    with suppress(InvalidInput):
        pointer = place_of(f"{space}:{key}", space).pointer
    strange = len(path) > 4 or any(part.startswith(".") for part in path)
    shard = len(path) < 4 or _SHARD.match(path[2]) is not None
    ours = not strange and (pointer is not None or (shard and _among(path, width)))
    return StoredFile(key, pointer if ours else None, size, age_s, ours)


def set_apart(root: Path, path: str, where: int) -> bool:
    """Move a file of the open folder `where` below `.quarantine`; False when it is gone, or right after all."""
    *folders, name = path.split("/")
    try:
        fd = os.open(name, _OPEN, dir_fd=where)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return False
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or _is_right(fd, path):
            return False
        with folder(root, (QUARANTINE, *folders), create=True) as there:
            new = move_new(where, name, there)
            crash_point("heal.moved")
            if new is None:
                return False
            if not same_file(os.stat(new, dir_fd=there, follow_symlinks=False), found):
                # Somebody put the right file there after we had looked.
                with suppress(FileExistsError):
                    rename_new(there, new, where, name)
                return False
            os.fsync(there)
        os.fsync(where)
        return True
    finally:
        os.close(fd)


def _is_right(fd: int, path: str) -> bool:
    try:
        place = place_of(f"local:{path}")
    except InvalidInput:
        return False
    return sha256_of(fd)[0] == place.sha256


def move_new(where: int, name: str, there: int) -> str | None:
    """To the first name that is free; None when the file is gone."""
    for number in itertools.count():
        new = f"{name}.{number}" if number else name
        try:
            renamed_new(where, name, there, new)
        except FileExistsError:
            continue
        except FileNotFoundError:
            return None
        return new
    return None


def renamed_new(where: int, name: str, there: int, new: str) -> None:
    """Rename over nothing: FileExistsError when the name is taken."""
    try:
        rename_new(where, name, there, new)
    except OSError as error:
        if error.errno not in _NO_RENAME:
            raise
        os.link(name, new, src_dir_fd=where, dst_dir_fd=there, follow_symlinks=False)
        os.unlink(name, dir_fd=where)

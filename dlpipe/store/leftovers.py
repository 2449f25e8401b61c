"""What lies in the staging folders, looked at in pages; and its removal, under the lock that its holder would have."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dlpipe.core.layout import is_id
from dlpipe.core.ports import Staged
from dlpipe.store import sidecar
from dlpipe.store.folders import as_failure, disk_errors, folder

NODE = "@"
"""What the names of nodes' own folders begin with; no tenant's does."""
_PART = re.compile(r"(?P<slug>[0-9a-f]{16})\.(?:part|json)\Z")
_TEMPORARY = re.compile(
    r"(?:[0-9a-f]{16}\.part\.[0-9a-f]{8}\.new|[0-9a-f]{16}\.json\.[0-9]+\.[0-9]+|.+\.[0-9a-f]{8}\.tmp)\Z"
)


def walk(root: Path, staging: str, own: tuple[str, ...], now: float, after: str, limit: int) -> list[Staged]:
    """What is staged behind `after`: what is for all nodes, by tenant and name, then what is in our own folder.

    Other nodes' folders are for them to look after, also where they can be seen.
    """
    mine, behind = own[:1], after.startswith(NODE)
    with disk_errors():
        shared = iter(()) if behind else _all(root, (staging,), "", now, after)
        further = after.partition("/")[2] if behind else ""
        ours = _all(root, (staging, *mine), f"{mine[0]}/", now, further) if mine else iter(())
        return list(itertools.islice(itertools.chain(shared, ours), limit))


def _all(root: Path, within: tuple[str, ...], prefix: str, now: float, after: str) -> Iterator[Staged]:
    behind_tenant, _, behind_name = after.partition("/")
    for tenant in _names(root, within):
        if tenant < behind_tenant or not is_id(tenant):
            continue
        behind = behind_name if tenant == behind_tenant else ""
        try:
            # Each folder by itself: what stands in the place of one must not hide those behind it.
            with folder(root, (*within, tenant)) as where:
                # All names of a part share its slug, and count as one.
                for slug, names in itertools.groupby(sorted(os.listdir(where), key=_key), _key):
                    if slug > behind:
                        yield _described(where, f"{prefix}{tenant}", slug, list(names), now)
        except FileNotFoundError:
            continue
        except OSError as error:
            if tenant != behind_tenant:
                yield _in_trouble(f"{prefix}{tenant}/", as_failure(error).code)


def _names(root: Path, parts: tuple[str, ...]) -> list[str]:
    try:
        with folder(root, parts) as where:
            return sorted(os.listdir(where))
    except FileNotFoundError:
        return []


def _key(name: str) -> str:
    """What it goes by: a part and its sidecar by their slug, all else by its name as it may stand in the ledger."""
    match = _PART.match(name)
    return match["slug"] if match else "".join(map(_plain, name))


def _plain(character: str) -> str:
    return character if character.isascii() and character.isprintable() else f"\\u{ord(character):04x}"


def _described(where: int, folders: str, slug: str, names: list[str], now: float) -> Staged:
    part = any(map(_PART.match, names))
    side = sidecar.read(where, f"{slug}.json") if part else None
    newest, size, plain = 0.0, 0, True
    for name in names:
        try:
            found = os.stat(name, dir_fd=where, follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            return _in_trouble(f"{folders}/{slug}", as_failure(error).code)
        newest = max(newest, found.st_mtime, found.st_ctime)
        size += found.st_size
        plain = plain and stat.S_ISREG(found.st_mode)
    if part and not plain:
        return _in_trouble(f"{folders}/{slug}", "staging_no_file")
    return Staged(
        path=f"{folders}/{slug}",
        part=slug if part else None,
        temporary=plain and slug in names and _TEMPORARY.match(slug) is not None,
        job_id=side.job_id if side else None,
        size=size,
        age_s=now - newest,
    )


def _in_trouble(path: str, code: str) -> Staged:
    return Staged(path, part=None, temporary=False, job_id=None, size=0, age_s=0.0, trouble=code)


def discard(root: Path, staging: str, now: float, staged: Staged, older_than_s: float) -> bool:
    """Remove it unless somebody holds it, or has touched it since it was looked at."""
    *within, name = staged.path.split("/")
    main = f"{name}.part" if staged.part else name
    names = [f"{name}.json", main] if staged.part else [main]  # the sidecar first: without it a part is nothing
    with disk_errors(), suppress(FileNotFoundError), folder(root, (staging, *within)) as where:
        there = [one for one in names if _inode(where, one) is not None]
        if not there:
            return False
        fd = _open(where, main, create=main not in there)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            again = _described(where, "/".join(within), name, there, now)
            untouched = again.age_s >= older_than_s and again.job_id == staged.job_id
            if not untouched or _inode(where, main) != os.fstat(fd).st_ino:
                return False
            for one in names:
                with suppress(FileNotFoundError):
                    os.unlink(one, dir_fd=where)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
    return False


def _open(where: int, name: str, *, create: bool) -> int:
    """A sidecar whose part is gone is guarded by that part's lock all the same, so the part is made for that."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    return os.open(name, flags | (os.O_CREAT if create else 0), 0o600, dir_fd=where)


def _inode(where: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=where, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return None

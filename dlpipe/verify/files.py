"""Every file of the store: does a row know it, and are its bytes what its name says?"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dlpipe.verify import rules
from dlpipe.verify.facts import Snapshot
from dlpipe.verify.findings import Finding

BATCH = 500
READ_BYTES = 1 << 20
KEPT_DIGESTS = 65_536
"""Of files with several names, so that each is read once."""
_DEPTH = 4
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """Something below the store's root; `path` is relative to it."""

    path: str
    name: str
    plain: bool


def walk(root: Path) -> Iterator[Found]:
    """Everything in the store but folders; what stands in hidden folders of the root is not of the store."""
    if root.is_dir():
        yield from _below(root, "", 1)


def _below(root: Path, within: str, depth: int) -> Iterator[Found]:
    folders: list[str] = []
    with os.scandir(root / within) as entries:
        for entry in entries:
            path = f"{within}{entry.name}"
            if depth == 1 and entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False) and depth < _DEPTH:
                folders.append(path)
            else:
                yield Found(path, entry.name, entry.is_file(follow_symlinks=False))
    for path in folders:
        yield from _below(root, f"{path}/", depth + 1)


def batches(found: Iterator[Found]) -> Iterator[list[Found]]:
    while batch := list(islice(found, BATCH)):
        yield batch


class Reader:
    """Hashes files, each once however many names it has."""

    def __init__(self, root: Path, heard: Callable[[int], None]) -> None:
        self._root = root
        self._heard = heard
        self._digests: OrderedDict[tuple[int, int, int], str] = OrderedDict()

    def digest(self, path: str) -> str:
        """The sha256 of a file's bytes; OSError when it cannot be read."""
        fd = os.open(self._root / path, _OPEN)
        try:
            about = os.fstat(fd)
            key = (about.st_dev, about.st_ino, about.st_mtime_ns)
            if key in self._digests:
                self._digests.move_to_end(key)
                return self._digests[key]
            digest = hashlib.sha256()
            offset = 0
            while block := os.pread(fd, READ_BYTES, offset):
                digest.update(block)
                offset += len(block)
                self._heard(len(block))
        finally:
            os.close(fd)
        if about.st_nlink > 1:
            self._digests[key] = digest.hexdigest()
            if len(self._digests) > KEPT_DIGESTS:
                self._digests.popitem(last=False)
        return digest.hexdigest()

    def forget(self) -> None:
        self._digests.clear()


def judge(root: Path, batch: list[Found], now: Snapshot, reader: Reader | None) -> Iterator[Finding]:
    """All that is wrong with these files; their bytes are read if there is a reader."""
    named = {found.path: digest for found in batch if (digest := rules.digest_in(found.name)) is not None}
    known = now.artifacts_of(set(named.values())) if named else {}
    strangers = [found for found in batch if f"local:{found.path}" not in known]
    excused = _excused(now, {named[f.path] for f in strangers if f.path in named}) if strangers else _NOBODY
    for found in batch:
        rows = known.get(f"local:{found.path}", [])
        yield from _judge_one(root, found, named.get(found.path), rows, excused, reader)


def _judge_one(
    root: Path,
    found: Found,
    digest: str | None,
    rows: list[Any],
    excused: Callable[[str, str], bool],
    reader: Reader | None,
) -> Iterator[Finding]:
    path, job_id = found.path, next((row.created_by_job_id for row in rows), None)
    if not found.plain:
        yield Finding("file_not_plain", path, "", job_id, path)
        return
    if digest is None:
        if rules.is_set_aside(found.name):
            yield Finding("set_aside", path, path=path)
        else:
            yield Finding("name_not_hash", path, "the name is none that the store gives", None, path)
        return
    if rows and all(_is_brought_again(row) for row in rows):
        return
    try:
        about = os.lstat(root / path)
        if rows and about.st_size not in {row.byte_size for row in rows}:
            yield Finding("file_size", path, f"{about.st_size} instead of {rows[0].byte_size} bytes", job_id, path)
            return
        if reader is not None and reader.digest(path) != digest:
            yield Finding("file_damaged" if rows else "name_not_hash", path, "", job_id, path)
            return
    except FileNotFoundError:
        return  # it was there a moment ago; a row that misses it says so
    except OSError as error:
        yield Finding("file_unreadable", path, error.strerror or "", job_id, path)
        return
    if not rows and not excused(path, digest):
        yield Finding("file_unknown", path, "", None, path)
    elif stat.S_IMODE(about.st_mode) & 0o222:
        yield Finding("file_writable", path, f"mode {stat.S_IMODE(about.st_mode):04o}", job_id, path)


def _is_brought_again(row: Any) -> bool:
    """The job that made the artifact is on its way to bring the file once more."""
    state = row.state
    return state is not None and state not in rules.PLACED and not rules.ended(state, due=row.due_at is not None)


def _nobody(_path: str, _digest: str) -> bool:
    return False


_NOBODY: Callable[[str, str], bool] = _nobody


def _excused(now: Snapshot, digests: set[str]) -> Callable[[str, str], bool]:
    """Files without an artifact that are where they have to be: an op names them, or they just got their names."""
    if not digests:
        return _NOBODY
    bringing = now.bringing()
    placed: set[str] = set()
    coming: set[tuple[str, str, str]] = set()
    for row in now.brought():
        result = rules.result_of(row.op_type, row.result_json)
        if result is None or result["sha256"] not in digests:
            continue
        if row.op_type == "FINALIZE":
            placed.add(result["pointer"])
        elif not rules.ended(row.state, due=row.due_at is not None):
            coming.add((row.tenant_id, row.project_id, result["sha256"]))

    def excused(path: str, digest: str) -> bool:
        tenant, project, *_ = f"{path}//".split("/")
        return f"local:{path}" in placed or (tenant, project, digest) in coming or (tenant, project) in bringing

    return excused

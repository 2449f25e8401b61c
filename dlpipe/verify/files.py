"""Every file of the store: does a row know it, and are its bytes what its name says?"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
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
YOUNG_S = 3_600.0
"""Unless the settings say otherwise."""
GRACE = timedelta(seconds=300)
"""A mark on a file that is there again is taken off within this."""
_DEPTH = 4
_MARK = ".dlpipe-store"
_MARK_BYTES = 64
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """Something below the store's root; `path` is relative to it."""

    path: str
    name: str
    plain: bool


def mark(root: Path) -> str | None:
    """The id that the store bears (ADR 29); None when it bears none, or none that can be read."""
    try:
        fd = os.open(root / _MARK, _OPEN)
    except OSError:
        return None
    try:
        return os.read(fd, _MARK_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return None  # a folder
    finally:
        os.close(fd)


def walk(root: Path) -> Iterator[Found]:
    """Everything in the store but folders; what stands in hidden folders of the root is not of the store."""
    if root.is_dir():
        yield from _below(root, "", 1)


def _below(root: Path, within: str, depth: int) -> Iterator[Found]:
    folders: list[str] = []
    with os.scandir(os.path.join(root, within)) as entries:
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
        fd = os.open(os.path.join(self._root, path), _OPEN)
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


def judge(
    root: Path, batch: list[Found], now: Snapshot, reader: Reader | None, young_s: float | None
) -> Iterator[Finding]:
    """All that is wrong with these files; their bytes are read if there is a reader.

    What is younger than `young_s` and that no row knows is left to those who work; None: nobody does.
    """
    named = {found.path: digest for found in batch if (digest := rules.digest_in(found.name)) is not None}
    known = now.artifacts_of(set(named.values())) if named else {}
    strangers = {named[f.path] for f in batch if f.path in named and f"local:{f.path}" not in known}
    look = Look(root, now, reader, young_s, strangers)
    for found in batch:
        rows = known.get(f"local:{found.path}", [])
        if not found.plain:
            yield Finding("file_not_plain", found.path, "", _job(rows), found.path)
        elif found.path not in named:
            yield _odd(found)
        elif not (rows and all(rules.is_brought_again(row) for row in rows)):
            yield from _judge_one(look, found.path, named[found.path], rows)


def _job(rows: list[Any]) -> str | None:
    """Whose file it is: of several, a job that has not failed since."""
    likely = sorted(rows, key=lambda row: row.state not in rules.PLACED)
    return likely[0].created_by_job_id if likely else None


def _odd(found: Found) -> Finding:
    if rules.is_set_aside(found.name):
        return Finding("set_aside", found.path, path=found.path)
    return Finding("name_not_hash", found.path, "the name is none that the store gives", None, found.path)


def _judge_one(look: Look, path: str, digest: str, rows: list[Any]) -> Iterator[Finding]:
    job_id = _job(rows)
    try:
        about = os.lstat(os.path.join(look.root, path))
        if rows and about.st_size not in {row.byte_size for row in rows}:
            yield Finding("file_size", path, f"{about.st_size} instead of {rows[0].byte_size} bytes", job_id, path)
            return
        if look.reader is not None and look.reader.digest(path) != digest:
            yield Finding("file_damaged" if rows else "name_not_hash", path, "", job_id, path)
            return
    except FileNotFoundError:
        return  # it was there a moment ago; a row that misses it says so
    except OSError as error:
        yield Finding("file_unreadable", path, error.strerror or "", job_id, path)
        return
    if not rows:
        yield from look.stranger(path, digest, max(about.st_mtime, about.st_ctime))
    if stat.S_IMODE(about.st_mode) & 0o222:
        yield Finding("file_writable", path, f"mode {stat.S_IMODE(about.st_mode):04o}", job_id, path)
    if look.reader is not None and any(look.is_wrongly_marked(row) for row in rows):
        yield Finding("mark_wrong", path, "", job_id, path)


class Look:
    """One look at some files; `strangers` are the digests of those that no artifact names."""

    def __init__(
        self, root: Path, now: Snapshot, reader: Reader | None, young_s: float | None, strangers: set[str]
    ) -> None:
        self.root = root
        self.reader = reader
        self._now = now.now
        self._young_s = young_s
        self._indexed = now.indexed(strangers) if strangers else {}
        self._bringing = now.bringing() if strangers else set()
        self._placed: set[str] = set()
        self._coming: set[tuple[str, str, str]] = set()
        if strangers:
            self._read_ops(now, strangers)

    def _read_ops(self, now: Snapshot, strangers: set[str]) -> None:
        """Files that an op names, and those that a job is about to name."""
        for row in now.brought():
            result = rules.result_of(row.op_type, row.result_json)
            if result is None or result["sha256"] not in strangers:
                continue
            if row.op_type == "FINALIZE":
                self._placed.add(result["pointer"])
            elif not rules.ended(row.state, due=row.due_at is not None):
                self._coming.add((row.tenant_id, row.project_id, result["sha256"]))

    def stranger(self, path: str, digest: str, born: float) -> Iterator[Finding]:
        """A right file that no artifact names."""
        pointer = rules.pointer_to(path)
        tenant, project, *_ = f"{pointer.partition(':')[2]}//".split("/")
        if (tenant, project, digest) in self._coming or (tenant, project) in self._bringing:
            return
        known = [row for row in self._indexed.get(digest, []) if row.scope in ("*", tenant, f"{tenant}/{project}")]
        if pointer in self._placed or pointer in {row.pointer for row in known}:
            return
        age_s = self._now.timestamp() - born
        if self._young_s is not None and age_s < self._young_s:
            return
        yield Finding("file_spare" if known else "file_unknown", path, path=path)

    def is_wrongly_marked(self, row: Any) -> bool:
        return row.fault is not None and (self._young_s is None or row.found_at + GRACE < self._now)

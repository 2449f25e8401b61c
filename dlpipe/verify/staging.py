"""Every file in the staging folder: is it a part that a job still wants?"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlpipe.verify import rules
from dlpipe.verify.facts import Snapshot
from dlpipe.verify.findings import Finding

FOLDER = ".staging"
NODE = "@"
"""What the names of nodes' own folders begin with."""
YOUNG_S = 3_600.0
"""Unless the settings say otherwise."""
BATCH = 20_000
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_PART = re.compile(r"([0-9a-f]{16})\.(?:part|json)\Z")


def judge(root: Path, now: Snapshot, young_s: float | None) -> Iterator[Finding]:
    """All that nobody wants and that is not young; None: whatever its age."""
    for within, name in _folders(root):
        batch: list[os.DirEntry[str]] = []
        try:
            # Each by itself: one that cannot be read must not hide those behind it.
            with _opened(root / within / name) as fd, os.scandir(fd) as entries:
                for entry in entries:
                    if young_s is None or _is_old(entry, now, young_s):
                        batch.append(entry)
                    if len(batch) == BATCH:
                        yield from _judge_batch(within, name, batch, now)
                        batch = []
        except OSError as error:
            if error.errno != errno.ENOENT:
                yield Finding("staging_blocked", f"{within}/{name}", errno.errorcode.get(error.errno or 0, ""))
            continue
        if batch:
            yield from _judge_batch(within, name, batch, now)


def _folders(root: Path) -> list[tuple[str, str]]:
    """Where tenants' folders belong, and those within the folders of single nodes."""
    found = _names(root / FOLDER)
    own = [f"{FOLDER}/{name}" for name in found if name.startswith(NODE)]
    shared = [(FOLDER, name) for name in found]
    within = [(folder, name) for folder in own for name in _names(root / folder)]
    return [(folder, name) for folder, name in (*shared, *within) if _TENANT.match(name)]


def _names(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, _OPEN)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_old(entry: os.DirEntry[str], now: Snapshot, young_s: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime < now.now.timestamp() - young_s
    except FileNotFoundError:
        return False


def _judge_batch(within: str, tenant: str, batch: list[os.DirEntry[str]], now: Snapshot) -> Iterator[Finding]:
    slugs: dict[str, list[str]] = {}
    for entry in batch:
        path = f"{within}/{tenant}/{entry.name.encode('utf-8', 'backslashreplace').decode()}"
        match = _PART.match(entry.name)
        if match is None:
            yield Finding("stray_temp", path, path=path)
        else:
            slugs.setdefault(match[1], []).append(path)
    if not slugs:
        return
    for url in now.wanted_urls(tenant):
        slugs.pop(rules.slug(tenant, url), None)
    for paths in slugs.values():
        for path in sorted(paths):
            yield Finding("stray_part", path, path=path)

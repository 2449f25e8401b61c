"""Every file in the staging folder: is it a part that a job still wants?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
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
_PART = re.compile(r"([0-9a-f]{16})\.(?:part|json)\Z")


def judge(root: Path, now: Snapshot, young_s: float | None) -> Iterator[Finding]:
    """All that nobody wants and that is not young; None: whatever its age."""
    for within, tenant in _tenants(root):
        batch: list[os.DirEntry[str]] = []
        with os.scandir(root / within / tenant) as entries:
            for entry in entries:
                if young_s is None or _is_old(entry, now, young_s):
                    batch.append(entry)
                if len(batch) == BATCH:
                    yield from _judge_batch(within, tenant, batch, now)
                    batch = []
        if batch:
            yield from _judge_batch(within, tenant, batch, now)


def _tenants(root: Path) -> list[tuple[str, str]]:
    """Their folders, and those within the folders of single nodes."""
    found = _folders(root / FOLDER)
    own = [f"{FOLDER}/{name}" for name in found if name.startswith(NODE)]
    shared = [(FOLDER, name) for name in found if not name.startswith(NODE)]
    return [*shared, *((within, name) for within in own for name in _folders(root / within))]


def _folders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _is_old(entry: os.DirEntry[str], now: Snapshot, young_s: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime < now.now.timestamp() - young_s
    except FileNotFoundError:
        return False


def _judge_batch(within: str, tenant: str, batch: list[os.DirEntry[str]], now: Snapshot) -> Iterator[Finding]:
    slugs: dict[str, list[str]] = {}
    for entry in batch:
        path = f"{within}/{tenant}/{entry.name}"
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

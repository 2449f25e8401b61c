"""What must hold between the registered artifacts, the indexes that find them, and the library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dlpipe.verify import rules
from dlpipe.verify.facts import Snapshot
from dlpipe.verify.findings import Finding
from dlpipe.verify.indexes import Indexes
from dlpipe.verify.objects import Objects


def judge(now: Snapshot, root: Path, objects: Objects | None = None) -> Iterator[Finding]:
    indexes = Indexes(now)
    for row in indexes.makerless():
        yield Finding("artifact_without_job", str(row.artifact_uuid), "it names none")
    for row in indexes.manifest_without_artifact():
        yield Finding("manifest_wrong", str(row.artifact_uuid), "its artifact does not exist", str(row.job_id))
    for row in indexes.hashes_without_artifact():
        path = rules.path_in(row.pointer)  # of bytes that were adopted there is no artifact, but a file
        there = _size(root, objects, path) if path is not None else None
        if path is None or rules.digest_in(path.rpartition("/")[2]) != row.sha256 or there != row.size:
            yield Finding("hash_index_wrong", f"{row.scope}:{row.sha256}", "nothing is what the entry says")
    for row in indexes.artifacts_without_hash():
        yield Finding("hash_index_wrong", str(row.artifact_uuid), f"{row.sha256} is not in it")
    for row in indexes.urls():
        where = f"{row.scope}:{row.url_sha256}"
        if rules.url_digest(row.canonical_url) != row.url_sha256:
            yield Finding("url_index_wrong", where, "the entry stands under another URL's key")
        elif not row.borne_out:
            yield Finding("url_index_wrong", where, "no artifact is what the entry says")
    for row in indexes.books():
        yield Finding("library_wrong", f"{row.tenant_id}/{row.project_id}", f"the state of book {row.book_id}")
    for row in indexes.completed_without_asset():
        yield Finding("library_wrong", str(row.job_id), "a completed download without its asset", str(row.job_id))
    for row in indexes.linked():
        yield from _apart(root, row.pointer, row.twin)


def _size(root: Path, objects: Objects | None, path: str) -> int | None:
    if rules.in_bucket(path):
        return objects.size(path) if objects is not None else None
    try:
        return os.lstat(root / path).st_size
    except OSError:
        return None


def _apart(root: Path, pointer: str, twin: str) -> Iterator[Finding]:
    one, other = rules.path_in(pointer), rules.path_in(twin)
    if one is None or other is None:
        return
    try:
        mine, theirs = os.lstat(root / one), os.lstat(root / other)
    except OSError:
        return  # that is reported of the file itself
    if (mine.st_dev, mine.st_ino) != (theirs.st_dev, theirs.st_ino):
        yield Finding("link_apart", one, f"its twin is {other}", path=one)

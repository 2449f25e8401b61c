"""The port BlobStore, where one file is to share the bytes of another. DEDUPE-1."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dlpipe.core.errors import Retryable
from dlpipe.core.ports import BlobStore
from dlpipe.core.results import DedupeAction
from dlpipe.store import LocalBlobStore
from tests.parts import BODY, DIGEST, WRONG, path_of, published, put
from tests.world import blobs, staged


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return LocalBlobStore(tmp_path)


# ── copy and unify ────────────────────────────────────────────────────────────────────────────────


def first_link_fails(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """From there to here there are no links; within the file system that is copied to there are."""
    link, calls = os.link, 0

    def not_from_there(*arguments: object, **more: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError(number, os.strerror(number))
        link(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", not_from_there)


NO_LINKS = [errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP]


@pytest.mark.parametrize("number", NO_LINKS)
def test_else_it_is_a_copy_of_the_bytes(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, other = published(store, tmp_path), store.place("t", "q", DIGEST, ".bin")
    first_link_fails(monkeypatch, number)
    assert store.copy(first.pointer, other) is DedupeAction.COPY
    assert not os.path.samefile(path_of(store, first), path_of(store, other))
    assert list(blobs(tmp_path).values()) == [BODY, BODY]
    assert staged(tmp_path) == []


def test_a_damaged_file_is_not_copied_byte_by_byte(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = store.place("t", "p", DIGEST, ""), store.place("t", "q", DIGEST, "")
    put(store, first, WRONG)
    first_link_fails(monkeypatch, errno.EXDEV)
    with pytest.raises(Retryable) as refused:
        store.copy(first.pointer, other)
    assert refused.value.code == "store_io_error"
    assert not path_of(store, other).exists()
    assert staged(tmp_path) == []

"""The port BlobStore on the local file system: a name is the hash of the bytes. FINAL-1, FINAL-2, DEDUPE-1."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlpipe.core.errors import InvalidInput, LeaseLost, Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.ports import BlobStore
from dlpipe.store import LocalBlobStore
from tests.parts import BODY, DIGEST, URL, WRONG, brought, path_of, published, put
from tests.world import blobs, no_links, sha256, staged


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return LocalBlobStore(tmp_path)


# ── publish ───────────────────────────────────────────────────────────────────────────────────────


def test_a_published_file_is_named_by_its_hash_and_read_only(store: BlobStore, tmp_path: Path) -> None:
    place = published(store, tmp_path)
    path = path_of(store, place)
    assert path == tmp_path / "t" / "p" / DIGEST[:2] / f"{DIGEST}.bin"
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode), path.stat().st_nlink) == (BODY, 0o444, 1)
    assert staged(tmp_path) == []
    assert store.holds(place.pointer, len(BODY))
    assert store.is_right(place.pointer, DIGEST, len(BODY))
    assert store.shard(place.pointer) == DIGEST[:2]


def test_published_again_it_was_there_already(store: BlobStore, tmp_path: Path) -> None:
    place = published(store, tmp_path)
    inode = path_of(store, place).stat().st_ino
    with brought(tmp_path) as part:
        assert store.publish(part, place, len(BODY)) is True
    assert path_of(store, place).stat().st_ino == inode
    assert staged(tmp_path) == []


@pytest.mark.parametrize(
    "harm",
    [
        lambda fd: os.pwrite(fd, b"!", 5),
        lambda fd: os.ftruncate(fd, len(BODY) - 1),
        lambda fd: os.pwrite(fd, b"more", len(BODY)),
    ],
    ids=["altered", "cut", "longer"],
)
def test_bytes_that_do_not_hash_to_the_name_are_not_published(
    store: BlobStore, tmp_path: Path, harm: Callable[[int], object]
) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    with brought(tmp_path) as part:
        harm(part.fileno())
        with pytest.raises(Retryable) as damaged:
            store.publish(part, place, len(BODY))
    assert damaged.value.code == "part_damaged"
    assert blobs(tmp_path) == {}


def test_a_damaged_file_under_the_name_is_set_aside(store: BlobStore, tmp_path: Path) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    put(store, place, WRONG)
    with brought(tmp_path) as part:
        assert store.publish(part, place, len(BODY)) is False
    found = blobs(tmp_path)
    assert path_of(store, place).read_bytes() == BODY
    assert sorted(found.values()) == sorted([BODY, WRONG])  # nothing is thrown away


def test_a_part_that_was_unlinked_meanwhile_is_lost(store: BlobStore, tmp_path: Path) -> None:
    with brought(tmp_path) as part:
        os.unlink(part.path)
        with pytest.raises(LeaseLost):
            store.publish(part, store.place("t", "p", DIGEST, ".bin"), len(BODY))
    assert blobs(tmp_path) == {}


def test_an_overtaken_holder_publishes_neither_its_bytes_nor_the_next_ones(store: BlobStore, tmp_path: Path) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    with brought(tmp_path) as late, brought(tmp_path, WRONG, fence=2):
        with pytest.raises(LeaseLost):
            store.publish(late, place, len(BODY))
        assert len(staged(tmp_path)) == 2  # the next holder's part and sidecar are untouched
    assert blobs(tmp_path) == {}


def test_a_stopped_writers_bytes_never_reach_a_published_file(store: BlobStore, tmp_path: Path) -> None:
    with brought(tmp_path, BODY[:100]) as late:
        with brought(tmp_path, fence=2) as part:
            place = store.place("t", "p", DIGEST, ".bin")
            store.publish(part, place, len(BODY))
        late.write(b"late" * 1000)
        os.pwrite(late.fileno(), b"late", 0)
    assert list(blobs(tmp_path).values()) == [BODY]


def test_many_with_the_same_bytes_publish_one_file(store: BlobStore, tmp_path: Path) -> None:
    place, start = store.place("t", "p", DIGEST, ".bin"), threading.Barrier(8)

    def work(number: int) -> bool:
        with brought(tmp_path, url=f"{URL}/{number}", job=f"job-{number}") as part:
            start.wait(20)
            return store.publish(part, place, len(BODY))

    with ThreadPoolExecutor(8) as pool:
        there = list(pool.map(work, range(8)))
    assert there.count(False) == 1
    assert list(blobs(tmp_path).values()) == [BODY]
    assert staged(tmp_path) == []


# ── holds, is_right ───────────────────────────────────────────────────────────────────────────────


def test_what_is_not_there_is_neither_held_nor_right(store: BlobStore) -> None:
    pointer = store.place("t", "p", DIGEST, ".bin").pointer
    assert not store.holds(pointer, len(BODY))
    assert not store.is_right(pointer, DIGEST, len(BODY))


def test_held_goes_by_size_and_right_by_every_byte(store: BlobStore, tmp_path: Path) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    put(store, place, WRONG)
    assert store.holds(place.pointer, len(BODY))
    assert not store.holds(place.pointer, len(BODY) + 1)
    assert not store.is_right(place.pointer, DIGEST, len(BODY))
    put(store, other := store.place("t", "q", DIGEST, ".bin"), BODY)
    assert store.is_right(other.pointer, DIGEST, len(BODY))
    assert not store.is_right(other.pointer, DIGEST, len(BODY) - 1)
    assert not store.is_right(other.pointer, "0" * 64, len(BODY))


@pytest.mark.parametrize(
    "pointer",
    [
        "local:../../etc/passwd",
        f"local:t/p/{DIGEST[:2]}/../{DIGEST}",
        f"local:t/p/00/{DIGEST}",
        f"local:t/p/{DIGEST[:2]}/{DIGEST}.exe",
        f"s3:t/p/{DIGEST[:2]}/{DIGEST}",
        "",
    ],
)
def test_a_pointer_that_is_no_place_is_refused(store: BlobStore, pointer: str) -> None:
    for ask in (
        lambda: store.holds(pointer, 1),
        lambda: store.path(pointer),
        lambda: store.unify(pointer, pointer),
    ):
        with pytest.raises(InvalidInput):
            ask()


@pytest.mark.parametrize("data", [BODY, b""], ids=["file", "empty file"])
@pytest.mark.timeout(30)
def test_a_pipe_in_the_files_place_is_set_aside_and_not_waited_for(
    store: BlobStore, tmp_path: Path, data: bytes
) -> None:
    place = store.place("t", "p", sha256(data), ".bin")
    (path := path_of(store, place)).parent.mkdir(parents=True)
    os.mkfifo(path)
    assert not store.is_right(place.pointer, place.sha256, len(data))
    with brought(tmp_path, data) as part:
        assert store.publish(part, place, len(data)) is False
    assert path.read_bytes() == data


# ── symlinks and the disk's errors ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [1, 2, 3, 4], ids=["tenant", "project", "shard", "file"])
def test_a_symlink_on_the_way_is_refused(store: BlobStore, tmp_path: Path, depth: int) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    outside = tmp_path / "outside"
    outside.mkdir()
    link = tmp_path.joinpath(*[*place.folders, place.name][:depth])
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside / "x" if depth == 4 else outside)
    with brought(tmp_path) as part:
        with pytest.raises(Permanent) as refused:
            store.publish(part, place, len(BODY))
        assert refused.value.code == "store_symlink"
    assert list(outside.iterdir()) == []
    assert not store.holds(place.pointer, len(os.readlink(link)))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "no_space"),
        (errno.EROFS, "store_read_only"),
        (errno.EACCES, "store_forbidden"),
        (errno.EXDEV, "store_cross_device"),
        (errno.EFBIG, "store_file_too_large"),
    ],
)
@pytest.mark.parametrize("call", ["link", "mkdir", "fsync", "fchmod"])
def test_what_the_disk_says_becomes_a_code(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: str
) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    with brought(tmp_path) as part:
        with monkeypatch.context() as patched:
            patched.setattr(os, call, no_links(number))
            with pytest.raises(StageFailure) as refused:
                store.publish(part, place, len(BODY))
        kind = Postponed if code == "no_space" else Retryable  # a full disk may last longer than the attempts
        assert (type(refused.value), refused.value.code) == (kind, code)
        assert store.publish(part, place, len(BODY)) is False  # with the disk in order it goes on
    assert list(blobs(tmp_path).values()) == [BODY]


# ── read ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_blob_is_opened_as_long_as_it_is_there_with_its_size(store: BlobStore, tmp_path: Path) -> None:
    place = published(store, tmp_path)
    with store.open(place.pointer, len(BODY)) as stream:
        assert stream.read() == BODY
        assert not stream.writable()
    with pytest.raises(Permanent) as damaged:
        store.open(place.pointer, len(BODY) + 1)
    path_of(store, place).unlink()
    with pytest.raises(Permanent) as gone:
        store.open(place.pointer, len(BODY))
    path_of(store, place).symlink_to("/etc/passwd")
    with pytest.raises(StageFailure):
        store.open(place.pointer, len(BODY))
    assert (damaged.value.code, gone.value.code) == ("file_damaged", "file_missing")

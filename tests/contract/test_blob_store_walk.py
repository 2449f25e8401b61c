"""The port BlobStore, looked at as a whole: pages of files, and the way aside (HEAL-3)."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from dlpipe.core.ports import BlobStore, StoredFile
from dlpipe.store import LocalBlobStore
from tests.parts import BODY, DIGEST, WRONG, path_of, published, put
from tests.world import some_bytes

LATER_S = 7_200.0


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return LocalBlobStore(tmp_path, clock=lambda: time.time() + LATER_S)


def walked(store: BlobStore, page: int = 1000) -> list[StoredFile]:
    found: list[StoredFile] = []
    after = ""
    while True:
        some = store.walk(after, page)
        assert len(some) <= page
        found += some
        if len(some) < page:
            return found
        after = some[-1].path


def lay(root: Path, path: str, data: bytes = b"x") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def test_a_published_file_is_found_with_its_pointer_size_and_age(store: BlobStore, tmp_path: Path) -> None:
    place = published(store, tmp_path)
    (found,) = walked(store)
    path = place.pointer.removeprefix("local:")
    assert (found.path, found.pointer, found.size, found.ours) == (path, place.pointer, len(BODY), True)
    assert LATER_S - 1 <= found.age_s <= LATER_S + 120
    assert store.size(place.pointer) == len(BODY)
    assert store.size(store.place("t", "other", DIGEST, ".bin").pointer) is None


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
def test_every_file_is_seen_once_whatever_the_pages_are(store: BlobStore, tmp_path: Path, page: int) -> None:
    wanted = [
        f"{tenant}/{project}/{digest[:2]}/{digest}{ext}"
        for tenant in ("a", "a-b", "b")
        for project in ("p", "p.x")
        for digest in ("00" * 32, "0f" * 32, "ff" * 32)
        for ext in ("", ".pdf")
    ]
    for path in wanted:
        lay(tmp_path, path)
    found = [file.path for file in walked(store, page)]
    assert sorted(found) == sorted(wanted)
    assert len(set(found)) == len(found)


def test_a_walk_goes_on_behind_a_file_that_is_gone(store: BlobStore, tmp_path: Path) -> None:
    paths = [f"t/p/{n:02x}/{f'{n:02x}' * 32}" for n in range(4)]
    for path in paths:
        lay(tmp_path, path)
    (tmp_path / paths[1]).unlink()
    assert [file.path for file in store.walk(paths[1], 10)] == paths[2:]
    assert store.walk("zz/zz", 10) == []
    assert LocalBlobStore(tmp_path / "nowhere").walk("", 10) == []


def test_what_does_not_stand_where_blobs_stand_is_somebody_elses(store: BlobStore, tmp_path: Path) -> None:
    lay(tmp_path, "README")
    lay(tmp_path, "t/notes.txt")
    lay(tmp_path, "t/p/notes.txt")
    lay(tmp_path, "t/p/folder/notes.txt")  # no shard
    lay(tmp_path, "t/p/ab/folder/x")
    lay(tmp_path, "t/p/ab/.nfs0001")
    lay(tmp_path, ".staging/t/x.part")
    lay(tmp_path, ".quarantine/t/p/ab/x")
    os.symlink("/etc/passwd", tmp_path / "t" / "p" / "ab" / DIGEST)
    os.symlink("/etc", tmp_path / "outside")
    lay(tmp_path, "t/p/ab/junk")
    lay(tmp_path, f"t/p/ab/{DIGEST}.damaged-12345678")
    found = {file.path: file.ours for file in walked(store)}
    assert found == {
        "README": False,
        "outside": False,
        "t/notes.txt": False,
        "t/p/notes.txt": False,
        "t/p/folder": False,
        "t/p/ab/folder": False,
        "t/p/ab/.nfs0001": False,
        f"t/p/ab/{DIGEST}": False,
        "t/p/ab/junk": True,
        f"t/p/ab/{DIGEST}.damaged-12345678": True,
    }
    assert {file.pointer for file in walked(store)} == {None}


def test_without_shards_only_names_of_blobs_are_the_stores(tmp_path: Path) -> None:
    flat = LocalBlobStore(tmp_path, shard_width=0)
    lay(tmp_path, "t/p/notes.txt")
    lay(tmp_path, f"t/p/{DIGEST}.bin")
    lay(tmp_path, f"t/p/{DIGEST}.unheard-of")
    found = {file.path: (file.ours, file.pointer is not None) for file in walked(flat)}
    assert found == {
        "t/p/notes.txt": (False, False),
        f"t/p/{DIGEST}.bin": (True, True),
        f"t/p/{DIGEST}.unheard-of": (True, False),
    }


def test_a_page_reads_the_folders_that_it_needs_and_no_others(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(64):
        lay(tmp_path, f"t/p/{number:02x}/{f'{number:02x}' * 32}")
    listed: list[object] = []
    real = os.listdir

    def listing(where: int) -> list[str]:
        listed.append(where)
        return real(where)

    monkeypatch.setattr(os, "listdir", listing)
    assert len(store.walk("", 2)) == 2
    assert len(listed) <= 3 + 3


# ── aside ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_of_other_bytes_is_moved_aside_and_kept(store: BlobStore, tmp_path: Path) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    path = put(store, place, WRONG)
    name = place.pointer.removeprefix("local:")
    assert store.quarantine(name) is True
    assert not path.exists()
    assert (tmp_path / ".quarantine" / name).read_bytes() == WRONG
    assert store.quarantine(name) is False  # gone


def test_what_was_set_aside_before_is_never_overwritten(store: BlobStore, tmp_path: Path) -> None:
    bodies = [some_bytes(number) for number in (10, 20, 30)]
    for data in bodies:
        lay(tmp_path, "t/p/ab/junk", data)
        assert store.quarantine("t/p/ab/junk") is True
    kept = tmp_path / ".quarantine" / "t" / "p" / "ab"
    assert sorted(file.read_bytes() for file in kept.iterdir()) == sorted(bodies)


def test_a_file_that_is_right_is_never_moved(store: BlobStore, tmp_path: Path) -> None:
    place = published(store, tmp_path)
    assert store.quarantine(place.pointer.removeprefix("local:")) is False
    assert path_of(store, place).read_bytes() == BODY


def test_the_right_file_that_takes_the_wrong_ones_place_meanwhile_stays(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    path = put(store, place, WRONG)
    real = os.fstat

    def swap(fd: int) -> os.stat_result:
        found = real(fd)
        if stat.S_ISREG(found.st_mode) and path.exists() and path.read_bytes() == WRONG:
            path.unlink()
            put(store, place, BODY)
        return found

    monkeypatch.setattr(os, "fstat", swap)
    assert store.quarantine(place.pointer.removeprefix("local:")) is False
    monkeypatch.undo()
    assert path.read_bytes() == BODY


def test_where_no_rename_refuses_to_replace_a_link_does(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr("dlpipe.store.strays.rename_new", refuse)
    for data in (b"one", b"two"):
        lay(tmp_path, "t/p/ab/junk", data)
        assert store.quarantine("t/p/ab/junk") is True
    kept = tmp_path / ".quarantine" / "t" / "p" / "ab"
    assert sorted(file.read_bytes() for file in kept.iterdir()) == [b"one", b"two"]

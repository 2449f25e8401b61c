"""How equal files share their bytes: by hardlink, else by reflink, else not at all. DEDUPE-1."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core.errors import LeaseLost, Retryable
from dlpipe.core.ports import BlobStore
from dlpipe.core.results import DedupeAction
from dlpipe.store import Linking, LocalBlobStore, links
from tests import mounts
from tests.parts import BODY, DIGEST, WRONG, brought, path_of, published, put
from tests.world import blobs, no_links, staged


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return LocalBlobStore(tmp_path)


def extents_shared(*_: object) -> int:
    """FICLONE of a file system that can: here the bytes are copied, which looks the same from above."""
    clone, _request, source = _
    assert isinstance(clone, int)
    assert isinstance(source, int)
    os.pwrite(clone, os.pread(source, 1 << 30, 0), 0)
    return 0


def no_clones(number: int) -> Callable[..., int]:
    def ioctl(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return ioctl


# ── copy and unify ────────────────────────────────────────────────────────────────────────────────


def test_a_copy_is_a_link_where_that_is_possible(store: BlobStore, tmp_path: Path) -> None:
    first, other = published(store, tmp_path), store.place("t", "q", DIGEST, ".txt")
    assert store.copy(first.pointer, other) is DedupeAction.HARDLINK
    assert os.path.samefile(path_of(store, first), path_of(store, other))
    assert store.copy(first.pointer, other) is DedupeAction.SKIPPED


NO_LINKS = [errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP]


@pytest.mark.parametrize("number", NO_LINKS)
def test_else_it_is_a_copy_of_the_bytes(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, other = published(store, tmp_path), store.place("t", "q", DIGEST, ".bin")
    link, calls = os.link, 0

    def not_from_there(*arguments: object, **more: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError(number, os.strerror(number))
        link(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", not_from_there)
    assert store.copy(first.pointer, other) is DedupeAction.COPY
    assert not os.path.samefile(path_of(store, first), path_of(store, other))
    assert list(blobs(tmp_path).values()) == [BODY, BODY]
    assert staged(tmp_path) == []


@pytest.mark.parametrize("linking", [Linking.REFLINK, Linking.OFF])
def test_a_damaged_file_gets_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linking: Linking) -> None:
    store = LocalBlobStore(tmp_path, linking=linking)
    first, other = store.place("t", "p", DIGEST, ""), store.place("t", "q", DIGEST, "")
    put(store, first, WRONG)
    monkeypatch.setattr(fcntl, "ioctl", extents_shared)
    with pytest.raises(Retryable) as refused:
        store.copy(first.pointer, other)
    assert refused.value.code == "store_io_error"
    assert not path_of(store, other).exists()
    assert staged(tmp_path) == []


def test_unified_files_share_their_bytes(store: BlobStore, tmp_path: Path) -> None:
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    assert not os.path.samefile(path_of(store, first), path_of(store, second))
    for _ in range(2):
        assert store.unify(second.pointer, first.pointer) is DedupeAction.HARDLINK
        assert os.path.samefile(path_of(store, first), path_of(store, second))
    assert list(blobs(tmp_path).values()) == [BODY, BODY]
    assert staged(tmp_path) == []


@pytest.mark.parametrize("number", NO_LINKS)
def test_where_the_file_system_cannot_the_copy_stays(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    inode = path_of(store, second).stat().st_ino
    monkeypatch.setattr(os, "link", no_links(number))
    assert store.unify(second.pointer, first.pointer) is DedupeAction.COPY
    assert path_of(store, second).stat().st_ino == inode
    assert staged(tmp_path) == []


def test_a_reader_of_the_replaced_file_reads_on(store: BlobStore, tmp_path: Path) -> None:
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    with path_of(store, second).open("rb") as reader:
        assert store.unify(second.pointer, first.pointer) is DedupeAction.HARDLINK
        assert reader.read() == BODY


def test_without_its_twin_a_file_stays(store: BlobStore, tmp_path: Path) -> None:
    second = published(store, tmp_path, "q")
    with pytest.raises(Retryable):
        store.unify(second.pointer, store.place("t", "p", DIGEST, ".bin").pointer)
    assert list(blobs(tmp_path).values()) == [BODY]


# ── reflinks ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", NO_LINKS)
def test_where_no_link_can_be_had_a_reflink_takes_its_place(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    before = path_of(store, second).stat().st_ino
    monkeypatch.setattr(os, "link", no_links(number))
    monkeypatch.setattr(fcntl, "ioctl", extents_shared)
    assert store.unify(second.pointer, first.pointer) is DedupeAction.REFLINK
    found = path_of(store, second).stat()
    assert found.st_ino not in (before, path_of(store, first).stat().st_ino)
    assert stat.S_IMODE(found.st_mode) == 0o444
    assert list(blobs(tmp_path).values()) == [BODY, BODY]
    assert staged(tmp_path) == []


NO_CLONES = [errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.EPERM]


@pytest.mark.parametrize("number", NO_CLONES)
def test_where_neither_can_be_had_the_copy_stays(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    before = path_of(store, second).stat().st_ino
    monkeypatch.setattr(os, "link", no_links(errno.EMLINK))
    monkeypatch.setattr(fcntl, "ioctl", no_clones(number))
    assert store.unify(second.pointer, first.pointer) is DedupeAction.COPY
    assert path_of(store, second).stat().st_ino == before
    assert staged(tmp_path) == []


def test_a_disk_that_fills_up_while_a_reflink_is_made_changes_nothing(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    monkeypatch.setattr(os, "link", no_links(errno.EMLINK))
    monkeypatch.setattr(fcntl, "ioctl", no_clones(errno.ENOSPC))
    with pytest.raises(Exception, match="no_space"):
        store.unify(second.pointer, first.pointer)
    assert list(blobs(tmp_path).values()) == [BODY, BODY]
    assert staged(tmp_path) == []


@pytest.mark.parametrize(
    ("linking", "unified", "copied"),
    [
        (Linking.HARDLINK, DedupeAction.HARDLINK, DedupeAction.HARDLINK),
        (Linking.REFLINK, DedupeAction.REFLINK, DedupeAction.REFLINK),
        (Linking.OFF, DedupeAction.COPY, DedupeAction.COPY),
    ],
)
def test_the_setting_decides_what_is_tried(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    linking: Linking,
    unified: DedupeAction,
    copied: DedupeAction,
) -> None:
    store = LocalBlobStore(tmp_path, linking=linking)
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    monkeypatch.setattr(fcntl, "ioctl", extents_shared)
    assert store.unify(second.pointer, first.pointer) is unified
    third = store.place("t", "r", DIGEST, ".bin")
    assert store.copy(first.pointer, third) is copied
    one = path_of(store, first)
    shared = [os.path.samefile(one, path_of(store, other)) for other in (second, third)]
    assert shared == [unified is DedupeAction.HARDLINK, copied is DedupeAction.HARDLINK]
    assert list(blobs(tmp_path).values()) == [BODY] * 3
    assert staged(tmp_path) == []


def test_reflink_without_a_file_system_for_it_keeps_the_copy_and_makes_no_hardlink(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path, linking=Linking.REFLINK)
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    if store.unify(second.pointer, first.pointer) is not DedupeAction.REFLINK:  # on btrfs or XFS it is one
        assert path_of(store, second).stat().st_nlink == 1
    assert not os.path.samefile(path_of(store, first), path_of(store, second))


def _on_xfs(folder: Path) -> None:
    root = mounts.mount_xfs(folder)
    store = LocalBlobStore(root, linking=Linking.REFLINK)
    first, second = published(store, root), published(store, root, "q")
    assert store.unify(second.pointer, first.pointer) is DedupeAction.REFLINK
    third = store.place("t", "r", DIGEST, ".bin")
    assert store.copy(first.pointer, third) is DedupeAction.REFLINK
    found = [path_of(store, place) for place in (first, second, third)]
    assert len({path.stat().st_ino for path in found}) == 3
    assert {path.stat().st_mode & 0o777 for path in found} == {0o444}
    assert {shared_blocks(path) for path in found} == {True}
    assert list(blobs(root).values()) == [BODY] * 3
    assert staged(root) == []
    mounts.unmount(root)


def shared_blocks(path: Path) -> bool:
    """Does the file system say of every extent that others use it, too (ioctl FS_IOC_FIEMAP)?"""
    import struct

    asked = bytearray(struct.pack("=QQLLLL", 0, 1 << 62, 1, 0, 8, 0) + bytes(56 * 8))
    with path.open("rb") as file:
        fcntl.ioctl(file, 0xC020660B, asked)
    count = struct.unpack_from("=L", asked, 20)[0]
    flags = [struct.unpack_from("=QQQQQLLLL", asked, 32 + 56 * n)[5] for n in range(count)]
    return bool(flags) and all(flag & 0x2000 for flag in flags)


@pytest.mark.slow
@pytest.mark.integration
def test_on_xfs_the_copies_share_their_blocks(tmp_path: Path) -> None:
    mounts.need_xfs()
    mounts.in_private(_on_xfs, tmp_path)


# ── what stands in the way ────────────────────────────────────────────────────────────────────────


def test_equal_inode_numbers_of_two_devices_are_two_files(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    real = os.stat

    def elsewhere(path: Any, **more: Any) -> os.stat_result:
        found = list(real(path, **more))
        found[1], found[2] = 7, 8 if "dir_fd" in more and real(path, **more).st_ino == mine else 9
        return os.stat_result(found)

    mine = path_of(store, second).stat().st_ino
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", elsewhere)
        patched.setattr(os, "link", no_links(errno.EXDEV))
        assert store.unify(second.pointer, first.pointer) is DedupeAction.COPY


def test_a_twin_that_is_no_twin_any_more_is_not_taken(store: BlobStore, tmp_path: Path) -> None:
    first, second = published(store, tmp_path), published(store, tmp_path, "q")
    path_of(store, first).unlink()
    put(store, first, BODY[:-1])
    assert store.unify(second.pointer, first.pointer) is DedupeAction.COPY
    path_of(store, first).unlink()
    path_of(store, first).symlink_to(path_of(store, second))
    assert store.unify(second.pointer, first.pointer) is DedupeAction.COPY
    assert path_of(store, second).read_bytes() == BODY
    assert not path_of(store, second).is_symlink()


def test_a_copy_does_not_take_what_has_another_size_for_the_same(store: BlobStore, tmp_path: Path) -> None:
    first, other = published(store, tmp_path), store.place("t", "q", DIGEST, ".bin")
    put(store, other, BODY[:100])
    assert store.copy(first.pointer, other) is DedupeAction.HARDLINK
    assert sorted(map(len, blobs(tmp_path).values())) == [100, len(BODY), len(BODY)]  # set aside, not thrown away
    assert path_of(store, other).read_bytes() == BODY


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_any_links_a_file_is_published_by_a_rename_that_replaces_nothing(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", no_links(number))
    place = store.place("t", "p", DIGEST, ".bin")
    with brought(tmp_path) as part:
        assert store.publish(part, place, len(BODY)) is False
    inode = path_of(store, place).stat().st_ino
    with brought(tmp_path) as part:
        assert store.publish(part, place, len(BODY)) is True
    assert path_of(store, place).stat().st_ino == inode
    assert blobs(tmp_path) == {str(path_of(store, place).relative_to(tmp_path)): BODY}
    assert staged(tmp_path) == []


def test_without_any_links_a_later_holders_part_is_put_back(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_links(errno.EPERM))
    place = store.place("t", "p", DIGEST, ".bin")
    with brought(tmp_path) as late, brought(tmp_path, WRONG, fence=2) as part:
        with pytest.raises(LeaseLost):
            store.publish(late, place, len(BODY))
        assert blobs(tmp_path) == {}
        assert Path(part.path).read_bytes() == WRONG


def test_without_links_or_that_rename_nothing_is_published(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", no_links(errno.EPERM))
    monkeypatch.setattr(links, "_renameat2", None)
    with brought(tmp_path) as part, pytest.raises(Retryable):
        store.publish(part, store.place("t", "p", DIGEST, ".bin"), len(BODY))
    assert blobs(tmp_path) == {}

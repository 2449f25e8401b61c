"""Foreign files taken into the store: what is shared, what is refused, what a later write can do (ADR 18)."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import DlpipeError, LeaseLost, Permanent, Postponed, Retryable
from dlpipe.core.ports import Adopted, Foreign
from dlpipe.core.results import DedupeAction
from dlpipe.store import LocalBlobStore, adopt
from tests.world import blobs, no_links, staged

DATA = random.Random(1).randbytes(3_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
POINTER = f"local:t/p/{SHA256[:2]}/{SHA256}.epub"


class Place:
    """A store beside a download folder."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.saved = tmp_path / "store", tmp_path / "saved"
        self.store = LocalBlobStore(self.root)
        self.saved.mkdir()
        self.heard: list[int] = []

    def put(self, name: str = "a/b.epub", data: bytes = DATA) -> Path:
        path = self.saved / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def adopt(
        self,
        *parts: str,
        size: int = len(DATA),
        sharing: Sharing = Sharing.LINK,
        heard: Callable[[int], None] | None = None,
    ) -> Adopted:
        file = Foreign(str(self.saved), parts or ("a", "b.epub"), size)
        return self.store.adopt(file, "t", "p", ".epub", sharing, heard or self.heard.append)

    def nothing_taken(self) -> bool:
        return blobs(self.root) == {} and staged(self.root) == []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def inode(path: str | Path) -> int:
    return os.stat(path).st_ino


def no_reflink(*_: Any, **__: Any) -> int:
    raise OSError(errno.EOPNOTSUPP, "not supported")


def test_a_file_is_linked_hashed_and_named_and_stays_where_it_is(place: Place) -> None:
    theirs = place.put()
    adopted = place.adopt()
    assert (adopted.sha256, adopted.size, adopted.pointer) == (SHA256, len(DATA), POINTER)
    assert adopted.action in (DedupeAction.HARDLINK, DedupeAction.REFLINK)
    assert blobs(place.root) == {POINTER.partition("t/")[1] + POINTER.partition("t/")[2]: DATA}
    assert theirs.read_bytes() == DATA
    assert staged(place.root) == []
    assert sum(place.heard) == len(DATA)


def test_a_hardlinked_file_is_read_only_for_whoever_opens_it_next(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", no_reflink)
    theirs = place.put()
    assert place.adopt().action is DedupeAction.HARDLINK
    assert inode(theirs) == inode(place.store.path(POINTER))
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o444


@pytest.mark.parametrize("sharing", [Sharing.CLONE, Sharing.COPY])
def test_without_links_a_later_write_does_not_reach_the_store(
    place: Place, sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", no_reflink)
    theirs = place.put()
    assert place.adopt(sharing=sharing).action is DedupeAction.COPY
    theirs.write_bytes(b"retagged")
    assert place.store.is_right(POINTER, SHA256, len(DATA))


def test_a_reflink_is_taken_where_the_file_system_has_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def clone(made: int, request: int, fd: int) -> int:
        assert request == 0x40049409
        os.pwrite(made, os.pread(fd, len(DATA), 0), 0)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    theirs = place.put()
    assert place.adopt().action is DedupeAction.REFLINK
    assert inode(theirs) != inode(place.store.path(POINTER))
    assert stat.S_IMODE(theirs.stat().st_mode) != 0o444
    blobs(place.root)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP])
def test_where_no_link_can_be_made_the_bytes_are_copied(
    place: Place, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = place.put()
    real = os.link
    monkeypatch.setattr(fcntl, "ioctl", no_reflink)
    monkeypatch.setattr(
        os, "link", lambda src, *a, **k: no_links(code)() if str(src).startswith("/proc") else real(src, *a, **k)
    )
    assert place.adopt().action is DedupeAction.COPY
    assert inode(theirs) != inode(place.store.path(POINTER))
    assert stat.S_IMODE(theirs.stat().st_mode) != 0o444


def test_another_users_file_that_cannot_be_made_read_only_is_copied(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = place.put()
    monkeypatch.setattr(fcntl, "ioctl", no_reflink)
    real = os.fchmod

    def fchmod(fd: int, mode: int) -> None:
        if os.fstat(fd).st_ino == inode(theirs):
            raise PermissionError(errno.EPERM, "not yours")
        real(fd, mode)

    monkeypatch.setattr(os, "fchmod", fchmod)
    assert place.adopt().action is DedupeAction.COPY
    assert staged(place.root) == []


def test_the_same_again_is_found_in_its_place(place: Place) -> None:
    theirs = place.put()
    first = place.adopt()
    assert place.adopt() == first
    other = place.put("other.epub")
    mode = stat.S_IMODE(other.stat().st_mode)
    assert place.adopt("other.epub").action is DedupeAction.SKIPPED
    assert stat.S_IMODE(other.stat().st_mode) == mode  # nothing of it is ours: as if we had not been here
    assert inode(theirs) != inode(other)
    assert len(blobs(place.root)) == 1


def test_a_damaged_blob_in_the_place_is_set_aside_and_never_written_over(place: Place) -> None:
    place.put()
    path = Path(place.store.path(POINTER))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    assert place.adopt().action in (DedupeAction.HARDLINK, DedupeAction.REFLINK)
    assert place.store.is_right(POINTER, SHA256, len(DATA))
    assert sorted(blobs(place.root).values()) == sorted([DATA, b"damaged"])


def test_an_empty_file_is_a_file(place: Place) -> None:
    place.put(data=b"")
    assert place.adopt(size=0).sha256 == hashlib.sha256(b"").hexdigest()


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


def refused(place: Place, kind: type[DlpipeError], code: str, *parts: str, size: int = len(DATA)) -> None:
    with pytest.raises(kind) as raised:
        place.adopt(*parts, size=size)
    assert raised.value.code == code
    assert place.nothing_taken()


def test_a_file_that_is_not_there_may_come_later(place: Place) -> None:
    refused(place, Retryable, "torrent_file_missing")
    place.saved.rmdir()
    refused(place, Retryable, "torrent_file_missing")


def test_a_file_of_another_size_than_announced_is_not_taken(place: Place) -> None:
    place.put()
    refused(place, Retryable, "file_changed", size=len(DATA) + 1)


@pytest.mark.parametrize(
    "parts",
    [
        ("..", "secret"), ("a", "..", "..", "secret"), ("/etc/passwd",), ("a/../../secret",), ("", "secret"),
        (".", "b.epub"), ("a", "b\0.epub"), ("a", "\ud800.epub"),
    ],
)  # fmt: skip
def test_names_that_lead_out_of_the_folder_are_refused(place: Place, parts: tuple[str, ...]) -> None:
    place.put()
    (place.saved.parent / "secret").write_bytes(DATA)
    refused(place, Permanent, "file_refused", *parts)


def test_no_symlink_is_followed_neither_as_a_file_nor_as_a_folder(place: Place) -> None:
    secret = place.saved.parent / "secret"
    secret.mkdir()
    (secret / "b.epub").write_bytes(DATA)
    (place.saved / "a").symlink_to(secret)
    refused(place, Permanent, "file_refused")
    (place.saved / "b.epub").symlink_to(secret / "b.epub")
    refused(place, Permanent, "file_refused", "b.epub")


def test_a_pipe_in_the_place_of_a_file_is_refused_without_waiting(place: Place) -> None:
    os.mkfifo(place.saved / "pipe")
    refused(place, Permanent, "file_refused", "pipe", size=0)
    (place.saved / "folder").mkdir()
    refused(place, Permanent, "file_refused", "folder")


@pytest.mark.parametrize("sharing", list(Sharing))
def test_a_file_that_is_written_while_it_is_hashed_is_not_taken(place: Place, sharing: Sharing) -> None:
    theirs = place.put()
    mode = stat.S_IMODE(theirs.stat().st_mode)
    with theirs.open("r+b", buffering=0) as older:  # open since before it was made read-only

        def meddle(_: int) -> None:
            older.write(b"x")
            os.utime(theirs, ns=(1, 1))

        with pytest.raises(Retryable) as raised:
            place.adopt(heard=meddle, sharing=sharing)
    assert raised.value.code == "file_changed"
    assert place.nothing_taken()
    assert stat.S_IMODE(theirs.stat().st_mode) == mode


def test_giving_up_in_the_middle_leaves_nothing(place: Place) -> None:
    theirs = place.put()
    mode = stat.S_IMODE(theirs.stat().st_mode)

    def lost(_: int) -> None:
        raise LeaseLost("the lease is gone")

    with pytest.raises(LeaseLost):
        place.adopt(heard=lost)
    assert place.nothing_taken()
    assert stat.S_IMODE(theirs.stat().st_mode) == mode


def test_a_full_disk_is_said_and_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.put()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(adopt, "_copy", full)
    with pytest.raises(Postponed) as raised:
        place.adopt(sharing=Sharing.COPY)
    assert raised.value.code == "no_space"
    assert place.nothing_taken()

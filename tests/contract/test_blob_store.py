"""The port BlobStore on the local file system: a name is the hash of the bytes, for good. FINAL-1, FINAL-2."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlpipe.core import crash
from dlpipe.core.errors import InvalidInput, LeaseLost, Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.ports import BlobStore
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalBlobStore, LocalStaging
from tests.publishing import BODY, DIGEST, URL, WRONG, brought, path_of, published, put
from tests.world import blobs, no_links, staged


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


def test_a_file_is_read_only_before_it_has_its_name(store: BlobStore, tmp_path: Path) -> None:
    seen: list[int] = []
    place = store.place("t", "p", DIGEST, ".bin")
    crash.arm(lambda name: seen.append(path_of(store, place).stat().st_mode & 0o777) if "after_link" in name else None)
    try:
        published(store, tmp_path)
    finally:
        crash.arm(None)
    assert seen == [0o444]


class Died(BaseException):
    """The process ended here."""


def die_at(point: str) -> None:
    def hook(name: str) -> None:
        if name == point:
            raise Died

    crash.arm(hook)


@pytest.mark.parametrize("point", ["finalize.before_link", "finalize.after_link", "finalize.after_fsync"])
def test_after_a_crash_the_part_is_still_whole_and_never_written_to(
    store: BlobStore, tmp_path: Path, point: str
) -> None:
    place = store.place("t", "p", DIGEST, ".bin")
    die_at(point)
    with pytest.raises(Died), brought(tmp_path) as part:  # noqa: PT012 - it dies inside
        try:
            store.publish(part, place, len(BODY))
        finally:
            crash.arm(None)
    with LocalStaging(tmp_path).claim("t", URL, "job", 2) as part:
        assert part.facts is not None
        assert part.facts.complete
        with pytest.raises(Retryable):
            part.write(b"!")
        assert part.verify(100) == 0  # whole, or not at all
        assert part.facts is None
    with LocalStaging(tmp_path).claim("t", URL, "other", 1) as part:
        part.begin(RemoteFacts(200, "u"))  # a new file: the published one stays as it is
        part.write(WRONG)
        part.finish()
    assert set(blobs(tmp_path).values()) <= {BODY}


_AS_NOBODY = """
import ctypes, os, sys
from pathlib import Path
from dlpipe.core import crash
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalBlobStore, LocalStaging
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else /proc/self is root's from now on
root, digest, point = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
body = sys.stdin.buffer.read()
store, staging = LocalBlobStore(root), LocalStaging(root)
place = store.place("t", "p", digest, ".bin")
class Died(BaseException): pass
def hook(name):
    if name == point: raise Died
crash.arm(hook)
try:
    with staging.claim("t", "http://files.example/a.bin", "job", 1) as part:
        part.begin(RemoteFacts(200, "u", etag='"v"', content_length=len(body)))
        part.write(body); part.finish()
        store.publish(part, place, len(body))
except Died: pass
crash.arm(None)
with staging.claim("t", "http://files.example/a.bin", "job", 2) as part:
    held = part.verify(part.facts.good)
    assert (held, part.finish()[:2]) == (len(body), (digest, len(body)))
with staging.claim("t", "http://files.example/a.bin", "job", 3) as part:
    print(store.publish(part, place, len(body)))
"""


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """pytest's own folders are for root only, when root runs it."""
    with tempfile.TemporaryDirectory(prefix="dl") as folder:
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        yield Path(folder)


@pytest.mark.parametrize(
    ("point", "there"),
    [("finalize.before_link", False), ("finalize.after_link", True), ("finalize.after_fsync", True)],
)
def test_an_ordinary_user_can_go_on_after_a_crash_in_the_middle_of_it(
    everybodys: Path, point: str, there: bool
) -> None:
    """Root may open what is read-only; whoever else dlpipe runs as may not."""
    root = everybodys
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(root), DIGEST, point], input=BODY, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().strip() == str(there)
    assert list(blobs(root).values()) == [BODY]
    assert staged(root) == []


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

"""The port BlobStore, the same on a disk, on an S3 server, and where no bytes are checked. FINAL-1, FINAL-2, HEAL-3.

What only a disk has (links, modes, symlinks, fsync) is in test_blob_store*.py, what only a bucket has in
test_object_store.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from dlpipe.core.downloads import Sharing
from dlpipe.core.errors import InvalidInput, LeaseLost, Permanent, Retryable
from dlpipe.core.layout import Place
from dlpipe.core.ports import BlobStore, Foreign, StoredFile
from dlpipe.core.results import DedupeAction
from dlpipe.store import LocalBlobStore
from dlpipe.store.bucket import Bucket
from dlpipe.store.routed import RoutedBlobStore
from tests.objectserver import contents, objects
from tests.parts import BODY, DIGEST, URL, WRONG, brought
from tests.world import some_bytes, staged

IN_BUCKETS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("s3", "s3-read-back", "routed")]
KINDS = ["local", "memory", *IN_BUCKETS]
LATER_S = 7_200.0


@dataclass
class Bench:
    """A store, and eyes and hands that go round it."""

    store: BlobStore
    root: Path
    bucket: Bucket | None = None

    def lay(self, path: str, data: bytes) -> None:
        """As somebody else would put it there."""
        if self.bucket is None:
            file = self.root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            file.chmod(0o444)
        else:
            import obstore

            obstore.put(self.bucket.store, path, data)

    def remove(self, place: Place) -> None:
        if self.bucket is None:
            (self.root / place.path).unlink()
        else:
            self.bucket.delete(place.path)

    def everything(self) -> dict[str, bytes]:
        """All that is kept, hidden or not, but for what is staged."""
        if self.bucket is not None:
            return contents(self.bucket.store)
        files = [file for file in self.root.rglob("*") if file.is_file() and ".staging" not in file.parts]
        return {str(file.relative_to(self.root)): file.read_bytes() for file in files}

    def walked(self, page: int = 1000) -> list[StoredFile]:
        found: list[StoredFile] = []
        after = ""
        while True:
            some = self.store.walk(after, page)
            assert len(some) <= page
            found += some
            if len(some) < page:
                return found
            after = some[-1].path

    def published(self, project: str = "p", ext: str = ".bin") -> Place:
        place = self.store.place("t", project, DIGEST, ext)
        with brought(self.root) as part:
            self.store.publish(part, place, len(BODY))
        return place


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    match request.param:
        case "local":
            yield Bench(LocalBlobStore(tmp_path), tmp_path)
        case "memory":
            bucket = Bucket(MemoryStore())
            yield Bench(objects(bucket, "gs://bucket", read_back=True), tmp_path, bucket)
        case kind:
            server = request.getfixturevalue("object_server")
            url = server.new_prefix()
            bucket = server.bucket(url)
            store: BlobStore = objects(bucket, url, read_back=kind == "s3-read-back")
            if kind == "routed":
                store = RoutedBlobStore(store, LocalBlobStore(tmp_path))
            yield Bench(store, tmp_path, bucket)


# ── publish ───────────────────────────────────────────────────────────────────────────────────────


def test_a_published_file_is_named_by_its_hash(bench: Bench) -> None:
    place, store = bench.published(), bench.store
    assert bench.everything() == {f"t/p/{DIGEST[:2]}/{DIGEST}.bin": BODY}
    assert staged(bench.root) == []
    assert store.path(place.pointer).endswith(f"/t/p/{DIGEST[:2]}/{DIGEST}.bin")
    assert (store.size(place.pointer), store.exists(place.pointer)) == (len(BODY), True)
    assert store.holds(place.pointer, len(BODY))
    assert store.is_right(place.pointer, DIGEST, len(BODY))
    assert store.vouched(place.pointer, DIGEST, len(BODY))
    assert store.shard(place.pointer) == DIGEST[:2]
    assert store.place_at(place.pointer) == place
    assert store.owns(place.pointer)
    assert place.space == store.backend
    store.settle(place.pointer)


def test_published_again_it_was_there_already(bench: Bench) -> None:
    place = bench.published()
    with brought(bench.root) as part:
        assert bench.store.publish(part, place, len(BODY)) is True
    assert list(bench.everything().values()) == [BODY]
    assert staged(bench.root) == []


@pytest.mark.parametrize(
    "harm",
    [
        lambda fd: os.pwrite(fd, b"!", 5),
        lambda fd: os.ftruncate(fd, len(BODY) - 1),
        lambda fd: os.pwrite(fd, b"more", len(BODY)),
    ],
    ids=["altered", "cut", "longer"],
)
def test_bytes_that_do_not_hash_to_the_name_are_not_published(bench: Bench, harm: Callable[[int], object]) -> None:
    place = bench.store.place("t", "p", DIGEST, ".bin")
    with brought(bench.root) as part:
        harm(part.fileno())
        with pytest.raises(Retryable) as damaged:
            bench.store.publish(part, place, len(BODY))
    assert damaged.value.code == "part_damaged"
    assert bench.everything() == {}


@pytest.mark.parametrize("wrong", [WRONG, BODY[:-1]], ids=["other bytes", "cut"])
def test_damaged_bytes_under_the_name_are_set_aside(bench: Bench, wrong: bytes) -> None:
    place = bench.store.place("t", "p", DIGEST, ".bin")
    bench.lay(place.path, wrong)
    with brought(bench.root) as part:
        assert bench.store.publish(part, place, len(BODY)) is False
    found = bench.everything()
    assert found[place.path] == BODY
    assert sorted(found.values()) == sorted([BODY, wrong])  # nothing is thrown away


def test_a_part_that_was_unlinked_meanwhile_is_lost(bench: Bench) -> None:
    with brought(bench.root) as part:
        os.unlink(part.path)
        with pytest.raises(LeaseLost):
            bench.store.publish(part, bench.store.place("t", "p", DIGEST, ".bin"), len(BODY))
    assert bench.everything() == {}


def test_an_overtaken_holder_publishes_neither_its_bytes_nor_the_next_ones(bench: Bench) -> None:
    place = bench.store.place("t", "p", DIGEST, ".bin")
    with brought(bench.root) as late, brought(bench.root, WRONG, fence=2):
        with pytest.raises(LeaseLost):
            bench.store.publish(late, place, len(BODY))
        assert len(staged(bench.root)) == 2
    assert bench.everything() == {}


def test_many_with_the_same_bytes_publish_one_file(bench: Bench) -> None:
    place, start = bench.store.place("t", "p", DIGEST, ".bin"), threading.Barrier(8)

    def work(number: int) -> bool:
        with brought(bench.root, url=f"{URL}/{number}", job=f"job-{number}") as part:
            start.wait(20)
            return bench.store.publish(part, place, len(BODY))

    with ThreadPoolExecutor(8) as pool:
        there = list(pool.map(work, range(8)))
    assert there.count(False) >= 1
    assert list(bench.everything().values()) == [BODY]
    assert staged(bench.root) == []


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


def test_what_is_not_there_is_neither_held_nor_right(bench: Bench) -> None:
    store, pointer = bench.store, bench.store.place("t", "p", DIGEST, ".bin").pointer
    assert (store.size(pointer), store.exists(pointer), store.holds(pointer, len(BODY))) == (None, False, False)
    assert not store.is_right(pointer, DIGEST, len(BODY))
    assert not store.vouched(pointer, DIGEST, len(BODY))


def test_held_goes_by_size_and_right_by_every_byte(bench: Bench) -> None:
    store, place = bench.store, bench.store.place("t", "p", DIGEST, ".bin")
    bench.lay(place.path, WRONG)
    assert store.holds(place.pointer, len(BODY))
    assert not store.holds(place.pointer, len(BODY) + 1)
    assert not store.is_right(place.pointer, DIGEST, len(BODY))
    assert not store.vouched(place.pointer, DIGEST, len(BODY))
    other = store.place("t", "q", DIGEST, ".bin")
    bench.lay(other.path, BODY)
    for ask in (store.is_right, store.vouched):
        assert ask(other.pointer, DIGEST, len(BODY))
        assert not ask(other.pointer, DIGEST, len(BODY) - 1)
        assert not ask(other.pointer, "0" * 64, len(BODY))


@pytest.mark.parametrize(
    "path",
    ["../../etc/passwd", f"t/p/{DIGEST[:2]}/../{DIGEST}", f"t/p/00/{DIGEST}", f"t/p/{DIGEST[:2]}/{DIGEST}.exe", ""],
)
def test_a_pointer_that_is_no_place_is_refused(bench: Bench, path: str) -> None:
    store = bench.store
    for pointer in (f"{store.backend}:{path}", f"ftp:t/p/{DIGEST[:2]}/{DIGEST}", ""):
        for ask in (
            lambda pointer=pointer: store.holds(pointer, 1),
            lambda pointer=pointer: store.path(pointer),
            lambda pointer=pointer: store.unify(pointer, pointer),
            lambda pointer=pointer: store.open(pointer, 1),
        ):
            with pytest.raises(InvalidInput):
                ask()


def test_a_blob_is_opened_as_long_as_it_is_there_with_its_size(bench: Bench) -> None:
    place = bench.published()
    with bench.store.open(place.pointer, len(BODY)) as stream:
        assert stream.read() == BODY
        assert stream.read() == b""
        stream.seek(-10, os.SEEK_END)
        assert (stream.tell(), stream.read(4), stream.read()) == (len(BODY) - 10, BODY[-10:-6], BODY[-6:])
        stream.seek(1_000)
        assert stream.read(5) == BODY[1_000:1_005]
        assert not stream.writable()
    with pytest.raises(Permanent) as damaged:
        bench.store.open(place.pointer, len(BODY) + 1)
    bench.remove(place)
    with pytest.raises(Permanent) as gone:
        bench.store.open(place.pointer, len(BODY))
    assert (damaged.value.code, gone.value.code) == ("file_damaged", "file_missing")


# ── equal bytes, foreign files ────────────────────────────────────────────────────────────────────


def test_a_copy_is_as_right_as_what_it_is_of(bench: Bench) -> None:
    first, other = bench.published(), bench.store.place("t", "q", DIGEST, ".txt")
    assert bench.store.copy(first.pointer, other) in (DedupeAction.HARDLINK, DedupeAction.COPY)
    assert bench.store.is_right(other.pointer, DIGEST, len(BODY))
    assert bench.store.copy(first.pointer, other) is DedupeAction.SKIPPED
    assert list(bench.everything().values()) == [BODY, BODY]


def test_unified_files_both_stay_right(bench: Bench) -> None:
    first, second = bench.published(), bench.published("q")
    assert bench.store.unify(second.pointer, first.pointer) in (DedupeAction.HARDLINK, DedupeAction.COPY)
    assert list(bench.everything().values()) == [BODY, BODY]


def test_a_copy_to_a_place_with_other_bytes_sets_those_aside(bench: Bench) -> None:
    first, other = bench.published(), bench.store.place("t", "q", DIGEST, ".bin")
    bench.lay(other.path, BODY[:100])
    bench.store.copy(first.pointer, other)
    assert sorted(map(len, bench.everything().values())) == [100, len(BODY), len(BODY)]
    assert bench.store.is_right(other.pointer, DIGEST, len(BODY))


def test_a_foreign_file_is_taken_in_and_stays_where_it_is(bench: Bench, tmp_path: Path) -> None:
    theirs = tmp_path / "downloads"
    theirs.mkdir()
    (theirs / "book.bin").write_bytes(BODY)
    heard: list[int] = []
    file = Foreign(str(theirs), ("book.bin",), len(BODY))
    adopted = bench.store.adopt(file, "t", "p", ".bin", Sharing.COPY, heard.append)
    place = bench.store.place("t", "p", DIGEST, ".bin")
    assert (adopted.sha256, adopted.size, adopted.pointer) == (DIGEST, len(BODY), place.pointer)
    assert adopted.action in (DedupeAction.COPY, DedupeAction.REFLINK)
    assert sum(heard) == len(BODY)
    assert bench.store.is_right(place.pointer, DIGEST, len(BODY))
    assert bench.store.adopt(file, "t", "p", ".bin", Sharing.COPY, heard.append).action is DedupeAction.SKIPPED
    assert (theirs / "book.bin").read_bytes() == BODY


# ── the whole ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
def test_every_file_is_seen_once_whatever_the_pages_are(bench: Bench, page: int) -> None:
    wanted = [
        f"{tenant}/{project}/{digest[:2]}/{digest}{ext}"
        for tenant in ("a", "a-b", "b")
        for project in ("p", "p.x")
        for digest in ("00" * 32, "ff" * 32)
        for ext in ("", ".pdf")
    ]
    for path in wanted:
        bench.lay(path, b"x")
    bench.lay(".quarantine/t/p/ab/x", b"hidden")
    found = bench.walked(page)
    pointers = [file.pointer for file in found]
    assert sorted(filter(None, pointers)) == sorted(f"{bench.store.backend}:{path}" for path in wanted)
    assert len(set(pointers)) == len(pointers)
    assert {file.size for file in found} == {1}
    assert all(-5 <= file.age_s <= 120 for file in found)


def test_a_walk_goes_on_behind_a_file_that_is_gone(bench: Bench) -> None:
    places = [Place("t", "p", f"{n:02x}" * 32, "", 2, bench.store.backend) for n in range(4)]
    for place in places:
        bench.lay(place.path, b"x")
    first = bench.store.walk("", 2)
    bench.remove(places[1])
    assert [file.pointer for file in bench.store.walk(first[-1].path, 10)] == [one.pointer for one in places[2:]]


def test_what_does_not_stand_where_blobs_stand_is_somebody_elses(bench: Bench) -> None:
    for path in (
        "README",
        "t/notes.txt",
        "t/p/notes.txt",
        "t/p/ab/.nfs0001",
        "t/p/ab/junk",
        f"t/p/ab/{DIGEST}.damaged",
    ):
        bench.lay(path, b"x")
    found = {file.path.removeprefix("s3:"): (file.ours, file.pointer) for file in bench.walked()}
    assert found == {
        "README": (False, None),
        "t/notes.txt": (False, None),
        "t/p/notes.txt": (False, None),
        "t/p/ab/.nfs0001": (False, None),
        "t/p/ab/junk": (True, None),
        f"t/p/ab/{DIGEST}.damaged": (True, None),
    }


def test_wrong_bytes_are_moved_aside_and_kept_and_right_ones_never(bench: Bench) -> None:
    wrong, right = bench.store.place("t", "a", DIGEST, ".bin"), bench.published()
    bench.lay(wrong.path, WRONG)
    paths = {file.pointer: file.path for file in bench.walked()}
    assert bench.store.quarantine(paths[right.pointer]) is False
    assert bench.store.quarantine(paths[wrong.pointer]) is True
    assert bench.store.quarantine(paths[wrong.pointer]) is False  # gone
    assert bench.everything() == {right.path: BODY, f".quarantine/{wrong.path}": WRONG}


def test_what_was_set_aside_before_is_never_overwritten(bench: Bench) -> None:
    bodies = [some_bytes(number) for number in (10, 20, 30)]
    for data in bodies:
        bench.lay("t/p/ab/junk", data)
        (found,) = bench.walked()
        assert bench.store.quarantine(found.path) is True
    assert sorted(bench.everything().values()) == sorted(bodies)
    assert bench.walked() == []

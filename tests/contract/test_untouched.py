"""A part that nobody touched since it was hashed and durable is published as it is; every doubt has it read. ADR 39."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core.errors import LeaseLost, Retryable
from dlpipe.core.layout import Place
from dlpipe.core.ports import Part
from dlpipe.store import LocalBlobStore, LocalStaging, Rehash
from dlpipe.store import imprint as imprints
from dlpipe.store import local as local_module
from dlpipe.store.imprint import LEAST_BYTES, Imprint
from tests import forged
from tests.parts import URL, brought, facts, file_of, path_of
from tests.world import blobs, some_bytes

BODY = some_bytes(LEAST_BYTES + 4321)
DIGEST = hashlib.sha256(BODY).hexdigest()
AT = len(BODY) // 2
WRONG = BODY[:AT] + bytes([BODY[AT] ^ 1]) + BODY[AT + 1 :]


@pytest.fixture(autouse=True)
def local(tmp_path: Path) -> None:
    if not is_local(tmp_path):
        pytest.skip("the tests' folder is on a file system of which nothing is taken for granted")


def is_local(folder: Path) -> bool:
    fd = os.open(folder, os.O_RDONLY)
    try:
        return imprints.is_local(fd)
    finally:
        os.close(fd)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of parts that were read before they were published."""
    sizes: list[int] = []
    real = local_module._hash

    def noted(fd: int, size: int) -> tuple[str, int]:
        sizes.append(size)
        return real(fd, size)

    monkeypatch.setattr(local_module, "_hash", noted)
    return sizes


@contextmanager
def claimed(tmp_path: Path, fence: int = 2) -> Iterator[Part]:
    """Another claim, maybe of another process."""
    with LocalStaging(tmp_path).claim("t", URL, "job", fence) as part:
        yield part


def publish(tmp_path: Path, part: Part, rehash: Rehash = Rehash.AUTO) -> Place:
    """As finalize does, in the same claim."""
    store = LocalBlobStore(tmp_path, rehash=rehash)
    place = store.place("t", "p", DIGEST, ".bin")
    store.publish(part, place, len(BODY))
    assert path_of(store, place).read_bytes() == BODY
    return place


def refused(tmp_path: Path, part: Part) -> None:
    with pytest.raises(Retryable) as damaged:
        publish(tmp_path, part)
    assert damaged.value.code == "part_damaged"
    assert blobs(tmp_path) == {}


# ── nothing happened ──────────────────────────────────────────────────────────────────────────────


def test_an_untouched_part_is_published_without_reading_it(tmp_path: Path, read: list[int]) -> None:
    with brought(tmp_path, BODY) as part:
        publish(tmp_path, part)
    assert read == []


def test_always_means_always(tmp_path: Path, read: list[int]) -> None:
    with brought(tmp_path, BODY) as part:
        publish(tmp_path, part, Rehash.ALWAYS)
    assert read == [len(BODY)]


def test_a_small_file_is_read_rather_than_waited_for(tmp_path: Path, read: list[int]) -> None:
    data = BODY[: LEAST_BYTES - 1]
    store = LocalBlobStore(tmp_path)
    with brought(tmp_path, data) as part:
        store.publish(part, store.place("t", "p", hashlib.sha256(data).hexdigest(), ".bin"), len(data))
    assert read == [len(data)]


def test_a_name_that_is_not_the_hash_is_refused_also_of_an_untouched_part(tmp_path: Path) -> None:
    with brought(tmp_path, WRONG) as part:
        refused(tmp_path, part)


def test_what_another_claim_hashed_is_read(tmp_path: Path, read: list[int]) -> None:
    with brought(tmp_path, BODY):
        pass
    with claimed(tmp_path) as part:
        publish(tmp_path, part)
    assert read == [len(BODY)]


def test_a_sidecar_that_calls_the_part_untouched_is_not_believed(tmp_path: Path) -> None:
    with brought(tmp_path, BODY):
        pass
    rewrite_with_the_old_times(file_of(tmp_path))
    forged.imprint_again(file_of(tmp_path), DIGEST)
    with claimed(tmp_path) as part:
        assert part.facts is not None  # what else it says is as whole as before
        refused(tmp_path, part)


# ── somebody was there ────────────────────────────────────────────────────────────────────────────


def rewrite_with_the_old_times(part: Path) -> None:
    before = part.stat()
    with part.open("r+b") as file:
        os.pwrite(file.fileno(), WRONG[AT : AT + 1], AT)
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = part.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def put_another_in_its_place(part: Path) -> None:
    other = part.with_suffix(".other")
    other.write_bytes(WRONG)
    shutil.copystat(part, other)
    other.replace(part)


@pytest.mark.parametrize(
    "harm",
    [
        rewrite_with_the_old_times,
        lambda part: os.truncate(part, len(BODY) - 1),
        lambda part: part.write_bytes(BODY + b"more"),
    ],
    ids=["rewritten", "cut", "longer"],
)
def test_a_part_that_was_touched_is_read_and_found_out(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    with brought(tmp_path, BODY) as part:
        harm(file_of(tmp_path))
        refused(tmp_path, part)


def test_a_part_in_whose_place_another_stands_is_not_published(tmp_path: Path) -> None:
    with brought(tmp_path, BODY) as part:
        put_another_in_its_place(file_of(tmp_path))
        with pytest.raises(LeaseLost):
            publish(tmp_path, part)
    assert blobs(tmp_path) == {}


def test_a_write_right_after_it_was_finished_is_found_out(tmp_path: Path) -> None:
    """Also within one step of the clock by which files get their times."""
    for _ in range(20):
        with brought(tmp_path) as part:
            os.pwrite(part.fileno(), WRONG[AT : AT + 1], AT)
            assert not part.is_as_hashed(DIGEST, len(BODY))


def test_a_part_whose_mode_was_changed_is_read(tmp_path: Path, read: list[int]) -> None:
    """As by a publisher that died between the mode and the name."""
    with brought(tmp_path, BODY) as part:
        file_of(tmp_path).chmod(0o444)
        publish(tmp_path, part)
    assert read == [len(BODY)]


# ── where nothing is proven ───────────────────────────────────────────────────────────────────────


def test_after_another_boot_it_is_read(tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with brought(tmp_path, BODY) as part:
        monkeypatch.setattr(imprints, "_boot", lambda: "another")
        publish(tmp_path, part)
    assert read == [len(BODY)]


@pytest.mark.parametrize("when", ["streamed", "published"])
def test_where_the_boot_cannot_be_told_it_is_read(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    with ExitStack() as stack:
        with monkeypatch.context() as patched:
            if when == "streamed":
                patched.setattr(imprints, "_boot", lambda: None)
            part = stack.enter_context(brought(tmp_path, BODY))
        if when == "published":
            monkeypatch.setattr(imprints, "_boot", lambda: None)
        publish(tmp_path, part)
    assert read == [len(BODY)]


@pytest.mark.parametrize("kind", ["nfs4", "nfs", "cifs", "lustre", "9p", "virtiofs", "fuse.sshfs", "ceph", "ext44"])
def test_on_a_file_system_that_others_write_to_it_is_read(
    tmp_path: Path, read: list[int], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    shutil.copy("/proc/sys/kernel/random/boot_id", tmp_path)
    (proc / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "boot_id").rename(proc / "sys/kernel/random/boot_id")
    (proc / "self/fdinfo").symlink_to("/proc/self/fdinfo")
    table = proc / "self/mountinfo"
    monkeypatch.setattr(imprints, "_PROC", proc)

    def mounted(as_: str) -> None:
        lines = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        table.write_text("".join(f"{head} - {as_} {rest.split(' ', 1)[1]}\n" for head, _, rest in lines))

    root = tmp_path / "store"
    mounted("xfs")
    with brought(root, BODY) as part:
        publish(root, part)
    assert read == []
    shutil.rmtree(root)
    mounted(kind)
    with brought(root, BODY) as part:
        publish(root, part)
    assert read == [len(BODY)]
    table.unlink()
    assert not is_local(tmp_path)


def test_every_word_of_an_imprint_counts(tmp_path: Path) -> None:
    with brought(tmp_path, BODY), file_of(tmp_path).open("rb") as file:
        taken = imprints.take(file.fileno(), DIGEST)
        assert taken is not None
        assert imprints.stands(taken, file.fileno())
        found = os.fstat(file.fileno())
        assert (taken.size, taken.device, taken.inode) == (found.st_size, found.st_dev, found.st_ino)
        assert (taken.mtime_ns, taken.ctime_ns) == (found.st_mtime_ns, found.st_ctime_ns)
        for field in fields(Imprint):
            if field.name != "sha256":  # that one is compared with what the ledger says
                value = getattr(taken, field.name)
                changed: dict[str, Any] = {field.name: value + 1 if isinstance(value, int) else f"{value}1"}
                other = replace(taken, **changed)
                assert not imprints.stands(other, file.fileno()), field.name


def test_before_the_clock_has_moved_on_nothing_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writes within one step of it may bear the same time."""
    with brought(tmp_path, BODY), file_of(tmp_path).open("rb") as file:
        now = os.fstat(file.fileno()).st_ctime_ns
        monkeypatch.setattr(imprints, "_STEP_S", 0)
        monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: now)
        assert imprints.take(file.fileno(), DIGEST) is None
        monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: now + 1)
        assert imprints.take(file.fileno(), DIGEST) is not None


def test_what_changes_while_the_clock_is_waited_for_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with brought(tmp_path, BODY), file_of(tmp_path).open("r+b") as file:

        def meanwhile(ctime_ns: int) -> bool:
            os.pwrite(file.fileno(), b"!", AT)
            return True

        monkeypatch.setattr(imprints, "_has_passed", meanwhile)
        assert imprints.take(file.fileno(), DIGEST) is None


# ── resumed, and in pieces ────────────────────────────────────────────────────────────────────────


def test_what_was_resumed_was_read_when_it_was_claimed(tmp_path: Path, read: list[int]) -> None:
    with claimed(tmp_path, 1) as part:
        part.begin(facts(len(BODY)))
        part.write(BODY[:AT])
        part.flush()
    with claimed(tmp_path, 2) as part:
        assert part.verify(AT) == AT
        part.write(BODY[AT:])
        assert part.finish()[0] == DIGEST
        publish(tmp_path, part)
    assert read == []


def test_what_was_altered_before_it_was_resumed_is_not_resumed(tmp_path: Path) -> None:
    with claimed(tmp_path, 1) as part:
        part.begin(facts(len(BODY)))
        part.write(BODY[:AT])
        part.flush()
    with file_of(tmp_path).open("r+b") as file:
        os.pwrite(file.fileno(), b"!!", 7)
    with claimed(tmp_path, 2) as part:
        assert part.verify(AT) == 0


def test_an_imprint_does_not_outlive_that_it_goes_on(tmp_path: Path) -> None:
    """Whole once, then found to be part of more: the old word on it must not be taken for the new file's."""
    short = BODY[:-1000]
    with brought(tmp_path, short) as part:
        assert part.is_as_hashed(hashlib.sha256(short).hexdigest(), len(short))
        part.write(BODY[len(short) :])
        assert not part.is_as_hashed(hashlib.sha256(short).hexdigest(), len(short))
        assert not part.is_as_hashed(DIGEST, len(BODY))


def test_what_came_in_pieces_was_read_when_the_front_passed_over_it(tmp_path: Path, read: list[int]) -> None:
    half = hashlib.sha256(BODY[AT:]).hexdigest()
    with claimed(tmp_path, 1) as part:
        part.begin(facts(len(BODY)))
        part.put(AT, BODY[AT:])
        part.keep(AT, len(BODY), half)
        part.put(0, BODY[:AT])
        part.keep(0, AT, hashlib.sha256(BODY[:AT]).hexdigest())
        assert part.finish()[0] == DIGEST
        publish(tmp_path, part)
    assert read == []


def test_a_piece_that_was_altered_before_the_front_came_is_in_the_hash(tmp_path: Path) -> None:
    with claimed(tmp_path, 1) as part:
        part.begin(facts(len(BODY)))
        part.put(AT, BODY[AT:])
        part.keep(AT, len(BODY), hashlib.sha256(BODY[AT:]).hexdigest())
        os.pwrite(part.fileno(), b"!", AT + 5)
        part.put(0, BODY[:AT])
        part.keep(0, AT, hashlib.sha256(BODY[:AT]).hexdigest())
        sha256, size, _ = part.finish()
        assert sha256 != DIGEST
        assert part.is_as_hashed(sha256, size)
        assert not part.is_as_hashed(DIGEST, size)

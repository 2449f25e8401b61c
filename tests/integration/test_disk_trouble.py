"""Trouble with the disk: a code of its own for each, nothing lost, nothing half published, and then it goes on.

Scenes that need a file system of their own are played in a process whose mounts are its own (tests/mounts.py).
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dlpipe.core import crash
from dlpipe.core.quota import QuotaPolicy
from dlpipe.core.states import State
from dlpipe.db import SqlDatabase
from dlpipe.db.migrate import migrate
from dlpipe.pipeline.reconcile import reconcile
from tests import mounts
from tests.hostile import honest
from tests.origin import Asked, Origin, Say, Then, answer
from tests.pipeline import Pipeline, assert_folder_holds
from tests.world import blobs, staged

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.own_engines("full, read-only and foreign disks hold a folder and SQLite", "ledger", "store"),
    pytest.mark.no_engines("broker"),
]

MIB = 1 << 20
FILE = random.Random(7).randbytes(5 * MIB)
EARLIER = random.Random(8).randbytes(100_000)
_NOBODY = 65534


@pytest.fixture
def private() -> None:
    mounts.need()


@contextmanager
def at_work(root: Path, home: Path) -> Iterator[tuple[Pipeline, Origin]]:
    """A pipeline whose store is at `root`, with one file in it, and a server."""
    home.mkdir(parents=True, exist_ok=True)
    database = SqlDatabase(f"sqlite:///{home / 'ledger.db'}")
    migrate(database)
    pipeline = Pipeline(database, root)
    pipeline.policy(quota=QuotaPolicy(floor_bytes=0))  # the disks of these tests are small
    try:
        with Origin() as origin:
            pipeline.fetch(origin.on("/earlier", honest(EARLIER)))
            assert_folder_holds(root, EARLIER)
            yield pipeline, origin
    finally:
        crash.arm(None)
        pipeline.close()
        database.close()


def unknown_length(body: bytes) -> Callable[[Asked], Say]:
    """A server that does everything right, but never says beforehand how much will come."""
    right = honest(body, 'ETag: "v1"')

    def script(asked: Asked) -> Say:
        if asked.method == "HEAD":
            return Say(answer(405))
        if "range" in asked.headers:
            return right(asked)
        start = answer(200, b"", 'ETag: "v1"', "Transfer-Encoding: chunked", length=False)
        pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)]
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        return Say(start + chunks + b"0\r\n\r\n", Then.CLOSE)

    return script


def fill(volume: Path, leave: int = 0) -> Path:
    """Somebody else takes what is free."""
    filler = volume / ".filler"
    room = os.statvfs(volume)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_frsize - leave))
    return filler


def fails_with(pipeline: Pipeline, job: str, code: str, *, attempts: int) -> None:
    assert (pipeline.state(job), pipeline.error(job)) == (State.FAILED, code)
    row = pipeline.row(job)
    assert row.due_at is not None, "it goes on by itself"
    assert row.attempts == attempts


def goes_on(pipeline: Pipeline, job: str, *files: bytes) -> None:
    pipeline.again(job)
    assert (pipeline.state(job), pipeline.error(job)) == (State.DEDUPED, None)
    assert_folder_holds(pipeline.root, *files)


def at_point(name: str, act: Callable[[], object]) -> None:
    """Do something when that point is passed for the first time."""

    def hook(passed: str) -> None:
        if passed == name:
            crash.arm(None)
            act()

    crash.arm(hook)


# ── full ──────────────────────────────────────────────────────────────────────────────────────────


def full_while_streaming(folder: Path) -> None:
    volume = mounts.mount("tmpfs", folder / "volume", "size=48m")
    with at_work(root := volume / "store", folder) as (pipeline, origin):
        at_point("stream.chunk", lambda: fill(volume, leave=2 * MIB))
        job = pipeline.fetch(origin.on("/f", unknown_length(FILE)))
        fails_with(pipeline, job, "no_space", attempts=0)
        assert_folder_holds(root, EARLIER, part=FILE)
        pipeline.again(job)  # nothing has changed
        assert pipeline.error(job) in ("no_space", "quota_exceeded")
        assert pipeline.row(job).attempts == 0
        assert_folder_holds(root, EARLIER, part=FILE)
        (volume / ".filler").unlink()
        goes_on(pipeline, job, EARLIER, FILE)
        (measured,) = pipeline.sql("SELECT resumed_from_bytes AS held FROM manifest WHERE job_id = :job", job=job)
        assert measured.held >= MIB, "what was there is kept"


def test_a_disk_that_fills_up_while_streaming(private: None, tmp_path: Path) -> None:
    mounts.in_private(full_while_streaming, tmp_path)


def full_while_finalizing(folder: Path) -> None:
    volume = mounts.mount("tmpfs", folder / "volume", "size=64m", "nr_inodes=64")
    with at_work(root := volume / "store", folder) as (pipeline, origin):
        job = pipeline.plan(origin.on("/f", honest(FILE)), project_id="new")
        pipeline.run_to("finalize", job)
        with suppress(OSError):  # until no folder can be made any more
            for n in range(64):
                (volume / str(n)).touch()
        pipeline.run("finalize", job)
        fails_with(pipeline, job, "no_space", attempts=0)
        for path in volume.iterdir():
            if path.is_file():
                path.unlink()
        assert_folder_holds(root, EARLIER, part=FILE)
        before = len([one for one in origin.asked if one.method == "GET"])
        goes_on(pipeline, job, EARLIER, FILE)
        assert len([one for one in origin.asked if one.method == "GET"]) == before, "nothing is fetched again"


def test_a_disk_that_is_full_when_the_file_gets_its_name(private: None, tmp_path: Path) -> None:
    mounts.in_private(full_while_finalizing, tmp_path)


def full_with_the_ledger(folder: Path) -> None:
    volume = mounts.mount("tmpfs", folder / "all", "size=64m")
    with at_work(volume / "store", volume) as (pipeline, origin):
        at_point("stream.chunk", lambda: fill(volume))
        job = pipeline.plan(origin.on("/f", unknown_length(FILE)))
        pipeline.drive()  # not even the failure can be written down
        assert pipeline.state(job) is State.STREAMING
        assert list(blobs(volume / "store").values()) == [EARLIER]
        (volume / ".filler").unlink()
        pipeline.expire(job)
        reconcile(pipeline.deps)
        pipeline.make_due(job)
        pipeline.drive()
        assert pipeline.state(job) is State.DEDUPED
        assert_folder_holds(volume / "store", EARLIER, FILE)


def test_a_full_disk_that_has_the_ledger_on_it_too(private: None, tmp_path: Path) -> None:
    mounts.in_private(full_with_the_ledger, tmp_path)


def over_quota(folder: Path) -> None:
    volume = mounts.mount("tmpfs", folder / "volume", "size=8m")
    with at_work(root := volume / "store", folder) as (pipeline, origin):
        filler = fill(volume, leave=2 * MIB)
        job = pipeline.fetch(origin.on("/f", honest(FILE)))
        fails_with(pipeline, job, "quota_exceeded", attempts=0)
        assert_folder_holds(root, EARLIER)
        assert staged(root) == [], "refused before a part file is made"
        filler.unlink()
        goes_on(pipeline, job, EARLIER, FILE)


def test_a_file_that_has_no_room_is_refused_before_a_part_is_made(private: None, tmp_path: Path) -> None:
    mounts.in_private(over_quota, tmp_path)


# ── not to be written ─────────────────────────────────────────────────────────────────────────────


def read_only(folder: Path) -> None:
    root = mounts.mount("tmpfs", folder / "store", "size=64m")
    with at_work(root, folder) as (pipeline, origin):
        first = pipeline.plan(origin.on("/f", honest(FILE)))
        mounts.remount(root, "ro")
        pipeline.drive()
        fails_with(pipeline, first, "store_read_only", attempts=1)
        assert_folder_holds(root, EARLIER)
        mounts.remount(root, "rw")
        pipeline.make_due(first)
        pipeline.run_to("finalize", first, run=2)
        mounts.remount(root, "ro")
        pipeline.run("finalize", first, 2)
        fails_with(pipeline, first, "store_read_only", attempts=2)
        assert_folder_holds(root, EARLIER, part=FILE)
        mounts.remount(root, "rw")
        goes_on(pipeline, first, EARLIER, FILE)


def test_a_store_that_is_read_only(private: None, tmp_path: Path) -> None:
    mounts.in_private(read_only, tmp_path)


def as_nobody(scene: Callable[[Path], None]) -> None:
    """Play a scene as an ordinary user, for whom permissions mean something; in a process of its own."""
    folder = tempfile.mkdtemp(prefix="dl")
    try:
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        code = (
            f"import runpy, sys, pathlib\nspace = runpy.run_path({__file__!r}, run_name='scene')\n"
            f"space['become_nobody'](pathlib.Path(sys.argv[1]))\nspace[{scene.__name__!r}](pathlib.Path(sys.argv[1]))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, folder],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=Path(__file__).parents[2],
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    finally:
        subprocess.run(["chmod", "-R", "u+rwX", folder], check=True)
        subprocess.run(["rm", "-rf", folder], check=True)


def become_nobody(folder: Path) -> None:
    with at_work(folder / "before" / "store", folder / "before"):
        pass  # everything is imported now: as nobody there may be no way to where Python lives
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else /proc/self stays root's


def forbidden(folder: Path) -> None:
    root = folder / "store"
    with at_work(root, folder / "home") as (pipeline, origin):
        job = pipeline.plan(origin.on("/f", honest(FILE)), project_id="new")
        (root / ".staging" / "default").chmod(0o500)
        pipeline.drive()
        fails_with(pipeline, job, "store_forbidden", attempts=1)
        (root / ".staging" / "default").chmod(0o700)
        assert_folder_holds(root, EARLIER)
        pipeline.make_due(job)
        pipeline.run_to("finalize", job, run=2)
        (root / "default").chmod(0o500)
        pipeline.run("finalize", job, 2)
        fails_with(pipeline, job, "store_forbidden", attempts=2)
        assert_folder_holds(root, EARLIER, part=FILE)
        (root / "default").chmod(0o000)
        pipeline.again(job)
        fails_with(pipeline, job, "store_forbidden", attempts=3)
        (root / "default").chmod(0o755)
        goes_on(pipeline, job, EARLIER, FILE)


def test_a_store_that_may_not_be_written() -> None:
    as_nobody(forbidden)


def too_large_for_a_file(folder: Path) -> None:
    root = folder / "store"
    with at_work(root, folder / "home") as (pipeline, origin):
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, limit[1]))
        job = pipeline.fetch(origin.on("/f", unknown_length(FILE)))
        fails_with(pipeline, job, "store_file_too_large", attempts=1)
        assert_folder_holds(root, EARLIER, part=FILE)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        goes_on(pipeline, job, EARLIER, FILE)


def test_a_limit_on_the_size_of_files() -> None:
    as_nobody(too_large_for_a_file)


# ── links ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP])
def test_where_there_is_no_further_link_to_a_file_every_copy_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    link = os.link

    def none_for_the_store(src: Any, *arguments: Any, **more: Any) -> None:
        if not str(src).startswith("/proc/"):  # publishing a part goes through its handle
            raise OSError(number, os.strerror(number))
        link(src, *arguments, **more)

    with at_work(tmp_path / "store", tmp_path / "home") as (pipeline, origin):
        monkeypatch.setattr(os, "link", none_for_the_store)
        job = pipeline.fetch(origin.on("/f", honest(EARLIER)), project_id="other")
        assert pipeline.state(job) is State.DEDUPED
        (measured,) = pipeline.sql("SELECT dedupe_action AS how FROM manifest WHERE job_id = :job", job=job)
        assert measured.how in ("copy", "reflink")  # a reflink where the tests' own disk can do that
        assert_folder_holds(pipeline.root, EARLIER, EARLIER)


def links_used_up(folder: Path) -> None:
    image = folder / "ext2.img"
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    subprocess.run(["mkfs.ext2", "-q", "-F", str(image)], check=True, capture_output=True)
    volume = mounts.mount("ext2", folder / "volume", "loop", device=str(image))
    with at_work(root := volume / "store", folder) as (pipeline, origin):
        (first,) = [root / name for name in blobs(root)]
        (volume / "names").mkdir()
        with suppress(OSError):
            for n in range(70_000):  # ext2 stops at 32,000 names for a file, ext4 at 65,000
                os.link(first, volume / "names" / str(n))
        with pytest.raises(OSError, match="Too many links"):
            os.link(first, volume / "names" / "one more")
        job = pipeline.fetch(origin.on("/f", honest(EARLIER)), project_id="other")
        assert pipeline.state(job) is State.DEDUPED
        (measured,) = pipeline.sql("SELECT dedupe_action AS how FROM manifest WHERE job_id = :job", job=job)
        assert measured.how == "copy"
        assert_folder_holds(root, EARLIER, EARLIER)


def test_a_file_that_has_as_many_names_as_it_can(tmp_path: Path) -> None:
    mounts.need_disks()
    mounts.in_private(links_used_up, tmp_path)


def across_devices(folder: Path) -> None:
    root = folder / "store"
    with at_work(root, folder) as (pipeline, origin):
        elsewhere = mounts.mount("tmpfs", root / "default" / "far", "size=16m")
        job = pipeline.fetch(origin.on("/f", honest(FILE)), project_id="far")
        fails_with(pipeline, job, "store_cross_device", attempts=1)
        assert [path for path in elsewhere.rglob("*") if path.is_file()] == []
        assert_folder_holds(root, EARLIER, part=FILE)
        mounts.unmount(elsewhere)
        goes_on(pipeline, job, EARLIER, FILE)


def test_a_folder_of_the_store_on_another_device(private: None, tmp_path: Path) -> None:
    mounts.in_private(across_devices, tmp_path)


def twin_on_another_device(folder: Path) -> None:
    root = folder / "store"
    with at_work(root, folder) as (pipeline, origin):
        (name,) = blobs(root)
        shard = (root / name).parent
        mounts.mount("tmpfs", shard, "size=16m")
        (root / name).write_bytes(EARLIER)
        (root / name).chmod(0o444)
        job = pipeline.fetch(origin.on("/f", honest(EARLIER)), project_id="near")
        assert pipeline.state(job) is State.DEDUPED
        (measured,) = pipeline.sql("SELECT dedupe_action AS how FROM manifest WHERE job_id = :job", job=job)
        assert measured.how == "copy"
        assert_folder_holds(root, EARLIER, EARLIER)
        mounts.unmount(shard)


def test_an_equal_file_on_another_device(private: None, tmp_path: Path) -> None:
    mounts.in_private(twin_on_another_device, tmp_path)

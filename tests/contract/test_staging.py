"""The port Staging on the local file system: one holder, and only what is vouched for counts. RESUME-2, LEASE-3."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dlpipe.core.errors import LeaseLost, Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.ports import Part, Staging
from dlpipe.store import LocalStaging
from dlpipe.store.behind import BLOCK_BYTES
from dlpipe.store.part import VOUCH_BYTES
from tests.parts import URL, begun, claim, facts, file_of
from tests.world import some_bytes, staged

MIB = VOUCH_BYTES
BODY = some_bytes(3 * MIB + 500)

HOLDER = """
import sys
from pathlib import Path
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalStaging
from dlpipe.store.behind import BLOCK_BYTES
root, url, job, fence = sys.argv[1:]
with LocalStaging(Path(root)).claim("t", url, job, int(fence)) as part:
    part.begin(RemoteFacts(200, "u", etag='"v"'))
    part.write(b"held")
    part.flush()
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return LocalStaging(tmp_path)


# ── one holder ────────────────────────────────────────────────────────────────────────────────────


def test_another_job_has_to_wait_and_uses_no_attempt(staging: Staging) -> None:
    with claim(staging, "one"):
        for _ in range(2):
            with pytest.raises(Postponed) as busy, claim(staging, "two", 9):
                pass
            assert (busy.value.code, busy.value.after_s) == ("part_busy", 30.0)
        with staging.claim("t", URL + "2", "two", 1), staging.claim("t2", URL, "two", 1):
            pass  # other URLs and other tenants are other parts
    with claim(staging, "two"):
        pass


def test_of_many_threads_one_is_let_in(staging: Staging) -> None:
    start, done = threading.Barrier(8), threading.Barrier(8)

    def work(number: int) -> int:
        start.wait(20)
        with ExitStack() as stack:
            try:
                stack.enter_context(claim(staging, f"job-{number}"))
                return 1
            except (Postponed, LeaseLost):
                return 0
            finally:
                done.wait(20)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 1
    with claim(staging, "after"):
        pass


def test_another_process_keeps_us_out_until_it_ends(staging: Staging, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), URL, "one", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(Postponed), claim(staging, "two"):
            pass
        process.kill()
        process.wait(20)
        with claim(staging, "two") as part:
            assert part.facts is not None
            assert (part.facts.good, part.verify(4)) == (4, 4)


def test_the_holder_is_on_record_from_the_first_moment(staging: Staging) -> None:
    """Also before it has begun, and over what another job left: nobody else may pass for the holder."""
    with ExitStack() as stack:
        begun(stack, staging, "two", 1)
    with claim(staging, "one"):
        with pytest.raises(Postponed), claim(staging, "two", 2):
            pass
        with claim(staging, "one", 2):  # but this job's next holder may overtake
            pass


def test_to_look_leaves_nothing_behind(staging: Staging, tmp_path: Path) -> None:
    with claim(staging) as part:
        assert part.facts is None
    assert [path for path in (tmp_path / ".staging").rglob("*") if path.is_file()] == []


# ── overtaken ─────────────────────────────────────────────────────────────────────────────────────


def test_a_stopped_holder_of_the_same_job_loses_its_file(staging: Staging, tmp_path: Path) -> None:
    with ExitStack() as stack:
        late = begun(stack, staging, fence=1, data=b"l" * 100)
        inode = file_of(tmp_path).stat().st_ino
        late_file = os.fstat(late.fileno())
        now = begun(stack, staging, fence=2, data=b"n" * 50)
        assert file_of(tmp_path).stat().st_ino != inode == late_file.st_ino
        late.write(b"l" * 100)  # into a file that nobody reads
        for attempt in (late.flush, late.finish, lambda: late.begin(facts())):
            with pytest.raises(LeaseLost):
                attempt()
        late.remove()  # takes nothing from anybody
        assert now.finish()[:2] == (hashlib.sha256(b"n" * 50).hexdigest(), 50)
    assert file_of(tmp_path).read_bytes() == b"n" * 50
    with claim(staging, fence=3) as part:
        assert part.facts is not None
        assert part.facts.good == 50


def test_an_overtaken_holder_cannot_come_back(staging: Staging) -> None:
    with ExitStack() as stack:
        begun(stack, staging, fence=5)
        for fence in (5, 4):
            with pytest.raises(LeaseLost), claim(staging, fence=fence):
                pass
    with pytest.raises(LeaseLost), claim(staging, fence=4):  # nor after the next one has let go
        pass


# ── a look, and one hand ──────────────────────────────────────────────────────────────────────────


def test_a_look_at_what_is_not_there_makes_nothing(staging: Staging, tmp_path: Path) -> None:
    assert staging.held("t", URL, "job", 1) is None
    assert not (tmp_path / ".staging").exists()


def test_a_look_finds_what_a_claim_would_and_is_refused_like_one(staging: Staging) -> None:
    with claim(staging, "one", 3) as part:
        part.begin(facts(9))
        part.write(b"held")
        part.flush()
        with pytest.raises(Postponed) as busy:
            staging.held("t", URL, "two", 9)
        assert busy.value.code == "part_busy"
        with pytest.raises(LeaseLost):
            staging.held("t", URL, "one", 2)
    found = staging.held("t", URL, "one", 4)
    assert found is not None
    assert (found.good, found.total, found.etag) == (4, 9, '"v"')


def test_who_goes_on_has_the_part_as_it_is_and_is_overtaken_as_ever(staging: Staging) -> None:
    with claim(staging, "job", 1) as part:
        part.begin(facts(3))
        part.write(b"abc")
        digest, size, _ = part.finish()
        part.go_on(2)
        assert part.is_as_hashed(digest, size) or part.sha256 == digest
        with claim(staging, "job", 3):
            pass
        with pytest.raises(LeaseLost):
            part.go_on(4)


def test_who_has_gone_on_is_not_overtaken_by_an_earlier_holder(staging: Staging) -> None:
    with claim(staging, "job", 5) as part:
        part.go_on(6)
        part.begin(facts(3))
        part.write(b"abc")
        part.flush()  # from now on it is on record
        with pytest.raises(LeaseLost), claim(staging, "job", 6):
            pass


def test_a_file_that_this_claim_made_and_left_empty_is_not_made_again(staging: Staging, tmp_path: Path) -> None:
    with claim(staging) as part:
        made = os.fstat(part.fileno()).st_ino
        part.begin(facts(3))
        assert os.fstat(part.fileno()).st_ino == made
        part.write(b"abc")
        part.begin(facts(3))  # a writer that was stopped may have the old one
        assert os.fstat(part.fileno()).st_ino != made
        part.put(5, b"ahead")
        again = os.fstat(part.fileno()).st_ino
        part.begin(facts(3))
        assert os.fstat(part.fileno()).st_ino != again


def test_what_a_killed_claim_left_empty_is_replaced(staging: Staging, tmp_path: Path) -> None:
    (tmp_path / ".staging" / "t").mkdir(parents=True)
    with claim(staging) as part:
        name = Path(part.path)
    name.touch(0o600)
    left = name.stat().st_ino
    with claim(staging) as part:
        assert os.fstat(part.fileno()).st_ino == left
        part.begin(facts(3))
        assert os.fstat(part.fileno()).st_ino != left


def test_what_fits_into_one_block_is_hashed_without_a_thread(staging: Staging) -> None:
    def take(size: int) -> int:
        data, most = some_bytes(size), threading.active_count()
        with claim(staging) as part:
            part.begin(facts(size))
            for at in range(0, size, BLOCK_BYTES):
                piece = data[at : at + BLOCK_BYTES]
                part.buffer()[: len(piece)] = piece
                part.write(part.buffer()[: len(piece)])
                part.buffer()
                most = max(most, threading.active_count())
            assert part.finish()[0] == hashlib.sha256(data).hexdigest()
            part.remove()
        return most

    idle = threading.active_count()
    assert take(BLOCK_BYTES - 1) == idle
    assert take(2 * BLOCK_BYTES + 1) == idle + 1
    assert take(100) == idle


# ── the disk ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("number", "code", "kind"),
    [
        (errno.ENOSPC, "no_space", Postponed),
        (errno.EDQUOT, "no_space", Postponed),
        (errno.EROFS, "store_read_only", Retryable),
        (errno.EACCES, "store_forbidden", Retryable),
        (errno.EIO, "store_io_error", Retryable),
        (errno.ENAMETOOLONG, "store_name_too_long", Permanent),
        (errno.EBADF, "store_error", Retryable),
    ],
)
@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_what_the_disk_says_becomes_a_code_without_a_path(
    staging: Staging,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    code: str,
    kind: type[StageFailure],
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number), str(tmp_path))

    with claim(staging) as part:
        for attempt in (begin, write_and_finish):
            part.begin(facts())
            if attempt is begin:
                part.write(b"!")  # a file that is new and empty would not be replaced
            with monkeypatch.context() as patched:
                patched.setattr(os, call, refuse)
                if attempt is begin and call != "rename":
                    continue
                with pytest.raises(kind) as refused:
                    attempt(part)
            assert refused.value.code == code
            assert str(tmp_path) not in refused.value.message
            assert {Path(name).suffix for name in staged(tmp_path)} == {".part", ".json"}
        part.rewind(0)
        part.write(b"xyz")  # a write that failed has moved nothing
        assert part.finish()[0] == hashlib.sha256(b"xyz").hexdigest()


def test_what_goes_wrong_with_something_else_is_not_called_the_disks_fault(staging: Staging) -> None:
    with pytest.raises(ConnectionResetError), claim(staging):
        raise ConnectionResetError
    with claim(staging, "other"):
        pass


def test_a_symlink_in_the_staging_folder_is_refused(staging: Staging, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".staging").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Postponed) as refused, claim(staging):
        pass
    assert refused.value.code == "staging_blocked"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("suffix", [".part", ".json"])
def test_what_may_not_be_read_vouches_for_nothing_and_makes_way(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    with ExitStack() as stack:
        begun(stack, staging)
    opened, forbidden = os.open, file_of(tmp_path).with_suffix(suffix)
    inode = forbidden.stat().st_ino

    def refuse(path: str, flags: int, *more: int, dir_fd: int | None = None) -> int:
        there = forbidden.name == path and forbidden.exists() and forbidden.stat().st_ino == inode
        if there and not flags & os.O_EXCL:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, *more, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with claim(staging, fence=2) as part:
            assert part.facts is None
            write_and_finish(part)
    apart = [path for path in forbidden.parent.iterdir() if path.name.endswith(".apart")]
    assert [path.stat().st_ino for path in apart] == ([inode] if suffix == ".part" else [])


def begin(part: Part) -> None:
    part.begin(facts())


def write_and_finish(part: Part) -> None:
    part.write(b"abc")
    part.finish()


def test_a_disk_that_fails_as_a_part_is_gone_on_with_is_told_by_its_code(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a claim tells it: without one, it would count as an error of ours."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "the disk")

    with claim(staging) as part:
        part.begin(facts())
        part.write(b"x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", refuse)
            with pytest.raises(Retryable) as failed:
                part.go_on(2)
    assert failed.value.code == "store_io_error"

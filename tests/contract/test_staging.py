"""The port Staging on the local file system: one holder, and only what is vouched for counts. RESUME-2, LEASE-3."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dlpipe.core.errors import LeaseLost, Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.ports import Part, Staging
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalStaging
from dlpipe.store.staging import CHECKPOINT_BYTES

URL = "http://files.example/a.bin"
MIB = CHECKPOINT_BYTES
BODY = os.urandom(3 * MIB + 500)

HOLDER = """
import sys
from pathlib import Path
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalStaging
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


def facts(total: int | None = None) -> RemoteFacts:
    return RemoteFacts(200, "u", etag='"v"', content_length=total)


@contextmanager
def claim(staging: Staging, job: str = "job", fence: int = 1) -> Iterator[Part]:
    with staging.claim("t", URL, job, fence) as part:
        yield part


def begun(stack: ExitStack, staging: Staging, job: str = "job", fence: int = 1, data: bytes = b"abc") -> Part:
    part = stack.enter_context(claim(staging, job, fence))
    part.begin(facts())
    part.write(data)
    part.flush()
    return part


def file_of(tmp_path: Path) -> Path:
    (found,) = (tmp_path / ".staging").rglob("*.part")
    return found


def sidecar_of(tmp_path: Path) -> Path:
    return file_of(tmp_path).with_suffix(".json")


# ── one holder ────────────────────────────────────────────────────────────────────────────────────


def test_another_job_has_to_wait_and_uses_no_attempt(staging: Staging) -> None:
    with claim(staging, "one"):
        for _ in range(2):
            with pytest.raises(Postponed) as busy, claim(staging, "two", 9):
                pass
            assert (busy.value.code, busy.value.after_s) == ("part_busy", 5.0)
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
        assert sum(pool.map(work, range(8))) <= 1
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


# ── what is vouched for ───────────────────────────────────────────────────────────────────────────


def test_what_was_flushed_is_there_for_the_next_holder(staging: Staging) -> None:
    with ExitStack() as stack:
        begun(stack, staging, data=BODY)
    with claim(staging, "other") as part:
        assert part.facts is not None
        assert (part.facts.good, part.facts.etag, part.facts.complete) == (len(BODY), '"v"', False)
        assert part.verify(len(BODY)) == len(BODY) == part.offset
        assert part.sha256 == hashlib.sha256(BODY).hexdigest()
        assert part.read(0, 10) == BODY[:10]
        part.write(b"tail")
        assert part.finish()[:2] == (hashlib.sha256(BODY + b"tail").hexdigest(), len(BODY) + 4)
    with claim(staging) as part:
        assert part.facts is not None
        assert (part.facts.complete, part.facts.total) == (True, len(BODY) + 4)


def test_size_alone_is_no_progress(staging: Staging, tmp_path: Path) -> None:
    with ExitStack() as stack:
        part = stack.enter_context(claim(staging))
        part.begin(facts())
        part.write(BODY[: MIB - 1])  # short of the first checkpoint, and never flushed
        assert file_of(tmp_path).stat().st_size == MIB - 1
    with claim(staging) as part:
        assert part.facts is None
        assert part.verify(MIB) == 0


@pytest.mark.parametrize(
    ("harm", "left"),
    [
        (lambda f: os.truncate(f, 2 * MIB + 5), 2 * MIB),
        (lambda f: os.truncate(f, 0), 0),
        (lambda f: write_at(f, 2 * MIB + 7, b"!"), 2 * MIB),
        (lambda f: write_at(f, 0, b"!!"), 0),
        (lambda f: write_at(f, len(BODY), b"garbage past the end"), len(BODY)),
    ],
    ids=["cut", "emptied", "altered late", "altered at the front", "leftovers past the end"],
)
def test_after_harm_the_furthest_right_checkpoint_counts(
    staging: Staging, tmp_path: Path, harm: Callable[[Path], None], left: int
) -> None:
    with ExitStack() as stack:
        part = begun(stack, staging, data=b"")
        for begin in range(0, len(BODY), MIB // 2):
            part.write(BODY[begin : begin + MIB // 2])
        part.flush()
    harm(file_of(tmp_path))
    with claim(staging) as part:
        assert part.verify(len(BODY)) == left
        part.write(BODY[left:])
        assert part.finish()[:2] == (hashlib.sha256(BODY).hexdigest(), len(BODY))
    assert file_of(tmp_path).read_bytes() == BODY  # leftovers are cut


def test_verify_goes_no_further_than_asked(staging: Staging) -> None:
    with ExitStack() as stack:
        part = begun(stack, staging, data=BODY[:100])
        part.write(BODY[100:200])
        part.flush()
    with claim(staging) as part:
        assert part.verify(150) == 100


def torn(text: bytes) -> bytes:
    return text[:-20]


def garbled(text: bytes) -> bytes:
    return text.replace(b"[[3", b"[[9")


@pytest.mark.parametrize(
    "harm",
    [
        torn,
        garbled,
        lambda text: b"",
        lambda text: b"\xff\xfe\x00",
        lambda text: b"[]",
        lambda text: b'{"body": 5, "sha256": ""}',
        lambda text: signed({"v": 99}),
        lambda text: signed({"v": 1, "checkpoints": "no"}),
        lambda text: signed([1]),
    ],
    ids=["torn", "garbled", "empty", "no text", "a list", "no body", "a newer one", "no marks", "no record"],
)
def test_a_torn_or_garbled_sidecar_vouches_for_nothing(
    staging: Staging, tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    with ExitStack() as stack:
        begun(stack, staging)
    side = sidecar_of(tmp_path)
    harmed = harm(side.read_bytes())
    assert harmed != side.read_bytes()
    side.write_bytes(harmed)
    with claim(staging) as part:
        assert part.facts is None
        assert part.verify(3) == 0


def test_a_sidecar_of_another_file_vouches_for_nothing(staging: Staging, tmp_path: Path) -> None:
    with ExitStack() as stack:
        begun(stack, staging)
    file = file_of(tmp_path)
    other = file.with_suffix(".copy")
    other.write_bytes(file.read_bytes())
    other.rename(file)
    with claim(staging) as part:
        assert part.facts is None


def test_to_begin_never_cuts_the_old_file(staging: Staging, tmp_path: Path) -> None:
    with ExitStack() as stack:
        part = begun(stack, staging, data=BODY)
        with open(file_of(tmp_path), "rb") as old:
            part.begin(facts())
            assert os.fstat(old.fileno()).st_size == len(BODY)
            assert (part.offset, os.fstat(part.fileno()).st_size) == (0, 0)
        with pytest.raises(Postponed), claim(staging, "other"):  # the new file was never unlocked
            pass


def test_to_rewind_forgets_what_came_after(staging: Staging) -> None:
    with ExitStack() as stack:
        part = begun(stack, staging, data=BODY)
        assert part.rewind(1000) == 1000
        assert part.sha256 == hashlib.sha256(BODY[:1000]).hexdigest()
        part.write(b"new")
        part.flush()
    with claim(staging) as part:
        assert part.verify(len(BODY)) == 1003
        assert part.sha256 == hashlib.sha256(BODY[:1000] + b"new").hexdigest()


def test_a_removed_part_is_gone_and_its_name_free(staging: Staging, tmp_path: Path) -> None:
    with ExitStack() as stack:
        begun(stack, staging).remove()
        assert not [path for path in (tmp_path / ".staging").rglob("*") if path.is_file()]
    with claim(staging, "other") as part:
        assert part.facts is None


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
        part.begin(facts())
        with monkeypatch.context() as patched, pytest.raises(kind) as refused:
            patched.setattr(os, call, refuse)
            part.write(b"abc")
            part.finish()
        assert refused.value.code == code
        assert str(tmp_path) not in refused.value.message
        part.rewind(0)
        part.write(b"xyz")  # a write that failed has moved nothing
        assert part.finish()[0] == hashlib.sha256(b"xyz").hexdigest()


def test_a_symlink_in_the_staging_folder_is_refused(staging: Staging, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".staging").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Permanent) as refused, claim(staging):
        pass
    assert refused.value.code == "store_symlink"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def signed(body: object) -> bytes:
    text = json.dumps(body)
    return json.dumps({"body": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()

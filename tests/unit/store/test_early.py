"""A large file leaves memory as it is written out; what the disk says meanwhile is heard, as it is said once."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dlpipe.store.preallocate as preallocate_module
from dlpipe.core.errors import Retryable
from dlpipe.store import LocalStaging, early
from dlpipe.store.early import LAG
from dlpipe.store.part import LocalPart
from tests.parts import URL, facts
from tests.servers import wait_until
from tests.world import some_bytes

WINDOW = 1 << 16
BODY = some_bytes((LAG + 6) * WINDOW + 77)
_WRITE, _WAIT = 2, 7
Calls = list[tuple[str, int, int]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What the kernel was asked, in order: to write out, to wait for that, to forget."""
    made: Calls = []
    names = {_WRITE: "write", _WAIT: "wait"}

    def sync(fd: int, offset: int, size: int, flags: int) -> int:
        made.append((names[flags], offset, size))
        return 0

    def forget(fd: int, offset: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        made.append(("forget", offset, size))

    monkeypatch.setattr(early, "WINDOW_BYTES", WINDOW)
    monkeypatch.setattr(preallocate_module, "_sync_file_range", lambda: sync)
    monkeypatch.setattr(os, "posix_fadvise", forget)
    return made


@contextmanager
def part(root: Path, uncached: int | None, total: int | None = len(BODY)) -> Iterator[LocalPart]:
    with LocalStaging(root, None, uncached).claim("t", URL, "job", 1) as claimed:
        claimed.begin(facts(total))
        yield claimed


def write(to: LocalPart, data: bytes = BODY) -> None:
    for at in range(0, len(data), WINDOW // 2):
        to.write(data[at : at + WINDOW // 2])
    to.flush()


def test_what_is_forgotten_was_waited_for_and_is_some_way_behind(tmp_path: Path, calls: Calls) -> None:
    with part(tmp_path, len(BODY)) as large:
        write(large)
        assert large.finish()[0] == hashlib.sha256(BODY).hexdigest()
    written = [call[1:] for call in calls if call[0] == "write"]
    assert written == [(at * WINDOW, WINDOW) for at in range(LAG + 6)]
    for number, window in enumerate(written[: -LAG - 1]):
        at = calls.index(("forget", *window))
        assert calls[at - 1] == ("wait", *window)
        assert calls[:at].count(("write", *written[number + LAG])) == 1
    assert len([call for call in calls if call[0] == "forget"]) == len(written) - LAG


@pytest.mark.parametrize("least", [len(BODY) + 1, None])
def test_a_file_that_is_not_large_stays_in_memory(tmp_path: Path, calls: Calls, least: int | None) -> None:
    with part(tmp_path, least) as small:
        write(small)
    assert {call[0] for call in calls} == {"write"}


def test_a_file_of_unknown_length_is_large_once_it_has_grown_so(tmp_path: Path, calls: Calls) -> None:
    with part(tmp_path, 4 * WINDOW, None) as growing:
        write(growing, BODY[: 4 * WINDOW - 1])
        assert {call[0] for call in calls} == {"write"}
        write(growing, BODY[4 * WINDOW - 1 :])
    assert "forget" in {call[0] for call in calls}


def test_begun_again_what_was_under_way_is_not_waited_for(tmp_path: Path, calls: Calls) -> None:
    with part(tmp_path, 1) as again:
        write(again, BODY[: LAG * WINDOW])
        again.begin(facts(len(BODY)))
        calls.clear()
        write(again, BODY[: LAG * WINDOW])
    assert {call[0] for call in calls} == {"write"}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_what_the_disk_says_of_earlier_bytes_is_a_failure(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """To have been told is to have been told the last time: an fsync would say that all is well."""
    monkeypatch.setattr(
        preallocate_module, "_sync_file_range", lambda: lambda fd, offset, size, flags: number if flags == _WAIT else 0
    )
    code = {errno.EIO: "store_io_error", errno.ENOSPC: "no_space"}[number]
    with part(tmp_path, 1) as large, pytest.raises(Exception) as said:  # noqa: PT011 - its code is looked at
        write(large)
    assert getattr(said.value, "code", None) == code
    assert not calls


def test_what_the_disk_says_behind_the_back_of_who_fills_blocks_is_told_at_the_next(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        preallocate_module, "_sync_file_range", lambda: lambda fd, offset, size, flags: errno.EIO if flags == 7 else 0
    )

    def fill(to: LocalPart) -> None:
        for at in range(0, len(BODY), WINDOW):
            block = to.buffer()
            piece = BODY[at : at + WINDOW]
            block[: len(piece)] = piece
            to.write(block[: len(piece)])
        to.finish()

    with part(tmp_path, 1) as large, pytest.raises(Retryable) as said:
        fill(large)
    assert said.value.code == "store_io_error"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL])
def test_where_the_kernel_cannot_tell_nothing_is_forgotten(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(preallocate_module, "_sync_file_range", lambda: lambda fd, offset, size, flags: number)
    with part(tmp_path, 1) as large:
        write(large)
        assert large.finish()[0] == hashlib.sha256(BODY).hexdigest()
    assert not calls


def test_a_file_waits_for_a_disk_that_is_too_slow(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or all of it would be in memory before the disk has the first of it."""
    goes_on = threading.Event()
    came_to: list[int] = []

    def sync(fd: int, offset: int, size: int, flags: int) -> int:
        assert goes_on.wait(60)
        return 0

    monkeypatch.setattr(preallocate_module, "_sync_file_range", lambda: sync)

    def fill() -> None:
        for at in range(0, len(BODY), WINDOW):
            large.write(BODY[at : at + WINDOW])
            came_to.append(at + WINDOW)

    with part(tmp_path, 1) as large:
        filler = threading.Thread(target=fill)
        filler.start()
        # One window is with the disk, as many as it may be behind wait their turn, and one more cannot be given.
        held_up = [(at + 1) * WINDOW for at in range(LAG + 1)]
        wait_until(lambda: large.offset == (LAG + 2) * WINDOW and came_to == held_up, "the file to wait")
        goes_on.set()
        filler.join()
        assert large.finish()[0] == hashlib.sha256(BODY).hexdigest()


def test_who_closes_a_part_waits_for_one_window_at_most(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = threading.Event(), []

    def sync(fd: int, offset: int, size: int, flags: int) -> int:
        begun.append(offset)
        assert goes_on.wait(60)
        return 0

    monkeypatch.setattr(preallocate_module, "_sync_file_range", lambda: sync)
    claim = part(tmp_path, 1)
    large = claim.__enter__()
    for at in range(0, (LAG + 1) * WINDOW, WINDOW):
        large.write(BODY[at : at + WINDOW])
    closer = threading.Thread(target=large.close)
    closer.start()
    wait_until(lambda: large._early._ends, "the end to be asked for")
    goes_on.set()
    closer.join()
    claim.__exit__(None, None, None)
    assert begun == [0]


def test_for_real_the_bytes_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "WINDOW_BYTES", 1 << 20)
    data = some_bytes((LAG + 4) << 20)
    with part(tmp_path, 1, len(data)) as large:
        write(large, data)
        assert large.finish()[0] == hashlib.sha256(data).hexdigest()
        assert Path(large.path).read_bytes() == data

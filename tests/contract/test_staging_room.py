"""Blocks set aside for a part before its bytes come: never its size, never needed, never left over. STREAM-2."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import dlpipe.store.part as part_module
import dlpipe.store.preallocate as preallocate_module
from dlpipe.core.errors import Postponed
from dlpipe.core.remote import RemoteFacts
from dlpipe.store import LocalStaging
from dlpipe.store.preallocate import preallocate

URL = "http://files.example/a.bin"
MIB = 1 << 20


@pytest.fixture
def probe(tmp_path: Path) -> None:
    with open(tmp_path / "probe", "wb") as file:
        if not preallocate(file.fileno(), MIB):
            pytest.skip("this file system sets no blocks aside")


def facts(total: int | None) -> RemoteFacts:
    return RemoteFacts(200, "u", etag='"v"', content_length=total)


def blocks(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize(
    ("total", "set_aside"), [(8 * MIB, True), (4 * MIB, True), (4 * MIB - 1, False), (None, False), (0, False)]
)
def test_from_a_threshold_on_blocks_are_set_aside_and_the_size_stays(
    tmp_path: Path, total: int | None, set_aside: bool
) -> None:
    with LocalStaging(tmp_path, 4 * MIB).claim("t", URL, "job", 1) as part:
        part.begin(facts(total))
        assert os.fstat(part.fileno()).st_size == 0
        assert (blocks(part.fileno()) >= (total or 1)) == set_aside
        part.write(b"abc")
        assert os.fstat(part.fileno()).st_size == 3
        part.flush()
    with LocalStaging(tmp_path, 4 * MIB).claim("t", URL, "job", 2) as part:
        assert part.facts is not None
        assert (part.facts.good, part.verify(3)) == (3, 3)


@pytest.mark.usefixtures("probe")
def test_what_was_set_aside_for_nothing_is_given_back(tmp_path: Path) -> None:
    """A server may declare more than it has; the rest must not stay with the published file."""
    with LocalStaging(tmp_path, MIB).claim("t", URL, "job", 1) as part:
        part.begin(facts(16 * MIB))
        part.write(b"abc")
        assert part.finish()[:2] == (hashlib.sha256(b"abc").hexdigest(), 3)
        assert blocks(part.fileno()) <= part_module.SLACK_BYTES
        assert os.pread(part.fileno(), 10, 0) == b"abc"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, None])
def test_where_it_cannot_be_had_the_bytes_come_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    answer_with(monkeypatch, number)
    with LocalStaging(tmp_path, 1).claim("t", URL, "job", 1) as part:
        part.begin(facts(3))
        part.write(b"abc")
        assert part.finish()[1] == 3


def test_a_full_disk_is_noticed_before_the_first_byte_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, errno.ENOSPC)
    with pytest.raises(Postponed) as full, LocalStaging(tmp_path, 1).claim("t", URL, "job", 1) as part:
        part.begin(facts(3))
    assert full.value.code == "no_space"
    assert [path for path in (tmp_path / ".staging").rglob("*") if path.is_file()] == []


def test_an_interrupted_call_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [errno.EINTR, errno.EINTR, 0]
    monkeypatch.setattr(preallocate_module, "_fallocate", lambda: lambda fd, size: answers.pop(0))
    assert preallocate(0, 1)
    assert answers == []


def answer_with(monkeypatch: pytest.MonkeyPatch, number: int | None) -> None:
    call: Callable[[int, int], int] | None = None if number is None else lambda fd, size: number
    monkeypatch.setattr(preallocate_module, "_fallocate", lambda: call)

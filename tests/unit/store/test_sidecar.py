"""What a sidecar may say: only what is exactly as it is written vouches for anything. RESUME-2."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlpipe.store import sidecar
from dlpipe.store.sidecar import MAX_BYTES, Checkpoint, Piece, Sidecar
from tests import forged
from tests.world import sha256

DIGEST = sha256(b"abc")
SOUND = Sidecar(
    job_id="5a3b-1",
    fence=3,
    inode=4711,
    final_url_sha256=DIGEST,
    etag='"v1"',
    last_modified="Wed, 18 Nov 2026 10:00:00 GMT",
    date=None,
    total=30,
    complete=False,
    checkpoints=[Checkpoint(3, DIGEST), Checkpoint(10, DIGEST)],
    pieces=[Piece(12, 15, DIGEST), Piece(15, 20, DIGEST)],
)


def wrapped(text: str) -> bytes:
    return json.dumps({"body": text, "sha256": sha256(text.encode())}).encode() + b"\n"


def body(**fields: Any) -> bytes:
    return wrapped(json.dumps(json.loads(json.loads(SOUND.dump())["body"]) | fields))


def test_what_was_written_is_read_again() -> None:
    assert Sidecar.load(SOUND.dump()) == SOUND
    noted = Sidecar.load(SOUND.dump() + SOUND.note(Checkpoint(25, DIGEST)))
    assert noted is not None
    assert noted.checkpoints == [*SOUND.checkpoints, Checkpoint(25, DIGEST)]


def test_one_of_the_release_before_is_read() -> None:
    assert Sidecar.load(body(imprint={"sha256": DIGEST, "size": 30})) == SOUND


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("job_id", [None, 7, "", "a" * 65, "a/b", "a\0b", "\ud800", ["a"], "a b"]),
        ("fence", [None, "3", 3.0, True, -1, 2**63, 2**70, [3], 10**400]),
        ("inode", [None, "1", 1.5, -1, {}]),
        ("final_url_sha256", [None, 7, "x" * 2000, "a\0", "a\nb"]),
        ("etag", [7, "\ud800", '"a\0b"', '"a\r\nX: y"', "x" * 2000, []]),
        ("last_modified", [7, "\udfff", "\x7f"]),
        ("date", [False, "a\nb"]),
        ("total", ["30", -1, 1.0, 10**31, True]),
        ("complete", [None, 1, "true", []]),
        ("unproven", [None, 1, "no"]),
        ("promised", [7, "abc", DIGEST.upper(), DIGEST + "0"]),
        (
            "checkpoints",
            [
                None,
                7,
                "ab",
                {"ab": 1},
                [7],
                [[1]],
                [[1, 2]],
                [["1", DIGEST]],
                [[-1, DIGEST]],
                [[1.5, DIGEST]],
                [[5, DIGEST], [5, DIGEST]],
                [[5, DIGEST], [4, DIGEST]],
                [[10**31, DIGEST]],
                [[True, DIGEST]],
            ],
        ),
        (
            "pieces",
            [
                None,
                [[1, 2]],
                [[2, 1, DIGEST]],
                [[1, 1, DIGEST]],
                [[-1, 2, DIGEST]],
                [[1, 9, DIGEST], [5, 12, DIGEST]],
                [[1, 9, DIGEST]] * 2,
                [[1, 9, 7]],
            ],
        ),
        ("v", [0, 2, None, "1"]),
        ("further", [1]),
    ],
)
def test_a_value_of_another_kind_or_past_its_bounds_vouches_for_nothing(field: str, values: list[Any]) -> None:
    for value in values:
        assert Sidecar.load(body(**{field: value})) is None, value


@pytest.mark.parametrize("word", ["Infinity", "-Infinity", "NaN", "1e999", "1.0", "1" * 5_000])
@pytest.mark.parametrize("field", ["fence", "total", "checkpoints"])
def test_numbers_that_are_none_of_ours_vouch_for_nothing(field: str, word: str) -> None:
    text = json.loads(body(**{field: "@" if field != "checkpoints" else [["@", DIGEST]]}))["body"]
    assert Sidecar.load(wrapped(text.replace('"@"', word))) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"null",
        b"[]",
        b"7",
        b'"a"',
        b"{}",
        b"\xff\xfe\xfd",
        b"\xff" * 1000,
        b'{"body": 7, "sha256": "x"}',
        b'{"body": null, "sha256": null}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        wrapped("[" * 100_000),
        wrapped('{"checkpoints":' + "[" * 100_000),
        wrapped("[" * 2_500 + " " * 300_000),
        wrapped("null"),
        wrapped("[]"),
        wrapped('"\\ud800"'),
        SOUND.dump().replace(b"v1", b"v2"),
        SOUND.dump()[:-10],
    ],
    ids=range(21),
)
def test_bytes_that_are_no_sidecar_vouch_for_nothing(data: bytes) -> None:
    assert Sidecar.load(data) is None


@pytest.mark.parametrize(
    "line",
    [b"", b"25", b"25 x y", b"-1 a b", b"\xff\xff", b"9" * 5_000 + b" a b", b"25 " + DIGEST.encode() + b" 0"],
)
def test_a_note_that_is_not_whole_counts_for_nothing(line: bytes) -> None:
    found = Sidecar.load(SOUND.dump() + line + b"\n" + SOUND.note(Checkpoint(25, DIGEST)))
    assert found in (SOUND, None)
    beyond = SOUND.note(Checkpoint(10**31, DIGEST))
    assert Sidecar.load(SOUND.dump() + beyond) == SOUND


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def where(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("kind", forged.KINDS)
@pytest.mark.timeout(20)
def test_what_is_no_plain_file_is_not_waited_for(where: int, tmp_path: Path, kind: Callable[[Path], None]) -> None:
    before = os.listdir("/proc/self/fd")
    kind(tmp_path / "a.json")
    assert sidecar.read(where, "a.json") is None
    assert sidecar.read(where, "b.json") is None
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("text", ["[],", '{"a":1},', f'[1,"{DIGEST}"],'])
@pytest.mark.timeout(30)
def test_the_largest_takes_bounded_time_and_memory(where: int, tmp_path: Path, text: str) -> None:
    """Even if its checksum is right."""
    inner = '{"v": 1, "checkpoints": [' + text * ((MAX_BYTES - 500) // (len(text) + text.count('"'))) + "0]}"
    (tmp_path / "a.json").write_bytes(wrapped(inner)[:MAX_BYTES])
    tracemalloc.start()
    try:
        assert sidecar.read(where, "a.json") is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * MAX_BYTES


def test_one_that_is_too_long_is_not_read(where: int, tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.write(SOUND.dump())
        file.truncate(1 << 40)
    assert sidecar.read(where, "a.json") is None

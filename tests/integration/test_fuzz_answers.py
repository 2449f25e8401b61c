"""A short piece of `make fuzz`: answers as no server should give them, and the oracle that judges what they led to."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fuzz import answers
from tests.fuzz.cases import Case, Step, Target
from tests.fuzz.client import Ended
from tests.fuzz.reading import justified, read

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.no_engines(),
]

SEED = 18


def test_answers_of_any_kind_never_bring_wrong_bytes_nor_fail_an_innocent_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(answers, "KEPT", tmp_path)
    tally = answers.run(SEED, range(2_000), time.monotonic() + 200.0)
    assert "\n".join(tally.violations) == ""
    assert tally.cases == 2_000
    seen = tally.counts
    assert seen["innocent: right"] > 4_000
    assert seen["hostile: right"] > 500, "not everything hostile is refused: only then is the rest looked at"
    assert seen["hostile: refused: protocol_error"] > 300
    assert seen["late surplus"] > 300
    assert seen["resumed"] > 100
    assert seen["requests on a connection used before"] > 1_000


def test_case_is_the_same_each_time_it_is_played() -> None:
    first, second = (answers.run(SEED, range(40, 60), time.monotonic() + 60.0) for _ in range(2))
    assert first == second


def target(content: bytes, tenant: str = "anna", *, hostile: bool = False) -> Target:
    return Target("/0", tenant, content, hostile)


@pytest.mark.parametrize(
    ("ended", "hostile", "wrong"),
    [
        (Ended(b"file", ()), False, ""),
        (Ended(b"fine", ()), False, "wrong bytes"),
        (Ended(b"fine", ()), True, "wrong bytes"),
        (Ended(b"file", ("body_cut",)), False, "innocent failure"),
        (Ended(None, ("http_404",), for_good=True), False, "innocent failure"),
        (Ended(None, ("http_404",), for_good=True), True, ""),
    ],
)
def test_oracle_tells_wrong_bytes_and_failures_of_innocent_files(ended: Ended, hostile: bool, wrong: str) -> None:
    said = answers.judge(Case(1, 1), Step(target(b"file", hostile=hostile), head=False), ended)[1]
    assert said.startswith(wrong)
    assert bool(said) is bool(wrong)


@pytest.mark.parametrize(
    ("data", "closed", "body", "whole"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd", False, b"abc", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcd", True, b"abcd", False),
        (b"HTTP/1.1 103 E\r\n\r\nHTTP/1.1 200 OK\r\n\r\nab", True, b"ab", True),
        (b"HTTP/1.1 200 OK\r\n\r\nab", False, b"ab", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", False, b"ab", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\n\n", False, b"ab", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nab\r\n", False, None, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nab", False, None, False),
        (b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nab", False, None, False),
        (b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nab", False, None, False),
    ],
)
def test_oracle_reads_an_answer_by_the_rfc(data: bytes, closed: bool, body: bytes | None, whole: bool) -> None:
    reading = read(data, closed=closed)
    assert (reading and (reading.body, reading.whole)) == (None if body is None else (body, whole))


def test_oracle_takes_a_file_of_two_versions_for_wrong() -> None:
    old, new = b"a" * 10, b"b" * 10
    parts = [
        read(b'HTTP/1.1 200 OK\r\nETag: "v1"\r\nContent-Length: 10\r\n\r\naaaaa', closed=True),
        read(b'HTTP/1.1 206 P\r\nETag: "v2"\r\nContent-Range: bytes 5-9/10\r\n\r\nbbbbb', closed=True),
    ]
    readings = [one for one in parts if one is not None]
    assert len(readings) == 2
    assert justified(b"aaaaabbbbb", {old, new}, readings) == ""
    assert justified(new, {old, new}, readings) == "right"

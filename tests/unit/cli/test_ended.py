"""What came of a fetch's requests: rows and reasons once, refusals counted, and memory that they do not use up."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from dlpipe.cli import records
from dlpipe.cli.ended import SHOWN_REFUSALS, Ended
from dlpipe.cli.inputs import Entry
from dlpipe.pipeline.planner import Refusal


def refused(number: int) -> dict[str, Any]:
    entry = Entry({"url": f"ftp://h/{number}"}, "a.txt", number)
    return records.of_refusal(Refusal(number, "url_scheme", "the scheme is not supported", "Use another."), entry)


def ended(url: str, status: str, **fields: Any) -> dict[str, Any]:
    return {**refused(0), "url": url, "status": status, "error_code": None, "error_message_safe": None, **fields}


def test_each_request_is_a_row_and_a_failure_is_told_once_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = Ended(as_json=False)
    found.add(ended("https://h/1?token=x", "completed", byte_size=5, out_path="out/1"), times=2)
    assert not found.is_bad
    found.add(ended("https://h/2", "failed", error_code="http_404", error_message_safe="gone"), times=3)
    assert (found.is_bad, found.count) == (True, 5)
    found.show()
    said = capsys.readouterr()
    assert said.out.splitlines()[1:] == [*["completed\t5 B\t-\tout/1"] * 2, *["failed\t-\t-\thttps://h/2"] * 3]
    assert said.err == "failed: https://h/2: gone [http_404]\n"


def test_as_json_each_request_is_an_object_at_once_and_no_table_follows(capsys: pytest.CaptureFixture[str]) -> None:
    found = Ended(as_json=True)
    found.add(ended("https://h/1", "completed"), times=2)
    assert capsys.readouterr().out.count('"status": "completed"') == 2
    found.show()
    assert capsys.readouterr().out == ""


def test_refusals_beyond_the_first_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    found = Ended(as_json=False)
    for number in range(SHOWN_REFUSALS + 3):
        found.add(refused(number))
    found.add(ended("https://h/1", "completed"))
    found.show()
    _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == SHOWN_REFUSALS + 2
    assert rows[-1] == "refused\t-\t-\tand 3 more requests"
    assert found.is_bad


def test_what_is_kept_does_not_grow_with_refusals() -> None:
    found = Ended(as_json=False)
    for number in range(SHOWN_REFUSALS):
        found.add(refused(number))
    tracemalloc.start()
    for number in range(5_000):
        found.add(refused(number))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 50_000

"""Reading requests: each format, and what is wrong with a line stays with that line."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import click
import pytest

from dlpipe.cli.inputs import requests


def read(text: str, tmp_path: Path, name: str = "in.txt", format_: str = "auto", **common: Any) -> list[dict[str, Any]]:
    file = tmp_path / name
    file.write_text(text)
    return list(requests((), (str(file),), format_, **common))


@pytest.mark.parametrize(
    ("name", "text", "urls"),
    [
        ("a.txt", "https://e.org/a\n\n# c\n  https://e.org/b  \n", ["https://e.org/a", "https://e.org/b"]),
        ("a.csv", "url\nhttps://e.org/a\n", ["https://e.org/a"]),
        ("a", "work_id,url\nW,https://e.org/a\n", ["https://e.org/a"]),
        ("a.jsonl", '{"url": "https://e.org/a"}\n\n', ["https://e.org/a"]),
        ("a", '{"url": "https://e.org/a"}\n', ["https://e.org/a"]),
        ("a.txt", "https://e.org/a,b\n", ["https://e.org/a,b"]),  # a comma alone makes no CSV
        ("a.txt", "", []),
        ("a.txt", "\ufeffhttps://e.org/a\r\n", ["https://e.org/a"]),
    ],
)
def test_the_format_is_seen_from_name_and_first_line(name: str, text: str, urls: list[str], tmp_path: Path) -> None:
    assert [fields["url"] for fields in read(text, tmp_path, name)] == urls


def test_options_hold_for_lines_that_do_not_say_otherwise(tmp_path: Path) -> None:
    text = "url,work_id,max_bytes\nhttps://e.org/a,,10\nhttps://e.org/b,W2,\n"
    found = read(text, tmp_path, "a.csv", work_id="W1", tenant_id="t", sha256=None)
    assert found == [
        {"work_id": "W1", "tenant_id": "t", "url": "https://e.org/a", "max_bytes": 10},
        {"work_id": "W2", "tenant_id": "t", "url": "https://e.org/b"},
    ]


def test_a_line_that_is_no_object_is_passed_on_to_be_refused(tmp_path: Path) -> None:
    found = read('{"url": "https://e.org/a"}\nnot json\n[1]\n', tmp_path, "a.jsonl")
    assert [("url" in fields) for fields in found] == [True, False, False]


def test_a_file_that_is_not_there_and_no_input_at_all_are_wrong_use() -> None:
    with pytest.raises(click.UsageError):
        requests((), ("/no/such",), "auto")
    with pytest.raises(click.UsageError):
        requests((), (), "auto")
    with pytest.raises(click.UsageError):
        requests(("https://e.org/a", "https://e.org/b"), (), "auto", sha256="0" * 64)


def test_a_number_that_is_none_is_passed_on_as_text_to_be_refused(tmp_path: Path) -> None:
    lines = "".join(f"https://e.org/a,{value}\n" for value in ("--5", "-5", "5", "\u0665", "1e3", "9" * 5000))
    found = [fields["max_bytes"] for fields in read("url,max_bytes\n" + lines, tmp_path, "a.csv")]
    assert found == ["--5", -5, 5, "\u0665", "1e3", "9" * 5000]


@pytest.mark.parametrize("before", ["url,work_id\nhttps://e.org/a,W\n", ""])
def test_a_broken_table_names_its_file_and_line(before: str, tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=rf"a\.csv, line {before.count(chr(10)) + 1}: "):
        read(before + "x" * 200_000 + "\n", tmp_path, "a.csv")


def test_a_closed_standard_input_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    for urls, files in (((), ("-",)), (("-",), ())):
        with pytest.raises(click.UsageError, match="closed"):
            requests(urls, files, "auto")


def test_pipes_are_read_and_folders_and_unreadable_files_are_wrong_use(tmp_path: Path) -> None:
    end, other = os.pipe()
    os.write(other, b"https://e.org/a\n")
    os.close(other)
    assert [fields["url"] for fields in requests((), (f"/dev/fd/{end}",), "auto")] == ["https://e.org/a"]
    os.close(end)
    for file in (str(tmp_path), str(tmp_path / "none"), "a\0b"):
        with pytest.raises(click.UsageError, match="can be read"):
            requests((), (file,), "auto")


def test_a_file_that_cannot_be_opened_is_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_text("https://e.org/a\n")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(click.UsageError, match="Permission denied"):
        requests((), (str(file),), "auto")

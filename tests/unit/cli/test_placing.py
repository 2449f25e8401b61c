"""Readable names for `--out`: never outside the folder, never over somebody else's file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dlpipe.cli.placing import place_in, readable


@pytest.mark.parametrize(
    ("url", "suffix", "name"),
    [
        ("https://e.org/x/paper.pdf?sig=1", "", "paper.pdf"),
        ("https://e.org/", ".html", "e.org"),  # the host's name stands in when there is no path
        ("https://e.org/..%2F..%2Fetc%2Fpasswd", "", "etc_passwd"),
        ("https://e.org/%00%1b[31m", "", "31m"),
        ("https://e.org/.bashrc", "", "bashrc"),
        ("https://e.org/%20", ".bin", "file.bin"),
        ("https://e.org/a b/ü.txt", "", "ü.txt"),
        ("https://e.org/download", ".pdf", "download.pdf"),
    ],
)
def test_a_name_comes_from_the_last_part_of_the_url(url: str, suffix: str, name: str) -> None:
    assert readable(url, suffix) == name


def test_a_long_name_is_cut_and_keeps_its_extension() -> None:
    name = readable("https://e.org/" + "ä" * 300 + ".pdf", "")
    assert name.endswith(".pdf")
    assert len(name.encode()) <= 180


def test_another_file_of_that_name_is_never_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "blob"
    source.write_bytes(b"new")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.txt").write_bytes(b"mine")
    record = {"path": str(source), "url": "https://e.org/a.txt", "sha256": hashlib.sha256(b"new").hexdigest()}
    placed = place_in(out, record)
    assert (out / "a.txt").read_bytes() == b"mine"
    assert placed.read_bytes() == b"new"
    assert placed.name == f"a-{record['sha256'][:12]}.txt"
    assert place_in(out, record) == placed

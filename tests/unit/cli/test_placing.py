"""Readable names for `--out`: never outside the folder, never over somebody else's file."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import click
import pytest

from dlpipe.cli.placing import place_in, prepare, readable


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


def a_record(tmp_path: Path, body: bytes = b"new") -> dict[str, str]:
    source = tmp_path / "blob"
    source.write_bytes(body)
    return {"path": str(source), "url": "https://e.org/a.txt", "sha256": hashlib.sha256(body).hexdigest()}


def refuse_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_without_links_files_are_copied_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", refuse_links)
    record, out = a_record(tmp_path), tmp_path / "out"
    placed = place_in(out, record)
    assert (placed, placed.read_bytes()) == (out / "a.txt", b"new")
    assert placed.stat().st_mode & 0o777 == 0o444
    assert not placed.samefile(record["path"])
    assert place_in(out, record) == placed
    placed.unlink()
    placed.write_bytes(b"mine")
    assert place_in(out, record).name == f"a-{record['sha256'][:12]}.txt"
    assert placed.read_bytes() == b"mine"
    assert len(list(out.iterdir())) == 2, "nothing temporary is left"


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", refuse_links)
    record, out = a_record(tmp_path), tmp_path / "out"
    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        place_in(out, record)
    assert list(out.iterdir()) == []


def test_when_all_names_are_taken_that_is_told(tmp_path: Path) -> None:
    record, out = a_record(tmp_path), tmp_path / "out"
    for name in ("a", f"a-{record['sha256'][:12]}", f"a-{record['sha256']}"):
        (out / f"{name}.txt").mkdir(parents=True)
    with pytest.raises(FileExistsError):
        place_in(out, record)


def test_a_folder_is_made_and_tried_and_left_empty(tmp_path: Path) -> None:
    prepare(tmp_path / "x" / "y")
    assert list((tmp_path / "x" / "y").iterdir()) == []
    (tmp_path / "plain").write_text("")
    for folder in (tmp_path / "plain", tmp_path / "plain" / "z"):
        with pytest.raises(click.UsageError, match="can be written"):
            prepare(folder)

"""Readable names for `--out`: never outside the folder, never over somebody else's file."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlpipe.cli.placing import place_in, prepare, readable
from dlpipe.core.escape import escape


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
        ("https://e.org/-rf.pdf", "", "rf.pdf"),
        ("https://e.org/--%20-x", ".bin", "x.bin"),
        ("https://e.org/@list=+x", "", "list=+x"),
        ("https://e.org/=cmd", "", "cmd"),
        ("https://e.org/..", ".bin", "file.bin"),
        ("https://e.org/.pdf", ".pdf", "pdf.pdf"),
        ("https://e.org/a.pdf.%20.%20", "", "a.pdf"),
        ("https://e.org/a%0Ab%2Fc%5Cd%3Ae.txt", "", "a_b_c_d_e.txt"),
        ("https://e.org/x%E2%80%AEgnp.exe", "", "x_gnp.exe"),
        ("https://e.org/%FF%C3.txt", "", "txt"),
        ("https://e.org/con", ".pdf", "_con.pdf"),
        ("https://e.org/NUL.tar.gz", "", "_NUL.tar.gz"),
        ("https://e.org/LPT%C2%B9.txt", "", "_LPT¹.txt"),
        ("https://e.org/CONIN$", ".txt", "_CONIN.txt"),
        ("https://e.org/console.log", "", "console.log"),
        ("https://e.org/e%CC%81.txt", "", "é.txt"),
        ("https://e.org/a." + "x" * 300, ".pdf", "a." + "x" * 174 + ".pdf"),
        ("https://e.org/" + "." * 300, "", "file"),
    ],
)
def test_a_name_comes_from_the_last_part_of_the_url(url: str, suffix: str, name: str) -> None:
    assert readable(url, suffix) == name


def test_a_long_name_is_cut_and_keeps_its_extension() -> None:
    name = readable("https://e.org/" + "ä" * 300 + ".pdf", "")
    assert name.endswith(".pdf")
    assert len(name.encode()) <= 180


RESERVED = {
    *"con prn aux nul conin$ conout$ clock$ . .. file:".split(),
    *(f"{device}{number}" for device in ("com", "lpt") for number in "0123456789¹²³"),
}
endings = st.sampled_from(["", ".pdf", ".tar.gz", "." + "y" * 300, ". ", "."])
names = st.one_of(
    st.text(max_size=400),
    st.builds(
        lambda front, text: front + text, st.sampled_from(["-", "--", ".", "..", "~", "=", "@", "%2F"]), st.text()
    ),
    st.builds(lambda name, ending: name.upper() + ending, st.sampled_from(sorted(RESERVED)), endings),
    st.builds(lambda char, count, ending: char * count + ending, st.characters(), st.integers(0, 400), endings),
)


def is_safe(name: str) -> bool:
    return (
        0 < len(name.encode()) <= 180
        and not name.startswith((".", "-", "+", "=", "@", "~", " "))
        and not name.endswith((".", " "))
        and not set(name) & set("/\\:*?\"<>|$`&;!'\0")
        and escape(name) == name
        and name == unicodedata.normalize("NFC", name)
        and name.partition(".")[0].rstrip(" ").lower() not in RESERVED
    )


@given(names, st.booleans(), st.sampled_from(["", ".pdf", ".tar.gz"]))
@example("CON", False, ".pdf")
@example("a." + "x" * 300, False, "")
@example("CON." + "x" * 300, False, ".pdf")
@example("-" * 400, True, "")
def test_a_name_is_safe_whatever_the_url_says(text: str, is_quoted: bool, suffix: str) -> None:
    assert is_safe(readable("https://e.org/" + (quote(text, errors="replace") if is_quoted else text), suffix))


def plant_file(at: Path) -> None:
    at.write_bytes(b"mine")


def plant_folder(at: Path) -> None:
    at.mkdir()


def plant_link(at: Path) -> None:
    at.symlink_to(at.parent.parent / "outside")


def a_blob(folder: Path, number: int, text: str) -> dict[str, str]:
    source = folder / f"blob{number}"
    source.write_bytes(b"%d" % number)
    url = f"https://e.org/{quote(text, errors='replace')}"
    return {"path": str(source), "url": url, "sha256": hashlib.sha256(source.read_bytes()).hexdigest()}


def looks(files: Iterable[Path]) -> dict[Path, tuple[int, bytes]]:
    return {file: (file.lstat().st_mode, file.read_bytes() if file.is_file() else b"") for file in files}


plants = st.sampled_from([plant_file, plant_folder, plant_link])


@settings(max_examples=60)
@given(st.lists(names, min_size=1, max_size=6), st.lists(plants, max_size=3))
def test_files_get_names_of_their_own_inside_the_folder_and_none_of_anothers(
    texts: list[str], planted: list[Callable[[Path], None]]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        records = [a_blob(Path(place), number, text) for number, text in enumerate(texts)]
        out = Path(place, "out")
        out.mkdir()
        for record, plant in zip(records, planted, strict=False):
            taken = out / readable(record["url"], "")
            if not os.path.lexists(taken):
                plant(taken)
        theirs = looks(out.iterdir())
        placed = [place_in(out, record) for record in records]
        assert [file.read_bytes() for file in placed] == [b"%d" % number for number in range(len(records))]
        assert len(set(placed)) == len(records)
        assert set(out.iterdir()) == {*theirs, *placed}, "in the folder, and nothing else is"
        assert looks(theirs) == theirs
        assert not Path(place, "outside").exists()
        assert [place_in(out, record) for record in records] == placed


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


def test_a_file_that_comes_at_the_last_moment_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, out = a_record(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "a.txt").write_bytes(b"mine")
    monkeypatch.setattr(os, "link", refuse_links)
    monkeypatch.setattr(os.path, "lexists", lambda _: False)  # it was not there yet when this was asked
    assert place_in(out, record).name == f"a-{record['sha256'][:12]}.txt"
    assert (out / "a.txt").read_bytes() == b"mine"


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

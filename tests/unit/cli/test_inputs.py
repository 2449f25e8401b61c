"""Reading requests: each format and packing, and what is wrong with a line stays with that line (PLAN-5)."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from dlpipe.cli.columns import Columns
from dlpipe.cli.forms import MAX_ROW_LINES, Form
from dlpipe.cli.inputs import Entry, Inputs
from dlpipe.cli.lines import MAX_LINE_BYTES
from dlpipe.core.errors import InvalidInput
from dlpipe.pipeline.planner import REFRESH, SPEC_FIELDS

KNOWN = SPEC_FIELDS | {REFRESH}
A, B = "https://e.org/a", "https://e.org/b"


def asked(
    urls: tuple[str, ...], files: tuple[str, ...], *, maps: tuple[str, ...] = (), ignore_unknown: bool = False,
    format_: str = "auto", delimiter: str | None = None, strict: bool = False, rejects: Path | None = None,
    **given: Any,
) -> list[Entry]:  # fmt: skip
    form = Form(Columns.parse(maps, KNOWN, ignore_unknown=ignore_unknown), format_, delimiter)
    wanted = Inputs(urls, files, form, strict, rejects, given)
    wanted.check()
    return list(wanted.entries())


def read(content: str | bytes, tmp_path: Path, name: str = "in.txt", **options: Any) -> list[Entry]:
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return asked((), (str(file),), **options)


def urls_of(found: list[Entry]) -> list[Any]:
    return [entry.url for entry in found if entry.bad is None]


def bad_of(found: list[Entry]) -> list[tuple[int, str]]:
    return [(entry.line, entry.bad.code) for entry in found if entry.bad is not None]


@pytest.mark.parametrize(
    ("name", "text", "urls"),
    [
        ("a.txt", f"{A}\n\n# c\n  {B}  \n", [A, B]),
        ("a.csv", f"url\n{A}\n", [A]),
        ("a", f"work_id,url\nW,{A}\n", [A]),
        ("a", f"url\n{A}\n", [A]),  # one column is a table when it says so
        ("a", f"\n\nurl;work_id\n{A};W\n", [A]),
        ("a", f"url\twork_id\n{A}\tW\n", [A]),
        ("a", f"work_id|url\nW|{A}\n", [A]),
        ("a.tsv", f"URL\tTenant_ID\n{A}\tt\n", [A]),
        ("a.csv", f"sep=;\r\nurl;work_id\r\n{A};W\r\n", [A]),  # as a spreadsheet writes it
        ("a.csv", f'url,work_id\n"{A},x","two\nlines"\n{B},W\n', [f"{A},x", B]),
        ("a.jsonl", f'{{"url": "{A}"}}\n\n', [A]),
        ("a", f'{{"url": "{A}"}}\n', [A]),
        ("a.txt", f"{A},b\n", [f"{A},b"]),  # a comma alone makes no table
        ("a.txt", "", []),
        ("a.csv", "\n\n", []),
        ("a.txt", f"\ufeff{A}\r\n", [A]),
        ("a.csv", f"\ufeffurl,work_id\r\n{A},W\r\n", [A]),
        ("a.jsonl", f'\ufeff{{"url": "{A}"}}\n', [A]),
        ("a.txt", A, [A]),  # no newline at the end
    ],
)
def test_the_format_is_seen_from_name_and_first_line(name: str, text: str, urls: list[str], tmp_path: Path) -> None:
    found = read(text, tmp_path, name)
    assert (urls_of(found), bad_of(found)) == (urls, [])


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress], ids=["gzip", "bzip2", "xz"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a"])
def test_what_is_packed_is_seen_from_its_content(pack: Callable[[bytes], bytes], name: str, tmp_path: Path) -> None:
    text = "url,work_id\n" + "".join(f"https://e.org/{n},W{n}\n" for n in range(3000))
    cut = len(text) // 2
    packed = pack(text[:cut].encode()) + pack(text[cut:].encode())  # two members, as appending makes them
    found = read(packed, tmp_path, name)
    assert urls_of(found) == [f"https://e.org/{n}" for n in range(3000)]
    assert found[-1].line == 3001


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, lambda data: bz2.compress(data, 1), lambda data: lzma.compress(data, preset=0)],
    ids=["gzip", "bzip2", "xz"],
)
def test_a_packed_file_that_breaks_off_gives_its_whole_lines_and_says_where(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    noise = random.Random(7)
    whole = [f"https://e.org/{noise.randbytes(20).hex()}" for _ in range(20_000)]
    packed = pack("\n".join(whole).encode())
    found = read(packed[: len(packed) * 2 // 3], tmp_path, "a.txt.gz")
    good = urls_of(found)
    assert good == whole[: len(good)]  # and never half a line
    assert len(good) > 1000
    assert bad_of(found) == [(len(good) + 1, "input_broken")]


def test_a_damaged_packed_file_is_told_at_its_line(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress("".join(f"{A}/{n}\n" for n in range(5000)).encode()))
    packed[len(packed) // 2 :] = b"\xff" * (len(packed) - len(packed) // 2)
    found = read(bytes(packed), tmp_path)
    assert bad_of(found) == [(len(urls_of(found)) + 1, "input_broken")]


@pytest.mark.parametrize(
    ("content", "way_out"),
    [
        pytest.param("url\nhttps://e.org/é\n".encode("utf-16"), "iconv", id="UTF-16 with its mark"),
        pytest.param("url\n".encode("utf-16-le") * 9, "iconv", id="UTF-16 without"),
        pytest.param(gzip.compress("url\n".encode("utf-16")), "iconv", id="packed UTF-16"),
        pytest.param(b"PK\x03\x04....", "unzip", id="zip"),
        pytest.param(b"\x28\xb5\x2f\xfd...", "zstd", id="zstd"),
    ],
)
def test_other_kinds_of_files_are_refused_with_a_way_out(content: bytes, way_out: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"a\.txt: ") as refused:
        read(content, tmp_path, "a.txt")
    assert refused.value.code == "input_unsupported"
    assert way_out in refused.value.hint
    assert "| dlpipe … -" in refused.value.hint


def test_a_json_array_is_refused_before_anything_is_planned(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="JSON array") as refused:
        read(f'[{{"url": "{A}"}}]', tmp_path, "a.json")
    assert "jq" in refused.value.hint


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"https://e.org/caf\xe9", "line_not_utf8"),
        (b"https://e.org/" + b"x" * MAX_LINE_BYTES, "line_too_long"),
        (b"https://e.org/" + b"x" * 20 * MAX_LINE_BYTES, "line_too_long"),
    ],
    ids=["latin-1", "too long", "much too long"],
)
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_a_bad_line_costs_itself_alone(line: bytes, code: str, ending: bytes, tmp_path: Path) -> None:
    content = A.encode() + ending * 3 + line + ending + B.encode()
    for packed in (content, gzip.compress(content)):
        found = read(packed, tmp_path)
        assert (urls_of(found), bad_of(found)) == ([A, B], [(4, code)])


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (f'{A},"open', "line_malformed"),
        (f'"{A}"x,W', "line_malformed"),
        (f"{A},b,W", "line_malformed"),  # an unquoted comma would cut the address short
        (f"{A},{'x' * 140_000}", "line_malformed"),
        (f'{A},"{"x" * 140_000}"', "line_malformed"),
        (f"{A}\rx,W", "line_malformed"),
    ],
    ids=["quote not closed", "text after a quote", "a cell too many", "long cell", "long quoted cell", "bare return"],
)
def test_a_bad_row_costs_itself_alone(row: str, code: str, tmp_path: Path) -> None:
    rest = "".join(f"https://e.org/{n},W{n}\n" for n in range(3 * MAX_ROW_LINES))
    found = read(f"url,work_id\n{B},W\n\n{row}\n{rest}", tmp_path, "a.csv")
    assert urls_of(found) == [B, *(f"https://e.org/{n}" for n in range(3 * MAX_ROW_LINES))]
    assert bad_of(found) == [(4, code)]


def test_lines_are_physical_ones_also_behind_a_cell_of_several(tmp_path: Path) -> None:
    text = f'url,work_id\n{A},"one\ntwo\nthree"\n{B},W\n{B},"\n'
    assert [entry.line for entry in read(text, tmp_path, "a.csv")] == [2, 5, 6]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("not json", id="text"),
        pytest.param("[1]", id="array"),
        pytest.param("5", id="number"),
        pytest.param('{"url": "https://e.org/a"', id="cut"),
        pytest.param("[" * 100_000, id="deep arrays"),
        pytest.param('{"a":' * 50_000, id="deep objects"),
        pytest.param('{"priority": ' + "9" * 5000 + "}", id="long number"),
        pytest.param('{"url": "\0"}', id="raw NUL"),
    ],
)
def test_a_line_that_is_no_json_object_costs_itself_alone(line: str, tmp_path: Path) -> None:
    found = read(f'{{"url": "{A}"}}\n{line}\n{{"url": "{B}"}}\n', tmp_path, "a.jsonl")
    assert (urls_of(found), bad_of(found)) == ([A, B], [(2, "line_malformed")])


def test_what_is_wrong_with_json_is_told_by_its_place_in_the_line(tmp_path: Path) -> None:
    """Python's own words count lines, too, and from another beginning."""
    *_, found = read(f'{{"url": "{A}"}}\n{{"url":\n', tmp_path, "a.jsonl")
    assert found.bad is not None
    assert found.bad.message == "the line cannot be read: it is not JSON: Expecting value at character 8"


def test_what_ends_with_a_line_of_a_gigabyte_is_read_in_little_memory(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        file.write(f"{A}\n".encode())
        for _ in range(64):
            file.write(bytes(1 << 20))
    import tracemalloc

    tracemalloc.start()
    found = read(packed.getvalue(), tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (urls_of(found), bad_of(found)) == ([A], [(2, "line_too_long")])
    assert peak < 4 << 20


# ── columns ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", f"Link,DOI,title\n{A},10.1/x,T\n"),
        ("a.csv", f"title;doi;link\nT;10.1/x;{A}\n"),
        ("a", f"doi\tlink\ttitle\n10.1/x\t{A}\t\n"),
        ("a.jsonl", f'{{"link": "{A}", "doi": "10.1/x", "title": [1]}}\n'),
        # A column that is named like a field and mapped from elsewhere is like any unknown one.
        ("a.csv", f"link,doi,url\n{A},10.1/x,https://wrong.example/\n"),
        ("a.jsonl", f'{{"link": "{A}", "doi": "10.1/x", "url": "https://wrong.example/"}}\n'),
    ],
)
def test_columns_are_mapped_to_fields(name: str, text: str, tmp_path: Path) -> None:
    maps = ("url=link", "work_id=doi")
    (found,) = read(text, tmp_path, name, maps=maps, ignore_unknown=True)
    assert (found.fields, found.bad) == ({"url": A, "work_id": "10.1/x"}, None)


@pytest.mark.parametrize(
    ("header", "maps", "said"),
    [
        ("url,title,year", (), "unknown columns: 'title', 'year'"),
        ("link,doi", ("url=link",), "unknown columns: 'doi'"),
        ("link,url", ("url=link",), "unknown columns: 'url'"),
        ("url,work_id", ("work_id=doi",), "there is no column 'doi'; its columns are 'url', 'work_id'"),
        ("work_id,ext", (), "no column gives the URL"),
        ("url,url", (), "there is more than one column 'url'"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_as_a_whole(
    header: str, maps: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(f"{header}\n{A},x,y\n", tmp_path, "a.csv", maps=maps)
    assert refused.value.code == "columns_invalid"
    assert f"a.csv: {said}" in refused.value.message
    assert "--map" in refused.value.hint or "--map" in refused.value.message


def test_unknown_names_of_a_json_object_are_named_with_its_line(tmp_path: Path) -> None:
    found = read(f'{{"url": "{A}"}}\n{{"url": "{B}", "zwei": 2, "eins": 1}}\n', tmp_path, "a.jsonl")
    assert bad_of(found) == [(2, "fields_invalid")]
    assert "'eins', 'zwei'" in str(found[1].bad)


@pytest.mark.parametrize("pair", ["url", "url=", "=x", "nothing=x"])
def test_a_mapping_that_says_nothing_is_refused(pair: str) -> None:
    with pytest.raises(InvalidInput, match=pair):
        Columns.parse([pair], KNOWN, ignore_unknown=False)
    with pytest.raises(InvalidInput, match="twice"):
        Columns.parse(["url=a", "url=b"], KNOWN, ignore_unknown=False)


def test_options_hold_for_lines_that_do_not_say_otherwise(tmp_path: Path) -> None:
    text = f"url,work_id,max_bytes,mirrors\n{A},,10,{B} {B}/2\n{B},W2,,\n"
    found = [entry.fields for entry in read(text, tmp_path, "a.csv", work_id="W1", tenant_id="t")]
    assert found == [
        {"work_id": "W1", "tenant_id": "t", "url": A, "max_bytes": 10, "mirrors": [B, f"{B}/2"]},
        {"work_id": "W2", "tenant_id": "t", "url": B},
    ]


def test_a_number_that_is_none_is_passed_on_as_text_to_be_refused(tmp_path: Path) -> None:
    lines = "".join(f"{A},{value}\n" for value in ("--5", "-5", "5", "\u0665", "1e3", "9" * 5000))
    found = [entry.fields["max_bytes"] for entry in read("url,max_bytes\n" + lines, tmp_path, "a.csv")]
    assert found == ["--5", -5, 5, "\u0665", "1e3", "9" * 5000]


# ── where it comes from ───────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_not_there_and_no_input_at_all_are_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError):
        asked((), ("/no/such",))
    with pytest.raises(click.UsageError):
        asked((), ())
    with pytest.raises(click.UsageError):
        asked((A, B), (), sha256="0" * 64)
    with pytest.raises(click.UsageError, match="one -i FILE"):
        asked((A,), (), rejects=tmp_path / "bad")


def test_a_closed_standard_input_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    for urls, files in (((), ("-",)), (("-",), ())):
        with pytest.raises(click.UsageError, match="closed"):
            asked(urls, files)


@pytest.mark.parametrize("strict", [False, True])
def test_pipes_are_read_once_and_kept_for_a_strict_plan(strict: bool, tmp_path: Path) -> None:
    end, other = os.pipe()
    os.write(other, gzip.compress(f"{A}\n".encode()))
    os.close(other)
    wanted = Inputs((), (f"/dev/fd/{end}",), Form(Columns(KNOWN)), strict)
    wanted.check()
    assert urls_of(list(wanted.entries())) == [A]
    os.close(end)
    if strict:
        assert urls_of(list(wanted.entries())) == [A]
    wanted.close()


def test_folders_and_unreadable_files_are_wrong_use(tmp_path: Path) -> None:
    for file in (str(tmp_path), str(tmp_path / "none"), "a\0b"):
        with pytest.raises(click.UsageError, match="can be read"):
            asked((), (file,))


def test_a_file_that_cannot_be_opened_is_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    file.write_text(f"{A}\n")

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", refused)
    with pytest.raises(click.UsageError, match="Permission denied"):
        asked((), (str(file),))


def test_the_place_in_the_packed_file_is_known(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    noise = random.Random(1)
    file.write_bytes(gzip.compress("".join(f"{A}/{noise.randbytes(16).hex()}\n" for _ in range(20_000)).encode()))
    wanted = Inputs((), (str(file),), Form(Columns(KNOWN)))
    wanted.check()
    seen = [wanted.bytes_read for _ in wanted.entries()]
    assert wanted.bytes_total == file.stat().st_size == seen[-1]
    assert seen == sorted(seen)
    assert len(set(seen)) > 4

"""`dlpipe plan` on files: bad lines are told and kept, good ones planned, and a strict plan plans all or nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dlpipe import wiring
from tests.unit.cli.conftest import Desk

TABLE = 'link;doi\nhttps://e.org/1;W1\nftp://e.org/2;W2\nhttps://e.org/3;"W3\nhttps://e.org/4;W4\n'
MAPS = ("--map", "url=link", "--map", "work_id=doi")


def planned(desk: Desk) -> list[str]:
    return sorted(row[0] for row in desk.sql("SELECT work_id FROM artifact_jobs"))


def test_bad_lines_are_told_with_their_numbers_and_the_others_planned(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    ran = desk.command("plan", "-i", "a.csv.gz", *MAPS)
    assert ran.code == 1
    assert "2 planned, 2 refused" in ran.out
    first, second, *_ = ran.err.splitlines()
    assert first.startswith("refused: a.csv.gz, line 3 ftp://e.org/2: the scheme 'ftp' is not supported [url_scheme] ")
    assert second.startswith("refused: a.csv.gz, line 4: the line cannot be read: a quotation mark is opened ")
    assert planned(desk) == ["W1", "W4"]


def test_as_json_they_are_records_with_their_place(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    ran = desk.command("plan", "-i", "a.csv", *MAPS, "--json")
    by_line = {record["line"]: record for record in ran.records}
    assert {line: record["outcome"] for line, record in by_line.items()} == {
        2: "created", 3: "refused", 4: "refused", 5: "created"
    }  # fmt: skip
    assert (by_line[3]["code"], by_line[3]["file"], by_line[3]["position"]) == ("url_scheme", "a.csv", 2)
    assert (by_line[4]["code"], by_line[4]["url"], by_line[4]["position"]) == ("line_malformed", None, 3)


def test_the_rejects_are_mended_and_planned(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    bad = tmp_path / "bad.csv"
    assert desk.command("plan", "-i", "a.csv", *MAPS, "--rejects", "bad.csv").code == 1
    lines = bad.read_text().splitlines()
    assert [line for line in lines if not line.startswith("#dlpipe: a.csv, line ")] == [
        "link;doi", "ftp://e.org/2;W2", 'https://e.org/3;"W3'
    ]  # fmt: skip
    assert [line for line in lines if "line 4: the line cannot be read" in line]
    assert bad.stat().st_mode & 0o077 == 0
    bad.write_text(bad.read_text().replace("ftp:", "https:").replace('"W3', "W3"))
    again = desk.command("plan", "-i", "bad.csv", *MAPS)
    assert (again.code, again.out) == (0, "2 planned\n")
    assert planned(desk) == ["W1", "W2", "W3", "W4"]


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("a.txt", "https://e.org/1\nftp://e.org/2\n", "ftp://e.org/2\n"),
        ("a.jsonl", '{"url": "https://e.org/1"}\n{"url": 5}\n', '{"url": 5}\n'),
        ("a.txt", "https://e.org/1\nhttps://e.org/" + "x" * 300_000 + "\n", ""),
    ],
)
def test_rejects_are_in_the_form_of_their_file(name: str, text: str, kept: str, desk: Desk, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert desk.command("plan", "-i", name, "--rejects", "bad").code == 1
    reason, rest = (tmp_path / "bad").read_text().split("\n", 1)
    assert reason.startswith(f"#dlpipe: {name}, line 2: ")
    assert rest == kept


def test_no_rejects_leave_no_file_and_one_that_is_there_is_not_written_over(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("https://e.org/1\n")
    assert desk.command("plan", "-i", "a.txt", "--rejects", "bad").code == 0
    assert not (tmp_path / "bad").exists()
    for there in ("a.txt", "none/bad"):
        assert desk.command("plan", "-i", "a.txt", "--rejects", there).code == 2
    assert (tmp_path / "a.txt").read_text() == "https://e.org/1\n"


@pytest.mark.parametrize(
    "last", ["ftp://e.org/x", "https://e.org/" + "x" * 300_000], ids=["refused by the planner", "not readable"]
)
def test_a_strict_plan_with_a_bad_line_changes_nothing(last: str, desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"https://e.org/{n}\n" for n in range(5000)) + last + "\n")
    ran = desk.command("plan", "-i", "a.txt", "--strict")
    assert ran.code == 2
    assert "refused: a.txt, line 5001" in ran.err
    assert "1 of 5001 requests are bad, and nothing was planned [input_refused]" in ran.err
    assert planned(desk) == []
    (tmp_path / "a.txt").write_text("https://e.org/1\n")
    assert desk.command("plan", "-i", "a.txt", "--strict").out == "1 planned\n"


def test_the_same_line_twice_is_one_job(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("https://e.org/1\n" * 2 + "https://E.ORG:443/1#x\n")
    assert desk.command("plan", "-i", "a.txt").out == "1 planned, 2 on their way\n"
    assert len(planned(desk)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"work_id": "\ud800"}, {"work_id": "a\0b"}, {"tenant_id": "\ud800"}, {"tenant_id": "a\0"},
        {"artifact_id": "\ud800"},
        {"request_id": "\udfff"}, {"project_id": "\n"}, {"url": None}, {"url": 5}, {"url": [[[]]]}, {"mirrors": "x"},
        {"mirrors": [5]}, {"mirrors": ["\ud800"]}, {"ext": "\ud800"}, {"ext": 5}, {"not_before": "\ud800"},
        {"media_type": "a/b\0"}, {"priority": True}, {"priority": 1e9}, {"refresh": "yes"}, {"max_bytes": 2**63},
    ],
    ids=repr,
)  # fmt: skip
def test_a_hostile_field_is_refused_alone(fields: dict[str, object], desk: Desk, tmp_path: Path) -> None:
    lines = [{"url": "https://e.org/1"}, {"url": "https://e.org/2", **fields}, {"url": "https://e.org/3"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = desk.command("plan", "-i", "a.jsonl", "--json")
    assert ran.code == 1
    assert {record["line"]: record["outcome"] for record in ran.records} == {1: "created", 2: "refused", 3: "created"}
    assert "Traceback" not in ran.err


def test_wrong_use_is_told_before_anything_changes(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("https://e.org/1\n")
    (tmp_path / "bad.csv").write_text("url,what\nhttps://e.org/1,x\n")
    for words in (
        ("-i", "good.txt", "-i", "bad.csv"),
        ("-i", "good.txt", "-i", "none.csv"),
        ("-i", "good.txt", "--map", "url"),
        ("-i", "good.txt", "--map", "url=x", "--format", "text"),
        ("-i", "good.txt", "--delimiter", "dot"),
        ("-i", "good.txt", "https://e.org/2", "--rejects", "rejects"),
    ):
        assert desk.command("plan", *words).code == 2, words
    assert planned(desk) == []


def test_that_nobody_works_is_said_where_there_is_something_to_do(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "no worker runs on this data directory; start one with: dlpipe up"
    monkeypatch.setattr(wiring, "idle", lambda: True)
    assert words in desk.command("plan", "https://e.org/1").err
    assert words not in desk.command("plan", "ftp://e.org/1").err
    monkeypatch.setattr(wiring, "idle", lambda: False)
    assert words not in desk.command("plan", "https://e.org/1").err

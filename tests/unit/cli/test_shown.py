"""Whatever a server, a file, another release or an argument says, no command prints more than text (SAFE-2)."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlpipe import tasks
from dlpipe.cli.artifacts import _plain
from dlpipe.core.errors import Misconfigured
from dlpipe.core.escape import escape
from ops import docs_commands
from tests.unit.cli.conftest import Desk, Ran

EVIL = "a\x1b]0;owned\x07\x9b2J\r\u202egnp.exe\u2066\u200f\u061c\x7f\u2028b"
URL = "http://files.example/a.bin"
WIDE = ("\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The same marks as a Japanese keyboard writes them."""
GONE = "http://gone.example/b.bin"


def shows_text_only(ran: Ran) -> None:
    for said in (ran.out, ran.err):
        lines = said.replace("\r\n", "\n")  # how the rows of a CSV end
        assert escape(lines, keep="\n\t") == lines


@pytest.fixture
def haunted(desk: Desk) -> str:
    """A ledger whose every text is hostile, as if another program had written it."""
    desk.source.put(URL, b"x" * 100)
    job = desk.fetch(URL, request_id="r")
    desk.plan(GONE)
    desk.drive()
    for column in ("work_id", "artifact_id", "host", "request_url", "node"):
        desk.sql(f"UPDATE artifact_jobs SET {column} = :evil || job_id", evil=EVIL)
    desk.sql("UPDATE jobs SET request_id = :evil, error_debug_id = :evil", evil=EVIL)
    desk.sql("UPDATE jobs SET error_code = :evil, error_message_safe = :evil WHERE error_code IS NOT NULL", evil=EVIL)
    desk.sql("UPDATE artifacts SET content_type = :evil, artifact_type = :evil", evil=EVIL)
    desk.sql("UPDATE artifact_ops SET result_code = :evil", evil=EVIL)
    return job


@pytest.mark.parametrize(
    "words",
    [
        "jobs", "jobs --json", "jobs --by host", "jobs --by code", "show JOB", "show JOB --json", "why JOB", "ops JOB",
        "artifacts", "artifacts --json", "export", "export --csv", "retry --all --dry-run", "retry --all --json",
        "top --once", "top --json", "plan " + URL,
    ],
)  # fmt: skip
def test_what_the_ledger_holds_is_shown_as_text(words: str, desk: Desk, haunted: str) -> None:
    ran = desk.command(*(haunted if word == "JOB" else word for word in words.split()))
    shows_text_only(ran)
    assert ran.out


def test_json_says_exactly_what_the_ledger_holds(desk: Desk, haunted: str) -> None:
    assert [row["work_id"] for row in desk.command("jobs", "--json").records if row["job_id"] == haunted] == [
        f"{EVIL}{haunted}"
    ]
    (row,) = desk.command("export").records
    assert (row["work_id"], row["content_type"]) == (f"{EVIL}{haunted}", EVIL)


@pytest.mark.parametrize("name", [name for name, _, _ in docs_commands.leaves()])
def test_an_argument_that_is_repeated_is_shown_as_text(name: str, desk: Desk) -> None:
    for words in ([f"--{EVIL}"], ["--limit", EVIL], [f"--json={EVIL}"], ["--no-such", EVIL], [EVIL, EVIL, EVIL]):
        if name == "fetch" and words[0] == EVIL:
            continue  # would start a stack
        ran = desk.command(*name.split(), *words)
        shows_text_only(ran)
        assert ran.code


@pytest.mark.parametrize(
    "words",
    [
        ["plan", f"http://e.org/{EVIL}"], ["plan", f"{EVIL}://e.org/"], ["plan", "http://e.org/", "--work", EVIL],
        ["plan", "http://e.org/", "--not-before", EVIL], ["plan", "-i", EVIL], ["plan", "-i", "bad.csv", "--map", EVIL],
        ["plan", "-i", "bad.csv", "--map", f"url={EVIL}"], ["plan", "-i", "bad.csv"], ["plan", "-i", "bad.jsonl"],
        ["plan", "-i", "bad.jsonl", "--json"], ["plan", "-i", "bad.txt", "--rejects", f"no/{EVIL}"],
        ["plan", "-i", "bad.txt", "--rejects", EVIL], ["export", "-o", f"no/{EVIL}"], ["export", "-o", EVIL],
        ["show", EVIL], ["open", EVIL], ["jobs", "--status", EVIL], ["jobs", "--host", EVIL], ["cancel", EVIL],
        ["backfill", EVIL], ["backfill", "bad.csv"], ["backfill", "--from-database", EVIL],
        ["purge", "--older-than", EVIL],
        ["jobs", "--tenant", EVIL], ["why", EVIL, "--project", EVIL], ["fetch", "--out", f"bad.csv/{EVIL}", URL],
        [EVIL], ["--" + EVIL],
    ],
    ids=lambda words: " ".join(words).replace(EVIL, "EVIL"),
)  # fmt: skip
def test_a_refusal_that_repeats_what_was_given_is_shown_as_text(words: list[str], desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(f"url,{EVIL.replace(chr(13), '')}\nx,y\n", newline="")
    (tmp_path / "bad.txt").write_text(f"ftp://{EVIL}/\n", newline="")
    (tmp_path / "bad.jsonl").write_text(json.dumps({"url": f"ftp://{EVIL}/"}) + "\n" + json.dumps({EVIL: 1}) + "\n")
    shows_text_only(desk.command(*words))


def test_what_keeps_a_worker_from_starting_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tasks._refuse(Misconfigured(EVIL, hint=EVIL))
    said = capsys.readouterr().err
    assert escape(said, keep="\n") == said


def test_choices_that_click_lists_below_each_other_are_told_in_one_line(desk: Desk) -> None:
    ran = desk.command("completion")
    assert ran.err.splitlines()[0].endswith("Choose from: bash, zsh, fish [usage_wrong]")


@given(st.text())
def test_a_cell_is_no_formula_and_holds_nothing_unseen(text: str) -> None:
    stream = io.StringIO()
    csv.writer(stream).writerow([_plain(text), _plain({text: text})])
    shown = stream.getvalue().removesuffix("\r\n")
    assert escape(shown) == shown
    first, second = next(csv.reader(io.StringIO(stream.getvalue())))
    assert not first.startswith(("=", "+", "-", "@", "\t", "\r", *WIDE))
    assert json.loads(second) or not text


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@A1", "'@A1"),
        (f"{WIDE[0]}1", f"'{WIDE[0]}1"),
        ("\t=1", "\\x09=1"),
        ("a=1", "a=1"),
    ],
)
def test_a_cell_that_begins_like_a_formula_is_told_to_be_text(text: str, cell: str) -> None:
    assert _plain(text) == cell

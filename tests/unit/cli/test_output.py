"""Tables for people: an id can be copied, and the last column folds. Whatever is printed is safe to be printed."""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlpipe import cli
from dlpipe.cli import output
from dlpipe.cli.output import columns
from dlpipe.core.escape import escape
from tests.unit.core.test_escape import UNSEEN

ID = "faa2e6af-d568-5c56-a273-6d7ce03bbbbb"


def test_a_long_last_column_goes_on_below_itself() -> None:
    lines = columns(["job", "what"], [[ID, "one two three four five six seven eight nine ten"]], 80)
    assert lines == [
        "job" + " " * 35 + "what",
        f"{ID}  one two three four five six seven eight",
        " " * 38 + "nine ten",
    ]


def test_an_id_is_never_broken_however_narrow_the_terminal_is() -> None:
    for width in (10, 40, 79, 200):
        assert any(ID in line for line in columns(["a", "job", "what"], [["x" * 30, ID, "y z " * 40]], width))
        assert any(ID in line for line in columns(["a", "job"], [["x" * 60, ID]], width))


def test_wide_letters_keep_the_columns_in_line() -> None:
    assert columns(["a", "b"], [["漢字", "x"], ["abc", "y"]], 80) == ["a     b", "漢字  x", "abc   y"]


def test_a_table_without_rows_is_its_header() -> None:
    assert columns(["job", "what"], [], 80) == ["job  what"]


SHOWING = {"echo", "secho", "echo_via_pager", "print", "pprint"}


def test_output_is_the_one_place_that_a_command_prints_from() -> None:
    """What is printed elsewhere would have to be made safe there. The bytes of a file go out as they are."""
    found = []
    for file in Path(cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in SHOWING or ast.unparse(called) in ("sys.stdout.write", "sys.stderr.write"):
                found.append(file.name)
    assert set(found) == {"output.py"}


@given(st.text())
def test_nothing_unseen_is_printed_whatever_is_said(text: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        output.say(text)
        output.note(text)
        output.cells([text, 1])
        output.table([text], [[text]])
        output.as_json({text: text})
        output.error(text, "code", text)
    for said in (out, err):
        lines = said.getvalue().split("\n")
        assert [line for line in lines if escape(line, keep="\t") != line] == []
    assert out.getvalue().count("\n") == 5


@given(st.text())
def test_an_error_has_one_line_that_begins_like_one(text: str) -> None:
    err = io.StringIO()
    with redirect_stderr(err):
        output.error(f"it failed: {text}\nerror: forged [ok]", "code", "Do this.")
    first, *more = err.getvalue().splitlines()
    assert first.startswith("error: it failed: ")
    assert all(line.startswith("  ") for line in more)


def test_exact_is_exact_for_a_program_and_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        output.exact("/a\x9b\n/b")
        monkeypatch.setattr(out, "isatty", lambda: True)
        output.exact("/a\x9b\n/b")
    assert out.getvalue() == "/a\x9b\n/b\n/a\\x9b\n/b\n"


# Two halves of a pair beside each other are one character to JSON.
texts = st.text(st.one_of(st.sampled_from(UNSEEN), st.characters())).map(
    lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
)


@example({"-".join(UNSEEN): "-".join(UNSEEN)})
@given(st.dictionaries(texts, st.one_of(texts, st.integers(), st.none(), st.lists(texts))))
def test_json_is_one_printable_line_that_reads_back_the_same(value: dict[str, object]) -> None:
    line = output.json_line(value)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == value

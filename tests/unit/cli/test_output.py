"""Tables for people: an id can be copied, and the last column folds."""

from __future__ import annotations

from dlpipe.cli.output import columns

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

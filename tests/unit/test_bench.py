"""The table of the benchmarks: which figure comes of two sides, on which side of its bound it is, and what is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ops.bench import report, table
from ops.bench.options import GROUPS, Options, parse
from ops.bench.report import Measured
from ops.bench.table import Kind, Row


def row(kind: Kind = Kind.TIMES_FASTER, bound: float | None = 1.3, **fields: object) -> Row:
    made = {"ours": (1.0,), "theirs": (1.5,), "unit": "s", **fields}
    return Row("stream", "a file", "curl", kind, bound, **made)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "bound", "ours", "theirs", "ratio", "met"),
    [
        (Kind.TIMES_FASTER, 1.3, 1.0, 1.3, 1.3, True),
        (Kind.TIMES_FASTER, 1.3, 1.0, 1.29, 1.29, False),
        (Kind.TIMES_FASTER, 0.85, 2.0, 1.8, 0.9, True),
        (Kind.TIMES_THE_RATE, 2.0, 300.0, 150.0, 2.0, True),
        (Kind.TIMES_THE_RATE, 2.0, 150.0, 300.0, 0.5, False),
        (Kind.TIMES_THE_TIME, 3.0, 6.0, 2.0, 3.0, True),
        (Kind.TIMES_THE_TIME, 3.0, 6.1, 2.0, 3.05, False),
        (Kind.MORE, 48.0, 140.0, 92.0, 48.0, True),
        (Kind.MORE, 48.0, 141.0, 92.0, 49.0, False),
        (Kind.MORE, 48.0, 91.0, 92.0, -1.0, True),
    ],
)
def test_a_row_is_judged_by_its_kind(
    kind: Kind, bound: float, ours: float, theirs: float, ratio: float, met: bool
) -> None:
    made = row(kind, bound, ours=(ours,), theirs=(theirs,))
    assert made.ratio == pytest.approx(ratio)
    assert made.met is met
    assert made.verdict == ("met" if met else "**missed**")


def test_the_ratio_is_that_of_the_medians_and_the_spread_that_of_single_rounds() -> None:
    made = row(ours=(1.0, 2.0, 9.0), theirs=(4.0, 5.0, 6.0))
    assert made.ratio == 2.5
    assert made.spread is not None
    assert made.spread == pytest.approx((6 / 9, 4.0))


def test_a_row_without_figures_is_missing_and_never_met() -> None:
    for made in (row(missing="not installed: aria2c", theirs=()), row(theirs=()), row(missing="not installed: aria2c")):
        assert made.met is None
        assert made.ratio is None
        assert "missing" in made.verdict
    assert "not installed: aria2c" in table.markdown([row(missing="not installed: aria2c")])


def test_a_row_without_a_bound_is_for_information() -> None:
    made = row(bound=None)
    assert (made.met, made.verdict) == (None, "-")


def test_the_table_has_a_line_for_each_row_and_no_bar_inside_a_cell() -> None:
    made = [row(), row(Kind.MORE, 48.0, unit="MiB", ours=(130.0, 131.0), theirs=(100.0, 100.0))]
    piped = Row("stream", "a|b", "c|d", Kind.TIMES_FASTER, 1.3, "s", (1.0,), (2.0,))
    lines = table.markdown([*made, piped]).splitlines()
    assert len(lines) == 5
    assert {line.count("|") for line in lines} == {len(table.HEAD) + 1}
    assert lines[2] == "| a file | curl | 1 s | 1.5 s | 1.5 x | ≥ 1.3 x | met |"
    assert lines[3] == "| a file | curl | 130 MiB | 100 MiB | +30.5 MiB (30…31) | ≤ +48 MiB | met |"


def test_each_round_begins_with_another_contestant() -> None:
    names = ["a", "b", "c"]
    assert [table.turns(names, number)[0] for number in range(-1, 4)] == ["c", "a", "b", "c", "a"]
    assert all(sorted(table.turns(names, number)) == names for number in range(5))


def test_less_than_the_targets_ask_for_is_a_trial() -> None:
    assert not Options().is_trial
    only, options, write = parse([])
    assert (only, options, write) == (GROUPS, Options(), False)
    for words in (
        ["--rounds", "4"],
        ["--size", "512M"],
        ["--jobs", "999"],
        ["--growth-rows", "1_000"],
        ["--size", "8G"],
    ):
        assert parse(words)[1].is_trial, words
    assert not parse(["--rounds", "9", "--only", "plan"])[1].is_trial
    assert parse(["--size", "16M"])[1].slow_bytes == 16 << 20


@pytest.mark.parametrize("words", [["--only", "nothing"], ["--rounds", "0"], ["--size", "0"], ["--size", "many"]])
def test_wrong_words_are_refused_before_anything_starts(words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(words)
    assert refused.value.code == 2


def measured(group: str, ours: float = 1.0, trial: bool = False) -> Measured:
    made = Row(group, f"what {group} does", "curl", Kind.TIMES_FASTER, 1.3, "s", (ours,), (2.0,), note="a note")
    return Measured(group, (made,), "2026-01-01 00:00 UTC", "5 rounds", trial, (0.1, 1.5), "a CPU, 2 cores")


def test_a_run_replaces_its_own_groups_and_leaves_the_others(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Benchmarks\n\nwritten by hand\n{report.MARKER}\nold\n")
    report.write(page, [measured("plan"), measured("stream", ours=1.0)])
    report.write(page, [measured("stream", ours=8.0, trial=True)])
    text = page.read_text()
    assert text.startswith(f"# Benchmarks\n\nwritten by hand\n{report.MARKER}\n")
    assert "old" not in text
    assert text.index("what stream does | curl | 8 s") < text.index("what plan does | curl | 1 s")
    assert "stream: **a trial" in text
    assert "plan: **a trial" not in text
    told = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [one["group"] for one in told["groups"]] == ["stream", "plan"]
    assert told["groups"][0]["rows"][0]["met"] is False
    assert report.read(tmp_path / "benchmarks.json") == [measured("stream", 8.0, True), measured("plan")]

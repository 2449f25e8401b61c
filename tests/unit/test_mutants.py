"""The planted mutants are of this very code; whether each is caught is for `make mutants`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ops.mutant import Mutant
from ops.mutants import ROOT, mutated
from ops.mutants_planted import MUTANTS


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_still_breaks_something_that_is_there(mutant: Mutant) -> None:
    changed = mutated(mutant)
    ast.parse(changed)
    assert changed != (ROOT / mutant.file).read_text()
    for test in (one for one in mutant.tests if one.startswith("tests/")):
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_the_table_in_the_docs_lists_them_all() -> None:
    page = (ROOT / "docs" / "mutants.md").read_text()
    assert [mutant.name for mutant in MUTANTS if f"| {mutant.name} |" not in page] == [], "run: make mutants"
    assert "**nobody**" not in page


def test_a_mutant_whose_text_is_gone_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("nothing\n")
    with pytest.raises(ValueError, match="0 times"):
        mutated(Mutant("m", "w", "code.py", "something", "other", ()), tmp_path)

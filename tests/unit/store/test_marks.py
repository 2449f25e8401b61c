"""A sidecar keeps one mark per stretch and the last few, whether they are thinned one by one or all at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlpipe.store.sidecar import Checkpoint, add, thinned

APART = 100


def marks_at(steps: list[int]) -> list[Checkpoint]:
    offset, made = 0, []
    for step in steps:
        offset += step
        made.append(Checkpoint(offset, f"{offset:064x}"))
    return made


@given(st.lists(st.integers(1, 3 * APART), max_size=80))
def test_one_by_one_leaves_what_all_at_once_does(steps: list[int]) -> None:
    kept: list[Checkpoint] = []
    all_at_once: list[Checkpoint] = []
    for mark in marks_at(steps):
        before = list(kept)
        gone = add(kept, mark, APART)
        all_at_once = [*thinned(all_at_once, APART), mark]
        assert kept == all_at_once
        assert {*before, mark} - {*kept} == ({gone} if gone else set())


def test_there_are_never_many() -> None:
    kept: list[Checkpoint] = []
    for mark in marks_at([1] * 5_000):
        add(kept, mark, APART)
    assert len(kept) <= 5_000 / APART + 6
    assert kept[-1].offset == 5_000

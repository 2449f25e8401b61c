"""Every order of events is tried: with all guards nothing breaks, and without any one of them something does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlpipe.core import states
from tests.model import page
from tests.model.explorer import Step
from tests.model.guards import CASES, EVERY_FAULT, Case, Fault, Guard, Never
from tests.model.job import ended, explored, judged
from tests.model.world import Row, World, canonical

pytestmark = pytest.mark.xdist_group("model")
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "model.md"
MODEL = ROOT / "tests" / "model"


def test_whatever_one_thing_goes_wrong_nothing_breaks() -> None:
    found = explored(1)
    assert found.complete
    assert found.wrong is None
    assert found.states > 4_000


@pytest.mark.slow
@pytest.mark.timeout(900)  # it is work, one to two minutes of it, and nothing that may hang
def test_whatever_two_things_go_wrong_nothing_breaks() -> None:
    found = explored(2)
    assert found.complete
    assert found.wrong is None
    assert found.states > 250_000


@pytest.mark.slow
def test_whatever_three_things_go_wrong_with_workers_and_messages_nothing_breaks() -> None:
    found = explored(3, faults=[Fault.KILL, Fault.DOUBLE, Fault.LOSE])
    assert found.complete
    assert found.wrong is None
    assert found.states > 5_000


def test_every_state_of_the_table_is_met_but_the_one_that_is_left_out() -> None:
    met = {world.row.state for world in explored(2, faults=[Fault.KILL, Fault.FAILURE, Fault.CANCEL]).seen}
    assert set(states.State) - met == {states.State.SKIPPED_DUPLICATE}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.guard)
def test_without_any_one_guard_there_is_a_way_to_harm(case: Case) -> None:
    broken, steps = page.steps_to_harm(case)
    assert broken in set(Never)
    assert steps


def test_every_guard_is_shown_and_taken_away_alone() -> None:
    assert sorted(case.guard for case in CASES) == sorted(Guard)


def mirrored() -> list[tuple[str, str]]:
    """What the model says of the package: (a function, or a constant; the file in which it is)."""
    told = "".join(path.read_text(encoding="utf-8") for path in sorted(MODEL.glob("*.py")) if path.name[:4] != "test")
    pairs = re.findall(r"`([\w.]+)`,? \(?([\w/]+\.py)", told)
    return sorted(set(pairs))


@pytest.mark.parametrize(("name", "file"), mirrored(), ids=lambda one: one)
def test_what_the_model_mirrors_is_where_the_model_says(name: str, file: str) -> None:
    text = (ROOT / "dlpipe" / file).read_text(encoding="utf-8")
    *owner, thing = name.split(".")
    assert re.search(rf"^\s*(?:def|class) {thing}\b|^{thing}\b.*=", text, re.MULTILINE)
    assert all(f"class {one}" in text for one in owner)


def test_every_fault_leads_somewhere_new() -> None:
    """A fault that changes nothing would be a promise without a test."""
    calm = explored(0).states
    # A slow reconcile needs somebody who seems dead, and a retry a job that has failed for good.
    first = {Fault.SLOW: [Fault.KILL], Fault.RETRY: [Fault.KILL]}
    for fault in sorted(EVERY_FAULT):
        before = first.get(fault, [])
        most = 3 if fault is Fault.RETRY else 1 + len(before)
        assert explored(most, faults=[*before, fault]).states > max(calm, explored(most, faults=before).states), fault


def test_worlds_that_differ_in_names_alone_are_one() -> None:
    for world in list(explored(1).seen)[::7]:
        one, other = world.workers
        swap = {0: 1, 1: 0}
        twin = world._replace(
            workers=(other, one),
            lock=swap.get(world.lock, world.lock) if world.lock is not None else None,
            holder=swap.get(world.holder) if world.holder is not None else None,
            row=world.row._replace(
                owner=swap.get(world.row.owner, world.row.owner) if world.row.owner is not None else None
            ),
        )
        assert canonical(twin) == world
        assert canonical(world) == world


def test_a_paused_job_with_a_holder_is_judged_wrong() -> None:
    """That none has one is why a claim onward needs no guard of its own against a pause (docs/model.md)."""
    held = World(row=Row(state=states.State.HEAD_DONE, owner=0, live=True))
    paused = held._replace(row=held.row._replace(paused=True))
    assert judged(held, Step("", paused)).broken == Never.PAUSED
    assert not judged(held, Step("", paused._replace(row=paused.row._replace(owner=None, live=False)))).broken


def test_what_is_claimed_onward_is_judged_in_both_halves() -> None:
    """RESUME_OK is met, and HEAD_DONE to STREAMING is no step of the table."""
    before = World(row=Row(state=states.State.HEAD_DONE))
    halfway, then = (
        before._replace(row=Row(state=state)) for state in (states.State.RESUME_OK, states.State.STREAMING)
    )
    assert judged(before, Step("", then)).broken == Never.TABLE
    assert not judged(before, Step("", then, halfway=halfway)).broken
    assert judged(before, Step("", then, halfway=before._replace(row=Row()))).broken == Never.TABLE


def test_a_new_job_has_not_ended() -> None:
    assert not ended(World())


@pytest.mark.parametrize("wish", [Fault.CANCEL, Fault.CHANGE])
def test_a_retried_job_whose_result_is_registered_does_what_remains(wish: Fault) -> None:
    assert explored(4, faults=[Fault.KILL, Fault.RETRY, wish]).wrong is None


def test_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == page.render(), "run: make docs"

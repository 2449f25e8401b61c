"""The chain agrees with the table: who follows whom, what remains, what is past."""

from __future__ import annotations

import pytest

from dlpipe.core import flow, states
from dlpipe.core.flow import STAGES, OpType, Queue
from dlpipe.core.results import TYPES
from dlpipe.core.states import Moment, State

S = State
ALL = ("head", "resume_decide", "stream", "finalize", "index", "dedupe")

REMAINING: dict[State, tuple[str, ...]] = {
    S.PLANNED: ALL,
    S.LEASED: ALL,
    S.HEAD_DONE: ALL[1:],
    S.RESUME_OK: ALL[2:],
    S.STREAMING: ALL[2:],  # entered by the claim, so the stage itself may still be to do
    S.FINALIZED: ALL[4:],
    S.INDEXED: ALL[5:],
    S.DEDUPED: (),
    S.FAILED: ALL,
    S.SKIPPED_DUPLICATE: (),
    S.CANCELED: (),
}


def names(rows: tuple[flow.StageRow, ...]) -> tuple[str, ...]:
    return tuple(row.name for row in rows)


def test_the_chain_has_the_stages_in_the_order_of_the_table() -> None:
    assert names(STAGES) == ALL
    at = S.LEASED
    for row in STAGES:
        at = states.on_claim(row.name) or at
        assert at in states.claimable(row.name)
        ends = {s.target for s in states.TABLE if s.stage == row.name and s.moment is Moment.FINISH}
        goes_on = ends - states.FINISHED or ends
        assert len(goes_on) == 1
        at = goes_on.pop()
    assert at is S.DEDUPED


def test_every_stage_of_the_table_is_in_the_chain_and_the_other_way_round() -> None:
    assert {step.stage for step in states.TABLE} - {""} == set(ALL)


def test_every_stage_has_its_own_op_with_a_result_type() -> None:
    assert [row.op for row in STAGES] == list(OpType)
    assert set(TYPES) == set(OpType)


def test_the_network_and_the_disk_have_their_own_queues() -> None:
    assert [row.queue for row in STAGES] == [Queue.NET] * 3 + [Queue.DISK] * 3


def test_progress_only_grows_and_ends_at_100() -> None:
    shares = [row.progress for row in STAGES]
    assert shares == sorted(set(shares))
    assert shares[0] > 0
    assert shares[-1] == 100


def test_a_stage_is_found_by_its_name() -> None:
    assert [flow.stage(name) for name in ALL] == list(STAGES)
    with pytest.raises(KeyError):
        flow.stage("no_such_stage")


@pytest.mark.parametrize("state", list(State))
def test_what_remains_for_a_job_in_a_state(state: State) -> None:
    assert names(flow.remaining(state)) == REMAINING[state]


@pytest.mark.parametrize("state", list(State))
def test_the_first_of_what_remains_can_claim_the_job(state: State) -> None:
    if rows := flow.remaining(state):
        at = state if state in states.claimable(rows[0].name) else states.start_target(state)
        assert at in states.claimable(rows[0].name)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("head", set(State) - {S.FINALIZED, S.INDEXED, S.CANCELED}),
        ("resume_decide", set()),
        ("stream", set()),
        ("finalize", set()),
        ("index", {S.FINALIZED}),
        ("dedupe", {S.INDEXED}),
    ],
)
def test_which_stage_may_start_a_new_run(stage: str, expected: set[State]) -> None:
    assert flow.startable(stage) == expected
    assert {state for state in State if (row := flow.first_of_run(state)) and row.name == stage} == expected


PAST: dict[State, tuple[str, ...]] = {
    S.PLANNED: (),
    S.LEASED: (),
    S.HEAD_DONE: ALL[:1],
    S.RESUME_OK: ALL[:2],
    S.STREAMING: ALL[:2],
    S.FINALIZED: ALL[:4],
    S.INDEXED: ALL[:5],
    S.DEDUPED: ALL,
    S.FAILED: (),  # the run has ended, whatever it had done
    S.SKIPPED_DUPLICATE: ALL,
    S.CANCELED: (),
}


@pytest.mark.parametrize("stage", ALL)
@pytest.mark.parametrize("state", list(State))
def test_which_stages_are_behind_a_job(state: State, stage: str) -> None:
    assert flow.is_past(state, stage) is (stage in PAST[state])

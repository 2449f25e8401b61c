"""The table of steps, walked from end to end (STATE-1 … STATE-7)."""

from __future__ import annotations

import pytest

from dlpipe.core import states
from dlpipe.core.states import FINISHED, TABLE, Moment, State, Status, Step

S = State
FORWARD = (
    S.PLANNED,
    S.LEASED,
    S.HEAD_DONE,
    S.RESUME_OK,
    S.STREAMING,
    S.FINALIZED,
    S.INDEXED,
    S.DEDUPED,
)
"""How far a run has come, in the order of the specification."""


def steps(*moments: Moment) -> list[Step]:
    return [step for step in TABLE if step.moment in moments]


def reached_from(source: State, *moments: Moment) -> set[State]:
    found, new = {source}, {source}
    while new:
        new = {step.target for step in steps(*moments) if step.source in new} - found
        found |= new
    return found


def test_every_state_can_be_reached_from_planned() -> None:
    assert reached_from(S.PLANNED, *Moment) == set(State)


def test_every_state_that_is_not_finished_can_come_to_success() -> None:
    for state in set(State) - FINISHED:
        assert S.DEDUPED in reached_from(state, Moment.START, Moment.CLAIM, Moment.FINISH)


def test_no_step_is_written_twice() -> None:
    assert len(set(TABLE)) == len(TABLE)


def test_nothing_leads_back_to_planned() -> None:
    assert states.origins(S.PLANNED) == frozenset()


@pytest.mark.parametrize("step", steps(Moment.CLAIM, Moment.FINISH), ids=lambda s: f"{s.source}-{s.target}")
def test_within_a_run_a_job_only_moves_forward(step: Step) -> None:
    if step.target is S.SKIPPED_DUPLICATE:
        assert step == Step(S.LEASED, S.SKIPPED_DUPLICATE, Moment.FINISH, "head")
        return
    here, there = FORWARD.index(step.source), FORWARD.index(step.target)
    # STREAMING is entered when the stage claims, so its result stays where it is.
    assert there - here == 1 or step == Step(S.STREAMING, S.STREAMING, Moment.FINISH, "stream")


@pytest.mark.parametrize("step", steps(Moment.CLAIM, Moment.FINISH), ids=lambda s: f"{s.source}-{s.target}")
def test_only_stages_move_a_job_within_its_run(step: Step) -> None:
    assert step.stage


def test_the_ends_are_the_states_that_leave_a_run_nothing_to_do() -> None:
    assert {S.DEDUPED, S.SKIPPED_DUPLICATE, S.CANCELED, S.FAILED} == states.ENDS
    assert states.ENDS - {S.FAILED} == FINISHED


def test_nothing_leads_out_of_canceled() -> None:
    assert [step for step in TABLE if step.source is S.CANCELED] == []


@pytest.mark.parametrize("state", [S.DEDUPED, S.SKIPPED_DUPLICATE])
def test_a_good_end_is_left_only_by_a_new_run(state: State) -> None:
    assert {(s.target, s.moment) for s in TABLE if s.source is state} == {
        (S.LEASED, Moment.START),
        (state, Moment.REOPEN),
        (state, Moment.CANCEL),
    }


@pytest.mark.parametrize("state", list(State))
def test_where_a_job_waits_for_a_run_that_brings_its_file_back(state: State) -> None:
    at_an_end = {S.DEDUPED: S.DEDUPED, S.SKIPPED_DUPLICATE: S.SKIPPED_DUPLICATE}
    # What remains cannot bring a file back: from the middle of a run the way back is that of a failure.
    assert states.reopened(state) is {S.FINALIZED: S.FAILED, S.INDEXED: S.FAILED, **at_an_end}.get(state)
    if (waits := states.reopened(state)) is not None:
        assert states.start_target(waits) is S.LEASED
        assert states.status_of(waits, retry_due=True) is Status.PENDING


def test_owners_may_refresh_at_a_good_end_and_take_that_back() -> None:
    assert states.refreshable() == states.withdrawable() == {S.DEDUPED, S.SKIPPED_DUPLICATE}


def test_a_further_run_is_withdrawn_to_a_good_end_until_the_new_file_is_in_its_place() -> None:
    assert states.can_go_back() == {S.LEASED, S.HEAD_DONE, S.RESUME_OK, S.STREAMING, S.FAILED}
    for state in states.can_go_back():
        assert states.targets(state, Moment.WITHDRAW) == {S.DEDUPED, S.SKIPPED_DUPLICATE}


def test_failed_is_left_only_by_a_new_run_another_failure_cancel_or_retry() -> None:
    assert {(s.target, s.moment) for s in TABLE if s.source is S.FAILED} == {
        (S.LEASED, Moment.START),
        (S.FAILED, Moment.FAIL),
        (S.CANCELED, Moment.CANCEL),
        (S.FAILED, Moment.RETRY),
        (S.INDEXED, Moment.RETRY),
        (S.DEDUPED, Moment.WITHDRAW),
        (S.SKIPPED_DUPLICATE, Moment.WITHDRAW),
    }


def test_a_retried_job_that_has_its_result_goes_on_where_it_can_no_longer_be_canceled() -> None:
    assert states.retried(registered=False) is S.FAILED
    assert states.retried(registered=True) is S.INDEXED
    assert S.INDEXED not in states.sources(S.CANCELED, Moment.CANCEL)
    assert states.start_target(S.INDEXED) is S.INDEXED


@pytest.mark.parametrize(
    ("state", "begins"),
    [
        (S.PLANNED, S.LEASED),
        (S.LEASED, S.LEASED),
        (S.HEAD_DONE, S.LEASED),
        (S.RESUME_OK, S.LEASED),
        (S.STREAMING, S.LEASED),
        (S.FAILED, S.LEASED),
        (S.FINALIZED, S.FINALIZED),  # the file is in its place: what remains is done, nothing again
        (S.INDEXED, S.INDEXED),
        (S.DEDUPED, S.LEASED),  # a further run asks and brings anew
        (S.SKIPPED_DUPLICATE, S.LEASED),
        (S.CANCELED, None),
    ],
)
def test_where_a_new_run_begins(state: State, begins: State | None) -> None:
    assert states.start_target(state) is begins
    assert len(states.targets(state, Moment.START)) == (begins is not None)


@pytest.mark.parametrize("state", list(State))
def test_a_job_can_be_canceled_until_its_result_is_registered(state: State) -> None:
    can = S.CANCELED in states.targets(state, Moment.CANCEL)
    assert can is (state not in {S.INDEXED, *FINISHED})


@pytest.mark.parametrize("state", list(State))
def test_whatever_is_not_finished_can_fail(state: State) -> None:
    assert (S.FAILED in states.targets(state, Moment.FAIL)) is (state not in FINISHED)


@pytest.mark.parametrize(
    ("stage", "claimable", "enters"),
    [
        ("head", {S.LEASED}, None),
        ("resume_decide", {S.HEAD_DONE}, None),
        ("stream", {S.RESUME_OK, S.STREAMING}, S.STREAMING),
        ("finalize", {S.STREAMING}, None),
        ("index", {S.FINALIZED}, None),
        ("dedupe", {S.INDEXED}, None),
        ("no_such_stage", set(), None),
    ],
)
def test_where_a_stage_may_claim_and_what_its_claim_enters(
    stage: str, claimable: set[State], enters: State | None
) -> None:
    assert states.claimable(stage) == claimable
    assert states.on_claim(stage) is enters


def test_streaming_is_the_only_state_that_a_claim_enters_within_a_run() -> None:
    assert {step.target for step in steps(Moment.CLAIM)} == {S.STREAMING}


@pytest.mark.parametrize(
    ("target", "moment", "stage", "expected"),
    [
        (S.HEAD_DONE, Moment.FINISH, "head", {S.LEASED}),
        (S.HEAD_DONE, Moment.FINISH, "stream", set()),  # another stage's result
        (S.HEAD_DONE, Moment.CLAIM, "head", set()),  # another moment
        (S.DEDUPED, Moment.FINISH, "head", set()),  # a jump
        (S.STREAMING, Moment.FINISH, "stream", {S.STREAMING}),
        (S.CANCELED, Moment.CANCEL, "", set(FORWARD[:6]) | {S.FAILED}),
    ],
)
def test_sources_are_bound_to_target_moment_and_stage(
    target: State, moment: Moment, stage: str, expected: set[State]
) -> None:
    assert states.sources(target, moment, stage) == expected


def test_origins_name_where_a_state_is_entered_from_and_never_itself() -> None:
    assert states.origins(S.STREAMING) == {S.RESUME_OK}
    assert states.origins(S.FAILED) == set(FORWARD[:7])
    for state in State:
        assert state not in states.origins(state)


STATUS: dict[State, tuple[Status, Status]] = {
    # state: (status without a run due, status with one)
    S.PLANNED: (Status.PENDING, Status.PENDING),
    S.LEASED: (Status.PROCESSING, Status.PROCESSING),
    S.HEAD_DONE: (Status.PROCESSING, Status.PROCESSING),
    S.RESUME_OK: (Status.PROCESSING, Status.PROCESSING),
    S.STREAMING: (Status.PROCESSING, Status.PROCESSING),
    S.FINALIZED: (Status.PROCESSING, Status.PROCESSING),
    S.INDEXED: (Status.PROCESSING, Status.PROCESSING),
    S.DEDUPED: (Status.COMPLETED, Status.PENDING),
    S.FAILED: (Status.FAILED, Status.PENDING),
    S.SKIPPED_DUPLICATE: (Status.SKIPPED, Status.PENDING),
    S.CANCELED: (Status.CANCELED, Status.CANCELED),
}


@pytest.mark.parametrize("retry_due", [False, True])
@pytest.mark.parametrize("state", list(State))
def test_status_is_derived_from_the_state(state: State, retry_due: bool) -> None:
    assert states.status_of(state, retry_due=retry_due) is STATUS[state][retry_due]


@pytest.mark.parametrize("retry_due", [False, True])
@pytest.mark.parametrize("state", list(State))
def test_a_state_is_terminal_exactly_when_its_status_is_final(state: State, retry_due: bool) -> None:
    final = states.status_of(state, retry_due=retry_due) not in (Status.PENDING, Status.PROCESSING)
    assert states.is_terminal(state, retry_due=retry_due) is final

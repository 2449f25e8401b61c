"""Pause and resume, on both engines: a job waits with what it has, and nobody's work counts meanwhile (JOB-9)."""

from __future__ import annotations

import pytest

from dlpipe.core import flow, states
from dlpipe.core.errors import LeaseLost
from dlpipe.core.model import JobView
from dlpipe.core.ports import Claimed, Hint, Refused
from dlpipe.core.states import State, Status
from dlpipe.db.clock import after
from tests.ledgers import FOR_GOOD, OWN, SOON, Bench, everything, spec

S = State
ALL = 1000
GOING = [state for state in State if not states.is_terminal(state, retry_due=False)]


def pause(bench: Bench, job_id: str) -> JobView:
    with bench.database.write() as unit:
        view = unit.owned(OWN).pause(job_id)
    assert view is not None
    return view


def resume(bench: Bench, job_id: str) -> JobView:
    with bench.database.write() as unit:
        view = unit.owned(OWN).resume(job_id)
    assert view is not None
    return view


def due(bench: Bench) -> list[Hint]:
    with bench.database.write() as unit:
        return unit.backlog.take_due(ALL, ALL, ALL)


@pytest.mark.parametrize("state", list(State))
def test_a_job_that_is_not_at_its_end_is_paused_where_it_is(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    before, rows = bench.row(job_id), everything(bench.database)
    view = pause(bench, job_id)
    if state not in GOING:
        assert view.paused_at is None
        assert everything(bench.database) == rows
        return
    row = bench.row(job_id)
    assert (view.state, view.status, view.attempts) == (state, before["status"], 0)
    assert view.paused_at is not None
    assert (row["run"], row["fence"]) == (before["run"], before["fence"] + 1)
    assert (row["published_at"], row["lease_owner"], row["lease_until"]) == (None, None, None)
    assert row["due_at"] is not None
    again = pause(bench, job_id)
    assert again == view  # twice is once


@pytest.mark.parametrize("state", GOING)
def test_a_paused_job_is_neither_sent_nor_claimed_and_goes_on_after_the_resume(bench: Bench, state: State) -> None:
    job_id = bench.in_state(state)
    bench.set(job_id, attempts=3)
    run = bench.row(job_id)["run"]
    pause(bench, job_id)
    assert due(bench) == []
    first = flow.first_of_run(state)
    assert first is not None
    for stage in flow.STAGES:
        for number in (run, run + 1):
            assert not isinstance(bench.claim(stage.name, job_id, number), Claimed)
    assert bench.claim(first.name, job_id, run + 1) == Refused("job_paused")
    view = resume(bench, job_id)
    assert (view.paused_at, view.attempts) == (None, 3)
    assert [(hint.job_id, hint.run) for hint in due(bench)] == [(job_id, run + 1)]
    assert bench.hold(first.name, job_id, run + 1).attempts == 3


def test_the_work_of_who_held_it_no_longer_counts(bench: Bench) -> None:
    job_id = bench.job()
    held = bench.hold("head", job_id)
    pause(bench, job_id)
    row = bench.row(job_id)
    with pytest.raises(LeaseLost):
        bench.advance(held, "head", S.HEAD_DONE)
    with pytest.raises(LeaseLost):
        bench.fail(held, FOR_GOOD)
    with bench.database.write() as unit:
        assert unit.jobs.hand_back(held) is False
        assert unit.jobs.renew([(job_id, held.fence)], 600.0) == {job_id}
    assert bench.row(job_id) == row


def test_a_message_that_was_sent_before_the_pause_is_not_missed_nor_sent_again(bench: Bench) -> None:
    job_id = bench.job()
    assert [hint.job_id for hint in due(bench)] == [job_id]
    pause(bench, job_id)
    with bench.database.write() as unit:
        assert unit.backlog.waiting() == {}
        assert unit.backlog.take_lost(ALL, -1.0, [row.name for row in flow.STAGES]) == []
        unit.backlog.unpublish([job_id])
        assert (unit.backlog.held(ALL), unit.backlog.expired(ALL)) == ([], [])
    assert due(bench) == []


def test_paused_jobs_do_not_take_the_place_of_others(bench: Bench) -> None:
    first, second = bench.job(priority=9), bench.job()
    pause(bench, first)
    with bench.database.write() as unit:
        assert [hint.job_id for hint in unit.backlog.take_due(1, 1, 1)] == [second]


def test_a_wait_goes_on_through_pause_and_resume(bench: Bench) -> None:
    planned, failed = bench.job(not_before="2040-01-01"), bench.job()
    bench.fail(bench.hold("head", failed), SOON)
    bench.set(failed, due_at=after(500.0))
    for job_id in (planned, failed):
        before = bench.row(job_id)["due_at"]
        pause(bench, job_id)
        resume(bench, job_id)
        assert bench.row(job_id)["due_at"] == before
    assert due(bench) == []


def test_a_paused_job_can_be_canceled_and_is_then_no_longer_paused(bench: Bench) -> None:
    job_id = bench.job()
    pause(bench, job_id)
    with bench.database.write() as unit:
        assert unit.owned(OWN).cancel(job_id) is Status.CANCELED
    assert bench.view(job_id).paused_at is None
    before = everything(bench.database)
    assert resume(bench, job_id).status is Status.CANCELED
    assert everything(bench.database) == before


def test_planned_again_it_is_known_and_told_how_to_go_on(bench: Bench) -> None:
    request = spec("p")
    job_id = bench.plan(request)[0].job_id
    assert bench.plan(request)[0].hint == ""
    pause(bench, job_id)
    before = everything(bench.database)
    answer = bench.plan(request)[0]
    assert (answer.outcome, answer.job_id) == ("known", job_id)
    assert f"dlpipe resume {job_id}" in answer.hint
    assert everything(bench.database) == before


def test_a_further_run_is_paused_and_withdrawn_like_any_other(bench: Bench) -> None:
    job_id = bench.in_state(S.DEDUPED)
    with bench.database.write() as unit:
        unit.owned(OWN).refresh(job_id)
    assert pause(bench, job_id).paused_at is not None
    assert due(bench) == []
    with bench.database.write() as unit:
        assert unit.owned(OWN).cancel(job_id) is Status.COMPLETED
    assert (bench.view(job_id).state, bench.view(job_id).paused_at) == (S.DEDUPED, None)
    assert pause(bench, job_id).paused_at is None

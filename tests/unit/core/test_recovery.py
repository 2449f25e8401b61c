"""What becomes of a failed run, and of a job whose worker vanished (HEAL-2, STATE-5)."""

from __future__ import annotations

import pytest

from dlpipe.core.errors import Permanent, Postponed, Retryable, StageFailure
from dlpipe.core.recovery import ATTEMPTS_EXHAUSTED, FailureWrite, after_crash, after_failure
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.states import State
from dlpipe.core.waits import Waited

POLICY = RetryPolicy(max_attempts=3, base_s=2.0, cap_s=300.0, server_cap_s=3600.0)
KEEPS = {State.FINALIZED, State.INDEXED}


def decided(failure: StageFailure, attempts: int = 0, state: State = State.LEASED) -> FailureWrite:
    return after_failure(failure, state, attempts, "d", 0.5, POLICY)


@pytest.mark.parametrize(("attempts", "due"), [(0, 1.0), (1, 2.0)])
def test_a_retryable_failure_waits_and_uses_an_attempt(attempts: int, due: float) -> None:
    write = decided(Retryable("cut off", code="body_cut"), attempts)
    assert write == FailureWrite("body_cut", "cut off", "d", due, uses_attempt=True, keeps_state=False)


@pytest.mark.parametrize("attempts", [2, 3, 99])
def test_the_last_attempt_ends_the_job_with_its_own_code(attempts: int) -> None:
    write = decided(Retryable("cut off", code="body_cut"), attempts)
    assert (write.code, write.due_after_s, write.keeps_state) == ("body_cut", None, False)
    assert f"given up after {attempts + 1} attempts" in write.message


def test_a_server_that_asks_for_time_is_given_it() -> None:
    assert decided(Retryable("busy", code="http_429", after_s=90.0)).due_after_s == 90.0


@pytest.mark.parametrize("attempts", [0, 2, 99])
def test_a_postponed_job_waits_however_often_and_uses_no_attempt(attempts: int) -> None:
    write = decided(Postponed("not yet", code="part_busy", after_s=7.0), attempts)
    assert write == FailureWrite("part_busy", "not yet", "d", 7.0, uses_attempt=False, keeps_state=False)


@pytest.mark.parametrize("anew", [False, True])
def test_a_job_that_has_waited_too_long_ends_with_a_code_that_names_the_cause(anew: bool) -> None:
    failure = Postponed("no room", code="quota_exceeded", after_s=7.0, anew=anew)
    write = after_failure(failure, State.LEASED, 0, "d", 0.5, POLICY, Waited(room_s=POLICY.room_max_s + 1))
    assert (write.code, write.due_after_s, write.anew) == ("quota_exceeded", 7.0 if anew else None, anew)


@pytest.mark.parametrize("failure", [Permanent("gone", code="http_410"), StageFailure("odd", code="http_410")])
def test_a_permanent_failure_ends_the_job_at_once(failure: StageFailure) -> None:
    write = decided(failure)
    assert (write.code, write.due_after_s, write.keeps_state) == ("http_410", None, False)


@pytest.mark.parametrize("state", [s for s in State if s not in (State.PLANNED, State.FAILED)])
@pytest.mark.parametrize(
    "failure", [Retryable("x", code="c"), Postponed("x", code="c", after_s=1.0)], ids=["retryable", "postponed"]
)
def test_a_job_whose_file_is_in_its_place_waits_where_it_is(failure: StageFailure, state: State) -> None:
    assert decided(failure, state=state).keeps_state is (state in KEEPS)


@pytest.mark.parametrize("state", sorted(KEEPS))
def test_the_end_is_the_end_also_when_the_file_is_in_its_place(state: State) -> None:
    for failure in (Permanent("x", code="c"), Retryable("x", code="c")):
        write = decided(failure, attempts=2, state=state)
        assert (write.due_after_s, write.keeps_state) == (None, False)


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_lost_worker_means_a_new_run(attempts: int) -> None:
    assert after_crash(attempts, "d", POLICY) is None


@pytest.mark.parametrize("attempts", [2, 3])
def test_a_job_that_takes_every_worker_with_it_is_given_up(attempts: int) -> None:
    write = after_crash(attempts, "d", POLICY)
    assert write is not None
    assert (write.code, write.debug_id, write.due_after_s) == (ATTEMPTS_EXHAUSTED, "d", None)
    assert f"{attempts + 1} times" in write.message

"""Every wait that costs no attempt ends: a job that was put off too long has failed. STREAM-7, HOST-3, HTTP row 53."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlpipe.core.errors import Postponed
from dlpipe.core.recovery import after_failure
from dlpipe.core.retries import RetryPolicy
from dlpipe.core.states import State
from dlpipe.core.waits import Waited, final_code, given_up, left_s
from tests.waits import postponed_codes

POLICY = RetryPolicy()
OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
DAY = 86_400.0


def later(code: str, *, anew: bool = False) -> Postponed:
    return Postponed("not yet", code=code, after_s=7.0, anew=anew)


@pytest.mark.parametrize("code", sorted({*postponed_codes(), "a_code_that_is_new"}))
def test_a_wait_ends_whatever_the_job_is_put_off_for(code: str) -> None:
    """Each code of the package, and one that is yet to come: none of them may wait without end."""
    waits = after_failure(later(code), State.LEASED, 0, "d", 0.5, POLICY, Waited(7 * DAY, DAY))
    assert (waits.code, waits.due_after_s, waits.uses_attempt) == (code, 7.0, False)
    ends = after_failure(later(code), State.LEASED, 0, "d", 0.5, POLICY, Waited(7 * DAY + 1))
    assert (ends.code, ends.due_after_s) == (final_code(code), None)
    assert "7.0 days" in ends.message


def test_the_table_of_waits_in_the_docs_has_every_code() -> None:
    table = OPERATIONS.read_text(encoding="utf-8").partition("## What a job may wait for")[2]
    assert [code for code in postponed_codes() if f"`{code}`" not in table] == []


@pytest.mark.parametrize(
    ("code", "waited", "left"),
    [
        ("quota_exceeded", Waited(), DAY),
        ("quota_exceeded", Waited(DAY, DAY), 0.0),
        ("quota_exceeded", Waited(DAY, DAY + 1), -1.0),
        ("quota_exceeded", Waited(7 * DAY, 0.0), 0.0),  # other waits and this one take turns
        ("host_busy", Waited(DAY, 2 * DAY), 6 * DAY),  # room is another matter
        ("retry_after", Waited(8 * DAY), -DAY),
    ],
)
def test_how_long_a_job_may_still_be_put_off(code: str, waited: Waited, left: float) -> None:
    assert left_s(code, waited, POLICY) == left
    assert (given_up(later(code), waited, POLICY) is not None) is (left < 0)


@pytest.mark.parametrize(
    ("code", "final"),
    [
        ("retry_after", "postponed_too_long"),
        ("host_cooling_down", "postponed_too_long"),
        ("quota_exceeded", "quota_exceeded"),
        ("host_circuit_open", "host_circuit_open"),
    ],
)
def test_the_code_at_the_end_names_the_cause(code: str, final: str) -> None:
    assert final_code(code) == final


def test_a_wait_for_room_that_was_there_in_this_run_begins_anew() -> None:
    assert given_up(later("quota_exceeded", anew=True), Waited(DAY, 2 * DAY), POLICY) is None
    assert given_up(later("quota_exceeded", anew=True), Waited(8 * DAY, 2 * DAY), POLICY) is not None


@pytest.mark.parametrize("code", ["retry_after", "host_cooling_down"])
def test_the_end_does_not_say_that_a_server_asked_for_all_of_the_time(code: str) -> None:
    """Two waits that take turns: six days without room, and then one for a server."""
    end = given_up(later(code), Waited(7 * DAY + 1, 6 * DAY), POLICY)
    assert end is not None
    assert "put off for 7.0 days in all, the last time because its server is too busy" in end.message


def test_the_end_says_how_long_the_job_has_waited_and_for_what() -> None:
    end = given_up(later("quota_exceeded"), Waited(25 * 3600.0, 25 * 3600.0), POLICY)
    assert end is not None
    assert end.message == "not yet (given up: it has waited for room for 25.0 hours)"

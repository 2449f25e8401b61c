"""When a service is started again, and when that is given up."""

from __future__ import annotations

import pytest

from dlpipe.core.errors import InvalidInput
from dlpipe.embedded.service import QUICK_LIMIT, Restarts, Service


def test_first_restart_is_at_once_then_the_wait_doubles_up_to_its_bound() -> None:
    restarts = Restarts()
    assert [restarts.ended(10.0) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_long_run_makes_the_next_restart_immediate_again() -> None:
    restarts = Restarts()
    assert [restarts.ended(ran) for ran in (10.0, 10.0, 10.0, 3600.0, 10.0)] == [0, 1, 2, 0, 1]


def test_service_that_keeps_ending_right_after_its_start_is_given_up() -> None:
    restarts = Restarts()
    assert [restarts.ended(0.5) for _ in range(QUICK_LIMIT)] == [0, 1, 2, 4, None]


def test_one_run_that_lasted_starts_the_count_of_quick_ends_again() -> None:
    restarts = Restarts()
    assert None not in [restarts.ended(ran) for ran in (1, 1, 1, 1, 6, 1, 1, 1, 1)]
    assert restarts.ended(1) is None


@pytest.mark.parametrize("name", ["", "../x", "a/b", "Worker", "a" * 33, "a\n"])
def test_service_name_that_is_no_plain_file_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        Service(name, ["true"])


def test_service_without_words_is_refused() -> None:
    with pytest.raises(InvalidInput):
        Service("worker", [])

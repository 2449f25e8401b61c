"""Several URLs for the same bytes: their order, when another may help, and what all their failures come to."""

from __future__ import annotations

import hashlib

import pytest

from dlpipe.core import mirrors
from dlpipe.core.errors import Permanent, Postponed, Retryable, StageFailure

A, B, C = "http://a/", "http://b/", "http://c/"


def digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


@pytest.mark.parametrize(
    ("held_of", "order"),
    [(None, (A, B, C)), (digest(A), (A, B, C)), (digest(B), (B, A, C)), (digest("http://elsewhere/"), (A, B, C))],
)
def test_the_one_that_the_held_bytes_came_from_is_asked_first(held_of: str | None, order: tuple[str, ...]) -> None:
    assert mirrors.order(A, (B, C, A, B), held_of) == order


@pytest.mark.parametrize(
    ("failure", "helps"),
    [
        (Retryable("", code="connect_failed"), True),
        (Retryable("", code="too_slow"), True),
        (Permanent("", code="http_404"), True),
        (Permanent("", code="sha256_mismatch"), True),
        (Postponed("", code="circuit_open", after_s=9.0), True),
        (Permanent("", code="too_large"), False),
        (Postponed("", code="quota_exceeded", after_s=9.0), False),
        (Permanent("", code="quota_exceeded"), True),
        (Postponed("", code="no_space", after_s=9.0), False),
        (Permanent("", code="blocked_offline"), False),
        (Retryable("", code="store_io_error"), False),
    ],
)
def test_another_server_helps_only_against_a_servers_faults(failure: StageFailure, helps: bool) -> None:
    assert mirrors.may_help(failure) == helps


def test_as_long_as_one_server_may_yet_give_it_the_job_is_not_over() -> None:
    gone, cut = Permanent("", code="http_404"), Retryable("", code="body_cut")
    wait = Postponed("", code="circuit_open", after_s=9.0)
    assert mirrors.outcome([gone, cut]) is cut
    assert mirrors.outcome([gone, cut, wait]) is wait
    assert mirrors.outcome([gone, Permanent("", code="http_410")]) is gone

"""What is tried again within a request, how long is waited, and when the job is handed back (HUB-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import httpcore
import httpx
import pytest

from dlpipe.core.errors import Permanent, Postponed, Retryable
from dlpipe.net import failures
from dlpipe.net.layer import Ask
from dlpipe.net.policy import NetPolicy
from dlpipe.net.retry import Retry
from dlpipe.net.wire import DoubtfulAnswer, StaleConnection

POLICY = NetPolicy(retries=3, backoff_base_s=2.0, max_retry_sleep_s=20.0, max_retry_after_s=3600.0)
NOW = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@dataclass
class Server:
    """Answers with the next of its outcomes: a status, a status with Retry-After, or an error."""

    outcomes: list[int | tuple[int, str] | Exception]
    afresh: list[bool] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    closed: int = 0

    def send(self, ask: Ask) -> Answer:
        self.afresh.append(ask.afresh)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        status, headers = (outcome, {}) if isinstance(outcome, int) else (outcome[0], {"Retry-After": outcome[1]})
        return Answer(self, status, headers)


class Answer:
    """The head of an answer, as layers see it."""

    def __init__(self, server: Server, status: int, headers: dict[str, str]) -> None:
        self._server, self.status_code, self.headers = server, status, httpx.Headers(headers)

    def close(self) -> None:
        self._server.closed += 1

    def on_close(self, action: Callable[[], None]) -> None:
        """Nobody here waits for it."""


def _call(server: Server, method: str = "GET", chance: Callable[[], float] = lambda: 0.5) -> int:
    retry = Retry(POLICY, sleep=server.slept.append, now_epoch_s=lambda: NOW, chance=chance)
    return retry.call(Ask(method, "a.example"), server.send).status_code


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_passing_status_is_tried_again_and_its_answer_closed(status: int) -> None:
    server = Server([status, 200])
    assert _call(server) == 200
    assert (server.slept, server.closed) == ([1.0], 1)


@pytest.mark.parametrize("status", [200, 206, 301, 400, 401, 403, 404, 410, 416, 451, 501, 505])
def test_any_other_status_is_handed_out_at_once(status: int) -> None:
    server = Server([status])
    assert _call(server) == status
    assert (server.slept, server.closed) == ([], 0)


@pytest.mark.parametrize(
    "error",
    [failures.connect_failed("h"), failures.connect_timeout("h"), failures.dns_failed("h"),
     failures.connection_lost("h"), failures.read_timeout("h")],
    ids=lambda error: error.code,
)  # fmt: skip
def test_a_passing_failure_is_tried_again(error: Exception) -> None:
    server = Server([error, error, 200])
    assert _call(server) == 200
    assert server.slept == [1.0, 2.0]


@pytest.mark.parametrize(
    "error",
    [failures.egress_forbidden("h", "x"), failures.protocol_error("h", "x"), failures.tls_untrusted("h", "x"),
     failures.host_unknown("h"), failures.tls_failed("h"), httpcore.ReadError("not ours")],
    ids=["forbidden", "protocol", "untrusted", "unknown host", "tls broke", "not ours"],
)  # fmt: skip
def test_what_would_fail_again_is_not_tried_again(error: Exception) -> None:
    server = Server([error])
    with pytest.raises(type(error)) as caught:
        _call(server)
    assert caught.value is error
    assert (len(server.afresh), server.slept) == (1, [])


def test_tries_are_bounded_and_the_last_failure_is_told() -> None:
    server = Server([500, 502, 503, (504, "3"), 200])
    with pytest.raises(Retryable) as caught:
        _call(server)
    assert (caught.value.code, caught.value.after_s) == ("http_5xx", 3.0)
    assert "504" in caught.value.message
    assert len(server.afresh) == POLICY.retries + 1
    assert len(server.slept) == POLICY.retries


def test_backoff_is_exponential_with_full_jitter_and_capped() -> None:
    most, least = Server([500]), Server([500])
    with pytest.raises(Retryable):
        _call(most, chance=lambda: 1.0)
    with pytest.raises(Retryable):
        _call(least, chance=lambda: 0.0)
    assert most.slept == [2.0, 4.0, 8.0]
    assert least.slept == [0.0, 0.0, 0.0]


def test_retry_after_in_seconds_is_slept_when_short() -> None:
    server = Server([(429, "7"), 200])
    assert _call(server) == 200
    assert server.slept == [7.0]


def test_retry_after_as_a_date_is_slept_when_near() -> None:
    server = Server([(503, "Sun, 06 Nov 1994 08:49:47 GMT"), 200])
    assert _call(server) == 200
    assert server.slept == [10.0]


def test_retry_after_never_undercuts_our_own_backoff() -> None:
    server = Server([(503, "0"), 200])
    assert _call(server) == 200
    assert server.slept == [1.0]


def test_a_longer_wait_asked_with_another_status_ends_the_try_as_retryable() -> None:
    server = Server([(500, "600")])
    with pytest.raises(Retryable) as caught:
        _call(server)
    assert (caught.value.code, caught.value.after_s) == ("http_5xx", 600.0)
    assert (server.slept, len(server.afresh)) == ([], 1)


def test_unreadable_retry_after_is_as_if_absent() -> None:
    server = Server([(429, "soon"), (429, "-5"), 200])
    assert _call(server) == 200
    assert server.slept == [1.0, 2.0]


def test_methods_that_are_not_idempotent_are_sent_once() -> None:
    server = Server([503, 200])
    with pytest.raises(Retryable):
        _call(server, "POST")
    stale = Server([StaleConnection(), 200])
    with pytest.raises(Retryable):
        _call(stale, "POST")
    assert (len(server.afresh), len(stale.afresh)) == (1, 1)


def test_hanging_head_is_not_asked_again_because_get_can_tell() -> None:
    server = Server([failures.read_timeout("h"), 200])
    with pytest.raises(Retryable):
        _call(server, "HEAD")
    assert len(server.afresh) == 1


def test_stale_connection_is_replaced_at_once_and_uses_no_try() -> None:  # row 48
    server = Server([StaleConnection(), 500, StaleConnection(), 500, 500, 200])
    assert _call(server) == 200
    assert server.afresh == [False] + [True] * 5  # what failed once goes over new connections from then on
    assert len(server.slept) == 3


def test_second_stale_connection_in_a_row_is_a_failure_of_the_try() -> None:
    server = Server([StaleConnection()])
    with pytest.raises(Retryable) as caught:
        _call(server)
    assert caught.value.code == "connection_lost"
    assert server.afresh == [False] + [True] * (2 * POLICY.retries + 1)


@pytest.mark.parametrize(("status", "marked"), [(404, False), (200, True)])
def test_doubtful_answer_is_asked_for_afresh_at_no_try_and_marks_only_what_differs(status: int, marked: bool) -> None:
    marks: list[str] = []
    server = Server([DoubtfulAnswer(404, marks.append), status])
    assert _call(server) == status
    assert server.afresh == [False, True]
    assert server.slept == []
    assert bool(marks) is marked


def test_answer_of_a_fresh_connection_is_judged_whatever_it_is() -> None:  # row 50
    server = Server([DoubtfulAnswer(), failures.protocol_error("h", "malformed")])
    with pytest.raises(Permanent):
        _call(server)
    assert server.afresh == [False, True]


def test_permanent_is_never_retryable() -> None:
    with pytest.raises(Permanent):
        _call(Server([failures.blocked_offline("h")]))


@pytest.mark.parametrize("refusal", [failures.host_circuit_open("h", 9.0), failures.host_busy("h", 9.0)])
def test_after_a_failure_a_refusal_further_in_costs_the_attempt_that_the_failure_cost(refusal: Postponed) -> None:
    server = Server([failures.connect_failed("h"), refusal])
    with pytest.raises(Retryable) as caught:
        _call(server)
    assert (caught.value.code, len(server.afresh)) == ("connect_failed", 2)


def test_without_a_failure_a_refusal_further_in_costs_nothing() -> None:
    server = Server([failures.host_circuit_open("h", 9.0)])
    with pytest.raises(Postponed):
        _call(server)
    assert (server.slept, len(server.afresh)) == ([], 1)


def test_a_refusal_after_the_server_named_a_time_costs_nothing() -> None:
    server = Server([(429, "3"), failures.host_busy("h", 9.0)])
    with pytest.raises(Postponed):
        _call(server)
    assert server.slept == [3.0]

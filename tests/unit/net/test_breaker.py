"""The layer that leaves a failing host alone: what counts as a failure, and what as none. HUB-4."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dlpipe.core.errors import Postponed
from dlpipe.net import failures
from dlpipe.net.breaker import Breaker, BreakerBounds, Circuits, LocalCircuits, Pass, Shut
from dlpipe.net.layer import Ask
from dlpipe.net.line import Away
from dlpipe.net.policy import NetPolicy
from dlpipe.net.wire import StaleConnection
from tests.unit.net.answers import Answer, Inner, Outcome

POLICY = NetPolicy(breaker_failures=3, breaker_open_s=10.0, connect_s=1.0, head_s=2.0, max_wait_s=1.0)
HOST = "a.example"


class Rig:
    def __init__(
        self,
        shared: Circuits | None = None,
        policy: NetPolicy = POLICY,
        chance: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.now_s, self.asked = 1000.0, 0
        local = LocalCircuits(BreakerBounds.of(policy), lambda: self.now_s)
        self.breaker = Breaker(policy, shared, local, chance=chance)

    def ask(
        self, outcome: Outcome = 200, method: str = "GET", host: str = HOST, url: str | None = None
    ) -> Answer | BaseException:
        """Each time for another URL, unless one is given."""
        self.asked += 1
        try:
            return self.breaker.call(Ask(method, host, host, url or f"u{self.asked}"), Inner([outcome]))
        except (Exception, KeyboardInterrupt) as error:
            return error

    def is_open(self, host: str = HOST) -> bool:
        """Look without asking the host."""
        inner = Inner([KeyboardInterrupt()])
        with pytest.raises((Postponed, KeyboardInterrupt)) as caught:
            self.breaker.call(Ask("GET", host, host, "looked"), inner)
        refused = isinstance(caught.value, Postponed)
        if isinstance(caught.value, Postponed):
            assert (caught.value.code, bool(caught.value.hint)) == ("host_circuit_open", True)
        assert refused is not bool(inner.asked)
        return refused


@pytest.fixture
def rig() -> Rig:
    return Rig()


COUNT = [
    failures.connect_failed(HOST), failures.connect_timeout(HOST), failures.dns_failed(HOST),
    failures.tls_failed(HOST), failures.read_timeout(HOST), failures.connection_lost(HOST), 500, 502, 503, 504,
]  # fmt: skip
DO_NOT = [
    failures.host_unknown(HOST), failures.egress_forbidden(HOST, "x"), failures.protocol_error(HOST, "x"),
    failures.tls_untrusted(HOST, "x"), failures.host_busy(HOST, 1.0), failures.host_cooling_down(HOST, 1.0),
    StaleConnection(), KeyboardInterrupt(), 404, 403, 416, 429, 501, 200, 206, 304,
]  # fmt: skip
OF_HEAD = [failures.read_timeout(HOST), failures.connection_lost(HOST), 500, 502, 503, 504]


def name(outcome: object) -> str:
    return str(getattr(outcome, "code", None) or (outcome if isinstance(outcome, int) else type(outcome).__name__))


@pytest.mark.parametrize("outcome", COUNT, ids=name)
def test_so_many_failures_in_a_row_open_it(rig: Rig, outcome: Outcome) -> None:
    for _ in range(3):
        assert not rig.is_open()
        rig.ask(outcome)
    assert rig.is_open()
    assert not rig.is_open("b.example")


@pytest.mark.parametrize("outcome", DO_NOT, ids=name)
def test_what_says_nothing_of_the_host_s_health_opens_nothing(rig: Rig, outcome: Outcome) -> None:
    for _ in range(20):
        rig.ask(outcome)
    assert not rig.is_open()


@pytest.mark.parametrize("outcome", OF_HEAD, ids=name)
def test_a_server_that_cannot_do_head_is_not_broken(rig: Rig, outcome: Outcome) -> None:  # HTTP.md, row 40
    for _ in range(20):
        rig.ask(outcome, "HEAD")
    assert not rig.is_open()


def test_a_url_that_is_always_busy_opens_no_circuit(rig: Rig) -> None:  # HTTP.md, row 52
    for _ in range(20):
        rig.ask(503, url="busy")
    assert not rig.is_open()
    for _ in range(2):
        rig.ask(503)
    assert rig.is_open(), "with two others it is three"


def test_a_busy_url_that_is_the_probe_leaves_it_to_the_next(rig: Rig) -> None:
    rig.ask(503, url="busy")
    broken(rig)
    rig.ask(503, url="busy")
    rig.ask(200)
    assert not rig.is_open()


def test_an_origin_is_told_from_the_same_host_at_another_port(rig: Rig) -> None:
    for n in range(3):
        rig.breaker.call(Ask("GET", HOST, f"https://{HOST}:1", f"u{n}"), Inner([500]))
    with pytest.raises(Postponed):
        rig.breaker.call(Ask("GET", HOST, f"https://{HOST}:1", "u"), Inner())
    assert rig.breaker.call(Ask("GET", HOST, f"https://{HOST}:2", "u"), Inner()).status_code == 200


def test_a_head_that_cannot_even_connect_counts(rig: Rig) -> None:
    for _ in range(3):
        rig.ask(failures.connect_failed(HOST), "HEAD")
    assert rig.is_open()


@pytest.mark.parametrize("good", [200, 206, 404, 416, 429])
def test_an_answer_in_between_begins_the_count_anew(rig: Rig, good: int) -> None:
    for outcome in (500, 500, good, 500, 500):
        rig.ask(outcome)
    assert not rig.is_open()


def test_the_failure_itself_is_handed_on(rig: Rig) -> None:
    error = failures.connect_failed(HOST)
    assert rig.ask(error) is error
    answer = rig.ask(503)
    assert isinstance(answer, Answer)
    assert answer.status_code == 503


def broken(rig: Rig) -> None:
    for _ in range(3):
        rig.ask(500)
    rig.now_s += POLICY.breaker_open_s


@pytest.mark.parametrize(("outcome", "opens"), [(200, False), (404, False), (500, True), (COUNT[0], True)], ids=name)
def test_the_probe_decides(rig: Rig, outcome: Outcome, opens: bool) -> None:
    broken(rig)
    rig.ask(outcome)
    assert rig.is_open() is opens
    assert rig.is_open() is opens


def test_while_the_probe_is_under_way_nobody_else_passes(rig: Rig) -> None:
    broken(rig)
    refused: list[bool] = []
    rig.breaker.call(Ask("GET", HOST, HOST, "probe"), Inner([200], meanwhile=lambda: refused.append(rig.is_open())))
    assert refused == [True]
    assert not rig.is_open()


@pytest.mark.parametrize(
    "outcome", [500, failures.host_busy(HOST, 1.0), StaleConnection(), KeyboardInterrupt()], ids=name
)
def test_a_probe_that_tells_nothing_leaves_it_to_the_next(rig: Rig, outcome: Outcome) -> None:
    broken(rig)
    rig.ask(outcome, "HEAD")
    rig.ask(200)
    assert not rig.is_open()


def test_a_head_can_be_the_probe_that_closes_it(rig: Rig) -> None:
    broken(rig)
    rig.ask(200, "HEAD")
    assert not rig.is_open()


def test_jobs_come_back_when_it_may_be_over_and_not_all_at_once() -> None:
    chances = [0.0, 0.5, 1.0]
    rig = Rig(chance=lambda: chances.pop(0))
    for _ in range(3):
        rig.ask(500)
    told = []
    for _ in range(3):
        error = rig.ask()
        assert isinstance(error, Postponed)
        told.append(error.after_s)
    assert told == [10.0, 11.25, 12.5]


def test_no_number_of_failures_opens_it_when_it_is_off() -> None:
    rig = Rig(policy=NetPolicy(breaker_failures=0))
    for _ in range(100):
        rig.ask(500)
    assert not rig.is_open()


class Gone:
    """Circuits that are not there."""

    def enter(self, origin: str, token: str) -> Pass | Shut:
        raise Away

    def failed(self, origin: str, token: str, url: str = "") -> None:
        raise Away

    succeeded = undecided = failed


def test_while_redis_is_away_each_process_goes_by_what_it_saw_itself() -> None:
    rig = Rig(Gone())
    for _ in range(3):
        assert not rig.is_open()
        rig.ask(500)
    assert rig.is_open()
    rig.now_s += POLICY.breaker_open_s
    rig.ask(200)
    assert not rig.is_open()


class Asked:
    """Circuits that count how often they are asked, and say what they are told to."""

    def __init__(self) -> None:
        self.says: Pass | Shut = Pass()
        self.times = 0

    def enter(self, origin: str, token: str) -> Pass | Shut:
        self.times += 1
        return self.says

    def succeeded(self, origin: str, token: str) -> None: ...
    def failed(self, origin: str, token: str, url: str = "") -> None: ...
    def undecided(self, origin: str, token: str) -> None: ...


def test_a_closed_circuit_is_believed_for_a_moment() -> None:
    shared = Asked()
    rig = Rig(shared)
    for _ in range(3):
        rig.ask()
    assert shared.times == 1
    rig.ask(host="b.example")
    assert shared.times == 2
    shared.says = Shut(5.0)  # others have found out
    rig.now_s += 0.2
    assert not rig.is_open()
    rig.now_s += 0.1
    assert rig.is_open()
    assert rig.is_open()  # that it is open is never remembered


def test_after_a_failure_the_circuit_is_asked_about_again() -> None:
    shared = Asked()
    rig = Rig(shared)
    rig.ask()
    rig.ask(503)
    rig.ask()
    assert shared.times == 2


@pytest.mark.parametrize("says", [Pass(clean=False), Pass(clean=False, probe=True)])
def test_a_circuit_with_anything_on_record_is_asked_about_each_time(says: Pass) -> None:
    shared = Asked()
    shared.says = says
    rig = Rig(shared)
    rig.ask()
    rig.ask()
    assert shared.times == 2

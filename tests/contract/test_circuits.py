"""The port Circuits, in Redis and in one process, with the time passed in. HUB-4."""

from __future__ import annotations

import pytest
import redis

from dlpipe.net.breaker import BreakerBounds, Circuits, LocalCircuits, Pass, SharedCircuits, Shut
from dlpipe.net.line import RedisLine

HOST, OTHER = "https://a.example", "https://a.example:8443"
BOUNDS = BreakerBounds(failures=3, open_ms=10_000, probe_ms=5_000)
CLEAN, COUNTED, PROBE = Pass(), Pass(clean=False), Pass(clean=False, probe=True)


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def pass_ms(self, ms: int) -> None:
        self.ms += ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["shared", "local"])
def circuits(request: pytest.FixtureRequest, clock: Clock) -> Circuits:
    if request.param == "local":
        return LocalCircuits(BOUNDS, lambda: clock.ms / 1000)
    client: redis.Redis = request.getfixturevalue("client")
    return SharedCircuits(RedisLine(client, now_ms=lambda: clock.ms), BOUNDS)


def fail(circuits: Circuits, times: int, host: str = HOST) -> None:
    for n in range(times):
        circuits.failed(host, f"f{n}")


def test_what_is_told_of_a_url_counts_once_for_it(circuits: Circuits) -> None:
    for n in range(20):
        circuits.failed(HOST, f"f{n}", "busy")
    assert circuits.enter(HOST, "a") == COUNTED
    circuits.failed(HOST, "b", "other")
    assert circuits.enter(HOST, "a") == COUNTED
    circuits.failed(HOST, "c")
    assert circuits.enter(HOST, "a") == Shut(10.0)


def test_a_success_lets_a_url_count_again(circuits: Circuits) -> None:
    for _ in range(3):
        circuits.failed(HOST, "f", "busy")
        fail(circuits, 1)
        circuits.succeeded(HOST, "s")
    assert circuits.enter(HOST, "a") == CLEAN
    for url in ("busy", "b", "c"):
        circuits.failed(HOST, "f", url)
    assert circuits.enter(HOST, "a") == Shut(10.0)


def test_a_probe_for_a_url_that_has_counted_makes_room_for_the_next(circuits: Circuits, clock: Clock) -> None:
    circuits.failed(HOST, "f", "busy")
    open_and_wait(circuits, clock)
    assert circuits.enter(HOST, "p") == PROBE
    circuits.failed(HOST, "p", "busy")
    assert circuits.enter(HOST, "q") == PROBE
    circuits.failed(HOST, "q", "other")
    assert circuits.enter(HOST, "r") == Shut(10.0)


def open_and_wait(circuits: Circuits, clock: Clock) -> None:
    fail(circuits, BOUNDS.failures)
    clock.pass_ms(BOUNDS.open_ms)


def test_it_opens_after_so_many_failures_in_a_row(circuits: Circuits) -> None:
    assert circuits.enter(HOST, "a") == CLEAN
    fail(circuits, 2)
    assert circuits.enter(HOST, "a") == COUNTED
    fail(circuits, 1)
    assert circuits.enter(HOST, "a") == Shut(10.0)
    assert circuits.enter(OTHER, "a") == CLEAN


def test_a_success_in_between_begins_the_count_anew(circuits: Circuits) -> None:
    fail(circuits, 2)
    circuits.succeeded(HOST, "s")
    assert circuits.enter(HOST, "a") == CLEAN
    fail(circuits, 2)
    assert circuits.enter(HOST, "a") == COUNTED


def test_failures_long_ago_are_forgotten_at_last(circuits: Circuits, clock: Clock, client: redis.Redis) -> None:
    fail(circuits, 2)
    clock.pass_ms(600_000)
    assert all(0 < client.pttl(key) <= 600_000 for key in client.scan_iter())
    client.flushall()
    assert circuits.enter(HOST, "a") == CLEAN


def test_it_stays_open_for_its_time(circuits: Circuits, clock: Clock) -> None:
    fail(circuits, 3)
    clock.pass_ms(BOUNDS.open_ms - 1)
    assert circuits.enter(HOST, "a") == Shut(0.001)
    clock.pass_ms(1)
    assert circuits.enter(HOST, "a") == PROBE


def test_what_was_under_way_when_it_opened_decides_nothing_any_more(circuits: Circuits, clock: Clock) -> None:
    fail(circuits, 3)
    circuits.succeeded(HOST, "old")
    clock.pass_ms(5_000)
    circuits.failed(HOST, "old")
    assert circuits.enter(HOST, "a") == Shut(5.0)


def test_one_probe_at_a_time_finds_out(circuits: Circuits, clock: Clock) -> None:
    open_and_wait(circuits, clock)
    answers = [circuits.enter(HOST, f"p{n}") for n in range(10)]
    assert answers == [PROBE] + [Shut(2.0)] * 9


def test_a_probe_that_succeeds_closes_it(circuits: Circuits, clock: Clock) -> None:
    open_and_wait(circuits, clock)
    circuits.enter(HOST, "p")
    circuits.succeeded(HOST, "other")
    assert circuits.enter(HOST, "a") == Shut(2.0)
    circuits.succeeded(HOST, "p")
    assert circuits.enter(HOST, "a") == CLEAN
    fail(circuits, 2)
    assert circuits.enter(HOST, "a") == COUNTED  # the count begins at nothing


def test_a_probe_that_fails_opens_it_again_at_once(circuits: Circuits, clock: Clock) -> None:
    open_and_wait(circuits, clock)
    circuits.enter(HOST, "p")
    circuits.failed(HOST, "p")
    assert circuits.enter(HOST, "a") == Shut(10.0)
    clock.pass_ms(BOUNDS.open_ms)
    assert circuits.enter(HOST, "q") == PROBE


def test_a_probe_that_tells_nothing_makes_room_for_the_next(circuits: Circuits, clock: Clock) -> None:
    open_and_wait(circuits, clock)
    circuits.enter(HOST, "p")
    circuits.undecided(HOST, "other")
    assert circuits.enter(HOST, "q") == Shut(2.0)
    circuits.undecided(HOST, "p")
    assert circuits.enter(HOST, "q") == PROBE


def test_a_probe_that_is_never_heard_of_again_is_taken_for_dead(circuits: Circuits, clock: Clock) -> None:
    open_and_wait(circuits, clock)
    circuits.enter(HOST, "dead")
    clock.pass_ms(BOUNDS.probe_ms - 500)
    assert circuits.enter(HOST, "q") == Shut(0.5)
    clock.pass_ms(500)
    assert circuits.enter(HOST, "q") == PROBE
    circuits.succeeded(HOST, "dead")  # it was only slow, and is not the probe any more
    assert circuits.enter(HOST, "r") == Shut(2.0)


def test_a_local_circuit_is_forgotten_in_time(clock: Clock) -> None:
    circuits = LocalCircuits(BOUNDS, lambda: clock.ms / 1000)
    fail(circuits, 2)
    clock.pass_ms(600_000)
    assert circuits.enter(HOST, "a") == CLEAN
    for n in range(5000):
        clock.pass_ms(1000)
        fail(circuits, 1, f"h{n}.example")
    assert len(circuits._origins) <= 1001

"""The port Gate, in Redis and in one process: windows, slots and waits, with the time passed in. HUB-3, HOST-3.

Covers `net/gate.py` and `net/local_gate.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlpipe.net.gate import ARRIVES_MS, KEPT_MS, MEANT, TOGETHER_MS, Gate, Go, Pause, SharedGate, Target, Wait, Why
from dlpipe.net.limits import Bounds
from dlpipe.net.line import RedisLine
from dlpipe.net.local_gate import LocalGate

HOST, OTHER = "https://a.example", "https://a.example:8443"
GET, HEAD = Target("GET", "u"), Target("HEAD", "u")
PAUSE = Pause(asked_ms=0, first_ms=500, most_ms=60_000)
TTL_MS = 30_000
FREE = Bounds()


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def pass_ms(self, ms: int) -> None:
        self.ms += ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["shared", "local"])
def make(request: pytest.FixtureRequest, clock: Clock) -> Callable[[], Gate]:
    if request.param == "local":
        return lambda: LocalGate(lambda: clock.ms / 1000)
    client: redis.Redis = request.getfixturevalue("client")

    def fresh() -> Gate:
        client.flushall()
        return SharedGate(RedisLine(client, now_ms=lambda: clock.ms))

    return fresh


@pytest.fixture
def gate(make: Callable[[], Gate]) -> Gate:
    return make()


def enter(gate: Gate, token: str, bounds: Bounds, host: str = HOST, target: Target = GET) -> Wait | None:
    found = gate.enter(host, bounds, token, TTL_MS, target)
    return found if isinstance(found, Wait) else None


def get(url: str) -> Target:
    return Target("GET", url)


def asked(ms: int) -> Pause:
    return Pause(ms, PAUSE.first_ms, PAUSE.most_ms)


def cool(gate: Gate, ms: int, host: str = HOST) -> Wait:
    """Several URLs are busy, one after the other."""
    return [gate.busy(host, get(f"cool{n}"), asked(ms)) for n in range(MEANT)][-1]


def noted(gate: Gate, target: Target = GET, host: str = HOST) -> bool:
    found = gate.enter(host, FREE, "look", TTL_MS, target)
    assert isinstance(found, Go)
    return found.noted


# ── the window ──


def test_a_window_holds_the_budget_and_no_more(gate: Gate, clock: Clock) -> None:
    three = Bounds(rate_per_s=3)
    for n in range(3):
        assert enter(gate, f"t{n}", three) is None
        gate.arrived(HOST, f"t{n}")
        clock.pass_ms(100)
    wait = enter(gate, "late", three)
    assert wait == Wait(Why.RATE, pytest.approx(0.701))  # type: ignore[arg-type]
    clock.pass_ms(700)
    assert enter(gate, "late", three) is not None
    clock.pass_ms(1)
    assert enter(gate, "late", three) is None
    assert enter(gate, "later", three) is not None


def test_a_request_on_its_way_counts_until_a_window_after_it_arrived(gate: Gate, clock: Clock) -> None:
    one = Bounds(rate_per_s=1)
    assert enter(gate, "slow", one) is None
    clock.pass_ms(900)
    gate.arrived(HOST, "slow")
    clock.pass_ms(1000)
    assert enter(gate, "next", one) is not None
    clock.pass_ms(1)
    assert enter(gate, "next", one) is None


def test_a_request_that_nobody_reports_on_counts_as_arriving_late(gate: Gate, clock: Clock) -> None:
    one = Bounds(rate_per_s=1)
    enter(gate, "lost", one)
    clock.pass_ms(ARRIVES_MS + 1000)
    assert enter(gate, "next", one) is not None
    clock.pass_ms(1)
    assert enter(gate, "next", one) is None
    gate.arrived(HOST, "lost")  # at last: it changes nothing
    assert enter(gate, "another", one) is not None


def test_an_arrival_told_late_does_not_move_it(gate: Gate, clock: Clock) -> None:
    one = Bounds(rate_per_s=1)
    enter(gate, "a", one)
    gate.arrived(HOST, "a")
    clock.pass_ms(500)
    gate.arrived(HOST, "a")
    gate.leave(HOST, "a")
    clock.pass_ms(501)
    assert enter(gate, "b", one) is None


def test_fewer_than_one_a_second_is_one_in_so_many(gate: Gate, clock: Clock) -> None:
    slow = Bounds(rate_per_s=0.25)
    enter(gate, "a", slow)
    gate.arrived(HOST, "a")
    clock.pass_ms(4000)
    assert enter(gate, "b", slow) is not None
    clock.pass_ms(1)
    assert enter(gate, "b", slow) is None


def test_hosts_have_accounts_of_their_own(gate: Gate) -> None:
    one = Bounds(rate_per_s=1, slots=1)
    assert enter(gate, "a", one) is None
    assert enter(gate, "b", one, OTHER) is None
    assert enter(gate, "c", one) is not None


def test_to_ask_twice_takes_one_place(gate: Gate) -> None:
    for bounds in (Bounds(rate_per_s=2, slots=2), Bounds(rate_per_s=2), Bounds(slots=2)):
        host = f"{bounds.budget}-{bounds.slots}.example"
        assert [enter(gate, "a", bounds, host) for _ in range(3)] == [None] * 3
        assert [enter(gate, "b", bounds, host) for _ in range(3)] == [None] * 3  # also where it takes the last
        assert enter(gate, "c", bounds, host) is not None


def test_who_is_refused_takes_nothing(gate: Gate, clock: Clock) -> None:
    both = Bounds(rate_per_s=1, slots=2)
    enter(gate, "a", both)
    gate.arrived(HOST, "a")
    assert enter(gate, "b", both) is not None  # refused for the rate: its slot stays free
    clock.pass_ms(1001)
    assert enter(gate, "c", both) is None
    clock.pass_ms(2001)
    refused = enter(gate, "d", both)  # refused for the slots: its place in the window stays free
    assert refused is not None
    assert refused.why is Why.SLOTS
    gate.leave(HOST, "a")
    assert enter(gate, "e", both) is None


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), budget=st.integers(1, 4), steps=st.integers(5, 30))
def test_whatever_the_delays_a_server_never_sees_more_than_the_budget_in_a_second(
    make: Callable[[], Gate], clock: Clock, data: st.DataObject, budget: int, steps: int
) -> None:
    gate, bounds = make(), Bounds(rate_per_s=budget)
    under_way: list[tuple[int, int, str]] = []  # when the answer is here, when the server saw it, token
    seen: list[int] = []
    for n in range(steps):
        clock.pass_ms(data.draw(st.integers(0, 700)))
        for answered, saw, token in sorted(one for one in under_way if one[0] <= clock.ms):
            under_way.remove((answered, saw, token))
            gate.arrived(HOST, token)
        if enter(gate, f"t{n}", bounds) is None:
            saw = clock.ms + data.draw(st.integers(0, ARRIVES_MS))
            seen.append(saw)
            under_way.append((saw + data.draw(st.integers(0, 3000)), saw, f"t{n}"))
    assert all(sum(at <= other < at + 1000 for other in seen) <= budget for at in seen)


# ── slots ──


def test_slots_are_taken_and_given_back(gate: Gate) -> None:
    two = Bounds(slots=2)
    assert [enter(gate, t, two) is None for t in "abc"] == [True, True, False]
    assert enter(gate, "c", two) == Wait(Why.SLOTS, 0.0)
    gate.leave(HOST, "a")
    gate.leave(HOST, "a")
    assert enter(gate, "c", two) is None
    assert enter(gate, "d", two) is not None


def test_the_slot_of_a_worker_that_says_nothing_more_comes_back(gate: Gate, clock: Clock) -> None:
    one = Bounds(slots=1)
    enter(gate, "dead", one)
    clock.pass_ms(TTL_MS - 1)
    assert enter(gate, "b", one) is not None
    clock.pass_ms(1)
    assert enter(gate, "b", one) is None


def test_a_slot_that_is_renewed_stays(gate: Gate, clock: Clock) -> None:
    one = Bounds(slots=1)
    enter(gate, "long", one)
    enter(gate, "too", one, OTHER)
    for _ in range(5):
        clock.pass_ms(TTL_MS - 1)
        gate.renew([(HOST, "long"), (OTHER, "too")], TTL_MS)
        assert enter(gate, "b", one) is not None
        assert enter(gate, "b", one, OTHER) is not None


def test_what_was_forgotten_is_put_down_again_by_the_next_renewal(gate: Gate, clock: Clock) -> None:
    one = Bounds(slots=1)
    gate.renew([(HOST, "long")], TTL_MS)
    assert enter(gate, "b", one) is not None


# ── busy answers (HOST-3, HTTP.md row 52) ──


def test_a_busy_url_waits_alone_until_its_time_is_over(gate: Gate, clock: Clock) -> None:
    assert gate.busy(HOST, GET, asked(5000)) == Wait(Why.BUSY, 5.0)
    assert enter(gate, "a", FREE) == Wait(Why.BUSY, 5.0)
    assert enter(gate, "a", FREE, target=get("other")) is None
    assert enter(gate, "a", FREE, OTHER) is None
    clock.pass_ms(4999)
    assert enter(gate, "a", FREE) is not None
    clock.pass_ms(1)
    assert enter(gate, "a", FREE) is None


def test_who_waits_for_its_url_takes_nothing(gate: Gate) -> None:
    one = Bounds(rate_per_s=1, slots=1)
    gate.busy(HOST, GET, asked(5000))
    assert enter(gate, "a", one) is not None
    assert enter(gate, "b", one, target=get("other")) is None


def test_a_busy_url_s_next_wait_is_twice_as_long_up_to_the_most(gate: Gate, clock: Clock) -> None:
    told = []
    for _ in range(9):
        wait = gate.busy(HOST, GET, PAUSE)
        told.append(wait.seconds)
        clock.pass_ms(round(wait.seconds * 1000))
    assert told == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert gate.busy(HOST, GET, asked(70_000)).seconds == 60


def test_answers_that_were_under_way_make_a_wait_no_longer_than_the_longest_wish(gate: Gate) -> None:
    assert [gate.busy(HOST, GET, asked(ms)).seconds for ms in (5000, 1000, 5000, 9000)] == [5, 5, 5, 9]


def test_an_answer_begins_a_url_s_waits_at_the_first(gate: Gate, clock: Clock) -> None:
    for _ in range(3):
        clock.pass_ms(round(gate.busy(HOST, GET, PAUSE).seconds * 1000))
    gate.answered(HOST, GET)
    assert not noted(gate)
    assert gate.busy(HOST, GET, PAUSE).seconds == 0.5


def test_head_and_get_of_a_url_wait_for_themselves(gate: Gate) -> None:
    gate.busy(HOST, HEAD, asked(5000))
    assert enter(gate, "a", FREE) is None
    gate.busy(HOST, GET, asked(9000))
    assert enter(gate, "b", FREE, target=HEAD) == Wait(Why.BUSY, 5.0)
    gate.answered(HOST, HEAD)
    assert enter(gate, "c", FREE, target=HEAD) is None
    assert enter(gate, "c", FREE) == Wait(Why.BUSY, 9.0)


def test_one_url_that_is_busy_again_and_again_never_means_its_origin(gate: Gate) -> None:
    assert {gate.busy(HOST, GET, asked(5000)).why for _ in range(10 * MEANT)} == {Why.BUSY}
    assert enter(gate, "a", FREE, target=get("other")) is None


def test_several_busy_urls_with_no_answer_between_mean_their_origin(gate: Gate, clock: Clock) -> None:
    assert cool(gate, 5000) == Wait(Why.COOLING, 5.0)
    assert enter(gate, "a", FREE, target=get("fresh")) == Wait(Why.COOLING, 5.0)
    assert enter(gate, "a", FREE, OTHER) is None
    clock.pass_ms(4999)
    assert enter(gate, "a", FREE) is not None
    clock.pass_ms(1)
    assert enter(gate, "a", FREE) is None


def test_an_answer_in_between_begins_the_count_of_busy_urls_anew(gate: Gate) -> None:
    for n in range(4 * MEANT):
        assert gate.busy(HOST, get(f"u{n}"), asked(5000)).why is Why.BUSY
        gate.answered(HOST, get("fine"))


def test_busy_urls_far_apart_do_not_count_together(gate: Gate, clock: Clock) -> None:
    for n in range(2 * MEANT):
        assert gate.busy(HOST, get(f"u{n}"), asked(5000)).why is Why.BUSY
        clock.pass_ms(TOGETHER_MS // (MEANT - 1))


def test_an_answer_to_head_says_nothing_of_get(gate: Gate, clock: Clock) -> None:
    for n in range(MEANT - 1):
        gate.busy(HOST, get(f"u{n}"), asked(5000))
        gate.answered(HOST, Target("HEAD", f"u{n}"))
    assert gate.busy(HOST, GET, asked(5000)).why is Why.COOLING
    clock.pass_ms(5000)
    gate.answered(HOST, HEAD)
    assert cool(gate, 5000).seconds == 10


def test_busy_heads_mean_their_origin_unless_get_is_answered(gate: Gate) -> None:
    for n in range(2 * MEANT):
        assert gate.busy(HOST, Target("HEAD", f"u{n}"), asked(5000)).why is Why.BUSY
        gate.answered(HOST, get(f"u{n}"))
    waits = [gate.busy(HOST, Target("HEAD", f"u{n}"), asked(5000)).why for n in range(MEANT)]
    assert waits == [Why.BUSY] * (MEANT - 1) + [Why.COOLING]


def test_the_next_cool_down_is_twice_as_long_unless_there_was_an_answer(gate: Gate, clock: Clock) -> None:
    assert cool(gate, 5000).seconds == 5
    clock.pass_ms(5000)
    assert cool(gate, 5000).seconds == 10
    gate.answered(HOST, GET)  # it was under way when the others were busy
    assert enter(gate, "a", FREE, target=get("fresh")) == Wait(Why.COOLING, 10.0), "what was asked for lasts"
    clock.pass_ms(10_000)
    assert cool(gate, 5000).seconds == 5


def test_the_longest_wish_for_a_cool_down_counts(gate: Gate) -> None:
    assert [cool(gate, ms).seconds for ms in (5000, 1000, 9000)] == [5, 5, 9]


def test_only_what_an_answer_would_end_is_to_be_told(gate: Gate, clock: Clock) -> None:
    assert not noted(gate)
    gate.busy(HOST, get("busy"), asked(100))
    assert noted(gate, get("fine"))
    gate.answered(HOST, get("fine"))
    assert not noted(gate, get("fine"))
    clock.pass_ms(500)
    assert noted(gate, get("busy")), "its own wait is to begin at the first again"
    assert not noted(gate, Target("HEAD", "busy"))
    cool(gate, 100)
    clock.pass_ms(500)
    assert noted(gate, get("fine"))
    assert not noted(gate, HEAD)
    assert not noted(gate, get("fine"), OTHER)


def test_what_busy_answers_leave_in_redis_ends_by_itself(clock: Clock, client: redis.Redis) -> None:
    gate = SharedGate(RedisLine(client, now_ms=lambda: clock.ms))
    cool(gate, 5000)
    gate.busy(HOST, HEAD, asked(60_000))
    gate.answered(HOST, get("x"))
    keys = list(client.scan_iter())
    assert len(keys) == MEANT + 1
    assert all(0 < client.pttl(key) <= 2 * 60_000 + KEPT_MS for key in keys)


# ── turns ──


def test_who_is_sent_away_is_told_another_time_each(gate: Gate, clock: Clock) -> None:
    assert [gate.later(HOST, 700, 500, 60_000) for _ in range(4)] == [700, 1200, 1700, 2200]
    assert gate.later(OTHER, 700, 500, 60_000) == 700
    clock.pass_ms(2000)
    assert gate.later(HOST, 700, 500, 60_000) == 700
    assert gate.later(HOST, 700, 500, 60_000) == 1200


def test_turns_end_at_a_bound(gate: Gate) -> None:
    told = [gate.later(HOST, 0, 500, 2000) for _ in range(9)]
    assert told[:4] == [500, 1000, 1500, 2000]
    assert set(told[4:]) == {2000}
    assert gate.later(OTHER, 9000, 500, 2000) == 9000  # but nobody is told less than is known


def test_a_local_gate_forgets_hosts_that_nobody_asks_for(clock: Clock) -> None:
    gate: Any = LocalGate(lambda: clock.ms / 1000)
    enter(gate, "held", Bounds(slots=1), "held.example")
    cool(gate, 60_000, "cool.example")
    gate.busy("busy.example", GET, Pause(9_000_000, 0, 9_000_000))
    for n in range(5000):
        clock.pass_ms(100)
        gate.renew([("held.example", "held")], TTL_MS)
        enter(gate, "x", FREE, f"h{n}.example")
    assert len(gate._origins) <= 1001
    assert {"held.example", "busy.example"} <= gate._origins.keys()


def test_a_local_gate_forgets_urls_whose_waits_are_over(clock: Clock) -> None:
    gate: Any = LocalGate(lambda: clock.ms / 1000)
    for n in range(5000):
        gate.busy(HOST, get(f"u{n}"), asked(1000))
        gate.answered(HOST, get("fine"))
        clock.pass_ms(100)
    assert len(gate._origins[HOST].waits) <= 1001

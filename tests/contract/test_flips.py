"""The port Flips, in Redis, in one process, and as workers use it: over both. HTTP.md, row 36."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
import redis

from dlpipe.core.ports import Flips
from dlpipe.net.flips import FLIPS, MAX_HOSTS, OFF_S, HostFlips, LocalFlips, SharedFlips
from dlpipe.net.line import Away, RedisLine
from tests.servers import Valkey

HOST, OTHER = "a.example", "b.example"


class Clock:
    """One time for Redis and the processes."""

    def __init__(self) -> None:
        self.s = 1_000_000.0

    def ms(self) -> int:
        return round(self.s * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def shared(client: redis.Redis, clock: Clock) -> SharedFlips:
    return SharedFlips(RedisLine(client, away_s=0.0, now_ms=clock.ms))


def worker(client: redis.Redis, clock: Clock) -> HostFlips:
    return HostFlips(shared(client, clock), LocalFlips(lambda: clock.s))


@pytest.fixture(params=["shared", "local", "both", "without redis"])
def flips(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Flips]:
    if request.param == "local":
        yield LocalFlips(lambda: clock.s)
    elif request.param == "without redis":
        with redis.Redis.from_url("unix:///nowhere/at/all.sock") as nobody:
            yield worker(nobody, clock)
    else:
        client: redis.Redis = request.getfixturevalue("client")
        yield shared(client, clock) if request.param == "shared" else worker(client, clock)


def flip(flips: Flips, times: int, host: str = HOST) -> None:
    for _ in range(times):
        flips.note(host)


def test_a_file_may_change_now_and_then(flips: Flips) -> None:
    assert not flips.off(HOST)
    flip(flips, FLIPS - 1)
    assert not flips.off(HOST)


def test_resume_is_off_there_after_so_many_flips_and_nowhere_else(flips: Flips) -> None:
    flip(flips, FLIPS)
    assert flips.off(HOST)
    assert not flips.off(OTHER)


def test_one_host_in_another_spelling(flips: Flips) -> None:
    flip(flips, FLIPS, "A.Example.")
    assert flips.off(HOST)


def test_it_is_off_until_the_first_of_the_last_flips_is_old_enough(flips: Flips, clock: Clock) -> None:
    flips.note(HOST)
    clock.s += 10
    flip(flips, FLIPS - 1)
    clock.s += OFF_S - 11
    assert flips.off(HOST)
    clock.s += 1
    assert not flips.off(HOST)
    flips.note(HOST)  # the third within the hour again
    assert flips.off(HOST)
    clock.s += OFF_S
    assert not flips.off(HOST)


def test_flips_that_are_far_apart_turn_nothing_off(flips: Flips, clock: Clock) -> None:
    for _ in range(10):
        flips.note(HOST)
        clock.s += OFF_S / 2
    assert not flips.off(HOST)


# ── all workers together ──────────────────────────────────────────────────────────────────────────


def test_what_three_workers_saw_once_each_counts_for_a_fourth(client: redis.Redis, clock: Clock) -> None:
    for _ in range(FLIPS):
        worker(client, clock).note(HOST)
    assert worker(client, clock).off(HOST)


def test_what_is_kept_runs_out_and_stays_small(client: redis.Redis, clock: Clock) -> None:
    flip(worker(client, clock), 100)
    (key,) = client.keys("*")
    assert 0 < client.pttl(key) <= OFF_S * 1000
    assert client.llen(key) == FLIPS


def test_a_worker_goes_by_what_it_knows_when_redis_forgets(client: redis.Redis, clock: Clock) -> None:
    ours, theirs = worker(client, clock), worker(client, clock)
    flip(ours, FLIPS)
    client.flushall()
    assert ours.off(HOST)
    assert not theirs.off(HOST)


@pytest.mark.parametrize("begun", range(FLIPS + 1))
def test_redis_may_go_at_any_moment_and_nothing_fails(clock: Clock, begun: int) -> None:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server, server.client() as client:
        ours = worker(client, clock)
        flip(ours, begun)
        server.kill()
        flip(ours, FLIPS - begun)
        assert ours.off(HOST)
        assert not ours.off(OTHER)


def test_without_the_part_of_its_own_the_shared_one_says_that_redis_is_away(clock: Clock) -> None:
    with redis.Redis.from_url("unix:///nowhere/at/all.sock") as nobody:
        lonely = shared(nobody, clock)
        for call in (lonely.note, lonely.off):
            with pytest.raises(Away):
                call(HOST)


def test_a_process_remembers_so_many_hosts(clock: Clock) -> None:
    local = LocalFlips(lambda: clock.s)
    for n in range(MAX_HOSTS + 1):
        flip(local, FLIPS, f"h{n}.example")
    assert [local.off("h0.example"), local.off("h1.example")] == [False, True]

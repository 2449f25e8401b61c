"""A cancel reaches whoever holds the job within a second, without a question per chunk. JOB-9."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import redis

from dlpipe.core.errors import LeaseLost, LeaseUnavailable
from dlpipe.lease.held import HeldLease
from dlpipe.lease.lock import RedisLeases
from dlpipe.lease.stops import PREFIX, Stops, key
from tests.servers import Valkey, wait_until

Make = Callable[[str], RedisLeases]


@pytest.fixture
def make(client: redis.Redis) -> Iterator[Make]:
    made: list[RedisLeases] = []

    def one(owner: str) -> RedisLeases:
        made.append(RedisLeases(client, owner))
        return made[-1]

    yield one
    for leases in made:
        leases.close()


def lost(lease: HeldLease) -> bool:
    try:
        lease.check()
    except LeaseLost:
        return True
    return False


def test_a_stopped_holder_learns_of_it_within_a_second(make: Make) -> None:
    a, b = make("a"), make("b")
    with a.hold("j1") as stopped, a.hold("j2") as other:
        began = time.monotonic()
        assert b.stop("j1")
        wait_until(lambda: lost(stopped), "the holder knows")  # type: ignore[arg-type]
        assert time.monotonic() - began < 1.0
        other.check()


def test_without_a_holder_there_is_nobody_to_stop_and_no_mark_is_left(make: Make, client: redis.Redis) -> None:
    assert not make("a").stop("j")
    assert client.keys(PREFIX + "*") == []


def test_a_later_holder_is_not_meant(make: Make) -> None:
    a, b = make("a"), make("b")
    with a.hold("j"):
        assert b.stop("j")
    with b.hold("j") as later:
        assert b.stops.look()
        later.check()


def test_a_mark_runs_out(make: Make, client: redis.Redis) -> None:
    a = make("a")
    with a.hold("j"):
        a.stop("j")
        assert 0 < client.pttl(key("dlpipe:lease:j")) <= 120_000


def test_one_question_for_all_jobs_and_none_between_the_looks(make: Make, client: redis.Redis) -> None:
    asked: list[Sequence[str]] = []

    def nothing(jobs: Sequence[str]) -> list[str | None]:
        asked.append(jobs)
        return [None] * len(jobs)

    stops = Stops(nothing, every_s=1000.0)
    held = [HeldLease(f"j{n}", f"t{n}", 100.0, 0.0, lambda: 0.0) for n in range(50)]
    for lease in held:
        stops.add(lease)
    for _ in range(1000):
        held[7].check()
    assert asked == []
    assert stops.look()
    assert asked == [[f"j{n}" for n in range(50)]]
    for lease in held:
        stops.remove(lease)
    assert stops.look()
    assert len(asked) == 1  # nothing held, nothing asked
    stops.stop()


def test_a_redis_that_is_away_stops_nobody_and_cannot_be_told(valkey: Valkey) -> None:
    with redis.Redis.from_url("unix:///nowhere/at/all.sock") as nobody:
        with pytest.raises(LeaseUnavailable):
            RedisLeases(nobody, "a").stop("j")
        stops = Stops(lambda jobs: nobody.mget(list(jobs)), every_s=1000.0)
        lease = HeldLease("j", "t", 100.0, 0.0, lambda: 0.0)
        stops.add(lease)
        assert not stops.look()
        lease.check()
        stops.stop()

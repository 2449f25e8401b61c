"""The port Reservations, on Redis and on the fake: promised room is seen by all, and the dead's runs out. STREAM-7."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from dlpipe.core.ports import Reservations
from dlpipe.lease.reservations import PREFIX, RedisReservations
from tests.fakes.reservations import FakeReservations
from tests.servers import Valkey, wait_until

PLENTY = 1 << 60
BIG = 1 << 52
"""More than a float holds exactly: Lua counts in floats, and 4 PiB is where a volume ends."""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server:
        yield server


@pytest.fixture(params=["redis", "fake"])
def reservations(request: pytest.FixtureRequest) -> Iterator[Reservations]:
    if request.param == "fake":
        yield FakeReservations()
        return
    server: Valkey = request.getfixturevalue("valkey")
    with server.client() as client:
        client.flushall()
        yield RedisReservations(client)


def test_others_see_what_is_promised_and_oneself_does_not(reservations: Reservations) -> None:
    assert reservations.reserve("v", "a", 100, PLENTY) == 0
    assert reservations.reserve("v", "b", 30, PLENTY) == 100
    assert reservations.reserve("v", "a", 90, PLENTY) == 30  # in place of the 100
    assert reservations.reserve("v", "c", 0, PLENTY) == 120
    assert reservations.reserve("w", "d", 5, PLENTY) == 0  # another volume
    reservations.release("v", "a")
    reservations.release("v", "never there")
    assert reservations.reserve("v", "c", 0, PLENTY) == 30


def test_what_does_not_fit_is_not_put_down_and_what_was_there_stays(reservations: Reservations) -> None:
    reservations.reserve("v", "a", 100, PLENTY)
    assert reservations.reserve("v", "b", 50, 99) == 100
    assert reservations.reserve("v", "c", 1, PLENTY) == 100
    assert reservations.reserve("v", "b", 50, 101) == 101
    assert reservations.reserve("v", "b", 70, -1) == 101
    assert reservations.reserve("v", "c", 1, PLENTY) == 150


def test_large_figures_are_exact(reservations: Reservations) -> None:
    reservations.reserve("v", "a", BIG + 1, PLENTY)
    assert reservations.reserve("v", "b", 1, BIG) == BIG + 1
    assert reservations.reserve("v", "b", 1, BIG + 1) == BIG + 1


def test_of_many_that_fit_only_one_at_a_time_one_is_let_in(valkey: Valkey) -> None:
    with valkey.client() as client:
        client.flushall()
        ours = RedisReservations(client)

        def ask(number: int) -> bool:
            return ours.reserve("v", f"job-{number}", 60, 40) <= 40

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(ask, range(40))) == 1


def test_what_the_dead_promised_runs_out(valkey: Valkey) -> None:
    def die(url: str) -> None:
        with redis.Redis.from_url(url) as client:
            RedisReservations(client, ttl_s=0.3).reserve("v", "dead", 100, PLENTY)

    with valkey.client() as client:
        client.flushall()
        process = multiprocessing.get_context("fork").Process(target=die, args=(valkey.url,))
        process.start()
        process.join(20)
        living = RedisReservations(client, ttl_s=60.0)
        wait_until(lambda: living.reserve("v", "b", 7, PLENTY) == 0, "the dead one's promise is gone")
        assert client.hlen(PREFIX + "v") == 1  # and takes no room in Redis either
        assert 0 < client.pttl(PREFIX + "v") <= 60_000


@pytest.mark.parametrize("call", ["reserve", "release"])
def test_without_redis_the_disk_itself_must_say_no(tmp_path: Path, call: str) -> None:
    calls: dict[str, Callable[[RedisReservations], object]] = {
        "reserve": lambda ours: ours.reserve("v", "a", 1, PLENTY),
        "release": lambda ours: ours.release("v", "a"),
    }
    with redis.Redis.from_url(f"unix://{tmp_path / 'nobody.sock'}") as client:
        assert not calls[call](RedisReservations(client))


@pytest.mark.parametrize("value", ["", "x", "1", "-5 99999999999999", "1 2 3"])
def test_what_cannot_be_read_is_dropped(valkey: Valkey, value: str) -> None:
    with valkey.client() as client:
        client.flushall()
        client.hset(PREFIX + "v", "odd", value)
        assert RedisReservations(client).reserve("v", "a", 1, PLENTY) == 0
        assert client.hkeys(PREFIX + "v") == [b"a"]

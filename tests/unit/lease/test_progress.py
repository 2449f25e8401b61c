"""Progress is best effort: bounded in rate and time, and silent about every failure."""

from __future__ import annotations

from collections.abc import Iterator

import fakeredis
import pytest
import redis

from dlpipe.lease.progress import PREFIX, RedisProgress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Down(fakeredis.FakeRedis):
    calls = 0

    def execute_command(self, *args: object, **kwargs: object) -> object:
        self.calls += 1
        raise redis.ConnectionError("down")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[False, True], ids=["bytes", "decoded"])
def client(request: pytest.FixtureRequest) -> Iterator[fakeredis.FakeRedis]:
    with fakeredis.FakeRedis(decode_responses=request.param) as client:
        yield client


def test_what_is_reported_is_seen_until_it_is_cleared(client: fakeredis.FakeRedis, clock: Clock) -> None:
    progress = RedisProgress(client, clock=clock)
    progress.report("j", 5, 10)
    progress.report("k", 7, None)
    assert progress.get(["j", "k", "unknown"]) == {"j": (5, 10), "k": (7, None)}
    progress.clear("j")
    assert progress.get(["j", "k"]) == {"k": (7, None)}
    assert progress.get([]) == {}


def test_it_runs_out_by_itself(client: fakeredis.FakeRedis, clock: Clock) -> None:
    RedisProgress(client, ttl_s=60, clock=clock).report("j", 5, 10)
    assert 50 < client.ttl(PREFIX + "j") <= 60


def test_four_reports_a_second_and_job_are_written(client: fakeredis.FakeRedis, clock: Clock) -> None:
    progress = RedisProgress(client, clock=clock)
    written = set()
    for step in range(100):
        clock.now = step / 100
        progress.report("j", step, 100)
        written.add(progress.get(["j"])["j"][0])
    assert len(written) == 4
    progress.report("k", 1, 2)
    assert progress.get(["k"]) == {"k": (1, 2)}


def test_what_came_at_once_is_not_told(client: fakeredis.FakeRedis, clock: Clock) -> None:
    progress = RedisProgress(client, clock=clock)
    progress.report("j", 10, 10)
    assert progress.get(["j"]) == {}
    progress.report("k", 5, 10)
    clock.now += 1
    progress.report("k", 10, 10)
    assert progress.get(["k"]) == {"k": (10, 10)}


def test_what_was_not_told_here_is_not_cleared_here(client: fakeredis.FakeRedis, clock: Clock) -> None:
    told = RedisProgress(client, clock=clock)
    told.report("j", 5, 10)
    RedisProgress(client, clock=clock).clear("j")
    assert told.get(["j"]) == {"j": (5, 10)}


def test_a_new_download_of_a_cleared_job_is_shown_at_once(client: fakeredis.FakeRedis, clock: Clock) -> None:
    progress = RedisProgress(client, clock=clock)
    progress.report("j", 1, 2)
    progress.clear("j")
    progress.report("j", 0, 2)
    assert progress.get(["j"]) == {"j": (0, 2)}


def test_jobs_never_cleared_are_forgotten(client: fakeredis.FakeRedis, clock: Clock) -> None:
    progress = RedisProgress(client, clock=clock)
    for number in range(5000):
        clock.now = number
        progress.report(f"j{number}", 1, 1)
    assert len(progress._last) <= 1025


@pytest.mark.parametrize("value", ["", "/", "x/1", "1/x", "1.5/2"])
def test_what_cannot_be_read_is_not_shown(client: fakeredis.FakeRedis, value: str) -> None:
    client.set(PREFIX + "j", value)
    assert RedisProgress(client).get(["j"]) == {}


def test_a_failing_redis_is_not_noticed_and_not_asked_again_at_once(clock: Clock) -> None:
    with Down() as down:
        progress = RedisProgress(down, clock=clock)
        assert progress.get(["j"]) == {}
        down.calls = 0
        for step in range(9):
            clock.now = step
            progress.report("j", step, 10)
            progress.clear("j")
        assert down.calls == 1
        clock.now = 10
        progress.report("j", 9, 10)
        assert down.calls == 2

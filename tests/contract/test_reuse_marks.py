"""Marks on origins whose connections are used once only: in Redis, in one process, and over both. HTTP.md, row 49."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator

import pytest
import redis

from dlpipe.net import reuse
from dlpipe.net.line import RedisLine
from dlpipe.net.reuse import MAX_ORIGINS, ReuseMarks
from tests.servers import Valkey

ORIGIN, OTHER = "https://a.example", "https://a.example:8443"
DAY_S = 86_400.0


class Clock:
    """One time for Redis and the processes."""

    def __init__(self) -> None:
        self.s = 1_000_000.0

    def ms(self) -> int:
        return round(self.s * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def worker(client: redis.Redis | None, clock: Clock) -> ReuseMarks:
    line = None if client is None else RedisLine(client, away_s=0.0, now_ms=clock.ms)
    return ReuseMarks(line, DAY_S, lambda: clock.s)


@pytest.fixture(params=["redis", "one process", "redis is away"])
def marks(request: pytest.FixtureRequest, clock: Clock) -> Iterator[ReuseMarks]:
    if request.param == "one process":
        yield worker(None, clock)
    elif request.param == "redis is away":
        with redis.Redis.from_url("unix:///nowhere/at/all.sock") as away:
            yield worker(away, clock)
    else:
        yield worker(request.getfixturevalue("client"), clock)


def test_mark_holds_for_that_scheme_host_and_port_alone(marks: ReuseMarks) -> None:
    assert not marks.is_marked(ORIGIN)
    marks.mark(ORIGIN, "surplus")
    assert marks.is_marked(ORIGIN)
    assert not marks.is_marked(OTHER)
    assert not marks.is_marked("http://a.example:443")


def test_mark_ends_after_its_day(marks: ReuseMarks, clock: Clock, request: pytest.FixtureRequest) -> None:
    marks.mark(ORIGIN, "surplus")
    clock.s += DAY_S - 1
    assert marks.is_marked(ORIGIN)
    clock.s += 1
    if "client" in request.fixturenames:  # its own clock decides there
        request.getfixturevalue("client").flushall()
    assert not marks.is_marked(ORIGIN)


def test_mark_is_told_once_in_the_log(marks: ReuseMarks, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            marks.mark(ORIGIN, "surplus")
    (line,) = [one.getMessage() for one in caplog.records if one.name == reuse.__name__]
    assert line == "no connection to https://a.example is used twice for 86400 s: surplus"


def test_marks_of_a_process_are_bounded(clock: Clock) -> None:
    marks = worker(None, clock)
    for port in range(MAX_ORIGINS + 1):
        marks.mark(f"http://a.example:{port}", "surplus")
    assert not marks.is_marked("http://a.example:0")
    assert marks.is_marked("http://a.example:1")
    assert marks.is_marked(f"http://a.example:{MAX_ORIGINS}")


# ── all workers together ──────────────────────────────────────────────────────────────────────────


def test_mark_of_one_worker_holds_for_others_within_a_second(client: redis.Redis, clock: Clock) -> None:
    one, other = worker(client, clock), worker(client, clock)
    assert not other.is_marked(ORIGIN)
    one.mark(ORIGIN, "surplus")
    assert worker(client, clock).is_marked(ORIGIN)
    clock.s += 1
    assert other.is_marked(ORIGIN)
    (key,) = client.keys("*")
    assert 0 < client.pttl(key) <= DAY_S * 1000


def test_redis_is_asked_about_an_origin_once_in_a_second(client: redis.Redis, clock: Clock) -> None:
    marks = worker(client, clock)
    before = client.info("stats")["total_commands_processed"]
    for _ in range(50):
        marks.is_marked(ORIGIN)
    assert client.info("stats")["total_commands_processed"] - before < 10


def test_mark_that_redis_was_away_for_is_shared_when_it_is_back(clock: Clock) -> None:
    with tempfile.TemporaryDirectory(prefix="dl") as directory:
        with Valkey(directory) as server, server.client() as client:
            marks = worker(client, clock)
            server.kill()
            marks.mark(ORIGIN, "surplus")
            assert marks.is_marked(ORIGIN)
        with Valkey(directory) as server, server.client() as client:
            marks._line = RedisLine(client, away_s=0.0, now_ms=clock.ms)
            assert marks.is_marked(ORIGIN)
            assert worker(client, clock).is_marked(ORIGIN)


def test_worker_keeps_a_mark_that_redis_forgot(client: redis.Redis, clock: Clock) -> None:
    ours, theirs = worker(client, clock), worker(client, clock)
    ours.mark(ORIGIN, "surplus")
    client.flushall()
    assert ours.is_marked(ORIGIN)
    assert not theirs.is_marked(ORIGIN)


def test_redis_may_go_at_any_moment_and_nothing_fails(clock: Clock) -> None:
    seen: list[str] = []
    with tempfile.TemporaryDirectory(prefix="dl") as directory, Valkey(directory) as server, server.client() as client:
        marks = worker(client, clock)
        marks.mark(ORIGIN, "surplus")
        server.kill()
        marks.mark(OTHER, "surplus")
        seen += [one for one in (ORIGIN, OTHER, "http://b.example") if marks.is_marked(one)]
    assert seen == [ORIGIN, OTHER]

"""What Redis tells those who watch, on a real one."""

from __future__ import annotations

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dlpipe.core.errors import LeaseUnavailable
from dlpipe.core.top import OriginState
from dlpipe.lease.watch import ROUND, RedisWatch
from dlpipe.net.breaker import BreakerBounds, SharedCircuits
from dlpipe.net.gate import MEANT, Pause, SharedGate, Target
from dlpipe.net.line import RedisLine


def test_an_origin_is_told_as_the_breaker_and_the_gate_have_it(client: redis.Redis) -> None:
    line, watch = RedisLine(client), RedisWatch(client)
    circuits, gate = SharedCircuits(line, BreakerBounds(1, 30_000, 1_000)), SharedGate(line)
    circuits.failed("down.example", "t")
    for n in range(MEANT):
        gate.busy("tired.example", Target("GET", f"u{n}"), Pause(20_000, 0, 20_000))
    seen = watch.origins(["down.example", "tired.example", "fine.example"])
    assert list(seen) == ["down.example", "tired.example", "fine.example"]
    assert 25 < (seen["down.example"].open_s or 0) <= 30
    assert 15 < (seen["tired.example"].cooling_s or 0) <= 20
    assert (seen["down.example"].cooling_s, seen["tired.example"].open_s) == (None, None)
    assert seen["fine.example"] == OriginState()
    assert watch.origins([]) == {}


def test_looking_changes_nothing(client: redis.Redis) -> None:
    watch = RedisWatch(client)
    watch.origins(["a.example"])
    watch.last_round()
    assert client.keys("*") == []


def test_the_last_round_is_told_with_its_age_and_without_what_it_did_not_find(client: redis.Redis) -> None:
    watch = RedisWatch(client)
    assert watch.last_round() is None
    watch.put_round({"orphans_requeued": 2, "files_missing": 0})
    last = watch.last_round()
    assert last is not None
    assert (last.found, 0 <= last.ago_s < 60) == ({"orphans_requeued": 2}, True)
    for nonsense in (b"nonsense", b"[1]"):
        client.set(ROUND, nonsense, px=1000)
        assert watch.last_round() is None


def test_a_redis_that_is_away_is_said_to_be_away() -> None:
    watch = RedisWatch(redis.Redis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0)))
    for ask in (lambda: watch.origins(["a"]), watch.last_round, lambda: watch.put_round({})):
        with pytest.raises(LeaseUnavailable):
            ask()

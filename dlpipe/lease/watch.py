"""What Redis can tell those who watch: how origins stand, what the last round of reconcile found. Decides nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.exceptions import RedisError

from dlpipe.core.errors import LeaseUnavailable
from dlpipe.core.top import LastRound, OriginState
from dlpipe.net import breaker, gate

ROUND = "dlpipe:reconcile:last"
_KEPT_MS = 86_400_000


class RedisWatch:
    """The port `Watch`."""

    def __init__(self, redis: redis.Redis) -> None:
        self._redis = redis

    def origins(self, origins: Sequence[str]) -> Mapping[str, OriginState]:
        asked = self._redis.pipeline(transaction=False)
        asked.time()
        for origin in origins:
            asked.hget(breaker.key(origin), "until")
            asked.hget(gate.key("cool", origin), "until")
        now_ms, *times = _answer(asked.execute)
        at = now_ms[0] * 1000 + now_ms[1] // 1000
        left = [_left_s(text, at) for text in times]
        states = (OriginState(*pair) for pair in zip(left[::2], left[1::2], strict=True))
        return dict(zip(origins, states, strict=True))

    def put_round(self, found: Mapping[str, int]) -> None:
        text = json.dumps({kind: count for kind, count in found.items() if count})
        _answer(lambda: self._redis.set(ROUND, text, px=_KEPT_MS))

    def last_round(self) -> LastRound | None:
        asked = self._redis.pipeline(transaction=False)
        asked.get(ROUND)
        asked.pttl(ROUND)
        text, left_ms = _answer(asked.execute)
        try:
            found = json.loads(text) if text else None
        except ValueError:
            return None
        if not isinstance(found, dict) or left_ms < 0:
            return None
        return LastRound((_KEPT_MS - left_ms) / 1000, {str(kind): int(count) for kind, count in found.items()})


def _answer(ask: Any) -> Any:
    try:
        return ask()
    except (RedisError, OSError) as error:
        raise LeaseUnavailable(f"Redis did not answer ({type(error).__name__})") from error


def _left_s(text: bytes | None, now_ms: int) -> float | None:
    try:
        left = float(text or 0) - now_ms
    except ValueError:
        return None
    return left / 1000 if left > 0 else None

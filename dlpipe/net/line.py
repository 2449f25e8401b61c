"""The line to Redis, over which the processes agree on what they may ask of a host.

All of what is kept there may vanish at any moment, and Redis may be away: then each process goes by
what it knows itself, and no download fails for it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

from redis.exceptions import NoScriptError, RedisError

log = logging.getLogger(__name__)

AWAY_S = 5.0

# Every script sees Redis' own clock: those of the workers need not agree. ARGV[1] is a test's clock, or empty.
PRELUDE = """
local function now_ms()
    if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
    local t = redis.call('TIME')
    return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local now = now_ms()
"""


class Away(Exception):
    """Redis does not answer."""


class Line(Protocol):
    def run(self, script: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        """Run a script in Redis, its ARGV beginning with an empty one; Away."""


class Client(Protocol):
    """What is needed of redis-py."""

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: str) -> Any: ...
    def eval(self, script: str, numkeys: int, *keys_and_args: str) -> Any: ...


class RedisLine:
    """Scripts on a real Redis. After a failure it is left alone for some seconds, as each would cost a timeout."""

    def __init__(
        self,
        client: Client,
        *,
        away_s: float = AWAY_S,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """`now_ms` takes the place of Redis' clock, for tests."""
        self._client, self._away_s, self._clock, self._now_ms = client, away_s, clock, now_ms
        self._away_until = float("-inf")

    def run(self, script: str, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        if self._clock() < self._away_until:
            raise Away
        now = "" if self._now_ms is None else str(self._now_ms())
        text, digest = _named(script)
        words = (*keys, now, *(str(arg) for arg in args))
        try:
            try:
                return self._client.evalsha(digest, len(keys), *words)
            except NoScriptError:
                return self._client.eval(text, len(keys), *words)
        except (RedisError, OSError) as error:
            self._away_until = self._clock() + self._away_s
            log.warning("Redis is away (%s): limits are kept by each process for itself", type(error).__name__)
            raise Away from error


@cache
def _named(script: str) -> tuple[str, str]:
    """A script as Redis gets it, and the name that Redis gives it."""
    text = PRELUDE + script
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

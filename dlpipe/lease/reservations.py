"""Room on volumes that running downloads have yet to fill, in Redis. What the dead had promised runs out."""

from __future__ import annotations

import logging

import redis
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

PREFIX = "dlpipe:room:"

# One hash per volume: job -> "bytes until", where `until` is by the clock of Redis (LEASE-6).
_RESERVE = """
local at = redis.call('TIME')
local now = at[1] * 1000 + math.floor(at[2] / 1000)
local others = 0
local held = redis.call('HGETALL', KEYS[1])
for i = 1, #held, 2 do
  local size, till = string.match(held[i + 1], '^(%d+) (%d+)$')
  if not till or tonumber(till) <= now then
    redis.call('HDEL', KEYS[1], held[i])
  elseif held[i] ~= ARGV[1] then
    others = others + tonumber(size)
  end
end
if others <= tonumber(ARGV[3]) then
  local till = string.format('%.0f', now + ARGV[4])
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. till)
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return string.format('%.0f', others)
"""


class RedisReservations:
    """The port `Reservations`. Without Redis nobody's promises are known, and the disk itself must say no."""

    def __init__(self, redis: redis.Redis, ttl_s: float = 120.0) -> None:
        self._redis = redis
        self._ttl_ms = max(1, int(ttl_s * 1000))

    def reserve(self, volume: str, job_id: str, size: int, at_most: int) -> int:
        try:
            found = self._redis.eval(_RESERVE, 1, PREFIX + volume, job_id, str(size), str(at_most), str(self._ttl_ms))
            return int(found)
        except (RedisError, OSError) as error:
            log.info("nobody knows what room is promised: %s", type(error).__name__)
            return 0

    def release(self, volume: str, job_id: str) -> None:
        try:
            self._redis.hdel(PREFIX + volume, job_id)
        except (RedisError, OSError) as error:
            log.info("promised room is left to run out: %s", type(error).__name__)

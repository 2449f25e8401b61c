"""Bytes so far, for people to watch, in Redis keys that soon vanish. Never fails, never decides anything."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import redis
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

PREFIX = "dlpipe:progress:"
_REMEMBERED = 1024


class RedisProgress:
    """The port `Progress`: at most `per_s` reports a second and job reach Redis, the others are dropped."""

    def __init__(
        self,
        redis: redis.Redis,
        ttl_s: float = 60.0,
        per_s: float = 4.0,
        quiet_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._ttl_ms = max(1, int(ttl_s * 1000))
        self._interval_s = 1 / per_s
        self._quiet_s = quiet_s
        self._clock = clock
        self._quiet_until = float("-inf")
        # Without a lock: a job is reported by its one holder, and a race costs no more than one report.
        self._last: dict[str, float] = {}

    def report(self, job_id: str, done: int, total: int | None) -> None:
        now = self._clock()
        if now < self._quiet_until or now - self._last.get(job_id, float("-inf")) < self._interval_s:
            return
        if done == total and job_id not in self._last:
            return  # it came at once, and there is nothing to watch
        self._last[job_id] = now
        if len(self._last) > _REMEMBERED:
            recent = now - self._interval_s
            self._last = {job: at for job, at in list(self._last.items()) if at > recent}
        try:
            self._redis.set(PREFIX + job_id, f"{done}/{'' if total is None else total}", px=self._ttl_ms)
        except (RedisError, OSError) as error:
            # A download must not wait for a silent Redis four times a second.
            self._quiet_until = self._clock() + self._quiet_s
            log.info("progress is not shown for a while: %s", type(error).__name__)

    def clear(self, job_id: str) -> None:
        if self._last.pop(job_id, None) is None:
            return  # nothing was told of it here
        if self._clock() < self._quiet_until:
            return  # the key runs out by itself
        try:
            self._redis.delete(PREFIX + job_id)
        except (RedisError, OSError) as error:
            self._quiet_until = self._clock() + self._quiet_s
            log.info("progress could not be cleared: %s", type(error).__name__)

    def get(self, job_ids: Sequence[str]) -> Mapping[str, tuple[int, int | None]]:
        """What is known of these jobs, as (bytes done, bytes in total if known)."""
        if not job_ids:
            return {}
        try:
            with self._redis.pipeline(transaction=False) as asked:  # one by one, as the nodes of a cluster have them
                for job_id in job_ids:
                    asked.get(PREFIX + job_id)
                values = asked.execute()
        except (RedisError, OSError) as error:
            log.info("progress could not be read: %s", type(error).__name__)
            return {}
        found = {job_id: _parse(value) for job_id, value in zip(job_ids, values, strict=True)}
        return {job_id: progress for job_id, progress in found.items() if progress is not None}


def _parse(value: object) -> tuple[int, int | None] | None:
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        return None
    done, _, total = text.partition("/")
    try:
        return int(done), int(total) if total else None
    except ValueError:
        return None

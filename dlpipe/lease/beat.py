"""Keeps periodic tasks from running twice at once, to save work: no correctness hangs on it."""

from __future__ import annotations

import logging
import uuid
from types import TracebackType

import redis
from redis.exceptions import RedisError

from dlpipe.lease import owner
from dlpipe.lease.lock import extend, give_back, take

log = logging.getLogger(__name__)

PREFIX = "dlpipe:beat:"

_owed: dict[str, str] = {}
"""Claims of this process that could not be given back, by key: Redis was away, and kept them."""


class SingleFlight:
    """`with SingleFlight(redis, "dispatch", ttl_s) as mine:` run the periodic task only if `mine`.

    It never waits: while another process holds `name`, the answer is False and this turn is skipped. The
    claim ends with the block, or after `ttl_s` when the process died in it; it is not renewed, so a task that
    takes longer may be joined by a second one. That must do no harm by itself, as two beats must not. Hence
    also: when Redis does not answer, the answer is True, for reconcile must not stop together with Redis.

    After a turn nobody gets the next one for `rest_s`: turns that piled up while no worker was there are skipped
    then. Redis tells that time. An expiry in the message would be the scheduler's clock held against the worker's,
    and a worker a minute ahead would skip every turn.
    """

    def __init__(self, redis: redis.Redis, name: str, ttl_s: float, rest_s: float = 0.0) -> None:
        self._redis = redis
        self._rest_ms = int(rest_s * 1000)
        self._key = PREFIX + name
        self._ttl_ms = max(1, int(ttl_s * 1000))
        self._token: str | None = None

    def __enter__(self) -> bool:
        token = f"{owner.current()}.{uuid.uuid4().hex}"
        try:
            if (owed := _owed.pop(self._key, None)) is not None:
                give_back(self._redis, self._key, owed)
            if not take(self._redis, self._key, token, self._ttl_ms) and not self._inherit(token):
                return False
        except RedisError as error:
            log.warning("%s runs unguarded, Redis did not answer: %s", self._key, type(error).__name__)
        self._token = token
        return True

    def _inherit(self, token: str) -> bool:
        """A process that was killed in its turn must not cost the others theirs for a whole `ttl_s`."""
        held = self._redis.get(self._key)
        before = held.decode() if isinstance(held, bytes) else held
        if not isinstance(before, str) or not owner.is_dead(before):
            return False
        give_back(self._redis, self._key, before)
        return take(self._redis, self._key, token, self._ttl_ms)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        if token is None:
            return
        try:
            if error is not None or not self._rest_ms:
                give_back(self._redis, self._key, token)
            else:
                extend(self._redis, self._key, token, self._rest_ms)
        except RedisError as failure:
            log.warning("%s is given back later: %s", self._key, type(failure).__name__)
            _owed[self._key] = token

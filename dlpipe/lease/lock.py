"""One holder per job among all workers: a Redis key with a TTL and a token that only its holder knows.

The lock decides who works; whose work counts is decided by the fence in the job's row, not here.
"""

from __future__ import annotations

import logging
import math
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import redis
from redis.exceptions import RedisError

from dlpipe.core.errors import LeaseBusy, LeaseUnavailable, Misconfigured, NotBegun
from dlpipe.core.ports import Lease
from dlpipe.lease import owner as process
from dlpipe.lease import stops
from dlpipe.lease.heartbeat import Heartbeat, Mirror
from dlpipe.lease.held import Clock, HeldLease, boot_clock

log = logging.getLogger(__name__)

PREFIX = "dlpipe:lease:"

_EXTEND = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
"""
_GIVE_BACK = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


def take(redis: redis.Redis, key: str, token: str, ttl_ms: int) -> bool:
    """Set the key for that time if nobody has; is it ours now? RedisError."""
    if redis.set(key, token, nx=True, px=ttl_ms):
        return True
    # A reply that got lost makes the client send SET NX again, which then meets our own key.
    return redis.get(key) in (token, token.encode())


def extend(redis: redis.Redis, key: str, token: str, ttl_ms: int) -> bool:
    """Let the key end after that time from now if it is ours. RedisError."""
    return bool(redis.eval(_EXTEND, 1, key, token, ttl_ms))


def give_back(redis: redis.Redis, key: str, token: str) -> bool:
    """Delete the key if it is ours; a foreign one stays. RedisError."""
    return bool(redis.eval(_GIVE_BACK, 1, key, token))


class RedisLeases:
    """The port `Leases` on Redis. One per process: it owns the process's heartbeat."""

    def __init__(
        self,
        redis: redis.Redis,
        owner: str | Callable[[], str] = process.current,
        ttl_s: float = 120.0,
        renew_s: float = 35.0,
        mirror: Mirror | None = None,
        clock: Clock = boot_clock,
        is_dead: Callable[[str], bool] = process.is_dead,
        hold_s: float = math.inf,
    ) -> None:
        """Pass `owner` as a function where the process may fork later: the child then gets its own name.

        `hold_s`: after so long a lease is lost, whatever its holder does.
        """
        if not 0 < renew_s < ttl_s / 2 < math.inf:
            raise Misconfigured(
                f"a lease of {ttl_s} s cannot be renewed every {renew_s} s",
                code="lease_times_invalid",
                hint="Renew more than twice within the lease's time, for example every 35 s of 120 s.",
            )
        self._redis = redis
        self._owner = owner
        self._ttl_s = ttl_s
        # Rounded up: the local end must never come after the one in Redis.
        self._ttl_ms = math.ceil(ttl_s * 1000)
        self._hold_s = hold_s
        self._clock = clock
        self._is_dead = is_dead
        self._owed: dict[str, str] = {}
        """Tokens of leases whose release failed, and their jobs."""
        self._ending = False
        self.heartbeat = Heartbeat(self._extend, mirror, ttl_s, renew_s, clock)
        self.stops = stops.Stops(lambda job_ids: stops.marks(redis, [PREFIX + job_id for job_id in job_ids]))

    @contextmanager
    def hold(self, job_id: str) -> Iterator[Lease]:
        """Hold the job's lease until the block ends; LeaseBusy, LeaseUnavailable."""
        lease, pid = self._acquire(job_id), os.getpid()
        try:
            self.heartbeat.add(lease)
            self.stops.add(lease)
            if self._ending:
                lease.give_up()  # it began after `give_up` had gone through those that are held
            yield lease
        finally:
            if os.getpid() == pid:  # a forked child that leaves this block must not free its parent's lease
                self.stops.remove(lease)
                self.heartbeat.remove(lease)
                self._release(job_id, lease.token)

    def live(self, job_ids: Sequence[str]) -> set[str]:
        """Which of these jobs somebody holds right now."""
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                for job_id in job_ids:
                    pipe.exists(PREFIX + job_id)
                return {job_id for job_id, found in zip(job_ids, pipe.execute(), strict=True) if found}
        except RedisError as error:
            raise _unavailable(error) from error

    def stop(self, job_id: str) -> bool:
        """Leave a mark for whoever holds the job now; False: nobody does."""
        try:
            return stops.mark(self._redis, PREFIX + job_id)
        except RedisError as error:
            raise _unavailable(error) from error

    def owner_is_dead(self, token: str) -> bool:
        """Is it certain that the process behind this token is gone?"""
        return self._is_dead(token)

    def release_dead(self, job_id: str, token: str) -> bool:
        """Release what a process that is certainly gone still holds; anything else stays."""
        if not self.owner_is_dead(token):
            return False
        try:
            return give_back(self._redis, PREFIX + job_id, token)
        except RedisError as error:
            raise _unavailable(error) from error

    def give_no_more(self) -> None:
        """This process is about to end, and no lease is given from now on; those that are held go on.

        For good: a message that the process had taken in advance would else begin a stream in the middle of its end.
        """
        self._ending = True

    def give_up(self) -> None:
        """The same, and who works under a lease of this process learns so at the next check."""
        self._ending = True
        self.heartbeat.give_up_all()

    def close(self) -> None:
        """End the threads, at the end of the process."""
        self.stops.stop()
        self.heartbeat.stop()

    def _acquire(self, job_id: str) -> HeldLease:
        if self._ending:
            raise NotBegun("this process is ending and begins nothing more")
        self._give_back_owed()
        owner = self._owner if isinstance(self._owner, str) else self._owner()
        token = f"{owner}.{uuid.uuid4().hex}"
        asked = self._clock()
        try:
            ours = take(self._redis, PREFIX + job_id, token, self._ttl_ms)
        except RedisError as error:
            # The key may be there all the same, and would keep everybody out for a whole TTL.
            self._release(job_id, token)
            raise _unavailable(error) from error
        if not ours and self._freed_of_the_dead(job_id):
            return self._acquire(job_id)
        if not ours:
            raise LeaseBusy(f"job {job_id} is held by another worker")
        return HeldLease(job_id, token, self._ttl_s, asked, self._clock, lambda: self._ending, self._hold_s)

    def _freed_of_the_dead(self, job_id: str) -> bool:
        """A holder that was killed after its last commit left only this key; nobody need wait for its end."""
        try:
            held = self._redis.get(PREFIX + job_id)
            token = held.decode() if isinstance(held, bytes) else held
            return isinstance(token, str) and self.owner_is_dead(token) and self.release_dead(job_id, token)
        except RedisError as error:
            raise _unavailable(error) from error

    def _extend(self, held: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Extend each lock that is still there and ours; None where Redis answered with an error."""
        with self._redis.pipeline(transaction=False) as pipe:
            for job_id, token in held:
                pipe.eval(_EXTEND, 1, PREFIX + job_id, token, str(self._ttl_ms))
            answers = pipe.execute(raise_on_error=False)
        return [None if isinstance(answer, Exception) else bool(answer) for answer in answers]

    def _release(self, job_id: str, token: str) -> None:
        try:
            give_back(self._redis, PREFIX + job_id, token)
        except RedisError as error:
            log.warning("the lease of job %s is given back later: %s", job_id, type(error).__name__)
            self._owed[token] = job_id

    def _give_back_owed(self) -> None:
        """Leases that could not be given back while Redis was away must not keep others out for a whole TTL."""
        for token in list(self._owed):
            job_id = self._owed.pop(token, None)
            if job_id is not None:
                self._release(job_id, token)
                if token in self._owed:
                    return  # it is still away


def _unavailable(error: RedisError) -> LeaseUnavailable:
    return LeaseUnavailable(f"Redis did not answer: {type(error).__name__}")

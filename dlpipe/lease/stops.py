"""Stop marks: who cancels or pauses a job leaves one in Redis, and the process that works on the job finds it (JOB-9).

One thread asks for all jobs of the process at once, twice a second; between chunks nobody asks anything.
The fence has made the work worthless already: the mark only saves the bytes that would still come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import redis
from redis.exceptions import RedisError

from dlpipe.lease.held import Rounds

log = logging.getLogger(__name__)

PREFIX = "dlpipe:stop:"
LOOK_EVERY_S = 0.5
QUIET_S = 10.0
MARK_MS = 120_000

# The mark names the holder of the moment: a later holder of the same job is not meant.
_MARK = """
local holder = redis.call('GET', KEYS[1])
if not holder then return 0 end
redis.call('SET', KEYS[2], holder, 'PX', ARGV[1])
return 1
"""

Marks = Callable[[Sequence[str]], Sequence[str | None]]
"""The tokens that the marks of these jobs name. Any error counts as no mark."""


def key(lease_key: str) -> str:
    """The braces keep it on the lease's node of a cluster: a script needs both."""
    return f"{PREFIX}{{{lease_key}}}"


def mark(redis: redis.Redis, lease_key: str) -> bool:
    """Ask whoever holds the job to stop; False when nobody does. RedisError."""
    return bool(redis.eval(_MARK, 2, lease_key, key(lease_key), str(MARK_MS)))


def marks(redis: redis.Redis, lease_keys: Sequence[str]) -> list[str | None]:
    # One by one, as the nodes of a cluster have them.
    with redis.pipeline(transaction=False) as asked:
        for lease_key in lease_keys:
            asked.get(key(lease_key))
        found = asked.execute()
    return [value.decode("ascii", "replace") if isinstance(value, bytes) else value for value in found]


class Stops(Rounds):
    """Looks for marks as long as this process holds leases."""

    def __init__(self, marks: Marks, every_s: float = LOOK_EVERY_S, quiet_s: float = QUIET_S) -> None:
        self._marks = marks
        super().__init__("dlpipe-stops", every_s, quiet_s)

    def go_round(self) -> bool:
        return self.look()

    def look(self) -> bool:
        """Ask once for every lease that is held; False when nobody answered."""
        held = self.held()
        if not held:
            return True
        try:
            found = self._marks([lease.job_id for lease in held])
        except (RedisError, OSError) as error:
            log.info("nobody can say whether jobs were stopped: %s", type(error).__name__)
            return False
        for lease, token in zip(held, found, strict=True):
            if token == lease.token:
                lease.lose("the job was canceled or paused")
        return True

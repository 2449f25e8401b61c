"""Keeps the leases of this process alive, and says of each for how long it can still be trusted.

One daemon thread per process renews all of them. It never takes a lease, and never brings a lost one back.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from dlpipe.core.errors import LeaseLost

log = logging.getLogger(__name__)

Clock = Callable[[], float]
Extend = Callable[[Sequence[tuple[str, str]]], Sequence[bool | None]]
"""Extend the locks of (job id, token). True: extended; False: ours no more; None or an error: unknown."""
Mirror = Callable[[Sequence[tuple[str, int]], float], set[str]]
"""Renew the leases in the rows of (job id, fence) for so long; answer the job ids that are ours no more."""

RETRY_S = 1.0
"""Pause after a renewal of which nobody knows whether it succeeded."""


def boot_clock() -> float:
    """Seconds that also pass while the machine sleeps, where the platform has such a clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class HeldLease:
    """A lease we were given. It counts as lost once its time is over here, whatever Redis may still think."""

    def __init__(self, job_id: str, token: str, ttl_s: float, asked: float, clock: Clock) -> None:
        self.job_id = job_id
        self.fence: int | None = None
        self._token = token
        self._ttl_s = ttl_s
        self._until = asked + ttl_s
        self._clock = clock
        self._lost: str | None = None

    @property
    def token(self) -> str:
        return self._token

    def bind(self, fence: int) -> None:
        self.fence = fence

    def check(self) -> None:
        if self.is_lost():
            raise LeaseLost(f"the lease of job {self.job_id} is lost: {self._lost}")

    def is_lost(self) -> bool:
        # A process that was stopped comes here before its heartbeat: the deadline is looked at each time.
        if self._lost is None and self._clock() >= self._until:
            self.lose("it was not renewed in time")
        return self._lost is not None

    def lose(self, reason: str) -> None:
        """From now on, and for good, the lease is lost. The first reason stays."""
        self._lost = self._lost or reason

    def renewed(self, asked: float) -> None:
        """A renewal that was sent at `asked`, or later, succeeded."""
        self._until = max(self._until, asked + self._ttl_s)


class Heartbeat:
    """Renews every `renew_s` what was added and not yet removed."""

    def __init__(
        self, extend: Extend, mirror: Mirror | None, ttl_s: float, renew_s: float, clock: Clock = boot_clock
    ) -> None:
        self._extend = extend
        self._mirror = mirror
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        self._clock = clock
        self._reset()
        this = weakref.ref(self)

        def after_fork() -> None:
            heartbeat = this()
            if heartbeat is not None:
                heartbeat._reset()

        os.register_at_fork(after_in_child=after_fork)

    def _reset(self) -> None:
        """Start from nothing: a forked child has neither the parent's thread nor a right to its leases."""
        self._lock = threading.Lock()
        self._held: dict[str, HeldLease] = {}
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def add(self, lease: HeldLease) -> None:
        with self._lock:
            self._held[lease.token] = lease
            if self._thread is None or not self._thread.is_alive():
                self._ending = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._ending,), name="dlpipe-heartbeat", daemon=True
                )
                self._thread.start()

    def remove(self, lease: HeldLease) -> None:
        with self._lock:
            self._held.pop(lease.token, None)

    def lose_all(self, reason: str) -> None:
        with self._lock:
            for lease in self._held.values():
                lease.lose(reason)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread. Leases still held are renewed no more; a lease added later starts it again."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._ending.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def beat(self) -> bool:
        """Renew each lease once; False when it is not known of all whether that succeeded."""
        with self._lock:
            held = [lease for lease in self._held.values() if not lease.is_lost()]
        if not held:
            return True
        # Taken before the request goes out: Redis counts from later on, so our end is not after its own.
        asked = self._clock()
        answers = self._extend_locks(held)
        ours = []
        for lease, answer in zip(held, answers, strict=True):
            if answer:
                ours.append(lease)
            elif answer is not None:
                self._lose(lease, "it ran out, or somebody else has it")
        claims = {lease.token: (lease.job_id, fence) for lease in ours if (fence := lease.fence) is not None}
        foreign = self._renew_rows(list(claims.values()))
        for lease in ours:
            if lease.token not in claims:
                lease.renewed(asked)
            elif foreign is not None and lease.job_id in foreign:
                self._lose(lease, "its fence was overtaken")
            elif foreign is not None:
                lease.renewed(asked)
        return None not in answers and foreign is not None

    def _extend_locks(self, held: list[HeldLease]) -> Sequence[bool | None]:
        try:
            return self._extend([(lease.job_id, lease.token) for lease in held])
        except Exception as error:
            log.warning("%d leases could not be renewed: %s", len(held), type(error).__name__)
            return [None] * len(held)

    def _renew_rows(self, claims: list[tuple[str, int]]) -> set[str] | None:
        """The job ids whose row is no longer ours; None when the database did not answer."""
        if self._mirror is None or not claims:
            return set()
        try:
            return set(self._mirror(claims, self._ttl_s))
        except Exception as error:
            log.warning("%d mirrored leases could not be renewed: %s", len(claims), type(error).__name__)
            return None

    def _lose(self, lease: HeldLease, reason: str) -> None:
        lease.lose(reason)
        with self._lock:
            wanted = lease.token in self._held
        if wanted:  # else it was released meanwhile, which is no news
            log.warning("the lease of job %s is lost: %s", lease.job_id, reason)

    def _run(self, ending: threading.Event) -> None:
        pause = self._renew_s
        while not ending.wait(pause):
            try:
                settled = self.beat()
            except Exception:
                # Without it every lease of this process would be lost, so it outlives its own faults.
                log.exception("the heartbeat failed")
                settled = False
            pause = self._renew_s if settled else min(RETRY_S, self._renew_s)

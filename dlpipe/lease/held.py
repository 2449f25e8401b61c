"""The leases that this process holds, and a thread that does something about all of them now and then."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable

from dlpipe.core.errors import LeaseLost, WorkerEnding

log = logging.getLogger(__name__)

Clock = Callable[[], float]


def boot_clock() -> float:
    """Seconds that also pass while the machine sleeps, where the platform has such a clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class HeldLease:
    """A lease we were given. It counts as lost once its time is over here, whatever Redis may still think."""

    def __init__(
        self,
        job_id: str,
        token: str,
        ttl_s: float,
        asked: float,
        clock: Clock,
        last: Callable[[], bool] = lambda: False,
        hold_s: float = math.inf,
    ) -> None:
        """`last`: is what is under way the last thing that this process does? `hold_s`: no longer than this in all."""
        self.job_id = job_id
        self.fence: int | None = None
        self._token = token
        self._ttl_s = ttl_s
        self._until = asked + ttl_s
        self._ends = asked + hold_s
        self._clock = clock
        self._last = last
        self._lost: str | None = None
        self._ending = False

    @property
    def token(self) -> str:
        return self._token

    def bind(self, fence: int | None) -> None:
        self.fence = fence

    def may_go_on(self) -> bool:
        return not (self._ending or self._last() or self.is_lost())

    def check(self) -> None:
        self.check_held()
        if self._ending:
            raise WorkerEnding(f"the lease of job {self.job_id} is given back: the process is ending")

    def check_held(self) -> None:
        if self.is_lost():
            raise LeaseLost(f"the lease of job {self.job_id} is lost: {self._lost}")

    def is_lost(self) -> bool:
        # A process that was stopped comes here before its heartbeat: the deadline is looked at each time.
        if self._lost is None and self._clock() >= self._until:
            self.lose("it was not renewed in time")
        elif self._lost is None and self._clock() >= self._ends:
            # The heartbeat lives on beside work that hangs, and would keep the job from everybody for ever.
            self.lose("it was held for longer than any job may take")
        return self._lost is not None

    def lose(self, reason: str) -> None:
        """From now on, and for good, the lease is lost. The first reason stays."""
        self._lost = self._lost or reason

    def give_up(self) -> None:
        """The process is to end. Until the work has stopped the lease is ours all the same, and is renewed."""
        self._ending = True

    def renewed(self, asked: float) -> None:
        """A renewal that was sent at `asked`, or later, succeeded."""
        self._until = max(self._until, asked + self._ttl_s)


class Rounds(ABC):
    """One daemon thread, from the first lease on, which goes round every `every_s`, or `again_s` after a failure."""

    def __init__(self, name: str, every_s: float, again_s: float) -> None:
        self._name, self._every_s, self._again_s = name, every_s, again_s
        self._reset()
        this = weakref.ref(self)

        def after_fork() -> None:
            rounds = this()
            if rounds is not None:
                rounds._reset()

        os.register_at_fork(after_in_child=after_fork)

    def _reset(self) -> None:
        """Start from nothing: a forked child has neither the parent's thread nor a right to its leases."""
        self._lock = threading.Lock()
        self._held: dict[str, HeldLease] = {}
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    @abstractmethod
    def go_round(self) -> bool:
        """Look after each lease once; False when it is not known of all whether that succeeded."""

    def add(self, lease: HeldLease) -> None:
        with self._lock:
            self._held[lease.token] = lease
            if self._thread is None or not self._thread.is_alive():
                self._ending = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._ending,), name=self._name, daemon=True)
                self._thread.start()

    def remove(self, lease: HeldLease) -> None:
        with self._lock:
            self._held.pop(lease.token, None)

    def held(self) -> list[HeldLease]:
        with self._lock:
            return list(self._held.values())

    def holds(self, lease: HeldLease) -> bool:
        with self._lock:
            return lease.token in self._held

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread. Leases still held are looked after no more; one that is added later starts it again."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._ending.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self, ending: threading.Event) -> None:
        pause = self._every_s
        while not ending.wait(pause):
            try:
                settled = self.go_round()
            except Exception:
                # Without it every lease of this process would be lost, so it outlives its own faults.
                log.exception("the thread %s failed", self._name)
                settled = False
            pause = self._every_s if settled else self._again_s

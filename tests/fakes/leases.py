"""Leases in memory: one process, no time. A test says when one is lost, and who is dead."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dlpipe.core.errors import LeaseBusy, LeaseLost, LeaseUnavailable, WorkerEnding


class FakeLease:
    def __init__(self, token: str) -> None:
        self._token = token
        self.fence: int | None = None
        self.lost = ""
        self.ending = False

    @property
    def token(self) -> str:
        return self._token

    def bind(self, fence: int | None) -> None:
        self.fence = fence

    def may_go_on(self) -> bool:
        return not (self.ending or self.lost)

    def check(self) -> None:
        self.check_held()
        if self.ending:
            raise WorkerEnding("the test ends the process")

    def check_held(self) -> None:
        if self.lost:
            raise LeaseLost(self.lost)


class FakeLeases:
    """The port `Leases`."""

    def __init__(self) -> None:
        self.held: dict[str, FakeLease] = {}
        self.dead: set[str] = set()
        self.down = False
        self._numbers = itertools.count(1)

    @contextmanager
    def hold(self, job_id: str) -> Iterator[FakeLease]:
        self._answer()
        if job_id in self.held:
            raise LeaseBusy(f"job {job_id} is held by another worker")
        lease = self.held[job_id] = FakeLease(f"fake.{next(self._numbers)}")
        try:
            yield lease
        finally:
            if self.held.get(job_id) is lease:
                del self.held[job_id]

    def live(self, job_ids: Sequence[str]) -> set[str]:
        self._answer()
        return {job_id for job_id in job_ids if job_id in self.held}

    def stop(self, job_id: str) -> bool:
        self._answer()
        if job_id not in self.held:
            return False
        self.lose(job_id)
        return True

    def owner_is_dead(self, token: str) -> bool:
        return token in self.dead

    def release_dead(self, job_id: str, token: str) -> bool:
        self._answer()
        lease = self.held.get(job_id)
        if token not in self.dead or lease is None or lease.token != token:
            return False
        del self.held[job_id]
        return True

    # ── what a test does ──

    def take(self, job_id: str, token: str = "somebody.else") -> None:
        """Somebody else holds the job from now on; whoever held it has lost it."""
        if job_id in self.held:
            self.lose(job_id)
        self.held[job_id] = FakeLease(token)

    def lose(self, job_id: str) -> None:
        self.held[job_id].lost = "the test took it away"

    def give_up(self) -> None:
        """The process is to end."""
        for lease in self.held.values():
            lease.ending = True

    def _answer(self) -> None:
        if self.down:
            raise LeaseUnavailable("the test has switched Redis off")

"""Room on the store's volume for one download: asked for before its part is made, and again as it grows (STREAM-7)."""

from __future__ import annotations

from types import TracebackType

from dlpipe.core import quota, waits
from dlpipe.core.errors import Permanent, Postponed
from dlpipe.core.model import ArtifactJob
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.settling import settle

LOOK_EVERY_BYTES = 32 << 20
LOOK_EVERY_S = 10.0
_ALWAYS = 1 << 62


class Admission:
    """What this job has promised to fill is known to the others until the block ends."""

    def __init__(self, deps: Deps, job: ArtifactJob) -> None:
        self._deps = deps
        self._job = job
        self._volume: str | None = None
        self._since = 0
        self._looked = deps.clock()
        self._total: int | None = None
        self._waited = job.waited.room_s > 0
        self.first: quota.Decision | None = None
        """What it was let in by."""

    def hint(self, total: int | None) -> bool:
        """Ask by what HEAD declared, which may be wrong: it may put the job off, but only a GET may end it.

        False: there is no room for that size, and the job would end; the length that the GET declares decides.
        """
        retry, waited = self._deps.policy.retry, self._job.waited
        try:
            self._ask(total)
        except Permanent:
            return False
        except Postponed as refusal:
            if waits.given_up(refusal, waited, retry) is None:
                raise
            return False
        return True

    def ask(self, total: int | None) -> None:
        """Postponed when the volume has no room for the rest of a file of that size, Permanent when it never will.

        Where it has, the wait for room is over, however the run goes on; a length that is unknown ends none.
        """
        self._ask(total)
        if self._waited and total is not None:
            settle(self._deps.database, lambda unit: unit.jobs.has_room(self._job))
            self._waited = False

    def _ask(self, total: int | None) -> None:
        if self.first is not None and total is not None and total == self._total and not self._since:
            return  # that room is promised to it already
        deps, policy = self._deps, self._deps.policy.quota
        room = deps.staging.room(self._job.scope.tenant_id, self._job.canonical_url)
        need = quota.need(total, room.taken, LOOK_EVERY_BYTES)
        if quota.never_fits(room, need, policy):
            raise quota.too_large_for(room, need, policy)
        spare = quota.headroom(room.free, need, policy.margin, policy.floor_bytes) if need else _ALWAYS
        reserved = deps.reservations.reserve(room.volume, self._job.job_id, need, spare)
        self._volume = room.volume
        self._since, self._looked = 0, deps.clock()
        decision = quota.admit(room.free, reserved, need, policy.margin, policy.floor_bytes)
        if not decision.admitted:
            raise decision.refusal(anew=total is not None and total == self._total)
        self.first, self._total = self.first or decision, total

    def count(self, size: int, total: int | None) -> None:
        """Note that so many bytes came, and look again now and then."""
        self._since += size
        if self._since >= LOOK_EVERY_BYTES or self._deps.clock() - self._looked >= LOOK_EVERY_S:
            self.ask(total)

    def __enter__(self) -> Admission:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._volume is not None:
            self._deps.reservations.release(self._volume, self._job.job_id)

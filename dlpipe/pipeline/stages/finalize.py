"""Give the bytes their final name (FINAL-1), or find that a holder before us did (FINAL-2)."""

from __future__ import annotations

from dlpipe.core.crash import crash_point
from dlpipe.core.flow import OpType
from dlpipe.core.keys import Scalar
from dlpipe.core.layout import Equal, Place, space_of
from dlpipe.core.model import ArtifactJob
from dlpipe.core.results import FinalizeResult, Result, Results, StreamResult
from dlpipe.core.states import Purpose, State
from dlpipe.pipeline.stages import stored
from dlpipe.pipeline.stages.head import extension_of
from dlpipe.pipeline.stages.stage import Stage, Work, in_run, registered


class Finalize(Stage):
    def extras(self, job: ArtifactJob, results: Results) -> dict[str, Scalar]:
        return {"sha256": in_run(results, OpType.STREAM, StreamResult).sha256}

    def _place(self, work: Work) -> tuple[StreamResult, Place]:
        job, streamed = work.job, in_run(work.results, OpType.STREAM, StreamResult)
        # Where an earlier run put these bytes, they belong; a server may by now call their type by another name.
        before = work.op.prior.pointer if isinstance(work.op.prior, FinalizeResult) else None
        if before is None and (mine := registered(self.deps, job, streamed.sha256)) is not None:
            before = mine.storage_pointer
        if before is not None and self.deps.store.owns(before):
            return streamed, self.deps.store.place_at(before)
        first = self._first(job, streamed) if self.deps.store.equal is Equal.POINTER else None
        # Never another tenant's place: a signed link would tell whose it is (DEDUPE-2).
        if first is not None and first.tenant == job.scope.tenant_id:
            return streamed, first
        ext = extension_of(job, streamed.content_type)
        return streamed, self.deps.store.place(job.scope.tenant_id, job.scope.project_id, streamed.sha256, ext)

    def _first(self, job: ArtifactJob, streamed: StreamResult) -> Place | None:
        """Where the dedupe scope has these bytes already, and they are right (DEDUPE-1)."""
        store = self.deps.store
        with self.deps.database.glance() as glance:
            first = glance.registry.first_copy(self.deps.policy.scope_key(job.scope), streamed.sha256)
        if first is None or space_of(first.pointer) != store.backend:
            return None
        right = store.vouched(first.pointer, streamed.sha256, streamed.size)
        return store.place_at(first.pointer) if right else None

    def probe(self, work: Work) -> FinalizeResult | None:
        """Crashed between name and record? Then the file is there, and the part may still be, too."""
        if stored.is_replay(work.job):
            return None  # it has no part, and what it does can be done again
        streamed, place = self._place(work)
        store = self.deps.store
        right = store.is_right if _doubts(work.job) else store.vouched
        if not right(place.pointer, streamed.sha256, streamed.size):
            return None
        self.deps.store.settle(place.pointer)
        crash_point("finalize.settled")
        with work.grip.part(work.job) as part:
            part.remove()
        return FinalizeResult(streamed.sha256, streamed.size, place.pointer, already_there=True)

    def perform(self, work: Work) -> FinalizeResult:
        if stored.is_replay(work.job):
            return self._in_its_place(work)
        streamed, place = self._place(work)
        job = work.job
        with work.grip.part(job) as part:
            work.lease.check()
            if already := self._copied(work, place, streamed):
                part.remove()
            else:
                already = self.deps.store.publish(part, place, streamed.size, doubted=_doubts(job))
        return FinalizeResult(streamed.sha256, streamed.size, place.pointer, already_there=already)

    def _in_its_place(self, work: Work) -> FinalizeResult:
        held = stored.of(work.results)
        stored.look(self.deps, work.job, held, "finalize")
        if stored.does(work.job, "finalize"):
            self.deps.store.settle(held.pointer)
        return FinalizeResult(held.sha256, held.size, held.pointer, already_there=True)

    def _copied(self, work: Work, place: Place, streamed: StreamResult) -> bool:
        """What the store can copy by itself need not be sent."""
        store = self.deps.store
        if store.equal is Equal.LINK or _doubts(work.job):
            return False
        first = self._first(work.job, streamed)
        if first is None or first == place:
            return False
        store.copy(first.pointer, place)
        return True

    def enters(self, result: Result) -> State:
        return State.FINALIZED


def _doubts(job: ArtifactJob) -> bool:
    """Its file was found missing or wrong: what is in its place is believed only once it was read."""
    return job.purpose is Purpose.REPAIR

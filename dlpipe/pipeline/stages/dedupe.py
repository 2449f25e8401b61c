"""One copy of the same bytes per dedupe scope: share an earlier copy's, once it is proven right (DEDUPE-1)."""

from __future__ import annotations

from dataclasses import replace

from dlpipe.core.flow import OpType
from dlpipe.core.keys import Scalar
from dlpipe.core.model import NO_JOB, ArtifactJob
from dlpipe.core.ports import FirstCopy, Registration, Unit
from dlpipe.core.results import DedupeAction, DedupeResult, FinalizeResult, IndexResult, Result, Results
from dlpipe.core.states import State
from dlpipe.pipeline.discretion import only_others
from dlpipe.pipeline.stages import stored
from dlpipe.pipeline.stages.stage import Stage, Work, expect, latest


class Dedupe(Stage):
    def extras(self, job: ArtifactJob, results: Results) -> dict[str, Scalar]:
        indexed = latest(results, OpType.INDEX, IndexResult)
        return {"sha256": indexed.sha256, "pointer": indexed.pointer}

    def probe(self, work: Work) -> DedupeResult | None:
        """None: a file that was brought again shares nothing any more, whatever an earlier run achieved."""
        return None

    def perform(self, work: Work) -> DedupeResult:
        indexed = latest(work.results, OpType.INDEX, IndexResult)
        placed = latest(work.results, OpType.FINALIZE, FinalizeResult)
        if stored.is_replay(work.job):
            stored.look(self.deps, work.job, stored.of(work.results), "dedupe")
        first = self._first(work.job, indexed.sha256)
        if first is None or _is_ours(first, work.job, indexed):
            return DedupeResult(DedupeAction.DOWNLOAD, 0)
        if first.pointer == indexed.pointer:
            return DedupeResult(DedupeAction.SKIPPED, placed.size)  # the same place: finalize found it there
        store = self.deps.store
        if not store.owns(first.pointer) or not store.vouched(first.pointer, indexed.sha256, placed.size):
            return DedupeResult(DedupeAction.DOWNLOAD, 0)
        action = self.deps.store.unify(indexed.pointer, first.pointer)
        saved = 0 if action is DedupeAction.COPY else placed.size
        tenant = work.job.scope.tenant_id
        quiet = only_others(self.deps, tenant, first, indexed.sha256, besides=indexed.artifact_uuid)
        return DedupeResult(action, saved, quiet)

    def if_first(self, work: Work, new: Registration) -> tuple[DedupeResult, Registration] | None:
        """Most bytes are new, and then there is nothing to share."""
        if stored.is_replay(work.job):
            return None
        result = DedupeResult(DedupeAction.DOWNLOAD, 0)
        return result, replace(new, facts={**new.facts, "dedupe_action": result.told.value})

    def within(self, unit: Unit, work: Work) -> DedupeResult | None:
        """As above, when there was more to write."""
        job, indexed = work.job, latest(work.results, OpType.INDEX, IndexResult)
        if stored.is_replay(job):
            return None
        first = unit.registry.first_copy(self.deps.policy.scope_key(job.scope), indexed.sha256)
        # Without a row that is ours, somebody else's file has to be looked at.
        if first is None or not _is_ours(first, job, indexed):
            return None
        return DedupeResult(DedupeAction.DOWNLOAD, 0)

    def _first(self, job: ArtifactJob, sha256: str) -> FirstCopy | None:
        with self.deps.database.glance() as glance:
            return glance.registry.first_copy(self.deps.policy.scope_key(job.scope), sha256)

    def enters(self, result: Result) -> State:
        return State.DEDUPED

    def record(self, unit: Unit, work: Work, result: Result) -> None:
        job, done = work.job, expect(result, DedupeResult)
        indexed = latest(work.results, OpType.INDEX, IndexResult)
        scope = self.deps.policy.scope_key(job.scope)
        if done.action is DedupeAction.DOWNLOAD:
            first = unit.registry.first_copy(scope, indexed.sha256)
            if first is not None and first.pointer != indexed.pointer:
                # The earlier copy is gone or damaged: from now on ours is the one to share.
                unit.registry.repoint(scope, indexed.sha256, first.pointer, indexed.pointer, job.job_id)
        unit.registry.note(indexed.artifact_uuid, job.job_id, {"dedupe_action": done.told.value})


def _is_ours(first: FirstCopy, job: ArtifactJob, indexed: IndexResult) -> bool:
    """Also a file of ours that reconcile saw before we registered it."""
    return first.job_id == job.job_id or first == FirstCopy(indexed.pointer, NO_JOB)

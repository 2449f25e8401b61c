"""Register what came: artifact, hash index, URL index and manifest, in one transaction (INDEX-1)."""

from __future__ import annotations

import hashlib
from typing import Any

from dlpipe.core.flow import OpType
from dlpipe.core.keys import Scalar, artifact_uuid
from dlpipe.core.layout import space_of
from dlpipe.core.model import ArtifactJob, ArtifactRecord
from dlpipe.core.ports import KnownBlob, Registration, Unit
from dlpipe.core.results import FinalizeResult, IndexResult, Result, Results, ResumeResult, StreamResult
from dlpipe.core.states import State
from dlpipe.pipeline.stages import stored
from dlpipe.pipeline.stages.head import ARTIFACT_SCHEMA
from dlpipe.pipeline.stages.stage import Stage, Work, expect, latest, registered

MIB = 1 << 20


class Index(Stage):
    def extras(self, job: ArtifactJob, results: Results) -> dict[str, Scalar]:
        placed = latest(results, OpType.FINALIZE, FinalizeResult)
        return {"sha256": placed.sha256, "pointer": placed.pointer}

    def probe(self, work: Work) -> Result | None:
        """What an earlier run registered a replay looks at again."""
        return None if stored.is_replay(work.job) else super().probe(work)

    def perform(self, work: Work) -> IndexResult:
        placed = latest(work.results, OpType.FINALIZE, FinalizeResult)
        if stored.is_replay(work.job):
            stored.look(self.deps, work.job, stored.of(work.results), "index")
        mine = registered(self.deps, work.job, placed.sha256)
        # Bytes that an earlier run registered have their record, also when it was another stage that made it.
        known = mine.artifact_uuid if mine is not None and mine.storage_pointer == placed.pointer else None
        return IndexResult(placed.sha256, placed.pointer, known or artifact_uuid(work.op.op_key))

    def ahead(self, work: Work) -> IndexResult | None:
        """All that it does is written with its result."""
        return None if stored.is_replay(work.job) else self.perform(work)

    def enters(self, result: Result) -> State:
        return State.INDEXED

    def registers(self, work: Work, result: Result) -> Registration | None:
        return None if stored.is_replay(work.job) else self._found(work, expect(result, IndexResult))

    def record(self, unit: Unit, work: Work, result: Result) -> None:
        job, index = work.job, expect(result, IndexResult)
        if not stored.is_replay(job):
            unit.registry.register(self._found(work, index))
            return
        if not stored.does(job, "index"):
            unit.registry.note(index.artifact_uuid, job.job_id, {"run": job.run})
            return
        # Nobody was asked, so nothing is known anew of what the URL gives, nor of how the bytes came.
        new = self._found(work, index)
        pointer, size = new.record.storage_pointer, new.record.byte_size
        unit.registry.add_artifact(new.record)
        unit.registry.add_copy(new.dedupe_scope, index.sha256, pointer, size, job.job_id)
        unit.registry.mend(index.sha256, pointer)
        unit.registry.recall_url(job.scope.tenant_id, job.canonical_url, new.blob, index.artifact_uuid)
        unit.registry.note(index.artifact_uuid, job.job_id, new.facts)

    def _found(self, work: Work, index: IndexResult) -> Registration:
        job = work.job
        placed = latest(work.results, OpType.FINALIZE, FinalizeResult)
        streamed = latest(work.results, OpType.STREAM, StreamResult)
        record = ArtifactRecord(
            artifact_uuid=index.artifact_uuid,
            scope=job.scope,
            artifact_type="file",
            storage_backend=space_of(placed.pointer),
            storage_pointer=placed.pointer,
            content_type=streamed.content_type,
            byte_size=placed.size,
            sha256=placed.sha256,
            schema_version=ARTIFACT_SCHEMA,
            created_by_job_id=job.job_id,
        )
        # Behind a redirect they are the validators of another URL, and say nothing of what this one gives next time.
        own = streamed.final_url_sha256 == hashlib.sha256(job.canonical_url.encode()).hexdigest()
        blob = KnownBlob(
            placed.sha256,
            placed.pointer,
            placed.size,
            streamed.etag if own else None,
            streamed.last_modified if own else None,
            streamed.content_type,
        )
        facts: dict[str, Any] = {
            "run": job.run,
            "sha256": placed.sha256,
            "pointer": placed.pointer,
            "shard_prefix": self.deps.store.shard(placed.pointer),
            "byte_size": placed.size,
        }
        if not stored.is_replay(job):
            facts |= {
                **_decision(work.results.latest(OpType.RESUME), streamed),
                "bytes_written": streamed.bytes_written,
                "resumed_from_bytes": streamed.resumed_from_bytes,
                "elapsed_ms": streamed.elapsed_ms,
                "fsync_ms": streamed.fsync_ms,
                "avg_write_mibps": _rate(streamed),
                "quota_json": _quota(streamed),
            }
        return Registration(record, self.deps.policy.scope_key(job.scope), job.canonical_url, blob, facts)


def _decision(decided: Result | None, streamed: StreamResult) -> dict[str, Any]:
    """What was decided on held bytes; the stream's word is the later one."""
    if streamed.resume_decision is not None:
        return {"resume_decision": streamed.resume_decision, "resume_reason": streamed.resume_reason}
    if isinstance(decided, ResumeResult):
        return {"resume_decision": decided.decision, "resume_reason": decided.reason}
    return {}


def _quota(streamed: StreamResult) -> dict[str, Any] | None:
    if streamed.quota_decision is None:
        return None
    return {
        "decision": streamed.quota_decision,
        "free_bytes": streamed.quota_free,
        "reserved_bytes": streamed.quota_reserved,
        "need_bytes": streamed.quota_need,
        "floor_bytes": streamed.quota_floor,
        "margin_percent": streamed.quota_margin_percent,
    }


def _rate(streamed: StreamResult) -> float | None:
    """New bytes over time, in MiB/s (STREAM-8)."""
    if streamed.elapsed_ms <= 0:
        return None
    return round(streamed.bytes_written / MIB / (streamed.elapsed_ms / 1000), 3)

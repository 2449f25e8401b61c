"""Bring the bytes: one GET at a time, judged before a byte is written, hashed as they come (STREAM-1…6)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from dlpipe.core import resume
from dlpipe.core.crash import crash_point
from dlpipe.core.flow import OpType
from dlpipe.core.keys import Scalar
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import Part
from dlpipe.core.quota import Decision
from dlpipe.core.results import HeadResult, Result, Results, ResumeResult, StreamResult
from dlpipe.core.states import State
from dlpipe.pipeline.stages import stored
from dlpipe.pipeline.stages.fetch import Fetch
from dlpipe.pipeline.stages.resume import decide
from dlpipe.pipeline.stages.room import Admission
from dlpipe.pipeline.stages.stage import Stage, Work, in_run

MAX_CONTENT_TYPE = 255


class Stream(Stage):
    def extras(self, job: ArtifactJob, results: Results) -> dict[str, Scalar]:
        return {"run": job.run, "range_start": in_run(results, OpType.RESUME, ResumeResult).range_start}

    def perform(self, work: Work) -> StreamResult:
        job = work.job
        if stored.is_replay(job):
            return self._from_store(work)
        told = in_run(work.results, OpType.RESUME, ResumeResult)
        began = self.deps.clock()
        with ExitStack() as stack:
            admission = stack.enter_context(Admission(self.deps, job))
            if told.decision != "complete":
                admission.hint(in_run(work.results, OpType.HEAD, HeadResult).content_length)
            part = stack.enter_context(work.grip.part(job, until="finalize"))
            decided = self._as_it_is_now(work, part, told)
            fetch = Fetch(self.deps, work, part, admission)
            held = part.verify(decided.range_start) if decided.range_start else 0
            if decided.decision == "discard" or _is_promised_to_another(part, job):
                held = part.rewind(0)  # pieces further on are thrown away as well
            is_whole = decided.decision == "complete" and held == decided.range_start
            fetch.run(all_held=is_whole and _is_known(part, work))
            _, size, fsync_ms = part.finish(length_unproven=fetch.length_unproven)
            crash_point("stream.finished")
            facts = part.facts
            self.deps.progress.clear(job.job_id)
            return StreamResult(
                sha256=part.sha256,
                size=size,
                resumed_from_bytes=fetch.resumed_from,
                bytes_written=fetch.written,
                elapsed_ms=round((self.deps.clock() - began) * 1000),
                fsync_ms=fsync_ms,
                content_type=_bounded(fetch.content_type),
                etag=facts.etag if facts else None,
                last_modified=facts.last_modified if facts else None,
                length_unproven=fetch.length_unproven,
                host=fetch.host,
                **_figures(admission.first),
                final_url_sha256=facts.final_url_sha256 if facts else "",
                resume_decision=decided.decision if decided is not told else None,
                resume_reason=decided.reason if decided is not told else None,
            )

    def _as_it_is_now(self, work: Work, part: Part, decided: ResumeResult) -> ResumeResult:
        """The decision; when another worker began with it, and its message came again, what its bytes allow by now."""
        if not work.op.seen:
            return decided
        job, held = work.job, part.facts
        match decide(job, in_run(work.results, OpType.HEAD, HeadResult), held, self.deps.policy.resume):
            case resume.Resume(offset=offset, reason=reason) if offset > decided.range_start:
                return ResumeResult("resume", reason, offset)
            case resume.Complete(reason=reason):
                return ResumeResult("complete", reason, held.good if held else 0)
            case _:
                return decided

    def _from_store(self, work: Work) -> StreamResult:
        job, held, began = work.job, stored.of(work.results), self.deps.clock()
        if stored.does(job, "stream"):
            stored.read(self.deps, job, held, work.lease)
            self.deps.progress.clear(job.job_id)
        return StreamResult(
            sha256=held.sha256,
            size=held.size,
            resumed_from_bytes=held.size,
            bytes_written=0,
            elapsed_ms=round((self.deps.clock() - began) * 1000),
            fsync_ms=0,
            content_type=held.content_type,
            etag=held.etag,
            last_modified=held.last_modified,
            final_url_sha256=held.final_url_sha256,
        )

    def enters(self, result: Result) -> State:
        return State.STREAMING


def _is_known(part: Part, work: Work) -> bool:
    """Does more than the folder it lies in vouch for a whole part: a digest, or what an earlier run recorded of it?

    Else its end is compared with the server's: a part and a sidecar that fit each other may have been forged.
    """
    if work.job.expected_sha256 is not None:
        return True  # it is held against that
    recorded, facts = work.results.latest(OpType.STREAM), part.facts
    if not isinstance(recorded, StreamResult) or facts is None:
        return False
    of = recorded.etag, recorded.last_modified, recorded.final_url_sha256
    return recorded.sha256 == part.sha256 and of == (facts.etag, facts.last_modified, facts.final_url_sha256)


def _is_promised_to_another(part: Part, job: ArtifactJob) -> bool:
    """Since it was decided on, another job may have joined bytes of two servers here, under a digest of its own."""
    facts = part.facts
    return facts is not None and facts.promised not in (None, job.expected_sha256)


def _figures(decision: Decision | None) -> dict[str, Any]:
    """What the download was let in by, for the manifest; a file that was held whole asked for no room."""
    if decision is None:
        return {}
    return {
        "quota_decision": "admitted",
        "quota_free": decision.free,
        "quota_reserved": decision.reserved,
        "quota_need": decision.need,
        "quota_floor": decision.floor,
        "quota_margin_percent": round(100 * decision.margin),
    }


def _bounded(content_type: str | None) -> str | None:
    """A type that no column can hold is none."""
    return content_type if content_type is not None and len(content_type) <= MAX_CONTENT_TYPE else None

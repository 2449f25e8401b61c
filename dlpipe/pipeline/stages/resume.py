"""Decide, before asking for a byte, what to do with bytes that are held already (RESUME-1)."""

from __future__ import annotations

from dlpipe.core import mirrors, resume
from dlpipe.core.flow import OpType
from dlpipe.core.keys import Scalar
from dlpipe.core.model import ArtifactJob
from dlpipe.core.remote import PartFacts, RemoteFacts
from dlpipe.core.results import HeadResult, Result, Results, ResumeResult
from dlpipe.core.states import State
from dlpipe.pipeline.stages import stored
from dlpipe.pipeline.stages.pace import Pace
from dlpipe.pipeline.stages.stage import Stage, Work, in_run, part_of


class ResumeDecide(Stage):
    def extras(self, job: ArtifactJob, results: Results) -> dict[str, Scalar]:
        in_run(results, OpType.HEAD, HeadResult)
        return {"run": job.run}

    def perform(self, work: Work) -> ResumeResult:
        job = work.job
        head = in_run(work.results, OpType.HEAD, HeadResult)
        if stored.is_replay(job):
            return ResumeResult("replay", f"from_{job.replay_from}", stored.of(work.results).size)
        decided = self._by_what_is_held(job, head)
        return self._compare(work, decided.size, decided.offset) if isinstance(decided, resume.NeedPrefix) else decided

    def ahead(self, work: Work) -> ResumeResult | None:
        """Nearly always a look at the staging folder is all there is to it."""
        if stored.is_replay(work.job):
            return None
        decided = self._by_what_is_held(work.job, in_run(work.results, OpType.HEAD, HeadResult))
        return None if isinstance(decided, resume.NeedPrefix) else decided

    def _by_what_is_held(self, job: ArtifactJob, head: HeadResult) -> ResumeResult | resume.NeedPrefix:
        held = self.deps.staging.held(*part_of(self.deps, job))
        match decide(job, head, held, self.deps.policy.resume):
            case resume.Resume(offset=offset, reason=reason):
                return ResumeResult("resume", reason, offset)
            case resume.Complete(reason=reason):
                return ResumeResult("complete", reason, held.good if held else 0)
            case resume.Discard(reason=reason):
                return ResumeResult("discard", reason)
            case resume.Fresh(reason=reason):
                return ResumeResult("fresh", reason)
            case unsure:
                return unsure

    def _compare(self, work: Work, size: int, offset: int) -> ResumeResult:
        """Row 38: the server's first bytes against ours; the stream then compares the last ones, too."""
        theirs, pace = b"", Pace(self.deps.policy.stream, self.deps.clock)
        tenant = work.job.scope.tenant_id
        with self.deps.source.get(work.job.request_url, tenant=tenant, end=size, unproven=True, afresh=True) as answer:
            if answer.status == 206:
                pace.begin()
                for chunk in answer.chunks():
                    work.lease.check()
                    pace.count(len(chunk))
                    theirs += chunk
                    if len(theirs) >= size:
                        break
        with self.deps.staging.claim(*part_of(self.deps, work.job)) as part:
            right = part.verify(offset) == offset and part.read(0, size) == theirs[:size]
        if not right:
            return ResumeResult("discard", "prefix_differs")
        return ResumeResult("resume", resume.SAME_PREFIX, offset)

    def enters(self, result: Result) -> State:
        return State.RESUME_OK


def decide(job: ArtifactJob, head: HeadResult, held: PartFacts | None, policy: resume.ResumePolicy) -> resume.Decision:
    # What HEAD said is of the first URL; of a mirror's bytes only the mirror's answer can tell.
    elsewhere = held is not None and mirrors.is_from(job.mirrors, held.final_url_sha256)
    return resume.decide(None if elsewhere else remote_of(head), held, policy, job.expected_sha256)


def remote_of(head: HeadResult) -> RemoteFacts | None:
    """What HEAD said, as the facts it is decided on; None when HEAD was of no use."""
    if head.http_status is None:
        return None
    return RemoteFacts(
        http_status=head.http_status,
        final_url_sha256=head.final_url_sha256,
        etag=head.etag,
        last_modified=head.last_modified,
        date=head.date,
        accept_ranges=head.accept_ranges,
        content_length=head.content_length,
        content_type=head.content_type,
    )

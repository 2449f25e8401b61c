"""One claim's way from the bytes that are held to the whole file: ask, judge, write, and ask again if need be."""

from __future__ import annotations

from contextlib import suppress

from dlpipe.core import digests, joining, mirrors, ranges, resume, segments
from dlpipe.core.errors import LeaseLost, Permanent, Retryable, StageFailure
from dlpipe.core.flow import OpType
from dlpipe.core.joining import Ties
from dlpipe.core.ports import Answer, Part
from dlpipe.core.results import HeadResult, ResumeResult
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.stages.body import Bodies
from dlpipe.pipeline.stages.digested import file_agrees, range_agrees
from dlpipe.pipeline.stages.pace import Pace
from dlpipe.pipeline.stages.resume import remote_of
from dlpipe.pipeline.stages.room import Admission
from dlpipe.pipeline.stages.segments import Segments
from dlpipe.pipeline.stages.sniff import Sniff, expectation
from dlpipe.pipeline.stages.stage import Work, in_run

WHOLE_OVERLAP_BYTES = 64 << 10
"""Of a file that is held whole, and that nothing else vouches for, at least so many last bytes are compared."""


class Fetch:
    def __init__(self, deps: Deps, work: Work, part: Part, admission: Admission) -> None:
        self._deps = deps
        self._job = work.job
        self._lease = work.lease
        self._part = part
        self._admission = admission
        self._policy = deps.policy.stream
        self._head = in_run(work.results, OpType.HEAD, HeadResult)
        self._prefix_matched = in_run(work.results, OpType.RESUME, ResumeResult).reason == resume.SAME_PREFIX
        self._url = work.job.request_url
        self._begun_at: str | None = None
        """The URL that the held bytes came from, as far as this claim knows."""
        self._restarts = 0
        self._doubtful: Answer | None = None
        """An answer of this server that came on a connection which had carried another one."""
        self._afresh = False
        """Is the server asked over new connections only?"""
        self._pace = Pace(self._policy, deps.clock)
        self._in_pieces = False
        """Answers to several requests were put together, which may come from machines that do not agree."""
        self._compared = False
        """Held bytes were compared with this server's, and agreed: from then on its answers are only appended."""
        limits = [n for n in (self._job.max_bytes, self._policy.max_bytes) if n is not None]
        self._max_bytes = min(limits) if limits else None
        self._sniff = Sniff(part, lambda: expectation(deps, work.job, self._url, self.content_type))
        self._bodies = Bodies(deps, work.job.job_id, work.lease, part, admission, self._sniff, self._max_bytes)
        self.resumed_from = 0
        self.content_type: str | None = None
        self.length_unproven = False

    @property
    def host(self) -> str | None:
        parsed = self._deps.parse_url(self._url)
        return parsed.host if parsed else None

    @property
    def written(self) -> int:
        return self._bodies.written

    def run(self, *, all_held: bool) -> None:
        """Bring the file; when an earlier run brought all of it, its bytes were hashed again and nothing is asked."""
        try:
            unproven = all_held and self._is_unproven()
            if all_held and (self._policy.accept_unproven_length or not unproven):
                self.length_unproven = unproven
                self._bodies.check_size(self._part.offset)  # another job may have brought it, with another limit
                self.resumed_from = self._part.offset
                self.content_type = self._head.content_type
                self._sniff.look(at_end=True)
                if self._has_wanted_digest():
                    return
            self._from_any()
        except StageFailure as failure:
            if _is_worthless(failure):
                self._part.remove()
            else:
                self._vouch()
            raise
        except LeaseLost:
            self._vouch()
            raise

    def _is_unproven(self) -> bool:
        """Does only the end of a connection say that what is held is the whole file?"""
        facts = self._part.facts
        return facts is not None and facts.length_unproven and self._job.expected_sha256 is None

    def _from_any(self) -> None:
        facts = self._part.facts if self._part.offset else None
        urls = mirrors.order(self._job.request_url, self._job.mirrors, facts.final_url_sha256 if facts else None)
        self._begun_at = urls[0] if facts else None
        failures: list[StageFailure] = []
        for url in urls:
            self._url, self._restarts, self._compared = url, 0, False
            self._pace = Pace(self._policy, self._deps.clock)
            self._sniff.again()
            try:
                self._bring_whole()
                return
            except StageFailure as failure:
                if len(urls) == 1 or not mirrors.may_help(failure):
                    raise
                failures.append(failure)
                if _is_worthless(failure):
                    self._part.rewind(0)
                else:
                    self._part.flush()
        raise mirrors.outcome(failures)

    def _bring_whole(self) -> None:
        self._doubtful, self._afresh = None, False
        try:
            self._bring_right()
        except Permanent as failure:
            if self._doubtful is None or failure.code not in _MAY_BE_ANOTHERS:
                raise
            # What came on a reused connection may belong to another request, so no job fails for good by it (row 50).
            self._afresh, self._restarts = True, 0
            self._part.rewind(0)
            self._sniff.again()
            self._bring_right()
            self._doubtful.disown()

    def _bring_right(self) -> None:
        self._bring()
        while not self._has_wanted_digest():
            self._bring()

    def _bring(self) -> None:
        if not self._in_segments():
            while not self._one_answer():
                pass
        self._sniff.look(at_end=True)

    def _in_segments(self) -> bool:
        """Over several connections, where that is wanted and safe; False: one has to do it, or the rest of it."""
        held = self._part.begun if self._part.offset else None
        elsewhere = held is not None and self._is_elsewhere
        remote = held if elsewhere or self._url != self._job.request_url else remote_of(self._head)
        self._in_pieces = False
        if remote is None or not segments.suits(remote, self._deps.policy.segments):
            return False
        if self._restarts or self._afresh or self._resume_is_off():
            return False
        if self._max_bytes is not None and (remote.content_length or 0) > self._max_bytes:
            return False  # HEAD is a hint: the answer to GET decides whether the file is too large
        if not elsewhere:
            self._begun_at = self._url
        self._in_pieces = True
        self._sniff.again()  # the part may begin anew in there
        self.content_type = self._head.content_type
        ours = Segments(
            self._deps,
            self._job,
            self._lease,
            self._part,
            self._admission,
            self._pace,
            lambda: self._sniff.look(at_end=False),
        )
        try:
            whole = ours.bring(self._url, self.host or "", remote, self._max_bytes, elsewhere=elsewhere)
        finally:
            self._bodies.written += ours.written
            self._doubtful = self._doubtful or ours.doubtful
        self.resumed_from = self.resumed_from or ours.held
        if not whole:
            return False
        agreed = file_agrees(self._part, ours.declared, self._lease.check)
        return agreed is not False or self._restart("digest_mismatch")

    def _vouch(self) -> None:
        """What came before the failure is kept for the next run, unless the part is no longer ours."""
        with suppress(LeaseLost, StageFailure):
            self._part.flush()

    def _want(self) -> ranges.Want:
        """How the held bytes may be gone on with from this URL; from the start when nothing allows it."""
        facts = self._part.facts if self._part.offset and not self._resume_is_off() else None
        overlap = 0 if self._compared else self._policy.overlap_bytes
        ties = Ties(self._is_elsewhere, self._job.expected_sha256 is not None, self._prefix_matched)
        if facts is not None and facts.total == self._part.offset:
            # Nothing is missing: without a last part to be compared nothing would be, and a small file comes as soon.
            overlap = max(overlap, WHOLE_OVERLAP_BYTES)
            facts = facts if self._part.offset > overlap else None
        want = joining.want(facts, max(1, self._part.offset - overlap), ties, self._max_bytes)
        if want is None and self._part.offset:
            self._part.rewind(0)
        return want or ranges.Want(max_bytes=self._max_bytes)

    @property
    def _is_elsewhere(self) -> bool:
        """Did the held bytes come from another URL than the one that is asked now?"""
        return self._url != self._begun_at

    def _one_answer(self) -> bool:
        """Ask once; True when the file is whole, False when another request is called for."""
        self._pace.ask(self._part.offset)
        want = self._want()
        facts = self._part.facts if want.start else None
        with self._deps.source.get(
            self._url,
            tenant=self._job.scope.tenant_id,
            start=want.start,
            if_range=want.if_range,
            unproven=want.unproven,
            afresh=self._afresh,
        ) as answer:
            if answer.is_reused:
                self._doubtful = answer
            moved = facts is not None and answer.final_url_sha256 != facts.final_url_sha256
            if answer.status == 206 and moved and self._url == self._begun_at:
                return self._restart("final_url_changed")  # row 42: another place's validators say nothing
            judged = ranges.judge(answer.status, answer.headers, answer.framing, want)
            if joining.is_flip(answer.status, answer.headers, answer.final_url_sha256, want, judged):
                self._deps.flips.note(self.host or "")
            match judged:
                case ranges.Restart() if self._is_all(answer):
                    return True
                case ranges.Restart(reason=reason):
                    return self._restart(reason)
                case ranges.Append() as append:
                    if want.unproven and self._is_elsewhere and append.offset:
                        self._part.promise(self._job.expected_sha256 or "")
                    return self._take(answer, append)
                case reject:
                    raise reject.failure()

    def _resume_is_off(self) -> bool:
        return self._deps.flips.off(self.host or "")

    def _is_all(self, answer: Answer) -> bool:
        """Row 30: the server has no more than is held, and that is the very file that was asked for."""
        held, wanted = self._part.offset, self._job.expected_sha256
        if answer.status != 416 or ranges.unsatisfied_total(answer.headers) != held or self._part.sha256 != wanted:
            return False
        self._bodies.check_size(held)
        self.resumed_from = self.resumed_from or held
        self.content_type = self._head.content_type
        return True

    def _take(self, answer: Answer, append: ranges.Append) -> bool:
        self._admission.ask(append.total)
        if append.offset == 0:
            self._part.begin(ranges.facts(answer.status, answer.headers, answer.final_url_sha256))
            self._sniff.again()
            self.resumed_from = 0
            self._begun_at = self._url
        else:
            self.resumed_from = self.resumed_from or self._part.offset
        self.content_type = answer.headers.one("content-type") or self._head.content_type
        before = self._part.offset
        received = self._bodies.take(answer, append, self._pace)
        if received is None:
            return self._restart("overlap_differs")  # row 37: the same validator, other bytes
        agreed, expected = None, digests.expected_digests(answer.headers)
        if append.length is None or received == append.length:
            end, content = append.offset + received, expected.of_range(answer.status)
            if range_agrees(self._part, append.offset, end, content, self._lease.check) is False:
                return self._restart("digest_mismatch")  # row 44
            if append.total is None or end >= append.total:
                agreed = file_agrees(self._part, expected.of_file(answer.status), self._lease.check)
        if agreed is None and self._job.expected_sha256 is not None:
            agreed = self._part.sha256 == self._job.expected_sha256 or None
        match ranges.verdict(
            append,
            received,
            answer.framing,
            digest_agreed=agreed,
            known_total=self._head.content_length,
            accept_unproven=self._policy.accept_unproven_length,
        ):
            case ranges.Finished(length_unproven=unproven):
                self.length_unproven = unproven
                return True
            case ranges.More():
                self._part.flush()
                if self._part.offset == before and self._compared:
                    return self._restart("range_brings_nothing")  # it would be asked for again for ever
                self._compared = True
                return False
            case ranges.Restart(reason=reason):
                return self._restart(reason)
            case ranges.Incomplete():
                raise Retryable(
                    "the body ended before its declared length",
                    code="body_short",
                    hint="Nothing to do: it goes on from the bytes that are there.",
                )
            case reject:
                if reject.code == "length_unproven":
                    self._sniff.look(at_end=True)  # a page without a length is no file of unproven length
                raise reject.failure()

    def _restart(self, reason: str) -> bool:
        self._restarts += 1
        self._compared = False
        if self._restarts > self._policy.max_restarts:
            raise Retryable(
                f"the server's answers do not fit together ({reason})",
                code="restarts_exhausted",
                hint="Nothing to do: it is tried again later; if it stays so, use another source.",
            )
        self._part.rewind(0)
        self._pace.skip()
        return False

    def _has_wanted_digest(self) -> bool:
        """Is it the file that was asked for? False: it was put together, and is brought again from the start."""
        expected = self._job.expected_sha256
        if expected is None or self._part.sha256 == expected:
            return True
        if self.resumed_from or self._in_pieces:
            return self._restart("digest_mismatch")  # row 37: the same validator, other bytes
        raise Permanent(
            "the bytes do not hash to the sha256 that was asked for",
            code="sha256_mismatch",
            hint="Check the expected digest, or fetch from another source.",
        )


_MAY_BE_ANOTHERS = frozenset(
    {
        "content_coding", "length_unproven", "media_type_mismatch", "multipart", "protocol_error", "quota_exceeded",
        "range_not_asked", "sha256_mismatch", "too_large", "unexpected_status",
    }
)  # fmt: skip
"""What an answer to another request can fail a job with; the hub believes refusals of fresh connections only."""

_WORTHLESS = frozenset({"too_large", "media_type_mismatch", "sha256_mismatch", "digest_mismatch"})
"""Failures after which the bytes are of no use to a later run."""


def _is_worthless(failure: StageFailure) -> bool:
    never_fits = isinstance(failure, Permanent) and failure.code == "quota_exceeded"
    return never_fits or failure.code in _WORTHLESS

"""Bring the bytes: one GET at a time, judged before a byte is written, hashed as they come (STREAM-1…6)."""

from __future__ import annotations

from contextlib import suppress

from dlpipe.core import digests, media, ranges, resume
from dlpipe.core.answers import too_large
from dlpipe.core.crash import crash_point
from dlpipe.core.errors import LeaseLost, Permanent, Retryable, StageFailure
from dlpipe.core.flow import OpType
from dlpipe.core.keys import Scalar
from dlpipe.core.model import ArtifactJob
from dlpipe.core.ports import Answer, Part, Unit
from dlpipe.core.results import HeadResult, Result, Results, ResumeResult, StreamResult
from dlpipe.core.states import State
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.stages.pace import Pace
from dlpipe.pipeline.stages.stage import Stage, Work, in_run


class Stream(Stage):
    def extras(self, job: ArtifactJob, results: Results) -> dict[str, Scalar]:
        return {"run": job.run, "range_start": in_run(results, OpType.RESUME, ResumeResult).range_start}

    def perform(self, work: Work) -> StreamResult:
        job = work.job
        decided = in_run(work.results, OpType.RESUME, ResumeResult)
        began = self.deps.clock()
        with self.deps.staging.claim(job.scope.tenant_id, job.canonical_url, job.job_id, job.fence) as part:
            fetch = _Fetch(self.deps, work, part)
            held = part.verify(decided.range_start) if decided.range_start else 0
            fetch.run(all_held=decided.decision == "complete" and held == decided.range_start)
            _, size, fsync_ms = part.finish()
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
                content_type=fetch.content_type,
                etag=facts.etag if facts else None,
                last_modified=facts.last_modified if facts else None,
                length_unproven=fetch.length_unproven,
                final_url_sha256=facts.final_url_sha256 if facts else "",
            )

    def record(self, unit: Unit, work: Work, result: Result) -> State:
        return State.STREAMING


class _Fetch:
    """One claim's way from what is held to the whole file."""

    def __init__(self, deps: Deps, work: Work, part: Part) -> None:
        self._deps = deps
        self._job = work.job
        self._lease = work.lease
        self._part = part
        self._policy = deps.policy.stream
        self._head = in_run(work.results, OpType.HEAD, HeadResult)
        self._restarts = 0
        self._sniffed = False
        limits = [n for n in (self._job.max_bytes, self._policy.max_bytes) if n is not None]
        self._max_bytes = min(limits) if limits else None
        self.resumed_from = 0
        self.written = 0
        self.content_type: str | None = None
        self.length_unproven = False

    def run(self, *, all_held: bool) -> None:
        """Bring the file; when an earlier run brought all of it, its bytes were hashed again and nothing is asked."""
        try:
            if all_held:
                self._check_size(self._part.offset)  # another job may have brought it, with another limit
                self.resumed_from = self._part.offset
                self.content_type = self._head.content_type
            else:
                self._bring()
            self._sniff(at_end=True)
            while not self._has_wanted_digest():
                self._bring()
        except StageFailure as failure:
            if failure.code in _WORTHLESS:
                self._part.remove()
            else:
                self._vouch()
            raise
        except LeaseLost:
            self._vouch()
            raise

    def _bring(self) -> None:
        while not self._one_answer():
            pass

    def _vouch(self) -> None:
        """What came before the failure is kept for the next run, unless the part is no longer ours."""
        with suppress(LeaseLost, StageFailure):
            self._part.flush()

    def _one_answer(self) -> bool:
        """Ask once; True when the file is whole, False when another request is called for."""
        facts = self._part.facts if self._part.offset else None
        if_range = resume.validator(facts) if facts else None
        if if_range is None and self._part.offset:
            self._part.rewind(0)  # without a validator nothing may be joined
            facts = None
        want = ranges.Want(
            start=self._part.offset,
            if_range=if_range,
            etag=facts.etag if facts else None,
            total=facts.total if facts else None,
            max_bytes=self._max_bytes,
        )
        with self._deps.source.get(self._job.request_url, start=want.start, if_range=want.if_range) as answer:
            if answer.status == 206 and facts and answer.final_url_sha256 != facts.final_url_sha256:
                return self._restart("final_url_changed")  # row 42: another place's validators say nothing
            match ranges.judge(answer.status, answer.headers, answer.framing, want):
                case ranges.Restart(reason=reason):
                    return self._restart(reason)
                case ranges.Append() as append:
                    return self._take(answer, append)
                case reject:
                    raise reject.failure()

    def _take(self, answer: Answer, append: ranges.Append) -> bool:
        if append.offset == 0:
            self._part.begin(ranges.facts(answer.status, answer.headers, answer.final_url_sha256))
            self._sniffed = False
            self.resumed_from = 0
        else:
            self._part.rewind(append.offset)
            self.resumed_from = self.resumed_from or append.offset
        self.content_type = answer.headers.one("content-type") or self._head.content_type
        received = self._copy(answer, append)
        expected = digests.expected_digests(answer.headers).of_file(answer.status)
        agreed = digests.agree(expected, {"sha-256": bytes.fromhex(self._part.sha256)})
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
                raise reject.failure()

    def _copy(self, answer: Answer, append: ranges.Append) -> int:
        """Write the body at its place; answer how many bytes it had, also those past its declared end."""
        received = 0
        pace = Pace(self._policy, self._deps.clock)
        for chunk in answer.chunks():
            self._lease.check()
            room = len(chunk) if append.length is None else max(0, append.length - received)
            received += len(chunk)
            piece = memoryview(chunk)[:room]
            self._check_size(self._part.offset + len(piece))
            self._part.write(piece)
            self.written += len(piece)
            crash_point("stream.chunk")
            self._sniff(at_end=False)
            pace.count(len(chunk))
            self._deps.progress.report(self._job.job_id, self._part.offset, append.total)
            if received > room and append.length is not None and received > append.length:
                break
        return received

    def _check_size(self, size: int) -> None:
        if self._max_bytes is not None and size > self._max_bytes:
            raise too_large(self._max_bytes).failure()

    def _restart(self, reason: str) -> bool:
        self._restarts += 1
        if self._restarts > self._policy.max_restarts:
            raise Retryable(
                f"the server's answers do not fit together ({reason})",
                code="restarts_exhausted",
                hint="Nothing to do: it is tried again later; if it stays so, use another source.",
            )
        self._part.rewind(0)
        return False

    def _sniff(self, *, at_end: bool) -> None:
        expected = self._job.expected_media_type
        if not self._policy.sniff or expected is None or self._sniffed:
            return
        if self._part.offset < media.SNIFF_BYTES and not at_end:
            return
        self._sniffed = True
        if wrong := media.mismatch(expected, self._part.head(media.SNIFF_BYTES)):
            raise Permanent(
                wrong,
                code="media_type_mismatch",
                hint="Open the address in a browser: often it is a login or an error page. "
                "To take the file as it is, plan it without an expected media type.",
            )

    def _has_wanted_digest(self) -> bool:
        """Is it the file that was asked for? False: it was put together, and is brought again from the start."""
        expected = self._job.expected_sha256
        if expected is None or self._part.sha256 == expected:
            return True
        if self.resumed_from:
            return self._restart("digest_mismatch")  # row 37: the same validator, other bytes
        raise Permanent(
            "the bytes do not hash to the sha256 that was asked for",
            code="sha256_mismatch",
            hint="Check the expected digest, or fetch from another source.",
        )


_WORTHLESS = frozenset({"too_large", "media_type_mismatch", "sha256_mismatch", "digest_mismatch"})
"""Failures after which the bytes are of no use to a later run."""

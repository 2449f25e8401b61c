"""One answer's body, written at its place: what is held already is compared, not written again."""

from __future__ import annotations

from dlpipe.core import ranges
from dlpipe.core.answers import too_large
from dlpipe.core.crash import crash_point
from dlpipe.core.ports import Answer, Lease, Part
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.stages.pace import Pace
from dlpipe.pipeline.stages.room import Admission
from dlpipe.pipeline.stages.sniff import Sniff

VOUCH_BYTES = 768 << 10
"""Written, but not yet vouched for, at most: with the overlap and what is in hand, less than 1 MiB is lost."""


class Bodies:
    """Takes the bodies of one download, each under the same bounds."""

    def __init__(
        self,
        deps: Deps,
        job_id: str,
        lease: Lease,
        part: Part,
        admission: Admission,
        sniff: Sniff,
        max_bytes: int | None,
    ) -> None:
        self._deps, self._job_id, self._lease, self._part = deps, job_id, lease, part
        self._admission, self._sniff, self._max_bytes = admission, sniff, max_bytes
        self.written = 0

    def check_size(self, size: int) -> None:
        if self._max_bytes is not None and size > self._max_bytes:
            raise too_large(self._max_bytes).failure()

    def take(self, answer: Answer, append: ranges.Append) -> int | None:
        """Write the body; answer how many bytes it had, also those past its declared end.

        None when what of it we hold already is not the same.
        """
        part, received, unvouched = self._part, 0, 0
        pace = Pace(self._deps.policy.stream, self._deps.clock)
        for chunk in answer.chunks():
            self._lease.check()
            room = len(chunk) if append.length is None else max(0, append.length - received)
            at = append.offset + received
            received += len(chunk)
            piece = memoryview(chunk)[:room]
            held = min(len(piece), max(0, part.offset - at))
            if held and part.read(at, held) != piece[:held]:
                return None
            piece = piece[held:]
            self.check_size(part.offset + len(piece))
            self._admission.count(len(piece), append.total)
            part.write(piece)
            self.written += len(piece)
            unvouched += len(piece)
            if unvouched >= VOUCH_BYTES:
                part.flush()
                unvouched = 0
            crash_point("stream.chunk")
            self._sniff.look(at_end=False)
            pace.count(len(chunk))
            self._deps.progress.report(self._job_id, part.offset, append.total)
            if received > room and append.length is not None and received > append.length:
                break
        return received

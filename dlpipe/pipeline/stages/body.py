"""One answer's body, written at its place: what is held already is compared, not written again."""

from __future__ import annotations

from dlpipe.core import ranges
from dlpipe.core.answers import too_large
from dlpipe.core.crash import crash_point
from dlpipe.core.errors import LeaseLost, StageFailure
from dlpipe.core.ports import Answer, Lease, Part
from dlpipe.pipeline.deps import Deps
from dlpipe.pipeline.stages.pace import Pace
from dlpipe.pipeline.stages.room import Admission
from dlpipe.pipeline.stages.sniff import Sniff

LOOK_BYTES = 1 << 20
"""Of a body that comes fast, so many between two looks at what it is and how far it is."""
BLOCK_S = 0.2
"""For so long a block is filled before what is there is written."""


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
        self._broken: StageFailure | LeaseLost | None = None

    def check_size(self, size: int) -> None:
        if self._max_bytes is not None and size > self._max_bytes:
            raise too_large(self._max_bytes).failure()

    def take(self, answer: Answer, append: ranges.Append, pace: Pace) -> int | None:
        """Write the body; answer how many bytes it had, also those past its declared end.

        None when what of it we hold already is not the same.
        """
        part, received, unseen, self._broken = self._part, 0, LOOK_BYTES, None
        pace.begin()
        while size := self._fill(answer, buffer := part.buffer(), pace):
            room = size if append.length is None else max(0, append.length - received)
            at = append.offset + received
            received += size
            piece = buffer[: min(size, room)]
            offset = part.offset
            if offset > at:
                held = min(len(piece), offset - at)
                if part.read(at, held) != piece[:held]:
                    return None
                piece = piece[held:]
            self.check_size(offset + len(piece))
            self._admission.count(len(piece), append.total)
            self.written += len(piece)
            part.write(piece)
            pace.reach(part.offset)
            crash_point("stream.chunk")
            unseen += size
            if unseen >= LOOK_BYTES or size < len(buffer):
                unseen = 0
                self._sniff.look(at_end=False)
                self._deps.progress.report(self._job_id, part.offset, append.total)
            if append.length is not None and received > append.length:
                break
        return received

    def _fill(self, answer: Answer, buffer: memoryview, pace: Pace) -> int:
        """Fill a block from the body, as far as it comes at once: a slow one must not keep its bytes from the disk."""
        if self._broken is not None:
            raise self._broken
        filled, ends = 0, self._deps.clock() + BLOCK_S
        try:
            while filled < len(buffer):
                size = answer.read_into(buffer[filled:])
                self._lease.check()
                filled += size
                pace.count(size)
                if not size or self._deps.clock() > ends:
                    break
        except (StageFailure, LeaseLost) as failure:
            if not filled:
                raise
            self._broken = failure  # what came before it is written first
        return filled
